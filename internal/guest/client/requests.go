package client

import (
	"context"
	"fmt"
	"time"

	pb "google.golang.org/protobuf/proto"

	"helmr.dev/helmr/internal/guest/proto"
)

// StartProcess says what Session process to start.
type StartProcess struct {
	SessionID string
	Epoch     int64
	// Argv is the program; a name without a slash is looked up on the PATH of Env.
	Argv []string
	// Env is the whole environment as NAME=value; the guest adds HOME when it is missing.
	Env []string
	Cwd string
	// User is "", "user", "uid", "user:group" or "uid:gid", with the Computer's own files; empty is root.
	User string
	// Start is the first line for the process: JSON without line feed.
	Start []byte
	// Refused, when not empty, is why it must not run: it ends at once with that.
	Refused string
}

// Ack acknowledges one operation; Line (JSON without line feed) goes to the process when not empty.
type Ack struct {
	SessionID string
	Epoch     int64
	Seq       int64
	Line      []byte
}

// ExecCommand says what Command to run. Timeout counts from its start; 0 is none.
type ExecCommand struct {
	ID      string
	Argv    []string
	Env     []string
	Cwd     string
	User    string
	Stdin   []byte
	Timeout time.Duration
	// Refused, when not empty, is why it must not run: it ends at once with that, as a fault.
	Refused string
}

// PlaceFile is a file that only User may read, or everyone if it is Public. Folders above it are made when missing.
type PlaceFile struct {
	Path    string
	Content []byte
	User    string
	Public  bool
	// After names files of the Computer: the first that is there, and that root lets everyone read, comes before Content.
	After []string
}

// AckCommand acknowledges a Command's start, its output through a chunk of each stream, and its end.
type AckCommand struct {
	ID                           string
	Started, Exited              bool
	StdoutThrough, StderrThrough int64
}

// call sends r and turns the reply into an error; already tells that the guest had done it before.
func (c *Client) call(ctx context.Context, what string, r *proto.Request, before func(*link)) (already bool, err error) {
	if err := check(r); err != nil {
		return false, fmt.Errorf("%s: %w: %w", what, ErrInvalid, err)
	}
	l, err := c.current()
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if before != nil {
		l.mu.Lock()
		before(l)
		l.mu.Unlock()
	}
	reply, err := l.call(ctx, r)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	return reply.GetStatus() == proto.Status_STATUS_ALREADY, replyError(what, reply)
}

// check finds what the guest would refuse, before it could spoil a frame that holds other requests too.
func check(r *proto.Request) error {
	switch k := r.GetKind().(type) {
	case *proto.Request_StartProcess, *proto.Request_ExecCommand, *proto.Request_PlaceFile:
		// Names and values come from outside and may be no UTF-8, which strings of a message must be.
		raw, err := pb.Marshal(r)
		if err != nil {
			return err
		}
		if len(raw) > proto.MaxLine {
			return fmt.Errorf("its encoding has %d bytes, allowed are %d", len(raw), proto.MaxLine)
		}
		if p := r.GetStartProcess(); p != nil {
			return proto.CheckProcess(p.GetSessionId(), p.GetEpoch())
		}
		if r.GetPlaceFile() != nil {
			return nil
		}
		return proto.CheckID(r.GetExecCommand().GetCommandId())
	case *proto.Request_DeliverTurn:
		if err := proto.CheckID(k.DeliverTurn.GetTurnId()); err != nil {
			return err
		}
		return checkLine(k.DeliverTurn.GetSessionId(), k.DeliverTurn.GetEpoch(), k.DeliverTurn.GetLine())
	case *proto.Request_Control:
		return checkLine(k.Control.GetSessionId(), k.Control.GetEpoch(), k.Control.GetLine())
	case *proto.Request_Kill:
		return proto.CheckProcess(k.Kill.GetSessionId(), k.Kill.GetEpoch())
	case *proto.Request_Forget:
		return proto.CheckProcess(k.Forget.GetSessionId(), k.Forget.GetEpoch())
	case *proto.Request_CancelCommand:
		return proto.CheckID(k.CancelCommand.GetCommandId())
	case *proto.Request_ForgetCommand:
		return proto.CheckID(k.ForgetCommand.GetCommandId())
	}
	return nil
}

