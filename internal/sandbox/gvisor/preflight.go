package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/sandbox"
)

// Preflight finds out what this machine lacks for running sandboxes, by trying: it starts one. It needs no Runtime and
// leaves nothing behind. cfg.Root only says whose disk is looked at: it may be missing, and "" looks at none.
func Preflight(ctx context.Context, cfg Config) []sandbox.Problem {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var found []sandbox.Problem
	add := func(fatal bool, fix, what string, args ...any) {
		found = append(found, sandbox.Problem{What: fmt.Sprintf(what, args...), Fix: fix, Fatal: fatal})
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err == nil {
		release := unix.ByteSliceToString(uname.Release[:])
		if !kernelAtLeast(release, 5, 10) {
			add(true, "use a newer Linux, for example Debian 12", "Linux %s is too old for sandboxes: want 5.10 or newer", release)
		}
	}
	root := os.Geteuid() == 0
	if !root {
		add(true, "start the Worker as root", "sandboxes need root rights")
	}
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		add(true, "apt-get install erofs-utils", "mkfs.erofs is missing: root filesystems cannot be made")
	}
	runs := true
	if out, err := run(ctx, cfg.RunscPath, "--version"); err != nil {
		runs = false
		add(true, "make setup", "runsc (gVisor) at %s does not run: %s", cfg.RunscPath, explain(err, out))
	}
	if !root {
		return found
	}
	cg := detectCgroups(cgroupMount)
	if cg.version == 0 {
		add(false, "mount cgroups (v2) writable and give the Worker the cpu, memory, pids and io controllers",
			"CPU and memory of sandboxes and the speed of their disks are not bounded: %s", cg.reason)
	} else if _, err := cg.disksOf(nearest(cfg.Root)...); err != nil {
		add(false, "give the Worker the io controller of cgroups (v2) or blkio (v1), and keep its folder on a disk",
			"the speed of sandboxes' disks is not bounded: %v", err)
	}
	if runs {
		if err := tryPlatform(ctx, cfg.RunscPath); err != nil {
			add(true, "allow ptrace, seccomp and user namespaces to this process; in a container, run it privileged",
				"a sandbox does not start here: %v", err)
		}
	}
	return found
}

// nearest gives the folder that path is, or will be made in.
func nearest(path string) []string {
	if path == "" {
		return nil
	}
	for filepath.Dir(path) != path {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return []string{path}
}

// tryPlatform runs a program of the host in a throw-away sandbox: whether the kernel, and the container or VM around
// this process, let gVisor work is seen only then.
func tryPlatform(ctx context.Context, runsc string) error {
	program, err := exec.LookPath("true")
	if err != nil {
		return fmt.Errorf("find a program to try: %w", err)
	}
	dir, err := os.MkdirTemp("", "helmr-try-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	out, err := run(ctx, runsc, "--root="+filepath.Join(dir, "state"), "--platform=systrap", "--network=none",
		"--ignore-cgroups", "--gofer-network-namespace=new", "do", "-quiet", program)
	if err != nil {
		return errors.New(explain(err, out))
	}
	return nil
}

func run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	out := &output{limit: consoleSize}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	return strings.TrimSpace(out.buf.String()), err
}

// explain prefers what the program said to how it ended.
func explain(err error, out string) string {
	if out == "" {
		return err.Error()
	}
	lines := strings.Split(out, "\n")
	return lines[len(lines)-1]
}

// kernelAtLeast compares the first two numbers of a release such as "6.1.0-13-amd64". 5.10 is what we try with; pidfds
// need 5.3 and openat2 5.6.
func kernelAtLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return true // let the trial say
	}
	return a > major || a == major && b >= minor
}
