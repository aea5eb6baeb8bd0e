package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// author runs a command that needs no server.
func author(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	m := Main{Args: args, Getenv: func(string) string { return "" }, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}
	status = m.Run(t.Context())
	return status, out.String(), errs.String()
}

func TestInitThenBuildOfABrokenProject(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "hello")
	if status, out, errs := author(t, "init", "--dir", dir); status != 0 || !strings.Contains(out, "agents/reviewer.ts") || !strings.Contains(errs, "helmr deploy "+dir) {
		t.Fatalf("init: %d\n%s%s", status, out, errs)
	}
	if status, _, errs := author(t, "init", "--dir", dir); status != exitFailed || !strings.Contains(errs, "exists already") || !strings.Contains(errs, "--force") {
		t.Errorf("init again: %d\n%s", status, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "agents", "reviewer.ts"), []byte("export const x = 1\nexport const y = ;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, out, errs := author(t, "build", dir)
	if status != exitFailed || out != "" || !strings.Contains(errs, "error: agents/reviewer.ts:2:18: Unexpected \";\"\n  2 | export const y = ;\n    |                  ^") {
		t.Errorf("build: %d\n%s%s", status, out, errs)
	}
	status, out, errs = author(t, "build", dir, "--json")
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	var last struct{ Error struct{ Message string } }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || status != exitFailed || out != "" || !strings.HasPrefix(last.Error.Message, "agents/reviewer.ts:2:18") {
		t.Errorf("build --json: %d %v\n%s%s", status, err, out, errs)
	}
	if _, err := os.Stat(filepath.Join(dir, ".helmr", "deployment-bundle")); err == nil {
		t.Error("a failed build left a bundle")
	}
	if status, _, _ := author(t, "build", dir, "more"); status != exitUsage {
		t.Errorf("two paths: %d", status)
	}
}
