package scope

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// reaper is shared: only one may collect the children of a process.
var reaper = sync.OnceValue(NewReaper)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Role {
		Main()
	}
	os.Exit(m.Run())
}

func setup(t *testing.T) *Reaper {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("scopes need CAP_SYS_ADMIN: run as root")
	}
	return reaper()
}

type starter func(Spec, func(string)) (*Scope, error)

func (r *Reaper) start(spec Spec, note func(string)) (*Scope, error) { return Start(r, spec, note) }

var plain = []string{"PATH=/bin:/usr/bin"}

// begin starts a shell script, or what the Spec says; out ends when nobody holds the other end.
func begin(t *testing.T, start starter, spec Spec, text string) (out io.ReadCloser, s *Scope) {
	t.Helper()
	in, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if spec.Argv == nil {
		spec.Argv = []string{"sh", "-c", text}
	}
	if spec.Env == nil {
		spec.Env = plain
	}
	spec.Files = []*os.File{in, writer, writer}
	s, err = start(spec, func(note string) { t.Log(note) })
	_, _ = in.Close(), writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	return reader, s
}

// script runs it to its end and gives what it wrote.
func script(t *testing.T, start starter, spec Spec, text string) (string, Result) {
	t.Helper()
	reader, s := begin(t, start, spec, text)
	defer reader.Close()
	out, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), s.Result()
}

func TestSpecReachesTheProgram(t *testing.T) {
	r := setup(t)
	long := strings.Repeat("x", 120<<10)
	pool := NewPool(r, 2, time.Hour)
	defer pool.empty()
	for name, start := range map[string]starter{"alone": r.start, "pool": pool.Start} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				out, result := script(t, start, Spec{Env: []string{"A=1", "A=2", "LONG=" + long, "ODD=\xff", "PATH=/bin:/usr/bin"}, Dir: "/usr"},
					`pwd; echo "$A ${#LONG} $ODD $HOME"; exit 7`)
				if lines := strings.Split(out, "\n"); result.Code != 7 || lines[0] != "/usr" || !strings.Contains(lines[1], " 122880 ") || strings.Contains(out, "HELMR") {
					t.Fatalf("%+v\n%.200s", result, out)
				}
			}
			for _, test := range []struct {
				spec  Spec
				errno syscall.Errno
			}{
				{Spec{Argv: []string{"no-such-program"}}, syscall.ENOENT},
				{Spec{Argv: []string{"/etc/passwd"}}, syscall.EACCES},
				{Spec{Argv: []string{"true"}, Dir: "/no/such/folder"}, syscall.ENOTDIR},
				{Spec{Argv: []string{"true"}, User: "nobody-of-that-name"}, syscall.EINVAL},
				{Spec{Argv: []string{"true", long + long}}, syscall.E2BIG},
			} {
				if out, result := script(t, start, test.spec, ""); result.Failed == "" || result.Errno != test.errno || out != "" {
					t.Errorf("%.60q: %.200v", test.spec.Argv, result)
				}
			}
			if out, result := script(t, start, Spec{User: "65534:65534"}, "id -u; id -g"); out != "65534\n65534\n" {
				t.Errorf("%q %+v", out, result)
			}
			if _, result := script(t, start, Spec{}, "kill -TERM $$"); result.Signal != syscall.SIGTERM {
				t.Errorf("%+v", result)
			}
			for _, spec := range []Spec{{Argv: []string{"a\x00b"}}, {Argv: []string{"a"}, Env: []string{"A=\x00"}}, {Argv: []string{"a"}, Dir: "\x00"}, {}} {
				spec.Files = []*os.File{os.Stdin, os.Stdout, os.Stderr}
				if _, err := start(spec, nil); err == nil {
					t.Errorf("%+v runs", spec)
				}
			}
		})
	}
}

func (p *Pool) pids() (pids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.blanks {
		pids = append(pids, b.pid)
	}
	return pids
}

