package chunk

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const otherEnvironment = "0198c0de-0000-7000-8000-000000000002"

// stored gives the paths of all objects below root, relative to it.
func stored(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, rerr := filepath.Rel(root, path)
			all, err = append(all, rel), rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNothingOfTheContentCanBeSeenInTheStore(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	secret := []byte("a text that no one may find in a blob store")
	file := append(bytes.Repeat(secret, 1), noise(3, 200<<10)...)
	write(t, filepath.Join(dir, "a-telling-name"), file)
	store(t, s, dir)
	// The same folder in another Environment has no object in common with it.
	store(t, open(t, root, otherEnvironment, key(1)), dir)
	plain := sha256.Sum256(file)
	seen := map[string]bool{}
	for _, path := range stored(t, root) {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(path)
		if bytes.Contains(data, secret[:16]) || bytes.Contains(data, []byte("telling")) || name == hex.EncodeToString(plain[:]) {
			t.Errorf("%s tells what is in it", path)
		}
		if seen[name] || seen[string(data)] {
			t.Errorf("%s shows that two Environments hold the same", path)
		}
		seen[name], seen[string(data)] = true, true
	}
	if len(seen) != 8 {
		t.Fatalf("%d names and contents instead of 8", len(seen))
	}
}

func TestObjectsInEachOthersPlaceAreRefused(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		write(t, filepath.Join(dir, "f"), noise(uint64(i+1), 100<<10))
	}
	for _, prefix := range []string{"chunks", "manifests"} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			s, root := setup(t)
			name, _ := store(t, s, dirs[0])
			first := chunks(t, root, prefix)
			store(t, s, dirs[1])
			both := chunks(t, root, prefix)
			i := slices.Index(both, first[0])
			swap(t, both[i], both[1-i])
			err := s.Restore(t.Context(), name, filepath.Join(t.TempDir(), "out"))
			if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "belongs elsewhere") {
				t.Fatalf("restore: %v", err)
			}
		})
	}
	t.Run("of another Environment", func(t *testing.T) {
		t.Parallel()
		s, root := setup(t)
		name, _ := store(t, s, dirs[0])
		for _, kind := range []string{"chunks", "manifests"} {
			if err := os.Rename(filepath.Join(root, kind, environment), filepath.Join(root, kind, otherEnvironment)); err != nil {
				t.Fatal(err)
			}
		}
		other := open(t, root, otherEnvironment, key(1))
		if err := other.Restore(t.Context(), name, filepath.Join(t.TempDir(), "out")); !errors.Is(err, ErrUnreadable) {
			t.Fatalf("restore: %v", err)
		}
	})
}

func swap(t *testing.T, a, b string) {
	t.Helper()
	if err := errors.Join(os.Rename(a, a+".x"), os.Rename(b, a), os.Rename(a+".x", b)); err != nil {
		t.Fatal(err)
	}
}

func TestKeysCanBeReplaced(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), noise(1, 300<<10))
	old, _ := store(t, s, dir)
	stranger := open(t, root, environment, key(2))
	err := stranger.Restore(t.Context(), old, filepath.Join(t.TempDir(), "out"))
	if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "another HELMR_CHECKPOINT_ENCRYPTION_KEY") {
		t.Fatalf("under another key: %v", err)
	}
	both := open(t, root, environment, key(2), key(1))
	same(t, both, old, dir)
	fresh, stats := store(t, both, dir)
	if stats.NewPieces != stats.Pieces {
		t.Fatalf("pieces of the old key are used under the new one: %+v", stats)
	}
	same(t, stranger, fresh, dir)
	if _, err := NewVault(s.store, key(1)[1:]); err == nil {
		t.Fatal("a short key was taken")
	}
}

