package chunk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Restore makes the folder dir out of the manifest with a name. dir must not exist; it appears only when everything was
// read and verified, otherwise nothing stays. Its content is not synced: after a crash of the machine restore it again.
// ErrUnreadable says that the folder is lost unless somebody repairs the blob store; other errors may pass.
func (sp *Space) Restore(ctx context.Context, name, dir string) error {
	if err := sp.restore(ctx, name, dir); err != nil {
		return fmt.Errorf("restore folder %s: %w", dir, err)
	}
	return nil
}

func (sp *Space) restore(ctx context.Context, name, dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return errors.New("it exists already")
	}
	c, err := newCodec()
	if err != nil {
		return err
	}
	defer c.close()
	m, err := sp.readManifest(ctx, c, name)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".restore-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	re := &restorer{space: sp, codec: c, root: root}
	if err := re.entries(ctx, m.Entries); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: tmp, New: dir, Err: err}
	}
	return nil
}

// restorer is one run of Restore.
type restorer struct {
	space *Space
	codec *codec
	root  *os.Root
}

// buffers are pieceBuffers, of all runs.
var buffers sync.Pool

// maxOpen bounds the files that are open at once.
const maxOpen = 256

// entries makes folders and files, and sets modes when nothing more is written.
func (re *restorer) entries(ctx context.Context, entries []*entry) error {
	var files []*entry
	for _, e := range entries {
		if !e.Dir {
			files = append(files, e)
		} else if err := re.root.Mkdir(e.Path, 0o700); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(files, maxOpen) {
		if err := re.files(ctx, some); err != nil {
			return err
		}
	}
	for _, e := range slices.Backward(entries) {
		if err := re.root.Chmod(e.Path, e.Mode); err != nil {
			return err
		}
	}
	return nil
}

// files makes some files, their pieces in parallel.
func (re *restorer) files(ctx context.Context, entries []*entry) (err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	var open []*os.File
	defer func() {
		// A failed piece is the cause of this goroutine's own end, so it is named first.
		if werr := group.Wait(); werr != nil {
			err = werr
		}
		for _, f := range open {
			if cerr := f.Close(); err == nil {
				err = cerr
			}
		}
	}()
	for _, e := range entries {
		f, err := re.root.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		open = append(open, f)
		if err := re.file(ctx, group, f, e); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
	}
	return nil
}

// file gives a new file its size, so that zero pieces stay holes, and starts the writing of the other pieces.
func (re *restorer) file(ctx context.Context, group *errgroup.Group, f *os.File, e *entry) error {
	if err := f.Truncate(e.Size); err != nil {
		return err
	}
	at := int64(0)
	for _, p := range e.Pieces {
		if err := ctx.Err(); err != nil {
			return err
		}
		if offset := at; p.Reference != "" {
			group.Go(func() error {
				if err := re.piece(ctx, f, p, offset); err != nil {
					return fmt.Errorf("%s at %d: %w", e.Path, offset, err)
				}
				return nil
			})
		}
		at += p.Size
	}
	return nil
}

func (re *restorer) piece(ctx context.Context, f *os.File, p *piece, offset int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, _ := buffers.Get().(*pieceBuffers)
	if b == nil {
		b = &pieceBuffers{}
	}
	defer buffers.Put(b)
	data, err := re.space.fetchPiece(ctx, re.codec, p.Reference, p.Size, b)
	if errors.Is(err, ErrUnreadable) {
		re.space.Retire(p.Reference) // whatever has this content is to be stored anew
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, offset)
	return err
}
