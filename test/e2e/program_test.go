package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program is how a test runs a program: its own environment, folder and input.
type program struct {
	path  string // "" is helmr
	dir   string
	env   []string // added to that of the test
	stdin string
}

// ran is what a program left.
type ran struct {
	stdout, stderr string
	code           int
}

// run runs the program to its end.
func (p program) run(t testing.TB, args ...string) ran {
	t.Helper()
	if p.path == "" {
		p.path = binary(t, "helmr")
	}
	cmd := exec.Command(p.path, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = p.dir, append(os.Environ(), p.env...), strings.NewReader(p.stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return ran{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// program runs commands against this helmr.
func (h *helmr) program(env ...string) program {
	return program{env: append([]string{"HELMR_CONFIG_DIR=" + h.config, "HELMR_API_KEY=", "HELMR_API_URL="}, env...)}
}

// refused wants an exit status and parts of what stderr says. Nothing may be on stdout: scripts read that.
func (r ran) refused(t testing.TB, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit %d, want %d", r.code, code)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("the message does not say %q", part)
		}
	}
	if r.stdout != "" {
		t.Errorf("stdout of a refused command: %q", r.stdout)
	}
	if !strings.HasSuffix(r.stderr, "\n") {
		t.Error("the message ends without a newline")
	}
	if t.Failed() || testing.Verbose() {
		t.Logf("stderr:\n%s", r.stderr)
	}
}

// ok wants success and gives stdout, which is empty or ends with a newline.
func (r ran) ok(t testing.TB) string {
	t.Helper()
	if r.code != 0 {
		t.Fatalf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	for what, s := range map[string]string{"stdout": r.stdout, "stderr": r.stderr} {
		if s != "" && !strings.HasSuffix(s, "\n") {
			t.Errorf("%s ends without a newline: %q", what, s)
		}
	}
	return r.stdout
}

// object wants success and one JSON object on stdout.
func (r ran) object(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(r.ok(t)), &v); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s", err, r.stdout)
	}
	return v
}

// lines wants JSON objects, one per line.
func jsonLines(t testing.TB, s string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for d := json.NewDecoder(strings.NewReader(s)); ; {
		var v map[string]any
		if err := d.Decode(&v); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("not JSON lines: %v\n%s", err, s)
		}
		all = append(all, v)
	}
	if len(all) != strings.Count(s, "\n") {
		t.Errorf("%d objects on %d lines", len(all), strings.Count(s, "\n"))
	}
	return all
}

// writeFiles makes a folder with files, given as pairs of path and content; "-" leaves one out.
func writeFiles(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		if content == "-" {
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// entries gives the names in a folder.
func entries(t testing.TB, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}
