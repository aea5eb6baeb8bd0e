package turn_test

import (
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/turn"
)

// limits sets what the Environment admits.
func (w *world) limits(rate, burst, outstanding int) {
	w.t.Helper()
	w.exec(`UPDATE environments SET admission_rate_per_second = ?, admission_burst = ?, max_outstanding_admissions = ? WHERE id = ?`, rate, burst, outstanding, w.env)
}

func (w *world) tryEnqueue(sessionID, key string) (api.EnqueueReceipt, error) {
	return w.turns.Enqueue(w.t.Context(), w.env, w.by, sessionID, api.EnqueueRequest{Input: text("x"), IdempotencyKey: key})
}

const (
	rateLimit        = "admission_unavailable/rate_limit"
	outstandingLimit = "admission_unavailable/outstanding_limit"
)

func TestSpec_04_05_EachTurnTakesATokenOfTheRateBucket(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.limits(2, 3, 1000)
		r := w.create("echo", "1") // every way in takes one
		w.send(r.SessionID, "2")
		w.enqueue(r.SessionID, "3")
		_, err := w.tryEnqueue(r.SessionID, "")
		w.wantCode(err, rateLimit)
		_, err = w.trySend(r.SessionID, "x")
		w.wantCode(err, rateLimit)
		_, err = w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x")}, nil)
		w.wantCode(err, rateLimit)
		w.clock.advance(499 * time.Millisecond)
		_, err = w.tryEnqueue(r.SessionID, "")
		w.wantCode(err, rateLimit)
		w.clock.advance(time.Millisecond) // half a second is one token at two a second
		w.enqueue(r.SessionID, "4")
		_, err = w.tryEnqueue(r.SessionID, "")
		w.wantCode(err, rateLimit)
		w.clock.advance(time.Hour) // the bucket holds the burst and no more
		for range 3 {
			w.enqueue(r.SessionID, "x")
		}
		_, err = w.tryEnqueue(r.SessionID, "")
		w.wantCode(err, rateLimit)
		if n := len(w.kinds(r.SessionID)); n != 7 {
			w.t.Errorf("%d events: a refused admission left one", n)
		}
	})
}

func TestSpec_04_05_RepeatedRequestsAndMessagesTakeNothing(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, _, _ := w.running("echo")
		w.clock.advance(time.Hour)
		w.limits(1, 2, 1000)
		first, err := w.tryEnqueue(r.SessionID, "k")
		w.must(err)
		for range 10 {
			again, err := w.tryEnqueue(r.SessionID, "k")
			if w.must(err); again != first {
				w.t.Fatalf("receipt %+v, before %+v", again, first)
			}
			w.message(r.SessionID, r.TurnID, "x")
			if w.send(r.SessionID, "x").Kind != "messaged" {
				w.t.Fatal("not a Message")
			}
			_, err = w.turns.Enqueue(w.t.Context(), w.env, w.by, r.SessionID, api.EnqueueRequest{Input: text("y"), IdempotencyKey: "k"})
			w.wantCode(err, fault.IdempotencyConflict)
		}
		w.enqueue(r.SessionID, "the second of the burst")
		_, err = w.tryEnqueue(r.SessionID, "k2")
		w.wantCode(err, rateLimit)
		w.clock.advance(time.Second) // a refused request is not remembered under its key
		_, err = w.tryEnqueue(r.SessionID, "k2")
		w.must(err)
	})
}

