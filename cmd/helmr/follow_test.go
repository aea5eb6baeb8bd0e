package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
)

func TestEventPrinter(t *testing.T) {
	t.Parallel()
	turn := "0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55"
	at := api.Time{Time: time.Date(2026, 1, 2, 12, 0, 1, 234e6, time.Local)}
	var b strings.Builder
	p := newEventPrinter(&b)
	for _, e := range []struct{ kind, data string }{
		{"turn.queued", `{"sequence":1,"input":[{"type":"text","text":"Review\nAPP-42"}],"source":{"kind":"client"}}`},
		{"turn.running", `{"epoch":1,"recovery":{"kind":"reconstructed","reason":"process_failed"}}`},
		{"turn.output", `{"type":"text","text":"Review "}`},
		{"turn.output", `{"type":"text","text":"started\nline two"}`},
		{"turn.output", `[{"type":"text","text":"\u001b[31m!"},{"type":"json","value":{"a":1}}]`},
		{"turn.finalizing", `{"save_id":"x"}`},
		{"turn.completed", `{"result":{"turns":1},"response":[{"type":"text","text":"Done"}],"save_id":"x"}`},
		{"turn.failed", `{"error":{"code":"handler_failed","message":"boom"}}`},
		{"session.held", `null`},
	} {
		if err := p.print(api.Event{TurnID: &turn, Kind: e.kind, Data: json.RawMessage(e.data), CreatedAt: at}); err != nil {
			t.Fatal(err)
		}
	}
	want := `12:00:01.234  turn.queued        #1  "Review APP-42"
12:00:01.234  turn.running       #1  in a new process (process_failed)
12:00:01.234  turn.output        #1
    Review started
    line two[31m!
    {"type":"json","value":{"a":1}}
12:00:01.234  turn.finalizing    #1
12:00:01.234  turn.completed     #1  response: Done  result: {"turns":1}
12:00:01.234  turn.failed        #1  handler_failed: boom
12:00:01.234  session.held       #1
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}
