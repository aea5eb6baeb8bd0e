package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process names a host process across the reuse of its number.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
}

// lookUp finds the living process pid. A zombie does not live: it only waits for somebody to read its status.
func lookUp(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, os.ErrProcessDone
	}
	// The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
	rest := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(rest) < 20 {
		return process{}, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(rest))
	}
	if state := rest[0]; state == "Z" || state == "X" {
		return process{}, os.ErrProcessDone
	}
	start, err := strconv.ParseUint(rest[19], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return process{PID: pid, Start: start}, nil
}

func (p process) alive() bool {
	now, err := lookUp(p.PID)
	return err == nil && now == p
}

// open returns a handle that stays with this process; os.ErrProcessDone when it is gone.
func (p process) open() (*os.File, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	// Non-blocking makes the file one that Go's poller takes, so that a wait holds no thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("pidfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if !p.alive() { // the number may have passed to another process before pidfd_open
		f.Close()
		return nil, os.ErrProcessDone
	}
	return f, nil
}

// waitGone returns when the process of the handle has ended, or with ctx's error.
func waitGone(ctx context.Context, pidfd *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process: %w", err)
	}
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || (err != nil && err != unix.EINTR)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("wait for process: %w", err)
	}
	return nil
}

// kill ends the process and waits until it is gone.
func (p process) kill(ctx context.Context) error {
	fd, err := p.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	if err := unix.PidfdSendSignal(int(fd.Fd()), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return waitGone(ctx, fd)
}

// ours finds the processes that runsc runs for one sandbox under one state folder: the command itself, the sandbox and
// its gofer carry both in their arguments. It is how the remains of a start that was cut off are found, with or without
// cgroups.
func ours(root, id string) ([]process, error) {
	return find(func(args []string) bool { return slices.Contains(args, "--root="+root) && slices.Contains(args, id) })
}

// ofRoot is ours for all sandboxes of a state folder.
func ofRoot(root string) ([]process, error) {
	return find(func(args []string) bool { return slices.Contains(args, "--root="+root) })
}

// find gives the processes whose arguments match.
func find(match func(args []string) bool) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := lookUp(pid)
		if err != nil {
			continue
		}
		// Read after lookUp: whoever has the number now is the process that kill will check for.
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(b), "\x00")
		if match(args) {
			found = append(found, p)
		}
	}
	return found, nil
}

// killOurs ends all of them; again, because a command that was starting the sandbox may have forked meanwhile.
func killOurs(ctx context.Context, root, id string) error {
	for {
		found, err := ours(root, id)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, p := range found {
			if err := p.kill(ctx); err != nil {
				return err
			}
		}
	}
}
