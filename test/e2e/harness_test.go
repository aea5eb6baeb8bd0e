package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

// patience bounds every wait for something that must happen; it is no measure of speed.
const patience = 120 * time.Second

// binary gives a program of build/bin.
func binary(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("HELMR_TEST_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", "build", "bin")
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run `make setup`", path)
	}
	return path
}

// helmr is one `helmr dev` on a data folder of its own.
type helmr struct {
	t        testing.TB
	dir      string // data folder
	config   string // HELMR_CONFIG_DIR of its commands
	database string
	blobs    string // where objects are; "" for a folder in dir
	cmd      *exec.Cmd
	exited   chan error
	out      *bytes.Buffer
	info     devInfo
	netns    string   // path of the network namespace that it lives in; "" for the machine's own
	env      []string // further environment of helmr dev
	*client.Client
}

type devInfo struct {
	URL    string `json:"url"`
	PID    int    `json:"pid"`
	APIKey string `json:"api_key"`
}

// start runs helmr dev on a fresh database of one kind and removes everything when the test ends.
func start(t testing.TB, kind db.Kind) *helmr {
	t.Helper()
	h := prepare(t, kind)
	h.run()
	return h
}

// prepare is start without running it yet.
func prepare(t testing.TB, kind db.Kind) *helmr {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the end-to-end tests start sandboxes: run them as root")
	}
	// Not t.TempDir: socket paths below it are long, and a failed test's folder is worth a look.
	dir, err := os.MkdirTemp("", "helmr-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	h := &helmr{t: t, dir: dir, config: filepath.Join(dir, "config"), database: "sqlite:" + filepath.Join(dir, "helmr.db")}
	if kind == db.PostgreSQL {
		h.database = dbtest.URL(t, kind)
	}
	t.Cleanup(h.close)
	return h
}

// run starts the process and waits until it answers.
func (h *helmr) run() {
	h.t.Helper()
	_ = os.Remove(filepath.Join(h.dir, "dev.json"))
	h.out = &bytes.Buffer{}
	addr := "127.0.0.1:0"
	if h.info.URL != "" {
		addr = strings.TrimPrefix(h.info.URL, "http://") // clients of before go on
	}
	args := []string{"dev", "--data-dir", h.dir, "--addr", addr, "--database", h.database}
	if h.blobs != "" {
		args = append(args, "--blobs", h.blobs)
	}
	h.cmd = h.invoke(args...)
	h.cmd.Env = append(h.cmd.Env, h.env...)
	h.cmd.Stdout, h.cmd.Stderr = h.out, h.out
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.exited = make(chan error, 1)
	go func(cmd *exec.Cmd, exited chan error) { exited <- cmd.Wait() }(h.cmd, h.exited)
	h.until("helmr dev answers", func() bool {
		select {
		case err := <-h.exited:
			h.t.Fatalf("helmr dev ended: %v\n%s", err, h.out)
		default:
		}
		raw, err := os.ReadFile(filepath.Join(h.dir, "dev.json"))
		return err == nil && json.Unmarshal(raw, &h.info) == nil && h.info.PID == h.cmd.Process.Pid
	})
	h.Client = client.New(h.info.URL, h.info.APIKey, h.through()...)
}

// through has the client connect from the network namespace that helmr dev lives in.
func (h *helmr) through() []client.Option {
	if h.netns == "" {
		return nil
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		inNamespace(h.t, filepath.Base(h.netns), func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return nil
		})
		return conn, err
	}}
	h.t.Cleanup(tr.CloseIdleConnections)
	return []client.Option{client.WithHTTPClient(&http.Client{Transport: tr})}
}

// invoke is a run of the helmr binary, not started.
func (h *helmr) invoke(args ...string) *exec.Cmd {
	name := binary(h.t, "helmr")
	if h.netns != "" {
		args = append([]string{"--net=" + h.netns, name}, args...)
		name = "nsenter"
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "HELMR_CONFIG_DIR="+h.config)
	return cmd
}

// kill ends helmr dev with SIGKILL; its sandboxes live on.
func (h *helmr) kill() {
	_ = h.cmd.Process.Kill()
	<-h.exited
	h.cmd = nil
}

// stop ends helmr dev in order.
func (h *helmr) stop() {
	h.t.Helper()
	_ = h.cmd.Process.Signal(os.Interrupt)
	select {
	case err := <-h.exited:
		if err != nil {
			h.t.Errorf("helmr dev ended with %v\n%s", err, h.out)
		}
		h.cmd = nil
	case <-time.After(patience):
		_ = h.cmd.Process.Signal(syscall.SIGQUIT) // it ends and prints what each goroutine waits for
		<-h.exited
		h.cmd = nil
		h.t.Fatalf("helmr dev did not stop\n%s", h.out)
	}
}

