package storage

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/loop"
)

// Times and bounds of a collection.
const (
	// CollectEvery is how often an Environment's garbage is collected.
	CollectEvery = 30 * time.Minute
	// Grace is how old an object is before it may be retired: most younger ones belong to a Save under way.
	Grace = 30 * time.Minute
	// RememberRetired is how long a retired name is remembered after its object is gone: far longer than any Worker takes
	// from finding an object to publishing it, and any removal to arrive.
	RememberRetired = 30 * 24 * time.Hour
	// retireAtOnce is how many names one transaction retires.
	retireAtOnce = 1000
	// markAgain is how often a retirement is tried again because other manifests were published meanwhile.
	markAgain = 100
	// removers is how many objects are removed at once.
	removers = 8
)

// Roots hands each manifest that an Environment needs to each.
type Roots func(tx *db.Tx, environmentID string, each func(manifest string)) error

// Collector removes what no root needs. Any number of them, on any number of servers, may run at any time.
type Collector struct {
	db    *db.DB
	blobs *blob.Store
	now   func() time.Time
	log   *slog.Logger
	roots []Roots
	grace time.Duration
}

// NewCollector makes a collector. roots together name every manifest that anything needs: what they leave out is removed.
func NewCollector(d *db.DB, blobs *blob.Store, now func() time.Time, log *slog.Logger, roots ...Roots) *Collector {
	return &Collector{db: d, blobs: blobs, now: now, log: log, roots: roots, grace: Grace}
}

// Loops gives the room's background work.
func (c *Collector) Loops() []loop.Piece {
	return []loop.Piece{{Name: "storage.collect", Every: CollectEvery, Run: c.collectAll}}
}

// collectAll collects every Environment that no other server has just collected. What fails waits for the next time.
func (c *Collector) collectAll(ctx context.Context) (time.Duration, error) {
	var environments []string
	err := c.db.Read(ctx, func(tx *db.Tx) (err error) {
		environments, err = tx.Column(sqlAll)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read environments: %w", err)
	}
	var errs []error
	for _, id := range environments {
		mine, err := c.claim(ctx, id)
		if err == nil && mine {
			err = c.collectLogged(ctx, id)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("collect garbage of environment %s: %w", id, err))
		}
	}
	return 0, errors.Join(errs...)
}

// claim tells whether this server is to collect an Environment now. It saves work and nothing more.
func (c *Collector) claim(ctx context.Context, environmentID string) (mine bool, err error) {
	now := c.now()
	err = c.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(sqlBegin, environmentID); err != nil {
			return err
		}
		n, err := tx.Exec(sqlClaim, db.Millis(now), environmentID, db.Millis(now.Add(-CollectEvery*9/10)))
		mine = n > 0
		return err
	})
	return mine, err
}

func (c *Collector) collectLogged(ctx context.Context, environmentID string) error {
	done, err := c.Collect(ctx, environmentID)
	if done.Objects > 0 {
		c.log.Info("garbage collected", "environment", environmentID, "objects", done.Objects, "bytes", done.Bytes, "roots", done.Roots)
	}
	return err
}

// Collected is what a collection did.
type Collected struct {
	Roots   int
	Objects int64 // removed
	Bytes   int64 // of these
}

// Collect removes what no root of an Environment needs. If a root's manifest cannot be read, nothing is removed: what it
// needs is not known.
func (c *Collector) Collect(ctx context.Context, environmentID string) (Collected, error) {
	r := c.begin(environmentID)
	if err := r.mark(ctx); err != nil {
		return Collected{}, err
	}
	if err := r.list(ctx); err != nil {
		return Collected{}, err
	}
	err := r.retire(ctx)
	if err == nil {
		err = r.remove(ctx)
	}
	if err == nil {
		err = r.forget(ctx)
	}
	return Collected{Roots: len(r.roots), Objects: r.removed.Load(), Bytes: r.bytes.Load()}, err
}

// collection is one run for one Environment.
type collection struct {
	*Collector
	environment string
	// roots are the manifests whose references are in needed.
	roots  map[string]bool
	needed map[short]struct{}
	// unneeded are listed objects that no root needed when they were listed; old tells that they may be retired.
	unneeded map[string]object
	retired  []string // names whose objects may be removed: their retirement is committed

	removed, bytes atomic.Int64
}

type object struct {
	key  string
	size int64
	old  bool
}

// short is enough of a reference to tell it from others. Two that look the same would keep garbage, nothing else.
type short [12]byte

func shorten(reference string) (s short) {
	digest, number, _ := strings.Cut(reference, "-")
	_, _ = hex.Decode(s[:8], []byte(digest[:min(16, len(digest))])) // checked where references are made
	n, _ := strconv.ParseUint(number, 10, 32)                       // "" is 0
	s[8], s[9], s[10], s[11] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	return s
}

