package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"helmr.dev/helmr/internal/guest/proto"
	"helmr.dev/helmr/internal/guest/scope"
)

type processKey struct {
	session string
	epoch   int64
}

// cause says why a process ended, in its exited operation.
type cause string

const (
	causeExited       = cause("exited")
	causeKilled       = cause("killed")
	causeStopDeadline = cause("stop_deadline")
	causeViolation    = cause("violation")
	causeStartFailed  = cause("start_failed")
)

// process is one epoch of a Session's process. Server.mu guards it.
type process struct {
	key   processKey
	state proto.ProcessState
	// serving is the Turn being served.
	serving string
	// turns and controls are what was passed to the process before.
	turns    *memory[struct{}]
	controls *memory[struct{}]
	ops      opBuffer
	// out holds lines for the process that are not yet written; outWake wakes their writer.
	out      [][]byte
	outBytes int
	outWake  chan struct{}
	logs     logBuffer
	stderr   tail
	// scope is nil until started; cause is set by the first who ended the process, detail by a violation.
	scope  *scope.Scope
	cause  cause
	detail string
	stop   *time.Timer
}

// exitedOp is the last operation of a process, made by the guest.
type exitedOp struct {
	Seq    int64   `json:"seq"`
	Type   string  `json:"type"`
	Code   *int    `json:"code"`
	Signal *string `json:"signal"`
	Stderr string  `json:"stderr"`
	Cause  cause   `json:"cause"`
	Detail string  `json:"detail,omitempty"`
}

func (p *process) exited() bool { return p.state == proto.ProcessState_PROCESS_STATE_EXITED }

// killLocked kills the tree, now or as soon as it exists, and remembers the first cause.
func (p *process) killLocked(why cause) {
	if p.cause == "" {
		p.cause = why
	}
	if p.scope != nil {
		p.scope.Kill()
	}
}

// sendLocked queues one line for the process.
func (p *process) sendLocked(line []byte) {
	if p.exited() {
		return
	}
	p.out = append(p.out, line)
	p.outBytes += len(line) + 1
	if p.outBytes > maxOutBytes {
		p.violateLocked("it does not read its channel")
	}
	select {
	case p.outWake <- struct{}{}:
	default:
	}
}

func (p *process) violateLocked(detail string) {
	if p.cause == "" {
		p.detail = detail
	}
	p.killLocked(causeViolation)
}

// findLocked gives the process of an epoch, or why there is none.
func (s *Server) findLocked(sessionID string, epoch int64) (*process, proto.Status) {
	if p := s.processes[processKey{sessionID, epoch}]; p != nil {
		return p, proto.Status_STATUS_OK
	}
	if newest, ok := s.epochs.get(sessionID); ok && newest != epoch {
		return nil, proto.Status_STATUS_WRONG_EPOCH
	}
	return nil, proto.Status_STATUS_UNKNOWN
}

// checkLine says what is wrong with a line for a process, "" if nothing is.
func checkLine(line []byte) string {
	switch {
	case len(line) == 0 || len(line) > proto.MaxLine:
		return fmt.Sprintf("a line has %d bytes, allowed are 1 to %d", len(line), proto.MaxLine)
	case bytes.IndexByte(line, '\n') >= 0:
		return "a line contains a line feed"
	}
	return ""
}

