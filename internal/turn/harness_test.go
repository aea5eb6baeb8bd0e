package turn_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/loop"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/turn"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// world is the rooms on one database with one Worker, whose part the test plays through the Worker's own calls.
type world struct {
	t         *testing.T
	d         *db.DB
	clock     *clock
	turns     *turn.Service
	sessions  *session.Service
	computers *computer.Service
	env       string
	by        api.Actor
	worker    string
	hosts     map[string]*host // by Computer
}

func each(t *testing.T, test func(w *world)) {
	t.Helper()
	dbtest.Each(t, func(t *testing.T, d *db.DB) { test(setup(t, d)) })
}

func setup(t *testing.T, d *db.DB) *world {
	t.Helper()
	c := &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w := &world{t: t, d: d, clock: c, turns: turn.NewService(d, c.now), sessions: session.NewService(d), computers: computer.NewService(d, c.now),
		env: id.New(), by: api.Actor{Kind: "api_key", ID: id.New()}, hosts: map[string]*host{}}
	w.seed()
	workerID, err := w.computers.RegisterWorker(t.Context(), &workerpb.RegisterRequest{Name: "w1", Secret: strings.Repeat("s", 32), CpuMillis: 64000, MemoryMib: 64 << 10, DiskMib: 4 << 20})
	w.must(err)
	w.worker = workerID
	return w
}

// seed puts an Environment with one current Deployment in place: the Agents "echo" (no limits), "quick" (1 s a Turn,
// closes after a minute idle), "sleepy" and "drowsy" (hibernate after a minute and after an hour).
func (w *world) seed() {
	org, project, dep := id.New(), id.New(), id.New()
	exec := func(tx *db.Tx, q string, args ...any) {
		if _, err := tx.Exec(q, args...); err != nil {
			panic(fmt.Sprintf("%s: %v", q, err))
		}
	}
	w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		exec(tx, `INSERT INTO organizations (id, slug, name, created_at) VALUES (?, 'o', 'o', 0)`, org)
		exec(tx, `INSERT INTO projects (id, organization_id, slug, name, created_at) VALUES (?, ?, 'p', 'p', 0)`, project, org)
		exec(tx, `INSERT INTO environments (id, project_id, slug, name, color_hex, is_default, history_retention_mode, max_resident_computers, max_cpu_millis, max_memory_bytes,
			max_reserved_storage_bytes, max_outstanding_admissions, max_causal_depth, admission_rate_per_second, admission_burst, preparation_timeout_ms, created_at, updated_at)
			VALUES (?, ?, 'e', 'e', '#000000', 1, 'keep', 1000, 1000000, 1000000000000000, 1000000000000000, 1000, 16, 100, 1000, 1, 0, 0)`, w.env, project)
		exec(tx, `INSERT INTO bundles (environment_id, digest, manifest, created_at) VALUES (?, 'b', '{"program":{"digest":"p","entry":"index.mjs"}}', 0)`, w.env)
		exec(tx, `INSERT INTO deployments (id, environment_id, version, bundle_digest, program_digest, program_entry, created_at) VALUES (?, ?, 1, 'b', 'p', 'index.mjs', 0)`, dep, w.env)
		exec(tx, `INSERT INTO current_deployments (environment_id, deployment_id) VALUES (?, ?)`, w.env, dep)
		for _, a := range []string{"echo", "quick", "sleepy", "drowsy"} {
			exec(tx, `INSERT INTO agents (environment_id, id, created_at) VALUES (?, ?, 0)`, w.env, a)
		}
		exec(tx, `INSERT INTO agent_definitions (deployment_id, agent_id, template_id, close_after_idle_ms, definition) VALUES (?, 'echo', 't', 604800000, '{}')`, dep)
		exec(tx, `INSERT INTO agent_definitions (deployment_id, agent_id, template_id, max_turn_duration_ms, close_after_idle_ms, definition) VALUES (?, 'quick', 't', 1000, 60000, '{}')`, dep)
		for a, after := range map[string]int{"sleepy": 60000, "drowsy": 3600000} {
			exec(tx, `INSERT INTO agent_definitions (deployment_id, agent_id, template_id, close_after_idle_ms, hibernate_after_idle_ms, definition) VALUES (?, ?, 't', 604800000, ?, '{}')`, dep, a, after)
		}
		exec(tx, `INSERT INTO template_definitions (deployment_id, template_id, milli_cpu, memory_mib, image_digest, definition) VALUES (?, 't', 1000, 512, 'img', '{}')`, dep)
		return nil
	}))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run runs the named background piece once.
