package client_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"helmr.dev/helmr/internal/guest/client"
	"helmr.dev/helmr/internal/guest/proto"
)

// rogue is a hostile guest: a bare connection to a Client.
type rogue struct {
	*harness
	net.Conn
}

func setupRogue(t *testing.T, opts client.Options) *rogue {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "g")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	h := &harness{t: t, path: filepath.Join(dir, "worker.sock"), ctx: ctx, rec: newRecorder(t)}
	h.c, err = client.Listen(h.path, h.rec, opts)
	h.ok(err)
	t.Cleanup(h.c.Close)
	return &rogue{h, h.dial()}
}

func (h *harness) dial() net.Conn {
	h.t.Helper()
	conn, err := net.Dial("unix", h.path)
	h.ok(err)
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *rogue) say(events ...*proto.Event) {
	r.t.Helper()
	frame, err := proto.AppendFrame(nil, &proto.ToWorker{Events: events})
	r.ok(err)
	_, _ = r.Write(frame)
}

func hello(processes ...*proto.Process) *proto.Event {
	return &proto.Event{Kind: &proto.Event_Hello{Hello: &proto.Hello{Version: proto.Version, BootId: "boot", Processes: processes}}}
}

func process(id string, first, last int64) *proto.Process {
	return &proto.Process{SessionId: id, Epoch: 1, State: proto.ProcessState_PROCESS_STATE_READY, FirstUnackedSeq: first, LastSeq: last}
}

func ops(id string, seqs ...int64) *proto.Event {
	o := &proto.Ops{SessionId: id, Epoch: 1}
	for _, n := range seqs {
		o.Ops = append(o.Ops, &proto.Op{Seq: n, Payload: []byte(`{"seq":` + string(rune('0'+n)) + `}`)})
	}
	return &proto.Event{Kind: &proto.Event_Ops{Ops: o}}
}

// dropped waits until the client has ended the connection.
func (r *rogue) dropped() {
	r.t.Helper()
	_ = r.SetReadDeadline(time.Now().Add(time.Minute))
	for buf := make([]byte, 1024); ; {
		if _, err := r.Read(buf); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				r.t.Fatal("the connection was not ended")
			}
			return
		}
	}
}

