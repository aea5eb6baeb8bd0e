package build

import (
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// ignoreRules are the lines of a .helmrignore. They mean what they mean in a .gitignore: the last line that matches
// decides, and nothing below an ignored folder can be taken back in.
type ignoreRules []ignoreRule

type ignoreRule struct {
	// patterns are doublestar patterns for the whole path; any one of them matching is a match.
	pattern    string
	negated    bool
	folderOnly bool
}

// parseIgnore reads a .helmrignore.
func parseIgnore(text []byte) (ignoreRules, error) {
	if len(text) > maxIgnoreBytes {
		return nil, problem(ignoreName, "Shorten it, for example with globs", "has %d bytes; at most %d are allowed", len(text), maxIgnoreBytes)
	}
	if !utf8.Valid(text) {
		return nil, problem(ignoreName, "Save it as UTF-8", "is not UTF-8 text")
	}
	var rules ignoreRules
	for line := range strings.SplitSeq(strings.TrimPrefix(string(text), "\ufeff"), "\n") {
		if rule, ok := parseIgnoreLine(strings.TrimSuffix(line, "\r")); ok {
			rules = append(rules, rule)
		}
	}
	return rules, nil
}

func parseIgnoreLine(line string) (ignoreRule, bool) {
	var rule ignoreRule
	if strings.HasPrefix(line, "#") {
		return rule, false
	}
	line = trimUnescapedSpaces(line)
	if rule.negated = strings.HasPrefix(line, "!"); rule.negated {
		line = line[1:]
	}
	if rule.folderOnly = strings.HasSuffix(line, "/"); rule.folderOnly {
		line = strings.TrimSuffix(line, "/")
	}
	// A slash anywhere but at the end binds the pattern to the root; without one it fits at any depth.
	anchored := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return rule, false
	}
	line = escapeBraces(line)
	if !anchored {
		line = "**/" + line
	}
	// "folder/**" is what lies below the folder, not the folder itself.
	if strings.HasSuffix(line, "/**") {
		line += "/*"
	}
	rule.pattern = line
	return rule, doublestar.ValidatePattern(line)
}

// trimUnescapedSpaces drops spaces at the end, except one that a backslash protects.
func trimUnescapedSpaces(line string) string {
	for strings.HasSuffix(line, " ") {
		backslashes := len(line) - 1 - len(strings.TrimRight(line[:len(line)-1], `\`))
		if backslashes%2 == 1 {
			break
		}
		line = line[:len(line)-1]
	}
	return line
}

// escapeBraces takes away the meaning that doublestar gives to braces and Git does not.
func escapeBraces(line string) string {
	var out strings.Builder
	escaped := false
	for _, r := range line {
		if (r == '{' || r == '}') && !escaped {
			out.WriteByte('\\')
		}
		escaped = r == '\\' && !escaped
		out.WriteRune(r)
	}
	return out.String()
}

// ignored tells what the rules say of one path, given that none of its parent folders is ignored.
func (rules ignoreRules) ignored(path string, folder bool) bool {
	for i := len(rules) - 1; i >= 0; i-- {
		rule := rules[i]
		if rule.folderOnly && !folder {
			continue
		}
		if doublestar.MatchUnvalidated(rule.pattern, path) {
			return !rule.negated
		}
	}
	return false
}
