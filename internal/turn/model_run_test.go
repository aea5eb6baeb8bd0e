package turn_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/id"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Random histories of client calls, process operations, failures, lost answers and clock steps, each step checked against
// the model of the tables. HELMR_MODEL_SEEDS says how many histories (6), HELMR_MODEL_SEED runs one of them again.
func TestModel(t *testing.T) {
	t.Parallel()
	const steps = 250
	seeds := setting(t, "HELMR_MODEL_SEEDS", 6)
	first := uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	if s := setting(t, "HELMR_MODEL_SEED", 0); s != 0 {
		first, seeds = s, 1
	}
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		base := setup(t, d)
		base.limits(100, 1000, 1<<30)
		seen := map[string]int{}
		defer func() { t.Logf("events: %v", seen) }()
		for n := range seeds {
			seed := first + n
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				own := *base
				own.t = t
				_, err := own.computers.RegisterWorker(t.Context(), &workerpb.RegisterRequest{Name: "w1", Secret: strings.Repeat("s", 32), CpuMillis: 1 << 20, MemoryMib: 1 << 30, DiskMib: 1 << 40})
				own.must(err)
				own.clock.advance(time.Hour) // the rate bucket is full again
				r := &run{w: &own, m: &model{now: db.Millis(own.clock.now())}, rng: rand.New(rand.NewPCG(seed, seed)), ops: map[string][]*queued{}, calm: seed%2 == 0, sleepy: seed%3 != 0}
				defer func() {
					if t.Failed() {
						t.Logf("HELMR_MODEL_SEED=%d repeats this; it went\n  %s", seed, strings.Join(r.trace[max(0, len(r.trace)-60):], "\n  "))
					}
				}()
				for n := range steps {
					r.step()
					if n%4 == 0 { // looking costs more than doing
						r.verify()
					}
				}
				r.verify()
				r.verifyAll()
				seen["hibernated"] += r.slept
				for _, s := range r.m.sessions {
					for _, line := range s.log {
						kind, _, _ := strings.Cut(line, " ")
						seen[kind]++
					}
				}
			})
		}
	})
}

func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// run drives the rooms and the model side by side.
type run struct {
	w     *world
	m     *model
	rng   *rand.Rand
	h     *host
	ops   map[string][]*queued // by Session: what its process has said and was not acknowledged
	past  []func() (got, want string)
	trace []string
	keys  int
	// calm histories have few failures and controls, so that conversations get far; in the others little gets to its end.
	calm bool
	// sleepy histories are of Agents that hibernate. captured is the guest's part of a memory, slept counts them.
	sleepy   bool
	captured map[string]*proc
	slept    int
}

// queued is an operation on its way. want is what it is answered once it was applied; "?" is not checked.
type queued struct {
	p       *proc
	seq     int64
	op      mOp
	applied bool
	want    string
}

func (r *run) note(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
}

func (r *run) chance(percent int) bool { return r.rng.IntN(100) < percent }

func pick[T any](r *run, from []T) T { return from[r.rng.IntN(len(from))] }

func (r *run) agree(what, got, want string) {
	r.w.t.Helper()
	if got != want {
		r.w.t.Fatalf("%s: %q, the model says %q", what, got, want)
	}
}

func (r *run) step() {
	live := slices.DeleteFunc(slices.Clone(r.m.sessions), func(s *mSession) bool { return s.released })
	most := 6
	if r.sleepy {
		most = 2
	}
	if len(live) == 0 || (len(live) < most && r.chance(6)) {
		r.create()
		return
	}
	if !r.m.placed {
		if slices.ContainsFunc(live, (*mSession).runnable) && r.chance(60) {
			r.place(live[0])
			return
		}
		r.client(pick(r, live))
		return
	}
	switch {
	case r.h.capture != "":
		r.frozen()
		return
	case r.m.resuming && r.chance(10):
		r.lose()
		return
	case r.sleepy && r.m.quiet() && !r.m.saving && len(r.m.covered)+len(r.m.waiting) == 0 && r.chance(40):
		r.doze()
		return
	}
	switch n := r.rng.IntN(100); {
	case n < 50:
		if !r.process(live) {
			r.exchange(true)
		}
	case n < 78:
		s := pick(r, live)
		if r.chance(10) {
			s = pick(r, r.m.sessions)
		}
		r.client(s)
	case n < 84:
		r.exchange(r.chance(80))
	case n < 91:
		if r.m.saving {
			r.note("publish")
			r.h.publish()
			r.m.publish()
		}
	case n < 98 && r.calm && r.chance(70):
		r.exchange(true)
	case n < 98:
		r.time()
	case n < 99 && len(r.past) > 0:
		got, want := pick(r, r.past)()
		r.note("repeat: %s", want)
		r.agree("a repeated call", got, want)
	case r.calm && r.chance(80):
		r.exchange(true)
	default:
		r.lose()
	}
}

