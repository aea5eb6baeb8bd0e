package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openFolder makes one layer of a root filesystem.
func openFolder(ctx context.Context, dir string) (rawImage, error) {
	return rawImage{config: defaultConfig(), layers: []rawLayer{{open: func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeFolder(ctx, w, dir, folderOptions{rootfs: true})) }()
		return r, nil
	}}}}, nil
}

type folderOptions struct {
	// prefix is put before each name, without slashes at its ends.
	prefix string
	// rootfs leaves out what is in /proc, /sys and /dev.
	rootfs bool
	// plain writes owner root, modes 0755 or 0644, and time zero, whatever the files have.
	plain bool
	// skip leaves out a path relative to the folder.
	skip func(rel string) bool
}

// writeFolder writes a folder as a tar in lexical order. Sockets and devices are left out.
func writeFolder(ctx context.Context, w io.Writer, dir string, o folderOptions) error {
	tw := tar.NewWriter(w)
	links := map[[2]uint64]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if rel == "." {
			return nil
		}
		if o.skip != nil && o.skip(rel) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if err := writeEntry(tw, p, rel, d, links, o); err != nil {
			return err
		}
		if o.rootfs && d.IsDir() && (rel == "proc" || rel == "sys" || rel == "dev") {
			return filepath.SkipDir
		}
		return nil
	})
	if err == nil {
		err = tw.Close()
	}
	if err != nil {
		return fmt.Errorf("read folder %s: %w", dir, err)
	}
	return nil
}

func writeEntry(tw *tar.Writer, p, rel string, d fs.DirEntry, links map[[2]uint64]string, o folderOptions) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if info.Mode()&(fs.ModeSocket|fs.ModeDevice) != 0 {
		return nil
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(p); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name = filepath.ToSlash(filepath.Join(o.prefix, rel))
	if info.IsDir() {
		h.Name += "/"
	}
	h.Uname, h.Gname, h.AccessTime, h.ChangeTime, h.Format = "", "", time.Time{}, time.Time{}, tar.FormatPAX
	if o.plain {
		h.Uid, h.Gid, h.ModTime, h.Mode = 0, 0, time.Unix(0, 0), 0o644
		if info.IsDir() || info.Mode()&0o111 != 0 {
			h.Mode = 0o755
		}
	} else {
		if h.PAXRecords, err = xattrRecords(p); err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && info.Mode().IsRegular() && st.Nlink > 1 {
			key := [2]uint64{st.Dev, st.Ino}
			if first, seen := links[key]; seen {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
				h.PAXRecords = nil
				return tw.WriteHeader(h)
			}
			links[key] = h.Name
		}
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return errors.Join(err, f.Close())
}

const xattrRecord = "SCHILY.xattr."

// xattrRecords are a file's extended attributes that belong into an image.
func xattrRecords(p string) (map[string]string, error) {
	n, err := unix.Llistxattr(p, nil)
	if n == 0 || errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	buf := make([]byte, n)
	if n, err = unix.Llistxattr(p, buf); err != nil {
		return nil, err
	}
	records := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if !keepXattr(name) {
			continue
		}
		size, err := unix.Lgetxattr(p, name, nil)
		if err != nil {
			return nil, err
		}
		value := make([]byte, size)
		if size, err = unix.Lgetxattr(p, name, value); err != nil {
			return nil, err
		}
		records[xattrRecord+name] = string(value[:size])
	}
	return records, nil
}

// keepXattr tells which extended attributes are part of an image: file capabilities and the user's own. Labels and
// trusted ones belong to the host.
func keepXattr(name string) bool {
	return name == "security.capability" || strings.HasPrefix(name, "user.")
}
