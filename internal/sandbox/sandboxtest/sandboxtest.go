// Package sandboxtest holds the conformance suite that every sandbox.Runtime passes. It starts real sandboxes: it needs
// root, the go command and mkfs.erofs. It is not a test double; there is none.
package sandboxtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/sandbox"
)

// ProbePath is where the test's root filesystem has the probe program.
const ProbePath = "/bin/probe"

// probePackage is built into the root filesystem.
const probePackage = "helmr.dev/helmr/internal/sandbox/sandboxtest/probe"

// patience bounds waits that end long before on any machine; it only turns a hang into a failure.
const patience = 2 * time.Minute

// Factory opens a runtime with its state in root; twice with one root, the second adopts the first one's sandboxes.
type Factory func(t testing.TB, root string) sandbox.Runtime

// Run runs the suite.
func Run(t *testing.T, open Factory) {
	if os.Geteuid() != 0 {
		t.Fatal("sandboxes need root: run the tests as root")
	}
	rootfs := BuildRootFS(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(setup(t, open, rootfs))
		})
	}
}

// BuildRootFS makes the EROFS file that holds the probe and a few files to change, and returns its path. more adds to the
// tree.
func BuildRootFS(t testing.TB, more ...func(tree string) error) string {
	t.Helper()
	tree := t.TempDir()
	for _, dir := range []string{"bin", "etc/image-folder/deep", "tmp", "run", "dev", "proc", "sys", "root"} {
		must(t, os.MkdirAll(filepath.Join(tree, dir), 0o755))
	}
	must(t, os.Chmod(filepath.Join(tree, "tmp"), 0o1777|os.ModeSticky))
	for _, name := range []string{"deleted", "changed", "mode", "moved", "folder/deep/file"} {
		must(t, os.WriteFile(filepath.Join(tree, "etc/image-"+name), []byte("image"), 0o644))
	}
	for _, add := range more {
		must(t, add(tree))
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(tree, ProbePath), probePackage)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output(t, build)
	image := filepath.Join(t.TempDir(), "rootfs.erofs")
	mkfs := exec.Command("mkfs.erofs", "-E", "noinline_data", image, tree)
	if mkfs.Err != nil {
		t.Fatalf("mkfs.erofs is missing: run make setup (%v)", mkfs.Err)
	}
	output(t, mkfs)
	return image
}

