package turn_test

import (
	"fmt"
	"slices"
)

// model is what the tables of the contract say about the Sessions of one Computer, in memory and without a database.
// Each action gives the code it is refused with, "" if it is accepted, and adds the events it causes to the logs.
type model struct {
	now      int64 // ms
	sessions []*mSession
	placed   bool     // a Worker has the Computer
	saving   bool     // the Worker captures a Save
	covered  []*mTurn // the Turns of the Save whose capture has begun
	waiting  []*mTurn // Turns whose Save has not begun
	mSleep
}

type mSession struct {
	id                   string
	parent               *mSession
	key                  string
	status               string
	closeAfter, deadline int64 // ms; 0: none
	hibernateAfter       int64 // ms; 0: never
	holds                []*mHold
	turns                []*mTurn
	p                    *mProcess
	epoch, failures      int64
	initialised          bool
	recovery             string
	idleSince            int64 // -1: not idle
	released             bool
	log                  []string
}

type mHold struct{ id, reason string } // id "" until somebody asks for it

type mTurn struct {
	id, status, code, abort     string
	open                        bool
	abortAt, deadlineAt, number int64
	messages                    []*mMessage
	questions                   []*mQuestion
}

type mMessage struct{ id, status string }

type mQuestion struct{ id, content, status, responseID, answer string }

type mProcess struct {
	epoch              int64
	status             string // starting, ready, serving, stopping
	stop, failure      string
	stoppingAt         int64
	known, delivered   bool // the guest has it; and the present Turn
	dead               bool // it has exited, which the server may not know yet
	recoveryOfThisLife string
}

func (s *mSession) emit(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *mSession) terminal() bool { return s.status == "closed" || s.status == "cancelled" }

func (s *mSession) head() *mTurn {
	for _, t := range s.turns {
		if t.status == "queued" || t.status == "running" || t.status == "finalizing" {
			return t
		}
	}
	return nil
}

func (s *mSession) busy() bool { return s.head() != nil && s.head().status == "running" }

func (s *mSession) held() bool {
	if len(s.holds) > 0 {
		return true
	}
	for up := s.parent; up != nil; up = up.parent {
		if slices.ContainsFunc(up.holds, func(h *mHold) bool { return h.reason == "interrupt" }) {
			return true
		}
	}
	return false
}

func (s *mSession) runnable() bool {
	return s.head() != nil && s.head().status == "queued" && !s.held() && !s.terminal()
}

func (s *mSession) processing() bool { return s.busy() && s.head().open && s.head().abort == "" }

func (m *model) children(s *mSession) (out []*mSession) {
	for _, c := range m.sessions {
		if c.parent == s {
			out = append(out, c)
		}
	}
	return out
}

func (m *model) eachBelow(s *mSession, do func(*mSession)) {
	for _, c := range m.children(s) {
		do(c)
		m.eachBelow(c, do)
	}
}

// admit queues a Turn; its id is set by whoever learns it.
func (m *model) admit(s *mSession) *mTurn {
	t := &mTurn{status: "queued", number: int64(len(s.turns) + 1)}
	s.turns = append(s.turns, t)
	s.idleSince = -1
	return t
}

func (m *model) enqueue(s *mSession) string {
	switch {
	case s.terminal():
		return "session_terminal"
	case s.status != "open":
		return "session_not_open"
	}
	return ""
}

func (m *model) send(s *mSession) (kind, refused string) {
	switch {
	case s.terminal():
		return "", "session_terminal"
	case s.processing() && !s.held():
		return "messaged", ""
	case s.status != "open":
		return "", "session_not_open"
	case s.held():
		return "", "admission_unavailable/session_held"
	}
	return "enqueued", ""
}

func (m *model) message(s *mSession, t *mTurn) string {
	if s.head() != t || !s.processing() || s.held() || s.terminal() {
		return "message_closed"
	}
	return ""
}

func (m *model) accept(s *mSession, messageID string) {
	t := s.head()
	t.messages = append(t.messages, &mMessage{messageID, "admitted"})
	s.emit("message.admitted %s %s admitted ", t.id, messageID)
}

