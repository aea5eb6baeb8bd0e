package client_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"helmr.dev/helmr/internal/guest/client"
	"helmr.dev/helmr/internal/guest/proto"
)

const nobody = 65534

// owner gives mode and owner of a file of the machine, which the guest of these tests runs on.
func owner(t *testing.T, path string) (mode os.FileMode, uid uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode(), info.Sys().(*syscall.Stat_t).Uid
}

func TestSpec_10_06_PlaceFileMakesFoldersAndReplaces(t *testing.T) {
	h := setup(t)
	h.connected()
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "key")
	for _, content := range []string{"first, and longer", "second", ""} {
		h.ok(h.c.PlaceFile(h.ctx, client.PlaceFile{Path: path, Content: []byte(content), User: "65534:65534"}))
		raw, err := os.ReadFile(path)
		if err != nil || string(raw) != content {
			t.Fatalf("%q, %v", raw, err)
		}
	}
	if mode, uid := owner(t, path); mode != 0o600 || uid != nobody {
		t.Errorf("the file has %v of %d", mode, uid)
	}
	if mode, uid := owner(t, filepath.Dir(path)); mode.Perm() != 0o755 || uid != nobody {
		t.Errorf("the folder has %v of %d", mode, uid)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
	// Root's own files stay root's.
	h.ok(h.c.PlaceFile(h.ctx, client.PlaceFile{Path: filepath.Join(dir, "root"), Content: []byte("x")}))
	if _, uid := owner(t, filepath.Join(dir, "root")); uid != 0 {
		t.Errorf("the file of no user belongs to %d", uid)
	}
}

func TestPlaceFileIsNotLedAstray(t *testing.T) {
	h := setup(t)
	h.connected()
	dir, outside := t.TempDir(), t.TempDir()
	link := func(target, name string, uid int) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(filepath.Join(dir, name), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "passwd"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	link(outside, "planted", nobody)
	link(filepath.Join(outside, "passwd"), "final", nobody)
	link("../"+filepath.Base(dir)+"/folder", "honest", 0)
	link("loop", "loop", 0)
	place := func(name string) error {
		return h.c.PlaceFile(h.ctx, client.PlaceFile{Path: filepath.Join(dir, name), Content: []byte("secret"), User: "65534:65534"})
	}
	for _, bad := range []string{"planted/passwd", "loop/x", "folder", "final/x"} {
		if err := place(bad); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), bad) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	h.ok(place("final")) // the link is replaced, not followed
	h.ok(place("honest/key"))
	if raw, err := os.ReadFile(filepath.Join(outside, "passwd")); err != nil || string(raw) != "kept" {
		t.Errorf("written through a planted link: %q, %v", raw, err)
	}
	if mode, _ := owner(t, filepath.Join(dir, "final")); !mode.IsRegular() {
		t.Errorf("final is %v", mode)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "folder", "key")); err != nil || string(raw) != "secret" {
		t.Errorf("through root's link: %q, %v", raw, err)
	}
	for _, path := range []string{"relative", "/", "/a/../b", "/a//b", "/a/", "/a\x00"} {
		if err := h.c.PlaceFile(h.ctx, client.PlaceFile{Path: path, Content: []byte("x")}); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if err := h.c.PlaceFile(h.ctx, client.PlaceFile{Path: filepath.Join(dir, "x"), User: "no such user"}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("an unknown user: %v", err)
	}
}

func TestRefusedNeverRuns(t *testing.T) {
	h := setup(t)
	h.connected()
	mark := filepath.Join(t.TempDir(), "ran")
	h.ok(h.c.StartProcess(h.ctx, client.StartProcess{SessionID: "s", Epoch: 1, Argv: []string{"touch", mark}, Start: []byte(`{}`), Refused: "no file"}))
	if e := h.exit("s"); !strings.Contains(e.Detail, "no file") {
		t.Errorf("the process ended with %+v", e)
	}
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{ID: "c", Argv: []string{"touch", mark}, Refused: "no file either"}))
	end := await(h, "the end of the Command", func(r *recorder) (client.CommandExit, bool) {
		if len(r.exits["c"]) == 0 {
			return client.CommandExit{}, false
		}
		return r.exits["c"][0], true
	})
	if end.End != proto.CommandEnd_COMMAND_END_FAULT || end.Detail != "no file either" {
		t.Errorf("the Command ended with %+v", end)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it ran")
	}
}
