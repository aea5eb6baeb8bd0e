package computer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// world is the room on one database, with a clock that the test moves.
type world struct {
	t   *testing.T
	d   *db.DB
	s   *Service
	env string

	mu  sync.Mutex
	now time.Time // guarded by mu
}

func each(t *testing.T, test func(w *world)) {
	t.Helper()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := &world{t: t, d: d, env: id.New(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		w.s = NewService(d, w.clock)
		w.seed()
		test(w)
	})
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// seed makes an Environment with a Deployment that Computers can be of.
func (w *world) seed() {
	org, project := id.New(), id.New()
	w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		for _, step := range []struct {
			q    string
			args []any
		}{
			{`INSERT INTO organizations (id, slug, name, created_at) VALUES (?, 'o', 'o', 0)`, []any{org}},
			{`INSERT INTO projects (id, organization_id, slug, name, created_at) VALUES (?, ?, 'p', 'p', 0)`, []any{project, org}},
			{`INSERT INTO environments (id, project_id, slug, name, color_hex, is_default, history_retention_mode, max_resident_computers, max_cpu_millis, max_memory_bytes,
				max_reserved_storage_bytes, max_outstanding_admissions, max_causal_depth, admission_rate_per_second, admission_burst, preparation_timeout_ms, created_at, updated_at)
				VALUES (?, ?, 'e', 'e', '#000000', 1, 'keep', 1000, 1000000, 1000000000000000, 1000000000000000, 1000, 16, 100, 1000, 1, 0, 0)`, []any{w.env, project}},
			{`INSERT INTO bundles (environment_id, digest, manifest, created_at) VALUES (?, 'b', '{}', 0)`, []any{w.env}},
			{`INSERT INTO deployments (id, environment_id, version, bundle_digest, program_digest, program_entry, created_at) VALUES (?, ?, 1, 'b', 'p', 'index.mjs', 0)`, []any{w.env, w.env}},
		} {
			if _, err := tx.Exec(step.q, step.args...); err != nil {
				return fmt.Errorf("%s: %w", step.q, err)
			}
		}
		return nil
	}))
}

// computer makes a Computer that wants a place.
func (w *world) computer(cpu, memory, disk int64) string {
	w.t.Helper()
	var out string
	w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		r, err := Create(tx, db.Millis(w.clock()), New{EnvironmentID: w.env, TemplateID: "t", DeploymentID: w.env, MilliCPU: cpu, MemoryMiB: memory, DiskMiB: &disk, ImageDigest: "i"})
		if err != nil {
			return err
		}
		out = r.ID
		Want(tx, r, db.Millis(w.clock()))
		return Update(tx, r)
	}))
	return out
}

func (w *world) row(computerID string) *Row {
	w.t.Helper()
	var r *Row
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) (err error) {
		r, err = one(tx, sqlGet, w.env, computerID)
		return err
	}))
	return r
}

// change does something to a Computer as its room's callers do.
func (w *world) change(computerID string, do func(tx *db.Tx, r *Row) error) {
	w.t.Helper()
	w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		r, err := Lock(tx, computerID)
		if err == nil {
			err = do(tx, r)
		}
		if err != nil {
			return err
		}
		return Update(tx, r)
	}))
}

func (w *world) run(name string) {
	w.t.Helper()
	for _, p := range w.s.Loops() {
		if p.Name == name {
			_, err := p.Run(w.t.Context())
			w.must(err)
			return
		}
	}
	w.t.Fatalf("there is no loop %s", name)
}

func (w *world) token() string {
	w.t.Helper()
	t, err := w.s.CreateWorkerToken(w.t.Context(), "", api.WorkerTokenCreateRequest{Name: "test"})
	w.must(err)
	return t.Token
}

func secretOf(who string) string { return strings.Repeat(who, 32)[:32] }

func (w *world) enroll(name, who, token string) (string, error) {
	return w.s.EnrollWorker(w.t.Context(), &workerpb.RegisterRequest{Name: name, Secret: secretOf(who), EnrollmentToken: token})
}

