package turn_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func TestSpec_05_07_AResultIsFinalizingUntilItsSaveIsPublished(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		seq := p.op(`"type":"output","turnId":%q,"content":[{"type":"text","text":"working"}]`, r.TurnID)
		h.exchange()
		if got := p.acks[seq]; !strings.Contains(got, `"sequence":3`) {
			t := w.t
			t.Fatalf("ack of output is %s", got)
		}
		p.op(`"type":"processing_closed","turnId":%q`, r.TurnID)
		p.op(`"type":"turn_result","turnId":%q,"result":{"turns":1}`, r.TurnID)
		h.exchange()
		if v := w.turn(r.SessionID, r.TurnID); v.Status != "finalizing" || v.Result != nil {
			w.t.Fatalf("after the result: %+v", v)
		}
		h.publish()
		v := w.turn(r.SessionID, r.TurnID)
		if v.Status != "completed" || string(v.Result) != `{"turns":1}` || v.CompletionSaveID == "" {
			w.t.Fatalf("after the Save: %+v", v)
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "turn.output", "turn.finalizing", "turn.completed")
	})
}

func TestSpec_03_06_TurnsRunInOrderInOneProcess(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "0")
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { w.enqueue(r.SessionID, fmt.Sprint(i)) })
		}
		wg.Wait()
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		for range 21 {
			h.finish(p, "1")
		}
		page, err := w.turns.List(w.t.Context(), w.env, r.SessionID, "", 100)
		w.must(err)
		if len(page.Turns) != 21 || len(p.delivered) != 21 {
			w.t.Fatalf("%d turns, %d delivered", len(page.Turns), len(p.delivered))
		}
		for i, v := range page.Turns {
			if v.Status != "completed" || v.Sequence != int64(i+1) || p.delivered[i] != v.ID {
				w.t.Fatalf("turn %d is %+v, delivered %s", i+1, v, p.delivered[i])
			}
		}
	})
}

func TestSpec_00_03_ARepeatedExchangeHasNoSecondEffect(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		seq := p.op(`"type":"output","turnId":%q,"content":[{"type":"text","text":"once"}]`, r.TurnID)
		sent := p.unacked
		h.exchange()
		first := p.acks[seq]
		for range 3 { // the answer was lost; the guest sends again after a restart of the Worker
			p.unacked = sent
			h.exchange()
			if p.acks[seq] != first {
				w.t.Fatalf("ack %s, before %s", p.acks[seq], first)
			}
		}
		h.finish(p, "1")
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "turn.output", "turn.finalizing", "turn.completed")
	})
}

func TestSpec_03_22_TheThirdFailureInARowHoldsTheSession(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		h := w.place(r.SessionID)
		for i := range 3 {
			h.exchange()
			p := h.processes[r.SessionID]
			if p == nil || p.epoch != int64(i+1) {
				w.t.Fatalf("try %d: process %+v", i+1, p)
			}
			p.op(`"type":"init_failed","error":{"message":"no"}`)
			p.exit()
			h.exchange()
		}
		h.exchange()
		s := w.session(r.SessionID)
		if len(s.Holds) != 1 || s.Holds[0].Reason != "process_failures" || w.turn(r.SessionID, r.TurnID).Status != "queued" {
			w.t.Fatalf("after three failures: %+v", s)
		}
		w.wantKinds(r.SessionID, "turn.queued", "session.process_failed", "session.process_failed", "session.process_failed", "session.held")
		if h.processes[r.SessionID] != nil {
			w.t.Fatal("a held Session got a process")
		}
		_, err := w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, s.Holds[0].ID, "")
		w.must(err)
		p := h.ready(r.SessionID)
		h.finish(p, "1")
		if w.turn(r.SessionID, r.TurnID).Status != "completed" {
			w.t.Fatal("the Turn did not run after resume")
		}
	})
}

func TestSpec_05_04_AProcessThatDiesInATurnEndsIt(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		second := w.enqueue(r.SessionID, "again")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		p.exit()
		h.exchange()
		v := w.turn(r.SessionID, r.TurnID)
		if v.Status != "interrupted" || v.Error.Code != "process_lost" || !strings.Contains(v.Error.Message, "boom") {
			w.t.Fatalf("turn %+v", v)
		}
		p = h.ready(r.SessionID)
		if p.epoch != 2 || p.turnID != second.TurnID {
			w.t.Fatalf("next process %+v", p)
		}
		h.finish(p, "2")
		w.wantKinds(r.SessionID, "turn.queued", "turn.queued", "turn.running", "turn.interrupted", "session.process_failed", "turn.running", "turn.finalizing", "turn.completed")
	})
}

