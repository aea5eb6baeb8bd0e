package turn_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/turn"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// promote makes a second Deployment current: its own program and image, and other periods of the Agent "quick", which
// may run for an hour and closes after ten idle minutes. It lacks the Agent "echo".
func (w *world) promote() (deploymentID string) {
	w.t.Helper()
	deploymentID = id.New()
	w.exec(`INSERT INTO bundles (environment_id, digest, manifest, created_at) VALUES (?, 'b2', '{"program":{"digest":"p2","entry":"index.mjs"}}', 0)`, w.env)
	w.exec(`INSERT INTO deployments (id, environment_id, version, bundle_digest, program_digest, program_entry, created_at) VALUES (?, ?, 2, 'b2', 'p2', 'index.mjs', 0)`, deploymentID, w.env)
	w.exec(`INSERT INTO agent_definitions (deployment_id, agent_id, template_id, max_turn_duration_ms, close_after_idle_ms, definition) VALUES (?, 'quick', 't', 3600000, 600000, '{}')`, deploymentID)
	w.exec(`INSERT INTO template_definitions (deployment_id, template_id, milli_cpu, memory_mib, image_digest, definition) VALUES (?, 't', 2000, 1024, 'img2', '{}')`, deploymentID)
	w.exec(`UPDATE current_deployments SET deployment_id = ? WHERE environment_id = ?`, deploymentID, w.env)
	return deploymentID
}

func TestSpec_01_06_TurnsAndEventsCountApartFromOne(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		a, b := w.create("echo", "1"), w.create("echo", "1")
		for i := range 3 {
			if r := w.enqueue(a.SessionID, "x"); r.Sequence != int64(i+2) {
				w.t.Fatalf("Turn number %d has sequence %d", i+2, r.Sequence)
			}
		}
		w.interrupt(a.SessionID) // an event of no Turn
		if r := w.send(w.create("echo", "1").SessionID, "x"); w.turnSequence(r.TurnID) != 2 {
			w.t.Fatalf("a sent Turn has sequence %d", w.turnSequence(r.TurnID))
		}
		if a.Sequence != 1 || b.Sequence != 1 {
			w.t.Fatalf("first Turns have the sequences %d and %d", a.Sequence, b.Sequence)
		}
		if r := w.enqueue(a.SessionID, "x"); r.Sequence != 5 || len(w.kinds(a.SessionID)) != 6 { // kinds checks that events count from 1
			w.t.Fatalf("Turn %d after %d events", r.Sequence, len(w.kinds(a.SessionID)))
		}
	})
}

func (w *world) turnSequence(turnID string) (n int64) {
	w.t.Helper()
	w.count(&n, `SELECT sequence FROM turns WHERE id = ?`, turnID)
	return n
}

