package turn_test

import (
	"sync"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
)

// holder gives what a caller with these permissions may do, and keeps what it was asked for.
type holder struct {
	mu    sync.Mutex
	has   string
	asked []string
}

func (h *holder) may(permission string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, permission)
	if permission != h.has {
		return fault.New(fault.PermissionRequired, "%s is lacking", permission)
	}
	return nil
}

func TestSpec_16_04_CreateAsksForThePermissionOfWhatItDoes(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		create := func(h *holder, key, idempotencyKey string) (api.SessionCreateReceipt, error) {
			return w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Key: key, Input: text("x"), IdempotencyKey: idempotencyKey}, h.may)
		}
		creator, sender := &holder{has: "sessions.create"}, &holder{has: "sessions.send"}
		_, err := create(sender, "", "")
		w.wantCode(err, fault.PermissionRequired)
		_, err = create(sender, "one", "")
		w.wantCode(err, fault.PermissionRequired)
		first, err := create(creator, "one", "k")
		w.must(err)
		_, err = create(creator, "one", "")
		w.wantCode(err, fault.PermissionRequired)
		again, err := create(sender, "one", "")
		w.must(err)
		if !first.Created || again.Created || again.SessionID != first.SessionID || again.Sequence != 2 {
			w.t.Fatalf("receipts %+v and %+v", first, again)
		}
		nobody := &holder{} // a repeated request has no second effect: it only answers again
		repeated, err := create(nobody, "one", "k")
		if w.must(err); repeated != first || len(nobody.asked) != 0 {
			w.t.Fatalf("repeated %+v, before %+v; asked for %v", repeated, first, nobody.asked)
		}
		w.cancel(first.SessionID) // frees the key
		next, err := create(creator, "one", "")
		if w.must(err); !next.Created {
			w.t.Fatalf("receipt %+v", next)
		}
		w.wantKinds(first.SessionID, "turn.queued", "turn.queued", "session.cancel", "turn.cancelled", "turn.cancelled", "session.cancelled") // refused requests left nothing
	})
}

// Whoever may create only creates, however requests with one key meet: it was decided apart from the effect once.
func TestSpec_16_04_PermissionAndEffectAreOneStep(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		creator := &holder{has: "sessions.create"}
		var mu sync.Mutex
		var wg sync.WaitGroup
		got := map[string]int{}
		for range 16 {
			wg.Go(func() {
				_, err := w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Key: "one", Input: text("x")}, creator.may)
				mu.Lock()
				defer mu.Unlock()
				got[code(err)]++
			})
		}
		wg.Wait()
		if got[""] != 1 || got[string(fault.PermissionRequired)] != 15 {
			w.t.Fatalf("answers %v", got)
		}
		var turns int64
		if w.count(&turns, `SELECT COUNT(*) FROM turns`); turns != 1 {
			w.t.Fatalf("%d Turns were admitted", turns)
		}
	})
}

// A Session that ends while its key is used holds the key or it does not: the request finds it open, or makes the next.
func TestSpec_04_04_ATerminalSessionFreesItsKeyAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		for i := range 15 {
			first := w.keyed("key")
			var got api.SessionCreateReceipt
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := w.turns.Cancel(w.t.Context(), w.env, w.by, first.SessionID, api.ControlRequest{}); err != nil {
					w.t.Error(err)
				}
			})
			wg.Go(func() {
				var err error
				got, err = w.turns.CreateSession(w.t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Key: "key", Input: text("x")}, nil)
				if err != nil {
					w.t.Errorf("round %d: %v", i, err)
				}
			})
			wg.Wait()
			want := "queued"
			if !got.Created {
				want = "cancelled" // it came first, and went with the Session
			}
			if got.Created == (got.SessionID == first.SessionID) || w.turn(got.SessionID, got.TurnID).Status != want {
				w.t.Fatalf("receipt %+v; the Turn is %s", got, w.turn(got.SessionID, got.TurnID).Status)
			}
			if got.Created {
				w.cancel(got.SessionID)
			}
		}
	})
}
