package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Cache keeps the root filesystems of image archives, one file per archive digest, for the Computers of this machine.
// A file in it is complete; what a crash left half done is removed by the next OpenCache. Several processes may share
// the folder: each archive is unpacked once.
type Cache struct {
	dir string

	mu     sync.Mutex
	flight map[string]*unpacking
}

// unpacking is one unpack under way; it ends early when nobody waits for it any more.
type unpacking struct {
	waiting int
	cancel  context.CancelFunc
	done    chan struct{}
	cfg     Config
	err     error
}

// OpenCache opens the folder dir, creates it when it is missing, and removes what earlier processes left half done.
func OpenCache(dir string) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open image cache: %w", err)
	}
	c := &Cache{dir: dir, flight: map[string]*unpacking{}}
	left, err := filepath.Glob(filepath.Join(dir, "tmp-*"))
	if err != nil {
		return nil, fmt.Errorf("open image cache: %w", err)
	}
	for _, tmp := range left {
		lock, err := c.lock(strings.TrimPrefix(filepath.Base(tmp), "tmp-"), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // another process is at it
		}
		if err != nil {
			return nil, err
		}
		err = os.RemoveAll(tmp)
		if err := errors.Join(err, lock.Close()); err != nil {
			return nil, fmt.Errorf("clean image cache: %w", err)
		}
	}
	return c, nil
}

// Get gives the EROFS file of the archive with this SHA-256 digest (hex, with or without "sha256:") and the image's
// configuration. The first call for a digest lets fetch write the archive and unpacks it; calls beside it wait for the
// same work, which goes on as long as any of them has not given up. The digest is checked. An error that wraps
// ErrInvalid is the archive's own; failed calls leave nothing and may be repeated.
func (c *Cache) Get(ctx context.Context, digest string, fetch func(w io.Writer) error) (rootfs string, cfg Config, err error) {
	digest = strings.TrimPrefix(digest, "sha256:")
	if !isSHA256(digest) {
		return "", Config{}, fmt.Errorf("get image: %q is no SHA-256 digest", digest)
	}
	if cfg, ok := c.have(digest); ok {
		return c.file(digest), cfg, nil
	}
	c.mu.Lock()
	u := c.flight[digest]
	if u == nil {
		work, cancel := context.WithCancel(context.WithoutCancel(ctx))
		u = &unpacking{cancel: cancel, done: make(chan struct{})}
		c.flight[digest] = u
		go c.run(work, digest, fetch, u)
	}
	u.waiting++
	c.mu.Unlock()
	select {
	case <-u.done:
		if u.err != nil {
			return "", Config{}, u.err
		}
		return c.file(digest), u.cfg, nil
	case <-ctx.Done():
		c.mu.Lock()
		if u.waiting--; u.waiting == 0 {
			// Whoever asks from now on begins anew; the lock keeps them apart from what is still ending.
			u.cancel()
			if c.flight[digest] == u {
				delete(c.flight, digest)
			}
		}
		c.mu.Unlock()
		return "", Config{}, context.Cause(ctx)
	}
}

// Remove deletes the root filesystem of a digest. Sandboxes that run on it keep their open file.
func (c *Cache) Remove(digest string) error {
	digest = strings.TrimPrefix(digest, "sha256:")
	if !isSHA256(digest) {
		return fmt.Errorf("remove image: %q is no SHA-256 digest", digest)
	}
	err := errors.Join(ignoreMissing(os.Remove(c.record(digest))), ignoreMissing(os.Remove(c.file(digest))))
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (c *Cache) file(digest string) string   { return filepath.Join(c.dir, digest+".erofs") }
func (c *Cache) record(digest string) string { return filepath.Join(c.dir, digest+".json") }

// have reads the record, which is written after the file.
func (c *Cache) have(digest string) (Config, bool) {
	var cfg Config
	data, err := os.ReadFile(c.record(digest))
	if err != nil || json.Unmarshal(data, &cfg) != nil {
		return Config{}, false
	}
	if _, err := os.Stat(c.file(digest)); err != nil {
		return Config{}, false
	}
	return cfg, true
}

func (c *Cache) run(ctx context.Context, digest string, fetch func(io.Writer) error, u *unpacking) {
	u.cfg, u.err = c.make(ctx, digest, fetch)
	u.cancel()
	c.mu.Lock()
	if c.flight[digest] == u {
		delete(c.flight, digest)
	}
	c.mu.Unlock()
	close(u.done)
}

func (c *Cache) make(ctx context.Context, digest string, fetch func(io.Writer) error) (cfg Config, err error) {
	lock, err := c.wait(ctx, digest)
	if err != nil {
		return Config{}, err
	}
	defer drop(lock)
	if cfg, ok := c.have(digest); ok {
		return cfg, nil // another process was first
	}
	tmp := filepath.Join(c.dir, "tmp-"+digest)
	if err := os.RemoveAll(tmp); err != nil {
		return Config{}, fmt.Errorf("get image: %w", err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return Config{}, fmt.Errorf("get image: %w", err)
	}
	defer dropDir(tmp)
	archive := filepath.Join(tmp, "archive")
	if err := fetchTo(ctx, archive, digest, fetch); err != nil {
		return Config{}, fmt.Errorf("get image %s: %w", digest, err)
	}
	if cfg, err = unpack(ctx, archive, c.file(digest), tmp, defaultLimits); err != nil {
		return Config{}, err
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return Config{}, fmt.Errorf("get image: %w", err)
	}
	if err := writeFileAtomic(c.record(digest), text); err != nil {
		return Config{}, fmt.Errorf("get image: %w", err)
	}
	return cfg, nil
}

func fetchTo(ctx context.Context, file, digest string, fetch func(io.Writer) error) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	sum := &countingHash{Hash: sha256.New()}
	err = fetch(&boundedWriter{ctx: ctx, w: io.MultiWriter(f, sum), left: MaxArchiveBytes})
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if got := sum.digest().Hex; got != digest {
		return invalid("the archive's digest is %s", got)
	}
	return nil
}

// boundedWriter stops a fetch that is over-long or not wanted any more.
type boundedWriter struct {
	ctx  context.Context
	w    io.Writer
	left int64
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, invalid("it is larger than %d bytes", int64(MaxArchiveBytes))
	}
	return b.w.Write(p)
}

// lock takes the file lock of a digest; closing the file gives it back.
func (c *Cache) lock(digest string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, digest+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock image: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock image: %w", err), f.Close())
	}
	return f, nil
}

// wait takes the lock of a digest, which another process may hold for as long as it unpacks.
func (c *Cache) wait(ctx context.Context, digest string) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	got := make(chan result, 1)
	go func() {
		f, err := c.lock(digest, unix.LOCK_EX)
		got <- result{f, err}
	}()
	select {
	case r := <-got:
		return r.f, r.err
	case <-ctx.Done():
		go func() {
			if r := <-got; r.f != nil {
				_ = r.f.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}
