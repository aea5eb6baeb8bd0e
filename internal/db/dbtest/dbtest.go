// Package dbtest gives a test a fresh, migrated database of each kind. It is for tests only.
//
// PostgreSQL is the one named by HELMR_TEST_POSTGRES (scripts/with-postgres starts it, make test does so); each test
// gets a database of its own in it. Without that variable its subtests are skipped, except in CI, where they fail.
package dbtest

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
)

// Each runs test once on each kind of database.
func Each(t *testing.T, test func(t *testing.T, d *db.DB)) {
	t.Helper()
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, New(t, kind))
		})
	}
}

// New gives a fresh database of one kind; it is closed and dropped when the test ends.
func New(t testing.TB, kind db.Kind) *db.DB {
	t.Helper()
	d := Open(t, URL(t, kind))
	if _, err := d.Migrate(context.Background()); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	return d
}

// Open opens the database at u and closes it when the test ends.
func Open(t testing.TB, u string) *db.DB {
	t.Helper()
	d, err := db.Open(context.Background(), u)
	if err != nil {
		t.Fatalf("open database: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close database: %v", err)
		}
	})
	return d
}

// URL gives the URL of an empty database of one kind.
func URL(t testing.TB, kind db.Kind) string {
	t.Helper()
	if kind == db.SQLite {
		return "sqlite:" + filepath.Join(t.TempDir(), "helmr.db")
	}
	admin := os.Getenv("HELMR_TEST_POSTGRES")
	if admin == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("HELMR_TEST_POSTGRES is not set: run the tests with make test")
		}
		t.Skip("HELMR_TEST_POSTGRES is not set: run with scripts/with-postgres, or make test")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		t.Fatalf("connect to the test PostgreSQL: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	name := "t" + strings.ReplaceAll(id.New(), "-", "")
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create test database: %v", err)
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(ctx, admin)
		if err != nil {
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}
