package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// hostOf gives the Worker that has a sandbox of a Computer, nil if none has.
func (f *fleet) hostOf(computerID string) *node {
	for _, p := range hostProcesses() {
		if !strings.HasPrefix(p.args, "runsc-sandbox ") || !strings.HasSuffix(p.args, computerID) {
			continue
		}
		for _, w := range f.workers {
			if strings.Contains(p.args, w.dir+"/") {
				return w
			}
		}
	}
	return nil
}

func (f *fleet) computerOf(sessionID string) string {
	f.t.Helper()
	s, err := f.GetSession(context.Background(), sessionID)
	if err != nil {
		f.t.Fatal(err)
	}
	return s.ComputerID
}

func (f *fleet) enrolled(n *node, status string) {
	f.t.Helper()
	f.until("worker "+n.role+" is "+status, func() bool {
		r := n.own("worker", "status", "--json")
		var v api.Worker
		return r.code == 0 && json.Unmarshal([]byte(r.stdout), &v) == nil && v.Status == status
	})
}

// TestSpec_21_09_ThePausedAndTheDeadRunNothing pauses the Worker that has a Computer, and then kills the next one: their
// sandboxes are ended by their guards while the Worker can do nothing, before the Computer goes elsewhere. A paused Worker
// that wakes up finds its leases gone, discards what is left and enrolls again.
func TestSpec_21_09_ThePausedAndTheDeadRunNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, db.SQLite, 2*fleetLost, "a", "b")
	r := f.create("counter", "hello")
	f.completed(r.SessionID, r.TurnID)
	computerID := f.computerOf(r.SessionID)
	for _, how := range []string{"pause", "kill"} {
		watch := f.watch()
		host := f.hostOf(computerID)
		if host == nil {
			t.Fatal("no Worker has the Computer")
		}
		turnID := f.enqueue(r.SessionID, "slow 10000")
		f.running(api.SessionCreateReceipt{SessionID: r.SessionID, TurnID: turnID})
		if how == "pause" {
			host.pause()
		} else {
			host.kill()
		}
		f.until("the sandbox ends though its Worker does nothing", func() bool { return f.hostOf(computerID) != host })
		if v := f.settled(r.SessionID, turnID); v.Status != "interrupted" || v.Error.Code != "computer_lost" {
			t.Errorf("%s: the turn is %s: %+v", how, v.Status, v.Error)
		}
		f.resume(r.SessionID)
		next := f.enqueue(r.SessionID, "hello")
		f.completed(r.SessionID, next)
		if now := f.hostOf(computerID); now == nil || now == host {
			t.Errorf("%s: the Computer did not go elsewhere", how)
		}
		host.heal()
		f.enrolled(host, "active")
		for id, d := range watch.end() {
			t.Errorf("%s: computer %s was on two Workers for %s", how, id, d)
		}
	}
	f.leavesNothing()
}

// guard gives the guard of a Worker's folder, 0 if none runs.
func (n *node) guard() int {
	for _, p := range hostProcesses() {
		if strings.HasSuffix(p.args, " worker guard "+n.dir) {
			return p.pid
		}
	}
	return 0
}

// TestSpec_21_09_AWorkerAndItsGuardAreKilled together: nobody ends the sandbox, but nothing of it counts. Its Computer goes
// on elsewhere when the lease is over, and the Worker's next start ends what it finds.
func TestSpec_21_09_AWorkerAndItsGuardAreKilled(t *testing.T) {
	t.Parallel()
	f := newFleet(t, db.SQLite, fleetLost, "a", "b")
	r := f.create("counter", "write kept")
	f.completed(r.SessionID, r.TurnID)
	computerID := f.computerOf(r.SessionID)
	host := f.hostOf(computerID)
	if groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", host.guard())); err != nil || !strings.Contains(string(groups), "/helmr-guards") {
		t.Errorf("the guard is in its Worker's group: %s, %v", groups, err)
	}
	turnID := f.enqueue(r.SessionID, "slow 10000")
	f.running(api.SessionCreateReceipt{SessionID: r.SessionID, TurnID: turnID})
	alone := f.helmr.sandboxPID(computerID)
	host.pause() // so that it starts no other guard
	_ = syscall.Kill(host.guard(), syscall.SIGKILL)
	host.kill()
	if v := f.settled(r.SessionID, turnID); v.Status != "interrupted" || v.Error.Code != "computer_lost" {
		t.Errorf("the turn is %s: %+v", v.Status, v.Error)
	}
	f.resume(r.SessionID)
	if got := f.completed(r.SessionID, f.enqueue(r.SessionID, "hello")); got.Inits != 2 || got.Note == nil || *got.Note != "kept" {
		t.Errorf("elsewhere: %+v", got)
	}
	lives := func() bool { return syscall.Kill(alone, 0) == nil }
	if !lives() {
		t.Error("somebody ended the sandbox: say so in docs/security.md")
	}
	events := len(f.events(r.SessionID))
	host.heal()
	f.enrolled(host, "active")
	f.until("the next start ends the sandbox", func() bool { return !lives() })
	if now := len(f.events(r.SessionID)); now != events {
		t.Errorf("the Session has %d events, and had %d", now, events)
	}
	f.leavesNothing()
}