func TestSpec_04_05_UnfinishedTurnsAreBounded(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.limits(1000, 1000, 3)
		r, h, p := w.running("echo") // running
		w.enqueue(r.SessionID, "queued")
		other := w.create("echo", "queued elsewhere")
		for range 2 {
			_, err := w.tryEnqueue(r.SessionID, "")
			w.wantCode(err, outstandingLimit)
		}
		h.op(p, `"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
		_, err := w.tryEnqueue(r.SessionID, "") // finalizing is not finished
		w.wantCode(err, outstandingLimit)
		h.publish()
		w.enqueue(r.SessionID, "fits now")
		_, err = w.tryEnqueue(r.SessionID, "")
		w.wantCode(err, outstandingLimit)
		w.cancel(other.SessionID)
		w.enqueue(r.SessionID, "fits after the cancel")
		_, err = w.tryEnqueue(r.SessionID, "")
		w.wantCode(err, outstandingLimit)
	})
}

func TestSpec_04_05_TheLimitsHoldForRequestsAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		var sessions []string
		for range 4 {
			sessions = append(sessions, w.create("echo", "x").SessionID)
		}
		for _, c := range []struct {
			burst, outstanding, fit int
			refused                 string
		}{{7, 1000, 7, rateLimit}, {1000, 20, 20 - 4 - 7, outstandingLimit}} {
			w.clock.advance(time.Hour)
			w.limits(1, c.burst, c.outstanding)
			got := map[string]int{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range 24 {
				wg.Go(func() {
					_, err := w.tryEnqueue(sessions[i%len(sessions)], "")
					mu.Lock()
					defer mu.Unlock()
					got[code(err)]++
				})
			}
			wg.Wait()
			if got[""] != c.fit || got[c.refused] != 24-c.fit {
				w.t.Errorf("with burst %d and %d outstanding: %v", c.burst, c.outstanding, got)
			}
		}
	})
}

func TestSpec_04_05_EnvironmentsDoNotShareLimits(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.limits(1, 1, 1)
		w.create("echo", "x")
		first := w.env
		w.env = "0197a1f3-0000-7000-8000-000000000001"
		w.exec(`INSERT INTO environments (id, project_id, slug, name, color_hex, is_default, history_retention_mode, max_resident_computers, max_cpu_millis, max_memory_bytes,
			max_reserved_storage_bytes, max_outstanding_admissions, max_causal_depth, admission_rate_per_second, admission_burst, preparation_timeout_ms, created_at, updated_at)
			SELECT ?, project_id, 'e2', 'e2', color_hex, 0, 'keep', 1000, 1000000, 1000000000000000, 1000000000000000, 1000, 16, 100, 100, 1, 0, 0 FROM environments WHERE id = ?`, w.env, first)
		w.exec(`INSERT INTO agents (environment_id, id, created_at) VALUES (?, 'echo', 0)`, w.env)
		w.exec(`INSERT INTO bundles (environment_id, digest, manifest, created_at) VALUES (?, 'b', '{"program":{"digest":"p","entry":"index.mjs"}}', 0)`, w.env)
		const dep = "0197a1f3-0000-7000-8000-000000000002"
		w.exec(`INSERT INTO deployments (id, environment_id, version, bundle_digest, program_digest, program_entry, created_at) VALUES (?, ?, 1, 'b', 'p', 'index.mjs', 0)`, dep, w.env)
		w.exec(`INSERT INTO current_deployments (environment_id, deployment_id) VALUES (?, ?)`, w.env, dep)
		w.exec(`INSERT INTO agent_definitions (deployment_id, agent_id, template_id, definition) VALUES (?, 'echo', 't', '{}')`, dep)
		w.exec(`INSERT INTO template_definitions (deployment_id, template_id, milli_cpu, memory_mib, image_digest, definition) VALUES (?, 't', 1000, 512, 'img', '{}')`, dep)
		w.create("echo", "x")
		w.create("echo", "y")
	})
}

func TestSpec_07_06_ComputersReserveTheirDisk(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		create := func(computerID string) (api.SessionCreateReceipt, error) {
			return w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: computerID}, nil)
		}
		w.exec(`UPDATE environments SET max_reserved_storage_bytes = ? WHERE id = ?`, int64(2)*32<<30+1, w.env)
		first, err := create("")
		w.must(err)
		second, err := create("")
		w.must(err)
		for range 2 {
			_, err = create("")
			w.wantCode(err, "admission_unavailable/storage_limit")
		}
		_, err = create(w.session(first.SessionID).ComputerID) // an existing Computer has its disk
		w.must(err)
		w.exec(`UPDATE computers SET status = 'deleting' WHERE id = ?`, w.session(second.SessionID).ComputerID)
		_, err = create("")
		w.wantCode(err, "admission_unavailable/storage_limit")
		w.exec(`UPDATE computers SET status = 'deleted' WHERE id = ?`, w.session(second.SessionID).ComputerID)
		_, err = create("")
		w.must(err)
		_, err = create("")
		w.wantCode(err, "admission_unavailable/storage_limit")
	})
}

func TestSpec_12_06_TheChainOfCausesIsBounded(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.exec(`UPDATE environments SET max_causal_depth = 3 WHERE id = ?`, w.env)
		check := func(sessionID string) error {
			return w.d.Read(w.t.Context(), func(tx *db.Tx) error { return turn.CheckCausalDepth(tx, w.env, sessionID) })
		}
		r := w.create("echo", "x")
		w.must(check(r.SessionID))
		child, _ := w.child(r.SessionID)
		w.must(check(child))
		started := w.create("echo", "started by the child")
		w.exec(`UPDATE sessions SET requester_session_id = ? WHERE id = ?`, child, started.SessionID)
		w.must(check(started.SessionID))
		last, _ := w.child(started.SessionID)
		w.wantCode(check(last), "admission_unavailable/causal_depth")
	})
}
