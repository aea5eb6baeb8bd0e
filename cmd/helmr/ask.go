package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/id"
)

// asker takes answers to Questions at the prompt of a person who follows a Session. Nobody is asked without a terminal:
// the nil asker does nothing.
type asker struct {
	f *follower
	// lines are what the person types; nil until the first Question, so that stdin is left alone before.
	lines   chan string
	waiting []asked
	// interrupts tells of Ctrl-C.
	interrupts chan os.Signal
}

// asked is a Question that waits for its answer.
type asked struct {
	turnID, id string
	prompt     json.RawMessage
	raw        json.RawMessage
	control    answerControl
	answered   bool // by us; the event has not come back yet
}

// newAsker gives the asker of a follower, nil if nobody sits there.
func newAsker(f *follower) *asker {
	if !f.interactive {
		return nil
	}
	a := &asker{f: f, interrupts: make(chan os.Signal, 4)}
	signal.Notify(a.interrupts, os.Interrupt)
	return a
}

// stop lets go of the signals.
func (a *asker) stop() {
	if a != nil {
		signal.Stop(a.interrupts)
	}
}

// typed gives what the person types.
func (a *asker) typed() <-chan string {
	if a == nil {
		return nil
	}
	return a.lines
}

// see takes note of an event that was shown.
func (a *asker) see(e api.Event) {
	if a == nil {
		return
	}
	var d struct {
		QuestionID string `json:"question_id"`
		Question   struct {
			Prompt json.RawMessage `json:"prompt"`
			Answer json.RawMessage `json:"answer"`
		} `json:"question"`
	}
	_ = json.Unmarshal(e.Data, &d) // an expired event has no data: nothing to ask
	switch e.Kind {
	case "question.created":
		control, err := parseControl(d.Question.Answer)
		if err != nil || e.TurnID == nil {
			return
		}
		a.waiting = append(a.waiting, asked{turnID: *e.TurnID, id: d.QuestionID, prompt: d.Question.Prompt, raw: d.Question.Answer, control: control})
		if len(a.waiting) == 1 {
			a.ask()
		}
	case "question.responded", "question.cancelled":
		a.drop(d.QuestionID)
	}
}

// drop forgets a Question that is settled and asks the next one.
func (a *asker) drop(questionID string) {
	i := slices.IndexFunc(a.waiting, func(q asked) bool { return q.id == questionID })
	if i < 0 {
		return
	}
	a.waiting = slices.Delete(a.waiting, i, i+1)
	if i == 0 && len(a.waiting) > 0 {
		a.ask()
	}
}

// ask shows the first Question that waits and the prompt.
func (a *asker) ask() {
	q := a.waiting[0]
	a.f.printer.endOutput()
	a.f.cmd.PrintErrf("\n%s\n", describeQuestion(q.prompt, q.raw))
	a.prompt()
	if a.lines == nil {
		a.lines = make(chan string)
		go a.read()
	}
}

func (a *asker) prompt() { a.f.cmd.PrintErrf("%s> ", a.waiting[0].control.hint()) }

// read gives lines for as long as the program runs; there is no way to stop waiting for a terminal.
func (a *asker) read() {
	lines := bufio.NewScanner(a.f.cmd.InOrStdin())
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		a.lines <- lines.Text()
	}
}

// answer takes a typed line as the answer to the first Question that waits.
func (a *asker) answer(ctx context.Context, line string) {
	if len(a.waiting) == 0 || a.waiting[0].answered {
		return
	}
	q := &a.waiting[0]
	if strings.TrimSpace(line) == "" {
		a.prompt()
		return
	}
	answer, problem := q.control.typed(line)
	if problem == "" {
		_, err := a.f.client.Respond(ctx, a.f.sessionID, q.turnID, q.id, api.RespondRequest{Answer: answer, ResponseID: id.New()})
		refused, _ := errors.AsType[*client.Error](err)
		switch {
		case err == nil:
			q.answered = true // the next one is asked when the event comes
			return
		case refused != nil && (refused.Code == "question_already_responded" || refused.Code == "question_cancelled"):
			a.f.cmd.PrintErrf("Too late: the question is settled.\n")
			q.answered = true
			return
		case refused != nil:
			problem = refused.Message
		default:
			problem = err.Error()
		}
	}
	a.f.cmd.PrintErrf("%s\n", problem)
	a.prompt()
}

// secondCtrlC is how long after the first Ctrl-C a second one counts as the wish to interrupt the work.
const secondCtrlC = 1500 * time.Millisecond

// offer is for a person who ends the observation with Ctrl-C and may have meant the work: pressed once more, it offers to
// interrupt that.
func (a *asker) offer() error {
	if a == nil {
		return nil
	}
	for len(a.interrupts) > 0 {
		<-a.interrupts
	}
	a.f.cmd.PrintErrf("Press Ctrl-C again to interrupt the work.\n")
	select {
	case <-a.interrupts:
	case <-time.After(secondCtrlC):
		return nil
	}
	a.f.cmd.PrintErrf("\nInterrupt what runs now and hold the session? [y/N] ")
	if a.lines == nil {
		a.lines = make(chan string)
		go a.read()
	}
	select {
	case line := <-a.lines:
		if yes := strings.ToLower(strings.TrimSpace(line)); yes != "y" && yes != "yes" {
			return nil
		}
	case <-a.interrupts:
		a.f.cmd.PrintErrf("\n")
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // the command's own has ended
	defer cancel()
	return a.f.app.interrupt(ctx, a.f.cmd, a.f.client, a.f.sessionID, api.ControlRequest{})
}