func checkLine(sessionID string, epoch int64, line []byte) error {
	if len(line) > proto.MaxLine {
		return fmt.Errorf("a line has %d bytes, allowed are %d", len(line), proto.MaxLine)
	}
	return proto.CheckProcess(sessionID, epoch)
}

func replyError(what string, r *proto.Reply) error {
	var err error
	switch r.GetStatus() {
	case proto.Status_STATUS_OK, proto.Status_STATUS_ALREADY:
		return nil
	case proto.Status_STATUS_WRONG_EPOCH:
		err = ErrWrongEpoch
	case proto.Status_STATUS_UNKNOWN:
		err = ErrUnknown
	case proto.Status_STATUS_NOT_READY:
		err = ErrNotReady
	case proto.Status_STATUS_BUSY:
		err = ErrBusy
	default:
		err = ErrInvalid
	}
	if r.GetDetail() == "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %s", what, err, r.GetDetail())
}

// StartProcess starts a Session process. Success means that the guest took the order; that the program could not be
// started comes as the exited operation of the process. The same epoch again does nothing.
func (c *Client) StartProcess(ctx context.Context, p StartProcess) error {
	_, err := c.call(ctx, "start process", &proto.Request{Kind: &proto.Request_StartProcess{StartProcess: &proto.StartProcess{
		SessionId: p.SessionID, Epoch: p.Epoch, Argv: p.Argv, Env: p.Env, Cwd: p.Cwd, User: p.User, Start: p.Start, Refused: p.Refused,
	}}}, func(l *link) {
		// Operations may arrive before the reply.
		if k := (key{p.SessionID, p.Epoch}); l.processes[k] == nil {
			l.processes[k] = &position{next: 1}
		}
	})
	return err
}

// DeliverTurn gives a Turn to a ready process, at most once per epoch; already tells that it had been given before.
func (c *Client) DeliverTurn(ctx context.Context, sessionID string, epoch int64, turnID string, line []byte) (already bool, err error) {
	return c.call(ctx, "deliver turn", &proto.Request{Kind: &proto.Request_DeliverTurn{DeliverTurn: &proto.DeliverTurn{
		SessionId: sessionID, Epoch: epoch, TurnId: turnID, Line: line,
	}}}, nil)
}

// Control passes an abort, message, answer, question_cancelled or stop line. Each reaches the process at most once:
// messages by messageId, answers and cancelled questions by questionId, aborts by turnId and reason, one stop.
func (c *Client) Control(ctx context.Context, sessionID string, epoch int64, line []byte) error {
	_, err := c.call(ctx, "control process", &proto.Request{Kind: &proto.Request_Control{Control: &proto.Control{
		SessionId: sessionID, Epoch: epoch, Line: line,
	}}}, nil)
	return err
}

// Kill kills the whole tree of a process. Its exited operation follows.
func (c *Client) Kill(ctx context.Context, sessionID string, epoch int64) error {
	_, err := c.call(ctx, "kill process", &proto.Request{Kind: &proto.Request_Kill{Kill: &proto.Kill{SessionId: sessionID, Epoch: epoch}}}, nil)
	return err
}

// Ack acknowledges operations without waiting: all go in one request per process, in the order given. Acknowledge an
// operation only when it is durable or refused for good. If the connection is lost they come again.
func (c *Client) Ack(acks []Ack) error {
	l, err := c.current()
	if err != nil {
		return fmt.Errorf("acknowledge operations: %w", err)
	}
	for _, a := range acks {
		if err := checkLine(a.SessionID, a.Epoch, a.Line); err != nil {
			return fmt.Errorf("acknowledge operation %d: %w: %w", a.Seq, ErrInvalid, err)
		}
	}
	for _, group := range l.groupAcks(acks) {
		l.send(&proto.Request{Kind: &proto.Request_Acks{Acks: group}})
	}
	return nil
}

