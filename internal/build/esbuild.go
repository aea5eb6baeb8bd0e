package build

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/evanw/esbuild/pkg/api"

	sdk "helmr.dev/helmr/sdk/typescript"
)

// sdkName is the package that programs import. Its embedded source is used unless the project installed another.
const sdkName = "@helmr/sdk"

// sdkNamespace keeps the embedded source apart from files of the project, and its place out of the output.
const sdkNamespace = "helmr-sdk"

// compileRequest is one run of the bundler over a tree.
type compileRequest struct {
	tree     string // absolute; every file that gets in lies below it
	entry    string // text of the entry module, which imports relative to tree
	external []string
	target   string
	banner   string
	// installedSDK takes the SDK from the tree's node_modules.
	installedSDK bool
}

// compiled is what the bundler gave.
type compiled struct {
	code     []byte
	warnings []string
	// importers names, for each file below the tree that got in, one that imports it.
	importers map[string]string
}

// compile joins the entry module and everything that it reaches into one ES module.
func compile(request compileRequest) (compiled, error) {
	options := api.BuildOptions{
		Stdin:          &api.StdinOptions{Contents: request.entry, ResolveDir: request.tree, Sourcefile: "helmr-entry.mjs", Loader: api.LoaderJS},
		AbsWorkingDir:  request.tree,
		Outfile:        filepath.Join(request.tree, "index.mjs"),
		Bundle:         true,
		Write:          false,
		Metafile:       true,
		Format:         api.FormatESModule,
		Platform:       api.PlatformNode,
		Engines:        []api.Engine{{Name: api.EngineNode, Version: request.target}},
		Charset:        api.CharsetUTF8,
		Sourcemap:      api.SourceMapInline,
		SourcesContent: api.SourcesContentExclude,
		External:       request.external,
		Banner:         map[string]string{"js": request.banner},
		LogLevel:       api.LogLevelSilent,
		LogLimit:       20,
	}
	if !request.installedSDK {
		options.Plugins = []api.Plugin{embeddedSDK()}
	}
	result := api.Build(options)
	if len(result.Errors) > 0 {
		return compiled{}, bundleProblem(result.Errors)
	}
	out := compiled{code: result.OutputFiles[0].Contents}
	for _, message := range result.Warnings {
		out.warnings = append(out.warnings, messageText(message))
	}
	var err error
	if out.importers, err = readMetafile(request.tree, result.Metafile); err != nil {
		return compiled{}, err
	}
	return out, nil
}

// embeddedSDK resolves imports of the SDK to the source that the binary carries.
func embeddedSDK() api.Plugin {
	return embeddedSource(sdkNamespace, sdkName, sdk.Files, map[string]string{
		sdkName: "src/index.ts", sdkName + "/internal": "src/internal.ts",
	})
}

// embeddedSource resolves imports of one package to TypeScript files of an embedded folder.
func embeddedSource(namespace, name string, files fs.FS, exports map[string]string) api.Plugin {
	return api.Plugin{Name: namespace, Setup: func(build api.PluginBuild) {
		resolved := func(file string) api.OnResolveResult {
			result := api.OnResolveResult{Path: file, Namespace: namespace}
			if name == sdkName {
				// Its modules do nothing when imported, so what a program does not use stays out of it.
				result.SideEffects = api.SideEffectsFalse
			}
			return result
		}
		filter := `^` + strings.ReplaceAll(name, ".", `\.`) + `(/|$)`
		build.OnResolve(api.OnResolveOptions{Filter: filter}, func(args api.OnResolveArgs) (api.OnResolveResult, error) {
			file, ok := exports[args.Path]
			if !ok {
				return api.OnResolveResult{}, fmt.Errorf("%q is no part of %s", args.Path, name)
			}
			return resolved(file), nil
		})
		build.OnResolve(api.OnResolveOptions{Filter: `^\.`, Namespace: namespace}, func(args api.OnResolveArgs) (api.OnResolveResult, error) {
			file := path.Join(path.Dir(args.Importer), args.Path)
			return resolved(strings.TrimSuffix(file, ".js") + ".ts"), nil
		})
		build.OnLoad(api.OnLoadOptions{Filter: `.`, Namespace: namespace}, func(args api.OnLoadArgs) (api.OnLoadResult, error) {
			text, err := fs.ReadFile(files, args.Path)
			if err != nil {
				return api.OnLoadResult{}, err
			}
			contents := string(text)
			return api.OnLoadResult{Contents: &contents, Loader: api.LoaderTS}, nil
		})
	}}
}

