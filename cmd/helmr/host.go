package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/sandbox"
)

// companion finds a program that is shipped with helmr: beside it, otherwise on PATH.
func companion(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		path := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	return "", hinted{fmt.Errorf("%s is missing: it is neither beside helmr nor on PATH", name), "run `make setup` in helmr's source, and keep helmr, helmr-guest and runsc in one folder"}
}

// capacity is what a Worker offers.
type capacity struct{ cpuMillis, memoryMiB, diskMiB int64 }

// hostCapacity finds out what this machine has: all CPUs, memory that is free now, and the disk under dir but for a
// reserve.
func hostCapacity(dir string, reserveMiB int64) (capacity, error) {
	var c capacity
	c.cpuMillis = int64(runtime.NumCPU()) * 1000
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return c, fmt.Errorf("find out the memory of this machine: %w", err)
	}
	for line := range strings.Lines(string(memory)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			c.memoryMiB = kib / 1024
		}
	}
	if c.memoryMiB == 0 {
		return c, errors.New("find out the memory of this machine: /proc/meminfo does not say what is available")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return c, fmt.Errorf("find out the free disk of %s: %w", dir, err)
	}
	free := int64(fs.Bavail) * fs.Bsize >> 20
	if free <= reserveMiB {
		return c, hinted{fmt.Errorf("the disk of %s is full: %d MiB are free, %d of them are kept in reserve", dir, free, reserveMiB), "free some space, or use a folder on another disk"}
	}
	c.diskMiB = free - reserveMiB
	return c, nil
}

// fatalProblems makes one error of what a machine lacks; nil if sandboxes work.
func fatalProblems(problems []sandbox.Problem) error {
	var text []string
	for _, p := range problems {
		if p.Fatal {
			text = append(text, p.What+"\n    "+p.Fix)
		}
	}
	if len(text) == 0 {
		return nil
	}
	return hinted{errors.New("this machine cannot run sandboxes:\n  " + strings.Join(text, "\n  ")), "`helmr doctor` checks everything that helmr needs"}
}

// logProblems logs what only weakens sandboxes.
func logProblems(problems []sandbox.Problem, log *slog.Logger) {
	for _, p := range problems {
		if !p.Fatal {
			log.Warn("this machine lacks something", "what", p.What, "fix", p.Fix)
		}
	}
}

// lockFolder makes a folder and makes sure that one process of a kind uses it; setting is what names the folder.
func lockFolder(dir, kind, setting string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make the folder of helmr %s: %w", kind, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, kind+".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of helmr %s: %w", kind, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // the lock of somebody else is not touched
		return nil, hinted{fmt.Errorf("another helmr %s runs on %s", kind, dir), "stop it, or name another folder with " + setting}
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}
