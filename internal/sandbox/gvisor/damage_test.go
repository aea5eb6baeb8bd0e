package gvisor_test

import (
	"os"
	"path/filepath"
	"testing"

	"helmr.dev/helmr/internal/sandbox/sandboxtest"
)

// TestDamagedDiskIsNotSavedAgain starts from a save whose pages are cut short: programs inside get I/O errors, and no
// save may take what they could not read for the disk.
func TestDamagedDiskIsNotSavedAgain(t *testing.T) {
	t.Parallel()
	task, rt, base := running(t)
	id := task.Spec.ID
	probe := func(args ...string) int {
		t.Helper()
		res, err := rt.Exec(t.Context(), id, append([]string{sandboxtest.ProbePath}, args...))
		if err != nil {
			t.Fatal(err)
		}
		return res.Code
	}
	if code := probe("make", "/tmp"); code != 0 {
		t.Fatalf("make files: %d", code)
	}
	saved := filepath.Join(base, "saved")
	if err := rt.SaveDisk(t.Context(), id, saved); err != nil {
		t.Fatal(err)
	}
	if err := rt.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(saved, "pages.img"), 4096); err != nil {
		t.Fatal(err)
	}
	task.Spec.DiskFrom = saved
	if err := rt.Start(t.Context(), task.Spec); err != nil {
		t.Logf("start: %v", err)
	} else {
		if code := probe("describe", "/tmp"); code == 0 {
			t.Error("damaged files were read")
		}
		if err := rt.SaveDisk(t.Context(), id, filepath.Join(base, "again")); err == nil {
			t.Error("a damaged disk was saved")
		} else {
			t.Logf("save: %v", err)
		}
	}
	assertGone(t, rt, id, base)
}
