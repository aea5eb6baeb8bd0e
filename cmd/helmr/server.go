package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/server/rpc"
)

func (a *app) serverCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "server",
		Short: "Run a server: the API, scheduling and background work",
		Long: `Runs a server until it is told to stop (SIGTERM or Ctrl-C). Its settings are environment variables; a missing or
malformed one stops it at start. Any number of servers may share a PostgreSQL database; a SQLite database has one.
Logs are JSON lines on stderr.

` + settingsHelp(serverSettings),
		Example: `  helmr migrate && helmr server
  helmr server check-config
  helmr server bootstrap`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runServer(cmd) },
	}
	c.AddCommand(a.serverCheckConfig(), a.serverBootstrap(), a.serverWorkerToken(), a.serverOwnerToken())
	return c
}

func (a *app) runServer(cmd *cobra.Command) (err error) {
	s, unused, err := readSettings(a.getenv, serverSettings)
	if err != nil {
		return settingsError(err)
	}
	log := processLog(cmd.ErrOrStderr())
	for _, name := range unused {
		log.Warn("this setting does nothing yet", "setting", name)
	}
	ctx := cmd.Context()
	credentials := rpc.NewCredentials(s.key("HELMR_WORKER_HOST_CREDENTIAL_SIGNING_KEY"), time.Now)
	encrypted, err := s.serverTLS(log)
	if err != nil {
		return err
	}
	lost, err := lostAfter(a.getenv)
	if err != nil {
		return settingsError(err)
	}
	if lost > 0 {
		log.Warn("workers are lost sooner than they should be: this setting is for tests", "setting", testLostAfter, "after", lost.String())
	}
	inst, err := openInstallation(ctx, installationConfig{publicURL: s["HELMR_PUBLIC_URL"], databaseURL: s["HELMR_DATABASE_URL"], blobURL: s["HELMR_BLOB_URL"], s3: s.s3(), keys: s.rootKeys(), log: log,
		ownerKey: s.key("HELMR_AUTH_KEY"), lostAfter: lost, tls: encrypted,
		mounts: func(svc *rpc.Service) map[string]http.Handler {
			path, handler := rpc.Handler(svc, credentials)
			return map[string]http.Handler{path: handler}
		}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inst.close()) }()
	ln, err := net.Listen("tcp", s["HELMR_ADDR"])
	if err != nil {
		return fmt.Errorf("listen on HELMR_ADDR: %w", err)
	}
	log.Info("server started", "address", ln.Addr().String(), "tls", encrypted != nil, "version", version())
	err = inst.run(ctx, ln)
	log.Info("server stopped")
	return err
}

func (a *app) serverCheckConfig() *cobra.Command {
	return &cobra.Command{
		Use: "check-config", Short: "Check the settings of a server and end", Example: "  helmr server check-config", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, unused, err := readSettings(a.getenv, serverSettings)
			if err != nil {
				return settingsError(err)
			}
			return a.show(cmd, map[string]any{"ok": true, "without_effect": append([]string{}, unused...)}, func(w *text) {
				w.line("The settings are complete and well formed.")
				for _, name := range unused {
					w.line("%s does nothing yet.", name)
				}
			})
		},
	}
}

func (a *app) serverBootstrap() *cobra.Command {
	return &cobra.Command{
		Use:   "bootstrap",
		Short: "Make the first organization of an empty installation and print its API key, once",
		Long: `Makes the first organization, project, environment and owner in the database named by HELMR_DATABASE_URL, and an API
key with all scopes, which it prints. It does so once: an installation that has an organization gets nothing new. Stop
the server first if the database is SQLite.`,
		Example: "  helmr server bootstrap | helmr login http://127.0.0.1:8080",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, _, err := readSettings(a.getenv, serverSettings)
			if err != nil {
				return settingsError(err)
			}
			limits, err := access.LimitsFrom(func(name string) (string, bool) { v := a.getenv(name); return v, v != "" })
			if err != nil {
				return err
			}
			inst, err := openInstallation(cmd.Context(), installationConfig{databaseURL: s["HELMR_DATABASE_URL"], blobURL: s["HELMR_BLOB_URL"], s3: s.s3(), keys: s.rootKeys(),
				log: processLog(cmd.ErrOrStderr())})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, inst.close()) }()
			made, err := inst.access.Bootstrap(cmd.Context(), access.BootstrapOptions{Limits: limits})
			if err != nil {
				return err
			}
			if !made.Created {
				return errors.New("this installation has an organization already; its first key was printed when that was made")
			}
			a.progress(cmd, "Made the first organization. Its API key, which is not shown again:")
			return a.show(cmd, map[string]string{"api_key": made.APIKey, "organization_id": made.OrganizationID, "project_id": made.ProjectID,
				"environment_id": made.EnvironmentID}, func(w *text) { w.line("%s", made.APIKey) })
		},
	}
}

