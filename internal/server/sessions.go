package server

import (
	"net/url"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/session"
)

var (
	waitParam  = param{name: "wait", kind: "string", doc: "How long to wait for the end, for example 30s; at most 60s."}
	batchParam = param{name: "limit", kind: "integer", doc: "Number of events, 1 to 1000; 100 by default."}

	sessionFilters = paged(
		param{name: "status", kind: "string", doc: "Only Sessions in one of these statuses.", repeated: true,
			enum: []string{"open", "closing", "closed", "cancelled"}},
		param{name: "agent_id", kind: "string", doc: "Only Sessions of this Agent.", check: func(v string) error { return checkDeclared("agent_id", v) }},
		param{name: "key", kind: "string", doc: "Only Sessions with this key; needs agent_id, refuses limit and cursor."},
		param{name: "computer_id", kind: "string", doc: "Only Sessions on this Computer.", check: func(v string) error { return checkComputerID("computer_id", v) }},
		uuidParam("parent_session_id", "Only children of this Session."),
		uuidParam("requester_session_id", "Only Sessions that this Session started."),
	)
)

func (s *Server) createSession(c *call, in api.SessionCreateRequest) (api.SessionCreateReceipt, error) {
	if err := checkBody(checkDeclared, "agent", in.Agent); err != nil {
		return api.SessionCreateReceipt{}, err
	}
	if in.ComputerID != "" {
		if err := checkBody(checkComputerID, "computer_id", in.ComputerID); err != nil {
			return api.SessionCreateReceipt{}, err
		}
	}
	return s.deps.Turn.CreateSession(c.ctx(), c.env(), c.who.Actor, in, func(permission string) error {
		if !c.who.Can(permission) {
			return lacks(permission)
		}
		return nil
	})
}

func (s *Server) listSessions(c *call) (api.SessionPage, error) {
	if err := keyAlone(c.query, "key"); err != nil {
		return api.SessionPage{}, err
	}
	if c.query.Has("key") && !c.query.Has("agent_id") {
		return api.SessionPage{}, badParam("key", "key needs agent_id: keys are unique per Agent.")
	}
	cursor, limit, err := c.page()
	if err == nil {
		err = idCursor(cursor)
	}
	if err != nil {
		return api.SessionPage{}, err
	}
	return s.deps.Session.List(c.ctx(), c.env(), session.Filter{
		Statuses: c.query["status"], AgentID: c.query.Get("agent_id"), Key: c.query.Get("key"), ComputerID: c.query.Get("computer_id"),
		ParentSessionID: c.query.Get("parent_session_id"), RequesterSessionID: c.query.Get("requester_session_id"),
		Cursor: cursor, Limit: limit,
	})
}

// keyAlone refuses a page with a lookup by exact key.
func keyAlone(query url.Values, key string) error {
	for _, name := range []string{"limit", "cursor"} {
		if query.Has(key) && query.Has(name) {
			return badParam(name, "%s cannot stand beside %s: a lookup by key has no pages.", name, key)
		}
	}
	return nil
}

func (s *Server) getSession(c *call) (api.Session, error) {
	return s.deps.Session.Get(c.ctx(), c.env(), c.path("session_id"))
}

func (s *Server) enqueue(c *call, in api.EnqueueRequest) (api.EnqueueReceipt, error) {
	return s.deps.Turn.Enqueue(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), in)
}

func (s *Server) closeSession(c *call, in api.ControlRequest) (api.ControlReceipt, error) {
	return s.deps.Turn.Close(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), in)
}

func (s *Server) cancelSession(c *call, in api.ControlRequest) (api.ControlReceipt, error) {
	return s.deps.Turn.Cancel(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), in)
}

func (s *Server) interruptSession(c *call, in api.ControlRequest) (api.ControlReceipt, error) {
	return s.deps.Turn.Interrupt(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), in)
}

func (s *Server) resumeSession(c *call, in api.ResumeRequest) (api.ControlReceipt, error) {
	if err := checkBody(checkID, "hold_id", in.HoldID); err != nil {
		return api.ControlReceipt{}, err
	}
	return s.deps.Turn.Resume(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), in.HoldID, in.IdempotencyKey)
}

func (s *Server) listTurns(c *call) (api.TurnPage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.TurnPage{}, err
	}
	return s.deps.Turn.List(c.ctx(), c.env(), c.path("session_id"), cursor, limit)
}

// getTurn answers the Turn, with wait= once it is terminal, the time is over or the server stops. Nothing here affects
// the Turn: a caller who leaves ends only the observation.
func (s *Server) getTurn(c *call) (api.Turn, error) {
	wait, err := c.wait()
	if err != nil {
		return api.Turn{}, err
	}
	sessionID, turnID := c.path("session_id"), c.path("turn_id")
	if wait == 0 {
		return s.deps.Turn.Get(c.ctx(), c.env(), sessionID, turnID)
	}
	c.w.stream = true // its duration is the caller's choice and no measure of the server
	sub := s.deps.DB.Hub().Subscribe(session.Topic(sessionID))
	defer sub.Close()
	defer s.metrics.streaming()()
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		turn, err := s.deps.Turn.Get(c.ctx(), c.env(), sessionID, turnID)
		if err != nil || turn.Terminal() {
			return turn, err
		}
		select {
		case <-sub.C:
		case <-over.C:
			return s.deps.Turn.Get(c.ctx(), c.env(), sessionID, turnID)
		case <-s.stopping.Done():
			return turn, nil
		case <-c.ctx().Done():
			return turn, c.ctx().Err()
		}
	}
}
