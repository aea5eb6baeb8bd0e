package main

import (
	"strings"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client/api"
)

func (a *app) deploymentCommand() *cobra.Command {
	return groupCommand("deployment", "See and promote what was deployed",
		"  helmr deployment list\n  helmr deployment get current\n  helmr deployment promote ID --reason \"back to the one before\"",
		a.deploymentList(), a.deploymentGet(), a.deploymentPromote(), a.deploymentEvents())
}

func (a *app) deploymentList() *cobra.Command {
	var page pageFlags
	c := &cobra.Command{
		Use: "list", Short: "List deployments, latest first", Example: "  helmr deployment list\n  helmr deployment list --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			found, err := c.ListDeployments(cmd.Context(), page.cursor, page.limit)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("VERSION", "ID", "CURRENT", "CREATED", "PROMOTED")
				for _, d := range found.Deployments {
					w.row(d.Version, d.ID, yesNo(d.Current), when(d.CreatedAt), whenOpt(d.PromotedAt))
				}
			})
		},
	}
	page.register(c)
	return c
}

func (a *app) deploymentGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a deployment with its agents and templates; ID may be the word current",
		Example: "  helmr deployment get current\n  helmr deployment get 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55 --json",
		Args:    oneArg("the ID of a deployment, or current"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			var d api.Deployment
			if args[0] == "current" {
				d, err = c.CurrentDeployment(cmd.Context())
			} else if err = checkID("deployment", args[0]); err == nil {
				d, err = c.GetDeployment(cmd.Context(), args[0])
			}
			if err != nil {
				return err
			}
			return a.show(cmd, d, func(w *text) {
				w.field("version", d.Version)
				w.field("id", d.ID)
				w.field("current", yesNo(d.Current))
				w.field("bundle", d.BundleDigest)
				w.field("created", when(d.CreatedAt))
				w.field("promoted", whenOpt(d.PromotedAt))
				for _, g := range d.Agents {
					w.field("agent", g.ID+" on "+g.Template)
				}
				for _, t := range d.Templates {
					cpu, memory, disk := resources(t.Resources)
					w.field("template", t.ID+" (cpu "+cpu+", memory "+memory+", disk "+disk+")")
				}
			})
		},
	}
}

func (a *app) deploymentPromote() *cobra.Command {
	var req api.PromoteRequest
	c := &cobra.Command{
		Use: "promote ID", Short: "Make a deployment the one that new sessions use",
		Long: `Makes a deployment current, also one that was current before. Sessions and computers that exist keep the definitions
they were made with. Prints the agents that were deleted and are back.`,
		Example: "  helmr deployment promote 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55 --reason \"back to the one before\"",
		Args:    oneArg("the ID of a deployment"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("deployment", args[0]); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			p, err := c.Promote(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.show(cmd, p, func(w *text) { describePromotion(w, p) })
		},
	}
	c.Flags().StringVar(&req.Reason, "reason", "", "why, for whoever reads the deployment's events later")
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

func describePromotion(w *text, p api.Promotion) {
	w.line("%s is current since %s.", p.DeploymentID, when(p.PromotedAt))
	if len(p.RestoredAgents) > 0 {
		var ids []string
		for _, g := range p.RestoredAgents {
			ids = append(ids, g.ID)
		}
		w.line("Deleted agents that are back: %s", strings.Join(ids, ", "))
	}
}

func (a *app) deploymentEvents() *cobra.Command {
	var page pageFlags
	c := &cobra.Command{
		Use: "events ID", Short: "Show what happened to a deployment, oldest first", Example: "  helmr deployment events 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55",
		Args: oneArg("the ID of a deployment"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("deployment", args[0]); err != nil {
				return err
			}
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			found, err := c.ListDeploymentEvents(cmd.Context(), args[0], page.cursor, page.limit)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("#", "WHAT", "WHEN", "BY", "REASON")
				for _, e := range found.Events {
					w.row(e.Sequence, e.Kind, when(e.CreatedAt), e.Actor.String(), clean(e.Reason))
				}
			})
		},
	}
	page.register(c)
	return c
}
