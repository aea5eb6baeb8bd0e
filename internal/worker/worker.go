package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/image"
	"helmr.dev/helmr/internal/sandbox"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Timing of a Worker.
const (
	// heartbeatEvery holds until the server says how often it wants to hear; its answers say how long a lease lasts.
	heartbeatEvery = 5 * time.Second
	watchFor       = 20 * time.Second
	guestReady     = 60 * time.Second
	// answerWithin bounds an Exchange: a connection that was cut says nothing.
	answerWithin = 30 * time.Second
)

// Server is what a Worker asks of the server. The server's own service satisfies it, and so does the Connect client.
type Server interface {
	Register(context.Context, *workerpb.RegisterRequest) (*workerpb.RegisterResponse, error)
	Heartbeat(context.Context, *workerpb.HeartbeatRequest) (*workerpb.HeartbeatResponse, error)
	Watch(context.Context, *workerpb.WatchRequest) (*workerpb.WatchResponse, error)
	Exchange(context.Context, *workerpb.ExchangeRequest) (*workerpb.ExchangeResponse, error)
	PublishSave(context.Context, *workerpb.PublishSaveRequest) (*workerpb.PublishSaveResponse, error)
	PublishCapture(context.Context, *workerpb.PublishCaptureRequest) (*workerpb.PublishCaptureResponse, error)
	StoreOutput(context.Context, *workerpb.StoreOutputRequest) (*workerpb.StoreOutputResponse, error)
	ReportNetwork(context.Context, *workerpb.ReportNetworkRequest) (*workerpb.ReportNetworkResponse, error)
	Secrets
}

// Secrets is the part of the server that gives values, and what stands for them.
type Secrets interface {
	ResolveSecrets(context.Context, *workerpb.ResolveSecretsRequest) (*workerpb.ResolveSecretsResponse, error)
	OpenProtection(context.Context, *workerpb.OpenProtectionRequest) (*workerpb.OpenProtectionResponse, error)
	ResolveProtected(context.Context, *workerpb.ResolveProtectedRequest) (*workerpb.ResolveProtectedResponse, error)
}

// Config says what a Worker works with. All fields are required but EnrollmentToken, ImageDir and Guard.
type Config struct {
	// Name identifies the Worker in its installation; with the secret in Dir it may come back under it.
	Name            string
	EnrollmentToken string
	// Dir is the Worker's own folder.
	Dir string
	// ImageDir is where unpacked images are kept; by default images in Dir. Workers may share it.
	ImageDir string
	// Capacity offered to the server.
	CPUMillis, MemoryMiB, DiskMiB int64
	// Guard is the command that runs Guard on Dir. Without one the Worker lives and dies with its server, in one process.
	Guard []string
	// GuestBinary is the path of helmr-guest, HostProgram the Node program that hosts Agents.
	GuestBinary string
	HostProgram []byte

	Server  Server
	Runtime sandbox.Runtime
	// Network gives Computers their networks; nil for none, whatever their policy.
	Network *egress.Gateway
	// Blob has the objects of bundles, Vault what Computers' disks are stored in.
	Blob  *blob.Store
	Vault *chunk.Vault
	Log   *slog.Logger
}

// Worker hosts Computers until its Run ends.
type Worker struct {
	cfg    Config
	id     string
	assets *assets
	logs   *logs
	disks  *disks

	mu sync.Mutex
	// computers is guarded by mu.
	computers map[string]*computer
	// changed is closed and replaced whenever a Computer leaves; guarded by mu.
	changed chan struct{}
	wait    sync.WaitGroup
	leaving bool
	// adopted is closed when Run has taken up what it found, or has ended; ready does it.
	adopted chan struct{}
	ready   func()
	// offered says that the server knows what this Worker offers; guarded by mu.
	offered bool
	// leaseUntil is when the lease is over, by uptime; beatEvery the period of heartbeats. Both are guarded by mu.
	leaseUntil time.Duration
	beatEvery  time.Duration
}

