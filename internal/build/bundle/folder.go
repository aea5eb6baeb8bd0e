package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Folder is a bundle on disk: a manifest and the objects that it names.
type Folder struct {
	Dir      string
	Manifest *Manifest
	// Bytes are the manifest as it is hashed and sent; Digest is their SHA-256.
	Bytes  []byte
	Digest string
}

// Open reads a bundle folder and checks its manifest and that each object is there with its size. Verify reads the
// objects.
func Open(dir string) (*Folder, error) {
	file, err := os.Open(filepath.Join(dir, ManifestName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is not a deployment bundle: it has no %s. Make one with `helmr build`", dir, ManifestName)
	}
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	defer func() { _ = file.Close() }() // only read, nothing can be lost
	data, err := io.ReadAll(io.LimitReader(file, MaxManifestBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read bundle manifest: %w", err)
	}
	manifest, err := Parse(data)
	if err != nil {
		return nil, err
	}
	folder := &Folder{Dir: dir, Manifest: manifest, Bytes: data, Digest: Digest(data)}
	for _, object := range manifest.Objects {
		info, err := os.Lstat(folder.ObjectPath(object.Digest))
		if err != nil {
			return nil, fmt.Errorf("bundle %s lacks object %s: build it again: %w", dir, object.Digest, err)
		}
		if !info.Mode().IsRegular() || info.Size() != object.SizeBytes {
			return nil, fmt.Errorf("bundle %s: object %s is not a file of %d bytes: build it again", dir, object.Digest, object.SizeBytes)
		}
	}
	return folder, nil
}

// ObjectPath is where the object with that digest lies.
func (f *Folder) ObjectPath(digest string) string { return filepath.Join(f.Dir, ObjectsDir, digest) }

// Verify reads every object and compares its digest.
func (f *Folder) Verify(ctx context.Context) error {
	for _, object := range f.Manifest.Objects {
		if err := ctx.Err(); err != nil {
			return err
		}
		digest, _, err := DigestFile(f.ObjectPath(object.Digest))
		if err != nil {
			return err
		}
		if digest != object.Digest {
			return fmt.Errorf("bundle %s: object %s has other content (%s): build it again", f.Dir, object.Digest, digest)
		}
	}
	return nil
}

// DigestFile gives the digest and the size of a file.
func DigestFile(name string) (string, int64, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", 0, fmt.Errorf("hash: %w", err)
	}
	defer func() { _ = file.Close() }() // only read, nothing can be lost
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return "", 0, fmt.Errorf("hash %s: %w", name, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), size, nil
}
