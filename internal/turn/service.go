package turn

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/turn/content"
)

// Service admits Turns, runs the controls, and exchanges with Workers.
type Service struct {
	db        *db.DB
	now       func() time.Time
	occupants Occupants
}

// NewService makes the room's service. now is the clock.
func NewService(d *db.DB, now func() time.Time) *Service { return &Service{db: d, now: now} }

// Source says where an input came from; it is what turn.source shows.
type Source struct {
	Kind               string `json:"kind"`
	RequesterSessionID string `json:"requester_session_id,omitempty"`
	OriginTurnID       string `json:"origin_turn_id,omitempty"`
}

// CreateSession makes an independent Session with its first Turn, or, if an open Session of the Agent holds the key,
// queues the input on that one. Which of the two it is, is known in its transaction only: may is asked there for
// "sessions.create" or "sessions.send", and what it answers refuses the request. nil: the platform itself asks. A repeated
// request gets its receipt without being asked again. Errors: those of may, no_current_deployment, agent_not_in_current_deployment, agent_deleted,
// session_not_open, computer_mismatch, computer_not_found, computer_deleting and the content codes.
func (s *Service) CreateSession(ctx context.Context, environmentID string, by api.Actor, req api.SessionCreateRequest, may func(permission string) error) (api.SessionCreateReceipt, error) {
	var out api.SessionCreateReceipt
	if !id.Declared(req.Agent) {
		return out, fault.New(fault.BadRequest, "agent must be the id of an Agent: a letter or digit, then up to 127 of letters, digits, '.', '_' and '-'")
	}
	if len(req.Key) > 512 {
		return out, fault.New(fault.BadRequest, "key must be at most 512 bytes")
	}
	input, err := content.CheckInput("input", req.Input)
	if err != nil {
		return out, err
	}
	if may == nil {
		may = func(string) error { return nil }
	}
	body := req
	body.IdempotencyKey = ""
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.SessionCreateReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "session.create", Key: req.IdempotencyKey, Body: body, SessionID: &out.SessionID}
		return access.Idempotent(tx, scope, &out, func() error {
			if held, err := s.enqueueByKey(tx, environmentID, req, input, may, &out); held || err != nil {
				return err
			}
			if err := may("sessions.create"); err != nil {
				return err
			}
			return s.createRoot(tx, environmentID, req, input, &out)
		})
	})
	return out, err
}

// enqueueByKey queues input on the open Session that holds the key of req. held tells that there is one.
func (s *Service) enqueueByKey(tx *db.Tx, environmentID string, req api.SessionCreateRequest, input json.RawMessage, may func(permission string) error, out *api.SessionCreateReceipt) (held bool, err error) {
	if req.Key == "" {
		return false, nil
	}
	sessionID, computerID, err := session.ByKey(tx, environmentID, req.Agent, req.Key)
	if err != nil {
		return false, fmt.Errorf("find key: %w", err)
	}
	if sessionID == "" {
		return false, nil
	}
	w, u, err := s.begin(tx, environmentID, sessionID)
	if err != nil || u.s.Terminal() { // it ended before it was locked, and has freed the key
		return false, err
	}
	if err := may("sessions.send"); err != nil {
		return true, err
	}
	if req.ComputerID != "" && req.ComputerID != computerID {
		return true, fault.New(fault.ComputerMismatch, "key %q is held by a Session on computer %s", req.Key, computerID)
	}
	return true, w.enqueue(u, input, func(t *row) {
		*out = api.SessionCreateReceipt{SessionID: sessionID, TurnID: t.ID, Sequence: t.Sequence}
	})
}

