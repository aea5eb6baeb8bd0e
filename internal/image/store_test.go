package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := OpenStore(t.TempDir())
	must(t, err)
	return s
}

// imageOf is an image of another maker: gzipped layers, a creation time, an author.
func imageOf(t *testing.T, arch, content string) v1.Image {
	t.Helper()
	l := layerOf(t, file("hello", content))
	layer, err := tarball.LayerFromOpener(l.open)
	must(t, err)
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.DockerManifestSchema2), layer)
	must(t, err)
	cfg, err := img.ConfigFile()
	must(t, err)
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Author = "linux", arch, "somebody"
	cfg.Config.Env = []string{"PATH=/bin", "LANG=C"}
	img, err = mutate.ConfigFile(img, cfg)
	must(t, err)
	return img
}

// content is what the file hello of a stored image holds.
func content(t *testing.T, s *Store, e Entry) string {
	t.Helper()
	h, err := v1.NewHash(e.Digest)
	must(t, err)
	idx, err := layout.ImageIndexFromPath(s.Dir())
	must(t, err)
	img, err := idx.Image(h)
	must(t, err)
	rc := mutate.Extract(img)
	defer drop(rc)
	tr := tar.NewReader(rc)
	for {
		hd, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return ""
		}
		must(t, err)
		if hd.Name == "hello" {
			data, err := io.ReadAll(tr)
			must(t, err)
			return string(data)
		}
	}
}

func TestImportEveryForm(t *testing.T) {
	t.Parallel()
	img := imageOf(t, "amd64", "same")
	dir := t.TempDir()
	lay := filepath.Join(dir, "layout")
	p, err := layout.Write(lay, empty.Index)
	must(t, err)
	must(t, p.AppendImage(img))
	docker := filepath.Join(dir, "docker.tar")
	tag, err := name.NewTag("some/name:1")
	must(t, err)
	must(t, tarball.WriteToFile(docker, tag, img))
	tarOf := func(name, from string) string {
		out := filepath.Join(dir, name)
		if text, err := exec.Command("tar", "-C", from, "-cf", out, ".").CombinedOutput(); err != nil {
			t.Fatalf("tar: %v: %s", err, text)
		}
		return out
	}
	oci := tarOf("oci.tar", lay)
	zipped := oci + ".gz"
	data, err := os.ReadFile(oci)
	must(t, err)
	f, err := os.Create(zipped)
	must(t, err)
	gz := gzip.NewWriter(f)
	_, err = gz.Write(data)
	must(t, errors.Join(err, gz.Close(), f.Close()))
	rootfs := filepath.Join(dir, "rootfs")
	must(t, os.MkdirAll(filepath.Join(rootfs, "proc", "1"), 0o755))
	must(t, os.WriteFile(filepath.Join(rootfs, "hello"), []byte("same"), 0o644))

	s := newStore(t)
	var first Entry
	for i, source := range []string{lay, oci, zipped, docker, rootfs, tarOf("rootfs.tar", rootfs)} {
		e, err := s.Import(t.Context(), "some/name:1", source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := content(t, s, e); got != "same" {
			t.Errorf("%s: hello = %q", source, got)
		}
		switch {
		case i == 0:
			first = e
		case i < 4 && e.Digest != first.Digest:
			t.Errorf("%s: digest %s, want %s: it is the same image", source, e.Digest, first.Digest)
		}
	}
	all, err := s.List()
	must(t, err)
	if len(all) != 1 || all[0].Ref != "docker.io/some/name:1" || all[0].Origin != OriginImport || all[0].Size == 0 {
		t.Errorf("List = %+v", all)
	}
	_, err = s.Import(t.Context(), "other", lay)
	must(t, err)
	found, err := s.Remove("docker.io/library/other:latest")
	must(t, err)
	if !found {
		t.Error("removed nothing")
	}
	if found, err = s.Remove("other"); err != nil || found {
		t.Errorf("removed twice: %v, %v", found, err)
	}
	_, err = s.Remove("some/name:1")
	must(t, err)
	blobs, err := os.ReadDir(filepath.Join(s.Dir(), "blobs", "sha256"))
	must(t, err)
	if len(blobs) != 0 {
		t.Errorf("an empty store keeps %d blobs", len(blobs))
	}
}

func TestImportRefusals(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	must(t, os.WriteFile(junk, []byte(strings.Repeat("junk", 1000)), 0o600))
	arm := filepath.Join(dir, "arm")
	p, err := layout.Write(arm, empty.Index)
	must(t, err)
	must(t, p.AppendImage(imageOf(t, "arm64", "x")))
	two := filepath.Join(dir, "two")
	p, err = layout.Write(two, empty.Index)
	must(t, err)
	must(t, p.AppendImage(imageOf(t, "amd64", "1"), layout.WithAnnotations(map[string]string{noteRef: "one"})))
	must(t, p.AppendImage(imageOf(t, "amd64", "2"), layout.WithAnnotations(map[string]string{noteRef: "docker.io/library/b:2"})))
	for name, c := range map[string]struct{ ref, source, want string }{
		"ref":     {"A B", dir, "not an image reference"},
		"missing": {"a", filepath.Join(dir, "none"), "no such file"},
		"junk":    {"a", junk, "neither a tar"},
		"arm":     {"a", arm, "linux/amd64"},
		"several": {"a:9", two, "none is named a:9"},
	} {
		if _, err := s.Import(t.Context(), c.ref, c.source); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: err = %v, want %q", name, err, c.want)
		}
	}
	e, err := s.Import(t.Context(), "b:2", two)
	must(t, err)
	if got := content(t, s, e); got != "2" {
		t.Errorf("b:2 is %q", got)
	}
	if e, err = s.Import(t.Context(), "x:one", two); err != nil || content(t, s, e) != "1" {
		t.Errorf("x:one: %v", err)
	}
	all, err := s.List()
	must(t, err)
	if len(all) != 2 {
		t.Errorf("failed imports left %+v", all)
	}
	left, _ := filepath.Glob(filepath.Join(s.Dir(), ".import-*"))
	if len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStoreIsSharedByManyWriters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "hello"), []byte("x"), 0o644))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s, err := OpenStore(dir)
			if err != nil {
				t.Error(err)
				return
			}
			ref := "img:" + string(rune('a'+i))
			if _, err := s.Import(t.Context(), ref, root); err != nil {
				t.Errorf("import %s: %v", ref, err)
			}
			if i%2 == 0 {
				if _, err := s.Remove(ref); err != nil {
					t.Errorf("remove %s: %v", ref, err)
				}
			}
		})
	}
	wg.Wait()
	s, err := OpenStore(dir)
	must(t, err)
	all, err := s.List()
	must(t, err)
	if len(all) != 4 {
		t.Errorf("List = %+v", all)
	}
	for _, e := range all {
		if got := content(t, s, e); got != "x" {
			t.Errorf("%s: %q", e.Ref, got)
		}
	}
}

