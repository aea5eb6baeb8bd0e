package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

func (a *app) templateCommand() *cobra.Command {
	return groupCommand("template", "See the recipes of computers", "  helmr template list\n  helmr template get reviewer\n  helmr template logs reviewer --follow\n  helmr template network reviewer",
		a.templateList(), a.templateGet(), a.templateLogs(), a.templateNetwork())
}

func (a *app) templateList() *cobra.Command {
	var page pageFlags
	var deployment string
	c := &cobra.Command{
		Use: "list", Short: "List the templates of the current deployment or of another one", Example: "  helmr template list\n  helmr template list --deployment ID --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			found, err := c.ListTemplates(cmd.Context(), deployment, page.cursor, page.limit)
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("ID", "CPU", "MEMORY", "DISK")
				for _, t := range found.Templates {
					cpu, memory, disk := resources(t.Resources)
					w.row(t.Template, cpu, memory, disk)
				}
			})
		},
	}
	page.register(c)
	c.Flags().StringVar(&deployment, "deployment", "", "templates of this deployment instead of the current one")
	return c
}

func (a *app) templateGet() *cobra.Command {
	var deployment string
	c := &cobra.Command{
		Use: "get ID", Short: "Show a template", Example: "  helmr template get reviewer --json", Args: oneArg("the ID of a template"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.GetTemplate(cmd.Context(), args[0], deployment)
			if err != nil {
				return err
			}
			p, err := c.LastPreparation(cmd.Context(), args[0], t.DeploymentID)
			if e, ok := errors.AsType[*client.Error](err); err != nil && (!ok || e.Code != "not_found") {
				return err
			}
			return a.show(cmd, t, func(w *text) {
				cpu, memory, disk := resources(t.Resources)
				w.field("id", t.Template)
				w.field("deployment", t.DeploymentID)
				w.field("cpu", cpu)
				w.field("memory", memory)
				w.field("disk", disk)
				w.field("network", compact(t.Network))
				w.field("prepare network", compact(t.PrepareNetwork))
				w.field("prepare secrets", compact(t.PrepareSecrets))
				w.field("preparation", preparationText(p))
			})
		},
	}
	c.Flags().StringVar(&deployment, "deployment", "", "the template of this deployment instead of the current one")
	return c
}

// resources writes the bounds of a Computer for people.
func resources(r api.Resources) (cpu, memory, disk string) {
	disk = "default"
	if r.DiskMiB != nil {
		disk = mebibytes(*r.DiskMiB)
	}
	return decimal(r.MilliCPU), mebibytes(r.MemoryMiB), disk
}

// preparationText says how far a Template is prepared.
func preparationText(p api.Preparation) string {
	switch {
	case p.ID == "":
		return "none"
	case p.Error != nil:
		return p.Status + ": " + p.Error.Message
	case p.TerminalAt != nil:
		return p.Status + " " + when(*p.TerminalAt)
	}
	return p.Status
}

// lastPreparation gives the last preparation of a template, and the client that asked for it.
func (a *app) lastPreparation(cmd *cobra.Command, templateID, deploymentID string) (*client.Client, api.Preparation, error) {
	c, err := a.client()
	if err != nil {
		return nil, api.Preparation{}, err
	}
	p, err := c.LastPreparation(cmd.Context(), templateID, deploymentID)
	return c, p, err
}

func (a *app) templateLogs() *cobra.Command {
	var follow bool
	var after, deployment string
	c := &cobra.Command{
		Use: "logs ID", Short: "Show what the prepare callback of a template wrote when it last ran, stdout and stderr apart",
		Example: "  helmr template logs reviewer\n  helmr template logs reviewer --follow", Args: oneArg("the ID of a template"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, p, err := a.lastPreparation(cmd, args[0], deployment)
			if err != nil {
				return err
			}
			out := &outputPrinter{app: a, cmd: cmd, after: after}
			if follow {
				for r, err := range c.StreamPreparationLogs(cmd.Context(), p.ID, after) {
					if err == nil {
						err = out.print(r)
					}
					if cmd.Context().Err() != nil {
						cmd.PrintErrf("\nStopped watching; the preparation goes on. Look again:\n  helmr template logs %s --follow\n", args[0])
						return exitError{status: exitFailed}
					}
					if err != nil {
						return fmt.Errorf("follow the preparation of template %s: %w", args[0], err)
					}
				}
			} else if err := out.all(func(after string) (api.CommandLogPage, error) {
				return c.ListPreparationLogs(cmd.Context(), p.ID, after, 100)
			}); err != nil {
				return err
			}
			if p, err = c.GetPreparation(cmd.Context(), p.ID); err != nil {
				return err
			}
			a.progress(cmd, "preparation %s: %s", p.ID, preparationText(p))
			return nil
		},
	}
	c.Flags().BoolVar(&follow, "follow", false, "go on until the preparation has ended")
	c.Flags().StringVar(&after, "after", "", "go on after the record with this cursor")
	c.Flags().StringVar(&deployment, "deployment", "", "the template of this deployment instead of the current one")
	return c
}

func (a *app) templateNetwork() *cobra.Command {
	var deployment string
	c := &cobra.Command{
		Use: "network ID", Short: "Show what the prepare callback of a template tried on its network when it last ran, and why some of it was refused",
		Long: `Shows what the prepare callback of a template tried on its network when it last ran, latest first: names that it asked for,
connections, and the reason why something was refused. Names and addresses only; a bounded list, kept as long as the log.

Reasons:
` + refusalHelp(),
		Example: "  helmr template network reviewer\n  helmr template network reviewer --json", Args: oneArg("the ID of a template"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, p, err := a.lastPreparation(cmd, args[0], deployment)
			if err != nil {
				return err
			}
			found, err := c.GetPreparationNetwork(cmd.Context(), p.ID)
			if err != nil {
				return err
			}
			return a.showNetwork(cmd, found)
		},
	}
	c.Flags().StringVar(&deployment, "deployment", "", "the template of this deployment instead of the current one")
	return c
}
