package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

func (a *app) computerCommand() *cobra.Command {
	return groupCommand("computer", "Make computers, run commands on them, see who uses them",
		`  helmr computer create triage-box --key repo:42
  helmr computer exec --key repo:42 -- npm test
  helmr computer list`,
		a.computerCreate(), a.computerList(), a.computerGet(), a.computerDelete(), a.computerExec(), a.computerNetwork(), a.computerSessions(), a.computerCommands())
}

func (a *app) computerList() *cobra.Command {
	var page pageFlags
	var key, secret string
	c := &cobra.Command{
		Use: "list", Short: "List computers, latest first", Example: "  helmr computer list\n  helmr computer list --key build-box --json\n  helmr computer list --secret MODEL_API_KEY", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			f := client.ComputerFilter{Key: key, Secret: secret, Cursor: page.cursor, Limit: page.limit}
			if key != "" && !cmd.Flags().Changed("limit") {
				f.Limit = 0 // a look-up by exact key takes no page
			}
			found, err := c.ListComputers(cmd.Context(), f)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				if secret != "" {
					w.row("ID", "TEMPLATE", "STATUS", "RESIDENCY", "VALUE IN", "KEY", "LAST ACTIVITY")
					for _, m := range found.Computers {
						w.row(m.ID, m.Template, m.Status, m.Residency, m.SecretExposure, clean(m.Key), when(m.LastActivityAt))
					}
					return
				}
				w.row("ID", "TEMPLATE", "STATUS", "RESIDENCY", "WAITS FOR", "KEY", "LAST ACTIVITY")
				for _, m := range found.Computers {
					w.row(m.ID, m.Template, m.Status, m.Residency, deref(m.ExecutionWait), clean(m.Key), when(m.LastActivityAt))
				}
			})
		},
	}
	page.register(c)
	c.Flags().StringVar(&key, "key", "", "only the computer with this key")
	c.Flags().StringVar(&secret, "secret", "", "only computers that were handed a value of this secret in readable form")
	return c
}

func (a *app) computerGet() *cobra.Command {
	var which computerFlags
	c := &cobra.Command{
		Use: "get [ID]", Short: "Show a computer",
		Example: "  helmr computer get 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55\n  helmr computer get --key build-box --json",
		Args:    optionalArg("the ID of a computer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(cmd, args); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			m, err := findComputer(cmd, c, which.id, which.key)
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
				for _, b := range m.Secrets {
					w.field("secret", describeBinding(b))
				}
				w.field("last activity", when(m.LastActivityAt))
				w.field("created", when(m.CreatedAt))
			})
		},
	}
	which.register(c)
	return c
}

// computerFlags name a computer, by ID or key.
type computerFlags struct{ id, key string }

func (f *computerFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.id, "id", "", "ID of the computer")
	c.Flags().StringVar(&f.key, "key", "", "key of the computer")
}

// check takes the ID from the arguments too; exactly one way must be used.
func (f *computerFlags) check(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && f.id == "" {
		f.id = args[0]
	} else if len(args) == 1 {
		return usageErrorf("the computer is named twice: %s and --id %s", args[0], f.id)
	}
	if (f.id == "") == (f.key == "") {
		return usageErrorf("%s needs one of --id and --key", cmd.CommandPath())
	}
	if f.id != "" {
		return checkID("computer", f.id)
	}
	return nil
}

// find gives the ID of the computer; only a key is looked up.
func (f *computerFlags) find(cmd *cobra.Command, c *client.Client) (string, error) {
	if f.id != "" {
		return f.id, nil
	}
	m, err := findComputer(cmd, c, "", f.key)
	return m.ID, err
}

func (a *app) computerCreate() *cobra.Command {
	var req api.ComputerCreateRequest
	var secretsFile string
	c := &cobra.Command{
		Use: "create TEMPLATE", Short: "Make a computer from a template of the current deployment",
		Long: `Makes a computer and prints its ID. It is started when it is first used. A key finds it again; at most one computer of the
environment that is not deleted has it.

--secrets-file binds secrets beside those of the template: a JSON array like
[{"secret":"TOKEN","env":{"name":"TOKEN","mode":"raw"}},{"secret":"KEY","file":{"path":"/run/secrets/key"}}].`,
		Example: "  helmr computer create triage-box\n  helmr computer create triage-box --key repo:42 --json",
		Args:    oneArg("TEMPLATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			req.Template = args[0]
			if req.Secrets, err = readBindings(cmd, secretsFile); err != nil {
				return err
			}
			receipt, err := c.CreateComputer(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.show(cmd, receipt, func(w *text) { w.line("%s", receipt.ComputerID) })
		},
	}
	c.Flags().StringVar(&req.Key, "key", "", "name to find the computer by")
	c.Flags().StringVar(&secretsFile, "secrets-file", "", "file with bindings of secrets as JSON; - is stdin")
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

func (a *app) computerDelete() *cobra.Command {
	var which computerFlags
	var req api.ControlRequest
	c := &cobra.Command{
		Use: "delete [ID]", Short: "Delete a computer that nobody uses, with its disk",
		Example: "  helmr computer delete 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55\n  helmr computer delete --key repo:42",
		Args:    optionalArg("the ID of a computer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(cmd, args); err != nil {
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
			receipt, err := c.DeleteComputer(cmd.Context(), computerID, req)
			if err != nil {
				return err
			}
			return a.show(cmd, receipt, func(w *text) { w.line("%s", receipt.ComputerID) })
		},
	}
	which.register(c)
	c.Flags().StringVar(&req.IdempotencyKey, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

func (a *app) computerSessions() *cobra.Command {
	return a.computerUsage("sessions", "List the sessions that occupy a computer now", func(ctx context.Context, c *client.Client, id string, p pageFlags) (any, []api.ComputerUsage, string, error) {
		found, err := c.ListComputerSessions(ctx, id, p.cursor, p.limit)
		return found, found.Sessions, found.NextCursor, err
	})
}

func (a *app) computerCommands() *cobra.Command {
	return a.computerUsage("commands", "List the commands that occupy a computer now", func(ctx context.Context, c *client.Client, id string, p pageFlags) (any, []api.ComputerUsage, string, error) {
		found, err := c.ListComputerCommands(ctx, id, p.cursor, p.limit)
		return found, found.Commands, found.NextCursor, err
	})
}

func (a *app) computerUsage(name, short string, list func(ctx context.Context, c *client.Client, id string, p pageFlags) (any, []api.ComputerUsage, string, error)) *cobra.Command {
	var which computerFlags
	var page pageFlags
	c := &cobra.Command{
		Use: name + " [ID]", Short: short,
		Example: "  helmr computer " + name + " --key repo:42\n  helmr computer " + name + " --id 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55 --json",
		Args:    optionalArg("the ID of a computer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(cmd, args); err != nil {
				return err
			}
			if err := page.check(); err != nil {
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
			object, items, next, err := list(cmd.Context(), c, computerID, page)
			if err != nil {
				return err
			}
			defer a.more(cmd, next)
			return a.show(cmd, object, func(w *text) {
				w.row("ID", "USE", "CREATED")
				for _, u := range items {
					w.row(u.ID, u.UsageState, when(u.CreatedAt))
				}
			})
		},
	}
	which.register(c)
	page.register(c)
	return c
}

func findComputer(cmd *cobra.Command, c *client.Client, id, key string) (api.Computer, error) {
	if id != "" {
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
