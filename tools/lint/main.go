// Command lint is helmr's linter: staticcheck, errcheck and a few analyzers of golang.org/x/tools in one program that
// "go vet" runs (go vet -vettool), so results are cached per package and a second run costs seconds. It is a module of
// its own so that the linters' dependencies never reach helmr's. golangci-lint is left out: it brings hundreds of modules to
// build and a cache of its own, for what these few analyzers and Go's build cache do in seconds.
package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/reflectvaluecompare"
	"golang.org/x/tools/go/analysis/passes/sortslice"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
)

// disabled names the checks that we leave off, each with its reason.
var disabled = map[string]string{
	"ST1000":  "package docs are held by internal/arch, which also says what a good one holds",
	"ST1003":  "initialisms: the standard vet and review hold names; generated code breaks it without end",
	"ST1005":  "messages for people are sentences on purpose; wrapped errors are reviewed",
	"ST1016":  "receiver names in generated code",
	"ST1020":  "doc comments of exported names are prose, they need not begin with the name",
	"ST1021":  "as ST1020",
	"ST1022":  "as ST1020",
	"QF1008":  "embedded fields may be named where that reads better",
	"SA1019":  "deprecated API of dependencies is dealt with when the dependency is upgraded",
	"shadow":  "shadowed err is Go's idiom; nilness and staticcheck find the bugs that come of it",
	"unused":  "not available to go vet; the compiler and review find unused names",
	"gocyclo": "internal/arch holds function length, which tells the same with fewer surprises",
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "-list" {
		for _, a := range enabled() {
			fmt.Println(a.Name, "-", strings.SplitN(a.Doc, "\n", 2)[0])
		}
		return
	}
	unitchecker.Main(enabled()...)
}

func enabled() []*analysis.Analyzer {
	all := []*analysis.Analyzer{nilness.Analyzer, reflectvaluecompare.Analyzer, sortslice.Analyzer, unusedwrite.Analyzer, unchecked()}
	for _, a := range staticcheck.Analyzers {
		all = append(all, a.Analyzer)
	}
	for _, a := range simple.Analyzers {
		all = append(all, a.Analyzer)
	}
	for _, a := range stylecheck.Analyzers {
		if !a.Doc.NonDefault {
			all = append(all, a.Analyzer)
		}
	}
	var on []*analysis.Analyzer
	for _, a := range all {
		if _, off := disabled[a.Name]; !off {
			on = append(on, a)
		}
	}
	return on
}

// bestEffort are calls whose error may be dropped: closing what was read and removing what was temporary. A file that
// was written is synced before, or its Close is looked at in review.
var bestEffort = map[string]bool{"Close": true, "Remove": true, "RemoveAll": true}

// unchecked is errcheck for the program itself, without the best-effort calls. Tests fail by what they look at.
func unchecked() *analysis.Analyzer {
	a := *errcheck.Analyzer
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		calls := map[token.Pos]bool{}
		for _, f := range pass.Files {
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && bestEffort[sel.Sel.Name] {
					calls[call.Lparen] = true
				}
				return true
			})
		}
		inner := *pass
		inner.Report = func(d analysis.Diagnostic) {
			if !calls[d.Pos] && !strings.HasSuffix(pass.Fset.Position(d.Pos).Filename, "_test.go") {
				pass.Report(d)
			}
		}
		return run(&inner)
	}
	return &a
}