func TestSpec_07_13_LossOfTheComputerHoldsItsSessions(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		queued := w.enqueue(r.SessionID, "later")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		p.op(`"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
		h.exchange()
		h.phase = workerpb.Phase_PHASE_LOST
		h.exchange()
		if !h.fenced {
			w.t.Fatal("a lost Computer keeps its lease")
		}
		v := w.turn(r.SessionID, r.TurnID)
		if v.Status != "interrupted" || v.Error.Code != "save_lost" || v.Result != nil {
			w.t.Fatalf("finalizing turn became %+v", v)
		}
		s := w.session(r.SessionID)
		if len(s.Holds) != 1 || s.Holds[0].Reason != "computer_lost" || w.turn(r.SessionID, queued.TurnID).Status != "queued" {
			w.t.Fatalf("session %+v", s)
		}
		_, err := w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, s.Holds[0].ID, "")
		w.must(err)
		h2 := w.place(r.SessionID)
		if h2.epoch <= h.epoch {
			w.t.Fatalf("lease epoch went from %d to %d", h.epoch, h2.epoch)
		}
		h.phase = workerpb.Phase_PHASE_RUNNING // the old Worker comes back: it may change nothing
		if h.exchange(); !h.fenced {
			w.t.Fatal("an old epoch was accepted")
		}
		h2.finish(h2.ready(r.SessionID), "2")
		if w.turn(r.SessionID, queued.TurnID).Status != "completed" {
			w.t.Fatal("the queued Turn did not run after resume")
		}
	})
}

func TestSpec_04_08_CloseDrainsAndReleases(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		_, err := w.turns.Close(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		if s := w.session(r.SessionID); s.Status != "closing" {
			w.t.Fatalf("status %s", s.Status)
		}
		if _, err := w.turns.Enqueue(w.t.Context(), w.env, w.by, r.SessionID, api.EnqueueRequest{Input: text("no")}); !fault.Is(err, fault.SessionNotOpen) {
			w.t.Fatalf("enqueue on closing: %v", err)
		}
		h.finish(p, "1")
		if s := w.session(r.SessionID); s.Status != "closed" {
			w.t.Fatalf("status %s", s.Status)
		}
		if !p.stopping {
			w.t.Fatal("the process was not told to stop")
		}
		p.exit()
		h.exchange()
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "session.close", "turn.finalizing", "turn.completed", "session.closed", "session.process_stopped")
		_, ended, err := w.sessions.Events(w.t.Context(), w.env, r.SessionID, 7, 10)
		if w.must(err); !ended {
			w.t.Fatal("a released Session's events have not ended")
		}
	})
}

func TestSpec_04_09_ClosingCancelsTurnsBehindAHold(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		_, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		_, err = w.turns.Close(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		if s := w.session(r.SessionID); s.Status != "closed" || w.turn(r.SessionID, r.TurnID).Status != "cancelled" {
			w.t.Fatalf("session %+v", s)
		}
		w.wantKinds(r.SessionID, "turn.queued", "session.interrupt", "session.close", "turn.cancelled", "session.closed")
	})
}

func TestSpec_03_18_WhatTheHandlerReturnsAfterAnInterruptDoesNotCount(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		second := w.enqueue(r.SessionID, "next")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		receipt, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		again, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		if w.must(err); again.HoldID != receipt.HoldID {
			w.t.Fatal("a second interrupt placed a second hold")
		}
		p.op(`"type":"turn_result","turnId":%q,"result":"late"`, r.TurnID)
		h.exchange()
		if v := w.turn(r.SessionID, r.TurnID); v.Status != "interrupted" || v.Error.Code != "interrupted" {
			w.t.Fatalf("turn %+v", v)
		}
		h.exchange()
		if p.turnID != r.TurnID {
			w.t.Fatal("a held Turn was claimed")
		}
		_, err = w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, receipt.HoldID, "")
		w.must(err)
		h.exchange()
		if p.turnID != second.TurnID || p.epoch != 1 {
			w.t.Fatalf("after resume the process serves %s", p.turnID)
		}
	})
}

func TestSpec_03_19_AHandlerThatDoesNotSettleIsKilledAndHeld(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		_, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		h.exchange()
		if p.controls["abort:"+r.TurnID] == "" {
			w.t.Fatal("the abort did not reach the process")
		}
		w.clock.advance(13 * time.Second) // it says nothing: it is stuck
		h.exchange()
		if !p.exited {
			w.t.Fatal("the process was not killed")
		}
		h.exchange()
		if v := w.turn(r.SessionID, r.TurnID); v.Status != "interrupted" {
			w.t.Fatalf("turn %+v", v)
		}
		reasons := map[string]bool{}
		for _, hold := range w.session(r.SessionID).Holds {
			reasons[hold.Reason] = true
		}
		if !reasons["interrupt"] || !reasons["cancellation_failed"] {
			w.t.Fatalf("holds %v", reasons)
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "session.interrupt", "turn.interrupted", "session.process_stopped", "session.held")
	})
}

func TestSpec_04_13_CancelEndsTheSessionAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		queued := w.enqueue(r.SessionID, "never")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		if s := w.session(r.SessionID); s.Status != "cancelled" || w.turn(r.SessionID, queued.TurnID).Status != "cancelled" {
			w.t.Fatalf("session %+v", s)
		}
		h.exchange()
		p.op(`"type":"turn_aborted","turnId":%q,"settled":true`, r.TurnID)
		h.exchange()
		h.exchange()
		p.exit()
		h.exchange()
		w.wantKinds(r.SessionID, "turn.queued", "turn.queued", "turn.running", "session.cancel", "turn.cancelled", "turn.cancelled", "session.process_stopped", "session.cancelled")
		if _, err := w.turns.Close(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{}); !fault.Is(err, fault.SessionTerminal) {
			w.t.Fatalf("close of a cancelled Session: %v", err)
		}
	})
}

func TestSpec_03_23_ADeadlineStopsTheProcessAndTheQueueGoesOn(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("quick", "slow")
		second := w.enqueue(r.SessionID, "next")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		w.clock.advance(1500 * time.Millisecond)
		w.run("turn.deadlines")
		h.exchange()
		if !strings.Contains(p.controls["abort:"+r.TurnID], `"deadline"`) {
			w.t.Fatalf("controls %v", p.controls)
		}
		p.op(`"type":"turn_aborted","turnId":%q,"settled":true`, r.TurnID)
		h.exchange()
		if v := w.turn(r.SessionID, r.TurnID); v.Status != "interrupted" || v.Error.Code != "deadline_exceeded" {
			w.t.Fatalf("turn %+v", v)
		}
		h.exchange()
		p.exit()
		h.exchange()
		p = h.ready(r.SessionID)
		if p.epoch != 2 || p.turnID != second.TurnID || len(w.session(r.SessionID).Holds) != 0 {
			w.t.Fatalf("next process %+v", p)
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.queued", "turn.running", "session.deadline", "turn.interrupted", "session.process_stopped", "turn.running")
	})
}

func TestSpec_04_20_AnIdleSessionCloses(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("quick", "hi")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		h.finish(p, "1")
		w.clock.advance(59 * time.Second)
		w.run("turn.idle")
		if w.session(r.SessionID).Status != "open" {
			w.t.Fatal("closed too early")
		}
		w.clock.advance(2 * time.Second)
		w.run("turn.idle")
		if w.session(r.SessionID).Status != "closed" {
			w.t.Fatal("an idle Session did not close")
		}
	})
}

func TestSpec_21_12_AnOrderlyStopAbortsSavesAndStops(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		second := w.enqueue(r.SessionID, "after")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		_, err := w.computers.Heartbeat(w.t.Context(), w.worker, true)
		w.must(err)
		h.exchange()
		p.op(`"type":"turn_aborted","turnId":%q,"settled":true`, r.TurnID)
		h.exchange()
		h.exchange()
		if !p.stopping {
			w.t.Fatal("the process was not told to stop")
		}
		p.exit()
		h.exchange()
		if h.stop {
			w.t.Fatal("stopped before the disk was saved")
		}
		h.publish()
		if h.exchange(); !h.stop {
			w.t.Fatal("not told to stop after the Save")
		}
		h.phase = workerpb.Phase_PHASE_STOPPED
		h.exchange()
		if v := w.turn(r.SessionID, r.TurnID); v.Status != "interrupted" || v.Error.Code != "shutdown" {
			w.t.Fatalf("turn %+v", v)
		}
		if s := w.session(r.SessionID); len(s.Holds) != 0 || w.turn(r.SessionID, second.TurnID).Status != "queued" {
			w.t.Fatalf("session %+v", s)
		}
		_, err = w.computers.RegisterWorker(w.t.Context(), &workerpb.RegisterRequest{Name: "w1", Secret: strings.Repeat("s", 32), CpuMillis: 64000, MemoryMib: 64 << 10, DiskMib: 4 << 20})
		w.must(err)
		h = w.place(r.SessionID)
		if h.spec.GetSaveManifest() == "" {
			w.t.Fatal("the disk does not start from the last Save")
		}
		h.finish(h.ready(r.SessionID), "2")
		if w.turn(r.SessionID, second.TurnID).Status != "completed" {
			w.t.Fatal("the queued Turn did not run after the restart")
		}
	})
}

func TestSpec_04_04_AKeyNamesOneOpenSession(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		var wg sync.WaitGroup
		receipts := make([]api.SessionCreateReceipt, 12)
		for i := range receipts {
			wg.Go(func() {
				r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Key: "repo", Input: text(fmt.Sprint(i))}, nil)
				if err != nil {
					w.t.Error(err)
				}
				receipts[i] = r
			})
		}
		wg.Wait()
		created := 0
		for _, r := range receipts {
			if r.SessionID != receipts[0].SessionID {
				w.t.Fatal("two Sessions hold one key")
			}
			if r.Created {
				created++
			}
		}
		if created != 1 {
			w.t.Fatalf("%d receipts say created", created)
		}
	})
}

func TestSpec_16_07_AnIdempotencyKeyIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		var wg sync.WaitGroup
		receipts := make([]api.SessionCreateReceipt, 8)
		for i := range receipts {
			wg.Go(func() {
				r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), IdempotencyKey: "k"}, nil)
				if err != nil {
					w.t.Error(err)
				}
				receipts[i] = r
			})
		}
		wg.Wait()
		for _, r := range receipts {
			if r != receipts[0] {
				w.t.Fatalf("receipts differ: %+v %+v", r, receipts[0])
			}
		}
		_, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("y"), IdempotencyKey: "k"}, nil)
		if !fault.Is(err, fault.IdempotencyConflict) {
			w.t.Fatalf("another body: %v", err)
		}
	})
}

func TestSpec_04_02_WhatCannotBeCreatedSaysWhy(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		for agent, want := range map[string]fault.Code{"nobody": fault.AgentNotInCurrentDeployment, "not an id": fault.BadRequest} {
			_, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: agent, Input: text("x")}, nil)
			var f *fault.Error
			if !errors.As(err, &f) || f.Code != want {
				w.t.Errorf("agent %q: %v", agent, err)
			}
		}
	})
}

func TestSpec_03_19_AFailedCallbackHoldsAlsoAtADeadline(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("quick", "slow")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		w.clock.advance(1500 * time.Millisecond)
		w.run("turn.deadlines")
		h.exchange()
		p.op(`"type":"turn_aborted","turnId":%q,"settled":false,"cause":"callback"`, r.TurnID)
		h.exchange()
		if !p.exited {
			w.t.Fatal("the process tree was not killed")
		}
		h.exchange()
		s := w.session(r.SessionID)
		if len(s.Holds) != 1 || s.Holds[0].Reason != "cancellation_failed" {
			w.t.Fatalf("holds %+v", s.Holds)
		}
	})
}

func TestSpec_03_20_WorkThatHangsAtADeadlineIsAProcessFailure(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("quick", "slow")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		w.clock.advance(1500 * time.Millisecond)
		w.run("turn.deadlines")
		h.exchange()
		p.op(`"type":"turn_aborted","turnId":%q,"settled":false,"cause":"work"`, r.TurnID)
		h.exchange()
		p.exit()
		h.exchange()
		if s := w.session(r.SessionID); len(s.Holds) != 0 {
			w.t.Fatalf("holds %+v", s.Holds)
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "session.deadline", "turn.interrupted", "session.process_failed")
	})
}
