package turn_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/session"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// family is a root with a child on another Computer and a grandchild on the root's, each with a running Turn; stranger is
// an independent Session that the root started.
type family struct {
	w                                     *world
	root, child, grandchild, stranger     string
	rootTurn, childTurn, grandTurn        string
	strangerTurn                          string
	here, there                           *host
	rootProc, childProc, grandProc, other *proc
}

func newFamily(w *world) *family {
	r := w.create("echo", "root")
	s := w.create("echo", "stranger")
	w.exec(`UPDATE sessions SET requester_session_id = ? WHERE id = ?`, r.SessionID, s.SessionID)
	f := &family{w: w, root: r.SessionID, rootTurn: r.TurnID, stranger: s.SessionID, strangerTurn: s.TurnID}
	f.child, f.childTurn = w.childOn(f.root, w.session(f.stranger).ComputerID)
	f.grandchild, f.grandTurn = w.childOn(f.child, w.session(f.root).ComputerID)
	f.here, f.there = w.place(f.root), w.place(f.stranger)
	f.rootProc, f.grandProc = f.here.ready(f.root), f.here.ready(f.grandchild)
	f.childProc, f.other = f.there.ready(f.child), f.there.ready(f.stranger)
	f.here.exchange()
	f.there.exchange()
	return f
}

func (f *family) turns() string {
	var out []string
	for _, t := range [][2]string{{f.root, f.rootTurn}, {f.child, f.childTurn}, {f.grandchild, f.grandTurn}, {f.stranger, f.strangerTurn}} {
		out = append(out, f.w.turn(t[0], t[1]).Status)
	}
	return strings.Join(out, " ")
}

// settle has every aborted handler settle.
func (f *family) settle(abortIn ...*proc) {
	for _, p := range abortIn {
		p.op(`"type":"turn_aborted","turnId":%q,"settled":true`, p.turnID)
	}
	f.here.exchange()
	f.there.exchange()
}

func TestSpec_04_14_ControlsReachOwnedDescendantsOnly(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		f := newFamily(w)
		hold := w.interrupt(f.root)
		f.here.exchange()
		f.there.exchange()
		for name, p := range map[string]*proc{"root": f.rootProc, "child": f.childProc, "grandchild": f.grandProc} {
			if len(p.told("abort")) != 1 {
				w.t.Errorf("the handler of the %s was not aborted", name)
			}
		}
		if len(f.other.told("abort")) != 0 {
			w.t.Error("an independent Session was aborted")
		}
		f.settle(f.rootProc, f.childProc, f.grandProc)
		if got := f.turns(); got != "interrupted interrupted interrupted running" {
			w.t.Errorf("turns are %s", got)
		}
		// The hold is the root's, and in effect on all below it.
		for _, s := range []string{f.root, f.child, f.grandchild} {
			if h := w.session(s).Holds; len(h) != 1 || h[0].ID != hold || h[0].SessionID != f.root || h[0].Scope != "subtree" || h[0].Reason != "interrupt" {
				w.t.Errorf("holds of %s are %+v", s, h)
			}
		}
		if h := w.session(f.stranger).Holds; len(h) != 0 {
			w.t.Errorf("an independent Session is held: %+v", h)
		}
		for s, want := range map[string]string{f.root: "session.interrupt turn.interrupted", f.child: "turn.interrupted", f.grandchild: "turn.interrupted"} {
			if got := strings.Join(w.kinds(s), " "); !strings.HasSuffix(got, "turn.running "+want) {
				w.t.Errorf("events of %s are %s, want them to end with %s", s, got, want)
			}
		}
	})
}

