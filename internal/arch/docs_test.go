package arch

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Every package says in one doc comment what it is.
func TestPackageDocs(t *testing.T) {
	t.Parallel()
	for _, dir := range sorted(packages(t)) {
		files := packages(t)[dir]
		var docs []string
		written := 0
		name := ""
		for _, f := range files {
			if f.test {
				continue
			}
			if !f.generated {
				written++
			}
			name = f.ast.Name.Name
			if f.ast.Doc != nil && !f.generated {
				docs = append(docs, f.ast.Doc.Text())
			}
		}
		if written == 0 { // nobody writes the docs of generated packages
			continue
		}
		begins := "Package " + name + " "
		if name == "main" {
			begins = "Command " + filepath.Base(dir) + " "
		}
		switch {
		case len(docs) == 0:
			t.Errorf("%s has no doc comment: say what the package is and what it is not", dir)
		case len(docs) > 1:
			t.Errorf("%s has %d doc comments: keep one", dir, len(docs))
		case !strings.HasPrefix(docs[0], begins):
			t.Errorf("%s: the doc comment begins with %q, not %q", dir, firstWords(docs[0]), begins)
		case len(strings.Fields(docs[0])) < 12:
			t.Errorf("%s: the doc comment is too short to say what the package is and is not", dir)
		}
	}
}

func firstWords(s string) string {
	return strings.Join(strings.Fields(s)[:min(3, len(strings.Fields(s)))], " ")
}

var requirement = regexp.MustCompile(`(?m)^\s*(?:require )?([^\s]+\.[^\s]+) v[^\s]+`)

// docs/dependencies.md says of each direct dependency what it saves us from writing. What is direct is told by the
// imports, not by the comments of go.mod.
func TestDependenciesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root(), "docs/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root(), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, m := range requirement.FindAllStringSubmatch(string(mod), -1) {
		modules = append(modules, m[1])
	}
	direct := map[string]string{} // module -> a file that imports it
	for _, files := range packages(t) {
		for _, f := range files {
			for _, spec := range f.ast.Imports {
				path, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
				best := ""
				for _, m := range modules {
					if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(best) {
						best = m
					}
				}
				if best != "" {
					direct[best] = f.path
				}
			}
		}
	}
	if len(direct) == 0 {
		t.Fatal("no direct dependency was found: the test does not look where it should")
	}
	for _, m := range sorted(direct) {
		if !bytes.Contains(text, []byte("`"+m+"`")) {
			t.Errorf("docs/dependencies.md does not name %s (imported by %s): say what it saves us from writing", m, direct[m])
		}
	}
}

// Nothing in the project depends on the machine that it was written on.
func TestNoMachinePaths(t *testing.T) {
	t.Parallel()
	bad := regexp.MustCompile(`(^|[^a-zA-Z0-9._/])(/` + `work/(?:main|\.)|\.\./` + `shared/|/root/\.|registry\.npmjs` + `\.org|proxy\.golang` + `\.org|deb\.debian` + `\.org)`)
	err := walk(func(path string) error {
		switch filepath.Ext(path) {
		case ".png", ".svg", ".ico", ".woff2":
			return nil
		}
		raw, err := os.ReadFile(filepath.Join(root(), path))
		if err != nil {
			return err
		}
		if len(raw) > 4<<20 || bytes.IndexByte(raw, 0) >= 0 {
			return nil
		}
		if m := bad.FindSubmatchIndex(raw); m != nil {
			line := 1 + bytes.Count(raw[:m[4]], []byte("\n"))
			t.Errorf("%s line %d names a place of one machine or a registry host: %q", path, line, raw[m[4]:m[5]])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The map of the project stays short enough to be read.
func TestArchitectureDocumentIsShort(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root(), "docs/ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(raw, []byte("\n")); n >= 500 {
		t.Errorf("docs/ARCHITECTURE.md has %d lines; below 500 it gets read", n)
	}
}
