package turn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/turn/content"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// operation is one line that a process, or the guest for it, reports. Nothing in it is believed without a check.
type operation struct {
	Type     string          `json:"type"`
	TurnID   string          `json:"turnId"`
	Content  json.RawMessage `json:"content"`
	Result   json.RawMessage `json:"result"`
	Response json.RawMessage `json:"response"`
	Settled  bool            `json:"settled"`

	MessageID  string          `json:"messageId"`
	QuestionID string          `json:"questionId"`
	Question   json.RawMessage `json:"question"`
	Reason     string          `json:"reason"`
	Error      *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	exit
}

// exit is how a process ended.
type exit struct {
	Stderr string `json:"stderr"`
	Cause  string `json:"cause"`
	Detail string `json:"detail"`
}

// operations applies what a process did since the last acknowledgement, in order, and acknowledges it.
func (x *exchange) operations(ops *workerpb.ProcessOperations) error {
	acks := &workerpb.ProcessAcks{SessionId: ops.GetSessionId(), Epoch: ops.GetEpoch()}
	for _, op := range ops.GetOperations() {
		u := x.unitOf(ops.GetSessionId())
		var line []byte
		var err error
		switch {
		case u == nil || u.p == nil || u.p.Epoch != ops.GetEpoch():
			line, err = x.acknowledgeOld(ops, op.GetSequence()) // the process is over; whatever it says has no effect
		case op.GetSequence() <= u.p.LastOperation:
			line, err = x.acknowledgeOld(ops, op.GetSequence())
		case op.GetSequence() > u.p.LastOperation+1:
			// Operations are missing: nothing this process says can be trusted any more. It is killed and fails.
			u.p.FailWith("process_exited")
			if err := u.p.Stop(session.HoldCancellationFailed, x.now); err != nil {
				return err
			}
			return nil
		default:
			line, err = x.apply(u, op, ops.GetOperations()[0].GetSequence())
		}
		if err != nil {
			return err
		}
		acks.Acks = append(acks.Acks, &workerpb.Ack{Sequence: op.GetSequence(), Line: line})
	}
	x.out.Acks = append(x.out.Acks, acks)
	return nil
}

func (w *work) unitOf(sessionID string) *unit {
	for _, u := range w.units {
		if u.s.ID == sessionID {
			return u
		}
	}
	return nil
}

// ack is the acknowledgement of one operation on the process channel.
type ack struct {
	Type   string     `json:"type"`
	Seq    int64      `json:"seq"`
	Result *ackResult `json:"result,omitempty"`
	Error  *ackError  `json:"error,omitempty"`
}

type ackResult struct {
	Sequence int64 `json:"sequence"`
}

type ackError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// acknowledgeOld answers an operation that was applied before, as it was answered then.
func (x *exchange) acknowledgeOld(ops *workerpb.ProcessOperations, sequence int64) ([]byte, error) {
	event, err := session.EventOfOperation(x.tx, ops.GetSessionId(), ops.GetEpoch(), sequence)
	if err != nil {
		return nil, fmt.Errorf("read operation: %w", err)
	}
	a := ack{Type: "ack", Seq: sequence}
	if event != 0 {
		a.Result = &ackResult{Sequence: event}
		return json.Marshal(a)
	}
	var refused ackError
	found, err := x.tx.Get([]any{&refused.Code, &refused.Message}, sqlRefusalGet, ops.GetSessionId(), ops.GetEpoch(), sequence)
	if err != nil {
		return nil, fmt.Errorf("read refusal: %w", err)
	}
	if found {
		a.Error = &refused
	}
	return json.Marshal(a)
}

