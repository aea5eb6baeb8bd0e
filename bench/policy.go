package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/egress/policy"
)

// policies measures what it takes to give one more Computer its network: record, namespace, link and rules, all of them
// real, with 500 others there. The floor is the same with none, in turn. It needs no sandbox, and no database: it is
// measured once.
func (b *bench) policies(ctx context.Context, h *helmr) (err error) {
	if h.kind != db.SQLite {
		return nil
	}
	p := policy.Policy{AllowDomains: []policy.Entry{{Pattern: "packages.example.org"}, {Pattern: "*.example.com"}}}
	var gateways [2]*egress.Gateway
	for i, others := range []int{0, 500} {
		dir, err2 := os.MkdirTemp("", "helmr-bench-network-")
		if err2 != nil {
			return err2
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		g, err2 := egress.Open(ctx, egress.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err2 != nil {
			return err2
		}
		defer func() {
			for _, id := range g.List() {
				err = errors.Join(err, g.Remove(id))
			}
			err = errors.Join(err, g.Close())
		}()
		for n := range others {
			if _, err := g.Add(fmt.Sprint(n), p); err != nil {
				return err
			}
		}
		gateways[i] = g
	}
	var times [2][]float64
	for range b.few(60, 30) {
		for i, g := range gateways {
			began := time.Now()
			if _, err := g.Add("more", p); err != nil {
				return err
			}
			times[i] = append(times[i], ms(time.Since(began)))
			if err := g.Remove("more"); err != nil {
				return err
			}
		}
	}
	b.report.add("policy_add_500", h.kind, median(times[1]), "ms", median(times[0]), atMostRatio(1.5))
	return nil
}
