package command_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
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
	t         testing.TB
	d         *db.DB
	clock     *clock
	turns     *turn.Service
	sessions  *session.Service
	computers *computer.Service
	commands  *command.Service
	env       string
	by        api.Actor
	worker    string
}

func each(t *testing.T, test func(w *world)) {
	t.Helper()
	dbtest.Each(t, func(t *testing.T, d *db.DB) { test(setup(t, d)) })
}

func setup(t testing.TB, d *db.DB) *world {
	t.Helper()
	c := &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w := &world{t: t, d: d, clock: c, turns: turn.NewService(d, c.now), sessions: session.NewService(d), computers: computer.NewService(d, c.now),
		commands: command.NewService(d, c.now), env: id.New(), by: api.Actor{Kind: "api_key", ID: id.New()}}
	w.turns.Host(w.commands)
	w.seed()
	w.worker = w.register()
	return w
}

func (w *world) register() string {
	w.t.Helper()
	workerID, err := w.computers.RegisterWorker(w.t.Context(), &workerpb.RegisterRequest{Name: "w1", Secret: strings.Repeat("s", 32), CpuMillis: 64000, MemoryMib: 64 << 10, DiskMib: 4 << 20})
	w.must(err)
	return workerID
}

// seed puts an Environment with one current Deployment in place: the Agent "echo" and the Templates "t" and "brief", whose
// Computers are deleted after an hour unused. Ten Computers fit its storage.
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
			VALUES (?, ?, 'e', 'e', '#000000', 1, 'keep', 16, 32000, 68719476736, 343597383680, 1000, 16, 100, 1000, 1, 0, 0)`, w.env, project)
		exec(tx, `INSERT INTO bundles (environment_id, digest, manifest, created_at) VALUES (?, 'b', '{"program":{"digest":"p","entry":"index.mjs"}}', 0)`, w.env)
		exec(tx, `INSERT INTO deployments (id, environment_id, version, bundle_digest, program_digest, program_entry, created_at) VALUES (?, ?, 1, 'b', 'p', 'index.mjs', 0)`, dep, w.env)
		exec(tx, `INSERT INTO current_deployments (environment_id, deployment_id) VALUES (?, ?)`, w.env, dep)
		exec(tx, `INSERT INTO agents (environment_id, id, created_at) VALUES (?, 'echo', 0)`, w.env)
		exec(tx, `INSERT INTO agent_definitions (deployment_id, agent_id, template_id, close_after_idle_ms, definition) VALUES (?, 'echo', 't', 604800000, '{}')`, dep)
		exec(tx, `INSERT INTO template_definitions (deployment_id, template_id, milli_cpu, memory_mib, image_digest, definition) VALUES (?, 't', 1000, 512, 'img', '{}')`, dep)
		exec(tx, `INSERT INTO template_definitions (deployment_id, template_id, milli_cpu, memory_mib, image_digest, delete_after_unused_ms, definition) VALUES (?, 'brief', 1000, 512, 'img', 3600000, '{}')`, dep)
		return nil
	}))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// wantCode checks the code of a refusal.
func (w *world) wantCode(err error, code fault.Code) {
	w.t.Helper()
	if !fault.Is(err, code) {
		w.t.Fatalf("error is %v, want code %s", err, code)
	}
}

// run runs the named background piece once.
func (w *world) run(name string) {
	w.t.Helper()
	for _, p := range slices.Concat(w.computers.Loops(), w.turns.Loops(), w.commands.Loops()) {
		if p.Name == name {
			_, err := p.Run(w.t.Context())
			w.must(err)
			return
		}
	}
	w.t.Fatalf("no loop %s", name)
}

func (w *world) newComputer(template string) string {
	w.t.Helper()
	r, err := w.computers.Create(w.t.Context(), w.env, w.by, api.ComputerCreateRequest{Template: template})
	w.must(err)
	return r.ComputerID
}

func (w *world) computer(computerID string) api.Computer {
	w.t.Helper()
	c, err := w.computers.Get(w.t.Context(), w.env, computerID)
	w.must(err)
	return c
}

func (w *world) exec(computerID string, argv ...string) string {
	w.t.Helper()
	r, err := w.commands.Create(w.t.Context(), w.env, w.by, computerID, api.CommandCreateRequest{Command: argv})
	w.must(err)
	return r.CommandID
}

func (w *world) cancel(commandID string) api.CommandCancelReceipt {
	w.t.Helper()
	r, err := w.commands.Cancel(w.t.Context(), w.env, w.by, commandID, api.ControlRequest{})
	w.must(err)
	return r
}

func (w *world) command(commandID string) api.Command {
	w.t.Helper()
	k, err := w.commands.Get(w.t.Context(), w.env, commandID)
	w.must(err)
	if (k.Outcome != nil) != slices.Contains([]string{"exited", "failed", "cancelled", "timed_out", "lost"}, k.Status) {
		w.t.Fatalf("command is %s with the outcome %+v", k.Status, k.Outcome)
	}
	return k
}

func (w *world) wantStatus(commandID, status string) api.Command {
	w.t.Helper()
	k := w.command(commandID)
	if k.Status != status {
		w.t.Fatalf("command is %s (%+v), want %s", k.Status, k.Outcome, status)
	}
	return k
}

// logs gives all output there is.
func (w *world) logs(commandID string) api.CommandLogPage {
	w.t.Helper()
	var all api.CommandLogPage
	for cursor := ""; ; {
		page, _, err := w.commands.Logs(w.t.Context(), w.env, commandID, cursor, 100)
		w.must(err)
		all.OutputState = page.OutputState
		all.Logs = append(all.Logs, page.Logs...)
		if page.NextCursor == "" {
			return all
		}
		cursor = page.NextCursor
	}
}

// host is the Worker's and the guest's view of one Computer, kept by the test.
type host struct {
	w         *world
	computer  string
	epoch     int64
	phase     workerpb.Phase
	connected bool
	guest     map[string]*prog
	order     []string // ids in the order in which the guest was told to run them
	fenced    bool
	stop      bool
	save      *workerpb.SaveOrder
	message   string // why the sandbox is gone
}

// prog is a Command in the test's guest.
type prog struct {
	run       *workerpb.WantedCommand
	started   bool
	cancelled bool
	exit      *workerpb.CommandExit
	drained   bool
}

// place runs the dispatcher and takes up a Computer as far as its guest.
func (w *world) place(computerID string) *host {
	w.t.Helper()
	w.run("computer.dispatch")
	leases, err := w.computers.Heartbeat(w.t.Context(), w.worker, false)
	w.must(err)
	for _, l := range leases {
		if l.GetComputerId() == computerID {
			return &host{w: w, computer: computerID, epoch: l.GetEpoch(), phase: workerpb.Phase_PHASE_RUNNING, connected: true, guest: map[string]*prog{}}
		}
	}
	w.t.Fatalf("computer %s was not placed", computerID)
	return nil
}

// exchange makes one Exchange and does what it answers.
func (h *host) exchange() *workerpb.ExchangeResponse {
	h.w.t.Helper()
	req := &workerpb.ExchangeRequest{WorkerId: h.w.worker, ComputerId: h.computer, Epoch: h.epoch, Phase: h.phase, Error: h.message, GuestConnected: h.phase == workerpb.Phase_PHASE_RUNNING && h.connected}
	if h.save != nil {
		req.SaveId = h.save.GetSaveId()
	}
	for id, p := range h.guest {
		req.Commands = append(req.Commands, &workerpb.ObservedCommand{CommandId: id, Started: p.started, Exit: p.exit, Drained: p.drained})
	}
	resp, err := h.w.turns.Exchange(h.w.t.Context(), req)
	h.w.must(err)
	h.fenced, h.stop = resp.GetFenced(), resp.GetStop()
	if resp.GetSave() != nil {
		h.save = resp.GetSave()
	}
	for _, want := range resp.GetCommands() {
		p := h.guest[want.GetCommandId()]
		switch want.GetAction() {
		case workerpb.WantedCommand_ACTION_RUN:
			if p == nil {
				h.guest[want.GetCommandId()] = &prog{run: want}
				h.order = append(h.order, want.GetCommandId())
			}
		case workerpb.WantedCommand_ACTION_CANCEL:
			if p != nil {
				p.cancelled = true
			}
		case workerpb.WantedCommand_ACTION_FORGET:
			if p == nil || p.exit == nil {
				h.w.t.Fatalf("the guest is to forget %s, which has not ended", want.GetCommandId())
			}
			delete(h.guest, want.GetCommandId())
		}
	}
	return resp
}

// begin lets the guest take up a Command and start its program.
func (h *host) begin(commandID string) *prog {
	h.w.t.Helper()
	h.exchange()
	p := h.guest[commandID]
	if p == nil {
		h.w.t.Fatalf("the guest was not told to run %s", commandID)
	}
	p.started = true
	h.exchange()
	h.w.wantStatus(commandID, "running")
	return p
}

func (p *prog) ends(end workerpb.CommandExit_End, code int32) {
	p.exit = &workerpb.CommandExit{End: end, ExitCode: code}
	p.drained = true
}

// write brings output of a Command as the Worker does; lengths cut data into chunks from number first on.
func (h *host) write(commandID string, stream int32, first int64, chunks ...string) *workerpb.StoredOutput {
	h.w.t.Helper()
	o := &workerpb.Output{CommandId: commandID, Stream: stream, First: first}
	for _, c := range chunks {
		o.Lengths = append(o.Lengths, int32(len(c)))
		o.Data = append(o.Data, c...)
	}
	resp, err := h.w.commands.StoreOutput(h.w.t.Context(), &workerpb.StoreOutputRequest{WorkerId: h.w.worker, ComputerId: h.computer, Epoch: h.epoch, Output: []*workerpb.Output{o}})
	h.w.must(err)
	if len(resp.GetStored()) != 1 || resp.GetStored()[0].GetCommandId() != commandID {
		h.w.t.Fatalf("stored: %v", resp.GetStored())
	}
	return resp.GetStored()[0]
}

// publish publishes the Save that was ordered.
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

func text(s string) json.RawMessage {
	b, _ := json.Marshal([]map[string]string{{"type": "text", "text": s}})
	return b
}
