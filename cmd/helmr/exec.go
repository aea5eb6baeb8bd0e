package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

func (a *app) computerExec() *cobra.Command {
	var which computerFlags
	var req api.CommandCreateRequest
	var set []string
	var stdin string
	var detach bool
	c := &cobra.Command{
		Use:   "exec --id ID|--key KEY -- COMMAND...",
		Short: "Run a command on a computer",
		Long: `Runs a command on a computer, starting the computer if it must. What the command writes to stdout and stderr comes out
here on the same, byte for byte, and the exit status is the command's own. Ctrl-C stops watching, not the command.

The command and everything it started end together: a program left in the background ends with it.`,
		Example: `  helmr computer exec --key repo:42 -- npm test
  helmr computer exec --key repo:42 --cwd /app --set-env CI=1 --timeout 20m -- make check
  helmr computer exec --key repo:42 --stdin script.sh -- sh
  helmr computer exec --key repo:42 --detach -- ./long-job`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash < 0 && len(args) > 0:
				return usageErrorf("put -- before the command: %s --key KEY -- %s", cmd.CommandPath(), strings.Join(args, " "))
			case dash > 0:
				return usageErrorf("%q stands before --: name the computer with --id or --key", args[0])
			case len(args) == 0:
				return usageErrorf("%s needs a command after --", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(cmd, nil); err != nil {
				return err
			}
			if err := execRequest(cmd, &req, args, set, stdin); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			computerID, err := which.find(cmd, c)
			if err != nil {
				return err
			}
			receipt, err := c.CreateCommand(cmd.Context(), computerID, req)
			if err != nil {
				return err
			}
			if detach {
				return a.show(cmd, receipt, func(w *text) { w.line("%s", receipt.CommandID) })
			}
			return a.watch(cmd, c, receipt.CommandID, computerID)
		},
	}
	which.register(c)
	f := c.Flags()
	f.StringVar(&req.Cwd, "cwd", "", "working directory (default: that of the image)")
	f.StringArrayVar(&set, "set-env", nil, "a variable as NAME=value; may be repeated")
	f.StringVar(&stdin, "stdin", "", "file to give the command as its input; - is stdin (default: no input)")
	f.StringVar(&req.Timeout, "timeout", "", "end the command after this long: 30s, 20m, at most 24h (default: 5m)")
	f.StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating this with the same key runs nothing again but shows the same command")
	f.BoolVar(&detach, "detach", false, "print the command's ID and leave it alone")
	return c
}

// execRequest fills the request from flags and arguments.
func execRequest(cmd *cobra.Command, req *api.CommandCreateRequest, args, set []string, stdin string) error {
	req.Command = args
	for _, s := range set {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return usageErrorf("--set-env %q is not NAME=value", s)
		}
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env[name] = value
	}
	if req.Timeout != "" {
		if _, err := parseDuration("--timeout", req.Timeout); err != nil {
			return err
		}
	}
	if req.IdempotencyKey == "" {
		req.IdempotencyKey = "exec-" + rand.Text() // so that a request whose answer is lost can be sent again
	}
	if stdin == "" {
		return nil
	}
	var raw []byte
	var err error
	if stdin == "-" {
		raw, err = io.ReadAll(cmd.InOrStdin())
	} else {
		raw, err = os.ReadFile(stdin)
	}
	if err != nil {
		return usageErrorf("--stdin: %v", cause(err))
	}
	req.StdinBase64 = base64.StdEncoding.EncodeToString(raw)
	return nil
}

// watch shows what a command writes until its end and takes over its exit status.
func (a *app) watch(cmd *cobra.Command, c *client.Client, commandID, computerID string) error {
	ctx := cmd.Context()
	said := make(chan struct{})
	begun, stop := context.WithCancel(ctx)
	go func() {
		defer close(said)
		a.sayWait(begun, cmd, c, commandID, computerID)
	}()
	p := &outputPrinter{app: a, cmd: cmd, began: func() { stop(); <-said }}
	err := p.follow(ctx, c, commandID)
	stop()
	<-said
	if err == nil {
		var k api.Command
		if k, err = c.WaitCommand(ctx, commandID); err == nil {
			return a.settled(cmd, k)
		}
	}
	if ctx.Err() != nil {
		leaveCommand(cmd, commandID, p.after)
		return exitError{status: exitFailed}
	}
	return err
}

