package preparation

import (
	"fmt"
	"time"

	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
)

// Where the host program is inside a Computer, and the programs of its Environment.
const (
	hostInside     = "/opt/helmr/runtime/host.mjs"
	programsInside = "/opt/helmr/programs/"
)

// attempt is one preparation being moved forward in a transaction.
type attempt struct {
	tx  *db.Tx
	now int64
	p   *row
	// c is the Computer of the last attempt, nil before the first.
	c  *computer.Row
	id *identity
}

// step moves one preparation forward by what its Computer and Command have come to.
func (s *Service) step(tx *db.Tx, preparationID string) error {
	before, err := one(tx, sqlGet, preparationID)
	if err != nil || before == nil || !before.open() {
		return err
	}
	a := &attempt{tx: tx, now: db.Millis(s.now())}
	if before.ComputerID != nil {
		if a.c, err = computer.Lock(tx, *before.ComputerID); err != nil {
			return err
		}
	}
	if a.p, err = one(tx, sqlLock, preparationID); err != nil || !a.p.open() || !same(a.p.ComputerID, before.ComputerID) {
		return err // somebody else moved it; there is a signal for what is left
	}
	if a.id, err = identify(tx, a.p.EnvironmentID, a.p.DeploymentID, a.p.TemplateID); err != nil {
		return err
	}
	if a.id == nil {
		return fmt.Errorf("template %s of deployment %s prepares nothing", a.p.TemplateID, a.p.DeploymentID)
	}
	if err := a.advance(); err != nil {
		return err
	}
	if a.c != nil {
		if err := computer.Update(tx, a.c); err != nil {
			return err
		}
	}
	return a.p.store(tx)
}