func TestSpec_01_13_PromotionTouchesNothingThatIsThere(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("quick")
		before, events := w.session(r.SessionID), w.kinds(r.SessionID)
		deploymentID := w.promote()
		h.exchange()
		if s := w.session(r.SessionID); s.DeploymentID != before.DeploymentID || s.Status != "open" || len(w.kinds(r.SessionID)) != len(events) || p.exited || p.stopping {
			w.t.Fatalf("after the promotion: %+v", s)
		}
		// What runs on, what is queued and what is reconstructed has the pins.
		queued := w.enqueue(r.SessionID, "next")
		p.exit()
		resp := h.exchange()
		started := 0
		for _, wp := range resp.GetProcesses() {
			if wp.GetAction() == workerpb.WantedProcess_ACTION_START {
				started++
				if wp.GetProgramDigest() != "p" || !strings.Contains(string(wp.GetStartLine()), before.DeploymentID) {
					w.t.Fatalf("the next process is of program %s: %s", wp.GetProgramDigest(), wp.GetStartLine())
				}
			}
		}
		p = h.ready(r.SessionID)
		w.clock.advance(1500 * time.Millisecond) // its second at most, not the hour of the new definition
		w.run("turn.deadlines")
		if h.exchange(); started != 1 || p.turnID != queued.TurnID || len(p.told("abort")) != 1 {
			w.t.Fatalf("%d started, serving %s, aborts %v", started, p.turnID, p.told("abort"))
		}
		// What is new has the new definitions, also on a Computer that is there; that one stays what it was.
		fresh := w.create("quick", "new")
		shared, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "quick", Input: text("x"), ComputerID: before.ComputerID}, nil)
		w.must(err)
		for _, s := range []api.Session{w.session(fresh.SessionID), w.session(shared.SessionID)} {
			if s.DeploymentID != deploymentID {
				w.t.Fatalf("a new Session is of %s", s.DeploymentID)
			}
		}
		old, err := w.computers.Get(w.t.Context(), w.env, before.ComputerID)
		w.must(err)
		made, err := w.computers.Get(w.t.Context(), w.env, w.session(fresh.SessionID).ComputerID)
		if w.must(err); old.DeploymentID != before.DeploymentID || made.DeploymentID != deploymentID {
			w.t.Fatalf("Computers are of %s and %s", old.DeploymentID, made.DeploymentID)
		}
		if h2 := w.place(fresh.SessionID); h.spec.GetImageDigest() != "img" || h2.spec.GetImageDigest() != "img2" || h2.spec.GetMemoryMib() != 1024 {
			w.t.Fatalf("specs %+v and %+v", h.spec, h2.spec)
		}
		_, err = w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x")}, nil)
		w.wantCode(err, fault.AgentNotInCurrentDeployment)
	})
}

func TestSpec_13_12_ComputersStartAgainAsTheyWereMade(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		h.finish(p, "1")
		queued := w.enqueue(r.SessionID, "retried")
		w.promote() // lacks the Agent, and has another image of the Template
		h.phase = workerpb.Phase_PHASE_LOST
		h.exchange()
		w.resume(r.SessionID, w.session(r.SessionID).Holds[0].ID)
		again := w.place(r.SessionID)
		if again.spec.GetImageDigest() != "img" || again.spec.GetMemoryMib() != 512 || again.spec.GetSaveManifest() == "" {
			w.t.Fatalf("spec %+v", again.spec)
		}
		again.finish(again.ready(r.SessionID), "2")
		if v := w.turn(r.SessionID, queued.TurnID); v.Status != "completed" {
			w.t.Fatalf("turn %+v", v)
		}
		// A taken key means the Session that is there, with its code.
		w.exec(`UPDATE sessions SET key = 'k' WHERE id = ?`, r.SessionID)
		got, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Key: "k", Input: text("x")}, nil)
		if w.must(err); got.SessionID != r.SessionID || got.Created {
			w.t.Fatalf("receipt %+v", got)
		}
	})
}

func TestSpec_02_05_OneDefinitionServesBriefAndLongConversations(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		brief, h, p := w.running("echo")
		h.finish(p, "1")
		w.close(brief.SessionID)
		if s := w.session(brief.SessionID); s.Status != "closed" {
			w.t.Fatalf("a Session of one Turn is %s", s.Status)
		}
		long, h, p := w.running("echo")
		for i := range 12 {
			h.finish(p, fmt.Sprint(i))
			w.clock.advance(24 * time.Hour)
			w.run("turn.idle")
			w.enqueue(long.SessionID, "next")
			h.exchange()
		}
		if s := w.session(long.SessionID); s.Status != "open" || len(p.delivered) != 13 || p.epoch != 1 {
			w.t.Fatalf("a Session of many days is %s after %d Turns", s.Status, len(p.delivered))
		}
	})
}

