package worker

import (
	"os"
	"path/filepath"
)

// maxLogFile is where the log of a Computer's Session processes is cut: one older file is kept.
const maxLogFile = 4 << 20

// logs keeps what Session processes write to stdout and stderr, one bounded file per Computer, for the operator. Best
// effort: these are no events, and a log that cannot be written stops nothing.
type logs struct {
	dir string
}

// write is called for one Computer at a time. Computers do not wait for each other: one that floods slows itself only.
func (l *logs) write(computerID string, data []byte) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return
	}
	path := filepath.Join(l.dir, computerID+".log")
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogFile {
		_ = os.Rename(path, path+".old")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	_, _ = f.Write(data)
}
