package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

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
	c := &cobra.Command{
		Use: "network [ID]", Short: "Show what a computer tried on its network lately, and why some of it was refused",
		Long: `Shows what a computer tried on its network lately, latest first: names that it asked for, connections, and the reason why
something was refused. Names and addresses only; a bounded list, which arrives with a few seconds of delay. Of packets that no
proxy sees a few a second are noted.

Reasons:
` + refusalHelp(),
		Example: "  helmr computer network 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55\n  helmr computer network --key repo:42 --json",
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
			found, err := c.GetComputerNetwork(cmd.Context(), computerID)
			if err != nil {
				return err
			}
			return a.show(cmd, found, func(w *text) {
				w.row("LAST", "KIND", "TIMES", "TO", "OUTCOME", "REASON")
				for _, t := range found.Attempts {
					w.row(when(t.LastAt), t.Kind, t.Count, destination(t), t.Outcome, clean(t.Reason))
				}
			})
		},
	}
	which.register(c)
	return c
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