// empty has the pool let go of what it keeps.
func (p *Pool) empty() {
	p.mu.Lock()
	p.idle = 0
	p.mu.Unlock()
	p.drop()
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func TestPoolKeepsScopes(t *testing.T) {
	r := setup(t)
	p := NewPool(r, 2, time.Hour)
	if len(p.pids()) != 0 {
		t.Fatal("a pool that was not used holds scopes")
	}
	again, before := 0, 0
	for i := 0; again < 5; i++ {
		// What a program leaves behind is not there for the next one, however it hides.
		out, result := script(t, p.Start, Spec{}, "ls /proc | grep -c '^[0-9]*$'; sleep 1000 >/dev/null 2>&1 & (setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' >/dev/null 2>&1 &); exit 3")
		if result.Code != 3 || out != "4\n" { // the first process, the shell, ls and grep
			t.Fatalf("%d: %q %+v", i, out, result)
		}
		pids := p.pids()
		switch {
		case i > 200:
			t.Fatal("scopes are not used again")
		case len(pids) == 0: // somebody removed a folder of this machine that a mount was on, which ends the mount here too
			before = 0
			continue
		case pids[0] == before:
			again++
		}
		before = pids[0]
		if children := descendants(before); len(children) > 0 {
			t.Fatalf("a scope that is kept has %v in it", children)
		}
	}
	// A scope whose mounts were changed is not.
	if _, result := script(t, p.Start, Spec{}, "mount -t tmpfs none /mnt"); result.Code != 0 || len(p.pids()) != 0 {
		t.Fatalf("%+v, kept %v", result, p.pids())
	}
	if out, _ := script(t, p.Start, Spec{}, "grep -c ' /mnt ' /proc/self/mountinfo"); out != "0\n" {
		t.Fatalf("mounts of the program before are there: %q", out)
	}
	// A scope that died is no loss.
	for _, pid := range p.pids() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if _, result := script(t, p.Start, Spec{}, "exit 4"); result.Code != 4 {
		t.Fatalf("%+v", result)
	}
	// A killed one is gone.
	out, s := begin(t, p.Start, Spec{}, "echo up; sleep 1000 & sleep 1000")
	up := make([]byte, 3)
	if _, err := io.ReadFull(out, up); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if result := s.Result(); result.Signal != syscall.SIGKILL || len(p.pids()) != 0 {
		t.Fatalf("%+v, kept %v", result, p.pids())
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Fatalf("%q %v", rest, err)
	}
	// A pool that is not used lets go of all.
	script(t, p.Start, Spec{}, "true")
	pids := p.pids()
	p.empty()
	if len(p.pids()) != 0 {
		t.Fatal("an idle pool holds scopes")
	}
	for _, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			t.Fatalf("process %d of a scope is left", pid)
		}
	}
}

