package gvisor

import (
	"os/exec"
	"testing"
)

// TestKillAllEndsWhatIsOfItsRoot starts programs that carry the arguments by which sandboxes are recognised.
func TestKillAllEndsWhatIsOfItsRoot(t *testing.T) {
	t.Parallel()
	mine, other := newRoot(t), newRoot(t)
	start := func(r *Runtime) *exec.Cmd {
		cmd := exec.Command("/bin/sh", "-c", "read line", "sh", "--root="+r.state, "some-id")
		in, err := cmd.StdinPipe() // open until the test ends
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	first, second, stranger := start(mine), start(mine), start(other)
	if n, err := mine.KillAll(t.Context()); err != nil || n != 2 {
		t.Fatalf("ended %d: %v", n, err)
	}
	for _, cmd := range []*exec.Cmd{first, second} {
		if err := cmd.Wait(); err == nil {
			t.Error("it ended by itself")
		}
	}
	if _, err := lookUp(stranger.Process.Pid); err != nil {
		t.Error("a process of another root was ended")
	}
	if n, err := mine.KillAll(t.Context()); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
	if n, err := mine.Count(); err != nil || n != 0 {
		t.Errorf("%d sandboxes: %v", n, err)
	}
	if err := mine.records.save(record{ID: "some-id"}); err != nil {
		t.Fatal(err)
	}
	if n, err := mine.Count(); err != nil || n != 1 {
		t.Errorf("%d sandboxes: %v", n, err)
	}
}

func newRoot(t *testing.T) *Runtime {
	t.Helper()
	r, err := New(Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
