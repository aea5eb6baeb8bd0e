package turn_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/state"
	"helmr.dev/helmr/internal/turn"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// arrow is one row of a table of states: from a state that enter reaches, do leads to another, with the events that it
// appends to the Session.
type arrow struct {
	event, from, to string
	enter           func(w *world) *scene
	do              func(s *scene)
	events          string
	// more is what else the row says, "" if it holds.
	more func(s *scene) string
}

func (a arrow) String() string { return fmt.Sprintf("%s to %s on %s", a.from, a.to, a.event) }

// scene is a Session with its Computer and its process, if it has come so far.
type scene struct {
	w                 *world
	sessionID, turnID string
	h                 *host
	p                 *proc
}

// walk takes each arrow and compares the state that of gives; the arrows must be all of the table.
func walk[S ~string](t *testing.T, table state.Table[S], arrows []arrow, of func(s *scene) string) {
	t.Helper()
	walked := map[string]bool{}
	for _, a := range arrows {
		walked[a.from+" "+a.to] = true
	}
	for from, row := range table {
		for _, to := range row {
			if !walked[string(from)+" "+string(to)] {
				t.Errorf("no case goes from %s to %s", from, to)
			}
		}
	}
	eachCase(t, arrows, arrow.String, func(w *world, a arrow) {
		s := &scene{w: w}
		if a.enter != nil {
			s = a.enter(w)
		}
		before := 0
		if s.sessionID != "" {
			before = len(w.kinds(s.sessionID))
			if got := of(s); got != a.from {
				w.t.Fatalf("begins in %q, want %q", got, a.from)
			}
		}
		a.do(s)
		if got := of(s); got != a.to {
			w.t.Errorf("ends in %q, want %q", got, a.to)
		}
		if got := strings.Join(w.kinds(s.sessionID)[before:], " "); got != a.events {
			w.t.Errorf("events are\n  %s\nwant\n  %s", got, a.events)
		}
		if a.more != nil {
			if wrong := a.more(s); wrong != "" {
				w.t.Error(wrong)
			}
		}
	})
}

// The ways to where an arrow begins.

func withQueued(w *world) *scene {
	r := w.create("echo", "hi")
	return &scene{w: w, sessionID: r.SessionID, turnID: r.TurnID}
}

func starting(w *world) *scene {
	s := withQueued(w)
	s.h = w.place(s.sessionID)
	s.h.exchange()
	s.p = s.h.processes[s.sessionID]
	return s
}

// waiting is a process that is ready and has nothing to do: its Session is held.
func waiting(w *world) *scene {
	s := starting(w)
	w.interrupt(s.sessionID)
	s.p.op(`"type":"init_done"`)
	s.h.exchange()
	return s
}

func runningOf(agent string) func(w *world) *scene {
	return func(w *world) *scene {
		r, h, p := w.running(agent)
		return &scene{w: w, sessionID: r.SessionID, turnID: r.TurnID, h: h, p: p}
	}
}

func finalizing(w *world) *scene {
	s := runningOf("echo")(w)
	s.result()
	return s
}

func stopping(w *world) *scene {
	s := waiting(w)
	w.close(s.sessionID)
	s.h.exchange()
	return s
}

func closing(w *world) *scene {
	s := runningOf("echo")(w)
	w.close(s.sessionID)
	return s
}

// What a scene does.

func (s *scene) result() { s.h.op(s.p, `"type":"turn_result","turnId":%q,"result":1`, s.turnID) }

func (s *scene) settled() {
	s.h.exchange()
	s.h.op(s.p, `"type":"turn_aborted","turnId":%q,"settled":true`, s.turnID)
}

func (s *scene) unsettled() {
	s.h.exchange()
	s.h.op(s.p, `"type":"turn_aborted","turnId":%q,"settled":false,"cause":"work"`, s.turnID)
}

func (s *scene) dies() {
	s.p.exit()
	s.h.exchange()
}

func (s *scene) isLost() {
	s.h.phase = workerpb.Phase_PHASE_LOST
	s.h.exchange()
}

func (s *scene) orderlyStop() {
	_, err := s.w.computers.Heartbeat(s.w.t.Context(), s.w.worker, true)
	s.w.must(err)
	s.h.exchange()
}