func TestSpec_04_11_OnlyItsOwnerReleasesAHold(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		f := newFamily(w)
		hold := w.interrupt(f.root)
		own := w.interrupt(f.child)
		if own == hold {
			w.t.Fatal("the child's own interrupt gave the root's hold")
		}
		f.settle(f.rootProc, f.childProc, f.grandProc)
		queued := map[string]string{}
		for _, s := range []string{f.root, f.child, f.grandchild} {
			queued[s] = w.enqueue(s, "next").TurnID
		}
		for _, wrong := range []struct{ session, hold string }{{f.child, hold}, {f.grandchild, hold}, {f.root, own}, {f.stranger, hold}} {
			_, err := w.turns.Resume(w.t.Context(), w.env, w.by, wrong.session, wrong.hold, "")
			w.wantCode(err, fault.HoldNotActive)
		}
		running := func() (out []string) {
			f.here.exchange()
			f.there.exchange()
			for _, s := range []string{f.root, f.child, f.grandchild} {
				if w.turn(s, queued[s]).Status == "running" {
					out = append(out, s)
				}
			}
			return out
		}
		if got := running(); len(got) != 0 {
			w.t.Fatalf("%d held Turns run", len(got))
		}
		w.resume(f.root, hold) // the child's own hold keeps it and the grandchild
		if got := running(); !slices.Equal(got, []string{f.root}) {
			w.t.Fatalf("after the root's resume %d Turns run", len(got))
		}
		w.resume(f.child, own)
		if got := running(); len(got) != 3 {
			w.t.Fatalf("after the child's resume %d Turns run", len(got))
		}
		_, err := w.turns.Resume(w.t.Context(), w.env, w.by, f.root, hold, "")
		w.wantCode(err, fault.HoldNotActive)
	})
}

func TestSpec_18_08_CancelShowsInEachSessionOfTheTree(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		f := newFamily(w)
		w.close(f.grandchild)
		w.cancel(f.root)
		for s, cause := range map[string]string{f.root: "control", f.child: "parent", f.grandchild: "parent"} {
			if v := w.session(s); v.Status != "cancelled" {
				w.t.Errorf("status %s at once after the cancel", v.Status)
			}
			if got := w.data(s, "session.cancel"); !strings.Contains(got, fmt.Sprintf(`"cause":%q`, cause)) || strings.Contains(got, `"by"`) != (cause == "control") {
				w.t.Errorf("session.cancel is %s, want cause %s", got, cause)
			}
		}
		if v := w.session(f.stranger); v.Status != "open" {
			w.t.Errorf("an independent Session is %s", v.Status)
		}
		f.here.exchange()
		f.there.exchange()
		f.settle(f.rootProc, f.childProc, f.grandProc)
		if got := f.turns(); got != "cancelled cancelled cancelled running" {
			w.t.Errorf("turns are %s", got)
		}
		if v := w.session(f.child); len(v.Holds) != 0 {
			w.t.Errorf("a cancel placed holds: %+v", v.Holds)
		}
	})
}

func TestSpec_04_08_ClosingWaitsForChildren(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		f := newFamily(w)
		f.here.finish(f.rootProc, "1")
		w.close(f.root)
		if v := w.session(f.root); v.Status != "closing" {
			w.t.Fatalf("status %s although a child is open", v.Status)
		}
		w.run("turn.closing")
		if v := w.session(f.root); v.Status != "closing" {
			w.t.Fatalf("status %s although a child is open", v.Status)
		}
		if v := w.session(f.child); v.Status != "open" {
			w.t.Fatalf("closing a parent made its child %s", v.Status)
		}
		w.cancel(f.child)
		w.run("turn.closing")
		if v := w.session(f.root); v.Status != "closed" {
			w.t.Fatalf("status %s after its child has ended", v.Status)
		}
	})
}

func TestSpec_04_14_AParentTurnThatEndsStopsNoChild(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		f := newFamily(w)
		f.here.finish(f.rootProc, "1")
		if got := f.turns(); got != "completed running running running" {
			w.t.Fatalf("turns are %s", got)
		}
	})
}

