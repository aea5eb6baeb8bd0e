package build

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
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	configName   = "helmr.config.ts"
	manifestName = "package.json"
	ignoreName   = ".helmrignore"
)

// limits bound a tree of files. A value at its limit is accepted.
type limits struct {
	what      string
	bytes     int64
	fileBytes int64
	entries   int
	nameBytes int64
	depth     int
	linkHops  int
}

// The limits of what a build reads. maxIgnoreBytes is that of .helmrignore.
var (
	sourceLimits = limits{
		what: "the source", bytes: 512 << 20, fileBytes: 512 << 20, entries: 100_000, nameBytes: 128 << 20, depth: 128, linkHops: 40,
	}
	installedLimits = limits{
		what: "the installed tree", bytes: 10 << 30, fileBytes: 1 << 30, entries: 200_000, nameBytes: 128 << 20, depth: 128, linkHops: 40,
	}
)

const maxIgnoreBytes = 1 << 20

// sourceTime is the time of every captured file, so that images that copy them do not differ from build to build.
var sourceTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// entry is one file, folder or link of a tree; path is slash-separated below its root.
type entry struct {
	path       string
	kind       fs.FileMode // 0, fs.ModeDir or fs.ModeSymlink
	target     string      // of a link
	size       int64
	executable bool
}

// captured says what a capture took.
type captured struct {
	entries []entry // sorted by path, parents first
	files   int
	bytes   int64
}

// capture copies the source of the project at root into the empty folder target, leaving out what .helmrignore names,
// so that the rest of the build sees one unchanging instant of it.
func capture(ctx context.Context, root, target string) (captured, error) {
	if err := checkProject(root); err != nil {
		return captured{}, err
	}
	rules, err := readIgnore(root)
	if err != nil {
		return captured{}, err
	}
	w := walker{root: root, limits: sourceLimits, skip: func(name string, folder bool) bool {
		return name == ".git" || name == ".helmr" || rules.ignored(name, folder)
	}, check: checkSource}
	if err := w.walk(ctx, "", 0); err != nil {
		return captured{}, err
	}
	if err := checkLinks(w.entries, sourceLimits.linkHops); err != nil {
		return captured{}, err
	}
	if err := copyTree(ctx, root, target, w.entries); err != nil {
		return captured{}, err
	}
	return captured{entries: w.entries, files: w.files, bytes: w.bytes}, nil
}

// checkProject makes sure that root is a project before anything else is said about it.
func checkProject(root string) error {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return problem(root, "Name the folder of a project, or make one with `helmr init --dir "+root+"`", "there is no such folder")
	case err != nil:
		return fmt.Errorf("read project: %w", err)
	case !info.IsDir():
		return problem(root, "Name the folder that holds "+configName, "is not a folder")
	}
	for _, name := range []string{manifestName, configName} {
		info, err := os.Lstat(filepath.Join(root, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return problem(name, "A project root has package.json and helmr.config.ts; `helmr init` writes them", "is missing in %s", root)
		case err != nil:
			return fmt.Errorf("read project: %w", err)
		case !info.Mode().IsRegular():
			return problem(name, "Replace it by the file itself", "is not a plain file")
		}
	}
	return nil
}

func readIgnore(root string) (ignoreRules, error) {
	name := filepath.Join(root, ignoreName)
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", ignoreName, err)
	case !info.Mode().IsRegular():
		return nil, problem(ignoreName, "Replace it by a text file", "is not a plain file")
	case info.Size() > maxIgnoreBytes:
		return nil, problem(ignoreName, "Shorten it, for example with globs", "has %d bytes; at most %d are allowed", info.Size(), maxIgnoreBytes)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ignoreName, err)
	}
	return parseIgnore(text)
}

// checkSource refuses what must not get into a bundle by oversight.
func checkSource(e entry) error {
	base := path.Base(e.path)
	if e.kind == fs.ModeDir || e.kind == fs.ModeSymlink {
		switch e.path {
		case "node_modules":
			return problem(e.path, "Add the line node_modules/ to .helmrignore", "installed packages are no source: the build installs them itself")
		case "helmr":
			return problem(e.path, "Rename it, or name it in .helmrignore", "this name at the root belongs to helmr")
		}
	} else if e.path == "node_modules" || e.path == "helmr" {
		return problem(e.path, "Rename it, or name it in .helmrignore", "this name at the root is taken")
	}
	if e.kind == fs.ModeDir || base != ".env" && !strings.HasPrefix(base, ".env.") {
		return nil
	}
	for _, harmless := range []string{".example", ".sample", ".template"} {
		if strings.HasSuffix(base, harmless) {
			return nil
		}
	}
	return problem(e.path, "Name it in .helmrignore; Agents get secret values from Secrets, not from files of the project", "environment files are not put into bundles")
}

