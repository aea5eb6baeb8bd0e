package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"helmr.dev/helmr/internal/sandbox"
)

var cases = []struct {
	name string
	run  func(h *harness)
}{
	{"FirstProcess", firstProcess},
	{"Exec", execute},
	{"Mounts", readOnlyMounts},
	{"Confinement", confinement},
	{"SocketComesBack", socketComesBack},
	{"Spec_07_11_RootIsDurable", rootIsDurable},
	{"MemoryBound", memoryBound},
	{"DiskBound", diskBound},
	{"SaveAndRestore", saveAndRestore},
	{"FreezeAndResume", freezeAndResume},
	{"FreezeAndThaw", freezeAndThaw},
	{"Adopt", adopt},
	{"WaitForExit", waitForExit},
	{"StartTwice", startTwice},
	{"Unknown", unknown},
	{"BadStarts", badStarts},
	{"StartCutOff", startCutOff},
	{"ResumeCutOff", resumeCutOff},
	{"BadCaptures", badCaptures},
	{"Concurrent", concurrent},
}

func firstProcess(h *harness) {
	spec := h.spec(1)
	hello := h.start(spec)
	equal(h, "args", strings.Join(hello.Args, " "), strings.Join(spec.Args, " "))
	equal(h, "cwd", hello.Cwd, "/root")
	equal(h, "pid", hello.PID, 1)
	for _, kv := range spec.Env {
		if !slices.Contains(hello.Env, kv) {
			h.Errorf("env lacks %s: %v", kv, hello.Env)
		}
	}
	for _, kv := range hello.Env {
		if strings.HasPrefix(kv, "HELMR_") || strings.HasPrefix(kv, "GO") {
			h.Errorf("env of the host inside: %s", kv)
		}
	}
	h.remove()
	h.assertNoTraces()
	if _, err := os.Stat(spec.Dir); !errors.Is(err, fs.ErrNotExist) {
		h.Errorf("folder after Remove: %v", err)
	}
	list, err := h.rt.List(h.ctx)
	if err != nil || len(list) != 0 {
		h.Errorf("list after Remove: %v, %v", list, err)
	}
}

func execute(h *harness) {
	h.start(h.spec(1))
	res, err := h.rt.Exec(h.ctx, h.id, []string{ProbePath, "echo", "to stdout", "to stderr"})
	if err != nil {
		h.Fatal(err)
	}
	equal(h, "stdout", string(res.Stdout), "to stdout")
	equal(h, "stderr", string(res.Stderr), "to stderr")
	for _, code := range []int{1, 7, 128, 255} {
		res, err := h.rt.Exec(h.ctx, h.id, []string{ProbePath, "exit", fmt.Sprint(code)})
		if err != nil || res.Code != code {
			h.Errorf("exit %d: got %d, %v", code, res.Code, err)
		}
	}
	if _, err := h.rt.Exec(h.ctx, h.id, []string{"/no/such/program"}); err == nil {
		h.Error("a missing program: no error")
	}
}

func readOnlyMounts(h *harness) {
	spec := h.spec(1)
	shared := h.dir("shared")
	must(h, os.MkdirAll(filepath.Join(shared, "deep"), 0o755))
	must(h, os.WriteFile(filepath.Join(shared, "deep/file"), []byte("from the host"), 0o644))
	spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: shared, Destination: "/opt/helmr/runtime"})
	h.start(spec)
	if got := h.probe("describe", "/opt/helmr/runtime"); !strings.Contains(got, "13 bytes") {
		h.Errorf("the mount inside: %s", got)
	}
	equal(h, "create in a mount", h.probe("create", "/opt/helmr/runtime/new"), "EROFS")
	equal(h, "overwrite in a mount", h.probe("create", "/opt/helmr/runtime/deep/file"), "EROFS")
	equal(h, "create beside the socket", h.probe("create", "/run/helmr/new"), "EROFS")
	must(h, os.WriteFile(filepath.Join(shared, "added"), []byte("later"), 0o644))
	if got := h.probe("describe", "/opt/helmr/runtime"); !strings.Contains(got, "added") {
		h.Errorf("a file added on the host is not seen: %s", got)
	}
}