func (w *world) run(name string) {
	w.t.Helper()
	for _, p := range append(w.computers.Loops(), w.turns.Loops()...) {
		if p.Name == name {
			_, err := loop.Piece(p).Run(w.t.Context())
			w.must(err)
			return
		}
	}
	w.t.Fatalf("no loop %s", name)
}

func text(s string) json.RawMessage {
	b, _ := json.Marshal([]map[string]string{{"type": "text", "text": s}})
	return b
}

func (w *world) create(agent, input string) api.SessionCreateReceipt {
	w.t.Helper()
	r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: agent, Input: text(input)}, nil)
	w.must(err)
	return r
}

func (w *world) enqueue(sessionID, input string) api.EnqueueReceipt {
	w.t.Helper()
	r, err := w.turns.Enqueue(w.t.Context(), w.env, w.by, sessionID, api.EnqueueRequest{Input: text(input)})
	w.must(err)
	return r
}

func (w *world) turn(sessionID, turnID string) api.Turn {
	w.t.Helper()
	v, err := w.turns.Get(w.t.Context(), w.env, sessionID, turnID)
	w.must(err)
	return v
}

func (w *world) session(sessionID string) api.Session {
	w.t.Helper()
	v, err := w.sessions.Get(w.t.Context(), w.env, sessionID)
	w.must(err)
	return v
}

// kinds gives the event kinds of a Session and checks that sequences have no gap.
func (w *world) kinds(sessionID string) []string {
	w.t.Helper()
	page, _, err := w.sessions.Events(w.t.Context(), w.env, sessionID, 0, 1000)
	w.must(err)
	out := make([]string, 0, len(page.Records))
	for i, e := range page.Records {
		if e.Sequence != int64(i+1) {
			w.t.Fatalf("event %d has sequence %d", i+1, e.Sequence)
		}
		out = append(out, e.Kind)
	}
	return out
}

func (w *world) wantKinds(sessionID string, want ...string) {
	w.t.Helper()
	if got := w.kinds(sessionID); strings.Join(got, " ") != strings.Join(want, " ") {
		w.t.Fatalf("events are\n  %s\nwant\n  %s", strings.Join(got, " "), strings.Join(want, " "))
	}
}

// host is the Worker's and the guest's view of one Computer, kept by the test.
type host struct {
	w          *world
	computer   string
	epoch      int64
	phase      workerpb.Phase
	unreadable bool // with a failed start
	processes  map[string]*proc
	save       *workerpb.SaveOrder
	fenced     bool
	stop       bool
	spec       *workerpb.ComputerSpec
	capture    string // that is ordered: meanwhile the guest is not connected
}

// proc is a Session process in the test's guest.
type proc struct {
	session   string
	epoch     int64
	next      int64
	unacked   []*workerpb.Operation
	delivered []string // Turns handed to the handler: at most once each
	turnID    string
	controls  map[string]string
	passed    []string // keys of controls that the Worker says it has passed on
	exited    bool
	stopping  bool
	acks      map[int64]string
}

// place runs the dispatcher and takes up the Computer of a Session.
func (w *world) place(sessionID string) *host {
	w.t.Helper()
	w.run("computer.dispatch")
	leases, err := w.computers.Heartbeat(w.t.Context(), w.worker, false)
	w.must(err)
	computerID := w.session(sessionID).ComputerID
	for _, l := range leases {
		if l.GetComputerId() == computerID {
			h := &host{w: w, computer: computerID, epoch: l.GetEpoch(), processes: map[string]*proc{}}
			w.hosts[computerID] = h
			h.exchange()
			if h.spec == nil {
				w.t.Fatal("no spec for a Computer to start")
			}
			h.phase = workerpb.Phase_PHASE_RUNNING
			return h
		}
	}
	w.t.Fatalf("computer %s was not placed", computerID)
	return nil
}

// exchange makes one Exchange and does what it answers.
func (h *host) exchange() *workerpb.ExchangeResponse {
	h.w.t.Helper()
	resp := h.call()
	h.take(resp)
	return resp
}

// lose makes one Exchange whose answer is lost.
func (h *host) lose() { h.call() }

func (h *host) call() *workerpb.ExchangeResponse {
	h.w.t.Helper()
	req := &workerpb.ExchangeRequest{WorkerId: h.w.worker, ComputerId: h.computer, Epoch: h.epoch, Phase: h.phase, DiskUnreadable: h.unreadable, CaptureId: h.capture,
		GuestConnected: h.phase == workerpb.Phase_PHASE_RUNNING && h.capture == ""}
	if h.save != nil {
		req.SaveId = h.save.GetSaveId()
	}
	for _, p := range h.processes {
		req.Processes = append(req.Processes, &workerpb.ObservedProcess{SessionId: p.session, Epoch: p.epoch, TurnId: p.turnID, Exited: p.exited, Controls: p.passed})
		if len(p.unacked) > 0 {
			req.Operations = append(req.Operations, &workerpb.ProcessOperations{SessionId: p.session, Epoch: p.epoch, Operations: p.unacked})
		}
	}
	resp, err := h.w.turns.Exchange(h.w.t.Context(), req)
	h.w.must(err)
	return resp
}

