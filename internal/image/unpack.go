package image

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"helmr.dev/helmr/internal/fault"
)

// ErrInvalid is wrapped by every error that is the archive's own fault: trying again does not help.
var ErrInvalid = errors.New("the image archive is invalid")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// limits bound what one archive may cost the Worker.
type limits struct {
	// bytes counts all layers uncompressed, entries their files, folders, links and whiteouts.
	bytes, entries int64
	metadata       int64
	layers         int
	window         uint64
}

var defaultLimits = limits{bytes: 16 << 30, entries: 1_000_000, metadata: 4 << 20, layers: 512, window: 128 << 20}

// Unpack turns an image archive, which is not trusted, into one read-only EROFS file and gives the image's
// configuration. The file appears whole or not at all; temporary files lie in a private folder beside it. Owners, modes
// with set-id bits, times, hard links and pipes are kept. Device files are left out, since a Computer has its own, and
// extended attributes, since gVisor cannot open an EROFS file that has any. Equal archives give equal files. It needs
// root and mkfs.erofs.
func Unpack(ctx context.Context, archive, out string) (Config, error) {
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".unpack-*")
	if err != nil {
		return Config{}, fmt.Errorf("unpack image: %w", err)
	}
	defer dropDir(tmp)
	return unpack(ctx, archive, out, tmp, defaultLimits)
}

