package command

import (
	"encoding/json"
	"fmt"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/turn"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// exchange is this room's part of one Exchange under way.
type exchange struct {
	tx   *db.Tx
	now  int64
	c    *computer.Row
	req  *workerpb.ExchangeRequest
	out  *workerpb.ExchangeResponse
	rows []*row
	// inside counts the Commands given to the guest, sent the bytes given to it in this answer.
	inside, sent int
}

// Exchange takes what a Worker sees of the Commands on the locked Computer c, adds what is wanted of them, and tells how
// they use it. It implements turn.Occupants.
func (s *Service) Exchange(tx *db.Tx, c *computer.Row, now int64, req *workerpb.ExchangeRequest, out *workerpb.ExchangeResponse) (turn.Occupancy, error) {
	rows, err := many(tx, sqlOpen, c.ID)
	if err != nil {
		return turn.Occupancy{}, err
	}
	if req.GetGuestConnected() && len(rows)+len(req.GetCommands()) > 0 {
		x := &exchange{tx: tx, now: now, c: c, req: req, out: out, rows: rows}
		if err := x.run(); err != nil {
			return turn.Occupancy{}, err
		}
	}
	var o turn.Occupancy
	for _, r := range rows {
		if r.changed && c.Purpose == computer.ForPreparation {
			tx.Signal(computer.PreparationTopic)
			tx.Signal(computer.PreparationsOf(c.EnvironmentID))
		}
		if err := r.store(tx); err != nil {
			return o, err
		}
		switch {
		case !r.Open:
		case r.Status == Pending:
			o.Waiting++
		case r.Status == Failed && *r.FailureReason == reasonScope:
			o.Stuck++
		default:
			o.Inside++
		}
	}
	return o, nil
}

func (x *exchange) run() error {
	seen := make(map[string]*workerpb.ObservedCommand, len(x.req.GetCommands()))
	for _, o := range x.req.GetCommands() {
		seen[o.GetCommandId()] = o
	}
	for _, r := range x.rows {
		if r.Status != Pending {
			x.inside++
		}
	}
	for _, r := range x.rows {
		o := seen[r.ID]
		delete(seen, r.ID)
		if err := x.reconcile(r, o); err != nil {
			return err
		}
	}
	if x.sent >= maxSend {
		computer.SignalWorker(x.tx, x.c) // there may be more to give
	}
	// What the guest has beside these is over: it is ended if it lives, and forgotten.
	for id, o := range seen {
		action := workerpb.WantedCommand_ACTION_CANCEL
		if o.GetExit() != nil {
			action = workerpb.WantedCommand_ACTION_FORGET
		}
		x.want(id, action)
	}
	return nil
}

func (x *exchange) want(id string, action workerpb.WantedCommand_Action) {
	x.out.Commands = append(x.out.Commands, &workerpb.WantedCommand{CommandId: id, Action: action})
}

// reconcile moves one Command forward by what the guest has of it (nil: nothing) and says what is wanted of it.
func (x *exchange) reconcile(r *row, seen *workerpb.ObservedCommand) error {
	if r.unfinished() && x.c.Stopping != nil && *x.c.Stopping == computer.StopShutdown {
		if err := r.stop(causeCancelled, x.now); err != nil {
			return err
		}
	}
	if r.Status == Starting && seen.GetStarted() {
		if err := x.started(r); err != nil {
			return err
		}
	}
	if exit := seen.GetExit(); exit != nil && r.unfinished() {
		if err := x.exited(r, exit); err != nil {
			return err
		}
	}
	switch r.Status {
	case Pending:
		return x.begin(r)
	case Starting:
		if seen == nil {
			if ended, err := x.endWithoutSecrets(r, reasonGuest); ended || err != nil {
				return err
			}
			return x.send(r)
		}
	case Running:
		if seen == nil {
			r.release(outputUnavailable, true)
			return r.fail(Failed, reasonGuest, "the guest of the Computer knows the Command no more", x.now)
		}
	case Stopping:
		return x.ending(r, seen)
	default:
		x.terminal(r, seen)
	}
	return nil
}

// begin gives a pending Command to the guest, unless that is full or about to leave.
func (x *exchange) begin(r *row) error {
	if x.c.Stopping != nil || x.c.RequireWork() != nil || x.inside >= maxInside || x.sent >= maxSend {
		return nil
	}
	if ended, err := x.endWithoutSecrets(r, reasonPlacement); ended || err != nil {
		return err
	}
	x.inside++
	worker := x.req.GetWorkerId()
	r.WorkerID = &worker
	if err := r.move(Starting, x.now); err != nil {
		return err
	}
	return x.send(r)
}

// endWithoutSecrets fails a Command that no guest has yet if a Secret bound to its Computer was revoked since it was admitted.
func (x *exchange) endWithoutSecrets(r *row, reason string) (ended bool, err error) {
	err = computer.RequireSecrets(x.tx, x.c)
	if !fault.Is(err, fault.SecretUnavailable) {
		return false, err
	}
	r.release(outputClosed, true)
	return true, r.fail(Failed, reason, fault.From(err).Message, x.now)
}

// send says what to run. The guest runs an id once, however often it is told.
func (x *exchange) send(r *row) error {
	if x.sent >= maxSend {
		return nil // the next Exchange goes on
	}
	var text string
	if found, err := x.tx.Get([]any{&text}, sqlRequest, r.ID); err != nil || !found {
		return fmt.Errorf("read request of command %s: %w", r.ID, err)
	}
	var q request
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		return fmt.Errorf("decode request of command %s: %w", r.ID, err)
	}
	x.sent += len(text)
	x.out.Commands = append(x.out.Commands, &workerpb.WantedCommand{CommandId: r.ID, Action: workerpb.WantedCommand_ACTION_RUN,
		Argv: q.Argv, Env: q.Env, Cwd: q.Cwd, Stdin: q.Stdin, TimeoutMs: r.TimeoutMs, Secrets: x.c.Secrets > 0, ProgramDigest: q.Program})
	return nil
}

