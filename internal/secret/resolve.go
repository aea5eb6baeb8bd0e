package secret

import (
	"fmt"

	"helmr.dev/helmr/internal/db"
)

// Exposure is how a Computer came to hold a value.
type Exposure string

// A Computer's process or Command received the value, or its disk was prepared with it.
const (
	Received = Exposure("received")
	Image    = Exposure("image")
)

// RequireExisting refuses bindings to Secrets that the Environment does not have; revoked ones are there. what is the thing
// that binds them.
func RequireExisting(tx *db.Tx, environmentID, what string, names []string) error {
	var missing []string
	for _, name := range names {
		r, err := one(tx, sqlGet, environmentID, name)
		if err != nil {
			return err
		}
		if r == nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return unavailable(missing, "%s binds Secrets that do not exist in this Environment: %q; make them with `helmr secret create NAME`", what, missing)
}

// Exists tells whether the Environment has a Secret, revoked or not; not_found without it.
func Exists(tx *db.Tx, environmentID, name string) error {
	_, err := get(tx, sqlGet, environmentID, name)
	return err
}

// Sealed is the present version of a Secret, not opened yet.
type Sealed struct {
	Name    string
	Version int64
	// Size is the length of the value in bytes.
	Size   int64
	status Status
	sealed []byte
}

// Find reads the present version of a Secret, also of one that is revoked. nil: there is no such Secret.
func Find(tx *db.Tx, environmentID, name string) (*Sealed, error) {
	v := Sealed{Name: name}
	found, err := tx.Get([]any{&v.status, &v.Version, &v.sealed, &v.Size}, sqlPresent, environmentID, name)
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	if !found {
		return nil, nil
	}
	return &v, nil
}

// Usable refuses a Secret that is revoked.
func (v *Sealed) Usable() error {
	if v.status == Active {
		return nil
	}
	return unavailable([]string{v.Name}, "Secret %q is revoked, so nothing that is given its value can be started; use a Template that does not bind it", v.Name)
}

// Open gives the value. Call it outside of a transaction, after the exposure is committed.
func (s *Service) Open(environmentID string, v *Sealed) ([]byte, error) {
	if err := v.Usable(); err != nil {
		return nil, err
	}
	return s.keys.openValue(environmentID, v.Name, v.Version, v.sealed)
}

// Expose records that a version is about to be in a Computer in readable form.
func Expose(tx *db.Tx, environmentID string, v *Sealed, computerID string, kind Exposure, now int64) error {
	if _, err := tx.Exec(sqlExposure, environmentID, v.Name, computerID, v.Version, string(kind), now); err != nil {
		return fmt.Errorf("record exposure: %w", err)
	}
	return nil
}

// ExposeImage records that a Computer starts with a disk that was prepared on another one, with the versions handed to that.
func ExposeImage(tx *db.Tx, environmentID, preparedOn, computerID string, now int64) error {
	if _, err := tx.Exec(sqlExposeImage, computerID, now, environmentID, preparedOn); err != nil {
		return fmt.Errorf("record exposure: %w", err)
	}
	return nil
}

// TooLong refuses a value that a program cannot be given through a variable of that name.
func TooLong(v *Sealed, variable string) error {
	return unavailable([]string{v.Name}, "Secret %q has %d bytes, which is more than a program can be given in the variable %s; bind it as a file", v.Name, v.Size, variable)
}
