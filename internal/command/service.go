package command

import (
	"context"
	"strings"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// Service admits Commands, takes part in Exchanges and keeps output.
type Service struct {
	db  *db.DB
	now func() time.Time
}

// NewService makes the room's service. now is the clock.
func NewService(d *db.DB, now func() time.Time) *Service { return &Service{db: d, now: now} }

// Create admits a Command on a Computer. Errors: invalid_computer_command, computer_stdin_too_large,
// computer_command_request_too_large, computer_not_found, computer_deleting, secret_unavailable, and the error code of an
// unavailable Computer.
func (s *Service) Create(ctx context.Context, environmentID string, by api.Actor, computerID string, in api.CommandCreateRequest) (api.CommandReceipt, error) {
	var out api.CommandReceipt
	text, timeout, err := check(in)
	if err != nil {
		return out, err
	}
	body := in
	body.IdempotencyKey = ""
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.CommandReceipt{}
		commandID := id.New()
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "command.create", Target: computerID, Key: in.IdempotencyKey, Body: body, SessionID: &commandID}
		return access.Idempotent(tx, scope, &out, func() error {
			c, err := computer.LockAvailable(tx, environmentID, computerID)
			if err != nil {
				return err
			}
			if err := c.RequireRunnable(); err != nil {
				return err
			}
			if err := computer.RequireSecrets(tx, c); err != nil {
				return err
			}
			if name, err := computer.BoundName(tx, c, in.Env); err != nil {
				return err
			} else if name != "" {
				return invalid("env", "%s is bound to a Secret on this Computer and may not be set", name)
			}
			now := db.Millis(s.now())
			if err := tx.Do(sqlInsert, commandID, environmentID, computerID, text, timeout.Milliseconds(), now); err != nil {
				return err
			}
			out.CommandID = commandID
			computer.Want(tx, c, now)
			return computer.Update(tx, c)
		})
	})
	return out, err
}

// Get gives a Command of the Environment. Errors: computer_command_not_found, command_result_expired.
func (s *Service) Get(ctx context.Context, environmentID, commandID string) (api.Command, error) {
	var out api.Command
	err := s.db.ReadOne(ctx, func(tx *db.Tx) error {
		r, err := get(tx, environmentID, commandID)
		if err == nil && r.ExpiredAt != nil {
			err = expired(commandID)
		}
		if err != nil {
			return err
		}
		out = r.view()
		return nil
	})
	return out, err
}

func get(tx *db.Tx, environmentID, commandID string) (*row, error) {
	r, err := one(tx, sqlGet, environmentID, commandID)
	if err == nil && r == nil {
		err = notFound(commandID)
	}
	return r, err
}

func notFound(commandID string) error {
	return fault.New(fault.CommandNotFound, "command %s does not exist in this Environment", commandID)
}

func expired(commandID string) error {
	return fault.New(fault.CommandResultExpired, "command %s is older than %d days: its outcome and output were removed", commandID, int(Retention.Hours()/24))
}

// Cancel asks for the end of a Command. Each call answers the same receipt; on a terminal Command it changes nothing else.
func (s *Service) Cancel(ctx context.Context, environmentID string, by api.Actor, commandID string, req api.ControlRequest) (api.CommandCancelReceipt, error) {
	var out api.CommandCancelReceipt
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.CommandCancelReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "command.cancel", Target: commandID, Key: req.IdempotencyKey, SessionID: &commandID}
		return access.Idempotent(tx, scope, &out, func() error {
			found, err := get(tx, environmentID, commandID)
			if err != nil {
				return err
			}
			c, err := computer.Lock(tx, found.ComputerID)
			if err != nil {
				return err
			}
			r, err := one(tx, sqlLock, commandID)
			if err != nil {
				return err
			}
			if r.CancelID == nil {
				cancelID := id.New()
				r.CancelID, r.changed = &cancelID, true
			}
			out = api.CommandCancelReceipt{ID: *r.CancelID, TargetID: commandID, Status: "accepted"}
			if err := r.cancel(db.Millis(s.now())); err != nil {
				return err
			}
			computer.SignalWorker(tx, c)
			return r.store(tx)
		})
	})
	return out, err
}

// cancel ends a Command that waits and begins to stop one that may run.
func (r *row) cancel(now int64) error {
	switch r.Status {
	case Pending:
		r.release(outputClosed, true)
		return r.move(Cancelled, now)
	case Starting, Running:
		return r.stop(causeCancelled, now)
	}
	return nil
}

// maxMessage bounds what is kept of a text from a Worker or a guest.
const maxMessage = 4 << 10

// short makes a text from a Worker or a guest fit to keep.
func short(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s[:min(len(s), maxMessage)], "\uFFFD"), "\x00", "\uFFFD")
}
