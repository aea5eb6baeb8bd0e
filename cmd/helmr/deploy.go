package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/build"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/id"
)

// deployRun is one run of helmr deploy.
type deployRun struct {
	app           *app
	cmd           *cobra.Command
	bundle        string
	skipPromotion bool
	key           string
	steps         *stepPrinter
}

func (a *app) deployCommand() *cobra.Command {
	d := &deployRun{app: a}
	c := &cobra.Command{
		Use:   "deploy [PATH]",
		Short: "Build a project, upload it and make it current",
		Long: `Builds the project at PATH (default: this folder), uploads what the server lacks, registers it as a deployment and
makes that the current one. Nothing is registered unless everything arrived; a deployment that is registered stays
listed whether or not it is promoted.`,
		Example: `  helmr deploy
  helmr deploy examples/hello-agent
  helmr deploy --skip-promotion
  helmr deploy --bundle .helmr/deployment-bundle`,
		Args: optionalArg("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			d.cmd = cmd
			if d.bundle != "" && len(args) > 0 {
				return usageErrorf("PATH and --bundle do not go together: a bundle is built already")
			}
			path := "."
			if len(args) == 1 {
				path = args[0]
			}
			return d.run(cmd.Context(), path)
		},
	}
	f := c.Flags()
	f.StringVar(&d.bundle, "bundle", "", "deploy this bundle, which helmr build made, instead of building")
	f.BoolVar(&d.skipPromotion, "skip-promotion", false, "register the deployment, but do not make it current")
	f.StringVar(&d.key, "idempotency-key", "", "repeating the command with the same key registers nothing again")
	return c
}

func (d *deployRun) run(ctx context.Context, path string) error {
	c, err := d.app.client()
	if err != nil {
		return err
	}
	if d.key == "" {
		d.key = id.New()
	}
	d.steps = newStepPrinter(d.cmd.ErrOrStderr(), d.app.flags.json)
	// The server is asked first: a build takes long, and a wrong key is known at once.
	if _, err := c.Me(ctx); err != nil {
		return err
	}
	folder, cleanup, err := d.open(ctx, path)
	if err != nil {
		return err
	}
	defer cleanup()
	if err := d.upload(ctx, c, folder); err != nil {
		return err
	}
	registered, err := d.finalize(ctx, c, folder)
	if err != nil {
		return err
	}
	if d.skipPromotion {
		return d.app.show(d.cmd, registered, func(w *text) {
			w.field("version", registered.Version)
			w.field("deployment", registered.ID)
			w.line("Not promoted. To make it current: helmr deployment promote %s", registered.ID)
		})
	}
	promotion, err := c.Promote(ctx, registered.ID, api.PromoteRequest{IdempotencyKey: d.key})
	if err != nil {
		return hinted{fmt.Errorf("deployment %s (version %d) is registered but not promoted: %w", registered.ID, registered.Version, err),
			"to make it current: helmr deployment promote " + registered.ID}
	}
	registered.Current, registered.PromotedAt = true, &promotion.PromotedAt
	out := struct {
		api.Deployment
		RestoredAgents []api.AgentRef `json:"restored_agents,omitempty"`
	}{registered, promotion.RestoredAgents}
	return d.app.show(d.cmd, out, func(w *text) {
		w.field("version", registered.Version)
		w.field("deployment", registered.ID)
		for _, g := range registered.Agents {
			w.field("agent", g.ID)
		}
		for _, g := range promotion.RestoredAgents {
			w.field("restored", g.ID)
		}
	})
}

// open gives the bundle to deploy: the one named by --bundle, or a new one in a temporary folder.
func (d *deployRun) open(ctx context.Context, path string) (*bundle.Folder, func(), error) {
	dir, cleanup := d.bundle, func() {}
	if dir == "" {
		work, err := os.MkdirTemp("", "helmr-deploy-")
		if err != nil {
			return nil, nil, fmt.Errorf("make a temporary folder: %w", err)
		}
		cleanup = func() { _ = os.RemoveAll(work) } // a file that cannot be removed must not hide the result
		result, err := build.Run(ctx, build.Options{Dir: path, Output: filepath.Join(work, "bundle"), Progress: d.steps.build})
		if err != nil {
			cleanup()
			return nil, nil, authorError(err)
		}
		dir = result.Path
	}
	folder, err := bundle.Open(dir)
	if err != nil {
		cleanup()
		return nil, nil, fmt.Errorf("bundle %s: %w", dir, err)
	}
	return folder, cleanup, nil
}

