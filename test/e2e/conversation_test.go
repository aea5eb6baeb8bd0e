package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestConversations talks to running Turns on real sandboxes.
func TestConversations(t *testing.T) {
	t.Parallel()
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			h := start(t, kind)
			h.deploy("testdata/project")
			t.Run("messages reach the handler in order", func(t *testing.T) { messages(t, h) })
			t.Run("answers reach the handler", func(t *testing.T) { answers(t, h) })
			t.Run("a withdrawn question", func(t *testing.T) { withdrawn(t, h) })
			t.Run("interrupt while asking", func(t *testing.T) { interruptAsk(t, h) })
			t.Run("interrupt while piping", func(t *testing.T) { interruptPipe(t, h) })
			t.Run("send races with return", func(t *testing.T) { sendOrReturn(t, h) })
			t.Run("two clients answer", func(t *testing.T) { twoAnswers(t, h) })
			t.Run("an answer races with an interrupt", func(t *testing.T) { answerOrInterrupt(t, h) })
			t.Run("close with a held queue", func(t *testing.T) { closeHeld(t, h) })
			t.Run("a question outlives a kill", func(t *testing.T) { questionOverKill(t, h) })
		})
	}
}

// talk is what the talker returns.
type talk struct {
	Heard []string `json:"heard"`
	Which []struct {
		ID    string          `json:"id"`
		Value json.RawMessage `json:"value"`
	} `json:"which"`
	Why   string    `json:"why"`
	By    api.Actor `json:"by"`
	Asked string    `json:"asked"`
	Turns int       `json:"turns"`
}

func (h *helmr) talk(sessionID, turnID string) talk {
	h.t.Helper()
	v := h.settled(sessionID, turnID)
	if v.Status != "completed" {
		h.t.Fatalf("turn %s is %s: %+v\n%s", turnID, v.Status, v.Error, h.describe(sessionID))
	}
	var r talk
	if err := json.Unmarshal(v.Result, &r); err != nil {
		h.t.Fatalf("result %s: %v", v.Result, err)
	}
	return r
}

// await waits for the nth event of a kind in a Session.
func (h *helmr) await(sessionID, kind string, n int) []api.Event {
	h.t.Helper()
	var found []api.Event
	h.until(fmt.Sprintf("%s in %s", kind, sessionID), func() bool {
		found = nil
		for _, e := range h.events(sessionID) {
			if e.Kind == kind {
				found = append(found, e)
			}
		}
		return len(found) >= n
	})
	return found
}

func (h *helmr) questions(sessionID, turnID string, n int) []api.Question {
	h.t.Helper()
	h.await(sessionID, "question.created", n)
	page, err := h.ListQuestions(context.Background(), sessionID, turnID, "", 100)
	if err != nil {
		h.t.Fatalf("questions: %v", err)
	}
	return page.Questions
}

func messages(t *testing.T, h *helmr) {
	h = with(t, h)
	const n = 40
	r := h.create("talker", fmt.Sprint("collect ", n))
	h.await(r.SessionID, "turn.running", 1)
	var want []string
	for i := range n {
		data := strconv.Itoa(i)
		if i == 7 {
			if _, err := h.SendMessage(context.Background(), r.SessionID, r.TurnID, api.MessageRequest{Data: input("no")}); err != nil {
				t.Fatal(err)
			}
		}
		s, err := h.Send(context.Background(), r.SessionID, api.SendRequest{Data: input(data)})
		if err != nil || s.Kind != "messaged" || s.TurnID != r.TurnID {
			t.Fatalf("send %d: %+v %v", i, s, err)
		}
		want = append(want, data)
	}
	if got := h.talk(r.SessionID, r.TurnID); !slices.Equal(got.Heard, want) {
		t.Fatalf("heard %v", got.Heard)
	}
	counts := map[string]int{}
	for _, e := range h.events(r.SessionID) {
		counts[e.Kind]++
	}
	if counts["message.admitted"] != n+1 || counts["message.started"] != n+1 || counts["message.delivered"] != n || counts["message.rejected"] != 1 {
		t.Fatalf("events %v", counts)
	}
	_, err := h.SendMessage(context.Background(), r.SessionID, r.TurnID, api.MessageRequest{Data: input("late")})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "message_closed" {
		t.Fatalf("a Message to a Turn that is over: %v", err)
	}
}

