package image

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type nodeKind uint8

const (
	kindDir nodeKind = iota + 1
	kindFile
	kindLink
	kindPipe
)

// node is one inode of the image. Hard links are one node at several places.
type node struct {
	kind     nodeKind
	mode     uint32
	uid, gid int
	mtime    time.Time
	// target of a symbolic link: text, followed within the tree only.
	target string
	// data is the spooled file with a regular file's content; after the first place has taken it, placed is set.
	data   string
	placed *spot
	// children of a folder.
	children map[string]*node
}

// spot is where a node was written first.
type spot struct {
	dir  string
	name string
}

// tree is the merged image in memory.
type tree struct{ root *node }

func newTree() *tree { return &tree{root: newDir()} }

func newDir() *node {
	return &node{kind: kindDir, mode: 0o755, mtime: time.Unix(0, 0), children: map[string]*node{}}
}

const maxLinkHops = 40

// apply lays a layer over the tree: first what it removes from the layers below, then what it adds, in order.
func (t *tree) apply(entries []entry) error {
	for _, e := range entries {
		if !e.whiteout && !e.opaque {
			continue
		}
		dir, err := t.folder(e.path, false)
		if err != nil {
			return err
		}
		switch {
		case dir == nil:
		case e.opaque:
			clear(dir.children)
		default:
			delete(dir.children, e.name)
		}
	}
	for _, e := range entries {
		if e.whiteout || e.opaque {
			continue
		}
		if err := t.add(e); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) add(e entry) error {
	if e.name == "" {
		e.node.children = t.root.children
		t.root = e.node
		return nil
	}
	dir, err := t.folder(e.path, true)
	if err != nil {
		return err
	}
	if e.link != "" {
		from, name := path.Split(e.link)
		source, err := t.folder(strings.TrimSuffix(from, "/"), false)
		if err != nil {
			return err
		}
		if source == nil || source.children[name] == nil || source.children[name].kind == kindDir {
			return invalid("the hard link %q names %q, which is no file of the image", path.Join(e.path, e.name), e.link)
		}
		dir.children[e.name] = source.children[name]
		return nil
	}
	if old := dir.children[e.name]; old != nil && old.kind == kindDir && e.node.kind == kindDir {
		e.node.children = old.children
	}
	dir.children[e.name] = e.node
	return nil
}

// folder finds a folder as the image itself would: symbolic links are followed within it, ".." ends at its root. A
// missing folder is made, or gives nil.
func (t *tree) folder(p string, create bool) (*node, error) {
	dir, trail := t.root, []*node{}
	todo := split(p)
	for hops := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(trail) > 0 {
				dir, trail = trail[len(trail)-1], trail[:len(trail)-1]
			}
			continue
		}
		next := dir.children[name]
		switch {
		case next == nil && !create:
			return nil, nil
		case next == nil:
			if len(trail) >= maxPathDepth {
				return nil, invalid("the path %q is deeper than %d folders", p, maxPathDepth)
			}
			next = newDir()
			dir.children[name] = next
		case next.kind == kindLink:
			if hops++; hops > maxLinkHops {
				return nil, invalid("the path %q goes through too many symbolic links", p)
			}
			if strings.HasPrefix(next.target, "/") {
				dir, trail = t.root, trail[:0]
			}
			todo = append(split(next.target), todo...)
			if len(todo) > 4*maxPathDepth {
				return nil, invalid("the path %q goes through too long symbolic links", p)
			}
			continue
		case next.kind != kindDir && !create:
			return nil, nil
		case next.kind != kindDir:
			return nil, invalid("the path %q goes through a file", p)
		}
		dir, trail = next, append(trail, dir)
	}
	return dir, nil
}

func split(p string) []string { return strings.Split(p, "/") }

// write makes the tree in the empty folder root, with file contents taken from the folder data. Each name is one
// checked component, used relative to an open folder that was made here a moment ago; no symbolic link is followed.
func (t *tree) write(ctx context.Context, data, root string) error {
	w := &treeWriter{ctx: ctx}
	var err error
	if w.data, err = openDir(unix.AT_FDCWD, data); err != nil {
		return fmt.Errorf("open data folder: %w", err)
	}
	defer dropFd(w.data)
	if w.root, err = openDir(unix.AT_FDCWD, root); err != nil {
		return fmt.Errorf("open root folder: %w", err)
	}
	defer dropFd(w.root)
	return w.fill(w.root, "", t.root, 0)
}

type treeWriter struct {
	ctx        context.Context
	data, root int
}

func openDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// fill writes the children of n into the open folder fd, whose path in the image is p, then its own metadata.
func (w *treeWriter) fill(fd int, p string, n *node, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if depth > maxPathDepth || len(p) > maxPathBytes {
		return invalid("the folder %q is too deep", p)
	}
	names := make([]string, 0, len(n.children))
	for name := range n.children {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.place(fd, p, name, n.children[name], depth); err != nil {
			return fmt.Errorf("write %q: %w", path.Join(p, name), err)
		}
	}
	if err := unix.Fchown(fd, n.uid, n.gid); err != nil {
		return fmt.Errorf("set owner of %q: %w", p, err)
	}
	if err := unix.Fchmod(fd, n.mode); err != nil {
		return fmt.Errorf("set mode of %q: %w", p, err)
	}
	if err := unix.Futimes(fd, timevals(n.mtime)); err != nil {
		return fmt.Errorf("set time of %q: %w", p, err)
	}
	return nil
}

func (w *treeWriter) place(fd int, p, name string, n *node, depth int) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return invalid("the name %q is none", name)
	}
	if n.placed != nil {
		return w.hardLink(fd, name, n.placed)
	}
	if n.kind != kindDir {
		n.placed = &spot{dir: p, name: name}
	}
	switch n.kind {
	case kindDir:
		if err := unix.Mkdirat(fd, name, 0o700); err != nil {
			return err
		}
		sub, err := openDir(fd, name)
		if err != nil {
			return err
		}
		return errors.Join(w.fill(sub, path.Join(p, name), n, depth+1), unix.Close(sub))
	case kindFile:
		return unix.Renameat(w.data, n.data, fd, name)
	case kindLink:
		if err := unix.Symlinkat(n.target, fd, name); err != nil {
			return err
		}
		return setMeta(fd, name, n)
	case kindPipe:
		if err := unix.Mknodat(fd, name, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		if err := setMeta(fd, name, n); err != nil {
			return err
		}
		return unix.Fchmodat(fd, name, n.mode, 0)
	}
	return fmt.Errorf("node of kind %d", n.kind)
}

// setMeta sets owner and time of what was just made here and is no file.
func setMeta(fd int, name string, n *node) error {
	if err := unix.Fchownat(fd, name, n.uid, n.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(n.mtime.UnixNano())
	return unix.UtimesNanoAt(fd, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// hardLink walks to the first place, folder by folder: all of them were made here.
func (w *treeWriter) hardLink(fd int, name string, first *spot) error {
	dir, err := openDir(w.root, ".")
	if err != nil {
		return err
	}
	defer func() { dropFd(dir) }()
	if first.dir != "" {
		for c := range strings.SplitSeq(first.dir, "/") {
			next, err := openDir(dir, c)
			if err != nil {
				return err
			}
			_ = unix.Close(dir)
			dir = next
		}
	}
	return unix.Linkat(dir, first.name, fd, name, 0)
}

func dropFd(fd int) { _ = unix.Close(fd) }