func (a *app) serverWorkerToken() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "worker-token",
		Short: "Make a token with which workers join this installation, and print it, once",
		Long: `Makes an enrollment token in the database named by HELMR_DATABASE_URL and prints it. A worker reads it from the file
named by HELMR_WORKER_ENROLLMENT_TOKEN_FILE; whoever has it can host computers, until it is revoked. It is the way for
the first worker; helmr worker token does the same through a running server, lists tokens and revokes them. Stop the
server first if the database is SQLite.`,
		Example: "  helmr server worker-token > worker.token",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, _, err := readSettings(a.getenv, serverSettings)
			if err != nil {
				return settingsError(err)
			}
			inst, err := openInstallation(cmd.Context(), installationConfig{databaseURL: s["HELMR_DATABASE_URL"], blobURL: s["HELMR_BLOB_URL"], s3: s.s3(), keys: s.rootKeys(),
				log: processLog(cmd.ErrOrStderr())})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, inst.close()) }()
			t, err := inst.computers.CreateWorkerToken(cmd.Context(), "", api.WorkerTokenCreateRequest{Name: name})
			if err != nil {
				return err
			}
			return a.show(cmd, t, func(w *text) { w.line("%s", t.Token) })
		},
	}
	c.Flags().StringVar(&name, "name", "first", "what people recognise it by")
	return c
}

func (a *app) serverOwnerToken() *cobra.Command {
	var good time.Duration
	c := &cobra.Command{
		Use:   "owner-token",
		Short: "Print a login of the installation's owner",
		Long: `Prints a credential that acts as the first owner for a while. It follows from HELMR_AUTH_KEY and is not stored: it ends
when its time is over or the key is changed. Commands that an API key cannot do, such as helmr worker, use it once it is
saved with helmr login.`,
		Example: "  helmr server owner-token | helmr login https://helmr.example.com\n  helmr server owner-token --for 1h",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, _, err := readSettings(a.getenv, serverSettings)
			if err != nil {
				return settingsError(err)
			}
			if good <= 0 || good > access.MaxOwnerToken {
				return usageErrorf("--for must be a duration from 1s to %dh, for example 12h", int(access.MaxOwnerToken.Hours()))
			}
			until := time.Now().Add(good)
			token := access.NewOwnerToken(s.key("HELMR_AUTH_KEY"), until)
			return a.show(cmd, map[string]string{"token": token, "expires_at": until.UTC().Format(time.RFC3339)}, func(w *text) { w.line("%s", token) })
		},
	}
	c.Flags().DurationVar(&good, "for", 12*time.Hour, "how long it is good")
	return c
}

// processLog is the log of a process: JSON lines.
func processLog(out io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(out, nil)) }

func (s settings) s3() blob.S3 {
	return blob.S3{Endpoint: s["HELMR_S3_ENDPOINT"], AccessKeyID: s["HELMR_S3_ACCESS_KEY_ID"], SecretAccessKey: s["HELMR_S3_SECRET_ACCESS_KEY"]}
}

func settingsError(err error) error {
	return hinted{fmt.Errorf("the settings are not usable:\n  %w", err), "docs/operations.md describes every setting"}
}

// settingsHelp lists the settings of a process for its help.
func settingsHelp(of process) string {
	var b strings.Builder
	b.WriteString("Settings:\n")
	for _, d := range settingsTable {
		if !of(d) || d.later {
			continue
		}
		switch {
		case d.required:
			fmt.Fprintf(&b, "  %-42s required: %s\n", d.name, d.want)
		case d.fallback != "":
			fmt.Fprintf(&b, "  %-42s %s (default %s)\n", d.name, d.want, d.fallback)
		default:
			fmt.Fprintf(&b, "  %-42s %s\n", d.name, d.want)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}