// readMetafile checks that only files below the tree got in, and says for each who imports it.
func readMetafile(tree, metafile string) (map[string]string, error) {
	var meta struct {
		Inputs map[string]struct {
			Imports []struct {
				Path     string `json:"path"`
				External bool   `json:"external"`
			} `json:"imports"`
		} `json:"inputs"`
	}
	if err := json.Unmarshal([]byte(metafile), &meta); err != nil {
		return nil, fmt.Errorf("read the bundler's report: %w", err)
	}
	importers := make(map[string]string, len(meta.Inputs))
	for _, importer := range sortedKeys(meta.Inputs) {
		if _, seen := importers[importer]; !seen {
			importers[importer] = ""
		}
		for _, imported := range meta.Inputs[importer].Imports {
			if !imported.External && importers[imported.Path] == "" {
				importers[imported.Path] = importer
			}
		}
	}
	for _, name := range sortedKeys(importers) {
		if strings.HasPrefix(name, "../") || filepath.IsAbs(name) {
			return nil, problem(importers[name], "Keep every module under the project root; install packages with the project's package manager",
				"imports %s, which lies outside the project", filepath.Join(tree, name))
		}
	}
	return importers, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// bundleProblem turns the bundler's messages into one Problem: the first in full, the others below it.
func bundleProblem(messages []api.Message) *Problem {
	first := messages[0]
	p := &Problem{What: strings.TrimSuffix(first.Text, "."), Do: bundleRemedy(first.Text)}
	if first.Location != nil {
		p.Where = fmt.Sprintf("%s:%d:%d", first.Location.File, first.Location.Line, first.Location.Column+1)
	}
	detail := locationText(first.Location)
	for _, other := range messages[1:] {
		detail += "\n" + messageText(other)
	}
	return p.with(strings.TrimPrefix(detail, "\n"))
}

// bundleRemedy says what to do about messages that need more than a look at the line.
func bundleRemedy(text string) string {
	switch {
	case strings.Contains(text, `No loader is configured for ".node"`):
		return "Name the package with the native add-on in build.external of helmr.config.ts"
	case strings.Contains(text, "No loader is configured for"):
		return "Read such a file when the program runs, and name it in build.assets of helmr.config.ts"
	case strings.HasPrefix(text, "Could not resolve \"."), strings.HasPrefix(text, "Could not resolve \"/"):
		return "Check the path, and that .helmrignore does not name the file"
	case strings.HasPrefix(text, "Could not resolve"):
		return "Add the package to dependencies in package.json, and keep the lockfile in the project"
	}
	return ""
}

func messageText(message api.Message) string {
	text := message.Text
	if l := message.Location; l != nil {
		text = fmt.Sprintf("%s:%d:%d: %s", l.File, l.Line, l.Column+1, text)
		if source := locationText(l); source != "" {
			text += "\n" + source
		}
	}
	return text
}

// locationText shows the line of a message with a caret under the place.
func locationText(l *api.Location) string {
	if l == nil || l.LineText == "" {
		return ""
	}
	if len(l.LineText) > 200 {
		return "" // generated code: the line would say nothing
	}
	number := fmt.Sprint(l.Line)
	before := l.LineText[:min(l.Column, len(l.LineText))]
	indent := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, before)
	return fmt.Sprintf("%s | %s\n%s | %s%s", number, l.LineText, strings.Repeat(" ", len(number)), indent, strings.Repeat("^", max(1, min(l.Length, len(l.LineText)-len(before)))))
}

// sdkVersion is the version of the SDK that the tree's program gets.
func sdkVersion(tree string, installed bool) (string, error) {
	read := func() ([]byte, error) { return sdk.Files.ReadFile("package.json") }
	if installed {
		read = func() ([]byte, error) {
			return os.ReadFile(filepath.Join(tree, "node_modules", sdkName, "package.json"))
		}
	}
	data, err := read()
	if err != nil {
		return "", fmt.Errorf("read the version of %s: %w", sdkName, err)
	}
	var manifest struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(data, &manifest); err != nil || manifest.Version == "" {
		return "", errors.Join(fmt.Errorf("%s has no version in its package.json", sdkName), err)
	}
	return manifest.Version, nil
}
