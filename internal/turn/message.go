package turn

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/state"
	"helmr.dev/helmr/internal/turn/content"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// MessageStatus of a live Message.
type MessageStatus string

// The statuses of a Message; the last two are final.
const (
	MessageAdmitted  = MessageStatus("admitted")
	MessageStarted   = MessageStatus("started")
	MessageDelivered = MessageStatus("delivered")
	MessageRejected  = MessageStatus("rejected")
)

// What happens to a Message. The last four are also the reasons of rejections.
const (
	onAccepted    = "accepted"
	onStarted     = "started"
	onDelivered   = "delivered"
	onRefused     = "message_rejected" // the handler threw MessageRejected
	onThrew       = "callback_failed"  // the handler threw something else
	onClosed      = "turn_closed"      // processing closed, or the Turn is terminal
	onProcessLost = "process_lost"     // the process is gone
)

// messageArrow is one row of the table of Messages: in status From, On leads to To. Reason stands with a rejection.
// Each step appends the event "message.<To>".
type messageArrow struct {
	From             MessageStatus
	On               string
	To               MessageStatus
	Delivery, Reason string
}

// messageArrows is what may happen to a Message and how it then shows. A Message that was not started is known not to
// have reached the handler; one that was started and has no outcome is uncertain.
var messageArrows = []messageArrow{
	{"", onAccepted, MessageAdmitted, "admitted", ""},
	{MessageAdmitted, onStarted, MessageStarted, "started", ""},
	{MessageStarted, onDelivered, MessageDelivered, "delivered", ""},
	{MessageStarted, onRefused, MessageRejected, "not_delivered", onRefused},
	{MessageStarted, onThrew, MessageRejected, "uncertain", onThrew},
	{MessageAdmitted, onClosed, MessageRejected, "not_delivered", onClosed},
	{MessageAdmitted, onProcessLost, MessageRejected, "not_delivered", onClosed},
	{MessageStarted, onClosed, MessageRejected, "uncertain", onClosed},
	{MessageStarted, onProcessLost, MessageRejected, "uncertain", onProcessLost},
}

// messageOperations names what each operation of a process is in the table.
var messageOperations = map[string]string{"message_started": onStarted, "message_delivered": onDelivered}

// aheadMessages is how many Messages the process is handed before it has started the first of them: it takes one at a
// time, and whoever sends many must not make every Exchange long.
const aheadMessages = 8

func messageStep(from MessageStatus, on string) (messageArrow, bool) {
	for _, a := range messageArrows {
		if a.From == from && a.On == on {
			return a, true
		}
	}
	return messageArrow{}, false
}

// Send gives data to the running Turn of a Session as a Message if that takes Messages, otherwise as a new Turn; which
// of the two is decided in the transaction that does it. Errors: not_found, session_terminal, session_not_open,
// admission_unavailable (session_held and the limits of the Environment), computer_deleting, content codes.
func (s *Service) Send(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.SendRequest) (api.SendReceipt, error) {
	var out api.SendReceipt
	data, err := content.CheckInput("data", req.Data)
	if err != nil {
		return out, err
	}
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.SendReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "session.send", Target: sessionID, Key: req.IdempotencyKey, Body: data, SessionID: &sessionID}
		return access.Idempotent(tx, scope, &out, func() error {
			w, u, err := s.begin(tx, environmentID, sessionID)
			if err != nil {
				return err
			}
			out = api.SendReceipt{ID: id.New()}
			if u.takesMessages() {
				out.Kind, out.TurnID = "messaged", u.head.ID
				out.MessageID, err = w.admitMessage(u, data)
			} else {
				out.Kind = "enqueued"
				out.TurnID, err = w.sendAsTurn(u, data)
			}
			if err != nil {
				return err
			}
			return w.flush()
		})
	})
	if err != nil {
		return api.SendReceipt{}, err
	}
	return out, nil
}

// sendAsTurn queues data, unless a hold would let it wait for an unknown time.
func (w *work) sendAsTurn(u *unit, data json.RawMessage) (string, error) {
	if err := u.requireOpen(); err != nil {
		return "", err
	}
	if u.held {
		return "", unavailable("session_held", "session %s is held; resume it, or enqueue the input to have it wait", u.s.ID)
	}
	if err := w.c.RequireWork(); err != nil {
		return "", err
	}
	t, err := w.admit(u, data, Source{Kind: "client"})
	if err != nil {
		return "", err
	}
	return t.ID, nil
}

