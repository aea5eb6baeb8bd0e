package arch

import (
	"go/ast"
	"strings"
	"testing"
)

// The budgets. Medians don't tell good code from bad, tails do.
const (
	maxFileLines        = 700
	maxFunctionLines    = 120
	maxRoomFiles        = 15
	maxInterfaceMethods = 10
)

// oversize are the things above a budget, with the size they may have at most. The list may only shrink.
var oversize = map[string]int{}

func TestBudgets(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	check := func(what string, have, limit int, advice string) {
		if allowance, ok := oversize[what]; ok {
			used[what] = true
			if have <= limit {
				t.Errorf("%s is within its budget now (%d): take it off the list", what, have)
			}
			limit = allowance
		}
		if have > limit {
			t.Errorf("%s has %d, at most %d are allowed: %s", what, have, limit, advice)
		}
	}
	for dir, files := range packages(t) {
		production := 0
		for _, f := range files {
			if f.generated {
				continue
			}
			if !f.test {
				production++
			}
			check(f.path+" lines", f.lines, maxFileLines, "split it by what its parts are about")
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
					lines := positions.Position(fn.End()).Line - positions.Position(fn.Pos()).Line + 1
					check(f.path+" "+functionName(fn)+" lines", lines, maxFunctionLines, "take steps out that have a name")
				}
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if it, ok := spec.Type.(*ast.InterfaceType); ok {
					check(f.path+" "+spec.Name.Name+" methods", it.Methods.NumFields(), maxInterfaceMethods, "split it by who calls it")
				}
				return true
			})
		}
		if roomOf(dir) >= 0 && strings.Count(dir, "/") == 1 {
			check(dir+" files", production, maxRoomFiles, "a room this large is two")
		}
	}
	for what := range oversize {
		if !used[what] {
			t.Errorf("%s is gone: take it off the list", what)
		}
	}
}

func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	recv := fn.Recv.List[0].Type
	if star, ok := recv.(*ast.StarExpr); ok {
		recv = star.X
	}
	if index, ok := recv.(*ast.IndexExpr); ok {
		recv = index.X
	}
	if id, ok := recv.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}
