package chunk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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

// Store keeps the folder dir in s and gives the digest of its manifest. Pieces that s has are not stored again. The
// files must not change meanwhile; anything but plain files and folders is refused. If Store fails there is no
// manifest; pieces that are left over harm nothing.
func Store(ctx context.Context, s *blob.Store, dir string) (digest string, stats Stats, err error) {
	digest, stats, err = storeWith(ctx, s, dir, standard)
	if err != nil {
		return "", Stats{}, fmt.Errorf("save folder %s: %w", dir, err)
	}
	return digest, stats, nil
}

func storeWith(ctx context.Context, s *blob.Store, dir string, r rules) (string, Stats, error) {
	entries, err := scan(dir)
	if err != nil {
		return "", Stats{}, err
	}
	c, err := newCodec()
	if err != nil {
		return "", Stats{}, err
	}
	defer c.close()
	st := &storer{store: s, codec: c, rules: r, batch: s.Batch(), taken: map[string]bool{}}
	defer st.batch.Discard()
	if err := st.files(ctx, dir, entries); err != nil {
		return "", Stats{}, err
	}
	if err := st.batch.Commit(ctx); err != nil {
		return "", Stats{}, err
	}
	for digest := range st.taken {
		s.Remember(chunkKey(digest))
	}
	digest, err := st.manifest(ctx, entries)
	if err != nil {
		return "", Stats{}, err
	}
	return digest, st.result(entries), nil
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
	store *blob.Store
	codec *codec
	rules rules
	batch *blob.Batch

	mu    sync.Mutex
	taken map[string]bool // digests that this run has looked at

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
	p.Digest = digestOf(data)
	st.mu.Lock()
	again := st.taken[p.Digest]
	st.taken[p.Digest] = true
	st.mu.Unlock()
	key := chunkKey(p.Digest)
	if again || st.store.Remembers(key) {
		return nil
	}
	size, found, err := st.store.Size(ctx, key)
	if err != nil || found && size > 0 {
		return err
	}
	scratch := st.buffer()
	defer func() { st.buffers.Put(&scratch) }()
	sealed := st.codec.seal(data, scratch)
	if err := st.batch.Put(ctx, key, sealed); err != nil {
		return err
	}
	st.newPieces.Add(1)
	st.newBytes.Add(int64(len(data)))
	st.storedBytes.Add(int64(len(sealed)))
	return nil
}

// manifest stores the manifest, after all pieces.
func (st *storer) manifest(ctx context.Context, entries []*entry) (string, error) {
	m := &manifest{Version: manifestVersion, Entries: entries}
	if err := m.check(); err != nil {
		return "", err
	}
	plain, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	if len(plain) > maxManifest {
		return "", fmt.Errorf("the manifest has %d bytes; at most %d are possible", len(plain), maxManifest)
	}
	digest := digestOf(plain)
	if size, found, err := st.store.Size(ctx, ManifestKey(digest)); err != nil || found && size > 0 {
		return digest, err
	}
	sealed := st.codec.seal(plain, nil)
	st.storedBytes.Add(int64(len(sealed)))
	return digest, st.store.Put(ctx, ManifestKey(digest), bytes.NewReader(sealed))
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
