package egress

import (
	"fmt"
	"log/slog"
	"testing"

	"helmr.dev/helmr/internal/egress/policy"
)

// BenchmarkAdd500 adds one more Computer where 500 are.
func BenchmarkAdd500(b *testing.B) {
	dir := b.TempDir()
	host, err := makeNamespace("helmrtest-bench-host")
	if err != nil {
		b.Fatal(err)
	}
	defer host.Close()
	defer func() { _ = deleteNamespace("helmrtest-bench-host") }()
	g, err := Open(b.Context(), Config{Dir: dir, HostNS: host, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	p := policy.Policy{AllowDomains: []policy.Entry{{Pattern: "a.example"}}}
	for i := range 500 {
		if _, err := g.Add(fmt.Sprint(i), p); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := g.Add("more", p); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := g.Remove("more"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	for _, id := range g.List() {
		if err := g.Remove(id); err != nil {
			b.Fatal(err)
		}
	}
	if err := g.Close(); err != nil {
		b.Fatal(err)
	}
}
