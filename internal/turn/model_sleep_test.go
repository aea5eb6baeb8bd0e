package turn_test

import (
	"time"

	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// mSleep is what the table of residencies says about hibernation. A Computer that is neither placed nor hibernated is cold.
type mSleep struct {
	// capturing: a capture is ordered and not published; current: the one that the Worker knows of is the one that counts.
	capturing, current bool
	hibernated         bool
	// resuming: placed, and the server has not heard that the memory runs again.
	resuming bool
}

// want drops a capture that is not published yet, if s has something to do.
func (m *model) want(s *mSession) {
	if s.runnable() {
		m.capturing, m.current = false, false
	}
}

// quiet tells whether there are processes and nothing at all for them to do.
func (m *model) quiet() bool {
	processes := 0
	for _, s := range m.sessions {
		if s.released {
			continue
		}
		if s.p != nil {
			processes++
		}
		if (s.p != nil && s.p.status != "ready") || s.runnable() || (s.head() != nil && s.head().status != "queued") {
			return false
		}
	}
	return processes > 0
}

// tired tells whether each Session with a process has been idle for as long as it wants.
func (m *model) tired() bool {
	for _, s := range m.sessions {
		if s.p != nil && (s.hibernateAfter == 0 || s.idleSince < 0 || s.idleSince+s.hibernateAfter > m.now) {
			return false
		}
	}
	return true
}

// runs is what the first report of a running sandbox says of the memory that it was restored from.
func (m *model) runs() {
	m.resuming = false
	if !m.quiet() {
		m.capturing, m.current = false, false
	}
}

// hibernate is what an Exchange decides about a capture, and whether it answers with an order. frozen says that the Worker
// has a capture under way, so that the guest is not connected.
func (m *model) hibernate(told, frozen bool) bool {
	quiet := m.quiet()
	switch {
	case m.capturing && !quiet:
		m.capturing, m.current = false, false
		return false
	case m.capturing && m.current && frozen:
	case m.capturing:
		m.current = told
	case !quiet || frozen || m.saving || !m.tired() || len(m.covered)+len(m.waiting) > 0:
		return false
	default:
		m.capturing, m.current = true, told
	}
	return true
}

// publishCapture tells whether a capture that the Worker has stored is published.
func (m *model) publishCapture() bool {
	published := m.capturing && m.current && m.quiet()
	m.capturing, m.current = m.capturing && m.quiet() && !published, m.current && m.quiet() && !published
	if published {
		m.placed, m.hibernated = false, true
	}
	return published
}

// unpark ends a process that is in a memory alone. The memory goes with the last of them.
func (m *model) unpark(s *mSession) {
	s.emit("session.process_stopped %d %s", s.p.epoch, s.status)
	s.p = nil
	for _, other := range m.sessions {
		if other.p != nil {
			return
		}
	}
	m.hibernated = false
}

func (m *model) lose() {
	for _, s := range m.sessions {
		if s.released {
			continue
		}
		unfinished := s.head() != nil
		if s.busy() {
			m.end(s, "interrupted", "computer_lost", true)
		} else if unfinished && s.head().status == "finalizing" {
			m.end(s, "interrupted", "save_lost", true)
		}
		had := s.p != nil && s.initialised
		s.p = nil
		if !s.terminal() && (unfinished || had) {
			m.hold(s, "computer_lost")
		}
		s.recovery = "computer_lost"
		m.settle(s)
	}
	m.placed, m.saving, m.covered, m.waiting, m.mSleep = false, false, nil, nil, mSleep{}
}

// place puts the Computer of a Session on a Worker. A hibernated one goes on with the processes that were captured.
func (r *run) place(s *mSession) {
	r.note("place, hibernated: %v", r.m.hibernated)
	r.h = r.w.place(s.id)
	r.m.placed, r.m.resuming, r.m.hibernated = true, r.m.hibernated, false
	if resumes := r.h.spec.GetResume() != nil; resumes != r.m.resuming {
		r.w.t.Fatalf("resumes: %v, the model says %v", resumes, r.m.resuming)
	}
	if r.m.resuming {
		r.h.processes = r.captured
	}
	r.captured = nil
}

// frozen takes a step while a capture is under way.
func (r *run) frozen() {
	switch n := r.rng.IntN(100); {
	case n < 45:
		dropped, err := r.h.publishCapture(r.h.capture)
		r.note("publish the capture; dropped: %v", dropped)
		r.w.must(err)
		if published := r.m.publishCapture(); published == dropped {
			r.w.t.Fatalf("a capture is dropped: %v, the model says %v", dropped, !published)
		}
		if !dropped {
			r.slept++
			r.captured, r.h = r.h.processes, nil
		}
	case n < 50: // the Worker program ends, and its successor finds the frozen sandbox
		r.note("another Worker program")
		r.h.capture, r.m.current = "", false
	case n < 70:
		r.client(pick(r, r.m.sessions))
	case n < 75:
		r.lose()
	default:
		r.exchange(r.chance(80))
	}
}

// doze lets time pass that makes idle Sessions tired.
func (r *run) doze() {
	r.w.clock.advance(61 * time.Second)
	r.m.now += 61_000
	r.note("61s pass; nobody does anything")
	r.w.run("turn.hibernation")
	r.exchange(r.chance(85))
}

// lose has the Computer lost, or its memory not restored.
func (r *run) lose() {
	r.note("the Computer is lost; resuming: %v", r.m.resuming)
	r.h.phase = workerpb.Phase_PHASE_LOST
	if r.m.resuming && r.chance(50) {
		r.h.phase = workerpb.Phase_PHASE_START_FAILED
	}
	r.h.exchange()
	r.h, r.captured = nil, nil
	clear(r.ops)
	r.m.lose()
}
