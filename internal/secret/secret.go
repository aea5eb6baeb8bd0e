package secret

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/state"
)

// Status says whether a Secret may be used.
type Status string

// The statuses of a Secret.
const (
	Active  = Status("active")
	Revoked = Status("revoked")
)

// Statuses lists the allowed arrows; a rotation leaves the status as it is.
var Statuses = state.Table[Status]{Active: {Active, Revoked}}

// MaxValueBytes is the longest value.
const MaxValueBytes = 1 << 20

// row is a Secret as stored.
type row struct {
	Name                 string
	Status               Status
	Version              int64
	CreatedAt            int64
	RotatedAt, RevokedAt *int64
}

func (r *row) view() api.Secret {
	return api.Secret{ID: r.Name, Name: r.Name, Status: string(r.Status), CreatedAt: api.At(r.CreatedAt), RotatedAt: api.AtOpt(r.RotatedAt), RevokedAt: api.AtOpt(r.RevokedAt)}
}

func (r *row) move(to Status) error {
	if err := Statuses.Check("secret "+r.Name, r.Status, to); err != nil {
		return err
	}
	r.Status = to
	return nil
}

func scan(sc func(...any) error) (*row, error) {
	var r row
	err := sc(&r.Name, &r.Status, &r.Version, &r.CreatedAt, &r.RotatedAt, &r.RevokedAt)
	return &r, err
}

// one reads a Secret with a statement that selects columns, nil if there is none.
func one(tx *db.Tx, query, environmentID, name string) (*row, error) {
	var r *row
	err := tx.Query(func(sc func(...any) error) (err error) {
		r, err = scan(sc)
		return err
	}, query, environmentID, name)
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	return r, nil
}

// get is one for a Secret that a caller names; not_found without it.
func get(tx *db.Tx, query, environmentID, name string) (*row, error) {
	r, err := one(tx, query, environmentID, name)
	if err == nil && r == nil {
		err = fault.New(fault.NotFound, "Secret %q does not exist in this Environment; `helmr secret list` shows those that do", name)
	}
	return r, err
}

func checkName(name string) error {
	if id.Declared(name) {
		return nil
	}
	return fault.New(fault.BadRequest, "name must be a letter or digit, then up to 127 of letters, digits, '.', '_' and '-'").With("field", "name")
}

// checkValue refuses what cannot be a value. Its errors say nothing of the value but its length.
func checkValue(value string) error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.BadRequest, format, args...).With("field", "value")
	}
	switch {
	case value == "":
		return bad("value must not be empty")
	case len(value) > MaxValueBytes:
		return fault.New(fault.RequestTooLarge, "value has %d bytes; at most %d are allowed", len(value), MaxValueBytes).With("field", "value")
	case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
		return bad("value must be valid UTF-8 without NUL; encode other bytes, for example as base64")
	}
	return nil
}

func unavailable(names []string, format string, args ...any) error {
	return fault.New(fault.SecretUnavailable, format, args...).With("secrets", names)
}
