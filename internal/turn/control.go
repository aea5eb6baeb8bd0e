package turn

import (
	"context"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/session"
)

// control runs one control on a Session under its idempotency key. A control on a terminal Session is refused with
// session_terminal unless the control itself allows it.
func (s *Service) control(ctx context.Context, environmentID string, by api.Actor, name, sessionID, key string, body any,
	do func(w *work, u *unit, out *api.ControlReceipt) error) (api.ControlReceipt, error) {
	var out api.ControlReceipt
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.ControlReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "session." + name, Target: sessionID, Key: key, Body: body, SessionID: &sessionID}
		return access.Idempotent(tx, scope, &out, func() error {
			w, u, err := s.begin(tx, environmentID, sessionID)
			if err != nil {
				return err
			}
			out = api.ControlReceipt{ID: id.New(), SessionID: sessionID, Status: "accepted"}
			if err := do(w, u, &out); err != nil {
				return err
			}
			computer.SignalWorker(tx, w.c)
			return w.flush()
		})
	})
	return out, err
}

// Close begins the close of a Session: new Turns are refused, accepted work drains. On a closing or closed Session it
// changes nothing. Errors: not_found, session_terminal (cancelled).
func (s *Service) Close(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.ControlRequest) (api.ControlReceipt, error) {
	return s.control(ctx, environmentID, by, "close", sessionID, req.IdempotencyKey, nil, func(w *work, u *unit, _ *api.ControlReceipt) error {
		switch u.s.Status {
		case session.Closing, session.Closed:
			return nil
		case session.Cancelled:
			return fault.New(fault.SessionTerminal, "session %s is cancelled", sessionID)
		}
		return w.close(u, map[string]any{"cause": "control", "by": by})
	})
}

// close takes an open Session to closing, and further if nothing is left to drain.
func (w *work) close(u *unit, data any) error {
	if err := u.s.Move(session.Closing, w.now); err != nil {
		return err
	}
	if _, err := w.event(u, "", "session.close", data); err != nil {
		return err
	}
	return w.settle(u)
}

// Cancel ends a Session and the Sessions it owns at once; processes stop afterwards. On a cancelled Session it changes
// nothing. Errors: not_found, session_terminal (closed).
func (s *Service) Cancel(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.ControlRequest) (api.ControlReceipt, error) {
	return s.control(ctx, environmentID, by, "cancel", sessionID, req.IdempotencyKey, nil, func(w *work, u *unit, _ *api.ControlReceipt) error {
		switch u.s.Status {
		case session.Cancelled:
			return nil
		case session.Closed:
			return fault.New(fault.SessionTerminal, "session %s is closed", sessionID)
		}
		if err := w.cancel(u, map[string]any{"cause": "control", "by": by}); err != nil {
			return err
		}
		return s.eachDescendant(w, u, func(cw *work, cu *unit) error {
			if cu.s.Terminal() {
				return nil
			}
			return cw.cancel(cu, map[string]any{"cause": "parent"})
		})
	})
}

func (w *work) cancel(u *unit, data any) error {
	if err := u.s.Move(session.Cancelled, w.now); err != nil {
		return err
	}
	if _, err := w.event(u, "", "session.cancel", data); err != nil {
		return err
	}
	if _, err := w.abort(u, AbortCancelled); err != nil {
		return err
	}
	if err := w.cancelQueued(u); err != nil {
		return err
	}
	return w.settle(u)
}

// eachDescendant runs do for every Session below u, each on its own Computer.
func (s *Service) eachDescendant(w *work, u *unit, do func(*work, *unit) error) error {
	children, err := session.Children(w.tx, u.s.ID)
	if err != nil {
		return fmt.Errorf("read children: %w", err)
	}
	for _, child := range children {
		cw, cu, err := s.begin(w.tx, u.s.EnvironmentID, child)
		if err != nil {
			return err
		}
		cw.above = w
		if c := w.row(cw.c.ID); c != nil {
			cw.c = c
		}
		if err := do(cw, cu); err != nil {
			return err
		}
		if err := s.eachDescendant(cw, cu, do); err != nil {
			return err
		}
		computer.SignalWorker(w.tx, cw.c)
		if err := cw.flush(); err != nil {
			return err
		}
	}
	return nil
}