func (m *model) close(s *mSession) string {
	switch s.status {
	case "cancelled":
		return "session_terminal"
	case "open":
		m.closing(s, "control")
	}
	return ""
}

func (m *model) closing(s *mSession, cause string) {
	s.status = "closing"
	s.emit("session.close %s", cause)
	m.settle(s)
}

func (m *model) cancel(s *mSession) string {
	switch s.status {
	case "closed":
		return "session_terminal"
	case "cancelled":
		return ""
	}
	m.cancelOne(s, "control")
	m.eachBelow(s, func(c *mSession) {
		if !c.terminal() {
			m.cancelOne(c, "parent")
		}
	})
	return ""
}

func (m *model) cancelOne(s *mSession, cause string) {
	s.status = "cancelled"
	s.emit("session.cancel %s", cause)
	m.abort(s, "cancelled")
	m.cancelQueued(s)
	m.settle(s)
}

func (m *model) cancelQueued(s *mSession) {
	for _, t := range s.turns {
		if t.status == "queued" {
			t.status = "cancelled"
			s.emit("turn.cancelled %s", t.id)
		}
	}
}

// interrupt gives whether a hold is placed; holdID is its id.
func (m *model) interrupt(s *mSession, holdID string) string {
	if s.terminal() {
		return "session_terminal"
	}
	if !slices.ContainsFunc(s.holds, func(h *mHold) bool { return h.reason == "interrupt" }) {
		s.holds = append(s.holds, &mHold{holdID, "interrupt"})
		s.emit("session.interrupt %s", holdID)
	}
	stop := func(s *mSession) {
		m.abort(s, "interrupted")
		m.settle(s)
	}
	stop(s)
	m.eachBelow(s, stop)
	return ""
}

func (m *model) resume(s *mSession, holdID string) string {
	if s.terminal() {
		return "session_terminal"
	}
	i := slices.IndexFunc(s.holds, func(h *mHold) bool { return h.id == holdID })
	if i < 0 {
		return "hold_not_active"
	}
	if s.holds[i].reason == "process_failures" {
		s.failures = 0
	}
	s.holds = slices.Delete(s.holds, i, i+1)
	s.emit("session.resume %s", holdID)
	settle := func(s *mSession) {
		m.settle(s)
		m.want(s)
	}
	settle(s)
	m.eachBelow(s, settle)
	return ""
}

// abort asks the running handler to stop: its Questions are cancelled. Cancelled outdoes every other reason.
func (m *model) abort(s *mSession, reason string) bool {
	t := s.head()
	if !s.busy() || t.abort == reason || (t.abort != "" && reason != "cancelled") {
		return false
	}
	if t.abort == "" {
		t.abortAt = m.now
	}
	t.abort = reason
	m.cancelQuestions(s, t)
	return true
}

func (m *model) cancelQuestions(s *mSession, t *mTurn) {
	for _, q := range t.questions {
		if q.status == "pending" {
			q.status = "cancelled"
			s.emit("question.cancelled %s %s", t.id, q.id)
		}
	}
}

func (m *model) respond(s *mSession, t *mTurn, q *mQuestion, responseID, answer string) string {
	switch {
	case q.status == "responded" && q.responseID != responseID:
		return "question_already_responded"
	case q.status == "responded" && q.answer != answer:
		return "idempotency_conflict"
	case q.status == "responded":
		return ""
	case q.status == "cancelled" || t.status != "running" || t.abort != "" || (t.deadlineAt > 0 && t.deadlineAt <= m.now):
		return "question_cancelled"
	case answer[0] != '"':
		return "answer_invalid"
	}
	q.status, q.responseID, q.answer = "responded", responseID, answer
	s.emit("question.responded %s %s", t.id, q.id)
	return ""
}

