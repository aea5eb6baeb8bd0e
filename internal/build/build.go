package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/image"
)

// DefaultOutput is where a bundle goes, below the project.
const DefaultOutput = ".helmr/deployment-bundle"

// Options say what to build.
type Options struct {
	// Dir is the project's root; "" is the current folder.
	Dir string
	// Output is the bundle folder to write, relative to the current folder; "" is DefaultOutput in the project. It must
	// not exist.
	Output string
	// Progress is told what happens; nil is allowed.
	Progress Progress
}

// Result is a finished bundle.
type Result struct {
	// Path is the bundle folder. Digest is the bundle's: the hex SHA-256 of its manifest.
	Path     string
	Digest   string
	Manifest *bundle.Manifest
}

// Run builds the project and writes its bundle. Mistakes in the project come as *Problem. After an error, or when ctx
// ends, there is no bundle, no running program and no temporary file.
func Run(ctx context.Context, options Options) (Result, error) {
	progress := options.Progress
	if progress == nil {
		progress = func(Event) {}
	}
	root, output, err := places(options)
	if err != nil {
		return Result{}, err
	}
	b, err := newBuilder(root, output, progress)
	if err != nil {
		return Result{}, err
	}
	defer b.close()
	folder, err := b.run(ctx)
	if errors.Is(err, syscall.ENOSPC) {
		return Result{}, fullDisk(b.shared, output, err)
	}
	if err != nil {
		return Result{}, err
	}
	return Result{Path: folder.Dir, Digest: folder.Digest, Manifest: folder.Manifest}, nil
}

// fullDisk says where the build writes: one of these disks is full.
func fullDisk(shared, output string, err error) *Problem {
	where := []string{filepath.Dir(shared), filepath.Dir(output)}
	if cache, cerr := image.CacheDir(); cerr == nil {
		where = append(where, cache)
	}
	slices.Sort(where)
	where = slices.Compact(where)
	return problem("disk", "Make room, or set TMPDIR, and HELMR_CACHE_DIR for images, to folders on a larger disk",
		"no space is left where the build writes (%s): %v", strings.Join(where, ", "), err)
}

// places resolves the two folders of the options and refuses a target that exists before any work is done.
func places(options Options) (root, output string, err error) {
	root, err = filepath.Abs(options.Dir)
	if err != nil {
		return "", "", fmt.Errorf("find the project: %w", err)
	}
	output = options.Output
	if output == "" {
		output = filepath.Join(root, filepath.FromSlash(DefaultOutput))
	}
	if output, err = filepath.Abs(output); err != nil {
		return "", "", fmt.Errorf("find the output: %w", err)
	}
	if _, err := os.Lstat(output); err == nil {
		return "", "", targetExists(output)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("find the output: %w", err)
	}
	return root, output, nil
}

// builder is one build on its way. Everything it makes before the bundle is in work, which only the user who builds
// can enter, except for what another user must reach to install packages: that is in shared, beside it.
type builder struct {
	root, output string
	work, shared string
	progress     Progress

	node     node
	source   string // the captured project, never changed
	tree     string // the source, or a copy of it with installed packages
	captured captured
	config   config
	secrets  buildSecrets
	index    index
	program  []bundle.ProgramFile
	images   []builtImage
}

// newBuilder makes the temporary folders of a build; close removes them.
func newBuilder(root, output string, progress Progress) (*builder, error) {
	shared, err := os.MkdirTemp("", "helmr-build-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary folder: %w", err)
	}
	b := &builder{root: root, output: output, shared: shared, progress: progress}
	// The way there may go over a link; the bundler and Node.js report real paths.
	if b.shared, err = filepath.EvalSymlinks(shared); err == nil {
		b.work = filepath.Join(b.shared, "private")
		err = os.Mkdir(b.work, 0o700)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a temporary folder: %w", err), os.RemoveAll(shared))
	}
	return b, nil
}

func (b *builder) close() { _ = os.RemoveAll(b.shared) } // a file that cannot be removed must not hide the result