// time lets time pass, and mostly somebody notices.
func (r *run) time() {
	d := pick(r, []time.Duration{300 * time.Millisecond, 1100 * time.Millisecond, 13 * time.Second, 61 * time.Second})
	r.w.clock.advance(d)
	r.m.now += d.Milliseconds()
	r.note("%s pass", d)
	if r.chance(80) {
		r.note("deadlines")
		r.w.run("turn.deadlines")
		r.m.deadlines()
	}
	if r.chance(70) {
		r.note("idle")
		for range 4 {
			r.w.run("turn.idle")
			r.w.run("turn.closing")
			r.m.idle()
			r.m.parents()
		}
	}
}

func (r *run) create() {
	children := 30
	if r.sleepy {
		children = 5 // they never hibernate here
	}
	if r.m.placed && len(r.m.sessions) > 0 && r.chance(children) {
		open := slices.DeleteFunc(slices.Clone(r.m.sessions), func(s *mSession) bool { return s.status != "open" })
		if len(open) > 0 {
			parent := pick(r, open)
			sessionID, turnID := r.w.child(parent.id)
			r.note("child %s of %s with turn %s", short(sessionID), short(parent.id), short(turnID))
			r.m.sessions = append(r.m.sessions, &mSession{id: sessionID, parent: parent, status: "open", idleSince: -1,
				turns: []*mTurn{{id: turnID, status: "queued", number: 1}}})
			return
		}
	}
	req := api.SessionCreateRequest{Agent: pick(r, []string{"echo", "quick"}), Input: text("x"), Key: pick(r, []string{"", "", "k1", "k2"})}
	if req.Key != "" {
		req.Key += r.w.t.Name() // of this history
	}
	if r.sleepy && r.chance(95) {
		req.Agent = "sleepy"
	}
	if len(r.m.sessions) > 0 {
		req.ComputerID = r.w.session(r.m.sessions[0].id).ComputerID
	}
	var taken *mSession
	for _, s := range r.m.sessions {
		if req.Key != "" && s.key == req.Agent+req.Key && !s.terminal() {
			taken = s
		}
	}
	receipt, err := r.w.turns.CreateSession(r.w.t.Context(), r.w.env, r.w.by, req, nil)
	r.note("create %s key %q: %s %s", req.Agent, req.Key, short(receipt.SessionID), code(err))
	if taken != nil {
		r.agree("create with a taken key", code(err), r.m.enqueue(taken))
		if err == nil {
			r.admitted(taken, receipt.TurnID, receipt.Sequence)
		}
		return
	}
	r.agree("create", code(err), "")
	s := &mSession{id: receipt.SessionID, status: "open", idleSince: -1, closeAfter: (7 * 24 * time.Hour).Milliseconds()}
	if req.Key != "" {
		s.key = req.Agent + req.Key
	}
	if req.Agent == "quick" {
		s.closeAfter, s.deadline = time.Minute.Milliseconds(), 1000
	}
	if req.Agent == "sleepy" {
		s.hibernateAfter = time.Minute.Milliseconds()
	}
	r.m.sessions = append(r.m.sessions, s)
	r.admitted(s, receipt.TurnID, receipt.Sequence)
}

func (r *run) admitted(s *mSession, turnID string, sequence int64) {
	t := r.m.admit(s)
	t.id = turnID
	s.emit("turn.queued %s", t.id)
	if sequence != 0 && sequence != t.number {
		r.w.t.Fatalf("sequence %d, the model says %d", sequence, t.number)
	}
	r.m.settle(s)
	r.m.want(s)
}

