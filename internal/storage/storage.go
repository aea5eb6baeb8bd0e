package storage

import (
	"fmt"
	"slices"

	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// Publication is a folder that a Worker has stored and wants to rely on.
type Publication struct {
	Manifest string
	// Base is a manifest of the same Environment whose references need not be named again; "" for none.
	Base string
	// References are what Manifest refers to and Base does not.
	References []string
}

// RefusedError says why a publication was refused. The Worker stores or names what is missing, and tries again.
type RefusedError struct {
	// Retired are the names that must not be relied on.
	Retired []string
	// Whole is true if Base is not kept, so that all references have to be named.
	Whole bool
}

func (e *RefusedError) Error() string {
	if e.Whole {
		return "the manifest that a publication builds upon is not kept"
	}
	return fmt.Sprintf("%d objects of a publication are being removed", len(e.Retired))
}

// Publish decides whether an Environment may rely on p; if not, it fails with RefusedError or bad_request. The caller makes
// p.Manifest a root in the same transaction. kept is a manifest that is a root now, and stays one until that transaction
// ends; "" for none. Callers that lock a Computer do so before.
func Publish(tx *db.Tx, environmentID, kept string, p Publication) error {
	for _, r := range p.References {
		if !chunk.ValidReference(r) {
			return fault.New(fault.BadRequest, "%q is not the reference of a piece", r).With("field", "references")
		}
	}
	if p.Base != "" && p.Base != kept {
		return &RefusedError{Whole: true}
	}
	if err := Lock(tx, environmentID); err != nil {
		return err
	}
	var out RefusedError
	for some := range slices.Chunk(append([]string{p.Manifest}, p.References...), lookAtOnce) {
		args := make([]any, 1, lookAtOnce+1)
		args[0] = environmentID
		for i := range lookAtOnce {
			args = append(args, some[min(i, len(some)-1)])
		}
		err := tx.Query(func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			out.Retired = append(out.Retired, name)
			return err
		}, sqlRetired, args...)
		if err != nil {
			return fmt.Errorf("look for retired objects: %w", err)
		}
	}
	if len(out.Retired) > 0 {
		return &out
	}
	return nil
}

// Lock keeps anything of an Environment from being retired until the transaction ends. Whoever makes a manifest a root that
// was one before locks first, and looks afterwards whether it still is.
func Lock(tx *db.Tx, environmentID string) error {
	if _, err := tx.Exec(sqlBegin, environmentID); err != nil {
		return fmt.Errorf("begin storage: %w", err)
	}
	var at int64
	if _, err := tx.Get([]any{&at}, sqlLock, environmentID); err != nil {
		return fmt.Errorf("lock storage: %w", err)
	}
	return nil
}