// settled ends the program as the command ended.
func (a *app) settled(cmd *cobra.Command, k api.Command) error {
	if a.flags.json {
		if err := printLine(cmd.OutOrStdout(), k); err != nil {
			return err
		}
	}
	if code := k.Outcome.ExitCode; code != nil {
		if *code == 0 {
			return nil
		}
		return exitError{status: int(*code)}
	}
	return exitError{exitFailed, "command " + k.ID + ": " + outcomeText(k.Outcome)}
}

// outcomeText says how a command ended that did not exit by itself.
func outcomeText(o *api.CommandOutcome) string {
	switch o.Kind {
	case "exited":
		return fmt.Sprintf("exited with %d", *o.ExitCode)
	case "timed_out":
		return "timed out (--timeout gives it longer)"
	case "system_failed":
		if o.Failure != nil && o.Failure.Message != "" {
			return clean(o.Failure.Reason + ": " + o.Failure.Message)
		}
		return o.Failure.Reason
	}
	return o.Kind
}

func leaveCommand(cmd *cobra.Command, commandID, after string) {
	from := ""
	if after != "" {
		from = " --after " + after
	}
	cmd.PrintErrf("\nStopped watching; the command goes on. Look again:\n  helmr command logs %s --follow%s\nTo stop the command itself:\n  helmr command cancel %s\n", commandID, from, commandID)
}

// A command that has not begun says why after execPatience, and again when the reason changes.
const (
	execPatience = 2 * time.Second
	execAgain    = 5 * time.Second
)

// sayWait says what a command waits for until ctx ends.
func (a *app) sayWait(ctx context.Context, cmd *cobra.Command, c *client.Client, commandID, computerID string) {
	said := ""
	for look := time.NewTimer(execPatience); ; look.Reset(execAgain) {
		select {
		case <-ctx.Done():
			look.Stop()
			return
		case <-look.C:
		}
		k, err := c.GetCommand(ctx, commandID)
		if err != nil || k.Status != "pending" {
			continue
		}
		m, err := c.GetComputer(ctx, computerID)
		if err != nil {
			continue
		}
		why := "its computer is " + m.Residency
		switch {
		case m.Error != nil:
			why = "its computer cannot run: " + clean(m.Error.Code+": "+m.Error.Message)
		case m.ExecutionWait != nil && waitReasons[*m.ExecutionWait] != "":
			why = waitReason(ctx, c, m)
		}
		if why != said && ctx.Err() == nil {
			a.progress(cmd, "the command has not begun: %s", why)
			said = why
		}
	}
}

// outputPrinter writes what a command wrote, each stream where it belongs.
type outputPrinter struct {
	app   *app
	cmd   *cobra.Command
	after string // cursor of the last record written
	began func() // called before the first record; may be nil
}

// follow writes records until the last one.
func (p *outputPrinter) follow(ctx context.Context, c *client.Client, commandID string) error {
	for r, err := range c.StreamCommandLogs(ctx, commandID, p.after) {
		if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "command_output_unavailable" {
			p.app.progress(p.cmd, "%s", e.Message)
			return nil // how the command ended is known all the same
		}
		if err != nil {
			return fmt.Errorf("follow command %s: %w", commandID, err)
		}
		if err := p.print(r); err != nil {
			return err
		}
	}
	return nil
}

func (p *outputPrinter) print(r api.CommandLogRecord) error {
	if p.began != nil {
		p.began()
		p.began = nil
	}
	p.after = r.Cursor
	if p.app.flags.json {
		return printLine(p.cmd.OutOrStdout(), r)
	}
	if r.Kind == "gap" {
		p.cmd.PrintErrf("[helmr: pieces %s to %s of %s are lost]\n", r.FromSequence, r.ThroughSequence, r.Stream)
		return nil
	}
	out := p.cmd.OutOrStdout()
	if r.Stream == "stderr" {
		out = p.cmd.ErrOrStderr()
	}
	if _, err := out.Write(r.Content); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// all writes the records that are there, page by page.
func (p *outputPrinter) all(page func(after string) (api.CommandLogPage, error)) error {
	for {
		logs, err := page(p.after)
		if err != nil {
			return err
		}
		for _, r := range logs.Logs {
			if err := p.print(r); err != nil {
				return err
			}
		}
		if logs.NextCursor == "" {
			return nil
		}
	}
}
