package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/guest/client"
)

// gvisor is a sandbox whose PID 1 is the real helmr-guest.
type gvisor struct {
	*harness
	dir, runsc string
}

// setupGVisor runs the guest in gVisor. HELMR_TEST_RUNSC names runsc; without it the test is skipped. HELMR_TEST_ROOTFS
// names a root filesystem folder to use, else one of busybox is made.
func setupGVisor(t *testing.T) *gvisor {
	t.Helper()
	runsc := os.Getenv("HELMR_TEST_RUNSC")
	if runsc == "" || os.Getuid() != 0 {
		t.Skip("set HELMR_TEST_RUNSC to the path of runsc and be root, to test in gVisor")
	}
	dir, err := os.MkdirTemp("", "gv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	g := &gvisor{&harness{t: t, path: filepath.Join(dir, "sock", "worker.sock"), ctx: ctx}, dir, runsc}
	rootfs := os.Getenv("HELMR_TEST_ROOTFS")
	if rootfs == "" {
		rootfs = g.busybox()
	}
	g.ok(os.MkdirAll(filepath.Join(dir, "bundle"), 0o755))
	g.writeSpec(rootfs)
	g.listen()
	t.Cleanup(func() { g.c.Close() })
	g.run("run", "--detach", "--bundle", filepath.Join(dir, "bundle"), "sandbox")
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("%s", log)
		}
		_ = g.command("delete", "--force", "sandbox").Run()
	})
	g.connected()
	return g
}

func (g *gvisor) command(args ...string) *exec.Cmd {
	flags := []string{"--root", filepath.Join(g.dir, "state"), "--platform=systrap", "--network=none", "--host-uds=open", "--ignore-cgroups"}
	return exec.CommandContext(g.ctx, g.runsc, append(flags, args...)...)
}

