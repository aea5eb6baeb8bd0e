package turn_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/storage"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// manifests are those that the Computers of the Environment need.
func (w *world) manifests() (all []string) {
	w.t.Helper()
	w.must(w.d.Read(w.t.Context(), func(tx *db.Tx) error {
		all = nil
		return computer.Manifests(tx, w.env, func(m string) { all = append(all, m) })
	}))
	return all
}

// publishes publishes the ordered Save of h as a manifest.
func (h *host) publishes(manifest, base string, references ...string) error {
	return h.w.turns.PublishSave(h.w.t.Context(), &workerpb.PublishSaveRequest{WorkerId: h.w.worker, ComputerId: h.computer, Epoch: h.epoch, SaveId: h.save.GetSaveId(),
		ManifestDigest: manifest, BaseManifest: base, References: references, SizeBytes: 1, StoredBytes: 1})
}

// ordersSave has the handler of the present Turn return, up to the order of its Save.
func (s *scene) ordersSave() {
	if s.p.turnID == "" {
		s.h.exchange()
	}
	s.p.op(`"type":"processing_closed","turnId":%q`, s.p.turnID)
	s.p.op(`"type":"turn_result","turnId":%q,"result":1,"response":[{"type":"text","text":"done"}]`, s.p.turnID)
	for range 2 {
		if s.h.save == nil {
			s.h.exchange()
		}
	}
}

func TestSpec_07_12_TheRecoveryPointHasAllThatItNeeds(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		s := runningOf("echo")(w)
		s.ordersSave()
		gone, there := strings.Repeat("a", 64), strings.Repeat("b", 64)
		w.must(w.d.Write(t.Context(), func(tx *db.Tx) error {
			_, err := tx.Exec(`INSERT INTO retired_objects (environment_id, name, retired_at) VALUES (?, ?, 1)`, w.env, gone)
			return err
		}))
		var refused *storage.RefusedError
		if err := s.h.publishes("one", "", gone, there); !errors.As(err, &refused) || !slices.Equal(refused.Retired, []string{gone}) {
			t.Fatalf("publish what is being removed: %v", err)
		}
		if err := s.h.publishes("one", "zero", there); !errors.As(err, &refused) || !refused.Whole {
			t.Fatalf("publish upon what is not kept: %v", err)
		}
		if status := w.turn(s.sessionID, s.turnID).Status; status != "finalizing" || len(w.manifests()) != 0 {
			t.Fatalf("the Turn is %s, and %q is kept", status, w.manifests())
		}
		w.must(s.h.publishes("one", "", there, gone+"-1"))
		if status := w.turn(s.sessionID, s.turnID).Status; status != "completed" {
			t.Fatalf("the Turn is %s", status)
		}
		w.must(s.h.publishes("another", "", gone)) // the answer was lost: nothing is published again
		if have := w.manifests(); !slices.Equal(have, []string{"one"}) {
			t.Fatalf("%q is kept", have)
		}
		// The next Save names what it has beyond this one, and takes its place.
		s.h.save = nil
		w.enqueue(s.sessionID, "more")
		s.h.exchange()
		s.ordersSave()
		w.must(s.h.publishes("two", "one"))
		if have := w.manifests(); !slices.Equal(have, []string{"two"}) {
			t.Fatalf("%q is kept", have)
		}
	})
}

func TestSpec_07_12_AnUnreadableRecoveryPointIsTriedAgain(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		s := placed(w)
		s.startsUnreadable()
		is := func(residency, code string) {
			t.Helper()
			if r, c := s.computer(); r != residency || c != code {
				t.Fatalf("the Computer is %s with error %q, want %s with %q", r, c, residency, code)
			}
		}
		is("unavailable", "computer_recovery_required")
		w.clock.advance(computer.UnavailableRetry - time.Millisecond)
		w.run("computer.dispatch")
		is("unavailable", "computer_recovery_required")
		w.clock.advance(time.Millisecond)
		s.h = w.place(s.sessionID)
		s.startsUnreadable()
		is("unavailable", "computer_recovery_required")
		w.interrupt(s.sessionID)
		w.run("computer.dispatch")
		is("unavailable", "computer_recovery_required")
		w.resume(s.sessionID, w.session(s.sessionID).Holds[0].ID)
		s.h = w.place(s.sessionID) // without waiting
		s.h.exchange()
		is("running", "")
	})
}