// key gives an idempotency key for some calls.
func (r *run) key() string {
	if r.chance(70) {
		return ""
	}
	r.keys++
	return fmt.Sprintf("%s-%d", r.w.t.Name(), r.keys)
}

// client makes one call on a Session.
func (r *run) client(s *mSession) {
	w, m := r.w, r.m
	key := r.key()
	control := api.ControlRequest{IdempotencyKey: key}
	choices := 11
	if r.calm && r.chance(80) {
		choices = 5 // no controls
	}
	if r.chance(25) { // what has been asked is answered
		r.respond(s)
		return
	}
	switch r.rng.IntN(choices) {
	case 0, 1:
		call := func() (api.EnqueueReceipt, error) {
			return w.turns.Enqueue(w.t.Context(), w.env, w.by, s.id, api.EnqueueRequest{Input: text("x"), IdempotencyKey: key})
		}
		receipt, err := call()
		r.note("enqueue on %s: %s %s", short(s.id), short(receipt.TurnID), code(err))
		r.agree("enqueue", code(err), m.enqueue(s))
		if err == nil {
			r.admitted(s, receipt.TurnID, receipt.Sequence)
		}
		remember(r, key, receipt, err, call)
	case 2, 3:
		call := func() (api.SendReceipt, error) {
			return w.turns.Send(w.t.Context(), w.env, w.by, s.id, api.SendRequest{Data: text("x"), IdempotencyKey: key})
		}
		receipt, err := call()
		r.note("send to %s: %s %s", short(s.id), receipt.Kind, code(err))
		kind, refused := m.send(s)
		r.agree("send", receipt.Kind+code(err), kind+refused)
		switch kind {
		case "messaged":
			m.accept(s, receipt.MessageID)
		case "enqueued":
			r.admitted(s, receipt.TurnID, 0)
		}
		remember(r, key, receipt, err, call)
	case 4:
		t := pick(r, s.turns)
		call := func() (api.MessageReceipt, error) {
			return w.turns.Message(w.t.Context(), w.env, w.by, s.id, t.id, api.MessageRequest{Data: text("x"), IdempotencyKey: key})
		}
		receipt, err := call()
		r.note("message to turn %s of %s: %s", short(t.id), short(s.id), code(err))
		r.agree("message", code(err), m.message(s, t))
		if err == nil {
			m.accept(s, receipt.MessageID)
		}
		remember(r, key, receipt, err, call)
	case 5:
		call := func() (api.ControlReceipt, error) {
			return w.turns.Interrupt(w.t.Context(), w.env, w.by, s.id, control)
		}
		receipt, err := call()
		r.note("interrupt %s: %s", short(s.id), code(err))
		for _, h := range s.holds {
			if h.reason == "interrupt" && err == nil {
				r.agree("hold of a second interrupt", receipt.HoldID, h.id)
			}
		}
		r.agree("interrupt", code(err), m.interrupt(s, receipt.HoldID))
		remember(r, key, receipt, err, call)
	case 6:
		r.resume(s, key)
	case 7, 8:
		r.respond(s)
	case 9:
		if r.chance(60) {
			return
		}
		call := func() (api.ControlReceipt, error) { return w.turns.Close(w.t.Context(), w.env, w.by, s.id, control) }
		receipt, err := call()
		r.note("close %s: %s", short(s.id), code(err))
		r.agree("close", code(err), m.close(s))
		remember(r, key, receipt, err, call)
	case 10:
		if r.chance(75) {
			return
		}
		call := func() (api.ControlReceipt, error) { return w.turns.Cancel(w.t.Context(), w.env, w.by, s.id, control) }
		receipt, err := call()
		r.note("cancel %s: %s", short(s.id), code(err))
		r.agree("cancel", code(err), m.cancel(s))
		remember(r, key, receipt, err, call)
	}
}

// remember keeps a call with a key: repeated at any time it gives the same receipt.
func remember[T any](r *run, key string, receipt T, err error, call func() (T, error)) {
	if key == "" || err != nil {
		return
	}
	r.past = append(r.past, func() (string, string) {
		again, err := call()
		return fmt.Sprintf("%+v %s", again, code(err)), fmt.Sprintf("%+v ", receipt)
	})
}

