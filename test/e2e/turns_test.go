package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestTurns drives one deployed project on each database; its parts are independent Sessions.
func TestTurns(t *testing.T) {
	t.Parallel()
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			h := start(t, kind)
			h.deploy("testdata/project")
			t.Run("one process serves many", func(t *testing.T) { oneProcess(t, h) })
			t.Run("fifty at once stay in order", func(t *testing.T) { fifo(t, h) })
			t.Run("an init that throws once", func(t *testing.T) { initOnce(t, h) })
			t.Run("an init that never works", func(t *testing.T) { initNever(t, h) })
			t.Run("failures leave the process", func(t *testing.T) { failures(t, h) })
			t.Run("a process that exits", func(t *testing.T) { exits(t, h) })
			t.Run("a deadline", func(t *testing.T) { deadline(t, h) })
			t.Run("a handler that ignores its abort", func(t *testing.T) { stuck(t, h) })
			t.Run("a stop and a start", func(t *testing.T) { restart(t, h) })
		})
	}
}

func with(t *testing.T, h *helmr) *helmr {
	c := *h
	c.t = t
	return &c
}

func oneProcess(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("counter", "hello")
	first := h.completed(r.SessionID, r.TurnID)
	second := h.completed(r.SessionID, h.enqueue(r.SessionID, "hello"))
	if first.Turns != 1 || second.Turns != 2 || second.Inits != 1 || second.Recovery.Kind != "initial" || first.Node < 22 {
		t.Fatalf("first %+v, second %+v", first, second)
	}
	kinds := make([]string, 0, 10)
	for _, e := range h.events(r.SessionID) {
		kinds = append(kinds, e.Kind)
	}
	want := "turn.queued turn.running turn.output turn.finalizing turn.completed"
	if got := strings.Join(kinds, " "); got != want+" "+want {
		t.Fatalf("events: %s", got)
	}
}

func fifo(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("counter", "0")
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := h.Enqueue(context.Background(), r.SessionID, api.EnqueueRequest{Input: input("more")}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	page, err := h.ListTurns(context.Background(), r.SessionID, "", 100)
	if err != nil || len(page.Turns) != 51 {
		t.Fatalf("%d turns, %v", len(page.Turns), err)
	}
	for i, v := range page.Turns {
		if got := h.completed(r.SessionID, v.ID); v.Sequence != int64(i+1) || got.Turns != i+1 {
			t.Fatalf("turn %d with sequence %d was handled as number %d", i+1, v.Sequence, got.Turns)
		}
	}
}

func initOnce(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("moody", "hello")
	if v := h.settled(r.SessionID, r.TurnID); v.Status != "completed" || string(v.Result) != `"fine"` {
		t.Fatalf("turn %+v\n%s", v, h.describe(r.SessionID))
	}
	if e := h.events(r.SessionID)[1]; e.Kind != "session.process_failed" || !strings.Contains(string(e.Data), "init_failed") {
		t.Fatalf("second event is %s %s", e.Kind, e.Data)
	}
}

func initNever(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("broken", "hello")
	h.until("the third failure holds", func() bool {
		s, err := h.GetSession(context.Background(), r.SessionID)
		return err == nil && len(s.Holds) == 1 && s.Holds[0].Reason == "process_failures"
	})
	if v, err := h.GetTurn(context.Background(), r.SessionID, r.TurnID); err != nil || v.Status != "queued" {
		t.Fatalf("turn %+v, %v", v, err)
	}
}

func failures(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("counter", "throw")
	for turnID, code := range map[string]string{r.TurnID: "handler_failed", h.enqueue(r.SessionID, "bad"): "result_invalid", h.enqueue(r.SessionID, "big"): "result_too_large"} {
		if v := h.settled(r.SessionID, turnID); v.Status != "failed" || v.Error == nil || v.Error.Code != code {
			t.Fatalf("turn %+v %+v, want %s", v, v.Error, code)
		}
	}
	if got := h.completed(r.SessionID, h.enqueue(r.SessionID, "hello")); got.Turns != 4 || got.Inits != 1 {
		t.Fatalf("after failures: %+v", got)
	}
}

func exits(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("counter", "exit")
	if v := h.settled(r.SessionID, r.TurnID); v.Status != "interrupted" || v.Error.Code != "process_lost" {
		t.Fatalf("turn %+v %+v", v, v.Error)
	}
	got := h.completed(r.SessionID, h.enqueue(r.SessionID, "hello"))
	if got.Turns != 1 || got.Inits != 2 || got.Recovery.Kind != "reconstructed" || got.Recovery.Reason != "process_failed" {
		t.Fatalf("next process: %+v", got)
	}
}

func deadline(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("hasty", "wait")
	next := h.enqueue(r.SessionID, "go")
	if v := h.settled(r.SessionID, r.TurnID); v.Status != "interrupted" || v.Error.Code != "deadline_exceeded" {
		t.Fatalf("turn %+v %+v", v, v.Error)
	}
	if v := h.settled(r.SessionID, next); v.Status != "completed" {
		t.Fatalf("next turn %+v\n%s", v, h.describe(r.SessionID))
	}
}

func stuck(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("counter", "busy")
	h.until("the handler runs", func() bool {
		v, err := h.GetTurn(context.Background(), r.SessionID, r.TurnID)
		return err == nil && v.Status == "running"
	})
	if _, err := h.InterruptSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	next := h.enqueue(r.SessionID, "hello")
	if v := h.settled(r.SessionID, r.TurnID); v.Status != "interrupted" {
		t.Fatalf("turn %+v", v)
	}
	h.until("the failed cancellation holds", func() bool {
		s, err := h.GetSession(context.Background(), r.SessionID)
		return err == nil && len(s.Holds) == 2
	})
	h.resume(r.SessionID)
	if got := h.completed(r.SessionID, next); got.Recovery.Reason != "cancellation_failed" {
		t.Fatalf("next process: %+v", got)
	}
}

func restart(t *testing.T, h *helmr) {
	mine := h
	h = with(t, h)
	r := h.create("counter", "write kept")
	h.completed(r.SessionID, r.TurnID)
	h.stop()
	if left := h.traces(); len(left) > 0 {
		t.Fatalf("an orderly stop left:\n%s", strings.Join(left, "\n"))
	}
	h.run()
	own := mine.t
	*mine = *h
	mine.t = own
	got := h.completed(r.SessionID, h.enqueue(r.SessionID, "hello"))
	if got.Note == nil || *got.Note != "kept" || got.Turns != 1 || got.Recovery.Reason != "shutdown" {
		raw, _ := json.Marshal(got)
		t.Fatalf("after the restart: %s", raw)
	}
}
