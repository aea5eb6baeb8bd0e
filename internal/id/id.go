// Package id makes and checks helmr's identifiers: canonical UUIDv7 strings made by the server, and the declared ids
// and slugs that people choose. It knows no resource.
package id

import (
	"regexp"

	"github.com/google/uuid"
)

// New makes a UUIDv7: lower case, hyphenated, ordered by time.
func New() string { return uuid.Must(uuid.NewV7()).String() }

// Valid tells whether s is a canonical UUIDv7 string.
func Valid(s string) bool {
	u, err := uuid.Parse(s)
	return err == nil && u.Version() == 7 && u.Variant() == uuid.RFC4122 && u.String() == s
}

var (
	declared = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	slug     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
)

// Declared tells whether s may name an Agent, Template, Trigger, Secret, Actor or Task.
func Declared(s string) bool { return declared.MatchString(s) }

// Slug tells whether s may be the slug of a Project or an Environment.
func Slug(s string) bool { return slug.MatchString(s) }
