package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

const choiceControl = `{"type":"choice","options":[{"id":"main","label":"Main","value":{"ref":1}},{"id":"next","label":"next","value":2,"description":"in May"}]%s}`

func TestTypedAnswers(t *testing.T) {
	t.Parallel()
	main, next := `{"id":"main","value":{"ref":1}}`, `{"id":"next","value":2}`
	for _, c := range []struct{ flags, line, want string }{
		{"text", " the second one ", `"the second one"`},
		{"", "1", `{"selected":[` + main + `]}`},
		{"", "next", `{"selected":[` + next + `]}`},
		{"", "3", `! "3" is not an option: give a number from 1 to 2`},
		{"", "other", `! "other" is not an option: give a number from 1 to 2`},
		{"", "1 2", `! the question takes one option`},
		{`,"multiple":true`, "2, main", `{"selected":[` + main + `,` + next + `]}`},
		{`,"allowText":true`, "neither of them", `{"selected":[],"text":"neither of them"}`},
		{`,"allowText":true`, "2", `{"selected":[` + next + `]}`},
	} {
		control := fmt.Sprintf(choiceControl, c.flags)
		if c.flags == "text" {
			control = `{"type":"text"}`
		}
		parsed, err := parseControl(json.RawMessage(control))
		if err != nil {
			t.Fatal(err)
		}
		answer, problem := parsed.typed(c.line)
		got := string(answer)
		if problem != "" {
			got = "! " + problem
		}
		if got != c.want {
			t.Errorf("%q with %q: %s, want %s", c.line, c.flags, got, c.want)
		}
	}
}

func TestSpec_17_05_QuestionsAreShownWithTheirOptions(t *testing.T) {
	t.Parallel()
	got := describeQuestion(json.RawMessage(`[{"type":"text","text":"Which \u001b[2Jbranch?"}]`), json.RawMessage(fmt.Sprintf(choiceControl, "")))
	if want := "Which [2Jbranch?\n  1. Main (main)\n  2. next  in May"; got != want {
		t.Errorf("shown as %q, want %q", got, want)
	}
}

// talk is a server that streams what the test gives it and records responses.
type talk struct {
	mu        sync.Mutex
	responses []string
	events    chan string
	refuse    string // code of the next refusal
}

func (s *talk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/events/stream") {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for {
			_ = flush.Flush()
			select {
			case e, ok := <-s.events:
				if !ok {
					return
				}
				_, _ = io.WriteString(w, e)
			case <-r.Context().Done():
				return
			}
		}
	}
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	var req api.RespondRequest
	_ = json.Unmarshal(body, &req)
	parts := strings.Split(r.URL.Path, "/")
	s.responses = append(s.responses, parts[len(parts)-2]+" "+string(req.Answer))
	if s.refuse != "" {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, _ = fmt.Fprintf(w, `{"status":409,"code":%q,"detail":"no"}`, s.refuse)
		s.refuse = ""
		return
	}
	_, _ = io.WriteString(w, `{"status":"responded"}`)
}

func (s *talk) event(sequence int, kind, data string) {
	s.events <- fmt.Sprintf("id: %d\nevent: %s\ndata: {\"sequence\":%d,\"kind\":%q,\"turn_id\":\"t\",\"data\":%s,\"created_at\":\"2026-01-02T03:04:05.000Z\"}\n\n", sequence, kind, sequence, kind, data)
}

// watched is a writer on which a test waits for a text.
type watched struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	select {
	case w.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (w *watched) wait(t *testing.T, want string, n int) {
	t.Helper()
	for {
		w.mu.Lock()
		have := strings.Count(w.text.String(), want)
		w.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-w.more:
		case <-t.Context().Done():
			t.Fatalf("%q did not appear: %s", want, w.text.String())
		}
	}
}

func TestFollowTakesAnswersAtThePrompt(t *testing.T) {
	t.Parallel()
	s := &talk{events: make(chan string, 16)}
	srv := httptest.NewServer(s)
	defer srv.Close()
	stdin, keyboard := io.Pipe()
	errs := &watched{more: make(chan struct{}, 1)}
	cmd := &cobra.Command{}
	cmd.SetIn(stdin)
	cmd.SetOut(io.Discard)
	cmd.SetErr(errs)
	f := (&app{}).follower(cmd, client.New(srv.URL, "k"), "s", "t", 0)
	f.interactive = true
	done := make(chan error, 1)
	go func() { done <- f.run(t.Context()) }()
	question := func(id, control string) string {
		return fmt.Sprintf(`{"question_id":%q,"question":{"prompt":[{"type":"text","text":"Which?"}],"answer":%s}}`, id, control)
	}
	s.event(1, "question.created", question("q1", fmt.Sprintf(choiceControl, "")))
	s.event(2, "question.created", question("q2", `{"type":"text"}`))
	errs.wait(t, "Number> ", 1)
	_, _ = io.WriteString(keyboard, "\nfive\n2\n") // an empty line and one that fits nothing are asked again
	errs.wait(t, "Number> ", 3)
	s.event(3, "question.responded", `{"question_id":"q1","answer":1}`)
	errs.wait(t, "Answer> ", 1)
	s.mu.Lock()
	s.refuse = "question_already_responded"
	s.mu.Unlock()
	_, _ = io.WriteString(keyboard, "mine\n")
	errs.wait(t, "Too late", 1)
	s.event(4, "question.responded", `{"question_id":"q2","answer":"theirs"}`)
	s.event(5, "turn.completed", `{}`)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(s.responses, "\n"), `q1 {"selected":[{"id":"next","value":2}]}`+"\n"+`q2 "mine"`; got != want {
		t.Errorf("responses\n%s\nwant\n%s", got, want)
	}
}

func TestASecondCtrlCOffersToInterrupt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typed, want string }{{"y\n", "hold_id: h"}, {"\n", ""}} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/interrupt") {
				t.Errorf("request to %s", r.URL.Path)
			}
			_, _ = io.WriteString(w, `{"id":"i","session_id":"s","hold_id":"h","status":"accepted"}`)
		}))
		defer srv.Close()
		var out strings.Builder
		errs := &watched{more: make(chan struct{}, 1)}
		cmd := &cobra.Command{}
		cmd.SetIn(strings.NewReader(c.typed))
		cmd.SetOut(&out)
		cmd.SetErr(errs)
		f := (&app{}).follower(cmd, client.New(srv.URL, "k"), "s", "t", 0)
		f.asker = &asker{f: f, interrupts: make(chan os.Signal, 4)}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		done := make(chan error, 1)
		go func() { done <- f.ended(ctx) }()
		errs.wait(t, "Press Ctrl-C again", 1)
		f.asker.interrupts <- os.Interrupt
		<-done
		if got := out.String(); !strings.Contains(got, c.want) || (c.want == "" && got != "") {
			t.Errorf("after %q: %q", c.typed, got)
		}
	}
}
