package main

import (
	"context"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

func (a *app) sessionInterrupt() *cobra.Command {
	var req api.ControlRequest
	c := &cobra.Command{
		Use:   "interrupt ID",
		Short: "Abort what runs and hold the session until it is resumed",
		Long: `Aborts the running turns of the session and of the sessions below it, and holds their queues. A handler gets up to 10
seconds to clean up. The output names the hold; resuming it goes on with the next queued turn.`,
		Example: "  helmr session interrupt 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55",
		Args:    oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.interrupt(cmd.Context(), cmd, c, args[0], req)
		},
	}
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

// interrupt interrupts a Session and tells how to go on.
func (a *app) interrupt(ctx context.Context, cmd *cobra.Command, c *client.Client, sessionID string, req api.ControlRequest) error {
	receipt, err := c.InterruptSession(ctx, sessionID, req)
	if err != nil {
		return err
	}
	if err := a.show(cmd, receipt, func(w *text) {
		w.line("interrupt: %s", receipt.Status)
		w.line("hold_id: %s", receipt.HoldID)
	}); err != nil {
		return err
	}
	a.progress(cmd, "The session is held. To go on with the next queued turn:\n  helmr session resume %s --hold %s", sessionID, receipt.HoldID)
	return nil
}

// sessionQuestions shows what waits for an answer anywhere in a Session. Only a running Turn can ask.
func (a *app) sessionQuestions() *cobra.Command {
	return &cobra.Command{
		Use: "questions ID", Short: "Show the questions of a session that wait for an answer", Example: "  helmr session questions SESSION",
		Args: oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			pending, err := pendingQuestions(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return a.show(cmd, api.QuestionPage{Questions: pending}, func(w *text) {
				for _, q := range pending {
					w.line("%s", describeQuestion(q.Prompt, q.AnswerControl))
					w.line("Answer it:  helmr session turn question respond %s %s %s %s\n", q.SessionID, q.TurnID, q.ID, howToAnswer(q.AnswerControl))
				}
				if len(pending) == 0 {
					w.line("Nothing waits for an answer.")
				}
			})
		},
	}
}

func pendingQuestions(ctx context.Context, c *client.Client, sessionID string) ([]api.Question, error) {
	out := []api.Question{}
	for cursor := ""; ; {
		turns, err := c.ListTurns(ctx, sessionID, cursor, 100)
		if err != nil {
			return nil, err
		}
		for _, t := range turns.Turns {
			if t.Status != "running" {
				continue
			}
			if out, err = appendPending(ctx, c, sessionID, t.ID, out); err != nil {
				return nil, err
			}
		}
		if cursor = turns.NextCursor; cursor == "" {
			return out, nil
		}
	}
}

func appendPending(ctx context.Context, c *client.Client, sessionID, turnID string, out []api.Question) ([]api.Question, error) {
	for cursor := ""; ; {
		page, err := c.ListQuestions(ctx, sessionID, turnID, cursor, 100)
		if err != nil {
			return nil, err
		}
		for _, q := range page.Questions {
			if q.Status == "pending" {
				out = append(out, q)
			}
		}
		if cursor = page.NextCursor; cursor == "" {
			return out, nil
		}
	}
}
