// Package state holds tables of states and allowed arrows. A room states each of its tables once; the table decides
// whether a change is allowed, and the documentation draws it. It knows no resource.
package state

import (
	"fmt"
	"slices"
	"strings"
)

// Table lists, for each state that can be left, the states that may follow it. A state without a row is terminal.
type Table[S ~string] map[S][]S

// Check refuses an arrow that the table lacks. what names the thing in the error.
func (t Table[S]) Check(what string, from, to S) error {
	if slices.Contains(t[from], to) {
		return nil
	}
	return fmt.Errorf("%s: %s cannot become %s", what, from, to)
}

// Terminal tells whether a state is never left.
func (t Table[S]) Terminal(s S) bool { return len(t[s]) == 0 }

// Diagram draws the table as a Mermaid state diagram that begins at first.
func (t Table[S]) Diagram(first S) string {
	var b strings.Builder
	fmt.Fprintf(&b, "stateDiagram-v2\n  [*] --> %s\n", first)
	// In order of distance from the first state, so that the drawing reads downwards.
	for seen, queue := map[S]bool{first: true}, []S{first}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		if t.Terminal(from) {
			fmt.Fprintf(&b, "  %s --> [*]\n", from)
		}
		for _, to := range t[from] {
			fmt.Fprintf(&b, "  %s --> %s\n", from, to)
			if !seen[to] {
				seen[to] = true
				queue = append(queue, to)
			}
		}
	}
	return b.String()
}