func (w *world) beat(workerID string, offer bool) (*workerpb.HeartbeatResponse, error) {
	r := &workerpb.HeartbeatRequest{WorkerId: workerID}
	if offer {
		r.Capacity = &workerpb.Capacity{CpuMillis: 4000, MemoryMib: 4096, DiskMib: 65536}
	}
	return w.s.Beat(w.t.Context(), r)
}

// worker enrolls one and makes it active.
func (w *world) worker(name string) string {
	w.t.Helper()
	workerID, err := w.enroll(name, name, w.token())
	w.must(err)
	_, err = w.beat(workerID, true)
	w.must(err)
	return workerID
}

func (w *world) status(workerID string, want WorkerStatus) api.Worker {
	w.t.Helper()
	v, err := w.s.GetWorker(w.t.Context(), workerID)
	w.must(err)
	if v.Status != string(want) {
		w.t.Fatalf("the worker is %s, want %s", v.Status, want)
	}
	return v
}

func (w *world) refused(err error, code fault.Code) {
	w.t.Helper()
	if !fault.Is(err, code) {
		w.t.Fatalf("%v, want %s", err, code)
	}
}

// lose lets every Worker be silent for too long and fences their Computers, as the turn room does.
func (w *world) lose() {
	w.t.Helper()
	w.advance(2*WorkerLostAfter + time.Second)
	w.run("computer.workers")
	var lost []string
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) (err error) {
		lost, err = LostComputers(tx)
		return err
	}))
	for _, c := range lost {
		w.change(c, func(tx *db.Tx, r *Row) error { return r.Lost(tx, db.Millis(w.clock())) })
	}
}

func TestSpec_21_08_EnrollmentTokens(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		ctx := t.Context()
		made, err := w.s.CreateWorkerToken(ctx, "", api.WorkerTokenCreateRequest{Name: "rack"})
		w.must(err)
		if !strings.HasPrefix(made.Token, "hlmr_wgt_") || len(made.Token) < 50 {
			t.Fatalf("token %q", made.Token)
		}
		// Its text is nowhere in the database.
		var stored string
		w.must(w.d.Read(ctx, func(tx *db.Tx) error {
			_, err := tx.Get([]any{&stored}, `SELECT token_hash || prefix || name FROM worker_tokens`)
			return err
		}))
		if strings.Contains(stored, strings.TrimPrefix(made.Token, "hlmr_wgt_")) || !strings.Contains(stored, hashed(made.Token)) {
			t.Fatalf("stored %q", stored)
		}
		for _, bad := range []string{"", "hlmr_wgt_x", made.Token + "x"} {
			_, err := w.enroll("a", "a", bad)
			w.refused(err, fault.AuthenticationRequired)
		}
		first, err := w.enroll("a", "a", made.Token)
		w.must(err)
		if again, err := w.enroll("a", "a", made.Token); err != nil || again != first {
			t.Fatalf("a repeated enrollment gives %s, %v", again, err)
		}
		w.must(w.s.RevokeWorkerToken(ctx, made.ID))
		w.must(w.s.RevokeWorkerToken(ctx, made.ID))
		w.refused(w.s.RevokeWorkerToken(ctx, id.New()), fault.NotFound)
		_, err = w.enroll("b", "b", made.Token)
		w.refused(err, fault.AuthenticationRequired)
		// Who has enrolled goes on: its secret makes it known.
		if again, err := w.enroll("a", "a", ""); err != nil || again != first {
			t.Fatalf("known again: %s, %v", again, err)
		}
		page, err := w.s.ListWorkerTokens(ctx, "", 10)
		w.must(err)
		if len(page.Tokens) != 1 || page.Tokens[0].Status != "revoked" || page.Tokens[0].Token != "" || page.Tokens[0].LastUsedAt == nil {
			t.Fatalf("tokens %+v", page)
		}
		_, err = w.s.CreateWorkerToken(ctx, "", api.WorkerTokenCreateRequest{})
		w.refused(err, fault.BadRequest)
	})
}

