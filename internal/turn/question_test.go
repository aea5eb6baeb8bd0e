package turn_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

const answerA = `{"selected":[{"id":"a","value":1}]}`

func TestSpec_06_07_AnAnswerReachesTheProcessThatWaits(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		first, second := h.ask(p, textQuestion), h.ask(p, pickQuestion)
		if got, want := w.data(r.SessionID, "question.created"), canonical([]byte(fmt.Sprintf(`{"question_id":%q,"question":%s}`, second, pickQuestion))); got != want {
			w.t.Errorf("question.created is %s, want %s", got, want)
		}
		q, err := w.respond(r.SessionID, r.TurnID, second, "r1", ` { "selected" : [ { "value" : 1.0, "id" : "a" } ] } `)
		w.must(err)
		if q.Status != "responded" || q.Prompt != nil || q.AnswerControl != nil || canonical(q.Answer) != answerA || q.RespondedByAPIKeyID != w.by.ID || q.RespondedByUserID != "" || q.RespondedAt == nil {
			w.t.Fatalf("receipt %+v", q)
		}
		if got, want := w.data(r.SessionID, "question.responded"), fmt.Sprintf(`{"answer":%s,"question_id":%q,"responded_by_api_key_id":%q}`, answerA, second, w.by.ID); got != want {
			w.t.Errorf("question.responded is %s, want %s", got, want)
		}
		h.exchange()
		want := fmt.Sprintf(`{"answer":%s,"questionId":%q,"respondedBy":{"id":%q,"kind":"api_key"},"turnId":%q,"type":"answer"}`, answerA, second, w.by.ID, r.TurnID)
		if got := canonical([]byte(p.controls["answer:"+second])); got != want {
			w.t.Fatalf("the process was told %s, want %s", got, want)
		}
		if len(p.told("answer")) != 1 || w.question(r.SessionID, r.TurnID, first).Status != "pending" {
			w.t.Error("the other Question is settled too")
		}
		by := api.Actor{Kind: "user", ID: id.New()}
		q, err = w.turns.Respond(w.t.Context(), w.env, by, r.SessionID, r.TurnID, first, api.RespondRequest{Answer: json.RawMessage(`"yes"`), ResponseID: "r1"})
		if w.must(err); q.RespondedByUserID != by.ID || q.RespondedByAPIKeyID != "" {
			w.t.Errorf("receipt of a user %+v", q)
		}
		if got := w.data(r.SessionID, "question.responded"); !strings.Contains(got, `"responded_by_user_id":"`+by.ID) {
			w.t.Errorf("question.responded of a user is %s", got)
		}
		h.finish(p, "1")
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "question.created", "question.created", "question.responded", "question.responded", "turn.finalizing", "turn.completed")
	})
}

// An answer is said until the Worker has passed it on, also over a new connection.
func TestSpec_06_07_AnAnswerIsSaidUntilItWasPassedOn(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		q := h.ask(p, textQuestion)
		_, err := w.respond(r.SessionID, r.TurnID, q, "r", `"yes"`)
		w.must(err)
		says := func() bool {
			for _, c := range h.exchange().GetControls() {
				if c.GetKey() == "answer:"+q {
					return true
				}
			}
			return false
		}
		if first, again := says(), says(); !first || !again {
			w.t.Fatal("the answer is not said again")
		}
		p.passed = []string{"answer:" + q}
		if says() {
			w.t.Fatal("the answer is said although it was passed on")
		}
		p.passed = nil // a new connection: what was passed on the old one is not known
		if !says() {
			w.t.Fatal("the answer is not said on a new connection")
		}
	})
}

func TestSpec_06_08_AQuestionAskedAgainIsOneQuestion(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		q := h.ask(p, textQuestion)
		reordered := `{"answer":{"type":"text"},"prompt":[{"text":"Which?","type":"text"}]}`
		for question, want := range map[string]string{textQuestion: "", reordered: "", pickQuestion: "idempotency_conflict"} {
			if got := h.op(p, `"type":"question","turnId":%q,"questionId":%q,"question":%s`, r.TurnID, q, question); got != want {
				w.t.Errorf("asked again with %s: %q, want %q", question, got, want)
			}
		}
		page, err := w.turns.ListQuestions(w.t.Context(), w.env, r.SessionID, r.TurnID, "", 10)
		if w.must(err); len(page.Questions) != 1 {
			w.t.Fatalf("%d Questions", len(page.Questions))
		}
		_, err = w.respond(r.SessionID, r.TurnID, q, "r", `"yes"`)
		w.must(err)
		if got := h.op(p, `"type":"question","turnId":%q,"questionId":%q,"question":%s`, r.TurnID, q, textQuestion); got != "" {
			w.t.Errorf("asked again after the answer: %q", got)
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "question.created", "question.responded")
	})
}

