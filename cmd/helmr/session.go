package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

func (a *app) sessionCommand() *cobra.Command {
	return groupCommand("session", "Give agents work and see what they do",
		`  helmr session create reviewer --text "Review APP-42" --follow
  helmr session enqueue SESSION --text "Review APP-43" --follow
  helmr session list --agent reviewer --status open`,
		a.sessionCreate(), a.sessionList(), a.sessionGet(), a.sessionEnqueue(), a.sessionSend(), a.sessionEvents(),
		a.sessionQuestions(), a.sessionInterrupt(), a.sessionResume(),
		a.sessionControl("close", "Let accepted work drain, then end the session", (*client.Client).CloseSession),
		a.sessionControl("cancel", "End the session now: queued turns are cancelled, a running one is aborted", (*client.Client).CancelSession),
		a.turnCommand())
}

func (a *app) sessionCreate() *cobra.Command {
	in := inputFlags()
	var req api.SessionCreateRequest
	var follow bool
	c := &cobra.Command{
		Use:   "create AGENT",
		Short: "Create a session of an agent with its first turn",
		Long: `Creates a session with its first turn and prints both IDs. With --key, a session of the agent that holds the key gets
the input as its next turn instead. With --follow, shows the events until the turn has ended; the exit status is 1 unless
the turn completed.`,
		Example: `  helmr session create reviewer --text "Review APP-42" --follow
  helmr session create triage --key repo-7 --input-json '[{"type":"text","text":"Label issue 12"}]'
  helmr session create reviewer --input-file input.json --json`,
		Args:              oneArg("AGENT"),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			input, err := in.read(cmd)
			if err != nil {
				return err
			}
			if req.ComputerID != "" {
				if err := checkID("computer", req.ComputerID); err != nil {
					return err
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			req.Agent, req.Input = args[0], input
			receipt, err := c.CreateSession(cmd.Context(), req)
			if err != nil {
				return err
			}
			if err := a.showAdmission(cmd, follow, receipt, receipt.SessionID, receipt.TurnID); err != nil || !follow {
				return err
			}
			after := int64(0)
			if !receipt.Created {
				if after, err = a.eventsBefore(cmd, c, receipt.SessionID, receipt.TurnID); err != nil {
					return err
				}
			}
			return a.follower(cmd, c, receipt.SessionID, receipt.TurnID, after).run(cmd.Context())
		},
	}
	in.register(c)
	f := c.Flags()
	f.StringVar(&req.Key, "key", "", "at most one open session of the agent holds a key; a taken key gets the input")
	f.StringVar(&req.ComputerID, "computer", "", "ID of the computer to work on (default: a new one)")
	f.StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	f.BoolVar(&follow, "follow", false, "show the events until the turn has ended")
	return c
}

// showAdmission prints what was admitted; in a stream of JSON it is the first line.
func (a *app) showAdmission(cmd *cobra.Command, follow bool, receipt any, sessionID, turnID string) error {
	if follow && a.flags.json {
		return printLine(cmd.OutOrStdout(), receipt)
	}
	return a.show(cmd, receipt, func(w *text) {
		w.line("session_id: %s", sessionID)
		w.line("turn_id: %s", turnID)
	})
}

// eventsBefore finds an event sequence shortly before a Turn was queued, so that following it starts with it and not
// with the whole history of its Session.
func (a *app) eventsBefore(cmd *cobra.Command, c *client.Client, sessionID, turnID string) (int64, error) {
	last, err := lastEvent(cmd.Context(), c, sessionID)
	if err != nil {
		return 0, err
	}
	const page = 200
	for after := max(last-page, 0); ; after = max(after-page, 0) {
		events, err := c.ListEvents(cmd.Context(), sessionID, after, page)
		if err != nil {
			return 0, err
		}
		for _, e := range events.Records {
			if e.Kind == "turn.queued" && e.TurnID != nil && *e.TurnID == turnID {
				return e.Sequence - 1, nil
			}
		}
		if after == 0 {
			return 0, nil
		}
	}
}

func (a *app) sessionEnqueue() *cobra.Command {
	in := inputFlags()
	var req api.EnqueueRequest
	var follow bool
	c := &cobra.Command{
		Use:   "enqueue ID",
		Short: "Queue one more turn on a session",
		Long: `Queues one more turn and prints its ID. Turns of a session run one at a time, in the order in which they were queued.
With --follow, shows the events until the turn has ended; the exit status is 1 unless it completed.`,
		Example: `  helmr session enqueue 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55 --text "Review APP-43" --follow
  echo '[{"type":"text","text":"Go on"}]' | helmr session enqueue SESSION --input-file -`,
		Args: oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			input, err := in.read(cmd)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			req.Input = input
			receipt, err := c.Enqueue(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			if err := a.showAdmission(cmd, follow, receipt, receipt.SessionID, receipt.TurnID); err != nil || !follow {
				return err
			}
			after, err := a.eventsBefore(cmd, c, receipt.SessionID, receipt.TurnID)
			if err != nil {
				return err
			}
			return a.follower(cmd, c, receipt.SessionID, receipt.TurnID, after).run(cmd.Context())
		},
	}
	in.register(c)
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	c.Flags().BoolVar(&follow, "follow", false, "show the events until the turn has ended")
	return c
}

func (a *app) sessionList() *cobra.Command {
	var page pageFlags
	var f client.SessionFilter
	c := &cobra.Command{
		Use: "list", Short: "List sessions, latest first",
		Example: `  helmr session list --agent reviewer --status open
  helmr session list --agent triage --key repo-7
  helmr session list --json | jq '.sessions[].id'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			if f.Key != "" && f.AgentID == "" {
				return usageErrorf("--key needs --agent: a key belongs to the sessions of one agent")
			}
			for _, s := range f.Statuses {
				switch s {
				case "open", "closing", "closed", "cancelled":
				default:
					return usageErrorf("--status is open, closing, closed or cancelled, not %q", s)
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			f.Limit, f.Cursor = page.limit, page.cursor
			if f.Key != "" && !cmd.Flags().Changed("limit") {
				f.Limit = 0 // a look-up by exact key takes no page
			}
			found, err := c.ListSessions(cmd.Context(), f)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("ID", "AGENT", "STATUS", "KEY", "HELD", "COMPUTER", "CREATED")
				for _, s := range found.Sessions {
					held := ""
					if len(s.Holds) > 0 {
						held = s.Holds[0].Reason
					}
					w.row(s.ID, s.AgentID, s.Status, clean(s.Key), held, s.ComputerID, when(s.CreatedAt))
				}
			})
		},
	}
	page.register(c)
	fl := c.Flags()
	fl.StringVar(&f.AgentID, "agent", "", "only sessions of this agent")
	fl.StringVar(&f.Key, "key", "", "only the sessions with this key (needs --agent)")
	fl.StringArrayVar(&f.Statuses, "status", nil, "only sessions in this status: open, closing, closed, cancelled (repeatable)")
	fl.StringVar(&f.ComputerID, "computer", "", "only sessions on this computer")
	fl.StringVar(&f.ParentSessionID, "parent-session", "", "only children of this session")
	fl.StringVar(&f.RequesterSessionID, "requester-session", "", "only sessions that this session asked for")
	return c
}

func (a *app) sessionGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a session, its computer and what holds it",
		Example: "  helmr session get 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55\n  helmr session get SESSION --json",
		Args:    oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.GetSession(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.show(cmd, s, func(w *text) {
				w.field("id", s.ID)
				w.field("agent", s.AgentID)
				w.field("status", s.Status)
				w.field("key", clean(s.Key))
				w.field("computer", s.ComputerID)
				w.field("deployment", s.DeploymentID)
				if s.ParentSessionID != nil {
					w.field("parent", *s.ParentSessionID)
				}
				if s.RequesterSessionID != nil {
					w.field("requester", *s.RequesterSessionID)
				}
				if s.InitialTurn != nil {
					w.field("initial turn", s.InitialTurn.ID+" ("+s.InitialTurn.Status+")")
				}
				w.field("created", when(s.CreatedAt))
				for _, h := range s.Holds {
					owner := "this session"
					if h.SessionID != s.ID {
						owner = "session " + h.SessionID
					}
					w.field("held", h.Reason+" since "+when(h.CreatedAt)+", hold "+h.ID+" of "+owner)
				}
			})
		},
	}
}

func (a *app) sessionEvents() *cobra.Command {
	var after int64
	var limit int
	var follow, jsonl bool
	c := &cobra.Command{
		Use:   "events ID",
		Short: "Show what happened in a session, or what happens now with --follow",
		Example: `  helmr session events SESSION
  helmr session events SESSION --follow --after 12
  helmr session events SESSION --json | jq 'select(.kind == "turn.output") | .data'`,
		Args: oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			if after < 0 {
				return usageErrorf("--after is a sequence, 0 or more, not %d", after)
			}
			if limit < 1 || limit > 1000 {
				return usageErrorf("--limit is 1 to 1000, not %d", limit)
			}
			a.flags.json = a.flags.json || jsonl
			c, err := a.client()
			if err != nil {
				return err
			}
			f := a.follower(cmd, c, args[0], "", after)
			if follow {
				if cmd.Flags().Changed("limit") {
					return usageErrorf("--limit and --follow do not go together")
				}
				return f.run(cmd.Context())
			}
			page, err := c.ListEvents(cmd.Context(), args[0], after, limit)
			if err != nil {
				return err
			}
			for _, e := range page.Records {
				if err := f.print(e); err != nil {
					return err
				}
			}
			f.printer.endOutput()
			if page.HasMore {
				a.progress(cmd, "There is more: add --after %d", page.NextAfter)
			}
			return nil
		},
	}
	fl := c.Flags()
	fl.Int64Var(&after, "after", 0, "only events after this sequence")
	fl.IntVar(&limit, "limit", 1000, "how many to show, 1 to 1000")
	fl.BoolVar(&follow, "follow", false, "go on with events as they happen, until the session has ended")
	fl.BoolVar(&jsonl, "jsonl", false, "one JSON object per line (the same as --json)")
	return c
}

// control is a call that accepts a wish about a Session.
type control func(c *client.Client, ctx context.Context, sessionID string, req api.ControlRequest) (api.ControlReceipt, error)

func (a *app) sessionControl(verb, short string, call control) *cobra.Command {
	var req api.ControlRequest
	c := &cobra.Command{
		Use: verb + " ID", Short: short,
		Long:    short + ".\n\nThe answer says that this was accepted; `helmr session get` and `helmr session events` show when it has happened.",
		Example: "  helmr session " + verb + " 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55",
		Args:    oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			receipt, err := call(c, cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.show(cmd, receipt, func(w *text) { w.line("%s: %s", strings.ToLower(verb), receipt.Status) })
		},
	}
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

func (a *app) sessionResume() *cobra.Command {
	var req api.ResumeRequest
	c := &cobra.Command{
		Use: "resume ID", Short: "Release a hold, so that the next queued turn may run",
		Long: `Releases one hold of the session. Interrupted turns are not run again; the next queued one is. Without --hold, the
session's only hold of its own is released.`,
		Example: "  helmr session resume 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55\n  helmr session resume SESSION --hold HOLD",
		Args:    oneArg("the ID of a session"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("session", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if req.HoldID == "" {
				if req.HoldID, err = onlyHold(cmd.Context(), c, args[0]); err != nil {
					return err
				}
			} else if err := checkID("hold", req.HoldID); err != nil {
				return err
			}
			receipt, err := c.ResumeSession(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.show(cmd, receipt, func(w *text) { w.line("resume: %s", receipt.Status) })
		},
	}
	c.Flags().StringVar(&req.HoldID, "hold", "", "ID of the hold; helmr session get shows them")
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

// onlyHold finds the one hold that a Session owns.
func onlyHold(ctx context.Context, c *client.Client, sessionID string) (string, error) {
	s, err := c.GetSession(ctx, sessionID)
	if err != nil {
		return "", err
	}
	var own []string
	for _, h := range s.Holds {
		if h.SessionID == sessionID {
			own = append(own, h.ID)
		}
	}
	switch len(own) {
	case 0:
		return "", errors.New("the session has no hold of its own")
	case 1:
		return own[0], nil
	}
	return "", usageErrorf("the session has %d holds; name one with --hold: %s", len(own), strings.Join(own, ", "))
}

// completeAgents offers the agents of the current Deployment to the shell; without a server it offers nothing.
func (a *app) completeAgents(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	none := cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, none
	}
	c, err := a.client()
	if err != nil {
		return nil, none
	}
	page, err := c.ListAgents(cmd.Context(), client.AgentFilter{Limit: 100})
	if err != nil {
		return nil, none
	}
	var ids []string
	for _, agent := range page.Agents {
		ids = append(ids, agent.ID)
	}
	return ids, none
}