func same(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

func (a *attempt) advance() error {
	if a.c == nil {
		if a.now >= a.p.DeadlineAt {
			return a.outOfTime()
		}
		return a.again()
	}
	k, err := command.Look(a.tx, *a.p.CommandID)
	if err != nil {
		return err
	}
	if a.p.Status == Queued && (a.c.Resident() || (k.Status != command.Pending && !k.Unplaced)) {
		if err := a.p.move(Running, a.now); err != nil {
			return err
		}
	}
	late := a.now - a.p.DeadlineAt
	switch {
	case late >= stopsWithin.Milliseconds():
		return a.outOfTime()
	case k.Status == command.Pending && late >= 0:
		if err := command.TimeOut(a.tx, a.c, *a.p.CommandID, a.now); err != nil {
			return err
		}
		return a.outOfTime()
	case !k.Over:
		if late >= 0 {
			return command.TimeOut(a.tx, a.c, *a.p.CommandID, a.now)
		}
		return nil
	case k.Status == command.TimedOut, late >= 0:
		return a.outOfTime()
	}
	return a.ended(k)
}

// ended decides what follows the end of the Command.
func (a *attempt) ended(k command.Progress) error {
	switch {
	case k.Status == command.Exited && k.ExitCode == 0:
		return a.save()
	case k.Status == command.Exited:
		return a.fail("prepare of Template %q ended with exit code %d; `helmr template logs %s` shows what it wrote", a.p.TemplateID, k.ExitCode, a.p.TemplateID)
	case k.Unplaced:
		return a.fail("Template %q cannot be prepared: %s", a.p.TemplateID, k.Message)
	case k.Status == command.Cancelled: // its Worker stopped in order
		return a.again()
	}
	return a.lost()
}

// save has the prepared disk saved, and ends the preparation when that is published.
func (a *attempt) save() error {
	if a.p.SaveID == nil {
		if !a.c.Resident() && a.c.RecoverySaveID != nil { // its Worker stopped in order meanwhile, and saved it
			a.p.SaveID, a.p.changed = a.c.RecoverySaveID, true
			return a.save()
		}
		if !a.c.Resident() {
			return a.lost()
		}
		saveID, err := computer.RequestSave(a.tx, a.c, a.now)
		if err != nil {
			return err
		}
		a.p.SaveID, a.p.changed = &saveID, true
		computer.SignalWorker(a.tx, a.c)
		return nil
	}
	manifest, failed, err := computer.Published(a.tx, *a.p.SaveID)
	switch {
	case err != nil:
		return err
	case failed:
		return a.lost()
	case manifest == "":
		return nil
	}
	a.p.Manifest = &manifest
	return a.end(Succeeded)
}

// lost counts the loss of the Worker, or of the Computer.
func (a *attempt) lost() error {
	a.p.Losses++
	a.p.changed = true
	if a.p.Losses >= MaxLosses {
		return a.fail("the Worker that prepared Template %q was lost %d times", a.p.TemplateID, a.p.Losses)
	}
	return a.again()
}

// again begins another attempt, from the image of the Template.
func (a *attempt) again() error {
	if a.id.revoked != "" {
		return a.fail("Template %q cannot be prepared: its Secret %q is revoked", a.p.TemplateID, a.id.revoked)
	}
	if err := a.discard(); err != nil {
		return err
	}
	if err := a.adoptIdentity(); err != nil {
		return err
	}
	t := a.id.template
	c, err := computer.Create(a.tx, a.now, computer.New{EnvironmentID: a.p.EnvironmentID, TemplateID: a.p.TemplateID, DeploymentID: a.p.DeploymentID,
		MilliCPU: t.MilliCPU, MemoryMiB: t.MemoryMiB, DiskMiB: t.DiskMiB, ImageDigest: t.ImageDigest, Secrets: t.PrepareSecrets, Purpose: computer.ForPreparation})
	if err != nil {
		return err
	}
	commandID, err := command.Run(a.tx, c, a.now, command.Program{Digest: a.id.program, Timeout: time.Duration(a.p.DeadlineAt-a.now) * time.Millisecond,
		Argv: []string{"node", hostInside, "prepare", programsInside + a.id.program + "/" + a.id.entry, a.p.TemplateID}})
	if err != nil {
		return err
	}
	if _, err := a.tx.Exec(sqlAttempt, a.p.ID, a.p.Attempts, commandID); err != nil {
		return fmt.Errorf("insert attempt: %w", err)
	}
	a.c = c
	a.p.Attempts++
	a.p.ComputerID, a.p.CommandID, a.p.SaveID, a.p.changed = &c.ID, &commandID, nil, true
	return nil
}

// adoptIdentity gives an attempt that has received nothing yet the identity of the values it will receive, unless another
// preparation of that identity is open.
func (a *attempt) adoptIdentity() error {
	if a.p.Digest == a.id.digest {
		return nil
	}
	other, err := one(a.tx, sqlOpen, a.p.EnvironmentID, a.id.digest)
	if err == nil && other == nil {
		a.p.Digest, a.p.changed = a.id.digest, true
	}
	return err
}

func (a *attempt) outOfTime() error {
	return a.fail("prepare of Template %q did not end within %s (HELMR_ENVIRONMENT_PREPARATION_TIMEOUT_MS, with the time it waited for a Worker)",
		a.p.TemplateID, time.Duration(a.p.DeadlineAt-a.p.CreatedAt)*time.Millisecond)
}

func (a *attempt) fail(format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	a.p.Error = &message
	return a.end(Failed)
}

// end ends the preparation. If a Secret was rotated meanwhile, what it made has an old identity: one successor follows.
func (a *attempt) end(to Status) error {
	if err := a.p.move(to, a.now); err != nil {
		return err
	}
	if err := a.discard(); err != nil {
		return err
	}
	a.tx.Signal(computer.DispatchTopic) // Computers wait for it
	if a.p.Digest == a.id.digest || a.id.revoked != "" {
		return nil
	}
	for _, query := range []string{sqlOpen, sqlImage} {
		other, err := one(a.tx, query, a.p.EnvironmentID, a.id.digest)
		if err != nil || other != nil {
			return err
		}
	}
	_, err := begin(a.tx, a.p.EnvironmentID, a.p.DeploymentID, a.id, reasonRotation, a.now)
	return err
}

// discard has the Computer of the last attempt removed.
func (a *attempt) discard() error {
	if a.c == nil {
		return nil
	}
	if err := computer.Delete(a.tx, a.c, a.now); err != nil {
		return err
	}
	return computer.Update(a.tx, a.c)
}