// close stops what still runs and removes every trace, also after a failure.
func (h *helmr) close() {
	if h.cmd != nil {
		_ = h.cmd.Process.Signal(os.Interrupt)
		select {
		case <-h.exited:
		case <-time.After(patience):
			h.kill()
		}
	}
	further, _ := filepath.Glob(filepath.Join(h.dir, "*", "worker", "sandboxes")) // of more Workers
	dirs := []string{h.dir}
	for _, sandboxes := range further {
		dirs = append(dirs, filepath.Dir(filepath.Dir(sandboxes)))
	}
	for _, dir := range dirs {
		clean := h.invoke("dev", "--data-dir", dir, "--clear")
		if out, err := clean.CombinedOutput(); err != nil {
			h.t.Errorf("clear sandboxes of %s: %v\n%s", dir, err, out)
		}
	}
	if h.t.Failed() || os.Getenv("HELMR_E2E_KEEP") != "" {
		h.t.Logf("data and logs are kept in %s", h.dir)
		return
	}
	if err := os.RemoveAll(h.dir); err != nil {
		h.t.Error(err)
	}
}

// until waits for something without a signal of its own to wait for.
func (h *helmr) until(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s did not happen within %s", what, patience)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// helmrCommand runs a command of the CLI against this helmr.
func (h *helmr) command(args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	cmd := h.invoke(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		h.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// deploy deploys a project folder.
func (h *helmr) deploy(project string) {
	h.t.Helper()
	if _, stderr, code := h.command("deploy", project); code != 0 {
		h.t.Fatalf("deploy: exit %d\n%s", code, stderr)
	}
}

func input(text string) json.RawMessage {
	raw, _ := json.Marshal([]map[string]string{{"type": "text", "text": text}})
	return raw
}

func (h *helmr) create(agent, text string) api.SessionCreateReceipt {
	h.t.Helper()
	r, err := h.CreateSession(context.Background(), api.SessionCreateRequest{Agent: agent, Input: input(text)})
	if err != nil {
		h.t.Fatalf("create session: %v", err)
	}
	return r
}

func (h *helmr) enqueue(sessionID, text string) string {
	h.t.Helper()
	r, err := h.Enqueue(context.Background(), sessionID, api.EnqueueRequest{Input: input(text)})
	if err != nil {
		h.t.Fatalf("enqueue: %v", err)
	}
	return r.TurnID
}

// settled waits for the end of a Turn.
func (h *helmr) settled(sessionID, turnID string) api.Turn {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := h.WaitTurn(ctx, sessionID, turnID)
	if err != nil {
		h.t.Fatalf("wait for turn %s: %v\n%s", turnID, err, h.describe(sessionID))
	}
	return v
}

// completed waits for a Turn and decodes its result.
func (h *helmr) completed(sessionID, turnID string) result {
	h.t.Helper()
	v := h.settled(sessionID, turnID)
	if v.Status != "completed" {
		h.t.Fatalf("turn %s is %s: %+v\n%s", turnID, v.Status, v.Error, h.describe(sessionID))
	}
	var r result
	if err := json.Unmarshal(v.Result, &r); err != nil {
		h.t.Fatalf("result %s: %v", v.Result, err)
	}
	return r
}

// result is what the counter Agent returns.
type result struct {
	Turns    int `json:"turns"`
	Inits    int `json:"inits"`
	Recovery struct {
		Kind   string `json:"kind"`
		Reason string `json:"reason"`
	} `json:"recovery"`
	Note *string `json:"note"`
	Node int     `json:"node"`
}

// events gives all events of a Session and checks that their sequences have no gap.
func (h *helmr) events(sessionID string) []api.Event {
	h.t.Helper()
	var all []api.Event
	for after := int64(0); ; {
		page, err := h.ListEvents(context.Background(), sessionID, after, 1000)
		if err != nil {
			h.t.Fatalf("events: %v", err)
		}
		all = append(all, page.Records...)
		after = page.NextAfter
		if !page.HasMore {
			break
		}
	}
	for i, e := range all {
		if e.Sequence != int64(i+1) {
			h.t.Fatalf("event %d of session %s has sequence %d", i+1, sessionID, e.Sequence)
		}
	}
	return all
}

func (h *helmr) describe(sessionID string) string {
	var b strings.Builder
	page, err := h.ListEvents(context.Background(), sessionID, 0, 1000)
	if err != nil {
		return err.Error()
	}
	for _, e := range page.Records {
		fmt.Fprintf(&b, "%4d %s %s\n", e.Sequence, e.Kind, e.Data)
	}
	return b.String()
}

// resume releases every hold of a Session.
func (h *helmr) resume(sessionID string) {
	h.t.Helper()
	s, err := h.GetSession(context.Background(), sessionID)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, hold := range s.Holds {
		if _, err := h.ResumeSession(context.Background(), sessionID, api.ResumeRequest{HoldID: hold.ID}); err != nil {
			h.t.Fatalf("resume: %v", err)
		}
	}
}

// sandboxPID gives the host process of a Computer's sandbox, 0 if none lives.
func (h *helmr) sandboxPID(computerID string) int {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.HasPrefix(line, []byte("runsc-sandbox\x00")) && bytes.Contains(line, []byte(computerID)) && bytes.Contains(line, []byte(h.dir)) {
			var pid int
			_, _ = fmt.Sscan(e.Name(), &pid)
			return pid
		}
	}
	return 0
}

// traces lists what a helmr of this data folder left on the host.
func (h *helmr) traces() []string {
	var out []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte(h.dir)) {
			out = append(out, "process "+e.Name()+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, h.dir) {
			out = append(out, "mount "+line)
		}
	}
	left, _ := filepath.Glob(filepath.Join(h.dir, "worker", "computers", "*"))
	return append(out, left...)
}

// freePort finds a port that is free now.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
