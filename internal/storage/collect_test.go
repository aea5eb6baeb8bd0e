package storage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

// world is an Environment with Computers, Workers that save them, and servers that collect garbage, all on one real blob
// folder and database. The table test_roots stands for what the other rooms need.
type world struct {
	t           *testing.T
	d           *db.DB
	root        string
	environment string
	blobs       *blob.Store
	later       time.Duration // how much later than it is the collectors believe it to be
	unchecked   bool          // leaves the check of a publication out, to see that it is missed
}

func newWorld(t *testing.T, d *db.DB) *world {
	t.Helper()
	made, err := access.NewService(d).Bootstrap(t.Context(), access.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, d: d, root: t.TempDir(), environment: made.EnvironmentID, later: time.Hour}
	w.blobs = w.open()
	w.write(func(tx *db.Tx) error {
		_, err := tx.Exec(`CREATE TABLE test_roots (computer TEXT PRIMARY KEY, manifest TEXT NOT NULL)`)
		return err
	})
	return w
}

func (w *world) open() *blob.Store {
	w.t.Helper()
	s, err := blob.Open(context.Background(), "file:"+w.root)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) write(fn func(tx *db.Tx) error) {
	w.t.Helper()
	if err := w.d.Write(w.t.Context(), fn); err != nil {
		w.t.Fatal(err)
	}
}

// space gives the Environment to a Worker that has just begun: it remembers nothing.
func (w *world) space() *chunk.Space {
	w.t.Helper()
	v, err := chunk.NewVault(w.open(), bytes.Repeat([]byte{7}, chunk.KeyBytes))
	if err != nil {
		w.t.Fatal(err)
	}
	sp, err := v.Space(w.environment)
	if err != nil {
		w.t.Fatal(err)
	}
	return sp
}

func (w *world) collector() *Collector {
	c := NewCollector(w.d, w.open(), func() time.Time { return time.Now().Add(w.later) }, slog.New(slog.NewTextHandler(io.Discard, nil)), roots)
	c.grace = 0
	return c
}

func roots(tx *db.Tx, _ string, each func(string)) error {
	return tx.Query(func(scan func(...any) error) error {
		var m string
		err := scan(&m)
		each(m)
		return err
	}, `SELECT manifest FROM test_roots`)
}

// publish makes p the root of a computer, or fails as Publish does.
func (w *world) publish(computer string, p Publication) error {
	return w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		var kept string
		if _, err := tx.Get([]any{&kept}, `SELECT manifest FROM test_roots WHERE computer = ? {lock}`, computer); err != nil {
			return err
		}
		if !w.unchecked {
			if err := Publish(tx, w.environment, kept, p); err != nil {
				return err
			}
		}
		_, err := tx.Exec(`INSERT INTO test_roots (computer, manifest) VALUES (?, ?) ON CONFLICT (computer) DO UPDATE SET manifest = excluded.manifest`, computer, p.Manifest)
		return err
	})
}

// broken gives the first thing that a root needs and that is not there; "" if all is well.
func (w *world) broken() string {
	w.t.Helper()
	missing := ""
	for _, m := range w.manifests() {
		err := chunk.References(w.t.Context(), w.blobs, w.environment, m, func(r string) {
			if ok, err := w.blobs.Exists(w.t.Context(), chunk.ChunkPrefix(w.environment)+r); err != nil || !ok {
				missing = fmt.Sprintf("root %s lacks %s, %v", m, r, err)
			}
		})
		if err != nil {
			missing = err.Error()
		}
	}
	return missing
}

