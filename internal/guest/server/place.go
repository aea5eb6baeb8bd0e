package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/guest/proto"
	"helmr.dev/helmr/internal/guest/scope"
)

// maxLinks bounds the symbolic links on the way to a file, as the kernel does.
const maxLinks = 40

// placed numbers the temporary names of files that are being placed.
var placed atomic.Int64

// placeFile writes a file, for its owner alone unless it is public. PID 1 may write everywhere, so it does not let programs of other users lead it
// astray: a symbolic link on the way is followed only if root made it, and one at the end is replaced.
func (s *Server) placeFile(r *proto.PlaceFile) (proto.Status, string) {
	if !path.IsAbs(r.GetPath()) || path.Clean(r.GetPath()) != r.GetPath() || r.GetPath() == "/" || strings.ContainsRune(r.GetPath(), 0) {
		return proto.Status_STATUS_INVALID, "the path is not a clean absolute one"
	}
	uid, gid, err := scope.Owner(r.GetUser())
	if err != nil {
		return proto.Status_STATUS_INVALID, fmt.Sprintf("user %q: %v", r.GetUser(), err)
	}
	mode := uint32(0o600)
	if r.GetPublic() {
		mode = 0o644
	}
	content := append(firstPublic(r.GetAfter()), r.GetContent()...)
	if err := place(r.GetPath(), content, int(uid), int(gid), mode); err != nil {
		return proto.Status_STATUS_INVALID, short(fmt.Sprintf("%s: %v", r.GetPath(), err))
	}
	return proto.Status_STATUS_OK, ""
}

// maxBefore bounds a file that comes before placed content, in bytes.
const maxBefore = 8 << 20

// firstPublic reads the first of the files that is there, with a line break at its end. PID 1 may read everything, so it
// takes only what root owns and lets everyone read: nobody gets to see more through it.
func firstPublic(names []string) []byte {
	for _, name := range names {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		var text []byte
		err = unix.Fstat(int(f.Fd()), &st)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Uid == 0 && st.Mode&0o004 != 0 && st.Size <= maxBefore {
			text, err = io.ReadAll(io.LimitReader(f, maxBefore))
		}
		_ = f.Close() // only read
		if err != nil || len(text) == 0 {
			continue
		}
		if text[len(text)-1] != '\n' {
			text = append(text, '\n')
		}
		return text
	}
	return nil
}

func place(name string, content []byte, uid, gid int, mode uint32) error {
	dir, err := openDir(path.Dir(name), uid, gid)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	temporary := ".helmr-" + strconv.FormatInt(placed.Add(1), 10)
	_ = unix.Unlinkat(dir, temporary, 0) // left by an earlier guest on this disk
	fd, err := unix.Openat(dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create the file: %w", err)
	}
	file := os.NewFile(uintptr(fd), temporary)
	_, err = file.Write(content)
	if err == nil {
		err = unix.Fchown(fd, uid, gid)
	}
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = unix.Renameat(dir, temporary, dir, path.Base(name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the file: %w", err), unix.Unlinkat(dir, temporary, 0))
	}
	return nil
}

// openDir opens a folder by its absolute path, name by name, and makes what is missing for the owner.
func openDir(name string, uid, gid int) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := unix.Open("/", flags, 0)
	if err != nil {
		return -1, fmt.Errorf("open /: %w", err)
	}
	// names are still to be gone through, stack holds the folders that were, so that ".." in a link leads back.
	names, links := segments(name), 0
	stack := []int{at}
	defer func() {
		for _, fd := range stack {
			_ = unix.Close(fd)
		}
	}()
	for len(names) > 0 {
		top, next := stack[len(stack)-1], names[0]
		names = names[1:]
		if next == ".." {
			if len(stack) > 1 {
				_ = unix.Close(top)
				stack = stack[:len(stack)-1]
			}
			continue
		}
		fd, err := unix.Openat(top, next, flags, 0)
		if errors.Is(err, unix.ENOENT) {
			if fd, err = makeDir(top, next, uid, gid); err != nil {
				return -1, fmt.Errorf("make folder %s: %w", next, err)
			}
		}
		if err == nil {
			stack = append(stack, fd)
			continue
		}
		target, linkErr := rootLink(top, next)
		if linkErr != nil {
			return -1, fmt.Errorf("open folder %s: %w", next, linkErr)
		}
		if links++; links > maxLinks {
			return -1, unix.ELOOP
		}
		if path.IsAbs(target) {
			for _, fd := range stack[1:] {
				_ = unix.Close(fd)
			}
			stack = stack[:1]
		}
		names = append(segments(target), names...)
	}
	top := stack[len(stack)-1]
	stack = stack[:len(stack)-1]
	return top, nil
}

// segments splits a path; empty ones and "." say nothing.
func segments(name string) []string {
	var out []string
	for _, s := range strings.Split(name, "/") {
		if s != "" && s != "." {
			out = append(out, s)
		}
	}
	return out
}

func makeDir(at int, name string, uid, gid int) (int, error) {
	if err := unix.Mkdirat(at, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchown(fd, uid, gid); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// rootLink reads a symbolic link that root owns.
func rootLink(at int, name string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", unix.ENOTDIR
	}
	if st.Uid != 0 {
		return "", errors.New("it is a symbolic link that does not belong to root")
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
