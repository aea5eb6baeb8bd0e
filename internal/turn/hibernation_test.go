package turn_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// sleeper makes a Session of an Agent, on a Computer or on one of its own, that has done a Turn, and gives its process.
func (w *world) sleeper(agent, computerID string) (api.SessionCreateReceipt, *host, *proc) {
	w.t.Helper()
	r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: agent, Input: text("hi"), ComputerID: computerID}, nil)
	w.must(err)
	h := w.hosts[computerID]
	if h == nil {
		h = w.place(r.SessionID)
	}
	h.exchange() // drops a capture that is under way
	p := h.ready(r.SessionID)
	h.finish(p, "1")
	return r, h, p
}

func (w *world) computer(computerID string) api.Computer {
	w.t.Helper()
	c, err := w.computers.Get(w.t.Context(), w.env, computerID)
	w.must(err)
	return c
}

func (w *world) wantResidency(computerID, want string) {
	w.t.Helper()
	if got := w.computer(computerID).Residency; got != want {
		w.t.Fatalf("the Computer is %s, want %s", got, want)
	}
}

// captures counts the memories that are kept.
func (w *world) captures() (n int) {
	w.t.Helper()
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) error {
		_, err := tx.Get([]any{&n}, `SELECT COUNT(*) FROM captures`)
		return err
	}))
	return n
}

// order has the Computer's time to hibernate come.
func (h *host) order() {
	h.w.t.Helper()
	h.w.clock.advance(time.Minute)
	if h.exchange(); h.capture == "" {
		h.w.t.Fatal("no capture is ordered")
	}
	h.w.wantResidency(h.computer, "hibernating")
}

// publishCapture tells that a capture is stored, and whether it was dropped.
func (h *host) publishCapture(captureID string) (dropped bool, err error) {
	resp, err := h.w.turns.PublishCapture(h.w.t.Context(), &workerpb.PublishCaptureRequest{WorkerId: h.w.worker, ComputerId: h.computer, Epoch: h.epoch,
		CaptureId: captureID, DiskManifest: "disk-" + captureID, MemoryManifest: "memory-" + captureID, Platform: "p"})
	return resp.GetDropped(), err
}

// hibernate takes the Computer to hibernated.
func (h *host) hibernate() (captureID string) {
	h.w.t.Helper()
	h.order()
	captureID = h.capture
	dropped, err := h.publishCapture(captureID)
	if h.w.must(err); dropped {
		h.w.t.Fatal("the capture is dropped")
	}
	h.w.wantResidency(h.computer, "hibernated")
	return captureID
}

// resumed takes up the hibernated Computer again, with the processes that were captured.
func (w *world) resumed(sessionID string, captured map[string]*proc) *host {
	w.t.Helper()
	h := w.place(sessionID)
	w.wantResidency(h.computer, "resuming")
	h.processes = captured
	return h
}

func TestSpec_07_14_HibernatesWhenIdle(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.sleeper("sleepy", "")
		w.clock.advance(59 * time.Second)
		if h.exchange(); h.capture != "" {
			t.Fatal("hibernates before its time")
		}
		w.clock.advance(time.Second)
		w.run("turn.hibernation")
		if h.exchange(); h.capture == "" {
			t.Fatal("does not hibernate at its time")
		}
		w.wantResidency(h.computer, "hibernating")
		captureID := h.capture
		if h.exchange(); h.capture != captureID {
			t.Fatalf("capture %q is ordered while %q is under way", h.capture, captureID)
		}
		if dropped, err := h.publishCapture(captureID); err != nil || dropped {
			t.Fatal(dropped, err)
		}
		w.wantResidency(h.computer, "hibernated")
		if _, err := h.publishCapture(captureID); !fault.Is(err, fault.LeaseLost) { // its answer was lost
			t.Fatalf("published twice: %v", err)
		}
		if h.exchange(); !h.fenced {
			t.Fatal("a hibernated Computer keeps its Worker")
		}
		w.run("computer.dispatch")
		w.wantResidency(h.computer, "hibernated")

		second := w.enqueue(r.SessionID, "again")
		again := w.resumed(r.SessionID, h.processes)
		if res := again.spec.GetResume(); res.GetMemoryManifest() != "memory-"+captureID || res.GetPlatform() != "p" || fmt.Sprint(res.GetProgramDigests()) != "[p]" {
			t.Fatalf("resumes from %v", res)
		}
		if again.epoch <= h.epoch || w.captures() != 1 {
			t.Fatalf("epoch %d after %d, %d captures", again.epoch, h.epoch, w.captures())
		}
		again.exchange()
		again.exchange()
		w.wantResidency(h.computer, "running")
		if p.turnID != second.TurnID || len(p.delivered) != 2 || w.captures() != 0 {
			t.Fatalf("the process has %v, %d captures are left", p.delivered, w.captures())
		}
		again.finish(p, "2")
		if again.hibernate() == captureID {
			t.Fatal("a capture came twice")
		}
	})
}

