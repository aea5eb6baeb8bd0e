package scope

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// controlFD is where Main finds its channel.
const controlFD = 3

// Main is the first process of a scope: it makes /proc private, says that it is ready, and reaps the orphans of the scope.
// Asked to, it empties the scope: it kills every other process there is, and says so when none is left. It ends, and all in
// the scope with it, when the process that started it is gone. It never returns.
func Main() {
	runtime.GOMAXPROCS(1)
	control := os.NewFile(controlFD, "control")
	syscall.CloseOnExec(controlFD)
	orphans := catchSignals()

	if err := privateProc(); err != nil {
		say(control, strings.ReplaceAll(fmt.Sprintf("note no private /proc: %v", err), "\n", " "))
	}
	say(control, "ready")
	go func() {
		for range orphans {
			reap(syscall.WNOHANG)
		}
	}()
	for wishes := bufio.NewScanner(control); wishes.Scan(); {
		_ = syscall.Kill(-1, syscall.SIGKILL)
		reap(0)
		say(control, "clean")
	}
	os.Exit(1)
}

// catchSignals handles signals, and does nothing about them but tell when a child has ended. They are not ignored: a program
// inside may signal its namespace's first process only where that has a handler.
func catchSignals() (ended <-chan os.Signal) {
	var all []os.Signal
	for s := syscall.SIGHUP; s <= syscall.SIGSYS; s++ {
		if s != syscall.SIGCHLD && s != syscall.SIGURG && s != syscall.SIGKILL && s != syscall.SIGSTOP {
			all = append(all, s)
		}
	}
	signal.Notify(make(chan os.Signal, 1), all...)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	return children
}

// say writes a line.
func say(control *os.File, line string) {
	if _, err := control.WriteString(line + "\n"); err != nil {
		os.Exit(1)
	}
}

// reap collects the children that have ended; without WNOHANG it waits until no child is left.
func reap(options int) {
	for {
		pid, err := syscall.Wait4(-1, nil, options, nil)
		if (err != nil && !errors.Is(err, syscall.EINTR)) || (err == nil && pid == 0) {
			return
		}
	}
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
