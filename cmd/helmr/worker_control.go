package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/worker"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

const (
	drainTimeout = 30 * time.Minute
	// drainLooks is the pause between two looks at a Worker that is being drained.
	drainLooks = time.Second
)

// controls is how a command reaches one Worker: as its machine, or as a person.
type controls interface {
	status(ctx context.Context) (api.Worker, error)
	drain(ctx context.Context, timeout time.Duration) (api.Worker, error)
	activate(ctx context.Context) (api.Worker, error)
}

// worker gives the controls of the Worker with a name or id, or without one of this machine's own.
func (a *app) worker(ctx context.Context, args []string) (controls, error) {
	if len(args) == 0 {
		s, _, err := readSettings(a.getenv, ownWorkerSettings)
		if err != nil {
			return nil, hinted{fmt.Errorf("which worker? Name one (`helmr worker list`), or give this machine's settings:\n  %w", err), "docs/operations.md describes every setting"}
		}
		return ownWorker{s}, nil
	}
	c, err := a.ownerClient()
	if err != nil {
		return nil, err
	}
	w := namedWorker{c, args[0]}
	found, err := w.status(ctx)
	w.id = found.ID
	return w, err
}

// ownerClient gives a client with the saved login of the owner.
func (a *app) ownerClient() (*client.Client, error) {
	s, err := a.server()
	if err != nil {
		return nil, err
	}
	saved, err := a.logins()
	if err != nil {
		return nil, err
	}
	token := saved.Logins[s.url].OwnerToken
	if token == "" {
		return nil, hinted{fmt.Errorf("there is no login of a person for %s; workers belong to the installation, and an API key cannot manage them", s.url),
			"where the server's settings are, run: helmr server owner-token | helmr login " + s.url}
	}
	return client.New(s.url, token), nil
}

// namedWorker is a Worker as the API shows it to people.
type namedWorker struct {
	c  *client.Client
	id string // or the name
}

func (n namedWorker) status(ctx context.Context) (api.Worker, error) {
	for cursor := ""; ; {
		page, err := n.c.ListWorkers(ctx, cursor, 100)
		if err != nil {
			return api.Worker{}, err
		}
		for _, w := range page.Workers {
			if w.ID == n.id || w.Name == n.id {
				return w, nil
			}
		}
		if cursor = page.NextCursor; cursor == "" {
			return api.Worker{}, hinted{fmt.Errorf("there is no worker %q", n.id), "`helmr worker list` shows them"}
		}
	}
}

func (n namedWorker) drain(ctx context.Context, timeout time.Duration) (api.Worker, error) {
	return n.c.DrainWorker(ctx, n.id, api.WorkerDrainRequest{TimeoutMs: timeout.Milliseconds()})
}

func (n namedWorker) activate(ctx context.Context) (api.Worker, error) {
	return n.c.ActivateWorker(ctx, n.id)
}

// ownWorker is the Worker of this machine, which may speak for itself.
type ownWorker struct{ s settings }

func (o ownWorker) call(ctx context.Context, req *workerpb.ControlRequest) (api.Worker, error) {
	var w api.Worker
	url := o.s["HELMR_SERVER_URL"]
	resp, err := worker.Control(ctx, serverTransport(url), url, o.s["HELMR_WORKER_NAME"], o.s["HELMR_WORKER_WORK_DIR"], req)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return w, hinted{fmt.Errorf("no worker has enrolled from %s", o.s["HELMR_WORKER_WORK_DIR"]), "start it with `helmr worker`, or name a worker"}
	case fault.Is(err, fault.AuthenticationRequired):
		return w, hinted{fmt.Errorf("the server has given up the worker %q: it is lost", o.s["HELMR_WORKER_NAME"]), "it enrolls again when it runs"}
	case err != nil:
		return w, err
	}
	return w, json.Unmarshal(resp.GetWorker(), &w)
}

func (o ownWorker) status(ctx context.Context) (api.Worker, error) {
	return o.call(ctx, &workerpb.ControlRequest{})
}

