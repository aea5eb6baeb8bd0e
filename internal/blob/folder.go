package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tmpFolder = "tmp"
	// tmpKept is how long a temporary file that nobody writes is left alone: another process may be at it.
	tmpKept = 24 * time.Hour
	// syncedTogether is how many files of a batch are written before they are synced, one after the other: then the first
	// sync has the file system commit what it knows of all of them, and 32 take hardly longer than a few.
	syncedTogether = 32
)

// folder keeps each object in one file: the key is the path. Files are written under tmp/ and renamed.
type folder struct {
	root string

	mu   sync.Mutex
	made map[string]bool // folders known to exist and to be durable
}

func openFolder(path string) (*folder, error) {
	if path == "" {
		return nil, errors.New(`blob URL: "file:" must be followed by a path`)
	}
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("blob folder: %w", err)
	}
	if err := makeDurable(filepath.Join(root, tmpFolder)); err != nil {
		return nil, fmt.Errorf("blob folder: %w", err)
	}
	f := &folder{root: root, made: map[string]bool{}}
	f.sweep(time.Now().Add(-tmpKept))
	return f, nil
}

// makeDurable makes dir and its missing parents, each durable in its own parent.
func makeDurable(dir string) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", dir)
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if err := makeDurable(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return noSpace(err)
	}
	return syncFolder(parent)
}

// sweep removes temporary files that a crash left before a time. What it cannot remove waits for the next start.
func (f *folder) sweep(before time.Time) {
	entries, _ := os.ReadDir(filepath.Join(f.root, tmpFolder))
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(f.root, tmpFolder, e.Name()))
		}
	}
}

func (f *folder) path(key string) string { return filepath.Join(f.root, filepath.FromSlash(key)) }

// write puts what fill writes into a new temporary file, which is not synced. On failure no file stays.
func (f *folder) write(fill func(w io.Writer) error) (tmp *os.File, err error) {
	tmp, err = os.CreateTemp(filepath.Join(f.root, tmpFolder), "put-*")
	if err != nil {
		return nil, noSpace(err)
	}
	if err := fill(tmp); err != nil {
		_ = tmp.Close()
		_ = os.Remove(tmp.Name())
		return nil, noSpace(err)
	}
	return tmp, nil
}

// sync makes a temporary file durable and closes it.
func (f *folder) sync(tmp *os.File) error {
	return noSpace(errors.Join(tmp.Sync(), tmp.Close()))
}

// place gives a temporary file its key. The folder must be synced before the object may be relied on.
func (f *folder) place(tmp, key string) error {
	dir := filepath.Dir(f.path(key))
	if err := f.mkdir(dir); err != nil {
		return err
	}
	return noSpace(os.Rename(tmp, f.path(key)))
}

// mkdir makes dir and its missing parents durable.
func (f *folder) mkdir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made[dir] {
		return nil
	}
	if err := makeDurable(dir); err != nil {
		return err
	}
	// It may have been made by a process that has not synced it yet.
	if err := syncFolder(filepath.Dir(dir)); err != nil {
		return err
	}
	f.made[dir] = true
	return nil
}

func (f *folder) put(ctx context.Context, key string, r io.Reader) error {
	tmp, err := f.write(func(w io.Writer) error {
		_, err := io.Copy(w, &ctxReader{ctx, r})
		return err
	})
	if err != nil {
		return err
	}
	err = f.sync(tmp)
	if err == nil {
		err = f.place(tmp.Name(), key)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return err
	}
	return syncFolder(filepath.Dir(f.path(key)))
}

