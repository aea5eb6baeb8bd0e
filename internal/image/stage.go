package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"helmr.dev/helmr/internal/fault"
)

// Bounds of what one image copies from the source root.
const (
	maxStagedBytes   = 4 << 30
	maxStagedEntries = 200_000
)

// stager copies the sources of an image into a build context of its own. So no ignore file of the project has an
// effect, and equal files are equal to the builder: owner root, modes 0755 or 0644, time zero.
type stager struct {
	ctx     context.Context
	root    *os.Root
	bytes   int64
	entries int
}

// stageContext fills dir with one folder c<i> for each copied source.
func stageContext(ctx context.Context, key, sourceRoot, dir string, copies []stagedCopy) error {
	if len(copies) == 0 {
		return nil
	}
	root, err := os.OpenRoot(sourceRoot)
	if err != nil {
		return fmt.Errorf("open source root: %w", err)
	}
	defer drop(root)
	s := &stager{ctx: ctx, root: root}
	for i, c := range copies {
		if err := s.stage(c, filepath.Join(dir, fmt.Sprintf("c%d", i))); err != nil {
			return fault.New(fault.InvalidArguments, "Image %q: cannot copy %s %q: %v.", key, c.source.Kind, c.source.Path, unwrapPath(err)).Because(err)
		}
	}
	return nil
}

func (s *stager) stage(c stagedCopy, to string) error {
	from := path.Clean(c.source.Path)
	info, err := s.root.Stat(from)
	if err != nil {
		return err
	}
	if c.source.Kind == KindDirectory {
		if !info.IsDir() {
			return errors.New("it is no directory; use source.file()")
		}
		return s.copyDir(from, to)
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is no regular file; use source.directory() for a directory")
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := s.copyFile(from, filepath.Join(to, c.name), info); err != nil {
		return err
	}
	return settle(to, 0o755)
}

func (s *stager) copyDir(from, to string) error {
	if err := s.count(0); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	d, err := s.root.Open(from)
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := path.Join(from, e.Name()), filepath.Join(to, e.Name())
		info, err := s.root.Lstat(src)
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			err = s.copyDir(src, dst)
		case info.Mode().IsRegular():
			err = s.copyFile(src, dst, info)
		case info.Mode()&fs.ModeSymlink != 0:
			err = s.copyLink(src, dst)
		default:
			err = fmt.Errorf("%s is a socket, pipe or device", src)
		}
		if err != nil {
			return err
		}
	}
	return settle(to, 0o755)
}

func (s *stager) copyFile(from, to string, info fs.FileInfo) error {
	if err := s.count(info.Size()); err != nil {
		return err
	}
	in, err := s.root.Open(from)
	if err != nil {
		return err
	}
	defer drop(in)
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return settle(to, mode)
}

// copyLink keeps a symbolic link that stays inside the source root.
func (s *stager) copyLink(from, to string) error {
	if err := s.count(0); err != nil {
		return err
	}
	target, err := s.root.Readlink(from)
	if err != nil {
		return err
	}
	end := path.Join(path.Dir(from), target)
	if path.IsAbs(target) || end == ".." || strings.HasPrefix(end, "../") {
		return fmt.Errorf("the symbolic link %s points out of the project, to %s", from, target)
	}
	return os.Symlink(target, to)
}

func (s *stager) count(bytes int64) error {
	s.entries++
	s.bytes += bytes
	if s.bytes > maxStagedBytes {
		return fmt.Errorf("the copied sources are larger than %d GiB together", maxStagedBytes>>30)
	}
	if s.entries > maxStagedEntries {
		return fmt.Errorf("the copied sources have more than %d entries", maxStagedEntries)
	}
	return s.ctx.Err()
}

func settle(p string, mode fs.FileMode) error {
	return errors.Join(os.Chmod(p, mode), os.Chtimes(p, time.Unix(0, 0), time.Unix(0, 0)))
}
