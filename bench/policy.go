package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/egress/policy"
)

// policies measures what it takes to give one more Computer its network: record, namespace, link and rules, all of them
// real, with 500 others there. The floor is the same with none. It needs no sandbox and no server.
func (b *bench) policies(ctx context.Context, h *helmr) (err error) {
	dir, err := os.MkdirTemp("", "helmr-bench-network-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g, err := egress.Open(ctx, egress.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() {
		for _, id := range g.List() {
			err = errors.Join(err, g.Remove(id))
		}
		err = errors.Join(err, g.Close())
	}()
	p := policy.Policy{AllowDomains: []policy.Entry{{Pattern: "packages.example.org"}, {Pattern: "*.example.com"}}}
	adds := func() (times []float64, err error) {
		for range b.few(40, 15) {
			began := time.Now()
			if _, err := g.Add("more", p); err != nil {
				return nil, err
			}
			times = append(times, ms(time.Since(began)))
			if err := g.Remove("more"); err != nil {
				return nil, err
			}
		}
		return times, nil
	}
	alone, err := adds()
	if err != nil {
		return err
	}
	for i := range 500 {
		if _, err := g.Add(fmt.Sprint(i), p); err != nil {
			return err
		}
	}
	among, err := adds()
	if err != nil {
		return err
	}
	b.report.add("policy_add_500", h.kind, median(among), "ms", median(alone), atMostRatio(1.5))
	return nil
}