func TestSpec_07_14_WhatKeepsAComputerAwake(t *testing.T) {
	t.Parallel()
	awake := func(w *world, h *host, why string) {
		w.t.Helper()
		w.clock.advance(2 * time.Minute)
		if h.exchange(); h.capture != "" {
			w.t.Fatal("hibernates in spite of " + why)
		}
		w.wantResidency(h.computer, "running")
	}
	each(t, func(w *world) {
		_, h, _ := w.sleeper("sleepy", "")

		never, _, _ := w.sleeper("echo", h.computer)
		awake(w, h, `a Session with "never"`)
		_, err := w.turns.Close(w.t.Context(), w.env, w.by, never.SessionID, api.ControlRequest{})
		w.must(err)
		awake(w, h, "a process that stops")

		later, _, _ := w.sleeper("drowsy", h.computer)
		awake(w, h, "a Session that has to be idle for longer")

		w.enqueue(later.SessionID, "more")
		h.exchange()
		h.exchange()
		awake(w, h, "a Turn")
		p := h.processes[later.SessionID]
		p.op(`"type":"question","turnId":%q,"questionId":"01a00000-0000-7000-8000-000000000001","question":%s`, p.turnID, textQuestion)
		h.exchange()
		awake(w, h, "a Question")
		p.op(`"type":"question_withdrawn","turnId":%q,"questionId":"01a00000-0000-7000-8000-000000000001"`, p.turnID)
		p.op(`"type":"turn_result","turnId":%q,"result":1`, p.turnID)
		h.exchange()
		w.clock.advance(time.Hour)
		awake(w, h, "a Save")
		h.publish()

		starts, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "sleepy", Input: text("hi"), ComputerID: h.computer}, nil)
		w.must(err)
		h.exchange()
		awake(w, h, "an init")
		q := h.processes[starts.SessionID]
		q.op(`"type":"init_done"`)
		h.exchange()
		h.exchange()
		h.finish(q, "1")
		w.clock.advance(time.Hour)
		h.order()
	})
}

func TestSpec_07_14_NewWorkDropsTheCapture(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.sleeper("sleepy", "")
		for i, act := range []func(){
			func() { w.enqueue(r.SessionID, "work") },
			func() { // beside the Session that sleeps
				_, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "drowsy", Input: text("hi"), ComputerID: h.computer}, nil)
				w.must(err)
			},
		} {
			h.order()
			captureID := h.capture
			act()
			w.wantResidency(h.computer, "running")
			if dropped, err := h.publishCapture(captureID); err != nil || !dropped {
				t.Fatalf("%d: publishing what was dropped: %v %v", i, dropped, err)
			}
			h.exchange() // the guest is not there yet
			if h.capture != "" || len(p.delivered) != min(i+1, 2) {
				t.Fatalf("%d: capture %q, Turns %v", i, h.capture, p.delivered)
			}
			h.exchange()
			h.exchange()
			if i == 0 {
				h.finish(p, "2")
			}
		}
		if p.epoch != 1 || w.captures() != 0 {
			t.Fatalf("epoch %d, %d captures", p.epoch, w.captures())
		}
		if w.computer(h.computer).Error != nil {
			t.Fatal(w.computer(h.computer).Error)
		}
	})
}