func (s *Server) startProcess(r *proto.StartProcess) (proto.Status, string) {
	if err := proto.CheckProcess(r.GetSessionId(), r.GetEpoch()); err != nil {
		return proto.Status_STATUS_INVALID, err.Error()
	}
	if wrong := checkLine(r.GetStart()); wrong != "" {
		return proto.Status_STATUS_INVALID, wrong
	}
	if len(r.GetArgv()) == 0 || r.GetArgv()[0] == "" {
		return proto.Status_STATUS_INVALID, "argv is empty"
	}
	key := processKey{r.GetSessionId(), r.GetEpoch()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if newest, ok := s.epochs.get(key.session); ok && newest >= key.epoch {
		if newest > key.epoch {
			return proto.Status_STATUS_WRONG_EPOCH, ""
		}
		return proto.Status_STATUS_ALREADY, ""
	}
	for other, p := range s.processes {
		if other.session == key.session && !p.exited() {
			return proto.Status_STATUS_BUSY, fmt.Sprintf("epoch %d has not ended", other.epoch)
		}
	}
	if len(s.processes) >= proto.MaxProcesses {
		return proto.Status_STATUS_BUSY, fmt.Sprintf("%d processes, no more are allowed", len(s.processes))
	}
	p := &process{
		key: key, state: proto.ProcessState_PROCESS_STATE_STARTING, ops: opBuffer{first: 1}, outWake: make(chan struct{}, 1),
		turns: newMemory[struct{}](maxRemembered), controls: newMemory[struct{}](maxRemembered),
	}
	p.sendLocked(r.GetStart())
	s.epochs.put(key.session, key.epoch)
	s.processes[key] = p
	go s.run(p, r)
	return proto.Status_STATUS_OK, ""
}

func (s *Server) deliverTurn(r *proto.DeliverTurn) (proto.Status, string) {
	if err := proto.CheckID(r.GetTurnId()); err != nil {
		return proto.Status_STATUS_INVALID, err.Error()
	}
	if wrong := checkLine(r.GetLine()); wrong != "" {
		return proto.Status_STATUS_INVALID, wrong
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, status := s.findLocked(r.GetSessionId(), r.GetEpoch())
	if p == nil {
		return status, ""
	}
	if _, before := p.turns.get(r.GetTurnId()); before {
		return proto.Status_STATUS_ALREADY, ""
	}
	if p.state != proto.ProcessState_PROCESS_STATE_READY || p.cause != "" || p.stop != nil {
		return proto.Status_STATUS_NOT_READY, ""
	}
	p.turns.put(r.GetTurnId(), struct{}{})
	p.serving, p.state = r.GetTurnId(), proto.ProcessState_PROCESS_STATE_SERVING
	p.sendLocked(r.GetLine())
	return proto.Status_STATUS_OK, ""
}

// controlLine is what the guest reads of a line from the Worker.
type controlLine struct {
	Type       string `json:"type"`
	TurnID     string `json:"turnId"`
	MessageID  string `json:"messageId"`
	QuestionID string `json:"questionId"`
	Reason     string `json:"reason"`
}

// memoryKey names what may reach the process once only. Lines of other types the guest would not know how to
// repeat safely, so it refuses them.
func (l controlLine) memoryKey() (string, bool) {
	switch l.Type {
	case "message":
		return "message " + l.MessageID, l.MessageID != ""
	case "answer", "question_cancelled":
		return l.Type + " " + l.QuestionID, l.QuestionID != ""
	case "abort":
		return "abort " + l.TurnID + " " + l.Reason, l.TurnID != ""
	case "stop":
		return "stop", true
	}
	return "", false
}

func (s *Server) control(r *proto.Control) (proto.Status, string) {
	if wrong := checkLine(r.GetLine()); wrong != "" {
		return proto.Status_STATUS_INVALID, wrong
	}
	var line controlLine
	if err := json.Unmarshal(r.GetLine(), &line); err != nil {
		return proto.Status_STATUS_INVALID, err.Error()
	}
	memoryKey, ok := line.memoryKey()
	if !ok {
		return proto.Status_STATUS_INVALID, fmt.Sprintf("a line of type %q without an id, or of a type that is no control", line.Type)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, status := s.findLocked(r.GetSessionId(), r.GetEpoch())
	if p == nil {
		return status, ""
	}
	if _, before := p.controls.get(memoryKey); before {
		return proto.Status_STATUS_ALREADY, ""
	}
	if p.exited() {
		return proto.Status_STATUS_NOT_READY, "the process has exited"
	}
	p.controls.put(memoryKey, struct{}{})
	p.sendLocked(r.GetLine())
	if line.Type == "stop" {
		p.stop = time.AfterFunc(s.cfg.StopDeadline, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			p.killLocked(causeStopDeadline)
		})
	}
	return proto.Status_STATUS_OK, ""
}

func (s *Server) kill(r *proto.Kill) (proto.Status, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, status := s.findLocked(r.GetSessionId(), r.GetEpoch())
	if p == nil {
		return status, ""
	}
	if p.exited() {
		return proto.Status_STATUS_ALREADY, ""
	}
	p.killLocked(causeKilled)
	return proto.Status_STATUS_OK, ""
}

// ack drops acknowledged operations and passes the answers on. An error means that the Worker and the guest
// disagree about what was sent; a new connection lets both begin again from the same place.
func (s *Server) ack(r *proto.Acks) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, _ := s.findLocked(r.GetSessionId(), r.GetEpoch())
	if p == nil {
		return nil
	}
	for _, a := range r.GetAcks() {
		if wrong := checkLine(a.GetLine()); wrong != "" && len(a.GetLine()) > 0 {
			return fmt.Errorf("session %s epoch %d, answer to operation %d: %s", p.key.session, p.key.epoch, a.GetSeq(), wrong)
		}
		due, err := p.ops.ack(a.GetSeq(), a.GetLine())
		if err != nil {
			return fmt.Errorf("session %s epoch %d: %w", p.key.session, p.key.epoch, err)
		}
		for _, line := range due {
			p.sendLocked(line)
		}
	}
	s.room.Broadcast()
	return nil
}

func (s *Server) forget(r *proto.Forget) (proto.Status, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, status := s.findLocked(r.GetSessionId(), r.GetEpoch())
	if p == nil {
		if newest, ok := s.epochs.get(r.GetSessionId()); ok && newest >= r.GetEpoch() {
			return proto.Status_STATUS_ALREADY, ""
		}
		return status, ""
	}
	if !p.exited() || len(p.ops.ops) > 0 {
		return proto.Status_STATUS_BUSY, "the process has not exited, or its operations are not all acknowledged"
	}
	delete(s.processes, p.key)
	return proto.Status_STATUS_OK, ""
}