// settleMessages ends Messages: how says why.
func (m *model) settleMessages(s *mSession, t *mTurn, lost, startedToo bool) {
	for _, msg := range t.messages {
		switch {
		case msg.status == "admitted":
			msg.status = "rejected"
			s.emit("message.rejected %s %s not_delivered turn_closed", t.id, msg.id)
		case msg.status == "started" && startedToo:
			msg.status = "rejected"
			why := "turn_closed"
			if lost {
				why = "process_lost"
			}
			s.emit("message.rejected %s %s uncertain %s", t.id, msg.id, why)
		}
	}
}

// end ends the first Turn of s.
func (m *model) end(s *mSession, status, code string, lost bool) {
	t := s.head()
	if t.status == "running" {
		m.cancelQuestions(s, t)
		m.settleMessages(s, t, lost, true)
	}
	t.status, t.code, t.open = status, code, false
	s.emit("turn.%s %s", status, t.id+suffix(code))
}

func suffix(code string) string {
	if code == "" {
		return ""
	}
	return " " + code
}

func (m *model) endAborted(s *mSession, lost bool) {
	codes := map[string]string{"interrupted": "interrupted", "deadline": "deadline_exceeded", "shutdown": "shutdown"}
	if a := s.head().abort; a == "cancelled" {
		m.end(s, "cancelled", "", lost)
	} else {
		m.end(s, "interrupted", codes[a], lost)
	}
}

// settle takes the steps that follow from a Session's state.
func (m *model) settle(s *mSession) {
	if s.status == "closing" && !s.runnable() && (s.head() == nil || s.head().status == "queued") &&
		!slices.ContainsFunc(m.children(s), func(c *mSession) bool { return !c.terminal() }) {
		m.cancelQueued(s)
		s.status = "closed"
		s.emit("session.closed")
	}
	if s.terminal() {
		s.idleSince = -1
		if s.p != nil && m.hibernated {
			m.unpark(s)
		}
		if s.p != nil && !s.busy() {
			s.p.stopFor(map[string]string{"closed": "closed", "cancelled": "cancelled"}[s.status], m.now)
		}
		if s.p == nil && s.head() == nil && !s.released {
			s.released = true
			if s.status == "cancelled" {
				s.emit("session.cancelled")
			}
		}
		return
	}
	queued := slices.ContainsFunc(s.turns, func(t *mTurn) bool { return t.status == "queued" })
	switch idle := !s.busy() && !(queued && !s.held()); {
	case !idle:
		s.idleSince = -1
	case s.idleSince < 0:
		s.idleSince = m.now
	}
}

func (p *mProcess) stopFor(reason string, now int64) {
	if p.status != "stopping" {
		p.status, p.stop, p.stoppingAt = "stopping", reason, now
	}
}

// mOp is an operation of a process.
type mOp struct {
	typ, turnID, id, content, reason string
	settled, callback                bool
}

// apply carries out an operation of the living process of s and gives the code it is refused with.
func (m *model) apply(s *mSession, o mOp) string {
	switch o.typ {
	case "init_done":
		if s.p.status == "starting" {
			s.p.status, s.initialised = "ready", true
		}
		return ""
	case "init_failed":
		s.p.failure = "init_failed"
		return ""
	case "exited":
		m.exited(s)
		return ""
	}
	t := s.head()
	if t == nil || t.id != o.turnID || t.status != "running" {
		return "output_closed"
	}
	switch o.typ {
	case "output":
		s.emit("turn.output %s", t.id)
	case "processing_closed":
		t.open = false
		m.settleMessages(s, t, false, false)
	case "message_started", "message_delivered", "message_rejected":
		return m.messageOp(s, t, o)
	case "question":
		return m.ask(s, t, o)
	case "question_withdrawn":
		return m.withdraw(s, t, o)
	case "turn_result":
		m.result(s, t)
	case "turn_failed":
		if t.abort != "" {
			m.aborted(s, true, false)
			break
		}
		m.served(s)
		m.end(s, "failed", "handler_failed", false)
	case "turn_aborted":
		if t.abort == "" {
			return "invalid_arguments"
		}
		m.aborted(s, o.settled, o.callback)
	}
	m.settle(s)
	return ""
}