func (s *scene) deadline() {
	s.w.clock.advance(2 * time.Second)
	s.w.run("turn.deadlines")
}

func (s *scene) interrupted() { s.w.interrupt(s.sessionID) }
func (s *scene) cancelled()   { s.w.cancel(s.sessionID) }

func then(steps ...func(s *scene)) func(s *scene) {
	return func(s *scene) {
		for _, step := range steps {
			step(s)
		}
	}
}

func (s *scene) holds(want ...string) string {
	var got []string
	for _, h := range s.w.session(s.sessionID).Holds {
		got = append(got, h.Reason)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		return fmt.Sprintf("holds are %v, want %v", got, want)
	}
	return ""
}

func (s *scene) failures(want int64) string {
	var n int64
	if s.w.count(&n, `SELECT consecutive_failures FROM sessions WHERE id = ?`, s.sessionID); n != want {
		return fmt.Sprintf("%d failures in a row, want %d", n, want)
	}
	return ""
}

// ends says how the Turn should have ended.
func ends(code string) func(s *scene) string {
	return func(s *scene) string {
		v := s.w.turn(s.sessionID, s.turnID)
		got := ""
		if v.Error != nil {
			got = v.Error.Code
		}
		if got != code || (v.TerminalAt == nil) != (v.Status == "queued" || v.Status == "running" || v.Status == "finalizing") || v.Result != nil && v.Status != "completed" {
			return fmt.Sprintf("turn is %+v with error %q, want %q", v, got, code)
		}
		return ""
	}
}

// Every row of the table of Turns, and every error code.
func TestSpec_05_04_EachArrowOfATurn(t *testing.T) {
	t.Parallel()
	failed := func(code string) func(s *scene) {
		return func(s *scene) {
			s.h.op(s.p, `"type":"turn_failed","turnId":%q,"error":{"code":%q,"message":"m"}`, s.turnID, code)
		}
	}
	running := runningOf("echo")
	walk(t, turn.Statuses, []arrow{
		{event: "input admitted", to: "queued", do: func(s *scene) { *s = *withQueued(s.w) }, events: "turn.queued"},
		{event: "a ready process", from: "queued", to: "running", enter: waiting, do: func(s *scene) {
			s.w.resume(s.sessionID, s.w.session(s.sessionID).Holds[0].ID)
			s.h.exchange()
		}, events: "session.resume turn.running", more: func(s *scene) string {
			if v := s.w.turn(s.sessionID, s.turnID); v.StartedAt == nil {
				return "started_at is not set"
			}
			return ""
		}},
		{event: "Session cancelled", from: "queued", to: "cancelled", enter: withQueued, do: (*scene).cancelled, events: "session.cancel turn.cancelled session.cancelled", more: ends("")},
		{event: "Session closed behind a hold", from: "queued", to: "cancelled", enter: withQueued, do: then((*scene).interrupted, func(s *scene) { s.w.close(s.sessionID) }),
			events: "session.interrupt session.close turn.cancelled session.closed", more: ends("")},
		{event: "result recorded", from: "running", to: "finalizing", enter: running, do: (*scene).result, events: "turn.finalizing", more: ends("")},
		{event: "handler throws", from: "running", to: "failed", enter: running, do: failed("handler_failed"), events: "turn.failed", more: ends("handler_failed")},
		{event: "result invalid", from: "running", to: "failed", enter: running, do: failed("result_invalid"), events: "turn.failed", more: ends("result_invalid")},
		{event: "no result", from: "running", to: "failed", enter: running, do: func(s *scene) {
			s.h.op(s.p, `"type":"turn_result","turnId":%q`, s.turnID)
		}, events: "turn.failed", more: ends("result_invalid")},
		{event: "result too large", from: "running", to: "failed", enter: running, do: func(s *scene) {
			s.h.op(s.p, `"type":"turn_result","turnId":%q,"result":"%s"`, s.turnID, strings.Repeat("x", turn.MaxResultBytes))
		}, events: "turn.failed", more: ends("result_too_large")},
		{event: "drain failed", from: "running", to: "failed", enter: running, do: failed("drain_failed"), events: "turn.failed", more: ends("drain_failed")},
		{event: "a Question nobody awaits", from: "running", to: "failed", enter: running, do: func(s *scene) {
			s.h.ask(s.p, textQuestion)
			s.result()
		}, events: "question.created question.cancelled turn.failed", more: ends("drain_failed")},
		{event: "interrupt", from: "running", to: "interrupted", enter: running, do: then((*scene).interrupted, (*scene).settled),
			events: "session.interrupt turn.interrupted", more: ends("interrupted")},
		{event: "deadline", from: "running", to: "interrupted", enter: runningOf("quick"), do: then((*scene).deadline, (*scene).settled),
			events: "session.deadline turn.interrupted", more: ends("deadline_exceeded")},
		{event: "orderly stop", from: "running", to: "interrupted", enter: running, do: then((*scene).orderlyStop, (*scene).settled),
			events: "turn.interrupted", more: ends("shutdown")},
		{event: "process lost", from: "running", to: "interrupted", enter: running, do: (*scene).dies, events: "turn.interrupted session.process_failed", more: ends("process_lost")},
		{event: "Computer lost", from: "running", to: "interrupted", enter: running, do: (*scene).isLost, events: "turn.interrupted session.held", more: ends("computer_lost")},
		{event: "Session cancelled, after cleanup", from: "running", to: "cancelled", enter: running, do: then((*scene).cancelled, (*scene).settled),
			events: "session.cancel turn.cancelled", more: ends("")},
		{event: "its Save published", from: "finalizing", to: "completed", enter: finalizing, do: func(s *scene) { s.h.publish() }, events: "turn.completed", more: func(s *scene) string {
			if v := s.w.turn(s.sessionID, s.turnID); string(v.Result) != "1" || v.CompletionSaveID == "" {
				return fmt.Sprintf("turn is %+v", v)
			}
			return ""
		}},
		{event: "Computer lost", from: "finalizing", to: "interrupted", enter: finalizing, do: (*scene).isLost, events: "turn.interrupted session.held", more: ends("save_lost")},
	}, func(s *scene) string {
		if s.turnID == "" {
			return ""
		}
		return s.w.turn(s.sessionID, s.turnID).Status
	})
}

