package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/internal/db"
)

// helmr is a running helmr with a data folder and a database of its own: dev in one process, or server and Worker.
type helmr struct {
	*client.Client
	b        *bench
	what     string // for messages
	kind     db.Kind
	dir      string // data folder
	worker   string // folder of the Worker
	database string
	url, key string
	serverIs *process
	workerIs *process // the same as serverIs for dev
	env      []string
	internet *internet // that it lives in; nil for this machine's own network
}

// settings lift the limits that would bound a figure instead of the machine.
var settings = []string{
	"HELMR_ENVIRONMENT_ADMISSION_RATE_PER_SECOND=1000000", "HELMR_ENVIRONMENT_ADMISSION_BURST=1000000",
	"HELMR_ENVIRONMENT_MAX_OUTSTANDING_ADMISSIONS=1000000", "HELMR_ENVIRONMENT_MAX_RESIDENT_COMPUTERS=1000",
	"HELMR_ENVIRONMENT_MAX_CPU_MILLIS=1000000",
}

// newHelmr makes folder and database.
func newHelmr(ctx context.Context, b *bench, kind db.Kind, what string) (*helmr, error) {
	dir, err := os.MkdirTemp(b.work, what+"-")
	if err != nil {
		return nil, err
	}
	h := &helmr{b: b, what: fmt.Sprintf("%s on %s", what, kind), kind: kind, dir: dir, worker: filepath.Join(dir, "worker")}
	h.env = append(withoutHelmr(os.Environ()), append(settings, "HELMR_CONFIG_DIR="+filepath.Join(dir, "config"))...)
	if h.database, err = b.newDatabase(ctx, kind, dir); err != nil {
		return nil, err
	}
	return h, nil
}

// withoutHelmr drops the settings of whoever runs this, but not where the images are.
func withoutHelmr(env []string) []string {
	var out []string
	for _, v := range env {
		if !strings.HasPrefix(v, "HELMR_") || strings.HasPrefix(v, "HELMR_CACHE_DIR=") {
			out = append(out, v)
		}
	}
	return out
}

func (b *bench) binary(name string) string { return filepath.Join(b.root, "build", "bin", name) }

// startDev starts a helmr dev.
func startDev(ctx context.Context, b *bench, kind db.Kind) (_ *helmr, err error) {
	h, err := newHelmr(ctx, b, kind, "dev")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	return h, h.startDev(ctx)
}

func (h *helmr) startDev(ctx context.Context) (err error) {
	if h.serverIs, err = h.start("dev", h.env, "dev", "--data-dir", h.dir, "--addr", "127.0.0.1:0", "--database", h.database); err != nil {
		return err
	}
	h.workerIs = h.serverIs
	err = until(ctx, h.serverIs, func() bool {
		var info struct {
			URL string `json:"url"`
			PID int    `json:"pid"`
			Key string `json:"api_key"`
		}
		raw, err := os.ReadFile(filepath.Join(h.dir, "dev.json"))
		h.url, h.key = "", ""
		if err == nil && json.Unmarshal(raw, &info) == nil && info.PID == h.serverIs.pid() {
			h.url, h.key = info.URL, info.Key
		}
		return h.url != ""
	})
	if err != nil {
		return err
	}
	h.Client = client.New(h.url, h.key, h.through()...)
	return nil
}

// startSplit starts a server and a Worker.
func startSplit(ctx context.Context, b *bench, kind db.Kind) (_ *helmr, err error) {
	h, err := newHelmr(ctx, b, kind, "split")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	h.url = "http://" + addr
	h.env = append(h.env, "HELMR_DATABASE_URL="+h.database, "HELMR_BLOB_URL=file:"+filepath.Join(h.dir, "blobs"), "HELMR_ADDR="+addr,
		"HELMR_SERVER_URL="+h.url, "HELMR_WORKER_NAME=bench", "HELMR_WORKER_WORK_DIR="+h.worker, "HELMR_WORKER_CAPACITY_VCPUS=64",
		"HELMR_WORKER_DISK_MIB=1000000", "HELMR_WORKER_ENROLLMENT_TOKEN_FILE="+filepath.Join(h.dir, "token"))
	for _, name := range []string{"AUTH", "ENCRYPTION", "WORKER_HOST_CREDENTIAL_SIGNING", "COMPUTER_FENCING", "CHECKPOINT_ENCRYPTION"} {
		raw := make([]byte, 32)
		_, _ = rand.Read(raw)
		h.env = append(h.env, "HELMR_"+name+"_KEY="+base64.StdEncoding.EncodeToString(raw))
	}
	if err := os.MkdirAll(filepath.Join(h.dir, "blobs"), 0o755); err != nil {
		return nil, err
	}
	if _, err := h.command(ctx, "migrate"); err != nil {
		return nil, err
	}
	if h.key, err = h.command(ctx, "server", "bootstrap"); err != nil {
		return nil, err
	}
	token, err := h.command(ctx, "server", "worker-token")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(h.dir, "token"), []byte(token), 0o600); err != nil {
		return nil, err
	}
	h.env = append(h.env, "HELMR_API_URL="+h.url, "HELMR_API_KEY="+h.key)
	h.Client = client.New(h.url, h.key)
	if err := h.startServer(ctx); err != nil {
		return nil, err
	}
	h.workerIs, err = h.start("worker", h.env, "worker")
	return h, err
}

