package chunk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

// someRules are the sizes that were compared to choose standard.
var someRules = map[string]rules{
	"mean256K": {64 << 10, 1 << 20, 1<<6 - 1},
	"mean384K": {128 << 10, 1 << 20, 1<<6 - 1},
	"mean768K": {256 << 10, 2 << 20, 1<<7 - 1},
	"mean1.5M": {512 << 10, 4 << 20, 1<<8 - 1},
}

// memory gives n bytes as memory looks: a third text that compresses well, a third noise, a third zero pages in runs.
func memory(n int) []byte {
	out := make([]byte, n)
	rnd := rand.New(rand.NewPCG(1, 2))
	for at := 0; at < n; {
		run := min((rnd.IntN(64)+1)*pageSize, n-at)
		switch part := out[at : at+run]; rnd.IntN(3) {
		case 0:
			copy(part, noise(rnd.Uint64(), run))
		case 1:
			for i := range part {
				part[i] = "the quick brown fox "[(i*7+rnd.IntN(3))%20]
			}
		}
		at += run
	}
	return out
}

const benchBytes = 256 << 20

// BenchmarkStore saves 256 MiB that the store has never seen.
func BenchmarkStore(b *testing.B) {
	dir := b.TempDir()
	write(b, filepath.Join(dir, "pages"), memory(benchBytes))
	for name, r := range someRules {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				b.StopTimer()
				s, _ := setup(b)
				b.StartTimer()
				stored, err := s.storeWith(context.Background(), Source{Dir: dir}, r)
				if err != nil {
					b.Fatal(err)
				}
				stats := stored.Stats
				b.ReportMetric(float64(stats.NewPieces), "objects")
				b.ReportMetric(float64(stats.StoredBytes)/(1<<20), "MiB-stored")
			}
		})
	}
}

// BenchmarkStoreChanged saves 256 MiB of which n single pages, scattered, are new.
func BenchmarkStoreChanged(b *testing.B) {
	for _, pages := range []int{0, 20, 200} {
		for name, r := range someRules {
			b.Run(fmt.Sprint(pages, "pages/", name), func(b *testing.B) {
				dir := b.TempDir()
				data := memory(benchBytes)
				write(b, filepath.Join(dir, "pages"), data)
				s, _ := setup(b)
				if _, err := s.storeWith(context.Background(), Source{Dir: dir}, r); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(benchBytes)
				seed := uint64(0)
				for b.Loop() {
					b.StopTimer()
					for range pages {
						seed++
						copy(data[rand.IntN(benchBytes/pageSize)*pageSize:], noise(seed+100, pageSize))
					}
					write(b, filepath.Join(dir, "pages"), data)
					b.StartTimer()
					stored, err := s.storeWith(context.Background(), Source{Dir: dir}, r)
					if err != nil {
						b.Fatal(err)
					}
					stats := stored.Stats
					b.ReportMetric(float64(stats.NewPieces), "objects")
					b.ReportMetric(float64(stats.StoredBytes)/(1<<20), "MiB-stored")
				}
			})
		}
	}
}

// BenchmarkRestore makes the folder again.
func BenchmarkRestore(b *testing.B) {
	dir := b.TempDir()
	write(b, filepath.Join(dir, "pages"), memory(benchBytes))
	s, _ := setup(b)
	digest, _ := store(b, s, dir)
	b.SetBytes(benchBytes)
	for b.Loop() {
		b.StopTimer()
		out := filepath.Join(b.TempDir(), "out")
		b.StartTimer()
		if err := s.Restore(context.Background(), digest, out); err != nil {
			b.Fatal(err)
		}
	}
}
