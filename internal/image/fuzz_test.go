package image

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever two layers hold, they are refused or written, and nothing appears beside the folder for them.
func FuzzLayersStayInside(f *testing.F) {
	raw := func(entries ...tarEntry) []byte {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, e := range entries {
			h := e.Header
			if h.Typeflag == 0 {
				h.Typeflag = tar.TypeReg
			}
			h.Size, h.Mode = int64(len(e.body)), 0o755
			if tw.WriteHeader(&h) != nil {
				continue
			}
			_, _ = tw.Write([]byte(e.body))
		}
		_ = tw.Close()
		return b.Bytes()
	}
	link := func(name, to string) tarEntry { return special(tar.TypeSymlink, name, to) }
	f.Add(raw(file("a", "1"), link("l", "/")), raw(file("l/../../b", "2"), file(".wh.a", "")))
	f.Add(raw(link("x", ".."), link("x/y", "x")), raw(special(tar.TypeLink, "h", "x/y"), file("x/y/z", "1")))
	f.Add(raw(special(tar.TypeDir, "d/", ""), special(tar.TypeFifo, "d/p", "")), raw(file("d/.wh..wh..opq", ""), link("d", "/proc/self/root")))
	f.Add(raw(special(tar.TypeChar, "dev/null", ""), file("./", "")), raw(file("/abs//./e", "1"), special(tar.TypeLink, "/h", "/abs/e")))
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		dir := t.TempDir()
		data, root := filepath.Join(dir, "data"), filepath.Join(dir, "root")
		must(t, os.Mkdir(data, 0o700))
		must(t, os.Mkdir(root, 0o700))
		lim := defaultLimits
		lim.bytes, lim.entries = 1<<20, 200
		b, tr := newBudget(lim), newTree()
		for i, layer := range [][]byte{lower, upper} {
			s := &spool{ctx: t.Context(), dir: data, prefix: string(rune('a' + i)), budget: b, window: lim.window, buf: make([]byte, 4096)}
			entries, err := s.readTar(&meter{t.Context(), bytes.NewReader(layer), b})
			if err != nil {
				return
			}
			for _, e := range entries {
				if strings.Contains(e.name, "/") || e.name == ".." || strings.HasPrefix(e.path, "/") || strings.HasPrefix(e.link, "/") {
					t.Fatalf("the entry %+v is not checked", e)
				}
			}
			if err := tr.apply(entries); err != nil {
				return
			}
		}
		_ = tr.write(t.Context(), data, root)
		left, err := os.ReadDir(dir)
		must(t, err)
		if len(left) != 2 {
			t.Fatalf("beside the folders: %v", left)
		}
	})
}

// Reading bytes that nobody vouches for ends in an error, not in a panic.
func FuzzArchive(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(t.TempDir(), "a.tar")
		must(t, os.WriteFile(name, data, 0o600))
		in, err := os.Open(name)
		must(t, err)
		defer drop(in)
		lim := defaultLimits
		lim.layers = 4
		a, err := readArchive(in, lim)
		if err != nil {
			return
		}
		for _, l := range a.layers {
			if r, err := findBlob(a.blobs, l); err == nil {
				_, _ = io.Copy(io.Discard, r)
			}
		}
	})
}
