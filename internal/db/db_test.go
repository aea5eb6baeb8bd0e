package db_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

func setup(t *testing.T, d *db.DB) {
	t.Helper()
	err := d.Write(t.Context(), func(tx *db.Tx) error {
		_, err := tx.Exec(`CREATE TABLE notes (id BIGINT PRIMARY KEY, text TEXT NOT NULL UNIQUE)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, d *db.DB) int {
	t.Helper()
	var n int
	err := d.Read(t.Context(), func(tx *db.Tx) error {
		_, err := tx.Get([]any{&n}, `SELECT COUNT(*) FROM notes`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestConcurrentWritesEachKeepOrLoseTheirOwnEffect(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		setup(t, d)
		var wg sync.WaitGroup
		bad := errors.New("refused")
		for i := range 200 {
			wg.Go(func() {
				err := d.Write(context.Background(), func(tx *db.Tx) error {
					if _, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (?, ?)`, i, fmt.Sprint(i)); err != nil {
						return err
					}
					if i%4 == 0 {
						return bad
					}
					if i%4 == 1 {
						panic("broken")
					}
					return nil
				})
				if failed := err != nil; failed != (i%4 < 2) || (i%4 == 0 && !errors.Is(err, bad)) {
					t.Errorf("write %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if n := count(t, d); n != 100 {
			t.Fatalf("%d rows stay, want 100", n)
		}
	})
}