func (d *deployRun) upload(ctx context.Context, c *client.Client, folder *bundle.Folder) error {
	plan, err := c.UploadPlan(ctx, folder.Bytes)
	if err != nil {
		return fmt.Errorf("plan the upload: %w", err)
	}
	var total, before int64
	for _, u := range plan.Uploads {
		object, _ := folder.Manifest.Object(u.Digest) // an unknown digest fails below, when its file is opened
		total += object.SizeBytes
	}
	end := d.steps.start("upload", "Uploading %d of %d objects, %s", len(plan.Uploads), len(folder.Manifest.Objects), byteSize(total))
	for _, u := range plan.Uploads {
		open := func() (io.ReadCloser, error) { return os.Open(folder.ObjectPath(u.Digest)) }
		progress := func(sent int64) { d.steps.amount("upload", before+sent, total) }
		object, _ := folder.Manifest.Object(u.Digest)
		if err := c.UploadObject(ctx, u, object.SizeBytes, open, progress); err != nil {
			return fmt.Errorf("upload object %s: %w", u.Digest, err)
		}
		before += object.SizeBytes
	}
	end("%s sent", byteSize(total))
	return nil
}

func (d *deployRun) finalize(ctx context.Context, c *client.Client, folder *bundle.Folder) (api.Deployment, error) {
	end := d.steps.start("finalize", "Verifying %d objects", len(folder.Manifest.Objects))
	n := int64(0)
	registered, err := c.Finalize(ctx, api.FinalizeRequest{BundleDigest: folder.Digest, IdempotencyKey: d.key}, func(string) {
		n++
		d.steps.amount("finalize", n, int64(len(folder.Manifest.Objects)))
	})
	if err != nil {
		return registered, fmt.Errorf("finalize the bundle: %w", err)
	}
	end("registered as version %d", registered.Version)
	return registered, nil
}

// stepPrinter shows the steps of a build and a deployment: lines for people, or JSON lines. A terminal also sees how far
// a step is.
type stepPrinter struct {
	out      io.Writer
	json     bool
	terminal bool
	shown    time.Time // when amount last wrote
	partial  bool      // the last line on the terminal is an amount
}

func newStepPrinter(out io.Writer, asJSON bool) *stepPrinter {
	return &stepPrinter{out: out, json: asJSON, terminal: isTerminal(out) && !asJSON}
}

// build shows an event of the build.
func (p *stepPrinter) build(e build.Event) {
	if p.json {
		_ = printLine(p.out, e) // progress that cannot be shown must not fail the work
		return
	}
	switch e.Kind {
	case build.EventStart:
		p.line("%s", e.Message)
	case build.EventEnd:
		p.line("  %s (%s)", e.Message, (time.Duration(e.DurationMs) * time.Millisecond).Round(10*time.Millisecond))
	case build.EventWarning:
		p.line("  warning: %s", clean(e.Message))
	default:
		p.line("  | %s", clean(e.Message))
	}
}

// start shows that a step begins and gives the function that shows its end.
func (p *stepPrinter) start(step build.Step, format string, args ...any) (end func(format string, args ...any)) {
	began := time.Now()
	p.build(build.Event{Kind: build.EventStart, Step: step, Message: fmt.Sprintf(format, args...)})
	return func(format string, args ...any) {
		p.build(build.Event{Kind: build.EventEnd, Step: step, Message: fmt.Sprintf(format, args...), DurationMs: time.Since(began).Milliseconds()})
	}
}

// amount shows how far a step is, at most five times a second.
func (p *stepPrinter) amount(step build.Step, done, total int64) {
	if !p.terminal || time.Since(p.shown) < 200*time.Millisecond || total == 0 {
		return
	}
	p.shown, p.partial = time.Now(), true
	_, _ = fmt.Fprintf(p.out, "\r  %s %d%%", step, done*100/total)
}

func (p *stepPrinter) line(format string, args ...any) {
	if p.partial {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
		p.partial = false
	}
	_, _ = fmt.Fprintf(p.out, format+"\n", args...)
}

// byteSize writes a number of bytes for people.
func byteSize(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