// Interrupt aborts the running Turns of a Session and its descendants and holds their queues behind one subtree hold.
// Errors: not_found, session_terminal.
func (s *Service) Interrupt(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.ControlRequest) (api.ControlReceipt, error) {
	return s.control(ctx, environmentID, by, "interrupt", sessionID, req.IdempotencyKey, nil, func(w *work, u *unit, out *api.ControlReceipt) error {
		if u.s.Terminal() {
			return fault.New(fault.SessionTerminal, "session %s is %s", sessionID, u.s.Status)
		}
		holdID, err := session.OwnHold(w.tx, sessionID, session.HoldInterrupt)
		if err != nil {
			return fmt.Errorf("read hold: %w", err)
		}
		if holdID == "" {
			if holdID, err = session.Hold(w.tx, u.s, w.now, "subtree", session.HoldInterrupt); err != nil {
				return err
			}
			if _, err := w.event(u, "", "session.interrupt", map[string]any{"hold_id": holdID, "by": by}); err != nil {
				return err
			}
		}
		out.HoldID = holdID
		stop := func(w *work, u *unit) error {
			u.held = true
			if _, err := w.abort(u, AbortInterrupted); err != nil {
				return err
			}
			return w.settle(u)
		}
		if err := stop(w, u); err != nil {
			return err
		}
		return s.eachDescendant(w, u, stop)
	})
}

// Resume releases exactly one hold that the Session owns. Errors: not_found, session_terminal, hold_not_active.
func (s *Service) Resume(ctx context.Context, environmentID string, by api.Actor, sessionID, holdID, idempotencyKey string) (api.ControlReceipt, error) {
	return s.control(ctx, environmentID, by, "resume", sessionID, idempotencyKey, holdID, func(w *work, u *unit, out *api.ControlReceipt) error {
		if u.s.Terminal() {
			return fault.New(fault.SessionTerminal, "session %s is %s", sessionID, u.s.Status)
		}
		reason, err := session.Release(w.tx, u.s, w.now, holdID)
		if err != nil {
			return err
		}
		out.HoldID = holdID
		if reason == session.HoldProcessFailures {
			u.s.ConsecutiveFailures = 0
		}
		if _, err := w.event(u, "", "session.resume", map[string]any{"hold_id": holdID, "by": by}); err != nil {
			return err
		}
		wake := func(w *work, u *unit) error {
			holds, err := session.Holds(w.tx, u.s.ID)
			if err != nil {
				return fmt.Errorf("read holds: %w", err)
			}
			u.held = len(holds) > 0
			if u.runnable() {
				w.c.RetryNow(w.now)
				computer.Want(w.tx, w.c, w.now)
			}
			return w.settle(u)
		}
		if err := wake(w, u); err != nil {
			return err
		}
		return s.eachDescendant(w, u, wake)
	})
}

// cancelQueued cancels every queued Turn of u.
func (w *work) cancelQueued(u *unit) error {
	var queued []*row
	err := w.tx.Query(func(sc func(...any) error) error {
		t, err := scanRow(sc)
		queued = append(queued, t)
		return err
	}, sqlQueued, u.s.ID)
	if err != nil {
		return fmt.Errorf("read queued turns: %w", err)
	}
	for _, t := range queued {
		if err := t.move(Cancelled, w.now); err != nil {
			return err
		}
		if _, err := w.event(u, t.ID, "turn.cancelled", struct{}{}); err != nil {
			return err
		}
		if err := w.store(t); err != nil {
			return err
		}
		if u.head != nil && u.head.ID == t.ID {
			u.head = nil
		}
	}
	return nil
}

// settle takes every step of a Session that follows from its state by itself: the idle clock, the end of closing, the
// stop of its process, its release. It is called after each change of the Session.
func (w *work) settle(u *unit) error {
	if u.s.Status == session.Closing {
		if err := w.settleClosing(u); err != nil {
			return err
		}
	}
	if u.s.Terminal() {
		return w.settleTerminal(u)
	}
	return w.clock(u)
}

func (w *work) settleClosing(u *unit) error {
	if u.runnable() || (u.head != nil && u.head.Status != Queued) {
		return nil
	}
	children, err := session.UnclosedChildren(w.tx, u.s.ID)
	if err != nil || children > 0 {
		return err
	}
	if err := w.cancelQueued(u); err != nil {
		return err
	}
	if err := u.s.Move(session.Closed, w.now); err != nil {
		return err
	}
	_, err = w.event(u, "", "session.closed", struct{}{})
	return err
}

// settleTerminal stops the process of a terminal Session once no Turn needs it, and releases the Session at the end.
func (w *work) settleTerminal(u *unit) error {
	u.s.IdleSince = nil
	if u.s.ParentSessionID != nil {
		w.tx.Signal(closingTopic) // a closing parent may have waited for this child
	}
	if u.p != nil && !u.busy() {
		reason := "closed"
		if u.s.Status == session.Cancelled {
			reason = "cancelled"
		}
		stop := func() error { return u.p.Stop(reason, w.now) }
		if w.c.Residency == computer.Hibernated {
			stop = func() error { return w.unpark(u, reason) }
		}
		if err := stop(); err != nil {
			return err
		}
	}
	if u.p != nil || u.head != nil || u.s.ReleasedAt != nil {
		return nil
	}
	u.s.ReleasedAt = &w.now
	u.s.Touch(w.now)
	if u.s.Status == session.Cancelled {
		if _, err := w.event(u, "", "session.cancelled", struct{}{}); err != nil {
			return err
		}
	}
	return nil
}
