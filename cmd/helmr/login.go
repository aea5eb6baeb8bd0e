package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
)

func (a *app) loginCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "login [URL]",
		Short: "Save the API key of a server, so that commands find it",
		Long: `Reads an API key from the terminal or from stdin, checks it against the server and saves it under HELMR_CONFIG_DIR
(mode 0600). Later commands talk to the server of the last login unless -a or HELMR_API_URL names another one.

Logins of people are not there yet but for the owner of an installation: helmr server owner-token makes one, which is
kept beside the API key and used by commands that an API key cannot do.`,
		Example: "  helmr login http://127.0.0.1:8080\n  helmr login https://helmr.example.com < key.txt",
		Args:    optionalArg("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.flags.apiURL = args[0]
			}
			s, err := a.server()
			if err != nil {
				return err
			}
			key, err := readKey(cmd, s.url)
			if err != nil {
				return err
			}
			if err := checkKey(cmd.Context(), s.url, key); err != nil {
				return fmt.Errorf("the key was not saved: %w", err)
			}
			if err := a.saveLogin(s.url, key); err != nil {
				return err
			}
			source := "api_key"
			if access.IsOwnerToken(key) {
				source = "login"
			}
			return a.show(cmd, map[string]string{"api_url": s.url, "auth_source": source}, func(w *text) { w.line("Logged in to %s.", s.url) })
		},
	}
	c.Flags().Bool("no-browser", false, "accepted for scripts; a login with an API key opens no browser")
	return c
}

// readKey reads an API key without showing it.
func readKey(cmd *cobra.Command, url string) (string, error) {
	var line string
	if f, ok := cmd.InOrStdin().(*os.File); ok && isTerminal(f) {
		cmd.PrintErrf("API key for %s: ", url)
		raw, err := term.ReadPassword(int(f.Fd()))
		cmd.PrintErrln()
		if err != nil {
			return "", fmt.Errorf("read the key: %w", err)
		}
		line = string(raw)
	} else {
		var err error
		line, err = bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 4096)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("read the key from stdin: %w", err)
		}
	}
	key := strings.TrimSpace(line)
	if key == "" {
		return "", usageErrorf("no API key was given; type it, or hand it over on stdin")
	}
	return key, nil
}

// checkKey asks the server whether it knows the key.
func checkKey(ctx context.Context, url, key string) error {
	_, err := client.New(url, key).Me(ctx)
	return err
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout [URL]", Short: "Forget the saved login of a server", Example: "  helmr logout\n  helmr logout http://127.0.0.1:8080",
		Args: optionalArg("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.flags.apiURL = args[0]
			}
			s, err := a.server()
			if err != nil {
				return err
			}
			have, err := a.logins()
			if err != nil {
				return err
			}
			if _, ok := have.Logins[s.url]; !ok {
				return fmt.Errorf("there is no saved login of %s", s.url)
			}
			delete(have.Logins, s.url)
			if have.Last == s.url {
				have.Last = ""
			}
			if err := a.saveLogins(have); err != nil {
				return err
			}
			return a.show(cmd, map[string]string{"api_url": s.url}, func(w *text) {
				w.line("Logged out of %s. The key itself stays valid until it is revoked.", s.url)
			})
		},
	}
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show the server and the key that commands use", Example: "  helmr whoami\n  helmr whoami --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.credential()
			if err != nil {
				return err
			}
			me, err := client.New(c.url, c.key).Me(cmd.Context())
			if err != nil {
				return err
			}
			v := struct {
				APIURL     string `json:"api_url"`
				AuthSource string `json:"auth_source"`
				KeyFrom    string `json:"key_from"`
				api.Me
			}{c.url, "api_key", c.keyFrom, me}
			return a.show(cmd, v, func(w *text) {
				w.field("api_url", c.url)
				w.field("auth_source", v.AuthSource)
				w.field("key_from", c.keyFrom)
				w.field("key_id", me.Actor.ID)
				w.field("organization", me.OrganizationID)
				w.field("project", me.ProjectID)
				w.field("environment", me.EnvironmentID)
				w.field("permissions", strings.Join(me.Permissions, ", "))
			})
		},
	}
}
