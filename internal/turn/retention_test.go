package turn_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
)

// conversed gives a Session with everything that retention takes away, closed and released.
func conversed(w *world) (sessionID, turnID, questionID string) {
	r, h, p := w.running("echo")
	questionID = h.ask(p, textQuestion)
	_, err := w.respond(r.SessionID, r.TurnID, questionID, "r", `"secret answer"`)
	w.must(err)
	m := w.message(r.SessionID, r.TurnID, "secret message")
	h.op(p, `"type":"message_started","turnId":%q,"messageId":%q`, r.TurnID, m)
	h.op(p, `"type":"message_delivered","turnId":%q,"messageId":%q`, r.TurnID, m)
	h.op(p, `"type":"output","turnId":%q,"content":[{"type":"text","text":"secret output"}]`, r.TurnID)
	h.finish(p, `"secret result"`)
	_, err = w.turns.Enqueue(w.t.Context(), w.env, w.by, r.SessionID, api.EnqueueRequest{Input: text("secret input"), IdempotencyKey: "key"})
	w.must(err)
	h.exchange()
	h.exchange()
	h.op(p, `"type":"turn_failed","turnId":%q,"error":{"code":"handler_failed","message":"secret failure"}`, p.turnID)
	w.close(r.SessionID)
	h.exchange()
	p.exit()
	h.exchange()
	return r.SessionID, r.TurnID, questionID
}

func TestSpec_05_16_ExpiryTakesThePayloadsAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.exec(`UPDATE environments SET history_retention_mode = 'duration', history_retention_seconds = 3600 WHERE id = ?`, w.env)
		sessionID, turnID, questionID := conversed(w)
		w.exec(`UPDATE environments SET history_retention_mode = 'keep', history_retention_seconds = NULL WHERE id = ?`, w.env)
		before := w.events(sessionID)
		w.clock.advance(time.Hour - time.Millisecond)
		w.run("turn.retention")
		if v := w.turn(sessionID, turnID); v.PayloadExpiredAt != nil || v.Input == nil {
			w.t.Fatalf("expired before its time: %+v", v)
		}
		w.clock.advance(time.Millisecond)
		w.run("turn.retention")
		page, err := w.turns.List(w.t.Context(), w.env, sessionID, "", 10)
		w.must(err)
		for _, v := range page.Turns {
			if v.Input != nil || v.Result != nil || v.Response != nil || v.PayloadExpiredAt == nil || v.TerminalAt == nil {
				w.t.Errorf("turn after expiry %+v", v)
			}
			if v.Status == "failed" && (v.Error == nil || v.Error.Code != "handler_failed" || v.Error.Message != "") {
				w.t.Errorf("error after expiry %+v", v.Error)
			}
		}
		q := w.question(sessionID, turnID, questionID)
		if q.Prompt != nil || q.AnswerControl != nil || q.Answer != nil || !q.PayloadExpired || q.Status != "responded" || q.RespondedAt == nil || q.RespondedByAPIKeyID != w.by.ID {
			w.t.Errorf("question after expiry %+v", q)
		}
		after := w.events(sessionID)
		if len(after) != len(before) {
			w.t.Fatalf("%d events, before %d", len(after), len(before))
		}
		for i, e := range after {
			if e.Data != nil || e.Kind != before[i].Kind || e.Sequence != before[i].Sequence || e.CreatedAt != before[i].CreatedAt {
				w.t.Errorf("event after expiry %+v, before %+v", e, before[i])
			}
		}
		w.wantNowhere(sessionID, "secret")
		// A response and a request that are repeated are known still.
		_, err = w.respond(sessionID, turnID, questionID, "r", `"secret answer"`)
		w.must(err)
		_, err = w.respond(sessionID, turnID, questionID, "r", `"another"`)
		w.wantCode(err, fault.IdempotencyConflict)
		_, err = w.turns.Enqueue(w.t.Context(), w.env, w.by, sessionID, api.EnqueueRequest{Input: text("secret input"), IdempotencyKey: "key"})
		w.wantCode(err, fault.IdempotencyExpired)
		w.run("turn.retention") // a second sweep finds nothing
	})
}

// wantNowhere looks for a text in every column that holds what users gave.
func (w *world) wantNowhere(sessionID, secret string) {
	w.t.Helper()
	for table, columns := range map[string][]string{"turns": {"input", "result", "response", "error_message"}, "messages": {"data"},
		"questions": {"prompt", "answer_control", "answer"}, "session_events": {"data"}, "idempotency_records": {"receipt"}} {
		for _, column := range columns {
			var n int64
			w.count(&n, fmt.Sprintf(`SELECT COUNT(*) FROM %s WHERE session_id = ? AND %s LIKE ?`, table, column), sessionID, "%"+secret+"%")
			if n > 0 {
				w.t.Errorf("%s.%s still holds it", table, column)
			}
		}
	}
}

func TestSpec_05_14_KeptHistoryDoesNotExpire(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		sessionID, turnID, _ := conversed(w)
		w.exec(`UPDATE environments SET history_retention_mode = 'duration', history_retention_seconds = 1 WHERE id = ?`, w.env)
		w.clock.advance(1000 * time.Hour)
		w.run("turn.retention")
		if v := w.turn(sessionID, turnID); v.PayloadExpiredAt != nil || v.Input == nil {
			w.t.Fatalf("a Session takes the mode at its creation: %+v", v)
		}
	})
}

func TestSpec_05_15_ThePeriodStartsAtTheRelease(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.exec(`UPDATE environments SET history_retention_mode = 'duration', history_retention_seconds = 60 WHERE id = ?`, w.env)
		r, h, p := w.running("echo")
		w.cancel(r.SessionID) // terminal at once, but its process lives
		w.clock.advance(time.Hour)
		w.run("turn.retention")
		if v := w.turn(r.SessionID, r.TurnID); v.PayloadExpiredAt != nil {
			w.t.Fatal("expired before it was released")
		}
		h.op(p, `"type":"turn_aborted","turnId":%q,"settled":true`, r.TurnID)
		h.exchange()
		p.exit()
		h.exchange()
		w.clock.advance(59 * time.Second)
		w.run("turn.retention")
		if v := w.turn(r.SessionID, r.TurnID); v.PayloadExpiredAt != nil {
			w.t.Fatal("the period does not start at the release")
		}
		w.clock.advance(time.Second)
		w.run("turn.retention")
		if v := w.turn(r.SessionID, r.TurnID); v.PayloadExpiredAt == nil {
			w.t.Fatal("not expired")
		}
	})
}

func TestSpec_05_16_ASweepTakesAHundredSessions(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.exec(`UPDATE environments SET history_retention_mode = 'duration', history_retention_seconds = 60 WHERE id = ?`, w.env)
		computerID := w.session(w.create("echo", "x").SessionID).ComputerID
		for i := range 102 {
			w.clock.advance(10 * time.Millisecond)
			r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text(strings.Repeat("x", i)), ComputerID: computerID}, nil)
			w.must(err)
			w.cancel(r.SessionID)
		}
		w.clock.advance(time.Hour)
		for _, want := range []int64{100, 102, 102} {
			w.run("turn.retention")
			var n int64
			w.count(&n, `SELECT COUNT(*) FROM sessions WHERE payload_expired_at IS NOT NULL`)
			if n != want {
				w.t.Fatalf("%d Sessions expired, want %d", n, want)
			}
		}
	})
}
