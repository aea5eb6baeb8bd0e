package gvisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
)

// SaveDisk implements sandbox.Runtime.
func (r *Runtime) SaveDisk(ctx context.Context, id, dir string) (err error) {
	defer wrap(&err, "save disk of sandbox %s", id)
	rec, unlock, err := r.lockLiving(ctx, id, dir)
	if err != nil {
		return err
	}
	defer unlock()
	return r.capture(ctx, rec, dir, "fscheckpoint")
}

// Freeze implements sandbox.Runtime. Pauses nest inside gVisor's kernel: between the first and the last command nothing
// inside runs, so that disk and memory are of one instant. Pages are written as they are: who stores them compresses.
func (r *Runtime) Freeze(ctx context.Context, id, disk, memory string) (err error) {
	defer wrap(&err, "freeze sandbox %s", id)
	rec, unlock, err := r.lockLiving(ctx, id, disk, memory)
	if err != nil {
		return err
	}
	defer unlock()
	rec.Frozen = true
	if err := r.records.save(rec); err != nil {
		return err
	}
	err = r.control.do(ctx, controlRequest{Op: "pause", Sandbox: rec.ID})
	if err == nil {
		err = r.capture(ctx, rec, disk, "fscheckpoint")
	}
	if err == nil {
		err = r.capture(ctx, rec, memory, "checkpoint")
	}
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	if e := r.thaw(clean, rec); e != nil {
		err = errors.Join(err, fmt.Errorf("thaw again: %w", e))
	}
	return errors.Join(err, os.RemoveAll(disk))
}

// Thaw implements sandbox.Runtime.
func (r *Runtime) Thaw(ctx context.Context, id string) (err error) {
	defer wrap(&err, "thaw sandbox %s", id)
	rec, unlock, err := r.lockLiving(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return r.thaw(ctx, rec)
}

// thaw does not believe the record that nothing is frozen: a command of a Worker that was killed may have come late.
func (r *Runtime) thaw(ctx context.Context, rec record) error {
	if err := r.control.do(ctx, controlRequest{Op: "resume", Sandbox: rec.ID}); err != nil {
		return err
	}
	rec.Frozen = false
	return r.records.save(rec)
}

// Platform implements sandbox.Runtime. gVisor restores only what the very same version of it has saved; it checks the
// processor's features itself.
func (r *Runtime) Platform() (string, error) { return r.platform() }

func (r *Runtime) findPlatform() (string, error) {
	f, err := os.Open(r.cfg.RunscPath)
	if err != nil {
		return "", fmt.Errorf("read runsc: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read runsc: %w", err)
	}
	return fmt.Sprintf("runsc-%x-%s", sum.Sum(nil)[:8], runtime.GOARCH), nil
}

// lockLiving locks a sandbox that runs, for commands that write into dirs.
func (r *Runtime) lockLiving(ctx context.Context, id string, dirs ...string) (rec record, unlock func(), err error) {
	if unlock, err = r.locks.lock(ctx, id); err != nil {
		return rec, nil, err
	}
	rec, err = r.living(id)
	for i := 0; i < len(dirs) && err == nil; i++ {
		err = mustBeFree(dirs[i])
	}
	if err != nil {
		unlock()
		return rec, nil, err
	}
	return rec, unlock, nil
}

// capture has a sandbox write into dir, and leaves no files there when that fails.
func (r *Runtime) capture(ctx context.Context, rec record, dir, op string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := r.control.do(ctx, controlRequest{Op: op, Sandbox: rec.ID, Dir: dir}); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}
