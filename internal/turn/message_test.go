package turn_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// The columns of the table "Input to an existing Session", for every call.
func TestSpec_05_10_WhereInputGoes(t *testing.T) {
	t.Parallel()
	type where struct {
		state string
		// enter brings a Session into the state and gives it with the Turn that a Message names.
		enter                  func(w *world) (sessionID, turnID string)
		enqueue, send, message string // a refusal, or what became of it
	}
	cases := []where{
		{"running, processing open", func(w *world) (string, string) {
			r, _, _ := w.running("echo")
			return r.SessionID, r.TurnID
		}, "queued", "messaged", "accepted"},
		{"running, processing closed", func(w *world) (string, string) {
			r, h, p := w.running("echo")
			h.op(p, `"type":"processing_closed","turnId":%q`, r.TurnID)
			return r.SessionID, r.TurnID
		}, "queued", "enqueued", "message_closed"},
		{"queued", func(w *world) (string, string) {
			r := w.create("echo", "hi")
			return r.SessionID, r.TurnID
		}, "queued", "enqueued", "message_closed"},
		{"finalizing", func(w *world) (string, string) {
			r, h, p := w.running("echo")
			h.op(p, `"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
			return r.SessionID, r.TurnID
		}, "queued", "enqueued", "message_closed"},
		{"idle", func(w *world) (string, string) {
			r, h, p := w.running("echo")
			h.finish(p, "1")
			return r.SessionID, r.TurnID
		}, "queued", "enqueued", "message_closed"},
		{"held", func(w *world) (string, string) {
			r := w.create("echo", "hi")
			w.interrupt(r.SessionID)
			return r.SessionID, r.TurnID
		}, "queued", "admission_unavailable/session_held", "message_closed"},
		{"held, the Turn still cleaning up", func(w *world) (string, string) {
			r, _, _ := w.running("echo")
			w.interrupt(r.SessionID)
			return r.SessionID, r.TurnID
		}, "queued", "admission_unavailable/session_held", "message_closed"},
		{"held by its parent", func(w *world) (string, string) {
			r := w.create("echo", "hi")
			child, turn := w.child(r.SessionID)
			w.interrupt(r.SessionID)
			return child, turn
		}, "queued", "admission_unavailable/session_held", "message_closed"},
		{"aborted by its deadline", func(w *world) (string, string) {
			r, _, _ := w.running("quick")
			w.clock.advance(2 * time.Second)
			w.run("turn.deadlines")
			return r.SessionID, r.TurnID
		}, "queued", "enqueued", "message_closed"},
		{"closing, running", func(w *world) (string, string) {
			r, _, _ := w.running("echo")
			w.close(r.SessionID)
			return r.SessionID, r.TurnID
		}, "session_not_open", "messaged", "accepted"},
		{"closing, not running", func(w *world) (string, string) {
			r := w.create("echo", "hi")
			w.close(r.SessionID)
			return r.SessionID, r.TurnID
		}, "session_not_open", "session_not_open", "message_closed"},
		{"closing, held", func(w *world) (string, string) {
			r, _, _ := w.running("echo")
			w.close(r.SessionID)
			w.interrupt(r.SessionID)
			return r.SessionID, r.TurnID
		}, "session_not_open", "session_not_open", "message_closed"},
		{"closed", func(w *world) (string, string) {
			r, h, p := w.running("echo")
			h.finish(p, "1")
			w.close(r.SessionID)
			return r.SessionID, r.TurnID
		}, "session_terminal", "session_terminal", "message_closed"},
		{"cancelled, the Turn still cleaning up", func(w *world) (string, string) {
			r, _, _ := w.running("echo")
			w.cancel(r.SessionID)
			return r.SessionID, r.TurnID
		}, "session_terminal", "session_terminal", "message_closed"},
	}
	eachCase(t, cases, func(c where) string { return c.state }, func(w *world, c where) {
		sessionID, turnID := c.enter(w)
		m, err := w.tryMessage(sessionID, turnID, "x")
		if got := m.Status + code(err); got != c.message {
			w.t.Errorf("message: %s, want %s", got, c.message)
		}
		s, err := w.trySend(sessionID, "x")
		if got := s.Kind + code(err); got != c.send {
			w.t.Errorf("send: %s, want %s", got, c.send)
		}
		if (s.Kind == "messaged") != (s.MessageID != "") || (s.Kind == "messaged" && s.TurnID != turnID) || (err == nil && s.ID == "") {
			w.t.Errorf("receipt of send: %+v", s)
		}
		before := w.kinds(sessionID)
		e, err := w.turns.Enqueue(w.t.Context(), w.env, w.by, sessionID, api.EnqueueRequest{Input: text("x")})
		got := code(err)
		if err == nil {
			got = w.turn(sessionID, e.TurnID).Status
		}
		if got != c.enqueue {
			w.t.Errorf("enqueue: %s, want %s", got, c.enqueue)
		}
		if err != nil && len(w.kinds(sessionID)) != len(before) {
			w.t.Error("a refused call left an event")
		}
	})
}

func TestSpec_05_10_UnknownSessionsAndTurnsAreNotFound(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, _, _ := w.running("echo")
		other := w.create("echo", "other")
		_, err := w.trySend(id.New(), "x")
		w.wantCode(err, fault.NotFound)
		_, err = w.tryMessage(r.SessionID, id.New(), "x")
		w.wantCode(err, fault.NotFound)
		_, err = w.tryMessage(r.SessionID, other.TurnID, "x")
		w.wantCode(err, fault.NotFound)
		_, err = w.turns.Send(w.t.Context(), id.New(), w.by, r.SessionID, api.SendRequest{Data: text("x")})
		w.wantCode(err, fault.NotFound)
	})
}

func TestSpec_02_08_MessagesCarryInputContentOnly(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, _, _ := w.running("echo")
		for data, want := range map[string]fault.Code{`"text"`: fault.InvalidArguments, `[{"type":"json","value":1}]`: fault.ContentKindUnsupported, ``: fault.BadRequest,
			`[{"type":"text","text":"` + strings.Repeat("x", 256<<10) + `"}]`: fault.ContentLimitExceeded} {
			_, err := w.turns.Send(w.t.Context(), w.env, w.by, r.SessionID, api.SendRequest{Data: []byte(data)})
			w.wantCode(err, want)
			_, err = w.turns.Message(w.t.Context(), w.env, w.by, r.SessionID, r.TurnID, api.MessageRequest{Data: []byte(data)})
			w.wantCode(err, want)
		}
	})
}

// Every row of the table of Messages, with its event.
func TestSpec_05_11_EachArrowOfAMessage(t *testing.T) {
	t.Parallel()
	started := func(h *host, p *proc, messageID string) {
		h.op(p, `"type":"message_started","turnId":%q,"messageId":%q`, p.turnID, messageID)
	}
	type arrow struct {
		row                      string
		do                       func(w *world, h *host, p *proc, messageID string)
		status, delivery, reason string
	}
	cases := []arrow{
		{"accepted", func(*world, *host, *proc, string) {}, "admitted", "admitted", ""},
		{"handler called", func(_ *world, h *host, p *proc, m string) { started(h, p, m) }, "started", "started", ""},
		{"handler resolves", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			h.op(p, `"type":"message_delivered","turnId":%q,"messageId":%q`, p.turnID, m)
		}, "delivered", "delivered", ""},
		{"handler throws MessageRejected", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			h.op(p, `"type":"message_rejected","turnId":%q,"messageId":%q,"reason":"message_rejected"`, p.turnID, m)
		}, "rejected", "not_delivered", "message_rejected"},
		{"handler throws", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			h.op(p, `"type":"message_rejected","turnId":%q,"messageId":%q,"reason":"callback_failed"`, p.turnID, m)
		}, "rejected", "uncertain", "callback_failed"},
		{"a reason that is none", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			h.op(p, `"type":"message_rejected","turnId":%q,"messageId":%q,"reason":"turn_closed"`, p.turnID, m)
		}, "rejected", "uncertain", "callback_failed"},
		{"processing closes before the start", func(_ *world, h *host, p *proc, _ string) {
			h.op(p, `"type":"processing_closed","turnId":%q`, p.turnID)
		}, "rejected", "not_delivered", "turn_closed"},
		{"processing closes during the handler", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			h.op(p, `"type":"processing_closed","turnId":%q`, p.turnID)
		}, "started", "started", ""},
		{"Turn fails before the start", func(_ *world, h *host, p *proc, _ string) {
			h.op(p, `"type":"turn_failed","turnId":%q,"error":{"code":"handler_failed","message":"x"}`, p.turnID)
		}, "rejected", "not_delivered", "turn_closed"},
		{"Turn fails during the handler", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			h.op(p, `"type":"turn_failed","turnId":%q,"error":{"code":"handler_failed","message":"x"}`, p.turnID)
		}, "rejected", "uncertain", "turn_closed"},
		{"Turn interrupted", func(w *world, h *host, p *proc, _ string) {
			w.interrupt(p.session)
			h.op(p, `"type":"turn_aborted","turnId":%q,"settled":true`, p.turnID)
		}, "rejected", "not_delivered", "turn_closed"},
		{"process dies before the start", func(_ *world, h *host, p *proc, _ string) {
			p.exit()
			h.exchange()
		}, "rejected", "not_delivered", "turn_closed"},
		{"process dies during the handler", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			p.exit()
			h.exchange()
		}, "rejected", "uncertain", "process_lost"},
		{"process killed after its cleanup period", func(w *world, h *host, p *proc, m string) {
			started(h, p, m)
			w.interrupt(p.session)
			w.clock.advance(13 * time.Second)
			h.exchange()
			h.exchange()
		}, "rejected", "uncertain", "process_lost"},
		{"Computer lost during the handler", func(_ *world, h *host, p *proc, m string) {
			started(h, p, m)
			h.phase = workerpb.Phase_PHASE_LOST
			h.exchange()
		}, "rejected", "uncertain", "process_lost"},
	}
	eachCase(t, cases, func(c arrow) string { return c.row }, func(w *world, c arrow) {
		r, h, p := w.running("echo")
		messageID := w.message(r.SessionID, r.TurnID, "x")
		if got, want := w.data(r.SessionID, "message.admitted"), fmt.Sprintf(`{"data":[{"text":"x","type":"text"}],"delivery":"admitted","message_id":%q,"status":"admitted"}`, messageID); got != want {
			w.t.Fatalf("message.admitted is %s, want %s", got, want)
		}
		c.do(w, h, p, messageID)
		want := fmt.Sprintf(`{"delivery":%q,"message_id":%q,"status":%q}`, c.delivery, messageID, c.status)
		if c.reason != "" {
			want = fmt.Sprintf(`{"delivery":%q,"message_id":%q,"reason":%q,"status":%q}`, c.delivery, messageID, c.reason, c.status)
		}
		got := w.data(r.SessionID, "message."+c.status)
		if c.status == "admitted" {
			got = strings.Replace(got, `"data":[{"text":"x","type":"text"}],`, "", 1)
		}
		if got != want {
			w.t.Fatalf("message.%s is %s, want %s", c.status, got, want)
		}
	})
}

func TestSpec_03_14_MessagesComeInTheOrderOfAcceptance(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		var sent []string
		for i := range 20 {
			sent = append(sent, w.message(r.SessionID, r.TurnID, fmt.Sprint(i)))
		}
		var handled []string
		for len(handled) < len(sent) {
			resp := h.exchange()
			var ahead []string
			for _, c := range resp.GetControls() {
				if m, ok := strings.CutPrefix(c.GetKey(), "message:"); ok {
					ahead = append(ahead, m)
				}
			}
			rest := sent[len(handled):]
			if want := rest[:min(8, len(rest))]; !slices.Equal(ahead, want) {
				w.t.Fatalf("told %v, want %v", ahead, want)
			}
			if !strings.Contains(p.controls["message:"+ahead[0]], fmt.Sprintf(`"text":"%d"`, len(handled))) {
				w.t.Fatalf("line %s", p.controls["message:"+ahead[0]])
			}
			for _, op := range []string{"message_started", "message_delivered"} {
				if refused := h.op(p, `"type":%q,"turnId":%q,"messageId":%q`, op, r.TurnID, ahead[0]); refused != "" {
					w.t.Fatalf("%s is refused: %s", op, refused)
				}
			}
			handled = append(handled, ahead[0])
		}
	})
}

func TestSpec_03_14_AMessageIsStartedOnce(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		m := w.message(r.SessionID, r.TurnID, "x")
		h.exchange()
		if refused := h.op(p, `"type":"message_started","turnId":%q,"messageId":%q`, r.TurnID, m); refused != "" {
			w.t.Fatalf("start refused: %s", refused)
		}
		if refused := h.op(p, `"type":"message_started","turnId":%q,"messageId":%q`, r.TurnID, m); refused != "message_closed" {
			w.t.Fatalf("a second start: %q", refused)
		}
		for _, c := range h.exchange().GetControls() {
			w.t.Errorf("a started Message is told again: %s", c.GetKey())
		}
		for _, op := range []string{"message_started", "message_delivered"} { // never accepted, or not of this Turn
			if refused := h.op(p, `"type":%q,"turnId":%q,"messageId":%q`, op, r.TurnID, id.New()); refused != "message_closed" {
				w.t.Errorf("%s of an unknown Message: %q", op, refused)
			}
		}
		h.op(p, `"type":"message_delivered","turnId":%q,"messageId":%q`, r.TurnID, m)
		for _, op := range []string{"message_delivered", "message_rejected"} {
			if refused := h.op(p, `"type":%q,"turnId":%q,"messageId":%q`, op, r.TurnID, m); refused != "message_closed" {
				w.t.Errorf("%s of a delivered Message: %q", op, refused)
			}
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "message.admitted", "message.started", "message.delivered")
	})
}

// A Message that reaches the process after processing closed, or after an abort, must not reach the handler: its start
// is refused, and refused again when the answer was lost.
func TestSpec_05_06_AMessageNotStartedInTimeIsNotStarted(t *testing.T) {
	t.Parallel()
	eachCase(t, endCases(map[string]func(w *world, h *host, p *proc){
		"processing closed": func(_ *world, h *host, p *proc) { h.op(p, `"type":"processing_closed","turnId":%q`, p.turnID) },
		"interrupt":         func(w *world, _ *host, p *proc) { w.interrupt(p.session) },
	}), endCase.String, func(w *world, c endCase) {
		r, h, p := w.running("echo")
		m := w.message(r.SessionID, r.TurnID, "x")
		h.exchange()
		c.do(w, h, p)
		seq := p.op(`"type":"message_started","turnId":%q,"messageId":%q`, r.TurnID, m)
		sent := p.unacked
		for range 3 {
			p.unacked = sent
			h.exchange()
			if got := refusal(w, p.acks[seq]); got != "message_closed" {
				w.t.Fatalf("the start was answered %s", p.acks[seq])
			}
		}
		if slices.Contains(w.kinds(r.SessionID), "message.started") {
			w.t.Fatal("the Message was started")
		}
	})
}

// Operations that were refused are refused again with the same answer, whatever kind they are.
func TestSpec_00_03_ARefusedOperationStaysRefused(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		first := p.op(`"type":"output","turnId":%q,"content":[{"type":"text","text":"a"}]`, r.TurnID)
		refused := p.op(`"type":"output","turnId":%q,"content":"no array"`, r.TurnID)
		unknown := p.op(`"type":"dance","turnId":%q`, r.TurnID)
		last := p.op(`"type":"output","turnId":%q,"content":[{"type":"text","text":"b"}]`, r.TurnID)
		sent := p.unacked
		h.exchange()
		want := map[int64]string{first: p.acks[first], refused: p.acks[refused], unknown: p.acks[unknown], last: p.acks[last]}
		if refusal(w, want[refused]) != "invalid_arguments" || refusal(w, want[unknown]) != "invalid_arguments" || refusal(w, want[last]) != "" {
			w.t.Fatalf("acks %v", want)
		}
		for range 2 {
			p.unacked = sent
			h.exchange()
			for seq, ack := range want {
				if p.acks[seq] != ack {
					w.t.Errorf("operation %d is answered %s, before %s", seq, p.acks[seq], ack)
				}
			}
		}
	})
}

// The order of the events at the end of a Turn: Questions, Messages, then the Turn.
func TestSpec_05_05_WhatATurnLeavesOpenEndsBeforeIt(t *testing.T) {
	t.Parallel()
	tail := []string{"question.cancelled", "question.cancelled", "message.rejected", "message.rejected"}
	type ending struct {
		name string
		end  func(w *world, h *host, p *proc)
		want []string
	}
	cases := []ending{
		{"failed", func(_ *world, h *host, p *proc) {
			h.op(p, `"type":"turn_failed","turnId":%q,"error":{"code":"drain_failed"}`, p.turnID)
		}, append(slices.Clone(tail), "turn.failed")},
		{"process lost", func(_ *world, h *host, p *proc) {
			p.exit()
			h.exchange()
		}, append(slices.Clone(tail), "turn.interrupted", "session.process_failed")},
		{"Computer lost", func(_ *world, h *host, _ *proc) {
			h.phase = workerpb.Phase_PHASE_LOST
			h.exchange()
		}, append(slices.Clone(tail), "turn.interrupted", "session.held")},
		{"interrupted", func(w *world, h *host, p *proc) {
			w.interrupt(p.session)
			h.op(p, `"type":"turn_aborted","turnId":%q,"settled":true`, p.turnID)
		}, append(append([]string{"session.interrupt"}, tail...), "turn.interrupted")},
		{"cancelled", func(w *world, h *host, p *proc) {
			w.cancel(p.session)
			h.op(p, `"type":"turn_aborted","turnId":%q,"settled":true`, p.turnID)
		}, append(append([]string{"session.cancel"}, tail...), "turn.cancelled")},
	}
	eachCase(t, cases, func(c ending) string { return c.name }, func(w *world, c ending) {
		r, h, p := w.running("echo")
		h.ask(p, textQuestion)
		h.ask(p, pickQuestion)
		started := w.message(r.SessionID, r.TurnID, "one")
		w.message(r.SessionID, r.TurnID, "two")
		h.op(p, `"type":"message_started","turnId":%q,"messageId":%q`, r.TurnID, started)
		before := len(w.kinds(r.SessionID))
		c.end(w, h, p)
		if got := w.kinds(r.SessionID)[before:]; !slices.Equal(got, c.want) {
			w.t.Fatalf("events at the end are\n  %v\nwant\n  %v", got, c.want)
		}
	})
}

// A process that says it is drained while a Message or a Question is open is not believed.
func TestSpec_05_06_AResultWithSomethingOpenFailsTheDrain(t *testing.T) {
	t.Parallel()
	eachCase(t, endCases(map[string]func(w *world, h *host, p *proc){
		"question": func(_ *world, h *host, p *proc) { h.ask(p, textQuestion) },
		"message": func(w *world, h *host, p *proc) {
			m := w.message(p.session, p.turnID, "x")
			h.op(p, `"type":"message_started","turnId":%q,"messageId":%q`, p.turnID, m)
		},
	}), endCase.String, func(w *world, c endCase) {
		r, h, p := w.running("echo")
		c.do(w, h, p)
		h.op(p, `"type":"processing_closed","turnId":%q`, r.TurnID)
		h.op(p, `"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
		if v := w.turn(r.SessionID, r.TurnID); v.Status != "failed" || v.Error.Code != "drain_failed" {
			w.t.Fatalf("turn %+v", v)
		}
	})
}

func TestSpec_05_10_SendRacingWithReturnIsOneOfTheTwo(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		receipts := make([]api.SendReceipt, 16)
		var wg sync.WaitGroup
		for i := range receipts {
			wg.Go(func() {
				var err error
				if receipts[i], err = w.trySend(r.SessionID, fmt.Sprint(i)); err != nil {
					w.t.Error(err)
				}
			})
		}
		h.op(p, `"type":"processing_closed","turnId":%q`, r.TurnID)
		h.op(p, `"type":"turn_result","turnId":%q,"result":1`, r.TurnID)
		wg.Wait()
		messaged, queued := 0, 0
		for _, s := range receipts {
			switch s.Kind {
			case "messaged":
				messaged++
			case "enqueued":
				queued++
			}
		}
		counts := map[string]int{}
		for _, k := range w.kinds(r.SessionID) {
			counts[k]++
		}
		if messaged+queued != len(receipts) || counts["message.admitted"] != messaged || counts["message.rejected"] != messaged || counts["turn.queued"] != queued+1 {
			w.t.Fatalf("%d Messages, %d Turns, events %v", messaged, queued, counts)
		}
	})
}

