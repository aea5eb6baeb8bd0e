package turn

import (
	"encoding/json"
	"fmt"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/session"
)

// unit is one Session in a transaction: its row, its live process and its first unfinished Turn. Actions change these in
// memory; flush writes them once.
type unit struct {
	s    *session.Row
	p    *session.Process // nil: none lives
	head *row             // nil: no unfinished Turn
	held bool
	lost bool // the process has gone, or nothing it may still say counts
}

// work is a transaction on one Computer and one or all of its Sessions.
type work struct {
	tx    *db.Tx
	now   int64
	c     *computer.Row
	units []*unit
	// occupants are what uses the Computer beside Sessions; nil: nothing.
	occupants Occupants
	// admissions and newDiskMiB are what flush takes from the Environment's limits at the end.
	admissions, newDiskMiB int64
	// above is the work on the parent Session's Computer, in the same transaction.
	above *work
}

// row gives a Computer that this transaction has in hand already, nil if it has not: each row is written once.
func (w *work) row(computerID string) *computer.Row {
	for ; w != nil; w = w.above {
		if w.c.ID == computerID {
			return w.c
		}
	}
	return nil
}

// begin locks a Computer's Session for an action from outside.
func (s *Service) begin(tx *db.Tx, environmentID, sessionID string) (*work, *unit, error) {
	computerID, err := session.ComputerOf(tx, environmentID, sessionID)
	if err != nil {
		return nil, nil, err
	}
	c, err := computer.Lock(tx, computerID)
	if err != nil {
		return nil, nil, err
	}
	w := &work{tx: tx, now: db.Millis(s.now()), c: c}
	u, err := w.load(sessionID)
	return w, u, err
}

// load reads the unit of one Session of the locked Computer. Whoever changes a Session holds its Computer's lock, so a
// Session needs none of its own.
func (w *work) load(sessionID string) (*unit, error) {
	if err := w.read(sqlUnit, sessionID); err != nil {
		return nil, err
	}
	return w.units[len(w.units)-1], nil
}

// loadAll reads the units of all Sessions of the locked Computer that are not released.
func (w *work) loadAll() error { return w.read(sqlUnitsOfComputer, w.c.ID) }

func (w *work) read(query, arg string) error {
	var ask []*unit
	err := w.tx.Query(func(sc func(...any) error) error {
		u, err := scanUnit(sc)
		w.units = append(w.units, u)
		if err == nil && !u.held && u.s.ParentSessionID != nil {
			ask = append(ask, u)
		}
		return err
	}, query, arg)
	if err != nil {
		return fmt.Errorf("read sessions: %w", err)
	}
	for _, u := range ask { // a child may be held by an ancestor
		holds, err := session.Holds(w.tx, u.s.ID)
		if err != nil {
			return fmt.Errorf("read holds: %w", err)
		}
		u.held = len(holds) > 0
	}
	return nil
}

func scanUnit(sc func(...any) error) (*unit, error) {
	var (
		p struct {
			epoch, stoppingAt, last                  *int64
			status, recovery, stopReason, failReason *string
		}
		t struct {
			id, status, abort, save                        *string
			sequence, epoch, abortAt, out, deadline, start *int64
			messages, questions                            *int64
			open                                           *int64
		}
		holds int64
	)
	s, err := session.Scan(sc, &p.epoch, &p.status, &p.recovery, &p.stopReason, &p.failReason, &p.stoppingAt, &p.last,
		&t.id, &t.sequence, &t.status, &t.epoch, &t.open, &t.abort, &t.abortAt, &t.out, &t.messages, &t.questions, &t.deadline, &t.save, &t.start, &holds)
	if err != nil {
		return nil, err
	}
	u := &unit{s: s, held: holds > 0}
	if p.epoch != nil {
		u.p = &session.Process{SessionID: s.ID, Epoch: *p.epoch, ComputerID: s.ComputerID, Status: session.ProcessStatus(*p.status), Recovery: *p.recovery,
			StopReason: p.stopReason, FailureReason: p.failReason, StoppingAt: p.stoppingAt, LastOperation: *p.last}
	}
	if t.id != nil {
		u.head = &row{ID: *t.id, SessionID: s.ID, ComputerID: s.ComputerID, Sequence: *t.sequence, Status: Status(*t.status), ProcessEpoch: t.epoch,
			ProcessingOpen: *t.open == 1, AbortReason: t.abort, AbortAt: t.abortAt, OutputBytes: *t.out, Messages: *t.messages, Questions: *t.questions, DeadlineAt: t.deadline, SaveID: t.save, StartedAt: t.start}
	}
	return u, nil
}