// Message gives data to one running Turn. Errors: not_found, message_closed, content codes.
func (s *Service) Message(ctx context.Context, environmentID string, by api.Actor, sessionID, turnID string, req api.MessageRequest) (api.MessageReceipt, error) {
	var out api.MessageReceipt
	data, err := content.CheckInput("data", req.Data)
	if err != nil {
		return out, err
	}
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.MessageReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "turn.message", Target: sessionID + "/" + turnID, Key: req.IdempotencyKey, Body: data, SessionID: &sessionID}
		return access.Idempotent(tx, scope, &out, func() error {
			w, u, err := s.begin(tx, environmentID, sessionID)
			if err != nil {
				return err
			}
			if err := requireTurn(tx, sessionID, turnID); err != nil {
				return err
			}
			if u.head == nil || u.head.ID != turnID || !u.takesMessages() {
				return fault.New(fault.MessageClosed, "turn %s takes no Messages: it is not running, or it is ending", turnID)
			}
			out = api.MessageReceipt{ID: id.New(), TurnID: turnID, Status: "accepted"}
			if out.MessageID, err = w.admitMessage(u, data); err != nil {
				return err
			}
			return w.flush()
		})
	})
	if err != nil {
		return api.MessageReceipt{}, err
	}
	return out, nil
}

func requireTurn(tx *db.Tx, sessionID, turnID string) error {
	found, err := tx.Get([]any{new(int64)}, sqlTurnOfSession, sessionID, turnID)
	if err == nil && !found {
		err = fault.New(fault.NotFound, "turn %s does not exist in session %s", turnID, sessionID)
	}
	return err
}

// processing tells whether the handler of u may still be given Messages and ask Questions.
func (u *unit) processing() bool {
	return u.busy() && u.head.ProcessingOpen && u.head.AbortReason == nil
}

// takesMessages tells whether the running Turn of u takes Messages from callers.
func (u *unit) takesMessages() bool { return u.processing() && !u.held && !u.s.Terminal() }

func (w *work) admitMessage(u *unit, data json.RawMessage) (string, error) {
	t := u.head
	t.Messages++
	t.changed = true
	m := liveMessage{id: id.New()}
	a, err := m.step(onAccepted)
	if err != nil {
		return "", err
	}
	if err := w.tx.Do(sqlMessageInsert, m.id, t.SessionID, t.ID, t.Messages, string(a.To), a.Delivery, string(data), w.now); err != nil {
		return "", fmt.Errorf("insert message: %w", err)
	}
	computer.SignalWorker(w.tx, w.c)
	return m.id, w.messageEvent(u, m.id, a, data)
}

// liveMessage is a Message as stored, without its data.
type liveMessage struct {
	id     string
	status MessageStatus
}

func (m liveMessage) step(on string) (messageArrow, error) {
	a, ok := messageStep(m.status, on)
	if !ok {
		return a, fmt.Errorf("message %s: %s in status %q is not in the table", m.id, on, m.status)
	}
	return a, nil
}

func (w *work) messageEvent(u *unit, messageID string, a messageArrow, data json.RawMessage) error {
	shown := map[string]any{"message_id": messageID, "status": string(a.To), "delivery": a.Delivery}
	if a.Reason != "" {
		shown["reason"] = a.Reason
	}
	if data != nil {
		shown["data"] = data
	}
	_, err := w.event(u, u.head.ID, "message."+string(a.To), shown)
	return err
}

// stepMessage takes one arrow of a stored Message of the running Turn.
func (w *work) stepMessage(u *unit, m liveMessage, on string) error {
	a, err := m.step(on)
	if err != nil {
		return err
	}
	var settled any
	if a.To == MessageDelivered || a.To == MessageRejected {
		settled = w.now
	}
	if err := w.tx.Do(sqlMessageUpdate, string(a.To), a.Delivery, null(a.Reason), settled, m.id); err != nil {
		return fmt.Errorf("update message: %w", err)
	}
	return w.messageEvent(u, m.id, a, nil)
}

