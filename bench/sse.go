package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const subscribers = 1000

// sse measures 1,000 clients that follow one Session, against a bare server that hands the same bytes to as many.
func (b *bench) sse(ctx context.Context, h *helmr) error {
	s, err := h.newWarm(ctx, "stream", "0 0", "")
	if err != nil {
		return err
	}
	clock, err := s.clockAhead(ctx)
	if err != nil {
		return err
	}
	outputs := b.few(20, 8)
	before := time.Duration(0)
	times, err := b.follow(ctx, h.url+"/v1/sessions/"+s.id+"/events/stream", h.key, outputs, clock, h.serverIs, &before, func() error {
		_, _, err := s.enqueue(ctx, fmt.Sprint(outputs, " 200"))
		return err
	})
	if err != nil {
		return err
	}
	cpu := h.serverIs.cpu() - before
	event := fmt.Appendf(nil, `id: 1%sevent: turn.output%sdata: {"session_id":"%s","turn_id":"%s","sequence":10,"kind":"turn.output","data":[{"type":"text","text":"%%.6f"}],"created_at":"2026-01-01T00:00:00.000Z"}%s`,
		"\n", "\n", s.id, s.first, "\n\n")
	floorBefore := time.Duration(0)
	floor, err := b.follow(ctx, b.floors.url+"/stream", "", outputs, 0, b.floors.server, &floorBefore, func() error {
		for range outputs {
			time.Sleep(200 * time.Millisecond)
			body := fmt.Appendf(nil, string(event), wall(time.Now()))
			res, err := http.Post(b.floors.url+"/publish", "text/event-stream", bytes.NewReader(body))
			if err != nil {
				return err
			}
			_ = res.Body.Close()
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	floorCPU := b.floors.server.cpu() - floorBefore
	deliveries := float64(outputs * subscribers)
	b.report.add("sse_1000_delivery_p50", h.kind, percentile(times, 50), "ms", percentile(floor, 50), nil)
	b.report.add("sse_1000_delivery_p99", h.kind, percentile(times, 99), "ms", percentile(floor, 99), nil)
	b.report.add("sse_1000_server_cpu", h.kind, ms(cpu)*1000/deliveries, "us/event", ms(floorCPU)*1000/deliveries, nil)
	return s.end(ctx)
}

// follow has all subscribers read a stream while act goes on, until each has seen so many outputs. It gives the ms from
// the time that stands in an output to its arrival, and the CPU time of the server before act.
func (b *bench) follow(ctx context.Context, url, key string, outputs int, clock float64, server *process, before *time.Duration, act func() error) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	client := &http.Client{Transport: transport}
	defer transport.CloseIdleConnections()
	all := make([][]float64, subscribers)
	errs := make(chan error, subscribers+1)
	var open atomic.Int64
	connected := make(chan struct{})
	var wg sync.WaitGroup
	for i := range subscribers {
		wg.Go(func() {
			times, err := subscriber(ctx, client, url, key, outputs, clock, func() {
				if open.Add(1) == subscribers {
					close(connected)
				}
			})
			all[i] = times
			if err != nil {
				errs <- fmt.Errorf("subscriber %d: %w", i, err)
				cancel()
			}
		})
	}
	select {
	case <-connected:
		time.Sleep(500 * time.Millisecond) // what they read first is read
		*before = server.cpu()
		if err := act(); err != nil {
			errs <- err
			cancel()
		}
	case <-ctx.Done():
	}
	wg.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
	}
	var times []float64
	for _, t := range all {
		times = append(times, t...)
	}
	return times, nil
}

// subscriber reads one stream and takes no more of each event apart than the time in it.
func subscriber(ctx context.Context, client *http.Client, url, key string, outputs int, clock float64, opened func()) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", res.Status)
	}
	opened()
	in := bufio.NewReaderSize(res.Body, 8<<10)
	var times []float64
	for len(times) < outputs {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		_, rest, ok := bytes.Cut(line, []byte(`"kind":"turn.output"`))
		if !ok || !bytes.HasPrefix(line, []byte("data:")) {
			continue
		}
		at := time.Now()
		_, rest, _ = bytes.Cut(rest, []byte(`"text":"`))
		number, _, _ := bytes.Cut(rest, []byte(`"`))
		written, err := strconv.ParseFloat(string(number), 64)
		if err != nil {
			return nil, err
		}
		times = append(times, wall(at)-written-clock)
	}
	return times, nil
}