// startServer starts the server of a split helmr and waits until it is ready.
func (h *helmr) startServer(ctx context.Context) (err error) {
	if h.serverIs, err = h.start("server", h.env, "server"); err != nil {
		return err
	}
	return until(ctx, h.serverIs, func() bool {
		res, err := http.Get(h.url + "/readyz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// program gives the helmr binary with arguments, in the network that this helmr lives in.
func (h *helmr) program(args ...string) (string, []string) {
	if h.internet == nil {
		return h.b.binary("helmr"), args
	}
	return "nsenter", append([]string{"--net=/run/netns/" + h.internet.host(), h.b.binary("helmr")}, args...)
}

// through has a client connect from the network that this helmr lives in.
func (h *helmr) through() []client.Option {
	if h.internet == nil {
		return nil
	}
	return []client.Option{client.WithHTTPClient(h.internet.client())}
}

// command runs a command of the CLI and gives what it prints.
func (h *helmr) command(ctx context.Context, args ...string) (string, error) {
	name, args := h.program(args...)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = h.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helmr %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (h *helmr) deploy(ctx context.Context) error {
	_, err := h.command(ctx, "deploy", filepath.Join(h.b.root, "bench", "project"))
	return err
}

// halt ends the processes. An orderly stop of dev saves and removes its sandboxes; those of a Worker outlive it.
func (h *helmr) halt() error {
	errs := []error{}
	for _, p := range []*process{h.workerIs, h.serverIs} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	h.workerIs, h.serverIs = nil, nil
	return errors.Join(errs...)
}

// close ends everything and removes every trace.
func (h *helmr) close() error {
	err := h.halt()
	name, args := h.program("dev", "--data-dir", h.dir, "--clear")
	if out, e := exec.Command(name, args...).CombinedOutput(); e != nil {
		err = errors.Join(err, fmt.Errorf("remove sandboxes: %w\n%s", e, out))
	}
	if h.internet != nil {
		err = errors.Join(err, h.internet.close())
	}
	return errors.Join(err, h.b.dropDatabase(h.kind, h.database), os.RemoveAll(h.dir))
}

// lastWords gives the end of the logs, for an error.
func (h *helmr) lastWords() error {
	var b strings.Builder
	for _, name := range []string{"helmr.log", "dev.out", "server.out", "worker.out"} {
		raw, err := os.ReadFile(filepath.Join(h.dir, name))
		if err == nil && len(raw) > 0 {
			fmt.Fprintf(&b, "\n%s: ...%s", name, raw[max(0, len(raw)-2000):])
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return errors.New(b.String())
}

// process is a program that this run started.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed at its end; err is set then
	err   error
	out   string
}

func (h *helmr) start(name string, env []string, args ...string) (*process, error) {
	program, args := h.program(args...)
	return startProcess(filepath.Join(h.dir, name+".out"), env, program, args...)
}

func startProcess(out string, env []string, program string, args ...string) (*process, error) {
	f, err := os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	p := &process{cmd: exec.Command(program, args...), ended: make(chan struct{}), out: out}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches this program first
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends it in order, and by force when it takes longer than a minute.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s ended with %w", filepath.Base(p.out), p.err)
		}
		return nil
	case <-time.After(time.Minute):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not stop", filepath.Base(p.out))
	}
}

// until waits for a process to be ready.
func until(ctx context.Context, p *process, ready func() bool) error {
	deadline := time.Now().Add(time.Minute)
	for !ready() {
		select {
		case <-p.ended:
			raw, _ := os.ReadFile(p.out)
			return fmt.Errorf("%s ended: %v\n%s", filepath.Base(p.out), p.err, raw)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after a minute", filepath.Base(p.out))
		}
	}
	return nil
}
