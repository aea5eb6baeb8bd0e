package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestPreparedDisksAreRestoredOnce(t *testing.T) {
	t.Parallel()
	d, err := openDisks(filepath.Join(t.TempDir(), "disks"))
	if err != nil {
		t.Fatal(err)
	}
	var restored atomic.Int64
	restore := func(_ context.Context, dir string) error {
		restored.Add(1)
		return os.MkdirAll(dir, 0o700)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, release, err := d.get(t.Context(), "env", "m", restore)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	other, release, err := d.get(t.Context(), "other", "m", restore)
	if err != nil || restored.Load() != 2 {
		t.Fatalf("%d restored for two Environments, %v", restored.Load(), err)
	}
	// One in use stays; of the others the oldest go.
	for i := range maxDisks {
		_, release, err := d.get(t.Context(), "env", fmt.Sprint(i), restore)
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	if _, err := os.Stat(other); err != nil {
		t.Fatalf("a disk in use is removed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "env", "m")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the oldest disk stays: %v", err)
	}
	release()
	if len(d.kept) != maxDisks {
		t.Fatalf("%d disks are kept", len(d.kept))
	}
}

// A failure is everybody's who waits, and the next call tries again.
func TestAPreparedDiskThatCannotBeRestored(t *testing.T) {
	t.Parallel()
	d, err := openDisks(filepath.Join(t.TempDir(), "disks"))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if _, _, err := d.get(t.Context(), "env", "m", func(context.Context, string) error { return broken }); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun, finish := make(chan struct{}), make(chan struct{})
	go func() {
		<-begun
		cancel()
	}()
	slow := func(_ context.Context, dir string) error {
		close(begun)
		<-finish
		return os.MkdirAll(dir, 0o700)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, release, err := d.get(t.Context(), "env", "m", slow); err != nil {
			t.Error(err)
		} else {
			release()
		}
	})
	<-begun
	if _, _, err := d.get(ctx, "env", "m", slow); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(finish)
	wg.Wait()
	if len(d.kept) != 1 {
		t.Fatalf("%d disks are kept", len(d.kept))
	}
}
