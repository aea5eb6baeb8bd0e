package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// guarding is a guard on a folder, whose sandboxes the test plays.
type guarding struct {
	t     *testing.T
	dir   string
	left  chan int // answers how many sandboxes there are
	kills chan time.Duration
	ended chan error
}

func newGuard(t *testing.T) *guarding {
	t.Helper()
	g := &guarding{t: t, dir: t.TempDir(), left: make(chan int), kills: make(chan time.Duration, 100), ended: make(chan error, 1)}
	return g
}

func (g *guarding) lease(until time.Duration, pid int) {
	g.t.Helper()
	path := filepath.Join(g.dir, leaseFile)
	if err := os.WriteFile(path+".new", fmt.Appendf(nil, "%d %d\n", until, pid), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarding) run() {
	go func() {
		g.ended <- Guard(context.Background(), g.dir, func(context.Context) (int, error) {
			g.kills <- uptime()
			return 1, nil
		}, func() (int, error) { return <-g.left, nil })
	}()
}

func (g *guarding) wait() {
	g.t.Helper()
	for {
		select {
		case err := <-g.ended:
			if err != nil {
				g.t.Fatal(err)
			}
			return
		case g.left <- 0:
		case <-time.After(time.Minute):
			g.t.Fatal("the guard did not end")
		}
	}
}

// deadPID is a process that does not exist.
const deadPID = 1 << 30

func TestSpec_21_09_TheGuardEndsSandboxesAfterTheLease(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	until := uptime() + 300*time.Millisecond
	g.lease(until, os.Getpid())
	g.run()
	for killed := false; !killed; {
		select {
		case g.left <- 1:
		case at := <-g.kills:
			if killed = true; at < until {
				t.Fatalf("killed %s before the end of the lease", until-at)
			}
		}
	}
	// A Worker that wakes up may be starting another one: they are looked for as long as it lives.
	for again := false; !again; {
		select {
		case g.left <- 1:
		case <-g.kills:
			again = true
		}
	}
	// A lease that is renewed stops that. Looks that were under way are let through.
	g.lease(uptime()+time.Hour, os.Getpid())
	g.left <- 1
	g.left <- 1
	for len(g.kills) > 0 {
		<-g.kills
	}
	g.left <- 1
	g.left <- 1
	if len(g.kills) > 0 {
		t.Fatal("killed under a lease")
	}
	g.lease(uptime()+time.Hour, deadPID)
	g.wait()
}

func TestSpec_21_09_OneGuardForAFolder(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.lease(uptime()+time.Hour, os.Getpid())
	g.run()
	g.left <- 1 // it runs
	if !guarded(g.dir) {
		t.Fatal("a running guard is not seen")
	}
	never := func(context.Context) (int, error) { t.Error("the second guard killed"); return 0, nil }
	if err := Guard(context.Background(), g.dir, never, func() (int, error) { return 0, nil }); err != nil {
		t.Fatal(err)
	}
	g.lease(uptime()+time.Hour, deadPID)
	g.wait()
	if guarded(g.dir) {
		t.Fatal("a guard is seen after its end")
	}
}

func TestSpec_21_09_WithoutALeaseNothingRuns(t *testing.T) {
	t.Parallel()
	g := newGuard(t) // no file: a Worker that was killed before its first heartbeat, or a broken one
	g.run()
	g.left <- 1
	<-g.kills
	g.wait()
	for _, text := range []string{"", "x 1", "99999999999999999999999 1"} {
		if err := os.WriteFile(filepath.Join(g.dir, leaseFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if until, _ := readLease(g.dir); until != 0 {
			t.Errorf("%q is read as a lease until %s", text, until)
		}
	}
}
