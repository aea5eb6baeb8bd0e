package command

import (
	"encoding/json"
	"fmt"
	"time"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
)

// Program is what the platform itself runs on a Computer: an argument list that needs the program of a Deployment in place.
type Program struct {
	Digest string
	Argv   []string
	// Timeout is its execution limit.
	Timeout time.Duration
}

// Run admits a Command of the platform on the locked Computer c. Callers learn its id from nobody.
func Run(tx *db.Tx, c *computer.Row, now int64, p Program) (commandID string, err error) {
	text, err := json.Marshal(request{Argv: p.Argv, Program: p.Digest})
	if err != nil {
		return "", fmt.Errorf("encode command: %w", err)
	}
	commandID = id.New()
	if _, err := tx.Exec(sqlInsert, commandID, c.EnvironmentID, c.ID, string(text), p.Timeout.Milliseconds(), now); err != nil {
		return "", fmt.Errorf("insert command: %w", err)
	}
	computer.Want(tx, c, now)
	return commandID, nil
}

// Progress is how far a Command of the platform has come.
type Progress struct {
	Status   Status
	ExitCode int64
	// Message says why it failed or was lost, if it did; Unplaced, that it failed because it could not be begun.
	Message  string
	Unplaced bool
	// Over says that it is terminal and that all of its output that ever will be is stored.
	Over bool
}

// Look gives the progress of a Command of the platform on the locked Computer that runs it.
func Look(tx *db.Tx, commandID string) (Progress, error) {
	r, err := one(tx, sqlLock, commandID)
	if err != nil {
		return Progress{}, err
	}
	if r == nil {
		return Progress{}, notFound(commandID)
	}
	p := Progress{Status: r.Status, Over: r.terminal() && !r.Open}
	if r.ExitCode != nil {
		p.ExitCode = *r.ExitCode
	}
	if r.FailureMessage != nil {
		p.Message = *r.FailureMessage
	}
	p.Unplaced = r.FailureReason != nil && *r.FailureReason == reasonPlacement
	return p, nil
}

// TimeOut ends a Command of the platform on the locked Computer c, because its time is over.
func TimeOut(tx *db.Tx, c *computer.Row, commandID string, now int64) error {
	r, err := one(tx, sqlLock, commandID)
	if err != nil || r == nil {
		return err
	}
	switch r.Status {
	case Pending:
		r.release(outputClosed, true)
		if err := r.move(Cancelled, now); err != nil {
			return err
		}
	case Starting, Running:
		if err := r.stop(causeTimedOut, now); err != nil {
			return err
		}
	}
	computer.SignalWorker(tx, c)
	return r.store(tx)
}
