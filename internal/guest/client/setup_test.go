package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/internal/guest/client"
	"helmr.dev/helmr/internal/guest/proto"
)

// guestBinary is the real cmd/helmr-guest, built once.
var guestBinary string

// fixtureVariable makes the test binary a Session process; see fixture_test.go.
const fixtureVariable = "HELMR_TEST_FIXTURE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(fixtureVariable); mode != "" {
		runFixture(mode)
		os.Exit(0)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "guest")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		guestBinary = filepath.Join(dir, "helmr-guest")
		build := exec.Command("go", "build", "-o", guestBinary, "../../../cmd/helmr-guest")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build helmr-guest: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// harness is a Client and a real guest, an ordinary process of this machine.
type harness struct {
	t    *testing.T
	path string
	c    *client.Client
	rec  *recorder
	ctx  context.Context
}

func setup(t *testing.T, flags ...string) *harness {
	t.Helper()
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("process scopes need root")
	}
	dir, err := os.MkdirTemp("", "g")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	h := &harness{t: t, path: filepath.Join(dir, "sock", "worker.sock"), ctx: ctx}
	h.listen()

	guest := exec.Command(guestBinary, append([]string{"-socket", h.path}, flags...)...)
	var log lockedBuffer
	guest.Stderr = &log
	if err := guest.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = guest.Process.Signal(os.Interrupt)
		if err := guest.Wait(); err != nil {
			t.Errorf("guest: %v\n%s", err, log.String())
		}
		h.c.Close()
		if t.Failed() {
			t.Logf("guest log:\n%s", log.String())
		}
	})
	h.connected()
	return h
}

// listen makes a new Client with a new recorder, as a restarted Worker program does.
func (h *harness) listen() {
	h.t.Helper()
	h.rec = newRecorder(h.t)
	c, err := client.Listen(h.path, h.rec, client.Options{Commands: h.rec})
	if err != nil {
		h.t.Fatal(err)
	}
	h.c = c
}

func (h *harness) connected() client.Hello {
	h.t.Helper()
	return await(h, "hello", func(r *recorder) (client.Hello, bool) {
		if len(r.hellos) == 0 {
			return client.Hello{}, false
		}
		return r.hellos[len(r.hellos)-1], true
	})
}

// reconnect ends the Client and begins a new one at the same path.
func (h *harness) reconnect() client.Hello {
	h.t.Helper()
	h.c.Close()
	h.listen()
	return h.connected()
}

