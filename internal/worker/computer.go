package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"helmr.dev/helmr/internal/blob/chunk"
	guest "helmr.dev/helmr/internal/guest/client"
	"helmr.dev/helmr/internal/image"
	"helmr.dev/helmr/internal/sandbox"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// lookEvery is the longest time between two Exchanges of a Computer: a lost signal costs at most this.
const lookEvery = 10 * time.Second

// removeWithin bounds the first try to remove the sandbox of a lease that is over.
const removeWithin = 10 * time.Second

// computer is the actor of one Computer under one lease.
type computer struct {
	w     *Worker
	id    string
	epoch int64
	woken chan struct{}
	// outputDue receives when output of a Command has come.
	outputDue chan struct{}
	gone      context.CancelCauseFunc // ends the actor; errFenced removes the sandbox

	mu sync.Mutex
	// all below are guarded by mu
	phase   workerpb.Phase
	failure string
	// unreadable says that it failed to start because its saved disk cannot be read.
	unreadable bool
	config     image.Config
	env        string // environment id
	link       *guest.Client
	guest      guestState
	// protection is nil for a Computer without protected Secrets.
	protection *protection
	saveID     string
	fenced     bool
	// stopping says that the sandbox is being removed because the server asked for it.
	stopping bool
	// capture is the capture under way, captureFailures how many failed in a row.
	capture         *capture
	captureFailures int
	// lastDisk is what was stored of the disk last, and what is remembered of that.
	lastDisk chunk.Stored
	busy     map[string]bool // slow steps under way, by name
	steps    sync.WaitGroup

	// published is what the recovery point refers to, as far as this Worker knows; for the save step alone.
	published chunk.Stored
}

var errFenced = errors.New("the lease is gone")

func newComputer(w *Worker, id string, epoch int64) *computer {
	c := &computer{w: w, id: id, epoch: epoch, woken: make(chan struct{}, 1), outputDue: make(chan struct{}, 1), busy: map[string]bool{}, gone: func(error) {}}
	c.guest.init()
	return c
}

// wake asks for another look.
func (c *computer) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// fence ends the actor and removes its sandbox without a Save.
func (c *computer) fence() {
	c.mu.Lock()
	c.fenced = true
	end := c.gone
	c.mu.Unlock()
	end(errFenced)
	c.wake()
}

// run cares for the Computer until its lease ends (then nothing of it is left) or ctx does (then its sandbox lives on).
func (c *computer) run(ctx context.Context, living *sandbox.Status) {
	run, end := context.WithCancelCause(ctx)
	defer end(nil)
	c.mu.Lock()
	c.gone = end
	fenced := c.fenced
	c.mu.Unlock()
	if living != nil {
		c.step(run, "adopt", func(ctx context.Context) error { return c.adopt(ctx, living.Frozen) })
	}
	for pause := time.Duration(0); run.Err() == nil && !fenced; {
		next := lookEvery
		if over, err := c.exchange(run); over {
			break
		} else if err != nil {
			pause = min(max(pause*2, 50*time.Millisecond), 2*time.Second)
			next = pause
			c.w.cfg.Log.Warn("exchange failed", "computer", c.id, "error", err)
			sleep(run, pause)
		} else {
			pause = 0
		}
		timer := time.NewTimer(next)
		select {
		case <-run.Done():
		case <-timer.C:
		case <-c.woken:
		}
		timer.Stop()
	}
	leaseOver := ctx.Err() == nil
	end(errFenced)
	if leaseOver {
		// At once, whatever the steps still wait for; what they leave is removed below.
		limited, cancel := context.WithTimeout(context.Background(), removeWithin)
		if err := c.w.removeSandbox(limited, c.id); err != nil {
			c.w.cfg.Log.Warn("cannot remove a sandbox yet", "computer", c.id, "error", err)
		}
		cancel()
	}
	c.steps.Wait()
	if link := c.takeLink(); link != nil {
		link.Close()
	}
	if leaseOver {
		c.remove()
	}
}

// remove removes the sandbox and every file of the Computer, for as long as it takes.
func (c *computer) remove() {
	for pause := time.Second; ; pause = min(pause*2, time.Minute) {
		err := c.w.removeSandbox(context.Background(), c.id)
		if err == nil {
			err = os.RemoveAll(c.w.computerDir(c.id))
		}
		if err == nil {
			return
		}
		c.w.cfg.Log.Error("cannot remove a sandbox; trying again", "computer", c.id, "error", err)
		time.Sleep(pause)
	}
}

