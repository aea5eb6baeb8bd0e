package gvisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestDetectCgroupsSaysWhy(t *testing.T) {
	t.Parallel()
	if cg := detectCgroups(filepath.Join(t.TempDir(), "none")); cg.version != 0 || !strings.Contains(cg.reason, "no such file") {
		t.Errorf("nothing mounted: %+v", cg)
	}
	// An ordinary folder looks like a v1 mount without controllers.
	if cg := detectCgroups(t.TempDir()); cg.version != 0 || !strings.Contains(cg.reason, "no cpu controller") {
		t.Errorf("no controllers: %+v", cg)
	}
}

func TestDiskOfAPartitionIsTheWhole(t *testing.T) {
	t.Parallel()
	sys := t.TempDir() // as in /sys: a link for each device into the tree of devices
	for path, text := range map[string]string{"devices/sda/dev": "8:0", "devices/sda/sda2/dev": "8:2", "devices/sda/sda2/partition": "2"} {
		path = filepath.Join(sys, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"8:0": "devices/sda", "8:2": "devices/sda/sda2"} {
		if err := os.Symlink(to, filepath.Join(sys, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, minor := range []int64{0, 2} {
		if got, err := wholeDisk(sys, disk{8, minor}); err != nil || got != (disk{8, 0}) {
			t.Errorf("8:%d is on %v, %v", minor, got, err)
		}
	}
	if got, err := wholeDisk(sys, disk{9, 0}); err == nil {
		t.Errorf("a device that is not there is %v", got)
	}
}

func TestSourceOfAPath(t *testing.T) {
	t.Parallel()
	mounts := []byte("20 1 0:31 /@ / rw - btrfs /dev/sda2 rw\n21 20 0:32 /@w /nothing/disk rw shared:1 - btrfs /dev/sdb rw\n22 20 0:33 / /nothing/disk2 rw - tmpfs tmpfs rw\n")
	for path, want := range map[string]string{"/nothing": "/dev/sda2", "/nothing/disk": "/dev/sdb", "/nothing/disk/a": "/dev/sdb", "/nothing/disk2": "tmpfs", "/nothing/disk3": "/dev/sda2"} {
		if got := sourceOf(mounts, path); got != want {
			t.Errorf("%s is on %s, want %s", path, got, want)
		}
	}
	if _, err := diskOf("/proc"); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("a file system without a disk: %v", err)
	}
}

func TestOOMKillsOfBothVersions(t *testing.T) {
	t.Parallel()
	mount := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(mount, "memory/one/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
	write(filepath.Join(mount, "two/memory.events"), "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 1\n")
	if n := (cgroups{mount: mount, version: 1}).oomKills("one"); n != 3 {
		t.Errorf("v1: %d kills", n)
	}
	if n := (cgroups{mount: mount, version: 2}).oomKills("two"); n != 2 {
		t.Errorf("v2: %d kills", n)
	}
	if n := (cgroups{mount: mount, version: 2}).oomKills("gone"); n != 0 {
		t.Errorf("a removed group: %d kills", n)
	}
}

func TestProcessIsNotAnotherOfTheSameNumber(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := lookUp(cmd.Process.Pid)
	if err != nil || !p.alive() {
		t.Fatalf("a living process: %+v, %v", p, err)
	}
	other := process{PID: p.PID, Start: p.Start - 1}
	if other.alive() {
		t.Error("an earlier process of the same number is alive")
	}
	if err := other.kill(t.Context()); err != nil {
		t.Errorf("kill of a gone process: %v", err)
	}
	if !p.alive() {
		t.Error("the wrong process was killed")
	}
	fd, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waitGone(cancelled, fd); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled wait: %v", err)
	}
	gone, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	ended := make(chan error, 1)
	go func() { ended <- waitGone(t.Context(), gone) }()
	in.Close()
	if err := <-ended; err != nil {
		t.Errorf("wait: %v", err)
	}
	if p.alive() { // a zombie until the line below
		t.Error("an ended process is alive")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestConsoleCannotGrow(t *testing.T) {
	t.Parallel()
	f, err := newConsole()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("tail"), 100); err != nil { // as after a resume
		t.Fatal(err)
	}
	if got := readConsole(f); got != "tail" {
		t.Errorf("console holds %q", got)
	}
	if _, err := f.WriteAt([]byte("x"), consoleSize); err == nil {
		t.Error("a write past the end succeeded")
	}
	if err := f.Truncate(consoleSize * 2); err == nil {
		t.Error("it grew")
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	o := &output{limit: 5}
	for _, s := range []string{"abc", "def", "ghi"} {
		if n, err := o.Write([]byte(s)); n != 3 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
	}
	if got := o.buf.String(); got != "abcde" {
		t.Errorf("kept %q", got)
	}
}

func TestKernelAtLeast(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]bool{
		"6.1.0-13-amd64": true, "5.10.0": true, "5.9.16": false, "4.19.0": false, "odd": true,
	} {
		if got := kernelAtLeast(release, 5, 10); got != want {
			t.Errorf("%s: %v", release, got)
		}
	}
}
