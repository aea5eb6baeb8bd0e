package gvisor_test

import (
	"os"
	"path/filepath"
	"testing"

	"helmr.dev/helmr/internal/sandbox"
	"helmr.dev/helmr/internal/sandbox/gvisor"
	"helmr.dev/helmr/internal/sandbox/sandboxtest"
)

// runscPath finds the runsc that make setup builds.
func runscPath(t testing.TB) string {
	t.Helper()
	path := os.Getenv("HELMR_TEST_RUNSC")
	if path == "" {
		path = filepath.Join("..", "..", "..", "build", "bin", "runsc")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("runsc is missing: run make setup (%v)", err)
	}
	return path
}

func open(t testing.TB, root string) sandbox.Runtime {
	t.Helper()
	rt, err := gvisor.New(gvisor.Config{RunscPath: runscPath(t), Root: root})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sandboxtest.Run(t, open)
}
