package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestExamples runs the examples that need nothing but the base image; make examples runs all of them.
func TestExamples(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	t.Run("approval", func(t *testing.T) { approval(t, h) })
	t.Run("prepared", func(t *testing.T) { librarian(t, h) })
	t.Run("steering", func(t *testing.T) { steering(t, h) })
}

// TestExamplesCarryTheScriptedModel: a project holds all of its files, so examples have copies of the one in support.
func TestExamplesCarryTheScriptedModel(t *testing.T) {
	t.Parallel()
	examples := filepath.Join("..", "..", "examples")
	want, err := os.ReadFile(filepath.Join(examples, "support", "scripted-model.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	copies, err := filepath.Glob(filepath.Join(examples, "*", "model", "scripted-model.mjs"))
	if err != nil || len(copies) == 0 {
		t.Fatalf("no copies: %v", err)
	}
	for _, name := range copies {
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from examples/support/scripted-model.mjs: copy it again (%v)", name, err)
		}
	}
}

func approval(t *testing.T, h *helmr) {
	h = with(t, h)
	h.deploy("../../examples/approval")
	r := h.create("janitor", "Tidy up")
	q := h.asked(r.SessionID, r.TurnID)
	answer := json.RawMessage(`{"selected":[{"id":"2026-01.tar","value":"2026-01.tar"},{"id":"2026-03.tar","value":"2026-03.tar"}]}`)
	if _, err := h.Respond(context.Background(), r.SessionID, r.TurnID, q.ID, api.RespondRequest{Answer: answer, ResponseID: "first"}); err != nil {
		t.Fatal(err)
	}
	h.resulted(r.SessionID, r.TurnID, `{"deleted":["2026-01.tar","2026-03.tar"],"approvedBy":"api_key"}`)

	turnID := h.enqueue(r.SessionID, "Tidy up")
	q = h.asked(r.SessionID, turnID)
	if control := string(q.AnswerControl); strings.Contains(control, "2026-01.tar") || !strings.Contains(control, "2026-02.tar") {
		t.Errorf("the second question offers %s", control)
	}
	if _, err := h.Respond(context.Background(), r.SessionID, turnID, q.ID, api.RespondRequest{Answer: json.RawMessage(`{"selected":[],"text":"keep it"}`), ResponseID: "second"}); err != nil {
		t.Fatal(err)
	}
	h.resulted(r.SessionID, turnID, `{"deleted":[],"approvedBy":"api_key"}`)
}

func librarian(t *testing.T, h *helmr) {
	h = with(t, h)
	h.deploy("../../examples/prepared")
	for text, found := range map[string]string{"What is a bowline?": `{"found":1}`, "And spring tides?": `{"found":2}`} {
		r := h.create("librarian", text)
		h.resulted(r.SessionID, r.TurnID, found)
	}
}

func steering(t *testing.T, h *helmr) {
	h = with(t, h)
	h.deploy("../../examples/steering")
	r := h.create("builder", "Build it")
	h.wrote(r.SessionID, r.TurnID, "fetch")
	for _, text := range []string{"skip the package", "skip the sauna"} {
		receipt, err := h.Send(context.Background(), r.SessionID, api.SendRequest{Data: input(text)})
		if err != nil || receipt.Kind != "messaged" || receipt.TurnID != r.TurnID {
			t.Fatalf("send: %+v, %v", receipt, err)
		}
	}
	h.resulted(r.SessionID, r.TurnID, `{"done":["fetch","lint","tests"],"builds":1}`)
	var kinds []string
	for _, e := range h.events(r.SessionID) {
		if strings.HasPrefix(e.Kind, "message.") {
			kinds = append(kinds, e.Kind)
		}
	}
	if !slices.Contains(kinds, "message.delivered") || !slices.Contains(kinds, "message.rejected") {
		t.Errorf("messages: %v", kinds)
	}

	turnID := h.enqueue(r.SessionID, "Build it")
	h.wrote(r.SessionID, turnID, "fetch")
	if _, err := h.InterruptSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if v := h.settled(r.SessionID, turnID); v.Status != "interrupted" {
		t.Fatalf("turn %+v %+v", v, v.Error)
	}
	h.wrote(r.SessionID, turnID, "interrupted: the half-made")
	h.resume(r.SessionID)
	last := h.enqueue(r.SessionID, "Build it")
	h.resulted(r.SessionID, last, `{"done":["fetch","lint","package","tests"],"builds":2}`)
}

// asked waits for the one open Question of a Turn.
func (h *helmr) asked(sessionID, turnID string) (q api.Question) {
	h.t.Helper()
	h.until("the turn asks", func() bool {
		page, err := h.ListQuestions(context.Background(), sessionID, turnID, "", 10)
		if err != nil || len(page.Questions) != 1 || page.Questions[0].Status != "pending" {
			return false
		}
		q = page.Questions[0]
		return true
	})
	return q
}

// wrote waits for a piece of a Turn's output.
func (h *helmr) wrote(sessionID, turnID, text string) {
	h.t.Helper()
	h.until("output "+text, func() bool {
		return slices.ContainsFunc(h.events(sessionID), func(e api.Event) bool {
			return e.Kind == "turn.output" && *e.TurnID == turnID && strings.Contains(string(e.Data), text)
		})
	})
}

// resulted waits for a completed Turn with this result.
func (h *helmr) resulted(sessionID, turnID, want string) {
	h.t.Helper()
	v := h.settled(sessionID, turnID)
	var got, expected any
	_ = json.Unmarshal(v.Result, &got)
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		h.t.Fatal(err)
	}
	if v.Status != "completed" || !reflect.DeepEqual(got, expected) {
		h.t.Fatalf("turn %s: %s %s %+v, want %s\n%s", turnID, v.Status, v.Result, v.Error, want, h.describe(sessionID))
	}
}
