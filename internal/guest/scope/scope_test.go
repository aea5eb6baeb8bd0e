package scope

import (
	"io"
	"os"
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

// script runs a shell script with start and gives what it wrote and how it ended.
func script(t *testing.T, start func(Spec, func(string)) (*Scope, error), spec Spec, text string) (string, Result) {
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
	spec.Files = []*os.File{in, writer, writer}
	s, err := start(spec, func(note string) { t.Log(note) })
	_, _ = in.Close(), writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(reader) // ends when nobody holds the other end: neither the program nor its scope
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	return string(out), s.Result()
}

func starter(r *Reaper) func(Spec, func(string)) (*Scope, error) {
	return func(spec Spec, note func(string)) (*Scope, error) { return Start(r, spec, note) }
}

func TestSpecReachesTheProgram(t *testing.T) {
	r := setup(t)
	long := strings.Repeat("x", 120<<10)
	out, result := script(t, starter(r), Spec{Env: []string{"A=1", "A=2", "LONG=" + long, "ODD=\xff", "PATH=/bin:/usr/bin"}, Dir: "/usr"}, `pwd; echo "$A ${#LONG} $ODD $HOME"; ls /proc | grep -c '^[0-9]'; exit 7`)
	if lines := strings.Split(out, "\n"); result.Code != 7 || lines[0] != "/usr" || !strings.Contains(lines[1], " 122880 ") || strings.Contains(out, "HELMR") {
		t.Fatalf("%+v\n%.200s", result, out)
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
		if out, result := script(t, starter(r), test.spec, ""); result.Failed == "" || result.Errno != test.errno || out != "" {
			t.Errorf("%.60q: %.200v", test.spec.Argv, result)
		}
	}
	if out, result := script(t, starter(r), Spec{User: "65534:65534", Env: []string{"PATH=/bin:/usr/bin"}}, "id -u; id -g"); out != "65534\n65534\n" {
		t.Errorf("%q %+v", out, result)
	}
}

func (p *Pool) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.blanks)
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func TestPool(t *testing.T) {
	r := setup(t)
	p := NewPool(r, 2, time.Hour)
	if p.count() != 0 {
		t.Fatal("a pool that was not used holds blanks")
	}
	for i := range 5 {
		if out, result := script(t, p.Start, Spec{Env: []string{"PATH=/bin:/usr/bin"}}, "echo hi; exit 3"); result.Code != 3 || out != "hi\n" {
			t.Fatalf("%d: %q %+v", i, out, result)
		}
		until(t, "filling", func() bool { return p.count() == 2 })
	}
	// Blanks that have died are no loss.
	p.mu.Lock()
	for _, b := range p.blanks {
		_ = syscall.Kill(b.pid, syscall.SIGKILL)
	}
	p.mu.Unlock()
	until(t, "the death of the blanks", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, b := range p.blanks {
			if syscall.Kill(b.pid, 0) == nil {
				return false
			}
		}
		return true
	})
	if _, result := script(t, p.Start, Spec{Env: []string{"PATH=/bin:/usr/bin"}}, "exit 4"); result.Code != 4 {
		t.Fatalf("%+v", result)
	}
	// Many at once get theirs too.
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if out, result := script(t, p.Start, Spec{Env: []string{"PATH=/bin:/usr/bin"}}, "echo hi"); result.Code != 0 || out != "hi\n" {
				t.Errorf("%q %+v", out, result)
			}
		})
	}
	wg.Wait()
	// A pool that is not used lets go of them.
	until(t, "filling", func() bool { return p.count() == 2 })
	p.mu.Lock()
	p.idle = 0
	p.mu.Unlock()
	p.drop()
	if p.count() != 0 {
		t.Fatal("an idle pool holds blanks")
	}
}
