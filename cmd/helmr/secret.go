package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/id"
)

// maxSecretValue bounds what is read as a value: more is refused by the server anyway.
const maxSecretValue = 1 << 20

func (a *app) secretCommand() *cobra.Command {
	return groupCommand("secret", "Keep values that templates bind to their computers",
		`  helmr secret create MODEL_API_KEY < key.txt
  helmr secret rotate MODEL_API_KEY
  helmr computer list --secret MODEL_API_KEY`,
		a.secretList(), a.secretGet(), a.secretCreate(), a.secretRotate(), a.secretRevoke())
}

func (a *app) secretList() *cobra.Command {
	var page pageFlags
	c := &cobra.Command{
		Use: "list", Short: "List secrets by name, without values", Example: "  helmr secret list\n  helmr secret list --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := page.check(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			found, err := c.ListSecrets(cmd.Context(), client.SecretFilter{Cursor: page.cursor, Limit: page.limit})
			if err != nil {
				return err
			}
			defer a.more(cmd, found.NextCursor)
			return a.show(cmd, found, func(w *text) {
				w.row("NAME", "STATUS", "CREATED", "ROTATED", "REVOKED")
				for _, s := range found.Secrets {
					w.row(s.Name, s.Status, when(s.CreatedAt), whenOpt(s.RotatedAt), whenOpt(s.RevokedAt))
				}
			})
		},
	}
	page.register(c)
	return c
}

func (a *app) secretGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a secret, without its value", Example: "  helmr secret get MODEL_API_KEY", Args: oneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.GetSecret(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.showSecret(cmd, s)
		},
	}
}

func (a *app) showSecret(cmd *cobra.Command, s api.Secret) error {
	return a.show(cmd, s, func(w *text) {
		w.field("name", s.Name)
		w.field("status", s.Status)
		w.field("created", when(s.CreatedAt))
		w.field("rotated", whenOpt(s.RotatedAt))
		w.field("revoked", whenOpt(s.RevokedAt))
	})
}

const valueHelp = `The value is read from stdin; one line break at its end is dropped. On a terminal it is asked for and not shown. With
--value it stands in the command line, which other users of the machine and your shell's history can see.`

func (a *app) secretCreate() *cobra.Command {
	var value, key string
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a secret from a value on stdin",
		Long:    "Creates a secret. Computers get its value where a template, or the creation of a computer, binds it.\n\n" + valueHelp,
		Example: "  helmr secret create MODEL_API_KEY < key.txt\n  helmr secret create MODEL_API_KEY",
		Args:    oneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			value, err := readSecret(cmd, args[0], value)
			if err != nil {
				return err
			}
			s, err := c.CreateSecret(cmd.Context(), api.SecretCreateRequest{Name: args[0], Value: value, IdempotencyKey: key})
			if err != nil {
				return err
			}
			return a.showSecret(cmd, s)
		},
	}
	secretFlags(c, &value, &key)
	return c
}

func (a *app) secretRotate() *cobra.Command {
	var value, key string
	c := &cobra.Command{
		Use: "rotate NAME", Short: "Give a secret another value, from stdin",
		Long: "Gives a secret another value. Processes that start from now on get it; those that run keep the one before, and files and\n" +
			"saved disks may hold it: `helmr computer list --secret NAME` shows where.\n\n" + valueHelp,
		Example: "  helmr secret rotate MODEL_API_KEY < key.txt\n  helmr secret rotate MODEL_API_KEY",
		Args:    oneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			value, err := readSecret(cmd, args[0], value)
			if err != nil {
				return err
			}
			s, err := c.RotateSecret(cmd.Context(), args[0], api.SecretRotateRequest{Value: value, IdempotencyKey: cmp.Or(key, id.New())})
			if err != nil {
				return err
			}
			return a.showSecret(cmd, s)
		},
	}
	secretFlags(c, &value, &key)
	return c
}

func secretFlags(c *cobra.Command, value, key *string) {
	c.Flags().StringVar(value, "value", "", "the value itself (others may see it; stdin is better)")
	c.Flags().StringVar(key, "idempotency-key", "", "repeating the command with the same key has no second effect")
}

func (a *app) secretRevoke() *cobra.Command {
	var yes bool
	var key string
	c := &cobra.Command{
		Use: "revoke NAME", Short: "End a secret for good",
		Long: `Ends a secret: nothing is given its value any more, and computers that are bound to it take no new work. This is final.
Processes that run keep the value: make it worthless where it came from.`,
		Example: "  helmr secret revoke MODEL_API_KEY --yes",
		Args:    oneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return usageErrorf("revoking is final and stops new work on every computer bound to %s; add --yes to do it", args[0])
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.RevokeSecret(cmd.Context(), args[0], api.SecretRevokeRequest{IdempotencyKey: cmp.Or(key, id.New())})
			if err != nil {
				return err
			}
			return a.showSecret(cmd, s)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "really revoke it")
	c.Flags().StringVar(&key, "idempotency-key", "", "repeating the command with the same key has no second effect")
	return c
}

// readSecret gives the value of a secret: that of --value, or what stdin says, which is not shown on a terminal.
func readSecret(cmd *cobra.Command, name, flag string) (string, error) {
	if cmd.Flags().Changed("value") {
		if flag == "" {
			return "", usageErrorf("--value is empty")
		}
		return flag, nil
	}
	var raw []byte
	var err error
	if f, ok := cmd.InOrStdin().(*os.File); ok && isTerminal(f) {
		cmd.PrintErrf("Value of %s: ", name)
		raw, err = term.ReadPassword(int(f.Fd()))
		cmd.PrintErrln()
	} else {
		raw, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxSecretValue+3))
	}
	if err != nil {
		return "", fmt.Errorf("read the value: %w", err)
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	switch {
	case value == "":
		return "", usageErrorf("no value was given; type it, or hand it over on stdin")
	case len(value) > maxSecretValue:
		return "", usageErrorf("the value is longer than %d bytes", maxSecretValue)
	}
	return value, nil
}

// readBindings reads the bindings in a file, none without a file.
func readBindings(cmd *cobra.Command, file string) ([]api.SecretBinding, error) {
	if file == "" {
		return nil, nil
	}
	var raw []byte
	var err error
	if file == "-" {
		raw, err = io.ReadAll(cmd.InOrStdin())
	} else {
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, usageErrorf("--secrets-file: %s", cause(err))
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var bindings []api.SecretBinding
	if err := d.Decode(&bindings); err != nil {
		return nil, usageErrorf(`--secrets-file %s is not a JSON array of bindings like [{"secret":"TOKEN","env":{"name":"TOKEN","mode":"raw"}}]: %s`, file, err)
	}
	return bindings, nil
}

// describeBinding says in a few words where a secret is placed.
func describeBinding(b api.SecretBinding) string {
	switch {
	case b.File != nil:
		return fmt.Sprintf("%s in the file %s", b.Secret, clean(b.File.Path))
	case b.Env != nil && len(b.Env.AllowedOrigins) > 0:
		return fmt.Sprintf("%s as %s (%s: %s)", b.Secret, b.Env.Name, b.Env.Mode, strings.Join(b.Env.AllowedOrigins, ", "))
	case b.Env != nil:
		return fmt.Sprintf("%s as %s (%s)", b.Secret, b.Env.Name, b.Env.Mode)
	}
	return b.Secret
}
