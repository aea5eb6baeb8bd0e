package turn_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/turn"
)

// refusalCase is one refusal of the contract: enter brings about the situation and gives the call that is refused.
type refusalCase struct {
	rule, what, code string // the code with its details.reason, if it has one
	enter            func(w *world) (call func() error)
}

func (c refusalCase) String() string { return c.rule + " " + c.code + ": " + c.what }

// size counts everything that a refused call might leave.
func (w *world) size() string {
	w.t.Helper()
	var out []string
	for _, table := range []string{"sessions", "turns", "session_events", "messages", "questions", "holds", "computers", "saves", "idempotency_records"} {
		var n int64
		w.count(&n, `SELECT COUNT(*) FROM `+table)
		out = append(out, fmt.Sprint(table, " ", n))
	}
	return strings.Join(out, ", ")
}

func (w *world) tryCreate(req api.SessionCreateRequest) error {
	if req.Agent == "" {
		req.Agent = "echo"
	}
	if req.Input == nil {
		req.Input = text("x")
	}
	_, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, req, nil)
	return err
}

// keyed gives a Session that holds a key.
func (w *world) keyed(key string) api.SessionCreateReceipt {
	w.t.Helper()
	r, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Key: key, Input: text("x")}, nil)
	w.must(err)
	return r
}

// The refusals of areas 04, 05, 06, 16 and 18 that a caller can meet, one by one. A refused call leaves nothing.
func TestSpec_16_05_EachRefusalOfASession(t *testing.T) {
	t.Parallel()
	eachCase(t, slices.Concat(creationRefusals(), sessionRefusals(), turnRefusals()), refusalCase.String, func(w *world, c refusalCase) {
		call := c.enter(w)
		before := w.size()
		err := call()
		if got := code(err); got != c.code {
			w.t.Fatalf("answered %q (%v)", got, err)
		}
		if f := fault.From(err); f.Message == "" || strings.Contains(f.Message, "%!") {
			w.t.Errorf("says %q", f.Message)
		}
		if after := w.size(); after != before {
			w.t.Errorf("leaves %s, before %s", after, before)
		}
	})
}

func creationRefusals() []refusalCase {
	return []refusalCase{
		{"04.2", "nothing is promoted", "no_current_deployment", func(w *world) func() error {
			return func() error {
				other := *w
				other.env = emptyEnvironment(w)
				return other.tryCreate(api.SessionCreateRequest{})
			}
		}},
		{"04.2", "another Agent is declared", "agent_not_in_current_deployment", func(w *world) func() error {
			return func() error { return w.tryCreate(api.SessionCreateRequest{Agent: "nobody"}) }
		}},
		{"04.2", "the Agent is deleted", "agent_deleted", func(w *world) func() error {
			w.exec(`INSERT INTO agents (environment_id, id, created_at, deleted_at) VALUES (?, 'gone', 0, 1) ON CONFLICT DO NOTHING`, w.env)
			return func() error { return w.tryCreate(api.SessionCreateRequest{Agent: "gone"}) }
		}},
		{"04.3", "the Computer is unknown", "computer_not_found", func(w *world) func() error {
			return func() error { return w.tryCreate(api.SessionCreateRequest{ComputerID: id.New()}) }
		}},
		{"04.3", "the Computer is another Environment's", "computer_not_found", func(w *world) func() error {
			other := emptyEnvironment(w)
			r := w.create("echo", "x")
			computerID := w.session(r.SessionID).ComputerID
			w.exec(`UPDATE computers SET environment_id = ? WHERE id = ?`, other, computerID)
			return func() error { return w.tryCreate(api.SessionCreateRequest{ComputerID: computerID}) }
		}},
		{"04.3", "the Computer is being deleted", "computer_deleting", func(w *world) func() error {
			computerID := w.session(w.create("echo", "x").SessionID).ComputerID
			w.exec(`UPDATE computers SET status = 'deleting' WHERE id = ?`, computerID)
			return func() error { return w.tryCreate(api.SessionCreateRequest{ComputerID: computerID}) }
		}},
		{"04.3", "the Computer is deleted", "computer_not_found", func(w *world) func() error {
			computerID := w.session(w.create("echo", "x").SessionID).ComputerID
			w.exec(`UPDATE computers SET status = 'deleted' WHERE id = ?`, computerID)
			return func() error { return w.tryCreate(api.SessionCreateRequest{ComputerID: computerID}) }
		}},
		{"04.4", "the Session with the key is closing", "session_not_open", func(w *world) func() error {
			r := w.keyed("closing")
			w.close(r.SessionID)
			return func() error { return w.tryCreate(api.SessionCreateRequest{Key: "closing"}) }
		}},
		{"04.4", "the Session with the key sits elsewhere", "computer_mismatch", func(w *world) func() error {
			w.keyed("elsewhere")
			other := w.session(w.create("echo", "x").SessionID).ComputerID
			return func() error { return w.tryCreate(api.SessionCreateRequest{Key: "elsewhere", ComputerID: other}) }
		}},
	}
}

