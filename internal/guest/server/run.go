package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/guest/proto"
	"helmr.dev/helmr/internal/guest/scope"
)

// drainLogs is how long the rest of stdout and stderr may take once the tree is dead. Their ends are then closed,
// unless a process outside of the tree was handed one.
const drainLogs = time.Second

// ends are the outside ends of a process's descriptors.
type ends struct {
	channel, stdout, stderr *os.File
}

func (e *ends) close() {
	_ = e.channel.Close()
	_ = e.stdout.Close()
	_ = e.stderr.Close()
}

// run starts the process, moves its lines, and appends the exited operation when all of it is over.
func (s *Server) run(p *process, r *proto.StartProcess) {
	note := func(text string) {
		s.log.Warn("session process", "session", p.key.session, "epoch", p.key.epoch, "note", text)
	}
	if why := r.GetRefused(); why != "" {
		s.finish(p, scope.Result{Failed: why})
		return
	}
	outside, sc, err := startSession(s.reaper, r, note)
	if err != nil {
		s.finish(p, scope.Result{Failed: err.Error()})
		return
	}
	defer outside.close()
	s.mu.Lock()
	p.scope = sc
	if p.cause != "" {
		sc.Kill()
	}
	s.mu.Unlock()

	read := make(chan struct{})
	go func() {
		defer close(read)
		s.readOps(p, outside.channel)
	}()
	go s.writeLines(p, outside.channel)
	logs := make(chan struct{}, 2)
	for stream, file := range map[proto.Stream]*os.File{
		proto.Stream_STREAM_STDOUT: outside.stdout, proto.Stream_STREAM_STDERR: outside.stderr,
	} {
		go func() {
			s.readLog(p, stream, file)
			logs <- struct{}{}
		}()
	}
	result := sc.Result()
	// What the tree wrote stays readable; the end follows it even if another process was handed the channel.
	if raw, err := outside.channel.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
	<-read
	deadline := time.Now().Add(drainLogs)
	_ = outside.stdout.SetReadDeadline(deadline)
	_ = outside.stderr.SetReadDeadline(deadline)
	<-logs
	<-logs
	s.finish(p, result)
}

// startSession starts the scope of a Session process with its channel as descriptor 3.
func startSession(reaper *scope.Reaper, r *proto.StartProcess, note func(string)) (*ends, *scope.Scope, error) {
	var inside, outside []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			_ = f.Close()
		}
	}
	defer func() { closeAll(inside) }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, err
	}
	inside = append(inside, null)
	for range 2 {
		reader, writer, err := os.Pipe()
		if err != nil {
			closeAll(outside)
			return nil, nil, err
		}
		inside, outside = append(inside, writer), append(outside, reader)
	}
	ours, theirs, err := socketpair()
	if err != nil {
		closeAll(outside)
		return nil, nil, err
	}
	inside, outside = append(inside, theirs), append(outside, ours)
	sc, err := scope.Start(reaper, scope.Spec{Argv: r.GetArgv(), Env: r.GetEnv(), Dir: r.GetCwd(), User: r.GetUser(), Files: inside}, note)
	if err != nil {
		closeAll(outside)
		return nil, nil, err
	}
	return &ends{stdout: outside[0], stderr: outside[1], channel: outside[2]}, sc, nil
}