func answers(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "ask")
	asked := h.questions(r.SessionID, r.TurnID, 2)
	if out, errs, code := h.command("session", "questions", r.SessionID); code != 0 || !strings.Contains(out, "Which branch?") || !strings.Contains(out, asked[1].ID) {
		t.Fatalf("session questions: %d %s %s", code, out, errs)
	}
	for i, flags := range [][]string{{"--select", "main"}, {"--text", "because"}} {
		args := append([]string{"session", "turn", "question", "respond", r.SessionID, r.TurnID, asked[i].ID}, flags...)
		if out, errs, code := h.command(args...); code != 0 || !strings.Contains(out, "responded") {
			t.Fatalf("respond %v: %d %s %s", flags, code, out, errs)
		}
	}
	got := h.talk(r.SessionID, r.TurnID)
	if len(got.Which) != 1 || got.Which[0].ID != "main" || string(got.Which[0].Value) != `{"ref":1}` || got.Why != "because" || got.By.Kind != "api_key" || got.By.ID == "" {
		t.Fatalf("the handler got %+v", got)
	}
}

func withdrawn(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "withdraw")
	if got := h.talk(r.SessionID, r.TurnID); got.Asked != "question_cancelled" {
		t.Fatalf("ask gave %q", got.Asked)
	}
	h.await(r.SessionID, "question.cancelled", 1)
}

// goesOn resumes a hold and checks that the same process serves the next Turn, its second.
func goesOn(t *testing.T, h *helmr, sessionID, holdID string) {
	t.Helper()
	next := h.enqueue(sessionID, "hello")
	if _, errs, code := h.command("session", "resume", sessionID, "--hold", holdID); code != 0 {
		t.Fatalf("resume: %s", errs)
	}
	if got := h.talk(sessionID, next); got.Turns != 2 {
		t.Fatalf("the next Turn was number %d of its process: it did not live on", got.Turns)
	}
}

func interruptAsk(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "ask")
	asked := h.questions(r.SessionID, r.TurnID, 2)
	receipt, err := h.InterruptSession(context.Background(), r.SessionID, api.ControlRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Respond(context.Background(), r.SessionID, r.TurnID, asked[1].ID, api.RespondRequest{Answer: json.RawMessage(`"late"`), ResponseID: "r"})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "question_cancelled" {
		t.Fatalf("an answer after the interrupt: %v", err)
	}
	if v := h.settled(r.SessionID, r.TurnID); v.Status != "interrupted" || v.Error.Code != "interrupted" {
		t.Fatalf("turn %+v", v)
	}
	goesOn(t, h, r.SessionID, receipt.HoldID)
}

func interruptPipe(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "pipe")
	h.await(r.SessionID, "turn.output", 5)
	receipt, err := h.InterruptSession(context.Background(), r.SessionID, api.ControlRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if v := h.settled(r.SessionID, r.TurnID); v.Status != "interrupted" {
		t.Fatalf("turn %+v", v)
	}
	var all strings.Builder
	for _, e := range h.events(r.SessionID) {
		var parts []struct {
			Text string `json:"text"`
		}
		if e.Kind == "turn.output" && json.Unmarshal(e.Data, &parts) == nil {
			for _, p := range parts {
				all.WriteString(p.Text)
			}
		}
	}
	for i, n := range strings.Fields(all.String()) {
		if n != strconv.Itoa(i) {
			t.Fatalf("fragment %d is %s: one was lost or came out of order", i, n)
		}
	}
	goesOn(t, h, r.SessionID, receipt.HoldID)
}

func sendOrReturn(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "collect 1")
	h.await(r.SessionID, "turn.running", 1)
	turns := []string{r.TurnID}
	for range 30 { // the first of them ends the Turn; the others come before, at or after its end
		s, err := h.Send(context.Background(), r.SessionID, api.SendRequest{Data: input("x")})
		if err != nil {
			t.Fatal(err)
		}
		if s.Kind == "enqueued" {
			turns = append(turns, s.TurnID)
		}
	}
	for _, turnID := range turns {
		if v := h.settled(r.SessionID, turnID); v.Status != "completed" {
			t.Fatalf("turn %+v\n%s", v, h.describe(r.SessionID))
		}
	}
	counts := map[string]int{}
	for _, e := range h.events(r.SessionID) {
		counts[e.Kind]++
	}
	if counts["message.admitted"]+len(turns)-1 != 30 || counts["message.delivered"]+counts["message.rejected"] != counts["message.admitted"] {
		t.Fatalf("events %v with %d Turns", counts, len(turns))
	}
}

