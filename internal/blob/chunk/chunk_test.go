package chunk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"helmr.dev/helmr/internal/blob"
)

const environment = "0198c0de-0000-7000-8000-000000000001"

// key gives the root key with a number.
func key(n byte) []byte { return bytes.Repeat([]byte{n}, KeyBytes) }

func setup(t testing.TB) (sp *Space, root string) {
	t.Helper()
	root = t.TempDir()
	return open(t, root, environment, key(1)), root
}

// open opens an Environment's part of the store at root, remembering nothing.
func open(t testing.TB, root, environment string, key []byte, previous ...[]byte) *Space {
	t.Helper()
	s, err := blob.Open(context.Background(), "file:"+root)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVault(s, key, previous...)
	if err != nil {
		t.Fatal(err)
	}
	sp, err := v.Space(environment)
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

// noise gives n bytes that do not compress, the same for the same seed.
func noise(seed uint64, n int) []byte {
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), 1})
	b := make([]byte, n)
	_, _ = src.Read(b)
	return b
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeAt writes parts into a file of a size and leaves holes between them.
func writeAt(t testing.TB, path string, size int64, parts map[int64][]byte) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for at, part := range parts {
		if _, err := f.WriteAt(part, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func store(t testing.TB, s *Space, dir string) (string, Stats) {
	t.Helper()
	stored, err := s.Store(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return stored.Manifest, stored.Stats
}

// picture describes everything in a folder that a Save keeps.
func picture(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		if !d.IsDir() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		out[strings.TrimPrefix(path, dir)] = fmt.Sprint(info.Mode(), " ", content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// same restores a manifest and compares it with dir. It gives the restored folder.
func same(t testing.TB, s *Space, digest, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "restored")
	if err := s.Restore(context.Background(), digest, out); err != nil {
		t.Fatal(err)
	}
	want, have := picture(t, dir), picture(t, out)
	for name, w := range want {
		if have[name] != w {
			t.Errorf("%s: %s, want %s", name, have[name], w)
		}
	}
	if len(have) != len(want) {
		t.Errorf("%d entries, want %d", len(have), len(want))
	}
	return out
}

func blocks(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func TestRandomFoldersComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 2))
			s, _ := setup(t)
			dir := t.TempDir()
			randomFolder(t, rnd, dir)
			digest, _ := store(t, s, dir)
			same(t, s, digest, dir)
			for range 3 { // change something and save again: both Saves stay whole
				before := picture(t, dir)
				changeFolder(t, rnd, dir)
				next, _ := store(t, s, dir)
				same(t, s, next, dir)
				out := filepath.Join(t.TempDir(), "old")
				if err := s.Restore(t.Context(), digest, out); err != nil {
					t.Fatal(err)
				}
				if have := picture(t, out); !maps.Equal(have, before) {
					t.Fatalf("the former Save gives %v, want %v", have, before)
				}
				digest = next
			}
		})
	}
}

func randomFolder(t *testing.T, rnd *rand.Rand, dir string) {
	for i := range rnd.IntN(12) {
		path := filepath.Join(dir, []string{"", "sub", "sub/deep", "sub-2"}[rnd.IntN(4)], fmt.Sprintf("f%d", i))
		write(t, path, nil)
		size := []int64{0, 1, pageSize - 1, pageSize, pageSize + 1, 100_000, int64(rnd.IntN(6 << 20)), 2 << 20}[rnd.IntN(8)]
		parts := map[int64][]byte{}
		for range rnd.IntN(4) { // the rest is holes
			if size > 0 {
				at := rnd.Int64N(size)
				part := noise(rnd.Uint64(), int(min(rnd.Int64N(3<<20)+1, size-at)))
				if rnd.IntN(3) == 0 {
					clear(part)
				}
				parts[at] = part
			}
		}
		writeAt(t, path, size, parts)
		if err := os.Chmod(path, []fs.FileMode{0o644, 0o600, 0o400, 0o755, 0o755 | fs.ModeSetuid}[rnd.IntN(5)]); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "empty"), 0o500|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
}

func changeFolder(t *testing.T, rnd *rand.Rand, dir string) {
	var files []string
	for name, p := range picture(t, dir) {
		if !strings.HasPrefix(p, "d") {
			files = append(files, dir+name)
		}
	}
	slices.Sort(files)
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := rnd.IntN(len(data) + 1)
		switch rnd.IntN(5) {
		case 0:
			data = data[:at]
		case 1:
			data = slices.Insert(data, at, noise(rnd.Uint64(), rnd.IntN(10_000))...)
		case 2:
			copy(data[at:], noise(rnd.Uint64(), 5000))
		case 3:
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		write(t, path, data)
	}
}