func (r *run) resume(s *mSession, key string) {
	r.nameHolds(s)
	holdID := id.New()
	switch {
	case len(s.holds) > 0 && r.chance(85):
		holdID = pick(r, s.holds).id
	case s.parent != nil && len(s.parent.holds) > 0: // of another Session
		r.nameHolds(s.parent)
		holdID = s.parent.holds[0].id
	}
	call := func() (api.ControlReceipt, error) {
		return r.w.turns.Resume(r.w.t.Context(), r.w.env, r.w.by, s.id, holdID, key)
	}
	receipt, err := call()
	r.note("resume %s: %s", short(s.id), code(err))
	r.agree("resume", code(err), r.m.resume(s, holdID))
	remember(r, key, receipt, err, call)
}

// nameHolds learns the ids of holds that the platform placed.
func (r *run) nameHolds(s *mSession) {
	v := r.w.session(s.id)
	known := map[string]bool{}
	for _, h := range s.holds {
		known[h.id] = true
	}
	for _, h := range s.holds {
		for _, have := range v.Holds {
			if h.id == "" && have.SessionID == s.id && have.Reason == h.reason && !known[have.ID] {
				h.id, known[have.ID] = have.ID, true
			}
		}
	}
}

func (r *run) respond(s *mSession) {
	for _, asked := range r.m.sessions {
		if t := asked.head(); t != nil && len(t.questions) > 0 && r.chance(50) {
			s = asked
		}
	}
	t := pick(r, s.turns)
	if head := s.head(); head != nil && r.chance(70) {
		t = head
	}
	if len(t.questions) == 0 {
		return
	}
	q := pick(r, t.questions)
	responseID, answer := pick(r, []string{"r1", "r2"}), pick(r, []string{`"yes"`, `"yes"`, `"no"`, `{}`})
	_, err := r.w.respond(s.id, t.id, q.id, responseID, answer)
	r.note("respond %s %s to question %s of %s: %s", responseID, answer, short(q.id), short(s.id), code(err))
	r.agree("respond", code(err), r.m.respond(s, t, q, responseID, answer))
}

// process has a random living process say something, then mostly has the Worker pass it on.
func (r *run) process(live []*mSession) bool {
	live = slices.DeleteFunc(live, func(s *mSession) bool { return s.p == nil || !s.p.known || s.p.dead || r.h.processes[s.id] == nil })
	if len(live) == 0 {
		return false
	}
	s := pick(r, live)
	p := r.h.processes[s.id]
	switch n := r.rng.IntN(100); {
	case (n < 4 && (!r.calm || r.chance(15))) || (s.p.status == "stopping" && n < 70):
		r.say(s, p, mOp{typ: "exited"})
	case s.p.status == "starting" && n < 85:
		r.say(s, p, mOp{typ: "init_done"})
	case s.p.status == "starting":
		r.say(s, p, mOp{typ: "init_failed"})
		r.say(s, p, mOp{typ: "exited"})
	default:
		for range 1 + r.rng.IntN(3) {
			r.say(s, p, r.operation(s, p))
		}
	}
	switch n := r.rng.IntN(100); {
	case n < 75:
		r.exchange(true)
	case n < 85:
		r.exchange(false)
	}
	return true
}

// operation chooses what a handler does next; some of it is not allowed.
func (r *run) operation(s *mSession, p *proc) mOp {
	o := mOp{turnID: p.turnID}
	var t *mTurn
	for _, have := range s.turns {
		if have.id == p.turnID {
			t = have
		}
	}
	if t == nil || r.chance(3) {
		o.turnID = pick(r, s.turns).id
	}
	weights := []string{"output", "output", "question", "question_withdrawn"}
	if t != nil && len(t.messages) > 0 {
		weights = append(weights, "message_started", "message_started", "message_delivered", "message_delivered", "message_rejected")
	}
	ends := 25
	if r.calm {
		ends = 10
	}
	if r.chance(ends) {
		weights = []string{"processing_closed", "turn_result", "turn_result", "turn_failed"}
	}
	if t != nil && t.abort != "" && r.chance(60) {
		weights = []string{"turn_aborted"}
	} else if r.chance(2) {
		weights = append(weights, "turn_aborted")
	}
	o.typ = pick(r, weights)
	o.settled, o.callback = r.chance(70), r.chance(50)
	o.reason = pick(r, []string{"message_rejected", "callback_failed"})
	o.id, o.content = id.New(), pick(r, []string{textQuestion, pickText})
	if t != nil && strings.HasPrefix(o.typ, "message") && len(t.messages) > 0 && r.chance(95) {
		open := slices.DeleteFunc(slices.Clone(t.messages), func(m *mMessage) bool { return m.status != "admitted" && m.status != "started" })
		if len(open) > 0 && r.chance(85) {
			o.id = open[0].id
		} else {
			o.id = pick(r, t.messages).id
		}
	}
	if t != nil && len(t.questions) > 0 && (o.typ == "question_withdrawn" || (o.typ == "question" && r.chance(20))) {
		o.id = pick(r, t.questions).id
	}
	return o
}

