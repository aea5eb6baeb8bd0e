package build

import (
	"fmt"
	"strings"
)

// Problem is a mistake in a project that its author can mend. Where names the file (with line and column when they are
// known) or the field, What says what is wrong, Do what to do about it; Detail is source text or output that shows it.
type Problem struct {
	Where  string `json:"where,omitempty"`
	What   string `json:"what"`
	Do     string `json:"do,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Error gives everything that is known, the detail on lines of its own.
func (p *Problem) Error() string {
	var text strings.Builder
	if p.Where != "" {
		text.WriteString(p.Where + ": ")
	}
	text.WriteString(p.What)
	if p.Do != "" {
		text.WriteString(". " + p.Do)
	}
	if p.Detail != "" {
		text.WriteString("\n" + p.Detail)
	}
	return text.String()
}

func problem(where, do, format string, args ...any) *Problem {
	return &Problem{Where: where, What: fmt.Sprintf(format, args...), Do: do}
}

// with returns a copy that shows detail, its lines indented.
func (p *Problem) with(detail string) *Problem {
	c := *p
	if detail = strings.TrimRight(detail, "\n"); detail != "" {
		c.Detail = "  " + strings.ReplaceAll(detail, "\n", "\n  ")
	}
	return &c
}
