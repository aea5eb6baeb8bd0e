package command

import (
	"fmt"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/state"
)

// Status of a Command.
type Status string

// The statuses of a Command; the last five are terminal.
const (
	Pending   = Status("pending")
	Starting  = Status("starting")
	Running   = Status("running")
	Stopping  = Status("stopping")
	Exited    = Status("exited")
	Failed    = Status("failed")
	Cancelled = Status("cancelled")
	TimedOut  = Status("timed_out")
	Lost      = Status("lost")
)

// Statuses are the allowed arrows of a Command.
var Statuses = state.Table[Status]{
	Pending:  {Starting, Cancelled, Failed},
	Starting: {Running, Exited, Stopping, Failed, Lost},
	Running:  {Exited, Stopping, Failed, Lost},
	Stopping: {Cancelled, TimedOut, Failed, Lost},
}

// Causes of stopping.
const (
	causeCancelled = "cancelled"
	causeTimedOut  = "timed_out"
)

// Reasons of failure.
const (
	reasonPlacement = "placement_failed"
	reasonGuest     = "guest_failure"
	reasonScope     = "scope_termination_failed"
)

// States of a Command's output.
const (
	outputOpen        = "open"
	outputClosed      = "closed"
	outputUnavailable = "unavailable"
)

// Limits of Commands.
const (
	// Grace is what a Command has between SIGTERM and SIGKILL.
	Grace = 10 * time.Second
	// endsWithin is how long after its stop was asked for a scope counts as one that cannot be ended.
	endsWithin = 3 * Grace
	// Retention is how long outcome and output are kept, from creation.
	Retention = 90 * 24 * time.Hour
	// maxInside bounds the Commands that one guest has at a time; the others stay pending.
	maxInside = 512
	// maxSend bounds the bytes of Commands given to a Worker in one answer; one more may exceed it.
	maxSend = 8 << 20
)

// row is a Command as stored, without its request.
type row struct {
	ID, EnvironmentID, ComputerID string
	Status                        Status
	TimeoutMs                     int64
	Cause                         *string
	ExitCode                      *int64
	FailureReason, FailureMessage *string
	CancelID, WorkerID            *string
	Open, Reconciled              bool
	OutputState                   string
	DeadlineAt, StoppingAt        *int64
	TerminalAt, ExpiredAt         *int64
	CreatedAt                     int64
	changed                       bool
}

// move takes one arrow of the status table.
func (r *row) move(to Status, now int64) error {
	if err := Statuses.Check("command "+r.ID, r.Status, to); err != nil {
		return err
	}
	r.Status, r.changed = to, true
	if r.terminal() {
		r.TerminalAt = &now
	}
	return nil
}

func (r *row) terminal() bool { return Statuses.Terminal(r.Status) }

// unfinished tells whether the guest may have a process of it: it was given to the guest and has no outcome.
func (r *row) unfinished() bool {
	return r.Status == Starting || r.Status == Running || r.Status == Stopping
}

// stop asks for the end of its scope; the first cause counts.
func (r *row) stop(cause string, now int64) error {
	if r.Status == Stopping {
		return nil
	}
	r.Cause, r.StoppingAt = &cause, &now
	return r.move(Stopping, now)
}

// fail ends it for a reason that is not its own.
func (r *row) fail(to Status, reason, message string, now int64) error {
	r.FailureReason, r.FailureMessage = &reason, nil
	if message != "" {
		r.FailureMessage = &message
	}
	return r.move(to, now)
}

// release ends its part in Exchanges. proven tells whether it is certain that no process of it is left.
func (r *row) release(output string, proven bool) {
	r.Open, r.Reconciled, r.changed = false, r.Reconciled || proven, true
	if r.OutputState == outputOpen {
		r.OutputState = output
	}
}

// view gives the Command as callers see it.
func (r *row) view() api.Command {
	return api.Command{ID: r.ID, ComputerID: r.ComputerID, Status: string(r.Status), ProcessReconciled: r.Reconciled, CreatedAt: api.At(r.CreatedAt), Outcome: r.outcome()}
}

func (r *row) outcome() *api.CommandOutcome {
	if !r.terminal() || r.TerminalAt == nil {
		return nil
	}
	o := &api.CommandOutcome{CommandID: r.ID, TerminalAt: api.At(*r.TerminalAt), Kind: string(r.Status)}
	switch r.Status {
	case Exited:
		code := int32(*r.ExitCode)
		o.ExitCode = &code
	case Failed, Lost:
		o.Kind = "system_failed"
		o.Failure = &api.CommandFailure{Reason: *r.FailureReason}
		if r.FailureMessage != nil {
			o.Failure.Message = *r.FailureMessage
		}
	}
	return o
}

// Topic is signalled when the status of a Command or its proof of cleanup has changed.
func Topic(commandID string) string { return "command/" + commandID }

// OutputTopic is signalled when more of a Command's output can be read, or its state has changed.
func OutputTopic(commandID string) string { return "command-output/" + commandID }

// store writes a changed Command and signals it.
func (r *row) store(tx *db.Tx) error {
	if !r.changed {
		return nil
	}
	r.changed = false
	if r.terminal() {
		r.DeadlineAt = nil
	}
	err := tx.Do(sqlUpdate, string(r.Status), flag(r.terminal()), r.Cause, r.ExitCode, r.FailureReason, r.FailureMessage, r.CancelID, r.WorkerID,
		flag(r.Open), flag(r.Reconciled), r.OutputState, r.DeadlineAt, r.StoppingAt, r.TerminalAt, r.ID)
	if err != nil {
		return fmt.Errorf("update command: %w", err)
	}
	tx.Signal(Topic(r.ID))
	if r.OutputState != outputOpen {
		tx.Signal(OutputTopic(r.ID))
	}
	if r.Status == Running {
		tx.Signal(timeoutTopic)
	}
	return nil
}

func scan(sc func(...any) error) (*row, error) {
	var r row
	var open, reconciled int
	err := sc(&r.ID, &r.EnvironmentID, &r.ComputerID, &r.Status, &r.TimeoutMs, &r.Cause, &r.ExitCode, &r.FailureReason, &r.FailureMessage, &r.CancelID, &r.WorkerID,
		&open, &reconciled, &r.OutputState, &r.DeadlineAt, &r.StoppingAt, &r.TerminalAt, &r.ExpiredAt, &r.CreatedAt)
	r.Open, r.Reconciled = open == 1, reconciled == 1
	return &r, err
}

// one reads a Command, nil if there is none.
func one(tx *db.Tx, query string, args ...any) (*row, error) {
	var r *row
	err := tx.Query(func(sc func(...any) error) (err error) {
		r, err = scan(sc)
		return err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read command: %w", err)
	}
	return r, nil
}

func many(tx *db.Tx, query string, args ...any) ([]*row, error) {
	var rows []*row
	err := tx.Query(func(sc func(...any) error) error {
		r, err := scan(sc)
		rows = append(rows, r)
		return err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read commands: %w", err)
	}
	return rows, nil
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}