// startRegistry starts a registry and gives its host.
func startRegistry(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(quiet())))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	must(t, err)
	return u.Host
}

func pushTo(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	must(t, err)
	must(t, remote.Write(r, img))
}

func TestResolveOrder(t *testing.T) {
	// No parallel: HELMR_IMAGE_MIRROR belongs to the process.
	s := newStore(t)
	reg, mirror := startRegistry(t), startRegistry(t)
	var lines []string
	say := func(l string) { lines = append(lines, l) }
	resolve := func(ref string) string {
		t.Helper()
		e, err := s.Resolve(t.Context(), "box", ref, say)
		must(t, err)
		return content(t, s, e)
	}
	ref := reg + "/team/img:1"
	pushTo(t, ref, imageOf(t, "amd64", "registry"))
	if got := resolve(ref); got != "registry" {
		t.Errorf("from the registry: %q", got)
	}
	pushTo(t, ref, imageOf(t, "amd64", "newer"))
	if got := resolve(ref); got != "newer" {
		t.Errorf("a moved tag: %q", got)
	}
	pushTo(t, mirror+"/pre/team/img:1", imageOf(t, "amd64", "mirror"))
	t.Setenv("HELMR_IMAGE_MIRROR", "other.example.com=elsewhere, "+reg+"=http://"+mirror+"/pre/")
	if got := resolve(ref); got != "mirror" {
		t.Errorf("with a mirror: %q", got)
	}
	t.Setenv("HELMR_IMAGE_MIRROR", reg+"="+mirror+"/none")
	if got := resolve(ref); got != "newer" {
		t.Errorf("with a mirror that lacks it: %q", got)
	}
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "hello"), []byte("local"), 0o644))
	_, err := s.Import(t.Context(), ref, root)
	must(t, err)
	if got := resolve(ref); got != "local" {
		t.Errorf("with a local image: %q", got)
	}
}

func TestResolveUsesTheCopyWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	srv := httptest.NewServer(registry.New(registry.Logger(quiet())))
	u, err := url.Parse(srv.URL)
	must(t, err)
	ref := u.Host + "/img:1"
	pushTo(t, ref, imageOf(t, "amd64", "copy"))
	first, err := s.Resolve(t.Context(), "box", ref, func(string) {})
	must(t, err)
	srv.Close()
	said := ""
	again, err := s.Resolve(t.Context(), "box", ref, func(l string) { said += l + "\n" })
	must(t, err)
	if again.Digest != first.Digest || !strings.Contains(said, "using the copy") {
		t.Errorf("got %+v after %q", again, said)
	}
	_, err = s.Resolve(t.Context(), "box", u.Host+"/other:1", func(string) {})
	for _, want := range []string{`Image "box"`, "/other:1", "tried local store", "tried registry " + u.Host, "helmr image import", "HELMR_IMAGE_MIRROR"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
	if text := notFound("box", "docker.io/library/"+BaseRef, nil).Message; !strings.Contains(text, "helmr image base") {
		t.Errorf("for the base image: %q", text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Resolve(ctx, "box", u.Host+"/other:1", func(string) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// A registry that hands out other bytes than its manifest promises puts nothing into the store.
func TestResolveChecksContent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	must(t, err)
	img := imageOf(t, "amd64", "right")
	must(t, p.AppendImage(img))
	layers, err := img.Layers()
	must(t, err)
	h, err := layers[0].Digest()
	must(t, err)
	other, err := static.NewLayer([]byte("wrong"), types.DockerLayer).Compressed()
	must(t, err)
	data, err := io.ReadAll(other)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "blobs", "sha256", h.Hex), data, 0o600))
	if _, err := s.Import(t.Context(), "a", dir); err == nil || !strings.Contains(err.Error(), "wrong content") {
		t.Errorf("err = %v", err)
	}
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("List = %+v, %v", all, err)
	}
}
