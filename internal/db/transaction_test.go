package db_test

import (
	"fmt"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

const insertNote = `INSERT INTO notes (id, text) VALUES (?, ?)`

// Whenever the failure of a Do is said, nothing of its transaction stays, nobody is told, and the next one works.
func TestADoThatFailsEndsItsTransaction(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		setup(t, d)
		sub := d.Hub().Subscribe("notes")
		defer sub.Close()
		first := func(tx *db.Tx) error { return tx.Do(insertNote, 1, "a") }
		if err := d.Write(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		for name, then := range map[string]func(tx *db.Tx) error{
			"the commit": func(*db.Tx) error { return nil },
			"a write":    func(tx *db.Tx) error { return tx.Do(insertNote, 2, "b") },
			"a query": func(tx *db.Tx) error {
				_, err := tx.Column(`SELECT text FROM notes`)
				return err
			},
		} {
			err := d.Write(t.Context(), func(tx *db.Tx) error {
				tx.Signal("notes")
				if err := tx.Do(insertNote, 3, "c"); err != nil {
					return err
				}
				if err := first(tx); err != nil {
					return err
				}
				return then(tx)
			})
			if !db.IsUnique(err) || count(t, d) != 1 || len(sub.C) != 0 {
				t.Errorf("before %s: %v, %d notes, signalled %d times", name, err, count(t, d), len(sub.C))
			}
		}
		if err := d.Write(t.Context(), func(tx *db.Tx) error { return tx.Do(insertNote, 2, "b") }); err != nil || count(t, d) != 2 {
			t.Fatalf("the next one: %v, %d notes", err, count(t, d))
		}
	})
}

// Many are done in order, and what comes after sees them.
func TestDoIsDoneInOrder(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		setup(t, d)
		const most = 200
		err := d.Write(t.Context(), func(tx *db.Tx) error {
			if err := tx.Do(insertNote, 1, "0"); err != nil {
				return err
			}
			for i := range most {
				if err := tx.Do(`UPDATE notes SET id = ?, text = ? WHERE id = ?`, i+2, fmt.Sprint(i+1), i+1); err != nil {
					return err
				}
			}
			got, err := tx.Column(`SELECT text FROM notes`)
			if err == nil && fmt.Sprint(got) != fmt.Sprintf("[%d]", most) {
				t.Errorf("within: %v", got)
			}
			return err
		})
		if err != nil || count(t, d) != 1 {
			t.Fatalf("%v, %d notes", err, count(t, d))
		}
	})
}

// PostgreSQL answers the commit of a transaction that has failed as if it were done.
func TestAFailureThatIsPassedOverIsNoCommit(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t, db.PostgreSQL)
	setup(t, d)
	err := d.Write(t.Context(), func(tx *db.Tx) error {
		if _, err := tx.Exec(insertNote, 1, "a"); err != nil {
			return err
		}
		_, _ = tx.Exec(insertNote, 1, "b")
		return nil
	})
	if err == nil || count(t, d) != 0 {
		t.Fatalf("%v, %d notes", err, count(t, d))
	}
}
