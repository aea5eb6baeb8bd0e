package client

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"helmr.dev/helmr/client/api"
)

// SessionFilter selects Sessions. Empty fields select nothing. Key needs AgentID and refuses Cursor and Limit.
type SessionFilter struct {
	Statuses           []string
	AgentID            string
	Key                string
	ComputerID         string
	ParentSessionID    string
	RequesterSessionID string
	Cursor             string
	Limit              int
}

// CreateSession creates a Session with its first Turn, or queues the input on the open Session that holds the key.
func (c *Client) CreateSession(ctx context.Context, req api.SessionCreateRequest) (api.SessionCreateReceipt, error) {
	var out api.SessionCreateReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: "/v1/sessions", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// ListSessions gives one page of Sessions, latest first.
func (c *Client) ListSessions(ctx context.Context, f SessionFilter) (api.SessionPage, error) {
	q := values("agent_id", f.AgentID, "key", f.Key, "computer_id", f.ComputerID, "parent_session_id", f.ParentSessionID,
		"requester_session_id", f.RequesterSessionID, "cursor", f.Cursor, "limit", number(f.Limit))
	for _, s := range f.Statuses {
		q.Add("status", s)
	}
	var out api.SessionPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/sessions", query: q}, &out)
	return out, err
}

// GetSession gives a Session.
func (c *Client) GetSession(ctx context.Context, sessionID string) (api.Session, error) {
	var out api.Session
	err := c.do(ctx, request{method: http.MethodGet, path: sessionPath(sessionID)}, &out)
	return out, err
}

// Enqueue admits one more Turn.
func (c *Client) Enqueue(ctx context.Context, sessionID string, req api.EnqueueRequest) (api.EnqueueReceipt, error) {
	var out api.EnqueueReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: sessionPath(sessionID) + "/enqueue", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// InterruptSession aborts the running Turns of the Session and its descendants and holds their queues.
func (c *Client) InterruptSession(ctx context.Context, sessionID string, req api.ControlRequest) (api.ControlReceipt, error) {
	return c.control(ctx, sessionID, "interrupt", req)
}

// ResumeSession releases one hold of the Session.
func (c *Client) ResumeSession(ctx context.Context, sessionID string, req api.ResumeRequest) (api.ControlReceipt, error) {
	var out api.ControlReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: sessionPath(sessionID) + "/resume", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// CloseSession lets accepted work drain and then ends the Session.
func (c *Client) CloseSession(ctx context.Context, sessionID string, req api.ControlRequest) (api.ControlReceipt, error) {
	return c.control(ctx, sessionID, "close", req)
}

// CancelSession ends the Session and its work.
func (c *Client) CancelSession(ctx context.Context, sessionID string, req api.ControlRequest) (api.ControlReceipt, error) {
	return c.control(ctx, sessionID, "cancel", req)
}

func (c *Client) control(ctx context.Context, sessionID, verb string, req api.ControlRequest) (api.ControlReceipt, error) {
	var out api.ControlReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: sessionPath(sessionID) + "/" + verb, body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// ListTurns gives one page of Turns, oldest first; the cursor is the sequence after which the page begins.
func (c *Client) ListTurns(ctx context.Context, sessionID, cursor string, limit int) (api.TurnPage, error) {
	var out api.TurnPage
	err := c.do(ctx, request{method: http.MethodGet, path: sessionPath(sessionID) + "/turns", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// GetTurn gives a Turn as it is.
func (c *Client) GetTurn(ctx context.Context, sessionID, turnID string) (api.Turn, error) {
	return c.turn(ctx, sessionID, turnID, 0)
}

// waitStep is what one request of a wait asks the server to wait, below the 60 s that it allows.
const waitStep = 50 * time.Second

// WaitTurn gives the Turn once it is terminal. The end of ctx ends only the observation; the error is then ctx's. While
// no server answers it goes on trying for the client's patience.
func (c *Client) WaitTurn(ctx context.Context, sessionID, turnID string) (api.Turn, error) {
	return wait(ctx, c, api.Turn.Terminal, func(step time.Duration) (api.Turn, error) { return c.turn(ctx, sessionID, turnID, step) })
}

// wait asks again and again, each time for as long as the server holds an answer back, until what it gets has ended.
func wait[T any](ctx context.Context, c *Client, ended func(T) bool, ask func(step time.Duration) (T, error)) (T, error) {
	var failing time.Time
	for n := 0; ; {
		step := waitStep
		if deadline, ok := ctx.Deadline(); ok {
			step = max(min(step, time.Until(deadline)), time.Millisecond)
		}
		began := time.Now()
		got, err := ask(step)
		switch {
		case ctx.Err() != nil:
			return got, ctx.Err()
		case err == nil && ended(got):
			return got, nil
		case err == nil && time.Since(began) > step/2:
			n, failing = 0, time.Time{}
			continue
		case err == nil: // a server that stops answers early
			failing = time.Time{}
		default:
			if e, ok := errors.AsType[*Error](err); ok && !e.passing() {
				return got, err
			}
			if failing.IsZero() {
				failing = time.Now()
			}
			if time.Since(failing) > c.patience {
				return got, err
			}
		}
		n++
		if err := pause(ctx, backoff(n)); err != nil {
			return got, err
		}
	}
}

func (c *Client) turn(ctx context.Context, sessionID, turnID string, wait time.Duration) (api.Turn, error) {
	q := values()
	if wait > 0 {
		q.Set("wait", strconv.FormatInt(wait.Milliseconds(), 10)+"ms")
	}
	var out api.Turn
	err := c.do(ctx, request{method: http.MethodGet, path: sessionPath(sessionID) + "/turns/" + segment(turnID), query: q}, &out)
	return out, err
}

func sessionPath(sessionID string) string { return "/v1/sessions/" + segment(sessionID) }
