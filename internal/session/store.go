package session

import (
	"encoding/json"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// Topic is signalled with every event of a Session and every change of its Turns.
func Topic(sessionID string) string { return "session/" + sessionID }

// New describes a Session to create. ParentSessionID and RequesterSessionID may be nil; RootSessionID "" means itself.
type New struct {
	EnvironmentID, AgentID, DeploymentID, ComputerID string
	Key                                              string
	RootSessionID                                    string
	ParentSessionID, RequesterSessionID              *string
	MaxTurnDurationMs, CloseAfterIdleMs              *int64
	HibernateAfterIdleMs                             *int64
}

// Create adds an open Session and gives it locked.
func Create(tx *db.Tx, now int64, n New) (*Row, error) {
	r := &Row{ID: id.New(), EnvironmentID: n.EnvironmentID, AgentID: n.AgentID, DeploymentID: n.DeploymentID, ComputerID: n.ComputerID, RootSessionID: n.RootSessionID,
		ParentSessionID: n.ParentSessionID, RequesterSessionID: n.RequesterSessionID, Status: Open, MaxTurnDurationMs: n.MaxTurnDurationMs,
		CloseAfterIdleMs: n.CloseAfterIdleMs, HibernateAfterIdleMs: n.HibernateAfterIdleMs, CreatedAt: now, UpdatedAt: now}
	if n.Key != "" {
		r.Key = &n.Key
	}
	if r.RootSessionID == "" {
		r.RootSessionID = r.ID
	}
	err := tx.Do(sqlInsert, r.ID, r.AgentID, r.DeploymentID, r.ComputerID, r.RootSessionID, r.ParentSessionID, r.RequesterSessionID, r.Key,
		r.MaxTurnDurationMs, r.CloseAfterIdleMs, r.HibernateAfterIdleMs, now, now, r.EnvironmentID)
	if err != nil {
		return nil, fmt.Errorf("insert session: %w", err)
	}
	return r, nil
}

// Columns is the column list that Scan reads, for a statement of a room to the right that joins sessions as s.
const Columns = columns

// Scan reads the Columns of one row; more scans what follows them.
func Scan(scan func(...any) error, more ...any) (*Row, error) {
	var r Row
	var initialised int
	dest := []any{&r.ID, &r.EnvironmentID, &r.AgentID, &r.DeploymentID, &r.ComputerID, &r.RootSessionID, &r.ParentSessionID, &r.RequesterSessionID, &r.Key, &r.Status,
		&r.MaxTurnDurationMs, &r.CloseAfterIdleMs, &r.HibernateAfterIdleMs, &r.InitialTurnID, &r.LastTurnSequence, &r.LastEventSequence,
		&r.RetainedAfter, &r.ProcessEpoch, &initialised, &r.RecoveryReason, &r.ConsecutiveFailures, &r.IdleSince, &r.ReleasedAt, &r.CreatedAt, &r.UpdatedAt}
	err := scan(append(dest, more...)...)
	r.Initialised = initialised == 1
	return &r, err
}

// ComputerOf gives the Computer of a Session of the Environment, without a lock: it never changes. not_found if there
// is no such Session.
func ComputerOf(tx *db.Tx, environmentID, sessionID string) (string, error) {
	var computerID string
	found, err := tx.Get([]any{&computerID}, sqlComputerOf, environmentID, sessionID)
	if err != nil {
		return "", fmt.Errorf("read session: %w", err)
	}
	if !found {
		return "", notFound(sessionID)
	}
	return computerID, nil
}

func notFound(sessionID string) error {
	return fault.New(fault.NotFound, "session %s does not exist in this Environment", sessionID)
}

// ByKey gives the open or closing Session that holds a key of an Agent, and its Computer; "" if none does.
func ByKey(tx *db.Tx, environmentID, agentID, key string) (sessionID, computerID string, err error) {
	_, err = tx.Get([]any{&sessionID, &computerID}, sqlByKey, environmentID, agentID, key)
	return sessionID, computerID, err
}

// Update writes what was changed on r.
func Update(tx *db.Tx, r *Row) error {
	if !r.changed {
		return nil
	}
	r.changed = false
	initialised := 0
	if r.Initialised {
		initialised = 1
	}
	err := tx.Do(sqlUpdate, string(r.Status), r.InitialTurnID, r.LastTurnSequence, r.LastEventSequence, r.ProcessEpoch, initialised, r.RecoveryReason,
		r.ConsecutiveFailures, r.IdleSince, r.ReleasedAt, r.UpdatedAt, r.ID)
	if err != nil {
		return fmt.Errorf("update session: %w", err)
	}
	tx.Signal(Topic(r.ID))
	return nil
}

// Event is one event to append. Epoch and Operation name the process operation it comes from, if any.
type Event struct {
	TurnID    string
	Kind      string
	Data      any
	Epoch     int64
	Operation int64
}

// Append adds an event to the log of r, whose Update must follow in this transaction. It gives the event's sequence.
func Append(tx *db.Tx, r *Row, now int64, e Event) (int64, error) {
	data, ok := e.Data.(json.RawMessage)
	if !ok {
		var err error
		if data, err = json.Marshal(e.Data); err != nil {
			return 0, fmt.Errorf("encode %s event: %w", e.Kind, err)
		}
	}
	r.LastEventSequence++
	r.Touch(now)
	err := tx.Do(sqlEventInsert, r.ID, r.LastEventSequence, opt(e.TurnID), e.Kind, string(data), opt(e.Epoch), opt(e.Operation), now)
	if err != nil {
		return 0, fmt.Errorf("append %s event: %w", e.Kind, err)
	}
	return r.LastEventSequence, nil
}

// EventOfOperation gives the sequence of the event that an operation appended, 0 if it appended none.
func EventOfOperation(tx *db.Tx, sessionID string, epoch, operation int64) (int64, error) {
	var sequence int64
	_, err := tx.Get([]any{&sequence}, sqlEventOfOp, sessionID, epoch, operation)
	return sequence, err
}

// opt turns a zero value into NULL.
func opt[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// UnclosedChildren counts children that are open or closing.
func UnclosedChildren(tx *db.Tx, sessionID string) (int64, error) {
	var n int64
	_, err := tx.Get([]any{&n}, sqlUnclosedChilds, sessionID)
	return n, err
}

// Children gives the ids of a Session's children.
func Children(tx *db.Tx, sessionID string) ([]string, error) {
	var out []string
	err := tx.Query(func(sc func(...any) error) error {
		var child, computer string
		err := sc(&child, &computer)
		out = append(out, child)
		return err
	}, sqlChildren, sessionID)
	return out, err
}

// IdleDue gives Sessions whose idle clock has reached closeAfterIdle.
func IdleDue(tx *db.Tx, now int64) ([]string, error) {
	return tx.Column(sqlIdleDue, now)
}

// HibernationDue gives the Computers of Sessions whose idle clock reached hibernateAfterIdle after one time and until
// another, and when the next one does, nil if none will.
func HibernationDue(tx *db.Tx, after, until int64) (computers []string, next *int64, err error) {
	computers, err = tx.Column(sqlHibernationDue, after, until)
	if err == nil {
		_, err = tx.Get([]any{&next}, sqlHibernationNext, until)
	}
	return computers, next, err
}

// LiveProcesses counts the processes of a Computer that have not ended.
func LiveProcesses(tx *db.Tx, computerID string) (int64, error) {
	var n int64
	_, err := tx.Get([]any{&n}, sqlLiveProcesses, computerID)
	return n, err
}

// OverdueComputers gives Computers with a process that was told to stop at or before the given time and has not ended.
func OverdueComputers(tx *db.Tx, before int64) ([]string, error) {
	return tx.Column(sqlOverdue, before)
}

// Hold places a hold on r and gives its id.
func Hold(tx *db.Tx, r *Row, now int64, scope, reason string) (string, error) {
	holdID := id.New()
	if err := tx.Do(sqlHoldInsert, holdID, r.ID, scope, reason, now); err != nil {
		return "", fmt.Errorf("place hold: %w", err)
	}
	r.Touch(now)
	return holdID, nil
}

// OwnHold gives the id of an unreleased hold that r itself owns for reason, "" if none.
func OwnHold(tx *db.Tx, sessionID, reason string) (string, error) {
	var holdID string
	_, err := tx.Get([]any{&holdID}, sqlHoldOwn, sessionID, reason)
	return holdID, err
}

// Release releases exactly one hold that r owns and gives its reason; hold_not_active if it does not.
func Release(tx *db.Tx, r *Row, now int64, holdID string) (string, error) {
	var reason string
	found, err := tx.Get([]any{&reason}, sqlHoldReason, holdID, r.ID)
	if err != nil {
		return "", fmt.Errorf("read hold: %w", err)
	}
	if !found {
		return "", fault.New(fault.HoldNotActive, "hold %s is not an active hold of session %s", holdID, r.ID)
	}
	if err := tx.Do(sqlHoldRelease, now, holdID, r.ID); err != nil {
		return "", fmt.Errorf("release hold: %w", err)
	}
	r.Touch(now)
	return reason, nil
}

// Holds gives the holds in effect on a Session: its own and subtree holds of its ancestors.
func Holds(tx *db.Tx, sessionID string) ([]api.Hold, error) {
	out := []api.Hold{}
	err := tx.Query(func(sc func(...any) error) error {
		var h api.Hold
		var at int64
		err := sc(&h.ID, &h.SessionID, &h.Scope, &h.Reason, &at)
		h.CreatedAt = api.At(at)
		out = append(out, h)
		return err
	}, sqlHolds, sessionID)
	return out, err
}

// StartProcess adds the next Session process of r, starting.
func StartProcess(tx *db.Tx, r *Row, now int64, recovery string) (*Process, error) {
	r.ProcessEpoch++
	r.Touch(now)
	p := &Process{SessionID: r.ID, Epoch: r.ProcessEpoch, ComputerID: r.ComputerID, Status: ProcessStarting, Recovery: recovery}
	if err := tx.Do(sqlProcessInsert, p.SessionID, p.Epoch, p.ComputerID, p.Recovery, now); err != nil {
		return nil, fmt.Errorf("insert process: %w", err)
	}
	return p, nil
}

// UpdateProcess writes what was changed on p.
func UpdateProcess(tx *db.Tx, p *Process, now int64) error {
	if !p.changed {
		return nil
	}
	p.changed = false
	var ended any
	if p.Status == ProcessEnded {
		ended = now
	}
	err := tx.Do(sqlProcessUpdate, string(p.Status), p.StopReason, p.FailureReason, p.StoppingAt, p.LastOperation, ended, p.SessionID, p.Epoch)
	if err != nil {
		return fmt.Errorf("update process: %w", err)
	}
	return nil
}

// CausalDepth gives the number of Sessions above one in the chain of parents and requesters.
func CausalDepth(tx *db.Tx, sessionID string) (int64, error) {
	var n int64
	_, err := tx.Get([]any{&n}, sqlCausalDepth, sessionID)
	return n, err
}

// Expiring gives released Sessions whose history is due to lose its payloads, at most limit.
func Expiring(tx *db.Tx, now int64, limit int) ([]string, error) {
	return tx.Column(sqlExpiring, now, limit)
}

// Expire takes the data out of a released Session's events; records and sequences stay. It tells whether this call did
// it. Nothing else changes a released Session, so that no lock is needed.
func Expire(tx *db.Tx, sessionID string, now int64) (bool, error) {
	n, err := tx.Exec(sqlExpire, now, sessionID)
	if err != nil || n == 0 {
		return false, err
	}
	err = tx.Do(sqlExpireEvents, sessionID)
	return true, err
}
