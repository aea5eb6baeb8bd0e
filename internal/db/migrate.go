package db

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"sort"
	"strings"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations gives the names of all migrations in order.
func Migrations() []string {
	entries, _ := fs.ReadDir(migrations, "migrations")
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	sort.Strings(names)
	return names
}

// Migrate brings the schema up to date, each migration in a transaction of its own, and gives the names of those it
// ran. A second run does nothing.
func (d *DB) Migrate(ctx context.Context) ([]string, error) {
	err := d.write(ctx, func(tx *Tx) error {
		_, err := tx.Exec(`CREATE TABLE IF NOT EXISTS schema_migrations (name TEXT PRIMARY KEY)`)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	var ran []string
	for _, name := range Migrations() {
		text, err := migrations.ReadFile("migrations/" + name)
		if err != nil {
			return ran, err
		}
		did := false
		err = d.write(ctx, func(tx *Tx) error {
			did = false
			if d.kind == PostgreSQL {
				if _, err := tx.Exec(`LOCK TABLE schema_migrations IN EXCLUSIVE MODE`); err != nil {
					return err
				}
			}
			var have string
			if found, err := tx.Get([]any{&have}, `SELECT name FROM schema_migrations WHERE name = ?`, name); err != nil || found {
				return err
			}
			did = true
			for _, statement := range statements(string(text)) {
				if _, err := tx.q.exec(tx.ctx, statement, nil); err != nil {
					return fmt.Errorf("%w in: %s", err, statement)
				}
			}
			_, err := tx.Exec(`INSERT INTO schema_migrations (name) VALUES (?)`, name)
			return err
		})
		if err != nil {
			return ran, fmt.Errorf("migration %s: %w", name, err)
		}
		if did {
			ran = append(ran, name)
		}
	}
	return ran, nil
}

// Pending gives the migrations that the schema lacks; a server refuses to start with any.
func (d *DB) Pending(ctx context.Context) ([]string, error) {
	have := map[string]bool{}
	err := d.Read(ctx, func(tx *Tx) error {
		clear(have)
		return tx.Query(func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			have[name] = true
			return err
		}, `SELECT name FROM schema_migrations`)
	})
	if err != nil && !isNoTable(err) {
		return nil, fmt.Errorf("read schema version: %w", err)
	}
	var pending []string
	for _, name := range Migrations() {
		if !have[name] {
			pending = append(pending, name)
		}
	}
	return pending, nil
}

func isNoTable(err error) bool {
	return strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "SQLSTATE 42P01")
}

// statements splits a migration at semicolons that end a line. Comments are whole lines that start with "--".
func statements(text string) []string {
	var out []string
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "--") {
			continue
		}
		b.WriteString(line)
		if strings.HasSuffix(strings.TrimSpace(line), ";") {
			out = append(out, strings.TrimSpace(b.String()))
			b.Reset()
		}
	}
	if s := strings.TrimSpace(b.String()); s != "" {
		out = append(out, s)
	}
	return out
}