func confinement(h *harness) {
	h.start(h.spec(1))
	equal(h, "network interfaces", h.probe("interfaces"), "")
	equal(h, "first pid in a PID namespace", h.probe("pidns"), "1")
	equal(h, "no_new_privs", h.probe("privileges"), "1")
}

// socketComesBack is the restart of a Worker: its socket goes and comes again while the sandbox runs.
func socketComesBack(h *harness) {
	before := h.start(h.spec(1))
	for range 3 {
		h.socket.close()
		must(h, h.socket.listen())
		after := h.hello()
		equal(h, "token", after.Token, before.Token)
	}
}

func rootIsDurable(h *harness) {
	h.start(h.spec(1))
	dev := strings.Fields(h.probe("device", "/", "/tmp", "/etc", "/run", "/dev/shm", "/proc", "/sys", "/dev"))
	for i, name := range []string{"/", "/tmp", "/etc"} {
		equal(h, "device of "+name, dev[i], dev[0])
	}
	for i, name := range []string{"/run", "/dev/shm", "/proc", "/sys", "/dev"} {
		if dev[i+3] == dev[0] {
			h.Errorf("%s is on the durable root filesystem", name)
		}
	}
	for _, path := range []string{"/tmp/kept", "/root/kept", "/run/lost", "/dev/shm/lost"} {
		equal(h, path, h.probe("create", path), "ok")
	}
	h.save("saved")
	h.remove()
	spec := h.spec(2)
	spec.DiskFrom = h.dir("saved")
	h.start(spec)
	got := h.probe("describe", "/tmp", "/root", "/run", "/dev/shm")
	if strings.Count(got, "kept") != 2 || strings.Contains(got, "lost") {
		h.Errorf("after a restore: %s", got)
	}
	// An emptied /tmp must stay on the root filesystem too.
	dev = strings.Fields(h.probe("device", "/", "/tmp"))
	equal(h, "device of /tmp after a restore", dev[1], dev[0])
}

func memoryBound(h *harness) {
	if !h.rt.Capabilities().Memory {
		h.Skipf("no memory bound on this host: %s", h.rt.Capabilities().Reason)
	}
	h.start(h.spec(1))
	equal(h, "memory seen inside", h.probe("memory"), "256")
	// Ends with the sandbox, in whatever way.
	_, _ = h.rt.Exec(h.ctx, h.id, []string{ProbePath, "eat"})
	exit, err := h.rt.Wait(h.ctx, h.id)
	if err != nil {
		h.Fatal(err)
	}
	equal(h, "killed for memory", exit.OOM, true)
	equal(h, "running", h.running(h.rt), false)
}

func diskBound(h *harness) {
	before := h.start(h.spec(1))
	var word string
	var written int
	if _, err := fmt.Sscan(h.probe("fill", "/tmp/full"), &word, &written); err != nil {
		h.Fatal(err)
	}
	equal(h, "error of a full disk", word, "ENOSPC")
	if written < 56 || written > 64 {
		h.Errorf("wrote %d MiB to a disk of 64 MiB", written)
	}
	if used := diskUsage(h, h.dir("computer-1")); used > 80<<20 {
		h.Errorf("the host holds %d MiB for it", used>>20)
	}
	// /run is memory with a bound of its own.
	_, _ = fmt.Sscan(h.probe("fill", "/run/full"), &word, &written)
	equal(h, "error of a full /run", word, "ENOSPC")
	// The sandbox lives on, and saves a full disk.
	h.socket.close()
	must(h, h.socket.listen())
	equal(h, "token", h.hello().Token, before.Token)
	h.save("full")
	_, _ = fmt.Sscan(h.probe("fill", "/tmp/full"), &word, &written) // truncates it first
	equal(h, "error of a full disk", word, "ENOSPC")
}

// diskUsage counts the bytes that a folder takes on the host.
func diskUsage(h *harness, dir string) (bytes int64) {
	h.Helper()
	must(h, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		bytes += allocated(info)
		return nil
	}))
	return bytes
}

func (h *harness) save(name string) {
	h.Helper()
	if err := h.rt.SaveDisk(h.ctx, h.id, h.dir(name)); err != nil {
		h.Fatalf("save disk: %v", err)
	}
	if _, err := os.Stat(filepath.Join(h.dir(name), sandbox.AppendedFile)); err != nil {
		h.Fatal(err)
	}
}