func (s *Service) createRoot(tx *db.Tx, environmentID string, req api.SessionCreateRequest, input json.RawMessage, out *api.SessionCreateReceipt) error {
	now := db.Millis(s.now())
	if deleted, err := deployment.AgentDeleted(tx, environmentID, req.Agent); err != nil {
		return err
	} else if deleted {
		return fault.New(fault.AgentDeleted, "Agent %q is deleted; promote a Deployment that declares it to restore it", req.Agent)
	}
	deploymentID, err := deployment.Current(tx, environmentID)
	if err != nil {
		return err
	}
	a, err := deployment.FindAgent(tx, deploymentID, req.Agent)
	if err != nil {
		return err
	}
	if a == nil {
		return fault.New(fault.AgentNotInCurrentDeployment, "Agent %q is not in the current Deployment; `helmr agent list` shows those that are", req.Agent)
	}
	c, err := s.computerFor(tx, now, environmentID, deploymentID, a.TemplateID, req.ComputerID)
	if err != nil {
		return err
	}
	row, err := session.Create(tx, now, session.New{EnvironmentID: environmentID, AgentID: req.Agent, DeploymentID: deploymentID, ComputerID: c.ID, Key: req.Key,
		MaxTurnDurationMs: a.MaxTurnDurationMs, CloseAfterIdleMs: a.CloseAfterIdleMs, HibernateAfterIdleMs: a.HibernateAfterIdleMs})
	if err != nil {
		return err
	}
	w := &work{tx: tx, now: now, c: c}
	if req.ComputerID == "" {
		w.newDiskMiB = c.DiskMiB
	}
	u := &unit{s: row}
	w.units = []*unit{u}
	t, err := w.admit(u, input, Source{Kind: "client"})
	if err != nil {
		return err
	}
	row.InitialTurnID = &t.ID
	*out = api.SessionCreateReceipt{SessionID: row.ID, TurnID: t.ID, Sequence: t.Sequence, Created: true}
	return w.flush()
}

func (s *Service) computerFor(tx *db.Tx, now int64, environmentID, deploymentID, templateID, computerID string) (*computer.Row, error) {
	if computerID != "" {
		return computer.LockAvailable(tx, environmentID, computerID)
	}
	t, err := deployment.FindTemplate(tx, deploymentID, templateID)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, fmt.Errorf("deployment %s lacks template %s", deploymentID, templateID)
	}
	return computer.Create(tx, now, computer.New{EnvironmentID: environmentID, TemplateID: templateID, DeploymentID: deploymentID,
		MilliCPU: t.MilliCPU, MemoryMiB: t.MemoryMiB, DiskMiB: t.DiskMiB, ImageDigest: t.ImageDigest, Secrets: t.Secrets, Prepared: t.Prepared()})
}

// admit queues input on u. Errors: secret_unavailable.
func (w *work) admit(u *unit, input json.RawMessage, source Source) (*row, error) {
	if err := computer.RequireSecrets(w.tx, w.c); err != nil {
		return nil, err
	}
	u.s.LastTurnSequence++
	w.admissions++
	t := &row{ID: id.New(), SessionID: u.s.ID, ComputerID: u.s.ComputerID, Sequence: u.s.LastTurnSequence, Status: Queued}
	src, err := json.Marshal(source)
	if err != nil {
		return nil, err
	}
	if err := w.tx.Do(sqlInsert, t.ID, u.s.EnvironmentID, t.SessionID, t.ComputerID, t.Sequence, string(src), string(input), w.now); err != nil {
		return nil, fmt.Errorf("insert turn: %w", err)
	}
	_, err = w.event(u, t.ID, "turn.queued", map[string]any{"sequence": t.Sequence, "source": json.RawMessage(src), "input": input})
	if err != nil {
		return nil, err
	}
	u.s.IdleSince = nil // new input restarts the idle clock, also on a held Session
	if u.head == nil {
		u.head = t
	}
	if err := w.clock(u); err != nil {
		return nil, err
	}
	if !u.held {
		computer.Want(w.tx, w.c, w.now)
	}
	return t, nil
}

// Enqueue admits one more Turn. Errors: not_found, session_not_open, session_terminal, computer_deleting, content codes.
func (s *Service) Enqueue(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.EnqueueRequest) (api.EnqueueReceipt, error) {
	var out api.EnqueueReceipt
	input, err := content.CheckInput("input", req.Input)
	if err != nil {
		return out, err
	}
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.EnqueueReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "session.enqueue", Target: sessionID, Key: req.IdempotencyKey, Body: input, SessionID: &sessionID}
		return access.Idempotent(tx, scope, &out, func() error {
			return s.enqueueOn(tx, environmentID, sessionID, input, func(t *row) {
				out = api.EnqueueReceipt{SessionID: sessionID, TurnID: t.ID, Sequence: t.Sequence}
			})
		})
	})
	return out, err
}

