package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"helmr.dev/helmr/internal/guest/proto"
	"helmr.dev/helmr/internal/guest/scope"
)

const (
	// maxUnackedOutput bounds the unacknowledged output of one stream of a Command in bytes; beyond it the guest stops
	// reading, so the program waits.
	maxUnackedOutput = 1 << 20
	// maxHeldOutput bounds that of all Commands together: beyond it each stream still gets one chunk at a time through.
	maxHeldOutput = 16 << 20
	// chunkCost is what a chunk counts beside its bytes, for programs that write a byte at a time.
	chunkCost = 128
)

// command is one Command from outside. Server.mu guards it.
type command struct {
	id      string
	scope   *scope.Scope
	killed  bool
	started bool
	// end is why the Command is being stopped, unspecified if it is not.
	end   proto.CommandEnd
	timer *time.Timer
	// news sends the word that the program runs.
	news    *time.Timer
	streams [2]outputBuffer
	exited  *proto.CommandExited
	// startedSent and exitedSent concern the present connection, startedAcked and exitedAcked all of them.
	startedSent, startedAcked bool
	exitedSent, exitedAcked   bool
}

// outputBuffer holds the unacknowledged chunks of one stream.
type outputBuffer struct {
	// first is the number of chunks[0], or of the next chunk when there is none.
	first  int64
	chunks [][]byte
	bytes  int
	sent   int
}

// ack drops chunks and tells how much of the guest's memory that frees.
func (b *outputBuffer) ack(through int64) (freed int) {
	for len(b.chunks) > 0 && b.first <= through {
		freed += len(b.chunks[0]) + chunkCost
		b.chunks[0] = nil
		b.chunks = b.chunks[1:]
		b.first++
		b.sent = max(0, b.sent-1)
	}
	b.bytes -= freed
	return freed
}

// keepLocked adds a chunk that the Worker is to get.
func (s *Server) keepLocked(b *outputBuffer, data []byte) {
	b.chunks = append(b.chunks, append([]byte(nil), data...))
	b.bytes += len(data) + chunkCost
	s.heldOutput += len(data) + chunkCost
	s.wakeLocked()
}

// fullLocked tells whether a stream has to wait.
func (s *Server) fullLocked(b *outputBuffer) bool {
	return b.bytes >= maxUnackedOutput || (s.heldOutput >= maxHeldOutput && b.bytes > 0)
}

func (c *command) rewind() {
	c.startedSent, c.exitedSent = false, false
	for i := range c.streams {
		c.streams[i].sent = 0
	}
}

// take appends the events that are due: started unless it has ended, output in order within each stream, exited after all
// output.
func (c *command) take(events []*proto.Event, budget *int) []*proto.Event {
	if c.started && !c.startedSent && !c.startedAcked && c.exited == nil {
		c.startedSent = true
		events = append(events, &proto.Event{Kind: &proto.Event_CommandStarted{CommandStarted: &proto.CommandStarted{CommandId: c.id}}})
	}
	complete := true
	for i := range c.streams {
		b := &c.streams[i]
		for b.sent < len(b.chunks) && *budget > 0 {
			*budget -= len(b.chunks[b.sent]) + 64
			events = append(events, &proto.Event{Kind: &proto.Event_CommandOutput{CommandOutput: &proto.CommandOutput{
				CommandId: c.id, Stream: proto.Stream(i + 1), Seq: b.first + int64(b.sent), Data: b.chunks[b.sent],
			}}})
			b.sent++
		}
		complete = complete && b.sent == len(b.chunks)
	}
	if complete && c.exited != nil && !c.exitedSent && !c.exitedAcked {
		c.exitedSent = true
		events = append(events, &proto.Event{Kind: &proto.Event_CommandExited{CommandExited: c.exited}})
	}
	return events
}

func (c *command) killLocked() {
	c.killed = true
	if c.scope != nil {
		c.scope.Kill()
	}
}

// stopLocked begins to stop a Command, for the first cause only: SIGTERM, and SIGKILL after killGrace.
func (s *Server) stopLocked(c *command, end proto.CommandEnd) {
	if c.end != proto.CommandEnd_COMMAND_END_UNSPECIFIED || c.exited != nil {
		return
	}
	c.end = end
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.scope == nil {
		c.killLocked()
		return
	}
	c.scope.Terminate() // one that has not begun yet gets it when it does
	c.timer = time.AfterFunc(killGrace, c.scope.Kill)
}

