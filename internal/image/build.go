package image

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"helmr.dev/helmr/internal/fault"
)

// Options say what to build and where to.
type Options struct {
	Definition Definition
	// SourceRoot is the folder that copy steps read from.
	SourceRoot string
	// Out is the archive file to write; its folder exists.
	Out string
	// CacheDir is where base images and build caches are; "" means CacheDir().
	CacheDir string
	// Progress gets lines for people to read; nil is allowed.
	Progress func(string)

	// builder stands for the first one found, trust for what this machine trusts; tests choose.
	builder builder
	trust   []trusted
}

// Built is a finished image.
type Built struct {
	// ArchivePath is Options.Out: an OCI layout in a tar with one linux/amd64 image.
	ArchivePath string `json:"archive_path"`
	// Digest is "sha256:" and the hex digest of the archive's bytes; Size is their number.
	Digest string `json:"digest"`
	Size   int64  `json:"size_bytes"`
	Config Config `json:"config"`
}

// Build builds the image and writes its archive. The image has a Node.js of version 22 or later on its PATH: it was
// run. Equal definitions, sources, bases and tools give equal archives. Errors carry a fault code and name the image.
func Build(ctx context.Context, o Options) (Built, error) {
	say := o.Progress
	if say == nil {
		say = func(string) {}
	}
	key := o.Definition.Key
	if err := o.Definition.Validate(); err != nil {
		return Built{}, err
	}
	p, err := newPlan(o.Definition)
	if err != nil {
		return Built{}, err
	}
	if p.trust = o.trust; p.trust == nil {
		p.trust = hostTrust()
	}
	if o.CacheDir == "" {
		if o.CacheDir, err = CacheDir(); err != nil {
			return Built{}, err
		}
	}
	store, err := OpenStore(o.CacheDir)
	if err != nil {
		return Built{}, err
	}
	b := o.builder
	if b == nil {
		if b, err = findBuilder(ctx, o.CacheDir); err != nil {
			return Built{}, err
		}
	}
	removeOld(filepath.Join(o.CacheDir, "build-*"))
	work, err := os.MkdirTemp(o.CacheDir, "build-*")
	if err != nil {
		return Built{}, fmt.Errorf("build image %q: %w", key, err)
	}
	defer dropDir(work)

	j := &job{key: key, plan: p, store: store, work: work, say: say, context: filepath.Join(work, "context"), layout: filepath.Join(work, "layout")}
	for _, ref := range p.bases {
		var base Entry
		if ref != Scratch {
			if base, err = store.Resolve(ctx, key, ref, say); err != nil {
				return Built{}, err
			}
		}
		j.bases = append(j.bases, base)
	}
	if err := os.Mkdir(j.context, 0o755); err != nil {
		return Built{}, fmt.Errorf("build image %q: %w", key, err)
	}
	if err := stageContext(ctx, key, o.SourceRoot, j.context, p.copies); err != nil {
		return Built{}, err
	}
	say("building with " + b.name())
	id, err := b.build(ctx, j)
	if err != nil {
		return Built{}, err
	}
	archives := archiveCache{dir: filepath.Join(o.CacheDir, "archives")}
	if built, ok := archives.get(id, o.Out); ok {
		return built, nil
	}
	if err := b.export(ctx, j, id); err != nil {
		return Built{}, err
	}
	built, err := j.finish(ctx, o.Out)
	if err != nil {
		return Built{}, fmt.Errorf("build image %q: %w", key, err)
	}
	archives.put(id, built)
	return built, nil
}

// job is one build on its way through a builder.
type job struct {
	key  string
	plan *plan
	// bases[i] is the store's image for plan.bases[i]; the zero Entry is scratch.
	bases []Entry
	store *Store
	// work is this build's own folder; context the build context in it; layout is where export leaves an OCI layout.
	work, context, layout string
	say                   func(string)
}

// finish turns the builder's layout into the archive.
func (j *job) finish(ctx context.Context, out string) (Built, error) {
	idx, err := layout.ImageIndexFromPath(j.layout)
	if err != nil {
		return Built{}, fmt.Errorf("read what the builder made: %w", err)
	}
	m, err := idx.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		return Built{}, fmt.Errorf("read what the builder made: %d images: %w", len(m.Manifests), err)
	}
	img, err := idx.Image(m.Manifests[0].Digest)
	if err != nil {
		return Built{}, fmt.Errorf("read what the builder made: %w", err)
	}
	raw, err := fromImage(img)
	if err != nil {
		return Built{}, err
	}
	if err := checkPlatform(j.key, raw.config); err != nil {
		return Built{}, err
	}
	unlock, err := j.store.lock(lockShared)
	if err != nil {
		return Built{}, err
	}
	defer unlock()
	known, err := j.store.knownLayers()
	if err != nil {
		return Built{}, err
	}
	dst, err := newBlobDir(filepath.Join(j.work, "archive"))
	if err != nil {
		return Built{}, err
	}
	p, err := pack(ctx, dst, raw, known, cleanLayer)
	if err != nil {
		return Built{}, err
	}
	digest, size, err := writeArchive(ctx, dst.layout, p, out)
	if err != nil {
		return Built{}, err
	}
	return Built{ArchivePath: out, Digest: digest.String(), Size: size, Config: configOf(p.config)}, nil
}

// readBuilt reads a record of the archive cache; a broken one counts as none.
func readBuilt(path string) (Built, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Built{}, false
	}
	var b Built
	if json.Unmarshal(data, &b) != nil || b.Digest == "" {
		return Built{}, false
	}
	return b, true
}

func noBuilder(tried []string) error {
	text := "No image builder answers on this machine.\n"
	for _, t := range tried {
		text += "  tried " + t + "\n"
	}
	return fault.New(fault.Unavailable, "%s", text+"To mend it, start Docker with Buildx, set BUILDKIT_HOST for buildctl, or run: apt-get install -y buildah")
}
