package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"helmr.dev/helmr/internal/db"
)

// clockSlack is how far, in ms, a handler's clock may be from the host's before its times count as wrong.
const clockSlack = 1.0

// stamp is the result of the Agents that say when their handler began.
type stamp struct {
	At float64 `json:"at"`
}

// turnTimes are those of one Turn from the moment its enqueue call began, in ms.
type turnTimes struct{ handler, recorded, completed float64 }

// oneTurn enqueues a Turn and follows it to its end.
func (s *session) oneTurn(ctx context.Context, clock float64) (t turnTimes, err error) {
	turnID, began, err := s.enqueue(ctx, "go")
	if err != nil {
		return t, err
	}
	var recorded time.Time
	e, err := s.until(ctx, turnID, "turn.completed", func(e seen) {
		if e.Kind == "turn.finalizing" {
			recorded = e.at
		}
	})
	if err != nil {
		return t, err
	}
	r, err := decode[stamp](e)
	if err != nil {
		return t, err
	}
	at := r.At + clock
	if at < wall(began)-clockSlack || at > wall(recorded)+clockSlack {
		return t, fmt.Errorf("the clock inside is wrong: a handler began %.2f ms after its enqueue and %.2f ms before its result was here", at-wall(began), wall(recorded)-at)
	}
	return turnTimes{handler: at - wall(began), recorded: ms(recorded.Sub(began)), completed: ms(e.at.Sub(began))}, nil
}