func (c *Collector) begin(environmentID string) *collection {
	return &collection{Collector: c, environment: environmentID, roots: map[string]bool{}, needed: map[short]struct{}{}, unneeded: map[string]object{}}
}

// mark notes what the present roots need.
func (r *collection) mark(ctx context.Context) error {
	fresh, err := r.fresh(ctx)
	if err != nil {
		return err
	}
	return r.follow(ctx, fresh)
}

// fresh reads the present roots whose references are not noted yet.
func (r *collection) fresh(ctx context.Context) (fresh []string, err error) {
	err = r.db.Read(ctx, func(tx *db.Tx) (err error) {
		fresh, err = r.unmarked(tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read roots: %w", err)
	}
	return fresh, nil
}

// unmarked gives the roots whose references are not noted yet.
func (r *collection) unmarked(tx *db.Tx) ([]string, error) {
	var fresh []string
	for _, roots := range r.Collector.roots {
		err := roots(tx, r.environment, func(manifest string) {
			if !r.roots[manifest] {
				fresh = append(fresh, manifest)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return fresh, nil
}

func (r *collection) follow(ctx context.Context, manifests []string) error {
	for _, m := range manifests {
		if r.roots[m] {
			continue
		}
		err := chunk.References(ctx, r.blobs, r.environment, m, func(ref string) { r.needed[shorten(ref)] = struct{}{} })
		if err != nil {
			// It may have been replaced since the roots were read, and removed by another server's collection.
			roots, rerr := r.fresh(ctx)
			if rerr != nil || slices.Contains(roots, m) {
				return fmt.Errorf("nothing is removed: %w", errors.Join(err, rerr))
			}
			continue
		}
		r.roots[m] = true
	}
	return nil
}

// isNeeded tells whether a marked root needs the name.
func (r *collection) isNeeded(name string, manifest bool) bool {
	if manifest {
		return r.roots[name]
	}
	_, ok := r.needed[shorten(name)]
	return ok
}

// list finds what nothing marked needs.
func (r *collection) list(ctx context.Context) error {
	before := r.now().Add(-r.grace)
	for _, prefix := range []string{chunk.ManifestPrefix(r.environment), chunk.ChunkPrefix(r.environment)} {
		manifest := prefix == chunk.ManifestPrefix(r.environment)
		err := r.blobs.List(ctx, prefix, func(i blob.Info) error {
			name := strings.TrimPrefix(i.Key, prefix)
			if chunk.ValidReference(name) && !r.isNeeded(name, manifest) {
				r.unneeded[name] = object{key: i.Key, size: i.Size, old: !i.ModifiedAt.After(before)}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// retire retires what is still not needed, and is old enough.
func (r *collection) retire(ctx context.Context) error {
	var names []string
	for name, o := range r.unneeded {
		if o.old {
			names = append(names, name)
		}
	}
	for len(names) > 0 {
		some := names[:min(len(names), retireAtOnce)]
		names = names[len(some):]
		if err := r.retireSome(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

func (r *collection) retireSome(ctx context.Context, names []string) error {
	for range markAgain {
		var fresh, done []string
		err := r.db.Write(ctx, func(tx *db.Tx) (err error) {
			done = nil
			if err := Lock(tx, r.environment); err != nil {
				return err
			}
			if fresh, err = r.unmarked(tx); err != nil || len(fresh) > 0 {
				return err
			}
			now := db.Millis(r.now())
			for _, name := range names {
				if r.isNeeded(name, strings.HasPrefix(r.unneeded[name].key, chunk.ManifestPrefix(r.environment))) {
					continue
				}
				if _, err := tx.Exec(sqlRetire, r.environment, name, now); err != nil {
					return err
				}
				done = append(done, name)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("retire objects: %w", err)
		}
		if len(fresh) == 0 {
			r.retired = append(r.retired, done...)
			return nil
		}
		if err := r.follow(ctx, fresh); err != nil {
			return err
		}
	}
	return nil // so much is published that the next collection has to do it
}

// remove removes the objects of retired names.
func (r *collection) remove(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(removers)
	for _, name := range r.retired {
		group.Go(func() error {
			o := r.unneeded[name]
			if err := r.blobs.Delete(ctx, o.key); err != nil {
				return err
			}
			r.removed.Add(1)
			r.bytes.Add(o.size)
			return nil
		})
	}
	return group.Wait()
}

// forget forgets names that were retired long ago and have no object any more.
func (r *collection) forget(ctx context.Context) error {
	before := db.Millis(r.now().Add(-RememberRetired))
	err := r.db.Write(ctx, func(tx *db.Tx) error {
		var names []string
		err := tx.Query(func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			if _, there := r.unneeded[name]; !there {
				names = append(names, name)
			}
			return err
		}, sqlOld, r.environment, before)
		for _, name := range names {
			if err == nil {
				_, err = tx.Exec(sqlForget, r.environment, name, before)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("forget retired objects: %w", err)
	}
	return nil
}