func TestSpec_04_10_InterruptGivesTheHoldThereIs(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		first, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{})
		w.must(err)
		if first.HoldID == "" || first.ID == "" || first.SessionID != r.SessionID || first.Status != "accepted" {
			w.t.Fatalf("receipt %+v", first)
		}
		h.exchange()
		h.op(p, `"type":"turn_aborted","turnId":%q,"settled":true`, r.TurnID)
		before := w.kinds(r.SessionID)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				again, err := w.turns.Interrupt(w.t.Context(), w.env, api.Actor{Kind: "api_key", ID: id.New()}, r.SessionID, api.ControlRequest{})
				if err != nil || again.HoldID != first.HoldID {
					w.t.Errorf("another interrupt answers %+v, %v", again, err)
				}
			})
		}
		wg.Wait()
		if got := w.kinds(r.SessionID); len(got) != len(before) || len(w.session(r.SessionID).Holds) != 1 {
			w.t.Fatalf("events %v, holds %+v", got, w.session(r.SessionID).Holds)
		}
		w.resume(r.SessionID, first.HoldID)
		if next := w.interrupt(r.SessionID); next == first.HoldID {
			w.t.Fatal("an interrupt after the resume gives the released hold")
		}
		// A hold of another reason is not it.
		other, h, _ := w.running("echo")
		h.phase = workerpb.Phase_PHASE_LOST
		h.exchange()
		w.interrupt(other.SessionID)
		if holds := w.session(other.SessionID).Holds; len(holds) != 2 {
			w.t.Fatalf("holds %+v", holds)
		}
	})
}

// 04.17 with the table "Holds": who places which, in which scope, and what comes after its resume.
func TestSpec_04_17_HoldsShowInTheLog(t *testing.T) {
	t.Parallel()
	type hold struct {
		reason, scope, placedBy, recovery string
		place                             func(s *scene)
		epoch                             int64 // of the process that serves the next Turn
	}
	cases := []hold{
		{"interrupt", "subtree", "session.interrupt", "", then((*scene).interrupted, (*scene).settled), 1},
		{"process_failures", "local", "session.held", "process_failed", func(s *scene) {
			for range 3 {
				s.p = s.h.processes[s.sessionID]
				s.dies()
				s.h.exchange()
			}
		}, 4},
		{"cancellation_failed", "local", "session.held", "cancellation_failed", func(s *scene) {
			s.interrupted()
			first := s.w.session(s.sessionID).Holds[0].ID
			s.unsettled()
			s.h.exchange()
			s.w.resume(s.sessionID, first)
		}, 2},
		{"computer_lost", "local", "session.held", "computer_lost", (*scene).isLost, 2},
	}
	eachCase(t, cases, func(c hold) string { return c.reason }, func(w *world, c hold) {
		s := runningOf("echo")(w)
		next := w.enqueue(s.sessionID, "next")
		c.place(s)
		holds := w.session(s.sessionID).Holds
		if len(holds) != 1 || holds[0].Reason != c.reason || holds[0].Scope != c.scope || holds[0].SessionID != s.sessionID {
			w.t.Fatalf("holds %+v", holds)
		}
		want := fmt.Sprintf(`{"hold_id":%q,"reason":%q}`, holds[0].ID, c.reason)
		if c.reason == "interrupt" {
			want = fmt.Sprintf(`{"by":{"id":%q,"kind":"api_key"},"hold_id":%q}`, w.by.ID, holds[0].ID)
		}
		if got := w.data(s.sessionID, c.placedBy); got != want {
			w.t.Errorf("%s is %s, want %s", c.placedBy, got, want)
		}
		if c.reason == "interrupt" && w.data(s.sessionID, "session.held") != "" {
			w.t.Error("the hold of a control appended session.held")
		}
		w.resume(s.sessionID, holds[0].ID)
		if got, want := w.data(s.sessionID, "session.resume"), fmt.Sprintf(`{"by":{"id":%q,"kind":"api_key"},"hold_id":%q}`, w.by.ID, holds[0].ID); got != want {
			w.t.Errorf("session.resume is %s, want %s", got, want)
		}
		if c.reason == "computer_lost" {
			s.h = w.place(s.sessionID)
		}
		if s.h.exchange(); c.recovery != "" {
			s.p = s.h.ready(s.sessionID)
		}
		if s.p.epoch != c.epoch || s.p.turnID != next.TurnID && c.reason != "process_failures" {
			w.t.Fatalf("process %+v serves after the resume, want %d with %s", s.p, c.epoch, next.TurnID)
		}
		recovery := `"kind":"initial"`
		if c.recovery != "" {
			recovery = fmt.Sprintf(`"kind":"reconstructed","reason":%q`, c.recovery)
		}
		if got := w.data(s.sessionID, "turn.running"); !strings.Contains(got, recovery) {
			w.t.Errorf("turn.running is %s, want %s", got, recovery)
		}
	})
}

