package command

import (
	"context"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// States of use of a Computer.
const (
	useAdmitted     = "admitted"
	useRunning      = "running"
	useWaiting      = "waiting"
	useParked       = "parked"
	useDraining     = "draining"
	useUnreconciled = "unreconciled"
)

// SessionUsage gives the Sessions that occupy a Computer now, oldest first: those with a process or unfinished work. The
// cursor is the id of the last one seen. Error: computer_not_found.
func (s *Service) SessionUsage(ctx context.Context, environmentID, computerID, cursor string, limit int) (api.ComputerSessionPage, error) {
	page := api.ComputerSessionPage{}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.ComputerSessionPage{Sessions: []api.ComputerUsage{}}
		residency, err := computer.ResidencyOf(tx, environmentID, computerID)
		if err != nil {
			return err
		}
		err = tx.Query(func(sc func(...any) error) error {
			var u api.ComputerUsage
			var status string
			var process, turn *string
			var created, questions int64
			if err := sc(&u.ID, &status, &created, &process, &turn, &questions); err != nil {
				return err
			}
			if len(page.Sessions) == limit {
				page.NextCursor = page.Sessions[limit-1].ID
				return nil
			}
			u.UsageState, u.CreatedAt = sessionUse(residency, process, turn, questions), api.At(created)
			page.Sessions = append(page.Sessions, u)
			return nil
		}, sqlSessionUsage, computerID, cursor, limit+1)
		if err != nil {
			return fmt.Errorf("read sessions of computer: %w", err)
		}
		return nil
	})
	return page, err
}

// sessionUse names how a Session with a process (its status) or an unfinished Turn (its status) occupies its Computer.
func sessionUse(residency computer.Residency, process, turn *string, questions int64) string {
	switch {
	case process == nil && *turn == "finalizing":
		return useDraining // its Save is being published
	case process == nil:
		return useAdmitted
	case residency == computer.Hibernated || residency == computer.Resuming:
		return useParked
	case *process == "stopping":
		return useDraining
	case *process == "starting":
		return useRunning
	case turn != nil && *turn == "running" && questions == 0:
		return useRunning
	}
	return useWaiting
}

// CommandUsage gives the Commands that occupy a Computer now, oldest first. The cursor is the id of the last one seen.
// Error: computer_not_found.
func (s *Service) CommandUsage(ctx context.Context, environmentID, computerID, cursor string, limit int) (api.ComputerCommandPage, error) {
	page := api.ComputerCommandPage{}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.ComputerCommandPage{Commands: []api.ComputerUsage{}}
		if _, err := computer.ResidencyOf(tx, environmentID, computerID); err != nil {
			return err
		}
		rows, err := many(tx, sqlUsage, computerID, cursor, limit+1)
		if err != nil {
			return err
		}
		for i, r := range rows {
			if i == limit {
				page.NextCursor = rows[limit-1].ID
				break
			}
			page.Commands = append(page.Commands, api.ComputerUsage{ID: r.ID, UsageState: r.use(), CreatedAt: api.At(r.CreatedAt)})
		}
		return nil
	})
	return page, err
}

// use names how a Command occupies its Computer.
func (r *row) use() string {
	switch {
	case r.Status == Pending, r.Status == Starting:
		return useAdmitted
	case r.Status == Running:
		return useRunning
	case !r.Open && !r.Reconciled:
		return useUnreconciled
	}
	return useDraining
}

// DeleteComputer begins the deletion of a Computer that nobody uses; on one that is being deleted it changes nothing.
// Errors: computer_not_found, computer_busy.
func (s *Service) DeleteComputer(ctx context.Context, environmentID string, by api.Actor, computerID, idempotencyKey string) (api.ComputerReceipt, error) {
	var out api.ComputerReceipt
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.ComputerReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "computer.delete", Target: computerID, Key: idempotencyKey}
		return access.Idempotent(tx, scope, &out, func() error {
			c, err := computer.LockAvailable(tx, environmentID, computerID)
			out.ComputerID = computerID
			if fault.Is(err, fault.ComputerDeleting) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := deletable(tx, c); err != nil {
				return err
			}
			if err := computer.Delete(tx, c, db.Millis(s.now())); err != nil {
				return err
			}
			return computer.Update(tx, c)
		})
	})
	return out, err
}

// deletable refuses a Computer that is in use with computer_busy.
func deletable(tx *db.Tx, c *computer.Row) error {
	var sessionID, status string
	held, err := tx.Get([]any{&sessionID, &status}, sqlUnreleasedSession, c.ID)
	if err != nil {
		return fmt.Errorf("read sessions of computer: %w", err)
	}
	if held && (status == "open" || status == "closing") {
		return fault.New(fault.ComputerBusy, "session %s on the Computer is %s; close or cancel it first", sessionID, status).With("session_id", sessionID)
	}
	if held {
		return fault.New(fault.ComputerBusy, "session %s on the Computer is %s, but its process has not ended yet; try again shortly", sessionID, status).With("session_id", sessionID)
	}
	var commands int64
	if _, err := tx.Get([]any{&commands}, sqlUnended, c.ID); err != nil {
		return fmt.Errorf("count commands of computer: %w", err)
	}
	if commands > 0 {
		return fault.New(fault.ComputerBusy, "%d Commands on the Computer have not ended; wait for them or cancel them first", commands)
	}
	saves, err := computer.UnfinishedSaves(tx, c)
	if err != nil {
		return fmt.Errorf("count saves of computer: %w", err)
	}
	if saves > 0 {
		return fault.New(fault.ComputerBusy, "the Computer is being saved; try again shortly")
	}
	return nil
}
