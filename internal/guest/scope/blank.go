package scope

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// blank is a scope without a program: its first process has made /proc private and waits.
type blank struct {
	reaper *Reaper
	pid    int
	ended  <-chan syscall.WaitStatus
	// control asks the first process to empty the scope and carries back what it says.
	control *os.File
	lines   *bufio.Scanner // of control
	notes   []string       // that its start left
	// handle names the first process to the kernel, also when its number means another by now. proc is the private /proc.
	handle, proc int
	// mounts is what was mounted before any program ran.
	mounts []byte
}

// errGone says that a scope has ended, so that nothing can begin in it any more.
var errGone = errors.New("the scope has ended")

// newBlank starts the first process of a scope and waits until it is ready.
func newBlank(r *Reaper) (*blank, error) {
	b := &blank{reaper: r, handle: -1, proc: -1}
	control, err := b.pair(&b.control)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		b.close()
		return nil, fmt.Errorf("start a scope: %w", err)
	}
	defer null.Close()
	b.pid, b.ended, err = r.fork(self, []string{"helmr-guest", Role}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), control.Fd()},
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, PidFD: &b.handle},
	})
	if err != nil {
		b.close()
		return nil, fmt.Errorf("start a scope (needs CAP_SYS_ADMIN): %w", err)
	}
	_ = control.Close() // theirs alone now: when it ends, the lines do
	b.lines = bufio.NewScanner(b.control)
	for b.lines.Scan() {
		if note, ok := strings.CutPrefix(b.lines.Text(), "note "); ok {
			b.notes = append(b.notes, note)
			continue
		}
		if err := b.look(); err != nil { // ready
			b.discard()
			return nil, fmt.Errorf("start a scope: %w", err)
		}
		return b, nil
	}
	status := b.discard()
	return nil, fmt.Errorf("start a scope: its first process ended by itself (status %#x)", int(status))
}

// look takes hold of the private /proc and notes what is mounted.
func (b *blank) look() error {
	err := b.visit(func() (err error) {
		b.proc, err = syscall.Open("/proc", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
		return err
	})
	b.mounts = b.mounted()
	return err
}

// pair opens a channel: one end for mine, the other for the first process.
func (b *blank) pair(mine **os.File) (theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the channel of a scope: %w", err)
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		_, _ = syscall.Close(fds[0]), syscall.Close(fds[1])
		return nil, fmt.Errorf("open the channel of a scope: %w", err)
	}
	*mine = os.NewFile(uintptr(fds[0]), "scope channel")
	return os.NewFile(uintptr(fds[1]), "scope channel"), nil
}

func (b *blank) close() {
	_ = b.control.Close()
	for _, fd := range []int{b.handle, b.proc} {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

// dead tells whether the first process has ended by itself, which it never should.
func (b *blank) dead() bool { return len(b.ended) > 0 }

// discard ends the first process and with it whatever lives in the scope.
func (b *blank) discard() syscall.WaitStatus {
	b.reaper.kill(b.pid)
	status := <-b.ended
	b.close()
	return status
}

// empty makes sure that nothing is left in the scope beside its first process, and tells whether it could.
func (b *blank) empty() bool {
	for range 8 {
		switch n, err := b.processes(); {
		case err != nil || n < 1:
			return false
		case n == 1:
			return true
		}
		if _, err := b.control.WriteString("empty\n"); err != nil || !b.lines.Scan() {
			return false
		}
	}
	return false
}

// processes counts what is in the scope, its first process included. Where processes hide in their tree makes no
// difference: it is the PID namespace that is looked at.
func (b *blank) processes() (n int, err error) {
	if _, err := syscall.Seek(b.proc, 0, 0); err != nil {
		return 0, err
	}
	buf := make([]byte, 8<<10)
	for {
		size, err := syscall.ReadDirent(b.proc, buf)
		if err != nil || size == 0 {
			return n, err
		}
		_, _, names := syscall.ParseDirent(buf[:size], -1, nil)
		for _, name := range names {
			if name[0] >= '0' && name[0] <= '9' {
				n++
			}
		}
	}
}

// unchanged tells whether what is mounted in the scope is what was mounted before any program ran.
func (b *blank) unchanged() bool {
	return len(b.mounts) > 0 && bytes.Equal(b.mounted(), b.mounts)
}

// mounted says what is mounted in the scope, or nothing. It asks the kernel without the help of package os, which makes
// three times the system calls.
func (b *blank) mounted() []byte {
	fd, err := unix.Openat(b.proc, "1/mountinfo", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	text := make([]byte, 0, 16<<10)
	for {
		n, err := syscall.Read(fd, text[len(text):cap(text)])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return nil
		case n == 0:
			return text
		}
		text = text[:len(text)+n]
		if len(text) == cap(text) {
			text = append(text, 0)[:len(text)]
		}
	}
}
