package chunk

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"helmr.dev/helmr/internal/blob"
)

// parallel is how many pieces are worked on at once: enough to hide the waits for disk or bucket behind the hashing.
const parallel = 4

// Stats say what a Store did. Sizes are bytes.
type Stats struct {
	Files       int
	Bytes       int64 // of all files
	ZeroBytes   int64 // of these, in zero pieces
	Pieces      int64 // without zero pieces
	NewPieces   int64 // that the store lacked
	NewBytes    int64 // of these, before compression
	StoredBytes int64 // what was written for them, the manifest included
}

// Stored is a folder that was stored.
type Stored struct {
	// Manifest is the name of its manifest.
	Manifest string
	// References are all that the manifest refers to, each once, sorted.
	References []string
	Stats      Stats

	memo memo // of a Source with Remember
}

// Source says what is to be stored, and how.
type Source struct {
	Dir string
	// Growing is the name of a file in Dir that is still being written, by appending alone, and Written is closed once all of
	// Dir is there. Reading begins before. Both are left out for a folder that is there as a whole.
	Growing string
	Written <-chan struct{}
	// Before is what was stored of an earlier state of the folder: what it remembers of pieces that are still there need not be
	// found out again. It makes no difference for what is stored.
	Before Stored
	// Quick has new pieces compressed faster and less: for what is not kept for long.
	Quick bool
	// Remember has the result remember its pieces, to be the Before of another Store of this process.
	Remember bool
}

// Beyond gives what s refers to and base does not.
func (s Stored) Beyond(base Stored) []string {
	var out []string
	have := base.References
	for _, r := range s.References {
		for len(have) > 0 && have[0] < r {
			have = have[1:]
		}
		if len(have) == 0 || have[0] != r {
			out = append(out, r)
		}
	}
	return out
}

// Store keeps the folder dir. Pieces that the Environment has are not stored again. The files must not change meanwhile;
// anything but plain files and folders is refused. If Store fails there is no manifest; pieces that are left over harm
// nothing. What was stored may be relied on only after its manifest and references were published: until then they may be
// removed.
func (sp *Space) Store(ctx context.Context, dir string) (Stored, error) {
	return sp.StoreFrom(ctx, Source{Dir: dir})
}

// StoreFrom is Store of a Source.
func (sp *Space) StoreFrom(ctx context.Context, src Source) (Stored, error) {
	stored, err := sp.storeWith(ctx, src, standard)
	if err != nil {
		return Stored{}, fmt.Errorf("save folder %s: %w", src.Dir, err)
	}
	return stored, nil
}

func (sp *Space) storeWith(ctx context.Context, src Source, r rules) (Stored, error) {
	c, err := newCodec()
	if err != nil {
		return Stored{}, err
	}
	defer c.close()
	st := &storer{space: sp, keys: &sp.keys[0], codec: c, rules: r, batch: sp.store.Batch(), version: sealVersion, before: src.Before.memo, taken: map[string]bool{}}
	if src.Quick {
		st.version = quickVersion
	}
	if src.Remember {
		st.memo = memo{}
	}
	defer st.batch.Discard()
	entries, err := st.folder(ctx, src)
	if err != nil {
		return Stored{}, err
	}
	m := &manifest{Version: manifestVersion, Entries: entries}
	out := Stored{References: m.references(), memo: st.memo.bounded()}
	var size int64
	if out.Manifest, size, err = sp.putManifest(ctx, c, st.batch, m, out.References); err != nil {
		return Stored{}, err
	}
	if err := st.batch.Commit(ctx); err != nil {
		return Stored{}, err
	}
	for reference := range st.taken {
		sp.store.Remember(sp.chunkKey(reference))
	}
	st.storedBytes.Add(size)
	out.Stats = st.result(entries)
	return out, nil
}

// scan lists dir without contents.
func scan(dir string) ([]*entry, error) {
	entries := []*entry{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := &entry{Path: filepath.ToSlash(rel), Dir: d.IsDir(), Mode: info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)}
		switch {
		case !fs.ValidPath(e.Path):
			return fmt.Errorf("%q is not a name that can be kept", e.Path)
		case info.Mode().IsRegular():
			e.Size = info.Size()
		case !d.IsDir():
			return fmt.Errorf("%s is neither a plain file nor a folder", e.Path)
		}
		entries = append(entries, e)
		return nil
	})
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.Path, b.Path) })
	return entries, err
}