const pickText = `{"prompt":[{"type":"text","text":"Why?"}],"answer":{"type":"text"}}`

func (r *run) say(s *mSession, p *proc, o mOp) {
	if s.p.dead {
		return
	}
	q := &queued{p: p, op: o}
	switch o.typ {
	case "exited":
		p.exit()
		q.seq = p.next - 1
		s.p.dead = true
	case "question":
		q.seq = p.op(`"type":"question","turnId":%q,"questionId":%q,"question":%s`, o.turnID, o.id, o.content)
	case "output":
		q.seq = p.op(`"type":"output","turnId":%q,"content":[{"type":"text","text":"x"}]`, o.turnID)
	case "turn_result":
		q.seq = p.op(`"type":"turn_result","turnId":%q,"result":1`, o.turnID)
	case "turn_aborted":
		cause := ""
		if !o.settled && o.callback {
			cause = `,"cause":"callback"`
		}
		q.seq = p.op(`"type":"turn_aborted","turnId":%q,"settled":%v%s`, o.turnID, o.settled, cause)
	default:
		q.seq = p.op(`"type":%q,"turnId":%q,"messageId":%q,"questionId":%q,"reason":%q,"error":{"code":"handler_failed"}`, o.typ, o.turnID, o.id, o.id, o.reason)
	}
	r.note("process %d of %s: %s %s", p.epoch, short(s.id), o.typ, short(o.id))
	r.ops[s.id] = append(r.ops[s.id], q)
}

// exchange makes one Exchange; told false means that its answer is lost.
func (r *run) exchange(told bool) {
	frozen := r.h.capture != ""
	r.note("exchange, answer arrives: %v, frozen: %v", told, frozen)
	var killed []*mSession
	for _, s := range r.m.sessions {
		for _, q := range r.ops[s.id] {
			switch {
			case q.applied:
			case s.p == nil || s.p.epoch != q.p.epoch:
				q.applied, q.want = true, "?" // of a process that is over
			default:
				q.applied, q.want = true, r.m.apply(s, q.op)
			}
		}
	}
	r.m.runs()
	for _, s := range r.m.sessions {
		if !frozen && r.m.reconcile(s, told) && !s.p.dead {
			killed = append(killed, s)
		}
	}
	ordered := r.m.hibernate(told, frozen)
	if !ordered {
		r.m.disk(told)
	}
	if !told {
		r.h.lose()
		return
	}
	r.h.exchange()
	for sessionID, ops := range r.ops {
		for _, q := range ops {
			if got := refusal(r.w, q.p.acks[q.seq]); q.want != "?" && got != q.want {
				r.w.t.Fatalf("operation %d (%s) of %s is answered %q, the model says %q", q.seq, q.op.typ, short(sessionID), got, q.want)
			}
		}
	}
	clear(r.ops)
	for _, s := range killed {
		p := r.h.processes[s.id]
		if p == nil || !p.exited {
			r.w.t.Fatalf("the process of %s is not killed", short(s.id))
		}
		r.note("process %d of %s was killed", p.epoch, short(s.id))
		s.p.dead = true
		r.ops[s.id] = append(r.ops[s.id], &queued{p: p, seq: p.next - 1, op: mOp{typ: "exited"}})
	}
	if (r.h.capture != "") != ordered {
		r.w.t.Fatalf("a capture is ordered: %v, the model says %v", r.h.capture != "", ordered)
	}
	if (r.h.save != nil) != r.m.saving {
		r.w.t.Fatalf("a Save is being captured: %v, the model says %v", r.h.save != nil, r.m.saving)
	}
}
