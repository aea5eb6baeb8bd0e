package access

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// MaxIdempotencyKey is the longest idempotency key in bytes.
const MaxIdempotencyKey = 512

// Request identifies one call for idempotency: its scope (caller, operation, target), its key and its body.
type Request struct {
	EnvironmentID string
	Caller        string // api.Actor.String()
	Operation     string // for example "session.create"
	Target        string // the resource acted on, "" for creations
	Key           string // "" means: not idempotent
	Body          any    // what must be equal when the key is used again, without the key itself
	// SessionID points at the Session that the request is about, once do has run: the record expires with its history.
	// nil: it is about none.
	SessionID *string
}

// Idempotent runs do at most once per key. The first run's receipt (a pointer to a JSON value that do fills) is kept in
// the same transaction; a repeated request gets it back, one with another body fails with idempotency_conflict, and one
// whose Session's history has expired with idempotency_expired.
func Idempotent(tx *db.Tx, r Request, receipt any, do func() error) error {
	if r.Key == "" {
		return do()
	}
	if err := CheckIdempotencyKey(r.Key); err != nil {
		return err
	}
	hash, err := hashBody(r.Body)
	if err != nil {
		return err
	}
	var haveHash, have string
	var expired *int64
	found, err := tx.Get([]any{&haveHash, &have, &expired}, sqlIdempotencyGet, r.EnvironmentID, r.Caller, r.Operation, r.Target, r.Key)
	if err != nil {
		return fmt.Errorf("read idempotency record: %w", err)
	}
	if expired != nil {
		return fault.New(fault.IdempotencyExpired, "idempotency_key was used for a request whose history has expired; use a new key for a new request")
	}
	if found {
		if haveHash != hash {
			return fault.New(fault.IdempotencyConflict, "idempotency_key was used for another %s request; use a new key for a new request", r.Operation)
		}
		return json.Unmarshal([]byte(have), receipt)
	}
	if err := do(); err != nil {
		return err
	}
	text, err := json.Marshal(receipt)
	if err != nil {
		return fmt.Errorf("encode receipt: %w", err)
	}
	err = tx.Do(sqlIdempotencyPut, r.EnvironmentID, r.Caller, r.Operation, r.Target, r.Key, hash, string(text), r.SessionID, db.Millis(time.Now()))
	if err != nil {
		return fmt.Errorf("write idempotency record: %w", err)
	}
	return nil
}

// CheckIdempotencyKey refuses a key that is not 1 to 512 bytes of UTF-8 without NUL and outer white space.
func CheckIdempotencyKey(key string) error {
	if key == "" || len(key) > MaxIdempotencyKey || !utf8.ValidString(key) || strings.ContainsRune(key, 0) || strings.TrimSpace(key) != key {
		return fault.New(fault.InvalidIdempotencyKey, "idempotency_key must be 1 to %d bytes of UTF-8 without NUL and without white space at either end", MaxIdempotencyKey)
	}
	return nil
}

// hashBody hashes the canonical form of body: encoding/json sorts map keys, so one round through any makes it canonical.
func hashBody(body any) (string, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return "", fmt.Errorf("encode request: %w", err)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("decode request: %w", err)
	}
	if raw, err = json.Marshal(v); err != nil {
		return "", fmt.Errorf("encode request: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// ExpireIdempotency makes the keys of requests about a Session answer idempotency_expired from now on.
func ExpireIdempotency(tx *db.Tx, sessionID string, now int64) error {
	if err := tx.Do(sqlIdempotencyExpire, now, sessionID); err != nil {
		return fmt.Errorf("expire idempotency records: %w", err)
	}
	return nil
}
