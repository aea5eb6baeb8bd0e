package turn

import (
	"encoding/json"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/session"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// observed gives what the guest says of a process, nil if it has none of that epoch.
func (x *exchange) observed(sessionID string, epoch int64) *workerpb.ObservedProcess {
	for _, o := range x.req.GetProcesses() {
		if o.GetSessionId() == sessionID && o.GetEpoch() == epoch {
			return o
		}
	}
	return nil
}

// reconcile moves one Session forward and says what its process should do now.
func (x *exchange) reconcile(u *unit) error {
	if u.p == nil {
		return x.mayStart(u)
	}
	seen := x.observed(u.s.ID, u.p.Epoch)
	if seen == nil && u.p.Status != session.ProcessStarting {
		// It has served or was told to stop, and the guest has it no more: its end was acknowledged or never arrives.
		return x.exited(u, exit{})
	}
	if x.c.Stopping != nil && !x.parks && u.p.Status != session.ProcessStopping {
		if err := x.emptyOut(u); err != nil {
			return err
		}
	}
	if u.p.Status == session.ProcessReady && u.runnable() && x.c.Stopping == nil {
		if err := x.claim(u); err != nil {
			return err
		}
	}
	return x.want(u, seen)
}

// forget says what becomes of processes that the guest has and the Session does not: ended ones are dropped, others killed.
func (x *exchange) forget() {
	for _, o := range x.req.GetProcesses() {
		if u := x.unitOf(o.GetSessionId()); u != nil && u.p != nil && u.p.Epoch == o.GetEpoch() {
			continue
		}
		action := workerpb.WantedProcess_ACTION_KILL
		if o.GetExited() {
			action = workerpb.WantedProcess_ACTION_FORGET
		}
		x.out.Processes = append(x.out.Processes, &workerpb.WantedProcess{SessionId: o.GetSessionId(), Epoch: o.GetEpoch(), Action: action})
	}
}

// mayStart begins a process if the Session has a Turn to run and nothing speaks against it.
func (x *exchange) mayStart(u *unit) error {
	if !u.runnable() || x.c.Stopping != nil {
		return nil
	}
	recovery := map[string]string{"kind": "initial"}
	if u.s.Initialised {
		reason := "process_failed"
		if u.s.RecoveryReason != nil {
			reason = *u.s.RecoveryReason
		}
		recovery = map[string]string{"kind": "reconstructed", "reason": reason}
	}
	text, err := json.Marshal(recovery)
	if err != nil {
		return err
	}
	if u.p, err = session.StartProcess(x.tx, u.s, x.now, string(text)); err != nil {
		return err
	}
	return x.want(u, nil)
}

// claim takes the head of u for its ready process: from here on only this process can run it.
func (x *exchange) claim(u *unit) error {
	t := u.head
	if err := t.move(Running, x.now); err != nil {
		return err
	}
	t.ProcessEpoch, t.ProcessingOpen, t.StartedAt = &u.p.Epoch, true, &x.now
	if u.s.MaxTurnDurationMs != nil {
		t.DeadlineAt = ptr(x.now + *u.s.MaxTurnDurationMs)
		x.tx.Signal(deadlineTopic)
	}
	if err := u.p.Move(session.ProcessServing); err != nil {
		return err
	}
	_, err := x.event(u, t.ID, "turn.running", map[string]any{"epoch": u.p.Epoch, "recovery": json.RawMessage(u.p.Recovery)})
	if err != nil {
		return err
	}
	return x.clock(u)
}

// emptyOut asks a process of a Computer that is being emptied to stop, after its Turn: a drain waits for that, an orderly
// stop aborts it.
func (x *exchange) emptyOut(u *unit) error {
	if u.busy() && *x.c.Stopping == computer.StopDrain {
		return nil
	}
	if u.busy() {
		_, err := x.abort(u, AbortShutdown)
		return err
	}
	if *x.c.Stopping == computer.StopUnused && u.runnable() {
		x.c.Stopping = nil
		return nil
	}
	return u.p.Stop(AbortShutdown, x.now)
}

// want adds what the process of u should be doing.
func (x *exchange) want(u *unit, seen *workerpb.ObservedProcess) error {
	p := u.p
	switch {
	case p.Status == session.ProcessStarting && seen == nil:
		err := computer.RequireSecrets(x.tx, x.c)
		if fault.Is(err, fault.SecretUnavailable) { // since the Turn was admitted
			return x.exited(u, exit{Detail: fault.From(err).Message})
		}
		if err != nil {
			return err
		}
		return x.wantStart(u)
	case p.Status == session.ProcessStopping && seen == nil:
		return x.exited(u, exit{})
	case x.overdue(u):
		x.out.Processes = append(x.out.Processes, &workerpb.WantedProcess{SessionId: p.SessionID, Epoch: p.Epoch, Action: workerpb.WantedProcess_ACTION_KILL})
		return nil
	case p.Status == session.ProcessStopping:
		line, err := json.Marshal(map[string]string{"type": "stop", "reason": *p.StopReason})
		if err != nil {
			return err
		}
		x.out.Processes = append(x.out.Processes, &workerpb.WantedProcess{SessionId: p.SessionID, Epoch: p.Epoch, Action: workerpb.WantedProcess_ACTION_STOP, StopLine: line})
		return nil
	case u.busy():
		return x.wantTurn(u, seen)
	}
	return nil
}

// overdue tells whether the process has had its time to clean up or to stop.
func (x *exchange) overdue(u *unit) bool {
	if at := u.p.StoppingAt; at != nil {
		limit := StopDeadline + killGrace
		if u.p.StopReason != nil && *u.p.StopReason == session.HoldCancellationFailed {
			limit = 0
		}
		return x.now >= *at+limit.Milliseconds()
	}
	return u.busy() && u.head.AbortAt != nil && x.now >= *u.head.AbortAt+(CleanupPeriod+killGrace).Milliseconds()
}

func (x *exchange) wantStart(u *unit) error {
	program, entry, err := deployment.Program(x.tx, u.s.DeploymentID)
	if err != nil {
		return err
	}
	who := map[string]any{"id": u.s.ID}
	if u.s.Key != nil {
		who["key"] = *u.s.Key
	}
	if u.s.ParentSessionID != nil {
		who["parent"] = map[string]string{"id": *u.s.ParentSessionID}
	}
	line, err := json.Marshal(map[string]any{
		"type": "start", "agentId": u.s.AgentID, "session": who, "computer": map[string]string{"id": x.c.ID}, "deployment": map[string]string{"id": u.s.DeploymentID},
		"recovery": json.RawMessage(u.p.Recovery), "program": "/opt/helmr/programs/" + program + "/" + entry})
	if err != nil {
		return err
	}
	x.out.Processes = append(x.out.Processes, &workerpb.WantedProcess{SessionId: u.s.ID, Epoch: u.p.Epoch, Action: workerpb.WantedProcess_ACTION_START,
		ProgramDigest: program, StartLine: line, Secrets: x.c.Secrets > 0})
	return nil
}

// wantTurn hands the running Turn to its process. Once the guest has it, what else there is to say about it follows: a
// line about a Turn that the process does not know yet would be lost on it.
func (x *exchange) wantTurn(u *unit, seen *workerpb.ObservedProcess) error {
	t := u.head
	if seen.GetTurnId() != t.ID {
		var source, input string
		var created int64
		if _, err := x.tx.Get([]any{&source, &input, &created}, sqlPayload, t.ID); err != nil {
			return fmt.Errorf("read input: %w", err)
		}
		line, err := turnLine(t, source, input, created)
		if err != nil {
			return err
		}
		x.out.Deliveries = append(x.out.Deliveries, &workerpb.Delivery{SessionId: u.s.ID, Epoch: u.p.Epoch, TurnId: t.ID, Line: line})
		return nil
	}
	if err := x.wantMessages(u, seen); err != nil {
		return err
	}
	if err := x.wantAnswers(u, seen); err != nil {
		return err
	}
	if t.AbortReason != nil {
		return x.tell(u, seen, "abort:"+t.ID, map[string]string{"type": "abort", "turnId": t.ID, "reason": *t.AbortReason})
	}
	return nil
}

func turnLine(t *row, source, input string, created int64) ([]byte, error) {
	var src Source
	if err := json.Unmarshal([]byte(source), &src); err != nil {
		return nil, fmt.Errorf("decode source: %w", err)
	}
	shown := map[string]string{"kind": src.Kind}
	if src.RequesterSessionID != "" {
		shown["requesterSessionId"] = src.RequesterSessionID
	}
	if src.OriginTurnID != "" {
		shown["originTurnId"] = src.OriginTurnID
	}
	return json.Marshal(map[string]any{"type": "turn", "turn": map[string]any{
		"id": t.ID, "sequence": t.Sequence, "createdAt": api.At(created), "input": json.RawMessage(input), "source": shown}})
}

func rawJSON(s string) json.RawMessage { return json.RawMessage(s) }

func ptr[T any](v T) *T { return &v }

// message bounds text that came from a Worker or a process.
func message(s, fallback string) string {
	if s == "" {
		return fallback
	}
	if len(s) > MaxErrorMessage {
		s = s[:MaxErrorMessage]
	}
	return toValid(s)
}