func TestSpec_04_22_PeriodsAreThoseOfTheSessionsDeployment(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		idle := func() string {
			r, h, p := w.running("quick")
			h.finish(p, "1")
			return r.SessionID
		}
		before := idle()
		w.promote()
		after := idle()
		w.clock.advance(61 * time.Second)
		w.run("turn.idle")
		if a, b := w.session(before).Status, w.session(after).Status; a != "closed" || b != "open" {
			w.t.Fatalf("after a minute: the older is %s, the newer %s", a, b)
		}
		w.clock.advance(9 * time.Minute)
		w.run("turn.idle")
		if got := w.session(after).Status; got != "closed" {
			w.t.Fatalf("after ten minutes the newer is %s", got)
		}
	})
}

func TestSpec_04_23_ATurnThatWaitsForAnAnswerIsNotIdle(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		w.exec(`UPDATE sessions SET close_after_idle_ms = 60000 WHERE id = ?`, r.SessionID)
		q := h.ask(p, textQuestion)
		for range 5 { // neither is the Session closed nor its Computer emptied
			w.clock.advance(time.Hour)
			w.run("turn.idle")
			w.run("computer.unused")
			h.exchange()
		}
		c, err := w.computers.Get(w.t.Context(), w.env, w.session(r.SessionID).ComputerID)
		if w.must(err); w.session(r.SessionID).Status != "open" || c.Residency != "running" || p.stopping || h.stop {
			w.t.Fatalf("session %s, Computer %s", w.session(r.SessionID).Status, c.Residency)
		}
		_, err = w.respond(r.SessionID, r.TurnID, q, "r", `"yes"`)
		w.must(err)
		h.finish(p, "1")

		// The wait counts as running time.
		r, h, p = w.running("quick")
		h.ask(p, textQuestion)
		w.clock.advance(1001 * time.Millisecond)
		w.run("turn.deadlines")
		if got := w.data(r.SessionID, "session.deadline"); got != fmt.Sprintf(`{"turn_id":%q}`, r.TurnID) {
			w.t.Fatalf("session.deadline is %q", got)
		}
	})
}

func TestSpec_05_01_ResultAndResponseShowWhenTheTurnIsCompleted(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		shows := func(when string, want bool) {
			w.t.Helper()
			page, err := w.turns.List(w.t.Context(), w.env, r.SessionID, "", 10)
			w.must(err)
			for _, v := range []api.Turn{w.turn(r.SessionID, r.TurnID), page.Turns[0]} {
				if (v.Result != nil) != want || (v.Response != nil) != want {
					w.t.Errorf("%s (%s): result %s, response %s", when, v.Status, v.Result, v.Response)
				}
			}
			for _, e := range w.events(r.SessionID) {
				if has := strings.Contains(string(e.Data), "hidden"); has != (want && e.Kind == "turn.completed") {
					w.t.Errorf("%s: event %s is %s", when, e.Kind, e.Data)
				}
			}
		}
		result := func() {
			h.op(p, `"type":"turn_result","turnId":%q,"result":"hidden result","response":[{"type":"text","text":"hidden response"}]`, r.TurnID)
		}
		shows("running", false)
		result()
		shows("recorded", false)
		h.publish()
		shows("published", true)

		r, h, p = w.running("echo")
		result()
		h.phase = workerpb.Phase_PHASE_LOST
		h.exchange()
		shows("lost before the Save", false)

		r, h, p = w.running("echo")
		w.cancel(r.SessionID)
		result()
		shows("cancelled", false)
	})
}

