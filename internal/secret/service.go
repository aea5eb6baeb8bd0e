package secret

import (
	"context"
	"fmt"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// Service keeps Secrets. It is safe for concurrent use.
type Service struct {
	db   *db.DB
	keys *Keyring
	now  func() time.Time
}

// NewService makes the room's service. now is the clock.
func NewService(d *db.DB, keys *Keyring, now func() time.Time) *Service {
	return &Service{db: d, keys: keys, now: now}
}

// Create makes a Secret. Errors: bad_request, secret_exists.
func (s *Service) Create(ctx context.Context, environmentID string, by api.Actor, req api.SecretCreateRequest) (api.Secret, error) {
	var out api.Secret
	if err := checkName(req.Name); err != nil {
		return out, err
	}
	if err := checkValue(req.Value); err != nil {
		return out, err
	}
	sealed, print, err := s.prepare(environmentID, req.Name, 1, req.Value)
	if err != nil {
		return out, err
	}
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.Secret{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "secret.create", Key: req.IdempotencyKey,
			Body: map[string]string{"name": req.Name, "value": print}}
		return access.Idempotent(tx, scope, &out, func() error {
			now := db.Millis(s.now())
			n, err := tx.Exec(sqlInsert, environmentID, req.Name, now)
			if err != nil {
				return fmt.Errorf("insert secret: %w", err)
			}
			if n == 0 {
				return fault.New(fault.SecretExists, "Secret %q exists already; give it another value with `helmr secret rotate %s`", req.Name, req.Name).With("secret", req.Name)
			}
			if err := addVersion(tx, environmentID, req.Name, 1, sealed, len(req.Value), by, now); err != nil {
				return err
			}
			r := row{Name: req.Name, Status: Active, Version: 1, CreatedAt: now}
			out = r.view()
			return nil
		})
	})
	return out, err
}

// prepare seals a value for a version and takes its fingerprint, outside of any transaction.
func (s *Service) prepare(environmentID, name string, version int64, value string) (sealed []byte, print string, err error) {
	if sealed, err = s.keys.sealValue(environmentID, name, version, value); err != nil {
		return nil, "", err
	}
	print, err = s.keys.fingerprint(environmentID, name, value)
	return sealed, print, err
}

func addVersion(tx *db.Tx, environmentID, name string, version int64, sealed []byte, size int, by api.Actor, now int64) error {
	if _, err := tx.Exec(sqlVersionInsert, environmentID, name, version, sealed, size, by.Kind, by.ID, now); err != nil {
		return fmt.Errorf("insert secret version: %w", err)
	}
	return nil
}

// Rotate gives a Secret another value, for whatever is resolved from now on. Errors: bad_request, not_found,
// secret_unavailable (it is revoked), and what is said of idempotency keys.
func (s *Service) Rotate(ctx context.Context, environmentID string, by api.Actor, name string, req api.SecretRotateRequest) (api.Secret, error) {
	var out api.Secret
	if err := access.CheckIdempotencyKey(req.IdempotencyKey); err != nil {
		return out, err
	}
	if err := checkValue(req.Value); err != nil {
		return out, err
	}
	print, err := s.keys.fingerprint(environmentID, name, req.Value)
	if err != nil {
		return out, err
	}
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.Secret{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "secret.rotate", Target: name, Key: req.IdempotencyKey,
			Body: map[string]string{"value": print}}
		return access.Idempotent(tx, scope, &out, func() error {
			r, err := get(tx, sqlLock, environmentID, name)
			if err != nil {
				return err
			}
			if r.Status == Revoked {
				return unavailable([]string{name}, "Secret %q is revoked, which is final; create another one", name)
			}
			now := db.Millis(s.now())
			if err := r.move(Active); err != nil {
				return err
			}
			r.Version++
			r.RotatedAt = &now
			sealed, err := s.keys.sealValue(environmentID, name, r.Version, req.Value)
			if err != nil {
				return err
			}
			if err := addVersion(tx, environmentID, name, r.Version, sealed, len(req.Value), by, now); err != nil {
				return err
			}
			out = r.view()
			return update(tx, environmentID, r)
		})
	})
	return out, err
}

// Revoke ends a Secret for good. Revoking one that is revoked changes nothing. Errors: not_found, and what is said of
// idempotency keys.
func (s *Service) Revoke(ctx context.Context, environmentID string, by api.Actor, name string, req api.SecretRevokeRequest) (api.Secret, error) {
	var out api.Secret
	if err := access.CheckIdempotencyKey(req.IdempotencyKey); err != nil {
		return out, err
	}
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.Secret{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "secret.revoke", Target: name, Key: req.IdempotencyKey}
		return access.Idempotent(tx, scope, &out, func() error {
			r, err := get(tx, sqlLock, environmentID, name)
			if err != nil {
				return err
			}
			if r.Status == Active {
				if err := r.move(Revoked); err != nil {
					return err
				}
				now := db.Millis(s.now())
				r.RevokedAt = &now
			}
			out = r.view()
			return update(tx, environmentID, r)
		})
	})
	return out, err
}

// update writes a Secret and wakes whoever waits for a change of it.
func update(tx *db.Tx, environmentID string, r *row) error {
	if _, err := tx.Exec(sqlUpdate, string(r.Status), r.Version, r.RotatedAt, r.RevokedAt, environmentID, r.Name); err != nil {
		return fmt.Errorf("update secret: %w", err)
	}
	tx.Signal(Topic(environmentID))
	return nil
}

// Topic is signalled when a Secret of the Environment was rotated or revoked.
func Topic(environmentID string) string { return "secrets/" + environmentID }

// Get gives a Secret, never its value; not_found without it.
func (s *Service) Get(ctx context.Context, environmentID, name string) (api.Secret, error) {
	var out api.Secret
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		r, err := get(tx, sqlGet, environmentID, name)
		if err == nil {
			out = r.view()
		}
		return err
	})
	return out, err
}

// Filter selects Secrets: Name alone, or a page after Cursor.
type Filter struct {
	Name   string
	Cursor string
	Limit  int
}

// List gives Secrets by name. A Name gives the one that has it, or none.
func (s *Service) List(ctx context.Context, environmentID string, f Filter) (api.SecretPage, error) {
	page := api.SecretPage{}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.SecretPage{Secrets: []api.Secret{}}
		if f.Name != "" {
			r, err := one(tx, sqlGet, environmentID, f.Name)
			if err == nil && r != nil {
				page.Secrets = append(page.Secrets, r.view())
			}
			return err
		}
		return tx.Query(func(sc func(...any) error) error {
			r, err := scan(sc)
			if err != nil {
				return err
			}
			if len(page.Secrets) == f.Limit {
				page.NextCursor = page.Secrets[f.Limit-1].Name
				return nil
			}
			page.Secrets = append(page.Secrets, r.view())
			return nil
		}, sqlList, environmentID, f.Cursor, f.Limit+1)
	})
	return page, err
}