func (s *Service) enqueueOn(tx *db.Tx, environmentID, sessionID string, input json.RawMessage, admitted func(*row)) error {
	w, u, err := s.begin(tx, environmentID, sessionID)
	if err != nil {
		return err
	}
	return w.enqueue(u, input, admitted)
}

// enqueue admits input as a new Turn of u and writes everything.
func (w *work) enqueue(u *unit, input json.RawMessage, admitted func(*row)) error {
	if err := u.requireOpen(); err != nil {
		return err
	}
	if err := w.c.RequireWork(); err != nil {
		return err
	}
	t, err := w.admit(u, input, Source{Kind: "client"})
	if err != nil {
		return err
	}
	admitted(t)
	return w.flush()
}

// requireOpen refuses new Turns on a Session that is closing or terminal.
func (u *unit) requireOpen() error {
	switch {
	case u.s.Terminal():
		return fault.New(fault.SessionTerminal, "session %s is %s and takes no more work; create a new one", u.s.ID, u.s.Status)
	case u.s.Status != session.Open:
		return fault.New(fault.SessionNotOpen, "session %s is %s and takes no new Turns; create a new one", u.s.ID, u.s.Status)
	}
	return nil
}

// Get gives one Turn of a Session of the Environment; not_found if it is not there.
func (s *Service) Get(ctx context.Context, environmentID, sessionID, turnID string) (api.Turn, error) {
	var out api.Turn
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		if _, err := session.ComputerOf(tx, environmentID, sessionID); err != nil {
			return err
		}
		found := false
		err := tx.Query(func(sc func(...any) error) (err error) {
			found = true
			out, err = scanView(sc)
			return err
		}, sqlView, sessionID, turnID)
		if err == nil && !found {
			err = fault.New(fault.NotFound, "turn %s does not exist in session %s", turnID, sessionID)
		}
		return err
	})
	return out, err
}

// List gives Turns of a Session, oldest first. cursor is the sequence of the last Turn seen, "" for the start.
func (s *Service) List(ctx context.Context, environmentID, sessionID, cursor string, limit int) (api.TurnPage, error) {
	page := api.TurnPage{}
	after := int64(0)
	if cursor != "" {
		var err error
		if after, err = strconv.ParseInt(cursor, 10, 64); err != nil || after < 0 {
			return page, fault.New(fault.InvalidCursor, "cursor of a Turn list is a sequence number, such as the next_cursor of the page before")
		}
	}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.TurnPage{Turns: []api.Turn{}}
		if _, err := session.ComputerOf(tx, environmentID, sessionID); err != nil {
			return err
		}
		return tx.Query(func(sc func(...any) error) error {
			t, err := scanView(sc)
			if len(page.Turns) == limit {
				page.NextCursor = strconv.FormatInt(page.Turns[limit-1].Sequence, 10)
				return err
			}
			page.Turns = append(page.Turns, t)
			return err
		}, sqlList, sessionID, after, limit+1)
	})
	return page, err
}

// scanView reads a Turn as callers see it: result and response only of a completed one.
func scanView(sc func(...any) error) (api.Turn, error) {
	var (
		t                                              api.Turn
		source                                         string
		input, result, response, code, message, saveID *string
		created                                        int64
		started, terminal, expired                     *int64
	)
	err := sc(&t.ID, &t.SessionID, &t.Sequence, &t.Status, &source, &input, &result, &response, &code, &message, &created, &started, &terminal, &saveID, &expired)
	t.Source = json.RawMessage(source)
	t.CreatedAt, t.StartedAt, t.TerminalAt, t.PayloadExpiredAt = api.At(created), api.AtOpt(started), api.AtOpt(terminal), api.AtOpt(expired)
	if input != nil {
		t.Input = json.RawMessage(*input)
	}
	if t.Status == string(Completed) {
		if result != nil {
			t.Result = json.RawMessage(*result)
		}
		if response != nil {
			t.Response = json.RawMessage(*response)
		}
	}
	if code != nil {
		t.Error = &api.TurnError{Code: *code}
		if message != nil {
			t.Error.Message = *message
		}
	}
	if saveID != nil {
		t.CompletionSaveID = *saveID
	}
	return t, err
}
