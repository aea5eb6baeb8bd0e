package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// footprint is how a helmr's things on the host are found: by its data folder and the IDs of its Computers.
type footprint []string

// footprint looks at a helmr that runs.
func (h *helmr) footprint() footprint {
	h.t.Helper()
	page, err := h.ListComputers(context.Background(), client.ComputerFilter{Limit: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	f := footprint{h.dir}
	for _, c := range page.Computers {
		f = append(f, c.ID)
	}
	return f
}

func (f footprint) in(s string) bool {
	for _, name := range f {
		if strings.Contains(s, name) {
			return true
		}
	}
	return false
}

// processes gives the folder of each process.
func processes() []string {
	found, _ := filepath.Glob("/proc/[0-9]*")
	return found
}

// left lists what is on the host under one of the names.
func (f footprint) left() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	self := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, dir := range processes() {
		for _, file := range []string{"cmdline", "cgroup", "mountinfo"} {
			content, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil || dir == self && file == "cmdline" {
				continue
			}
			for line := range bytes.Lines(content) {
				if f.in(string(line)) {
					add("%s of process %s: %s", file, dir, bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
				}
			}
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && f.in(e.Name()) {
			add("cgroup %s", path)
		}
		return nil // one that goes away meanwhile is not ours
	})
	for what, command := range map[string][]string{
		"network namespace": {"ip", "netns", "list"}, "network link": {"ip", "-details", "link"}, "rule": {"nft", "list", "ruleset"}, "loop device": {"losetup", "--list"},
	} {
		text, err := exec.Command(command[0], command[1:]...).Output()
		if err != nil {
			continue // this machine lacks it
		}
		for line := range bytes.Lines(text) {
			if f.in(string(line)) {
				add("%s %s", what, line)
			}
		}
	}
	if sockets, err := os.ReadFile("/proc/net/unix"); err == nil {
		for line := range bytes.Lines(sockets) {
			if f.in(string(line)) {
				add("socket %s", line)
			}
		}
	}
	return out
}

// TestSpec_21_12_OrderlyStopLeavesNothing stops a busy helmr with Ctrl-C, and one that was killed at once with a second.
func TestSpec_21_12_OrderlyStopLeavesNothing(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/project")
	idle := h.create("counter", "write kept")
	h.completed(idle.SessionID, idle.TurnID)
	busy := h.create("counter", "patient 100000")
	h.running(busy)
	h.create("counter", "hello") // its Computer is starting
	f := h.footprint()
	if len(f.left()) == 0 {
		t.Fatalf("a helmr that runs has no footprint: %+v", f)
	}
	h.stop()
	h.nothing(f)
	if out := h.out.String(); !strings.Contains(out, "Stopping in order") {
		t.Errorf("helmr dev says:\n%s", out)
	}

	h.run()
	if v := h.settled(busy.SessionID, busy.TurnID); v.Status != "interrupted" || v.Error.Code != "shutdown" {
		t.Errorf("the turn that ran is %s, %+v", v.Status, v.Error)
	}
	got := h.completed(idle.SessionID, h.enqueue(idle.SessionID, "hello"))
	if got.Note == nil || *got.Note != "kept" {
		t.Errorf("after the stop: %+v", got)
	}
	again := api.SessionCreateReceipt{SessionID: busy.SessionID, TurnID: h.enqueue(busy.SessionID, "busy")}
	h.running(again)
	f = h.footprint()
	_ = h.cmd.Process.Signal(os.Interrupt) // waits for the handler that never gives up
	h.until("it is stopping", func() bool { return strings.Contains(h.out.String(), "Ctrl-C again ends at once") })
	_ = h.cmd.Process.Signal(os.Interrupt)
	<-h.exited
	if len(f.left()) == 0 {
		t.Error("no sandbox outlived the second Ctrl-C")
	}
	h.run()
	h.stop()
	h.nothing(f)
}

func (h *helmr) nothing(f footprint) {
	h.t.Helper()
	if left := append(f.left(), h.traces()...); len(left) > 0 {
		h.t.Fatalf("an orderly stop left:\n%s", strings.Join(left, "\n"))
	}
	for _, name := range entries(h.t, h.dir) {
		switch name {
		case "helmr.log", "helmr.db", "keys.json", "blobs", "worker", "dev.lock", "helmr.db.lock", "config", "encryption.key", "checkpoint.key":
		default:
			h.t.Errorf("an orderly stop left %s in the data folder", name)
		}
	}
	left, _ := filepath.Glob(filepath.Join(h.dir, "worker", "sandboxes", "*", "*"))
	for _, path := range left {
		if !strings.HasSuffix(path, ".lock") {
			h.t.Errorf("an orderly stop left %s", path)
		}
	}
}