// socketpair makes two connected stream sockets; ours does not block a thread.
func socketpair() (ours, theirs *os.File, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the process channel: %w", err)
	}
	if err := syscall.SetNonblock(pair[0], true); err != nil {
		_ = syscall.Close(pair[0])
		_ = syscall.Close(pair[1])
		return nil, nil, fmt.Errorf("open the process channel: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), "process channel"), os.NewFile(uintptr(pair[1]), "process channel"), nil
}

// opLine is what the guest reads of an operation.
type opLine struct {
	Seq     int64  `json:"seq"`
	Type    string `json:"type"`
	TurnID  string `json:"turnId"`
	Settled bool   `json:"settled"`
}

// readOps reads operations until the channel ends or the process breaks the protocol. While too much is
// unacknowledged it does not read, so the process waits.
func (s *Server) readOps(p *process, channel io.Reader) {
	r := bufio.NewReaderSize(channel, 64<<10)
	for {
		s.mu.Lock()
		for p.ops.full() {
			s.room.Wait()
		}
		s.mu.Unlock()
		line, err := readLine(r)
		if errors.Is(err, errLineTooLong) {
			s.violate(p, fmt.Sprintf("it wrote a line of more than %d bytes", proto.MaxLine))
			return
		}
		if err != nil {
			// The end; a last line without line feed was cut off by it and is no operation.
			return
		}
		var op opLine
		if err := json.Unmarshal(line, &op); err != nil {
			s.violate(p, fmt.Sprintf("it wrote a malformed line: %v", err))
			return
		}
		if !s.take(p, op, line) {
			return
		}
	}
}

// take appends one operation and follows the state that it tells of.
func (s *Server) take(p *process, op opLine, line []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := p.ops.last() + 1; op.Seq != next {
		p.violateLocked(fmt.Sprintf("it wrote operation %d where %d is due", op.Seq, next))
		return false
	}
	if op.Type == "" || op.Type == "exited" {
		p.violateLocked(fmt.Sprintf("it wrote an operation of type %q", op.Type))
		return false
	}
	p.ops.append(line)
	switch op.Type {
	case "init_done":
		if p.state == proto.ProcessState_PROCESS_STATE_STARTING {
			p.state = proto.ProcessState_PROCESS_STATE_READY
		}
	case "turn_result", "turn_failed", "turn_aborted":
		// After an unsettled abort the process is not reusable; the Worker kills it.
		reusable := op.Type != "turn_aborted" || op.Settled
		if p.state == proto.ProcessState_PROCESS_STATE_SERVING && op.TurnID == p.serving && reusable {
			p.state, p.serving = proto.ProcessState_PROCESS_STATE_READY, ""
		}
	}
	s.wakeLocked()
	return true
}

func (s *Server) violate(p *process, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.violateLocked(detail)
}

var errLineTooLong = errors.New("line too long")

// readLine gives a fresh copy of the next line without its line feed.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > proto.MaxLine+1 {
			return nil, errLineTooLong
		}
		line = append(line, part...)
		if err == nil {
			return line[:len(line)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// writeLines writes queued lines, all that wait in one write, until the process has exited.
func (s *Server) writeLines(p *process, channel io.Writer) {
	for range p.outWake {
		s.mu.Lock()
		lines, size := p.out, p.outBytes
		p.out = nil
		s.mu.Unlock()
		if len(lines) == 0 {
			continue
		}
		joined := make([]byte, 0, size)
		for _, line := range lines {
			joined = append(append(joined, line...), '\n')
		}
		_, err := channel.Write(joined)
		s.mu.Lock()
		p.outBytes -= len(joined)
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// readLog keeps the output of one stream until its end.
func (s *Server) readLog(p *process, stream proto.Stream, file io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := file.Read(buf)
		if n > 0 {
			s.mu.Lock()
			p.logs.add(stream, buf[:n])
			if stream == proto.Stream_STREAM_STDERR {
				p.stderr.add(buf[:n])
			}
			s.wakeLogsLocked()
			s.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// finish appends the exited operation: the last one, whatever else is unacknowledged.
func (s *Server) finish(p *process, result scope.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := exitedOp{
		Seq: p.ops.last() + 1, Type: "exited", Cause: p.cause, Detail: p.detail,
		Stderr: strings.ToValidUTF8(string(p.stderr), "\uFFFD"),
	}
	switch {
	case result.Failed != "":
		op.Cause, op.Detail = causeStartFailed, result.Failed
	case result.Signal != 0:
		name := unix.SignalName(result.Signal)
		op.Signal = &name
	default:
		op.Code = &result.Code
	}
	if op.Cause == "" {
		op.Cause = causeExited
	}
	payload, err := json.Marshal(op)
	if err != nil {
		panic(err) // strings and numbers only
	}
	p.ops.append(payload)
	p.state, p.serving = proto.ProcessState_PROCESS_STATE_EXITED, ""
	if p.stop != nil {
		p.stop.Stop()
	}
	p.out, p.outBytes = nil, 0
	close(p.outWake)
	s.wakeLocked()
	s.wakeLogsLocked()
}