func (o ownWorker) drain(ctx context.Context, timeout time.Duration) (api.Worker, error) {
	return o.call(ctx, &workerpb.ControlRequest{Action: workerpb.ControlRequest_ACTION_DRAIN, TimeoutMs: timeout.Milliseconds()})
}

func (o ownWorker) activate(ctx context.Context) (api.Worker, error) {
	return o.call(ctx, &workerpb.ControlRequest{Action: workerpb.ControlRequest_ACTION_ACTIVATE})
}

func (a *app) workerList() *cobra.Command {
	var page pageFlags
	c := &cobra.Command{
		Use: "list", Short: "List workers by name", Example: "  helmr worker list\n  helmr worker list --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.ownerClient()
			if err != nil {
				return err
			}
			found, err := c.ListWorkers(cmd.Context(), page.cursor, page.limit)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("NAME", "STATUS", "COMPUTERS", "CPU", "MEMORY", "DISK", "HEARD OF", "ID")
				for _, v := range found.Workers {
					w.row(v.Name, v.Status, v.Computers, decimal(v.Reserved.CPUMillis)+"/"+decimal(v.Capacity.CPUMillis),
						mebibytes(v.Reserved.MemoryMiB)+" / "+mebibytes(v.Capacity.MemoryMiB), mebibytes(v.Reserved.DiskMiB)+" / "+mebibytes(v.Capacity.DiskMiB),
						when(v.HeartbeatAt), v.ID)
				}
			})
		},
	}
	page.register(c)
	return c
}

func (a *app) workerStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status [WORKER]", Short: "Show a worker: the one with a name or id, or this machine's own",
		Long: `Shows one worker. Without WORKER it is this machine's own, found by HELMR_SERVER_URL, HELMR_WORKER_NAME and
HELMR_WORKER_WORK_DIR; with one it needs a login of the owner (helmr server owner-token).`,
		Example: "  helmr worker status\n  helmr worker status rack-7", Args: optionalArg("WORKER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.worker(cmd.Context(), args)
			if err != nil {
				return err
			}
			w, err := c.status(cmd.Context())
			if err != nil {
				return err
			}
			return a.showWorker(cmd, w)
		},
	}
}

func (a *app) showWorker(cmd *cobra.Command, v api.Worker) error {
	return a.show(cmd, v, func(w *text) {
		w.field("worker", v.Name)
		w.field("id", v.ID)
		w.field("status", v.Status)
		w.field("computers", v.Computers)
		w.field("running turns", v.RunningTurns)
		w.field("running commands", v.RunningCommands)
		w.field("cpu", decimal(v.Reserved.CPUMillis)+" of "+decimal(v.Capacity.CPUMillis))
		w.field("memory", mebibytes(v.Reserved.MemoryMiB)+" of "+mebibytes(v.Capacity.MemoryMiB))
		w.field("disk", mebibytes(v.Reserved.DiskMiB)+" of "+mebibytes(v.Capacity.DiskMiB))
		w.field("stops its work at", whenOpt(v.ShutdownAt))
		w.field("heard of", when(v.HeartbeatAt))
	})
}

func (a *app) workerDrain() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use: "drain [WORKER]", Short: "Empty a worker before its machine is stopped or upgraded",
		Long: `Keeps new computers off a worker and empties it: idle computers are saved and stopped, running turns and commands are
waited for. What still runs after --timeout is stopped in order: turns are aborted with "shutdown", commands cancelled,
disks saved. The command shows what is left and ends when the worker is ready for termination; only then its exit status
is 0. Ctrl-C ends the watching, not the drain: helmr worker activate ends that.

Without WORKER it is this machine's own; see helmr worker status.`,
		Example: "  helmr worker drain\n  helmr worker drain rack-7 --timeout 2h", Args: optionalArg("WORKER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 || (timeout > 0 && timeout < time.Millisecond) {
				return usageErrorf("--timeout must be a duration like 30m, or 0 to wait as long as it takes")
			}
			c, err := a.worker(cmd.Context(), args)
			if err != nil {
				return err
			}
			return a.drain(cmd, c, timeout)
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", drainTimeout, "how long running work is waited for; 0 as long as it takes")
	return c
}

