package arch

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	contractRule = regexp.MustCompile(`(?m)^- \*\*(\d\d)\.(\d+)\*\* \x60(yes|not yet|in part)\x60`)
	specTest     = regexp.MustCompile(`^TestSpec_(\d\d)_(\d\d)`)
	specSubtest  = regexp.MustCompile("^[\"`]Spec_(\\d\\d)_(\\d\\d)")
	specTestTS   = regexp.MustCompile(`Spec_(\d\d)_(\d\d)`)
)

// The contract marks each rule: yes, in part, or not yet. With -v this test lists the rules that are marked as true but
// have no test named after them; it is a report, not a gate.
func TestContractRulesAreMarked(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{}
	for _, files := range packages(t) {
		for _, f := range files {
			if !f.test {
				continue
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				var m []string
				switch n := n.(type) {
				case *ast.FuncDecl:
					m = specTest.FindStringSubmatch(n.Name.Name)
				case *ast.CallExpr: // t.Run("Spec_...", ...)
					if run, ok := n.Fun.(*ast.SelectorExpr); ok && run.Sel.Name == "Run" && len(n.Args) == 2 {
						if name, ok := n.Args[0].(*ast.BasicLit); ok {
							m = specSubtest.FindStringSubmatch(name.Value)
						}
					}
				}
				if m != nil {
					tested[m[1]+"."+strings.TrimLeft(m[2], "0")] = true
				}
				return true
			})
		}
	}
	for _, glob := range []string{"sdk/typescript/test/*.ts", "runtime/node/test/*.ts", "scripts/examples"} {
		names, _ := filepath.Glob(filepath.Join(root(), glob)) // the pattern is right
		for _, name := range names {
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range specTestTS.FindAllStringSubmatch(string(raw), -1) {
				tested[m[1]+"."+strings.TrimLeft(m[2], "0")] = true
			}
		}
	}
	names, err := filepath.Glob(filepath.Join(root(), "docs/contract/[0-9][0-9]-*.md"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no contract found: %v", err)
	}
	counts := map[string]int{}
	var untested []string
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		number := filepath.Base(name)[:2]
		next := 1
		for _, m := range contractRule.FindAllStringSubmatch(string(raw), -1) {
			counts[m[3]]++
			if m[1] != number || m[2] != fmt.Sprint(next) {
				t.Errorf("%s: rule %s.%s stands where %s.%d is expected: rule numbers are kept and stand in order", filepath.Base(name), m[1], m[2], number, next)
			}
			next++
			if rule := m[1] + "." + m[2]; m[3] == "yes" && !tested[rule] {
				untested = append(untested, rule)
			}
		}
		if next == 1 {
			t.Errorf("%s has no marked rule", filepath.Base(name))
		}
	}
	t.Logf("rules: %d yes, %d in part, %d not yet; %d of those that are true have no test named after them: %s",
		counts["yes"], counts["in part"], counts["not yet"], len(untested), strings.Join(untested, " "))
}
