package proto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	pb "google.golang.org/protobuf/proto"
)

func randomFrame(r *rand.Rand) *ToWorker {
	m := &ToWorker{}
	for range r.IntN(20) {
		ops := &Ops{SessionId: "s", Epoch: r.Int64()}
		for range r.IntN(8) {
			payload := make([]byte, r.IntN(1<<r.IntN(17)))
			for i := range payload {
				payload[i] = byte(r.Uint32())
			}
			ops.Ops = append(ops.Ops, &Op{Seq: r.Int64(), Payload: payload})
		}
		m.Events = append(m.Events, &Event{Kind: &Event_Ops{Ops: ops}})
	}
	return m
}

// Whatever is framed comes back equal and in order, however the stream is cut.
func TestFramesRoundTrip(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 7))
		var stream []byte
		var sent []*ToWorker
		for range r.IntN(6) {
			m := randomFrame(r)
			var err error
			if stream, err = AppendFrame(stream, m); err != nil {
				t.Fatal(err)
			}
			sent = append(sent, m)
		}
		for name, reader := range map[string]io.Reader{
			"whole": bytes.NewReader(stream), "half": iotest.HalfReader(bytes.NewReader(stream)), "error with data": iotest.DataErrReader(bytes.NewReader(stream)),
		} {
			for i, want := range sent {
				var got ToWorker
				if err := ReadFrame(reader, &got); err != nil || !pb.Equal(&got, want) {
					t.Fatalf("seed %d, %s, frame %d: err %v or another frame", seed, name, i, err)
				}
			}
			if err := ReadFrame(reader, &ToWorker{}); err != io.EOF {
				t.Fatalf("seed %d, %s: %v after the last frame, want io.EOF", seed, name, err)
			}
		}
	}
}

func TestFrameCutAnywhereIsAnError(t *testing.T) {
	t.Parallel()
	stream, err := AppendFrame(nil, &ToWorker{Events: []*Event{{Kind: &Event_Hello{Hello: &Hello{Version: 1, BootId: "b"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for cut := 1; cut < len(stream); cut++ {
		if err := ReadFrame(bytes.NewReader(stream[:cut]), &ToWorker{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

func TestHugeFrameIsRefusedBeforeAllocation(t *testing.T) {
	t.Parallel()
	head := binary.BigEndian.AppendUint32(nil, MaxFrame+1)
	if err := ReadFrame(bytes.NewReader(head), &ToWorker{}); !errors.Is(err, ErrFrameTooLarge) {
		t.Fatal(err)
	}
	// A prefix within the bound, but nothing behind it, must not cost its claim in memory.
	head = binary.BigEndian.AppendUint32(nil, MaxFrame)
	res := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = ReadFrame(bytes.NewReader(head), &ToWorker{})
		}
	})
	if per := res.AllocedBytesPerOp(); per > 1<<20 {
		t.Fatalf("an empty claim of 32 MiB cost %d bytes", per)
	}
	buf := []byte("kept")
	out, err := AppendFrame(buf, &ToWorker{Events: []*Event{{Kind: &Event_Log{Log: &Log{Data: make([]byte, MaxFrame+1)}}}}})
	if !errors.Is(err, ErrFrameTooLarge) || string(out) != "kept" {
		t.Fatalf("%v, %q", err, out)
	}
}

func TestCheckHello(t *testing.T) {
	t.Parallel()
	process := func(change func(*Process)) *Hello {
		p := &Process{SessionId: "s", Epoch: 1, State: ProcessState_PROCESS_STATE_READY, FirstUnackedSeq: 1}
		change(p)
		return &Hello{Version: Version, BootId: "b", Processes: []*Process{p}}
	}
	good := process(func(*Process) {})
	if err := CheckHello(good); err != nil {
		t.Fatal(err)
	}
	bad := map[string]*Hello{
		"version":    {Version: Version + 1, BootId: "b"},
		"boot":       {Version: Version},
		"long id":    process(func(p *Process) { p.SessionId = strings.Repeat("a", MaxID+1) }),
		"id":         process(func(p *Process) { p.SessionId = "a b" }),
		"epoch":      process(func(p *Process) { p.Epoch = 0 }),
		"state":      process(func(p *Process) { p.State = 9 }),
		"first":      process(func(p *Process) { p.FirstUnackedSeq = 0 }),
		"gap":        process(func(p *Process) { p.FirstUnackedSeq = 3; p.LastSeq = 1 }),
		"turns":      process(func(p *Process) { p.TurnIds = make([]string, MaxHelloTurns+1) }),
		"turn id":    process(func(p *Process) { p.TurnIds = []string{""} }),
		"twice":      {Version: Version, BootId: "b", Processes: append(good.Processes, good.Processes...)},
		"many":       {Version: Version, BootId: "b", Processes: make([]*Process, MaxProcesses+1)},
		"command id": {Version: Version, BootId: "b", Commands: []*Command{{}}},
	}
	for name, h := range bad {
		if err := CheckHello(h); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestCheckOps(t *testing.T) {
	t.Parallel()
	op := func(seq int64, n int) *Op { return &Op{Seq: seq, Payload: make([]byte, n)} }
	if err := CheckOps([]*Op{op(4, 1), op(5, MaxLine)}, 4); err != nil {
		t.Fatal(err)
	}
	for name, ops := range map[string][]*Op{
		"gap": {op(4, 1), op(6, 1)}, "repeat": {op(4, 1), op(4, 1)}, "late start": {op(5, 1)}, "empty": {op(4, 0)}, "long": {op(4, MaxLine+1)},
	} {
		if err := CheckOps(ops, 4); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	for seed := range uint64(4) {
		b, err := AppendFrame(nil, randomFrame(rand.New(rand.NewPCG(seed, 1))))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		var m ToWorker
		if err := ReadFrame(bytes.NewReader(data), &m); err != nil {
			return
		}
		again, err := AppendFrame(nil, &m)
		if err != nil {
			t.Fatal(err)
		}
		var n ToWorker
		if err := ReadFrame(bytes.NewReader(again), &n); err != nil || !pb.Equal(&m, &n) {
			t.Fatalf("a decoded frame does not survive encoding: %v", err)
		}
		for _, e := range m.GetEvents() {
			_ = CheckHello(e.GetHello())
			_ = CheckOps(e.GetOps().GetOps(), 1)
		}
	})
}

func FuzzCheckHello(f *testing.F) {
	b, _ := pb.Marshal(&Hello{Version: 1, BootId: "b", Processes: []*Process{{SessionId: "s", Epoch: 1, State: 1, FirstUnackedSeq: 1}}})
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		var h Hello
		if pb.Unmarshal(data, &h) != nil || CheckHello(&h) != nil {
			return
		}
		// What passes is what the client relies on.
		for _, p := range h.GetProcesses() {
			if p.GetSessionId() == "" || p.GetEpoch() < 1 || p.GetFirstUnackedSeq() < 1 || p.GetFirstUnackedSeq() > p.GetLastSeq()+1 {
				t.Fatalf("accepted %v", p)
			}
		}
	})
}
