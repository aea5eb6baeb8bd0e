package chunk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

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
	stored, err := sp.storeWith(ctx, dir, standard)
	if err != nil {
		return Stored{}, fmt.Errorf("save folder %s: %w", dir, err)
	}
	return stored, nil
}

func (sp *Space) storeWith(ctx context.Context, dir string, r rules) (Stored, error) {
	entries, err := scan(dir)
	if err != nil {
		return Stored{}, err
	}
	c, err := newCodec()
	if err != nil {
		return Stored{}, err
	}
	defer c.close()
	st := &storer{space: sp, keys: &sp.keys[0], codec: c, rules: r, batch: sp.store.Batch(), taken: map[string]bool{}}
	defer st.batch.Discard()
	if err := st.files(ctx, dir, entries); err != nil {
		return Stored{}, err
	}
	if err := st.batch.Commit(ctx); err != nil {
		return Stored{}, err
	}
	for reference := range st.taken {
		sp.store.Remember(sp.chunkKey(reference))
	}
	m := &manifest{Version: manifestVersion, Entries: entries}
	out := Stored{References: m.references()}
	var size int64
	if out.Manifest, size, err = sp.putManifest(ctx, c, m, out.References); err != nil {
		return Stored{}, err
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

	mu    sync.Mutex
	taken map[string]bool // references that this run has looked at

	buffers     sync.Pool
	zeroBytes   int64
	pieces      int64
	newPieces   atomic.Int64
	newBytes    atomic.Int64
	storedBytes atomic.Int64
}

// files cuts all files in order, in this goroutine, and works on their pieces in others.
func (st *storer) files(ctx context.Context, dir string, entries []*entry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	err := func() error {
		for _, e := range entries {
			if e.Dir {
				continue
			}
			if err := st.file(ctx, group, filepath.Join(dir, filepath.FromSlash(e.Path)), e); err != nil {
				return fmt.Errorf("%s: %w", e.Path, err)
			}
		}
		return nil
	}()
	// A failed piece is the cause of the cutter's own end, so it is named first.
	if werr := group.Wait(); werr != nil {
		return werr
	}
	return err
}

func (st *storer) file(ctx context.Context, group *errgroup.Group, path string, e *entry) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	c := &cutter{
		rules:  st.rules,
		buffer: st.buffer,
		zero: func(size int64) error {
			e.Pieces = append(e.Pieces, &piece{Size: size})
			st.zeroBytes += size
			return nil
		},
		data: func(data []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := &piece{Size: int64(len(data))}
			e.Pieces = append(e.Pieces, p)
			st.pieces++
			group.Go(func() error {
				defer st.buffers.Put(&data)
				return st.piece(ctx, p, data)
			})
			return nil
		},
	}
	if err := cutFile(f, e.Size, c); err != nil {
		return err
	}
	if info, err := f.Stat(); err != nil || info.Size() != e.Size {
		return errors.Join(errors.New("the file changed while it was saved"), err)
	}
	return nil
}

func (st *storer) buffer() []byte {
	if b, ok := st.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, st.rules.max+pageSize)
}

// cutFile feeds size bytes of f to c, holes without reading them.
func cutFile(f *os.File, size int64, c *cutter) error {
	block := make([]byte, 64*pageSize)
	for at := int64(0); at < size; {
		start, end := dataAt(f, at, size)
		if err := c.hole(start - at); err != nil {
			return err
		}
		for at = start; at < end; {
			n := int(min(int64(len(block)), end-at))
			if _, err := f.ReadAt(block[:n], at); err != nil {
				if errors.Is(err, io.EOF) {
					return errors.New("the file became shorter while it was saved")
				}
				return err
			}
			for i := 0; i < n; i += pageSize {
				if err := c.page(block[i:min(i+pageSize, n)]); err != nil {
					return err
				}
			}
			at += int64(n)
		}
	}
	return c.end()
}

// dataAt gives the next part of f from at on that has data, widened to whole pages; start is size if there is none. A
// file system that knows no holes makes everything data.
func dataAt(f *os.File, at, size int64) (start, end int64) {
	start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size
	}
	if err != nil {
		return at, size
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil {
		return at, size
	}
	start = max(at, start/pageSize*pageSize)
	end = (end + pageSize - 1) / pageSize * pageSize
	return min(start, size), min(end, size)
}

// piece names a piece by its digest and stores it unless it is there.
func (st *storer) piece(ctx context.Context, p *piece, data []byte) error {
	p.Reference = st.space.reference(st.keys.digest(data))
	st.mu.Lock()
	again := st.taken[p.Reference]
	st.taken[p.Reference] = true
	st.mu.Unlock()
	store, key := st.space.store, st.space.chunkKey(p.Reference)
	if again || store.Remembers(key) {
		return nil
	}
	size, found, err := store.Size(ctx, key)
	if err != nil || found && size >= sealBytes {
		return err
	}
	scratch, out := st.buffer(), st.buffer()
	defer func() { st.buffers.Put(&scratch); st.buffers.Put(&out) }()
	sealed, err := st.codec.seal(st.keys, key, st.keys.head(), data, scratch, out)
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
