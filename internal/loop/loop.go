// Package loop drives background work: each piece is idempotent, takes no input, runs on a timer and when it is woken,
// and its last outcome can be read. It knows nothing of what the pieces do.
package loop

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"helmr.dev/helmr/internal/db"
)

// Piece is one kind of background work.
type Piece struct {
	// Name is for logs and status.
	Name string
	// Every is the longest time between two runs.
	Every time.Duration
	// Topics wake the piece before its time.
	Topics []string
	// Run does what is due now. next, if positive, asks to run again that soon. An error is logged, and the piece runs again
	// soon, each time after a longer pause.
	Run func(ctx context.Context) (next time.Duration, err error)
}

// retryAfter is the pause after the first failure of a piece.
const retryAfter = 250 * time.Millisecond

// Status is the last outcome of a piece.
type Status struct {
	Name  string
	At    time.Time
	Runs  int64
	Error string
}

// Driver runs pieces until it is stopped.
type Driver struct {
	hub    *db.Hub
	log    *slog.Logger
	pieces []Piece

	mu sync.Mutex
	// status is guarded by mu.
	status map[string]Status
}

// New makes a driver of pieces; Run starts it.
func New(hub *db.Hub, log *slog.Logger, pieces ...Piece) *Driver {
	return &Driver{hub: hub, log: log, pieces: pieces, status: map[string]Status{}}
}

// Run drives all pieces until ctx ends, then waits for the running ones.
func (d *Driver) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range d.pieces {
		wg.Go(func() { d.drive(ctx, p) })
	}
	wg.Wait()
}

// Status gives the last outcome of every piece that has run.
func (d *Driver) Status() []Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Status, 0, len(d.pieces))
	for _, p := range d.pieces {
		if s, ok := d.status[p.Name]; ok {
			out = append(out, s)
		}
	}
	return out
}

func (d *Driver) drive(ctx context.Context, p Piece) {
	sub := d.hub.Subscribe(p.Topics...)
	defer sub.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-sub.C:
		case <-timer.C:
		}
		next, err := d.once(ctx, p)
		if err == nil {
			failed = 0
		} else if ctx.Err() == nil {
			d.log.Error("background work failed", "loop", p.Name, "error", err)
			next = retryAfter << min(failed, 10)
			failed++
		}
		if next <= 0 || next > p.Every {
			next = p.Every
		}
		timer.Reset(next)
	}
}

func (d *Driver) once(ctx context.Context, p Piece) (next time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		s := d.status[p.Name]
		s.Name, s.At, s.Error = p.Name, time.Now(), ""
		s.Runs++
		if err != nil {
			s.Error = err.Error()
		}
		d.status[p.Name] = s
	}()
	return p.Run(ctx)
}