// messageOperation applies what the process says of a Message. A Message is started once, and not after an abort: the
// answer tells the process that it must not call the handler.
func (x *exchange) messageOperation(u *unit, o *operation) error {
	on := messageOperations[o.Type]
	if o.Type == "message_rejected" {
		on = onThrew
		if o.Reason == onRefused {
			on = onRefused
		}
	}
	m := liveMessage{id: o.MessageID}
	found, err := x.tx.Get([]any{&m.status}, sqlMessageGet, u.head.ID, o.MessageID)
	if err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	_, allowed := messageStep(m.status, on)
	if !found || !allowed || (on == onStarted && !u.processing()) {
		return fault.New(fault.MessageClosed, "the Message cannot be %s any more", cmp.Or(on, "changed"))
	}
	return x.stepMessage(u, m, on)
}

// settleMessages ends the Messages of the running Turn that are in one of the statuses.
func (w *work) settleMessages(u *unit, on string, in ...MessageStatus) error {
	if u.head.Messages == 0 {
		return nil
	}
	var open []liveMessage
	err := w.tx.Query(func(sc func(...any) error) error {
		var m liveMessage
		err := sc(&m.id, &m.status)
		for _, status := range in {
			if m.status == status {
				open = append(open, m)
			}
		}
		return err
	}, sqlMessagesUnsettled, u.head.ID)
	if err != nil {
		return fmt.Errorf("read messages: %w", err)
	}
	for _, m := range open {
		if err := w.stepMessage(u, m, on); err != nil {
			return err
		}
	}
	return nil
}

// unsettledMessages tells whether a Message of the running Turn is neither delivered nor rejected.
func (w *work) unsettledMessages(u *unit) (bool, error) {
	if u.head.Messages == 0 {
		return false, nil
	}
	return w.tx.Get([]any{new(string), new(string)}, sqlMessagesUnsettled, u.head.ID)
}

// wantMessages hands the process the Messages that it has not started.
func (x *exchange) wantMessages(u *unit, seen *workerpb.ObservedProcess) error {
	if u.head.Messages == 0 || !u.processing() {
		return nil
	}
	err := x.tx.Query(func(sc func(...any) error) error {
		var messageID, data string
		if err := sc(&messageID, &data); err != nil {
			return err
		}
		return x.tell(u, seen, "message:"+messageID, map[string]any{"type": "message", "turnId": u.head.ID, "messageId": messageID, "data": rawJSON(data)})
	}, sqlMessagesAhead, u.head.ID, aheadMessages)
	if err != nil {
		return fmt.Errorf("read messages: %w", err)
	}
	return nil
}

// tell adds a line for the process of u unless the Worker says that it has passed it. The guest passes each key once per
// process, however often it comes.
func (x *exchange) tell(u *unit, seen *workerpb.ObservedProcess, key string, line any) error {
	if slices.Contains(seen.GetControls(), key) {
		return nil
	}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	x.out.Controls = append(x.out.Controls, &workerpb.Control{SessionId: u.s.ID, Epoch: u.p.Epoch, Key: key, Line: text})
	return nil
}

// endConversation settles what the running Turn of u leaves open: Questions first, then Messages.
func (w *work) endConversation(u *unit) error {
	if err := w.cancelQuestions(u); err != nil {
		return err
	}
	on := onClosed
	if u.lost {
		on = onProcessLost
	}
	return w.settleMessages(u, on, MessageAdmitted, MessageStarted)
}

// closeProcessing takes the Turn out of reach of Messages and Questions; what was not started is rejected.
func (x *exchange) closeProcessing(u *unit) error {
	u.head.ProcessingOpen = false
	u.head.changed = true
	return x.settleMessages(u, onClosed, MessageAdmitted)
}

// undrained says what the handler left open although its process claims that the Turn is drained, "" if nothing.
func (x *exchange) undrained(u *unit) (string, error) {
	if pending, err := x.pendingQuestions(u); err != nil || pending {
		return "a Question is still open", err
	}
	if open, err := x.unsettledMessages(u); err != nil || open {
		return "a Message is still being handled", err
	}
	return "", nil
}

// MessageStatuses are the allowed arrows of a Message, whatever causes them.
func MessageStatuses() state.Table[MessageStatus] {
	t := state.Table[MessageStatus]{}
	for _, a := range messageArrows {
		if a.From != "" && !slices.Contains(t[a.From], a.To) {
			t[a.From] = append(t[a.From], a.To)
		}
	}
	return t
}
