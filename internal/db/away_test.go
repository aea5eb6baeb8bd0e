package db_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

// setupProxy gives a database with a table of notes behind a proxy.
func setupProxy(t *testing.T) (*db.DB, *dbtest.Proxy) {
	t.Helper()
	p := dbtest.NewProxy(t, dbtest.URL(t, db.PostgreSQL), "127.0.0.1:0")
	d := dbtest.Open(t, p.URL)
	setup(t, d)
	t.Cleanup(p.Up) // so that it closes in order
	return d, p
}

// note writes a note and signals it.
func note(ctx context.Context, d *db.DB, id int) error {
	return d.Write(ctx, func(tx *db.Tx) error {
		tx.Signal("notes")
		_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (?, ?)`, id, fmt.Sprint(id))
		return err
	})
}

// away wants an error that says that the database is away.
func away(t *testing.T, err error) {
	t.Helper()
	if err == nil || !db.IsAway(err) {
		t.Errorf("IsAway is false of %v", err)
	}
}

// works waits until writes work again: by themselves.
func works(t *testing.T, d *db.DB, id int) {
	t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-again.C {
		err := note(t.Context(), d, id)
		if err == nil {
			return
		}
		away(t, err)
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestALostAnswerToACommit: the write fails, its effect is there once, and whoever waits for it is told.
func TestALostAnswerToACommit(t *testing.T) {
	t.Parallel()
	d, p := setupProxy(t)
	sub := d.Hub().Subscribe("notes")
	defer sub.Close()
	p.LoseCommits(0, 1)
	ran := 0
	err := d.Write(t.Context(), func(tx *db.Tx) error {
		ran++
		tx.Signal("notes")
		_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (1, 'x')`)
		return err
	})
	away(t, err)
	if n := count(t, d); n != 1 || ran != 1 || p.Lost() != 1 {
		t.Errorf("%d notes after %d runs and %d lost answers", n, ran, p.Lost())
	}
	<-sub.C
}

func TestADatabaseThatIsCutOffOrGoneComesBackByItself(t *testing.T) {
	t.Parallel()
	d, p := setupProxy(t)
	other := dbtest.Open(t, p.URL)
	p.Down()
	for range 40 { // more than there are connections
		away(t, note(t.Context(), d, 1))
	}
	if _, err := db.Open(t.Context(), p.URL); err == nil || !db.IsAway(err) {
		t.Errorf("opened a database that is away: %v", err)
	}
	p.Up()
	works(t, d, 1)
	for i := range 20 {
		p.Cut()
		works(t, d, 2+i)
	}
	if n := count(t, d); n != 21 {
		t.Errorf("%d notes, want 21", n)
	}
	// Signals of other servers arrive again.
	sub := d.Hub().Subscribe("notes")
	defer sub.Close()
	works(t, other, 100)
	<-sub.C
}

// TestASilentDatabase: a caller's deadline holds though nothing answers, and everything goes on when it does again.
func TestASilentDatabase(t *testing.T) {
	t.Parallel()
	d, p := setupProxy(t)
	p.Silent()
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	away(t, note(limited, d, 1))
	away(t, d.Read(limited, func(tx *db.Tx) error { return nil }))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	p.Up()
	works(t, d, 2)
}

// TestASlowDatabase answers late, and right.
func TestASlowDatabase(t *testing.T) {
	t.Parallel()
	d, p := setupProxy(t)
	p.Slow(100 * time.Millisecond)
	if err := note(t.Context(), d, 1); err != nil {
		t.Error(err)
	}
	if n := count(t, d); n != 1 {
		t.Errorf("%d notes", n)
	}
}

// TestATransactionOfASilentServerIsGivenUp: the locks of a server that stopped in the middle of a transaction are freed.
func TestATransactionOfASilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	d, p := setupProxy(t)
	var limit string
	err := d.Read(t.Context(), func(tx *db.Tx) error {
		_, err := tx.Get([]any{&limit}, `SHOW idle_in_transaction_session_timeout`)
		return err
	})
	if err != nil || limit != "15s" {
		t.Errorf("a transaction may be idle for %s, %v", limit, err)
	}
	// What the server's next statement then meets.
	err = d.Write(t.Context(), func(tx *db.Tx) error {
		if _, err := tx.Exec(`SET LOCAL idle_in_transaction_session_timeout = 1`); err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (1, 'never')`); err != nil {
			return err
		}
		p.Slow(100 * time.Millisecond) // so long the server says nothing
		for range 2 {
			if _, err := tx.Exec(`SELECT 1`); err != nil {
				return err
			}
		}
		return nil
	})
	away(t, err)
	if n := count(t, d); n != 0 {
		t.Errorf("%d notes of a transaction that was given up", n)
	}
}

// TestAReadOnlyDatabase is a server that was demoted, or an administrator's decision.
func TestAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	d, p := setupProxy(t)
	readOnly := func(on string) {
		conn, err := sql.Open("pgx", p.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		conn.SetMaxOpenConns(1)
		var name string
		if err := conn.QueryRow(`SELECT current_database()`).Scan(&name); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(`SET default_transaction_read_only = off`); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(`ALTER DATABASE ` + name + ` SET default_transaction_read_only = ` + on); err != nil {
			t.Fatal(err)
		}
		p.Cut() // as a change of the primary does
	}
	readOnly("on")
	for err := error(nil); err == nil || !strings.Contains(err.Error(), "25006"); {
		err = note(t.Context(), d, 1)
		away(t, err)
	}
	readOnly("off")
	works(t, d, 2)
}

// TestADatabaseThatIsRestarted tells its connections to go, as PostgreSQL does when it is stopped.
func TestADatabaseThatIsRestarted(t *testing.T) {
	t.Parallel()
	d, p := setupProxy(t)
	conn, err := sql.Open("pgx", p.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	conn.SetMaxOpenConns(1)
	for i := range 10 {
		err := d.Write(t.Context(), func(tx *db.Tx) error {
			if _, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (1000, 'never')`); err != nil {
				return err
			}
			if _, err := conn.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := tx.Exec(`SELECT 1`); err != nil {
					return err
				}
			}
		})
		away(t, err)
		works(t, d, i)
	}
	if n := count(t, d); n != 10 {
		t.Errorf("%d notes, want 10", n)
	}
}

// TestALockedSQLiteFile is held by another program, such as one that copies it: writes fail in time and work afterwards.
func TestALockedSQLiteFile(t *testing.T) {
	t.Parallel()
	u := dbtest.URL(t, db.SQLite)
	d := dbtest.Open(t, u)
	setup(t, d)
	other, err := sql.Open("sqlite", "file:"+strings.TrimPrefix(u, "sqlite:"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	other.SetMaxOpenConns(1)
	if _, err := other.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	errs := make(chan error, 20)
	for i := range cap(errs) {
		go func() { errs <- note(context.Background(), d, i) }()
	}
	if n := count(t, d); n != 0 { // reads go on
		t.Errorf("%d notes", n)
	}
	for range cap(errs) {
		away(t, <-errs)
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %s until all were refused", took)
	}
	if _, err := other.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	works(t, d, 1)
}

func TestWhatIsNotAway(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("x"), context.Canceled} {
		if db.IsAway(err) {
			t.Errorf("IsAway(%v)", err)
		}
	}
}
