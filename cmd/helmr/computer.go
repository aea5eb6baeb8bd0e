package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

func (a *app) computerCommand() *cobra.Command {
	return groupCommand("computer", "See the computers that agents work on",
		"  helmr computer list\n  helmr computer get --id 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55", a.computerList(), a.computerGet())
}

func (a *app) computerList() *cobra.Command {
	var page pageFlags
	var key string
	c := &cobra.Command{
		Use: "list", Short: "List computers, latest first", Example: "  helmr computer list\n  helmr computer list --key build-box --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			f := client.ComputerFilter{Key: key, Cursor: page.cursor, Limit: page.limit}
			if key != "" && !cmd.Flags().Changed("limit") {
				f.Limit = 0 // a look-up by exact key takes no page
			}
			found, err := c.ListComputers(cmd.Context(), f)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("ID", "TEMPLATE", "STATUS", "RESIDENCY", "WAITS FOR", "KEY", "LAST ACTIVITY")
				for _, m := range found.Computers {
					w.row(m.ID, m.Template, m.Status, m.Residency, deref(m.ExecutionWait), clean(m.Key), when(m.LastActivityAt))
				}
			})
		},
	}
	page.register(c)
	c.Flags().StringVar(&key, "key", "", "only the computer with this key")
	return c
}

func (a *app) computerGet() *cobra.Command {
	var id, key string
	c := &cobra.Command{
		Use: "get [ID]", Short: "Show a computer",
		Example: "  helmr computer get 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55\n  helmr computer get --key build-box --json",
		Args:    optionalArg("the ID of a computer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && id == "" {
				id = args[0]
			} else if len(args) == 1 {
				return usageErrorf("the computer is named twice: %s and --id %s", args[0], id)
			}
			if (id == "") == (key == "") {
				return usageErrorf("%s needs one of --id and --key", cmd.CommandPath())
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			m, err := findComputer(cmd, c, id, key)
			if err != nil {
				return err
			}
			return a.show(cmd, m, func(w *text) {
				w.field("id", m.ID)
				w.field("key", clean(m.Key))
				w.field("template", m.Template)
				w.field("deployment", m.DeploymentID)
				w.field("status", m.Status)
				w.field("residency", m.Residency)
				w.field("waits for", deref(m.ExecutionWait))
				if m.Error != nil {
					w.field("error", clean(m.Error.Code+": "+m.Error.Message))
				}
				w.field("last activity", when(m.LastActivityAt))
				w.field("created", when(m.CreatedAt))
			})
		},
	}
	c.Flags().StringVar(&id, "id", "", "ID of the computer")
	c.Flags().StringVar(&key, "key", "", "key of the computer")
	return c
}

func findComputer(cmd *cobra.Command, c *client.Client, id, key string) (api.Computer, error) {
	if id != "" {
		if err := checkID("computer", id); err != nil {
			return api.Computer{}, err
		}
		return c.GetComputer(cmd.Context(), id)
	}
	found, err := c.ListComputers(cmd.Context(), client.ComputerFilter{Key: key})
	if err != nil {
		return api.Computer{}, err
	}
	if len(found.Computers) == 0 {
		return api.Computer{}, hinted{fmt.Errorf("no computer has the key %q", key), "`helmr computer list` shows the computers of this environment"}
	}
	return found.Computers[0], nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
