package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/build"
)

func initCommand() *cobra.Command {
	var dir string
	var force bool
	command := &cobra.Command{
		Use:   "init",
		Short: "Write a starter project",
		Long: `Writes package.json, helmr.config.ts, tsconfig.json, .helmrignore, .gitignore and one agent. The types of @helmr/sdk
go to .helmr/sdk, so that an editor understands the project before anything is installed.`,
		Example: `  helmr init --dir hello
  helmr init --force`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files, err := build.Init(dir, force)
			if err != nil {
				return authorError(err)
			}
			if jsonWanted(cmd) {
				absolute, err := filepath.Abs(dir)
				if err != nil {
					return err
				}
				return printJSON(cmd.OutOrStdout(), map[string]any{"path": absolute, "files": files})
			}
			w := newText(cmd.OutOrStdout())
			for _, file := range files {
				w.line("%s", filepath.Join(dir, file))
			}
			if err := w.flush(); err != nil {
				return err
			}
			cmd.PrintErrf("next: helmr deploy %s\n", dir)
			return nil
		},
	}
	command.Flags().StringVar(&dir, "dir", ".", "folder of the project; made when it is missing")
	command.Flags().BoolVar(&force, "force", false, "write over files that exist")
	return command
}
