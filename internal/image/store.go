package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// Annotations of the store's index.
const (
	noteRef     = "org.opencontainers.image.ref.name"
	noteOrigin  = "dev.helmr.image.origin"
	noteCreated = "org.opencontainers.image.created"
)

// The origins of an image in the store. Only images that somebody put there on purpose stand before a registry.
const (
	OriginImport   = "import"
	OriginBase     = "base"
	OriginRegistry = "registry"
)

// Store is the local image store: one OCI layout folder. Several processes may use it at once.
type Store struct{ dir string }

// Entry is one image of the Store.
type Entry struct {
	// Ref is the normalised reference.
	Ref string `json:"ref"`
	// Digest is that of the image manifest in the store.
	Digest string `json:"digest"`
	// Size is the sum of the compressed layers, in bytes.
	Size int64 `json:"size_bytes"`
	// Origin is OriginImport, OriginBase or OriginRegistry.
	Origin  string    `json:"origin"`
	Created time.Time `json:"created_at"`
}

// CacheDir is the folder for everything that can be made again: HELMR_CACHE_DIR, else helmr in XDG_CACHE_HOME, else
// ~/.cache/helmr.
func CacheDir() (string, error) {
	if d := os.Getenv("HELMR_CACHE_DIR"); d != "" {
		return filepath.Abs(d)
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder (set HELMR_CACHE_DIR): %w", err)
	}
	return filepath.Join(d, "helmr"), nil
}

// OpenStore opens the store in the folder images of cacheDir and creates it when it is missing.
func OpenStore(cacheDir string) (*Store, error) {
	s := &Store{dir: filepath.Join(cacheDir, "images")}
	if _, err := newBlobDir(s.dir); err != nil {
		return nil, err
	}
	removeOld(filepath.Join(s.dir, ".import-*"), filepath.Join(s.dir, ".base-*"))
	return s, nil
}

// leftoverAge is how old a temporary folder is when its process must have died.
const leftoverAge = 24 * time.Hour

// removeOld removes temporary folders that a crash left. That it cannot must not stop anybody's work.
func removeOld(patterns ...string) {
	for _, p := range patterns {
		found, _ := filepath.Glob(p)
		for _, dir := range found {
			if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > leftoverAge {
				_ = os.RemoveAll(dir)
			}
		}
	}
}

// Dir is the store's folder, an OCI layout.
func (s *Store) Dir() string { return s.dir }

// List gives the images in order of reference.
func (s *Store) List() ([]Entry, error) {
	idx, err := s.readIndex()
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(idx.Manifests))
	for _, d := range idx.Manifests {
		created, _ := time.Parse(time.RFC3339, d.Annotations[noteCreated])
		e := Entry{Ref: d.Annotations[noteRef], Digest: d.Digest.String(), Origin: d.Annotations[noteOrigin], Created: created}
		m, err := s.manifest(d.Digest)
		if err != nil {
			return nil, err
		}
		for _, l := range m.Layers {
			e.Size += l.Size
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Ref, b.Ref) })
	return entries, nil
}

// Find gives the image with that reference in any spelling, or found false.
func (s *Store) Find(ref string) (e Entry, found bool, err error) {
	ref, err = Normalize(ref)
	if err != nil {
		return Entry{}, false, err
	}
	all, err := s.List()
	if err != nil {
		return Entry{}, false, err
	}
	for _, e := range all {
		if e.Ref == ref {
			return e, true, nil
		}
	}
	return Entry{}, false, nil
}

// Remove forgets an image and deletes the blobs that no other image uses. found is false when there was none.
func (s *Store) Remove(ref string) (found bool, err error) {
	ref, err = Normalize(ref)
	if err != nil {
		return false, err
	}
	unlock, err := s.lock(lockExclusive)
	if err != nil {
		return false, err
	}
	defer unlock()
	idx, err := s.readIndex()
	if err != nil {
		return false, err
	}
	n := len(idx.Manifests)
	idx.Manifests = slices.DeleteFunc(idx.Manifests, func(d v1.Descriptor) bool { return d.Annotations[noteRef] == ref })
	if len(idx.Manifests) == n {
		return false, nil
	}
	if err := s.writeIndex(idx); err != nil {
		return false, err
	}
	return true, s.sweepLocked(idx)
}

