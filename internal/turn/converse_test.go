package turn_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/session"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// eachCase runs a test for every case on each database. The cases share the database one after the other: a fresh one is
// slow to make.
func eachCase[T any](t *testing.T, cases []T, name func(T) string, test func(w *world, c T)) {
	t.Helper()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		for _, c := range cases {
			t.Run(name(c), func(t *testing.T) {
				_, err := w.computers.RegisterWorker(t.Context(), &workerpb.RegisterRequest{Name: "w1", Secret: strings.Repeat("s", 32), CpuMillis: 1 << 20, MemoryMib: 1 << 30, DiskMib: 1 << 40})
				if err != nil {
					t.Fatal(err)
				}
				own := *w
				own.t = t
				test(&own, c)
			})
		}
	})
}

// endCase is a way in which something ends.
type endCase struct {
	name string
	do   func(w *world, h *host, p *proc)
}

func endCases(cases map[string]func(w *world, h *host, p *proc)) []endCase {
	var out []endCase
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		out = append(out, endCase{name, cases[name]})
	}
	return out
}

func (c endCase) String() string { return c.name }

// exec runs statements of a test's own making.
func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}))
}

// code gives the code of an error and, where there is one, its reason.
func code(err error) string {
	f, ok := errors.AsType[*fault.Error](err)
	switch {
	case err == nil:
		return ""
	case !ok:
		return err.Error()
	case f.Details["reason"] != nil:
		return fmt.Sprintf("%s/%v", f.Code, f.Details["reason"])
	}
	return string(f.Code)
}

func (w *world) wantCode(err error, want fault.Code) {
	w.t.Helper()
	if got := code(err); got != string(want) {
		w.t.Fatalf("got %q, want %q (%v)", got, want, err)
	}
}

func (w *world) trySend(sessionID, data string) (api.SendReceipt, error) {
	return w.turns.Send(w.t.Context(), w.env, w.by, sessionID, api.SendRequest{Data: text(data)})
}

func (w *world) send(sessionID, data string) api.SendReceipt {
	w.t.Helper()
	r, err := w.trySend(sessionID, data)
	w.must(err)
	return r
}

func (w *world) tryMessage(sessionID, turnID, data string) (api.MessageReceipt, error) {
	return w.turns.Message(w.t.Context(), w.env, w.by, sessionID, turnID, api.MessageRequest{Data: text(data)})
}

func (w *world) message(sessionID, turnID, data string) string {
	w.t.Helper()
	r, err := w.tryMessage(sessionID, turnID, data)
	w.must(err)
	return r.MessageID
}

func (w *world) interrupt(sessionID string) string {
	w.t.Helper()
	r, err := w.turns.Interrupt(w.t.Context(), w.env, w.by, sessionID, api.ControlRequest{})
	w.must(err)
	return r.HoldID
}

func (w *world) resume(sessionID, holdID string) {
	w.t.Helper()
	_, err := w.turns.Resume(w.t.Context(), w.env, w.by, sessionID, holdID, "")
	w.must(err)
}

func (w *world) close(sessionID string) {
	w.t.Helper()
	_, err := w.turns.Close(w.t.Context(), w.env, w.by, sessionID, api.ControlRequest{})
	w.must(err)
}

func (w *world) cancel(sessionID string) {
	w.t.Helper()
	_, err := w.turns.Cancel(w.t.Context(), w.env, w.by, sessionID, api.ControlRequest{})
	w.must(err)
}

// events gives all events of a Session.
func (w *world) events(sessionID string) []api.Event {
	w.t.Helper()
	page, _, err := w.sessions.Events(w.t.Context(), w.env, sessionID, 0, 1000)
	w.must(err)
	return page.Records
}

// data gives the data of the last event of a kind, as canonical text.
func (w *world) data(sessionID, kind string) string {
	w.t.Helper()
	last := ""
	for _, e := range w.events(sessionID) {
		if e.Kind == kind {
			last = canonical(e.Data)
		}
	}
	return last
}

