package turn_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/session"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func TestSpec_04_03_ASessionMayUseAComputerThatIsThere(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		first := w.create("echo", "hi")
		computerID := w.session(first.SessionID).ComputerID
		second, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "quick", Input: text("x"), ComputerID: computerID}, nil)
		w.must(err)
		if got := w.session(second.SessionID).ComputerID; got != computerID {
			w.t.Fatalf("the Session is on %s", got)
		}
		_, err = w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "quick", Input: text("x"), ComputerID: id.New()}, nil)
		if !fault.Is(err, fault.ComputerNotFound) {
			w.t.Fatalf("an unknown Computer: %v", err)
		}
		h := w.place(first.SessionID)
		h.exchange()
		if len(h.processes) != 2 {
			w.t.Fatalf("%d processes on the shared Computer", len(h.processes))
		}
	})
}

func TestSpec_04_07_ListsFilter(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		a, b := w.create("echo", "1"), w.create("quick", "2")
		_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, a.SessionID, api.ControlRequest{})
		w.must(err)
		want := func(f session.Filter, ids ...string) {
			w.t.Helper()
			f.Limit = 10
			page, err := w.sessions.List(w.t.Context(), w.env, f)
			w.must(err)
			got := make([]string, 0, len(page.Sessions))
			for _, s := range page.Sessions {
				got = append(got, s.ID)
			}
			if strings.Join(got, " ") != strings.Join(ids, " ") {
				w.t.Fatalf("filter %+v gives %v, want %v", f, got, ids)
			}
		}
		want(session.Filter{}, b.SessionID, a.SessionID) // latest first
		want(session.Filter{AgentID: "echo"}, a.SessionID)
		want(session.Filter{Statuses: []string{"open"}}, b.SessionID)
		want(session.Filter{Statuses: []string{"open", "cancelled"}}, b.SessionID, a.SessionID)
		want(session.Filter{ComputerID: w.session(b.SessionID).ComputerID}, b.SessionID)
		want(session.Filter{ParentSessionID: a.SessionID})
		want(session.Filter{Cursor: b.SessionID}, a.SessionID)
	})
}

func TestSpec_04_12_ResumeNeverReplaysATurn(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		next := w.enqueue(r.SessionID, "next")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		hold, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		again, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{}) // 04.10
		if w.must(err); again.HoldID != hold.HoldID {
			w.t.Fatal("a second interrupt placed a hold of its own")
		}
		h.exchange()
		p.op(`"type":"turn_aborted","turnId":%q,"settled":true`, r.TurnID)
		h.exchange()
		_, err = w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, hold.HoldID, "")
		w.must(err)
		if _, err = w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, hold.HoldID, ""); !fault.Is(err, fault.HoldNotActive) {
			w.t.Fatalf("a second resume: %v", err)
		}
		h.exchange()
		if strings.Join(p.delivered, " ") != r.TurnID+" "+next.TurnID {
			w.t.Fatalf("delivered %v", p.delivered)
		}
		h.finish(p, "1")
		w.wantKinds(r.SessionID, "turn.queued", "turn.queued", "turn.running", "session.interrupt", "turn.interrupted", "session.resume", "turn.running",
			"turn.finalizing", "turn.completed") // 04.17: a control's hold appends no session.held, its release session.resume
	})
}

func TestSpec_04_16_AHeldSessionTakesInputAndRefusesSend(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		_, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		w.enqueue(r.SessionID, "waits")
		_, err = w.turns.Send(w.t.Context(), w.env, w.by, r.SessionID, api.SendRequest{Data: text("no")})
		if f := fault.From(err); f.Code != fault.AdmissionUnavailable || f.Details["reason"] != "session_held" {
			w.t.Fatalf("send on a held Session: %v", err)
		}
		w.run("computer.dispatch")
		if c, err := w.computers.Get(w.t.Context(), w.env, w.session(r.SessionID).ComputerID); err != nil || c.ExecutionWait != nil {
			w.t.Fatalf("held work waits for capacity: %+v, %v", c, err)
		}
	})
}

func TestSpec_04_19_NewInputRestartsTheIdleClockAlsoBehindAHold(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("quick", "hi") // closes after a minute
		h := w.place(r.SessionID)
		h.finish(h.ready(r.SessionID), "1")
		_, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		w.clock.advance(50 * time.Second)
		queued := w.enqueue(r.SessionID, "behind the hold")
		w.clock.advance(50 * time.Second)
		w.run("turn.idle")
		if got := w.session(r.SessionID).Status; got != "open" {
			w.t.Fatalf("the clock was not restarted: %s", got)
		}
		w.clock.advance(11 * time.Second)
		w.run("turn.idle")
		if got := w.session(r.SessionID).Status; got != "closed" || w.turn(r.SessionID, queued.TurnID).Status != "cancelled" {
			w.t.Fatalf("a held Session did not close: %s", got)
		}
	})
}