func (s *Server) execCommand(r *proto.ExecCommand) (proto.Status, string) {
	if err := proto.CheckID(r.GetCommandId()); err != nil {
		return proto.Status_STATUS_INVALID, err.Error()
	}
	if len(r.GetArgv()) == 0 || r.GetArgv()[0] == "" || r.GetTimeoutMs() < 0 {
		return proto.Status_STATUS_INVALID, "argv is empty or the timeout is negative"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, finished := s.finished.get(r.GetCommandId())
	if finished || s.commands[r.GetCommandId()] != nil {
		return proto.Status_STATUS_ALREADY, ""
	}
	if len(s.commands) >= proto.MaxProcesses {
		return proto.Status_STATUS_BUSY, fmt.Sprintf("%d Commands, no more are allowed", len(s.commands))
	}
	c := &command{id: r.GetCommandId()}
	c.streams[0].first, c.streams[1].first = 1, 1
	s.commands[c.id] = c
	go s.runCommand(c, r)
	return proto.Status_STATUS_OK, ""
}

func (s *Server) runCommand(c *command, r *proto.ExecCommand) {
	if why := r.GetRefused(); why != "" {
		s.finishCommand(c, scope.Result{}, errors.New(why))
		return
	}
	inside, outside, err := commandPipes(len(r.GetStdin()) > 0)
	if err != nil {
		s.finishCommand(c, scope.Result{}, err)
		return
	}
	sc, err := s.scopes.Start(scope.Spec{
		Argv: r.GetArgv(), Env: r.GetEnv(), Dir: r.GetCwd(), User: r.GetUser(), Files: inside,
	}, func(text string) { s.log.Warn("command", "command", c.id, "note", text) })
	for _, f := range inside {
		_ = f.Close()
	}
	defer func() {
		for _, f := range outside {
			_ = f.Close()
		}
	}()
	if err != nil {
		s.finishCommand(c, scope.Result{}, err)
		return
	}
	s.mu.Lock()
	c.scope = sc
	if c.killed {
		sc.Kill()
	}
	s.mu.Unlock()
	if stdin := outside[2:]; len(stdin) > 0 {
		go func() {
			_, _ = io.Copy(stdin[0], bytes.NewReader(r.GetStdin()))
			_ = stdin[0].Close()
		}()
	}
	ended := make(chan struct{}, 2)
	for i := range 2 {
		go func() {
			s.readOutput(&c.streams[i], outside[i])
			ended <- struct{}{}
		}()
	}
	select {
	case <-sc.Started():
		s.commandStarted(c, time.Duration(r.GetTimeoutMs())*time.Millisecond)
	case <-sc.Done():
	}
	result := sc.Result()
	// The scope is dead, so both streams end, unless one was handed to a process outside of it; what they hold is
	// read as fast as the Worker acknowledges.
	s.drainOutput(c, outside[:2], ended)
	s.finishCommand(c, result, nil)
}

func (s *Server) drainOutput(c *command, streams []*os.File, ended <-chan struct{}) {
	for open := 2; open > 0; {
		select {
		case <-ended:
			open--
		case <-time.After(drainLogs):
			s.mu.Lock()
			waiting := s.fullLocked(&c.streams[0]) || s.fullLocked(&c.streams[1])
			s.mu.Unlock()
			if !waiting {
				for _, f := range streams {
					_ = f.SetReadDeadline(time.Now())
				}
			}
		}
	}
}

// commandPipes opens stdin, stdout and stderr of a Command; outside are the other ends of stdout and stderr, and that of
// stdin if it is not empty from the beginning. os.Pipe would do with twice the system calls.
func commandPipes(stdin bool) (inside, outside []*os.File, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, f := range append(inside, outside...) {
			_ = f.Close()
		}
	}()
	for _, i := range []int{1, 2, 0} {
		var fds [2]int
		if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
			return inside, outside, fmt.Errorf("open the pipes of a Command: %w", err)
		}
		mine, theirs := fds[0], fds[1]
		if i == 0 {
			mine, theirs = theirs, mine
			if !stdin {
				_ = syscall.Close(mine)
				inside = append([]*os.File{os.NewFile(uintptr(theirs), "stdin")}, inside...)
				continue
			}
		}
		if err := syscall.SetNonblock(mine, true); err != nil {
			_, _ = syscall.Close(mine), syscall.Close(theirs)
			return inside, outside, fmt.Errorf("open the pipes of a Command: %w", err)
		}
		outside = append(outside, os.NewFile(uintptr(mine), "pipe"))
		if i == 0 {
			inside = append([]*os.File{os.NewFile(uintptr(theirs), "stdin")}, inside...)
		} else {
			inside = append(inside, os.NewFile(uintptr(theirs), "pipe"))
		}
	}
	return inside, outside, nil
}