// refuse answers an operation with an error and keeps that, as the answer may be lost and the operation come again.
// Operations before first have been acknowledged: their refusals are dropped.
func (x *exchange) refuse(u *unit, a *ack, first int64, f *fault.Error) error {
	a.Error = &ackError{Code: string(f.Code), Message: f.Message}
	if err := x.tx.Do(sqlRefusalForget, u.s.ID, u.p.Epoch, first); err != nil {
		return fmt.Errorf("forget refusals: %w", err)
	}
	if err := x.tx.Do(sqlRefusalInsert, u.s.ID, u.p.Epoch, a.Seq, a.Error.Code, a.Error.Message); err != nil {
		return fmt.Errorf("keep refusal: %w", err)
	}
	return nil
}

// apply applies the next operation of a living process. A content error is answered to the process; it is no error here.
// first is the lowest operation that the process waits for.
func (x *exchange) apply(u *unit, op *workerpb.Operation, first int64) ([]byte, error) {
	a := ack{Type: "ack", Seq: op.GetSequence()}
	u.p.Applied(op.GetSequence())
	var o operation
	if err := json.Unmarshal(op.GetPayload(), &o); err != nil {
		if err := x.refuse(u, &a, first, fault.New(fault.InvalidArguments, "the operation is not valid JSON")); err != nil {
			return nil, err
		}
		return json.Marshal(a)
	}
	result, err := x.perform(u, op.GetSequence(), &o)
	if f := (*fault.Error)(nil); err != nil {
		if f = fault.From(err); f.Code == fault.Internal {
			return nil, err
		}
		if err := x.refuse(u, &a, first, f); err != nil {
			return nil, err
		}
	}
	if result != 0 {
		a.Result = &ackResult{Sequence: result}
	}
	return json.Marshal(a)
}

// perform carries out one operation. It gives the sequence of the event that answers it, if there is one.
func (x *exchange) perform(u *unit, sequence int64, o *operation) (int64, error) {
	switch o.Type {
	case "init_done":
		if u.p.Status == session.ProcessStarting {
			u.s.Initialised = true
			u.s.Touch(x.now)
			return 0, u.p.Move(session.ProcessReady)
		}
		return 0, nil
	case "init_failed":
		u.p.FailWith("init_failed")
		return 0, nil
	case "exited":
		return 0, x.exited(u, o.exit)
	}
	t := u.head
	if t == nil || t.ID != o.TurnID || t.Status != Running || t.ProcessEpoch == nil || *t.ProcessEpoch != u.p.Epoch {
		return 0, fault.New("output_closed", "the Turn is over")
	}
	switch o.Type {
	case "output":
		return x.output(u, sequence, o)
	case "processing_closed":
		return 0, x.closeProcessing(u)
	case "message_started", "message_delivered", "message_rejected":
		return 0, x.messageOperation(u, o)
	case "question":
		return 0, x.ask(u, o)
	case "question_withdrawn":
		return 0, x.withdraw(u, o)
	case "turn_result":
		return 0, x.result(u, o)
	case "turn_failed":
		code, text := CodeHandlerFailed, ""
		if o.Error != nil {
			text = message(o.Error.Message, "")
			if failureCodes[o.Error.Code] {
				code = o.Error.Code
			}
		}
		return 0, x.finish(u, Failed, code, text)
	case "turn_aborted":
		return 0, x.aborted(u, o.Settled, o.Cause == "callback")
	}
	return 0, fault.New(fault.InvalidArguments, "operation %q is not known", o.Type)
}

// output makes one fragment durable as an event.
func (x *exchange) output(u *unit, sequence int64, o *operation) (int64, error) {
	fragment, err := content.Check("content", o.Content)
	if err != nil {
		return 0, err
	}
	if err := u.spend(len(fragment)); err != nil {
		return 0, err
	}
	return session.Append(x.tx, u.s, x.now, session.Event{TurnID: u.head.ID, Kind: "turn.output", Data: fragment, Epoch: u.p.Epoch, Operation: sequence})
}