func (h *harness) ok(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// start starts the fixture in a mode as epoch 1 of a Session.
func (h *harness) start(session, mode string) {
	h.t.Helper()
	exe, err := os.Executable()
	h.ok(err)
	h.ok(h.c.StartProcess(h.ctx, client.StartProcess{
		SessionID: session, Epoch: 1, Argv: []string{exe}, Env: []string{fixtureVariable + "=" + mode, "PATH=" + os.Getenv("PATH")},
		Cwd: "/", Start: []byte(`{"type":"start"}`),
	}))
}

// shell starts a shell script as epoch 1 of a Session.
func (h *harness) shell(session, script string) {
	h.t.Helper()
	h.ok(h.c.StartProcess(h.ctx, client.StartProcess{
		SessionID: session, Epoch: 1, Argv: []string{"bash", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")}, Cwd: "/",
		Start: []byte(`{"type":"start"}`),
	}))
}

// op is an operation as the fixture and the guest write it.
type op struct {
	Seq    int64
	Type   string
	TurnID string
	Text   string
	Code   *int
	Signal *string
	Stderr string
	Cause  string
	Detail string
}

// ops waits until n operations of a Session arrived at the present Client and gives them all.
func (h *harness) ops(session string, n int) []op {
	h.t.Helper()
	return await(h, fmt.Sprintf("%d operations of %s", n, session), func(r *recorder) ([]op, bool) {
		return append([]op(nil), r.ops[session]...), len(r.ops[session]) >= n
	})
}

// exit waits for the exited operation.
func (h *harness) exit(session string) op {
	h.t.Helper()
	return await(h, "the exit of "+session, func(r *recorder) (op, bool) {
		all := r.ops[session]
		if len(all) == 0 || all[len(all)-1].Type != "exited" {
			return op{}, false
		}
		return all[len(all)-1], true
	})
}

func (h *harness) ack(session string, seqs ...int64) {
	h.t.Helper()
	var acks []client.Ack
	for _, n := range seqs {
		acks = append(acks, client.Ack{SessionID: session, Epoch: 1, Seq: n, Line: fmt.Appendf(nil, `{"type":"ack","seq":%d}`, n)})
	}
	h.ok(h.c.Ack(acks))
}

func (h *harness) control(session string, line string) {
	h.t.Helper()
	h.ok(h.c.Control(h.ctx, session, 1, []byte(line)))
}

// await waits until look finds what it looks for; it is asked again after everything that the recorder gets.
func await[T any](h *harness, what string, look func(*recorder) (T, bool)) T {
	h.t.Helper()
	h.rec.mu.Lock()
	defer h.rec.mu.Unlock()
	stop := context.AfterFunc(h.ctx, func() {
		h.rec.mu.Lock()
		defer h.rec.mu.Unlock()
		h.rec.changed.Broadcast()
	})
	defer stop()
	for {
		v, ok := look(h.rec)
		if ok {
			return v
		}
		if h.ctx.Err() != nil {
			h.t.Fatalf("no %s in time; got %+v", what, h.rec.ops)
		}
		h.rec.changed.Wait()
	}
}

// recorder is a Handler that keeps everything. With auto it acknowledges operations at once.
type recorder struct {
	t       *testing.T
	mu      sync.Mutex
	changed *sync.Cond
	hellos  []client.Hello
	ended   []error
	ops     map[string][]op
	logs    map[string]string
	dropped int64
	started map[string]int
	output  map[string]string
	chunks  []chunk
	exits   map[string][]client.CommandExit
}

type chunk struct {
	command string
	stream  proto.Stream
	seq     int64
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{
		t: t, ops: map[string][]op{}, logs: map[string]string{}, started: map[string]int{}, output: map[string]string{},
		exits: map[string][]client.CommandExit{},
	}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *recorder) record(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	r.changed.Broadcast()
}

func (r *recorder) Connected(h client.Hello) { r.record(func() { r.hellos = append(r.hellos, h) }) }
func (r *recorder) Disconnected(err error)   { r.record(func() { r.ended = append(r.ended, err) }) }

func (r *recorder) Ops(session string, _ int64, ops []client.Op) {
	r.record(func() {
		for _, o := range ops {
			var decoded op
			if err := json.Unmarshal(o.Payload, &decoded); err != nil || decoded.Seq != o.Seq {
				r.t.Errorf("operation %d of %s is %.100s: %v", o.Seq, session, o.Payload, err)
			}
			r.ops[session] = append(r.ops[session], decoded)
		}
	})
}

func (r *recorder) Log(l client.Log) {
	r.record(func() {
		r.logs[fmt.Sprintf("%s/%d", l.SessionID, l.Stream)] += string(l.Data)
		r.dropped += l.Dropped
	})
}

func (r *recorder) CommandStarted(id string) { r.record(func() { r.started[id]++ }) }

func (r *recorder) CommandOutput(id string, stream proto.Stream, seq int64, data []byte) {
	r.record(func() {
		r.output[fmt.Sprintf("%s/%d", id, stream)] += string(data)
		r.chunks = append(r.chunks, chunk{id, stream, seq})
	})
}

func (r *recorder) CommandExited(e client.CommandExit) {
	r.record(func() { r.exits[e.ID] = append(r.exits[e.ID], e) })
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var _ io.Writer = (*lockedBuffer)(nil)