func TestSpec_05_03_MaxTurnDurationBoundsTheRunningTime(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		deadlines := func(sessionID string) (n int) {
			w.run("turn.deadlines")
			for _, kind := range w.kinds(sessionID) {
				if kind == "session.deadline" {
					n++
				}
			}
			return n
		}
		r := w.create("quick", "hi")
		second := w.enqueue(r.SessionID, "next")
		w.clock.advance(time.Hour) // queued time does not count
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		w.clock.advance(999 * time.Millisecond)
		if n := deadlines(r.SessionID); n != 0 {
			w.t.Fatal("a deadline before its time")
		}
		h.op(p, `"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
		w.clock.advance(time.Hour) // nor does finalizing, nor the time in which the next Turn waits for it
		if n := deadlines(r.SessionID); n != 0 || w.turn(r.SessionID, r.TurnID).Status != "finalizing" {
			w.t.Fatal("a deadline while finalizing")
		}
		h.publish()
		h.exchange()
		if p.turnID != second.TurnID {
			w.t.Fatalf("serving %s", p.turnID)
		}
		w.clock.advance(time.Second)
		if n := deadlines(r.SessionID); n != 1 {
			w.t.Fatalf("%d deadlines at the second", n)
		}
		h.exchange()
		h.op(p, `"type":"turn_result","turnId":%q,"result":"too late"`, second.TurnID) // was not durable in time
		if v := w.turn(r.SessionID, second.TurnID); v.Status != "interrupted" || v.Error.Code != turn.CodeDeadlineExceeded {
			w.t.Fatalf("turn %+v", v)
		}
		// There is no default.
		r, h, p = w.running("echo")
		w.clock.advance(365 * 24 * time.Hour)
		if n := deadlines(r.SessionID); n != 0 {
			w.t.Fatal("a deadline that nobody set")
		}
		h.finish(p, "1")
		if v := w.turn(r.SessionID, r.TurnID); v.Status != "completed" {
			w.t.Fatalf("turn %+v", v)
		}
	})
}

func TestSpec_05_09_RetryingASaveTouchesNeitherHandlerNorIdleClock(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("quick") // closes after an idle minute
		h.op(p, `"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
		first := h.save
		events := w.kinds(r.SessionID)
		for range 5 { // the capture or the upload fails: the Worker has no Save under way and asks again
			h.save = nil
			w.clock.advance(11 * time.Second)
			if h.exchange(); h.save.GetSaveId() != first.GetSaveId() || h.save.GetNumber() != first.GetNumber() {
				w.t.Fatalf("ordered %+v, before %+v", h.save, first)
			}
		}
		if len(p.delivered) != 1 || len(w.kinds(r.SessionID)) != len(events) || w.turn(r.SessionID, r.TurnID).Status != "finalizing" {
			w.t.Fatalf("%d deliveries, events %v", len(p.delivered), w.kinds(r.SessionID))
		}
		w.run("turn.idle")
		if s := w.session(r.SessionID); s.Status != "open" {
			w.t.Fatal("closed while its Save was unfinished")
		}
		h.publish()
		w.clock.advance(6 * time.Second) // 61 s since it became idle: an elapsed period takes effect at once
		w.run("turn.idle")
		if s := w.session(r.SessionID); s.Status != "closed" || w.turn(r.SessionID, r.TurnID).Status != "completed" {
			w.t.Fatalf("session %s: the retries restarted its clock", s.Status)
		}
	})
}