// TestSpec_21_11_DrainWaitsAndThenStops drains Workers as an operator does before an upgrade.
func TestSpec_21_11_DrainWaitsAndThenStops(t *testing.T) {
	t.Parallel()
	f := newFleet(t, db.SQLite, fleetLost*4, "a", "b")
	r := f.create("counter", "hello")
	f.completed(r.SessionID, r.TurnID)
	computerID := f.computerOf(r.SessionID)
	host := f.hostOf(computerID)
	other := f.workers[0]
	if other == host {
		other = f.workers[1]
	}
	// A running Turn is waited for; what is queued behind it runs elsewhere.
	turnID := f.enqueue(r.SessionID, fmt.Sprintf("slow %d", steps))
	f.running(api.SessionCreateReceipt{SessionID: r.SessionID, TurnID: turnID})
	behind := f.enqueue(r.SessionID, "hello")
	drain := f.beside(host, "worker", "drain", "--timeout", "0")
	drain.says("1 computers left")
	interrupted := f.beside(host, "worker", "drain", "--timeout", "0")
	interrupted.says("computers left")
	interrupted.signal(os.Interrupt)
	if e := interrupted.wait(); e.code != 1 || !strings.Contains(e.stderr, "the drain goes on") {
		t.Errorf("an interrupted drain: %d %s", e.code, e.stderr)
	}
	f.completed(r.SessionID, turnID)
	if d := drain.wait(); d.code != 0 || !strings.Contains(d.stdout, "termination_ready") {
		t.Errorf("drain: %d\n%s%s", d.code, d.stdout, d.stderr)
	}
	f.completed(r.SessionID, behind)
	if now := f.hostOf(computerID); now != other {
		t.Error("the Computer did not move to the other Worker")
	}
	// With nowhere to go, work waits; after the time running Turns are aborted, and activate ends it.
	turnID = f.enqueue(r.SessionID, "slow 10000")
	f.running(api.SessionCreateReceipt{SessionID: r.SessionID, TurnID: turnID})
	if d := other.own("worker", "drain", "--timeout", "1s"); d.code != 0 {
		t.Errorf("drain: %d\n%s%s", d.code, d.stdout, d.stderr)
	}
	if v := f.settled(r.SessionID, turnID); v.Status != "interrupted" || v.Error.Code != "shutdown" {
		t.Errorf("the turn is %s: %+v", v.Status, v.Error)
	}
	if s, err := f.GetSession(context.Background(), r.SessionID); err != nil || len(s.Holds) != 0 {
		t.Errorf("an orderly stop placed a hold: %+v, %v", s.Holds, err)
	}
	waits := f.enqueue(r.SessionID, "hello")
	f.until("the Computer waits", func() bool {
		c, err := f.GetComputer(context.Background(), computerID)
		return err == nil && c.ExecutionWait != nil && *c.ExecutionWait == "scheduling"
	})
	owner := program{env: f.settings, stdin: program{env: f.settings}.run(t, "server", "owner-token").ok(t)}
	owner.run(t, "login", f.info.URL).ok(t)
	owner.stdin = ""
	if list := owner.login(f.info.URL, "").run(t, "worker", "list").ok(t); strings.Count(list, "termination_ready") != 2 {
		t.Errorf("worker list:\n%s", list)
	}
	owner.login(f.info.URL, "").run(t, "worker", "activate", other.role).ok(t)
	f.completed(r.SessionID, waits)
	host.own("worker", "activate").ok(t)
	f.leavesNothing()
}

// beside starts a command as the node's machine would.
func (f *fleet) beside(n *node, args ...string) *live {
	p := program{path: "nsenter", env: append(append([]string{}, f.settings...), n.settings...)}
	return p.start(f.t, append([]string{"--net=/run/netns/" + n.ns, binary(f.t, "helmr")}, args...)...)
}
