package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"helmr.dev/helmr/internal/fault"
)

// builder is a program that executes Containerfiles.
type builder interface {
	name() string
	// build builds the plan's image and checks its Node. The id stands for the image's content, or is "" when the
	// builder has no such name.
	build(ctx context.Context, j *job) (id string, err error)
	// export leaves the image as an OCI layout in j.layout.
	export(ctx context.Context, j *job, id string) error
}

// builderPatience bounds the question whether a builder is there.
const builderPatience = 10 * time.Second

// findBuilder gives the first builder that answers: Docker Buildx, buildctl, buildah.
func findBuilder(ctx context.Context, cacheDir string) (builder, error) {
	var tried []string
	for _, find := range finders(cacheDir) {
		asking, cancel := context.WithTimeout(ctx, builderPatience)
		b, why := find.ask(asking)
		cancel()
		if b != nil {
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		tried = append(tried, find.name+": "+why)
	}
	return nil, noBuilder(tried)
}

type finder struct {
	name string
	ask  func(ctx context.Context) (builder, string)
}

func finders(cacheDir string) []finder {
	return []finder{
		{"docker buildx", func(ctx context.Context) (builder, string) { return orNil(findBuildx(ctx)) }},
		{"buildctl", func(ctx context.Context) (builder, string) { return orNil(findBuildctl(ctx)) }},
		{"buildah", func(ctx context.Context) (builder, string) { return orNil(findBuildah(ctx, cacheDir)) }},
	}
}

// orNil keeps a nil pointer from becoming a builder.
func orNil[B any, P interface {
	*B
	builder
}](b P, why string) (builder, string) {
	if b == nil {
		return nil, why
	}
	return b, ""
}

// writeContainerfile writes the plan's text beside the context, never into it.
func (j *job) writeContainerfile(names []string) (string, error) {
	file := filepath.Join(j.work, "Containerfile")
	return file, os.WriteFile(file, []byte(j.plan.render(names)), 0o644)
}

// run runs a builder's command; its output is progress.
func (j *job) run(cmd *exec.Cmd) (output string, err error) {
	log := &lineWriter{line: j.say}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	return log.tail(), err
}

// check runs a builder's command for the check of Node, whose output is of interest only when it fails.
func (j *job) check(cmd *exec.Cmd) (output string, err error) {
	j.say("checking that Node.js runs in the image")
	quiet := *j
	quiet.say = nil
	return quiet.run(cmd)
}

// buildError is the fault of an image whose steps failed.
func (j *job) buildError(ctx context.Context, b builder, output string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if strings.Contains(output, syscall.ENOSPC.Error()) {
		err = errors.Join(err, syscall.ENOSPC) // callers tell a full disk from a mistake of the author
	}
	return fault.New(fault.InvalidArguments, "Image %q could not be built. %s said:\n%s", j.key, b.name(), indent(lastLines(output, 15))).Because(err)
}

var nodeFoundLine = regexp.MustCompile(`(?m)^(?:#\d+ [0-9.]+ )?` + regexp.QuoteMeta(nodeFound) + `(\S+)`)

// nodeError is the fault of an image in which the check of Node failed.
func (j *job) nodeError(ctx context.Context, b builder, output string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	const mend = "Take a base such as node:24-bookworm-slim, or install Node.js 22 or later onto the PATH of the image."
	if m := nodeFoundLine.FindStringSubmatch(output); m != nil {
		return fault.New(fault.InvalidArguments, "Image %q has Node.js %s, and Agents need 22 or later. %s", j.key, m[1], mend).Because(err)
	}
	return fault.New(fault.InvalidArguments, "Image %q does not run Node.js: `node` on its PATH, as its user, failed. %s\n%s said:\n%s",
		j.key, mend, b.name(), indent(lastLines(output, 4))).Because(err)
}

func indent(s string) string { return "  " + strings.ReplaceAll(s, "\n", "\n  ") }

// why is the line of a failed command's output that says most, or the error itself.
func why(out []byte, err error) string {
	if errors.Is(err, exec.ErrNotFound) {
		return "not installed"
	}
	first := ""
	for l := range strings.Lines(string(out)) {
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		if first == "" {
			first = l
		}
		if strings.Contains(strings.ToLower(l), "error") {
			return l
		}
	}
	if first == "" {
		return err.Error()
	}
	return first
}
