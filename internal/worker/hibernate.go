package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/sandbox"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// A capture goes: the guest lets go of its connection, the sandbox is frozen, its disk and its memory are stored, the
// capture is published. From the moment it is frozen nothing runs inside, so that nothing is lost however long storing
// takes and whenever this program dies. Three things end that: the capture is published, then the lease is gone and
// the sandbox is removed; the server orders it no longer, then the sandbox is thawed and its guest dials again; or the
// Computer is fenced. A Worker program that adopts a frozen sandbox asks the server first, as always, which of these holds.

// capture is a capture under way.
type capture struct {
	id   string
	drop context.CancelCauseFunc
}

var errDropped = errors.New("the capture is dropped")

// restoreTries bounds how often a resume is tried before the memory counts as lost, a quarter of an hour; sandboxTries how
// often its sandbox may fail.
const (
	restoreTries = 20
	sandboxTries = 3
)

// thawedWithin is how long the guest of a thawed sandbox has to dial; it does at once unless something froze it again.
const thawedWithin = 10 * time.Second

// follow begins, goes on with or drops a capture, as the server orders.
func (c *computer) follow(ctx context.Context, o *workerpb.HibernateOrder) {
	c.mu.Lock()
	under, asleep := c.capture, c.link == nil && c.phase == workerpb.Phase_PHASE_RUNNING
	var run context.Context
	if under == nil && o != nil {
		under = &capture{id: o.GetCaptureId()}
		run, under.drop = context.WithCancelCause(ctx)
		c.capture = under
	}
	c.mu.Unlock()
	switch {
	case run != nil:
		c.step(ctx, "capture", func(ctx context.Context) error { return c.hibernate(ctx, run, under) })
	case under != nil && under.id != o.GetCaptureId():
		under.drop(errDropped)
	case under == nil && asleep:
		c.step(ctx, "thaw", c.thaw)
	}
}

// hibernate takes one capture to its end. ctx is the step's, run ends also when the capture is dropped.
func (c *computer) hibernate(ctx, run context.Context, o *capture) error {
	err := c.takeCapture(run, o.id)
	if cause := context.Cause(run); errors.Is(cause, errDropped) {
		err = cause
	}
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, c.thaw(ctx))
	}
	o.drop(nil)
	c.mu.Lock()
	failed := 0
	if err != nil && !errors.Is(err, errDropped) {
		failed = c.captureFailures + 1
	}
	c.captureFailures = failed
	c.mu.Unlock()
	if failed > 0 && ctx.Err() == nil {
		c.w.cfg.Log.Warn("capture failed; trying again", "computer", c.id, "error", err)
		sleep(ctx, min(time.Second<<min(failed-1, 6), time.Minute))
	}
	c.mu.Lock()
	c.capture = nil
	c.mu.Unlock()
	if errors.Is(err, errDropped) || failed > 0 {
		return nil // said above
	}
	return err
}