func TestUniqueIsRecognised(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		setup(t, d)
		add := func(id int, text string) error {
			return d.Write(t.Context(), func(tx *db.Tx) error {
				_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (?, ?)`, id, text)
				return err
			})
		}
		if err := add(1, "a"); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{add(1, "b"), add(2, "a")} {
			if !db.IsUnique(err) {
				t.Fatalf("IsUnique(%v) = false", err)
			}
		}
	})
}

func TestSignalsArriveAfterTheCommitAndOnlyThen(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		setup(t, d)
		sub := d.Hub().Subscribe("notes")
		defer sub.Close()
		_ = d.Write(t.Context(), func(tx *db.Tx) error {
			tx.Signal("notes")
			return errors.New("no")
		})
		err := d.Write(t.Context(), func(tx *db.Tx) error {
			tx.Signal("notes")
			_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (1, 'x')`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		<-sub.C
		if n := count(t, d); n != 1 {
			t.Fatalf("signal came before the commit: %d rows", n)
		}
	})
}

func TestReadsCannotWrite(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		setup(t, d)
		err := d.Read(t.Context(), func(tx *db.Tx) error {
			_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (1, 'x')`)
			return err
		})
		if err == nil {
			t.Fatal("a write inside Read succeeded")
		}
	})
}

func TestSpec_21_02_ASecondServerOnASQLiteFileIsRefused(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t, db.SQLite)
	dbtest.Open(t, url)
	if second, err := db.Open(t.Context(), url); err == nil {
		_ = second.Close()
		t.Fatal("a second server opened the file")
	}
}

func TestSpec_21_03_MigrateTwiceDoesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			d := dbtest.Open(t, dbtest.URL(t, kind))
			pending, err := d.Pending(t.Context())
			if err != nil || len(pending) != len(db.Migrations()) {
				t.Fatalf("pending on an empty database: %v, %v", pending, err)
			}
			first, err := d.Migrate(t.Context())
			if err != nil || len(first) != len(db.Migrations()) {
				t.Fatalf("first migrate: %v, %v", first, err)
			}
			second, err := d.Migrate(t.Context())
			if err != nil || len(second) != 0 {
				t.Fatalf("second migrate: %v, %v", second, err)
			}
			if pending, err = d.Pending(t.Context()); err != nil || len(pending) != 0 {
				t.Fatalf("pending after migrate: %v, %v", pending, err)
			}
		})
	}
}

// TestBothDatabasesHaveTheSameColumns holds the one schema text to its promise.
func TestBothDatabasesHaveTheSameColumns(t *testing.T) {
	t.Parallel()
	pg := dbtest.New(t, db.PostgreSQL)
	lite := dbtest.New(t, db.SQLite)
	a := columns(t, pg, `SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'`)
	b := columns(t, lite, `SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'`)
	for c := range a {
		if !b[c] {
			t.Errorf("only PostgreSQL has %s", c)
		}
	}
	for c := range b {
		if !a[c] {
			t.Errorf("only SQLite has %s", c)
		}
	}
	if len(a) < 50 {
		t.Fatalf("only %d columns seen", len(a))
	}
}

func columns(t *testing.T, d *db.DB, query string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := d.Read(t.Context(), func(tx *db.Tx) error {
		return tx.Query(func(scan func(...any) error) error {
			var table, column string
			err := scan(&table, &column)
			out[table+"."+column] = true
			return err
		}, query)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func BenchmarkWrite(b *testing.B) {
	d := dbtest.New(b, db.SQLite)
	_ = d.Write(b.Context(), func(tx *db.Tx) error {
		_, err := tx.Exec(`CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)`)
		return err
	})
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			err := d.Write(context.Background(), func(tx *db.Tx) error {
				_, err := tx.Exec(`INSERT INTO notes (text) VALUES (?)`, "hello")
				return err
			})
			if err != nil {
				b.Error(err)
			}
		}
	})
}

// TestAFullDiskLosesNothingAcknowledged fills the file system of a SQLite database while writes share commits: each write
// that was acknowledged is there, each that was refused is not, and writing goes on once there is room.
func TestAFullDiskLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	d := dbtest.Open(t, "sqlite:"+filepath.Join(dir, "helmr.db"))
	setup(t, d)
	big := strings.Repeat("x", 8<<10)
	var mu sync.Mutex
	acknowledged := map[int]bool{}
	var wg sync.WaitGroup
	for i := range 400 {
		wg.Go(func() {
			err := d.Write(context.Background(), func(tx *db.Tx) error {
				_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (?, ?)`, i, fmt.Sprint(i, big))
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			acknowledged[i] = err == nil
		})
	}
	wg.Wait()
	have := map[int]bool{}
	err := d.Read(t.Context(), func(tx *db.Tx) error {
		return tx.Query(func(scan func(...any) error) error {
			var id int
			err := scan(&id)
			have[id] = true
			return err
		}, `SELECT id FROM notes`)
	})
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i, ok := range acknowledged {
		if have[i] != ok {
			t.Errorf("write %d: acknowledged %v, there %v", i, ok, have[i])
		}
		if !ok {
			refused++
		}
	}
	if refused == 0 || refused == len(acknowledged) {
		t.Fatalf("%d of %d writes were refused: the disk was not filled half-way", refused, len(acknowledged))
	}
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatalf("grow: %v", err)
	}
	err = d.Write(t.Context(), func(tx *db.Tx) error {
		_, err := tx.Exec(`INSERT INTO notes (id, text) VALUES (10000, 'room again')`)
		return err
	})
	if err != nil {
		t.Fatalf("with room again: %v", err)
	}
}

// More transactions than connections, each with a statement that was never prepared: none may wait for another's.
func TestReadsOfNewStatementsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t, db.SQLite)
	const readers = 64
	started := make(chan struct{})
	errs := make(chan error, readers)
	for i := range readers {
		go func() {
			<-started
			errs <- d.Read(context.Background(), func(tx *db.Tx) error {
				var n int64
				_, err := tx.Get([]any{&n}, fmt.Sprintf(`SELECT %d`, i))
				return err
			})
		}()
	}
	close(started)
	for range readers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyReadersNeverWaitForEachOther: each of many concurrent reads makes statements that no connection has prepared.
func TestManyReadersNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		setup(t, d)
		var all, wg sync.WaitGroup
		all.Add(8)
		for i := range 64 {
			wg.Go(func() {
				err := d.Read(context.Background(), func(tx *db.Tx) error {
					if i < 8 {
						all.Done()
						all.Wait() // eight reads are open at once
					}
					var n int
					_, err := tx.Get([]any{&n}, fmt.Sprintf(`SELECT COUNT(*) + %d FROM notes`, i))
					if err == nil && n != i {
						err = fmt.Errorf("read %d, want %d", n, i)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