// walker collects the entries of a tree, in order, within limits.
type walker struct {
	root   string
	limits limits
	skip   func(path string, folder bool) bool
	check  func(entry) error

	entries   []entry
	files     int
	bytes     int64
	nameBytes int64
}

func (w *walker) walk(ctx context.Context, dir string, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	items, err := os.ReadDir(filepath.Join(w.root, filepath.FromSlash(dir)))
	if err != nil {
		return fmt.Errorf("read %s: %w", w.limits.what, err)
	}
	for _, item := range items {
		name := path.Join(dir, item.Name())
		if w.skip != nil && w.skip(name, item.IsDir()) {
			continue
		}
		if err := w.add(name, depth+1, item); err != nil {
			return err
		}
		if item.IsDir() {
			if err := w.walk(ctx, name, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walker) add(name string, depth int, item fs.DirEntry) error {
	info, err := item.Info()
	if err != nil {
		return fmt.Errorf("read %s: %w", w.limits.what, err)
	}
	e := entry{path: name, kind: info.Mode().Type()}
	switch e.kind {
	case 0:
		e.size, e.executable = info.Size(), info.Mode()&0o100 != 0
		w.files++
	case fs.ModeDir:
	case fs.ModeSymlink:
		if e.target, err = os.Readlink(filepath.Join(w.root, filepath.FromSlash(name))); err != nil {
			return fmt.Errorf("read %s: %w", w.limits.what, err)
		}
		w.nameBytes += int64(len(e.target))
	default:
		return problem(name, "Remove it, or name it in .helmrignore", "is neither a file nor a folder nor a link")
	}
	w.bytes += e.size
	w.nameBytes += int64(len(name))
	w.entries = append(w.entries, e)
	if err := w.limits.check(w, e, depth); err != nil {
		return err
	}
	if w.check != nil {
		return w.check(e)
	}
	return nil
}

func (l limits) check(w *walker, e entry, depth int) error {
	remedy := "Name what the build does not need in .helmrignore"
	switch {
	case !utf8.ValidString(e.path) || strings.ContainsAny(e.path, "\\\n"):
		return problem(fmt.Sprintf("%q", e.path), "Rename it", "the name is not UTF-8 or has a backslash or a line break in it")
	case e.size > l.fileBytes:
		return problem(e.path, remedy, "has %d bytes; at most %d are allowed", e.size, l.fileBytes)
	case w.bytes > l.bytes:
		return problem(e.path, remedy, "with this file %s has %d bytes; at most %d are allowed", l.what, w.bytes, l.bytes)
	case len(w.entries) > l.entries:
		return problem(e.path, remedy, "%s has more than %d entries", l.what, l.entries)
	case w.nameBytes > l.nameBytes:
		return problem(e.path, remedy, "the names in %s have more than %d bytes together", l.what, l.nameBytes)
	case depth > l.depth:
		return problem(e.path, remedy, "lies %d folders deep; at most %d are allowed", depth, l.depth)
	}
	return nil
}

// copyTree makes the entries of the tree at root again in target: plain modes, one time for all, links as they are.
func copyTree(ctx context.Context, root, target string, entries []entry) error {
	from, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("copy source: %w", err)
	}
	defer func() { _ = from.Close() }() // folders: nothing can be lost
	to, err := os.OpenRoot(target)
	if err != nil {
		return fmt.Errorf("copy source: %w", err)
	}
	defer func() { _ = to.Close() }() // as above
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch e.kind {
		case fs.ModeDir:
			err = to.Mkdir(e.path, 0o755)
		case fs.ModeSymlink:
			err = to.Symlink(e.target, e.path)
		default:
			err = copyFile(from, to, e)
		}
		if err != nil {
			return fmt.Errorf("copy source: %w", err)
		}
	}
	// Folders last and from the inside out: writing into one changes its time.
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].kind == fs.ModeSymlink {
			continue
		}
		if err := to.Chtimes(entries[i].path, sourceTime, sourceTime); err != nil {
			return fmt.Errorf("copy source: %w", err)
		}
	}
	return nil
}

func copyFile(from, to *os.Root, e entry) error {
	in, err := from.OpenFile(e.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read, nothing can be lost
	before, err := in.Stat()
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if e.executable {
		mode = 0o755
	}
	out, err := to.OpenFile(e.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, e.size+1))
	if err := errors.Join(err, out.Chmod(mode), out.Close()); err != nil {
		return err
	}
	after, err := in.Stat()
	if err != nil {
		return err
	}
	if !before.Mode().IsRegular() || n != e.size || after.Size() != e.size || !after.ModTime().Equal(before.ModTime()) {
		return problem(e.path, "Run the build again when nothing writes to the project", "changed while it was read")
	}
	return nil
}