func (b *builder) run(ctx context.Context) (*bundle.Folder, error) {
	for _, step := range []func(context.Context) error{b.capture, b.evaluate, b.install, b.makeIndex, b.buildImages} {
		if err := step(ctx); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return b.assemble()
}

func (b *builder) capture(ctx context.Context) error {
	return b.progress.step(StepCapture, "Reading "+b.root, func(r reporter) (string, error) {
		b.source = filepath.Join(b.work, "source")
		b.tree = b.source
		if err := os.Mkdir(b.source, 0o755); err != nil {
			return "", fmt.Errorf("capture source: %w", err)
		}
		var err error
		if b.captured, err = capture(ctx, b.root, b.source); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s, %s", count(int(b.captured.files), "file"), sizeText(b.captured.bytes)), nil
	})
}

func (b *builder) evaluate(ctx context.Context) error {
	return b.progress.step(StepConfig, "Reading "+configName, func(r reporter) (string, error) {
		var err error
		if b.node, err = findNode(ctx); err != nil {
			return "", err
		}
		if b.config, err = evaluateConfig(ctx, b.node, b.source, b.work, r); err != nil {
			return "", err
		}
		if b.secrets, err = readSecrets(b.config.Build.Secrets); err != nil {
			return "", err
		}
		return "definitions are in " + strings.Join(b.config.Dirs, ", "), nil
	})
}

func (b *builder) install(ctx context.Context) error {
	argv, err := installCommand(b.source, b.config)
	if err != nil || argv == nil {
		return err
	}
	return b.progress.step(StepInstall, "Installing dependencies", func(r reporter) (string, error) {
		// Images copy from the source as it was captured, so packages go into a copy.
		b.tree = filepath.Join(b.shared, "tree")
		if err := os.Mkdir(b.tree, 0o700); err != nil {
			return "", fmt.Errorf("install dependencies: %w", err)
		}
		if err := copyTree(ctx, b.source, b.tree, b.captured.entries); err != nil {
			return "", err
		}
		if err := os.Chmod(b.shared, 0o711); err != nil {
			return "", fmt.Errorf("install dependencies: %w", err)
		}
		return strings.Join(argv, " "), install(ctx, argv, b.secrets, b.tree, b.shared, r)
	})
}

func (b *builder) makeIndex(ctx context.Context) error {
	return b.progress.step(StepIndex, "Indexing definitions", func(r reporter) (string, error) {
		var err error
		if b.index, err = indexProgram(ctx, b.node, b.tree, b.work, b.config, r); err != nil {
			return "", err
		}
		if b.program, err = b.programFiles(); err != nil {
			return "", err
		}
		agents := make([]string, len(b.index.plan.Agents))
		for i, agent := range b.index.plan.Agents {
			agents[i] = agent.ID
		}
		return fmt.Sprintf("%s (%s), %s", count(len(agents), "agent"), shortList(agents), count(len(b.index.plan.Templates), "template")), nil
	})
}

func (b *builder) buildImages(ctx context.Context) error {
	return b.progress.step(StepImages, "Building images", func(r reporter) (string, error) {
		var err error
		if b.images, err = buildImages(ctx, b.index, b.source, filepath.Join(b.work, "images"), r); err != nil {
			return "", err
		}
		distinct := map[string]bool{}
		for _, image := range b.images {
			distinct[image.archive] = true
		}
		return fmt.Sprintf("%s for %s", count(len(distinct), "image"), count(len(b.images), "template")), nil
	})
}

func (b *builder) assemble() (folder *bundle.Folder, err error) {
	err = b.progress.step(StepBundle, "Writing the bundle", func(reporter) (string, error) {
		folder, err = assemble(assembly{plan: b.index.plan, sdk: b.index.sdk, program: b.program, images: b.images}, b.output)
		if err != nil {
			return "", err
		}
		return folder.Digest, nil
	})
	return folder, err
}

func (b *builder) programFiles() ([]bundle.ProgramFile, error) {
	files := []bundle.ProgramFile{{Path: bundle.Entry, Data: b.index.program}}
	externals, err := externalFiles(b.tree, b.config.Build.External)
	if err != nil {
		return nil, err
	}
	assets, err := assetFiles(b.captured.entries, b.source, b.config.Build.Assets)
	if err != nil {
		return nil, err
	}
	files = append(append(files, externals...), assets...)
	return files, b.secrets.absent(files)
}

// count writes a number of things.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func sizeText(bytes int64) string {
	switch {
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	case bytes >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", bytes)
}
