package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Files of a Worker that runs with a guard, in its folder.
const (
	leaseFile  = "lease"
	guardLock  = "guard.lock"
	guardLog   = "guard.log"
	guardStart = 5 * time.Second
)

// Pauses of the guard: between two looks, and between two looks for new sandboxes after the lease.
const (
	guardLooks = time.Second
	guardHunts = 100 * time.Millisecond
)

// uptime reads the clock that leases are measured by. It runs on while the machine sleeps, and nobody sets it.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// renewed takes up an answer to a heartbeat that was sent at sentAt. The file is what the guard goes by: it is written
// before anything is done under the lease.
func (w *Worker) renewed(sentAt time.Duration, leaseMs, nextMs int64) error {
	until := sentAt + time.Duration(leaseMs)*time.Millisecond
	w.mu.Lock()
	defer w.mu.Unlock()
	if nextMs > 0 {
		w.beatEvery = time.Duration(nextMs) * time.Millisecond
	}
	if until <= w.leaseUntil {
		return nil
	}
	if err := w.writeLease(until); err != nil {
		return err
	}
	w.leaseUntil = until
	return nil
}

// writeLease tells the guard until when this process may run sandboxes.
func (w *Worker) writeLease(until time.Duration) error {
	if len(w.cfg.Guard) == 0 {
		return nil
	}
	path := filepath.Join(w.cfg.Dir, leaseFile)
	text := fmt.Sprintf("%d %d\n", until.Nanoseconds(), os.Getpid())
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	return nil
}

// takeLease makes this process the one that the guard watches, with what is left of the lease of the one before.
func (w *Worker) takeLease() error {
	until, _ := readLease(w.cfg.Dir)
	return w.writeLease(until)
}

// leaseOver tells whether this Worker may run nothing now, and for how long it still may.
func (w *Worker) leaseOver() (over bool, left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left = w.leaseUntil - uptime()
	return left <= 0, left
}

// watchLease stops every Computer when the lease is over, whatever the heartbeats wait for.
func (w *Worker) watchLease(ctx context.Context) {
	for told := false; ; {
		over, left := w.leaseOver()
		switch {
		case !over:
			told = false
		case !told:
			told = true
			w.fenceAll(errors.New("the server has not answered in time"))
		}
		if !sleep(ctx, max(min(left, time.Second), guardHunts)) {
			return
		}
	}
}

// ensureGuard starts the guard of this folder unless it runs.
func (w *Worker) ensureGuard(ctx context.Context) error {
	if len(w.cfg.Guard) == 0 || guarded(w.cfg.Dir) {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(w.cfg.Dir, guardLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	defer func() { _ = log.Close() }() // the guard has its own
	cmd := exec.Command(w.cfg.Guard[0], w.cfg.Guard[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", []string{"PATH=" + os.Getenv("PATH")}, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this program
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reaps it; how it ended stands in its log
	limited, cancel := context.WithTimeout(ctx, guardStart)
	defer cancel()
	for !guarded(w.cfg.Dir) {
		if !sleep(limited, 10*time.Millisecond) {
			return fmt.Errorf("the guard did not start within %s: see %s", guardStart, filepath.Join(w.cfg.Dir, guardLog))
		}
	}
	return nil
}

// lockGuard takes the lock that the one guard of a folder holds; nil without an error: another has it.
func lockGuard(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, guardLock), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the guard: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, nil
	}
	return f, nil
}

func guarded(dir string) bool {
	f, err := lockGuard(dir)
	if f != nil {
		_ = f.Close()
	}
	return err == nil && f == nil
}

// Guard ends the sandboxes of the Worker on dir when its lease is over: a process of its own, because a Worker that is
// stopped, hangs or was killed cannot do that, while its sandboxes run on. kill ends all of them and tells how many it
// found; it is called again and again, since a Worker that wakes up may be starting one. Guard returns when neither a
// Worker nor a sandbox is left, or when another guard is there.
func Guard(ctx context.Context, dir string, kill func(ctx context.Context) (int, error), left func() (int, error)) error {
	lock, err := lockGuard(dir)
	if err != nil || lock == nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	defer shelter(serviceGroups)()
	for {
		until, pid := readLease(dir)
		now := uptime()
		pause := min(until-now, guardLooks)
		n, err := left()
		if err == nil && n > 0 && now >= until {
			if n, err = kill(ctx); n > 0 {
				fmt.Fprintf(os.Stderr, "%s the lease is over: ended %d processes of sandboxes\n", time.Now().UTC().Format(time.RFC3339), n)
			}
		}
		switch {
		case err != nil && errors.Is(err, os.ErrNotExist):
			return nil // the folder is gone
		case err != nil:
			fmt.Fprintf(os.Stderr, "%s cannot end sandboxes: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		case n == 0 && (pid == 0 || syscall.Kill(pid, 0) != nil):
			return nil
		}
		if !sleep(ctx, max(pause, guardHunts)) {
			return nil
		}
	}
}

// readLease gives when the lease of the Worker on dir is over, by uptime, and the Worker's process. Without a lease that
// is now.
func readLease(dir string) (until time.Duration, pid int) {
	text, err := os.ReadFile(filepath.Join(dir, leaseFile))
	if err != nil {
		return 0, 0
	}
	first, second, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0
	}
	pid, _ = strconv.Atoi(second)
	return time.Duration(n), pid
}

// serviceGroups are where service managers keep the groups of their services: the unified hierarchy, and systemd's own.
var serviceGroups = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}

// guardGroup is the control group of the guards of a machine.
const guardGroup = "helmr-guards"

// shelter keeps the guard from what ends Workers: the killer of a machine without memory, and a service manager that ends
// all of its service's group. Where it may not, the guard does without. The result gives its group back.
func shelter(hierarchies []string) (leave func()) {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	var left []string
	for _, h := range hierarchies {
		group := filepath.Join(h, guardGroup)
		if _, err := os.Stat(filepath.Join(h, "cgroup.procs")); err != nil {
			continue
		}
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			continue
		}
		if os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0) == nil {
			left = append(left, h)
		}
	}
	return func() {
		for _, h := range left {
			_ = os.WriteFile(filepath.Join(h, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
			_ = os.Remove(filepath.Join(h, guardGroup)) // unless another guard is in it
		}
	}
}
