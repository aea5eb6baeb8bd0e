package computer

import (
	"fmt"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// Reserve counts the disk of a Computer that this transaction has created against its Environment's storage limit;
// admission_unavailable with reason storage_limit if it does not fit. It keeps a lock on a row of the Environment: call
// it last. The row is at least what is reserved; it is counted anew, without deleted Computers, only at the limit.
func Reserve(tx *db.Tx, environmentID string, mib int64) error {
	n, err := tx.Exec(sqlReserve, mib, environmentID, mib)
	if err != nil {
		return fmt.Errorf("reserve storage: %w", err)
	}
	if n == 1 {
		return nil
	}
	if err := tx.Do(sqlReservationCreate, environmentID); err != nil {
		return fmt.Errorf("create reservation: %w", err)
	}
	if _, err := tx.Get([]any{new(int64)}, sqlReservationLock, environmentID); err != nil {
		return fmt.Errorf("lock reservation: %w", err)
	}
	var reserved, limit int64 // reserved includes this one
	if _, err := tx.Get([]any{&reserved, &limit}, sqlReserved, environmentID, environmentID); err != nil {
		return fmt.Errorf("count reserved storage: %w", err)
	}
	if reserved<<20 > limit {
		return fault.New(fault.AdmissionUnavailable,
			"a new Computer of %d MiB does not fit: the Computers of this Environment may reserve %d MiB and reserve %d MiB; give computer_id to use one of them, or delete some",
			mib, limit>>20, reserved-mib).With("reason", "storage_limit")
	}
	if err := tx.Do(sqlReservationSet, reserved, environmentID); err != nil {
		return fmt.Errorf("reserve storage: %w", err)
	}
	return nil
}