func TestSpec_21_08_ANameInUseIsRefused(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		a := w.worker("a")
		token := w.token()
		_, err := w.enroll("a", "other", token)
		w.refused(err, fault.WorkerResourceCustody)
		c := w.computer(1000, 512, 1024)
		w.run("computer.dispatch")
		if r := w.row(c); r.WorkerID == nil || *r.WorkerID != a {
			t.Fatalf("%+v", r)
		}
		// Lost but not fenced: still in use, for the same machine too.
		w.advance(2*WorkerLostAfter + time.Second)
		w.run("computer.workers")
		w.status(a, WorkerLost)
		for _, who := range []string{"other", "a"} {
			_, err = w.enroll("a", who, token)
			w.refused(err, fault.WorkerResourceCustody)
		}
		w.change(c, func(tx *db.Tx, r *Row) error { return r.Lost(tx, db.Millis(w.clock())) })
		// Fenced: another machine is another Worker, and what the one before says counts no more.
		b, err := w.enroll("a", "other", token)
		w.must(err)
		if b == a {
			t.Fatal("another machine goes on as the Worker before")
		}
		_, err = w.beat(a, false)
		w.refused(err, fault.LeaseLost)
		_, err = w.enroll("a", "a", token)
		w.refused(err, fault.WorkerResourceCustody)
		page, err := w.s.ListWorkers(t.Context(), "", 10)
		w.must(err)
		if len(page.Workers) != 1 || page.Workers[0].ID != b {
			t.Fatalf("workers %+v", page.Workers)
		}
	})
}

// TestSpec_21_08_WorkerStates takes every row of the table of Workers, and refuses what is not in it.
func TestSpec_21_08_WorkerStates(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		ctx := t.Context()
		drain := func(workerID string) error { _, err := w.s.Drain(ctx, workerID, 0); return err }
		activate := func(workerID string) error { _, err := w.s.Activate(ctx, workerID); return err }
		a, err := w.enroll("a", "a", w.token())
		w.must(err)
		w.status(a, WorkerRegistering)
		w.refused(drain(a), fault.BadRequest)
		w.refused(activate(a), fault.BadRequest)
		_, err = w.beat(a, false) // it adopts what it has first
		w.must(err)
		w.status(a, WorkerRegistering)
		c := w.computer(1000, 512, 1024)
		w.run("computer.dispatch")
		if w.row(c).WorkerID != nil {
			t.Fatal("a registering Worker got a Computer")
		}
		_, err = w.beat(a, true)
		w.must(err)
		if v := w.status(a, WorkerActive); v.Capacity != (api.WorkerCapacity{CPUMillis: 4000, MemoryMiB: 4096, DiskMiB: 65536}) {
			t.Fatalf("%+v", v)
		}
		w.run("computer.dispatch")
		if r := w.row(c); r.WorkerID == nil {
			t.Fatal("an active Worker got no Computer")
		}
		w.change(c, func(tx *db.Tx, r *Row) error { return r.Started(tx, db.Millis(w.clock())) })
		w.must(drain(a))
		w.status(a, WorkerDraining)
		if r := w.row(c); r.Stopping == nil || *r.Stopping != StopDrain {
			t.Fatalf("%+v", r)
		}
		w.must(activate(a))
		w.status(a, WorkerActive)
		if r := w.row(c); r.Stopping != nil {
			t.Fatalf("stopping %s after the drain has ended", *r.Stopping)
		}
		w.must(drain(a))
		other := w.computer(1000, 512, 1024)
		w.run("computer.dispatch")
		if r := w.row(other); r.WorkerID != nil || *r.ExecutionWait != "scheduling" {
			t.Fatalf("a draining Worker got a Computer: %+v", r)
		}
		w.change(c, func(_ *db.Tx, r *Row) error { return r.Stopped(db.Millis(w.clock()), false) })
		w.run("computer.drain")
		w.status(a, WorkerTerminationReady)
		w.must(drain(a)) // changes nothing
		w.must(activate(a))
		w.status(a, WorkerActive)
		w.run("computer.dispatch")
		if w.row(other).WorkerID == nil {
			t.Fatal("a Worker that is active again got no Computer")
		}
		w.lose()
		w.status(a, WorkerLost)
		w.refused(drain(a), fault.BadRequest)
		w.refused(activate(a), fault.BadRequest)
		_, err = w.beat(a, true)
		w.refused(err, fault.LeaseLost)
		_, err = w.enroll("a", "a", "")
		w.refused(err, fault.AuthenticationRequired)
		if again, err := w.enroll("a", "a", w.token()); err != nil || again != a {
			t.Fatalf("enrolled again: %s, %v", again, err)
		}
		w.status(a, WorkerRegistering)
		w.lose()
		w.status(a, WorkerLost) // from registering
	})
}