func TestSpec_04_24_NoProcessStartsBehindAHold(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		shared := w.create("echo", "keeps the Computer")
		held, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: w.session(shared.SessionID).ComputerID}, nil)
		w.must(err)
		hold, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, held.SessionID, api.ControlRequest{})
		w.must(err)
		h := w.place(shared.SessionID)
		h.exchange()
		if h.processes[held.SessionID] != nil {
			w.t.Fatal("a held Session got a process")
		}
		_, err = w.turns.Resume(w.t.Context(), w.env, w.by, held.SessionID, hold.HoldID, "")
		w.must(err)
		h.exchange()
		if h.processes[held.SessionID] == nil {
			w.t.Fatal("a resumed Session got no process")
		}
	})
}

func TestSpec_05_02_TurnsAreListedOldestFirst(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "1")
		for i := range 4 {
			w.enqueue(r.SessionID, fmt.Sprint(i))
		}
		cursor, seen := "", int64(0)
		for range 3 {
			page, err := w.turns.List(w.t.Context(), w.env, r.SessionID, cursor, 2)
			w.must(err)
			for _, v := range page.Turns {
				if seen++; v.Sequence != seen {
					w.t.Fatalf("turn %d comes as number %d", v.Sequence, seen)
				}
			}
			cursor = page.NextCursor
		}
		if seen != 5 || cursor != "" {
			w.t.Fatalf("%d Turns, then cursor %q", seen, cursor)
		}
		for _, bad := range []string{"x", "-1", "1.5"} {
			if _, err := w.turns.List(w.t.Context(), w.env, r.SessionID, bad, 2); !fault.Is(err, fault.InvalidCursor) {
				w.t.Errorf("cursor %q: %v", bad, err)
			}
		}
	})
}

func TestSpec_05_08_ASaveWhoseCaptureBeganCompletesNoLaterTurn(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		a := w.create("echo", "a")
		computerID := w.session(a.SessionID).ComputerID
		more := make([]api.SessionCreateReceipt, 2)
		for i := range more {
			r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: computerID}, nil)
			w.must(err)
			more[i] = r
		}
		h := w.place(a.SessionID)
		p := h.ready(a.SessionID)
		for _, r := range more {
			h.processes[r.SessionID].op(`"type":"init_done"`)
		}
		h.exchange()
		p.op(`"type":"turn_result","turnId":%q,"result":1`, a.TurnID)
		h.exchange() // orders the Save of a: its capture begins
		first := h.save.GetSaveId()
		for _, r := range more { // these finalize during the capture: one Save of their own, shared
			h.processes[r.SessionID].op(`"type":"turn_result","turnId":%q,"result":2`, r.TurnID)
		}
		h.exchange()
		h.publish()
		if w.turn(a.SessionID, a.TurnID).Status != "completed" || w.turn(more[0].SessionID, more[0].TurnID).Status != "finalizing" {
			w.t.Fatal("the first Save completed the wrong Turns")
		}
		h.exchange()
		if h.save.GetSaveId() == first || h.save.GetNumber() != 2 {
			w.t.Fatalf("the next Save is %+v", h.save)
		}
		h.publish()
		for _, r := range more {
			if v := w.turn(r.SessionID, r.TurnID); v.Status != "completed" {
				w.t.Fatalf("turn %+v", v)
			}
		}
	})
}

func TestSpec_18_03_EventsAreReadAfterASequence(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "1")
		w.enqueue(r.SessionID, "2")
		w.enqueue(r.SessionID, "3")
		page, ended, err := w.sessions.Events(w.t.Context(), w.env, r.SessionID, 1, 1)
		w.must(err)
		e := page.Records[0]
		if ended || !page.HasMore || page.NextAfter != 2 || e.Sequence != 2 || e.SessionID != r.SessionID || e.TurnID == nil || e.Kind != "turn.queued" {
			w.t.Fatalf("page %+v", page)
		}
		page, _, err = w.sessions.Events(w.t.Context(), w.env, r.SessionID, 3, 10)
		if w.must(err); page.HasMore || len(page.Records) != 0 || page.NextAfter != 3 {
			w.t.Fatalf("caught up: %+v", page)
		}
		if _, _, err = w.sessions.Events(w.t.Context(), w.env, r.SessionID, 4, 10); !fault.Is(err, fault.InvalidCursor) {
			w.t.Fatalf("beyond the end: %v", err)
		}
	})
}

func TestSpec_18_09_LossAppendsEndingsThenTheHold(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		p.op(`"type":"question","turnId":%q,"questionId":%q,"question":{"prompt":[],"answer":{"type":"text"}}`, r.TurnID, id.New())
		h.exchange()
		_, err := w.turns.Send(w.t.Context(), w.env, w.by, r.SessionID, api.SendRequest{Data: text("live")})
		w.must(err)
		h.phase = workerpb.Phase_PHASE_LOST
		h.exchange()
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "question.created", "message.admitted", "question.cancelled", "message.rejected", "turn.interrupted", "session.held")
	})
}