// 04.15: what an interrupt, a cancel and a deadline leave alone.
func TestSpec_04_15_AFinalizingTurnIsNotTouched(t *testing.T) {
	t.Parallel()
	eachCase(t, []arrow{
		{event: "interrupt", do: (*scene).interrupted, events: "turn.queued turn.running turn.finalizing session.interrupt turn.completed"},
		{event: "cancel", do: (*scene).cancelled, events: "turn.queued turn.running turn.finalizing session.cancel turn.completed"},
		{event: "deadline", do: (*scene).deadline, events: "turn.queued turn.running turn.finalizing turn.completed"},
	}, arrow.String, func(w *world, a arrow) {
		s := runningOf("quick")(w)
		s.result()
		a.do(s)
		s.h.exchange()
		if v := w.turn(s.sessionID, s.turnID); v.Status != "finalizing" || len(s.p.told("abort")) != 0 {
			w.t.Fatalf("turn %+v, aborts %v", v, s.p.told("abort"))
		}
		s.h.publish()
		if v := w.turn(s.sessionID, s.turnID); v.Status != "completed" || string(v.Result) != "1" {
			w.t.Fatalf("turn %+v", v)
		}
		w.wantKinds(s.sessionID, strings.Fields(a.events)...)
	})
}

// Every row of the table of Sessions.
func TestSpec_04_08_EachArrowOfASession(t *testing.T) {
	t.Parallel()
	walk(t, session.Statuses, []arrow{
		{event: "creation", to: "open", do: func(s *scene) { *s = *withQueued(s.w) }, events: "turn.queued"},
		{event: "close", from: "open", to: "closing", enter: runningOf("echo"), do: func(s *scene) { s.w.close(s.sessionID) }, events: "session.close"},
		// Idle means that nothing is left to drain, so that closed follows in the same step.
		{event: "idle", from: "open", to: "closed", enter: func(w *world) *scene {
			s := runningOf("quick")(w)
			s.h.finish(s.p, "1")
			return s
		}, do: func(s *scene) {
			s.w.clock.advance(2 * time.Minute)
			s.w.run("turn.idle")
		}, events: "session.close session.closed", more: func(s *scene) string {
			if got := s.w.data(s.sessionID, "session.close"); got != `{"cause":"idle"}` {
				return "session.close is " + got
			}
			return ""
		}},
		{event: "cancel", from: "open", to: "cancelled", enter: runningOf("echo"), do: (*scene).cancelled, events: "session.cancel", more: func(s *scene) string { return s.holds() }},
		{event: "nothing left to drain", from: "closing", to: "closed", enter: closing, do: func(s *scene) { s.h.finish(s.p, "1") }, events: "turn.finalizing turn.completed session.closed",
			more: func(s *scene) string {
				if !s.p.stopping {
					return "the process was not told to stop"
				}
				return ""
			}},
		{event: "nothing left but Turns behind a hold", from: "closing", to: "closed", enter: func(w *world) *scene {
			s := runningOf("echo")(w)
			w.enqueue(s.sessionID, "blocked")
			w.close(s.sessionID)
			return s
		}, do: then((*scene).interrupted, (*scene).settled), events: "session.interrupt turn.interrupted turn.cancelled session.closed"},
		{event: "cancel", from: "closing", to: "cancelled", enter: closing, do: (*scene).cancelled, events: "session.cancel"},
	}, func(s *scene) string {
		if s.sessionID == "" {
			return ""
		}
		return s.w.session(s.sessionID).Status
	})
}