func sessionRefusals() []refusalCase {
	return []refusalCase{
		{"04.11", "an unknown hold", "hold_not_active", func(w *world) func() error {
			r := w.create("echo", "x")
			return func() error { return w.tryResume(r.SessionID, id.New()) }
		}},
		{"04.11", "a hold that is released", "hold_not_active", func(w *world) func() error {
			r := w.create("echo", "x")
			hold := w.interrupt(r.SessionID)
			w.resume(r.SessionID, hold)
			return func() error { return w.tryResume(r.SessionID, hold) }
		}},
		{"04.11", "a hold of another Session", "hold_not_active", func(w *world) func() error {
			r, other := w.create("echo", "x"), w.create("echo", "x")
			hold := w.interrupt(other.SessionID)
			return func() error { return w.tryResume(r.SessionID, hold) }
		}},
		{"04.13", "interrupt of a closed Session", "session_terminal", func(w *world) func() error {
			r := w.closedSession()
			return func() error {
				_, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{IdempotencyKey: "k"})
				return err
			}
		}},
		{"04.13", "cancel of a closed Session", "session_terminal", func(w *world) func() error {
			r := w.closedSession()
			return func() error {
				_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{IdempotencyKey: "k"})
				return err
			}
		}},
		{"04.13", "close of a cancelled Session", "session_terminal", func(w *world) func() error {
			r := w.create("echo", "x")
			w.cancel(r.SessionID)
			return func() error {
				_, err := w.turns.Close(w.t.Context(), w.env, w.by, r.SessionID, api.ControlRequest{IdempotencyKey: "k"})
				return err
			}
		}},
		{"04.13", "resume of a cancelled Session", "session_terminal", func(w *world) func() error {
			r := w.create("echo", "x")
			hold := w.interrupt(r.SessionID)
			w.cancel(r.SessionID)
			return func() error { return w.tryResume(r.SessionID, hold) }
		}},
		{"04.16", "send to a held Session", "admission_unavailable/session_held", func(w *world) func() error {
			r := w.create("echo", "x")
			w.interrupt(r.SessionID)
			return func() error { _, err := w.trySend(r.SessionID, "x"); return err }
		}},
		{"07.18", "work on a Computer that is being deleted", "computer_deleting", func(w *world) func() error {
			r := w.create("echo", "x")
			w.exec(`UPDATE computers SET status = 'deleting' WHERE id = ?`, w.session(r.SessionID).ComputerID)
			return func() error { _, err := w.tryEnqueue(r.SessionID, "k"); return err }
		}},
		{"16.6", "an idempotency key with white space around it", "invalid_idempotency_key", func(w *world) func() error {
			r := w.create("echo", "x")
			return func() error { _, err := w.tryEnqueue(r.SessionID, " k"); return err }
		}},
		{"16.7", "a key for another body", "idempotency_conflict", func(w *world) func() error {
			r := w.create("echo", "x")
			_, err := w.tryEnqueue(r.SessionID, "key")
			w.must(err)
			return func() error {
				_, err := w.turns.Enqueue(w.t.Context(), w.env, w.by, r.SessionID, api.EnqueueRequest{Input: text("another"), IdempotencyKey: "key"})
				return err
			}
		}},
		{"18.4", "a position beyond the last event", "invalid_cursor", func(w *world) func() error {
			r := w.create("echo", "x")
			return func() error { _, _, err := w.sessions.Events(w.t.Context(), w.env, r.SessionID, 2, 10); return err }
		}},
		{"18.4", "a position before what is kept", "cursor_expired", func(w *world) func() error {
			r := w.create("echo", "x")
			w.enqueue(r.SessionID, "x")
			w.exec(`UPDATE sessions SET retained_after = 1 WHERE id = ?`, r.SessionID)
			return func() error {
				_, _, err := w.sessions.Events(w.t.Context(), w.env, r.SessionID, 0, 10)
				if got := fault.From(err).Details["retained_after"]; got != int64(1) {
					w.t.Errorf("details.retained_after is %v", got)
				}
				if page, _, err := w.sessions.Events(w.t.Context(), w.env, r.SessionID, 1, 10); err != nil || len(page.Records) != 1 || page.RetainedAfter != 1 {
					w.t.Errorf("from there on: %+v, %v", page, err)
				}
				return err
			}
		}},
		{"18.3", "events of an unknown Session", "not_found", func(w *world) func() error {
			return func() error { _, _, err := w.sessions.Events(w.t.Context(), w.env, id.New(), 0, 10); return err }
		}},
	}
}

