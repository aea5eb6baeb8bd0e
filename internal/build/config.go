package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "embed"
)

var (
	//go:embed scripts/config.mjs
	configScript []byte
	//go:embed scripts/index.mjs
	indexScript []byte
	//go:embed scripts/entry.mjs
	entryScript string
)

// evaluationTimeout ends a configuration or a module that does not finish loading.
const evaluationTimeout = 2 * time.Minute

// config is helmr.config.ts after its checks, with defaults.
type config struct {
	Dirs           []string `json:"dirs"`
	IgnorePatterns []string `json:"ignore_patterns"`
	Build          struct {
		Builder        json.RawMessage `json:"builder"`
		InstallCommand string          `json:"install_command"`
		External       []string        `json:"external"`
		Assets         []string        `json:"assets"`
		Secrets        []string        `json:"secrets"`
	} `json:"build"`
}

// scriptError is an error of JavaScript.
type scriptError struct {
	Name    string `json:"name"`
	Message string `json:"message"`
	Stack   string `json:"stack"`
}

// evaluateConfig runs the captured helmr.config.ts once, with the environment of the build.
func evaluateConfig(ctx context.Context, n node, source, work string, r reporter) (config, error) {
	built, err := compile(compileRequest{
		tree: source, target: fmt.Sprint(oldestNode),
		entry: "import * as config from \"./" + configName + "\"\nexport { config }\nexport { describeConfig } from \"@helmr/sdk/internal\"\n",
	})
	if err != nil {
		return config{}, err
	}
	for _, warning := range built.warnings {
		r.warn("%s", warning)
	}
	var report struct {
		Config *config      `json:"config"`
		Error  *scriptError `json:"error"`
	}
	run := scriptRun{node: n, name: "config", script: configScript, module: built.code, work: work, env: os.Environ()}
	if err := run.run(ctx, r, &report); err != nil {
		return config{}, describeEnd(err, configName, "the configuration")
	}
	if report.Error != nil || report.Config == nil {
		if report.Error == nil {
			report.Error = &scriptError{Message: "gave no configuration"}
		}
		return config{}, configProblem(report.Error, run.moduleDir())
	}
	return *report.Config, checkConfigSupported(report.Config)
}

// configProblem names helmr.config.ts and leaves out what its message says already.
func configProblem(e *scriptError, moduleDir string) *Problem {
	message := strings.TrimPrefix(strings.TrimPrefix(e.Message, configName+": "), "config: ")
	what, do, _ := strings.Cut(message, "; ")
	where, frames := ownFrames(e.Stack, moduleDir)
	if where == "" {
		where = configName
	}
	return (&Problem{Where: where, What: what, Do: upperFirst(do)}).with(frames)
}

// scriptRun runs one of our scripts over a module that the bundler made, under Node, and reads the report it leaves.
type scriptRun struct {
	node   node
	name   string
	script []byte
	module []byte
	work   string
	env    []string
}

// moduleDir is the folder that stack traces of the module begin with.
func (s scriptRun) moduleDir() string { return filepath.Join(s.work, s.name) }

func (s scriptRun) run(ctx context.Context, r reporter, report any) error {
	dir := s.moduleDir()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("prepare the %s step: %w", s.name, err)
	}
	scriptFile, moduleFile, reportFile := dir+".script.mjs", filepath.Join(dir, "index.mjs"), dir+".report.json"
	for name, data := range map[string][]byte{scriptFile: s.script, moduleFile: s.module} {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return fmt.Errorf("prepare the %s step: %w", s.name, err)
		}
	}
	limited, cancel := context.WithTimeoutCause(ctx, evaluationTimeout, errSlow)
	defer cancel()
	runErr := s.node.run(limited, func(line string) { r.log("%s", line) }, dir, s.env,
		"--enable-source-maps", "--no-warnings", scriptFile, moduleFile, reportFile)
	data, err := os.ReadFile(reportFile)
	switch {
	case runErr != nil:
		return runErr
	case errors.Is(err, fs.ErrNotExist):
		return errNoReport
	case err != nil:
		return fmt.Errorf("read the report of the %s step: %w", s.name, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(report); err != nil {
		return fmt.Errorf("read the report of the %s step: %w", s.name, err)
	}
	return nil
}

var (
	errSlow     = errors.New("took too long")
	errNoReport = errors.New("ended too early")
)

// describeEnd explains a script that left no report, which only the code that it imported can bring about.
func describeEnd(err error, where, what string) error {
	ended, ran := errors.AsType[*commandError](err)
	exit := ""
	if ran {
		exit = exitText(ended.err)
	}
	switch {
	case errors.Is(err, errSlow):
		return problem(where, "Do not wait for something in module scope", "%s did not finish loading within %s", what, evaluationTimeout)
	case errors.Is(err, errNoReport):
		return problem(where, "Let it return instead", "%s ended the process while it was loaded", what)
	case ran && exit == "exit status 13":
		return problem(where, "Find the top-level await whose promise is never settled", "%s never finishes loading", what)
	case ran:
		return problem(where, "The output below says why", "Node.js failed while it loaded %s (%s)", what, exit).with(ended.output)
	}
	return err
}

// ownFrames picks the frames of a stack trace that lie in the author's code, with paths below the project root. where
// is the place of the first.
func ownFrames(stack, moduleDir string) (where, frames string) {
	var lines []string
	for line := range strings.SplitSeq(stack, "\n") {
		trimmed := strings.TrimSpace(line)
		if !strings.HasPrefix(trimmed, "at ") || !strings.Contains(trimmed, moduleDir+"/") {
			continue
		}
		trimmed = strings.ReplaceAll(strings.ReplaceAll(trimmed, "file://"+moduleDir+"/", ""), moduleDir+"/", "")
		if strings.Contains(trimmed, sdkNamespace+":") || strings.Contains(trimmed, "helmr-entry.mjs") || strings.Contains(trimmed, "node_modules/"+sdkName+"/") {
			continue
		}
		lines = append(lines, trimmed)
		if where == "" {
			where = strings.TrimSuffix(trimmed[strings.LastIndexAny(trimmed, " (")+1:], ")")
		}
	}
	return where, strings.Join(lines, "\n")
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
