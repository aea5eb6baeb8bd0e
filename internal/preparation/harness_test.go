package preparation_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/preparation"
	"helmr.dev/helmr/internal/secret"
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
	t            *testing.T
	d            *db.DB
	clock        *clock
	turns        *turn.Service
	computers    *computer.Service
	commands     *command.Service
	secrets      *secret.Service
	resolver     *computer.Resolver
	preparations *preparation.Service
	env, worker  string
	by           api.Actor
	deployments  int
	last         string // the last Deployment made
	held         map[string]*host
}

// define says how a Template differs from the usual one.
type define struct {
	id, callback, image, network, secrets string
	cpu, memory, disk                     int64
	refresh                               time.Duration
}

func each(t *testing.T, test func(w *world)) {
	t.Helper()
	dbtest.Each(t, func(t *testing.T, d *db.DB) { test(setup(t, d)) })
}

func setup(t *testing.T, d *db.DB) *world {
	t.Helper()
	c := &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	boot, err := access.NewService(d).Bootstrap(t.Context(), access.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	root, err := secret.LocalRoot(make([]byte, secret.RootKeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := secret.OpenKeyring(t.Context(), d, root)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, d: d, clock: c, turns: turn.NewService(d, c.now), computers: computer.NewService(d, c.now), commands: command.NewService(d, c.now),
		secrets: secret.NewService(d, keys, c.now), env: boot.EnvironmentID, by: api.Actor{Kind: "user", ID: boot.UserID}, held: map[string]*host{}}
	w.resolver = computer.NewResolver(d, w.secrets, c.now)
	w.turns.Host(w.commands)
	w.preparations = preparation.NewService(d, w.commands, c.now)
	w.computers.Prepare(w.preparations)
	w.register()
	return w
}

func (w *world) register() {
	w.t.Helper()
	workerID, err := w.computers.RegisterWorker(w.t.Context(), &workerpb.RegisterRequest{Name: "w" + fmt.Sprint(len(w.worker)+w.deployments), Secret: strings.Repeat("s", 32), CpuMillis: 64000, MemoryMib: 64 << 10, DiskMib: 4 << 20})
	w.must(err)
	w.worker = workerID
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wantCode(err error, code fault.Code) {
	w.t.Helper()
	if !fault.Is(err, code) {
		w.t.Fatalf("error is %v, want code %s", err, code)
	}
}

// deploy makes a Deployment with a program of its own current.
func (w *world) deploy(program string, templates ...define) {
	w.t.Helper()
	w.deployments++
	dep := id.New()
	w.last = dep
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		exec := func(q string, args ...any) {
			if _, err := tx.Exec(q, args...); err != nil {
				panic(fmt.Sprintf("%s: %v", q, err))
			}
		}
		bundle := fmt.Sprint("b", w.deployments)
		exec(`INSERT INTO bundles (environment_id, digest, manifest, created_at) VALUES (?, ?, '{}', 0)`, w.env, bundle)
		exec(`INSERT INTO deployments (id, environment_id, version, bundle_digest, program_digest, program_entry, created_at) VALUES (?, ?, ?, ?, ?, 'index.mjs', 0)`,
			dep, w.env, w.deployments, bundle, program)
		exec(`INSERT INTO current_deployments (environment_id, deployment_id) VALUES (?, ?) ON CONFLICT (environment_id) DO UPDATE SET deployment_id = excluded.deployment_id`, w.env, dep)
		for _, t := range templates {
			definition := map[string]any{"image_config": json.RawMessage(`{"env":[],"workdir":"/","user":""}`), "network": json.RawMessage(`{"blockAll":false}`),
				"prepare_network": json.RawMessage(or(t.network, `{"blockAll":true}`)), "prepare_secrets": json.RawMessage(or(t.secrets, `[]`)), "prepare": t.callback}
			text, err := json.Marshal(definition)
			if err != nil {
				return err
			}
			var refresh, disk *int64
			if t.refresh > 0 {
				ms := t.refresh.Milliseconds()
				refresh = &ms
			}
			if t.disk > 0 {
				disk = &t.disk
			}
			exec(`INSERT INTO template_definitions (deployment_id, template_id, milli_cpu, memory_mib, disk_mib, image_digest, refresh_every_ms, definition) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
				dep, t.id, max(t.cpu, 1000), max(t.memory, 512), disk, or(t.image, "img"), refresh, string(text))
		}
		return nil
	}))
}

// run runs the named background piece once.
func (w *world) run(name string) {
	w.t.Helper()
	for _, p := range slices.Concat(w.computers.Loops(), w.turns.Loops(), w.commands.Loops(), w.preparations.Loops()) {
		if p.Name == name {
			_, err := p.Run(w.t.Context())
			w.must(err)
			return
		}
	}
	w.t.Fatalf("no loop %s", name)
}

// settle lets the background work do what is due: signals would bring the same runs.
func (w *world) settle() {
	w.t.Helper()
	for range 3 {
		w.run("preparation.run")
		w.run("computer.dispatch")
	}
}

// want makes a Computer that has a Command to run.
func (w *world) want(template string) (computerID, commandID string) {
	w.t.Helper()
	r, err := w.computers.Create(w.t.Context(), w.env, w.by, api.ComputerCreateRequest{Template: template})
	w.must(err)
	return r.ComputerID, w.exec(r.ComputerID)
}

func (w *world) exec(computerID string) string {
	w.t.Helper()
	k, err := w.commands.Create(w.t.Context(), w.env, w.by, computerID, api.CommandCreateRequest{Command: []string{"true"}})
	w.must(err)
	return k.CommandID
}

func (w *world) computer(computerID string) api.Computer {
	w.t.Helper()
	c, err := w.computers.Get(w.t.Context(), w.env, computerID)
	w.must(err)
	return c
}

// waits checks that a Computer is cold and waits for its placement.
func (w *world) waits(computerIDs ...string) {
	w.t.Helper()
	for _, computerID := range computerIDs {
		if c := w.computer(computerID); c.Residency != "cold" || c.ExecutionWait == nil || *c.ExecutionWait != "scheduling" || c.Error != nil {
			w.t.Fatalf("computer is %+v", c)
		}
	}
}

// startsFrom checks that a Computer was placed and starts from a manifest.
func (w *world) startsFrom(computerID, manifest string) {
	w.t.Helper()
	h := w.host(computerID)
	if h == nil {
		w.t.Fatalf("computer is not placed: %+v", w.computer(computerID))
	}
	resp := h.call(workerpb.Phase_PHASE_ABSENT)
	if got := resp.GetSpec().GetSaveManifest(); got != manifest {
		w.t.Fatalf("its disk is %q, want %q", got, manifest)
	}
}

// exhausted checks that a Computer never starts.
func (w *world) exhausted(computerID, why string) {
	w.t.Helper()
	c := w.computer(computerID)
	if c.Residency != "unavailable" || c.Error == nil || c.Error.Code != "computer_preparation_exhausted" || !strings.Contains(c.Error.Message, why) {
		w.t.Fatalf("computer is %+v, error %+v, want %q", c, c.Error, why)
	}
}

func (w *world) preparation(template string) api.Preparation {
	w.t.Helper()
	p, err := w.preparations.Last(w.t.Context(), w.env, template, "")
	w.must(err)
	return p
}

func (w *world) is(template, status, reason string) api.Preparation {
	w.t.Helper()
	p := w.preparation(template)
	if p.Status != status || p.Reason != reason || (p.Error != nil) != (status == "failed") || (p.TerminalAt != nil) != (status == "failed" || status == "succeeded") {
		w.t.Fatalf("preparation is %+v, want %s, %s", p, status, reason)
	}
	return p
}

// count gives how many rows a query finds.
func (w *world) count(query string, args ...any) int {
	w.t.Helper()
	var n int
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) error {
		_, err := tx.Get([]any{&n}, query, args...)
		return err
	}))
	return n
}

const preparationsOf = `SELECT COUNT(*) FROM preparations WHERE environment_id = ?`

// host is the Worker's and the guest's view of one Computer, kept by the test.
type host struct {
	w        *world
	computer string
	worker   string
	epoch    int64
	guest    map[string]*workerpb.ObservedCommand
	run      *workerpb.WantedCommand // what it was told to run last
	spec     *workerpb.ComputerSpec
	save     *workerpb.SaveOrder
	stop     bool
	fenced   bool
}

// host gives the Worker's view of a Computer, nil if the Worker does not hold it.
func (w *world) host(computerID string) *host {
	w.t.Helper()
	leases, err := w.computers.Heartbeat(w.t.Context(), w.worker, false)
	w.must(err)
	for _, l := range leases {
		if l.GetComputerId() == computerID {
			return &host{w: w, worker: w.worker, computer: computerID, epoch: l.GetEpoch(), guest: map[string]*workerpb.ObservedCommand{}}
		}
	}
	return nil
}

// maker gives the host of the one Computer that prepares something, as far as its callback runs.
func (w *world) maker() *host {
	w.t.Helper()
	h := w.makerHost()
	h.spec = h.call(workerpb.Phase_PHASE_ABSENT).GetSpec()
	h.exchange()
	if h.run == nil {
		w.t.Fatal("the guest was told to run nothing")
	}
	h.guest[h.run.GetCommandId()].Started = true
	h.exchange()
	w.settle()
	return h
}

func (w *world) makerHost() *host {
	w.t.Helper()
	var computerID string
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) error {
		_, err := tx.Get([]any{&computerID}, `SELECT id FROM computers WHERE purpose = 'preparation' AND worker_id IS NOT NULL AND status = 'available' ORDER BY id DESC LIMIT 1`)
		return err
	}))
	h := w.host(computerID)
	if h == nil {
		w.t.Fatalf("no Computer prepares: %+v", w.preparationsNow())
	}
	return h
}

func (w *world) preparationsNow() []string {
	var out []string
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) error {
		return tx.Query(func(sc func(...any) error) error {
			var a, b string
			err := sc(&a, &b)
			out = append(out, a+" "+b)
			return err
		}, `SELECT template_id, status FROM preparations ORDER BY id`)
	}))
	return out
}

func (h *host) call(phase workerpb.Phase) *workerpb.ExchangeResponse {
	h.w.t.Helper()
	req := &workerpb.ExchangeRequest{WorkerId: h.worker, ComputerId: h.computer, Epoch: h.epoch, Phase: phase, GuestConnected: phase == workerpb.Phase_PHASE_RUNNING}
	if h.save != nil {
		req.SaveId = h.save.GetSaveId()
	}
	if phase == workerpb.Phase_PHASE_RUNNING {
		for _, o := range h.guest {
			req.Commands = append(req.Commands, o)
		}
	}
	resp, err := h.w.turns.Exchange(h.w.t.Context(), req)
	h.w.must(err)
	return resp
}

// exchange makes one Exchange of a running Computer and does what it answers.
func (h *host) exchange() {
	h.w.t.Helper()
	resp := h.call(workerpb.Phase_PHASE_RUNNING)
	h.stop, h.fenced = resp.GetStop(), resp.GetFenced()
	if resp.GetSave() != nil {
		h.save = resp.GetSave()
	}
	for _, want := range resp.GetCommands() {
		switch want.GetAction() {
		case workerpb.WantedCommand_ACTION_RUN:
			if h.guest[want.GetCommandId()] == nil {
				h.run = want
				h.guest[want.GetCommandId()] = &workerpb.ObservedCommand{CommandId: want.GetCommandId()}
			}
		case workerpb.WantedCommand_ACTION_FORGET:
			delete(h.guest, want.GetCommandId())
		}
	}
}

// ends lets the callback end and its output arrive.
func (h *host) ends(end workerpb.CommandExit_End, code int32) {
	h.w.t.Helper()
	o := h.guest[h.run.GetCommandId()]
	o.Exit, o.Drained = &workerpb.CommandExit{End: end, ExitCode: code}, true
	h.exchange()
	h.w.settle()
}

func (h *host) exits(code int32) {
	h.w.t.Helper()
	h.ends(workerpb.CommandExit_END_EXITED, code)
}

// publish publishes the Save that is ordered, under a manifest.
func (h *host) publish(manifest string) {
	h.w.t.Helper()
	h.exchange()
	if h.save == nil {
		h.w.t.Fatal("no Save is ordered")
	}
	h.w.must(h.w.turns.PublishSave(h.w.t.Context(), &workerpb.PublishSaveRequest{WorkerId: h.worker, ComputerId: h.computer, Epoch: h.epoch,
		SaveId: h.save.GetSaveId(), ManifestDigest: manifest, SizeBytes: 1, StoredBytes: 1}))
	h.save = nil
	h.w.settle()
}

// gone checks that the Computer is being removed, and removes it.
func (h *host) gone() {
	h.w.t.Helper()
	h.exchange()
	if !h.stop {
		h.w.t.Fatal("the Computer of the preparation is not to be removed")
	}
	h.call(workerpb.Phase_PHASE_STOPPED)
	if n := h.w.count(`SELECT COUNT(*) FROM computers WHERE id = ? AND status = 'deleted' AND worker_id IS NULL`, h.computer); n != 1 {
		h.w.t.Fatal("the Computer of the preparation is not deleted")
	}
}

// lost loses the sandbox.
func (h *host) lost() {
	h.w.t.Helper()
	h.call(workerpb.Phase_PHASE_LOST)
	h.w.settle()
}

// prepare sees one preparation through to its image.
func (w *world) prepare(manifest string) {
	w.t.Helper()
	w.settle()
	h := w.maker()
	h.exits(0)
	h.publish(manifest)
	h.gone()
	w.settle()
}

// write brings output of the callback as the Worker does.
func (h *host) write(text string) {
	h.w.t.Helper()
	_, err := h.w.commands.StoreOutput(h.w.t.Context(), &workerpb.StoreOutputRequest{WorkerId: h.worker, ComputerId: h.computer, Epoch: h.epoch,
		Output: []*workerpb.Output{{CommandId: h.run.GetCommandId(), Stream: 1, First: 1, Lengths: []int32{int32(len(text))}, Data: []byte(text)}}})
	h.w.must(err)
}