func TestSpec_07_12_TheRecoveryPointIsTheLastPublishedSave(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		if h.spec.GetSaveManifest() != "" {
			w.t.Fatalf("a new Computer starts from %s", h.spec.GetSaveManifest())
		}
		restart := func() string {
			w.t.Helper()
			h.phase = workerpb.Phase_PHASE_LOST
			h.exchange()
			w.resume(r.SessionID, w.session(r.SessionID).Holds[0].ID)
			w.enqueue(r.SessionID, "again")
			h = w.place(r.SessionID)
			p = h.ready(r.SessionID)
			return h.spec.GetSaveManifest()
		}
		if got := restart(); got != "" {
			w.t.Fatalf("without a published Save it starts from %s", got)
		}
		h.op(p, `"type":"turn_result","turnId":%q,"result":1`, p.turnID)
		first := h.save.GetSaveId()
		h.publish()
		w.enqueue(r.SessionID, "again")
		h.exchange()
		h.op(p, `"type":"turn_result","turnId":%q,"result":2`, p.turnID)
		second := h.save.GetSaveId() // under way when the Computer is lost
		lost := h
		if got := restart(); got != "m"+first {
			w.t.Fatalf("it starts from %s, want the last that was published", got)
		}
		err := w.turns.PublishSave(w.t.Context(), &workerpb.PublishSaveRequest{WorkerId: w.worker, ComputerId: lost.computer, Epoch: lost.epoch, SaveId: second, ManifestDigest: "late", SizeBytes: 1, StoredBytes: 1})
		w.wantCode(err, fault.LeaseLost)
		err = w.turns.PublishSave(w.t.Context(), &workerpb.PublishSaveRequest{WorkerId: w.worker, ComputerId: h.computer, Epoch: h.epoch, SaveId: second, ManifestDigest: "late", SizeBytes: 1, StoredBytes: 1})
		w.wantCode(err, fault.LeaseLost)
		h.finish(p, "3")
		if got := restart(); got == "m"+first || got == "mlate" || got == "" {
			w.t.Fatalf("it starts from %s", got)
		}
	})
}

// A Computer names the view of its Template: what another Deployment says of that has no bearing on it.
func TestSpec_09_24_AComputerSelectsItsTemplatesView(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		first := w.create("quick", "x")
		old, err := w.computers.Get(w.t.Context(), w.env, w.session(first.SessionID).ComputerID)
		w.must(err)
		deploymentID := w.promote()
		w.exec(`UPDATE template_definitions SET definition = '{"network":{"blockAll":true}}' WHERE deployment_id = ?`, deploymentID)
		made, err := w.computers.Get(w.t.Context(), w.env, w.session(w.create("quick", "x").SessionID).ComputerID)
		w.must(err)
		again, err := w.computers.Get(w.t.Context(), w.env, old.ID)
		if w.must(err); again.Template != "t" || again.DeploymentID != old.DeploymentID || made.DeploymentID != deploymentID {
			w.t.Fatalf("views %s of %s and %s of %s", again.Template, again.DeploymentID, made.Template, made.DeploymentID)
		}
		if h := w.place(first.SessionID); h.spec.GetNetwork() == `{"blockAll":true}` {
			w.t.Fatal("an older Computer runs with the network of a newer Template")
		}
	})
}

// Whatever else holds the Session: releasing that must not send a fourth process where three have failed.
func TestSpec_03_22_TheThirdFailureHoldsAlsoBehindAnotherHold(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		s := starting(w)
		for range 2 {
			s.dies()
			s.h.exchange()
			s.p = s.h.processes[s.sessionID]
		}
		hold := w.interrupt(s.sessionID)
		s.dies()
		if wrong := s.holds("interrupt", "process_failures"); wrong != "" {
			w.t.Fatal(wrong)
		}
		w.resume(s.sessionID, hold)
		if s.h.exchange(); s.h.processes[s.sessionID] != nil {
			w.t.Fatal("a fourth process was started")
		}
		w.resume(s.sessionID, w.session(s.sessionID).Holds[0].ID)
		if s.p = s.h.ready(s.sessionID); s.failures(0) != "" || s.p.turnID != s.turnID {
			w.t.Fatalf("%s; serving %s", s.failures(0), s.p.turnID)
		}
	})
}

