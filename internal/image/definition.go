package image

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"helmr.dev/helmr/internal/fault"
)

// Bounds of one definition, nested images included.
const (
	maxSteps     = 1000
	maxStages    = 64
	maxDepth     = 32
	maxTextBytes = 64 << 10
)

// The operations of a Step.
const (
	OpFrom     = "from"
	OpRun      = "run"
	OpCopy     = "copy"
	OpCopyFrom = "copyFrom"
	OpWorkdir  = "workdir"
	OpEnv      = "env"
	OpUser     = "user"
)

// The kinds of a Source.
const (
	KindFile      = "file"
	KindDirectory = "directory"
)

// Scratch is the base reference of an image without a base.
const Scratch = "scratch"

// Definition is what an author's image() builder says: a key for messages and its steps in order. The first step is
// the only "from".
type Definition struct {
	Key   string `json:"key"`
	Steps []Step `json:"steps"`
}

// Step is one call on the builder. Op says which of the other fields belong to it.
type Step struct {
	Op string `json:"op"`
	// Ref is the base of "from": an image reference, or "scratch".
	Ref string `json:"ref,omitempty"`
	// Argv of "run" is executed without a shell.
	Argv []string `json:"argv,omitempty"`
	// Source of "copy" lies under the source root.
	Source *Source `json:"source,omitempty"`
	// Destination of "copy" and "copyFrom" is a path in the image, relative to the workdir when not absolute. One that
	// ends in "/" is a folder.
	Destination string `json:"destination,omitempty"`
	// Image of "copyFrom" is built first; SourcePath is copied out of it.
	Image      *Definition `json:"image,omitempty"`
	SourcePath string      `json:"sourcePath,omitempty"`
	// Path of "workdir".
	Path string `json:"path,omitempty"`
	// Key and Value of "env". The value is literal: "$" means itself.
	Key   string `json:"key,omitempty"`
	Value string `json:"value,omitempty"`
	// Name of "user": a name or number, with an optional ":group".
	Name string `json:"name,omitempty"`
}

// Source names a file or a directory by its slash-separated path under the source root.
type Source struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
}

var (
	envKey   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
)

// Parse reads the JSON form of a Definition and validates it. Unknown fields are refused.
func Parse(data []byte) (Definition, error) {
	var d Definition
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return Definition{}, fault.New(fault.InvalidArguments, "The image definition is not valid JSON of the expected form.").Because(err)
	}
	if err := d.Validate(); err != nil {
		return Definition{}, err
	}
	return d, nil
}

// Validate checks every step, also those of nested images. Its error names the image and the step.
func (d Definition) Validate() error {
	steps := 0
	return d.validate(&steps, 0)
}

func (d Definition) validate(steps *int, depth int) error {
	if strings.TrimSpace(d.Key) == "" {
		return fault.New(fault.InvalidArguments, "An image has an empty key: image(key) needs a name.")
	}
	if depth > maxDepth {
		return fault.New(fault.InvalidArguments, "Image %q: copyFrom nests more than %d images.", d.Key, maxDepth)
	}
	if len(d.Steps) == 0 || d.Steps[0].Op != OpFrom {
		return fault.New(fault.InvalidArguments, "Image %q has no base: begin with .from(\"node:24-bookworm-slim\") or another image.", d.Key)
	}
	if *steps += len(d.Steps); *steps > maxSteps {
		return fault.New(fault.InvalidArguments, "Image %q has more than %d steps, nested images included.", d.Key, maxSteps)
	}
	for i, s := range d.Steps {
		if i > 0 && s.Op == OpFrom {
			return fault.New(fault.InvalidArguments, "Image %q, step %d: .from() may be called once, first; use .copyFrom() for files of another image.", d.Key, i+1)
		}
		if reason := s.check(); reason != "" {
			return fault.New(fault.InvalidArguments, "Image %q, step %d (%s): %s.", d.Key, i+1, s.Op, reason)
		}
		if s.Op == OpCopyFrom {
			if err := s.Image.validate(steps, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// check says what is wrong with the step's own fields, or "".
func (s Step) check() string {
	switch s.Op {
	case OpFrom:
		if s.Ref == Scratch {
			return ""
		}
		if _, err := Normalize(s.Ref); err != nil {
			return fmt.Sprintf("%q is not an image reference such as node:24-bookworm-slim", s.Ref)
		}
		return ""
	case OpRun:
		return checkArgv(s.Argv)
	case OpCopy:
		if s.Source == nil || (s.Source.Kind != KindFile && s.Source.Kind != KindDirectory) {
			return "the source must be source.file(path) or source.directory(path)"
		}
		if reason := checkSourcePath(s.Source.Path); reason != "" {
			return reason
		}
		return checkText("destination", s.Destination)
	case OpCopyFrom:
		if s.Image == nil {
			return "the image is missing"
		}
		if reason := checkText("source path", s.SourcePath); reason != "" {
			return reason
		}
		if strings.ContainsAny(s.SourcePath, `*?[\`) {
			return fmt.Sprintf(`the source path %q may not contain *, ?, [ or \: builders read them as patterns; copy the folder around it`, s.SourcePath)
		}
		return checkText("destination", s.Destination)
	case OpWorkdir:
		return checkText("path", s.Path)
	case OpEnv:
		if !envKey.MatchString(s.Key) {
			return fmt.Sprintf("%q is not a variable name of letters, digits and _", s.Key)
		}
		if s.Value == "" {
			return ""
		}
		return checkText("value of "+s.Key, s.Value)
	case OpUser:
		if !userName.MatchString(s.Name) {
			return fmt.Sprintf("%q is not a user name or number, optionally with :group", s.Name)
		}
		return ""
	default:
		return "unknown operation"
	}
}

func checkArgv(argv []string) string {
	if len(argv) == 0 || argv[0] == "" {
		return "argv needs at least the program, for example run([\"npm\", \"ci\"])"
	}
	total := 0
	for i, a := range argv {
		total += len(a)
		if strings.ContainsRune(a, 0) {
			return fmt.Sprintf("argument %d contains a NUL byte", i)
		}
		if !utf8.ValidString(a) {
			return fmt.Sprintf("argument %d is not valid Unicode", i)
		}
	}
	if total > maxTextBytes {
		return fmt.Sprintf("the arguments are longer than %d bytes together", maxTextBytes)
	}
	return ""
}

// checkText refuses what cannot stand on one line of a Containerfile, whatever the quoting.
func checkText(what, s string) string {
	if s == "" {
		return "the " + what + " is empty"
	}
	if len(s) > maxTextBytes {
		return fmt.Sprintf("the %s is longer than %d bytes", what, maxTextBytes)
	}
	if !utf8.ValidString(s) {
		return "the " + what + " is not valid Unicode"
	}
	for _, r := range s {
		if (r < 0x20 && r != '\t') || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return "the " + what + " contains a line break or another control character"
		}
	}
	return ""
}

func checkSourcePath(p string) string {
	if reason := checkText("source path", p); reason != "" {
		return reason
	}
	if strings.HasPrefix(p, "/") || strings.Contains(p, `\`) {
		return fmt.Sprintf("the source path %q must be relative to the project and use /", p)
	}
	if c := path.Clean(p); c == ".." || strings.HasPrefix(c, "../") {
		return fmt.Sprintf("the source path %q leaves the project", p)
	}
	return ""
}