// served says that the process is free again and healthy.
func (m *model) served(s *mSession) {
	if s.p.status == "serving" {
		s.p.status = "ready"
	}
	s.failures = 0
}

func (m *model) messageOp(s *mSession, t *mTurn, o mOp) string {
	i := slices.IndexFunc(t.messages, func(msg *mMessage) bool { return msg.id == o.id })
	from := map[string]string{"message_started": "admitted", "message_delivered": "started", "message_rejected": "started"}[o.typ]
	if i < 0 || t.messages[i].status != from || (o.typ == "message_started" && !s.processing()) {
		return "message_closed"
	}
	msg := t.messages[i]
	switch o.typ {
	case "message_started":
		msg.status = "started"
		s.emit("message.started %s %s started ", t.id, msg.id)
	case "message_delivered":
		msg.status = "delivered"
		s.emit("message.delivered %s %s delivered ", t.id, msg.id)
	default:
		msg.status = "rejected"
		delivery := map[string]string{"message_rejected": "not_delivered", "callback_failed": "uncertain"}[o.reason]
		s.emit("message.rejected %s %s %s %s", t.id, msg.id, delivery, o.reason)
	}
	return ""
}

func (m *model) ask(s *mSession, t *mTurn, o mOp) string {
	if s.parent != nil {
		return "root_session_required"
	}
	for _, q := range t.questions {
		if q.id == o.id {
			if q.content != o.content {
				return "idempotency_conflict"
			}
			return ""
		}
	}
	if !s.processing() {
		return "question_cancelled"
	}
	t.questions = append(t.questions, &mQuestion{id: o.id, content: o.content, status: "pending"})
	s.emit("question.created %s %s", t.id, o.id)
	return ""
}

func (m *model) withdraw(s *mSession, t *mTurn, o mOp) string {
	for _, q := range t.questions {
		switch {
		case q.id != o.id:
		case q.status == "responded":
			return "question_already_responded"
		case q.status == "pending":
			q.status = "cancelled"
			s.emit("question.cancelled %s %s", t.id, q.id)
			return ""
		default:
			return ""
		}
	}
	return "not_found"
}

func (m *model) result(s *mSession, t *mTurn) {
	open := slices.ContainsFunc(t.questions, func(q *mQuestion) bool { return q.status == "pending" }) ||
		slices.ContainsFunc(t.messages, func(msg *mMessage) bool { return msg.status == "admitted" || msg.status == "started" })
	switch {
	case t.abort != "":
		m.aborted(s, true, false)
	case open:
		m.served(s)
		m.end(s, "failed", "drain_failed", false)
	default:
		t.status, t.open = "finalizing", false
		s.emit("turn.finalizing %s", t.id)
		m.waiting = append(m.waiting, t)
		if s.p.status == "serving" {
			s.p.status = "ready"
		}
	}
}

func (m *model) aborted(s *mSession, settled, callback bool) {
	reason := s.head().abort
	stops := reason == "deadline" || reason == "shutdown"
	m.endAborted(s, !settled)
	switch {
	case !settled && (callback || !stops):
		s.p.stopFor("cancellation_failed", m.now)
	case stops:
		if !settled {
			s.p.failure = "stop_deadline"
		}
		s.p.stopFor(reason, m.now)
	default:
		m.served(s)
	}
}

const stopLimit = 12_000 // the stop deadline, or the cleanup period, and what is added to it outside