// started begins the execution time. The guest ends it; the deadline kept here is for a guest that does not.
func (x *exchange) started(r *row) error {
	deadline := x.now + r.TimeoutMs
	r.DeadlineAt = &deadline
	return r.move(Running, x.now)
}

// exited takes the end of a Command's scope: no process of it is left.
func (x *exchange) exited(r *row, exit *workerpb.CommandExit) error {
	r.Reconciled = true
	if r.Status != Stopping && exit.GetEnd() == workerpb.CommandExit_END_TIMED_OUT {
		if err := r.stop(causeTimedOut, x.now); err != nil {
			return err
		}
	}
	if r.Status == Stopping {
		return r.stopped(x.now)
	}
	if exit.GetEnd() != workerpb.CommandExit_END_EXITED {
		message := exit.GetDetail()
		if message == "" {
			message = "the guest of the Computer ended the Command without being asked to"
		}
		return r.fail(Failed, reasonGuest, short(message), x.now)
	}
	code := int64(exit.GetExitCode())
	r.ExitCode = &code
	return r.move(Exited, x.now)
}

// stopped ends a stopping Command whose scope is no more, by its cause.
func (r *row) stopped(now int64) error {
	if *r.Cause == causeTimedOut {
		return r.move(TimedOut, now)
	}
	return r.move(Cancelled, now)
}

// ending sees a stopping Command to its end.
func (x *exchange) ending(r *row, seen *workerpb.ObservedCommand) error {
	if seen == nil { // it never reached the guest
		r.release(outputClosed, true)
		return r.stopped(x.now)
	}
	x.want(r.ID, workerpb.WantedCommand_ACTION_CANCEL)
	if x.now >= *r.StoppingAt+endsWithin.Milliseconds() {
		return r.fail(Failed, reasonScope, "processes of the Command did not end", x.now)
	}
	return nil
}

// terminal lets the guest forget a Command once all of its output is stored.
func (x *exchange) terminal(r *row, seen *workerpb.ObservedCommand) {
	switch {
	case seen == nil:
		r.release(outputUnavailable, true)
	case seen.GetDrained():
		r.release(outputClosed, true)
		x.want(r.ID, workerpb.WantedCommand_ACTION_FORGET)
	case seen.GetExit() != nil && !r.Reconciled:
		r.Reconciled, r.changed = true, true
	}
}

// Unplaced ends what waits for a Computer that cannot be started. It implements turn.Occupants.
func (s *Service) Unplaced(tx *db.Tx, c *computer.Row, now int64) error {
	message := "the Computer could not be started"
	if c.ErrorMessage != nil {
		message += ": " + *c.ErrorMessage
	}
	return s.end(tx, c, now, false, message)
}

// Lost ends everything on a Computer that is lost. proven tells whether it is certain that no process is left of it. It
// implements turn.Occupants.
func (s *Service) Lost(tx *db.Tx, c *computer.Row, now int64, proven bool, why string) error {
	message := "the Computer was lost"
	if why != "" {
		message += ": " + why
	}
	return s.end(tx, c, now, proven, message)
}

func (s *Service) end(tx *db.Tx, c *computer.Row, now int64, proven bool, message string) error {
	rows, err := many(tx, sqlOpen, c.ID)
	if err != nil {
		return err
	}
	message = short(message)
	for _, r := range rows {
		switch {
		case r.Status == Pending:
			r.release(outputClosed, true)
			err = r.fail(Failed, reasonPlacement, message, now)
		case r.terminal():
			r.release(outputUnavailable, proven)
		default:
			r.release(outputUnavailable, proven)
			err = r.fail(Lost, reasonGuest, message, now)
		}
		if err != nil {
			return err
		}
		if err := r.store(tx); err != nil {
			return err
		}
	}
	return nil
}
