package access

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// Service is the room's business actions.
type Service struct {
	db *db.DB
	// Now is the clock; tests may replace it before the first call.
	Now func() time.Time
	// OwnerKey checks owner tokens; without one there are none. Set it before the first call.
	OwnerKey []byte
}

// NewService makes the room on a database.
func NewService(d *db.DB) *Service { return &Service{db: d, Now: time.Now} }

// Authenticate tells who holds a bearer credential. An unknown, expired or revoked one fails with
// authentication_required.
func (s *Service) Authenticate(ctx context.Context, bearer string) (Principal, error) {
	if !wellFormed(bearer) {
		return Principal{}, fault.New(fault.AuthenticationRequired, "The bearer credential is not an API key; keys begin with %s.", keyMark)
	}
	var p Principal
	var k APIKey
	var haveHash, scopes string
	found := false
	hash := hashKey(bearer)
	err := s.db.ReadOne(ctx, func(tx *db.Tx) (err error) {
		found, err = tx.Get([]any{&k.ID, &haveHash, &scopes, &k.ExpiresAt, &k.RevokedAt, &p.EnvironmentID, &p.ProjectID, &p.OrganizationID}, sqlKeyByHash, hash)
		return err
	})
	if err != nil {
		return Principal{}, fmt.Errorf("look up API key: %w", err)
	}
	if !found || subtle.ConstantTimeCompare([]byte(haveHash), []byte(hash)) != 1 {
		return Principal{}, fault.New(fault.AuthenticationRequired, "The API key is not known to this server.")
	}
	if status := k.Status(s.Now()); status != KeyActive {
		return Principal{}, fault.New(fault.AuthenticationRequired, "The API key is %s; use another one.", status)
	}
	var list []string
	if err := json.Unmarshal([]byte(scopes), &list); err != nil {
		return Principal{}, fmt.Errorf("decode scopes of API key %s: %w", k.ID, err)
	}
	p.Actor = api.Actor{Kind: "api_key", ID: k.ID}
	p.Scopes = make(map[string]bool, len(list))
	for _, scope := range list {
		p.Scopes[scope] = true
	}
	return p, nil
}

// CreateAPIKeyRequest asks for a key. ExpiresInDays is nil (never), 30, 90 or 365. By must hold every scope asked for.
type CreateAPIKeyRequest struct {
	EnvironmentID string
	Name          string
	Scopes        []string
	ExpiresInDays *int
	By            Principal
}

// CreateAPIKey makes a key of an Environment. Its text is returned here and never again.
func (s *Service) CreateAPIKey(ctx context.Context, req CreateAPIKeyRequest) (raw string, key APIKey, err error) {
	now := s.Now()
	if err := checkKeyName(req.Name); err != nil {
		return "", APIKey{}, err
	}
	scopes, err := checkScopes(req.Scopes)
	if err != nil {
		return "", APIKey{}, err
	}
	for _, scope := range scopes {
		if !req.By.Scopes[scope] {
			return "", APIKey{}, fault.New(fault.PermissionRequired, "You can only give scopes that you hold; %s is not one of them.", scope).With("permission", permissionOf(scope))
		}
	}
	expiresAt, err := keyExpiry(req.ExpiresInDays, now)
	if err != nil {
		return "", APIKey{}, err
	}
	key = APIKey{ID: id.New(), EnvironmentID: req.EnvironmentID, Name: req.Name, Scopes: scopes, CreatedAt: db.Millis(now), ExpiresAt: expiresAt}
	if req.By.Actor.Kind == "user" {
		key.CreatedBy = req.By.Actor.ID
	}
	raw = NewRawKey()
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := ReadEnvironment(tx, req.EnvironmentID); err != nil {
			return err
		}
		return insertKey(tx, &key, raw)
	})
	if err != nil {
		return "", APIKey{}, fmt.Errorf("create API key: %w", err)
	}
	return raw, key, nil
}

func permissionOf(scope string) string {
	for _, p := range Permissions {
		if p.Scope() == scope {
			return p.Name
		}
	}
	return scope
}

// insertKey writes a key with the hash of its text and fills in its prefix.
func insertKey(tx *db.Tx, key *APIKey, raw string) error {
	scopes, err := json.Marshal(key.Scopes)
	if err != nil {
		return fmt.Errorf("encode scopes: %w", err)
	}
	var by *string
	if key.CreatedBy != "" {
		by = &key.CreatedBy
	}
	key.Prefix = keyPrefix(raw)
	_, err = tx.Exec(sqlKeyInsert, key.ID, key.EnvironmentID, key.Name, key.Prefix, hashKey(raw), string(scopes), by, key.CreatedAt, key.ExpiresAt)
	if err != nil {
		return fmt.Errorf("write API key: %w", err)
	}
	return nil
}

// RevokeAPIKey ends a key of an Environment: its next request is refused. Revoking again changes nothing.
func (s *Service) RevokeAPIKey(ctx context.Context, environmentID, keyID string) error {
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		var revokedAt *int64
		found, err := tx.Get([]any{&revokedAt}, sqlKeyRevokedAt, environmentID, keyID)
		if err != nil {
			return err
		}
		if !found {
			return fault.New(fault.NotFound, "The API key does not exist in this Environment.")
		}
		_, err = tx.Exec(sqlKeyRevoke, db.Millis(s.Now()), environmentID, keyID)
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke API key: %w", err)
	}
	return nil
}