func TestReferencesAreReadWithoutAKey(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), noise(1, 3<<20))
	write(t, filepath.Join(dir, "b/same"), noise(1, 3<<20))
	write(t, filepath.Join(dir, "zeros"), make([]byte, 1<<20))
	first, err := s.Store(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(chunks(t, root, "chunks")); len(first.References) != n || n == 0 || !slices.IsSorted(first.References) {
		t.Fatalf("%d references to %d pieces", len(first.References), n)
	}
	read := func(name string) (all []string, err error) {
		err = References(t.Context(), s.store, environment, name, func(r string) { all = append(all, r) })
		return all, err
	}
	if have, err := read(first.Manifest); err != nil || !slices.Equal(have, first.References) {
		t.Fatalf("read %d references of %d, %v", len(have), len(first.References), err)
	}
	path := chunks(t, root, "manifests")[0]
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range headBytes + 4 + len(first.References)*referenceBytes {
		if n%7 != 0 && n > headBytes+4 {
			continue
		}
		write(t, path, whole[:n])
		if have, err := read(first.Manifest); !errors.Is(err, ErrUnreadable) || len(have) > len(first.References) {
			t.Fatalf("%d bytes: %d references, %v", n, len(have), err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := read(first.Manifest); !errors.Is(err, ErrUnreadable) {
		t.Fatalf("no manifest: %v", err)
	}
	// Whoever makes the list shorter, to have pieces removed, is found out.
	shorter := slices.Concat(whole[:headBytes], []byte{0, 0, 0, 0}, whole[headBytes+4+len(first.References)*referenceBytes:])
	write(t, path, shorter)
	if err := s.Restore(t.Context(), first.Manifest, filepath.Join(t.TempDir(), "out")); !errors.Is(err, ErrUnreadable) {
		t.Fatalf("a shorter list: %v", err)
	}
}

func TestRetiredReferencesAreNotUsedAgain(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), noise(1, 3<<20))
	used := map[string]bool{}
	for round := range 4 {
		stored, err := s.Store(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range stored.References {
			if used[r] {
				t.Fatalf("round %d uses %s again", round, r)
			}
			used[r] = true
			if digest, _, _ := strings.Cut(r, "-"); round > 0 && !used[digest] {
				t.Fatalf("round %d uses the strange %s", round, r)
			}
		}
		same(t, s, stored.Manifest, dir)
		s.Retire(stored.References...)
	}
}

// TestNoiseIsOnlyFramed: what cannot be compressed is told from what can, and both are read back.
func TestNoiseIsOnlyFramed(t *testing.T) {
	t.Parallel()
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	half := noise(1, 400_000)
	clear(half[200_000:])
	text := bytes.Repeat([]byte("the quick brown fox "), 20_000)
	var base64ed bytes.Buffer
	_, _ = base64.NewEncoder(base64.StdEncoding, &base64ed).Write(noise(2, 300_000))
	for name, of := range map[string]struct {
		plain []byte
		noisy bool
	}{
		"noise": {noise(3, 400_000), true}, "one block": {noise(3, maxBlock), true}, "a byte more": {noise(3, maxBlock+1), true}, "the largest": {noise(3, standard.max), true},
		"half": {half, false}, "text": {text, false}, "base64": {base64ed.Bytes(), false}, "short": {noise(3, 100), false}, "nothing": {nil, false},
	} {
		if have := noisy(of.plain); have != of.noisy {
			t.Errorf("%s: noisy %t", name, have)
		}
		for _, version := range []byte{sealVersion, quickVersion} {
			packed := c.pack(version, of.plain, nil)
			if of.noisy && len(packed) > len(of.plain)+64 {
				t.Errorf("%s: %d bytes became %d", name, len(of.plain), len(packed))
			}
			back, err := c.unpack(version, packed, nil)
			if err != nil || !bytes.Equal(back, of.plain) {
				t.Errorf("%s: %d bytes became %d, %v", name, len(of.plain), len(back), err)
			}
		}
	}
	for seed := range uint64(2000) { // noise is hardly ever taken for something else
		if !noisy(noise(seed, 2*samples*sampleBytes)) {
			t.Errorf("noise %d is compressed", seed)
		}
	}
}

// TestQuickPiecesAreReadBack beside others, and are refused when they claim to be too large.
func TestQuickPiecesAreReadBack(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "text"), bytes.Repeat([]byte("the quick brown fox "), 200_000))
	write(t, filepath.Join(dir, "noise"), noise(1, 3<<20))
	quick, err := s.StoreFrom(t.Context(), Source{Dir: dir, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "more"), noise(2, 3<<20))
	both, err := s.StoreFrom(t.Context(), Source{Dir: dir}) // refers to some that are quick
	if err != nil {
		t.Fatal(err)
	}
	if both.Stats.NewBytes != 3<<20 {
		t.Errorf("stored again: %+v", both.Stats)
	}
	fresh := open(t, root, environment, key(1))
	same(t, fresh, both.Manifest, dir)
	if err := os.Remove(filepath.Join(dir, "more")); err != nil {
		t.Fatal(err)
	}
	same(t, fresh, quick.Manifest, dir)
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := c.unpack(quickVersion, c.pack(quickVersion, make([]byte, maxPiece+1), nil), nil); err == nil {
		t.Error("a piece larger than any was unpacked")
	}
}