// TestSpec_07_14_AnotherWorkerProgramBeginsAnew is a Worker that was killed during a capture: what it may still publish
// does not count, since its successor may let the sandbox go on.
func TestSpec_07_14_AnotherWorkerProgramBeginsAnew(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		_, h, _ := w.sleeper("sleepy", "")
		h.order()
		first := h.capture
		h.capture = ""
		h.exchange()
		second := h.capture
		if second == "" || second == first {
			t.Fatalf("capture %q after %q", second, first)
		}
		if dropped, err := h.publishCapture(first); err != nil || !dropped {
			t.Fatal(dropped, err)
		}
		w.wantResidency(h.computer, "hibernating")
		if dropped, err := h.publishCapture(second); err != nil || dropped {
			t.Fatal(dropped, err)
		}
	})
}

func TestSpec_07_15_OperationsOfBeforeCountOnce(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.sleeper("sleepy", "")
		// The guest lets go before it hears that its last operations were applied.
		p.op(`"type":"output","turnId":%q,"content":[{"type":"text","text":"late"}]`, r.TurnID)
		p.op(`"type":"output","turnId":%q,"content":[{"type":"text","text":"later"}]`, r.TurnID)
		w.clock.advance(time.Minute)
		resp := h.call()
		if h.capture = resp.GetHibernate().GetCaptureId(); h.capture == "" {
			t.Fatal("no capture is ordered")
		}
		if dropped, err := h.publishCapture(h.capture); err != nil || dropped {
			t.Fatal(dropped, err)
		}
		events := len(w.kinds(r.SessionID))
		next := w.enqueue(r.SessionID, "again")
		again := w.resumed(r.SessionID, h.processes)
		again.exchange()
		again.exchange()
		if len(p.unacked) != 0 || p.turnID != next.TurnID || len(w.kinds(r.SessionID)) != events+2 {
			t.Fatalf("%d operations are not acknowledged, Turn %s, events %v", len(p.unacked), p.turnID, w.kinds(r.SessionID))
		}
		again.finish(p, "2")
	})
}

// TestSpec_07_15_MemoryThatCannotBeRestored: it is the loss of the Computer, with the captured disk.
func TestSpec_07_15_MemoryThatCannotBeRestored(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, _ := w.sleeper("sleepy", "")
		captureID := h.hibernate()
		queued := w.enqueue(r.SessionID, "again")
		again := w.resumed(r.SessionID, nil)
		again.phase = workerpb.Phase_PHASE_START_FAILED
		if again.exchange(); !again.fenced {
			t.Fatal("it keeps its Worker")
		}
		w.wantResidency(h.computer, "cold")
		s := w.session(r.SessionID)
		if len(s.Holds) != 1 || s.Holds[0].Reason != "computer_lost" || w.turn(r.SessionID, queued.TurnID).Status != "queued" || w.captures() != 0 {
			t.Fatalf("session %+v, %d captures", s, w.captures())
		}
		_, err := w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, s.Holds[0].ID, "")
		w.must(err)
		third := w.place(r.SessionID)
		if third.spec.GetResume() != nil || third.spec.GetSaveManifest() != "disk-"+captureID {
			t.Fatalf("starts from %v", third.spec)
		}
		p := third.ready(r.SessionID)
		if p.epoch != 2 || p.turnID != queued.TurnID {
			t.Fatalf("process %+v", p)
		}
	})
}

