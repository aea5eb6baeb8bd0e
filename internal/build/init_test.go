package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSpec_02_01_StarterBuilds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "My Agents!")
	files, err := Init(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{".gitignore", ".helmrignore", "agents/reviewer.ts", "helmr.config.ts", "package.json", "tsconfig.json"}
	if !slices.Equal(files, want) {
		t.Errorf("files %q", files)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "package.json")); err != nil || !strings.Contains(string(data), `"name": "my-agents"`) {
		t.Errorf("%s %v", data, err)
	}
	b, _, err := prepared(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	folder := assembled(t, b)
	if agents := folder.Manifest.Plan.Agents; len(agents) != 1 || agents[0].ID != "reviewer" || !agents[0].HasInit {
		t.Errorf("%+v", agents)
	}
}

func TestSpec_02_03_StarterLeavesIdlePeriodsUnset(t *testing.T) {
	t.Parallel()
	files, err := starterFiles("x")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		for _, field := range []string{"closeAfterIdle", "hibernateAfterIdle"} {
			if strings.Contains(string(text), field) {
				t.Errorf("%s sets %s", name, field)
			}
		}
	}
}

func TestInitDoesNotWriteOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "tsconfig.json", "mine")
	_, err := Init(dir, false)
	refused(t, err, "tsconfig.json", "exists already", "--force")
	if items, err := os.ReadDir(dir); err != nil || len(items) != 1 {
		t.Errorf("something was written: %v %v", items, err)
	}
	if _, err := Init(dir, true); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "tsconfig.json")); err != nil || string(data) == "mine" {
		t.Errorf("%s %v", data, err)
	}
	write(t, t.TempDir(), "file", "x")
	file := filepath.Join(dir, "tsconfig.json")
	if _, err := Init(file, false); err == nil {
		t.Error("made a project inside a file")
	}
}

// TestStarterTypes checks the starter with the compiler that the SDK's own tests use.
func TestStarterTypes(t *testing.T) {
	t.Parallel()
	modules, err := filepath.Abs("../../sdk/typescript/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	compiler := filepath.Join(modules, ".bin", "tsc")
	if _, err := os.Stat(compiler); err != nil {
		t.Skip("the TypeScript compiler is not installed in sdk/typescript; run npm ci there")
	}
	dir := t.TempDir()
	if _, err := Init(dir, false); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), compiler, "--noEmit")
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
