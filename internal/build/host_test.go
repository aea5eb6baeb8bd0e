package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestHostProgramParses(t *testing.T) {
	t.Parallel()
	program, err := HostProgram()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "host.mjs")
	if err := os.WriteFile(name, program, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "node", "--check", name).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