// step runs one slow step at a time per name, and wakes the actor at its end.
func (c *computer) step(ctx context.Context, name string, do func(ctx context.Context) error) {
	c.runStep(ctx, name, do, true)
}

// runStep is step. wake tells whether the actor has to look again also after a success.
func (c *computer) runStep(ctx context.Context, name string, do func(ctx context.Context) error, wake bool) {
	c.mu.Lock()
	if c.busy[name] {
		c.mu.Unlock()
		return
	}
	c.busy[name] = true
	c.steps.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.steps.Done()
		err := do(ctx)
		if err != nil && ctx.Err() == nil {
			c.w.cfg.Log.Warn("step failed", "computer", c.id, "step", name, "error", err)
			sleep(ctx, 500*time.Millisecond)
		}
		c.mu.Lock()
		delete(c.busy, name)
		c.mu.Unlock()
		if wake || err != nil {
			c.wake()
		}
	}()
}

// exchange makes one Exchange and takes its answer up. over tells that the lease has ended.
func (c *computer) exchange(ctx context.Context) (over bool, err error) {
	c.mu.Lock()
	if c.busy["adopt"] {
		c.mu.Unlock()
		return false, nil // what lives here is not known yet
	}
	req := &workerpb.ExchangeRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch, Phase: c.phase, Error: c.failure, SaveId: c.saveID, DiskUnreadable: c.unreadable}
	if c.capture != nil {
		req.CaptureId = c.capture.id
	}
	c.guest.describe(req)
	generation := c.guest.generation
	c.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	resp, err := c.w.cfg.Server.Exchange(limited, req)
	if err != nil {
		return false, err
	}
	if resp.GetFenced() {
		return true, nil
	}
	switch {
	case resp.GetSpec() != nil && c.begin():
		c.step(ctx, "start", func(ctx context.Context) error { return c.start(ctx, resp.GetSpec()) })
	case resp.GetStop():
		c.step(ctx, "stop", c.stop)
	}
	c.take(ctx, resp, generation)
	if req.GetPhase() == workerpb.Phase_PHASE_RUNNING {
		c.follow(ctx, resp.GetHibernate())
	}
	if o := resp.GetSave(); o != nil {
		c.beginSave(ctx, o)
	}
	return false, nil
}

// begin tells whether a start is still to be made, and that it is under way from now on. Only what is so now counts: the
// answer that brings a spec can be so late that the sandbox of the one before it runs already.
func (c *computer) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != workerpb.Phase_PHASE_ABSENT {
		return false
	}
	c.phase = workerpb.Phase_PHASE_STARTING
	return true
}

// start brings the sandbox up. A failure is reported and ends the lease.
func (c *computer) start(ctx context.Context, spec *workerpb.ComputerSpec) error {
	if err := c.startOnce(ctx, spec); err != nil {
		if !c.cleared(ctx) {
			return err
		}
		c.mu.Lock()
		c.unreadable = errors.Is(err, chunk.ErrUnreadable)
		c.mu.Unlock()
		c.setPhase(workerpb.Phase_PHASE_START_FAILED, err.Error())
		return err
	}
	c.running(ctx)
	return nil
}

