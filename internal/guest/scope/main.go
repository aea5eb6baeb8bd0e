package scope

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// Where Main finds its two channels.
const (
	controlFD = 3
	stopsFD   = 4
)

// first is the first process of a scope.
type first struct {
	control *os.File
	// mounts is what was mounted before any program ran.
	mounts []byte

	mu sync.Mutex
	// all below are guarded by mu. run is the number of the present program or of the last one, pid is 0 without one.
	run uint32
	pid int
	// stopped is the newest run that was asked to stop, which may be one to come.
	stopped uint32
}

// Main is the first process of a scope: it makes /proc private, waits to be told what to run, starts the program, reaps
// its orphans, kills what the program left behind, says so, and waits again. It ends, and all in the scope with it, when
// the process that started it is gone. It never returns.
func Main() {
	runtime.GOMAXPROCS(1)
	f := &first{control: os.NewFile(controlFD, "control")}
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(stopsFD)
	catchSignals()

	if err := privateProc(); err != nil {
		f.say("note no private /proc: %v", err)
	}
	f.mounts = mounted()
	go f.obey(os.NewFile(stopsFD, "stops"))
	f.say("ready")
	for {
		run, spec, err := receive(f.control)
		if err != nil {
			os.Exit(1) // nobody is there any more
		}
		f.runOne(run, spec)
	}
}

// catchSignals handles signals, and does nothing about them. They are not ignored, for the program would inherit that, and a
// program inside may signal its namespace's first process only where that has a handler. SIGCHLD comes with each program
// and would wake threads for nothing; the runtime's own handler takes it, as it takes SIGURG.
func catchSignals() {
	var all []os.Signal
	for s := syscall.SIGHUP; s <= syscall.SIGSYS; s++ {
		if s != syscall.SIGCHLD && s != syscall.SIGURG && s != syscall.SIGKILL && s != syscall.SIGSTOP {
			all = append(all, s)
		}
	}
	signal.Notify(make(chan os.Signal, 1), all...)
}

// say writes a line.
func (f *first) say(format string, a ...any) {
	line := strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", " ")
	if _, err := f.control.WriteString(line[:min(len(line), 4096)] + "\n"); err != nil {
		os.Exit(1)
	}
}

// runOne runs a program to its end and empties the scope. It returns when another may run in it.
func (f *first) runOne(run uint32, spec Spec) {
	f.mu.Lock()
	f.run = run
	f.mu.Unlock()
	pid, err := startProgram(spec)
	if err != nil {
		errno, _ := errors.AsType[syscall.Errno](err)
		f.say("failed %d %v", int(errno), err)
		f.emptied("")
		return
	}
	f.mu.Lock()
	f.pid = pid
	if f.stopped == run {
		_ = syscall.Kill(-pid, syscall.SIGTERM)
	}
	f.mu.Unlock()
	f.say("started")
	status := reapUntil(pid)
	f.mu.Lock()
	f.pid = 0
	f.mu.Unlock()
	how := fmt.Sprintf("exit %d", status.ExitStatus())
	if status.Signaled() {
		how = fmt.Sprintf("signal %d", int(status.Signal()))
	}
	f.emptied(how + "\n")
}

// emptied kills whatever is left in the scope and says how the program ended, and that the scope is clean. A scope in
// which a program changed what is mounted ends here: another program would see it.
func (f *first) emptied(how string) {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.ECHILD) {
			break // every process of a scope is in the end a child of its first
		}
		if got == 0 && err == nil {
			_ = syscall.Kill(-1, syscall.SIGKILL)
			_, _ = syscall.Wait4(-1, &status, 0, nil)
		}
	}
	if mounts := mounted(); len(mounts) == 0 || !bytes.Equal(mounts, f.mounts) {
		_, _ = f.control.WriteString(how)
		os.Exit(0)
	}
	if _, err := f.control.WriteString(how + "clean\n"); err != nil {
		os.Exit(1)
	}
}

// mounted says what is mounted here, or nothing. It asks the kernel without the help of package os, which makes three times
// the system calls.
func mounted() []byte {
	fd, err := syscall.Open("/proc/self/mountinfo", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
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

// obey carries out what the outside asks for, and ends the scope when the outside is gone.
func (f *first) obey(stops *os.File) {
	var number [4]byte
	for readFull(stops, number[:]) == nil {
		f.mu.Lock()
		f.stopped = binary.BigEndian.Uint32(number[:])
		if f.stopped == f.run && f.pid != 0 {
			_ = syscall.Kill(-f.pid, syscall.SIGTERM)
		}
		f.mu.Unlock()
	}
	os.Exit(1)
}

// privateProc mounts a /proc that shows this PID namespace only, invisible to other scopes.
func privateProc() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// startProgram starts the program and lets go of its descriptors, so that their other ends see the end of the stream when
// the program's tree has closed them.
func startProgram(spec Spec) (int, error) {
	var files []uintptr
	for _, f := range spec.Files {
		files = append(files, f.Fd())
		defer f.Close()
	}
	account, err := lookUp(spec.User)
	if err != nil {
		return 0, fmt.Errorf("user %q: %w", spec.User, err)
	}
	dir, argv, env := spec.Dir, spec.Argv, spec.Env
	if dir == "" {
		dir = "/"
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return 0, fmt.Errorf("working directory %s: %w", dir, syscall.ENOTDIR)
	}
	if valueOf(env, "HOME") == "" {
		env = append(env, "HOME="+account.home)
	}
	path, err := lookPath(argv[0], dir, valueOf(env, "PATH"))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", argv[0], err)
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Credential: account.credential},
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", argv[0], err)
	}
	return pid, nil
}

// valueOf gives a variable of env, "" without one; of several the last counts.
func valueOf(env []string, name string) (value string) {
	for _, v := range env {
		if n, text, ok := strings.Cut(v, "="); ok && n == name {
			value = text
		}
	}
	return value
}

// lookPath finds a program as execvp does on a PATH, relative names seen from dir.
func lookPath(name, dir, path string) (string, error) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		if path == "" {
			path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		}
		candidates = candidates[:0]
		for _, folder := range filepath.SplitList(path) {
			candidates = append(candidates, filepath.Join(folder, name))
		}
	}
	found := syscall.ENOENT
	for _, c := range candidates {
		if !filepath.IsAbs(c) {
			c = filepath.Join(dir, c)
		}
		info, err := os.Stat(c)
		if err != nil {
			continue
		}
		if info.IsDir() || info.Mode()&0o111 == 0 {
			found = syscall.EACCES
			continue
		}
		return c, nil
	}
	return "", found
}

// reapUntil collects children until pid has ended.
func reapUntil(pid int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if got == pid || (err != nil && !errors.Is(err, syscall.EINTR)) {
			return status
		}
	}
}
