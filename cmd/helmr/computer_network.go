package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

// refusals says in words why the network refused something.
var refusals = map[string]string{
	"name_not_allowed":     "no entry of allowDomains matches the name",
	"address_not_allowed":  "the name is allowed, but not at the address it has",
	"destination_denied":   "private, reserved or belonging to this installation: denied under every policy",
	"name_invalid":         "not a DNS name of at least two labels",
	"name_missing":         "TLS without a server name, or HTTP without a Host",
	"name_encrypted":       "TLS with an encrypted server name (ECH)",
	"protocol_not_allowed": "an allowlist permits TLS on port 443 and HTTP on port 80 only",
	"question_not_allowed": "DNS answers questions for addresses only",
	"limit_reached":        "too many at once, or too fast",
}

func (a *app) computerNetwork() *cobra.Command {
	var which computerFlags
	var follow bool
	c := &cobra.Command{
		Use: "network [ID]", Short: "Show what a computer tried on its network lately, and why some of it was refused",
		Long: `Shows what a computer tried on its network lately, latest first: names that it asked for, connections, and the reason why
something was refused. Names and addresses only; a bounded list, which arrives with a few seconds of delay. Of packets that no
proxy sees a few a second are noted. With --follow new ones are shown below as they come, each again when it was repeated.

Reasons:
` + refusalHelp(),
		Example: "  helmr computer network 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55\n  helmr computer network --key repo:42 --json\n  helmr computer network --key repo:42 --follow",
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
			if follow {
				return a.followNetwork(cmd, c, computerID)
			}
			found, err := c.GetComputerNetwork(cmd.Context(), computerID)
			if err != nil {
				return err
			}
			return a.showNetwork(cmd, found)
		},
	}
	which.register(c)
	c.Flags().BoolVar(&follow, "follow", false, "go on with what it tries, until Ctrl-C")
	return c
}

// showNetwork shows a list of what was tried, latest first.
func (a *app) showNetwork(cmd *cobra.Command, found api.ComputerNetwork) error {
	return a.show(cmd, found, func(w *text) {
		w.row("LAST", "KIND", "TIMES", "TO", "OUTCOME", "REASON")
		for _, t := range found.Attempts {
			w.row(when(t.LastAt), t.Kind, t.Count, destination(t), t.Outcome, clean(t.Reason))
		}
	})
}

// networkEvery is how often a followed list is read: it changes no faster than Workers report.
const networkEvery = time.Second

// followNetwork shows what a Computer tries, oldest first, until the context ends.
func (a *app) followNetwork(cmd *cobra.Command, c *client.Client, computerID string) error {
	ctx := cmd.Context()
	var seen []api.NetworkAttempt
	again := time.NewTicker(networkEvery)
	defer again.Stop()
	for away := false; ; {
		found, err := c.GetComputerNetwork(ctx, computerID)
		switch {
		case ctx.Err() != nil: // told below
		case err != nil && (!unreachable(err) || seen == nil):
			return err
		case err != nil:
			if !away {
				a.progress(cmd, "the server does not answer; trying again")
			}
			away = true
		default:
			away = false
			for _, t := range freshAttempts(seen, found.Attempts) {
				if err := a.attempt(cmd, t); err != nil {
					return err
				}
			}
			seen = append([]api.NetworkAttempt{}, found.Attempts...)
		}
		select {
		case <-ctx.Done():
			cmd.PrintErrf("\nStopped watching; the computer goes on. Look again:\n  helmr computer network %s --follow\n", computerID)
			return exitError{status: exitFailed}
		case <-again.C:
		}
	}
}

// freshAttempts gives what of a list, latest first, was not in an earlier one as it is now, latest last.
func freshAttempts(seen, now []api.NetworkAttempt) (list []api.NetworkAttempt) {
	for _, t := range now {
		if !slices.ContainsFunc(seen, func(s api.NetworkAttempt) bool { return same(s, t) }) {
			list = append(list, t)
		}
	}
	slices.Reverse(list)
	return list
}

// same tells whether two attempts are one, and nothing happened between.
func same(a, b api.NetworkAttempt) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Address == b.Address && a.Port == b.Port && a.Reason == b.Reason && a.Count == b.Count && a.LastAt.Equal(b.LastAt.Time)
}

// attempt shows one that is followed.
func (a *app) attempt(cmd *cobra.Command, t api.NetworkAttempt) error {
	if a.flags.json {
		return printLine(cmd.OutOrStdout(), t)
	}
	line := fmt.Sprintf("%s  %-5s %-8s %s", t.LastAt.Local().Format("15:04:05.000"), t.Kind, t.Outcome, destination(t))
	if t.Count > 1 {
		line += fmt.Sprintf("  %d times", t.Count)
	}
	if t.Reason != "" {
		line += "  " + clean(t.Reason)
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

func refusalHelp() string {
	lines := ""
	for _, reason := range []string{"name_not_allowed", "address_not_allowed", "destination_denied", "protocol_not_allowed", "name_missing", "name_invalid", "name_encrypted", "question_not_allowed", "limit_reached"} {
		lines += fmt.Sprintf("  %-22s%s\n", reason, refusals[reason])
	}
	return strings.TrimSuffix(lines, "\n")
}

// destination writes what was tried to reach: a name and where it led, or an address.
func destination(t api.NetworkAttempt) string {
	at := t.Address
	if t.Port != 0 {
		at = fmt.Sprintf("%s:%d", t.Address, t.Port)
	}
	switch {
	case t.Name == "":
		return at
	case at == "":
		return clean(t.Name)
	}
	return clean(t.Name) + " (" + at + ")"
}
