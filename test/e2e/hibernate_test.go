package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// slept is what the sleeper Agent returns.
type slept struct {
	Token, Recovery, Line, Child, Said, Memory string
	Turns, PID, Inits, Fired                   int
	Intact, Ticking                            bool
	Now                                        int64
	Random                                     []string
}

func (h *helmr) slept(sessionID, turnID string) slept {
	h.t.Helper()
	v := h.settled(sessionID, turnID)
	var s slept
	if v.Status != "completed" || json.Unmarshal(v.Result, &s) != nil {
		h.t.Fatalf("turn %s is %s: %+v %s\n%s", turnID, v.Status, v.Error, v.Result, h.describe(sessionID))
	}
	return s
}

func (h *helmr) whereIs(sessionID string) api.Computer {
	h.t.Helper()
	s, err := h.GetSession(context.Background(), sessionID)
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := h.GetComputer(context.Background(), s.ComputerID)
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// residency waits until the Computer of a Session has one of some.
func (h *helmr) residency(sessionID string, want ...string) string {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := h.whereIs(sessionID).Residency
		for _, w := range want {
			if got == w {
				return got
			}
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("the Computer is %s, not %v\n%s", got, want, h.out)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// unchanged checks that a process is the one of before, with all that it had, one Turn later.
func unchanged(t testing.TB, before, after slept) {
	t.Helper()
	want := before
	want.Turns = before.Turns + 1
	want.Line, want.Child = fmt.Sprintf("%03d", want.Turns), fmt.Sprint(want.Turns)
	want.Now, want.Random, want.Fired = after.Now, after.Random, after.Fired
	if got, want := asJSON(after), asJSON(want); got != want {
		t.Errorf("after the resume:\n got %s\nwant %s", got, want)
	}
	for i := range after.Random {
		if after.Random[i] == before.Random[i] {
			t.Errorf("random number %d came twice", i)
		}
	}
	if off := time.Since(time.UnixMilli(after.Now)); off < -time.Second || off > time.Minute {
		t.Errorf("the clock inside is %s off", off)
	}
}

func asJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// asleep makes a Session that has done a Turn and hibernates.
func (h *helmr) asleep(input string) (sessionID string, first slept) {
	h.t.Helper()
	r := h.create("sleeper", input)
	first = h.slept(r.SessionID, r.TurnID)
	if first.Inits != 1 || first.Recovery != "initial" || !first.Intact || !first.Ticking || first.Said != "you said hello" || first.Memory != "kept" {
		h.t.Fatalf("first turn: %+v", first)
	}
	h.residency(r.SessionID, "hibernated")
	return r.SessionID, first
}

// TestSpec_07_15_SameProcessesGoOn hibernates a Computer and resumes it: memory, timers, an open file, a child process, a
// listening socket and what is in /run are there; the clock is right and random numbers do not come again.
func TestSpec_07_15_SameProcessesGoOn(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/hibernate")
	sessionID, first := h.asleep("alarm 2500")
	id := h.whereIs(sessionID).ID
	h.until("nothing of it is left on the Worker", func() bool {
		_, err := os.Stat(filepath.Join(h.dir, "worker", "computers", id))
		return h.sandboxPID(id) == 0 && os.IsNotExist(err)
	})
	use, err := h.ListComputerSessions(t.Context(), id, "", 10)
	if err != nil || len(use.Sessions) != 1 || use.Sessions[0].UsageState != "parked" {
		t.Errorf("usage: %+v %v", use, err)
	}
	h.until("the alarm is due", func() bool { return time.Since(time.UnixMilli(first.Now)) > 3*time.Second })
	second := h.slept(sessionID, h.enqueue(sessionID, "look"))
	unchanged(t, first, second)
	if second.Fired != 1 {
		t.Errorf("a timer that was due fired %d times", second.Fired)
	}

	// An orderly end hibernates it, and the next helmr goes on with it.
	h.stop()
	h.run()
	h.residency(sessionID, "hibernated")
	unchanged(t, second, h.slept(sessionID, h.enqueue(sessionID, "write note")))

	// Without its memory it is lost, but for the captured disk.
	h.residency(sessionID, "hibernated")
	dropMemory(t, filepath.Join(h.dir, "blobs"))
	turnID := h.enqueue(sessionID, "look")
	h.residency(sessionID, "cold")
	s, err := h.GetSession(t.Context(), sessionID)
	if err != nil || len(s.Holds) != 1 || s.Holds[0].Reason != "computer_lost" {
		t.Fatalf("without its memory: %+v, %v", s, err)
	}
	h.resume(sessionID)
	if last := h.slept(sessionID, turnID); last.Token == first.Token || last.Inits != 2 || last.Turns != 1 || last.Recovery != "reconstructed" {
		t.Errorf("a new process: %+v", last)
	}
}

// dropMemory deletes the manifest that was stored last: the memory's.
func dropMemory(t *testing.T, blobs string) {
	t.Helper()
	newest, at := "", time.Time{}
	err := filepath.WalkDir(blobs, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "manifest") {
			return err
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(at) {
			newest, at = path, info.ModTime()
		}
		return err
	})
	if err == nil {
		err = os.Remove(newest)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSpec_07_16_AClosedSessionIsNotResumed, nor a deleted Computer.
func TestSpec_07_16_AClosedSessionIsNotResumed(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/hibernate")
	sessionID, _ := h.asleep("look")
	if _, err := h.CloseSession(t.Context(), sessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := h.whereIs(sessionID).Residency; got != "cold" {
		t.Errorf("the Computer of a closed Session is %s", got)
	}
	events := h.events(sessionID)
	if last := events[len(events)-1]; last.Kind != "session.process_stopped" {
		t.Errorf("the last event is %s", last.Kind)
	}
	id := h.whereIs(sessionID).ID
	out, errs, code := h.command("computer", "exec", "--id", id, "--", "cat", "/work/inits")
	if code != 0 || out != "x" {
		t.Errorf("the captured disk: exit %d, %q\n%s", code, out, errs)
	}
}

// TestSpec_08_06_ACommandResumesAComputer, in which the processes go on.
func TestSpec_08_06_ACommandResumesAComputer(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/hibernate")
	sessionID, first := h.asleep("look")
	if out, errs, code := h.command("computer", "exec", "--id", h.whereIs(sessionID).ID, "--", "cat", "/run/memory"); code != 0 || out != "kept" {
		t.Fatalf("exit %d, %q\n%s", code, out, errs)
	}
	h.residency(sessionID, "hibernated") // it was idle all the time
	unchanged(t, first, h.slept(sessionID, h.enqueue(sessionID, "look")))
}

// TestSpec_07_14_KillsDuringHibernation kills helmr with SIGKILL at each step on the way to a capture and back, and lets
// work come in between: the same processes go on, and each Turn runs once.
func TestSpec_07_14_KillsDuringHibernation(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/hibernate")
	sessionID, last := h.asleep("look")
	id := h.whereIs(sessionID).ID
	tmp := filepath.Join(h.dir, "worker", "tmp")
	exists := func(pattern string) func() bool {
		return func() bool {
			found, _ := filepath.Glob(filepath.Join(tmp, pattern))
			return len(found) > 0
		}
	}
	after := func(d time.Duration, step func() bool) func() bool {
		var since time.Time
		return func() bool {
			if since.IsZero() && step() {
				since = time.Now()
			}
			return !since.IsZero() && time.Since(since) >= d
		}
	}
	is := func(residency string) func() bool {
		return func() bool { return h.whereIs(sessionID).Residency == residency }
	}
	lives := func() bool { return h.sandboxPID(id) != 0 }
	look := func() { last = h.again(sessionID, last, h.enqueue(sessionID, "look")) }

	for _, step := range []struct {
		name string
		at   func() bool
	}{
		{"ordered", is("hibernating")}, {"disk", exists("*-disk")}, {"memory", exists("*-memory/checkpoint.img")},
		{"memory, later", after(60*time.Millisecond, exists("*-memory/checkpoint.img"))}, {"storing", after(120*time.Millisecond, exists("*-memory/checkpoint.img"))},
		{"stored", after(200*time.Millisecond, exists("*-memory/checkpoint.img"))}, {"published", is("hibernated")},
	} {
		look()
		h.until(step.name, func() bool { return step.at() || is("hibernated")() })
		was := h.whereIs(sessionID).Residency
		h.kill()
		h.run()
		t.Logf("killed at %q: the Computer was %s", step.name, was)
		h.residency(sessionID, "hibernated")
		h.until("its sandbox is gone", func() bool { return !lives() })
	}
	for _, step := range []struct {
		name string
		at   func() bool
	}{
		{"resuming", is("resuming")}, {"fetching", exists(".*-memory*")}, {"fetched", exists(id + "-memory")},
		{"restoring", after(50*time.Millisecond, exists(id+"-memory"))}, {"restored", lives}, {"running", is("running")},
	} {
		turnID := h.enqueue(sessionID, "look")
		h.until(step.name, func() bool { return step.at() || is("running")() })
		was := h.whereIs(sessionID).Residency
		h.kill()
		h.run()
		t.Logf("killed at %q: the Computer was %s", step.name, was)
		last = h.again(sessionID, last, turnID)
		h.residency(sessionID, "hibernated")
	}
	// New work at each moment of a capture.
	for i := range 6 {
		look()
		h.residency(sessionID, "hibernating", "hibernated")
		time.Sleep(time.Duration(i) * 80 * time.Millisecond)
		t.Logf("work comes when the Computer is %s", h.whereIs(sessionID).Residency)
		look()
	}
	if s, err := h.GetSession(t.Context(), sessionID); err != nil || len(s.Holds) != 0 {
		t.Errorf("session %+v, %v", s, err)
	}
}

// again waits for a Turn that goes on with the process of before.
func (h *helmr) again(sessionID string, before slept, turnID string) slept {
	h.t.Helper()
	after := h.slept(sessionID, turnID)
	unchanged(h.t, before, after)
	if h.t.Failed() {
		h.t.Fatal(h.describe(sessionID))
	}
	return after
}

// TestSpec_07_15_AnotherWorkerResumes hibernates a Computer on one Worker and resumes it on another.
func TestSpec_07_15_AnotherWorkerResumes(t *testing.T) {
	t.Parallel()
	c := install(t)
	c.startWorker()
	c.program().login(c.info.URL, c.info.APIKey).run(t, "deploy", "testdata/hibernate").ok(t)
	sessionID, first := c.asleep("look")
	one := c.worker
	two := filepath.Join(c.dir, "two", "worker") // where close looks
	c.worker = c.process(append(c.workerSettings(), "HELMR_WORKER_NAME=two", "HELMR_WORKER_WORK_DIR="+two, "HELMR_WORKER_CAPACITY_MEMORY_MIB=4096")...).start(t, "worker")
	c.worker.says("worker registered")
	c.process(c.workerSettings()...).run(t, "worker", "drain", "--timeout", "1m").ok(t)
	second := c.again(sessionID, first, c.enqueue(sessionID, "look"))
	if _, err := os.Stat(filepath.Join(two, "computers", c.whereIs(sessionID).ID)); err != nil {
		t.Fatalf("the Computer is not on the other Worker: %v", err)
	}
	// The first Worker has nothing to do with it any more.
	one.signal(syscall.SIGKILL)
	one.wait()
	c.residency(sessionID, "hibernated")
	third := c.again(sessionID, second, c.enqueue(sessionID, "look"))
	// The second Worker alone is killed with the Computer on the way to a capture.
	c.residency(sessionID, "hibernating", "hibernated")
	c.worker.signal(syscall.SIGKILL)
	c.worker.wait()
	c.worker = c.process(append(c.workerSettings(), "HELMR_WORKER_NAME=two", "HELMR_WORKER_WORK_DIR="+two, "HELMR_WORKER_CAPACITY_MEMORY_MIB=4096")...).start(t, "worker")
	c.worker.says("worker registered")
	c.residency(sessionID, "hibernated")
	c.again(sessionID, third, c.enqueue(sessionID, "look"))
}

// TestSpec_07_15_ConnectionsAreClosed holds a connection over the network while a Computer sleeps.
func TestSpec_07_15_ConnectionsAreClosed(t *testing.T) {
	host := smallInternet(t)
	h := prepare(t, db.SQLite)
	h.netns = "/run/netns/" + host
	h.env = []string{"HELMR_WORKER_NETWORK_RESOLVER_IPV4=9.9.9.9"}
	h.run()
	h.Client = client.New(h.info.URL, h.info.APIKey, client.WithHTTPClient(&http.Client{Transport: &http.Transport{
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			inNamespace(t, host, func() error {
				conn, err = net.Dial(network, address)
				return nil
			})
			return conn, err
		},
	}}))
	h.deploy("testdata/hibernate")
	call := func(sessionID, turnID string) (ends, answer string) {
		t.Helper()
		v := h.settled(sessionID, turnID)
		var got struct{ Ends, Answer string }
		if v.Status != "completed" || json.Unmarshal(v.Result, &got) != nil {
			t.Fatalf("turn is %s: %+v %s", v.Status, v.Error, v.Result)
		}
		return got.Ends, got.Answer
	}
	r := h.create("caller", "allowed.example")
	if ends, answer := call(r.SessionID, r.TurnID); ends != "" || !strings.Contains(answer, "is allowed.example") {
		t.Fatalf("at first: %q, %q", ends, answer)
	}
	h.residency(r.SessionID, "hibernated")
	ends, answer := call(r.SessionID, h.enqueue(r.SessionID, "allowed.example"))
	if !strings.HasSuffix(ends, "closed") || !strings.Contains(answer, "is allowed.example") {
		t.Errorf("after the resume: %q, %q", ends, answer)
	}
	t.Logf("the connection of before ended with %q", ends)
}