// groupAcks makes one request per process, more if it would be long.
func (l *link) groupAcks(acks []Ack) []*proto.Acks {
	var groups []*proto.Acks
	open, size := map[key]*proto.Acks{}, map[key]int{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range acks {
		k := key{a.SessionID, a.Epoch}
		if open[k] == nil || size[k] > frameTarget {
			open[k], size[k] = &proto.Acks{SessionId: a.SessionID, Epoch: a.Epoch}, 0
			groups = append(groups, open[k])
		}
		open[k].Acks = append(open[k].Acks, &proto.Ack{Seq: a.Seq, Line: a.Line})
		size[k] += 64 + len(a.Line)
		if p := l.processes[k]; p != nil {
			p.acked = max(p.acked, a.Seq)
		}
	}
	return groups
}

// Forget drops an exited process all of whose operations are acknowledged. Its epoch can never be started again.
func (c *Client) Forget(ctx context.Context, sessionID string, epoch int64) error {
	var at *link
	_, err := c.call(ctx, "forget process", &proto.Request{Kind: &proto.Request_Forget{Forget: &proto.Forget{SessionId: sessionID, Epoch: epoch}}},
		func(l *link) { at = l })
	if err == nil {
		at.mu.Lock()
		defer at.mu.Unlock()
		delete(at.processes, key{sessionID, epoch})
	}
	return err
}

// Ping waits for one answer of the guest.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.call(ctx, "ping guest", &proto.Request{Kind: &proto.Request_Ping{Ping: &proto.Ping{}}}, nil)
	return err
}

// ExecCommand runs a Command; its events go to Options.Commands. The same id again does nothing.
func (c *Client) ExecCommand(ctx context.Context, e ExecCommand) error {
	timeout := int64(0)
	if e.Timeout > 0 {
		timeout = max(1, e.Timeout.Milliseconds())
	}
	_, err := c.call(ctx, "run command", &proto.Request{Kind: &proto.Request_ExecCommand{ExecCommand: &proto.ExecCommand{
		CommandId: e.ID, Argv: e.Argv, Env: e.Env, Cwd: e.Cwd, User: e.User, Stdin: e.Stdin, TimeoutMs: timeout, Refused: e.Refused,
	}}}, func(l *link) { l.commands[e.ID] = true })
	return err
}

// PlaceFile writes a file, whole or not at all. ErrInvalid says that it cannot be there.
func (c *Client) PlaceFile(ctx context.Context, f PlaceFile) error {
	_, err := c.call(ctx, "place file", &proto.Request{Kind: &proto.Request_PlaceFile{PlaceFile: &proto.PlaceFile{Path: f.Path, Content: f.Content, User: f.User, Public: f.Public, After: f.After}}}, nil)
	return err
}

// CancelCommand asks a Command to end: SIGTERM, SIGKILL after 10 s.
func (c *Client) CancelCommand(ctx context.Context, commandID string) error {
	_, err := c.call(ctx, "cancel command", &proto.Request{Kind: &proto.Request_CancelCommand{CancelCommand: &proto.CancelCommand{CommandId: commandID}}}, nil)
	return err
}

// AckCommand acknowledges events of a Command without waiting.
func (c *Client) AckCommand(a AckCommand) error {
	if err := proto.CheckID(a.ID); err != nil {
		return fmt.Errorf("acknowledge command: %w: %w", ErrInvalid, err)
	}
	l, err := c.current()
	if err != nil {
		return fmt.Errorf("acknowledge command: %w", err)
	}
	l.send(&proto.Request{Kind: &proto.Request_AckCommand{AckCommand: &proto.AckCommand{
		CommandId: a.ID, Started: a.Started, Exited: a.Exited, StdoutThrough: a.StdoutThrough, StderrThrough: a.StderrThrough,
	}}})
	return nil
}

// ForgetCommand drops a Command that has ended and is acknowledged. Its id can never be run again.
func (c *Client) ForgetCommand(ctx context.Context, commandID string) error {
	var at *link
	_, err := c.call(ctx, "forget command", &proto.Request{Kind: &proto.Request_ForgetCommand{ForgetCommand: &proto.ForgetCommand{CommandId: commandID}}},
		func(l *link) { at = l })
	if err == nil {
		at.mu.Lock()
		defer at.mu.Unlock()
		delete(at.commands, commandID)
	}
	return err
}
