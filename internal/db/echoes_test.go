package db_test

import (
	"sync/atomic"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

// TestOwnSignalsWakeOnce: PostgreSQL hands each signal back to the server that sent it, where it wakes nobody again, and
// on to the others.
func TestOwnSignalsWakeOnce(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t, db.PostgreSQL)
	one, other := dbtest.Open(t, url), dbtest.Open(t, url)
	setup(t, one)
	barrier := one.Hub().Subscribe("barrier")
	defer barrier.Close()
	there := other.Hub().Subscribe("notes")
	defer there.Close()
	for ready := false; !ready; { // both listen once a signal of each has come through to the other
		signal(t, other, "barrier")
		signal(t, one, "notes")
		select {
		case <-barrier.C:
			<-there.C
			ready = true
		case <-there.C:
		}
	}
	var woken atomic.Int64
	here := one.Hub().SubscribeFunc(func(string) { woken.Add(1) }, "notes")
	defer here.Close()
	signal(t, one, "notes")
	<-there.C
	drain(barrier.C)
	signal(t, other, "barrier") // comes after the echo, in the order of the commits
	<-barrier.C
	if n := woken.Load(); n != 1 {
		t.Errorf("woken %d times", n)
	}
}

func signal(t *testing.T, d *db.DB, topic string) {
	t.Helper()
	if err := d.Write(t.Context(), func(tx *db.Tx) error { tx.Signal(topic); return nil }); err != nil {
		t.Fatal(err)
	}
}

func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// TestReadOneIsOneQuery refuses what would need a transaction.
func TestReadOneIsOneQuery(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, dbtest.URL(t, db.PostgreSQL))
	setup(t, d)
	var n int
	err := d.ReadOne(t.Context(), func(tx *db.Tx) error {
		_, err := tx.Get([]any{&n}, `SELECT COUNT(*) FROM notes`)
		return err
	})
	if err != nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	for name, fn := range map[string]func(tx *db.Tx) error{
		"a write": func(tx *db.Tx) error {
			_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (1, 'x')`)
			return err
		},
		"two queries": func(tx *db.Tx) error {
			for range 2 {
				if _, err := tx.Get([]any{&n}, `SELECT COUNT(*) FROM notes`); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		if err := d.ReadOne(t.Context(), fn); err == nil {
			t.Errorf("%s succeeded", name)
		}
	}
}
