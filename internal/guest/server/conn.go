package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"helmr.dev/helmr/internal/guest/proto"
)

const (
	// frameTarget is where a frame is closed; one operation more (proto.MaxLine) still fits below proto.MaxFrame.
	frameTarget = 1 << 20
	// logDelay gathers log output, and with logShare bounds its rate: nothing waits for it, and each frame costs.
	logDelay = 100 * time.Millisecond
	logShare = 256 << 10
	// keepBuffer is the largest write buffer that is kept for the next frame.
	keepBuffer = 2 << 20
)

// errReleased ends a connection that the Worker asked to let go of.
var errReleased = errors.New("released")

// conn is one connection to the Worker. Fields below net are guarded by Server.mu.
type conn struct {
	net  net.Conn
	wake chan struct{}

	greeted bool
	replies []*proto.Event
	// logTimer runs while logs wait; logsDue is set when it fired.
	logTimer *time.Timer
	logsDue  bool
}

// signal makes the writer look again.
func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// wakeLocked makes the writer of the present connection look again.
func (s *Server) wakeLocked() {
	if s.conn != nil {
		s.conn.signal()
	}
}

// wakeLogsLocked makes the writer send logs after logDelay.
func (s *Server) wakeLogsLocked() {
	c := s.conn
	if c == nil || c.logTimer != nil {
		return
	}
	c.logTimer = time.AfterFunc(logDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.logTimer, c.logsDue = nil, true
		c.signal()
	})
}

func (s *Server) reply(c *conn, r *proto.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.replies = append(c.replies, &proto.Event{Kind: &proto.Event_Reply{Reply: r}})
	c.signal()
}

// serve speaks over one connection until it ends; released says that the Worker asked for the end.
func (s *Server) serve(ctx context.Context, link net.Conn) (released bool, err error) {
	c := &conn{net: link, wake: make(chan struct{}, 1)}
	stop := context.AfterFunc(ctx, func() { _ = link.Close() })
	defer stop()

	s.mu.Lock()
	s.conn = c
	s.rewindLocked()
	s.mu.Unlock()

	ended := make(chan struct{})
	written := make(chan error, 1)
	go func() {
		err := s.write(c, ended)
		_ = link.Close()
		written <- err
	}()
	err = s.read(c)
	close(ended)
	_ = link.Close()
	if writeErr := <-written; err == nil {
		err = writeErr
	}
	s.mu.Lock()
	s.conn = nil
	if c.logTimer != nil {
		c.logTimer.Stop()
	}
	s.mu.Unlock()
	return errors.Is(err, errReleased), err
}

// rewindLocked makes everything unacknowledged due again.
func (s *Server) rewindLocked() {
	for _, p := range s.processes {
		p.ops.rewind()
	}
	for _, c := range s.commands {
		c.rewind()
	}
}

func (s *Server) read(c *conn) error {
	r := bufio.NewReaderSize(c.net, 64<<10)
	for {
		var frame proto.ToGuest
		if err := proto.ReadFrame(r, &frame); err != nil {
			return err
		}
		for _, request := range frame.GetRequests() {
			if err := s.handle(c, request); err != nil {
				return err
			}
		}
	}
}

// write sends whatever is pending, all of it in as few frames as the bounds allow.
func (s *Server) write(c *conn, ended <-chan struct{}) error {
	var buf []byte
	for {
		frame := s.collect(c)
		if frame == nil {
			select {
			case <-c.wake:
			case <-ended:
				return nil
			}
			continue
		}
		var err error
		if buf, err = proto.AppendFrame(buf[:0], frame); err != nil {
			return err
		}
		if _, err := c.net.Write(buf); err != nil {
			return fmt.Errorf("write frame: %w", err)
		}
		if cap(buf) > keepBuffer {
			buf = nil
		}
	}
}

// collect takes what is due for one frame, nil if nothing is.
func (s *Server) collect(c *conn) *proto.ToWorker {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []*proto.Event
	if !c.greeted {
		c.greeted = true
		return &proto.ToWorker{Events: []*proto.Event{{Kind: &proto.Event_Hello{Hello: s.helloLocked()}}}}
	}
	events, c.replies = c.replies, nil
	budget := frameTarget
	for key, p := range s.processes {
		if budget <= 0 {
			break
		}
		if ops := p.ops.take(&budget); len(ops) > 0 {
			events = append(events, &proto.Event{Kind: &proto.Event_Ops{
				Ops: &proto.Ops{SessionId: key.session, Epoch: key.epoch, Ops: ops},
			}})
		}
	}
	for _, cmd := range s.commands {
		if budget <= 0 {
			break
		}
		events = cmd.take(events, &budget)
	}
	if c.logsDue {
		events = s.takeLogsLocked(c, events)
	}
	if budget <= 0 {
		c.signal()
	}
	if len(events) == 0 {
		return nil
	}
	return &proto.ToWorker{Events: events}
}

func (s *Server) takeLogsLocked(c *conn, events []*proto.Event) []*proto.Event {
	c.logsDue = false
	share := logShare
	for key, p := range s.processes {
		events = p.logs.take(key, events, &share)
		if !p.logs.empty() {
			s.wakeLogsLocked()
		}
	}
	return events
}

func (s *Server) helloLocked() *proto.Hello {
	h := &proto.Hello{Version: proto.Version, BootId: s.bootID}
	for key, p := range s.processes {
		h.Processes = append(h.Processes, &proto.Process{
			SessionId: key.session, Epoch: key.epoch, State: p.state, TurnIds: p.turns.youngest(proto.MaxHelloTurns),
			FirstUnackedSeq: p.ops.first, LastSeq: p.ops.last(),
		})
		if !p.logs.empty() {
			s.wakeLogsLocked()
		}
	}
	for id, c := range s.commands {
		h.Commands = append(h.Commands, &proto.Command{CommandId: id, Started: c.started, Exited: c.exited != nil})
	}
	return h
}