func TestSpec_06_01_WhatAQuestionMayNotBe(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		for question, want := range map[string]string{`{"prompt":[],"answer":{"type":"slider"}}`: "invalid_arguments", `{"prompt":[{"type":"image"}],"answer":{"type":"text"}}`: "content_kind_unsupported",
			`{"prompt":[{"type":"text","text":"` + strings.Repeat("x", 256<<10) + `"}],"answer":{"type":"text"}}`: "content_limit_exceeded", `null`: "invalid_arguments"} {
			if got := h.op(p, `"type":"question","turnId":%q,"questionId":%q,"question":%s`, r.TurnID, id.New(), question); got != want {
				w.t.Errorf("%.80s: %q, want %q", question, got, want)
			}
		}
		if got := h.op(p, `"type":"question","turnId":%q,"questionId":"q1","question":%s`, r.TurnID, textQuestion); got != "invalid_arguments" {
			w.t.Errorf("an id that is none: %q", got)
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.running")
	})
}

func TestSpec_03_11_QuestionsCountIntoTheBytesOfTheTurn(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		w.exec(`UPDATE turns SET output_bytes = ? WHERE id = ?`, 8<<20-len(textQuestion), r.TurnID)
		h.ask(p, textQuestion)
		if got := h.op(p, `"type":"question","turnId":%q,"questionId":%q,"question":%s`, r.TurnID, id.New(), textQuestion); got != "content_limit_exceeded" {
			w.t.Errorf("a Question above the limit: %q", got)
		}
		if got := h.op(p, `"type":"output","turnId":%q,"content":[]`, r.TurnID); got != "content_limit_exceeded" {
			w.t.Errorf("output above the limit: %q", got)
		}
	})
}

func TestSpec_06_06_AChildSessionCannotAsk(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		child, turnID := w.child(r.SessionID)
		h.finish(p, "1")
		cp := h.ready(child)
		h.exchange()
		if got := h.op(cp, `"type":"question","turnId":%q,"questionId":%q,"question":%s`, turnID, id.New(), textQuestion); got != "root_session_required" {
			w.t.Fatalf("a child asks: %q", got)
		}
	})
}

func TestSpec_06_08_NoQuestionAfterProcessingClosedOrAbort(t *testing.T) {
	t.Parallel()
	eachCase(t, endCases(map[string]func(w *world, h *host, p *proc){
		"processing closed": func(_ *world, h *host, p *proc) { h.op(p, `"type":"processing_closed","turnId":%q`, p.turnID) },
		"interrupt":         func(w *world, _ *host, p *proc) { w.interrupt(p.session) },
		"cancel":            func(w *world, _ *host, p *proc) { w.cancel(p.session) },
	}), endCase.String, func(w *world, c endCase) {
		r, h, p := w.running("echo")
		c.do(w, h, p)
		if got := h.op(p, `"type":"question","turnId":%q,"questionId":%q,"question":%s`, r.TurnID, id.New(), textQuestion); got != "question_cancelled" {
			w.t.Fatalf("asked: %q", got)
		}
		if got := h.op(p, `"type":"output","turnId":%q,"content":[]`, r.TurnID); got != "" {
			w.t.Fatalf("output is refused too: %q", got)
		}
	})
}

func TestSpec_06_05_AWithdrawnQuestionIsCancelled(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		q, answered := h.ask(p, textQuestion), h.ask(p, textQuestion)
		withdraw := func(questionID string) string {
			return h.op(p, `"type":"question_withdrawn","turnId":%q,"questionId":%q`, r.TurnID, questionID)
		}
		if got := withdraw(q) + withdraw(q); got != "" {
			w.t.Fatalf("withdrawal is refused: %s", got)
		}
		if v := w.question(r.SessionID, r.TurnID, q); v.Status != "cancelled" || v.CancelledAt == nil {
			w.t.Fatalf("question %+v", v)
		}
		_, err := w.respond(r.SessionID, r.TurnID, q, "r", `"late"`)
		w.wantCode(err, fault.QuestionCancelled)
		_, err = w.respond(r.SessionID, r.TurnID, answered, "r", `"first"`)
		w.must(err)
		if got := withdraw(answered); got != "question_already_responded" {
			w.t.Fatalf("a withdrawal after the answer: %q", got)
		}
		if got := withdraw(id.New()); got != "not_found" {
			w.t.Fatalf("a withdrawal of nothing: %q", got)
		}
		if len(p.told("question_cancelled")) != 0 || len(p.told("answer")) != 1 {
			w.t.Fatalf("the process was told %v", p.controls)
		}
		w.wantKinds(r.SessionID, "turn.queued", "turn.running", "question.created", "question.created", "question.cancelled", "question.responded")
	})
}

