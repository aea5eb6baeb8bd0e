package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/server/servertest"
)

// unavailable wants the answer of a server whose database is away.
func unavailable(t *testing.T, err error) {
	t.Helper()
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable || refused.Code != "unavailable" {
		t.Errorf("%v", err)
	}
}

// TestADatabaseThatIsAway: requests are answered "unavailable", a repeated one is done once however its first answer was
// lost, and everything works again by itself.
func TestADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	p := dbtest.NewProxy(t, dbtest.URL(t, db.PostgreSQL), "127.0.0.1:0")
	d := dbtest.Open(t, p.URL)
	if _, err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Up)
	s := servertest.Start(t, d, nil)
	c := s.Client(s.Key)
	servertest.Deploy(t, c, "one")
	ctx := t.Context()
	text := json.RawMessage(`[{"type":"text","text":"x"}]`)
	ready := func() int {
		res, err := http.Get(s.URL + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}

	// The answer to the commit is lost: with its key, the request repeated is the same one.
	create := api.SessionCreateRequest{Agent: "one", Input: text, IdempotencyKey: "lost"}
	p.LoseCommits(0, 1)
	_, err := c.CreateSession(ctx, create)
	unavailable(t, err)
	r, err := c.CreateSession(ctx, create)
	if err != nil || p.Lost() != 1 {
		t.Fatalf("%v after %d lost answers", err, p.Lost())
	}
	page, err := c.ListSessions(ctx, client.SessionFilter{})
	if err != nil || len(page.Sessions) != 1 || page.Sessions[0].ID != r.SessionID {
		t.Fatalf("%+v, %v", page.Sessions, err)
	}
	enqueue := api.EnqueueRequest{Input: text, IdempotencyKey: "lost"}
	p.LoseCommits(0, 1)
	_, err = c.Enqueue(ctx, r.SessionID, enqueue)
	unavailable(t, err)
	e, err := c.Enqueue(ctx, r.SessionID, enqueue)
	if err != nil {
		t.Fatal(err)
	}
	turns, err := c.ListTurns(ctx, r.SessionID, "", 10)
	if err != nil || len(turns.Turns) != 2 || turns.Turns[1].ID != e.TurnID && turns.Turns[0].ID != e.TurnID {
		t.Fatalf("%+v, %v", turns.Turns, err)
	}

	// A stream of events lives through it.
	seen := make(chan string, 100)
	streams, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(seen)
		for e, err := range c.StreamEvents(streams, r.SessionID, 0) {
			if err != nil {
				return
			}
			seen <- e.Kind
		}
	}()
	for range 2 {
		if kind := <-seen; kind != "turn.queued" {
			t.Errorf("the stream says %s", kind)
		}
	}

	for what, fault := range map[string]func(){"down": p.Down, "silent": p.Silent} {
		fault()
		for range 3 {
			limited, cancel := context.WithTimeout(ctx, 45*time.Second) // a silent database has 30 s
			_, err := c.GetSession(limited, r.SessionID)
			cancel()
			unavailable(t, err)
			if what == "silent" {
				break
			}
		}
		began := time.Now()
		if status := ready(); status != http.StatusServiceUnavailable || time.Since(began) > 2*time.Second {
			t.Errorf("%s: /readyz answers %d after %s", what, status, time.Since(began))
		}
		p.Up()
		again := time.NewTicker(20 * time.Millisecond)
		for deadline := time.Now().Add(time.Minute); ready() != http.StatusOK; <-again.C {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not ready again", what)
			}
		}
		again.Stop()
		p.Cut() // each connection of the pool is broken now
		key := fmt.Sprint(what)
		for _, err = c.Enqueue(ctx, r.SessionID, api.EnqueueRequest{Input: text, IdempotencyKey: key}); err != nil; {
			unavailable(t, err)
			_, err = c.Enqueue(ctx, r.SessionID, api.EnqueueRequest{Input: text, IdempotencyKey: key})
		}
		if kind := <-seen; kind != "turn.queued" {
			t.Errorf("%s: the stream says %q", what, kind)
		}
	}
}
