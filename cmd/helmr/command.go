package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client/api"
)

func (a *app) commandCommand() *cobra.Command {
	return groupCommand("command", "See and stop commands that run on computers",
		"  helmr command logs COMMAND --follow\n  helmr command cancel COMMAND", a.commandGet(), a.commandWait(), a.commandLogs(), a.commandCancel())
}

func (a *app) commandGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a command", Example: "  helmr command get COMMAND\n  helmr command get COMMAND --json", Args: oneArg("the ID of a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("command", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.GetCommand(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.show(cmd, k, func(w *text) {
				w.field("id", k.ID)
				w.field("computer", k.ComputerID)
				w.field("status", k.Status)
				if k.Outcome != nil {
					w.field("outcome", outcomeText(k.Outcome))
					w.field("ended", when(k.Outcome.TerminalAt))
					w.field("processes gone", yesNo(k.ProcessReconciled))
				}
				w.field("created", when(k.CreatedAt))
			})
		},
	}
}

func (a *app) commandWait() *cobra.Command {
	var timeout string
	c := &cobra.Command{
		Use: "wait ID", Short: "Wait until a command has ended",
		Long: `Waits until a command has ended and prints its outcome. The exit status is 0 if it exited with 0, 1 if it ended in any
other way, 124 when the time is over. Neither the end of the wait nor Ctrl-C ends the command.`,
		Example: "  helmr command wait COMMAND\n  helmr command wait COMMAND --timeout 2m", Args: oneArg("the ID of a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("command", args[0]); err != nil {
				return err
			}
			outer := cmd.Context()
			ctx := outer
			if timeout != "" {
				d, err := parseDuration("--timeout", timeout)
				if err != nil {
					return err
				}
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(outer, d)
				defer cancel()
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			k, err := c.WaitCommand(ctx, args[0])
			switch {
			case err != nil && outer.Err() != nil:
				cmd.PrintErrf("\nStopped waiting; the command goes on. Wait again:\n  helmr command wait %s\nTo stop the command itself:\n  helmr command cancel %s\n", args[0], args[0])
				return exitError{status: exitFailed}
			case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
				if err := printJSON(cmd.OutOrStdout(), map[string]string{"status": "timeout"}); err != nil {
					return err
				}
				return exitError{status: exitTimedOut}
			case err != nil:
				return err
			}
			if err := printJSON(cmd.OutOrStdout(), map[string]any{"status": "settled", "outcome": k.Outcome}); err != nil {
				return err
			}
			if code := k.Outcome.ExitCode; code == nil || *code != 0 {
				return exitError{status: exitFailed}
			}
			return nil
		},
	}
	c.Flags().StringVar(&timeout, "timeout", "", "give up after this long: 30s, 5m (default: wait as long as it takes)")
	return c
}

func (a *app) commandLogs() *cobra.Command {
	var follow bool
	var after string
	c := &cobra.Command{
		Use: "logs ID", Short: "Show what a command wrote, stdout and stderr apart",
		Example: "  helmr command logs COMMAND\n  helmr command logs COMMAND --follow", Args: oneArg("the ID of a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("command", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			p := &outputPrinter{app: a, cmd: cmd, after: after}
			if follow {
				err := p.follow(cmd.Context(), c, args[0])
				if cmd.Context().Err() != nil {
					leaveCommand(cmd, args[0], p.after)
					return exitError{status: exitFailed}
				}
				return err
			}
			return p.all(func(after string) (api.CommandLogPage, error) {
				return c.ListCommandLogs(cmd.Context(), args[0], after, 100)
			})
		},
	}
	c.Flags().BoolVar(&follow, "follow", false, "go on until the command has written its last")
	c.Flags().StringVar(&after, "after", "", "go on after the record with this cursor")
	return c
}

func (a *app) commandCancel() *cobra.Command {
	var req api.ControlRequest
	c := &cobra.Command{
		Use: "cancel ID", Short: "Stop a command: it is asked to end, and killed after 10 seconds",
		Example: "  helmr command cancel COMMAND", Args: oneArg("the ID of a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("command", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			receipt, err := c.CancelCommand(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.show(cmd, receipt, func(w *text) { w.line("%s", receipt.Status) })
		},
	}
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}