// The table "Responding", row by row.
func TestSpec_06_09_EachCaseOfAResponse(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		q := h.ask(p, pickQuestion)
		respond := func(by api.Actor, responseID, answer string) (api.Question, error) {
			return w.turns.Respond(w.t.Context(), w.env, by, r.SessionID, r.TurnID, q, api.RespondRequest{Answer: json.RawMessage(answer), ResponseID: responseID})
		}
		for _, bad := range []string{`"a"`, `{"selected":[]}`, `{"selected":[{"id":"a","value":2}]}`, `null`, ``} {
			_, err := respond(w.by, "r", bad)
			w.wantCode(err, fault.AnswerInvalid)
		}
		for _, bad := range []string{"", " \t\n", strings.Repeat("x", 513), "a\x00b", "\xff"} {
			_, err := respond(w.by, bad, answerA)
			w.wantCode(err, fault.BadRequest)
		}
		long := strings.Repeat("é", 256)
		first, err := respond(w.by, long, answerA)
		w.must(err)
		w.clock.advance(time.Minute)
		again, err := respond(w.by, long, `{"selected":[{"value":1e0,"id":"a"}]}`)
		if w.must(err); fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", first) {
			w.t.Errorf("the same response answers\n  %+v\nbefore\n  %+v", again, first)
		}
		_, err = respond(api.Actor{Kind: "user", ID: id.New()}, long, answerA)
		w.wantCode(err, fault.IdempotencyConflict)
		for _, other := range []string{`{"selected":[{"id":"b","value":{"x":[1.5]}}]}`, `not json`, `"a"`} {
			_, err = respond(w.by, long, other)
			w.wantCode(err, fault.IdempotencyConflict)
		}
		for _, answer := range []string{answerA, `"bad"`} {
			_, err = respond(w.by, "other", answer)
			w.wantCode(err, fault.QuestionAlreadyResponded)
		}
		h.finish(p, "1")
		again, err = respond(w.by, long, answerA)
		if w.must(err); again.Status != "responded" {
			w.t.Errorf("after the end: %+v", again)
		}
		_, err = w.respond(r.SessionID, r.TurnID, id.New(), "r", `"x"`)
		w.wantCode(err, fault.NotFound)
		_, err = w.respond(id.New(), r.TurnID, q, "r", `"x"`)
		w.wantCode(err, fault.NotFound)
	})
}

func TestSpec_06_07_AnAbortCancelsPendingQuestions(t *testing.T) {
	t.Parallel()
	eachCase(t, endCases(map[string]func(w *world, h *host, p *proc){
		"interrupt": func(w *world, _ *host, p *proc) { w.interrupt(p.session) },
		"cancel":    func(w *world, _ *host, p *proc) { w.cancel(p.session) },
		"deadline": func(w *world, _ *host, _ *proc) {
			w.clock.advance(2 * time.Second)
			w.run("turn.deadlines")
		},
		"deadline, before anybody noticed": func(w *world, _ *host, _ *proc) { w.clock.advance(2 * time.Second) },
		"shutdown": func(w *world, h *host, _ *proc) {
			_, err := w.computers.Heartbeat(w.t.Context(), w.worker, true)
			w.must(err)
			h.exchange()
		},
		"process lost": func(_ *world, h *host, p *proc) {
			p.exit()
			h.exchange()
		},
		"Computer lost": func(_ *world, h *host, _ *proc) {
			h.phase = workerpb.Phase_PHASE_LOST
			h.exchange()
		},
	}), endCase.String, func(w *world, c endCase) {
		r, h, p := w.running("quick")
		q, answered := h.ask(p, textQuestion), h.ask(p, textQuestion)
		_, err := w.respond(r.SessionID, r.TurnID, answered, "r", `"in time"`)
		w.must(err)
		c.do(w, h, p)
		_, err = w.respond(r.SessionID, r.TurnID, q, "r", `"late"`)
		w.wantCode(err, fault.QuestionCancelled)
		if v := w.question(r.SessionID, r.TurnID, answered); v.Status != "responded" || string(v.Answer) != `"in time"` {
			w.t.Errorf("the answered Question became %+v", v)
		}
		if strings.HasPrefix(c.name, "deadline, ") {
			return
		}
		if v := w.question(r.SessionID, r.TurnID, q); v.Status != "cancelled" || v.CancelledAt == nil {
			w.t.Errorf("question %+v", v)
		}
		if got := w.data(r.SessionID, "question.cancelled"); got != fmt.Sprintf(`{"question_id":%q}`, q) {
			w.t.Errorf("question.cancelled is %s", got)
		}
	})
}

