package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

// follower shows the events of a Session as they happen.
type follower struct {
	app       *app
	cmd       *cobra.Command
	client    *client.Client
	sessionID string
	turnID    string // the Turn whose end is waited for; "" follows until the Session has ended
	after     int64  // the last event seen
	printer   *eventPrinter
	// interactive says that a person sits at the terminal: Questions are asked there.
	interactive bool
	asker       *asker
}

func (a *app) follower(cmd *cobra.Command, c *client.Client, sessionID, turnID string, after int64) *follower {
	return &follower{app: a, cmd: cmd, client: c, sessionID: sessionID, turnID: turnID, after: after, printer: newEventPrinter(cmd.OutOrStdout()),
		interactive: !a.flags.json && isTerminal(cmd.InOrStdin()) && isTerminal(cmd.ErrOrStderr())}
}

// run shows events until the followed Turn is terminal (an error if it did not complete) or the Session has ended. A
// Turn that stays queued says why; behind a hold it would wait for ever, which is an error. When the context ends first,
// run says that the work goes on and how to look again.
func (f *follower) run(ctx context.Context) error {
	streaming, stop := context.WithCancel(ctx)
	defer stop()
	f.asker = newAsker(f)
	defer f.asker.stop()
	stream := f.stream(streaming)
	queued := f.turnID != ""
	look, said := time.NewTimer(queuedPatience), ""
	defer look.Stop()
	for {
		select {
		case s, ok := <-stream:
			if !ok || (s.err != nil && ctx.Err() != nil) {
				return f.ended(ctx)
			}
			if s.err != nil {
				f.printer.endOutput()
				return fmt.Errorf("follow session %s: %w", f.sessionID, s.err)
			}
			if done, err := f.take(s.event); done || err != nil {
				return err
			}
			f.asker.see(s.event)
			if own := s.event.TurnID != nil && *s.event.TurnID == f.turnID; own && s.event.Kind == "turn.running" {
				queued = false
			}
			if queued && (s.event.Kind == "session.held" || s.event.Kind == "session.interrupt") {
				if err := f.held(ctx); err != nil {
					return err
				}
			}
		case line := <-f.asker.typed():
			f.asker.answer(ctx, line)
		case <-look.C:
			if !queued {
				continue
			}
			if err := f.held(ctx); err != nil {
				return err
			}
			if why := f.waitsFor(ctx); why != "" && why != said {
				f.printer.endOutput()
				f.app.progress(f.cmd, "%s", why)
				said = why
			}
			look.Reset(queuedAgain)
		}
	}
}

// streamed is an event, or why there are no more.
type streamed struct {
	event api.Event
	err   error
}

