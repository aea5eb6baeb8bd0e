package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "helmr.dev/helmr"

// file is one parsed Go file of this module.
type file struct {
	path      string // below the root, with slashes
	pkg       string // folder of the package below the root
	ast       *ast.File
	lines     int
	test      bool
	generated bool
}

var tree = sync.OnceValues(func() (map[string][]*file, error) {
	packages := map[string][]*file{}
	fset := token.NewFileSet()
	err := walk(func(path string) error {
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		raw, err := os.ReadFile(filepath.Join(root(), path))
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(fset, path, raw, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		packages[dir] = append(packages[dir], &file{path: path, pkg: dir, ast: parsed, lines: strings.Count(string(raw), "\n"),
			test: strings.HasSuffix(path, "_test.go"), generated: ast.IsGenerated(parsed)})
		return nil
	})
	positions = fset
	return packages, err
})

var positions *token.FileSet

// packages gives all packages of the module by folder.
func packages(t *testing.T) map[string][]*file {
	t.Helper()
	p, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sources gives the files of the program itself: neither tests nor generated ones.
func sources(files []*file) []*file {
	var out []*file
	for _, f := range files {
		if !f.test && !f.generated {
			out = append(out, f)
		}
	}
	return out
}

// root is the folder of go.mod.
func root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// walk visits every file of the project that people write: not what was built, installed or belongs to another module.
func walk(visit func(path string) error) error {
	top := root()
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", "node_modules", "dist", "build", ".helmr", ".work":
				if rel != "internal/build" {
					return fs.SkipDir
				}
			case "tools":
				if rel == "tools" {
					return fs.SkipDir // modules of their own
				}
			}
			return nil
		}
		if !d.Type().IsRegular() || d.Name() == ".git" { // a worktree's names its repository
			return nil
		}
		return visit(filepath.ToSlash(rel))
	})
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// literals calls visit with each string literal of a file.
func literals(f *file, visit func(text string, line int)) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if _, ok := n.(*ast.ImportSpec); ok {
			return false
		}
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(lit.Value); err == nil {
			visit(text, positions.Position(lit.Pos()).Line)
		}
		return true
	})
}
