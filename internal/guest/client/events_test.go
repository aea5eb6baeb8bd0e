package client

import (
	"net"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"helmr.dev/helmr/internal/guest/proto"
)

// sequenceChecker is a Handler that insists on what the Client promises.
type sequenceChecker struct {
	t         *testing.T
	connected bool
	next      map[key]int64
}

func (s *sequenceChecker) Connected(h Hello) {
	if s.connected {
		s.t.Error("connected twice")
	}
	s.connected = true
	for _, p := range h.Processes {
		s.next[key{p.SessionID, p.Epoch}] = p.FirstUnacked
	}
}

func (s *sequenceChecker) Ops(session string, epoch int64, ops []Op) {
	k := key{session, epoch}
	for _, op := range ops {
		if !s.connected || op.Seq != s.next[k] || len(op.Payload) == 0 {
			s.t.Errorf("operation %d of %v where %d is due", op.Seq, k, s.next[k])
		}
		s.next[k]++
	}
}

func (s *sequenceChecker) Log(l Log) {
	if !s.connected || len(l.Data) > proto.MaxChunk || l.Dropped < 0 {
		s.t.Errorf("log %+v", l)
	}
}

func (s *sequenceChecker) Disconnected(error) {}

// Whatever a guest says, a Handler sees only what is promised to it.
func FuzzEvents(f *testing.F) {
	add := func(events ...*proto.Event) {
		raw, err := pb.Marshal(&proto.ToWorker{Events: events})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	hello := &proto.Event{Kind: &proto.Event_Hello{Hello: &proto.Hello{Version: proto.Version, BootId: "b", Processes: []*proto.Process{
		{SessionId: "s", Epoch: 1, State: proto.ProcessState_PROCESS_STATE_READY, FirstUnackedSeq: 3, LastSeq: 4},
	}}}}
	ops := &proto.Event{Kind: &proto.Event_Ops{Ops: &proto.Ops{SessionId: "s", Epoch: 1, Ops: []*proto.Op{
		{Seq: 3, Payload: []byte("{}")}, {Seq: 4, Payload: []byte("{}")},
	}}}}
	add(hello, ops)
	add(ops, hello)
	add(hello, &proto.Event{Kind: &proto.Event_Log{Log: &proto.Log{SessionId: "s", Epoch: 1, Stream: 1, Data: []byte("x")}}})
	add(hello, &proto.Event{Kind: &proto.Event_CommandOutput{CommandOutput: &proto.CommandOutput{CommandId: "c", Stream: 1, Seq: 1}}}, ops)
	f.Fuzz(func(t *testing.T, data []byte) {
		var frame proto.ToWorker
		if pb.Unmarshal(data, &frame) != nil {
			return
		}
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		h := &sequenceChecker{t: t, next: map[key]int64{}}
		l := newLink(&Client{handler: h}, ours)
		for _, e := range frame.GetEvents() {
			if l.event(e) != nil {
				break
			}
		}
		for _, d := range l.in {
			d.call()
		}
	})
}
