package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"helmr.dev/helmr/internal/fault"
)

const (
	keyMark      = "hlmr_sk_"
	keyBytes     = 32
	shownOfKey   = 8 // characters of key_prefix after the mark
	maxKeyName   = 64
	keyTextBytes = 43 // of keyBytes in base64 without padding
)

// keyExpiryDays are the allowed lives of a key; none is the other choice.
var keyExpiryDays = []int{30, 90, 365}

// Status of an API key.
type KeyStatus string

// The three states of an API key.
const (
	KeyActive  KeyStatus = "active"
	KeyExpired KeyStatus = "expired"
	KeyRevoked KeyStatus = "revoked"
)

// APIKey is what is known of a key after its creation. Times are milliseconds since 1970.
type APIKey struct {
	ID            string
	EnvironmentID string
	Name          string
	Prefix        string
	Scopes        []string
	CreatedBy     string // user id, "" if no person made it
	CreatedAt     int64
	ExpiresAt     *int64
	RevokedAt     *int64
}

// Status tells the state of the key at a time.
func (k APIKey) Status(at time.Time) KeyStatus {
	switch {
	case k.RevokedAt != nil:
		return KeyRevoked
	case k.ExpiresAt != nil && *k.ExpiresAt <= at.UnixMilli():
		return KeyExpired
	}
	return KeyActive
}

// NewRawKey makes the text of a new API key.
func NewRawKey() string {
	b := make([]byte, keyBytes)
	_, _ = rand.Read(b) // never fails
	return keyMark + base64.RawURLEncoding.EncodeToString(b)
}

// wellFormed tells whether raw can be a key at all, so that anything else costs no look-up.
func wellFormed(raw string) bool {
	text, ok := strings.CutPrefix(raw, keyMark)
	if !ok || len(text) != keyTextBytes {
		return false
	}
	_, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return err == nil
}

func hashKey(raw string) string {
	sum := sha256.Sum256([]byte(raw))
	return hex.EncodeToString(sum[:])
}

func keyPrefix(raw string) string { return raw[:len(keyMark)+shownOfKey] }

func checkKeyName(name string) error {
	if n := utf8.RuneCountInString(name); n < 1 || n > maxKeyName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fault.New(fault.BadRequest, "name must be 1 to %d characters without control characters", maxKeyName).With("field", "name")
	}
	return nil
}

// checkScopes refuses unknown scopes and gives them sorted, each once.
func checkScopes(scopes []string) ([]string, error) {
	if len(scopes) == 0 {
		return nil, fault.New(fault.BadRequest, "scopes must name at least one scope").With("field", "scopes")
	}
	known := Scopes()
	for _, s := range scopes {
		if !slices.Contains(known, s) {
			return nil, fault.New(fault.BadRequest, "scopes has %q, which API keys cannot hold; allowed are %s", s, strings.Join(known, ", ")).With("field", "scopes")
		}
	}
	out := slices.Clone(scopes)
	slices.Sort(out)
	return slices.Compact(out), nil
}

// keyExpiry gives the end of a key's life, nil for never.
func keyExpiry(days *int, now time.Time) (*int64, error) {
	if days == nil {
		return nil, nil
	}
	if !slices.Contains(keyExpiryDays, *days) {
		return nil, fault.New(fault.BadRequest, "expires_in_days must be null or one of %s", strings.Trim(fmt.Sprint(keyExpiryDays), "[]")).With("field", "expires_in_days")
	}
	at := now.Add(time.Duration(*days) * 24 * time.Hour).UnixMilli()
	return &at, nil
}
