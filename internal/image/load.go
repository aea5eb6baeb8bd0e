package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"helmr.dev/helmr/internal/fault"
)

// Import stores the image in source under ref. source is an OCI layout folder, the root of a filesystem, a tar of
// either, or what `docker save` writes; tars may be gzipped.
func (s *Store) Import(ctx context.Context, ref, source string) (Entry, error) {
	full, err := Normalize(ref)
	if err != nil {
		return Entry{}, fault.New(fault.InvalidArguments, "%q is not an image reference such as node:24-bookworm-slim.", ref).Because(err)
	}
	info, err := os.Stat(source)
	if err != nil {
		return Entry{}, fault.New(fault.InvalidArguments, "Cannot read %s: %v.", source, unwrapPath(err)).Because(err)
	}
	tmp, err := os.MkdirTemp(s.dir, ".import-*")
	if err != nil {
		return Entry{}, fmt.Errorf("import image: %w", err)
	}
	defer dropDir(tmp)
	var raw rawImage
	switch {
	case !info.IsDir():
		raw, err = openTar(ctx, source, full, tmp)
	case exists(filepath.Join(source, "oci-layout")):
		raw, err = openLayout(source, full)
	default:
		raw, err = openFolder(ctx, source)
	}
	if err != nil {
		return Entry{}, err
	}
	return s.put(ctx, full, OriginImport, raw)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func unwrapPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// openLayout finds the one image for linux/amd64 in an OCI layout; among several, the one named like ref.
func openLayout(dir, ref string) (rawImage, error) {
	idx, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return rawImage{}, fmt.Errorf("read OCI layout %s: %w", dir, err)
	}
	type candidate struct {
		img  v1.Image
		name string
	}
	var all []candidate
	var walk func(idx v1.ImageIndex, name string, depth int) error
	walk = func(idx v1.ImageIndex, name string, depth int) error {
		m, err := idx.IndexManifest()
		if err != nil {
			return err
		}
		for _, d := range m.Manifests {
			if p := d.Platform; p != nil && (p.OS != "linux" || p.Architecture != "amd64") {
				continue
			}
			n := name
			if a := d.Annotations[noteRef]; a != "" {
				n = a
			}
			switch {
			case d.MediaType.IsIndex() && depth < 4:
				sub, err := idx.ImageIndex(d.Digest)
				if err != nil {
					return err
				}
				if err := walk(sub, n, depth+1); err != nil {
					return err
				}
			case d.MediaType.IsImage():
				img, err := idx.Image(d.Digest)
				if err != nil {
					return err
				}
				all = append(all, candidate{img, n})
			}
		}
		return nil
	}
	if err := walk(idx, "", 0); err != nil {
		return rawImage{}, fmt.Errorf("read OCI layout %s: %w", dir, err)
	}
	if len(all) == 1 {
		return fromImage(all[0].img)
	}
	names := make([]string, 0, len(all))
	for _, c := range all {
		full, err := Normalize(c.name)
		if (err == nil && full == ref) || strings.HasSuffix(ref, ":"+c.name) {
			return fromImage(c.img)
		}
		names = append(names, c.name)
	}
	if len(all) == 0 {
		return rawImage{}, fault.New(fault.InvalidArguments, "%s holds no image for linux/amd64.", dir)
	}
	return rawImage{}, fault.New(fault.InvalidArguments, "%s holds several images (%s) and none is named %s.", dir, strings.Join(names, ", "), Familiar(ref))
}

// openTar tells the kinds of tar apart by what is in them.
func openTar(ctx context.Context, file, ref, tmp string) (rawImage, error) {
	plain, err := gunzipTo(ctx, file, tmp)
	if err != nil {
		return rawImage{}, err
	}
	var isLayout, isDocker bool
	if err := eachEntry(plain, func(h *tar.Header, _ io.Reader) error {
		switch filepath.Clean(h.Name) {
		case "oci-layout":
			isLayout = true
		case "manifest.json":
			isDocker = true
		}
		return nil
	}); err != nil {
		return rawImage{}, fault.New(fault.InvalidArguments, "%s is neither a tar nor a gzipped tar.", file).Because(err)
	}
	switch {
	case isLayout:
		dir := filepath.Join(tmp, "layout")
		if err := extractLayout(ctx, plain, dir); err != nil {
			return rawImage{}, fmt.Errorf("read OCI archive %s: %w", file, err)
		}
		return openLayout(dir, ref)
	case isDocker:
		img, err := tarball.ImageFromPath(plain, nil)
		if err != nil {
			return rawImage{}, fmt.Errorf("read image archive %s: %w", file, err)
		}
		return fromImage(img)
	default:
		return rawImage{
			config: defaultConfig(),
			layers: []rawLayer{{open: func() (io.ReadCloser, error) { return os.Open(plain) }}},
		}, nil
	}
}

func gunzipTo(ctx context.Context, file, tmp string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("open image archive: %w", err)
	}
	defer drop(f)
	br := bufio.NewReader(f)
	if magic, _ := br.Peek(2); string(magic) != "\x1f\x8b" {
		return file, nil
	}
	gz, err := gzip.NewReader(br)
	if err != nil {
		return "", fmt.Errorf("read image archive %s: %w", file, err)
	}
	plain := filepath.Join(tmp, "plain.tar")
	out, err := os.Create(plain)
	if err != nil {
		return "", fmt.Errorf("read image archive: %w", err)
	}
	_, err = io.Copy(out, &contextReader{ctx, gz})
	if err := errors.Join(err, out.Close()); err != nil {
		return "", fmt.Errorf("read image archive %s: %w", file, err)
	}
	return plain, nil
}

func eachEntry(file string, fn func(*tar.Header, io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer drop(f)
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(h, tr); err != nil {
			return err
		}
	}
}

// extractLayout takes the files of an OCI layout out of a tar: index, marker and sha256 blobs, nothing else.
func extractLayout(ctx context.Context, file, dir string) error {
	if _, err := newBlobDir(dir); err != nil {
		return err
	}
	return eachEntry(file, func(h *tar.Header, r io.Reader) error {
		name := filepath.ToSlash(filepath.Clean(h.Name))
		hex, isBlob := strings.CutPrefix(name, "blobs/sha256/")
		if h.Typeflag != tar.TypeReg || (name != "index.json" && !(isBlob && isSHA256(hex))) {
			return nil
		}
		out, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		_, err = io.Copy(out, &contextReader{ctx, r})
		return errors.Join(err, out.Close())
	})
}

func isSHA256(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range s {
		if !strings.ContainsRune("0123456789abcdef", c) {
			return false
		}
	}
	return true
}

// defaultPath is the PATH of an image that came without a configuration.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func defaultConfig() v1.ConfigFile {
	return v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{Env: []string{"PATH=" + defaultPath}}}
}
