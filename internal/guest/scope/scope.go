package scope

import (
	"bufio"
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

// Spec says what to run.
type Spec struct {
	// Argv is the program and its arguments; a program without a slash is looked up on the PATH of Env.
	Argv []string
	// Env is the whole environment. HOME is added when missing.
	Env []string
	// Dir is the working directory, "/" when empty.
	Dir string
	// User is "", "user", "uid", "user:group" or "uid:gid"; empty is the user of this process.
	User string
	// Files become the descriptors 0, 1, 2, 3... of the program. There are at least three. Start does not close them.
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
	reaper  *Reaper
	pid     int
	control *os.File
	started chan struct{}
	done    chan struct{}
	result  Result
	once    sync.Once
}

// Start begins a scope. note gets remarks worth a log line and may be nil. An error means that nothing runs; a
// program that cannot be executed is no error but a Result.
func Start(r *Reaper, spec Spec, note func(string)) (*Scope, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the control channel of a scope: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "scope control")
	defer theirs.Close()
	if err := syscall.SetNonblock(pair[0], true); err != nil {
		_ = syscall.Close(pair[0])
		return nil, fmt.Errorf("open the control channel of a scope: %w", err)
	}
	s := &Scope{reaper: r, control: os.NewFile(uintptr(pair[0]), "scope control"), started: make(chan struct{}), done: make(chan struct{})}

	files := []uintptr{spec.Files[0].Fd(), spec.Files[1].Fd(), spec.Files[2].Fd(), theirs.Fd()}
	for _, f := range spec.Files[3:] {
		files = append(files, f.Fd())
	}
	argv := []string{"helmr-guest", Role, strconv.Itoa(len(spec.Files)), spec.User, spec.Dir}
	pid, ended, err := r.fork(self, append(argv, spec.Argv...), &syscall.ProcAttr{
		Dir: "/", Env: spec.Env, Files: files,
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS},
	})
	if err != nil {
		_ = s.control.Close()
		return nil, fmt.Errorf("start a scope (needs CAP_SYS_ADMIN): %w", err)
	}
	s.pid = pid
	go s.watch(ended, note)
	return s, nil
}

// watch reads what the first process says until the scope has ended.
func (s *Scope) watch(ended <-chan syscall.WaitStatus, note func(string)) {
	said := false
	lines := bufio.NewScanner(s.control)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		n, text, _ := strings.Cut(rest, " ")
		number, _ := strconv.Atoi(n)
		switch word {
		case "started":
			s.once.Do(func() { close(s.started) })
		case "note":
			if note != nil {
				note(rest)
			}
		case "failed":
			s.result, said = Result{Failed: text, Errno: syscall.Errno(number)}, true
		case "exit":
			s.result, said = Result{Code: number}, true
		case "signal":
			s.result, said = Result{Signal: syscall.Signal(number)}, true
		}
	}
	// Lines end when the first process ended, or (a line beyond the Scanner's bound) when it misbehaves.
	s.Kill()
	status := <-ended
	if !said {
		s.result = Result{Code: status.ExitStatus()}
		if status.Signaled() {
			s.result = Result{Signal: status.Signal()}
		}
	}
	_ = s.control.Close()
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
func (s *Scope) Kill() { s.reaper.kill(s.pid) }

// Terminate sends SIGTERM to the program and the process group it leads.
func (s *Scope) Terminate() {
	_ = s.control.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = s.control.WriteString("term\n")
}
