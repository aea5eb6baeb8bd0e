package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is set when a release is built (-ldflags "-X main.release=v1.2.3").
var release string

// version names this build: the release, or the commit it was built from.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+changes"
			}
		}
	}
	if len(revision) >= 12 {
		return "devel-" + revision[:12] + dirty
	}
	return "devel"
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version of this program", Example: "  helmr version\n  helmr version --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return a.show(cmd, v, func(w *text) { w.line("helmr %s (%s, %s)", v.Version, v.Go, v.Platform) })
		},
	}
}

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the completion script of a shell (bash, zsh, fish, powershell)",
		Example: `  source <(helmr completion bash)
  helmr completion zsh > "${fpath[1]}/_helmr"
  helmr completion fish | source`,
		Args:      oneArg("SHELL: bash, zsh, fish or powershell"),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			var err error
			switch args[0] {
			case "bash":
				err = root.GenBashCompletionV2(out, true)
			case "zsh":
				err = root.GenZshCompletion(out)
			case "fish":
				err = root.GenFishCompletion(out, true)
			case "powershell":
				err = root.GenPowerShellCompletionWithDesc(out)
			default:
				return usageErrorf("SHELL is bash, zsh, fish or powershell, not %q", args[0])
			}
			if err != nil {
				return fmt.Errorf("write completion script: %w", err)
			}
			return nil
		},
	}
}