// takeCapture freezes, stores and publishes. Without an error the capture is published.
func (c *computer) takeCapture(ctx context.Context, captureID string) error {
	began := time.Now()
	if link := c.takeLink(); link != nil {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		err := link.Release(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			c.w.cfg.Log.Warn("the guest does not let go", "computer", c.id, "error", err) // it finds out when it is resumed
		}
	}
	base := filepath.Join(c.w.cfg.Dir, "tmp", captureID)
	disk, memory := base+"-disk", base+"-memory"
	defer func() { _, _ = os.RemoveAll(disk), os.RemoveAll(memory) }()
	if err := errors.Join(os.RemoveAll(disk), os.RemoveAll(memory)); err != nil {
		return err
	}
	platform, err := os.ReadFile(c.platformFile())
	if err != nil {
		return fmt.Errorf("read platform: %w", err)
	}
	disks, err := c.storeDisk(ctx, disk)
	if err != nil {
		return err
	}
	defer disks.end()
	memories, err := c.beginStoring(ctx, chunk.Source{Dir: memory, Quick: true})
	if err != nil {
		return err
	}
	defer memories.end()
	err = c.w.cfg.Runtime.Freeze(ctx, c.id, disk, memory)
	_, _ = disks.written(err), memories.written(err)
	if err != nil {
		return err
	}
	frozen := time.Now()
	req := &workerpb.PublishCaptureRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch, CaptureId: captureID, Platform: string(platform)}
	store := func() error { return c.storeCapture(ctx, req, disks, memories) }
	if err := c.insist(ctx, "store capture", store); err != nil {
		return err
	}
	c.w.cfg.Log.Info("computer captured", "computer", c.id, "freeze_ms", frozen.Sub(began).Milliseconds(), "store_ms", time.Since(frozen).Milliseconds(),
		"memory_bytes", req.GetMemorySizeBytes(), "memory_stored_bytes", req.GetMemoryStoredBytes())
	return c.insist(ctx, "publish capture", func() error {
		resp, err := c.w.cfg.Server.PublishCapture(ctx, req)
		for try := 0; err == nil && len(resp.GetRetired()) > 0 && try < publishTries; try++ {
			disks.retire(resp.GetRetired())
			memories.retire(resp.GetRetired())
			if err = c.insist(ctx, "store capture", store); err == nil {
				resp, err = c.w.cfg.Server.PublishCapture(ctx, req)
			}
		}
		switch {
		case err == nil && len(resp.GetRetired()) > 0:
			return errors.New("objects that it needs were removed again and again")
		case fault.Is(err, fault.LeaseLost):
			return nil // it was published before, or is fenced: the next Exchange says so
		case err == nil && resp.GetDropped():
			return errDropped
		}
		return err
	})
}

func (c *computer) storeCapture(ctx context.Context, req *workerpb.PublishCaptureRequest, disk, memory *storing) error {
	stored, err := disk.get(ctx)
	if err != nil {
		return err
	}
	c.keepStored(stored)
	req.DiskReferences, req.DiskManifest, req.DiskSizeBytes, req.DiskStoredBytes = stored.References, stored.Manifest, stored.Stats.Bytes, stored.Stats.StoredBytes
	if stored, err = memory.get(ctx); err != nil {
		return err
	}
	req.MemoryReferences, req.MemoryManifest, req.MemorySizeBytes, req.MemoryStoredBytes = stored.References, stored.Manifest, stored.Stats.Bytes, stored.Stats.StoredBytes
	return nil
}

