package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/egress/policy"
)

// definition is one exported Agent or Template as the program describes it.
type definition struct {
	Kind     string              `json:"kind"`
	Module   string              `json:"module"`
	Export   string              `json:"export"`
	Agent    *agentDefinition    `json:"agent"`
	Template *templateDefinition `json:"template"`
}

func (d definition) id() string {
	if d.Agent != nil {
		return d.Agent.ID
	}
	return d.Template.ID
}

type agentDefinition struct {
	ID                   string            `json:"id"`
	Template             string            `json:"template"`
	HasInit              bool              `json:"has_init"`
	MaxTurnDurationMs    *int64            `json:"max_turn_duration_ms"`
	CloseAfterIdleMs     *int64            `json:"close_after_idle_ms"`
	HibernateAfterIdleMs *int64            `json:"hibernate_after_idle_ms"`
	Triggers             []json.RawMessage `json:"triggers"`
}

type templateDefinition struct {
	ID                  string              `json:"id"`
	Image               json.RawMessage     `json:"image"`
	Resources           bundle.Resources    `json:"resources"`
	Network             policy.Policy       `json:"network"`
	Prepare             string              `json:"prepare"`
	PrepareNetwork      *policy.Policy      `json:"prepare_network"`
	PrepareSecrets      []api.SecretBinding `json:"prepare_secrets"`
	RefreshEveryMs      *int64              `json:"refresh_every_ms"`
	Secrets             []api.SecretBinding `json:"secrets"`
	DeleteAfterUnusedMs *int64              `json:"delete_after_unused_ms"`
}

// index is what was found in a project, and the program that holds it.
type index struct {
	plan bundle.Plan
	// images has the image definition of each Template, in the order of plan.Templates.
	images  []json.RawMessage
	program []byte
	sdk     string
}

// programBanner gives bundled CommonJS packages what Node.js gives such modules.
const programBanner = `import { createRequire as helmrCreateRequire } from "node:module"
globalThis.require ??= helmrCreateRequire(import.meta.url)
globalThis.__filename ??= import.meta.filename
globalThis.__dirname ??= import.meta.dirname`

// indexProgram bundles the modules of the project into one program, runs it once, and gives what it defines.
func indexProgram(ctx context.Context, n node, tree, work string, c config, r reporter) (index, error) {
	modules, err := discover(tree, c)
	if err != nil {
		return index{}, err
	}
	installed := fileExists(filepath.Join(tree, "node_modules", sdkName, manifestName))
	built, err := bundleProgram(tree, modules, c.Build.External, installed)
	if err != nil {
		return index{}, err
	}
	for _, warning := range built.warnings {
		r.warn("%s", warning)
	}
	if importer, ok := configImporter(built.importers); ok {
		return index{}, problem(importer, "Move what both need into a module of its own", "imports %s, which runs on the machine that builds and is no part of a program", configName)
	}
	var report struct {
		Definitions []definition `json:"definitions"`
		Error       *scriptError `json:"error"`
	}
	run := scriptRun{node: n, name: "program", script: indexScript, module: built.code, work: work, env: hostEnvironment(indexEnvironment)}
	if err := linkModules(tree, work); err != nil {
		return index{}, err
	}
	if err := run.run(ctx, r, &report); err != nil {
		return index{}, describeEnd(err, shortList(modules), "a module")
	}
	if report.Error != nil {
		return index{}, importProblem(report.Error, run.moduleDir())
	}
	plan, images, err := makePlan(report.Definitions, modules, c, r)
	if err != nil {
		return index{}, err
	}
	version, err := sdkVersion(tree, installed)
	if err != nil {
		return index{}, err
	}
	return index{plan: plan, images: images, program: built.code, sdk: version}, nil
}

// configImporter finds a module that imports the configuration, also with a query or attributes, which the bundler
// writes behind the path.
func configImporter(importers map[string]string) (string, bool) {
	for _, file := range sortedKeys(importers) {
		rest, ok := strings.CutPrefix(file, configName)
		if ok && (rest == "" || strings.ContainsAny(rest[:1], "?# ")) {
			return importers[file], true
		}
	}
	return "", false
}

