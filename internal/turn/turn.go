package turn

import (
	"encoding/json"
	"time"

	"helmr.dev/helmr/internal/state"
)

// Status of a Turn.
type Status string

// The statuses of a Turn; the last four are terminal.
const (
	Queued      = Status("queued")
	Running     = Status("running")
	Finalizing  = Status("finalizing")
	Completed   = Status("completed")
	Failed      = Status("failed")
	Interrupted = Status("interrupted")
	Cancelled   = Status("cancelled")
)

// Statuses are the allowed arrows of a Turn.
var Statuses = state.Table[Status]{
	Queued:     {Running, Cancelled},
	Running:    {Finalizing, Failed, Interrupted, Cancelled},
	Finalizing: {Completed, Interrupted},
}

// Error codes of Turns.
const (
	CodeInterrupted      = "interrupted"
	CodeDeadlineExceeded = "deadline_exceeded"
	CodeProcessLost      = "process_lost"
	CodeComputerLost     = "computer_lost"
	CodeSaveLost         = "save_lost"
	CodeShutdown         = "shutdown"
	CodeHandlerFailed    = "handler_failed"
	CodeResultInvalid    = "result_invalid"
	CodeResultTooLarge   = "result_too_large"
	CodeDrainFailed      = "drain_failed"
)

// failureCodes are the codes with which a process may report a failed Turn.
var failureCodes = map[string]bool{CodeHandlerFailed: true, CodeResultInvalid: true, CodeResultTooLarge: true, CodeDrainFailed: true}

// Abort reasons.
const (
	AbortInterrupted = "interrupted"
	AbortCancelled   = "cancelled"
	AbortDeadline    = "deadline"
	AbortShutdown    = "shutdown"
)

// abortCode gives the error code of a Turn that ended after an abort.
var abortCode = map[string]string{AbortInterrupted: CodeInterrupted, AbortDeadline: CodeDeadlineExceeded, AbortShutdown: CodeShutdown}

// Limits of a Turn.
const (
	MaxOutputBytes  = 8 << 20
	MaxResultBytes  = 16 << 20
	MaxErrorMessage = 8 << 10
	// CleanupPeriod is what an aborted handler has to settle; StopDeadline what a process told to stop has to exit.
	CleanupPeriod = 10 * time.Second
	StopDeadline  = 10 * time.Second
	// killGrace is added before a process that should have answered by itself is killed from outside.
	killGrace = 2 * time.Second
)

// row is a Turn as stored, without its payloads.
type row struct {
	ID, SessionID, ComputerID string
	Sequence                  int64
	Status                    Status
	ProcessEpoch              *int64
	ProcessingOpen            bool
	AbortReason               *string
	AbortAt                   *int64
	OutputBytes               int64
	Messages, Questions       int64 // given so far
	DeadlineAt                *int64
	SaveID                    *string
	StartedAt                 *int64
	// set while ending
	Result, Response        json.RawMessage
	ErrorCode, ErrorMessage string
	CompletionSaveID        string
	terminalAt              *int64
	changed                 bool
}

// move takes one arrow of the status table.
func (t *row) move(to Status, now int64) error {
	if err := Statuses.Check("turn "+t.ID, t.Status, to); err != nil {
		return err
	}
	t.Status = to
	t.changed = true
	if Statuses.Terminal(to) {
		t.terminalAt = &now
		t.ProcessingOpen = false
	}
	return nil
}

// abort asks the handler to stop; the first reason stays, except that cancelled replaces any other.
func (t *row) abort(reason string, now int64) bool {
	if t.Status != Running || (t.AbortReason != nil && (reason != AbortCancelled || *t.AbortReason == AbortCancelled)) {
		return false
	}
	t.AbortReason = &reason
	if t.AbortAt == nil {
		t.AbortAt = &now
	}
	t.changed = true
	return true
}