// One Computer twice in a tree is one row: what a control changes on it is not lost.
func TestResumeWakesEveryComputerOfTheTree(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "root")
		s := w.create("echo", "other")
		child, _ := w.childOn(r.SessionID, w.session(s.SessionID).ComputerID)
		grandchild, _ := w.childOn(child, w.session(r.SessionID).ComputerID)
		hold := w.interrupt(r.SessionID)
		w.cancel(s.SessionID)
		for _, id := range []string{r.SessionID, s.SessionID} {
			w.exec(`UPDATE computers SET work_wanted = 0, unused_since = 0 WHERE id = ?`, w.session(id).ComputerID)
		}
		w.exec(`UPDATE turns SET status = 'cancelled', terminal_at = 0 WHERE session_id = ?`, r.SessionID) // only those below have work
		_, err := w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, hold, "")
		w.must(err)
		for _, id := range []string{child, grandchild} {
			var wanted int64
			w.count(&wanted, `SELECT work_wanted FROM computers WHERE id = ?`, w.session(id).ComputerID)
			if wanted != 1 {
				w.t.Errorf("the Computer of %s is not wanted", id)
			}
		}
	})
}

func TestSpec_04_13_ControlsOnTerminalSessions(t *testing.T) {
	t.Parallel()
	type control struct {
		name              string
		call              func(w *world, sessionID string) error
		closed, cancelled fault.Code
	}
	req := api.ControlRequest{}
	cases := []control{
		{"interrupt", func(w *world, s string) error {
			_, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, s, req)
			return err
		}, fault.SessionTerminal, fault.SessionTerminal},
		{"resume", func(w *world, s string) error {
			_, err := w.turns.Resume(w.t.Context(), w.env, w.by, s, s, "")
			return err
		}, fault.SessionTerminal, fault.SessionTerminal},
		{"close", func(w *world, s string) error {
			_, err := w.turns.Close(w.t.Context(), w.env, w.by, s, req)
			return err
		}, "", fault.SessionTerminal},
		{"cancel", func(w *world, s string) error {
			_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, s, req)
			return err
		}, fault.SessionTerminal, ""},
	}
	eachCase(t, cases, func(c control) string { return c.name }, func(w *world, c control) {
		closed, cancelled := w.create("echo", "x").SessionID, w.create("echo", "x").SessionID
		w.interrupt(closed)
		w.close(closed)
		w.cancel(cancelled)
		for s, want := range map[string]fault.Code{closed: c.closed, cancelled: c.cancelled} {
			before := len(w.kinds(s))
			w.wantCode(c.call(w, s), want)
			if len(w.kinds(s)) != before {
				w.t.Error("it changed something")
			}
		}
	})
}

func TestSpec_04_06_HoldsAreThoseInEffect(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "root")
		child, _ := w.child(r.SessionID)
		grandchild, _ := w.child(child)
		check := func(sessionID string, want ...string) {
			t.Helper()
			var got []string
			for _, h := range w.session(sessionID).Holds {
				got = append(got, fmt.Sprintf("%s/%s/%s", h.Reason, h.Scope, map[string]string{r.SessionID: "root", child: "child", grandchild: "grandchild"}[h.SessionID]))
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("holds %v, want %v", got, want)
			}
			page, err := w.sessions.List(w.t.Context(), w.env, session.Filter{Limit: 10})
			w.must(err)
			for _, s := range page.Sessions { // lists say the same
				if s.ID == sessionID && len(s.Holds) != len(want) {
					t.Errorf("in a list: %+v", s.Holds)
				}
			}
		}
		check(r.SessionID)
		root := w.interrupt(r.SessionID)
		h := w.place(r.SessionID) // nothing may run; the loss of the Computer places local holds
		h.phase = workerpb.Phase_PHASE_LOST
		h.exchange()
		w.interrupt(child)
		check(r.SessionID, "computer_lost/local/root", "interrupt/subtree/root")
		check(child, "computer_lost/local/child", "interrupt/subtree/child", "interrupt/subtree/root") // the root's local one is its own
		check(grandchild, "computer_lost/local/grandchild", "interrupt/subtree/child", "interrupt/subtree/root")
		w.resume(r.SessionID, root)
		check(r.SessionID, "computer_lost/local/root")
		check(grandchild, "computer_lost/local/grandchild", "interrupt/subtree/child")
	})
}