// New prepares a Worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	if cfg.ImageDir == "" {
		cfg.ImageDir = filepath.Join(cfg.Dir, "images")
	}
	for _, dir := range []string{cfg.Dir, cfg.ImageDir, filepath.Join(cfg.Dir, "computers"), filepath.Join(cfg.Dir, "programs")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("worker folder: %w", err)
		}
	}
	tmp := filepath.Join(cfg.Dir, "tmp")
	if err := os.RemoveAll(tmp); err != nil {
		return nil, fmt.Errorf("worker folder: %w", err)
	}
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return nil, fmt.Errorf("worker folder: %w", err)
	}
	images, err := image.OpenCache(cfg.ImageDir)
	if err != nil {
		return nil, err
	}
	a := &assets{dir: cfg.Dir, blob: cfg.Blob, images: images, programs: map[string]*fetch{}}
	if err := a.installRuntime(cfg.GuestBinary, cfg.HostProgram); err != nil {
		return nil, err
	}
	d, err := openDisks(filepath.Join(cfg.Dir, "disks"))
	if err != nil {
		return nil, err
	}
	adopted := make(chan struct{})
	return &Worker{adopted: adopted, ready: sync.OnceFunc(func() { close(adopted) }), cfg: cfg, assets: a, disks: d, logs: &logs{dir: filepath.Join(cfg.Dir, "logs")}, computers: map[string]*computer{}, changed: make(chan struct{}), beatEvery: heartbeatEvery}, nil
}

// Run registers the Worker, adopts what it finds and hosts Computers until ctx ends. It leaves sandboxes running: a
// Worker on the same folder adopts them. Call Leave before for an orderly stop.
func (w *Worker) Run(ctx context.Context) error {
	defer w.ready()
	secret, fresh, err := w.secret()
	if err != nil {
		return err
	}
	if err := errors.Join(w.takeLease(), w.ensureGuard(ctx)); err != nil {
		return err
	}
	if err := w.register(ctx, secret, !fresh); err != nil {
		return err
	}
	w.cfg.Log.Info("worker registered", "worker", w.id)
	if err := w.adopt(ctx); err != nil {
		return err
	}
	w.ready()
	run, stop := context.WithCancel(ctx)
	defer stop()
	if len(w.cfg.Guard) > 0 {
		w.wait.Go(func() { w.watchLease(run) })
	}
	w.wait.Go(func() { w.heartbeats(run) })
	w.wait.Go(func() { w.watch(run) })
	<-ctx.Done()
	stop()
	w.wait.Wait()
	return nil
}

// secret reads, or makes, what proves this Worker's name to the server; fresh tells that it was made.
func (w *Worker) secret() (secret string, fresh bool, err error) {
	secret, err = readSecret(w.cfg.Dir)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return secret, false, err
	}
	raw := make([]byte, 32)
	_, _ = rand.Read(raw)
	secret = hex.EncodeToString(raw)
	path := filepath.Join(w.cfg.Dir, secretFile)
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(secret+"\n"), 0o600); err != nil {
		return "", false, fmt.Errorf("write worker secret: %w", err)
	}
	return secret, true, os.Rename(tmp, path)
}

const secretFile = "secret"

// readSecret gives the secret of the Worker on a folder; os.ErrNotExist if none has enrolled from there.
func readSecret(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, secretFile))
	if err != nil {
		return "", fmt.Errorf("read worker secret: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if len(secret) < 32 {
		return "", fmt.Errorf("read worker secret: %s is cut off: %w", filepath.Join(dir, secretFile), os.ErrNotExist)
	}
	return secret, nil
}