func (f *folder) get(_ context.Context, key string) (io.ReadCloser, error) {
	file, err := os.Open(f.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	return file, err
}

func (f *folder) size(_ context.Context, key string) (int64, bool, error) {
	info, err := os.Stat(f.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if !info.Mode().IsRegular() {
		return 0, false, errors.New("is not a regular file")
	}
	return info.Size(), true, nil
}

func (f *folder) delete(_ context.Context, key string) error {
	err := os.Remove(f.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (f *folder) list(ctx context.Context, prefix string, each func(Info) error) error {
	err := filepath.WalkDir(f.path(strings.TrimSuffix(prefix, "/")), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(f.root, path)
		if err != nil {
			return err
		}
		return each(Info{Key: filepath.ToSlash(rel), Size: info.Size(), ModifiedAt: info.ModTime()})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (f *folder) endpoint() string { return "" }

func (f *folder) check(context.Context) error {
	info, err := os.Stat(filepath.Join(f.root, tmpFolder))
	if err != nil {
		return fmt.Errorf("blob folder: %w", err)
	}
	if !info.IsDir() {
		return errors.New("blob folder: tmp is not a folder")
	}
	return nil
}

func (f *folder) close() error { return nil }

func (f *folder) batch() batch { return &folderBatch{f: f} }

// folderBatch collects temporary files, syncs them, and renames them all at commit. Since no object has its key before it
// is on the disk, a later Exists can be believed even after a crash.
type folderBatch struct {
	f *folder

	mu sync.Mutex
	// written are files that are not synced, at most syncedTogether; guarded by mu, as all below.
	written []writtenFile
	staged  []stagedFile
	end     string // the key that appears last, or ""
}

type writtenFile struct {
	tmp *os.File
	key string
}

type stagedFile struct{ tmp, key string }

func (b *folderBatch) put(ctx context.Context, key string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tmp, err := b.f.write(func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	// The disk begins now; that it has ended, and how, is for the sync to say.
	_ = unix.SyncFileRange(int(tmp.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	b.mu.Lock()
	b.written = append(b.written, writtenFile{tmp, key})
	var full []writtenFile
	if len(b.written) >= syncedTogether {
		full, b.written = b.written, nil
	}
	b.mu.Unlock()
	return b.stage(full)
}

func (b *folderBatch) last(ctx context.Context, key string, data []byte) error {
	b.mu.Lock()
	b.end = key
	b.mu.Unlock()
	return b.put(ctx, key, data)
}

// stage syncs files. Those that it cannot sync are gone.
func (b *folderBatch) stage(written []writtenFile) (err error) {
	for _, w := range written {
		if err == nil {
			err = b.f.sync(w.tmp)
		} else {
			_ = w.tmp.Close()
		}
		if err != nil {
			_ = os.Remove(w.tmp.Name())
			continue
		}
		b.mu.Lock()
		b.staged = append(b.staged, stagedFile{w.tmp.Name(), w.key})
		b.mu.Unlock()
	}
	return err
}

func (b *folderBatch) commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	written := b.written
	b.written = nil
	b.mu.Unlock()
	if err := b.stage(written); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.placeLocked(func(s stagedFile) bool { return s.key != b.end }); err != nil {
		return err
	}
	return b.placeLocked(func(stagedFile) bool { return true })
}

// placeLocked gives some of the staged files their keys, and makes these durable.
func (b *folderBatch) placeLocked(some func(stagedFile) bool) (err error) {
	dirs := map[string]bool{}
	b.staged = slices.DeleteFunc(b.staged, func(s stagedFile) bool {
		if err != nil || !some(s) {
			return false
		}
		if err = b.f.place(s.tmp, s.key); err != nil {
			return false
		}
		dirs[filepath.Dir(b.f.path(s.key))] = true
		return true
	})
	for dir := range dirs {
		if err == nil {
			err = syncFolder(dir)
		}
	}
	return err
}

func (b *folderBatch) discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.written {
		_, _ = w.tmp.Close(), os.Remove(w.tmp.Name())
	}
	for _, s := range b.staged {
		_ = os.Remove(s.tmp)
	}
	b.written, b.staged = nil, nil
}

// syncFolder makes the names in a folder durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return noSpace(d.Sync())
}

// noSpace turns the system's ways to say "disk full" into ErrFull.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w; free some space and try again: %w", ErrFull, err)
	}
	return err
}

// ctxReader ends with the context's error once that is done.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
