package main

import (
	"context"
	"fmt"
	"time"
)

// prepared measures the start of a Session on a Computer that begins with a prepared image, as cold does, in turn with the
// start of one without: that is its floor. The preparation itself is done before, and a figure of its own.
func (b *bench) prepared(ctx context.Context, h *helmr) error {
	began := time.Now()
	if _, err := h.firstOutput(ctx, "prepared"); err != nil {
		return err
	}
	b.report.add("prepare", h.kind, ms(time.Since(began)), "ms", 0, nil)
	var times, floor []float64
	for i := range b.few(11, 5) + 1 { // the first is to warm up
		f, err := h.firstOutput(ctx, "cold")
		if err != nil {
			return fmt.Errorf("start without preparation: %w", err)
		}
		t, err := h.firstOutput(ctx, "prepared")
		if err != nil {
			return err
		}
		if i > 0 {
			times, floor = append(times, t), append(floor, f)
		}
	}
	b.report.add("start_prepared", h.kind, median(times), "ms", median(floor), atMostRatio(1.2))
	return nil
}

// firstOutput gives the ms from the call that creates a Session, on a new Computer, to its first output.
func (h *helmr) firstOutput(ctx context.Context, agent string) (float64, error) {
	began := time.Now()
	s, err := h.newSession(ctx, agent, "", "")
	if err != nil {
		return 0, err
	}
	e, err := s.until(ctx, s.first, "turn.output", nil)
	if err != nil {
		return 0, err
	}
	if _, err := s.until(ctx, s.first, "turn.completed", nil); err != nil {
		return 0, err
	}
	return ms(e.at.Sub(began)), s.leave(ctx)
}