func TestSpec_06_07_AnswerRacingWithInterrupt(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		for range 6 {
			r, h, p := w.running("echo")
			q := h.ask(p, textQuestion)
			var wg sync.WaitGroup
			var err error
			wg.Go(func() { w.interrupt(r.SessionID) })
			wg.Go(func() { _, err = w.respond(r.SessionID, r.TurnID, q, "r", `"yes"`) })
			wg.Wait()
			v := w.question(r.SessionID, r.TurnID, q)
			switch {
			case err == nil && v.Status == "responded" && len(w.data(r.SessionID, "question.cancelled")) == 0:
			case fault.Is(err, fault.QuestionCancelled) && v.Status == "cancelled" && len(w.data(r.SessionID, "question.responded")) == 0:
			default:
				w.t.Fatalf("answered with %v, the Question is %+v", err, v)
			}
			w.cancel(r.SessionID)
			h.op(p, `"type":"turn_aborted","turnId":%q,"settled":true`, r.TurnID)
		}
	})
}

func TestSpec_06_09_TwoClientsAnsweringGiveOneAnswer(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		q := h.ask(p, textQuestion)
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = w.respond(r.SessionID, r.TurnID, q, fmt.Sprint("r", i), fmt.Sprintf(`"%d"`, i)) })
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner < 0:
				winner = i
			case !fault.Is(err, fault.QuestionAlreadyResponded):
				w.t.Fatalf("response %d: %v", i, err)
			}
		}
		if v := w.question(r.SessionID, r.TurnID, q); string(v.Answer) != fmt.Sprintf(`"%d"`, winner) {
			w.t.Fatalf("response %d won, the answer is %s", winner, v.Answer)
		}
		h.exchange()
		if len(p.told("answer")) != 1 {
			w.t.Fatalf("the process was told %v", p.controls)
		}
	})
}

func TestSpec_16_09_QuestionsAreListedOldestFirst(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		r, h, p := w.running("echo")
		var asked []string
		for range 7 {
			asked = append(asked, h.ask(p, textQuestion))
		}
		_, err := w.respond(r.SessionID, r.TurnID, asked[1], "r", `"yes"`)
		w.must(err)
		var seen []string
		for cursor := ""; ; {
			page, err := w.turns.ListQuestions(w.t.Context(), w.env, r.SessionID, r.TurnID, cursor, 3)
			w.must(err)
			for _, q := range page.Questions {
				seen = append(seen, q.ID)
				if q.SessionID != r.SessionID || q.TurnID != r.TurnID || canonical(q.AnswerControl) != `{"type":"text"}` || len(q.Prompt) == 0 {
					w.t.Fatalf("question %+v", q)
				}
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if strings.Join(seen, " ") != strings.Join(asked, " ") {
			w.t.Fatalf("listed %v, asked %v", seen, asked)
		}
		for _, bad := range []string{"x", "-1"} {
			_, err := w.turns.ListQuestions(w.t.Context(), w.env, r.SessionID, r.TurnID, bad, 3)
			w.wantCode(err, fault.InvalidCursor)
		}
		_, err = w.turns.ListQuestions(w.t.Context(), w.env, r.SessionID, id.New(), "", 3)
		w.wantCode(err, fault.NotFound)
		other := w.create("echo", "other")
		_, err = w.turns.GetQuestion(w.t.Context(), w.env, other.SessionID, other.TurnID, asked[0])
		w.wantCode(err, fault.NotFound)
	})
}
