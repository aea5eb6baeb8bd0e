package preparation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/loop"
)

// Loops gives the room's background work: making prepared images, renewing them, and letting go of those of no more use.
func (s *Service) Loops() []loop.Piece {
	return []loop.Piece{
		{Name: "preparation.run", Every: 10 * time.Second, Topics: []string{computer.PreparationTopic}, Run: s.run},
		{Name: "preparation.refresh", Every: time.Minute, Run: s.refresh},
		{Name: "preparation.unreadable", Every: time.Minute, Run: s.replace},
		{Name: "preparation.expire", Every: 10 * time.Minute, Run: s.expire},
	}
}

// run moves every open preparation forward.
func (s *Service) run(ctx context.Context) (time.Duration, error) {
	type open struct {
		id       string
		deadline int64
	}
	var all []open
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		all = nil
		return tx.Query(func(sc func(...any) error) error {
			var o open
			err := sc(&o.id, &o.deadline)
			all = append(all, o)
			return err
		}, sqlAllOpen)
	})
	if err != nil {
		return 0, fmt.Errorf("find open preparations: %w", err)
	}
	now := db.Millis(s.now())
	next := time.Duration(0)
	var errs []error
	for _, o := range all {
		if err := s.db.Write(ctx, func(tx *db.Tx) error { return s.step(tx, o.id) }); err != nil {
			errs = append(errs, fmt.Errorf("preparation %s: %w", o.id, err))
		}
		if left := time.Duration(o.deadline-now) * time.Millisecond; left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return next, errors.Join(errs...)
}

// refresh begins to renew the images that have become as old as their Template allows.
func (s *Service) refresh(ctx context.Context) (time.Duration, error) {
	var all []deployment.Refreshed
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		all, err = deployment.Refreshing(tx)
		return err
	})
	if err != nil {
		return 0, err
	}
	next := time.Duration(0)
	var errs []error
	for _, r := range all {
		var left time.Duration
		err := s.db.Write(ctx, func(tx *db.Tx) (err error) {
			left, err = s.renew(tx, r)
			return err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("renew template %s: %w", r.TemplateID, err))
		}
		if left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return next, errors.Join(errs...)
}

// renew begins a preparation if the last one of the Template ended as long ago as its period is. Without an image that was
// ever made, and with a revoked Secret, there is nothing to renew. left is the time until it is due, 0 if that is not known.
func (s *Service) renew(tx *db.Tx, r deployment.Refreshed) (left time.Duration, err error) {
	i, err := identify(tx, r.EnvironmentID, r.DeploymentID, r.TemplateID)
	if err != nil || i == nil || i.revoked != "" {
		return 0, err
	}
	last, err := one(tx, sqlLast, r.EnvironmentID, i.subject)
	if err != nil || last == nil || last.open() {
		return 0, err
	}
	ever, err := tx.Get([]any{new(string)}, sqlEver, r.EnvironmentID, i.subject)
	if err != nil || !ever {
		return 0, err
	}
	now := db.Millis(s.now())
	if due := *last.TerminalAt + r.EveryMs; due > now {
		return time.Duration(due-now) * time.Millisecond, nil
	}
	_, err = begin(tx, r.EnvironmentID, r.DeploymentID, i, reasonRefresh, now)
	return 0, err
}

// replace has images that cannot be read any more made again, for the Computers that never had a Save of their own.
func (s *Service) replace(ctx context.Context) (time.Duration, error) {
	var found []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		found, err = tx.Column(sqlUnreadable)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find unreadable images: %w", err)
	}
	var errs []error
	for _, computerID := range found {
		errs = append(errs, s.db.Write(ctx, func(tx *db.Tx) error {
			r, err := computer.Lock(tx, computerID)
			if err != nil {
				return err
			}
			preparationID, err := r.AwaitAnother(db.Millis(s.now()))
			if err != nil {
				return err
			}
			if preparationID != "" {
				if _, err := tx.Exec(sqlForget, preparationID); err != nil {
					return fmt.Errorf("forget image: %w", err)
				}
			}
			return computer.Update(tx, r)
		}))
	}
	return 0, errors.Join(errs...)
}

// expire lets go of images that nothing will start with; their chunks are removed by whoever collects what nothing names.
func (s *Service) expire(ctx context.Context) (time.Duration, error) {
	now := s.now()
	return 0, s.db.Write(ctx, func(tx *db.Tx) error {
		if err := forgetNetworks(tx); err != nil {
			return err
		}
		unused := db.Millis(now.Add(-keepUnused))
		if _, err := tx.Exec(sqlExpire, db.Millis(now.Add(-keepSuperseded)), unused, unused); err != nil {
			return fmt.Errorf("expire prepared images: %w", err)
		}
		return nil
	})
}
