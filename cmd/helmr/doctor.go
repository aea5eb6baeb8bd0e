package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/image"
	"helmr.dev/helmr/internal/sandbox/gvisor"
)

// finding is what doctor found out about one thing.
type finding struct {
	Name string `json:"name"`
	// For is what needs it: worker, build or server.
	For string `json:"for"`
	// Status is ok, weak (it works, with less) or missing.
	Status string `json:"status"`
	Detail string `json:"detail"`
	// Fix is what mends it, a command where there is one.
	Fix string `json:"fix,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this machine has and lacks for helmr, and what mends it",
		Long: `Checks, by trying, what this machine has for building agents and for hosting computers, and says which command mends
what is missing. It changes nothing. The exit status is 1 if something that is needed is missing.`,
		Example: "  helmr doctor\n  helmr doctor --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found := diagnose(cmd.Context())
			missing := 0
			for _, f := range found {
				if f.Status == "missing" {
					missing++
				}
			}
			err := a.show(cmd, map[string]any{"ok": missing == 0, "findings": found}, func(w *text) {
				for _, f := range found {
					mark := map[string]string{"ok": "ok", "weak": "weak", "missing": "MISSING"}[f.Status]
					w.row(mark, f.Name, f.For, f.Detail)
				}
				for _, f := range found {
					if f.Fix != "" {
						w.line("")
						w.line("%s: %s", f.Name, f.Fix)
					}
				}
			})
			if err == nil && missing > 0 {
				return exitError{exitFailed, fmt.Sprintf("%d of the things that helmr needs are missing", missing)}
			}
			return err
		},
	}
}

func diagnose(ctx context.Context) []finding {
	found := []finding{platform()}
	runsc, err := companion("runsc")
	found = append(found, present("runsc (gVisor)", "worker", runsc, err), guestProgram())
	switch {
	case os.Geteuid() != 0:
		found = append(found, finding{Name: "root rights", For: "worker", Status: "missing", Detail: "sandboxes need them", Fix: "run helmr dev or helmr worker as root, for example with sudo"})
	case err == nil:
		found = append(found, sandboxes(ctx, runsc)...)
	}
	found = append(found, nodeProgram(ctx))
	found = append(found, images(ctx)...)
	return append(found, baseImage(), disk())
}

func platform() finding {
	f := finding{Name: "machine", For: "worker", Status: "ok", Detail: runtime.GOOS + "/" + runtime.GOARCH}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		f.Status, f.Fix = "missing", "computers run on Linux x86_64 only; the other commands work here too"
	}
	return f
}

// present is the finding of a program that was looked for.
func present(name, use, path string, err error) finding {
	if err != nil {
		f := finding{Name: name, For: use, Status: "missing", Detail: err.Error()}
		if h, ok := err.(hinted); ok {
			f.Fix = h.hint
		}
		return f
	}
	return finding{Name: name, For: use, Status: "ok", Detail: path}
}

func guestProgram() finding {
	path, err := companion("helmr-guest")
	return present("helmr-guest", "worker", path, err)
}

// sandboxes starts one, and tells what is missing for it.
func sandboxes(ctx context.Context, runsc string) []finding {
	var found []finding
	works := finding{Name: "sandboxes", For: "worker", Status: "ok", Detail: "one was started and removed"}
	for _, p := range append(gvisor.Preflight(ctx, gvisor.Config{RunscPath: runsc}), networkProblem(ctx)...) {
		f := finding{Name: "sandboxes", For: "worker", Status: "weak", Detail: p.What, Fix: p.Fix}
		if p.Fatal {
			f.Status, works.Status = "missing", "missing"
		}
		found = append(found, f)
	}
	if works.Status == "ok" {
		found = append(found, works)
	}
	return found
}

// images tells what builds and unpacks images. Of the builders one is enough.
func images(ctx context.Context) []finding {
	dir, err := image.CacheDir()
	if err != nil {
		return []finding{{Name: "images", For: "build", Status: "missing", Detail: err.Error(), Fix: "set HELMR_CACHE_DIR to a folder for what can be made again"}}
	}
	var found []finding
	builds := finding{Name: "image builder", For: "build", Status: "missing", Detail: "none answers", Fix: "apt-get install buildah crun"}
	for _, f := range image.Check(ctx, dir) {
		switch {
		case f.For == "build" && f.OK && builds.Status != "ok":
			builds = finding{Name: builds.Name, For: "build", Status: "ok", Detail: f.Name + " " + f.Detail}
		case f.For == "build" || f.Name == "mkfs.erofs": // the sandboxes tell about the latter
		case f.OK:
			found = append(found, finding{Name: f.Name, For: f.For, Status: "ok", Detail: firstLine(f.Detail)})
		default:
			found = append(found, finding{Name: f.Name, For: f.For, Status: "weak", Detail: firstLine(f.Detail), Fix: f.Fix})
		}
	}
	return append([]finding{builds}, found...)
}

// wantNode is the oldest that builds a project; Computers have a later one of their own.
const wantNode = 20

func nodeProgram(ctx context.Context) finding {
	f := finding{Name: "Node.js", For: "build", Status: "missing", Fix: "install Node.js 22 or later and npm, and put them on PATH"}
	path, err := exec.LookPath("node")
	if err != nil {
		f.Detail = "node is not on PATH"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	version := strings.TrimSpace(string(out))
	if err != nil {
		f.Detail = fmt.Sprintf("%s does not run: %v", path, err)
		return f
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < wantNode {
		f.Detail = fmt.Sprintf("%s is %s, which is too old", path, version)
		return f
	}
	return finding{Name: f.Name, For: f.For, Status: "ok", Detail: path + " " + version}
}

// baseImage looks whether the image that starter projects begin with is there without a registry.
func baseImage() finding {
	f := finding{Name: "base image", For: "build", Status: "ok"}
	dir, err := image.CacheDir()
	if err == nil {
		var s *image.Store
		if s, err = image.OpenStore(dir); err == nil {
			var have bool
			if _, have, err = s.Find(image.BaseRef); err == nil && have {
				f.Detail = image.BaseRef + " is in the local store"
				return f
			}
		}
	}
	f.Status, f.Detail = "weak", image.BaseRef+" is not in the local store; builds ask a registry for it"
	if err != nil {
		f.Detail = err.Error()
	}
	f.Fix = "where no registry can be reached: helmr image base"
	return f
}

// disk looks at the disk for temporary files, on which builds and computers work.
func disk() finding {
	dir := os.TempDir()
	f := finding{Name: "disk", For: "worker", Status: "ok"}
	offer, err := hostCapacity(dir, devReserveMiB)
	switch {
	case err != nil:
		f.Status, f.Detail, f.Fix = "missing", err.Error(), "free some space"
	case offer.diskMiB < 4096:
		f.Status, f.Detail, f.Fix = "weak", fmt.Sprintf("only %s are free on the disk of %s", mebibytes(offer.diskMiB), filepath.Clean(dir)), "free some space: images and computers need a few GiB"
	default:
		f.Detail = fmt.Sprintf("%d GiB free, %d GiB of memory, %d CPUs", offer.diskMiB/1024, offer.memoryMiB/1024, offer.cpuMillis/1000)
	}
	return f
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