func TestSpec_16_07_SendAndMessageAreAdmittedOncePerKey(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		send := func(data string) (api.SendReceipt, error) {
			return w.turns.Send(w.t.Context(), w.env, w.by, r.SessionID, api.SendRequest{Data: text(data), IdempotencyKey: "k"})
		}
		message := func(data string) (api.MessageReceipt, error) {
			return w.turns.Message(w.t.Context(), w.env, w.by, r.SessionID, r.TurnID, api.MessageRequest{Data: text(data), IdempotencyKey: "k"})
		}
		s1, err := send("x")
		w.must(err)
		m1, err := message("x")
		w.must(err)
		h.op(p, `"type":"processing_closed","turnId":%q`, r.TurnID) // the state is another now, the receipts are not
		s2, err := send("x")
		if w.must(err); s2 != s1 {
			w.t.Errorf("send answers %+v, before %+v", s2, s1)
		}
		m2, err := message("x")
		if w.must(err); m2 != m1 {
			w.t.Errorf("message answers %+v, before %+v", m2, m1)
		}
		_, err = send("y")
		w.wantCode(err, fault.IdempotencyConflict)
		_, err = message("y")
		w.wantCode(err, fault.IdempotencyConflict)
	})
}

// A Message or a Question that is open keeps a Session from being idle: both exist while their Turn runs.
func TestSpec_04_18_OpenMessagesAndQuestionsAreNotIdle(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("quick", "hi")
		w.exec(`UPDATE sessions SET max_turn_duration_ms = NULL WHERE id = ?`, r.SessionID)
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		h.exchange()
		q := h.ask(p, textQuestion)
		m := w.message(r.SessionID, r.TurnID, "x")
		w.clock.advance(time.Hour)
		w.run("turn.idle")
		if s := w.session(r.SessionID); s.Status != "open" {
			w.t.Fatalf("status %s with an open Question and Message", s.Status)
		}
		_, err := w.respond(r.SessionID, r.TurnID, q, "r", `"yes"`)
		w.must(err)
		h.op(p, `"type":"message_started","turnId":%q,"messageId":%q`, r.TurnID, m)
		h.op(p, `"type":"message_delivered","turnId":%q,"messageId":%q`, r.TurnID, m)
		h.finish(p, "1")
		w.clock.advance(59 * time.Second)
		w.run("turn.idle")
		if s := w.session(r.SessionID); s.Status != "open" {
			w.t.Fatal("closed too early: the clock starts when the Session becomes idle")
		}
		w.clock.advance(2 * time.Second)
		w.run("turn.idle")
		if s := w.session(r.SessionID); s.Status != "closed" {
			w.t.Fatalf("status %s", s.Status)
		}
	})
}
