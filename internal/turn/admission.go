package turn

import (
	"fmt"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/session"
)

// Admission to an Environment. Every new Turn takes one token of the Environment's rate bucket and counts against its
// limit of unfinished Turns.
//
// Both stand in one row per Environment, changed by one conditional UPDATE: exact over all servers, and a refused or
// repeated request takes nothing because its transaction leaves nothing. To be cheap between Sessions on PostgreSQL:
//
//   - The row is written last in the transaction, so that its lock is held for little more than the commit. At the
//     default rate of 50 a second admissions of one Environment hardly ever meet; the most that one Environment can admit,
//     whatever its rate says, is what the database commits one after the other, a few hundred a second and more.
//   - Turns that end do not touch the row. Its count of unfinished Turns only grows, and is at least the true one; only
//     when it reaches the limit are the Turns counted (an index of the unfinished ones), under the row's lock.

// admissionLimits are what the environments row says.
type admissionLimits struct{ outstanding, rate, burst int64 }

// interval is the time that one token takes to come back, in microseconds.
func (l admissionLimits) interval() int64 { return 1_000_000 / max(l.rate, 1) }

func unavailable(reason, format string, args ...any) error {
	return fault.New(fault.AdmissionUnavailable, format, args...).With("reason", reason)
}

// takeAdmissions takes what the Turns admitted in this transaction need. It is the last thing the transaction does.
func (w *work) takeAdmissions(environmentID string) error {
	if w.newDiskMiB > 0 {
		if err := computer.Reserve(w.tx, environmentID, w.newDiskMiB); err != nil {
			return err
		}
		w.newDiskMiB = 0
	}
	for ; w.admissions > 0; w.admissions-- {
		now := w.now * 1000
		n, err := w.tx.Exec(sqlAdmissionTake, now, now, environmentID, now)
		if err != nil {
			return fmt.Errorf("take admission: %w", err)
		}
		if n == 1 {
			continue
		}
		if err := w.takeCounted(environmentID, now); err != nil {
			return err
		}
	}
	return nil
}

// takeCounted takes one admission where the cheap way found none: the Environment's first, one at the limit of
// unfinished Turns, or one too many.
func (w *work) takeCounted(environmentID string, now int64) error {
	var l admissionLimits
	if _, err := w.tx.Get([]any{&l.outstanding, &l.rate, &l.burst}, sqlAdmissionLimits, environmentID); err != nil {
		return fmt.Errorf("read admission limits: %w", err)
	}
	if err := w.tx.Do(sqlAdmissionCreate, environmentID); err != nil {
		return fmt.Errorf("create admission state: %w", err)
	}
	var freeAt int64
	if _, err := w.tx.Get([]any{&freeAt}, sqlAdmissionLock, environmentID); err != nil {
		return fmt.Errorf("lock admission state: %w", err)
	}
	freeAt = max(freeAt, now)
	if freeAt > now+(l.burst-1)*l.interval() {
		return unavailable("rate_limit", "this Environment admits %d Turns a second and has used its burst of %d; try again shortly", l.rate, l.burst)
	}
	var outstanding int64 // with the Turn of this transaction
	if _, err := w.tx.Get([]any{&outstanding}, sqlOutstanding, environmentID); err != nil {
		return fmt.Errorf("count turns: %w", err)
	}
	if outstanding-w.admissions+1 > l.outstanding {
		return unavailable("outstanding_limit", "this Environment has %d unfinished Turns, which is its limit; wait until some have ended", l.outstanding)
	}
	if err := w.tx.Do(sqlAdmissionSet, freeAt+l.interval(), outstanding-w.admissions+1, environmentID); err != nil {
		return fmt.Errorf("take admission: %w", err)
	}
	return nil
}

// CheckCausalDepth refuses a Session that causeSessionID would start or spawn if the chain of requesters and parents
// above it were longer than its Environment allows.
func CheckCausalDepth(tx *db.Tx, environmentID, causeSessionID string) error {
	depth, err := session.CausalDepth(tx, causeSessionID)
	if err != nil {
		return fmt.Errorf("read causal depth: %w", err)
	}
	var limit int64
	if _, err := tx.Get([]any{&limit}, sqlMaxCausalDepth, environmentID); err != nil {
		return fmt.Errorf("read causal depth limit: %w", err)
	}
	if depth+1 > limit {
		return unavailable("causal_depth", "the chain of Sessions that started this one is %d long, which is the limit", limit)
	}
	return nil
}
