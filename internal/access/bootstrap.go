package access

import (
	"context"
	"errors"
	"fmt"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
)

// What a first start is given; people rename it later.
const (
	firstOrganization = "helmr"
	firstProject      = "default"
	firstEnvironment  = "development"
	firstColor        = "#2563EB"
	firstKeyName      = "helmr dev"
	firstEmail        = "owner@localhost"
	firstDisplayName  = "Owner"
)

// BootstrapOptions say how a new installation begins. Zero values mean the defaults.
type BootstrapOptions struct {
	Limits      Limits // of the Environment
	Email       string // of the owner
	DisplayName string
	// APIKey is the text of the first key, made with NewRawKey. Whoever keeps it in a file writes the file first: then a
	// crash in between loses nothing, because each later call adds this key if it does not exist yet.
	APIKey string
}

// Bootstrap names what an installation began with. APIKey is the text of the key if this call made it, else "".
type Bootstrap struct {
	OrganizationID string
	ProjectID      string
	EnvironmentID  string
	UserID         string
	APIKey         string
	Created        bool
}

// Bootstrap makes the first Organization, Project, Environment, owner and API key with all scopes. In an installation
// that has an Organization it makes nothing (except the key of the options, if that is missing) and gives the first
// Project, its default Environment and the first owner.
func (s *Service) Bootstrap(ctx context.Context, opts BootstrapOptions) (Bootstrap, error) {
	if opts.Limits == (Limits{}) {
		opts.Limits = DefaultLimits()
	}
	if err := opts.Limits.Check(); err != nil {
		return Bootstrap{}, err
	}
	if opts.APIKey != "" && !wellFormed(opts.APIKey) {
		return Bootstrap{}, errors.New("bootstrap: the given API key is malformed")
	}
	if opts.Email == "" {
		opts.Email = firstEmail
	}
	if opts.DisplayName == "" {
		opts.DisplayName = firstDisplayName
	}
	var out Bootstrap
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = Bootstrap{}
		found, err := tx.Get([]any{&out.OrganizationID, &out.ProjectID, &out.EnvironmentID, &out.UserID}, sqlBootstrapFind)
		if err != nil {
			return fmt.Errorf("look for an organization: %w", err)
		}
		if !found {
			if out, err = s.bootstrap(tx, opts); err != nil {
				return err
			}
		}
		return s.bootstrapKey(tx, opts.APIKey, &out)
	})
	if err != nil {
		return Bootstrap{}, fmt.Errorf("bootstrap: %w", err)
	}
	return out, nil
}

func (s *Service) bootstrap(tx *db.Tx, opts BootstrapOptions) (Bootstrap, error) {
	b := Bootstrap{OrganizationID: id.New(), ProjectID: id.New(), EnvironmentID: id.New(), UserID: id.New(), Created: true}
	now, l := db.Millis(s.Now()), opts.Limits
	steps := []struct {
		query string
		args  []any
	}{
		{sqlOrganizationInsert, []any{b.OrganizationID, firstOrganization, firstOrganization, now}},
		{sqlProjectInsert, []any{b.ProjectID, b.OrganizationID, firstProject, firstProject, now}},
		{sqlEnvironmentInsert, []any{b.EnvironmentID, b.ProjectID, firstEnvironment, firstEnvironment, firstColor, 1, "keep", nil,
			l.MaxResidentComputers, l.MaxCPUMillis, l.MaxMemoryBytes, l.MaxReservedStorageBytes, l.MaxOutstandingAdmissions, l.MaxCausalDepth,
			l.AdmissionRatePerSecond, l.AdmissionBurst, l.PreparationTimeoutMs, now, now}},
		{sqlUserInsert, []any{b.UserID, opts.Email, opts.DisplayName, now}},
		{sqlMemberInsert, []any{b.OrganizationID, b.UserID, 1, "active", now, now}},
	}
	for _, step := range steps {
		if _, err := tx.Exec(step.query, step.args...); err != nil {
			return Bootstrap{}, err
		}
	}
	return b, nil
}

// bootstrapKey makes the first key of a new installation, or the given one where it is missing.
func (s *Service) bootstrapKey(tx *db.Tx, raw string, b *Bootstrap) error {
	if raw == "" {
		if !b.Created {
			return nil
		}
		raw = NewRawKey()
	}
	var have string
	found, err := tx.Get([]any{&have}, sqlKeyIDByHash, hashKey(raw))
	if err != nil || found {
		return err
	}
	key := APIKey{ID: id.New(), EnvironmentID: b.EnvironmentID, Name: firstKeyName, Scopes: Scopes(), CreatedBy: b.UserID, CreatedAt: db.Millis(s.Now())}
	if err := insertKey(tx, &key, raw); err != nil {
		return err
	}
	b.APIKey = raw
	return nil
}
