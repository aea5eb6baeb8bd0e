package chunk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// growth is how often a file that is being written is looked at.
const growth = time.Millisecond

// input is a file that is read, perhaps while somebody still appends to it.
type input struct {
	f *os.File
	// size is up to where its bytes are there and will not change; final tells that there will be no more.
	size    int64
	final   bool
	written <-chan struct{} // closed once the file is whole; nil if it is from the beginning
}

// awaitFile opens a file as soon as it exists. It gives nil if it does not once written is closed.
func awaitFile(ctx context.Context, path string, written <-chan struct{}) (*os.File, error) {
	for last := false; ; {
		f, err := os.Open(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		if last {
			return nil, nil
		}
		if last, err = pause(ctx, written); err != nil {
			return nil, err
		}
	}
}

// pause waits a moment, and tells whether written has been closed.
func pause(ctx context.Context, written <-chan struct{}) (bool, error) {
	timer := time.NewTimer(growth)
	defer timer.Stop()
	select {
	case <-written:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// reach returns once the file has want bytes or all that it will have.
func (in *input) reach(ctx context.Context, want int64) error {
	for !in.final && in.size < want {
		if err := in.look(); err != nil || in.size >= want {
			return err
		}
		last, err := pause(ctx, in.written)
		if err != nil {
			return err
		}
		if last {
			info, err := in.f.Stat()
			if err != nil {
				return err
			}
			if info.Size() < in.size {
				return errors.New("the file became shorter while it was saved")
			}
			in.size, in.final = info.Size(), true
		}
	}
	return nil
}

// look finds out how far the file has grown. Whoever appends leaves no holes: a hole is what has not been written yet,
// should the end of the file ever run ahead of its bytes. Only whole pages count.
func (in *input) look() error {
	info, err := in.f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size > in.size {
		hole, err := unix.Seek(int(in.f.Fd()), in.size, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("look for holes: %w", err)
		}
		size = min(size, hole)
	}
	in.size = max(in.size, size/pageSize*pageSize)
	return nil
}

// read fills p with what is at an offset.
func (in *input) read(p []byte, at int64) error {
	_, err := in.f.ReadAt(p, at)
	if errors.Is(err, io.EOF) {
		return errors.New("the file became shorter while it was saved")
	}
	return err
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