func turnRefusals() []refusalCase {
	// asked gives a running Turn with an open Question.
	asked := func(w *world, question string) (r api.SessionCreateReceipt, h *host, p *proc, questionID string) {
		r, h, p = w.running("echo")
		return r, h, p, h.ask(p, question)
	}
	return []refusalCase{
		{"02.8", "input that is no content", "invalid_arguments", func(w *world) func() error {
			return func() error { return w.tryCreate(api.SessionCreateRequest{Input: json.RawMessage(`"x"`)}) }
		}},
		{"02.9", "a JSON part as input", "content_kind_unsupported", func(w *world) func() error {
			r := w.create("echo", "x")
			return func() error {
				_, err := w.turns.Enqueue(w.t.Context(), w.env, w.by, r.SessionID, api.EnqueueRequest{Input: json.RawMessage(`[{"type":"json","value":1}]`)})
				return err
			}
		}},
		{"02.9", "65 parts", "content_limit_exceeded", func(w *world) func() error {
			parts := "[" + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"x"},`, 65), ",") + "]"
			return func() error { return w.tryCreate(api.SessionCreateRequest{Input: json.RawMessage(parts)}) }
		}},
		{"05.2", "a cursor that is no sequence", "invalid_cursor", func(w *world) func() error {
			r := w.create("echo", "x")
			return func() error {
				_, err := w.turns.List(w.t.Context(), w.env, r.SessionID, r.TurnID, 10)
				return err
			}
		}},
		{"05.10", "enqueue on a closing Session", "session_not_open", func(w *world) func() error {
			s := closing(w)
			return func() error { _, err := w.tryEnqueue(s.sessionID, "k"); return err }
		}},
		{"05.10", "enqueue on a terminal Session", "session_terminal", func(w *world) func() error {
			r := w.closedSession()
			return func() error { _, err := w.tryEnqueue(r.SessionID, "k"); return err }
		}},
		{"05.10", "send to a terminal Session", "session_terminal", func(w *world) func() error {
			r := w.closedSession()
			return func() error { _, err := w.trySend(r.SessionID, "x"); return err }
		}},
		{"05.10", "a Message to a Turn that waits", "message_closed", func(w *world) func() error {
			r := w.create("echo", "x")
			return func() error { _, err := w.tryMessage(r.SessionID, r.TurnID, "x"); return err }
		}},
		{"05.10", "a Message to a Turn that finalizes", "message_closed", func(w *world) func() error {
			s := finalizing(w)
			return func() error { _, err := w.tryMessage(s.sessionID, s.turnID, "x"); return err }
		}},
		{"05.10", "a Message to an unknown Turn", "not_found", func(w *world) func() error {
			r := w.create("echo", "x")
			return func() error { _, err := w.tryMessage(r.SessionID, id.New(), "x"); return err }
		}},
		{"06.3", "an answer that does not fit", "answer_invalid", func(w *world) func() error {
			r, _, _, q := asked(w, pickQuestion)
			return func() error { _, err := w.respond(r.SessionID, r.TurnID, q, "r", `"text"`); return err }
		}},
		{"06.4", "an answer of more than 8 KiB of text", "answer_invalid", func(w *world) func() error {
			r, _, _, q := asked(w, `{"prompt":[],"answer":{"type":"choice","allowText":true,"options":[{"id":"a","label":"A","value":1}]}}`)
			return func() error {
				_, err := w.respond(r.SessionID, r.TurnID, q, "r", `{"selected":[],"text":"`+strings.Repeat("x", 8<<10+1)+`"}`)
				return err
			}
		}},
		{"06.8", "an answer to an unknown Question", "not_found", func(w *world) func() error {
			r, _, _, _ := asked(w, textQuestion)
			return func() error { _, err := w.respond(r.SessionID, r.TurnID, id.New(), "r", `"x"`); return err }
		}},
		{"06.9", "a response_id of nothing", "bad_request", func(w *world) func() error {
			r, _, _, q := asked(w, textQuestion)
			return func() error { _, err := w.respond(r.SessionID, r.TurnID, q, " ", `"x"`); return err }
		}},
		{"06.9", "a second response", "question_already_responded", func(w *world) func() error {
			r, _, _, q := asked(w, textQuestion)
			_, err := w.respond(r.SessionID, r.TurnID, q, "r", `"x"`)
			w.must(err)
			return func() error { _, err := w.respond(r.SessionID, r.TurnID, q, "other", `"x"`); return err }
		}},
		{"06.9", "a response_id for another answer", "idempotency_conflict", func(w *world) func() error {
			r, _, _, q := asked(w, textQuestion)
			_, err := w.respond(r.SessionID, r.TurnID, q, "r", `"x"`)
			w.must(err)
			return func() error { _, err := w.respond(r.SessionID, r.TurnID, q, "r", `"y"`); return err }
		}},
		{"06.7", "an answer after the interrupt", "question_cancelled", func(w *world) func() error {
			r, _, _, q := asked(w, textQuestion)
			w.interrupt(r.SessionID)
			return func() error { _, err := w.respond(r.SessionID, r.TurnID, q, "r", `"x"`); return err }
		}},
		{"16.9", "a cursor of Questions that is none", "invalid_cursor", func(w *world) func() error {
			r, _, _, _ := asked(w, textQuestion)
			return func() error {
				_, err := w.turns.ListQuestions(w.t.Context(), w.env, r.SessionID, r.TurnID, "x", 10)
				return err
			}
		}},
	}
}

// What a process is refused: its call rejects with the code, and the Turn goes on.
func TestSpec_03_11_EachRefusalOfAProcess(t *testing.T) {
	t.Parallel()
	type operation struct {
		rule, what, code string
		line             func(s *scene) string
	}
	output := func(content string) func(s *scene) string {
		return func(s *scene) string {
			return fmt.Sprintf(`"type":"output","turnId":%q,"content":%s`, s.turnID, content)
		}
	}
	question := func(q string) func(s *scene) string {
		return func(s *scene) string {
			return fmt.Sprintf(`"type":"question","turnId":%q,"questionId":%q,"question":%s`, s.turnID, id.New(), q)
		}
	}
	parts := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"x"},`, n), ",") + "]"
	}
	options := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"id":"o%d","label":"L","value":1}`, i))
		}
		return `{"prompt":[],"answer":{"type":"choice","options":[` + strings.Join(all, ",") + `]}}`
	}
	option := func(o string) string { return `{"prompt":[],"answer":{"type":"choice","options":[` + o + `]}}` }
	cases := []operation{
		{"02.9", "output that is no array", "invalid_arguments", output(`{}`)},
		{"02.9", "output of more than 256 KiB", "content_limit_exceeded", output(`[{"type":"text","text":"` + strings.Repeat("x", 256<<10) + `"}]`)},
		{"02.9", "output of 65 parts", "content_limit_exceeded", output(parts(65))},
		{"02.9", "output of an unknown kind", "content_kind_unsupported", output(`[{"type":"image"}]`)},
		{"02.9", "output with a field too many", "invalid_arguments", output(`[{"type":"text","text":"x","more":1}]`)},
		{"03.12", "output of another Turn", "output_closed", func(*scene) string { return fmt.Sprintf(`"type":"output","turnId":%q,"content":[]`, id.New()) }},
		{"06.1", "a Question of 65 parts", "content_limit_exceeded", question(`{"prompt":` + parts(65) + `,"answer":{"type":"text"}}`)},
		{"06.1", "a Question of more than 256 KiB", "content_limit_exceeded", question(`{"prompt":[{"type":"text","text":"` + strings.Repeat("x", 256<<10) + `"}],"answer":{"type":"text"}}`)},
		{"06.1", "a text control with more fields", "invalid_arguments", question(`{"prompt":[],"answer":{"type":"text","multiple":true}}`)},
		{"06.1", "a control that is none", "invalid_arguments", question(`{"prompt":[],"answer":{"type":"slider"}}`)},
		{"06.2", "no option", "invalid_arguments", question(options(0))},
		{"06.2", "101 options", "content_limit_exceeded", question(options(101))},
		{"06.2", "two options of one id", "invalid_arguments", question(option(`{"id":"a","label":"A","value":1},{"id":"a","label":"B","value":2}`))},
		{"06.2", "an empty id", "invalid_arguments", question(option(`{"id":"","label":"A","value":1}`))},
		{"06.2", "an id of 129 bytes", "content_limit_exceeded", question(option(`{"id":"` + strings.Repeat("x", 129) + `","label":"A","value":1}`))},
		{"06.2", "a label of 257 bytes", "content_limit_exceeded", question(option(`{"id":"a","label":"` + strings.Repeat("x", 257) + `","value":1}`))},
		{"06.2", "a description of 2049 bytes", "content_limit_exceeded", question(option(`{"id":"a","label":"A","value":1,"description":"` + strings.Repeat("x", 2049) + `"}`))},
		{"06.4", "a choice that cannot be answered", "content_limit_exceeded", question(option(`{"id":"a","label":"A","value":"` + strings.Repeat("x", 64<<10) + `"}`))},
		{"06.8", "a Question without a proper id", "invalid_arguments", func(s *scene) string {
			return fmt.Sprintf(`"type":"question","turnId":%q,"questionId":"q","question":%s`, s.turnID, textQuestion)
		}},
		{"05.11", "an unknown Message", "message_closed", func(s *scene) string {
			return fmt.Sprintf(`"type":"message_started","turnId":%q,"messageId":%q`, s.turnID, id.New())
		}},
		{"03.16", "an abort that nobody asked for", "invalid_arguments", func(s *scene) string {
			return fmt.Sprintf(`"type":"turn_aborted","turnId":%q,"settled":true`, s.turnID)
		}},
		{"03.9", "an operation that is none", "invalid_arguments", func(s *scene) string { return fmt.Sprintf(`"type":"sudo","turnId":%q`, s.turnID) }},
	}
	eachCase(t, cases, func(c operation) string { return c.rule + " " + c.code + ": " + c.what }, func(w *world, c operation) {
		s := runningOf("echo")(w)
		before := len(w.kinds(s.sessionID))
		if got := s.h.op(s.p, "%s", c.line(s)); got != c.code {
			w.t.Errorf("answered %q", got)
		}
		if v := w.turn(s.sessionID, s.turnID); v.Status != string(turn.Running) || len(w.kinds(s.sessionID)) != before {
			w.t.Errorf("the Turn is %s after %v", v.Status, w.kinds(s.sessionID))
		}
		if s.result(); w.turn(s.sessionID, s.turnID).Status != string(turn.Finalizing) {
			w.t.Error("it did not go on")
		}
	})
}

func (w *world) tryResume(sessionID, holdID string) error {
	_, err := w.turns.Resume(w.t.Context(), w.env, w.by, sessionID, holdID, "k")
	return err
}

func (w *world) closedSession() api.SessionCreateReceipt {
	w.t.Helper()
	r := w.create("echo", "x")
	w.interrupt(r.SessionID)
	w.close(r.SessionID)
	return r
}

// emptyEnvironment adds an Environment that nothing was deployed to.
func emptyEnvironment(w *world) string {
	w.t.Helper()
	env := id.New()
	w.exec(`INSERT INTO environments (id, project_id, slug, name, color_hex, is_default, history_retention_mode, max_resident_computers, max_cpu_millis, max_memory_bytes,
		max_reserved_storage_bytes, max_outstanding_admissions, max_causal_depth, admission_rate_per_second, admission_burst, preparation_timeout_ms, created_at, updated_at)
		SELECT ?, project_id, ?, 'empty', color_hex, 0, 'keep', 1000, 1000000, 1000000000000000, 1000000000000000, 1000, 16, 100, 100, 1, 0, 0 FROM environments WHERE id = ?`, env, env, w.env)
	return env
}