func TestSpec_21_08_LostFromDrainingAndNotWhenReady(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		a, b := w.worker("a"), w.worker("b")
		c := w.computer(1000, 512, 1024)
		w.run("computer.dispatch")
		busy, idle := *w.row(c).WorkerID, a
		if busy == a {
			idle = b
		}
		for _, x := range []string{a, b} {
			_, err := w.s.Drain(t.Context(), x, time.Hour)
			w.must(err)
		}
		w.status(busy, WorkerDraining)
		w.status(idle, WorkerTerminationReady)
		w.lose()
		w.status(busy, WorkerLost)
		w.status(idle, WorkerTerminationReady)
		// Its machine is gone: another one takes its name.
		name := "a"
		if idle == b {
			name = "b"
		}
		fresh, err := w.enroll(name, "fresh", w.token())
		w.must(err)
		w.status(fresh, WorkerRegistering)
		w.status(idle, WorkerLost)
	})
}

func TestSpec_21_09_SilenceAndAServerThatHasJustBegun(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		a := w.worker("a")
		out, err := w.beat(a, false)
		w.must(err)
		if out.GetNextMs() != 5000 || out.GetLeaseMs() != 45_000 {
			t.Fatalf("heartbeats every %d ms, leases of %d ms", out.GetNextMs(), out.GetLeaseMs())
		}
		w.advance(119 * time.Second) // silent since, but the server itself is ready for less than 120 s
		w.run("computer.workers")
		w.status(a, WorkerActive)
		_, err = w.beat(a, false)
		w.must(err)
		w.advance(59 * time.Second)
		w.run("computer.workers")
		w.status(a, WorkerActive)
		w.s.lookedAt = time.Now().Add(-time.Minute) // the server itself was stopped for a minute
		w.advance(2 * time.Second)
		w.run("computer.workers")
		w.status(a, WorkerActive)
		w.advance(2 * WorkerLostAfter)
		w.run("computer.workers")
		w.status(a, WorkerLost)
	})
}

func TestSpec_21_11_ADrainStopsItsWorkWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		a := w.worker("a")
		c := w.computer(1000, 512, 1024)
		w.run("computer.dispatch")
		w.change(c, func(tx *db.Tx, r *Row) error { return r.Started(tx, db.Millis(w.clock())) })
		v, err := w.s.Drain(t.Context(), a, 30*time.Minute)
		w.must(err)
		if v.Status != "draining" || v.Computers != 1 || v.ShutdownAt == nil || !v.ShutdownAt.Equal(w.clock().Add(30*time.Minute)) {
			t.Fatalf("%+v", v)
		}
		w.advance(29 * time.Minute)
		w.run("computer.drain")
		if *w.row(c).Stopping != StopDrain {
			t.Fatal("stopped before its time")
		}
		w.advance(2 * time.Minute)
		w.run("computer.drain")
		if *w.row(c).Stopping != StopShutdown {
			t.Fatal("not stopped after its time")
		}
		_, err = w.s.Activate(t.Context(), a)
		w.must(err)
		if r := w.row(c); r.Stopping == nil || *r.Stopping != StopShutdown {
			t.Fatal("an orderly stop that has begun goes on")
		}
		_, err = w.s.Drain(t.Context(), a, -1)
		w.refused(err, fault.BadRequest)
		_, err = w.s.Drain(t.Context(), id.New(), 0)
		w.refused(err, fault.NotFound)
	})
}

// TestSpec_21_10_Placement compares placements with a small model: never more on a Worker than it has, CPU in whole ones,
// the Worker of before first, and a wait only when none fits.
func TestSpec_21_10_Placement(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		for seed := range uint64(4) {
			random := rand.New(rand.NewPCG(seed, 7))
			w.place(random, fmt.Sprintf("s%d", seed))
		}
	})
}

type size struct{ cpu, memory, disk int64 }