// startSandbox starts the sandbox, from its saved disk or, if there is one, from its memory.
func (c *computer) startSandbox(ctx context.Context, spec *workerpb.ComputerSpec, from restored) error {
	cfg := c.w.cfg
	rootfs, config, err := c.w.assets.image(ctx, spec.GetImageDigest())
	if err != nil {
		return fmt.Errorf("unpack image: %w", err)
	}
	programs, err := c.w.assets.programsDir(spec.GetEnvironmentId())
	if err != nil {
		return err
	}
	if err := c.w.removeSandbox(ctx, c.id); err != nil { // what an earlier attempt may have left
		return fmt.Errorf("clear sandbox: %w", err)
	}
	dir := c.w.sandboxDir(c.id, c.epoch)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear sandbox: %w", err)
	}
	disk := ""
	if spec.GetSaveManifest() != "" && from.memory == "" {
		var release func()
		if disk, release, err = c.disk(ctx, spec); err != nil {
			return fmt.Errorf("restore disk: %w", err)
		}
		defer release()
	}
	if from.runtime == "" {
		from.runtime = c.w.assets.runtime
		if from.platform, err = c.w.platform(); err != nil {
			return err
		}
	}
	if err := c.remember(spec, from.platform); err != nil {
		return err
	}
	connected, err := c.listen(config, spec.GetEnvironmentId())
	if err != nil {
		return err
	}
	net, mounts, err := c.network(ctx, spec)
	if err != nil {
		return err
	}
	err = cfg.Runtime.Start(ctx, sandbox.Spec{ID: c.id, NetNS: net, RootFS: rootfs, Args: []string{guestInside}, Env: environment(config), Dir: dir, DiskFrom: disk, MemoryFrom: from.memory, MemoryReady: from.ready,
		Mounts: append(mounts, sandbox.Mount{Source: from.runtime, Destination: runtimeInside}, sandbox.Mount{Source: programs, Destination: programsInside},
			sandbox.Mount{Source: filepath.Dir(c.socket()), Destination: socketInside}),
		CPUMillis: spec.GetMilliCpu(), MemoryMiB: spec.GetMemoryMib(), DiskMiB: spec.GetDiskMib()})
	if err != nil {
		return &sandboxError{fmt.Errorf("start sandbox: %w", err)}
	}
	if err := c.awaitGuest(ctx, connected); err != nil {
		return &sandboxError{err}
	}
	return nil
}

// disk restores the disk that the Computer starts from into a folder, which stays until release is called.
func (c *computer) disk(ctx context.Context, spec *workerpb.ComputerSpec) (dir string, release func(), err error) {
	space, err := c.w.cfg.Vault.Space(spec.GetEnvironmentId())
	if err != nil {
		return "", nil, err
	}
	manifest := spec.GetSaveManifest()
	restore := func(ctx context.Context, dir string) error { return space.Restore(ctx, manifest, dir) }
	if spec.GetShared() {
		return c.w.disks.get(ctx, spec.GetEnvironmentId(), manifest, restore)
	}
	dir = filepath.Join(c.w.cfg.Dir, "tmp", c.id+"-disk")
	release = func() { _ = os.RemoveAll(dir) }
	if err := os.RemoveAll(dir); err != nil {
		return "", nil, err
	}
	if err := restore(ctx, dir); err != nil {
		return "", nil, err
	}
	return dir, release, nil
}

// awaitGuest waits for the guest's first word, or for the end of a sandbox that never says it.
func (c *computer) awaitGuest(ctx context.Context, connected <-chan struct{}) error {
	limited, cancel := context.WithTimeout(ctx, guestReady)
	defer cancel()
	died := make(chan error, 1)
	go func() {
		exit, err := c.w.cfg.Runtime.Wait(limited, c.id)
		if err == nil {
			err = errors.New(ended(exit))
		}
		died <- err
	}()
	select {
	case <-connected:
		return nil
	case err := <-died:
		if limited.Err() != nil {
			return fmt.Errorf("the guest did not connect within %s", guestReady)
		}
		return err
	}
}

// ended says how a sandbox ended.
func ended(e sandbox.Exit) string {
	s := "the sandbox ended"
	if e.OOM {
		s = "the sandbox was killed: out of memory (raise resources.memory of the Template)"
	}
	if e.Output != "" {
		s += ": " + e.Output[max(0, len(e.Output)-2000):]
	}
	return s
}

// running reports that the guest is there and watches for the end of the sandbox.
func (c *computer) running(ctx context.Context) {
	c.setPhase(workerpb.Phase_PHASE_RUNNING, "")
	c.step(ctx, "output", c.storeOutput)
	if c.w.cfg.Network != nil {
		c.step(ctx, "network", c.reportNetwork)
	}
	c.step(ctx, "watch", func(ctx context.Context) error {
		for {
			exit, err := c.w.cfg.Runtime.Wait(ctx, c.id)
			if err == nil {
				c.lost(ended(exit))
				return nil
			}
			if ctx.Err() != nil {
				return err
			}
			c.w.cfg.Log.Warn("cannot watch a sandbox; trying again", "computer", c.id, "error", err)
			sleep(ctx, time.Second)
		}
	})
}