// descendants lists the processes below one.
func descendants(pid int) (all []int) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for f := range strings.FieldsSeq(string(raw)) {
		var child int
		_, _ = fmt.Sscan(f, &child)
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// Kill and Terminate of a Scope that is over never reach the program that has the same processes now.
func TestLateKillMeetsNobody(t *testing.T) {
	r := setup(t)
	p := NewPool(r, 1, time.Hour)
	defer p.empty()
	var old []*Scope
	for range 20 {
		out, s := begin(t, p.Start, Spec{}, "echo up; exec cat")
		_ = out.Close()
		s.Result()
		old = append(old, s)
		out, next := begin(t, p.Start, Spec{}, "read x; echo done")
		for _, s := range old {
			s.Kill()
			s.Terminate()
		}
		text, err := io.ReadAll(out)
		if err != nil || string(text) != "done\n" || next.Result().Code != 0 {
			t.Fatalf("%q %v %+v", text, err, next.Result())
		}
		_ = out.Close()
	}
	// A stop that comes before the program began meets it when it does; one for a program before does not.
	for range 50 {
		out, s := begin(t, p.Start, Spec{}, "trap 'echo stopped; exit 5' TERM; echo up; while :; do sleep 0.01; done")
		s.Terminate()
		text, err := io.ReadAll(out)
		if result := s.Result(); err != nil || (result.Code != 5 && result.Signal != syscall.SIGTERM) {
			t.Fatalf("%q %v %+v", text, err, result)
		}
		_ = out.Close()
		if out, result := script(t, p.Start, Spec{}, "sleep 0.01; echo fine"); out != "fine\n" || result.Code != 0 {
			t.Fatalf("%q %+v", out, result)
		}
	}
}

// Hundreds at once, again and again, with scopes that die before they are used: each program runs exactly once and gets
// its own outcome.
func TestManyAtOnceRunExactlyOnce(t *testing.T) {
	r := setup(t)
	p := NewPool(r, 4, time.Hour)
	defer p.empty()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		many := 100
		if round%3 == 2 {
			many = 300
		}
		marks := filepath.Join(t.TempDir(), "marks")
		over := make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				case <-time.After(5 * time.Millisecond):
				}
				p.killIdle()
			}
		})
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				switch i % 3 {
				case 0: // it ends at once, perhaps before its start was noticed
					if out, result := script(t, p.Start, Spec{Argv: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d >>%s; exit %d", i, marks, i%100)}}, ""); result.Code != i%100 || result.Failed != "" || out != "" {
						t.Errorf("%d: %q %+v", i, out, result)
					}
				case 1:
					if out, result := script(t, p.Start, Spec{}, fmt.Sprintf("echo %d >>%s; echo out %d; exit %d", i, marks, i, i%100)); result.Code != i%100 || out != fmt.Sprintf("out %d\n", i) {
						t.Errorf("%d: %q %+v", i, out, result)
					}
				default:
					if out, result := script(t, p.Start, Spec{Argv: []string{"/bin/false"}}, ""); result.Code != 1 || out != "" {
						t.Errorf("%d: %q %+v", i, out, result)
					}
				}
			})
		}
		wg.Wait()
		close(over)
		killer.Wait()
		raw, err := os.ReadFile(marks)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Fields(string(raw))
		slices.Sort(lines)
		if n := len(lines); n != len(slices.Compact(slices.Clone(lines))) || n != many-many/3 {
			t.Fatalf("round %d: %d programs left their mark, want %d; %d different ones", round, n, many-many/3, len(slices.Compact(lines)))
		}
	}
}

// killIdle kills the first process of one scope that nobody uses.
func (p *Pool) killIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.blanks) > 0 {
		p.reaper.kill(p.blanks[0].pid)
	}
}

// A message that was not taken whole has begun nothing, and one that was taken is never given to another scope.
func TestSendIsAllOrNothing(t *testing.T) {
	r := setup(t)
	spec := Spec{Argv: []string{"sh", "-c", "true"}, Env: []string{"BIG=" + strings.Repeat("x", 8<<20)}, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	b, err := newBlank(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- b.send(spec) }()
	select {
	case err := <-failed:
		t.Fatalf("8 MiB went to somebody who does not read: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	b.reaper.kill(b.pid)
	if err := <-failed; err == nil || !strings.Contains(err.Error(), errUnopened.Error()) {
		t.Fatalf("%v", err)
	}
	b.discard()

	// The message was taken by the kernel, but the first process died before it read it.
	if b, err = newBlank(r); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	spec.Env = nil
	if err := b.send(spec); err != nil {
		t.Fatal(err)
	}
	b.reaper.kill(b.pid)
	if b.lines.Scan() || !errors.Is(b.lines.Err(), syscall.ECONNRESET) {
		t.Fatalf("%q %v", b.lines.Text(), b.lines.Err())
	}
	b.discard()
	if encoded := encode(7, Spec{Argv: []string{"a", ""}, User: "u"}); !bytes.HasSuffix(encoded, []byte("u\x00\x002\x00a\x00\x00")) {
		t.Fatalf("%q", encoded)
	}
}