func (w *world) manifests() (all []string) {
	w.t.Helper()
	err := w.d.Read(w.t.Context(), func(tx *db.Tx) error {
		all = nil
		return roots(tx, w.environment, func(m string) { all = append(all, m) })
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// exact checks that the store has what the roots need and nothing else.
func (w *world) exact() {
	w.t.Helper()
	var want, have []string
	for _, m := range w.manifests() {
		want = append(want, chunk.ManifestPrefix(w.environment)+m)
		err := chunk.References(w.t.Context(), w.blobs, w.environment, m, func(r string) { want = append(want, chunk.ChunkPrefix(w.environment)+r) })
		if err != nil {
			w.t.Fatal(err)
		}
	}
	for _, prefix := range []string{"chunks/", "manifests/"} {
		err := w.blobs.List(w.t.Context(), prefix, func(i blob.Info) error {
			have = append(have, i.Key)
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if want = slices.Compact(want); !slices.Equal(have, want) {
		w.t.Fatalf("%d objects are left where %d are needed", len(have), len(want))
	}
}

// machine is a Computer and the Worker that has it.
type machine struct {
	w    *world
	name string
	dir  string
	// the Worker: it forgets all of this when it is restarted, or when another takes the Computer
	space     *chunk.Space
	published chunk.Stored
	stored    *chunk.Stored // stored and not published
	content   string        // of stored
	// what a restore of the root must give
	saved string
}

func (w *world) machine(name string) *machine {
	m := &machine{w: w, name: name, dir: w.t.TempDir(), space: w.space()}
	m.change(rand.New(rand.NewPCG(1, 1)))
	return m
}

// change fills some of the Computer's files. There are few contents, so that old ones come back all the time.
func (m *machine) change(rnd *rand.Rand) {
	m.w.t.Helper()
	for range 1 + rnd.IntN(3) {
		data := bytes.Repeat([]byte{byte(rnd.IntN(9)), 1, byte(rnd.IntN(2))}, 500)
		if err := os.WriteFile(filepath.Join(m.dir, fmt.Sprint(rnd.IntN(4))), data, 0o600); err != nil {
			m.w.t.Fatal(err)
		}
	}
}

func picture(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(sum, "%s %d %s", f.Name(), len(data), data)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

func (m *machine) store() {
	m.w.t.Helper()
	stored, err := m.space.Store(m.w.t.Context(), m.dir)
	if err != nil {
		m.w.t.Fatal(err)
	}
	m.stored, m.content = &stored, picture(m.w.t, m.dir)
}

// publish is what a Worker does with the answer. lost tells that the answer does not arrive.
func (m *machine) publish(lost bool) {
	m.w.t.Helper()
	err := m.w.publish(m.name, Publication{Manifest: m.stored.Manifest, Base: m.published.Manifest, References: m.stored.Beyond(m.published)})
	if err == nil {
		m.saved = m.content
	}
	if lost {
		return
	}
	var refused *RefusedError
	switch {
	case err == nil:
		m.published, m.stored = *m.stored, nil
	case !errors.As(err, &refused):
		m.w.t.Fatal(err)
	case refused.Whole:
		m.published = chunk.Stored{}
	default:
		m.space.Retire(refused.Retired...)
		m.stored = nil
	}
}

// restart is the loss of a Worker's memory, or of the Computer to another Worker.
func (m *machine) restart() { m.space, m.published, m.stored = m.w.space(), chunk.Stored{}, nil }

func (m *machine) restore() error {
	var manifest string
	err := m.w.d.Read(m.w.t.Context(), func(tx *db.Tx) error {
		manifest = ""
		_, err := tx.Get([]any{&manifest}, `SELECT manifest FROM test_roots WHERE computer = ?`, m.name)
		return err
	})
	if err != nil || manifest == "" {
		return err
	}
	out := filepath.Join(m.w.t.TempDir(), "out")
	if err := m.space.Restore(m.w.t.Context(), manifest, out); err != nil {
		return err
	}
	if have := picture(m.w.t, out); have != m.saved {
		return errors.New("another content came back")
	}
	return nil
}

// play makes random steps of two Workers with two Computers each and of two collectors, with removals that arrive late and
// again. It gives what broke first.
func (w *world) play(seed uint64, steps int) string {
	w.t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 3))
	var machines []*machine
	for i := range 4 {
		machines = append(machines, w.machine(fmt.Sprint(i)))
	}
	shared := w.space() // both Computers of a Worker share its memory
	machines[2].space, machines[3].space = shared, shared
	runs := make([]*collection, 2)
	stage := make([]int, 2)
	var late []*collection
	for step := range steps {
		m := machines[rnd.IntN(len(machines))]
		switch i := rnd.IntN(2); rnd.IntN(10) {
		case 0:
			m.change(rnd)
		case 1, 2:
			m.change(rnd)
			m.store()
		case 3, 4:
			if m.stored != nil {
				m.publish(rnd.IntN(5) == 0)
			}
		case 5:
			if rnd.IntN(4) == 0 {
				m.restart()
			}
		case 6, 7, 8: // a collector goes on, or is gone at any step
			w.advance(&runs[i], &stage[i], &late)
			if rnd.IntN(8) == 0 {
				stage[i] = 0
			}
		case 9: // a removal arrives late, or a second time
			if len(late) > 0 {
				if err := late[rnd.IntN(len(late))].remove(w.t.Context()); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		if broken := w.broken(); broken != "" {
			return fmt.Sprintf("step %d: %s", step, broken)
		}
		if step%10 == 0 {
			if err := m.restore(); err != nil {
				return fmt.Sprintf("step %d: %v", step, err)
			}
		}
	}
	for _, m := range machines {
		if err := m.restore(); err != nil {
			return err.Error()
		}
	}
	return ""
}

// advance takes a collector one step on.
func (w *world) advance(run **collection, stage *int, late *[]*collection) {
	w.t.Helper()
	var err error
	switch *stage {
	case 0:
		*run = w.collector().begin(w.environment)
		err = (*run).mark(w.t.Context())
	case 1:
		err = (*run).list(w.t.Context())
	case 2:
		err = (*run).retire(w.t.Context())
		*late = append(*late, *run)
	case 3:
		err = (*run).remove(w.t.Context())
	}
	if err != nil {
		w.t.Fatalf("collector, step %d: %v", *stage, err)
	}
	*stage = (*stage + 1) % 4
}

func TestNothingThatIsNeededIsEverRemoved(t *testing.T) {
	t.Parallel()
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(kind, " ", seed), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, dbtest.New(t, kind))
				if broken := w.play(seed, 250); broken != "" {
					t.Fatal(broken)
				}
				if _, err := w.collector().Collect(t.Context(), w.environment); err != nil {
					t.Fatal(err)
				}
				w.exact()
			})
		}
	}
}

// The test above would notice if publications were not checked.
func TestWithoutTheCheckSomethingIsMissed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := newWorld(t, dbtest.New(t, db.SQLite))
		w.unchecked = true
		if broken := w.play(seed, 250); broken != "" {
			return
		}
	}
	t.Fatal("20 runs without the check lost nothing: the steps do not meet")
}

func TestWorkersAndCollectorsAtOnce(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var collectors, workers sync.WaitGroup
		for range 2 {
			collectors.Go(func() {
				c := w.collector()
				for ctx.Err() == nil {
					if _, err := c.Collect(ctx, w.environment); err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for i := range 3 {
			m := w.machine(fmt.Sprint(i))
			workers.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), 5))
				for range 25 {
					m.change(rnd)
					for m.store(); m.stored != nil; {
						if m.publish(false); m.stored == nil && m.saved != m.content {
							m.store() // refused
						}
					}
					if err := m.restore(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		workers.Wait()
		stop()
		collectors.Wait()
		if broken := w.broken(); broken != "" {
			t.Fatal(broken)
		}
		if _, err := w.collector().Collect(t.Context(), w.environment); err != nil {
			t.Fatal(err)
		}
		w.exact()
	})
}
