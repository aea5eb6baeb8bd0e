package turn_test

import (
	"fmt"
	"testing"
	"time"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/state"
	"helmr.dev/helmr/internal/turn"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// startFails has the Worker of a starting Computer report that it does not start.
func (s *scene) startFails() {
	s.h.phase = workerpb.Phase_PHASE_START_FAILED
	s.h.exchange()
}

// startsUnreadable has the Worker report that the saved disk cannot be read.
func (s *scene) startsUnreadable() {
	s.h.unreadable = true
	s.startFails()
}

// placed is a Computer that was given to a Worker and does not run yet.
func placed(w *world) *scene {
	s := withQueued(w)
	s.h = w.place(s.sessionID)
	s.h.phase = workerpb.Phase_PHASE_STARTING
	s.h.exchange()
	return s
}

// failedStarts is a Computer whose next failure to start is number n in a row.
func failedStarts(n int) func(w *world) *scene {
	return func(w *world) *scene {
		s := placed(w)
		for range n - 1 {
			s.startFails()
			w.clock.advance(20 * time.Second) // the longest pause is 16 s
			s.h = w.place(s.sessionID)
			s.h.phase = workerpb.Phase_PHASE_STARTING
		}
		return s
	}
}

func (s *scene) computer() (residency, code string) {
	s.w.t.Helper()
	c, err := s.w.computers.Get(s.w.t.Context(), s.w.env, s.w.session(s.sessionID).ComputerID)
	if s.w.must(err); c.Error != nil {
		code = c.Error.Code
	}
	return c.Residency, code
}

// Every row of the table of residencies but those of hibernation and preparation.
func TestSpec_07_10_EachArrowOfAComputer(t *testing.T) {
	t.Parallel()
	table := state.Table[computer.Residency]{
		computer.Cold: {computer.Starting}, computer.Starting: {computer.Running, computer.Cold, computer.Unavailable}, computer.Running: {computer.Cold}, computer.Unavailable: {computer.Starting},
	}
	waits := func(code string) func(s *scene) string { // the Turn waits, whatever its Computer does
		return func(s *scene) string {
			if _, got := s.computer(); got != code || s.w.turn(s.sessionID, s.turnID).Status != "queued" {
				return fmt.Sprintf("error %q, want %q; the Turn is %s", got, code, s.w.turn(s.sessionID, s.turnID).Status)
			}
			return ""
		}
	}
	unused := func(w *world) *scene {
		s := runningOf("echo")(w)
		s.h.finish(s.p, "1")
		w.close(s.sessionID)
		s.h.exchange()
		s.dies()
		s.h.exchange()
		return s
	}
	leaves := func(s *scene) { // in order: the disk is saved before the Computer is cold
		if s.h.exchange(); s.h.stop {
			s.w.t.Error("it is stopped before its disk is saved")
		}
		s.h.publish()
		if s.h.exchange(); !s.h.stop {
			s.w.t.Error("it is not stopped once its disk is saved")
		}
		s.h.phase = workerpb.Phase_PHASE_STOPPED
		s.h.exchange()
	}
	walk(t, table, []arrow{
		{event: "made", to: "cold", do: func(s *scene) { *s = *withQueued(s.w) }, events: "turn.queued"},
		{event: "runnable Turn", from: "cold", to: "starting", enter: withQueued, do: func(s *scene) {
			s.h = s.w.place(s.sessionID)
			s.h.phase = workerpb.Phase_PHASE_STARTING
		}},
		{event: "guest ready", from: "starting", to: "running", enter: placed, do: func(s *scene) {
			s.h.phase = workerpb.Phase_PHASE_RUNNING
			s.h.exchange()
		}, more: waits("")},
		{event: "start fails", from: "starting", to: "cold", enter: failedStarts(1), do: (*scene).startFails, more: waits("computer_start_failed")},
		{event: "fourth failure", from: "starting", to: "cold", enter: failedStarts(computer.StartFailures - 1), do: (*scene).startFails, more: waits("computer_start_failed")},
		{event: "fifth failure", from: "starting", to: "unavailable", enter: failedStarts(computer.StartFailures), do: (*scene).startFails, more: waits("computer_start_failed")},
		{event: "recovery point unreadable", from: "starting", to: "unavailable", enter: failedStarts(1), do: (*scene).startsUnreadable, more: waits("computer_recovery_required")},
		{event: "lost", from: "starting", to: "cold", enter: placed, do: (*scene).isLost, events: "session.held", more: waits("")},
		{event: "lost", from: "running", to: "cold", enter: runningOf("echo"), do: (*scene).isLost, events: "turn.interrupted session.held"},
		{event: "a minute unused", from: "running", to: "cold", enter: unused, do: func(s *scene) {
			s.w.clock.advance(59 * time.Second)
			s.w.run("computer.unused")
			if s.h.exchange(); s.h.save != nil {
				s.w.t.Error("it is emptied before a minute is over")
			}
			s.w.clock.advance(time.Second)
			s.w.run("computer.unused")
			leaves(s)
		}},
		{event: "orderly stop", from: "running", to: "cold", enter: unused, do: func(s *scene) {
			s.orderlyStop()
			leaves(s)
		}},
		{event: "five minutes", from: "unavailable", to: "starting", enter: func(w *world) *scene {
			s := failedStarts(computer.StartFailures)(w)
			s.startFails()
			return s
		}, do: func(s *scene) {
			s.w.clock.advance(computer.UnavailableRetry - time.Millisecond)
			s.w.run("computer.dispatch")
			if got, _ := s.computer(); got != "unavailable" {
				s.w.t.Errorf("tried again too early: %s", got)
			}
			s.w.clock.advance(time.Millisecond)
			s.w.run("computer.dispatch")
		}},
		{event: "resume of a hold", from: "unavailable", to: "starting", enter: func(w *world) *scene {
			s := failedStarts(computer.StartFailures)(w)
			w.interrupt(s.sessionID)
			s.startFails()
			return s
		}, do: func(s *scene) {
			s.w.run("computer.dispatch")
			s.w.resume(s.sessionID, s.w.session(s.sessionID).Holds[0].ID)
			s.w.run("computer.dispatch")
			s.h = s.w.place(s.sessionID)
			if s.h.exchange(); s.h.phase != workerpb.Phase_PHASE_RUNNING {
				s.w.t.Error("it does not run")
			}
			if _, code := s.computer(); code != "" {
				s.w.t.Errorf("error %s is not cleared", code)
			}
			s.h.phase = workerpb.Phase_PHASE_LOST // back to where a start begins
			s.h.exchange()
			s.w.resume(s.sessionID, s.w.session(s.sessionID).Holds[0].ID)
			s.w.run("computer.dispatch")
		}, events: "session.resume session.held session.resume"},
	}, func(s *scene) string {
		if s.sessionID == "" {
			return ""
		}
		residency, _ := s.computer()
		return residency
	})
}

// Every row of the table of Questions.
func TestSpec_06_05_EachArrowOfAQuestion(t *testing.T) {
	t.Parallel()
	asked := func(w *world) *scene {
		s := runningOf("echo")(w)
		s.h.ask(s.p, textQuestion)
		return s
	}
	last := func(s *scene) string { // the one Question of the Turn
		if s.turnID == "" {
			return ""
		}
		page, err := s.w.turns.ListQuestions(s.w.t.Context(), s.w.env, s.sessionID, s.turnID, "", 10)
		if s.w.must(err); len(page.Questions) != 1 {
			return ""
		}
		return page.Questions[0].Status
	}
	id := func(s *scene) string {
		page, err := s.w.turns.ListQuestions(s.w.t.Context(), s.w.env, s.sessionID, s.turnID, "", 10)
		s.w.must(err)
		return page.Questions[0].ID
	}
	told := func(kind string) func(s *scene) string {
		return func(s *scene) string {
			if s.h.exchange(); len(s.p.told(kind)) != 1 {
				return fmt.Sprintf("the process was told %v", s.p.controls)
			}
			return ""
		}
	}
	walk(t, turn.QuestionStatuses, []arrow{
		{event: "ask", from: "", to: "pending", enter: runningOf("echo"), do: func(s *scene) { s.h.ask(s.p, textQuestion) }, events: "question.created"},
		{event: "valid response", from: "pending", to: "responded", enter: asked, do: func(s *scene) {
			_, err := s.w.respond(s.sessionID, s.turnID, id(s), "r", `"x"`)
			s.w.must(err)
		}, events: "question.responded", more: told("answer")},
		{event: "the ask signal aborts", from: "pending", to: "cancelled", enter: asked, do: func(s *scene) {
			s.h.op(s.p, `"type":"question_withdrawn","turnId":%q,"questionId":%q`, s.turnID, id(s))
		}, events: "question.cancelled"},
		{event: "the Turn aborts", from: "pending", to: "cancelled", enter: asked, do: (*scene).interrupted, events: "session.interrupt question.cancelled", more: told("question_cancelled")},
		{event: "the Turn fails", from: "pending", to: "cancelled", enter: asked, do: func(s *scene) {
			s.h.op(s.p, `"type":"turn_failed","turnId":%q`, s.turnID)
		}, events: "question.cancelled turn.failed"},
		{event: "the process dies", from: "pending", to: "cancelled", enter: asked, do: (*scene).dies, events: "question.cancelled turn.interrupted session.process_failed"},
	}, last)
}