func TestAnUnchangedFolderIsNotStoredAgain(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), noise(1, 9<<20))
	write(t, filepath.Join(dir, "copy"), noise(1, 9<<20))
	_, stats := store(t, s, dir)
	if stats.Files != 2 || stats.Bytes != 18<<20 || stats.NewBytes != 9<<20 || stats.NewPieces*2 != stats.Pieces {
		t.Fatalf("first %+v", stats)
	}
	for _, s := range []*Space{s, open(t, root, environment, key(1))} { // also one that remembers nothing
		name, stats := store(t, s, dir)
		if stats.NewPieces != 0 || stats.StoredBytes > 8<<10 {
			t.Fatalf("again %+v", stats)
		}
		same(t, s, name, dir)
	}
}

func TestAnInsertedPageMovesNothingElse(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	dir := t.TempDir()
	data := noise(1, 32<<20)
	write(t, filepath.Join(dir, "pages"), data)
	store(t, s, dir)
	write(t, filepath.Join(dir, "pages"), slices.Insert(data, 5*pageSize, noise(2, 3*pageSize)...))
	digest, stats := store(t, s, dir)
	if stats.NewBytes > 2*int64(standard.max) {
		t.Fatalf("three new pages stored %d bytes: %+v", stats.NewBytes, stats)
	}
	same(t, s, digest, dir)
}

func TestHolesAndZerosAreNotStoredAndStayHoles(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	sparse, zeros := t.TempDir(), t.TempDir()
	part := noise(1, 300_000)
	const size = 8 << 30
	writeAt(t, filepath.Join(sparse, "disk"), size, map[int64][]byte{0: part, size / 2: part, size - 10: []byte("end")})
	digest, stats := store(t, s, sparse)
	if stats.Bytes != size || stats.ZeroBytes < size-1<<20 || stats.StoredBytes > 1<<20 {
		t.Fatalf("sparse %+v", stats)
	}
	out := filepath.Join(t.TempDir(), "restored")
	if err := s.Restore(t.Context(), digest, out); err != nil {
		t.Fatal(err)
	}
	if have := blocks(t, filepath.Join(out, "disk")); have > 1<<20 {
		t.Fatalf("the restored file takes %d bytes", have)
	}
	f, err := os.Open(filepath.Join(out, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	have := make([]byte, len(part)+1)
	if _, err := f.ReadAt(have, size/2); err != nil || !bytes.Equal(have, append(slices.Clone(part), 0)) {
		t.Fatalf("the middle changed, %v", err)
	}
	// The same content with and without holes is the same Save.
	data := make([]byte, 4<<20)
	copy(data[1<<20:], part)
	one, two := t.TempDir(), zeros
	write(t, filepath.Join(one, "f"), data)
	writeAt(t, filepath.Join(two, "f"), 4<<20, map[int64][]byte{1 << 20: part})
	store(t, s, one)
	if _, stats := store(t, s, two); stats.NewPieces != 0 {
		t.Fatalf("holes change the pieces: %+v", stats)
	}
}

func TestCutsKeepTheirBounds(t *testing.T) {
	t.Parallel()
	r := rules{min: 4 * pageSize, max: 16 * pageSize, mask: 7}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var data, back []byte
		for range rnd.IntN(8) {
			n := rnd.IntN(40 * pageSize)
			if rnd.IntN(2) == 0 {
				data = append(data, make([]byte, n)...)
			} else {
				data = append(data, noise(rnd.Uint64(), n)...)
			}
		}
		var sizes []int
		c := &cutter{rules: r, buffer: func() []byte { return nil },
			zero: func(n int64) error {
				if n < minZeroRun {
					t.Errorf("zero piece of %d bytes", n)
				}
				back, sizes = append(back, make([]byte, n)...), append(sizes, -int(n))
				return nil
			},
			data: func(p []byte, _ bool) error {
				if len(p) == 0 || len(p) > r.max {
					t.Errorf("piece of %d bytes", len(p))
				}
				back, sizes = append(back, p...), append(sizes, len(p))
				return nil
			}}
		for i := 0; i < len(data); i += pageSize {
			if err := c.page(data[i:min(i+pageSize, len(data))]); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, data) {
			t.Fatalf("%d bytes became %d other bytes, pieces %v", len(data), len(back), sizes)
		}
		for i, n := range sizes[:max(len(sizes)-1, 0)] {
			if n > 0 && n < r.min && sizes[i+1] > 0 {
				t.Fatalf("short piece in the middle: %v", sizes)
			}
		}
	}
}

// chunks gives the files under a prefix of a folder store.
func chunks(t *testing.T, root, prefix string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, prefix, environment, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestDamageIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"changed": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 1
			return os.WriteFile(path, b, 0o600)
		},
		"truncated": func(path string) error { return os.Truncate(path, 100) },
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
		"removed":   os.Remove,
		"swapped":   func(path string) error { return os.WriteFile(path, []byte("something else"), 0o600) },
	} {
		for _, prefix := range []string{"chunks", "manifests"} {
			t.Run(name+" "+prefix, func(t *testing.T) {
				t.Parallel()
				s, root := setup(t)
				dir := t.TempDir()
				write(t, filepath.Join(dir, "sub/f"), noise(1, 5<<20))
				digest, _ := store(t, s, dir)
				victim := chunks(t, root, prefix)[0]
				if err := damage(victim); err != nil {
					t.Fatal(err)
				}
				parent := t.TempDir()
				err := s.Restore(t.Context(), digest, filepath.Join(parent, "out"))
				if err == nil || !strings.Contains(err.Error(), prefix+"/"+environment+"/"+filepath.Base(victim)) {
					t.Fatalf("restore: %v", err)
				}
				if !errors.Is(err, ErrUnreadable) {
					t.Errorf("it is not called unreadable: %v", err)
				}
				if name == "removed" && !errors.Is(err, blob.ErrNotFound) {
					t.Errorf("removed, but %v", err)
				}
				if left, _ := os.ReadDir(parent); len(left) != 0 {
					t.Fatalf("left: %v", left)
				}
			})
		}
	}
}