func TestSpec_07_13_LossWhileHibernatingOrResuming(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(h *host){
		"the sandbox is gone":   func(h *host) { h.phase = workerpb.Phase_PHASE_LOST },
		"the machine restarted": func(h *host) { h.phase, h.capture = workerpb.Phase_PHASE_ABSENT, "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(w *world) {
				r, h, _ := w.sleeper("sleepy", "")
				h.order()
				captureID := h.capture
				lose(h)
				if h.exchange(); !h.fenced {
					t.Fatal("it keeps its Worker")
				}
				w.wantResidency(h.computer, "cold")
				if _, err := h.publishCapture(captureID); !fault.Is(err, fault.LeaseLost) {
					t.Fatalf("published after the loss: %v", err)
				}
				if s := w.session(r.SessionID); len(s.Holds) != 1 || s.Holds[0].Reason != "computer_lost" {
					t.Fatalf("session %+v", s)
				}
			})
		})
	}
	t.Run("a Worker program that begins again resumes again", func(t *testing.T) {
		t.Parallel()
		each(t, func(w *world) {
			r, h, p := w.sleeper("sleepy", "")
			h.hibernate()
			next := w.enqueue(r.SessionID, "again")
			again := w.resumed(r.SessionID, h.processes)
			again.phase = workerpb.Phase_PHASE_ABSENT
			if again.exchange(); again.fenced || again.spec.GetResume() == nil || w.captures() != 1 {
				t.Fatalf("fenced: %v, spec %v, %d captures", again.fenced, again.spec, w.captures())
			}
			again.phase = workerpb.Phase_PHASE_RUNNING
			again.exchange()
			again.exchange()
			if p.turnID != next.TurnID || w.captures() != 0 {
				t.Fatalf("process %+v", p)
			}
			again.phase = workerpb.Phase_PHASE_ABSENT // from now on it has run
			if again.exchange(); !again.fenced {
				t.Fatal("a memory is restored twice")
			}
		})
	})
}

func TestSpec_07_16_WhoEndsHibernatedIsNotResumed(t *testing.T) {
	t.Parallel()
	ends := map[string]func(w *world, sessionID string){
		"closed": func(w *world, sessionID string) {
			_, err := w.turns.Close(w.t.Context(), w.env, w.by, sessionID, api.ControlRequest{})
			w.must(err)
		},
		"cancelled": func(w *world, sessionID string) {
			_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, sessionID, api.ControlRequest{})
			w.must(err)
		},
		"closed for being idle": func(w *world, _ string) {
			w.clock.advance(8 * 24 * time.Hour)
			w.run("turn.idle")
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(w *world) {
				r, h, _ := w.sleeper("sleepy", "")
				captureID := h.hibernate()
				end(w, r.SessionID)
				w.run("computer.dispatch")
				w.wantResidency(h.computer, "cold")
				status, _, _ := strings.Cut(name, " ")
				_, ended, err := w.sessions.Events(w.t.Context(), w.env, r.SessionID, 0, 1000)
				if s := w.session(r.SessionID); s.Status != status || !ended || err != nil || w.captures() != 0 {
					t.Fatalf("session %+v, released: %v, %d captures", s, ended, w.captures())
				}
				if kinds := strings.Join(w.kinds(r.SessionID), " "); !strings.Contains(kinds, "session.process_stopped") {
					t.Fatal(kinds)
				}
				// The captured disk is the recovery point.
				next, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("hi"), ComputerID: h.computer}, nil)
				w.must(err)
				if again := w.place(next.SessionID); again.spec.GetResume() != nil || again.spec.GetSaveManifest() != "disk-"+captureID {
					t.Fatalf("starts from %v", again.spec)
				}
			})
		})
	}
}

func TestSpec_07_16_TheMemoryStaysForOthers(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		first, h, p := w.sleeper("sleepy", "")
		second, _, q := w.sleeper("sleepy", h.computer)
		h.hibernate()
		_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, first.SessionID, api.ControlRequest{})
		w.must(err)
		w.wantResidency(h.computer, "hibernated")
		if w.session(first.SessionID).Status != "cancelled" || w.captures() != 1 {
			t.Fatalf("session %+v, %d captures", w.session(first.SessionID), w.captures())
		}
		w.enqueue(second.SessionID, "again")
		again := w.resumed(second.SessionID, h.processes)
		again.exchange()
		again.exchange()
		if !p.exited || len(q.delivered) != 2 {
			t.Fatalf("the cancelled one: %+v, the other: %+v", p, q)
		}
		again.exchange()
		again.exchange()
		if again.processes[first.SessionID] != nil {
			t.Fatal("the guest keeps a process that nobody has")
		}
	})
}