// canonical gives JSON with its keys in order.
func canonical(raw []byte) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// running gives a Session whose first Turn is running, with its Computer and process.
func (w *world) running(agent string) (api.SessionCreateReceipt, *host, *proc) {
	w.t.Helper()
	r := w.create(agent, "hi")
	h := w.place(r.SessionID)
	p := h.ready(r.SessionID)
	h.exchange()
	return r, h, p
}

const (
	textQuestion = `{"prompt":[{"type":"text","text":"Which?"}],"answer":{"type":"text"}}`
	pickQuestion = `{"prompt":[],"answer":{"type":"choice","options":[{"id":"a","label":"A","value":1},{"id":"b","label":"B","value":{"x":[1.5]}}]}}`
)

// ask has the handler raise a Question and gives its id.
func (h *host) ask(p *proc, question string) string {
	h.w.t.Helper()
	questionID := id.New()
	if ack := h.op(p, `"type":"question","turnId":%q,"questionId":%q,"question":%s`, p.turnID, questionID, question); ack != "" {
		h.w.t.Fatalf("question was answered %s", ack)
	}
	return questionID
}

// op has a process do one operation and gives the code it was refused with, "" if it was not.
func (h *host) op(p *proc, format string, args ...any) string {
	h.w.t.Helper()
	seq := p.op(format, args...)
	h.exchange()
	return refusal(h.w, p.acks[seq])
}

func refusal(w *world, ack string) string {
	w.t.Helper()
	var a struct {
		Type  string
		Error *struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(ack), &a); err != nil || a.Type != "ack" {
		w.t.Fatalf("not an ack: %q", ack)
	}
	if a.Error == nil {
		return ""
	}
	if a.Error.Message == "" {
		w.t.Fatalf("a refusal says nothing: %s", ack)
	}
	return a.Error.Code
}

func (w *world) respond(sessionID, turnID, questionID, responseID, answer string) (api.Question, error) {
	return w.turns.Respond(w.t.Context(), w.env, w.by, sessionID, turnID, questionID, api.RespondRequest{Answer: json.RawMessage(answer), ResponseID: responseID})
}

func (w *world) question(sessionID, turnID, questionID string) api.Question {
	w.t.Helper()
	q, err := w.turns.GetQuestion(w.t.Context(), w.env, sessionID, turnID, questionID)
	w.must(err)
	return q
}

// child puts a Session below another, on the same Computer, with one queued Turn: what spawn will do.
func (w *world) child(parentID string) (sessionID, turnID string) {
	w.t.Helper()
	return w.childOn(parentID, w.session(parentID).ComputerID)
}

// childOn is child on another Computer.
func (w *world) childOn(parentID, computerID string) (sessionID, turnID string) {
	w.t.Helper()
	parent := w.session(parentID)
	turnID = id.New()
	w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
		r, err := session.Create(tx, db.Millis(w.clock.now()), session.New{EnvironmentID: w.env, AgentID: parent.AgentID, DeploymentID: parent.DeploymentID,
			ComputerID: computerID, RootSessionID: parent.RootSessionID, ParentSessionID: &parentID})
		if err != nil {
			return err
		}
		sessionID = r.ID
		r.LastTurnSequence = 1
		r.Touch(db.Millis(w.clock.now()))
		if err := session.Update(tx, r); err != nil {
			return err
		}
		_, err = tx.Exec(`INSERT INTO turns (id, environment_id, session_id, computer_id, sequence, status, source, input, processing_open, output_bytes, created_at)
			VALUES (?, ?, ?, ?, 1, 'queued', '{"kind":"session"}', '[]', 0, 0, 0)`, turnID, w.env, sessionID, computerID)
		return err
	}))
	return sessionID, turnID
}

// controls gives the keys of what a process was told, without the ids.
func (p *proc) told(kind string) []string {
	var out []string
	for key, line := range p.controls {
		if strings.HasPrefix(key, kind+":") {
			out = append(out, line)
		}
	}
	return out
}

// count reads one number.
func (w *world) count(n *int64, query string, args ...any) {
	w.t.Helper()
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) error {
		_, err := tx.Get([]any{n}, query, args...)
		return err
	}))
}
