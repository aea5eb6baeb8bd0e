package image

import (
	"bytes"
	"strings"
	"sync"
)

// lineWriter gives each line of a tool's output to line and keeps the last ones for an error message.
type lineWriter struct {
	line func(string)

	mu   sync.Mutex
	part []byte
	last []string
}

const keptLines = 200

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.part = append(w.part, p...)
	for {
		i := bytes.IndexAny(w.part, "\n\r")
		if i < 0 {
			// A tool that never ends its line must not fill the memory.
			if len(w.part) > 64<<10 {
				w.part = w.part[:0]
			}
			return len(p), nil
		}
		l := strings.TrimRight(string(w.part[:i]), " \t")
		w.part = w.part[i+1:]
		if l == "" {
			continue
		}
		if w.last = append(w.last, l); len(w.last) > keptLines {
			w.last = w.last[1:]
		}
		if w.line != nil {
			w.line(l)
		}
	}
}

// tail is the kept end of the output.
func (w *lineWriter) tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.last
	if len(w.part) > 0 {
		lines = append(lines[:len(lines):len(lines)], string(w.part))
	}
	return strings.Join(lines, "\n")
}

// lastLines are the last n lines of s that say something.
func lastLines(s string, n int) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