// insist tries until it works, the capture is dropped, or ctx ends.
func (c *computer) insist(ctx context.Context, what string, try func() error) error {
	for pause := time.Second; ; pause = min(pause*2, time.Minute) {
		err := try()
		if err == nil || errors.Is(err, errDropped) || ctx.Err() != nil {
			return err
		}
		c.w.cfg.Log.Warn(what+" failed; trying again", "computer", c.id, "error", err, "in", pause.String())
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// thaw lets a frozen sandbox go on and waits for its guest again. It is repeatable.
func (c *computer) thaw(ctx context.Context) error {
	if err := c.w.cfg.Runtime.Thaw(ctx, c.id); err != nil {
		if errors.Is(err, sandbox.ErrNotRunning) || errors.Is(err, sandbox.ErrNotFound) {
			return nil // whoever watches it says so
		}
		return err
	}
	c.mu.Lock()
	config, env := c.config, c.env
	c.mu.Unlock()
	connected, err := c.listen(config, env)
	if err != nil {
		return err
	}
	timer := time.NewTimer(thawedWithin)
	defer timer.Stop()
	select {
	case <-connected:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	if link := c.takeLink(); link != nil {
		link.Close()
	}
	return errors.New("the guest of a thawed sandbox does not dial; thawing it again")
}

// platformFile says what the sandbox of the Computer was started with: its memory can be restored with the same only.
func (c *computer) platformFile() string { return filepath.Join(c.w.computerDir(c.id), "platform") }

// platform names what a sandbox that starts now is started with.
func (w *Worker) platform() (string, error) {
	runtime, err := w.cfg.Runtime.Platform()
	if err != nil {
		return "", err
	}
	return runtime + " " + filepath.Base(w.assets.runtime), nil
}

// errMemory says that the memory of a hibernated Computer cannot be restored, whatever is tried.
var errMemory = errors.New("the memory cannot be restored")

// restored is what a sandbox is resumed from.
type restored struct {
	memory, platform string
	// ready returns when the memory is there.
	ready func(context.Context) error
	// runtime is the folder of the guest and the host program that the frozen processes have open.
	runtime string
}

// fits tells what a sandbox is resumed from, if this Worker can do that.
func (c *computer) fits(r *workerpb.Resume) (restored, error) {
	out := restored{memory: filepath.Join(c.w.cfg.Dir, "tmp", c.id+"-memory"), platform: r.GetPlatform()}
	runtime, folder, _ := strings.Cut(r.GetPlatform(), " ")
	have, err := c.w.cfg.Runtime.Platform()
	if err != nil {
		return out, err
	}
	if runtime != have {
		return out, fmt.Errorf("%w: it was captured with the sandbox runtime %s, and this Worker has %s", errMemory, runtime, have)
	}
	out.runtime = filepath.Join(filepath.Dir(c.w.assets.runtime), filepath.Base(folder))
	if _, err := os.Stat(out.runtime); err != nil {
		return out, fmt.Errorf("%w: it was captured with version %s of the guest, which this Worker does not have", errMemory, folder)
	}
	return out, nil
}

// fetchMemory puts everything in place that the processes of a resumed sandbox need.
func (c *computer) fetchMemory(ctx context.Context, environmentID string, r *workerpb.Resume, dir string) error {
	for _, digest := range r.GetProgramDigests() {
		if err := c.w.assets.program(ctx, environmentID, digest); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	space, err := c.w.cfg.Vault.Space(environmentID)
	if err != nil {
		return err
	}
	err = space.Restore(ctx, r.GetMemoryManifest(), dir)
	if errors.Is(err, chunk.ErrUnreadable) {
		err = fmt.Errorf("%w: %w", errMemory, err)
	}
	return err
}

// sandboxError is the failure of a sandbox itself, after everything that it needs was there.
type sandboxError struct{ error }

func (e *sandboxError) Unwrap() error { return e.error }

// startOnce starts the sandbox as spec says. A resume is tried again and again: a memory is given up only if it cannot be
// restored, not because the blob storage or the server is away for a while.
func (c *computer) startOnce(ctx context.Context, spec *workerpb.ComputerSpec) error {
	if spec.GetResume() == nil {
		return c.startSandbox(ctx, spec, restored{})
	}
	began := 0
	for try, pause := 1, time.Second; ; try, pause = try+1, min(pause*2, time.Minute) {
		err := c.resume(ctx, spec)
		var failed *sandboxError
		if errors.As(err, &failed) {
			began++
		}
		if err == nil || errors.Is(err, errMemory) || ctx.Err() != nil || began == sandboxTries || try == restoreTries {
			return err
		}
		c.w.cfg.Log.Warn("cannot resume; trying again", "computer", c.id, "error", err, "in", pause.String())
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// resume restores the sandbox from its memory. While that is fetched, the sandbox is made.
func (c *computer) resume(ctx context.Context, spec *workerpb.ComputerSpec) error {
	began := time.Now()
	from, err := c.fits(spec.GetResume())
	if err != nil {
		return err
	}
	fetched := make(chan struct{})
	var at time.Time // guarded by fetched
	from.ready = func(ctx context.Context) error {
		select {
		case <-fetched:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// The failure that comes first is the cause, and ends the other.
	both, either := errgroup.WithContext(ctx)
	both.Go(func() error {
		if err := c.fetchMemory(either, spec.GetEnvironmentId(), spec.GetResume(), from.memory); err != nil {
			return err
		}
		at = time.Now()
		close(fetched)
		return nil
	})
	both.Go(func() error { return c.startSandbox(either, spec, from) })
	if err := both.Wait(); err != nil {
		_ = os.RemoveAll(from.memory)
		return err
	}
	// It takes a while, and the Computer runs.
	c.runStep(ctx, "memory", func(context.Context) error { return os.RemoveAll(from.memory) }, false)
	c.w.cfg.Log.Info("computer resumed", "computer", c.id, "fetch_ms", at.Sub(began).Milliseconds(), "restore_ms", time.Since(at).Milliseconds())
	return nil
}