// indexEnvironment is all that a module can read of the environment of the build: definitions must not depend on it.
var indexEnvironment = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

// bundleProgram bundles the entry module over the discovered ones.
func bundleProgram(tree string, modules, external []string, installedSDK bool) (compiled, error) {
	var entry, list strings.Builder
	for i, module := range modules {
		specifier, err := json.Marshal("./" + module)
		if err != nil {
			return compiled{}, fmt.Errorf("write the entry module: %w", err)
		}
		name, err := json.Marshal(module)
		if err != nil {
			return compiled{}, fmt.Errorf("write the entry module: %w", err)
		}
		fmt.Fprintf(&entry, "import * as module%d from %s\n", i, specifier)
		fmt.Fprintf(&list, "  [%s, module%d],\n", name, i)
	}
	return compile(compileRequest{
		tree: tree, external: external, installedSDK: installedSDK, target: "22", banner: programBanner,
		entry: entry.String() + "const modules = [\n" + list.String() + "]\n" + entryScript,
	})
}

// linkModules lets the program find external packages while it is indexed.
func linkModules(tree, work string) error {
	installed := filepath.Join(tree, "node_modules")
	if _, err := os.Stat(installed); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Symlink(installed, filepath.Join(work, "node_modules")); err != nil {
		return fmt.Errorf("prepare the index step: %w", err)
	}
	return nil
}

// discover lists the modules that may export definitions, sorted.
func discover(tree string, c config) ([]string, error) {
	var modules []string
	for i, dir := range c.Dirs {
		field := fmt.Sprintf("dirs[%d]", i)
		info, err := os.Lstat(filepath.Join(tree, dir))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, problem(configName, "Create the folder, correct the name, or take it out of .helmrignore", "%s: there is no folder %q", field, dir)
		case err != nil:
			return nil, fmt.Errorf("discover modules: %w", err)
		case !info.IsDir():
			return nil, problem(configName, "Name a folder", "%s: %q is not a folder", field, dir)
		}
		err = fs.WalkDir(os.DirFS(tree), dir, func(name string, item fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case item.IsDir() && item.Name() == "node_modules":
				return fs.SkipDir
			case item.IsDir() || !isModule(name) || name == configName || matchesAny(c.IgnorePatterns, name):
				return nil
			}
			if info, err := os.Stat(filepath.Join(tree, name)); err != nil || !info.Mode().IsRegular() {
				return err // a link to a folder
			}
			modules = append(modules, name)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("discover modules: %w", err)
		}
	}
	slices.Sort(modules)
	modules = slices.Compact(modules)
	if len(modules) == 0 {
		return nil, problem(configName, "Put a module that exports an Agent there, or name other folders in dirs",
			"there are no modules (.ts, .tsx, .mts, .js, .mjs) in %s", strings.Join(c.Dirs, ", "))
	}
	return modules, nil
}

// isModule tells whether a file's name is that of a module, and not of declarations or a test.
func isModule(name string) bool {
	base := path.Base(name)
	extension := path.Ext(base)
	if !slices.Contains([]string{".ts", ".tsx", ".mts", ".js", ".mjs"}, extension) {
		return false
	}
	stem := strings.TrimSuffix(base, extension)
	return !strings.HasSuffix(stem, ".d") && !strings.HasSuffix(stem, ".test")
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return doublestar.MatchUnvalidated(pattern, name) })
}

func fileExists(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// importProblem explains an error that a module threw when it was imported, or that a definition of it threw.
func importProblem(e *scriptError, moduleDir string) *Problem {
	where, frames := ownFrames(e.Stack, moduleDir)
	if e.Name == "TypeError" && strings.Contains(e.Message, "; ") {
		// The SDK's own checks: field, problem, remedy.
		what, do, _ := strings.Cut(e.Message, "; ")
		return (&Problem{Where: where, What: what, Do: upperFirst(do)}).with(frames)
	}
	what := e.Message
	if e.Name != "" && e.Name != "Error" {
		what = e.Name + ": " + what
	}
	return problem(where, "Modules are imported once at build time, without secrets and services: move such work into init or turn",
		"a module threw when it was imported: %s", what).with(frames)
}
