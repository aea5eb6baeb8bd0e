package preparation

import (
	"context"
	"fmt"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/storage"
)

// Service finds, makes and renews prepared images.
type Service struct {
	db       *db.DB
	commands *command.Service
	now      func() time.Time
}

// NewService makes the room's service. commands ends what waits for Computers that will never start. now is the clock.
func NewService(d *db.DB, commands *command.Service, now func() time.Time) *Service {
	return &Service{db: d, commands: commands, now: now}
}

// Find gives the latest usable prepared image for a Computer, or has it made. It implements computer.PreparedImages.
func (s *Service) Find(tx *db.Tx, r *computer.Row, now int64) (*computer.PreparedImage, error) {
	i, err := identify(tx, r.EnvironmentID, r.DeploymentID, r.TemplateID)
	if err != nil {
		return nil, err
	}
	if i == nil {
		return nil, fmt.Errorf("computer %s awaits a prepared image, but its Template has no callback", r.ID)
	}
	if i.revoked == "" {
		if err := storage.Lock(tx, r.EnvironmentID); err != nil { // the image may expire at this moment
			return nil, err
		}
		p, err := one(tx, sqlImage, r.EnvironmentID, i.digest)
		if err != nil {
			return nil, err
		}
		if p != nil {
			return &computer.PreparedImage{PreparationID: p.ID, Manifest: *p.Manifest, MadeOn: *p.ComputerID}, nil
		}
	}
	p, err := one(tx, sqlOpen, r.EnvironmentID, i.digest)
	if err != nil {
		return nil, err
	}
	if p == nil && r.PreparationID != nil {
		last, err := one(tx, sqlGet, *r.PreparationID)
		if err != nil {
			return nil, err
		}
		if last != nil && last.Status == Failed && last.Digest == i.digest {
			if err := r.PreparationFailed(*last.Error, now); err != nil {
				return nil, err
			}
			return nil, s.commands.Unplaced(tx, r, now)
		}
	}
	preparationID := ""
	if p != nil {
		preparationID = p.ID
	} else if preparationID, err = begin(tx, r.EnvironmentID, r.DeploymentID, i, reasonNeeded, now); err != nil {
		return nil, err
	}
	r.AwaitPreparation(preparationID, now)
	return nil, nil
}

// begin adds a preparation, or gives the open one of the same identity that another server has begun just now.
func begin(tx *db.Tx, environmentID, deploymentID string, i *identity, reason string, now int64) (string, error) {
	preparationID := id.New()
	n, err := tx.Exec(sqlInsert, preparationID, deploymentID, i.template.TemplateID, i.digest, i.subject, reason, now, now, environmentID)
	if err != nil {
		return "", fmt.Errorf("insert preparation: %w", err)
	}
	if n == 0 {
		p, err := one(tx, sqlOpen, environmentID, i.digest)
		if err == nil && p == nil {
			err = fmt.Errorf("preparation of template %s: not begun", i.template.TemplateID)
		}
		if err != nil {
			return "", err
		}
		return p.ID, nil
	}
	tx.Signal(computer.PreparationTopic)
	tx.Signal(computer.PreparationsOf(environmentID))
	return preparationID, nil
}

// Last gives the last preparation of what a Template of deploymentID (the current Deployment if it is empty) prepares; it may
// have been begun for another Template that shares it. Errors: not_found (no such Template, or it was never prepared),
// no_current_deployment.
func (s *Service) Last(ctx context.Context, environmentID, templateID, deploymentID string) (api.Preparation, error) {
	var out api.Preparation
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		p, err := last(tx, environmentID, templateID, deploymentID)
		if err != nil {
			return err
		}
		out = p.view()
		return nil
	})
	return out, err
}

func last(tx *db.Tx, environmentID, templateID, deploymentID string) (*row, error) {
	if deploymentID == "" {
		var err error
		if deploymentID, err = deployment.Current(tx, environmentID); err != nil {
			return nil, err
		}
	} else if err := deployment.RequireOf(tx, environmentID, deploymentID); err != nil {
		return nil, err
	}
	i, err := identify(tx, environmentID, deploymentID, templateID)
	if err != nil {
		return nil, err
	}
	if i == nil {
		return nil, fault.New(fault.NotFound, "Template %q of this Deployment has no prepare callback, or does not exist.", templateID)
	}
	p, err := one(tx, sqlLast, environmentID, i.subject)
	if err == nil && p == nil {
		err = fault.New(fault.NotFound, "Template %q has not been prepared yet: that happens when the first Computer needs it.", templateID)
	}
	return p, err
}

// Get gives a preparation of the Environment; not_found if it is not there.
func (s *Service) Get(ctx context.Context, environmentID, preparationID string) (api.Preparation, error) {
	var out api.Preparation
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		p, err := get(tx, environmentID, preparationID)
		if err != nil {
			return err
		}
		out = p.view()
		return nil
	})
	return out, err
}

func get(tx *db.Tx, environmentID, preparationID string) (*row, error) {
	p, err := one(tx, sqlOf, environmentID, preparationID)
	if err == nil && p == nil {
		err = fault.New(fault.NotFound, "preparation %s does not exist in this Environment", preparationID)
	}
	return p, err
}

// Manifests hands each manifest to each that new Computers of the Environment may start with. What Computers have started
// with stays theirs.
func Manifests(tx *db.Tx, environmentID string, each func(manifest string)) error {
	err := tx.Query(func(scan func(...any) error) error {
		var manifest string
		if err := scan(&manifest); err != nil {
			return err
		}
		each(manifest)
		return nil
	}, sqlManifests, environmentID, environmentID)
	if err != nil {
		return fmt.Errorf("read prepared images: %w", err)
	}
	return nil
}