// storer is one run of Store.
type storer struct {
	space *Space
	keys  *keys
	codec *codec
	rules rules
	batch *blob.Batch
	// version is that of new pieces.
	version byte
	before  memo // what is remembered
	memo    memo // what is to be remembered; nil for nothing

	mu    sync.Mutex
	taken map[string]bool // references that this run has looked at

	buffers     sync.Pool
	zeroBytes   int64
	pieces      int64
	newPieces   atomic.Int64
	newBytes    atomic.Int64
	storedBytes atomic.Int64
}

// folder cuts all files, one after the other in this goroutine, and works on their pieces in others.
func (st *storer) folder(ctx context.Context, src Source) (entries []*entry, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	defer func() {
		// A failed piece is the cause of the cutter's own end, so it is named first.
		if werr := group.Wait(); werr != nil {
			err = werr
		}
	}()
	growing, err := st.growing(ctx, group, src)
	if err != nil {
		return nil, err
	}
	if entries, err = scan(src.Dir); err != nil {
		return nil, err
	}
	for i, e := range entries {
		if growing != nil && e.Path == growing.Path {
			growing.Mode, entries[i] = e.Mode, growing
			if growing.Size != e.Size {
				return nil, fmt.Errorf("%s: it was written to after its end", e.Path)
			}
		} else if !e.Dir {
			if err := st.file(ctx, group, src.Dir, e); err != nil {
				return nil, err
			}
		}
	}
	return entries, nil
}

// growing cuts the file that is still being written, until all of the folder is there. It gives nothing if there is no such file.
func (st *storer) growing(ctx context.Context, group *errgroup.Group, src Source) (*entry, error) {
	if src.Written == nil {
		return nil, nil
	}
	f, err := awaitFile(ctx, filepath.Join(src.Dir, src.Growing), src.Written)
	if f == nil || err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	e := &entry{Path: src.Growing}
	in := &input{f: f, written: src.Written}
	if err := st.walk(ctx, group, in, e); err != nil {
		return nil, fmt.Errorf("%s: %w", e.Path, err)
	}
	e.Size = in.size
	return e, nil
}

func (st *storer) file(ctx context.Context, group *errgroup.Group, dir string, e *entry) error {
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(e.Path)))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := st.walk(ctx, group, &input{f: f, size: e.Size, final: true}, e); err != nil {
		return fmt.Errorf("%s: %w", e.Path, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != e.Size {
		return errors.Join(fmt.Errorf("%s: the file changed while it was saved", e.Path), err)
	}
	return nil
}

func (st *storer) buffer() []byte {
	if b, ok := st.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, st.rules.max+pageSize)
}

// has tells whether the store has a piece, or will have once this run has ended well.
func (st *storer) has(ctx context.Context, reference string) (bool, error) {
	st.mu.Lock()
	again := st.taken[reference]
	st.mu.Unlock()
	store, key := st.space.store, st.space.chunkKey(reference)
	if again || store.Remembers(key) {
		return true, nil
	}
	size, found, err := store.Size(ctx, key)
	return found && size >= sealBytes, err
}

// take notes that the manifest refers to a piece. It gives false for one that this run has noted before.
func (st *storer) take(reference string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	again := st.taken[reference]
	st.taken[reference] = true
	return !again
}

// piece names a piece by its digest and stores it unless it is there.
func (st *storer) piece(ctx context.Context, p *piece, k *known, data []byte) error {
	digest := st.keys.digest(data)
	if st.memo != nil {
		k.remember(st.space.prints, digest, data)
	}
	p.Reference = st.space.reference(hex.EncodeToString(digest[:]))
	if !st.take(p.Reference) {
		return nil
	}
	store, key := st.space.store, st.space.chunkKey(p.Reference)
	if store.Remembers(key) {
		return nil
	}
	size, found, err := store.Size(ctx, key)
	if err != nil || found && size >= sealBytes {
		return err
	}
	scratch, out := st.buffer(), st.buffer()
	defer func() { st.buffers.Put(&scratch); st.buffers.Put(&out) }()
	sealed, err := st.codec.seal(st.keys, key, st.keys.head(st.version), data, scratch, out)
	if err != nil {
		return err
	}
	if err := st.batch.Put(ctx, key, sealed); err != nil {
		return err
	}
	st.newPieces.Add(1)
	st.newBytes.Add(int64(len(data)))
	st.storedBytes.Add(int64(len(sealed)))
	return nil
}

func (st *storer) result(entries []*entry) Stats {
	stats := Stats{
		ZeroBytes: st.zeroBytes, Pieces: st.pieces, NewPieces: st.newPieces.Load(), NewBytes: st.newBytes.Load(), StoredBytes: st.storedBytes.Load(),
	}
	for _, e := range entries {
		if !e.Dir {
			stats.Files++
			stats.Bytes += e.Size
		}
	}
	return stats
}
