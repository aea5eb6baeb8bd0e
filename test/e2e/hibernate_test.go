package e2e

import (
	"encoding/json"
	"testing"
	"time"

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

// residency waits until a Computer has one.
func (h *helmr) residency(computerID, want string) {
	h.t.Helper()
	got := ""
	deadline := time.Now().Add(patience)
	for got != want {
		c, err := h.GetComputer(h.t.Context(), computerID)
		if err != nil {
			h.t.Fatal(err)
		}
		if got = c.Residency; got != want {
			if time.Now().After(deadline) {
				h.t.Fatalf("the Computer is %s, not %s\n%s", got, want, h.out)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// unchanged checks that a process is the one of before, with all that it had.
func unchanged(t *testing.T, before, after slept) {
	t.Helper()
	want := before
	want.Turns, want.Line, want.Child = before.Turns+1, after.Line, after.Child
	want.Now, want.Random, want.Fired = after.Now, after.Random, after.Fired
	if a, b := asJSON(after), asJSON(want); a != b {
		t.Errorf("after the resume:\n got %s\nwant %s", a, b)
	}
	lines := []string{"", "one", "two", "six", "ten"}
	if after.Line != lines[after.Turns] || after.Child != string(rune('0'+after.Turns)) {
		t.Errorf("turn %d: the open file gives %q, the child process %q", after.Turns, after.Line, after.Child)
	}
	for i := range after.Random {
		if after.Random[i] == before.Random[i] {
			t.Errorf("random number %d came twice", i)
		}
	}
}

func asJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// TestSpec_07_15_SameProcessesGoOn hibernates a Computer and resumes it.
func TestSpec_07_15_SameProcessesGoOn(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/hibernate")
	r := h.create("sleeper", "alarm 2500")
	first := h.slept(r.SessionID, r.TurnID)
	if first.Inits != 1 || first.Recovery != "initial" || !first.Intact || !first.Ticking || first.Said != "you said hello" || first.Memory != "kept" {
		t.Fatalf("first turn: %+v", first)
	}
	s, err := h.GetSession(t.Context(), r.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	h.residency(s.ComputerID, "hibernated")
	h.until("nothing of it is left on the Worker", func() bool { return h.sandboxPID(s.ComputerID) == 0 })
	slept := time.Now()
	time.Sleep(2 * time.Second) // the alarm goes off meanwhile
	second := h.slept(r.SessionID, h.enqueue(r.SessionID, "look"))
	unchanged(t, first, second)
	if second.Fired != 1 {
		t.Errorf("a timer that was due fired %d times", second.Fired)
	}
	if off := time.Since(slept).Milliseconds() - (second.Now - slept.UnixMilli()); off < -2000 || off > 2000 {
		t.Errorf("the clock inside is %d ms off", off)
	}
	h.residency(s.ComputerID, "hibernated")
	unchanged(t, second, h.slept(r.SessionID, h.enqueue(r.SessionID, "look")))
}
