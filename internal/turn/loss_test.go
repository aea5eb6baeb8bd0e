package turn_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// on creates a Session on a Computer that is there.
func (w *world) on(agent, computerID string) api.SessionCreateReceipt {
	w.t.Helper()
	r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: agent, Input: text("hi"), ComputerID: computerID}, nil)
	w.must(err)
	return r
}

// crowd is one Session in each state that a loss treats in its own way, all on one Computer.
type crowd struct {
	running, finalizing, idle, queued, fresh, closing, closed, cancelled, interrupted api.SessionCreateReceipt
	h                                                                                 *host
	holdOfInterrupted                                                                 string
}

func (w *world) crowd() *crowd {
	w.t.Helper()
	c := &crowd{}
	c.running = w.create("echo", "hi")
	computerID := w.session(c.running.SessionID).ComputerID
	for _, r := range []*api.SessionCreateReceipt{&c.finalizing, &c.idle, &c.closing, &c.closed, &c.cancelled, &c.interrupted} {
		*r = w.on("echo", computerID)
	}
	c.h = w.place(c.running.SessionID)
	p := map[string]*proc{}
	for _, r := range []api.SessionCreateReceipt{c.running, c.finalizing, c.idle, c.closing, c.closed, c.cancelled, c.interrupted} {
		p[r.SessionID] = c.h.ready(r.SessionID)
	}
	c.h.finish(p[c.idle.SessionID], `"kept"`)
	c.h.finish(p[c.closed.SessionID], "1")
	w.close(c.closed.SessionID)
	c.h.exchange()
	p[c.closed.SessionID].exit()
	c.h.exchange()
	w.close(c.closing.SessionID) // its Turn goes on
	w.cancel(c.cancelled.SessionID)
	c.h.exchange()
	p[c.cancelled.SessionID].exit()
	c.h.exchange()
	c.holdOfInterrupted = w.interrupt(c.interrupted.SessionID)
	c.h.exchange()
	// Two whose process has not begun: it is still starting, or was never asked for.
	c.queued, c.fresh = w.on("echo", computerID), w.on("echo", computerID)
	c.h.exchange()
	_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, c.fresh.SessionID, api.ControlRequest{})
	w.must(err)
	f := p[c.finalizing.SessionID]
	f.op(`"type":"turn_result","turnId":%q,"result":"lost"`, c.finalizing.TurnID)
	c.h.exchange()
	if got := w.turn(c.finalizing.SessionID, c.finalizing.TurnID).Status; got != "finalizing" {
		w.t.Fatalf("the Turn is %s", got)
	}
	return c
}

// wantLost checks what became of the crowd.
func (w *world) wantLost(c *crowd) {
	w.t.Helper()
	for _, want := range []struct {
		name, code, turn, session string
		r                         api.SessionCreateReceipt
		holds                     []string
	}{
		{"running", "computer_lost", "interrupted", "open", c.running, []string{"computer_lost"}},
		{"finalizing", "save_lost", "interrupted", "open", c.finalizing, []string{"computer_lost"}},
		{"idle with a process", "", "completed", "open", c.idle, []string{"computer_lost"}},
		{"queued", "", "queued", "open", c.queued, []string{"computer_lost"}},
		{"closing", "computer_lost", "interrupted", "closed", c.closing, []string{"computer_lost"}}, // 04.9: a hold does not keep it
		{"closed", "", "completed", "closed", c.closed, nil},
		{"interrupted", "", "", "open", c.interrupted, []string{"interrupt", "computer_lost"}},
	} {
		s, v := w.session(want.r.SessionID), w.turn(want.r.SessionID, want.r.TurnID)
		var holds []string
		for _, h := range s.Holds {
			holds = append(holds, h.Reason)
		}
		if s.Status != want.session || (want.turn != "" && v.Status != want.turn) || !slices.Equal(holds, want.holds) {
			w.t.Errorf("%s: Session %s with holds %v, Turn %s (%+v)", want.name, s.Status, holds, v.Status, v.Error)
		}
		if want.code != "" && (v.Error == nil || v.Error.Code != want.code || v.Result != nil) {
			w.t.Errorf("%s: Turn %+v", want.name, v)
		}
	}
	for _, r := range []api.SessionCreateReceipt{c.cancelled, c.fresh} {
		if s := w.session(r.SessionID); s.Status != "cancelled" || len(s.Holds) != 0 {
			w.t.Errorf("a cancelled Session is %s with %v", s.Status, s.Holds)
		}
	}
	if v := w.turn(c.idle.SessionID, c.idle.TurnID); string(v.Result) != `"kept"` {
		w.t.Errorf("a result from before: %+v", v)
	}
}

