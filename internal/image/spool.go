package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// Bounds of one entry of a layer.
const (
	maxNameBytes = 255
	maxPathBytes = 3500
	maxPathDepth = 128
)

// budget is what is left of an archive's limits, shared by its layers.
type budget struct {
	bytes, entries       atomic.Int64
	maxBytes, maxEntries int64
}

func newBudget(lim limits) *budget {
	b := &budget{maxBytes: lim.bytes, maxEntries: lim.entries}
	b.bytes.Store(lim.bytes)
	b.entries.Store(lim.entries)
	return b
}

// meter takes from the budget what is read through it.
type meter struct {
	ctx context.Context
	r   io.Reader
	b   *budget
}

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	if m.b.bytes.Add(int64(-n)) < 0 {
		return n, invalid("its layers are larger than %d bytes uncompressed", m.b.maxBytes)
	}
	return n, err
}

// entry is one entry of a layer, checked by itself: its path is clean and relative, its name no trick.
type entry struct {
	// path is the folder; "" is the root. name is one component.
	path, name string
	// whiteout removes name of the layers below, opaque everything in the folder.
	whiteout, opaque bool
	// link is the path that a hard link names.
	link string
	// node is what stands at the path; nil for whiteouts, hard links and what is left out.
	node *node
}

// spool reads a layer: file contents go to numbered files of a flat folder, under names of ours; everything else stays
// in memory. So nothing that an archive names is ever looked up on the host.
type spool struct {
	ctx    context.Context
	dir    string
	prefix string
	budget *budget
	window uint64
	n      int
	buf    []byte
}

func (s *spool) readLayer(blobs map[string]*io.SectionReader, d v1.Descriptor) ([]entry, error) {
	blob, err := findBlob(blobs, d)
	if err != nil {
		return nil, err
	}
	s.buf = make([]byte, 256<<10)
	sum := sha256.New()
	raw := io.TeeReader(io.NewSectionReader(blob, 0, blob.Size()), sum)
	plain, err := decompress(raw, s.window)
	if err != nil {
		return nil, invalid("layer %s cannot be decompressed: %v", d.Digest, err)
	}
	defer drop(plain)
	entries, err := s.readTar(&meter{s.ctx, plain, s.budget})
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return nil, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != d.Digest.Hex {
		return nil, invalid("layer %s has the wrong content", d.Digest)
	}
	return entries, nil
}

func (s *spool) readTar(r io.Reader) ([]entry, error) {
	var entries []entry
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			if errors.Is(err, ErrInvalid) || s.ctx.Err() != nil {
				return nil, err
			}
			return nil, invalid("a layer is no valid tar: %v", err)
		}
		if s.budget.entries.Add(-1) < 0 {
			return nil, invalid("its layers have more than %d entries", s.budget.maxEntries)
		}
		e, keep, err := s.readEntry(h, tr)
		if err != nil {
			return nil, err
		}
		if keep {
			entries = append(entries, e)
		}
	}
}

func (s *spool) readEntry(h *tar.Header, r io.Reader) (e entry, keep bool, err error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return e, false, nil
	}
	full, err := cleanPath(h.Name)
	if err != nil {
		return e, false, err
	}
	e.path, e.name = path.Split(full)
	e.path = strings.TrimSuffix(e.path, "/")
	if rest, ok := strings.CutPrefix(e.name, ".wh."); ok {
		switch {
		case rest == ".wh..opq":
			e.opaque = true
		case strings.HasPrefix(rest, ".wh."):
			return e, false, nil // bookkeeping of an old union file system
		case rest == "" || rest == "." || rest == "..":
			return e, false, invalid("the whiteout %q removes nothing", h.Name)
		default:
			e.whiteout, e.name = true, rest
		}
		return e, true, nil
	}
	if h.Typeflag == tar.TypeLink {
		if e.link, err = cleanPath(h.Linkname); err != nil || e.link == "" {
			return e, false, invalid("the hard link %q names %q", h.Name, h.Linkname)
		}
		return e, full != "", nil
	}
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		// Left out, but it hides what lay there.
		e.whiteout = true
		return e, full != "", nil
	}
	n, err := newNode(h)
	if err != nil {
		return e, false, err
	}
	if full == "" && n.kind != kindDir {
		return e, false, invalid("the root is no folder")
	}
	if n.kind == kindFile {
		if n.data, err = s.store(n, r); err != nil {
			return e, false, err
		}
	}
	e.node = n
	return e, true, nil
}

// cleanPath makes a path relative to the image's root; "" is the root itself.
func cleanPath(name string) (string, error) {
	if len(name) > maxPathBytes || strings.ContainsRune(name, 0) {
		return "", invalid("a path of %d bytes is too long or has a NUL byte", len(name))
	}
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", invalid("the path %q leaves the image", name)
	}
	if clean == "." {
		return "", nil
	}
	depth := 0
	for c := range strings.SplitSeq(clean, "/") {
		depth++
		if len(c) > maxNameBytes {
			return "", invalid("the path %q has a name longer than %d bytes", name, maxNameBytes)
		}
	}
	if depth > maxPathDepth {
		return "", invalid("the path %q is deeper than %d folders", name, maxPathDepth)
	}
	return clean, nil
}

func newNode(h *tar.Header) (*node, error) {
	n := &node{mode: uint32(h.Mode) & 0o7777, mtime: h.ModTime}
	const maxID = 1<<32 - 2
	if h.Uid < 0 || h.Gid < 0 || h.Uid > maxID || h.Gid > maxID {
		return nil, invalid("%q has the owner %d:%d", h.Name, h.Uid, h.Gid)
	}
	n.uid, n.gid = h.Uid, h.Gid
	if n.mtime.Unix() < 0 || n.mtime.Unix() > 1<<33 {
		n.mtime = time.Unix(0, 0)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		n.kind = kindFile
	case tar.TypeDir:
		n.kind, n.children = kindDir, map[string]*node{}
	case tar.TypeSymlink:
		n.kind, n.target = kindLink, h.Linkname
		if n.target == "" || len(n.target) > 4095 || strings.ContainsRune(n.target, 0) {
			return nil, invalid("the symbolic link %q has no usable target", h.Name)
		}
		return n, nil
	case tar.TypeFifo:
		n.kind = kindPipe
	default:
		return nil, invalid("%q is of the unknown kind %q", h.Name, h.Typeflag)
	}
	return n, nil
}

// store writes a file's content and metadata into the flat folder and gives its name there.
func (s *spool) store(n *node, r io.Reader) (string, error) {
	name := s.prefix + strconv.Itoa(s.n)
	s.n++
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer drop(f)
	if _, err := io.CopyBuffer(onlyWriter{f}, onlyReader{r}, s.buf); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return "", invalid("a layer ends within a file")
		}
		return "", err
	}
	fd := int(f.Fd())
	// The owner comes first: changing it clears set-id bits and capabilities.
	if n.uid != 0 || n.gid != 0 {
		if err := unix.Fchown(fd, n.uid, n.gid); err != nil {
			return "", fmt.Errorf("set owner: %w", err)
		}
	}
	if err := unix.Fchmod(fd, n.mode); err != nil {
		return "", fmt.Errorf("set mode: %w", err)
	}
	return name, unix.Futimes(fd, timevals(n.mtime))
}

func timevals(t time.Time) []unix.Timeval {
	tv := unix.NsecToTimeval(t.UnixNano())
	return []unix.Timeval{tv, tv}
}

// onlyReader hides WriteTo, so that io.CopyBuffer uses its buffer.
type onlyReader struct{ io.Reader }
