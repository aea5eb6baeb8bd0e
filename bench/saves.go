package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// saves measures from the end of a handler to the published Save, on a disk with nothing on it and on larger ones of which
// each Turn changes one MB. The floor is runsc fscheckpoint of the very same sandbox, in turn with it. What a Save adds to the
// blob storage is a figure too.
func (b *bench) saves(ctx context.Context, h *helmr) error {
	for _, disk := range []struct {
		figure  string
		mb      int
		changed int
	}{{"save", 0, 0}, {"save_changed_1mb_100mb", 100, 1}, {"save_changed_1mb_1gb", b.few(1000, 300), 1}} {
		if err := b.savesOf(ctx, h, disk.figure, disk.mb, disk.changed); err != nil {
			return fmt.Errorf("%s: %w", disk.figure, err)
		}
	}
	return nil
}

func (b *bench) savesOf(ctx context.Context, h *helmr, figure string, mb, changed int) error {
	s, err := h.newWarm(ctx, "keeper", fmt.Sprint(mb, " ", changed), "")
	if err != nil {
		return err
	}
	var times, floors, stored []float64
	for round := range b.few(6, 3) + 1 { // the first is to warm up
		before, err := sizeOf(filepath.Join(h.dir, "blobs"))
		if err != nil {
			return err
		}
		turnID, _, err := s.enqueue(ctx, fmt.Sprint(mb, " ", changed))
		if err != nil {
			return err
		}
		var recorded time.Time
		e, err := s.until(ctx, turnID, "turn.completed", func(e seen) {
			if e.Kind == "turn.finalizing" {
				recorded = e.at
			}
		})
		if err != nil {
			return err
		}
		after, err := sizeOf(filepath.Join(h.dir, "blobs"))
		if err != nil {
			return err
		}
		plain, err := h.plainSave(ctx, s.computer)
		if err != nil {
			return fmt.Errorf("runsc fscheckpoint: %w", err)
		}
		if round > 0 {
			times, floors, stored = append(times, ms(e.at.Sub(recorded))), append(floors, plain), append(stored, float64(after-before)/1e6)
		}
	}
	b.report.add(figure, h.kind, median(times), "ms", median(floors), atMostRatio(1.3))
	if changed > 0 {
		b.report.add(figure+"_stored", h.kind, median(stored), "MB", float64(changed), nil)
	}
	return s.leave(ctx)
}

// plainSave gives the ms that runsc takes for the disk of a running Computer, which goes on.
func (h *helmr) plainSave(ctx context.Context, computer string) (took float64, err error) {
	dir := filepath.Join(h.dir, "floor", "save")
	defer func() { _ = os.RemoveAll(dir) }()
	began := time.Now()
	cmd := exec.CommandContext(ctx, h.b.binary("runsc"), "--root="+filepath.Join(h.worker, "sandboxes", "runsc"), "fscheckpoint", "-leave-running", "-image-path="+dir, computer)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return ms(time.Since(began)), nil
}

// sizeOf gives the bytes of the files in a folder.
func sizeOf(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}
