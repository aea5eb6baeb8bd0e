package scope

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// controlFD is where Main finds its control channel; the program's descriptors from 3 on follow it.
const controlFD = 3

// Main is the first process of a scope: it makes /proc private, starts the program, reaps its orphans and ends with
// it. args are those after Role. It ends too when the process that started it is gone. It never returns.
func Main(args []string) {
	runtime.GOMAXPROCS(1)
	control := os.NewFile(controlFD, "control")
	syscall.CloseOnExec(controlFD)
	say := func(format string, a ...any) {
		line := strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", " ")
		_, _ = control.WriteString(line[:min(len(line), 4096)] + "\n")
	}
	// Handled, not ignored: the program would inherit ignored signals. A program inside may signal its namespace's
	// first process only where that has a handler, and these handlers do nothing.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals)

	if err := privateProc(); err != nil {
		say("note no private /proc: %v", err)
	}
	pid, err := startProgram(args)
	if err != nil {
		errno, _ := errors.AsType[syscall.Errno](err)
		say("failed %d %v", int(errno), err)
		os.Exit(1)
	}
	say("started")
	go obey(control, pid)
	status := reapUntil(pid)
	if status.Signaled() {
		say("signal %d", int(status.Signal()))
	} else {
		say("exit %d", status.ExitStatus())
	}
	os.Exit(0)
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

// startProgram starts the program of Main's arguments and lets go of its descriptors, so that their other ends see
// the end of the stream when the program's tree has closed them.
func startProgram(args []string) (int, error) {
	if len(args) < 4 {
		return 0, fmt.Errorf("scope needs FILES USER DIR ARGV: %w", syscall.EINVAL)
	}
	count, err := strconv.Atoi(args[0])
	if err != nil || count < 3 {
		return 0, fmt.Errorf("scope FILES %q: %w", args[0], syscall.EINVAL)
	}
	files := []uintptr{0, 1, 2}
	for fd := 4; fd <= count; fd++ {
		syscall.CloseOnExec(fd)
		files = append(files, uintptr(fd))
	}
	account, err := lookUp(args[1])
	if err != nil {
		return 0, fmt.Errorf("user %q: %w", args[1], err)
	}
	dir, argv := args[2], args[3:]
	if dir == "" {
		dir = "/"
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return 0, fmt.Errorf("working directory %s: %w", dir, syscall.ENOTDIR)
	}
	env := os.Environ()
	if os.Getenv("HOME") == "" {
		env = append(env, "HOME="+account.home)
	}
	path, err := lookPath(argv[0], dir)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", argv[0], err)
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Credential: account.credential},
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", argv[0], err)
	}
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	for _, fd := range files {
		if fd < 3 && err == nil {
			_ = syscall.Dup3(null, int(fd), 0)
		} else {
			_ = syscall.Close(int(fd))
		}
	}
	return pid, nil
}

// lookPath finds a program as execvp does, relative names seen from dir.
func lookPath(name, dir string) (string, error) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		path := os.Getenv("PATH")
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

// obey carries out what the outside says, and ends the scope when the outside is gone.
func obey(control *os.File, pid int) {
	lines := bufio.NewScanner(control)
	for lines.Scan() {
		if lines.Text() == "term" {
			_ = syscall.Kill(-pid, syscall.SIGTERM)
		}
	}
	os.Exit(1)
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