// Every row of the table of Session processes.
func TestSpec_03_20_EachArrowOfASessionProcess(t *testing.T) {
	t.Parallel()
	failures := func(n int64) func(s *scene) string { return func(s *scene) string { return s.failures(n) } }
	both := func(checks ...func(s *scene) string) func(s *scene) string {
		return func(s *scene) string {
			for _, c := range checks {
				if wrong := c(s); wrong != "" {
					return wrong
				}
			}
			return ""
		}
	}
	holds := func(reasons ...string) func(s *scene) string {
		return func(s *scene) string { return s.holds(reasons...) }
	}
	waits := func(s *scene) string {
		if got := s.w.turn(s.sessionID, s.turnID).Status; got != "queued" {
			return "the Turn is " + got
		}
		return ""
	}
	reason := func(kind, want string) func(s *scene) string {
		return func(s *scene) string {
			if got := s.w.data(s.sessionID, kind); !strings.Contains(got, fmt.Sprintf(`"reason":%q`, want)) || !strings.Contains(got, `"epoch":1`) {
				return fmt.Sprintf("%s is %s, want reason %s", kind, got, want)
			}
			return ""
		}
	}
	initFails := func(s *scene) {
		s.p.op(`"type":"init_failed","error":{"message":"no"}`)
		s.dies()
	}
	walk(t, session.ProcessStatuses, []arrow{
		{event: "runnable Turn", from: "", to: "starting", enter: withQueued, do: func(s *scene) {
			s.h = s.w.place(s.sessionID)
			s.h.exchange()
		}},
		{event: "init resolves", from: "starting", to: "ready", enter: func(w *world) *scene {
			s := starting(w)
			w.interrupt(s.sessionID)
			return s
		}, do: func(s *scene) { s.h.op(s.p, `"type":"init_done"`) }},
		{event: "init throws", from: "starting", to: "ended", enter: starting, do: initFails, events: "session.process_failed", more: both(failures(1), waits, reason("session.process_failed", "init_failed"))},
		{event: "exit in init", from: "starting", to: "ended", enter: starting, do: (*scene).dies, events: "session.process_failed", more: both(failures(1), waits, reason("session.process_failed", "process_exited"))},
		{event: "Session cancelled", from: "starting", to: "stopping", enter: starting, do: (*scene).cancelled, events: "session.cancel turn.cancelled"},
		{event: "runnable Turn", from: "ready", to: "serving", enter: waiting, do: func(s *scene) {
			s.w.resume(s.sessionID, s.w.session(s.sessionID).Holds[0].ID)
			s.h.exchange()
		}, events: "session.resume turn.running"},
		{event: "Turn finalizing", from: "serving", to: "ready", enter: runningOf("echo"), do: (*scene).result, events: "turn.finalizing"},
		{event: "Turn terminal", from: "serving", to: "ready", enter: func(w *world) *scene { // after two failures
			s := starting(w)
			for range 2 {
				initFails(s)
				s.h.exchange()
				s.p = s.h.processes[s.sessionID]
			}
			s.p = s.h.ready(s.sessionID)
			return s
		}, do: func(s *scene) { s.h.op(s.p, `"type":"turn_failed","turnId":%q`, s.turnID) }, events: "turn.failed", more: failures(0)},
		{event: "exit", from: "ready", to: "ended", enter: waiting, do: (*scene).dies, events: "session.process_failed", more: both(failures(1), waits)},
		{event: "exit", from: "serving", to: "ended", enter: runningOf("echo"), do: (*scene).dies, events: "turn.interrupted session.process_failed", more: failures(1)},
		{event: "deadline, settled", from: "serving", to: "stopping", enter: runningOf("quick"), do: then((*scene).deadline, (*scene).settled),
			events: "session.deadline turn.interrupted", more: both(failures(0), func(s *scene) string {
				if s.h.exchange(); !s.p.stopping {
					return "the process was not told to stop"
				}
				return ""
			})},
		{event: "cancellation fails", from: "serving", to: "ended", enter: runningOf("echo"), do: then((*scene).interrupted, (*scene).unsettled, func(s *scene) { s.h.exchange() }),
			events: "session.interrupt turn.interrupted session.process_stopped session.held", more: both(holds("interrupt", "cancellation_failed"), failures(0), reason("session.process_stopped", "cancellation_failed"))},
		{event: "cancellation fails, Session cancelled", from: "serving", to: "ended", enter: runningOf("echo"), do: then((*scene).cancelled, (*scene).unsettled, func(s *scene) { s.h.exchange() }),
			events: "session.cancel turn.cancelled session.process_stopped session.cancelled", more: holds()},
		{event: "close", from: "ready", to: "stopping", enter: waiting, do: func(s *scene) { s.w.close(s.sessionID) }, events: "session.close turn.cancelled session.closed"},
		{event: "cancel", from: "ready", to: "stopping", enter: waiting, do: (*scene).cancelled, events: "session.cancel turn.cancelled"},
		{event: "orderly stop", from: "ready", to: "stopping", enter: waiting, do: (*scene).orderlyStop},
		{event: "exit in time", from: "stopping", to: "ended", enter: stopping, do: (*scene).dies, events: "session.process_stopped", more: both(failures(0), reason("session.process_stopped", "closed"))},
		{event: "stop deadline missed", from: "stopping", to: "ended", enter: stopping, do: func(s *scene) {
			s.w.clock.advance(turn.StopDeadline + 3*time.Second)
			s.h.exchange()
			if !s.p.exited {
				s.w.t.Error("the process tree was not killed")
			}
			s.h.exchange()
		}, events: "session.process_failed", more: both(failures(1), reason("session.process_failed", "stop_deadline"))},
		{event: "work hangs at a deadline", from: "serving", to: "ended", enter: runningOf("quick"), do: then((*scene).deadline, (*scene).unsettled, func(s *scene) {
			s.p.exit()
			s.h.exchange()
		}), events: "session.deadline turn.interrupted session.process_failed", more: both(failures(1), holds(), reason("session.process_failed", "stop_deadline"))},
		{event: "Computer lost", from: "starting", to: "ended", enter: starting, do: (*scene).isLost, events: "session.held", more: both(failures(0), holds("computer_lost"))},
		{event: "Computer lost", from: "ready", to: "ended", enter: waiting, do: (*scene).isLost, events: "session.held", more: holds("interrupt", "computer_lost")},
		{event: "Computer lost", from: "serving", to: "ended", enter: runningOf("echo"), do: (*scene).isLost, events: "turn.interrupted session.held", more: holds("computer_lost")},
	}, func(s *scene) string {
		var status string
		epoch := int64(1)
		if s.p != nil {
			epoch = s.p.epoch
		}
		s.w.must(s.w.d.Read(s.w.t.Context(), func(tx *db.Tx) error {
			_, err := tx.Get([]any{&status}, `SELECT status FROM session_processes WHERE session_id = ? AND epoch = ?`, s.sessionID, epoch)
			return err
		}))
		return status
	})
}
