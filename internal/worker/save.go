package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"helmr.dev/helmr/internal/blob/chunk"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// publishTries is how often one capture of a disk is stored again because objects that it needs are being removed. It is hardly
// ever more than once; after that the disk is captured anew.
const publishTries = 10

// beginSave captures, stores and publishes one Save, again and again until it is done.
func (c *computer) beginSave(ctx context.Context, o *workerpb.SaveOrder) {
	c.mu.Lock()
	if c.saveID != "" || c.busy["save"] { // the step that is about to end asks again
		c.mu.Unlock()
		return
	}
	c.saveID = o.GetSaveId()
	c.mu.Unlock()
	c.step(ctx, "save", func(ctx context.Context) error {
		defer func() {
			c.mu.Lock()
			c.saveID = ""
			c.mu.Unlock()
		}()
		for pause := time.Second; ; pause = min(pause*2, time.Minute) {
			err := c.save(ctx, o.GetSaveId())
			if err == nil || ctx.Err() != nil || c.isOver() {
				return err
			}
			c.w.cfg.Log.Warn("save failed; trying again", "computer", c.id, "save", o.GetNumber(), "error", err, "in", pause.String())
			if !sleep(ctx, pause) {
				return ctx.Err()
			}
		}
	})
}

func (c *computer) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase != workerpb.Phase_PHASE_RUNNING
}

func (c *computer) environment() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.env
}

func (c *computer) save(ctx context.Context, saveID string) error {
	dir := filepath.Join(c.w.cfg.Dir, "tmp", saveID)
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	disk, err := c.storeDisk(ctx, dir)
	if err != nil {
		return err
	}
	defer disk.end()
	if err := disk.written(c.w.cfg.Runtime.SaveDisk(ctx, c.id, dir)); err != nil {
		return fmt.Errorf("capture disk: %w", err)
	}
	for range publishTries {
		stored, err := disk.get(ctx)
		if err != nil {
			return fmt.Errorf("store save: %w", err)
		}
		c.keepStored(stored)
		retired, err := c.publish(ctx, saveID, stored)
		if err != nil {
			return fmt.Errorf("publish save: %w", err)
		}
		if len(retired) == 0 {
			return nil
		}
		disk.retire(retired)
	}
	return fmt.Errorf("publish save: objects that it needs were removed %d times", publishTries)
}

// publish publishes what was stored of a disk, or gives the names of objects that it may not use.
func (c *computer) publish(ctx context.Context, saveID string, stored chunk.Stored) (retired []string, err error) {
	for {
		req := &workerpb.PublishSaveRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch, SaveId: saveID, ManifestDigest: stored.Manifest,
			SizeBytes: stored.Stats.Bytes, StoredBytes: stored.Stats.StoredBytes, BaseManifest: c.published.Manifest, References: stored.Beyond(c.published)}
		resp, err := c.w.cfg.Server.PublishSave(ctx, req)
		if err != nil {
			return nil, err
		}
		if resp.GetWhole() && req.GetBaseManifest() != "" {
			c.published = chunk.Stored{}
			continue
		}
		if len(resp.GetRetired()) == 0 {
			c.published = stored
		}
		return resp.GetRetired(), nil
	}
}