func saveAndRestore(h *harness) {
	before := h.start(h.spec(1))
	h.probe("make", "/tmp")
	trees := []string{"describe", "/tmp", "/etc"}
	want := h.probe(trees...)
	h.save("first")
	h.probe("change", "/tmp")
	if h.probe(trees...) == want {
		h.Fatal("the change after the save is not seen")
	}
	h.socket.close()
	must(h, h.socket.listen())
	equal(h, "token after a save", h.hello().Token, before.Token)
	h.remove()

	// Somewhere else, from a copy, which is deleted at once; and the same from a save of what was restored.
	for i, from := range []string{"first", "second"} {
		copied := h.dir("copy-" + from)
		must(h, os.CopyFS(copied, os.DirFS(h.dir(from))))
		must(h, os.RemoveAll(h.dir(from)))
		spec := h.spec(2 + i)
		spec.DiskFrom = copied
		after := h.start(spec)
		must(h, os.RemoveAll(copied))
		if after.Token == before.Token {
			h.Error("memory survived a save of the disk")
		}
		equal(h, "files restored from the "+from+" save", h.probe(trees...), want)
		h.save("second")
		h.remove()
	}
}

func freezeAndResume(h *harness) {
	before := h.start(h.spec(1))
	h.probe("make", "/tmp")
	h.probe("create", "/run/kept")
	trees := []string{"describe", "/tmp", "/etc", "/run/kept"}
	want := h.probe(trees...)
	for i := range 2 {
		h.socket.close() // the guest lets go of the connection first
		disk, dir := h.dir(fmt.Sprintf("disk-%d", i)), h.dir(fmt.Sprintf("memory-%d", i))
		h.freeze(disk, dir)
		h.remove()
		h.assertNoTraces()

		moved := dir + "-moved"
		spec := h.spec(i + 2)
		// It comes while the sandbox is made, or is there before.
		fetch := func(context.Context) error { return os.Rename(dir, moved) }
		if i == 0 {
			spec.MemoryReady = fetch
		} else {
			must(h, fetch(h.ctx))
		}
		// Another Worker has the image and the socket in other places.
		image := h.dir(fmt.Sprintf("image-%d", i))
		must(h, os.Link(h.rootfs, image))
		h.socket.dir = h.dir(fmt.Sprintf("sock-%d", i))
		must(h, os.MkdirAll(h.socket.dir, 0o755))
		must(h, h.socket.listen())
		spec.RootFS, spec.Mounts[0].Source, spec.MemoryFrom = image, h.socket.dir, moved
		after := h.start(spec)
		must(h, os.RemoveAll(moved))
		equal(h, "token", after.Token, before.Token)
		equal(h, "connections", after.Count, before.Count+i+1)
		equal(h, "files", h.probe(trees...), want)
	}
	// A resumed Computer can be saved, and one resumed and saved can start anew; and so can one with the disk of a capture.
	h.save("saved")
	h.probe("create", "/tmp/after")
	h.remove()
	trees = trees[:3]
	for n, from := range []string{"saved", "disk-1"} {
		spec := h.spec(8 + n)
		spec.DiskFrom = h.dir(from)
		if h.start(spec).Token == before.Token {
			h.Error("memory survived without a capture of it")
		}
		equal(h, "files of "+from, h.probe(trees...)+"\n", want[:strings.Index(want, `"/run/kept"`)])
		h.remove()
	}
}

func (h *harness) freeze(disk, memory string) {
	h.Helper()
	if err := h.rt.Freeze(h.ctx, h.id, disk, memory); err != nil {
		h.Fatalf("freeze: %v", err)
	}
	equal(h, "running when frozen", h.running(h.rt), true)
}

