package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// buildah builds without a daemon, in a storage of its own in the cache folder.
type buildah struct {
	dir    string
	driver string
}

// findBuildah prefers the overlay driver and falls back to vfs, which copies, where the kernel refuses overlay.
func findBuildah(ctx context.Context, cacheDir string) (*buildah, string) {
	if _, err := exec.LookPath("buildah"); err != nil {
		return nil, "not installed"
	}
	b := &buildah{dir: filepath.Join(cacheDir, "buildah")}
	if err := b.prepare(); err != nil {
		return nil, err.Error()
	}
	var last string
	for _, driver := range []string{"overlay", "vfs"} {
		b.driver = driver
		marker := filepath.Join(b.dir, driver, "works")
		if exists(marker) {
			return b, ""
		}
		out, err := b.command(ctx, "images", "--quiet").CombinedOutput()
		if err == nil {
			err = os.WriteFile(marker, nil, 0o644)
		}
		if err == nil {
			return b, ""
		}
		last = why(out, err)
	}
	return nil, last
}

// prepare writes the configuration that stands in for the host's: images come by digest out of our own store, so no
// registry and no signature is ever looked for.
func (b *buildah) prepare() error {
	if err := os.MkdirAll(b.tmp(), 0o755); err != nil {
		return fmt.Errorf("prepare buildah: %w", err)
	}
	removeOld(filepath.Join(b.tmp(), "*"))
	for name, text := range map[string]string{
		"policy.json":     `{"default":[{"type":"insecureAcceptAnything"}]}`,
		"registries.conf": "unqualified-search-registries = []\n",
		"containers.conf": "",
		"ignore":          "",
	} {
		if file := filepath.Join(b.dir, name); !exists(file) {
			if err := writeFileAtomic(file, []byte(text)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *buildah) name() string { return "buildah" }

// tmp is where buildah's temporary files go: when its disk is full, or when it runs without root rights, it leaves some.
func (b *buildah) tmp() string { return filepath.Join(b.dir, "tmp") }

func (b *buildah) command(ctx context.Context, sub string, args ...string) *exec.Cmd {
	root := filepath.Join(b.dir, b.driver)
	all := []string{"--root", filepath.Join(root, "root"), "--runroot", filepath.Join(root, "run"), "--storage-driver", b.driver, sub}
	if b.driver == "overlay" {
		// Otherwise the storage stays mounted over itself.
		all = slices.Insert(all, 0, "--storage-opt", "overlay.skip_mount_home=true")
	}
	if sub == "bud" || sub == "pull" || sub == "push" {
		all = append(all, "--signature-policy", filepath.Join(b.dir, "policy.json"))
	}
	cmd := exec.CommandContext(ctx, "buildah", append(all, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+b.tmp(), "CONTAINERS_REGISTRIES_CONF="+filepath.Join(b.dir, "registries.conf"),
		"CONTAINERS_CONF="+filepath.Join(b.dir, "containers.conf"))
	return cmd
}

func (b *buildah) build(ctx context.Context, j *job) (string, error) {
	names := make([]string, len(j.bases))
	for i, base := range j.bases {
		names[i] = Scratch
		if base.Ref != "" {
			id, err := b.load(ctx, j, base)
			if err != nil {
				return "", err
			}
			names[i] = id
		}
	}
	file, err := j.writeContainerfile(names)
	if err != nil {
		return "", fmt.Errorf("write Containerfile: %w", err)
	}
	idFile := filepath.Join(j.work, "id")
	if out, err := j.run(b.bud(ctx, j, file, j.plan.target(), idFile)); err != nil {
		return "", j.buildError(ctx, b, out, err)
	}
	data, err := os.ReadFile(idFile)
	if err != nil {
		return "", fmt.Errorf("read the image id of buildah: %w", err)
	}
	id := strings.TrimPrefix(strings.TrimSpace(string(data)), "sha256:")
	if !isSHA256(id) {
		return "", fmt.Errorf("buildah gave %q as image id", id)
	}
	checked := filepath.Join(b.dir, "checked-"+id)
	if exists(checked) {
		return id, nil
	}
	if out, err := j.check(b.bud(ctx, j, file, checkStage, filepath.Join(j.work, "check-id"))); err != nil {
		return "", j.nodeError(ctx, b, out, err)
	}
	if err := os.WriteFile(checked, nil, 0o644); err != nil {
		return "", fmt.Errorf("record the check of node: %w", err)
	}
	return id, nil
}

func (b *buildah) bud(ctx context.Context, j *job, file, target, idFile string) *exec.Cmd {
	args := []string{
		"--format", "oci", "--isolation", "chroot", "--network", "host", "--layers", "--force-rm", "--timestamp", "0",
		"--pull-never", "--ignorefile", filepath.Join(b.dir, "ignore"), "--target", target, "--iidfile", idFile, "--file", file,
	}
	return b.command(ctx, "bud", append(append(args, secretOptions(j.plan.trust)...), j.context)...)
}

// load puts a base of the store into buildah's storage and gives its id there, the digest of its configuration.
func (b *buildah) load(ctx context.Context, j *job, base Entry) (string, error) {
	unlock, err := j.store.lock(lockShared)
	if err != nil {
		return "", err
	}
	defer unlock()
	cfg, _, err := j.store.config(base)
	if err != nil {
		return "", err
	}
	if b.command(ctx, "inspect", "--type", "image", cfg.Hex).Run() == nil {
		return cfg.Hex, nil
	}
	// A layout with this image only, over the store's blobs: buildah takes an image by its place in the index.
	dir := filepath.Join(j.work, "base"+cfg.Hex[:12])
	digest, err := v1.NewHash(base.Digest)
	if err != nil {
		return "", fmt.Errorf("load base image: %w", err)
	}
	text, err := indexJSON(v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: fileSize(j.store.blob(digest))})
	if err != nil {
		return "", err
	}
	err = errors.Join(
		os.Mkdir(dir, 0o755),
		os.Symlink(filepath.Join(j.store.dir, "blobs"), filepath.Join(dir, "blobs")),
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644),
		os.WriteFile(filepath.Join(dir, "index.json"), text, 0o644),
	)
	if err != nil {
		return "", fmt.Errorf("load base image: %w", err)
	}
	j.say("loading " + Familiar(base.Ref))
	// A relative path: buildah makes an image name of it, and a cache folder may have colons or capitals.
	cmd := b.command(ctx, "pull", "--quiet", "oci:"+filepath.Base(dir))
	cmd.Dir = j.work
	if out, err := j.run(cmd); err != nil {
		return "", j.buildError(ctx, b, out, err)
	}
	return cfg.Hex, nil
}

// export lets buildah write the image uncompressed, which it does in its "dir" form only, and renames the files into
// an OCI layout.
func (b *buildah) export(ctx context.Context, j *job, id string) error {
	dir := filepath.Join(j.work, "dir")
	cmd := b.command(ctx, "push", "--quiet", "--disable-compression", "--format", "oci", id, "dir:./dir")
	cmd.Dir = j.work
	if out, err := j.run(cmd); err != nil {
		return j.buildError(ctx, b, out, err)
	}
	dst, err := newBlobDir(j.layout)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read what buildah made: %w", err)
	}
	for _, f := range files {
		if !isSHA256(f.Name()) {
			continue
		}
		if err := os.Rename(filepath.Join(dir, f.Name()), dst.path(v1.Hash{Algorithm: "sha256", Hex: f.Name()})); err != nil {
			return fmt.Errorf("read what buildah made: %w", err)
		}
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return fmt.Errorf("read what buildah made: %w", err)
	}
	digest, size, err := dst.putBytes(manifest)
	if err != nil {
		return err
	}
	text, err := indexJSON(v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: size})
	if err != nil {
		return err
	}
	return writeFileAtomic(filepath.Join(j.layout, "index.json"), text)
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
