package worker

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"
)

// TestStoringOutputEndsWithItsLease has output that no server takes: a lease that is over must end the step all the same,
// or its sandbox would never be removed.
func TestStoringOutputEndsWithItsLease(t *testing.T) {
	t.Parallel()
	w := &Worker{cfg: Config{Server: Remote(http.DefaultClient, "http://127.0.0.1:1"), Log: slog.New(slog.DiscardHandler)}}
	c := newComputer(w, "some-computer", 1)
	c.guest.commands["some-command"] = &command{chunks: []chunkOf{{stream: 1, seq: 1, data: []byte("x")}}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.storeOutput(ctx) }()
	<-c.woken // the first try has failed
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("storing goes on after the lease")
	}
}
