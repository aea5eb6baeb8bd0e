package client

import (
	"fmt"
	"time"

	"helmr.dev/helmr/internal/guest/proto"
)

// Hello is what a guest knows when a connection begins.
type Hello struct {
	// BootID is random per start of the guest; it survives checkpoint and restore.
	BootID    string
	Processes []Process
	Commands  []Command
}

// Process is the guest's word about one Session process. The guest may claim processes that never were: compare with
// what the Worker wanted.
type Process struct {
	SessionID string
	Epoch     int64
	State     proto.ProcessState
	// TurnIDs are the latest Turns delivered to this epoch, oldest first.
	TurnIDs []string
	// FirstUnacked is the first operation that follows on this connection; LastSeq the last one there is by now.
	FirstUnacked, LastSeq int64
}

// Command is the guest's word about one Command.
type Command struct {
	ID              string
	Started, Exited bool
}

// Op is one operation of a process, as the process wrote it: bytes that claim to be a JSON object.
type Op struct {
	Seq     int64
	Payload []byte
}

// Log is a piece of what a process wrote to stdout or stderr; Dropped bytes before it were lost.
type Log struct {
	SessionID string
	Epoch     int64
	Stream    proto.Stream
	Data      []byte
	Dropped   int64
}

// CommandExit is the end of a Command.
type CommandExit struct {
	ID string
	// End tells whether it exited by itself (ExitCode counts) or was cancelled, timed out, or could not be run.
	End      proto.CommandEnd
	ExitCode int32
	Detail   string
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", proto.ErrInvalid, fmt.Sprintf(format, args...))
}

// event checks one event and queues it for the Handler. An error ends the connection.
func (l *link) event(e *proto.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	hello, isHello := e.GetKind().(*proto.Event_Hello)
	if isHello == l.greeted {
		return violation("a connection begins with one hello")
	}
	switch k := e.GetKind().(type) {
	case *proto.Event_Hello:
		return l.helloLocked(hello.Hello)
	case *proto.Event_Reply:
		return l.replyLocked(k.Reply)
	case *proto.Event_Ops:
		return l.opsLocked(k.Ops)
	case *proto.Event_Log:
		return l.logLocked(k.Log)
	case *proto.Event_CommandStarted, *proto.Event_CommandOutput, *proto.Event_CommandExited:
		return l.commandLocked(e)
	default:
		// A newer guest may say more than this Worker knows.
		l.client.unknownEvents.Add(1)
		return nil
	}
}

func (l *link) helloLocked(h *proto.Hello) error {
	if err := proto.CheckHello(h); err != nil {
		return err
	}
	_ = l.raw.SetReadDeadline(time.Time{})
	l.greeted = true
	hello := Hello{BootID: h.GetBootId()}
	for _, p := range h.GetProcesses() {
		l.processes[key{p.GetSessionId(), p.GetEpoch()}] = &position{next: p.GetFirstUnackedSeq(), acked: p.GetFirstUnackedSeq() - 1}
		hello.Processes = append(hello.Processes, Process{
			SessionID: p.GetSessionId(), Epoch: p.GetEpoch(), State: p.GetState(), TurnIDs: p.GetTurnIds(),
			FirstUnacked: p.GetFirstUnackedSeq(), LastSeq: p.GetLastSeq(),
		})
	}
	for _, c := range h.GetCommands() {
		l.commands[c.GetCommandId()] = true
		hello.Commands = append(hello.Commands, Command{ID: c.GetCommandId(), Started: c.GetStarted(), Exited: c.GetExited()})
	}
	l.deliverLocked(0, func() { l.client.handler.Connected(hello) })
	return nil
}

func (l *link) replyLocked(r *proto.Reply) error {
	waiting := l.waiting[r.GetId()]
	if waiting == nil {
		l.client.unknownReplies.Add(1)
		return nil
	}
	delete(l.waiting, r.GetId())
	if len(r.GetDetail()) > proto.MaxDetail {
		return violation("a reply has a detail of %d bytes", len(r.GetDetail()))
	}
	waiting <- r
	return nil
}

