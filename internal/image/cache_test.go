package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func smallArchive(t *testing.T) (data []byte, digest string) {
	t.Helper()
	data, err := os.ReadFile(archiveOf(t, layerOf(t, file("a", "content"))))
	must(t, err)
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:])
}

func TestCacheUnpacksOnce(t *testing.T) {
	t.Parallel()
	data, digest := smallArchive(t)
	dir := t.TempDir()
	c, err := OpenCache(dir)
	must(t, err)
	other, err := OpenCache(dir) // as another process would
	must(t, err)
	var fetches atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			cache := []*Cache{c, other}[i%2]
			rootfs, cfg, err := cache.Get(t.Context(), "sha256:"+digest, func(w io.Writer) error {
				fetches.Add(1)
				_, err := io.Copy(w, bytes.NewReader(data))
				return err
			})
			if err != nil || cfg.Workdir != "/srv" || !exists(rootfs) {
				t.Errorf("Get = %q, %+v, %v", rootfs, cfg, err)
			}
		})
	}
	wg.Wait()
	if fetches.Load() != 1 {
		t.Errorf("fetched %d times", fetches.Load())
	}
	again, err := OpenCache(dir)
	must(t, err)
	if _, cfg, err := again.Get(t.Context(), digest, func(io.Writer) error { return errors.New("fetched again") }); err != nil || cfg.User != "1000:1000" {
		t.Errorf("after a restart: %+v, %v", cfg, err)
	}
	must(t, again.Remove(digest))
	if left, _ := filepath.Glob(filepath.Join(dir, "*.erofs")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCacheFailsAndRecovers(t *testing.T) {
	t.Parallel()
	data, digest := smallArchive(t)
	c, err := OpenCache(t.TempDir())
	must(t, err)
	write := func(b []byte) func(io.Writer) error {
		return func(w io.Writer) error { _, err := w.Write(b); return err }
	}
	if _, _, err := c.Get(t.Context(), digest, write(data[1:])); !errors.Is(err, ErrInvalid) {
		t.Errorf("another archive: %v", err)
	}
	broken := errors.New("connection lost")
	if _, _, err := c.Get(t.Context(), digest, func(w io.Writer) error { return errors.Join(write(data[:100])(w), broken) }); !errors.Is(err, broken) || errors.Is(err, ErrInvalid) {
		t.Errorf("a broken fetch: %v", err)
	}
	if _, _, err := c.Get(t.Context(), "../../etc", write(data)); err == nil {
		t.Error("a path is taken for a digest")
	}
	if _, _, err := c.Get(t.Context(), digest, write(data)); err != nil {
		t.Errorf("after the failures: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.dir, "tmp-*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCacheWaitersMayGiveUp(t *testing.T) {
	t.Parallel()
	data, digest := smallArchive(t)
	c, err := OpenCache(t.TempDir())
	must(t, err)
	fetching, goOn := make(chan struct{}), make(chan struct{})
	fetch := func(w io.Writer) error {
		close(fetching)
		<-goOn
		_, err := w.Write(data)
		return err
	}
	first, giveUp := context.WithCancel(t.Context())
	firstDone, secondDone := make(chan error, 1), make(chan error, 1)
	go func() { _, _, err := c.Get(first, digest, fetch); firstDone <- err }()
	<-fetching
	waiting := make(chan struct{})
	go func() {
		close(waiting)
		_, _, err := c.Get(t.Context(), digest, func(w io.Writer) error { _, err := w.Write(data); return err })
		secondDone <- err
	}()
	<-waiting
	giveUp()
	if err := <-firstDone; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up got %v", err)
	}
	close(goOn)
	if err := <-secondDone; err != nil {
		t.Errorf("who waited got %v", err)
	}
}

func TestCacheRemovesLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mine, busy := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for _, d := range []string{mine, busy} {
		must(t, os.MkdirAll(filepath.Join(dir, "tmp-"+d, "root", "x"), 0o700))
	}
	holder := &Cache{dir: dir}
	lock, err := holder.lock(busy, unix.LOCK_EX)
	must(t, err)
	defer drop(lock)
	// A file without its record is what a crash leaves between the two.
	must(t, os.WriteFile(filepath.Join(dir, mine+".erofs"), []byte("torn"), 0o600))
	c, err := OpenCache(dir)
	must(t, err)
	if exists(filepath.Join(dir, "tmp-"+mine)) {
		t.Error("a leftover is still there")
	}
	if !exists(filepath.Join(dir, "tmp-"+busy)) {
		t.Error("another process's work is gone")
	}
	if _, ok := c.have(mine); ok {
		t.Error("a file without its record counts")
	}
}
