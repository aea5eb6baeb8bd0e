package scope

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// pids gives the first processes of what the pool keeps, once it has looked at all that may be kept.
func (p *Pool) pids(t *testing.T) (pids []int) {
	t.Helper()
	until(t, "the look at the mounts of ended scopes", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.checking == 0
	})
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
	if len(p.pids(t)) != 0 {
		t.Fatal("a pool that was not used holds scopes")
	}
	again, before := 0, 0
	for i := 0; again < 5; i++ {
		// What a program leaves behind is not there for the next one, however it hides.
		out, result := script(t, p.Start, Spec{}, "set -- /proc/[0-9]*; echo $#; sleep 1000 >/dev/null 2>&1 & (setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' >/dev/null 2>&1 &); exit 3")
		if result.Code != 3 || out != "2\n" { // the first process and the shell
			t.Fatalf("%d: %q %+v", i, out, result)
		}
		pids := p.pids(t)
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
	if _, result := script(t, p.Start, Spec{}, "mount -t tmpfs none /mnt"); result.Code != 0 || len(p.pids(t)) != 0 {
		t.Fatalf("%+v, kept %v", result, p.pids(t))
	}
	if out, _ := script(t, p.Start, Spec{}, "grep -c ' /mnt ' /proc/self/mountinfo"); out != "0\n" {
		t.Fatalf("mounts of the program before are there: %q", out)
	}
	// A scope that died is no loss.
	p.killIdle()
	until(t, "the end of an idle scope", func() bool { return p.idleDead() })
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
	if result := s.Result(); result.Signal != syscall.SIGKILL || len(p.pids(t)) != 0 {
		t.Fatalf("%+v, kept %v", result, p.pids(t))
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Fatalf("%q %v", rest, err)
	}
	// A pool that is not used lets go of all.
	script(t, p.Start, Spec{}, "true")
	pids := p.pids(t)
	p.empty()
	if len(p.pids(t)) != 0 {
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

// Hundreds at once, again and again, while scopes are killed before, at and after the moment a program begins in them:
// each program runs once, or is killed with its scope and is then never begun again; and each gets its own outcome.
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
		var kills int
		var killer sync.WaitGroup
		if round%2 == 1 {
			killer.Go(func() {
				for {
					select {
					case <-over:
						return
					case <-time.After(5 * time.Millisecond):
					}
					kills += p.killIdle()
				}
			})
		}
		killed := make([]bool, many)
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				text, want := fmt.Sprintf("echo %d >>%s; exit %d", i, marks, i%100), ""
				if i%2 == 1 {
					text, want = fmt.Sprintf("echo %d >>%s; echo out %d; exit %d", i, marks, i, i%100), fmt.Sprintf("out %d\n", i)
				}
				out, result := script(t, p.Start, Spec{Argv: []string{"/bin/sh", "-c", text}}, "")
				killed[i] = result == Result{Signal: syscall.SIGKILL}
				if !killed[i] && (result != Result{Code: i % 100} || out != want) {
					t.Errorf("%d: %q %+v", i, out, result)
				}
			})
		}
		wg.Wait()
		close(over)
		killer.Wait()
		ran := marksIn(t, marks)
		lost := 0
		for i := range many {
			if killed[i] {
				lost++
			}
			if n := ran[fmt.Sprint(i)]; n > 1 || (n == 0 && !killed[i]) {
				t.Errorf("round %d: program %d ran %d times, killed: %v", round, i, n, killed[i])
			}
		}
		if lost > kills {
			t.Errorf("round %d: %d programs were killed with their scope, by %d kills", round, lost, kills)
		}
	}
}

// marksIn counts the lines of a file.
func marksIn(t *testing.T, path string) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	n := map[string]int{}
	for line := range strings.FieldsSeq(string(raw)) {
		n[line]++
	}
	return n
}

// killIdle kills the first process of one scope that nobody uses, and tells how many that were.
func (p *Pool) killIdle() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.blanks) == 0 {
		return 0
	}
	p.reaper.kill(p.blanks[len(p.blanks)-1].pid)
	return 1
}

// idleDead tells whether it is known that the scope that would be used next has ended.
func (p *Pool) idleDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.blanks) == 0 || p.blanks[len(p.blanks)-1].dead()
}

// A scope that dies is replaced only when nothing can have begun in it.
func TestScopesThatDieAtTheStart(t *testing.T) {
	r := setup(t)
	marks := filepath.Join(t.TempDir(), "marks")
	spec := Spec{Argv: []string{"sh", "-c", "echo ran >>" + marks + "; sleep 1000"}, Env: plain, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	fresh := func() *blank {
		b, err := newBlank(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	end := func(b *blank) {
		r.kill(b.pid)
		until(t, "the end of a first process", b.dead)
	}

	b := fresh() // before anybody goes there
	end(b)
	if _, err := b.run(spec, nil, nil); !errors.Is(err, errGone) {
		t.Fatalf("a program began in a scope that had ended: %v", err)
	}
	b.discard()

	b = fresh() // between going there and beginning
	err := b.visit(func() error {
		end(b)
		_, _, err := startProgram(r, spec)
		return err
	})
	if !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("a program began in a scope that had ended: %v", err)
	}
	b.discard()
	if ran := marksIn(t, marks); len(ran) > 0 {
		t.Fatalf("something ran: %v", ran)
	}

	b = fresh() // once it runs, that counts
	s, err := b.run(spec, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the mark of a program", func() bool { return len(marksIn(t, marks)) > 0 })
	r.kill(b.pid)
	if result := s.Result(); result.Signal != syscall.SIGKILL {
		t.Fatalf("%+v", result)
	}
	if ran := marksIn(t, marks); ran["ran"] != 1 {
		t.Fatalf("%v", ran)
	}
}

// What sits in a scope is found by its namespace, wherever its parent is.
func TestNothingIsLeftInAScope(t *testing.T) {
	r := setup(t)
	p := NewPool(r, 1, time.Hour)
	defer p.empty()
	for range 10 {
		// The limits and the signals of a program are those of this process's own children.
		out, result := script(t, p.Start, Spec{}, "ulimit -n; grep '^SigBlk' /proc/self/status; (sleep 1000 >/dev/null 2>&1 &) ; (setsid sleep 1000 >/dev/null 2>&1 &)")
		if result.Code != 0 {
			t.Fatalf("%+v", result)
		}
		var limit syscall.Rlimit
		var first int
		if _, err := fmt.Sscan(out, &first); err != nil || syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || uint64(first) > limit.Cur {
			t.Fatalf("%q %v", out, err)
		}
		if !strings.Contains(out, "0000000000000000") {
			t.Fatalf("a program starts with signals blocked:\n%s", out)
		}
		p.mu.Lock()
		for _, b := range p.blanks {
			if n, err := b.processes(); n != 1 || err != nil {
				t.Errorf("%d processes in a scope that is free: %v", n, err)
			}
		}
		p.mu.Unlock()
	}
}
