package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// mediaTypeLayerZstd is the media type of every layer that this package writes.
const mediaTypeLayerZstd = types.MediaType("application/vnd.oci.image.layer.v1.tar+zstd")

// diffIDNote, on a layer's descriptor, is the digest of its uncompressed tar.
const diffIDNote = "dev.helmr.image.diff-id"

// blobDir is the blobs/sha256 folder of an OCI layout. Blobs appear in it whole or not at all.
type blobDir struct{ layout string }

func newBlobDir(layout string) (blobDir, error) {
	b := blobDir{layout}
	if err := os.MkdirAll(filepath.Join(layout, "blobs", "sha256"), 0o755); err != nil {
		return b, fmt.Errorf("create image layout: %w", err)
	}
	marker := filepath.Join(layout, "oci-layout")
	if _, err := os.Stat(marker); errors.Is(err, os.ErrNotExist) {
		if err := writeFileAtomic(marker, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (b blobDir) path(h v1.Hash) string { return filepath.Join(b.layout, "blobs", "sha256", h.Hex) }

// put stores what write produces and gives its digest and size.
func (b blobDir) put(write func(w io.Writer) error) (v1.Hash, int64, error) {
	f, err := os.CreateTemp(filepath.Join(b.layout, "blobs", "sha256"), ".new-*")
	if err != nil {
		return v1.Hash{}, 0, fmt.Errorf("create blob: %w", err)
	}
	defer dropDir(f.Name())
	defer drop(f)
	sum := &countingHash{Hash: sha256.New()}
	if err := write(io.MultiWriter(f, sum)); err != nil {
		return v1.Hash{}, 0, err
	}
	if err := f.Chmod(0o644); err != nil {
		return v1.Hash{}, 0, fmt.Errorf("write blob: %w", err)
	}
	if err := f.Close(); err != nil {
		return v1.Hash{}, 0, fmt.Errorf("write blob: %w", err)
	}
	h := sum.digest()
	if err := os.Rename(f.Name(), b.path(h)); err != nil {
		return v1.Hash{}, 0, fmt.Errorf("name blob: %w", err)
	}
	return h, sum.n, nil
}

// link makes a blob of another layout appear here, as a hard link where that is possible.
func (b blobDir) link(from string, h v1.Hash) error {
	if err := os.Link(from, b.path(h)); err == nil || errors.Is(err, os.ErrExist) {
		return nil
	}
	got, _, err := b.put(func(w io.Writer) error {
		f, err := os.Open(from)
		if err != nil {
			return fmt.Errorf("read blob: %w", err)
		}
		defer drop(f)
		_, err = io.Copy(w, f)
		return err
	})
	if err == nil && got != h {
		err = fmt.Errorf("blob %s has the wrong content (%s)", h, got)
	}
	return err
}

// rawImage is an image from anywhere: its configuration and its layers as uncompressed tars, lowest first.
type rawImage struct {
	config v1.ConfigFile
	layers []rawLayer
}

type rawLayer struct {
	// diffID is the digest that the uncompressed tar must have; the zero Hash when nobody said one.
	diffID v1.Hash
	open   func() (io.ReadCloser, error)
}

// fromImage reads an image of go-containerregistry.
func fromImage(img v1.Image) (rawImage, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return rawImage{}, fmt.Errorf("read image configuration: %w", err)
	}
	layers, err := img.Layers()
	if err != nil {
		return rawImage{}, fmt.Errorf("read image layers: %w", err)
	}
	if len(cfg.RootFS.DiffIDs) != len(layers) {
		return rawImage{}, fmt.Errorf("the image has %d layers and a configuration for %d", len(layers), len(cfg.RootFS.DiffIDs))
	}
	raw := rawImage{config: *cfg}
	for i, l := range layers {
		raw.layers = append(raw.layers, rawLayer{diffID: cfg.RootFS.DiffIDs[i], open: l.Uncompressed})
	}
	return raw, nil
}

// knownLayer is a layer that some layout already holds in this package's form.
type knownLayer struct {
	path string
	desc v1.Descriptor
}

// packed is an image in this package's form: zstd layers, a configuration without names and times of its builder.
type packed struct {
	digest   v1.Hash
	size     int64
	manifest v1.Manifest
	config   v1.ConfigFile
}

// pack writes raw into dst. Layers in known are linked, not compressed again; the others are, after rewrite when that
// is given. Equal input gives equal bytes.
func pack(ctx context.Context, dst blobDir, raw rawImage, known map[v1.Hash]knownLayer, rewrite func(io.Reader, io.Writer) error) (packed, error) {
	descs := make([]v1.Descriptor, len(raw.layers))
	diffs := make([]v1.Hash, len(raw.layers))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i, l := range raw.layers {
		if k, ok := known[l.diffID]; ok {
			if err := dst.link(k.path, k.desc.Digest); err != nil {
				return packed{}, errors.Join(err, g.Wait())
			}
			descs[i], diffs[i] = k.desc, l.diffID
			continue
		}
		g.Go(func() error {
			var err error
			descs[i], diffs[i], err = dst.putLayer(ctx, l, rewrite)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return packed{}, err
	}
	return finish(dst, raw.config, descs, diffs)
}

// finish writes configuration and manifest over layers that are there.
func finish(dst blobDir, from v1.ConfigFile, layers []v1.Descriptor, diffs []v1.Hash) (packed, error) {
	cfg := plainConfig(from, diffs)
	cfgDigest, cfgSize, err := dst.putJSON(cfg)
	if err != nil {
		return packed{}, err
	}
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: layers,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: cfgDigest, Size: cfgSize},
	}
	digest, size, err := dst.putJSON(m)
	if err != nil {
		return packed{}, err
	}
	return packed{digest: digest, size: size, manifest: m, config: cfg}, nil
}

func (b blobDir) putJSON(v any) (v1.Hash, int64, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return v1.Hash{}, 0, fmt.Errorf("encode image metadata: %w", err)
	}
	return b.putBytes(text)
}

func (b blobDir) putBytes(text []byte) (v1.Hash, int64, error) {
	return b.put(func(w io.Writer) error { _, err := io.Copy(w, bytes.NewReader(text)); return err })
}

// putLayer compresses one layer and checks it against the digest that was promised for it.
func (b blobDir) putLayer(ctx context.Context, l rawLayer, rewrite func(io.Reader, io.Writer) error) (v1.Descriptor, v1.Hash, error) {
	rc, err := l.open()
	if err != nil {
		return v1.Descriptor{}, v1.Hash{}, fmt.Errorf("open layer: %w", err)
	}
	defer drop(rc)
	in := &countingHash{Hash: sha256.New()}
	out := &countingHash{Hash: sha256.New()}
	src := io.TeeReader(&contextReader{ctx, rc}, in)
	digest, size, err := b.put(func(w io.Writer) error {
		enc, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
		if err != nil {
			return fmt.Errorf("compress layer: %w", err)
		}
		defer drop(enc)
		tee := io.MultiWriter(enc, out)
		if rewrite != nil {
			err = rewrite(src, tee)
		}
		if rewrite == nil || err == nil {
			rest := tee
			if rewrite != nil {
				rest = io.Discard
			}
			_, err = io.CopyBuffer(onlyWriter{rest}, src, make([]byte, 256<<10))
		}
		if err != nil {
			return fmt.Errorf("read layer: %w", err)
		}
		return enc.Close()
	})
	if err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	if l.diffID != (v1.Hash{}) && in.digest() != l.diffID {
		return v1.Descriptor{}, v1.Hash{}, fmt.Errorf("a layer has the wrong content: expected %s, got %s", l.diffID, in.digest())
	}
	diff := out.digest()
	return v1.Descriptor{
		MediaType: mediaTypeLayerZstd, Digest: digest, Size: size,
		Annotations: map[string]string{diffIDNote: diff.String()},
	}, diff, nil
}

// plainConfig keeps of a configuration what matters when a program runs in the image, so that equal images are equal
// whoever built them and when.
func plainConfig(from v1.ConfigFile, diffs []v1.Hash) v1.ConfigFile {
	c := from.Config
	labels := map[string]string{}
	for k, v := range c.Labels {
		if k != "io.buildah.version" {
			labels[k] = v
		}
	}
	if len(labels) == 0 {
		labels = nil
	}
	epoch := v1.Time{Time: time.Unix(0, 0).UTC()}
	// buildah insists on as many entries of history as layers.
	history := make([]v1.History, len(diffs))
	for i := range history {
		history[i] = v1.History{Created: epoch}
	}
	return v1.ConfigFile{
		Architecture: "amd64", OS: "linux", Created: epoch, History: history,
		Config: v1.Config{
			User: c.User, Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, WorkingDir: c.WorkingDir, Labels: labels,
			ExposedPorts: c.ExposedPorts, Volumes: c.Volumes, StopSignal: c.StopSignal,
		},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: diffs},
	}
}

// countingHash counts and digests what passes.
type countingHash struct {
	hash.Hash
	n int64
}

func (c *countingHash) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.Hash.Write(p)
}

func (c *countingHash) digest() v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(c.Sum(nil))}
}

// contextReader stops a long copy when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// onlyWriter hides ReadFrom, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

func writeFileAtomic(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	defer dropDir(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

func jsonDigest(v any) (v1.Hash, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("encode image metadata: %w", err)
	}
	h, _, err := v1.SHA256(bytes.NewReader(text))
	return h, err
}

func indexJSON(images ...v1.Descriptor) ([]byte, error) {
	text, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: images})
	if err != nil {
		return nil, fmt.Errorf("encode image index: %w", err)
	}
	return text, nil
}

// drop closes what was only read, or what has failed already: a failure to close it changes nothing.
func drop(c io.Closer) { _ = c.Close() }

// dropDir removes a temporary file or folder. If that fails, it is in the way of nobody.
func dropDir(path string) { _ = os.RemoveAll(path) }
