package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// live is a program that runs beside the test.
type live struct {
	t        testing.TB
	cmd      *exec.Cmd
	out, err lockedBuffer
	exited   chan struct{}
}

// lockedBuffer may be read while a program writes to it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// start starts the program; what is left of it when the test ends is killed.
func (p program) start(t testing.TB, args ...string) *live {
	t.Helper()
	if p.path == "" {
		p.path = binary(t, "helmr")
	}
	l := &live{t: t, cmd: exec.Command(p.path, args...), exited: make(chan struct{})}
	l.cmd.Dir, l.cmd.Env, l.cmd.Stdin = p.dir, append(os.Environ(), p.env...), strings.NewReader(p.stdin)
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.err
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = l.cmd.Wait() // the exit status is in ProcessState
		close(l.exited)
	}()
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		<-l.exited
	})
	return l
}

// says waits until the program has written something to stdout or stderr.
func (l *live) says(what string) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(l.out.String()+l.err.String(), what); {
		select {
		case <-l.exited:
			if !strings.Contains(l.out.String()+l.err.String(), what) {
				l.t.Fatalf("the program ended and never said %q:\n%s%s", what, l.out.String(), l.err.String())
			}
		default:
			if time.Now().After(deadline) {
				l.t.Fatalf("the program never said %q:\n%s%s", what, l.out.String(), l.err.String())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// signal sends a signal.
func (l *live) signal(s os.Signal) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(s); err != nil {
		l.t.Fatal(err)
	}
}

// wait waits for the program's end.
func (l *live) wait() ran {
	l.t.Helper()
	select {
	case <-l.exited:
	case <-time.After(patience):
		l.t.Fatalf("the program did not end:\n%s%s", l.out.String(), l.err.String())
	}
	return ran{l.out.String(), l.err.String(), l.cmd.ProcessState.ExitCode()}
}
