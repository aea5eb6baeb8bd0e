package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/loop"
)

// timeoutTopic is signalled when a Command has begun to run.
const timeoutTopic = "command-timeouts"

// Loops gives the room's background work: execution limits, retention, proof of cleanup after the loss of a Worker, and the
// deletion of unused Computers.
func (s *Service) Loops() []loop.Piece {
	return []loop.Piece{
		{Name: "command.timeouts", Every: 30 * time.Second, Topics: []string{timeoutTopic}, Run: s.timeouts},
		{Name: "command.retention", Every: time.Minute, Run: s.expire},
		{Name: "command.reconciled", Every: time.Minute, Run: s.reconciled},
		{Name: "command.unused-computers", Every: time.Minute, Run: s.deleteUnused},
	}
}

// guestFirst is how much later than the guest the execution limit is enforced from here: the guest measures it.
const guestFirst = time.Second

// timeouts begins to stop Commands whose execution time is over and whose guest has not said so.
func (s *Service) timeouts(ctx context.Context) (time.Duration, error) {
	now := db.Millis(s.now().Add(-guestFirst))
	type running struct{ id, computerID string }
	var due []running
	var next *int64
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		due, next = nil, nil
		err := tx.Query(func(sc func(...any) error) error {
			var r running
			err := sc(&r.id, &r.computerID)
			due = append(due, r)
			return err
		}, sqlTimedOut, now)
		if err != nil {
			return err
		}
		_, err = tx.Get([]any{&next}, sqlNextOut, now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find commands out of time: %w", err)
	}
	for _, d := range due {
		err := s.db.Write(ctx, func(tx *db.Tx) error {
			c, err := computer.Lock(tx, d.computerID)
			if err != nil {
				return err
			}
			r, err := one(tx, sqlLock, d.id)
			if err != nil || r.Status != Running || r.DeadlineAt == nil || *r.DeadlineAt > now {
				return err
			}
			if err := r.stop(causeTimedOut, db.Millis(s.now())); err != nil {
				return err
			}
			computer.SignalWorker(tx, c)
			return r.store(tx)
		})
		if err != nil {
			return 0, fmt.Errorf("stop command %s: %w", d.id, err)
		}
	}
	if next != nil {
		return time.Duration(max(*next-now, 1)) * time.Millisecond, nil
	}
	return 0, nil
}

// expire removes outcome and output of Commands whose retention is over.
func (s *Service) expire(ctx context.Context) (time.Duration, error) {
	now := s.now()
	var due []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		due, err = tx.Column(sqlExpiring, db.Millis(now.Add(-Retention)))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find expired commands: %w", err)
	}
	for _, commandID := range due {
		err := s.db.Write(ctx, func(tx *db.Tx) error {
			if _, err := tx.Exec(sqlExpire, db.Millis(now), commandID); err != nil {
				return err
			}
			if _, err := tx.Exec(sqlLogsDelete, commandID); err != nil {
				return err
			}
			tx.Signal(OutputTopic(commandID))
			return access.ExpireIdempotency(tx, commandID, db.Millis(now))
		})
		if err != nil {
			return 0, fmt.Errorf("expire command %s: %w", commandID, err)
		}
	}
	if len(due) > 0 {
		return time.Second, nil // there may be more
	}
	return 0, nil
}

// reconciled records that nothing is left of Commands whose Worker was lost and has come back empty.
func (s *Service) reconciled(ctx context.Context) (time.Duration, error) {
	var due []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		due, err = tx.Column(sqlReconcilable)
		return err
	})
	if err != nil || len(due) == 0 {
		return 0, err
	}
	return 0, s.db.Write(ctx, func(tx *db.Tx) error {
		for _, commandID := range due {
			if _, err := tx.Exec(sqlReconciled, commandID); err != nil {
				return fmt.Errorf("reconcile command %s: %w", commandID, err)
			}
			tx.Signal(Topic(commandID))
		}
		return nil
	})
}

// deleteUnused deletes Computers that were unused for as long as their Template allows.
func (s *Service) deleteUnused(ctx context.Context) (time.Duration, error) {
	now := db.Millis(s.now())
	var due []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		due, err = tx.Column(sqlUnused, now, now, now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find unused computers: %w", err)
	}
	var errs []error
	for _, computerID := range due {
		errs = append(errs, s.db.Write(ctx, func(tx *db.Tx) error {
			c, err := computer.Lock(tx, computerID)
			if err != nil {
				return err
			}
			still, err := tx.Column(sqlUnusedOne, now, now, now, computerID)
			if err != nil || len(still) == 0 {
				return err
			}
			if err := deletable(tx, c); fault.Is(err, fault.ComputerBusy) {
				return nil // a Save is unfinished; the next look finds it done
			} else if err != nil {
				return err
			}
			if err := computer.Delete(tx, c, now); err != nil {
				return err
			}
			return computer.Update(tx, c)
		}))
	}
	return 0, errors.Join(errs...)
}
