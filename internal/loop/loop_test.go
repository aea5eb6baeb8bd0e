package loop_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/loop"
)

// TestAFailedPieceRunsAgainSoon: not only when its time has come, which may be long.
func TestAFailedPieceRunsAgainSoon(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t, db.SQLite)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	runs := make(chan time.Time, 10)
	n := 0
	driver := loop.New(d.Hub(), slog.New(slog.DiscardHandler), loop.Piece{Name: "x", Every: time.Hour, Run: func(context.Context) (time.Duration, error) {
		runs <- time.Now()
		if n++; n < 3 {
			return time.Minute, errors.New("the database is away")
		}
		return 0, nil
	}})
	done := make(chan struct{})
	go func() { defer close(done); driver.Run(ctx) }()
	first, second, third := <-runs, <-runs, <-runs
	if a, b := second.Sub(first), third.Sub(second); a < 100*time.Millisecond || b < a {
		t.Errorf("paused for %s, then for %s", a, b)
	}
	stop()
	<-done
	if s := driver.Status(); len(s) != 1 || s[0].Runs != 3 || s[0].Error != "" {
		t.Errorf("%+v", s)
	}
}