// stream follows the Session until its end or that of ctx.
func (f *follower) stream(ctx context.Context) <-chan streamed {
	out := make(chan streamed)
	go func() {
		defer close(out)
		for e, err := range f.client.StreamEvents(ctx, f.sessionID, f.after) {
			select {
			case out <- streamed{e, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// take shows an event. done means that the followed Turn has ended; the error says that it did not complete.
func (f *follower) take(e api.Event) (done bool, err error) {
	f.after = e.Sequence
	if err := f.print(e); err != nil {
		return false, err
	}
	status := terminalStatus(e)
	if status == "" || f.turnID == "" || e.TurnID == nil || *e.TurnID != f.turnID {
		return false, nil
	}
	f.printer.endOutput()
	if status != "completed" {
		return true, exitError{exitFailed, fmt.Sprintf("turn %s: %s", status, turnErrorText(e.Data))}
	}
	return true, nil
}

// ended is the end of the Session or of the observation.
func (f *follower) ended(ctx context.Context) error {
	f.printer.endOutput()
	if ctx.Err() != nil {
		f.app.leave(f.cmd, f.sessionID, f.after)
		if err := f.asker.offer(); err != nil {
			return err
		}
		return exitError{status: exitFailed}
	}
	return nil
}

func (f *follower) print(e api.Event) error {
	if f.app.flags.json {
		return printLine(f.cmd.OutOrStdout(), e)
	}
	return f.printer.print(e)
}

// leave tells that ending an observation ends nothing else.
func (a *app) leave(cmd *cobra.Command, sessionID string, after int64) {
	cmd.PrintErrf("\nStopped watching; the work goes on. Look again:\n  helmr session events %s --follow --after %d\nTo stop the work itself:\n  helmr session interrupt %s\nTo end the session:\n  helmr session cancel %s\n",
		sessionID, after, sessionID, sessionID)
}

// terminalStatus gives the status a Turn ends in with this event, "" if it does not end.
func terminalStatus(e api.Event) string {
	switch e.Kind {
	case "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled":
		return strings.TrimPrefix(e.Kind, "turn.")
	}
	return ""
}

func turnErrorText(data json.RawMessage) string {
	var d struct {
		Error *api.TurnError `json:"error"`
	}
	if json.Unmarshal(data, &d) != nil || d.Error == nil {
		return "no reason was recorded"
	}
	if d.Error.Message == "" {
		return d.Error.Code
	}
	return d.Error.Code + ": " + d.Error.Message
}

// lastEvent finds the sequence of a Session's newest event in a number of requests that grows with its logarithm: a
// cursor beyond the newest one is refused.
func lastEvent(ctx context.Context, c *client.Client, sessionID string) (int64, error) {
	exists := func(after int64) (bool, error) {
		_, err := c.ListEvents(ctx, sessionID, after, 1)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "invalid_cursor" {
			return false, nil
		}
		if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "cursor_expired" {
			return true, nil // older than what is kept, so not beyond the newest
		}
		return err == nil, err
	}
	low, high := int64(0), int64(1)
	for {
		ok, err := exists(high)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		low, high = high, high*2
	}
	for high-low > 1 {
		mid := low + (high-low)/2
		ok, err := exists(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			low = mid
		} else {
			high = mid
		}
	}
	return low, nil
}

// eventPrinter writes events for people: a line each, and what an agent says as running text below its line.
type eventPrinter struct {
	out      io.Writer
	turns    map[string]int64 // Turn id -> its number, as far as seen
	failure  string           // what the last process said when it failed
	inOutput bool             // the last thing written was output
	atStart  bool             // in output: the next character starts a line
}

func newEventPrinter(out io.Writer) *eventPrinter {
	return &eventPrinter{out: out, turns: map[string]int64{}}
}

const indent = "    "

func (p *eventPrinter) print(e api.Event) error {
	if e.Kind == "turn.output" && p.inOutput {
		return p.write(p.running(contentText(e.Data)))
	}
	var b strings.Builder
	if p.inOutput && !p.atStart {
		b.WriteString("\n")
	}
	p.inOutput = false
	fmt.Fprintf(&b, "%s  %-17s", e.CreatedAt.Local().Format("15:04:05.000"), e.Kind)
	if s := p.describe(e); s != "" {
		b.WriteString("  " + s)
	}
	line := strings.ReplaceAll(strings.TrimRight(b.String(), " ")+"\n", "  \n", "\n")
	if e.Kind == "turn.output" {
		p.inOutput, p.atStart = true, true
		line += p.running(contentText(e.Data))
	}
	return p.write(line)
}

func (p *eventPrinter) write(s string) error {
	if _, err := io.WriteString(p.out, s); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// endOutput ends a line of output that is still open, so that what follows starts on its own.
func (p *eventPrinter) endOutput() {
	if p.inOutput && !p.atStart {
		_ = p.write("\n") // the next write tells
	}
	p.inOutput = false
}

// running indents text that goes on where the last one ended.
func (p *eventPrinter) running(s string) string {
	var b strings.Builder
	for _, r := range clean(s) {
		if p.atStart {
			b.WriteString(indent)
			p.atStart = false
		}
		b.WriteRune(r)
		if r == '\n' {
			p.atStart = true
		}
	}
	return b.String()
}

// describe gives what stands behind the kind of an event.
func (p *eventPrinter) describe(e api.Event) string {
	var d struct {
		Sequence   int64           `json:"sequence"`
		Input      json.RawMessage `json:"input"`
		Epoch      int64           `json:"epoch"`
		SaveID     string          `json:"save_id"`
		Result     json.RawMessage `json:"result"`
		Response   json.RawMessage `json:"response"`
		Error      *api.TurnError  `json:"error"`
		HoldID     string          `json:"hold_id"`
		Reason     string          `json:"reason"`
		Cause      string          `json:"cause"`
		Message    string          `json:"message"`
		MessageID  string          `json:"message_id"`
		QuestionID string          `json:"question_id"`
		Answer     json.RawMessage `json:"answer"`
		Question   struct {
			Prompt json.RawMessage `json:"prompt"`
		} `json:"question"`
		Failures int64 `json:"consecutive_failures"`
		Recovery struct {
			Kind   string `json:"kind"`
			Reason string `json:"reason"`
		} `json:"recovery"`
	}
	if len(e.Data) > 0 {
		_ = json.Unmarshal(e.Data, &d) // an event of an unknown shape is shown by its kind alone
	}
	turn := ""
	if e.TurnID != nil {
		if e.Kind == "turn.queued" {
			p.turns[*e.TurnID] = d.Sequence
		}
		if n, ok := p.turns[*e.TurnID]; ok {
			turn = fmt.Sprintf("#%d", n)
		}
	}
	var rest []string
	add := func(format string, args ...any) { rest = append(rest, fmt.Sprintf(format, args...)) }
	switch e.Kind {
	case "turn.queued":
		add("%q", brief(clean(contentText(d.Input)), 100))
	case "turn.running":
		if d.Recovery.Kind == "reconstructed" {
			add("in a new process (%s)", d.Recovery.Reason)
		}
	case "turn.completed":
		if len(d.Response) > 0 && string(d.Response) != "null" {
			add("response: %s", brief(clean(contentText(d.Response)), 2000))
		}
		if len(d.Result) > 0 {
			add("result: %s", clean(compact(d.Result)))
		}
	case "turn.failed", "turn.interrupted":
		add("%s", brief(clean(turnErrorText(e.Data)), 2000))
	case "question.created":
		add("%s  question %s", brief(clean(contentText(d.Question.Prompt)), 2000), d.QuestionID)
	case "question.responded":
		add("%s  question %s", brief(clean(compact(d.Answer)), 200), d.QuestionID)
	case "session.process_failed":
		add("%s (%d in a row)", d.Reason, d.Failures)
		if d.Message != "" && d.Message == p.failure {
			add("as before")
		} else if d.Message != "" {
			add("\n%s%s", indent, strings.ReplaceAll(strings.TrimSpace(clean(d.Message)), "\n", "\n"+indent))
		}
		p.failure = d.Message
	default:
		for _, s := range []string{d.Cause, d.Reason, d.HoldID, d.MessageID, d.QuestionID} {
			if s != "" {
				add("%s", clean(s))
			}
		}
	}
	return strings.TrimSpace(turn + "  " + strings.Join(rest, "  "))
}