// lost reports that the sandbox of a running Computer is gone.
func (c *computer) lost(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == workerpb.Phase_PHASE_RUNNING && !c.stopping {
		c.w.cfg.Log.Warn("computer lost", "computer", c.id, "why", why)
		c.phase, c.failure = workerpb.Phase_PHASE_LOST, why
	}
}

// adopt takes up a sandbox that lives since before this Worker program.
func (c *computer) adopt(ctx context.Context, frozen bool) error {
	err := c.reconnect(ctx, frozen)
	if err != nil {
		if c.cleared(ctx) {
			c.setPhase(workerpb.Phase_PHASE_LOST, err.Error())
		}
		return err
	}
	c.running(ctx)
	return nil
}

// cleared makes sure that no sandbox of the Computer is left, for as long as it takes; false when ctx ends first. The server
// gives a Computer that failed or is lost to another Worker at once: until then it is not told.
func (c *computer) cleared(ctx context.Context) bool {
	for pause := time.Second; ctx.Err() == nil; pause = min(pause*2, time.Minute) {
		err := c.w.removeSandbox(ctx, c.id)
		if err == nil {
			return true
		}
		c.w.cfg.Log.Error("cannot remove a sandbox; trying again", "computer", c.id, "error", err)
		sleep(ctx, pause)
	}
	return false
}

func (c *computer) reconnect(ctx context.Context, frozen bool) error {
	spec, err := c.remembered()
	if err != nil {
		return err
	}
	if !c.networkIntact(spec.GetNetwork()) {
		return errors.New("its network is gone")
	}
	_, config, err := c.w.assets.image(ctx, spec.GetImageDigest())
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	prot, err := c.openProtection(ctx, spec)
	if err != nil {
		return err
	}
	if err := c.protect(prot); err != nil {
		return err
	}
	if frozen { // the first Exchange says whether a capture of it is still wanted
		c.mu.Lock()
		defer c.mu.Unlock()
		c.config, c.env = config, spec.GetEnvironmentId()
		return nil
	}
	connected, err := c.listen(config, spec.GetEnvironmentId())
	if err != nil {
		return err
	}
	return c.awaitGuest(ctx, connected)
}

// remember writes what a later Worker program needs to go on with this sandbox.
func (c *computer) remember(spec *workerpb.ComputerSpec, platform string) error {
	text, err := protojson.Marshal(spec)
	if err != nil {
		return fmt.Errorf("remember computer: %w", err)
	}
	if err := os.MkdirAll(c.w.computerDir(c.id), 0o711); err != nil {
		return fmt.Errorf("remember computer: %w", err)
	}
	if err := os.WriteFile(c.platformFile(), []byte(platform), 0o600); err != nil {
		return fmt.Errorf("remember computer: %w", err)
	}
	path := filepath.Join(c.w.computerDir(c.id), "spec.json")
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("remember computer: %w", err)
	}
	return os.Rename(path+".new", path)
}

func (c *computer) remembered() (*workerpb.ComputerSpec, error) {
	text, err := os.ReadFile(filepath.Join(c.w.computerDir(c.id), "spec.json"))
	if err != nil {
		return nil, fmt.Errorf("read computer: %w", err)
	}
	var spec workerpb.ComputerSpec
	if err := protojson.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("read computer: %w", err)
	}
	return &spec, nil
}

// stop removes the sandbox of an emptied Computer, which the server was told is saved.
// Only when that is done the server hears of it: the Computer may then start elsewhere, or count as deleted.
func (c *computer) stop(ctx context.Context) error {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	c.reportLast(ctx)
	for pause := time.Second; ; pause = min(pause*2, time.Minute) {
		err := c.w.removeSandbox(ctx, c.id)
		if err == nil {
			c.setPhase(workerpb.Phase_PHASE_STOPPED, "")
			return nil
		}
		c.w.cfg.Log.Error("cannot remove a sandbox; trying again", "computer", c.id, "error", err)
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

func (c *computer) setPhase(p workerpb.Phase, failure string) {
	c.mu.Lock()
	c.phase, c.failure = p, failure
	c.mu.Unlock()
	c.wake()
}
