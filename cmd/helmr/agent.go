package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
)

func (a *app) agentCommand() *cobra.Command {
	return groupCommand("agent", "See the agents of the environment", "  helmr agent list\n  helmr agent get reviewer", a.agentList(), a.agentGet())
}

func (a *app) agentList() *cobra.Command {
	var page pageFlags
	var f client.AgentFilter
	var all bool
	c := &cobra.Command{
		Use: "list", Short: "List the agents of the current deployment, of another one, or all",
		Example: "  helmr agent list\n  helmr agent list --all --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			if all && f.DeploymentID != "" {
				return usageErrorf("--all and --deployment do not go together")
			}
			if all {
				f.Scope = "all"
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			f.Cursor, f.Limit = page.cursor, page.limit
			found, err := c.ListAgents(cmd.Context(), f)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("ID", "CURRENT", "CREATED", "DELETED")
				for _, g := range found.Agents {
					w.row(g.ID, yesNo(g.InCurrentDeployment), when(g.CreatedAt), whenOpt(g.DeletedAt))
				}
			})
		},
	}
	page.register(c)
	c.Flags().StringVar(&f.DeploymentID, "deployment", "", "agents of this deployment instead of the current one")
	c.Flags().BoolVar(&all, "all", false, "every agent that was ever deployed, also deleted ones")
	return c
}

func (a *app) agentGet() *cobra.Command {
	var deployment string
	c := &cobra.Command{
		Use: "get ID", Short: "Show an agent and how it is defined", Example: "  helmr agent get reviewer\n  helmr agent get reviewer --deployment ID --json",
		Args: oneArg("the ID of an agent"), ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			g, err := c.GetAgent(cmd.Context(), args[0], deployment)
			if err != nil {
				return err
			}
			return a.show(cmd, g, func(w *text) {
				w.field("id", g.ID)
				w.field("current", yesNo(g.InCurrentDeployment))
				w.field("created", when(g.CreatedAt))
				w.field("deleted", whenOpt(g.DeletedAt))
				if d := g.Definition; d != nil {
					w.field("deployment", d.DeploymentID)
					w.field("template", d.Template)
					w.field("max turn duration", orNone(d.MaxTurnDuration))
					w.field("close after idle", period(d.CloseAfterIdle))
					w.field("hibernate after idle", period(d.HibernateAfterIdle))
					w.field("triggers", triggers(d.Triggers))
				}
			})
		},
	}
	c.Flags().StringVar(&deployment, "deployment", "", "its definition in this deployment instead of the current one")
	return c
}

func triggers(raw json.RawMessage) string {
	if s := compact(raw); s != "[]" {
		return clean(s)
	}
	return ""
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// orNone is period for a bound that may be absent.
func orNone(ms *int64) string {
	if ms == nil {
		return "no bound"
	}
	return period(ms)
}