// freezeAndThaw gives a capture up: the sandbox goes on, also for a Worker program that finds it frozen, and can be
// frozen again.
func freezeAndThaw(h *harness) {
	before := h.start(h.spec(1))
	must(h, h.rt.Thaw(h.ctx, h.id)) // it is not frozen
	for i := range 2 {
		h.socket.close()
		h.freeze(h.dir(fmt.Sprintf("disk-%d", i)), h.dir(fmt.Sprintf("memory-%d", i)))
		must(h, h.socket.listen())
		if hello, err := h.socket.acceptWithin(300 * time.Millisecond); err == nil {
			h.Errorf("a frozen sandbox says %v", hello)
		}
		if i == 1 {
			h.rt = h.open(h, h.root)
		}
		for range 2 {
			must(h, h.rt.Thaw(h.ctx, h.id))
		}
		equal(h, "token", h.hello().Token, before.Token)
	}
	h.probe("create", "/tmp/after")
	h.save("saved")
	// What is left of a capture that was cut off is no hindrance.
	h.socket.close()
	for n := range 6 {
		ctx, cancel := context.WithTimeout(h.ctx, time.Duration(n*n)*10*time.Millisecond)
		err := h.rt.Freeze(ctx, h.id, h.dir("cut-disk"), h.dir("cut-memory"))
		cancel()
		if err == nil {
			must(h, h.rt.Thaw(h.ctx, h.id))
		}
		for _, dir := range []string{"cut-disk", "cut-memory"} {
			if _, e := os.Stat(h.dir(dir)); err != nil && !errors.Is(e, fs.ErrNotExist) {
				h.Errorf("cut off capture left a folder: %v", e)
			}
			must(h, os.RemoveAll(h.dir(dir)))
		}
		must(h, h.socket.listen())
		equal(h, "token", h.hello().Token, before.Token)
		h.socket.close()
	}
}

// adopt is a Worker program that starts again beside its living sandboxes.
func adopt(h *harness) {
	before := h.start(h.spec(1))
	again := h.open(h, h.root)
	equal(h, "running for the new runtime", h.running(again), true)
	h.rt = again
	h.socket.close()
	must(h, h.socket.listen())
	equal(h, "token", h.hello().Token, before.Token)
	h.probe("create", "/tmp/adopted")
	h.save("saved")
	ended := make(chan error, 1)
	var exit sandbox.Exit
	go func() {
		var err error
		exit, err = again.Wait(h.ctx, h.id)
		ended <- err
	}()
	must(h, h.socket.say("exit"))
	must(h, <-ended)
	equal(h, "killed for memory", exit.OOM, false)
}

func waitForExit(h *harness) {
	h.start(h.spec(1))
	ctx, cancel := context.WithTimeout(h.ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := h.rt.Wait(ctx, h.id); !errors.Is(err, context.DeadlineExceeded) {
		h.Errorf("wait with a deadline: %v", err)
	}
	must(h, h.socket.say("exit"))
	for range 2 { // the second finds it ended
		exit, err := h.rt.Wait(h.ctx, h.id)
		if err != nil {
			h.Fatal(err)
		}
		equal(h, "killed for memory", exit.OOM, false)
		if !strings.Contains(exit.Output, "hello from PID 1") {
			h.Errorf("output of PID 1: %q", exit.Output)
		}
	}
	equal(h, "running", h.running(h.rt), false)
	if err := h.rt.SaveDisk(h.ctx, h.id, h.dir("late")); !errors.Is(err, sandbox.ErrNotRunning) {
		h.Errorf("save of an ended sandbox: %v", err)
	}
	// The same Computer starts again over what is left of the ended one.
	h.start(h.spec(2))

	// Removal wakes whoever waits.
	ended := make(chan error, 1)
	go func() { _, err := h.rt.Wait(h.ctx, h.id); ended <- err }()
	h.remove()
	if err := <-ended; err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		h.Errorf("wait during removal: %v", err)
	}
}

func startTwice(h *harness) {
	before := h.start(h.spec(1))
	if err := h.rt.Start(h.ctx, h.spec(2)); !errors.Is(err, sandbox.ErrExists) {
		h.Errorf("second start: %v", err)
	}
	h.socket.close()
	must(h, h.socket.listen())
	equal(h, "token", h.hello().Token, before.Token)
}

func unknown(h *harness) {
	if _, err := h.rt.Exec(h.ctx, h.id, []string{"/bin/probe"}); !errors.Is(err, sandbox.ErrNotFound) {
		h.Errorf("exec: %v", err)
	}
	if _, err := h.rt.Wait(h.ctx, h.id); !errors.Is(err, sandbox.ErrNotFound) {
		h.Errorf("wait: %v", err)
	}
	if err := h.rt.SaveDisk(h.ctx, h.id, h.dir("saved")); !errors.Is(err, sandbox.ErrNotFound) {
		h.Errorf("save: %v", err)
	}
	for range 2 {
		h.remove()
	}
}
