package gvisor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/internal/sandbox/sandboxtest"
)

// TestControlIsKilled kills the process that asks sandboxes: what is under way fails, the sandbox goes on, and the next
// request finds a new process.
func TestControlIsKilled(t *testing.T) {
	t.Parallel()
	task, rt, base := running(t)
	id := task.Spec.ID
	if err := rt.SaveDisk(t.Context(), id, filepath.Join(base, "first")); err != nil {
		t.Fatal(err)
	}
	pid := controlOf(t, filepath.Join(base, "runtime"))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		asking.Go(func() {
			// One at a time for each sandbox: of these one is under way, and the others meet the process's end or its successor.
			errs[i] = rt.SaveDisk(t.Context(), id, filepath.Join(base, fmt.Sprint("under-way-", i)))
		})
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	asking.Wait()
	for i, err := range errs {
		if err != nil && !strings.Contains(err.Error(), "runsc control ended") {
			t.Errorf("save %d: %v", i, err)
		}
	}
	if err := rt.SaveDisk(t.Context(), id, filepath.Join(base, "second")); err != nil {
		t.Errorf("after its end: %v", err)
	}
	if again := controlOf(t, filepath.Join(base, "runtime")); again == pid {
		t.Error("it was not killed")
	}
	assertGone(t, rt, id, base)
}

// controlOf finds the control process of a runtime's folder.
func controlOf(t *testing.T, root string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		text, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(string(text), "\x00control\x00--root="+filepath.Join(root, "runsc")+"\x00") {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatal("there is no control process")
	return 0
}

// TestAGivenUpPauseIsOvertakenByNothing gives up captures while the control process stands still: when it goes on it has
// the pause and what undoes it before it at once, and the sandbox must run afterwards.
func TestAGivenUpPauseIsOvertakenByNothing(t *testing.T) {
	t.Parallel()
	task, rt, base := running(t)
	id := task.Spec.ID
	if err := rt.Thaw(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	pid := controlOf(t, filepath.Join(base, "runtime"))
	for i := range 10 {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		given, giveUp := context.WithCancel(t.Context())
		frozen := make(chan error, 1)
		go func() {
			frozen <- rt.Freeze(given, id, filepath.Join(base, fmt.Sprint("disk-", i)), filepath.Join(base, fmt.Sprint("memory-", i)))
		}()
		for under := false; !under; {
			list, err := rt.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			under = len(list) == 1 && list[0].Frozen
		}
		giveUp()
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := <-frozen; err == nil {
			t.Error("a capture that was given up succeeded")
		}
		alive, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := rt.Exec(alive, id, []string{sandboxtest.ProbePath, "describe", "/etc"})
		cancel()
		if err != nil {
			t.Fatalf("after capture %d was given up: %v", i, err)
		}
	}
	assertGone(t, rt, id, base)
}
