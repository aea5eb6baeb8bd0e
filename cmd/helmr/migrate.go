package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/db"
)

func (a *app) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring the schema of a database up to date",
		Long: `Runs the migrations that the database named by HELMR_DATABASE_URL lacks, and ends. A second run does nothing.
Order of an upgrade: migrate, then the servers, then the workers one by one.`,
		Example: "  HELMR_DATABASE_URL=postgres://helmr@db/helmr helmr migrate",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, _, err := readSettings(a.getenv, migrateSettings)
			if err != nil {
				return settingsError(err)
			}
			d, err := db.Open(cmd.Context(), s["HELMR_DATABASE_URL"])
			if err != nil {
				return fmt.Errorf("open the database: %w", err)
			}
			ran, err := d.Migrate(cmd.Context())
			if cerr := d.Close(); err == nil {
				err = cerr
			}
			if err != nil {
				return err
			}
			if ran == nil {
				ran = []string{}
			}
			return a.show(cmd, map[string]any{"migrations": ran}, func(w *text) {
				if len(ran) == 0 {
					w.line("The schema is up to date.")
				}
				for _, name := range ran {
					w.line("ran %s", name)
				}
			})
		},
	}
}