// register makes this Worker known. known tells that it was before, under this secret: then a name that is in use may be
// its own, of before it was lost, and it waits until that is fenced.
func (w *Worker) register(ctx context.Context, secret string, known bool) error {
	req := &workerpb.RegisterRequest{Name: w.cfg.Name, Secret: secret, EnrollmentToken: w.cfg.EnrollmentToken}
	if len(w.cfg.Guard) == 0 {
		req.CpuMillis, req.MemoryMib, req.DiskMib = w.cfg.CPUMillis, w.cfg.MemoryMiB, w.cfg.DiskMiB
	}
	for pause := time.Second; ; pause = min(pause*2, 15*time.Second) {
		resp, err := w.cfg.Server.Register(ctx, req)
		if err == nil {
			if w.id != resp.GetWorkerId() {
				w.id = resp.GetWorkerId()
			}
			return nil
		}
		if code := fault.From(err).Code; (code == fault.WorkerResourceCustody && !known) || code == fault.BadRequest || code == fault.AuthenticationRequired {
			return fmt.Errorf("register worker %q: %w", w.cfg.Name, err)
		}
		w.cfg.Log.Warn("cannot register with the server; trying again", "error", err, "in", pause.String())
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// adopt takes up the Computers that this Worker holds, with their sandboxes where they live, and removes other sandboxes.
// Only then does the Worker say what it offers.
func (w *Worker) adopt(ctx context.Context) error {
	leases, err := w.leases(ctx)
	if err != nil {
		return err
	}
	found, err := w.cfg.Runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	held := map[string]int64{}
	for _, l := range leases {
		held[l.GetComputerId()] = l.GetEpoch()
	}
	living := map[string]*sandbox.Status{}
	for i := range found {
		s := &found[i]
		epoch, ok := held[s.ID]
		if ok && s.Running && s.Dir == w.sandboxDir(s.ID, epoch) {
			living[s.ID] = s
			continue
		}
		w.cfg.Log.Info("removing a sandbox without a lease", "computer", s.ID)
		if err := w.removeSandbox(ctx, s.ID); err != nil {
			return fmt.Errorf("remove sandbox %s: %w", s.ID, err)
		}
	}
	if err := w.sweepNetworks(living); err != nil {
		return err
	}
	w.sweep(held)
	for computerID, epoch := range held {
		w.host(ctx, computerID, epoch, living[computerID])
	}
	return nil
}

// sweep removes folders of Computers that this Worker does not hold.
func (w *Worker) sweep(held map[string]int64) {
	entries, _ := os.ReadDir(filepath.Join(w.cfg.Dir, "computers"))
	for _, e := range entries {
		if _, ok := held[e.Name()]; !ok {
			_ = os.RemoveAll(filepath.Join(w.cfg.Dir, "computers", e.Name()))
		}
	}
}

// registering is the state of a Worker that has not said what it offers.
const registering = "registering"

// heartbeat sends one and takes its answer up. offer says what this Worker offers.
func (w *Worker) heartbeat(ctx context.Context, offer bool) ([]*workerpb.Lease, error) {
	w.mu.Lock()
	req := &workerpb.HeartbeatRequest{WorkerId: w.id, Leaving: w.leaving}
	within := max(3*w.beatEvery, time.Second)
	w.mu.Unlock()
	if offer {
		req.Capacity = &workerpb.Capacity{CpuMillis: w.cfg.CPUMillis, MemoryMib: w.cfg.MemoryMiB, DiskMib: w.cfg.DiskMiB}
	}
	if w.cfg.Network != nil {
		for _, a := range w.cfg.Network.Addresses() {
			req.Addresses = append(req.Addresses, a.String())
		}
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	sentAt := uptime()
	resp, err := w.cfg.Server.Heartbeat(limited, req)
	if err == nil {
		err = w.renewed(sentAt, resp.GetLeaseMs(), resp.GetNextMs())
	}
	if err != nil {
		return nil, err
	}
	w.deny(resp.GetDenied())
	w.mu.Lock()
	defer w.mu.Unlock()
	// The server says whether it still waits for an offer: another heartbeat may have been under way when this Worker
	// enrolled again.
	w.offered = (w.offered || offer) && resp.GetStatus() != registering
	return resp.GetLeases(), nil
}

func (w *Worker) leases(ctx context.Context) ([]*workerpb.Lease, error) {
	for {
		leases, err := w.heartbeat(ctx, false)
		if err == nil {
			return leases, nil
		}
		w.cfg.Log.Warn("heartbeat failed", "error", err)
		if !sleep(ctx, time.Second) {
			return nil, ctx.Err()
		}
	}
}

// host makes sure that an actor cares for a Computer under an epoch. living is its sandbox, nil if it has none.
func (w *Worker) host(ctx context.Context, computerID string, epoch int64, living *sandbox.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if have, ok := w.computers[computerID]; ok {
		if have.epoch < epoch {
			have.fence() // an older placement that has to go first; the new one is taken up when it is gone
		}
		have.wake()
		return
	}
	c := newComputer(w, computerID, epoch)
	w.computers[computerID] = c
	w.wait.Go(func() {
		c.run(ctx, living)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.computers, computerID)
		close(w.changed)
		w.changed = make(chan struct{})
	})
}

// beat sends one heartbeat and compares leases with actors.
func (w *Worker) beat(ctx context.Context) error {
	w.mu.Lock()
	offer := !w.offered
	w.mu.Unlock()
	leases, err := w.heartbeat(ctx, offer)
	if err != nil {
		w.silent(err)
		return err
	}
	held := map[string]int64{}
	for _, l := range leases {
		held[l.GetComputerId()] = l.GetEpoch()
		w.host(ctx, l.GetComputerId(), l.GetEpoch(), nil)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for computerID, c := range w.computers {
		if epoch, ok := held[computerID]; !ok || epoch != c.epoch {
			c.wake() // its Exchange will say that it is fenced
		}
	}
	return nil
}

// silent stops every Computer when the server has not answered for too long, or says that this Worker is lost.
func (w *Worker) silent(err error) {
	if over, _ := w.leaseOver(); !over && !fault.Is(err, fault.LeaseLost) {
		w.cfg.Log.Warn("heartbeat failed", "error", err)
		return
	}
	w.fenceAll(err)
}

// fenceAll ends every Computer without a Save.
func (w *Worker) fenceAll(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cfg.Log.Error("leases are gone: stopping all Computers", "error", why, "computers", len(w.computers))
	for _, c := range w.computers {
		c.fence()
	}
}

func (w *Worker) heartbeats(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.beat(ctx); fault.Is(err, fault.LeaseLost) {
			w.again(ctx)
		}
		if err := w.ensureGuard(ctx); err != nil && ctx.Err() == nil {
			w.cfg.Log.Error("this Worker has no guard", "error", err)
		}
		w.mu.Lock()
		pause := w.beatEvery
		w.mu.Unlock()
		sleep(ctx, pause)
	}
}

// again enrolls anew after this Worker was declared lost and its Computers are gone.
func (w *Worker) again(ctx context.Context) {
	if w.waitEmpty(ctx) != nil {
		return
	}
	secret, err := readSecret(w.cfg.Dir)
	if err == nil {
		err = w.register(ctx, secret, true)
	}
	if err != nil {
		if ctx.Err() == nil {
			w.cfg.Log.Error("cannot enroll again", "error", err)
		}
		return
	}
	w.cfg.Log.Info("worker enrolled again")
}

func (w *Worker) watch(ctx context.Context) {
	for ctx.Err() == nil {
		resp, err := w.cfg.Server.Watch(ctx, &workerpb.WatchRequest{WorkerId: w.id, TimeoutMs: watchFor.Milliseconds()})
		if err != nil {
			sleep(ctx, time.Second)
			continue
		}
		unknown := resp.GetAll()
		w.mu.Lock()
		for _, computerID := range resp.GetComputerIds() {
			if c, ok := w.computers[computerID]; ok {
				c.wake()
			} else {
				unknown = true
			}
		}
		if resp.GetAll() {
			for _, c := range w.computers {
				c.wake()
			}
		}
		w.mu.Unlock()
		if unknown {
			_ = w.beat(ctx) // a new placement: learn its epoch
		}
	}
}

// Leave empties the Worker in an orderly way, once Run has taken up what an earlier one left: Turns are aborted with shutdown, processes stopped, disks saved,
// sandboxes removed. It returns when nothing is left or ctx ends; what is left then is removed without a Save by
// RemoveAll.
func (w *Worker) Leave(ctx context.Context) error {
	w.mu.Lock()
	w.leaving = true
	w.mu.Unlock()
	select {
	case <-w.adopted:
	case <-ctx.Done():
	}
	for {
		err := w.beat(ctx)
		if w.waitEmptyFor(ctx, time.Second) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("orderly stop did not finish: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// RemoveAll removes every sandbox of this Worker without saving it.
func (w *Worker) RemoveAll(ctx context.Context) error {
	w.mu.Lock()
	for _, c := range w.computers {
		c.fence()
	}
	w.mu.Unlock()
	return w.waitEmpty(ctx)
}

func (w *Worker) waitEmptyFor(ctx context.Context, d time.Duration) bool {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return w.waitEmpty(limited) == nil
}

func (w *Worker) waitEmpty(ctx context.Context) error {
	for {
		w.mu.Lock()
		n, changed := len(w.computers), w.changed
		w.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (w *Worker) computerDir(computerID string) string {
	return filepath.Join(w.cfg.Dir, "computers", computerID)
}

func (w *Worker) sandboxDir(computerID string, epoch int64) string {
	return filepath.Join(w.computerDir(computerID), fmt.Sprint(epoch))
}

// sleep waits; it tells whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