func (w *world) place(random *rand.Rand, prefix string) {
	w.t.Helper()
	have := map[string]*size{} // what each Worker has left
	for i := range 3 {
		name := fmt.Sprintf("%s-%d", prefix, i)
		workerID, err := w.enroll(name, name, w.token())
		w.must(err)
		s := size{int64(1+random.IntN(6)) * 1000, int64(1+random.IntN(8)) * 512, int64(1+random.IntN(8)) * 1024}
		_, err = w.s.Beat(w.t.Context(), &workerpb.HeartbeatRequest{WorkerId: workerID, Capacity: &workerpb.Capacity{CpuMillis: s.cpu, MemoryMib: s.memory, DiskMib: s.disk}})
		w.must(err)
		have[workerID] = &s
	}
	want, on, last := map[string]size{}, map[string]string{}, map[string]string{}
	fits := func(s *size, z size) bool {
		return s.cpu >= (z.cpu+999)/1000*1000 && s.memory >= z.memory && s.disk >= z.disk
	}
	take := func(workerID string, z size, sign int64) {
		s := have[workerID]
		s.cpu, s.memory, s.disk = s.cpu-sign*((z.cpu+999)/1000*1000), s.memory-sign*z.memory, s.disk-sign*z.disk
	}
	for range 40 {
		if random.IntN(3) > 0 || len(want) == 0 {
			z := size{int64(1+random.IntN(8)) * 250, int64(1+random.IntN(4)) * 256, int64(1+random.IntN(4)) * 512}
			want[w.computer(z.cpu, z.memory, z.disk)] = z
		} else {
			for c := range want { // any
				r := w.row(c)
				if r.WorkerID == nil {
					w.change(c, func(tx *db.Tx, r *Row) error { Want(tx, r, db.Millis(w.clock())); return nil })
					break
				}
				w.change(c, func(_ *db.Tx, r *Row) error { return r.StartFailed(db.Millis(w.clock()), "test") })
				take(on[c], want[c], -1)
				last[c] = on[c]
				delete(on, c)
				break
			}
		}
		w.advance(20 * time.Second) // any pause after a failed start is over
		for workerID := range have {
			_, err := w.beat(workerID, false)
			w.must(err)
		}
		w.run("computer.dispatch")
		// The order is the dispatcher's own; what it did is replayed one by one.
		for c, z := range want {
			r := w.row(c)
			if r.WorkerID == nil || on[c] != "" {
				continue
			}
			if have[*r.WorkerID] == nil || !fits(have[*r.WorkerID], z) {
				w.t.Fatalf("a Computer of %+v was placed on a Worker with %+v left", z, have[*r.WorkerID])
			}
			on[c] = *r.WorkerID
			take(on[c], z, 1)
		}
		for c, z := range want {
			r := w.row(c)
			if r.WorkerID != nil {
				continue
			}
			for workerID, s := range have {
				if fits(s, z) && r.Residency == Cold {
					w.t.Fatalf("a Computer of %+v waits (%v) though %s has %+v", z, r.ExecutionWait, workerID, *s)
				}
			}
			if r.Residency == Cold && (r.ExecutionWait == nil || *r.ExecutionWait != "scheduling") {
				w.t.Fatalf("waits for %v", r.ExecutionWait)
			}
		}
	}
	for workerID := range have { // out of the way of the next round
		v, err := w.s.GetWorker(w.t.Context(), workerID)
		w.must(err)
		s := have[workerID]
		if v.Reserved.CPUMillis != v.Capacity.CPUMillis-s.cpu || v.Reserved.MemoryMiB != v.Capacity.MemoryMiB-s.memory || v.Reserved.DiskMiB != v.Capacity.DiskMiB-s.disk {
			w.t.Fatalf("%+v, but %+v is left", v, *s)
		}
		_, err = w.s.Drain(w.t.Context(), workerID, 0)
		w.must(err)
	}
	for c := range want {
		w.change(c, func(_ *db.Tx, r *Row) error { r.WorkWanted = false; r.touch(1); return nil })
	}
}

