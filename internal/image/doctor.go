package image

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// Finding is one thing that images need, and whether this machine has it.
type Finding struct {
	// Name is a program, a builder or a file system.
	Name string `json:"name"`
	// For says who needs it: "build", "worker" or "base".
	For string `json:"for"`
	OK  bool   `json:"ok"`
	// Detail is a version, or why it does not work.
	Detail string `json:"detail"`
	// Fix is the command that mends it; "" when it is OK.
	Fix string `json:"fix,omitempty"`
}

// Check looks at what this machine has for building and unpacking images. Of the builders one is enough.
func Check(ctx context.Context, cacheDir string) []Finding {
	var all []Finding
	for _, find := range finders(cacheDir) {
		asking, cancel := context.WithTimeout(ctx, builderPatience)
		b, reason := find.ask(asking)
		cancel()
		f := Finding{Name: find.name, For: "build", OK: b != nil, Detail: reason}
		if b != nil {
			f.Detail = "answers"
		} else if find.name == "buildah" {
			f.Fix = "apt-get install -y buildah"
		} else {
			f.Fix = "start it, or use buildah: apt-get install -y buildah"
		}
		all = append(all, f)
	}
	tool := func(program, use, pkg string, args ...string) Finding {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		f := Finding{Name: program, For: use}
		cmd := exec.CommandContext(asking, program, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		if err != nil {
			// An old mkfs.erofs says its version, and also that it does not know the flag.
			if v := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(program) + ` \d.*$`).Find(out); v != nil {
				f.OK, f.Detail = true, string(v)
				return f
			}
			f.Detail, f.Fix = why(out, err), "apt-get install -y "+pkg
			return f
		}
		f.OK = true
		f.Detail, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
		return f
	}
	return append(all,
		tool("mkfs.erofs", "worker", "erofs-utils", "-V"),
		tool("mmdebstrap", "base", "mmdebstrap", "--version"),
		tool("npm", "base", "npm", "--version"),
	)
}
