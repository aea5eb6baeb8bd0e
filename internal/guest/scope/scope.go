package scope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Role is the first argument that makes the binary run Main.
const Role = "scope"

// self is this binary; Main runs from it.
const self = "/proc/self/exe"

// Spec says what to run. No string of it may hold a NUL.
type Spec struct {
	// Argv is the program and its arguments; a program without a slash is looked up on the PATH of Env.
	Argv []string
	// Env is the whole environment. HOME is added when missing.
	Env []string
	// Dir is the working directory, "/" when empty.
	Dir string
	// User is "", "user", "uid", "user:group" or "uid:gid"; empty is the user of this process.
	User string
	// Files become the descriptors 0, 1, 2, 3... of the program. There are 3 to 16. Start does not close them.
	Files []*os.File
}

// Result says how the program ended.
type Result struct {
	// Failed is why the program could not be started; Errno is then the error of the system call.
	Failed string
	Errno  syscall.Errno
	// Code is the exit code, Signal the signal that ended the program (0: none).
	Code   int
	Signal syscall.Signal
}

// Scope is a running scope.
type Scope struct {
	started chan struct{}
	done    chan struct{}
	note    func(string)
	// What the first process said. running is that the program was started, said that its result is known, clean that
	// nothing is left of it. Of begin first, then of watch; result is everybody's once done is closed.
	running, said, clean bool
	result               Result

	mu sync.Mutex
	// over is guarded by mu: the blank is not this Scope's any more, and may already run something else.
	over  bool
	blank *blank
}

// Start begins a scope of its own for a program, and returns when that runs or cannot. note gets remarks worth a log line and may be nil. An error means that
// nothing runs; a program that cannot be executed is no error but a Result.
func Start(r *Reaper, spec Spec, note func(string)) (*Scope, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	b, err := newBlank(r)
	if err != nil {
		return nil, err
	}
	s, err := b.begin(spec, note, nil)
	if err != nil {
		b.discard()
		return nil, err
	}
	return s, nil
}

func (spec Spec) check() error {
	if n := len(spec.Files); n < 3 || n > maxFiles || len(spec.Argv) == 0 {
		return fmt.Errorf("a scope with %d files and %d arguments: %w", n, len(spec.Argv), syscall.EINVAL)
	}
	for _, list := range [][]string{spec.Argv, spec.Env, {spec.Dir, spec.User}} {
		for _, s := range list {
			if strings.Contains(s, "\x00") {
				return fmt.Errorf("%q holds a NUL: %w", s, syscall.EINVAL)
			}
		}
	}
	return nil
}

// begin has the blank run a program and returns when that runs or cannot. keep gets the blank when it can run another;
// without keep it ends with the program. After errUnopened nothing runs, and nothing will; otherwise the program is not to
// be begun a second time.
func (b *blank) begin(spec Spec, note func(string), keep func(*blank)) (*Scope, error) {
	if err := b.send(spec); err != nil {
		return nil, err
	}
	s := &Scope{blank: b, started: make(chan struct{}), done: make(chan struct{}), note: note}
	for _, text := range b.notes {
		s.remark(text)
	}
	for !s.said && b.lines.Scan() {
		s.hear(b.lines.Text())
		if s.running {
			close(s.started)
			break
		}
	}
	if !s.said && !s.running && errors.Is(b.lines.Err(), syscall.ECONNRESET) {
		return nil, fmt.Errorf("%w: it ended before it read that", errUnopened)
	}
	go s.watch(keep)
	return s, nil
}

// hear takes up a line of the first process.
func (s *Scope) hear(line string) {
	word, rest, _ := strings.Cut(line, " ")
	n, text, _ := strings.Cut(rest, " ")
	number, _ := strconv.Atoi(n)
	switch word {
	case "started":
		s.running = true
	case "note":
		s.remark(rest)
	case "failed":
		s.result, s.said = Result{Failed: text, Errno: syscall.Errno(number)}, true
	case "exit":
		s.result, s.said = Result{Code: number}, true
	case "signal":
		s.result, s.said = Result{Signal: syscall.Signal(number)}, true
	case "clean":
		s.clean = s.said
	}
}

func (s *Scope) remark(text string) {
	if s.note != nil {
		s.note(text)
	}
}

// watch reads what the first process says until the program's scope is empty.
func (s *Scope) watch(keep func(*blank)) {
	b := s.blank
	for !s.clean && b.lines.Scan() {
		s.hear(b.lines.Text())
	}
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	if s.clean && keep != nil {
		keep(b)
		close(s.done)
		return
	}
	// Lines end when the first process ended, or (a line beyond the Scanner's bound) when it misbehaves.
	status := b.discard()
	if !s.said {
		s.result = Result{Code: status.ExitStatus()}
		if status.Signaled() {
			s.result = Result{Signal: status.Signal()}
		}
	}
	close(s.done)
}

// Started is closed when the program runs. It stays open if that never happens.
func (s *Scope) Started() <-chan struct{} { return s.started }

// Done is closed when the program has ended and every descendant was killed.
func (s *Scope) Done() <-chan struct{} { return s.done }

// Result waits for Done and says how the program ended.
func (s *Scope) Result() Result {
	<-s.done
	return s.result
}

// Kill kills the whole tree. It may be called at any time and more than once.
func (s *Scope) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.blank.reaper.kill(s.blank.pid)
	}
}

// Terminate sends SIGTERM to the program and the process group it leads.
func (s *Scope) Terminate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	_ = s.blank.stops.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = s.blank.stops.Write(binary.BigEndian.AppendUint32(nil, s.blank.run))
}