func TestTheManifestComesLast(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), noise(1, 5<<20))
	write(t, filepath.Join(dir, "b/pipe"), nil)
	if err := os.Remove(filepath.Join(dir, "b/pipe")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "b/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "b/pipe") {
		t.Fatalf("a fifo: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "b/pipe")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Store(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Fatalf("ended: %v", err)
	}
	// A store that takes no pieces gets no manifest.
	if err := os.WriteFile(filepath.Join(root, "chunks"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store(t.Context(), dir); err == nil {
		t.Fatal("stored without a place for pieces")
	}
	if have := chunks(t, root, "manifests"); len(have) != 0 {
		t.Fatalf("manifests %v", have)
	}
	if have, _ := os.ReadDir(filepath.Join(root, "tmp")); len(have) != 0 {
		t.Fatalf("temporary files %v", have)
	}
}

func TestRestoreRefusesAnExistingFolderAndBadDigests(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	dir := t.TempDir()
	digest, _ := store(t, s, dir)
	same(t, s, digest, dir) // an empty folder
	if err := s.Restore(t.Context(), digest, dir); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Fatalf("existing: %v", err)
	}
	for _, bad := range []string{"", "x", strings.Repeat("A", 64), "../" + digest} {
		if err := s.Restore(t.Context(), bad, filepath.Join(t.TempDir(), "out")); err == nil {
			t.Errorf("digest %q was taken", bad)
		}
	}
}

func TestHostileManifestsAreRefused(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	d := strings.Repeat("0", 64)
	for name, text := range map[string]string{
		"not JSON": `x`, "version": `{"version":2}`, "dots": `{"version":1,"entries":[{"path":"../x"}]}`, "absolute": `{"version":1,"entries":[{"path":"/x"}]}`,
		"itself": `{"version":1,"entries":[{"path":"."}]}`, "twice": `{"version":1,"entries":[{"path":"a"},{"path":"a"}]}`, "null": `{"version":1,"entries":[null]}`,
		"size": `{"version":1,"entries":[{"path":"a","size":5,"pieces":[{"n":4}]}]}`, "negative": `{"version":1,"entries":[{"path":"a","size":0,"pieces":[{"n":5},{"n":-5}]}]}`,
		"digest": `{"version":1,"entries":[{"path":"a","size":4,"pieces":[{"n":4,"d":"../x"}]}]}`,
		"huge":   `{"version":1,"entries":[{"path":"a","size":99999999,"pieces":[{"n":99999999,"d":"` + d + `"}]}]}`,
	} {
		digest := newManifestName()
		sealed, err := s.sealManifest(c, digest, []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.store.Put(t.Context(), ManifestPrefix(environment)+digest, bytes.NewReader(sealed)); err != nil {
			t.Fatal(err)
		}
		if err := s.Restore(t.Context(), digest, filepath.Join(t.TempDir(), "out")); err == nil || !strings.Contains(err.Error(), "not a manifest") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
