package turn_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestSpec_18_01_FieldsOfARecord(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r := w.create("echo", "hi")
		w.interrupt(r.SessionID)
		for i, e := range w.events(r.SessionID) {
			raw, err := json.Marshal(e)
			w.must(err)
			turnID := fmt.Sprintf("%q", r.TurnID)
			if e.Kind == "session.interrupt" {
				turnID = "null" // there, and null
			}
			want := fmt.Sprintf(`{"created_at":"2026-01-02T03:04:05.000Z","data":%s,"kind":%q,"sequence":%d,"session_id":%q,"turn_id":%s}`,
				canonical(e.Data), e.Kind, i+1, r.SessionID, turnID)
			if got := canonical(raw); got != want {
				w.t.Errorf("record %s\nwant   %s", got, want)
			}
		}
	})
}

// Readers of a Session that many write to see each event once, in order, and with it the state that it tells of.
func TestSpec_18_02_ReadersSeeEventsInOrderWithTheirChange(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		const writers, each = 6, 10
		r := w.create("echo", "0")
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for range each {
					if _, err := w.tryEnqueue(r.SessionID, ""); err != nil {
						w.t.Error(err)
					}
				}
			})
		}
		for after := int64(0); after < 1+writers*each; {
			page, _, err := w.sessions.Events(w.t.Context(), w.env, r.SessionID, after, 7)
			w.must(err)
			for _, e := range page.Records {
				if after++; e.Sequence != after {
					w.t.Fatalf("event %d is read after %d", e.Sequence, after-1)
				}
				var queued struct{ Sequence int64 }
				w.must(json.Unmarshal(e.Data, &queued))
				if v := w.turn(r.SessionID, *e.TurnID); v.Sequence != queued.Sequence || v.Sequence != after {
					w.t.Fatalf("event %d tells of Turn %d, which is %d", after, queued.Sequence, v.Sequence)
				}
			}
		}
		wg.Wait()
		// A change that is refused leaves no event, and the next one no gap.
		w.limits(1, 1, 1)
		_, err := w.tryEnqueue(r.SessionID, "")
		if err == nil {
			w.t.Fatal("the limit was not met")
		}
		w.interrupt(r.SessionID)
		if n := len(w.kinds(r.SessionID)); n != 2+writers*each { // kinds checks the sequences
			w.t.Fatalf("%d events", n)
		}
	})
}

func TestSpec_18_07_DeliveryOfAMessage(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		say := func(op, messageID, rest string) {
			h.op(p, `"type":%q,"turnId":%q,"messageId":%q%s`, op, r.TurnID, messageID, rest)
		}
		delivered, refused, threw, open, unstarted := w.message(r.SessionID, r.TurnID, "1"), w.message(r.SessionID, r.TurnID, "2"), w.message(r.SessionID, r.TurnID, "3"),
			w.message(r.SessionID, r.TurnID, "4"), w.message(r.SessionID, r.TurnID, "5")
		for _, m := range []string{delivered, refused, threw, open} {
			say("message_started", m, "")
			switch m {
			case delivered:
				say("message_delivered", m, "")
			case refused:
				say("message_rejected", m, `,"reason":"message_rejected"`)
			case threw:
				say("message_rejected", m, `,"reason":"callback_failed"`)
			}
		}
		p.exit()
		h.exchange()
		got := map[string]string{}
		for _, e := range w.events(r.SessionID) {
			var m struct {
				ID       string `json:"message_id"`
				Delivery string
			}
			if w.must(json.Unmarshal(e.Data, &m)); strings.HasPrefix(e.Kind, "message.") {
				got[m.ID] += " " + m.Delivery
			}
		}
		for m, want := range map[string]string{delivered: " admitted started delivered", refused: " admitted started not_delivered", threw: " admitted started uncertain",
			open: " admitted started uncertain", unstarted: " admitted not_delivered"} {
			if got[m] != want {
				w.t.Errorf("deliveries are%s, want%s", got[m], want)
			}
		}
	})
}

func TestSpec_18_10_AfterRetentionRecordsStayWithoutData(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.exec(`UPDATE environments SET history_retention_mode = 'duration', history_retention_seconds = 60 WHERE id = ?`, w.env)
		sessionID, _, _ := conversed(w)
		before := w.events(sessionID)
		w.clock.advance(time.Minute)
		w.run("turn.retention")
		for after := int64(0); after < int64(len(before)); after++ { // each position can still be read from
			page, _, err := w.sessions.Events(w.t.Context(), w.env, sessionID, after, 1)
			w.must(err)
			e, old := page.Records[0], before[after]
			raw, err := json.Marshal(e)
			w.must(err)
			if page.RetainedAfter != 0 || e.Data != nil || old.Data == nil || !strings.Contains(string(raw), `"data":null`) ||
				e.Sequence != old.Sequence || e.Kind != old.Kind || e.CreatedAt != old.CreatedAt || (e.TurnID == nil) != (old.TurnID == nil) {
				w.t.Fatalf("record %s, before %+v", raw, old)
			}
		}
	})
}
