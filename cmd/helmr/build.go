package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/build"
)

func buildCommand() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "build [PATH]",
		Short: "Build a project into a deployment bundle",
		Long: `Reads the project's source, evaluates helmr.config.ts, installs dependencies, indexes the agents and templates, builds
their images and writes the bundle. Prints the path of the bundle; "helmr deploy --bundle" takes it from there. Equal
source gives an equal bundle. It needs Node.js and, for images, Docker with Buildx, buildctl or buildah.`,
		Example: `  helmr build
  helmr build hello -o out/bundle
  helmr build --json`,
		Args: optionalArg("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			options := build.Options{Output: output, Progress: newStepPrinter(cmd.ErrOrStderr(), jsonWanted(cmd)).build}
			if len(args) > 0 {
				options.Dir = args[0]
			}
			result, err := build.Run(cmd.Context(), options)
			if err != nil {
				return authorError(err)
			}
			if jsonWanted(cmd) {
				return printLine(cmd.OutOrStdout(), map[string]any{"path": result.Path, "bundle_digest": result.Digest})
			}
			w := newText(cmd.OutOrStdout())
			w.line("%s", result.Path)
			return w.flush()
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "", "folder of the bundle, which must not exist (default "+build.DefaultOutput+" in the project)")
	return command
}

// authorError gives a mistake in a project as an error with a hint.
func authorError(err error) error {
	p, ok := errors.AsType[*build.Problem](err)
	if !ok {
		return err
	}
	message := p.What
	if p.Where != "" {
		message = p.Where + ": " + message
	}
	if p.Detail != "" {
		message += "\n" + p.Detail
	}
	if p.Do == "" {
		return fmt.Errorf("%s", message)
	}
	return hinted{fmt.Errorf("%s", message), p.Do}
}

// jsonWanted reads the global flag.
func jsonWanted(cmd *cobra.Command) bool {
	wanted, err := cmd.Flags().GetBool("json")
	return err == nil && wanted
}
