package image

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// The reader below is the word and line syntax of Containerfiles as their reference describes it. It is written from
// that description, not from the generator, so that a text means to it what it means to a builder; that it does is
// shown by the builds of TestSpec_09_03_EveryStepBuildsAndEqualInputGivesEqualBytes.

// readWords splits on spaces outside of quotes and resolves quotes, escapes and variables.
func readWord(s string, vars func(string) string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\':
			if i++; i < len(s) {
				b.WriteByte(s[i])
			}
		case '\'':
			end := strings.IndexByte(s[i+1:], '\'')
			if end < 0 {
				return "", fmt.Errorf("open quote in %q", s)
			}
			b.WriteString(s[i+1 : i+1+end])
			i += end + 1
		case '"':
			for i++; ; i++ {
				if i >= len(s) {
					return "", fmt.Errorf("open quote in %q", s)
				}
				if s[i] == '"' {
					break
				}
				switch {
				case s[i] == '\\' && i+1 < len(s) && strings.IndexByte(`"$\`, s[i+1]) >= 0:
					i++
					b.WriteByte(s[i])
				case s[i] == '$':
					b.WriteString(vars(s[i:]))
				default:
					b.WriteByte(s[i])
				}
			}
		case '$':
			b.WriteString(vars(s[i:]))
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

func readDefinition(t *testing.T, text string) []Step {
	t.Helper()
	word := func(s string) string {
		w, err := readWord(s, func(at string) string { t.Errorf("a variable is expanded at %q", at); return "" })
		if err != nil {
			t.Error(err)
		}
		return w
	}
	array := func(s string) []string {
		var words []string
		if err := json.Unmarshal([]byte(s), &words); err != nil {
			t.Errorf("%q is no array: %v", s, err)
		}
		return words
	}
	var steps []Step
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasSuffix(strings.TrimRight(line, " \t"), `\`) {
			t.Errorf("line %q continues", line)
		}
		if strings.Contains(line, "<<") && !strings.HasPrefix(line, "ENV ") && !strings.HasPrefix(line, "WORKDIR ") {
			t.Errorf("line %q may open a here-document", line)
		}
		op, rest, _ := strings.Cut(line, " ")
		switch op {
		case "FROM":
			steps = append(steps, Step{Op: OpFrom, Ref: rest})
		case "RUN":
			steps = append(steps, Step{Op: OpRun, Argv: array(rest)})
		case "COPY":
			from := ""
			if strings.HasPrefix(rest, "--from=") {
				from, rest, _ = strings.Cut(strings.TrimPrefix(rest, "--from="), " ")
			}
			w := array(rest)
			if len(w) != 2 {
				t.Fatalf("COPY of %d words", len(w))
			}
			steps = append(steps, Step{Op: OpCopyFrom, Key: from, SourcePath: word(w[0]), Destination: word(w[1])})
		case "WORKDIR":
			steps = append(steps, Step{Op: OpWorkdir, Path: word(rest)})
		case "ENV":
			key, value, _ := strings.Cut(rest, "=")
			if !strings.HasPrefix(value, `"`) {
				t.Errorf("value %q is not quoted", value)
			}
			steps = append(steps, Step{Op: OpEnv, Key: key, Value: word(value)})
		case "USER":
			steps = append(steps, Step{Op: OpUser, Name: rest})
		default:
			t.Errorf("line %q is no instruction of ours", line)
		}
	}
	return steps
}

func FuzzContainerfileMeansTheDefinition(f *testing.F) {
	for _, s := range []string{"plain", `a b "c" 'd' \ $e ${f}`, "\\", `"`, "a\nRUN evil", "<<EOF", "#", " lead", "trail ", "ü\u2028", "$(id)", "`id`", "\x00", "\xff", "--from=x", "[\"a\"]", "x\tY"} {
		f.Add(s, s, s)
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		d := from(
			Step{Op: OpRun, Argv: []string{"prog", a, b, c}},
			Step{Op: OpEnv, Key: "A", Value: a},
			Step{Op: OpWorkdir, Path: b},
			Step{Op: OpCopy, Source: &Source{KindDirectory, "src"}, Destination: c},
			Step{Op: OpCopyFrom, Image: &Definition{Key: "n", Steps: []Step{{Op: OpFrom, Ref: "tiny/node"}}}, SourcePath: b, Destination: a},
			Step{Op: OpUser, Name: c},
		)
		// Each step alone, so that one that is refused does not hide the others.
		for _, s := range d.Steps[1:] {
			one := from(s)
			if one.Validate() != nil {
				continue
			}
			p, err := newPlan(one)
			if err != nil {
				t.Fatal(err)
			}
			text := p.render([]string{"base"})
			got := readDefinition(t, text)
			// FROM (twice when another image is copied from), the step, and the two lines of the check.
			if want := 4 + len(p.stages) - 1; len(got) != want {
				t.Fatalf("%d instructions instead of %d:\n%s", len(got), want, text)
			}
			g := got[len(got)-3]
			switch s.Op {
			case OpRun:
				if strings.Join(g.Argv, "\x00") != strings.Join(s.Argv, "\x00") {
					t.Errorf("argv %q became %q", s.Argv, g.Argv)
				}
			case OpEnv:
				if g.Key != s.Key || g.Value != s.Value {
					t.Errorf("env %q became %q", s.Value, g.Value)
				}
			case OpWorkdir:
				if g.Path != s.Path {
					t.Errorf("workdir %q became %q", s.Path, g.Path)
				}
			case OpCopy:
				if g.SourcePath != "c0" || g.Destination != s.Destination || g.Key != "" {
					t.Errorf("copy to %q became %+v", s.Destination, g)
				}
			case OpCopyFrom:
				if g.Key != "s0" || g.SourcePath != s.SourcePath || g.Destination != s.Destination {
					t.Errorf("copyFrom %q to %q became %+v", s.SourcePath, s.Destination, g)
				}
			case OpUser:
				if g.Name != s.Name {
					t.Errorf("user %q became %q", s.Name, g.Name)
				}
			}
			if !utf8.ValidString(text) {
				t.Errorf("the text is not valid Unicode: %q", text)
			}
		}
	})
}

