package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"helmr.dev/helmr/client/api"
)

// ListEvents gives the events after a sequence (0: from the first); limit 0 means the server's default.
func (c *Client) ListEvents(ctx context.Context, sessionID string, after int64, limit int) (api.EventPage, error) {
	var out api.EventPage
	err := c.do(ctx, request{method: http.MethodGet, path: sessionPath(sessionID) + "/events", query: values("after", number(after), "limit", number(limit))}, &out)
	return out, err
}

// silence is how long a stream may say nothing before it counts as lost: the server sends a heartbeat every 15 s.
const silence = 45 * time.Second

// StreamEvents follows the events of a Session after a sequence, each exactly once and in order, over as many
// connections as it takes. It ends after the last event of a Session that has ended, or with an error: a refusal by the
// server, no server for longer than the client's patience, or the end of ctx.
func (c *Client) StreamEvents(ctx context.Context, sessionID string, after int64) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		err := c.follow(ctx, func() (bool, bool, error) {
			before := after
			done, err := c.followOnce(ctx, sessionID, &after, yield)
			return done, after != before, err
		})
		if err != nil {
			yield(api.Event{}, err)
		}
	}
}

// follow repeats once, which follows a stream over one connection, until it is done. once tells whether it got anything; an
// error of nil means that the connection had been good.
func (c *Client) follow(ctx context.Context, once func() (done, progress bool, err error)) error {
	failures, failing := 0, time.Time{}
	for {
		done, progress, err := once()
		if done {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e, ok := errors.AsType[*Error](err); ok && !e.passing() {
			return err
		}
		if progress || err == nil { // it was connected
			failures, failing = 0, time.Time{}
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		if err != nil && time.Since(failing) > c.patience {
			return err
		}
		failures++
		if err := pause(ctx, backoff(failures)); err != nil {
			return err
		}
	}
}

// followOnce follows over one connection. done means that nothing is left to do: the Session has ended or the consumer
// has had enough. A nil error means that the connection had been good.
func (c *Client) followOnce(ctx context.Context, sessionID string, after *int64, yield func(api.Event, error) bool) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(silence, cancel)
	defer watchdog.Stop()
	r := request{method: http.MethodGet, path: sessionPath(sessionID) + "/events/stream", header: http.Header{"Accept": {"text/event-stream"}}}
	if *after > 0 {
		r.header.Set("Last-Event-ID", strconv.FormatInt(*after, 10))
	}
	res, err := c.once(ctx, r, nil, "")
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	stream := newEventReader(res.Body, func() { watchdog.Reset(silence) })
	for {
		name, data, err := stream.next()
		if err != nil {
			return false, nil // lost: connect again from the last event
		}
		if name == "end" {
			return true, nil
		}
		var e api.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return false, fmt.Errorf("read event after %d: %w", *after, err)
		}
		if e.Sequence <= *after {
			continue
		}
		*after = e.Sequence
		if !yield(e, nil) {
			return true, nil
		}
	}
}
