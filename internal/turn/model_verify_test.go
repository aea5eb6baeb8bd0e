package turn_test

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"helmr.dev/helmr/client/api"
)

// verify compares every Session that is not over, and its new events, with the model.
func (r *run) verify() {
	r.w.t.Helper()
	r.w.run("turn.closing")
	r.w.run("turn.closing")
	r.w.run("turn.closing")
	r.m.parents()
	if len(r.m.sessions) > 0 {
		residency := r.w.computer(r.w.session(r.m.sessions[0].id).ComputerID).Residency
		for state, is := range map[string]bool{"hibernating": r.m.capturing, "hibernated": r.m.hibernated, "resuming": r.m.resuming} {
			r.agree(state, strconv.FormatBool(residency == state), strconv.FormatBool(is))
		}
	}
	for _, s := range r.m.sessions {
		r.verifyEvents(s)
		v := r.w.session(s.id)
		r.agree("status of "+short(s.id), v.Status, s.status)
		var have, want []string
		for _, h := range v.Holds {
			have = append(have, h.Reason)
		}
		for up := s; up != nil; up = up.parent {
			for _, h := range up.holds {
				if up == s || h.reason == "interrupt" {
					want = append(want, h.reason)
				}
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		r.agree("holds of "+short(s.id), strings.Join(have, " "), strings.Join(want, " "))
	}
}

func (r *run) verifyEvents(s *mSession) {
	r.w.t.Helper()
	page, ended, err := r.w.sessions.Events(r.w.t.Context(), r.w.env, s.id, max(int64(len(s.log))-20, 0), 1000)
	if err != nil {
		r.w.t.Fatalf("events of %s: %v; the model has %d:\n  %s", short(s.id), err, len(s.log), strings.Join(s.log, "\n  "))
	}
	for _, e := range page.Records {
		want := "nothing"
		if int(e.Sequence) <= len(s.log) {
			want = s.log[e.Sequence-1]
		}
		r.agree(fmt.Sprintf("event %d of %s", e.Sequence, short(s.id)), describe(e), want)
	}
	if page.NextAfter != int64(len(s.log)) {
		r.w.t.Fatalf("%s has %d events, the model %d; it goes on with %s", short(s.id), page.NextAfter, len(s.log), s.log[page.NextAfter])
	}
	if ended != s.released {
		r.w.t.Fatalf("%s is released: %v, the model says %v", short(s.id), ended, s.released)
	}
}

// verifyAll compares the outcome of everything.
func (r *run) verifyAll() {
	for _, s := range r.m.sessions {
		page, err := r.w.turns.List(r.w.t.Context(), r.w.env, s.id, "", 100)
		r.w.must(err)
		if page.NextCursor == "" && len(page.Turns) != len(s.turns) {
			r.w.t.Fatalf("%s has %d Turns, the model %d", short(s.id), len(page.Turns), len(s.turns))
		}
		for i, v := range page.Turns {
			t, got := s.turns[i], v.Status
			if v.Error != nil {
				got += " " + v.Error.Code
			}
			r.agree("turn "+short(t.id), v.ID+" "+got, t.id+" "+t.status+suffix(t.code))
			if (v.Result != nil) != (t.status == "completed") {
				r.w.t.Fatalf("turn %s is %s and shows result %s", short(t.id), t.status, v.Result)
			}
			for _, q := range t.questions {
				v := r.w.question(s.id, t.id, q.id)
				r.agree("question "+short(q.id), v.Status+string(v.Answer), q.status+q.answer)
			}
		}
	}
}

// describe gives an event as the model writes it.
func describe(e api.Event) string {
	var d struct {
		MessageID, Delivery, Reason, QuestionID, HoldID, Cause string
		Epoch, Failures                                        int64
		Error                                                  struct{ Code string }
		Recovery                                               struct{ Kind, Reason string }
	}
	fields := map[string]any{"message_id": &d.MessageID, "delivery": &d.Delivery, "reason": &d.Reason, "question_id": &d.QuestionID, "hold_id": &d.HoldID, "cause": &d.Cause,
		"epoch": &d.Epoch, "consecutive_failures": &d.Failures, "error": &d.Error, "recovery": &d.Recovery}
	var raw map[string]json.RawMessage
	if json.Unmarshal(e.Data, &raw) == nil {
		for name, to := range fields {
			if raw[name] != nil && json.Unmarshal(raw[name], to) != nil {
				return "unreadable " + string(e.Data)
			}
		}
	}
	turn := ""
	if e.TurnID != nil {
		turn = *e.TurnID
	}
	switch e.Kind {
	case "turn.running":
		return fmt.Sprintf("%s %s %d %s%s", e.Kind, turn, d.Epoch, d.Recovery.Kind, suffix(d.Recovery.Reason))
	case "turn.failed", "turn.interrupted":
		return fmt.Sprintf("%s %s%s", e.Kind, turn, suffix(d.Error.Code))
	case "message.admitted", "message.started", "message.delivered", "message.rejected":
		return fmt.Sprintf("%s %s %s %s %s", e.Kind, turn, d.MessageID, d.Delivery, d.Reason)
	case "question.created", "question.responded", "question.cancelled":
		return fmt.Sprintf("%s %s %s", e.Kind, turn, d.QuestionID)
	case "session.interrupt", "session.resume":
		return e.Kind + " " + d.HoldID
	case "session.held":
		return e.Kind + " " + d.Reason
	case "session.close", "session.cancel":
		return e.Kind + " " + d.Cause
	case "session.process_stopped":
		return fmt.Sprintf("%s %d %s", e.Kind, d.Epoch, d.Reason)
	case "session.process_failed":
		return fmt.Sprintf("%s %d %s %d", e.Kind, d.Epoch, d.Reason, d.Failures)
	}
	return e.Kind + suffix(turn)
}

// short names an id in a few characters that tell ids of one history apart.
func short(s string) string {
	if s == "" {
		return "-"
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return fmt.Sprintf("%05x", h.Sum32()&0xfffff)
}
