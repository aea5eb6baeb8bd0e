package access_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
)

type receipt struct{ N int }

// once runs one idempotent request that answers n and tells which receipt came back.
func (w *world) once(t *testing.T, r access.Request, n int) (receipt, error) {
	t.Helper()
	r.EnvironmentID = w.first.EnvironmentID
	var out receipt
	err := w.db.Write(t.Context(), func(tx *db.Tx) error {
		out = receipt{}
		return access.Idempotent(tx, r, &out, func() error {
			out.N = n
			return nil
		})
	})
	return out, err
}

func TestSpec_16_07_AKeyReplaysItsFirstReceipt(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		type body struct {
			B int            `json:"b"`
			A map[string]int `json:"a"`
		}
		r := access.Request{Caller: "user:1", Operation: "session.create", Key: "k", Body: body{1, map[string]int{"y": 1, "x": 2}}}
		if out, err := w.once(t, r, 1); err != nil || out.N != 1 {
			t.Fatalf("first: %+v, %v", out, err)
		}
		same := r
		same.Body = map[string]any{"a": map[string]any{"x": 2, "y": 1}, "b": 1}
		if out, err := w.once(t, same, 2); err != nil || out.N != 1 {
			t.Fatalf("same body in another order: %+v, %v", out, err)
		}
		other := r
		other.Body = body{2, nil}
		if _, err := w.once(t, other, 3); !fault.Is(err, fault.IdempotencyConflict) {
			t.Fatalf("another body: %v", err)
		}
		for name, change := range map[string]func(*access.Request){
			"caller":    func(r *access.Request) { r.Caller = "user:2" },
			"operation": func(r *access.Request) { r.Operation = "session.enqueue" },
			"target":    func(r *access.Request) { r.Target = "x" },
			"key":       func(r *access.Request) { r.Key = "K" },
			"no key":    func(r *access.Request) { r.Key = "" },
		} {
			fresh := r
			change(&fresh)
			if out, err := w.once(t, fresh, 4); err != nil || out.N != 4 {
				t.Errorf("another %s: %+v, %v", name, out, err)
			}
		}
	})
}

func TestAFailedRequestLeavesItsKeyFree(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		r := access.Request{Caller: "user:1", Operation: "x", Key: "k"}
		broken := errors.New("broken")
		err := d.Write(t.Context(), func(tx *db.Tx) error {
			r := r
			r.EnvironmentID = w.first.EnvironmentID
			return access.Idempotent(tx, r, &receipt{}, func() error { return broken })
		})
		if !errors.Is(err, broken) {
			t.Fatal(err)
		}
		if out, err := w.once(t, r, 5); err != nil || out.N != 5 {
			t.Fatalf("after a failure: %+v, %v", out, err)
		}
	})
}

func TestConcurrentRequestsWithOneKeyHaveOneEffect(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		var mu sync.Mutex
		seen := map[int]bool{}
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				out, err := w.once(t, access.Request{Caller: "user:1", Operation: "x", Key: "k"}, i+1)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				seen[out.N] = true
			})
		}
		wg.Wait()
		if len(seen) != 1 {
			t.Fatalf("%d different receipts", len(seen))
		}
	})
}

func TestSpec_16_06_IdempotencyKeys(t *testing.T) {
	t.Parallel()
	for key, ok := range map[string]bool{
		"k": true, "a b": true, strings.Repeat("x", 512): true, "ü": true,
		"": false, strings.Repeat("x", 513): false, " k": false, "k\n": false, "a\x00b": false, "\xff": false, "\u00a0k": false,
	} {
		err := access.CheckIdempotencyKey(key)
		if ok != (err == nil) || !ok && !fault.Is(err, fault.InvalidIdempotencyKey) {
			t.Errorf("%q: %v", key, err)
		}
	}
}
