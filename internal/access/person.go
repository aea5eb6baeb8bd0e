package access

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// ownerMark begins the text of an owner token.
const ownerMark = "hlmr_own_"

// MaxOwnerToken bounds the life of an owner token.
const MaxOwnerToken = 30 * 24 * time.Hour

// NewOwnerToken makes a credential that acts as the first owner of the installation until a time. Whoever holds the
// installation's key (HELMR_AUTH_KEY) can make one; it is not stored, and changing the key ends all of them.
func NewOwnerToken(key []byte, until time.Time) string {
	claim := make([]byte, 8, 16)
	binary.BigEndian.PutUint64(claim, uint64(until.Unix()))
	claim = append(claim, make([]byte, 8)...)
	_, _ = rand.Read(claim[8:]) // never fails
	return ownerMark + base64.RawURLEncoding.EncodeToString(append(claim, signOwner(key, claim)...))
}

func signOwner(key, claim []byte) []byte {
	m := hmac.New(sha256.New, key)
	_, _ = m.Write([]byte("owner token v1"))
	_, _ = m.Write(claim)
	return m.Sum(nil)
}

// IsOwnerToken tells whether a bearer credential looks like one of a person.
func IsOwnerToken(bearer string) bool { return strings.HasPrefix(bearer, ownerMark) }

// AuthenticatePerson tells which person holds a bearer credential. An API key is refused with human_required, anything
// else that is not valid with authentication_required.
func (s *Service) AuthenticatePerson(ctx context.Context, bearer string) (Principal, error) {
	if !IsOwnerToken(bearer) {
		if _, err := s.Authenticate(ctx, bearer); err != nil {
			return Principal{}, err
		}
		return Principal{}, fault.New(fault.HumanRequired, "This is for people; an API key cannot do it. `helmr server owner-token` makes a login of the owner.")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(bearer, ownerMark))
	if err != nil || len(raw) != 16+sha256.Size || len(s.OwnerKey) == 0 || !hmac.Equal(raw[16:], signOwner(s.OwnerKey, raw[:16])) {
		return Principal{}, fault.New(fault.AuthenticationRequired, "The owner token is not one of this installation.")
	}
	if until := time.Unix(int64(binary.BigEndian.Uint64(raw)), 0); !s.Now().Before(until) {
		return Principal{}, fault.New(fault.AuthenticationRequired, "The owner token is over; make another one.")
	}
	p := Principal{Owner: true}
	found := false
	err = s.db.ReadOne(ctx, func(tx *db.Tx) (err error) {
		found, err = tx.Get([]any{&p.OrganizationID, &p.Actor.ID}, sqlFirstOwner)
		return err
	})
	if err != nil {
		return Principal{}, fmt.Errorf("look up owner: %w", err)
	}
	if !found {
		return Principal{}, fault.New(fault.AuthenticationRequired, "The installation has no active owner yet; `helmr server bootstrap` makes one.")
	}
	p.Actor = api.Actor{Kind: "user", ID: p.Actor.ID}
	return p, nil
}
