package chunk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// small are rules that make many pieces of little.
var small = rules{min: 4 * pageSize, max: 32 * pageSize, mask: 7}

// entriesOf reads the manifest of what was stored.
func entriesOf(t *testing.T, sp *Space, stored Stored) []string {
	t.Helper()
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	m, err := sp.readManifest(t.Context(), c, stored.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range m.Entries {
		line := fmt.Sprint(e.Path, " ", e.Mode, " ", e.Size)
		for _, p := range e.Pieces {
			line += fmt.Sprint(" ", p.Size, ":", p.Reference)
		}
		out = append(out, line)
	}
	return out
}

// TestWhatIsRememberedChangesNothing: after random changes, a Store that takes over what is remembered writes the very
// manifest that one writes which remembers nothing, whether the file is there as a whole or grows meanwhile.
func TestWhatIsRememberedChangesNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 7))
			s, root := setup(t)
			dir := t.TempDir()
			pages := filepath.Join(dir, "pages")
			data := somePages(rnd)
			var before Stored
			over := int64(0)
			for round := range 8 {
				write(t, filepath.Join(dir, "other"), somePages(rnd)[:rnd.IntN(3*pageSize)])
				var stored Stored
				if rnd.IntN(2) == 0 {
					write(t, pages, data)
					stored = storeNext(t, s, Source{Dir: dir, Before: before, Remember: true})
				} else {
					stored = storeGrowing(t, rnd, s, data, Source{Dir: dir, Growing: "pages", Before: before, Remember: true})
				}
				fresh := open(t, root, environment, key(1)) // remembers nothing
				want, have := entriesOf(t, fresh, storeNext(t, fresh, Source{Dir: dir})), entriesOf(t, s, stored)
				if !slices.Equal(want, have) {
					t.Fatalf("round %d:\n%v\nwant\n%v", round, have, want)
				}
				same(t, fresh, stored.Manifest, dir)
				over += stored.Stats.Pieces - stored.Stats.NewPieces
				before, data = stored, changed(rnd, data)
			}
			if over == 0 && len(data) > 1<<20 {
				t.Error("nothing was ever taken over")
			}
		})
	}
}

func somePages(rnd *rand.Rand) []byte {
	var data []byte
	for range rnd.IntN(8) + 1 {
		n := rnd.IntN(80 * pageSize)
		switch rnd.IntN(4) {
		case 0:
			data = append(data, make([]byte, n)...)
		case 1: // the same again and again
			data = append(data, bytes.Repeat(noise(rnd.Uint64N(3), pageSize), n/pageSize)...)
		default:
			data = append(data, noise(rnd.Uint64(), n)...)
		}
	}
	if rnd.IntN(3) > 0 {
		data = data[:len(data)/pageSize*pageSize]
	}
	return append(data, make([]byte, max(0, 3*pageSize-len(data)))...)
}

// changed gives data with something else in it, more in it, or less.
func changed(rnd *rand.Rand, data []byte) []byte {
	data = slices.Clone(data)
	for range rnd.IntN(3) {
		data = append(data, make([]byte, max(0, pageSize-len(data)))...)
		at := rnd.IntN(len(data))
		if rnd.IntN(4) > 0 {
			at = at / pageSize * pageSize
		}
		n := min(rnd.IntN(40*pageSize), len(data)-at)
		switch rnd.IntN(7) {
		case 0:
			data = slices.Insert(data, at, noise(rnd.Uint64(), n/pageSize*pageSize)...)
		case 1:
			data = slices.Insert(data, at, make([]byte, n/pageSize*pageSize)...)
		case 2:
			data = slices.Delete(data, at, at+n/pageSize*pageSize)
		case 3:
			clear(data[at : at+n])
		case 4:
			copy(data[at:], noise(rnd.Uint64(), n))
		case 5:
			data[at] ^= 1
		case 6:
			data = append(data[:at:at], somePages(rnd)...)
		}
	}
	return append(data, make([]byte, max(0, pageSize-len(data)))...)
}