func TestSpec_04_09_AResumeWhileClosingLetsTurnsRun(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		s := runningOf("echo")(w)
		blocked := w.enqueue(s.sessionID, "blocked")
		w.close(s.sessionID)
		hold := w.interrupt(s.sessionID)
		if w.session(s.sessionID).Status != "closing" { // the Turn still cleans up
			w.t.Fatalf("session %+v", w.session(s.sessionID))
		}
		w.resume(s.sessionID, hold)
		s.settled()
		s.h.exchange()
		if s.p.turnID != blocked.TurnID {
			w.t.Fatalf("serving %s", s.p.turnID)
		}
		s.h.finish(s.p, "1")
		if v := w.turn(s.sessionID, blocked.TurnID); v.Status != "completed" || w.session(s.sessionID).Status != "closed" {
			w.t.Fatalf("turn %+v, session %s", v, w.session(s.sessionID).Status)
		}
	})
}

func TestSpec_16_07_ControlsAreDoneOncePerKey(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "x")
		first := w.interrupt(r.SessionID)
		calls := []struct {
			name string
			call func(by api.Actor) (api.ControlReceipt, error)
		}{
			{"interrupt", func(by api.Actor) (api.ControlReceipt, error) {
				return w.turns.Interrupt(w.t.Context(), w.env, by, r.SessionID, api.ControlRequest{IdempotencyKey: "k"})
			}},
			{"resume", func(by api.Actor) (api.ControlReceipt, error) {
				return w.turns.Resume(w.t.Context(), w.env, by, r.SessionID, first, "k")
			}},
			{"close", func(by api.Actor) (api.ControlReceipt, error) {
				return w.turns.Close(w.t.Context(), w.env, by, r.SessionID, api.ControlRequest{IdempotencyKey: "k"})
			}},
			{"cancel", func(by api.Actor) (api.ControlReceipt, error) {
				return w.turns.Cancel(w.t.Context(), w.env, by, r.SessionID, api.ControlRequest{IdempotencyKey: "k"})
			}},
		}
		receipts := map[string]api.ControlReceipt{}
		for _, c := range calls { // one key, four operations: four requests
			got, err := c.call(w.by)
			if w.must(err); got.Status != "accepted" || got.SessionID != r.SessionID || got.ID == "" || (got.HoldID != "") != (c.name == "interrupt" || c.name == "resume") {
				w.t.Fatalf("%s: %+v", c.name, got)
			}
			receipts[c.name] = got
		}
		before := w.kinds(r.SessionID)
		for _, c := range calls { // the Session is cancelled by now, and each is answered as it was then
			if got, err := c.call(w.by); err != nil || got != receipts[c.name] {
				w.t.Errorf("%s again: %+v, %v, before %+v", c.name, got, err, receipts[c.name])
			}
			another := api.Actor{Kind: "api_key", ID: id.New()} // whose key it is not
			if got, err := c.call(another); c.name != "cancel" && code(err) != string(fault.SessionTerminal) || c.name == "cancel" && (err != nil || got.ID == receipts[c.name].ID) {
				w.t.Errorf("%s by another: %+v, %v", c.name, got, err)
			}
		}
		_, err := w.turns.Resume(w.t.Context(), w.env, w.by, r.SessionID, id.New(), "k")
		w.wantCode(err, fault.IdempotencyConflict)
		if got := w.kinds(r.SessionID); len(got) != len(before) {
			w.t.Errorf("events %v, before %v", got, before)
		}
	})
}