// put stores raw under a normalised reference, in place of an earlier image of that name.
func (s *Store) put(ctx context.Context, ref, origin string, raw rawImage) (Entry, error) {
	if err := checkPlatform(ref, raw.config); err != nil {
		return Entry{}, err
	}
	// The lock is shared while blobs are written: only a sweep must not run beside it.
	unlock, err := s.lock(lockShared)
	if err != nil {
		return Entry{}, err
	}
	known, err := s.knownLayers()
	if err != nil {
		unlock()
		return Entry{}, err
	}
	p, err := pack(ctx, blobDir{s.dir}, raw, known, nil)
	unlock()
	if err != nil {
		return Entry{}, fmt.Errorf("store image %s: %w", Familiar(ref), err)
	}
	if unlock, err = s.lock(lockExclusive); err != nil {
		return Entry{}, err
	}
	defer unlock()
	// A sweep may have run between the two locks.
	for _, d := range append([]v1.Descriptor{{Digest: p.digest}, p.manifest.Config}, p.manifest.Layers...) {
		if _, err := os.Stat(s.blob(d.Digest)); err != nil {
			return Entry{}, fmt.Errorf("store image %s: an image was removed at the same time; try again", Familiar(ref))
		}
	}
	idx, err := s.readIndex()
	if err != nil {
		return Entry{}, err
	}
	idx.Manifests = slices.DeleteFunc(idx.Manifests, func(d v1.Descriptor) bool { return d.Annotations[noteRef] == ref })
	now := time.Now().UTC().Truncate(time.Second)
	idx.Manifests = append(idx.Manifests, v1.Descriptor{
		MediaType: types.OCIManifestSchema1, Digest: p.digest, Size: p.size,
		Platform:    &v1.Platform{OS: "linux", Architecture: "amd64"},
		Annotations: map[string]string{noteRef: ref, noteOrigin: origin, noteCreated: now.Format(time.RFC3339)},
	})
	if err := s.writeIndex(idx); err != nil {
		return Entry{}, err
	}
	if err := s.sweepLocked(idx); err != nil {
		return Entry{}, err
	}
	e := Entry{Ref: ref, Digest: p.digest.String(), Origin: origin, Created: now}
	for _, l := range p.manifest.Layers {
		e.Size += l.Size
	}
	return e, nil
}

// knownLayers are all layers of the store by diff id.
func (s *Store) knownLayers() (map[v1.Hash]knownLayer, error) {
	idx, err := s.readIndex()
	if err != nil {
		return nil, err
	}
	known := map[v1.Hash]knownLayer{}
	for _, d := range idx.Manifests {
		m, err := s.manifest(d.Digest)
		if err != nil {
			return nil, err
		}
		for _, l := range m.Layers {
			if id, err := v1.NewHash(l.Annotations[diffIDNote]); err == nil {
				known[id] = knownLayer{path: s.blob(l.Digest), desc: l}
			}
		}
	}
	return known, nil
}

// sweepLocked deletes blobs that no image of idx uses. The exclusive lock is held.
func (s *Store) sweepLocked(idx v1.IndexManifest) error {
	used := map[string]bool{}
	for _, d := range idx.Manifests {
		m, err := s.manifest(d.Digest)
		if err != nil {
			return err
		}
		used[d.Digest.Hex], used[m.Config.Digest.Hex] = true, true
		for _, l := range m.Layers {
			used[l.Digest.Hex] = true
		}
	}
	dir := filepath.Join(s.dir, "blobs", "sha256")
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("clean image store: %w", err)
	}
	for _, f := range files {
		if !used[f.Name()] {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return fmt.Errorf("clean image store: %w", err)
			}
		}
	}
	return nil
}

func (s *Store) blob(h v1.Hash) string { return blobDir{s.dir}.path(h) }

func (s *Store) manifest(h v1.Hash) (v1.Manifest, error) {
	var m v1.Manifest
	err := s.readJSON(h, &m)
	return m, err
}

func (s *Store) config(e Entry) (v1.Hash, v1.ConfigFile, error) {
	var c v1.ConfigFile
	h, err := v1.NewHash(e.Digest)
	if err != nil {
		return h, c, fmt.Errorf("read image store: %w", err)
	}
	m, err := s.manifest(h)
	if err != nil {
		return h, c, err
	}
	return m.Config.Digest, c, s.readJSON(m.Config.Digest, &c)
}

func (s *Store) readJSON(h v1.Hash, into any) error {
	data, err := os.ReadFile(s.blob(h))
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("read image store %s (remove the image and import it again if it is broken): %w", s.dir, err)
	}
	return nil
}

func (s *Store) readIndex() (v1.IndexManifest, error) {
	idx := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	data, err := os.ReadFile(filepath.Join(s.dir, "index.json"))
	if errors.Is(err, os.ErrNotExist) {
		return idx, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &idx)
	}
	if err != nil {
		return idx, fmt.Errorf("read image store %s: %w", s.dir, err)
	}
	return idx, nil
}

func (s *Store) writeIndex(idx v1.IndexManifest) error {
	data, err := json.MarshalIndent(idx, "", "  ")
	if err != nil {
		return fmt.Errorf("write image store: %w", err)
	}
	return writeFileAtomic(filepath.Join(s.dir, "index.json"), data)
}

const (
	lockShared    = unix.LOCK_SH
	lockExclusive = unix.LOCK_EX
)

// lock takes the store's file lock and gives its release.
func (s *Store) lock(how int) (func(), error) {
	f, err := os.OpenFile(filepath.Join(s.dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock image store: %w", err), f.Close())
	}
	return func() { drop(f) }, nil
}

func checkPlatform(ref string, c v1.ConfigFile) error {
	if (c.OS == "" || c.OS == "linux") && (c.Architecture == "" || c.Architecture == "amd64") {
		return nil
	}
	return fmt.Errorf("image %s is for %s/%s: Computers are linux/amd64", Familiar(ref), c.OS, c.Architecture)
}