func TestSpec_07_13_WhatALossDoesToEach(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.crowd()
		before := w.events(c.idle.SessionID)
		// Its Worker is silent for too long.
		w.clock.advance(2 * time.Minute)
		w.run("computer.workers")
		w.run("turn.lost")
		w.wantLost(c)
		if after := w.events(c.idle.SessionID); len(after) != len(before)+1 || after[len(after)-1].Kind != "session.held" {
			w.t.Errorf("events of the idle Session: %d, then %d", len(before), len(after))
		}
		// Doing it again changes nothing.
		w.run("computer.workers")
		w.run("turn.lost")
		w.wantLost(c)
		if got, err := w.computers.Get(w.t.Context(), w.env, c.h.computer); err != nil || got.Residency != "cold" || got.ExecutionWait != nil {
			w.t.Fatalf("work behind holds makes the Computer %+v (%v)", got, err)
		}
		// Whatever the Worker still says about it counts for nothing.
		req := &workerpb.ExchangeRequest{WorkerId: w.worker, ComputerId: c.h.computer, Epoch: c.h.epoch, Phase: workerpb.Phase_PHASE_RUNNING, GuestConnected: true}
		for _, p := range c.h.processes {
			p.op(`"type":"turn_result","turnId":%q,"result":"late"`, p.turnID)
			req.Operations = append(req.Operations, &workerpb.ProcessOperations{SessionId: p.session, Epoch: p.epoch, Operations: p.unacked})
		}
		resp, err := w.turns.Exchange(w.t.Context(), req)
		if w.must(err); !resp.GetFenced() {
			w.t.Fatal("a fenced Worker was heard")
		}
		err = w.turns.PublishSave(w.t.Context(), &workerpb.PublishSaveRequest{WorkerId: w.worker, ComputerId: c.h.computer, Epoch: c.h.epoch, SaveId: c.h.save.GetSaveId(), ManifestDigest: "late", SizeBytes: 1, StoredBytes: 1})
		w.wantCode(err, fault.LeaseLost)
		w.wantLost(c)
		// After resume each goes on with its next Turn, in a new process that hears why.
		for _, h := range w.session(c.queued.SessionID).Holds {
			w.resume(c.queued.SessionID, h.ID)
		}
		w.worker, err = w.computers.RegisterWorker(w.t.Context(), &workerpb.RegisterRequest{Name: "w2", Secret: strings.Repeat("t", 32), CpuMillis: 64000, MemoryMib: 64 << 10, DiskMib: 4 << 20})
		w.must(err)
		next := w.place(c.queued.SessionID)
		if next.epoch <= c.h.epoch {
			w.t.Fatalf("epoch %d follows %d", next.epoch, c.h.epoch)
		}
		next.finish(next.ready(c.queued.SessionID), "2")
		if len(next.processes) != 1 || w.turn(c.queued.SessionID, c.queued.TurnID).Status != "completed" {
			w.t.Fatalf("%d processes run on the Computer where one Session was resumed", len(next.processes))
		}
	})
}

// The guest dies, its sandbox with it: the same as the loss of its Worker, at once, and with the reason.
func TestSpec_07_13_AGuestThatDies(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.crowd()
		c.h.phase = workerpb.Phase_PHASE_LOST
		req := &workerpb.ExchangeRequest{WorkerId: w.worker, ComputerId: c.h.computer, Epoch: c.h.epoch, Phase: c.h.phase, Error: "the sandbox was killed: out of memory"}
		resp, err := w.turns.Exchange(w.t.Context(), req)
		if w.must(err); !resp.GetFenced() {
			w.t.Fatal("a lost Computer keeps its lease")
		}
		w.wantLost(c)
		for _, r := range []api.SessionCreateReceipt{c.running, c.finalizing} {
			if v := w.turn(r.SessionID, r.TurnID); !strings.HasSuffix(v.Error.Message, ": the sandbox was killed: out of memory") {
				w.t.Errorf("the Turn says %q", v.Error.Message)
			}
		}
		if resp, err := w.turns.Exchange(w.t.Context(), req); err != nil || !resp.GetFenced() {
			w.t.Fatalf("said again: %+v %v", resp, err)
		}
		w.wantLost(c)
	})
}