func output(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// harness is one test's runtime, Computer and its side of the socket.
type harness struct {
	*testing.T
	ctx    context.Context
	open   Factory
	root   string // of the runtime's state
	rt     sandbox.Runtime
	rootfs string
	base   string // for everything else
	id     string
	socket *socket
}

func setup(t *testing.T, open Factory, rootfs string) *harness {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	h := &harness{T: t, ctx: ctx, open: open, rootfs: rootfs, base: t.TempDir(), id: id.New()}
	h.root = filepath.Join(h.base, "runtime")
	h.rt = open(t, h.root)
	h.socket = newSocket(t, filepath.Join(h.base, "sock"))
	t.Cleanup(func() {
		if err := h.rt.Remove(context.WithoutCancel(ctx), h.id); err != nil {
			t.Errorf("remove at the end: %v", err)
		}
		h.assertNoTraces()
	})
	return h
}

// spec describes a small Computer whose PID 1 dials the test's socket. n tells the folders of one Computer apart.
func (h *harness) spec(n int) sandbox.Spec {
	return sandbox.Spec{
		ID: h.id, RootFS: h.rootfs, Args: []string{ProbePath, "init", "/run/helmr/worker.sock"},
		Env: []string{"PATH=/bin", "GREETING=hello world"}, Cwd: "/root",
		Mounts:    []sandbox.Mount{{Source: h.socket.dir, Destination: "/run/helmr"}},
		CPUMillis: 1000, MemoryMiB: 256, DiskMiB: 64, Dir: h.dir(fmt.Sprintf("computer-%d", n)),
	}
}

func (h *harness) dir(name string) string { return filepath.Join(h.base, name) }

// start starts a sandbox and waits until PID 1 has said hello.
func (h *harness) start(spec sandbox.Spec) Hello {
	h.Helper()
	if err := h.rt.Start(h.ctx, spec); err != nil {
		h.Fatalf("start: %v", err)
	}
	return h.hello()
}

func (h *harness) hello() Hello {
	h.Helper()
	hello, err := h.socket.accept()
	if err != nil {
		h.Fatalf("PID 1 did not say hello: %v", err)
	}
	return hello
}

// probe runs the probe in the sandbox and returns what it printed.
func (h *harness) probe(args ...string) string {
	h.Helper()
	res, err := h.rt.Exec(h.ctx, h.id, append([]string{ProbePath}, args...))
	if err != nil || res.Code != 0 {
		h.Fatalf("probe %v: %v, exit code %d: %s", args, err, res.Code, res.Stderr)
	}
	return strings.TrimSuffix(string(res.Stdout), "\n")
}

func (h *harness) remove() {
	h.Helper()
	if err := h.rt.Remove(h.ctx, h.id); err != nil {
		h.Fatalf("remove: %v", err)
	}
}

func (h *harness) running(rt sandbox.Runtime) bool {
	h.Helper()
	list, err := rt.List(h.ctx)
	if err != nil {
		h.Fatalf("list: %v", err)
	}
	return slices.ContainsFunc(list, func(s sandbox.Status) bool { return s.ID == h.id && s.Running })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](h *harness, what string, got, want T) {
	h.Helper()
	if got != want {
		h.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// Hello is what PID 1 says on each connection; the fields are the probe's.
type Hello struct {
	Token string
	Count int
	Args  []string
	Env   []string
	Cwd   string
	PID   int
}

// socket is the host's end of what PID 1 dials.
type socket struct {
	dir      string
	listener net.Listener
	conns    []net.Conn
}

func newSocket(t testing.TB, dir string) *socket {
	s := &socket{dir: dir}
	must(t, os.MkdirAll(dir, 0o755))
	must(t, s.listen())
	t.Cleanup(s.close)
	return s
}

func (s *socket) listen() (err error) {
	// A path as long as those of tests does not fit into a socket address; one through an open folder does.
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	s.listener, err = net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/worker.sock", dir.Fd()))
	if err != nil {
		return err
	}
	s.listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return os.Chmod(filepath.Join(s.dir, "worker.sock"), 0o666)
}

// accept takes the next connection of PID 1 and keeps it open.
func (s *socket) accept() (Hello, error) { return s.acceptWithin(patience) }

func (s *socket) acceptWithin(d time.Duration) (Hello, error) {
	if err := s.listener.(*net.UnixListener).SetDeadline(time.Now().Add(d)); err != nil {
		return Hello{}, err
	}
	conn, err := s.listener.Accept()
	if err != nil {
		return Hello{}, err
	}
	s.conns = append(s.conns, conn)
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return Hello{}, err
	}
	var hello Hello
	return hello, json.Unmarshal(line, &hello)
}

// say sends PID 1 a line on its latest connection.
func (s *socket) say(line string) error {
	_, err := io.WriteString(s.conns[len(s.conns)-1], line+"\n")
	return err
}

// close hangs up and removes the socket, as a Worker that stops does.
func (s *socket) close() {
	s.listener.Close()
	os.Remove(filepath.Join(s.dir, "worker.sock"))
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// assertNoTraces fails the test when anything on the host still names the sandbox.
func (h *harness) assertNoTraces() {
	h.Helper()
	for _, trace := range Traces(h, h.id, h.base) {
		h.Errorf("left behind: %s", trace)
	}
}

// Traces finds what is left on the host of a sandbox that was removed: processes whose arguments hold its id, mounts
// below its folders, cgroups and files with its id in their names.
func Traces(t testing.TB, id, base string) []string {
	t.Helper()
	var found []string
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, path := range cmdlines {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), id) {
			found = append(found, "process "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, id) || strings.Contains(line, base) {
			found = append(found, "mount "+line)
		}
	}
	walk := func(root string) {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil // another test's
			}
			if err == nil && strings.Contains(filepath.Base(path), id) {
				found = append(found, path)
			}
			return err
		})
		must(t, err)
	}
	walk("/sys/fs/cgroup")
	walk(base)
	for _, dir := range []string{"/run", "/tmp"} {
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			if strings.Contains(e.Name(), id) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	return found
}
