package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// archiveFiles gives the content of every file in an archive's merged layers (whiteouts are not applied), links as
// "-> target", and modes under "mode:<name>".
func archiveFiles(t *testing.T, archive string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	must(t, extractLayout(t.Context(), archive, dir))
	idx, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	m, err := idx.IndexManifest()
	must(t, err)
	img, err := idx.Image(m.Manifests[0].Digest)
	must(t, err)
	layers, err := img.Layers()
	must(t, err)
	files := map[string]string{}
	for _, l := range layers {
		rc, err := l.Uncompressed()
		must(t, err)
		tr := tar.NewReader(rc)
		for {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			data, err := io.ReadAll(tr)
			must(t, err)
			name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
			files[name] = string(data)
			if h.Typeflag == tar.TypeSymlink {
				files[name] = "-> " + h.Linkname
			}
			files["mode:"+name] = fmt.Sprintf("%o", h.Mode&0o7777)
		}
		must(t, rc.Close())
	}
	return files
}

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