// warm measures Turns of Sessions that wait for them: one Session with one caller, and 32 of them at once on 4 Computers.
func (b *bench) warm(ctx context.Context, h *helmr) error {
	f := b.floors
	handlerFloor := f.http + 2*f.commit + f.echo/2
	recordedFloor := f.http + 3*f.commit + f.echo
	completedFloor := f.http + 4*f.commit + f.echo + f.save
	b.report.add("floor_http", h.kind, f.http, "ms", 0, nil)
	b.report.add("floor_commit", h.kind, f.commit, "ms", 0, nil)
	b.report.add("floor_sandbox_echo", h.kind, f.echo, "ms", 0, nil)
	b.report.add("floor_save", h.kind, f.save, "ms", 0, nil)

	s, err := h.newWarm(ctx, "alone", "", "")
	if err != nil {
		return err
	}
	clock, err := s.clockAhead(ctx)
	if err != nil {
		return err
	}
	b.report.add("clock_difference", h.kind, clock, "ms", 0, nil)
	var one []turnTimes
	for i := range b.few(150, 40) + 10 { // the first ten are to warm up
		t, err := s.oneTurn(ctx, clock)
		if err != nil {
			return err
		}
		if i >= 10 {
			one = append(one, t)
		}
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	b.turnTimes("warm_turn", h.kind, one, handlerFloor, recordedFloor, completedFloor, atMost(5))

	const sessions, computers = 32, 4
	all, err := h.warmSessions(ctx, "noop", sessions, computers)
	if err != nil {
		return err
	}
	clocks := map[string]float64{}
	for _, s := range all[:computers] {
		if clocks[s.computer], err = s.clockAhead(ctx); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	var many []turnTimes
	err = each(sessions, sessions, func(i int) error {
		for n := range b.few(12, 4) + 1 {
			t, err := all[i].oneTurn(ctx, clocks[all[i].computer])
			if err != nil {
				return err
			}
			if n > 0 {
				mu.Lock()
				many = append(many, t)
				mu.Unlock()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.turnTimes("warm_turn_32", h.kind, many, handlerFloor, recordedFloor, completedFloor, nil)
	return leaveAll(ctx, all)
}

func (b *bench) turnTimes(name string, kind db.Kind, times []turnTimes, handlerFloor, recordedFloor, completedFloor float64, handler *bound) {
	var h, r, c []float64
	for _, t := range times {
		h, r, c = append(h, t.handler), append(r, t.recorded), append(c, t.completed)
	}
	b.report.times(name+"_handler", kind, h, handlerFloor, handler)
	b.report.times(name+"_recorded", kind, r, recordedFloor, nil)
	b.report.times(name+"_completed", kind, c, completedFloor, nil)
}

// throughput measures no-op Turns over 16 Sessions on 4 Computers. A Session's next Turn starts when the one before it is
// completed, so how fast results are recorded shows only in bursts: all 16 Sessions get a Turn at once, the clock stops
// when all 16 results are durable, and begins again when their Saves are published too. Completed Turns are counted over
// a stretch in which every Session always has Turns waiting.
func (b *bench) throughput(ctx context.Context, h *helmr) error {
	const sessions, computers = 16, 4
	all, err := h.warmSessions(ctx, "noop", sessions, computers)
	if err != nil {
		return err
	}
	var rates []float64
	var ours, inside time.Duration
	bursts := b.few(25, 8)
	for i := range bursts + 3 { // the first three are to warm up
		before, insideBefore := h.cpu(), cpuInside(all[:computers])
		took, err := burst(ctx, all, func() {
			ours += h.cpu() - before
			inside += cpuInside(all[:computers]) - insideBefore
		})
		if err != nil {
			return err
		}
		if i < 3 {
			ours, inside = 0, 0
			continue
		}
		rates = append(rates, sessions/took.Seconds())
	}
	f := b.floors
	turns := float64(bursts * sessions)
	b.report.add("turns_recorded_per_second", h.kind, median(rates), "1/s", f.commitRate/3, atLeast(500))
	b.report.add("turn_recorded_cpu", h.kind, ms(ours)/turns, "ms", 0, nil)
	if inside > 0 {
		b.report.add("turn_recorded_cpu_inside", h.kind, ms(inside)/turns, "ms", 0, nil)
	}

	for _, s := range all { // what is to come is counted by the server's own answers
		s.stop()
	}
	rate, err := sustained(ctx, all, time.Duration(b.few(12, 5))*time.Second)
	if err != nil {
		return err
	}
	b.report.add("turns_completed_per_second", h.kind, rate, "1/s", f.commitRate/4, nil)
	return leaveAll(ctx, all)
}

// cpuInside gives what the sandboxes of the Sessions' Computers have used, 0 where the machine cannot tell.
func cpuInside(one []*session) time.Duration {
	total := time.Duration(0)
	for _, s := range one {
		used, err := sandboxCPU(s.computer, s.h.dir)
		if err != nil {
			return 0
		}
		total += used
	}
	return total
}

// burst gives each Session a Turn at once and tells how long it took until the results of all were durable. It returns
// when all are completed.
func burst(ctx context.Context, all []*session, recorded func()) (took time.Duration, err error) {
	var left atomic.Int64
	left.Store(int64(len(all)))
	began := time.Now()
	var mu sync.Mutex
	var last time.Time
	err = each(len(all), len(all), func(i int) error {
		turnID, _, err := all[i].enqueue(ctx, "go")
		if err != nil {
			return err
		}
		e, err := all[i].until(ctx, turnID, "turn.finalizing", nil)
		if err != nil {
			return err
		}
		mu.Lock()
		if e.at.After(last) {
			last = e.at
		}
		mu.Unlock()
		if left.Add(-1) == 0 {
			recorded()
		}
		_, err = all[i].until(ctx, turnID, "turn.completed", nil)
		return err
	})
	return last.Sub(began), err
}

// sustained keeps a queue in front of every Session and gives how many Turns were completed a second.
func sustained(ctx context.Context, all []*session, stretch time.Duration) (float64, error) {
	const ahead = 3
	var counted atomic.Int64
	var counting atomic.Bool
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, len(all))
	for _, s := range all {
		wg.Go(func() {
			var queue []string
			for ctx.Err() == nil {
				for len(queue) < ahead {
					turnID, _, err := s.enqueue(ctx, "go")
					if err != nil {
						errs <- err
						return
					}
					queue = append(queue, turnID)
				}
				v, err := s.h.WaitTurn(ctx, s.id, queue[0])
				if err == nil && v.Status != "completed" {
					err = fmt.Errorf("turn %s is %s", v.ID, v.Status)
				}
				if err != nil {
					errs <- err
					return
				}
				queue = queue[1:]
				if counting.Load() {
					counted.Add(1)
				}
			}
		})
	}
	pause := func(d time.Duration) error {
		select {
		case err := <-errs:
			return err
		case <-time.After(d):
			return nil
		}
	}
	err := pause(2 * time.Second)
	began := time.Now()
	counting.Store(true)
	if err == nil {
		err = pause(stretch)
	}
	counting.Store(false)
	rate := float64(counted.Load()) / time.Since(began).Seconds()
	cancel()
	wg.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return 0, err
	}
	return rate, nil
}
