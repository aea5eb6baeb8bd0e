package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"helmr.dev/helmr/internal/fault"
)

// MediaType is that of the archives that Build writes: an OCI image layout in a tar.
const MediaType = "application/vnd.oci.image.layout.v1.tar"

// MaxArchiveBytes is the largest archive that a bundle may hold.
const MaxArchiveBytes = 4 << 30

// Config is what a program that runs in the image has to know of it.
type Config struct {
	// Env holds NAME=value, in the image's order.
	Env []string `json:"env"`
	// Workdir is absolute; "/" when the image names none.
	Workdir string `json:"workdir"`
	// User is a name or number with an optional :group; "" is root.
	User string `json:"user"`
}

func configOf(c v1.ConfigFile) Config {
	out := Config{Env: c.Config.Env, Workdir: c.Config.WorkingDir, User: c.Config.User}
	if out.Env == nil {
		out.Env = []string{}
	}
	if out.Workdir == "" {
		out.Workdir = "/"
	}
	return out
}

// writeArchive writes the image p of layout dir as one tar to out: entries in order, without owners and times. It
// gives the digest and size of the tar.
func writeArchive(ctx context.Context, dir string, p packed, out string) (v1.Hash, int64, error) {
	idx, err := putIndex(dir, p)
	if err != nil {
		return v1.Hash{}, 0, err
	}
	hexes := []string{p.digest.Hex, p.manifest.Config.Digest.Hex}
	for _, l := range p.manifest.Layers {
		hexes = append(hexes, l.Digest.Hex)
	}
	slices.Sort(hexes)
	hexes = slices.Compact(hexes)
	return writeOut(out, func(w io.Writer) error {
		tw := tar.NewWriter(w)
		for _, name := range []string{"blobs/", "blobs/sha256/"} {
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}); err != nil {
				return err
			}
		}
		for _, h := range hexes {
			if err := addFile(ctx, tw, filepath.Join(dir, "blobs", "sha256", h), "blobs/sha256/"+h); err != nil {
				return err
			}
		}
		for _, name := range []string{idx, "oci-layout"} {
			if err := addFile(ctx, tw, filepath.Join(dir, name), name); err != nil {
				return err
			}
		}
		return tw.Close()
	})
}

func putIndex(dir string, p packed) (string, error) {
	text, err := indexJSON(v1.Descriptor{
		MediaType: types.OCIManifestSchema1, Digest: p.digest, Size: p.size,
		Platform: &v1.Platform{OS: "linux", Architecture: "amd64"},
	})
	if err != nil {
		return "", err
	}
	return "index.json", writeFileAtomic(filepath.Join(dir, "index.json"), text)
}

func addFile(ctx context.Context, tw *tar.Writer, path, name string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer drop(f)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: info.Size(), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, &contextReader{ctx, f})
	return err
}

// writeOut makes out whole or not at all, and gives its digest and size.
func writeOut(out string, write func(io.Writer) error) (v1.Hash, int64, error) {
	f, err := os.CreateTemp(filepath.Dir(out), ".new-*")
	if err != nil {
		return v1.Hash{}, 0, fmt.Errorf("write image archive: %w", err)
	}
	defer dropDir(f.Name())
	defer drop(f)
	sum := &countingHash{Hash: sha256.New()}
	err = write(io.MultiWriter(f, sum))
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return v1.Hash{}, 0, fmt.Errorf("write image archive: %w", err)
	}
	if sum.n > MaxArchiveBytes {
		return v1.Hash{}, 0, fault.New(fault.RequestTooLarge, "The image is %d MiB compressed; a bundle holds at most %d MiB.", sum.n>>20, int64(MaxArchiveBytes)>>20)
	}
	if err := os.Rename(f.Name(), out); err != nil {
		return v1.Hash{}, 0, fmt.Errorf("write image archive: %w", err)
	}
	return sum.digest(), sum.n, nil
}

// cleanLayer copies the tar of a layer that was just built and takes out what differs from build to build: times,
// owner names, and the empty files that builders leave where they had mounted theirs.
func cleanLayer(r io.Reader, w io.Writer) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		if isMountpoint(h) {
			continue
		}
		h.ModTime, h.AccessTime, h.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
		h.Uname, h.Gname, h.Format = "", "", tar.FormatUnknown
		records := map[string]string{}
		for k, v := range h.PAXRecords {
			if strings.HasPrefix(k, xattrRecord) {
				records[k] = v
			}
		}
		h.PAXRecords = nil
		if len(records) > 0 {
			h.PAXRecords = records
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
}

func isMountpoint(h *tar.Header) bool {
	switch name := strings.TrimPrefix(h.Name, "./"); name {
	case "etc/hosts", "etc/resolv.conf", "etc/hostname":
		return h.Typeflag == tar.TypeReg && h.Size == 0
	case "run/.containerenv", ".dockerenv":
		return true
	default:
		return strings.HasPrefix(name, "run/"+secretPrefix) && h.Size == 0
	}
}
