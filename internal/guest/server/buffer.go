package server

import (
	"fmt"

	"helmr.dev/helmr/internal/guest/proto"
)

// opBuffer holds the unacknowledged operations of one process in order.
type opBuffer struct {
	// first is the sequence of ops[0], or of the next operation when ops is empty.
	first int64
	ops   []*heldOp
	bytes int
	// sent counts the leading ops given to the present connection.
	sent int
}

// heldOp is an operation with its answer, once there is one.
type heldOp struct {
	op       *proto.Op
	answered bool
	answer   []byte
}

func (b *opBuffer) last() int64 { return b.first + int64(len(b.ops)) - 1 }

func (b *opBuffer) full() bool { return len(b.ops) >= maxUnackedOps || b.bytes >= maxUnackedBytes }

func (b *opBuffer) rewind() { b.sent = 0 }

func (b *opBuffer) append(payload []byte) {
	b.ops = append(b.ops, &heldOp{op: &proto.Op{Seq: b.last() + 1, Payload: payload}})
	b.bytes += len(payload)
}

// take gives operations that are due until budget is used up, at least one if it is above 0.
func (b *opBuffer) take(budget *int) []*proto.Op {
	var due []*proto.Op
	for b.sent < len(b.ops) && *budget > 0 {
		op := b.ops[b.sent].op
		*budget -= len(op.GetPayload()) + 64
		due = append(due, op)
		b.sent++
	}
	return due
}

// ack takes the answer to an operation. It gives the answers that are due to the process now, in order: after a
// reconnect the Worker may answer what it got over the old connection before it repeats an answer lost with it. A
// second answer to the same operation is ignored; an answer to one that does not exist is an error.
func (b *opBuffer) ack(seq int64, answer []byte) (due [][]byte, err error) {
	if seq < b.first {
		return nil, nil
	}
	if seq > b.last() {
		return nil, fmt.Errorf("acknowledged operation %d, the last one is %d", seq, b.last())
	}
	if held := b.ops[seq-b.first]; !held.answered {
		held.answered, held.answer = true, answer
	}
	for len(b.ops) > 0 && b.ops[0].answered {
		if len(b.ops[0].answer) > 0 {
			due = append(due, b.ops[0].answer)
		}
		b.bytes -= len(b.ops[0].op.GetPayload())
		b.ops[0] = nil
		b.ops = b.ops[1:]
		b.first++
		b.sent = max(0, b.sent-1)
	}
	return due, nil
}

const (
	// maxLogs is how much unsent output of one process is kept.
	maxLogs = 64 << 10
	// maxTail is how much of stderr the exited operation carries.
	maxTail = 4 << 10
)

// logBuffer keeps the last unsent output of a process.
type logBuffer struct {
	pieces  []logPiece
	bytes   int
	dropped int64
}

type logPiece struct {
	stream proto.Stream
	data   []byte
}

func (b *logBuffer) empty() bool { return len(b.pieces) == 0 }

func (b *logBuffer) add(stream proto.Stream, data []byte) {
	if n := len(b.pieces); n > 0 && b.pieces[n-1].stream == stream && len(b.pieces[n-1].data)+len(data) <= proto.MaxChunk {
		b.pieces[n-1].data = append(b.pieces[n-1].data, data...)
	} else {
		b.pieces = append(b.pieces, logPiece{stream, append([]byte(nil), data...)})
	}
	b.bytes += len(data)
	for b.bytes > maxLogs {
		oldest := &b.pieces[0]
		n := min(len(oldest.data), b.bytes-maxLogs)
		b.bytes -= n
		b.dropped += int64(n)
		if oldest.data = oldest.data[n:]; len(oldest.data) == 0 {
			b.pieces = b.pieces[1:]
		}
	}
}

// take moves pieces into events until share is used up.
func (b *logBuffer) take(key processKey, events []*proto.Event, share *int) []*proto.Event {
	for len(b.pieces) > 0 && *share > 0 {
		piece := b.pieces[0]
		b.pieces = b.pieces[1:]
		b.bytes -= len(piece.data)
		*share -= len(piece.data)
		events = append(events, &proto.Event{Kind: &proto.Event_Log{Log: &proto.Log{
			SessionId: key.session, Epoch: key.epoch, Stream: piece.stream, Data: piece.data, Dropped: b.dropped,
		}}})
		b.dropped = 0
	}
	return events
}

// tail keeps the last maxTail bytes of a stream.
type tail []byte

func (t *tail) add(data []byte) {
	*t = append(*t, data...)
	if n := len(*t); n > maxTail {
		*t = append((*t)[:0], (*t)[n-maxTail:]...)
	}
}
