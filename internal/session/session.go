package session

import (
	"fmt"

	"helmr.dev/helmr/internal/state"
)

// Status of a Session.
type Status string

// The statuses of a Session. Closed and Cancelled are terminal.
const (
	Open      = Status("open")
	Closing   = Status("closing")
	Closed    = Status("closed")
	Cancelled = Status("cancelled")
)

// Statuses are the allowed arrows of a Session.
var Statuses = state.Table[Status]{
	Open:    {Closing, Cancelled},
	Closing: {Closed, Cancelled},
}

// ProcessStatus of a Session process.
type ProcessStatus string

// The statuses of a Session process. Ended is terminal.
const (
	ProcessStarting = ProcessStatus("starting")
	ProcessReady    = ProcessStatus("ready")
	ProcessServing  = ProcessStatus("serving")
	ProcessStopping = ProcessStatus("stopping")
	ProcessEnded    = ProcessStatus("ended")
)

// ProcessStatuses are the allowed arrows of a Session process.
var ProcessStatuses = state.Table[ProcessStatus]{
	ProcessStarting: {ProcessReady, ProcessStopping, ProcessEnded},
	ProcessReady:    {ProcessServing, ProcessStopping, ProcessEnded},
	ProcessServing:  {ProcessReady, ProcessStopping, ProcessEnded},
	ProcessStopping: {ProcessEnded},
}

// Reasons of holds.
const (
	HoldInterrupt          = "interrupt"
	HoldProcessFailures    = "process_failures"
	HoldCancellationFailed = "cancellation_failed"
	HoldComputerLost       = "computer_lost"
)

// FailuresBeforeHold is how many process failures in a row place a hold.
const FailuresBeforeHold = 3

// Row is a Session as stored. Change it through the functions of this package and the turn room, then Update it.
type Row struct {
	ID, EnvironmentID, AgentID, DeploymentID, ComputerID string
	RootSessionID                                        string
	ParentSessionID, RequesterSessionID, Key             *string
	Status                                               Status
	MaxTurnDurationMs, CloseAfterIdleMs                  *int64
	HibernateAfterIdleMs                                 *int64
	InitialTurnID                                        *string
	LastTurnSequence, LastEventSequence                  int64
	RetainedAfter, ProcessEpoch                          int64
	Initialised                                          bool
	RecoveryReason                                       *string
	ConsecutiveFailures                                  int64
	IdleSince, ReleasedAt                                *int64
	CreatedAt, UpdatedAt                                 int64
	changed                                              bool
}

// Touch says that the row has to be written.
func (r *Row) Touch(now int64) {
	r.UpdatedAt = now
	r.changed = true
}

// Move takes one arrow of the status table.
func (r *Row) Move(to Status, now int64) error {
	if err := Statuses.Check("session "+r.ID, r.Status, to); err != nil {
		return err
	}
	r.Status = to
	r.Touch(now)
	return nil
}

// Terminal tells whether the Session takes no more work.
func (r *Row) Terminal() bool { return r.Status == Closed || r.Status == Cancelled }

// Process is a Session process as stored.
type Process struct {
	SessionID     string
	Epoch         int64
	ComputerID    string
	Status        ProcessStatus
	Recovery      string // JSON as in ctx.recovery
	StopReason    *string
	FailureReason *string
	StoppingAt    *int64
	LastOperation int64
	changed       bool
}

// Move takes one arrow of the process table.
func (p *Process) Move(to ProcessStatus) error {
	if err := ProcessStatuses.Check(fmt.Sprintf("process %s/%d", p.SessionID, p.Epoch), p.Status, to); err != nil {
		return err
	}
	p.Status = to
	p.changed = true
	return nil
}

// Stop tells the process to stop for reason; a process already stopping keeps its first reason.
func (p *Process) Stop(reason string, now int64) error {
	if p.Status == ProcessStopping {
		return nil
	}
	p.StopReason, p.StoppingAt = &reason, &now
	return p.Move(ProcessStopping)
}

// Applied records that operations up to sequence are applied.
func (p *Process) Applied(sequence int64) {
	p.LastOperation = sequence
	p.changed = true
}

// FailWith notes why the process is about to fail, for when it has exited.
func (p *Process) FailWith(reason string) {
	p.FailureReason = &reason
	p.changed = true
}