// take does what an Exchange answers.
func (h *host) take(resp *workerpb.ExchangeResponse) {
	h.fenced, h.stop, h.capture = resp.GetFenced(), resp.GetStop(), resp.GetHibernate().GetCaptureId()
	if resp.GetSpec() != nil {
		h.spec = resp.GetSpec()
	}
	for _, acks := range resp.GetAcks() {
		p := h.processes[acks.GetSessionId()]
		for _, a := range acks.GetAcks() {
			p.acks[a.GetSequence()] = string(a.GetLine())
			if len(p.unacked) > 0 && p.unacked[0].GetSequence() == a.GetSequence() {
				p.unacked = p.unacked[1:]
			}
		}
	}
	for _, wp := range resp.GetProcesses() {
		h.want(wp)
	}
	for _, d := range resp.GetDeliveries() {
		p := h.processes[d.GetSessionId()]
		if p == nil || p.epoch != d.GetEpoch() || p.turnID == d.GetTurnId() {
			continue
		}
		p.turnID = d.GetTurnId()
		p.delivered = append(p.delivered, d.GetTurnId())
	}
	for _, c := range resp.GetControls() {
		if p := h.processes[c.GetSessionId()]; p != nil && p.epoch == c.GetEpoch() {
			p.controls[c.GetKey()] = string(c.GetLine())
		}
	}
	if resp.GetSave() != nil {
		h.save = resp.GetSave()
	}
}

func (h *host) want(wp *workerpb.WantedProcess) {
	p := h.processes[wp.GetSessionId()]
	switch wp.GetAction() {
	case workerpb.WantedProcess_ACTION_START:
		if p == nil || p.epoch < wp.GetEpoch() {
			h.processes[wp.GetSessionId()] = &proc{session: wp.GetSessionId(), epoch: wp.GetEpoch(), next: 1, controls: map[string]string{}, acks: map[int64]string{}}
		}
	case workerpb.WantedProcess_ACTION_STOP:
		p.stopping = true
	case workerpb.WantedProcess_ACTION_KILL:
		if p != nil && p.epoch == wp.GetEpoch() && !p.exited {
			p.exit()
		}
	case workerpb.WantedProcess_ACTION_FORGET:
		if p != nil && p.epoch == wp.GetEpoch() {
			delete(h.processes, wp.GetSessionId())
		}
	}
}

// op adds an operation to a process; body is its JSON without seq.
func (p *proc) op(format string, args ...any) int64 {
	seq := p.next
	p.next++
	body := fmt.Sprintf(format, args...)
	p.unacked = append(p.unacked, &workerpb.Operation{Sequence: seq, Payload: []byte(fmt.Sprintf(`{"seq":%d,%s}`, seq, body))})
	return seq
}

func (p *proc) exit() {
	p.exited = true
	p.op(`"type":"exited","code":1,"stderr":"boom"`)
}

// ready starts the process of a Session and lets it finish init, which claims its first Turn.
func (h *host) ready(sessionID string) *proc {
	h.w.t.Helper()
	h.exchange()
	p := h.processes[sessionID]
	if p == nil {
		h.w.t.Fatalf("no process wanted for %s", sessionID)
	}
	p.op(`"type":"init_done"`)
	h.exchange()
	return p
}

// finish has the handler of the present Turn return, and publishes its Save.
func (h *host) finish(p *proc, result string) {
	h.w.t.Helper()
	p.op(`"type":"processing_closed","turnId":%q`, p.turnID)
	p.op(`"type":"turn_result","turnId":%q,"result":%s,"response":[{"type":"text","text":"done"}]`, p.turnID, result)
	h.exchange()
	h.publish()
	h.exchange()
}

func (h *host) publish() {
	h.w.t.Helper()
	if h.save == nil {
		h.exchange()
	}
	if h.save == nil {
		h.w.t.Fatal("no Save ordered")
	}
	h.w.must(h.w.turns.PublishSave(h.w.t.Context(), &workerpb.PublishSaveRequest{WorkerId: h.w.worker, ComputerId: h.computer, Epoch: h.epoch,
		SaveId: h.save.GetSaveId(), ManifestDigest: "m" + h.save.GetSaveId(), SizeBytes: 1, StoredBytes: 1}))
	h.save = nil
}