func TestDefinitionRefusals(t *testing.T) {
	t.Parallel()
	src := &Source{KindFile, "a"}
	for name, c := range map[string]struct{ json, want string }{
		"no key":         {`{"key":" ","steps":[{"op":"from","ref":"a"}]}`, "empty key"},
		"no base":        {`{"key":"k","steps":[{"op":"run","argv":["x"]}]}`, "has no base"},
		"empty":          {`{"key":"k","steps":[]}`, "has no base"},
		"two bases":      {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"from","ref":"b"}]}`, "may be called once"},
		"bad ref":        {`{"key":"k","steps":[{"op":"from","ref":"A B"}]}`, "not an image reference"},
		"unknown op":     {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"expose"}]}`, "unknown operation"},
		"unknown field":  {`{"key":"k","steps":[{"op":"from","ref":"a","platform":"x"}]}`, "not valid JSON"},
		"empty argv":     {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"run","argv":[]}]}`, "argv needs"},
		"NUL":            {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"run","argv":["a\u0000"]}]}`, "NUL"},
		"newline in env": {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"env","key":"A","value":"a\nUSER root"}]}`, "line break"},
		"env key":        {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"env","key":"A B","value":"x"}]}`, "variable name"},
		"user":           {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"user","name":"a\nb"}]}`, "user name"},
		"absolute copy":  {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"copy","source":{"kind":"file","path":"/etc/passwd"},"destination":"/x"}]}`, "relative to the project"},
		"copy out":       {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"copy","source":{"kind":"file","path":"a/../../b"},"destination":"/x"}]}`, "leaves the project"},
		"copy kind":      {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"copy","source":{"kind":"url","path":"a"},"destination":"/x"}]}`, "source.file(path)"},
		"pattern":        {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"copyFrom","image":{"key":"n","steps":[{"op":"from","ref":"a"}]},"sourcePath":"/*","destination":"/x"}]}`, "patterns"},
		"nested":         {`{"key":"k","steps":[{"op":"from","ref":"a"},{"op":"copyFrom","image":{"key":"inner","steps":[]},"sourcePath":"/a","destination":"/x"}]}`, `"inner" has no base`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Parse([]byte(c.json)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v, want %q", err, c.want)
			}
		})
	}
	deep := from()
	for range maxDepth + 2 {
		inner := deep
		deep = from(Step{Op: OpCopyFrom, Image: &inner, SourcePath: "/a", Destination: "/b"})
	}
	if err := deep.Validate(); err == nil {
		t.Error("endless nesting is accepted")
	}
	many := from()
	for range maxSteps {
		many.Steps = append(many.Steps, Step{Op: OpCopy, Source: src, Destination: "/x"})
	}
	if err := many.Validate(); err == nil {
		t.Error("too many steps are accepted")
	}
}

func TestEqualImagesShareAStage(t *testing.T) {
	t.Parallel()
	tools := Definition{Key: "tools", Steps: []Step{{Op: OpFrom, Ref: "a:1"}, {Op: OpRun, Argv: []string{"make"}}}}
	same := Definition{Key: "other key", Steps: tools.Steps}
	d := Definition{Key: "k", Steps: []Step{
		{Op: OpFrom, Ref: "docker.io/library/a:1"},
		{Op: OpCopyFrom, Image: &tools, SourcePath: "/x", Destination: "/x"},
		{Op: OpCopyFrom, Image: &same, SourcePath: "/y", Destination: "/y"},
	}}
	p, err := newPlan(d)
	must(t, err)
	if len(p.stages) != 2 || len(p.bases) != 1 || p.target() != "s1" {
		t.Errorf("stages %d, bases %v, target %s", len(p.stages), p.bases, p.target())
	}
}