func storeNext(t *testing.T, sp *Space, src Source) Stored {
	t.Helper()
	stored, err := sp.storeWith(t.Context(), src, small)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// storeGrowing stores a folder while its file is written by appending, at times by making it longer first.
func storeGrowing(t *testing.T, rnd *rand.Rand, sp *Space, data []byte, src Source) Stored {
	t.Helper()
	path := filepath.Join(src.Dir, src.Growing)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	src.Written = written
	failed := make(chan error, 1)
	step, early := rnd.IntN(100*pageSize)+1, rnd.IntN(3) == 0
	go func() {
		defer close(written)
		f, err := os.Create(path)
		if err != nil {
			failed <- err
			return
		}
		for rest := data; len(rest) > 0 && err == nil; rest = rest[min(step, len(rest)):] {
			if early {
				err = f.Truncate(int64(len(data)))
			}
			if err == nil {
				_, err = f.Write(rest[:min(step, len(rest))])
			}
		}
		failed <- errors.Join(err, f.Close())
	}()
	stored := storeNext(t, sp, src)
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	return stored
}

// TestAPieceIsTakenOverOnlyIfItIsThere: what is remembered of an object that was removed, or may not be used any more, is stored
// again.
func TestAPieceIsTakenOverOnlyIfItIsThere(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pages"), noise(1, 4<<20))
	first := storeNext(t, s, Source{Dir: dir, Remember: true})
	if again := storeNext(t, s, Source{Dir: dir, Before: first, Remember: true}); again.Stats.NewPieces != 0 || !slices.Equal(again.References, first.References) {
		t.Fatalf("unchanged: %+v", again.Stats)
	}
	gone, retired := first.References[0], first.References[1]
	if err := s.store.Delete(t.Context(), s.chunkKey(gone)); err != nil {
		t.Fatal(err)
	}
	s.Retire(retired)
	again := storeNext(t, s, Source{Dir: dir, Before: first, Remember: true})
	if again.Stats.NewPieces != 2 || slices.Contains(again.References, retired) || !slices.Contains(again.References, retired+"-1") || !slices.Contains(again.References, gone) {
		t.Fatalf("%+v: %v", again.Stats, again.References)
	}
	same(t, open(t, root, environment, key(1)), again.Manifest, dir)
}

// TestAChangeOfOneBitIsSeen wherever it is.
func TestAChangeOfOneBitIsSeen(t *testing.T) {
	t.Parallel()
	s, root := setup(t)
	dir := t.TempDir()
	data := noise(1, 64*pageSize+100)
	path := filepath.Join(dir, "pages")
	write(t, path, data)
	before := storeNext(t, s, Source{Dir: dir, Remember: true})
	for range 50 {
		data[rand.IntN(len(data))] ^= 1 << rand.IntN(8)
		write(t, path, data)
		before = storeNext(t, s, Source{Dir: dir, Before: before, Remember: true})
		if before.Stats.NewPieces == 0 {
			t.Fatal("nothing was stored")
		}
	}
	same(t, open(t, root, environment, key(1)), before.Manifest, dir)
}

func TestFingerprintsAreOfOneProcess(t *testing.T) {
	t.Parallel()
	one, err := newPrints()
	if err != nil {
		t.Fatal(err)
	}
	two, err := newPrints()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[print]int{}
	for n := range 300 { // zeros of different lengths too
		seen[one.of(make([]byte, n))]++
		seen[two.of(make([]byte, n))]++
	}
	if len(seen) < 599 { // nothing at all may be the same for all keys
		t.Fatalf("%d different fingerprints", len(seen))
	}
	if first, again := one.of([]byte("x")), one.of([]byte("x")); first != again {
		t.Fatal("a fingerprint is not repeatable")
	}
}

func TestAStoreThatFollowsEnds(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	// The writer never comes.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.StoreFrom(ctx, Source{Dir: t.TempDir(), Growing: "pages", Written: make(chan struct{})}); !errors.Is(err, context.Canceled) {
		t.Fatalf("ended: %v", err)
	}
	// It wrote something else.
	written := make(chan struct{})
	close(written)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "other"), noise(1, 100))
	stored, err := s.StoreFrom(t.Context(), Source{Dir: dir, Growing: "pages", Written: written})
	if err != nil {
		t.Fatal(err)
	}
	same(t, s, stored.Manifest, dir)
	// It cuts what was read.
	write(t, filepath.Join(dir, "pages"), noise(1, 1<<20))
	f, err := os.Open(filepath.Join(dir, "pages"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	in := &input{f: f, written: written}
	if err := in.reach(t.Context(), 1<<20); err != nil || in.size != 1<<20 {
		t.Fatalf("%d bytes, %v", in.size, err)
	}
	if err := os.Truncate(filepath.Join(dir, "pages"), 100); err != nil {
		t.Fatal(err)
	}
	if err := in.reach(t.Context(), 2<<20); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Fatalf("cut: %v", err)
	}
}

func TestMemoryOfAFolderIsBounded(t *testing.T) {
	t.Parallel()
	if (memo{"a": make([]*known, maxRemembered)}).bounded() == nil {
		t.Error("as much as may be is not kept")
	}
	if (memo{"a": make([]*known, maxRemembered), "b": make([]*known, 1)}).bounded() != nil {
		t.Error("more than may be is kept")
	}
}
