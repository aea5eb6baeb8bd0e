package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
)

// objects gives the keys of everything stored.
func (w *world) objects() (all []string) {
	w.t.Helper()
	for _, prefix := range []string{"chunks/", "manifests/"} {
		err := w.blobs.List(w.t.Context(), prefix, func(i blob.Info) error {
			all = append(all, i.Key)
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return all
}

func (w *world) collect(c *Collector) Collected {
	w.t.Helper()
	done, err := c.Collect(w.t.Context(), w.environment)
	if err != nil {
		w.t.Fatal(err)
	}
	return done
}

func TestYoungObjectsAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	m := w.machine("a")
	m.store()
	before := w.objects()
	c := w.collector()
	c.grace = Grace
	w.later = Grace - time.Minute
	if done := w.collect(c); done.Objects != 0 || !slices.Equal(w.objects(), before) {
		t.Fatalf("%+v of %d objects", done, len(before))
	}
	w.later = Grace + time.Minute
	if done := w.collect(c); done.Objects != int64(len(before)) || done.Bytes == 0 || len(w.objects()) != 0 {
		t.Fatalf("%+v of %d objects", done, len(before))
	}
}

func TestPublicationsAreRefusedForWhatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		m := w.machine("a")
		for i := range 300 { // more than one statement looks for
			data := fmt.Appendf(nil, "file %d", i)
			if err := os.WriteFile(filepath.Join(m.dir, fmt.Sprint(i)), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m.store()
		old := *m.stored
		w.collect(w.collector())
		var refused *RefusedError
		err := w.publish("a", Publication{Manifest: old.Manifest, References: old.References})
		if !errors.As(err, &refused) || len(refused.Retired) != len(old.References)+1 || refused.Whole {
			t.Fatalf("publish: %v", err)
		}
		// The Worker takes other names, also for what it would find again.
		m.publish(false)
		m.store()
		m.publish(false)
		if m.stored != nil || w.broken() != "" || len(m.published.Beyond(old)) != len(m.published.References) {
			t.Fatalf("it was not stored anew: %s", w.broken())
		}
		if err := m.restore(); err != nil {
			t.Fatal(err)
		}
		err = w.publish("a", Publication{Manifest: strings.Repeat("a", 64), Base: old.Manifest})
		if !errors.As(err, &refused) || !refused.Whole {
			t.Fatalf("upon a manifest that is not kept: %v", err)
		}
		if err := w.publish("a", Publication{Manifest: "x", References: []string{"../x"}}); !fault.Is(err, fault.BadRequest) {
			t.Fatalf("a bad reference: %v", err)
		}
	})
}

func TestAnUnreadableManifestStopsTheCollection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	m, garbage := w.machine("a"), w.machine("b")
	m.store()
	m.publish(false)
	path := filepath.Join(w.root, chunk.ManifestPrefix(w.environment), m.published.Manifest)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	garbage.change(rand.New(rand.NewPCG(4, 4)))
	garbage.store()
	before := w.objects()
	for name, damage := range map[string]func() error{
		"truncated": func() error { return os.Truncate(path, 20) }, "missing": func() error { return os.Remove(path) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		_, err := w.collector().Collect(t.Context(), w.environment)
		if !errors.Is(err, chunk.ErrUnreadable) || !strings.Contains(err.Error(), "nothing is removed") {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if have := w.objects(); !slices.Equal(have, before) {
			t.Fatalf("%s: %d objects of %d are left", name, len(have), len(before))
		}
	}
	if done := w.collect(w.collector()); done.Objects == 0 {
		t.Fatal("nothing was removed after the repair")
	}
	w.exact()
}

func TestRetiredNamesAreForgottenLongAfterTheirObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	m := w.machine("a")
	m.store()
	w.collect(w.collector())
	count := func() (n int) {
		err := w.d.Read(t.Context(), func(tx *db.Tx) error {
			_, err := tx.Get([]any{&n}, `SELECT COUNT(*) FROM retired_objects`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	want := len(m.stored.References) + 1
	m.space = w.space()
	m.store() // it comes back under a retired name, and is removed again
	for _, later := range []time.Duration{time.Hour, RememberRetired} {
		w.later = later
		w.collect(w.collector())
		if n := count(); n < want {
			t.Fatalf("after %s %d names are known of %d", later, n, want)
		}
	}
	w.later = RememberRetired + 2*time.Hour
	w.collect(w.collector())
	if n := count(); n != 0 || len(w.objects()) != 0 {
		t.Fatalf("%d names and %d objects are left", n, len(w.objects()))
	}
}

func TestOneServerCollectsAnEnvironmentAtATime(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		m := w.machine("a")
		m.store()
		if _, err := w.collector().Loops()[0].Run(t.Context()); err != nil || len(w.objects()) != 0 {
			t.Fatalf("%d objects are left, %v", len(w.objects()), err)
		}
		m.store() // the second finds that the first was just here
		before := w.objects()
		if _, err := w.collector().Loops()[0].Run(t.Context()); err != nil || !slices.Equal(w.objects(), before) {
			t.Fatalf("collected twice, %v", err)
		}
		w.later += CollectEvery
		if _, err := w.collector().Loops()[0].Run(t.Context()); err != nil || len(w.objects()) != 0 {
			t.Fatalf("not collected again, %v", err)
		}
	})
}
