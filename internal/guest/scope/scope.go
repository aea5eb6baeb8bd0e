package scope

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
)

// Role is the first argument that makes the binary run Main.
const Role = "scope"

// self is this binary; Main runs from it.
const self = "/proc/self/exe"

// maxFiles bounds the files of a Spec.
const maxFiles = 16

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

// Scope is a scope with a program.
type Scope struct {
	pid     int
	ended   <-chan syscall.WaitStatus // the program
	started chan struct{}
	done    chan struct{}
	// result is set before done is closed.
	result Result

	mu sync.Mutex
	// over is guarded by mu: the blank is not this Scope's any more, and may already run something else.
	over  bool
	blank *blank
}

// Start begins a scope of its own for a program, and returns when that runs or cannot. note gets remarks worth a log line
// and may be nil. An error means that nothing runs; a program that cannot be executed is no error but a Result.
func Start(r *Reaper, spec Spec, note func(string)) (*Scope, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	b, err := newBlank(r)
	if err != nil {
		return nil, err
	}
	s, err := b.run(spec, note, nil)
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

// run has a program run in the blank and returns when that runs or cannot. pool gets the blank when it can run another;
// without one it ends with the program. An error wraps errGone: the scope ended too early, and nothing has begun.
func (b *blank) run(spec Spec, note func(string), pool *Pool) (*Scope, error) {
	for _, text := range b.notes {
		if note != nil {
			note(text)
		}
	}
	s := &Scope{blank: b, started: make(chan struct{}), done: make(chan struct{})}
	var err error
	s.pid, s.ended, err = b.begin(spec)
	switch {
	case err == nil:
		close(s.started)
		go s.watch(pool)
		return s, nil
	case errors.Is(err, errGone), errors.Is(err, syscall.ENOMEM): // no process begins in a namespace that has ended: ENOMEM
		return nil, errors.Join(errGone, err)
	}
	errno, _ := errors.AsType[syscall.Errno](err)
	s.result, s.over = Result{Failed: err.Error(), Errno: errno}, true
	if pool != nil {
		pool.give(b)
	} else {
		b.discard()
	}
	close(s.done)
	return s, nil
}

// watch waits for the end of the program and then ends whatever it left.
func (s *Scope) watch(pool *Pool) {
	status := <-s.ended
	s.result = Result{Code: status.ExitStatus()}
	if status.Signaled() {
		s.result = Result{Signal: status.Signal()}
	}
	empty := pool != nil && s.blank.empty()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	if empty { // nothing is left: whoever waits need not wait for more
		pool.checks()
		close(s.done)
		pool.check(s.blank)
		return
	}
	s.blank.discard()
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

// Terminate sends SIGTERM to the program and the process group it leads, if it has not ended.
func (s *Scope) Terminate() { s.blank.reaper.terminate(s.pid) }
