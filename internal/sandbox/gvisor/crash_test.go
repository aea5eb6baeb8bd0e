package gvisor_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/sandbox"
	"helmr.dev/helmr/internal/sandbox/gvisor"
	"helmr.dev/helmr/internal/sandbox/sandboxtest"
)

// TestMain lets the test binary play a Worker that is killed: with HELMR_TEST_WORKER set it starts the sandbox given
// there, says so, and waits.
func TestMain(m *testing.M) {
	if text := os.Getenv("HELMR_TEST_WORKER"); text != "" {
		if err := beWorker(text); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

type workerTask struct {
	Config gvisor.Config
	Spec   sandbox.Spec
}

func beWorker(text string) error {
	var task workerTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return err
	}
	rt, err := gvisor.New(task.Config)
	if err != nil {
		return err
	}
	fmt.Println("starting")
	ctx, stop := contextOfStdin()
	defer stop()
	if err := rt.Start(ctx, task.Spec); err != nil {
		return err
	}
	fmt.Println("started")
	<-ctx.Done()
	return nil
}

// worker is a started test binary that plays the Worker.
type worker struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func startWorker(t *testing.T, task workerTask) worker {
	t.Helper()
	b, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HELMR_TEST_WORKER="+string(b))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := cmd.StdinPipe(); err != nil { // ends the helper when the test ends
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return worker{cmd, bufio.NewScanner(out)}
}

func (w worker) expect(t *testing.T, want string) {
	t.Helper()
	if !w.lines.Scan() || w.lines.Text() != want {
		t.Fatalf("worker said %q, want %q", w.lines.Text(), want)
	}
}

// newTask makes a small Computer in its own folders. listener is what its PID 1 dials.
func newTask(t *testing.T, runsc string) (workerTask, net.Listener, string) {
	t.Helper()
	base, err := os.MkdirTemp("", "helmr") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	sock := filepath.Join(base, "sock")
	if err := os.Mkdir(sock, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(sock, "worker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return workerTask{
		Config: gvisor.Config{RunscPath: runsc, Root: filepath.Join(base, "runtime")},
		Spec: sandbox.Spec{
			ID: id.New(), RootFS: sandboxtest.BuildRootFS(t), Dir: filepath.Join(base, "computer"),
			Args: []string{sandboxtest.ProbePath, "init", "/run/helmr/worker.sock"}, Env: []string{"PATH=/bin"},
			Mounts:    []sandbox.Mount{{Source: sock, Destination: "/run/helmr"}},
			CPUMillis: 500, MemoryMiB: 128, DiskMiB: 32,
		},
	}, l, base
}

// greet takes a connection of PID 1 and returns its token; the connection stays open until the test ends.
func greet(t *testing.T, l net.Listener) (token string) {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var hello sandboxtest.Hello
	if err := json.NewDecoder(conn).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	return hello.Token
}

// running starts a small Computer whose PID 1 has connected.
func running(t *testing.T) (task workerTask, rt *gvisor.Runtime, base string) {
	t.Helper()
	task, l, base := newTask(t, runscPath(t))
	rt, err := gvisor.New(task.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.Start(t.Context(), task.Spec); err != nil {
		t.Fatal(err)
	}
	greet(t, l)
	return task, rt, base
}

func assertGone(t *testing.T, rt sandbox.Runtime, id, base string) {
	t.Helper()
	if err := rt.Remove(t.Context(), id); err != nil {
		t.Fatalf("remove: %v", err)
	}
	for _, trace := range sandboxtest.Traces(t, id, base) {
		t.Errorf("left behind: %s", trace)
	}
}

func TestSandboxOutlivesItsWorker(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"SIGKILL": syscall.SIGKILL, "Ctrl-C": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			task, l, base := newTask(t, runscPath(t))
			w := startWorker(t, task)
			w.expect(t, "starting")
			w.expect(t, "started")
			greet(t, l)
			if err := syscall.Kill(-w.Process.Pid, sig); err != nil { // the whole process group, as a terminal does
				t.Fatal(err)
			}
			_ = w.Wait()

			rt, err := gvisor.New(task.Config)
			if err != nil {
				t.Fatal(err)
			}
			list, err := rt.List(t.Context())
			if err != nil || len(list) != 1 || !list[0].Running || list[0].ID != task.Spec.ID || list[0].Dir != task.Spec.Dir {
				t.Fatalf("list: %+v, %v", list, err)
			}
			res, err := rt.Exec(t.Context(), task.Spec.ID, []string{sandboxtest.ProbePath, "echo", "alive", ""})
			if err != nil || string(res.Stdout) != "alive" {
				t.Errorf("exec: %s, %v", res.Stdout, err)
			}
			ended := make(chan sandbox.Exit, 1)
			go func() {
				exit, err := rt.Wait(t.Context(), task.Spec.ID)
				if err != nil {
					t.Errorf("wait: %v", err)
				}
				ended <- exit
			}()
			// The end of an adopted sandbox is seen, and its last words are there.
			if err := syscall.Kill(list[0].PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if exit := <-ended; exit.OOM {
				t.Error("a killed sandbox is said to be out of memory")
			}
			assertGone(t, rt, task.Spec.ID, base)
		})
	}
}

// TestWorkerKilledDuringStart kills the Worker while its runsc runs, which goes on by itself; the next Worker finds the
// record of a start that was cut off, and removes whatever has come of it meanwhile.
func TestWorkerKilledDuringStart(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"before runsc", "after runsc"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			fifo := filepath.Join(dir, "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf("#!/bin/sh\necho now > %s\nexec %s \"$@\"\n", fifo, runscPath(t))
			if moment == "after runsc" {
				script = fmt.Sprintf("#!/bin/sh\n%s \"$@\"\ncode=$?\necho now > %s\nexit $code\n", runscPath(t), fifo)
			}
			wrapper := filepath.Join(dir, "runsc")
			if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			task, _, base := newTask(t, wrapper)
			w := startWorker(t, task)
			w.expect(t, "starting")
			f, err := os.OpenFile(fifo, os.O_RDWR, 0) // the script's write returns as soon as it is open
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Read(make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
			if err := w.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = w.Wait()
			rt, err := gvisor.New(task.Config)
			if err != nil {
				t.Fatal(err)
			}
			list, err := rt.List(t.Context())
			if err != nil || len(list) != 1 || list[0].ID != task.Spec.ID {
				t.Fatalf("list: %+v, %v", list, err)
			}
			assertGone(t, rt, task.Spec.ID, base)
			if list, err := rt.List(t.Context()); err != nil || len(list) != 0 {
				t.Errorf("list after removal: %+v, %v", list, err)
			}
		})
	}
}