// A start that fails is tried again after a pause that grows; the fifth failure makes the Computer unavailable, which is
// tried every five minutes, and at once when somebody resumes a Session on it.
func TestSpec_07_10_StartsThatFail(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		computerID := w.session(r.SessionID).ComputerID
		view := func() api.Computer {
			c, err := w.computers.Get(w.t.Context(), w.env, computerID)
			w.must(err)
			return c
		}
		placed := func() bool {
			w.run("computer.dispatch")
			leases, err := w.computers.Heartbeat(w.t.Context(), w.worker, false)
			w.must(err)
			return slices.ContainsFunc(leases, func(l *workerpb.Lease) bool { return l.GetComputerId() == computerID })
		}
		fail := func() {
			w.t.Helper()
			h := w.place(r.SessionID)
			h.phase = workerpb.Phase_PHASE_START_FAILED
			h.exchange()
		}
		pause := time.Duration(0)
		for i := range 5 {
			if i > 0 {
				if placed() {
					w.t.Fatalf("start %d follows without a pause", i+1)
				}
				waited := time.Duration(0)
				for ; !placed(); waited += 100 * time.Millisecond {
					if waited > 5*time.Minute {
						w.t.Fatalf("start %d does not follow", i+1)
					}
					w.clock.advance(100 * time.Millisecond)
				}
				if waited < pause {
					w.t.Fatalf("the pause before start %d is %s, after one of %s", i+1, waited, pause)
				}
				pause = waited
			}
			if c := view(); c.Residency == "unavailable" {
				w.t.Fatalf("after %d failures it is %+v", i, c)
			}
			fail()
		}
		lost := func(when string) {
			w.t.Helper()
			if c := view(); c.Residency != "unavailable" || c.Error == nil || c.Error.Code != "computer_start_failed" {
				w.t.Fatalf("%s it is %+v", when, c)
			}
			if v := w.turn(r.SessionID, r.TurnID); v.Status != "queued" {
				w.t.Fatalf("%s the Turn is %s", when, v.Status)
			}
		}
		lost("after the fifth failure")
		for range 3 {
			w.clock.advance(5*time.Minute - time.Second)
			if placed() {
				w.t.Fatal("an unavailable Computer is tried before five minutes are over")
			}
			w.clock.advance(time.Second)
			fail()
			lost("after another failure")
		}
		// A resume tries at once.
		hold := w.interrupt(r.SessionID)
		w.resume(r.SessionID, hold)
		h := w.place(r.SessionID)
		h.finish(h.ready(r.SessionID), "1")
		if c := view(); c.Residency != "running" || c.Error != nil || w.turn(r.SessionID, r.TurnID).Status != "completed" {
			w.t.Fatalf("after a start that works it is %+v", c)
		}
	})
}

func TestSpec_07_07_WhatWorkWaitsFor(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		computerID := w.session(r.SessionID).ComputerID
		want := func(when, wait string) {
			w.t.Helper()
			c, err := w.computers.Get(w.t.Context(), w.env, computerID)
			w.must(err)
			page, err := w.computers.List(w.t.Context(), w.env, filter)
			w.must(err)
			for _, got := range []*string{c.ExecutionWait, page.Computers[len(page.Computers)-1].ExecutionWait} {
				if (got == nil) != (wait == "") || (got != nil && *got != wait) {
					w.t.Fatalf("%s it waits for %v, want %q", when, got, wait)
				}
			}
		}
		want("before anybody looked", "")
		w.exec(`UPDATE workers SET cpu_millis = 1`)
		w.run("computer.dispatch")
		want("without a Worker that has room", "scheduling")
		w.exec(`UPDATE workers SET cpu_millis = 64000`)
		w.exec(`UPDATE environments SET max_resident_computers = 0`)
		w.run("computer.dispatch")
		want("at the limit of its Environment", "environment_limit")
		w.exec(`UPDATE environments SET max_resident_computers = 10`)
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		want("with a Turn that runs", "")
		w.enqueue(r.SessionID, "next")
		want("with a Turn that waits for one that runs", "")
		p.op(`"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
		h.exchange()
		want("with a Turn that waits for the Save of the one before", "saving")
		hold := w.interrupt(r.SessionID)
		want("with that Turn behind a hold", "")
		w.resume(r.SessionID, hold)
		want("with that Turn resumed", "saving")
		h.publish()
		h.exchange()
		want("with the Save published", "")
		p.op(`"type":"turn_result","turnId":%q,"result":2`, p.turnID)
		h.exchange()
		want("with a Save that nobody waits for", "")
		h.publish()
		h.exchange()
		// New work finds the Computer about to leave its Worker.
		w.close(r.SessionID)
		h.exchange()
		p.exit()
		h.exchange()
		w.clock.advance(2 * time.Minute)
		w.run("computer.unused")
		h.exchange()
		want("with a Computer that is emptied", "")
		w.on("echo", computerID)
		if h.save != nil {
			want("with work for a Computer that is emptied", "saving")
		}
	})
}

// filter lists all.
var filter = computer.Filter{Limit: 10}
