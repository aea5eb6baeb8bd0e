package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

func input(text string) json.RawMessage {
	raw, _ := json.Marshal([]map[string]string{{"type": "text", "text": text}})
	return raw
}

// seen is an event and when this client had it.
type seen struct {
	api.Event
	at time.Time
}

// session is a Session whose events are followed.
type session struct {
	h        *helmr
	id       string
	computer string
	first    string // its first Turn
	events   chan seen
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// newSession creates a Session, on a Computer of its own if computer is "", and follows it.
func (h *helmr) newSession(ctx context.Context, agent, text, computer string) (*session, error) {
	r, err := h.CreateSession(ctx, api.SessionCreateRequest{Agent: agent, Input: input(text), ComputerID: computer})
	if err != nil {
		return nil, fmt.Errorf("create a session of %s: %w", agent, err)
	}
	s := &session{h: h, id: r.SessionID, computer: computer, first: r.TurnID, events: make(chan seen, 1<<16)}
	ctx, s.stop = context.WithCancel(ctx)
	s.done.Go(func() {
		defer close(s.events)
		for e, err := range h.StreamEvents(ctx, s.id, 0) {
			if err != nil {
				return
			}
			s.events <- seen{e, time.Now()}
		}
	})
	return s, nil
}

// newWarm creates a Session and waits for the end of its first Turn.
func (h *helmr) newWarm(ctx context.Context, agent, text, computer string) (*session, error) {
	s, err := h.newSession(ctx, agent, text, computer)
	if err != nil {
		return nil, err
	}
	if _, err := s.until(ctx, s.first, "turn.completed", nil); err != nil {
		return nil, err
	}
	if s.computer == "" {
		v, err := h.GetSession(ctx, s.id)
		if err != nil {
			return nil, err
		}
		s.computer = v.ComputerID
	}
	return s, nil
}

// enqueue admits a Turn and tells when the call began.
func (s *session) enqueue(ctx context.Context, text string) (turnID string, began time.Time, err error) {
	began = time.Now()
	r, err := s.h.Enqueue(ctx, s.id, api.EnqueueRequest{Input: input(text)})
	if err != nil {
		return "", began, fmt.Errorf("enqueue: %w", err)
	}
	return r.TurnID, began, nil
}

// until waits for an event of a Turn; others on the way go to each.
func (s *session) until(ctx context.Context, turnID, kind string, each func(seen)) (seen, error) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case e, ok := <-s.events:
			switch {
			case !ok:
				return seen{}, fmt.Errorf("the events of session %s ended", s.id)
			case e.TurnID == nil || *e.TurnID != turnID:
				continue
			case e.Kind == kind:
				return e, nil
			case e.Kind == "turn.failed", e.Kind == "turn.interrupted", e.Kind == "turn.cancelled":
				return seen{}, fmt.Errorf("turn %s: %s %s", turnID, e.Kind, e.Data)
			}
			if each != nil {
				each(e)
			}
		case <-limit.C:
			return seen{}, fmt.Errorf("no %s of turn %s within %s", kind, turnID, patience)
		case <-ctx.Done():
			return seen{}, ctx.Err()
		}
	}
}

// end cancels the Session, so that its process leaves the machine, and stops following it.
func (s *session) end(ctx context.Context) error {
	_, err := s.h.CancelSession(ctx, s.id, api.ControlRequest{})
	s.stop()
	s.done.Wait()
	if err != nil {
		return fmt.Errorf("cancel a session: %w", err)
	}
	return nil
}

// leave ends it and deletes its Computer, which would have a place on the Worker for another minute.
func (s *session) leave(ctx context.Context) error { return leaveAll(ctx, []*session{s}) }

// leaveAll is leave for many Sessions, also such as share Computers.
func leaveAll(ctx context.Context, sessions []*session) error {
	computers := map[string]*session{}
	for _, s := range sessions {
		v, err := s.h.GetSession(ctx, s.id)
		if err != nil {
			return err
		}
		computers[v.ComputerID] = s
		if err := s.end(ctx); err != nil {
			return err
		}
	}
	for id, s := range computers {
		if err := s.h.deleteComputer(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// deleteComputer deletes a Computer once nothing works on it any more.
func (h *helmr) deleteComputer(ctx context.Context, id string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		_, err := h.DeleteComputer(ctx, id, api.ControlRequest{})
		var refused *client.Error
		if err == nil || !errors.As(err, &refused) || refused.Code != "computer_busy" || time.Now().After(deadline) {
			return err
		}
	}
}

// warmSessions creates n Sessions on so many Computers, each with one Turn behind it.
func (h *helmr) warmSessions(ctx context.Context, agent string, n, computers int) ([]*session, error) {
	all := make([]*session, n)
	err := each(n, computers, func(i int) (err error) {
		computer := ""
		if i >= computers {
			computer = all[i%computers].computer
		}
		all[i], err = h.newWarm(ctx, agent, "", computer)
		return err
	})
	return all, err
}

// each runs do for 0 to n-1, so many at a time, each block of them after the one before.
func each(n, atOnce int, do func(i int) error) error {
	for begin := 0; begin < n; begin += atOnce {
		var wg sync.WaitGroup
		errs := make(chan error, atOnce)
		for i := begin; i < min(begin+atOnce, n); i++ {
			wg.Go(func() {
				if err := do(i); err != nil {
					errs <- err
				}
			})
		}
		wg.Wait()
		select {
		case err := <-errs:
			return err
		default:
		}
	}
	return nil
}

// decode reads the result of a completed Turn.
func decode[T any](e seen) (T, error) {
	var data struct {
		Result T `json:"result"`
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return data.Result, fmt.Errorf("result %s: %w", e.Data, err)
	}
	return data.Result, nil
}

// text gives the text of an output event.
func text(e seen) (string, error) {
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(e.Data, &parts); err != nil {
		return "", fmt.Errorf("output %s: %w", e.Data, err)
	}
	all := ""
	for _, p := range parts {
		all += p.Text
	}
	return all, nil
}
