// Command helmr is the one binary of the project: the command line for authors and operators, and the processes that it
// starts (dev, server, worker, migrate). It is not where work is done: commands parse flags, call the client or start a
// process, and print. One file per command; credentials and flags that all share are in config.go, the settings of the
// processes in settings.go.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/build/lend"
)

func main() {
	lend.Main()
	writeNoCore()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	m := Main{Args: os.Args[1:], Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	code := m.Run(ctx)
	stop()
	os.Exit(code)
}

// writeNoCore keeps the kernel from writing the memory of this program, which may hold secrets, to a file when it dies, and
// so with the sandboxes that it starts. A limit of 1 also ends what the kernel would pipe to a program; 0 does not.
func writeNoCore() {
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 1, Max: 1}) // lowering a limit is always allowed
}

// Main is one run of the program. A test fills it like main does and reads what it wrote.
type Main struct {
	Args   []string
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Run executes the command and gives its exit status: 0 success, 1 refused or failed, 2 usage error, 124 wait timed out.
// When ctx ends, commands that observe stop observing and processes stop in order.
func (m *Main) Run(ctx context.Context) int {
	a := &app{getenv: m.Getenv}
	root := a.rootCommand()
	root.SetArgs(m.Args)
	root.SetIn(m.Stdin)
	root.SetOut(m.Stdout)
	root.SetErr(m.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	// After a flag that was not understood, --json may not have been read.
	words := m.Args
	if end := slices.Index(words, "--"); end >= 0 {
		words = words[:end]
	}
	a.flags.json = a.flags.json || slices.Contains(words, "--json")
	return a.report(cmd, err)
}

// app is what the commands share: the environment they run in and the global flags.
type app struct {
	getenv func(string) string
	flags  struct {
		apiURL, project, environment string
		json                         bool
	}
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "helmr",
		Short: "Run AI agents in durable computers of your own",
		Long: `helmr runs agents that you write in TypeScript. Each agent works in a durable Linux computer; it takes its input as
turns of long-lived sessions, and what it was promised to do survives the failure of any one process.

Start here:
  helmr dev                       a whole helmr on this machine
  helmr init --dir hello          a first project
  helmr deploy hello              build it and make it current
  helmr session create reviewer --text "Review APP-42" --follow`,
		Example: `  helmr dev
  helmr deploy examples/hello-agent
  helmr session create reviewer --text "Review APP-42" --follow`,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              noArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("helmr {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if what, _, isNumber := strings.Cut(err.Error(), ": strconv."); isNumber {
			return usageErrorf("%s: it wants a number", what)
		}
		return usageError{err.Error()}
	})
	f := root.PersistentFlags()
	f.StringVarP(&a.flags.apiURL, "api-url", "a", "", "server to talk to (default: HELMR_API_URL, the last login, "+defaultURL+")")
	f.StringVarP(&a.flags.project, "project", "p", "", "project, with a login of a person")
	f.StringVarP(&a.flags.environment, "env", "e", "", "environment, with a login of a person")
	f.BoolVar(&a.flags.json, "json", false, "print the REST object (streams: one object per line)")

	root.AddGroup(
		&cobra.Group{ID: "author", Title: "Write and deploy agents:"},
		&cobra.Group{ID: "use", Title: "Use agents:"},
		&cobra.Group{ID: "run", Title: "Run helmr:"},
		&cobra.Group{ID: "self", Title: "This program:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("author", initCommand(), buildCommand(), a.deployCommand(), imageCommand(), a.deploymentCommand(), a.agentCommand(), a.templateCommand())
	add("use", a.sessionCommand(), a.computerCommand(), a.commandCommand(), a.secretCommand())
	add("run", a.devCommand(), a.serverCommand(), a.workerCommand(), a.migrateCommand(), a.doctorCommand())
	add("self", a.loginCommand(), a.logoutCommand(), a.whoamiCommand(), a.versionCommand(), completionCommand())
	root.SetHelpCommandGroupID("self")
	return root
}

// groupCommand is a command that only holds others.
func groupCommand(use, short, example string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Example: example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return usageErrorf("%s has no command %q", cmd.CommandPath(), args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(children...)
	return c
}

// noArgs refuses arguments with a sentence that says what was not understood.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Parent() == nil {
		return usageErrorf("there is no command %q", args[0])
	}
	return usageErrorf("%s takes no argument, but got %q", cmd.CommandPath(), args[0])
}

// oneArg wants exactly one argument, named as in the command's use line.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < 1 || args[0] == "":
			return usageErrorf("%s needs %s", cmd.CommandPath(), name)
		case len(args) > 1:
			return usageErrorf("%s takes only %s, but got also %q (quote a text that has spaces)", cmd.CommandPath(), name, args[1])
		}
		return nil
	}
}

// optionalArg wants at most one argument.
func optionalArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usageErrorf("%s takes only %s, but got also %q", cmd.CommandPath(), name, args[1])
		}
		return nil
	}
}
