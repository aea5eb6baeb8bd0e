package worker

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Bounds of the prepared disks that a Worker keeps ready; those in use may exceed them.
const (
	maxDisks     = 16
	maxDiskBytes = 16 << 30
)

// disks keeps prepared disks as folders that sandboxes start from, so that only the first Computer on this Worker waits for
// the bytes. Sandboxes only read them. Nothing is kept over a restart: what is in a folder is not synced.
type disks struct {
	dir string

	mu sync.Mutex
	// kept is guarded by mu: by path.
	kept map[string]*preparedDisk
}

// preparedDisk is one folder, or the work on one.
type preparedDisk struct {
	done  chan struct{}
	err   error // once done is closed
	users int
	bytes int64
	used  time.Time
}

// openDisks begins with an empty folder.
func openDisks(dir string) (*disks, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("clear prepared disks: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of prepared disks: %w", err)
	}
	return &disks{dir: dir, kept: map[string]*preparedDisk{}}, nil
}

// get gives the folder of a disk, which restore makes if it is not there. Calls beside it share the work. The folder stays
// until release is called.
func (d *disks) get(ctx context.Context, environmentID, manifest string, restore func(ctx context.Context, dir string) error) (path string, release func(), err error) {
	parent := filepath.Join(d.dir, environmentID)
	path = filepath.Join(parent, manifest)
	d.mu.Lock()
	p := d.kept[path]
	mine := p == nil
	if mine {
		p = &preparedDisk{done: make(chan struct{})}
		d.kept[path] = p
	}
	p.users++
	p.used = time.Now()
	d.mu.Unlock()
	release = func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		p.users--
		d.evictLocked()
	}
	if mine { // others may wait for it: it does not end with this caller
		go func() {
			err := fill(context.WithoutCancel(ctx), parent, path, restore)
			d.mu.Lock()
			defer d.mu.Unlock()
			if p.err = err; err != nil {
				delete(d.kept, path)
			} else {
				p.bytes = sizeOf(path)
			}
			close(p.done)
		}()
	}
	select {
	case <-p.done:
		err = p.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		release()
		return "", nil, err
	}
	return path, release, nil
}

func fill(ctx context.Context, parent, path string, restore func(ctx context.Context, dir string) error) error {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("make folder of prepared disks: %w", err)
	}
	return restore(ctx, path)
}

// evictLocked removes the disks that were used least recently while there are too many.
func (d *disks) evictLocked() {
	for {
		var oldest string
		total := int64(0)
		for path, p := range d.kept {
			total += p.bytes
			if p.users == 0 && (oldest == "" || p.used.Before(d.kept[oldest].used)) {
				oldest = path
			}
		}
		if oldest == "" || (len(d.kept) <= maxDisks && total <= maxDiskBytes) {
			return
		}
		delete(d.kept, oldest)
		_ = os.RemoveAll(oldest) // what stays is removed at the next start
	}
}

// sizeOf gives the room that the files in a folder take.
func sizeOf(dir string) int64 {
	total := int64(0)
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				if stat, ok := info.Sys().(*syscall.Stat_t); ok {
					total += stat.Blocks * 512 // holes take no room
				}
			}
		}
		return nil
	})
	return total
}