func TestSpec_21_10_PrefersTheWorkerThatHasItsDisk(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.worker("a")
		w.worker("b")
		c := w.computer(1000, 512, 1024)
		w.run("computer.dispatch")
		first := *w.row(c).WorkerID
		w.computer(1000, 1024, 1024) // takes the other one, which has more left; then the first has more again
		w.run("computer.dispatch")
		for range 4 {
			w.change(c, func(tx *db.Tx, r *Row) error {
				if err := r.Started(tx, db.Millis(w.clock())); err != nil {
					return err
				}
				return r.Stopped(db.Millis(w.clock()), true)
			})
			w.run("computer.dispatch")
			if got := *w.row(c).WorkerID; got != first {
				t.Fatal("it was placed away from its disk")
			}
		}
		// One that is silent is chosen last, though it is not lost yet.
		w.change(c, func(tx *db.Tx, r *Row) error {
			if err := r.Started(tx, db.Millis(w.clock())); err != nil {
				return err
			}
			return r.Stopped(db.Millis(w.clock()), true)
		})
		w.advance(30 * time.Second)
		page, err := w.s.ListWorkers(t.Context(), "", 10)
		w.must(err)
		for _, v := range page.Workers {
			if v.ID != first {
				_, err := w.beat(v.ID, false)
				w.must(err)
			}
		}
		w.run("computer.dispatch")
		if got := *w.row(c).WorkerID; got == first {
			t.Fatal("it was placed on a silent Worker")
		}
	})
}

// TestSpec_21_10_SeveralServersPlaceOnce lets several dispatchers run at once, as several servers do.
func TestSpec_21_10_SeveralServersPlaceOnce(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.worker("a") // room for four
		for range 10 {
			w.computer(1000, 512, 1024)
		}
		var wg sync.WaitGroup
		for range 4 {
			other := NewService(w.d, w.clock)
			wg.Go(func() {
				if _, err := other.dispatch(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		page, err := w.s.ListWorkers(t.Context(), "", 10)
		w.must(err)
		if v := page.Workers[0]; v.Computers != 4 || v.Reserved.CPUMillis != 4000 {
			t.Fatalf("%+v", v)
		}
	})
}

// Every Worker is told where the others, the servers and what they use are, until an hour after they were last seen.
func TestSpec_21_06_WorkersAreToldWhatIsDenied(t *testing.T) {
	each(t, func(w *world) {
		a, b := w.worker("a"), w.worker("b")
		beat := func(worker string, addresses ...string) string {
			w.t.Helper()
			out, err := w.s.Beat(w.t.Context(), &workerpb.HeartbeatRequest{WorkerId: worker, Addresses: addresses})
			w.must(err)
			list := slices.Clone(out.GetDenied())
			slices.Sort(list)
			return strings.Join(list, " ")
		}
		found := []netip.Addr{netip.MustParseAddr("93.184.216.40"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.9.0.1")}
		w.s.DenyAddresses(func(context.Context) []netip.Addr { return found })
		see := func() {
			w.t.Helper()
			_, err := w.s.seeOwn(w.t.Context())
			w.must(err)
		}
		see()
		if got := beat(a, "93.184.216.34", "::ffff:93.184.216.35", "::1", "2001:db8::1", "127.0.0.2", "0.0.0.0", "224.0.0.1", "169.254.1.1", "none", ""); got != "10.9.0.1 93.184.216.34 93.184.216.35 93.184.216.40" {
			w.t.Errorf("the one that says where it is hears %q", got)
		}
		if got := beat(b, "10.9.0.1"); got != "10.9.0.1 93.184.216.34 93.184.216.35 93.184.216.40" {
			w.t.Errorf("another hears %q", got)
		}
		// The machine has moved, the servers' database too.
		w.advance(denyFor - time.Second)
		found = found[2:]
		see()
		if got := beat(a, "93.184.216.34"); !strings.Contains(got, "93.184.216.35") || !strings.Contains(got, "93.184.216.40") {
			w.t.Errorf("within the hour it hears %q", got)
		}
		w.advance(2 * time.Second)
		see()
		if got := beat(b); got != "10.9.0.1 93.184.216.34" {
			w.t.Errorf("after the hour it hears %q", got)
		}
		// One Worker cannot name the whole internet.
		var many []string
		for i := range 500 {
			many = append(many, fmt.Sprintf("20.0.%d.%d", i/250, i%250+1))
		}
		if got := len(strings.Fields(beat(a, many...))); got != maxOwned+2 {
			w.t.Errorf("%d addresses are denied", got)
		}
	})
}
