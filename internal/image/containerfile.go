package image

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
)

// plan is a Definition laid out as stages: the Containerfile's text with base images and copied sources named by
// number, so that nothing an author wrote reaches a builder's path or pattern syntax.
type plan struct {
	// bases are normalised references (or "scratch"), in order of first use; base i is written as names[i].
	bases []string
	// copies are the sources to stage; copy i is staged under the folder c<i> of the build context.
	copies []stagedCopy
	stages []stage
	// trust is shown to run steps.
	trust []trusted
}

type stage struct {
	base  int
	lines []string
}

// stagedCopy is one source and the name under which its file is staged ("" for a directory: c<i> is its content).
type stagedCopy struct {
	source Source
	name   string
}

// The names of the stages that builders are asked for.
const checkStage = "helmr_check"

func stageName(i int) string { return fmt.Sprintf("s%d", i) }

// nodeCheck runs in the built image. It fails by itself when Node is too old, so a builder may cache its success.
const nodeCheck = `const v = process.versions.node; require("fs").writeSync(1, "` + nodeFound + `" + v + "\n"); ` +
	`process.exit(parseInt(v, 10) >= 22 ? 0 : 1)`

const nodeFound = "helmr-node-found:"

// newPlan lays out a validated definition. Equal nested definitions share one stage.
func newPlan(d Definition) (*plan, error) {
	p := &plan{}
	if _, err := p.add(d, map[string]int{}, map[string]int{}); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *plan) add(d Definition, seen, bases map[string]int) (int, error) {
	form, err := json.Marshal(d.Steps)
	if err != nil {
		return 0, fmt.Errorf("encode image definition: %w", err)
	}
	if i, ok := seen[string(form)]; ok {
		return i, nil
	}
	var st stage
	for _, s := range d.Steps {
		switch s.Op {
		case OpFrom:
			ref := s.Ref
			if ref != Scratch {
				if ref, err = Normalize(s.Ref); err != nil {
					return 0, err
				}
			}
			b, ok := bases[ref]
			if !ok {
				b = len(p.bases)
				bases[ref] = b
				p.bases = append(p.bases, ref)
			}
			st.base = b
		case OpRun:
			st.lines = append(st.lines, "RUN "+jsonWords(s.Argv...))
		case OpCopy:
			st.lines = append(st.lines, p.copyLine(s))
		case OpCopyFrom:
			from, err := p.add(*s.Image, seen, bases)
			if err != nil {
				return 0, err
			}
			st.lines = append(st.lines, fmt.Sprintf("COPY --from=%s %s", stageName(from), jsonWords(escapeWord(s.SourcePath), escapeWord(s.Destination))))
		case OpWorkdir:
			st.lines = append(st.lines, "WORKDIR "+quoteWord(s.Path))
		case OpEnv:
			st.lines = append(st.lines, "ENV "+s.Key+"="+quoteWord(s.Value))
		case OpUser:
			st.lines = append(st.lines, "USER "+s.Name)
		}
	}
	if len(p.stages) >= maxStages {
		return 0, fmt.Errorf("image %q uses more than %d images", d.Key, maxStages)
	}
	p.stages = append(p.stages, st)
	seen[string(form)] = len(p.stages) - 1
	return len(p.stages) - 1, nil
}

// copyLine names the staged source. A file that goes into a folder is copied as the content of its staging folder, so
// it keeps its name whatever characters that has.
func (p *plan) copyLine(s Step) string {
	c := stagedCopy{source: *s.Source}
	from := fmt.Sprintf("c%d", len(p.copies))
	if c.source.Kind == KindFile {
		c.name = path.Base(path.Clean(c.source.Path))
		switch {
		case isFolder(s.Destination):
			from += "/"
		case plainName(c.name):
			from += "/" + c.name
		default:
			c.name = "file"
			from += "/file"
		}
	}
	p.copies = append(p.copies, c)
	return "COPY " + jsonWords(from, escapeWord(s.Destination))
}

// isFolder tells whether a destination says by its form that it is a folder.
func isFolder(destination string) bool {
	last := destination[strings.LastIndex(destination, "/")+1:]
	return last == "" || last == "." || last == ".."
}

// plainName tells whether builders take a name literally.
func plainName(name string) bool {
	return !strings.ContainsAny(name, "*?[]\\$\"'`") && name != "" && checkText("name", name) == ""
}

// target is the stage of the image itself.
func (p *plan) target() string { return stageName(len(p.stages) - 1) }

// render gives the Containerfile. names[i] is how the builder knows base i. The last stage only checks Node.
func (p *plan) render(names []string) string {
	var b strings.Builder
	for i, st := range p.stages {
		fmt.Fprintf(&b, "FROM %s AS %s\n", names[st.base], stageName(i))
		mounts := ""
		for _, t := range p.trust {
			b.WriteString(t.argument())
			mounts += t.mount()
		}
		for _, l := range st.lines {
			if words, ok := strings.CutPrefix(l, "RUN "); ok {
				l = "RUN " + mounts + words
			}
			b.WriteString(l)
			b.WriteByte('\n')
		}
	}
	fmt.Fprintf(&b, "FROM %s AS %s\nRUN %s\n", p.target(), checkStage, jsonWords("node", "-e", nodeCheck))
	return b.String()
}

// jsonWords is the array form of an instruction. HTML escaping stays on: it keeps "<<" from being read as a
// here-document.
func jsonWords(words ...string) string {
	b, err := json.Marshal(words)
	if err != nil {
		panic("image: strings always encode: " + err.Error())
	}
	return string(b)
}

// escapeWord takes from a word what the Containerfile's word expansion would act on: quotes, variables, escapes.
func escapeWord(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if strings.IndexByte("\\\"'$", s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// quoteWord is a word in double quotes in which nothing expands.
func quoteWord(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(s) + `"`
}
