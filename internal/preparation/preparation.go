package preparation

import (
	"fmt"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/state"
)

// Status of a preparation.
type Status string

// The statuses of a preparation; the last two are terminal.
const (
	Queued    = Status("queued")
	Running   = Status("running")
	Succeeded = Status("succeeded")
	Failed    = Status("failed")
)

// Statuses are the allowed arrows of a preparation.
var Statuses = state.Table[Status]{
	Queued:  {Running, Failed},
	Running: {Succeeded, Failed},
}

// Why a preparation was begun.
const (
	reasonNeeded   = "needed"
	reasonRefresh  = "refresh"
	reasonRotation = "rotation"
)

// Limits of preparations.
const (
	// MaxLosses is how often its Worker may be lost.
	MaxLosses = 3
	// stopsWithin is what a callback out of time has to end before its Computer is removed.
	stopsWithin = 30 * time.Second
	// keepSuperseded is how long an image is kept after a newer one of the same identity; keepUnused, how long one of a
	// Deployment that is not current is kept without a new Computer that starts with it.
	keepSuperseded = time.Hour
	keepUnused     = 30 * 24 * time.Hour
)

// row is a preparation as stored.
type row struct {
	ID, EnvironmentID        string
	DeploymentID, TemplateID string
	Digest, Subject          string
	Reason                   string
	Status                   Status
	Attempts, Losses         int64
	ComputerID, CommandID    *string
	SaveID, Manifest         *string
	Error                    *string
	DeadlineAt, CreatedAt    int64
	StartedAt, TerminalAt    *int64
	changed                  bool
}

// move takes one arrow of the status table.
func (p *row) move(to Status, now int64) error {
	if err := Statuses.Check("preparation "+p.ID, p.Status, to); err != nil {
		return err
	}
	p.Status, p.changed = to, true
	switch to {
	case Running:
		p.StartedAt = &now
	case Succeeded, Failed:
		p.TerminalAt = &now
	}
	return nil
}

func (p *row) open() bool { return p.Status == Queued || p.Status == Running }

// view gives the preparation as callers see it.
func (p *row) view() api.Preparation {
	v := api.Preparation{ID: p.ID, Template: p.TemplateID, DeploymentID: p.DeploymentID, Status: string(p.Status), Reason: p.Reason,
		CreatedAt: api.At(p.CreatedAt), StartedAt: api.AtOpt(p.StartedAt), TerminalAt: api.AtOpt(p.TerminalAt)}
	if p.Error != nil {
		v.Error = &api.PreparationError{Message: *p.Error}
	}
	return v
}

func scan(sc func(...any) error) (*row, error) {
	var p row
	err := sc(&p.ID, &p.EnvironmentID, &p.DeploymentID, &p.TemplateID, &p.Digest, &p.Subject, &p.Reason, &p.Status, &p.Attempts, &p.Losses, &p.ComputerID, &p.CommandID,
		&p.SaveID, &p.Manifest, &p.Error, &p.DeadlineAt, &p.CreatedAt, &p.StartedAt, &p.TerminalAt)
	return &p, err
}

// one reads a preparation, nil if there is none.
func one(tx *db.Tx, query string, args ...any) (*row, error) {
	var p *row
	err := tx.Query(func(sc func(...any) error) (err error) {
		p, err = scan(sc)
		return err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read preparation: %w", err)
	}
	return p, nil
}

// store writes a changed preparation and signals it.
func (p *row) store(tx *db.Tx) error {
	if !p.changed {
		return nil
	}
	p.changed = false
	_, err := tx.Exec(sqlUpdate, p.Digest, string(p.Status), p.Attempts, p.Losses, p.ComputerID, p.CommandID, p.SaveID, p.Manifest, p.Error, p.StartedAt, p.TerminalAt, p.ID)
	if err != nil {
		return fmt.Errorf("update preparation: %w", err)
	}
	tx.Signal(computer.PreparationsOf(p.EnvironmentID))
	return nil
}