// TestCgroupLimits reads the bounds where the kernel keeps them.
func TestCgroupLimits(t *testing.T) {
	t.Parallel()
	task, l, base := newTask(t, runscPath(t))
	rt, err := gvisor.New(task.Config)
	if err != nil {
		t.Fatal(err)
	}
	if c := rt.Capabilities(); !c.CPU || !c.Memory {
		t.Skip(c.Reason)
	}
	if err := rt.Start(t.Context(), task.Spec); err != nil {
		t.Fatal(err)
	}
	greet(t, l)
	read := func(files ...string) string {
		t.Helper()
		for _, file := range files {
			found, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", file))
			for _, path := range found {
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				return strings.TrimSpace(string(b))
			}
		}
		t.Fatalf("none of %v exists", files)
		return ""
	}
	group := "helmr-*-" + task.Spec.ID
	if got := read("memory/"+group+"/memory.limit_in_bytes", group+"/memory.max"); got != fmt.Sprint(128<<20) {
		t.Errorf("memory bound: %s", got)
	}
	if got := read("cpu/"+group+"/cpu.cfs_quota_us", group+"/cpu.max"); got != "50000" && got != "50000 100000" {
		t.Errorf("CPU bound: %s", got)
	}
	if got := read("pids/"+group+"/pids.max", group+"/pids.max"); got != "16384" {
		t.Errorf("bound of processes: %s", got)
	}
	if rt.Capabilities().DiskSpeed {
		if got := read("blkio/"+group+"/blkio.throttle.write_bps_device", group+"/io.max"); !strings.Contains(got, fmt.Sprint(512<<20)) {
			t.Errorf("bound of the disk's speed: %s", got)
		}
		if got := read("blkio/"+group+"/blkio.throttle.read_iops_device", group+"/io.max"); !strings.Contains(got, "50000") {
			t.Errorf("bound of the disk's operations: %s", got)
		}
	}
	assertGone(t, rt, task.Spec.ID, base)
}

// TestDiskSpeedBoundHolds reads a file that the host has not in memory, and has to take its time for it.
func TestDiskSpeedBoundHolds(t *testing.T) {
	t.Parallel()
	task, l, base := newTask(t, runscPath(t))
	const size, speed = 48, 16 // MiB, MiB/s
	task.Config.DiskSpeed.MiB = speed
	task.Spec.RootFS = sandboxtest.BuildRootFS(t, func(tree string) error {
		content := make([]byte, size<<20)
		_, _ = rand.Read(content) // never errs
		return errors.Join(os.Mkdir(filepath.Join(tree, "big"), 0o755), os.WriteFile(filepath.Join(tree, "big/file"), content, 0o644))
	})
	rt, err := gvisor.New(task.Config)
	if err != nil {
		t.Fatal(err)
	}
	if c := rt.Capabilities(); !c.DiskSpeed {
		t.Skip(c.Reason)
	}
	image, err := os.Open(task.Spec.RootFS)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := errors.Join(image.Sync(), unix.Fadvise(int(image.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
	if err := rt.Start(t.Context(), task.Spec); err != nil {
		t.Fatal(err)
	}
	greet(t, l)
	began := time.Now()
	if out, err := rt.Exec(t.Context(), task.Spec.ID, []string{sandboxtest.ProbePath, "describe", "/big"}); err != nil || out.Code != 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	if took := time.Since(began); took < size/speed*time.Second*2/3 { // a burst at the beginning is free
		t.Errorf("it read %d MiB in %s, with %d MiB a second", size, took, speed)
	}
	assertGone(t, rt, task.Spec.ID, base)
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	for _, p := range gvisor.Preflight(t.Context(), gvisor.Config{RunscPath: runscPath(t)}) {
		if p.Fatal {
			t.Errorf("%s (%s)", p.What, p.Fix)
		}
	}
	missing := filepath.Join(t.TempDir(), "runsc")
	found := gvisor.Preflight(t.Context(), gvisor.Config{RunscPath: missing})
	if len(found) == 0 || !found[0].Fatal || !strings.Contains(found[0].What, missing) || found[0].Fix != "make setup" {
		t.Errorf("without runsc: %+v", found)
	}
	found = gvisor.Preflight(t.Context(), gvisor.Config{RunscPath: "/bin/false"})
	if len(found) == 0 || !found[0].Fatal {
		t.Errorf("with something else as runsc: %+v", found)
	}
}

// contextOfStdin ends when the standard input does.
func contextOfStdin() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, cancel
}
