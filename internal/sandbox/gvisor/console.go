package gvisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	consoleName = "helmr-console"
	consoleSize = 64 << 10
)

// newConsole makes the standard error of PID 1: memory that cannot grow. A file would let the inside fill the host's
// disk, and a pipe would need somebody who reads it for ever. When it is full, further writes fail inside.
func newConsole() (*os.File, error) {
	fd, err := unix.MemfdCreate(consoleName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make console: %w", err)
	}
	f := os.NewFile(uintptr(fd), consoleName)
	if err := f.Truncate(consoleSize); err != nil {
		f.Close()
		return nil, fmt.Errorf("make console: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal console: %w", err)
	}
	return f, nil
}

// findConsole opens the console of a sandbox that an earlier process started; nil when it has none.
func findConsole(pid int) *os.File {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "/memfd:"+consoleName) {
			if f, err := os.Open(link); err == nil {
				return f
			}
		}
	}
	return nil
}

// readConsole returns what was written, without the zeros never written over. A resumed sandbox goes on at the offset
// where it was, so zeros may stand in front too.
func readConsole(f *os.File) string {
	if f == nil {
		return ""
	}
	b := make([]byte, consoleSize)
	n, _ := f.ReadAt(b, 0)
	return string(bytes.Trim(b[:n], "\x00"))
}