func TestRogueGuestIsDropped(t *testing.T) {
	t.Parallel()
	log := func(l *proto.Log) *proto.Event { return &proto.Event{Kind: &proto.Event_Log{Log: l}} }
	for name, events := range map[string][]*proto.Event{
		"no hello":        {ops("s", 1)},
		"two hellos":      {hello(), hello()},
		"empty first":     {{}},
		"bad hello":       {hello(process("s", 5, 1))},
		"gap":             {hello(process("s", 1, 0)), ops("s", 1, 3)},
		"repeat":          {hello(process("s", 1, 0)), ops("s", 1), ops("s", 1)},
		"start too late":  {hello(process("s", 4, 3)), ops("s", 5)},
		"start too early": {hello(process("s", 4, 3)), ops("s", 3)},
		"large log":       {hello(process("s", 1, 0)), log(&proto.Log{SessionId: "s", Epoch: 1, Stream: 1, Data: make([]byte, proto.MaxChunk+1)})},
		"log stream":      {hello(process("s", 1, 0)), log(&proto.Log{SessionId: "s", Epoch: 1})},
		"command end":     {hello(), {Kind: &proto.Event_CommandExited{CommandExited: &proto.CommandExited{CommandId: "c"}}}},
		"command chunk":   {hello(), {Kind: &proto.Event_CommandOutput{CommandOutput: &proto.CommandOutput{CommandId: "c", Stream: 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := setupRogue(t, client.Options{})
			r.say(events...)
			r.dropped()
			if got := r.c.Stats(); got.Violations != 1 {
				t.Fatalf("%+v", got)
			}
		})
	}
}

func TestRogueFramesAreDropped(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string][]byte{
		"huge": binary.BigEndian.AppendUint32(nil, proto.MaxFrame+1), "garbage": []byte("GET / HTTP/1.1\r\n\r\n"),
		"not protobuf": append(binary.BigEndian.AppendUint32(nil, 4), 0xff, 0xff, 0xff, 0xff),
	} {
		t.Run(name, func(t *testing.T) {
			r := setupRogue(t, client.Options{})
			_, err := r.Write(raw)
			r.ok(err)
			r.dropped()
		})
	}
}

func TestSilentGuestIsDropped(t *testing.T) {
	r := setupRogue(t, client.Options{HelloTimeout: 30 * time.Millisecond})
	r.dropped()
}

func TestUnknownIdsAreCountedAndIgnored(t *testing.T) {
	r := setupRogue(t, client.Options{})
	r.say(hello(process("s", 1, 0)), ops("other", 1), ops("other", 9),
		&proto.Event{Kind: &proto.Event_Reply{Reply: &proto.Reply{Id: 77, Status: proto.Status_STATUS_OK}}},
		&proto.Event{Kind: &proto.Event_CommandStarted{CommandStarted: &proto.CommandStarted{CommandId: "c"}}}, &proto.Event{}, ops("s", 1))
	if got := r.harness.ops("s", 1); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	if got := r.c.Stats(); got.UnknownEvents != 4 || got.UnknownReplies != 1 || got.Violations != 0 {
		t.Fatalf("%+v", got)
	}
}

func TestGuestThatDoesNotReadIsDropped(t *testing.T) {
	r := setupRogue(t, client.Options{WriteTimeout: 50 * time.Millisecond})
	r.say(hello(process("s", 1, 0)))
	r.connected()
	line := []byte(`"` + strings.Repeat("x", 4<<20) + `"`)
	_, err := r.c.DeliverTurn(r.ctx, "s", 1, "t", line)
	if !errors.Is(err, client.ErrDisconnected) {
		t.Fatal(err)
	}
	if got := r.c.Stats(); got.Slow != 1 {
		t.Fatalf("%+v", got)
	}
	if err := r.c.Ping(r.ctx); !errors.Is(err, client.ErrDisconnected) {
		t.Fatal(err)
	}
}

func TestNewerConnectionReplacesOlder(t *testing.T) {
	r := setupRogue(t, client.Options{})
	r.say(hello())
	r.connected()
	second := &rogue{r.harness, r.dial()}
	r.dropped()
	second.say(hello(process("s", 1, 0)))
	await(r.harness, "second hello", func(rec *recorder) (int, bool) {
		return 0, len(rec.hellos) == 2 && len(rec.ended) == 1 && len(rec.hellos[1].Processes) == 1
	})
}

func TestSocketIsPrivateAndReplaced(t *testing.T) {
	r := setupRogue(t, client.Options{})
	socket, err := os.Stat(r.path)
	r.ok(err)
	folder, err := os.Stat(filepath.Dir(r.path))
	r.ok(err)
	if socket.Mode().Perm() != 0o600 || folder.Mode().Perm() != 0o700 {
		t.Fatal(socket.Mode(), folder.Mode())
	}
	r.c.Close()
	if _, err := os.Stat(r.path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the socket is still there: %v", err)
	}
	// A file left behind by a killed Worker does not stand in the way, nor does a path beyond a socket address.
	long := filepath.Join(filepath.Dir(r.path), strings.Repeat("d", 120), "worker.sock")
	r.ok(os.MkdirAll(filepath.Dir(long), 0o755))
	r.ok(os.WriteFile(long, nil, 0o600))
	c, err := client.Listen(long, r.rec, client.Options{})
	r.ok(err)
	c.Close()
	if err := c.Ping(r.ctx); !errors.Is(err, client.ErrClosed) {
		t.Fatal(err)
	}
}

func TestReleaseLetsGoUntilListenedAgain(t *testing.T) {
	h := setup(t)
	h.start("s", "echo")
	h.ops("s", 2)
	h.ok(h.c.Release(h.ctx))
	if _, err := os.Stat(h.path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the socket is still there: %v", err)
	}
	h.listen()
	hello := h.connected()
	if len(hello.Processes) != 1 || hello.Processes[0].State != proto.ProcessState_PROCESS_STATE_READY {
		t.Fatalf("%+v", hello)
	}
	if got := h.ops("s", 2); len(got) != 2 {
		t.Fatalf("%+v", got)
	}
}

// A frame of a few MiB must not become gigabytes of messages, nor may many small things wait unbounded.
func TestManyEmptyMessagesAreDropped(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string][]byte{
		"events": bytes.Repeat([]byte{0x0a, 0x00}, 4<<20),
		"ops":    nested(t, bytes.Repeat([]byte{0x1a, 0x00}, 4<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			r := setupRogue(t, client.Options{})
			r.say(hello(process("s", 1, 0)))
			r.connected()
			_, err := r.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...))
			r.ok(err)
			r.dropped()
			if got := r.c.Stats(); got.Violations != 1 {
				t.Fatalf("%+v", got)
			}
		})
	}
}

// nested wraps the fields of an Ops message into an event of a frame.
func nested(t *testing.T, fields []byte) []byte {
	t.Helper()
	event := &proto.Event{Kind: &proto.Event_Ops{Ops: &proto.Ops{}}}
	if err := pb.Unmarshal(fields[:2], event.GetOps()); err != nil || len(event.GetOps().GetOps()) != 1 {
		t.Fatalf("these are no operations: %v, %v", event, err)
	}
	number := (&proto.Event{}).ProtoReflect().Descriptor().Fields().ByName("ops").Number()
	ops := protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), fields)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), ops)
}

// Forged epochs, Sessions and Commands reach nobody, and a flood of dialling ends where it began: at one Computer.
func TestForgedIdentitiesAreNotHandedOn(t *testing.T) {
	r := setupRogue(t, client.Options{})
	forged := ops("s", 1)
	forged.GetOps().Epoch = 2
	other := ops("t", 1)
	r.say(hello(process("s", 1, 0)), forged, other, &proto.Event{Kind: &proto.Event_CommandExited{CommandExited: &proto.CommandExited{CommandId: "c", End: 1}}}, ops("s", 1))
	if got := r.harness.ops("s", 1); len(got) != 1 || got[0].Seq != 1 {
		t.Fatalf("%+v", got)
	}
	r.rec.mu.Lock()
	defer r.rec.mu.Unlock()
	if len(r.rec.ops) != 1 || len(r.rec.exits) != 0 {
		t.Fatalf("%+v, %+v", r.rec.ops, r.rec.exits)
	}
}
