package turn_test

import (
	"fmt"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// FuzzOperation lets a process say anything while it serves a Turn: the Exchange never fails, each operation is answered,
// and the Session goes on.
func FuzzOperation(f *testing.F) {
	for _, seed := range []string{
		`{"seq":3,"type":"output","turnId":"TURN","content":[{"type":"text","text":"x"}]}`,
		`{"seq":3,"type":"turn_result","turnId":"TURN","result":{},"response":[]}`,
		`{"seq":3,"type":"turn_failed","turnId":"TURN","error":{"code":"drain_failed","message":"m"}}`,
		`{"seq":3,"type":"turn_aborted","turnId":"TURN","settled":false,"cause":"callback"}`,
		`{"seq":3,"type":"question","turnId":"TURN","questionId":"QUESTION","question":{"prompt":[],"answer":{"type":"text"}}}`,
		`{"seq":3,"type":"message_started","turnId":"TURN","messageId":"QUESTION"}`,
		`{"seq":3,"type":"processing_closed","turnId":"TURN"}`, `{"seq":3,"type":"exited","code":1,"stderr":"x"}`, `{"type":"init_done"}`, `[]`, `{`, ``,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		w := setup(t, dbtest.New(t, db.SQLite))
		r := w.create("echo", "hi")
		h := w.place(r.SessionID)
		p := h.ready(r.SessionID)
		seq := p.next
		p.next++
		body := replaceIDs(payload, r.TurnID)
		p.unacked = append(p.unacked, &workerpb.Operation{Sequence: seq, Payload: []byte(body)})
		h.exchange() // fails the test if the Exchange does
		if p.acks[seq] == "" {
			t.Fatalf("operation %q was not answered", body)
		}
		w.kinds(r.SessionID) // no gap
		if v := w.turn(r.SessionID, r.TurnID); v.Status == "queued" {
			t.Fatalf("turn %+v", v)
		}
	})
}

func replaceIDs(payload, turnID string) string {
	out := ""
	for i := 0; i < len(payload); {
		switch {
		case len(payload)-i >= 4 && payload[i:i+4] == "TURN":
			out += turnID
			i += 4
		case len(payload)-i >= 8 && payload[i:i+8] == "QUESTION":
			out += fmt.Sprintf("%s%s", turnID[:len(turnID)-1], "0")
			i += 8
		default:
			out += payload[i : i+1]
			i++
		}
	}
	return out
}