func twoAnswers(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "ask")
	asked := h.questions(r.SessionID, r.TurnID, 2)
	errs := make(chan error, 2)
	for _, who := range []string{"one", "two"} {
		go func() {
			_, err := h.Respond(context.Background(), r.SessionID, r.TurnID, asked[1].ID, api.RespondRequest{Answer: json.RawMessage(strconv.Quote(who)), ResponseID: who})
			errs <- err
		}()
	}
	refused := 0
	for range 2 {
		if err := <-errs; err != nil {
			if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "question_already_responded" {
				t.Fatal(err)
			}
			refused++
		}
	}
	if refused != 1 {
		t.Fatalf("%d answers were refused", refused)
	}
	if _, err := h.Respond(context.Background(), r.SessionID, r.TurnID, asked[0].ID, api.RespondRequest{Answer: json.RawMessage(`{"selected":[{"id":"next","value":"n"}]}`), ResponseID: "r"}); err != nil {
		t.Fatal(err)
	}
	q, err := h.GetQuestion(context.Background(), r.SessionID, r.TurnID, asked[1].ID)
	if got := h.talk(r.SessionID, r.TurnID); err != nil || string(q.Answer) != strconv.Quote(got.Why) {
		t.Fatalf("the handler got %q, the Question says %s (%v)", got.Why, q.Answer, err)
	}
}

// answerOrInterrupt answers and interrupts at the same moment, again and again: whichever is first decides, and what the
// Question, the Turn and the receipts say agrees.
func answerOrInterrupt(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "ask")
	next := r.TurnID
	for round := range 6 {
		turnID := next
		asked := h.questions(r.SessionID, turnID, 2*(round+1)) // of all rounds; the page has this Turn's
		answered := make(chan error, 1)
		go func() {
			_, err := h.Respond(context.Background(), r.SessionID, turnID, asked[1].ID, api.RespondRequest{Answer: json.RawMessage(`"now"`), ResponseID: "r"})
			answered <- err
		}()
		receipt, err := h.InterruptSession(context.Background(), r.SessionID, api.ControlRequest{})
		if err != nil {
			t.Fatal(err)
		}
		q, qerr := h.GetQuestion(context.Background(), r.SessionID, turnID, asked[1].ID)
		switch err := <-answered; {
		case err == nil: // it came first, or just before the interrupt was read
			q, qerr = h.GetQuestion(context.Background(), r.SessionID, turnID, asked[1].ID)
			if qerr != nil || q.Status != "responded" || string(q.Answer) != `"now"` {
				t.Fatalf("round %d: the answer was accepted, the Question is %+v (%v)", round, q, qerr)
			}
		default:
			if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "question_cancelled" || qerr != nil || q.Status != "cancelled" {
				t.Fatalf("round %d: the answer was refused with %v, the Question is %+v", round, err, q)
			}
		}
		if v := h.settled(r.SessionID, turnID); v.Status != "interrupted" {
			t.Fatalf("round %d: turn %+v", round, v)
		}
		next = h.enqueue(r.SessionID, "ask")
		if _, err := h.ResumeSession(context.Background(), r.SessionID, api.ResumeRequest{HoldID: receipt.HoldID}); err != nil {
			t.Fatal(err)
		}
	}
}

// closeHeld closes a Session whose queue waits behind a hold: the blocked Turns are cancelled and nothing is left.
func closeHeld(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("talker", "ask")
	h.questions(r.SessionID, r.TurnID, 2)
	queued := []string{h.enqueue(r.SessionID, "later"), h.enqueue(r.SessionID, "never")}
	if _, err := h.InterruptSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CloseSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, turnID := range queued {
		if v := h.settled(r.SessionID, turnID); v.Status != "cancelled" {
			t.Fatalf("turn %+v", v)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	last := ""
	for e, err := range h.StreamEvents(ctx, r.SessionID, 0) { // ends by itself: the Session is released
		if err != nil {
			t.Fatal(err)
		}
		last = e.Kind
	}
	if s, err := h.GetSession(context.Background(), r.SessionID); err != nil || s.Status != "closed" || last != "session.process_stopped" {
		t.Fatalf("session %+v, last event %s, %v", s, last, err)
	}
}

// questionOverKill kills helmr while a handler waits for answers: the handler lives on and gets them afterwards.
func questionOverKill(t *testing.T, h *helmr) {
	outer := h.t // not a copy: the process is another afterwards
	h.t = t
	defer func() { h.t = outer }()
	r := h.create("talker", "ask")
	asked := h.questions(r.SessionID, r.TurnID, 2)
	respond := func(i int, answer string) {
		if _, err := h.Respond(context.Background(), r.SessionID, r.TurnID, asked[i].ID, api.RespondRequest{Answer: json.RawMessage(answer), ResponseID: "r"}); err != nil {
			t.Fatal(err)
		}
	}
	respond(1, `"before"`)
	h.kill()
	h.run()
	respond(0, `{"selected":[{"id":"main","value":{"ref":1}}]}`)
	if got := h.talk(r.SessionID, r.TurnID); got.Why != "before" || len(got.Which) != 1 || got.Turns != 1 {
		t.Fatalf("the handler got %+v", got)
	}
}