// TestSpec_21_12_IdleComputersHibernateInAnOrderlyStop: those whose Agents allow it, at once.
func TestSpec_21_12_IdleComputersHibernateInAnOrderlyStop(t *testing.T) {
	t.Parallel()
	leave := func(w *world) {
		w.t.Helper()
		_, err := w.computers.Heartbeat(w.t.Context(), w.worker, true)
		w.must(err)
	}
	each(t, func(w *world) {
		idle, h, p := w.sleeper("drowsy", "")
		_, other, q := w.sleeper("echo", "")
		busy, third, u := w.sleeper("drowsy", "")
		w.enqueue(busy.SessionID, "work")
		third.exchange()
		leave(w)
		if h.exchange(); h.capture == "" || p.stopping {
			t.Fatalf("an idle Computer: capture %q, stopping %v", h.capture, p.stopping)
		}
		if dropped, err := h.publishCapture(h.capture); err != nil || dropped {
			t.Fatal(dropped, err)
		}
		w.wantResidency(h.computer, "hibernated")
		if other.exchange(); other.capture != "" || !q.stopping {
			t.Fatal("a Computer that must not hibernate does")
		}
		third.exchange()
		if third.exchange(); third.capture != "" || u.controls["abort:"+u.turnID] == "" {
			t.Fatalf("a busy Computer: capture %q, told %v", third.capture, u.controls)
		}
		if len(w.session(idle.SessionID).Holds) != 0 {
			t.Fatal("a hold is placed")
		}
	})
	t.Run("work that comes meanwhile is stopped as any other", func(t *testing.T) {
		each(t, func(w *world) {
			r, h, p := w.sleeper("drowsy", "")
			leave(w)
			h.exchange()
			w.enqueue(r.SessionID, "work")
			h.exchange()
			if h.exchange(); h.capture != "" || !p.stopping {
				t.Fatalf("capture %q, stopping %v", h.capture, p.stopping)
			}
		})
	})
}

// TestSpec_21_11_ADrainHibernatesWhatItMay: idle Computers at once, others when their Turns are done; work that waits
// moves on.
func TestSpec_21_11_ADrainHibernatesWhatItMay(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.sleeper("drowsy", "")
		w.enqueue(r.SessionID, "work")
		h.exchange()
		_, err := w.computers.Drain(t.Context(), w.worker, time.Hour)
		w.must(err)
		h.exchange()
		if h.exchange(); p.stopping || len(p.controls) > 0 || h.capture != "" {
			t.Fatalf("a running Turn: stopping %v, told %v, capture %q", p.stopping, p.controls, h.capture)
		}
		h.finish(p, "2")
		if h.exchange(); h.capture == "" || p.stopping {
			t.Fatalf("a finished Turn: stopping %v, capture %q", p.stopping, h.capture)
		}
		if dropped, err := h.publishCapture(h.capture); err != nil || dropped {
			t.Fatal(dropped, err)
		}
		w.wantResidency(h.computer, "hibernated")
		if n := len(w.session(r.SessionID).Holds); n != 0 {
			t.Fatalf("%d holds", n)
		}
	})
	t.Run("a Turn behind another", func(t *testing.T) {
		t.Parallel()
		each(t, func(w *world) {
			r, h, p := w.sleeper("drowsy", "")
			w.enqueue(r.SessionID, "work")
			h.exchange()
			next := w.enqueue(r.SessionID, "more")
			_, err := w.computers.Drain(t.Context(), w.worker, time.Hour)
			w.must(err)
			h.finish(p, "2")
			h.exchange()
			if h.exchange(); h.capture != "" || !p.stopping {
				t.Fatalf("capture %q, stopping %v", h.capture, p.stopping)
			}
			p.exit()
			h.exchange()
			h.publish()
			if h.exchange(); !h.stop || w.turn(r.SessionID, next.TurnID).Status != "queued" {
				t.Fatalf("stop %v, turn %s", h.stop, w.turn(r.SessionID, next.TurnID).Status)
			}
		})
	})
}
