package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/loop"
	"helmr.dev/helmr/internal/session"
)

// Topics of this room's background work.
const (
	deadlineTopic = "turn-deadlines"
	closingTopic  = "session-closing"
	idleTopic     = "sessions-idle"
)

// Loops gives the room's background work: deadlines, overdue stops, idle closes, and the loss of Workers.
func (s *Service) Loops() []loop.Piece {
	return []loop.Piece{
		{Name: "turn.deadlines", Every: 30 * time.Second, Topics: []string{deadlineTopic}, Run: s.deadlines},
		{Name: "turn.overdue", Every: time.Second, Run: s.overdue},
		{Name: "turn.idle", Every: 10 * time.Second, Run: s.closeIdle},
		{Name: "turn.hibernation", Every: hibernateLate / 2, Topics: []string{idleTopic}, Run: s.hibernateIdle},
		{Name: "turn.closing", Every: time.Minute, Topics: []string{closingTopic}, Run: s.closing},
		{Name: "turn.retention", Every: retentionEvery, Run: s.expire},
		{Name: "turn.lost", Every: 10 * time.Second, Topics: []string{computer.LostTopic}, Run: s.lostWorkers},
	}
}

// deadlines aborts Turns that have run for their maxTurnDuration.
func (s *Service) deadlines(ctx context.Context) (time.Duration, error) {
	now := db.Millis(s.now())
	var due []string
	var next *int64
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		next = nil
		if due, err = tx.Column(sqlDeadlines, now); err != nil {
			return err
		}
		_, err = tx.Get([]any{&next}, sqlDeadline, now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find deadlines: %w", err)
	}
	for _, sessionID := range due {
		err := s.each(ctx, sessionID, func(w *work, u *unit) error {
			if t := u.head; t == nil || t.Status != Running || t.DeadlineAt == nil || *t.DeadlineAt > w.now || !t.abort(AbortDeadline, w.now) {
				return nil
			}
			if _, err := w.event(u, u.head.ID, "session.deadline", map[string]string{"turn_id": u.head.ID}); err != nil {
				return err
			}
			computer.SignalWorker(w.tx, w.c)
			return w.cancelQuestions(u)
		})
		if err != nil {
			return 0, fmt.Errorf("deadline of session %s: %w", sessionID, err)
		}
	}
	if next != nil {
		return time.Duration(*next-now) * time.Millisecond, nil
	}
	return 0, nil
}

// each runs do on one Session in a transaction of its own.
func (s *Service) each(ctx context.Context, sessionID string, do func(w *work, u *unit) error) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		var environmentID string
		if _, err := tx.Get([]any{&environmentID}, sqlEnvironmentOf, sessionID); err != nil {
			return err
		}
		w, u, err := s.begin(tx, environmentID, sessionID)
		if err != nil {
			return err
		}
		if err := do(w, u); err != nil {
			return err
		}
		return w.flush()
	})
}

// overdue wakes the Workers of processes that did not clean up or stop in their time; the Exchange has them killed.
func (s *Service) overdue(ctx context.Context) (time.Duration, error) {
	now := s.now()
	var due []string
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		stopping, err := session.OverdueComputers(tx, db.Millis(now.Add(-StopDeadline-killGrace)))
		if err != nil {
			return err
		}
		aborting, err := tx.Column(sqlOverdue, db.Millis(now.Add(-CleanupPeriod-killGrace)))
		due = append(stopping, aborting...)
		return err
	})
	if err != nil || len(due) == 0 {
		return 0, err
	}
	return 0, s.db.Write(ctx, func(tx *db.Tx) error {
		for _, computerID := range due {
			c, err := computer.Lock(tx, computerID)
			if err != nil {
				return err
			}
			computer.SignalWorker(tx, c)
		}
		return nil
	})
}

// closeIdle closes Sessions whose idle clock has run out, unless a child or an unfinished Save keeps them.
func (s *Service) closeIdle(ctx context.Context) (time.Duration, error) {
	var due []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		due, err = session.IdleDue(tx, db.Millis(s.now()))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find idle sessions: %w", err)
	}
	for _, sessionID := range due {
		err := s.each(ctx, sessionID, func(w *work, u *unit) error {
			r := u.s
			if r.Status != session.Open || r.IdleSince == nil || r.CloseAfterIdleMs == nil || *r.IdleSince+*r.CloseAfterIdleMs > w.now {
				return nil
			}
			children, err := session.UnclosedChildren(w.tx, r.ID)
			if err != nil || children > 0 || (u.head != nil && u.head.Status == Finalizing) {
				return err
			}
			computer.SignalWorker(w.tx, w.c)
			return w.close(u, map[string]any{"cause": "idle"})
		})
		if err != nil {
			return 0, fmt.Errorf("close idle session %s: %w", sessionID, err)
		}
	}
	return 0, nil
}

// closing lets closing Sessions go on that waited for a child.
func (s *Service) closing(ctx context.Context) (time.Duration, error) {
	var waiting []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		waiting, err = tx.Column(sqlClosing)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find closing sessions: %w", err)
	}
	for _, sessionID := range waiting {
		err := s.each(ctx, sessionID, func(w *work, u *unit) error {
			computer.SignalWorker(w.tx, w.c)
			return w.settle(u)
		})
		if err != nil {
			return 0, fmt.Errorf("settle session %s: %w", sessionID, err)
		}
	}
	return 0, nil
}

// lostWorkers records the loss of every Computer whose Worker is lost.
func (s *Service) lostWorkers(ctx context.Context) (time.Duration, error) {
	var lost []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		lost, err = computer.LostComputers(tx)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find lost computers: %w", err)
	}
	var errs []error
	for _, computerID := range lost {
		errs = append(errs, s.db.Write(ctx, func(tx *db.Tx) error {
			c, err := computer.Lock(tx, computerID)
			if err != nil {
				return err
			}
			// Another server may have recorded it meanwhile, and the Computer may be elsewhere already.
			if lost, err := computer.OnLostWorker(tx, c); err != nil || !lost {
				return err
			}
			w := &work{tx: tx, now: db.Millis(s.now()), c: c, occupants: s.occupants}
			if err := w.loadAll(); err != nil {
				return err
			}
			if err := w.lost(false, "its Worker is lost"); err != nil {
				return err
			}
			return w.flush()
		}))
	}
	return 0, errors.Join(errs...)
}

// The sweep of expired history: how often, and how many Sessions each time.
const (
	retentionEvery    = time.Minute
	retentionSessions = 100
)

// expire takes the payloads out of Sessions whose history has been kept for its time. Ids, statuses, sequences, times and
// error codes stay.
func (s *Service) expire(ctx context.Context) (time.Duration, error) {
	now := db.Millis(s.now())
	var due []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		due, err = session.Expiring(tx, now, retentionSessions)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find expired sessions: %w", err)
	}
	for _, sessionID := range due {
		err := s.db.Write(ctx, func(tx *db.Tx) error {
			did, err := session.Expire(tx, sessionID, now)
			if err != nil || !did {
				return err
			}
			for _, q := range []string{sqlExpireTurns, sqlExpireQuestions} {
				if _, err := tx.Exec(q, now, sessionID); err != nil {
					return err
				}
			}
			if _, err := tx.Exec(sqlExpireMessages, sessionID); err != nil {
				return err
			}
			return access.ExpireIdempotency(tx, sessionID, now)
		})
		if err != nil {
			return 0, fmt.Errorf("expire session %s: %w", sessionID, err)
		}
	}
	return 0, nil
}