func (l *link) opsLocked(o *proto.Ops) error {
	p := l.processes[key{o.GetSessionId(), o.GetEpoch()}]
	if p == nil {
		l.client.unknownEvents.Add(1)
		return nil
	}
	if len(o.GetOps()) == 0 {
		return nil
	}
	// An operation that came over an older connection may have been acknowledged before the guest repeated it here.
	if first := o.GetOps()[0].GetSeq(); first > p.next && first <= p.acked+1 {
		p.next = first
	}
	if err := proto.CheckOps(o.GetOps(), p.next); err != nil {
		return fmt.Errorf("session %s epoch %d: %w", o.GetSessionId(), o.GetEpoch(), err)
	}
	ops, size := make([]Op, len(o.GetOps())), 0
	for i, op := range o.GetOps() {
		ops[i] = Op{Seq: op.GetSeq(), Payload: op.GetPayload()}
		size += len(op.GetPayload()) + 64
	}
	p.next += int64(len(ops))
	l.deliverLocked(size, func() { l.client.handler.Ops(o.GetSessionId(), o.GetEpoch(), ops) })
	return nil
}

func (l *link) logLocked(g *proto.Log) error {
	if l.processes[key{g.GetSessionId(), g.GetEpoch()}] == nil {
		l.client.unknownEvents.Add(1)
		return nil
	}
	if len(g.GetData()) > proto.MaxChunk || !isStream(g.GetStream()) || g.GetDropped() < 0 {
		return violation("a log piece of %d bytes on stream %d", len(g.GetData()), g.GetStream())
	}
	log := Log{SessionID: g.GetSessionId(), Epoch: g.GetEpoch(), Stream: g.GetStream(), Data: g.GetData(), Dropped: g.GetDropped()}
	l.deliverLocked(len(log.Data)+64, func() { l.client.handler.Log(log) })
	return nil
}

func isStream(s proto.Stream) bool {
	return s == proto.Stream_STREAM_STDOUT || s == proto.Stream_STREAM_STDERR
}

func (l *link) commandLocked(e *proto.Event) error {
	h := l.client.opts.Commands
	known := func(id string) bool {
		if h == nil || !l.commands[id] {
			l.client.unknownEvents.Add(1)
			return false
		}
		return true
	}
	switch k := e.GetKind().(type) {
	case *proto.Event_CommandStarted:
		if id := k.CommandStarted.GetCommandId(); known(id) {
			l.deliverLocked(64, func() { h.CommandStarted(id) })
		}
	case *proto.Event_CommandOutput:
		o := k.CommandOutput
		if len(o.GetData()) > proto.MaxChunk || !isStream(o.GetStream()) || o.GetSeq() < 1 {
			return violation("chunk %d of %d bytes on stream %d", o.GetSeq(), len(o.GetData()), o.GetStream())
		}
		if known(o.GetCommandId()) {
			l.deliverLocked(len(o.GetData())+64, func() { h.CommandOutput(o.GetCommandId(), o.GetStream(), o.GetSeq(), o.GetData()) })
		}
	case *proto.Event_CommandExited:
		x := k.CommandExited
		if end := x.GetEnd(); end < proto.CommandEnd_COMMAND_END_EXITED || end > proto.CommandEnd_COMMAND_END_FAULT || len(x.GetDetail()) > proto.MaxDetail {
			return violation("the end of a command of kind %d", end)
		}
		if known(x.GetCommandId()) {
			exit := CommandExit{ID: x.GetCommandId(), End: x.GetEnd(), ExitCode: x.GetExitCode(), Detail: x.GetDetail()}
			l.deliverLocked(256, func() { h.CommandExited(exit) })
		}
	}
	return nil
}