// drain begins a drain and shows it until the Worker is empty.
func (a *app) drain(cmd *cobra.Command, c controls, timeout time.Duration) error {
	ctx := cmd.Context()
	w, err := c.drain(ctx, timeout)
	if err != nil {
		return err
	}
	said := ""
	for {
		if ctx.Err() != nil {
			return hinted{errors.New("you stopped watching; the drain goes on"), "`helmr worker status` shows it, `helmr worker activate` ends it"}
		}
		switch {
		case err != nil && !unreachable(err):
			return err
		case err != nil:
			if now := "the server does not answer; trying again"; now != said {
				said = now
				a.progress(cmd, "%s", now)
			}
		case w.Status == "termination_ready":
			return a.showWorker(cmd, w)
		case w.Status != "draining":
			return fmt.Errorf("the worker %q is %s: the drain has ended", w.Name, w.Status)
		default:
			if now := fmt.Sprintf("%s: %d computers left, %d turns and %d commands running", w.Name, w.Computers, w.RunningTurns, w.RunningCommands); now != said {
				said = now
				a.progress(cmd, "%s", now)
			}
		}
		timer := time.NewTimer(drainLooks)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() == nil {
			w, err = c.status(ctx)
		}
	}
}

// unreachable tells whether a call failed without an answer of the server.
func unreachable(err error) bool {
	if refused, ok := errors.AsType[*client.Error](err); ok {
		return refused.Status >= 500
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return false
	}
	_, hint := errors.AsType[hinted](err)
	return !hint
}

func (a *app) workerActivate() *cobra.Command {
	return &cobra.Command{
		Use: "activate [WORKER]", Short: "End a drain: the worker may get computers again", Example: "  helmr worker activate\n  helmr worker activate rack-7", Args: optionalArg("WORKER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.worker(cmd.Context(), args)
			if err != nil {
				return err
			}
			w, err := c.activate(cmd.Context())
			if err != nil {
				return err
			}
			return a.showWorker(cmd, w)
		},
	}
}

func (a *app) workerToken() *cobra.Command {
	return groupCommand("token", "Make and revoke the tokens with which workers enroll",
		"  helmr worker token create rack-7 > worker.token\n  helmr worker token list",
		a.workerTokenCreate(), a.workerTokenList(), a.workerTokenRevoke())
}

func (a *app) workerTokenCreate() *cobra.Command {
	return &cobra.Command{
		Use: "create NAME", Short: "Make an enrollment token and print it, once", Example: "  helmr worker token create rack-7 > worker.token", Args: oneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.ownerClient()
			if err != nil {
				return err
			}
			t, err := c.CreateWorkerToken(cmd.Context(), api.WorkerTokenCreateRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return a.show(cmd, t, func(w *text) { w.line("%s", t.Token) })
		},
	}
}

func (a *app) workerTokenList() *cobra.Command {
	var page pageFlags
	c := &cobra.Command{
		Use: "list", Short: "List enrollment tokens, latest first", Example: "  helmr worker token list", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.ownerClient()
			if err != nil {
				return err
			}
			found, err := c.ListWorkerTokens(cmd.Context(), page.cursor, page.limit)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("ID", "NAME", "TOKEN", "STATUS", "CREATED", "LAST USED", "REVOKED")
				for _, t := range found.Tokens {
					w.row(t.ID, clean(t.Name), t.Prefix+"...", t.Status, when(t.CreatedAt), whenOpt(t.LastUsedAt), whenOpt(t.RevokedAt))
				}
			})
		},
	}
	page.register(c)
	return c
}

func (a *app) workerTokenRevoke() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "revoke ID --yes", Short: "Revoke an enrollment token; workers that used it go on", Example: "  helmr worker token revoke 0199... --yes", Args: oneArg("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return usageErrorf("revoking is final: confirm it with --yes")
			}
			c, err := a.ownerClient()
			if err != nil {
				return err
			}
			if err := c.RevokeWorkerToken(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.show(cmd, map[string]string{"id": args[0], "status": "revoked"}, func(w *text) { w.line("Revoked.") })
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	return c
}