func scanRow(sc func(...any) error) (*row, error) {
	var t row
	var open int
	err := sc(&t.ID, &t.SessionID, &t.ComputerID, &t.Sequence, &t.Status, &t.ProcessEpoch, &open, &t.AbortReason, &t.AbortAt, &t.OutputBytes, &t.Messages, &t.Questions,
		&t.DeadlineAt, &t.SaveID, &t.StartedAt)
	t.ProcessingOpen = open == 1
	return &t, err
}

// event appends an event to the Session of u.
func (w *work) event(u *unit, turnID, kind string, data any) (int64, error) {
	return session.Append(w.tx, u.s, w.now, session.Event{TurnID: turnID, Kind: kind, Data: data})
}

// flush writes everything that changed.
func (w *work) flush() error {
	for _, u := range w.units {
		if u.head != nil {
			if err := w.store(u.head); err != nil {
				return err
			}
		}
		if u.p != nil {
			if err := session.UpdateProcess(w.tx, u.p, w.now); err != nil {
				return err
			}
		}
		if err := session.Update(w.tx, u.s); err != nil {
			return err
		}
	}
	if err := computer.Update(w.tx, w.c); err != nil {
		return err
	}
	return w.takeAdmissions(w.c.EnvironmentID)
}

// store writes a changed Turn.
func (w *work) store(t *row) error {
	if !t.changed {
		return nil
	}
	t.changed = false
	args := []any{string(t.Status), t.ProcessEpoch, flag(t.ProcessingOpen), t.AbortReason, t.AbortAt, t.OutputBytes, t.Messages, t.Questions, t.DeadlineAt, t.SaveID, t.StartedAt, t.terminalAt}
	query := sqlUpdate
	if t.Status != Running && t.Status != Queued {
		// A Turn that does not complete drops its response; its recorded result, if there is one, stays hidden.
		query = sqlUpdateOutcome
		drop := t.Status == Failed || t.Status == Interrupted || t.Status == Cancelled
		args = append(args, text(t.Result), flag(drop), text(t.Response), null(t.ErrorCode), null(t.ErrorMessage), null(t.CompletionSaveID))
	}
	if err := w.tx.Do(query, append(args, t.ID)...); err != nil {
		return fmt.Errorf("update turn: %w", err)
	}
	return nil
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// end moves the head of u to a terminal status with its event, and takes up the next Turn in line.
func (w *work) end(u *unit, to Status, code, message string) error {
	t := u.head
	if t.Status == Running {
		if err := w.endConversation(u); err != nil {
			return err
		}
	}
	if err := t.move(to, w.now); err != nil {
		return err
	}
	t.ErrorCode, t.ErrorMessage = code, message
	var data any = struct{}{}
	if code != "" {
		e := map[string]string{"code": code}
		if message != "" {
			e["message"] = message
		}
		data = map[string]any{"error": e}
	}
	if _, err := w.event(u, t.ID, "turn."+string(to), data); err != nil {
		return err
	}
	return w.next(u)
}

// next writes the ended head of u and reads the next unfinished Turn.
func (w *work) next(u *unit) error {
	if err := w.store(u.head); err != nil {
		return err
	}
	u.head = nil
	err := w.tx.Query(func(sc func(...any) error) (err error) {
		u.head, err = scanRow(sc)
		return err
	}, sqlHead, u.s.ID)
	if err != nil {
		return fmt.Errorf("read next turn: %w", err)
	}
	return nil
}

// runnable tells whether the head of u may be claimed once a process is ready.
func (u *unit) runnable() bool {
	return u.head != nil && u.head.Status == Queued && !u.held && !u.s.Terminal()
}

// busy tells whether a handler of u is at work.
func (u *unit) busy() bool { return u.head != nil && u.head.Status == Running }

// clock keeps the idle clock of u: it runs while no handler is at work and no queued Turn is free to run.
func (w *work) clock(u *unit) error {
	idle := !u.busy() && !u.runnable()
	if idle && u.head != nil && u.head.Status == Finalizing && !u.held {
		var queued int64
		if _, err := w.tx.Get([]any{&queued}, sqlAnyQueued, u.s.ID); err != nil {
			return err
		}
		idle = queued == 0
	}
	switch {
	case !idle && u.s.IdleSince != nil:
		u.s.IdleSince = nil
		u.s.Touch(w.now)
	case idle && u.s.IdleSince == nil:
		u.s.IdleSince = &w.now
		u.s.Touch(w.now)
		if u.s.HibernateAfterIdleMs != nil {
			w.tx.Signal(idleTopic)
		}
	}
	return nil
}

func text(b json.RawMessage) any {
	if b == nil {
		return nil
	}
	return string(b)
}

func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}
