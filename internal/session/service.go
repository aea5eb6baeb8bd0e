package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// Service answers questions about Sessions and their events.
type Service struct{ db *db.DB }

// NewService makes the room's service.
func NewService(d *db.DB) *Service { return &Service{db: d} }

// Filter selects Sessions; empty fields select all. Cursor is the last id of the page before.
type Filter struct {
	Statuses                                                              []string
	AgentID, Key, ComputerID, ParentSessionID, RequesterSessionID, Cursor string
	Limit                                                                 int
}

// Get gives one Session of an Environment with the holds in effect; not_found if it is not there.
func (s *Service) Get(ctx context.Context, environmentID, sessionID string) (api.Session, error) {
	var out api.Session
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		found := false
		err := tx.Query(func(sc func(...any) error) error {
			v, err := scanView(sc)
			out, found = v, true
			return err
		}, sqlViewGet, environmentID, sessionID)
		if err == nil && !found {
			err = notFound(sessionID)
		}
		if err != nil {
			return err
		}
		out.Holds, err = Holds(tx, sessionID)
		return err
	})
	return out, err
}

// List gives Sessions, latest first.
func (s *Service) List(ctx context.Context, environmentID string, f Filter) (api.SessionPage, error) {
	where := []string{"s.environment_id = ?"}
	args := []any{environmentID}
	add := func(clause, value string) {
		if value != "" {
			where = append(where, clause)
			args = append(args, value)
		}
	}
	add("s.agent_id = ?", f.AgentID)
	add("s.key = ?", f.Key)
	add("s.computer_id = ?", f.ComputerID)
	add("s.parent_session_id = ?", f.ParentSessionID)
	add("s.requester_session_id = ?", f.RequesterSessionID)
	add("s.id < ?", f.Cursor)
	if len(f.Statuses) > 0 {
		where = append(where, "s.status IN ("+db.In(len(f.Statuses))+")")
		for _, st := range f.Statuses {
			args = append(args, st)
		}
	}
	query := sqlViewList + strings.Join(where, " AND ") + sqlViewOrder
	args = append(args, f.Limit+1)
	page := api.SessionPage{}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.SessionPage{Sessions: []api.Session{}}
		err := tx.Query(func(sc func(...any) error) error {
			v, err := scanView(sc)
			if len(page.Sessions) == f.Limit {
				page.NextCursor = page.Sessions[f.Limit-1].ID
				return err
			}
			page.Sessions = append(page.Sessions, v)
			return err
		}, query, args...)
		for i := range page.Sessions {
			if err != nil {
				return err
			}
			page.Sessions[i].Holds, err = Holds(tx, page.Sessions[i].ID)
		}
		return err
	})
	return page, err
}

func scanView(sc func(...any) error) (api.Session, error) {
	var status *string
	r, err := Scan(sc, &status)
	v := api.Session{ID: r.ID, AgentID: r.AgentID, DeploymentID: r.DeploymentID, ComputerID: r.ComputerID, RootSessionID: r.RootSessionID,
		ParentSessionID: r.ParentSessionID, RequesterSessionID: r.RequesterSessionID, Status: string(r.Status), CreatedAt: api.At(r.CreatedAt), Holds: []api.Hold{}}
	if r.Key != nil {
		v.Key = *r.Key
	}
	if r.InitialTurnID != nil && status != nil {
		v.InitialTurn = &api.InitialTurn{ID: *r.InitialTurnID, Status: *status}
	}
	return v, err
}

// Events gives up to limit events after a sequence. ended tells that the Session is terminal and released and that no
// event follows this page. A position beyond the end is invalid_cursor, one before what is retained cursor_expired.
func (s *Service) Events(ctx context.Context, environmentID, sessionID string, after int64, limit int) (page api.EventPage, ended bool, err error) {
	err = s.db.ReadOne(ctx, func(tx *db.Tx) error {
		page = api.EventPage{Records: []api.Event{}, NextAfter: after}
		var last int64
		var released *int64
		found := false
		err := tx.Query(func(sc func(...any) error) error {
			found = true
			e := api.Event{SessionID: sessionID}
			var sequence, at *int64
			var kind, data *string
			if err := sc(&last, &page.RetainedAfter, &released, &e.TurnID, &sequence, &kind, &data, &at); err != nil || sequence == nil {
				return err
			}
			e.Sequence, e.Kind, e.CreatedAt = *sequence, *kind, api.At(*at)
			if data != nil {
				e.Data = json.RawMessage(*data)
			}
			page.Records = append(page.Records, e)
			page.NextAfter = e.Sequence
			return nil
		}, sqlEvents, after, environmentID, sessionID, limit)
		switch {
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		case !found:
			return notFound(sessionID)
		case after < 0 || after > last:
			return fault.New(fault.InvalidCursor, "after must be 0 to %d, the last sequence of this Session", last)
		case after < page.RetainedAfter:
			return fault.New(fault.CursorExpired, "events up to %d are no longer kept", page.RetainedAfter).With("retained_after", page.RetainedAfter)
		}
		page.HasMore = page.NextAfter < last
		ended = !page.HasMore && released != nil
		return nil
	})
	if err != nil {
		return api.EventPage{}, false, err
	}
	return page, ended, err
}