// startedDelay is how long the word that a program runs waits for company: the end of a short one comes with it.
const startedDelay = 25 * time.Millisecond

// commandStarted begins the execution time.
func (s *Server) commandStarted(c *command, timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.started = true
	if timeout > 0 && c.end == proto.CommandEnd_COMMAND_END_UNSPECIFIED {
		c.timer = time.AfterFunc(timeout, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.stopLocked(c, proto.CommandEnd_COMMAND_END_TIMED_OUT)
		})
	}
	c.news = time.AfterFunc(startedDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wakeLocked()
	})
}

// readOutput numbers and keeps the chunks of one stream until its end.
func (s *Server) readOutput(b *outputBuffer, file io.Reader) {
	buf := make([]byte, proto.MaxChunk)
	for {
		s.mu.Lock()
		for s.fullLocked(b) {
			s.room.Wait()
		}
		s.mu.Unlock()
		n, err := file.Read(buf)
		if n > 0 {
			s.mu.Lock()
			s.keepLocked(b, buf[:n])
			s.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

func (s *Server) finishCommand(c *command, result scope.Result, fault error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []*time.Timer{c.timer, c.news} {
		if t != nil {
			t.Stop()
		}
	}
	e := &proto.CommandExited{CommandId: c.id, End: proto.CommandEnd_COMMAND_END_EXITED}
	switch {
	case c.end != proto.CommandEnd_COMMAND_END_UNSPECIFIED:
		e.End = c.end
	case fault != nil:
		e.End, e.Detail = proto.CommandEnd_COMMAND_END_FAULT, fault.Error()
	case result.Failed != "":
		// As from a shell, so that whoever looks at the output learns why.
		s.keepLocked(&c.streams[1], []byte("helmr: cannot run "+short(result.Failed)+"\n"))
		e.ExitCode, e.Detail = 126, result.Failed
		if result.Errno == syscall.ENOENT {
			e.ExitCode = 127
		}
	case result.Signal != 0:
		e.ExitCode = 128 + int32(result.Signal)
	default:
		e.ExitCode = int32(result.Code)
	}
	e.Detail = short(e.Detail)
	c.exited = e
	s.wakeLocked()
}

func (s *Server) cancelCommand(r *proto.CancelCommand) (proto.Status, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.commands[r.GetCommandId()]
	if c == nil {
		return proto.Status_STATUS_UNKNOWN, ""
	}
	if c.exited != nil {
		return proto.Status_STATUS_ALREADY, ""
	}
	s.stopLocked(c, proto.CommandEnd_COMMAND_END_CANCELLED)
	return proto.Status_STATUS_OK, ""
}

func (s *Server) ackCommand(r *proto.AckCommand) (proto.Status, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.commands[r.GetCommandId()]
	if c == nil {
		return proto.Status_STATUS_UNKNOWN, ""
	}
	c.startedAcked = c.startedAcked || (r.GetStarted() && c.started)
	s.heldOutput -= c.streams[0].ack(r.GetStdoutThrough()) + c.streams[1].ack(r.GetStderrThrough())
	c.exitedAcked = c.exitedAcked || (r.GetExited() && c.exited != nil)
	s.room.Broadcast()
	return proto.Status_STATUS_OK, ""
}

func (s *Server) forgetCommand(r *proto.ForgetCommand) (proto.Status, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.commands[r.GetCommandId()]
	if c == nil {
		if _, before := s.finished.get(r.GetCommandId()); before {
			return proto.Status_STATUS_ALREADY, ""
		}
		return proto.Status_STATUS_UNKNOWN, ""
	}
	if !c.exitedAcked || len(c.streams[0].chunks)+len(c.streams[1].chunks) > 0 {
		return proto.Status_STATUS_BUSY, "the Command has not ended, or its output is not all acknowledged"
	}
	delete(s.commands, c.id)
	s.finished.put(c.id, struct{}{})
	return proto.Status_STATUS_OK, ""
}