func (m *model) exited(s *mSession) {
	p := s.p
	if s.busy() {
		abort := s.head().abort
		if abort == "" {
			m.end(s, "interrupted", "process_lost", true)
		} else {
			m.endAborted(s, true)
			if p.stop == "" {
				p.stop, p.stoppingAt = "cancellation_failed", m.now
				if abort == "deadline" || abort == "shutdown" {
					p.stop, p.failure = abort, "stop_deadline"
				}
			}
		}
	}
	s.p = nil
	failure := p.failure
	if failure == "" && p.stop == "" {
		failure = "process_exited"
	}
	if failure == "" && p.stop != "cancellation_failed" && m.now >= p.stoppingAt+stopLimit {
		failure = "stop_deadline"
	}
	s.recovery = "process_failed"
	if failure == "" {
		if p.stop == "cancellation_failed" || p.stop == "deadline" || p.stop == "shutdown" {
			s.recovery = p.stop
		}
		s.emit("session.process_stopped %d %s", p.epoch, p.stop)
		if p.stop == "cancellation_failed" && !s.terminal() {
			m.hold(s, "cancellation_failed")
		}
	} else {
		s.failures++
		s.emit("session.process_failed %d %s %d", p.epoch, failure, s.failures)
		if s.failures >= 3 && !s.terminal() && !slices.ContainsFunc(s.holds, func(h *mHold) bool { return h.reason == "process_failures" }) {
			m.hold(s, "process_failures")
		}
	}
	m.settle(s)
}

func (m *model) hold(s *mSession, reason string) {
	s.holds = append(s.holds, &mHold{reason: reason})
	s.emit("session.held %s", reason)
}

// reconcile is what an Exchange does for one Session after its operations. told says that the Worker hears the answer.
// It gives whether the process is killed.
func (m *model) reconcile(s *mSession, told bool) (kill bool) {
	if s.released {
		return false
	}
	if s.p == nil {
		if s.runnable() {
			s.epoch++
			s.p = &mProcess{epoch: s.epoch, status: "starting", known: told, recoveryOfThisLife: "initial"}
			if s.initialised {
				s.p.recoveryOfThisLife = "reconstructed " + s.recovery
			}
		}
		return false
	}
	p := s.p
	if !p.known && p.status != "starting" {
		m.exited(s)
		return false
	}
	if p.status == "ready" && s.runnable() {
		t := s.head()
		t.status, t.open = "running", true
		if s.deadline > 0 {
			t.deadlineAt = m.now + s.deadline
		}
		p.status, p.delivered = "serving", false
		s.emit("turn.running %s %d %s", t.id, p.epoch, p.recoveryOfThisLife)
		m.settle(s)
	}
	over := p.status == "stopping" && (p.stop == "cancellation_failed" || m.now >= p.stoppingAt+stopLimit) ||
		p.status != "stopping" && s.busy() && s.head().abort != "" && m.now >= s.head().abortAt+stopLimit
	switch {
	case p.status == "starting" && !p.known:
		p.known = told
	case over:
		return told
	case s.busy() && told:
		p.delivered = true
	}
	return false
}

// disk begins the next Save if none is being captured. From then on no Turn joins it, also if the Worker was not told.
func (m *model) disk(told bool) {
	if m.saving {
		return
	}
	if len(m.covered) == 0 {
		m.covered, m.waiting = m.waiting, nil
	}
	m.saving = told && len(m.covered) > 0
}

func (m *model) publish() {
	for _, s := range m.sessions {
		if t := s.head(); t != nil && slices.Contains(m.covered, t) {
			t.status = "completed"
			s.emit("turn.completed %s", t.id)
			s.failures = 0
			m.settle(s)
		}
	}
	m.saving, m.covered = false, nil
}

func (m *model) deadlines() {
	for _, s := range m.sessions {
		if t := s.head(); s.busy() && t.abort == "" && t.deadlineAt > 0 && t.deadlineAt <= m.now {
			s.emit("session.deadline %s", t.id)
			m.abort(s, "deadline")
		}
	}
}

// idle closes one Session whose time has come and gives whether it did.
func (m *model) idle() bool {
	closed := false
	for _, s := range m.sessions {
		if s.status != "open" || s.idleSince < 0 || s.closeAfter == 0 || s.idleSince+s.closeAfter > m.now || (s.head() != nil && s.head().status == "finalizing") ||
			slices.ContainsFunc(m.children(s), func(c *mSession) bool { return !c.terminal() }) {
			continue
		}
		m.closing(s, "idle")
		closed = true
	}
	return closed
}

// parents lets closing Sessions go on that waited for children.
func (m *model) parents() {
	for range m.sessions {
		for _, s := range m.sessions {
			if s.status == "closing" {
				m.settle(s)
			}
		}
	}
}
