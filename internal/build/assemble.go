package build

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/build/bundle"
)

// builtImage is the image of one Template: an OCI archive on disk.
type builtImage struct {
	archive string
	config  bundle.ImageConfig
}

// assembly is everything that goes into a bundle.
type assembly struct {
	plan    bundle.Plan
	sdk     string
	program []bundle.ProgramFile
	images  []builtImage // in the order of plan.Templates
}

// assemble writes the bundle folder output, which must not exist and appears only when it is complete.
func assemble(a assembly, output string) (result *bundle.Folder, err error) {
	parent := filepath.Dir(output)
	undo, err := makeParents(parent)
	if err != nil {
		return nil, err
	}
	temporary, err := os.MkdirTemp(parent, "."+filepath.Base(output)+".")
	if err != nil {
		undo()
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temporary))
			undo()
		}
	}()
	manifest, err := writeObjects(a, temporary)
	if err != nil {
		return nil, err
	}
	data, err := manifest.Encode()
	if err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(temporary, bundle.ManifestName), data, 0o644); err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, output, unix.RENAME_NOREPLACE); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil, targetExists(output)
		}
		return nil, fmt.Errorf("write bundle: %w", &os.LinkError{Op: "rename", Old: temporary, New: output, Err: err})
	}
	return &bundle.Folder{Dir: output, Manifest: manifest, Bytes: data, Digest: bundle.Digest(data)}, nil
}

func targetExists(output string) error {
	return problem(output, "Remove it, or name another folder with --output", "exists already; a bundle is never written over something")
}

// makeParents makes a folder and gives what removes again those of its parents that were new and are still empty.
func makeParents(dir string) (undo func(), err error) {
	var made []string
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, at)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	return func() {
		for _, at := range made {
			_ = os.Remove(at) // refuses when something else is in it, as it should
		}
	}, nil
}

// writeObjects puts the program and each distinct image into the bundle and describes them.
func writeObjects(a assembly, dir string) (*bundle.Manifest, error) {
	objects := filepath.Join(dir, bundle.ObjectsDir)
	if err := os.Mkdir(objects, 0o755); err != nil {
		return nil, fmt.Errorf("write bundle: %w", err)
	}
	manifest := &bundle.Manifest{
		Contract: bundle.Contract, Platform: bundle.Platform{Arch: bundle.Arch, OS: bundle.OS}, Plan: a.plan,
		Runtime:        bundle.Runtime{Protocol: bundle.ProtocolVersion, SDK: a.sdk},
		TemplateImages: []bundle.TemplateImage{}, Objects: []bundle.Object{},
	}
	program, err := writeObject(objects, bundle.ProgramMediaType, func(w io.Writer) error { return bundle.PackProgram(w, a.program) })
	if err != nil {
		return nil, err
	}
	manifest.Program = bundle.Program{Digest: program.Digest, Entry: bundle.Entry}
	manifest.Objects = append(manifest.Objects, program)
	copied := map[string]bundle.Object{} // by archive
	for i, image := range a.images {
		object, ok := copied[image.archive]
		if !ok {
			if object, err = writeObject(objects, bundle.ImageMediaType, func(w io.Writer) error { return copyFrom(w, image.archive) }); err != nil {
				return nil, err
			}
			copied[image.archive] = object
			if _, known := manifest.Object(object.Digest); !known {
				manifest.Objects = append(manifest.Objects, object)
			}
		}
		manifest.TemplateImages = append(manifest.TemplateImages, bundle.TemplateImage{
			Template: a.plan.Templates[i].ID, Digest: object.Digest, Config: image.config,
		})
	}
	slices.SortFunc(manifest.Objects, func(a, b bundle.Object) int { return cmp.Compare(a.Digest, b.Digest) })
	return manifest, nil
}

// writeObject stores what write gives under the name of its digest.
func writeObject(objects, mediaType string, write func(io.Writer) error) (object bundle.Object, err error) {
	file, err := os.CreateTemp(objects, ".new-")
	if err != nil {
		return object, fmt.Errorf("write bundle: %w", err)
	}
	hash := sha256.New()
	counted := &countingWriter{w: io.MultiWriter(file, hash)}
	if err = errors.Join(write(counted), file.Chmod(0o644), file.Close()); err != nil {
		return object, fmt.Errorf("write bundle: %w", err)
	}
	digest, size := hex.EncodeToString(hash.Sum(nil)), counted.n
	if size > bundle.MaxObjectBytes {
		return object, problem("bundle", "Make the image or the program smaller", "an object of %d bytes; at most %d are allowed (%s)", size, int64(bundle.MaxObjectBytes), mediaType)
	}
	if err := os.Rename(file.Name(), filepath.Join(objects, digest)); err != nil {
		return object, fmt.Errorf("write bundle: %w", err)
	}
	return bundle.Object{Digest: digest, SizeBytes: size, MediaType: mediaType}, nil
}

// countingWriter counts what goes through it.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(data []byte) (int, error) {
	n, err := c.w.Write(data)
	c.n += int64(n)
	return n, err
}

func copyFrom(w io.Writer, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read, nothing can be lost
	_, err = io.Copy(w, file)
	return err
}
