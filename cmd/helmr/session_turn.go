package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client/api"
)

func (a *app) turnCommand() *cobra.Command {
	return groupCommand("turn", "See the turns of a session",
		"  helmr session turn list SESSION\n  helmr session turn wait SESSION TURN --timeout 2m", a.turnList(), a.turnGet(), a.turnWait(), a.turnSend(), a.questionCommand())
}

func (a *app) turnList() *cobra.Command {
	var page pageFlags
	c := &cobra.Command{
		Use: "list SESSION", Short: "List the turns of a session, oldest first", Example: "  helmr session turn list SESSION\n  helmr session turn list SESSION --json",
		Args: oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			found, err := c.ListTurns(cmd.Context(), args[0], page.cursor, page.limit)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("#", "ID", "STATUS", "CREATED", "TOOK", "INPUT", "RESULT")
				for _, t := range found.Turns {
					outcome := compact(t.Result)
					if t.Error != nil {
						outcome = t.Error.Code
					}
					w.row(t.Sequence, t.ID, t.Status, when(t.CreatedAt), took(t), brief(clean(contentText(t.Input)), 40), brief(clean(outcome), 40))
				}
			})
		},
	}
	page.register(c)
	return c
}

// took gives how long a Turn ran, "" while that is unknown.
func took(t api.Turn) string {
	if t.StartedAt == nil || t.TerminalAt == nil {
		return ""
	}
	return t.TerminalAt.Sub(t.StartedAt.Time).Round(time.Millisecond).String()
}

// sessionAndTurn are the arguments of commands about one Turn.
func sessionAndTurn(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usageErrorf("%s needs the ID of a session and the ID of one of its turns", cmd.CommandPath())
	}
	if err := checkID("session", args[0]); err != nil {
		return err
	}
	return checkID("turn", args[1])
}

func (a *app) turnGet() *cobra.Command {
	return &cobra.Command{
		Use: "get SESSION TURN", Short: "Show a turn", Example: "  helmr session turn get SESSION TURN --json", Args: sessionAndTurn,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.GetTurn(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return a.show(cmd, t, func(w *text) {
				w.field("id", t.ID)
				w.field("session", t.SessionID)
				w.field("sequence", t.Sequence)
				w.field("status", t.Status)
				w.field("created", when(t.CreatedAt))
				w.field("started", whenOpt(t.StartedAt))
				w.field("ended", whenOpt(t.TerminalAt))
				w.field("took", took(t))
				w.field("input", brief(clean(contentText(t.Input)), 2000))
				w.field("response", brief(clean(contentText(t.Response)), 2000))
				w.field("result", clean(compact(t.Result)))
				if t.Error != nil {
					w.field("error", brief(clean(t.Error.Code+" "+t.Error.Message), 2000))
				}
				w.field("save", t.CompletionSaveID)
			})
		},
	}
}

// outcome is what became of a Turn, for turn wait.
type outcome struct {
	Status           string         `json:"status"`
	Result           any            `json:"result,omitempty"`
	Response         any            `json:"response,omitempty"`
	Error            *api.TurnError `json:"error,omitempty"`
	PayloadExpiredAt *api.Time      `json:"payload_expired_at,omitempty"`
}

func (a *app) turnWait() *cobra.Command {
	var timeout string
	c := &cobra.Command{
		Use:   "wait SESSION TURN",
		Short: "Wait until a turn has ended, and print what became of it",
		Long: `Waits until the turn has ended and prints {"status":"settled","outcome":{...}}. If --timeout passes first it prints
{"status":"timeout"} and exits with 124. It exits with 0 if the turn completed, with 1 if it ended otherwise.`,
		Example: "  helmr session turn wait SESSION TURN --timeout 2m",
		Args:    sessionAndTurn,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, outer := cmd.Context(), cmd.Context()
			if timeout != "" {
				d, err := parseDuration("--timeout", timeout)
				if err != nil {
					return err
				}
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, d)
				defer cancel()
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.WaitTurn(ctx, args[0], args[1])
			switch {
			case err != nil && outer.Err() != nil:
				cmd.PrintErrf("\nStopped waiting; the turn goes on. Wait again:\n  helmr session turn wait %s %s\nTo stop the work itself:\n  helmr session cancel %s\n",
					args[0], args[1], args[0])
				return exitError{status: exitFailed}
			case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
				if err := printJSON(cmd.OutOrStdout(), map[string]string{"status": "timeout"}); err != nil {
					return err
				}
				return exitError{status: exitTimedOut}
			case err != nil:
				return err
			}
			o := outcome{Status: t.Status, Error: t.Error, PayloadExpiredAt: t.PayloadExpiredAt}
			if len(t.Result) > 0 {
				o.Result = t.Result
			}
			if len(t.Response) > 0 {
				o.Response = t.Response
			}
			if err := printJSON(cmd.OutOrStdout(), map[string]any{"status": "settled", "outcome": o}); err != nil {
				return err
			}
			if t.Status != "completed" {
				return exitError{status: exitFailed}
			}
			return nil
		},
	}
	c.Flags().StringVar(&timeout, "timeout", "", "give up after this long: 30s, 5m (default: wait as long as it takes)")
	return c
}
