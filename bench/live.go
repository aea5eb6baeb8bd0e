package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// live measures from a handler's write to a client that follows the Session.
func (b *bench) live(ctx context.Context, h *helmr) error {
	s, err := h.newWarm(ctx, "stream", "0 0", "")
	if err != nil {
		return err
	}
	clock, err := s.clockAhead(ctx)
	if err != nil {
		return err
	}
	var delays, durable []float64
	for round := range b.few(4, 2) + 1 { // the first is to warm up
		turnID, _, err := s.enqueue(ctx, "60 10")
		if err != nil {
			return err
		}
		var wrong error
		e, err := s.until(ctx, turnID, "turn.completed", func(e seen) {
			if e.Kind != "turn.output" {
				return
			}
			took, err := delay(e, clock)
			if err != nil {
				wrong = err
			}
			if round > 0 {
				delays = append(delays, took)
			}
		})
		if err != nil || wrong != nil {
			return fmt.Errorf("%v %w", err, wrong)
		}
		r, err := decode[struct{ Durable []float64 }](e)
		if err != nil {
			return err
		}
		if round > 0 {
			durable = append(durable, r.Durable...)
		}
	}
	f := b.floors
	b.report.add("live_output", h.kind, median(delays), "ms", f.echo/2+f.commit+f.http/2, nil)
	b.report.add("live_output_p99", h.kind, percentile(delays, 99), "ms", f.echo/2+f.commit+f.http/2, nil)
	b.report.add("output_durable", h.kind, median(durable), "ms", f.echo+f.commit, nil)
	return s.end(ctx)
}

// delay gives the ms since the handler wrote the output, which says so itself.
func delay(e seen, clock float64) (float64, error) {
	written, err := text(e)
	if err != nil {
		return 0, err
	}
	at, err := strconv.ParseFloat(strings.TrimSpace(written), 64)
	if err != nil {
		return 0, err
	}
	took := wall(e.at) - at - clock
	if took < -clockSlack {
		return 0, fmt.Errorf("the clock inside is wrong: an output was here %.2f ms before it was written", -took)
	}
	return took, nil
}

// piped measures a model's stream: fragments as fast as they are taken, and 1,000 a second.
func (b *bench) piped(ctx context.Context, h *helmr) error {
	s, err := h.newWarm(ctx, "pipe", "0 0", "")
	if err != nil {
		return err
	}
	clock, err := s.clockAhead(ctx)
	if err != nil {
		return err
	}
	count := b.few(20000, 5000)
	var rates []float64
	for range b.few(3, 2) {
		began, last, delays, err := s.pipe(ctx, count, 0, clock)
		if err != nil {
			return err
		}
		rates = append(rates, float64(len(delays))/(last-began)*1000)
	}
	b.report.add("piped_fragments", h.kind, median(rates), "1/s", b.floors.fragments, atLeast(1000))
	_, _, delays, err := s.pipe(ctx, b.few(4000, 2000), 1000, clock)
	if err != nil {
		return err
	}
	b.report.times("piped_1000_delay", h.kind, delays, 0, nil)
	return s.end(ctx)
}

// pipe has a Turn pipe fragments and checks that each is here once and in order. It gives when the handler began, when
// the last was here, and what each took.
func (s *session) pipe(ctx context.Context, count, rate int, clock float64) (began, last float64, delays []float64, err error) {
	turnID, _, err := s.enqueue(ctx, fmt.Sprint(count, " ", rate))
	if err != nil {
		return 0, 0, nil, err
	}
	var at time.Time
	before := 0.0
	var wrong error
	e, err := s.until(ctx, turnID, "turn.completed", func(e seen) {
		if e.Kind != "turn.output" {
			return
		}
		at = e.at
		written, err := text(e)
		if err != nil {
			wrong = err
		}
		for fragment := range strings.FieldsSeq(written) {
			when, err := strconv.ParseFloat(fragment, 64)
			if err != nil || when < before {
				wrong = fmt.Errorf("fragment %q came after %.3f: %v", fragment, before, err)
			}
			before = when
			delays = append(delays, wall(at)-when-clock)
		}
	})
	switch {
	case err != nil:
		return 0, 0, nil, err
	case wrong != nil:
		return 0, 0, nil, wrong
	case len(delays) != count:
		return 0, 0, nil, fmt.Errorf("%d of %d fragments are here", len(delays), count)
	}
	r, err := decode[struct{ Began float64 }](e)
	return r.Began + clock, wall(at), delays, err
}