// run runs runsc with its output in a file: a pipe would be held open by the sandbox.
func (g *gvisor) run(args ...string) {
	g.t.Helper()
	log, err := os.OpenFile(filepath.Join(g.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	g.ok(err)
	defer log.Close()
	cmd := g.command(args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		g.t.Fatalf("runsc %s: %v", strings.Join(args, " "), err)
	}
}

func (g *gvisor) busybox() string {
	g.t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		g.t.Skip("needs busybox-static")
	}
	rootfs := filepath.Join(g.dir, "rootfs")
	for _, folder := range []string{"bin", "proc", "sys", "dev", "tmp", "run/helmr", "opt/helmr/runtime"} {
		g.ok(os.MkdirAll(filepath.Join(rootfs, folder), 0o755))
	}
	program, err := os.ReadFile(path)
	g.ok(err)
	g.ok(os.WriteFile(filepath.Join(rootfs, "bin/busybox"), program, 0o755))
	for _, name := range []string{"sh", "cat", "sleep", "setsid", "mkfifo", "ls", "grep", "true", "head"} {
		g.ok(os.Symlink("busybox", filepath.Join(rootfs, "bin", name)))
	}
	return rootfs
}

func (g *gvisor) writeSpec(rootfs string) {
	g.t.Helper()
	bind := func(source, destination string) map[string]any {
		return map[string]any{"type": "bind", "source": source, "destination": destination, "options": []string{"ro", "rbind"}}
	}
	capabilities := []string{
		"CAP_SYS_ADMIN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_SYS_CHROOT", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SYS_PTRACE",
	}
	raw, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2", "hostname": "helmr", "root": map[string]any{"path": rootfs},
		"process": map[string]any{
			"args": []string{"/opt/helmr/runtime/helmr-guest"}, "cwd": "/", "env": []string{"PATH=/usr/bin:/bin"}, "user": map[string]any{"uid": 0},
			"capabilities": map[string]any{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
		"mounts": []any{
			map[string]any{"type": "proc", "source": "proc", "destination": "/proc"},
			map[string]any{"type": "tmpfs", "source": "tmpfs", "destination": "/tmp"},
			bind(filepath.Dir(g.path), "/run/helmr"), bind(filepath.Dir(guestBinary), "/opt/helmr/runtime"),
		},
		"linux": map[string]any{"namespaces": []any{
			map[string]any{"type": "pid"}, map[string]any{"type": "mount"}, map[string]any{"type": "network"},
			map[string]any{"type": "ipc"}, map[string]any{"type": "uts"},
		}},
	})
	g.ok(err)
	g.ok(os.WriteFile(filepath.Join(g.dir, "bundle/config.json"), raw, 0o600))
}

// program starts a program as epoch 1 of a Session.
func (g *gvisor) program(session string, argv ...string) {
	g.t.Helper()
	g.ok(g.c.StartProcess(g.ctx, client.StartProcess{
		SessionID: session, Epoch: 1, Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/", Start: []byte(`{"type":"start"}`),
	}))
}

const shellEcho = `n=1; printf '{"seq":1,"type":"init_done"}\n' >&3
while read -r line <&3; do n=$((n+1)); printf '{"seq":%d,"type":"heard"}\n' $n >&3; done`

func TestInGVisor(t *testing.T) {
	g := setupGVisor(t)
	g.scopesInGVisor()
	g.program("s", "/bin/sh", "-c", shellEcho)
	g.ops("s", 2)
	if hello := g.reconnect(); len(hello.Processes) != 2 {
		t.Fatalf("%+v", hello)
	}
	g.ops("s", 2)
	g.checkpointInGVisor()
}

// scopesInGVisor: a scope sees only itself, and killing it reaches what left the process group and the parent.
func (g *gvisor) scopesInGVisor() {
	g.ok(g.c.ExecCommand(g.ctx, client.ExecCommand{
		ID: "c", Argv: []string{"sh", "-c", "ls /proc | grep -c '^[0-9]'; echo $$"}, Env: []string{"PATH=/bin"},
	}))
	if exit := g.commandExit("c"); exit.ExitCode != 0 {
		g.t.Fatalf("%+v", exit)
	}
	seen := await(g.harness, "output", func(r *recorder) (string, bool) { return r.output["c/1"], true })
	if lines := strings.Fields(seen); len(lines) != 2 || len(lines[0]) != 1 {
		g.t.Fatalf("a scope sees %q", seen)
	}
	g.program("tree", "/bin/sh", "-c", `mkfifo /tmp/alive; exec 9<>/tmp/alive
		setsid sleep 1000 & (setsid sh -c 'sleep 1000 & exec sleep 1000' &) ; (trap '' TERM HUP INT; sleep 1000) &
		printf '{"seq":1,"type":"init_done"}\n' >&3; sleep 1000`)
	g.ops("tree", 1)
	// The reader holds the fifo open and sees its end when the last of the tree is gone.
	g.ok(g.c.ExecCommand(g.ctx, client.ExecCommand{
		ID: "reader", Argv: []string{"sh", "-c", "exec </tmp/alive; echo open; cat; echo end"}, Env: []string{"PATH=/bin"},
	}))
	await(g.harness, "an open fifo", func(r *recorder) (int, bool) { return 0, r.output["reader/1"] == "open\n" })
	g.ok(g.c.Kill(g.ctx, "tree", 1))
	if exited := g.exit("tree"); exited.Cause != "killed" {
		g.t.Fatalf("%+v", exited)
	}
	g.commandExit("reader")
	g.ok(g.c.AckCommand(client.AckCommand{ID: "c", Started: true, Exited: true, StdoutThrough: 9}))
	g.ok(g.c.AckCommand(client.AckCommand{ID: "reader", Started: true, Exited: true, StdoutThrough: 9}))
}

// checkpointInGVisor: processes and the guest's memory survive a checkpoint; the guest dials again after the restore.
func (g *gvisor) checkpointInGVisor() {
	boot := g.connected().BootID
	g.ok(g.c.Release(g.ctx))
	image := filepath.Join(g.dir, "image")
	g.ok(os.MkdirAll(image, 0o700))
	g.run("checkpoint", "--image-path", image, "sandbox")
	_ = g.command("delete", "--force", "sandbox").Run()
	g.listen()
	began := time.Now()
	g.run("restore", "--detach", "--image-path", image, "--bundle", filepath.Join(g.dir, "bundle"), "sandbox")
	restored := time.Now()
	hello := g.connected()
	g.t.Logf("restore %v, then %v to hello", restored.Sub(began), time.Since(restored))
	if hello.BootID != boot || len(hello.Processes) != 2 {
		g.t.Fatalf("%+v", hello)
	}
	g.ops("s", 2)
	g.control("s", `{"type":"message","turnId":"t","messageId":"m"}`)
	g.ops("s", 3)
}

// TestGVisorRoundTrip measures a line in at the client to its operation back, through a real process.
func TestGVisorRoundTrip(t *testing.T) {
	if os.Getenv("HELMR_TEST_ROOTFS") == "" {
		t.Skip("needs HELMR_TEST_ROOTFS with /usr/bin/node and /opt/echo.mjs")
	}
	g := setupGVisor(t)
	began := time.Now()
	g.program("s", "node", "/opt/echo.mjs")
	g.ops("s", 1)
	t.Logf("start to init_done: %v", time.Since(began))
	for _, acked := range []bool{false, true} {
		var took []time.Duration
		for i := range 300 {
			n := len(g.ops("s", 1))
			began := time.Now()
			g.control("s", fmt.Sprintf(`{"type":"message","turnId":"t","messageId":"m%v%d"}`, acked, i))
			g.ops("s", n+1)
			took = append(took, time.Since(began))
			if acked {
				g.ack("s", int64(n+1))
			}
		}
		slices.Sort(took)
		t.Logf("round trip, acks %v: p50 %v p90 %v p99 %v", acked, took[150], took[270], took[297])
	}
	var pings []time.Duration
	for range 300 {
		began := time.Now()
		g.ok(g.c.Ping(g.ctx))
		pings = append(pings, time.Since(began))
	}
	slices.Sort(pings)
	t.Logf("ping: p50 %v p99 %v", pings[150], pings[297])
	for i := range 20 {
		id := fmt.Sprintf("c%d", i)
		began := time.Now()
		g.ok(g.c.ExecCommand(g.ctx, client.ExecCommand{ID: id, Argv: []string{"/bin/true"}}))
		g.commandExit(id)
		if i > 15 {
			t.Logf("command /bin/true: %v", time.Since(began))
		}
	}
}