func unpack(ctx context.Context, archive, out, tmp string, lim limits) (Config, error) {
	f, err := os.Open(archive)
	if err != nil {
		return Config{}, fmt.Errorf("unpack image: %w", err)
	}
	defer drop(f)
	a, err := readArchive(f, lim)
	if err != nil {
		return Config{}, fmt.Errorf("unpack image: %w", err)
	}
	// Nobody but this user may reach the files: an image may hold set-id programs.
	data, root := filepath.Join(tmp, "data"), filepath.Join(tmp, "root")
	if err := errors.Join(os.Chmod(tmp, 0o700), os.Mkdir(data, 0o700), os.Mkdir(root, 0o700)); err != nil {
		return Config{}, fmt.Errorf("unpack image: %w", err)
	}
	budget := newBudget(lim)
	layers := make([][]entry, len(a.layers))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i, l := range a.layers {
		g.Go(func() error {
			s := &spool{ctx: gctx, dir: data, prefix: fmt.Sprintf("%d-", i), budget: budget, window: lim.window}
			var err error
			layers[i], err = s.readLayer(a.blobs, l)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Config{}, fmt.Errorf("unpack image: %w", err)
	}
	t := newTree()
	for i, entries := range layers {
		if err := t.apply(entries); err != nil {
			return Config{}, fmt.Errorf("unpack image: layer %d: %w", i+1, err)
		}
	}
	cfg := configOf(a.config)
	if dir := strings.Trim(path.Clean(cfg.Workdir), "/"); dir != "" {
		// Builders only note the working folder of an image in which nothing ran; programs start in it.
		if _, err := t.folder(dir, true); err != nil {
			return Config{}, fmt.Errorf("unpack image: working folder: %w", err)
		}
	}
	if err := t.write(ctx, data, root); err != nil {
		return Config{}, fmt.Errorf("unpack image: %w", err)
	}
	if err := makeErofs(ctx, root, filepath.Join(tmp, "rootfs"), out); err != nil {
		return Config{}, fmt.Errorf("unpack image: %w", err)
	}
	return cfg, nil
}

// makeErofs writes root as an EROFS file. gVisor reads no inline data. Times are those of the files: with this epoch,
// which is later than all of them, nothing of the moment gets into the file.
func makeErofs(ctx context.Context, root, tmp, out string) error {
	cmd := exec.CommandContext(ctx, "mkfs.erofs", "--quiet", "-x-1", "-E", "noinline_data", "--preserve-mtime", "-U", "68656c6d-7200-4000-8000-000000000000", tmp, root)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=4102444800", "LC_ALL=C")
	if text, err := cmd.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fault.New(fault.Unavailable, "mkfs.erofs is not installed. Run: apt-get install -y erofs-utils").Because(err)
		}
		return fmt.Errorf("mkfs.erofs: %w: %s", err, lastLines(string(text), 3))
	}
	f, err := os.OpenFile(tmp, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = errors.Join(f.Chmod(0o444), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, out); err != nil {
		return err
	}
	return syncDir(filepath.Dir(out))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// archiveIndex is where everything is in an archive.
type archiveIndex struct {
	blobs  map[string]*io.SectionReader
	config v1.ConfigFile
	layers []v1.Descriptor
}

// readArchive finds the blobs and reads the metadata of the one image in the archive.
func readArchive(f *os.File, lim limits) (*archiveIndex, error) {
	a := &archiveIndex{blobs: map[string]*io.SectionReader{}}
	var index *io.SectionReader
	tr := tar.NewReader(f)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || n > 10*lim.layers {
			return nil, invalid("it is no tar of an OCI layout: %v", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		section := io.NewSectionReader(f, at, h.Size)
		name := path.Clean(h.Name)
		if digest, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && isSHA256(digest) {
			a.blobs[digest] = section
		} else if name == "index.json" {
			index = section
		}
	}
	if index == nil {
		return nil, invalid("it has no index.json")
	}
	var idx v1.IndexManifest
	var m v1.Manifest
	if err := readMetadata(index, lim, &idx); err != nil {
		return nil, err
	}
	if len(idx.Manifests) != 1 {
		return nil, invalid("it holds %d images instead of one", len(idx.Manifests))
	}
	if err := a.metadata(idx.Manifests[0], lim, &m); err != nil {
		return nil, err
	}
	if err := a.metadata(m.Config, lim, &a.config); err != nil {
		return nil, err
	}
	if a.config.OS != "linux" || a.config.Architecture != "amd64" {
		return nil, invalid("it is for %s/%s instead of linux/amd64", a.config.OS, a.config.Architecture)
	}
	if len(m.Layers) > lim.layers {
		return nil, invalid("it has more than %d layers", lim.layers)
	}
	a.layers = m.Layers
	return a, nil
}

func (a *archiveIndex) metadata(d v1.Descriptor, lim limits, into any) error {
	blob, err := findBlob(a.blobs, d)
	if err != nil {
		return err
	}
	h := sha256.New()
	if err := readMetadata(io.NewSectionReader(blob, 0, blob.Size()), lim, into); err != nil {
		return err
	}
	if _, err := io.Copy(h, io.NewSectionReader(blob, 0, blob.Size())); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != d.Digest.Hex {
		return invalid("blob %s has the wrong content", d.Digest)
	}
	return nil
}

func readMetadata(r *io.SectionReader, lim limits, into any) error {
	if r.Size() > lim.metadata {
		return invalid("its metadata is larger than %d bytes", lim.metadata)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return invalid("its metadata is no JSON of an OCI image: %v", err)
	}
	return nil
}

func findBlob(blobs map[string]*io.SectionReader, d v1.Descriptor) (*io.SectionReader, error) {
	blob, ok := blobs[d.Digest.Hex]
	if !ok || d.Digest.Algorithm != "sha256" {
		return nil, invalid("blob %s is missing", d.Digest)
	}
	if blob.Size() != d.Size {
		return nil, invalid("blob %s has %d bytes instead of %d", d.Digest, blob.Size(), d.Size)
	}
	return blob, nil
}

// decompress tells the compressions apart by their first bytes, whatever a media type says.
func decompress(r io.Reader, window uint64) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 256<<10)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case string(magic) == "\x28\xb5\x2f\xfd":
		d, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(window), zstd.WithDecoderConcurrency(2))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case len(magic) >= 2 && string(magic[:2]) == "\x1f\x8b":
		return gzip.NewReader(br)
	default:
		return io.NopCloser(br), nil
	}
}