// result records what the handler returned, sets the Turn finalizing and requests its Save, in this one transaction.
func (x *exchange) result(u *unit, o *operation) error {
	t := u.head
	if t.AbortReason != nil {
		return x.aborted(u, true, false) // the abort was accepted before the result came: it decides
	}
	if len(o.Result) == 0 {
		return x.finish(u, Failed, CodeResultInvalid, "the handler returned something that is not JSON")
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, o.Result); err != nil {
		return x.finish(u, Failed, CodeResultInvalid, "the handler returned something that is not JSON")
	}
	if compact.Len() > MaxResultBytes {
		return x.finish(u, Failed, CodeResultTooLarge, fmt.Sprintf("the result is %d bytes; at most %d are allowed", compact.Len(), MaxResultBytes))
	}
	var response json.RawMessage
	if len(o.Response) > 0 && !bytes.Equal(o.Response, []byte("null")) {
		var err error
		if response, err = content.Check("response", o.Response); err != nil {
			return x.finish(u, Failed, CodeDrainFailed, fault.From(err).Message)
		}
	}
	if open, err := x.undrained(u); err != nil || open != "" {
		if err != nil {
			return err
		}
		return x.finish(u, Failed, CodeDrainFailed, open)
	}
	saveID, err := computer.RequestSave(x.tx, x.c, x.now)
	if err != nil {
		return err
	}
	t.Result, t.Response, t.SaveID, t.ProcessingOpen = json.RawMessage(bytes.Clone(compact.Bytes())), response, &saveID, false
	if err := t.move(Finalizing, x.now); err != nil {
		return err
	}
	if _, err := x.event(u, t.ID, "turn.finalizing", map[string]string{"save_id": saveID}); err != nil {
		return err
	}
	if err := x.ready(u); err != nil {
		return err
	}
	return x.settle(u)
}

// ready returns a serving process to ready.
func (x *exchange) ready(u *unit) error {
	if u.p.Status != session.ProcessServing {
		return nil
	}
	return u.p.Move(session.ProcessReady)
}

// finish ends the running Turn while its process stays healthy.
func (x *exchange) finish(u *unit, to Status, code, text string) error {
	if t := u.head; t.AbortReason != nil && to == Failed {
		return x.aborted(u, true, false) // what a handler throws after the abort does not change the outcome
	}
	if err := x.ready(u); err != nil {
		return err
	}
	u.s.ConsecutiveFailures = 0
	if err := x.end(u, to, code, text); err != nil {
		return err
	}
	return x.settle(u)
}

// aborted ends a Turn whose abort the process has answered: settled in time, or not. A cancellation callback that
// failed or hangs (callback), or anything that hangs after an interrupt or a cancel, makes the process unusable; anything
// else that hangs after a deadline or a shutdown has missed the stop deadline.
func (x *exchange) aborted(u *unit, settled, callback bool) error {
	if u.head.AbortReason == nil {
		return fault.New(fault.InvalidArguments, "the Turn was not aborted")
	}
	u.lost = !settled
	reason := *u.head.AbortReason
	stops := reason == AbortDeadline || reason == AbortShutdown
	if !settled && (callback || !stops) {
		return x.cancellationFailed(u)
	}
	if err := x.endAborted(u); err != nil {
		return err
	}
	if stops {
		if !settled {
			u.p.FailWith("stop_deadline")
		}
		if err := u.p.Stop(reason, x.now); err != nil {
			return err
		}
		return x.settle(u)
	}
	u.s.ConsecutiveFailures = 0
	if err := x.ready(u); err != nil {
		return err
	}
	return x.settle(u)
}

// endAborted ends the running Turn as its abort reason says.
func (w *work) endAborted(u *unit) error {
	reason := *u.head.AbortReason
	if reason == AbortCancelled {
		return w.end(u, Cancelled, "", "")
	}
	return w.end(u, Interrupted, abortCode[reason], "")
}

// cancellationFailed ends the Turn and has the process tree killed: it is not reusable.
func (x *exchange) cancellationFailed(u *unit) error {
	if err := x.endAborted(u); err != nil {
		return err
	}
	if err := u.p.Stop(session.HoldCancellationFailed, x.now); err != nil {
		return err
	}
	return x.settle(u)
}

// toValid makes text valid UTF-8 without NUL.
func toValid(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
