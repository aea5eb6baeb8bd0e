package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver named "pgx"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
)

// Tables and columns stand in variables here: a floor writes to a table of its own, and rows are copied with whatever
// columns they have, so that a migration changes nothing in this program.

// newDatabase makes an empty database and gives its URL.
func (b *bench) newDatabase(ctx context.Context, kind db.Kind, dir string) (string, error) {
	if kind == db.SQLite {
		return "sqlite:" + filepath.Join(dir, "helmr.db"), nil
	}
	return b.createPostgres(ctx, "")
}

// createPostgres makes a PostgreSQL database, as a copy of another if template names one.
func (b *bench) createPostgres(ctx context.Context, template string) (string, error) {
	conn, err := pgx.Connect(ctx, b.admin)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	name := "bench" + strings.ReplaceAll(id.New(), "-", "")
	command := "CREATE DATABASE " + name
	if template != "" {
		command += " TEMPLATE " + template
	}
	if _, err := conn.Exec(ctx, command); err != nil {
		return "", err
	}
	u, err := url.Parse(b.admin)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

func (b *bench) dropDatabase(kind db.Kind, database string) error {
	u, err := url.Parse(database)
	if kind == db.SQLite || err != nil || database == "" {
		return nil
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, b.admin)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+strings.TrimPrefix(u.Path, "/")+" WITH (FORCE)")
	return err
}

// openPlain opens a database as any program would, with the durability that helmr asks for.
func openPlain(kind db.Kind, database string) (*sql.DB, error) {
	if kind == db.PostgreSQL {
		return sql.Open("pgx", database)
	}
	d, err := sql.Open("sqlite", "file:"+strings.TrimPrefix(database, "sqlite:")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=busy_timeout(10000)")
	if err == nil {
		d.SetMaxOpenConns(1) // SQLite has one writer
	}
	return d, err
}

// insert gives the statement that writes so many rows.
func insert(kind db.Kind, table string, columns []string, rows int) string {
	var s strings.Builder
	s.WriteString("INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES ")
	n := 0
	for r := range rows {
		if r > 0 {
			s.WriteString(", ")
		}
		for c := range columns {
			s.WriteString(map[bool]string{true: "(", false: ", "}[c == 0])
			if n++; kind == db.PostgreSQL {
				s.WriteString("$" + strconv.Itoa(n))
			} else {
				s.WriteString("?")
			}
		}
		s.WriteString(")")
	}
	return s.String()
}

// copier multiplies rows of a database.
type copier struct {
	kind db.Kind
	tx   *sql.Tx
}

// rows are the rows of a table that belong together.
type rows struct {
	table   string
	columns []string
	values  [][]any
}

// read gives the rows of a table with a value in a column.
func (c copier) read(ctx context.Context, table, column, value string) (rows, error) {
	r := rows{table: table}
	placeholder := "?"
	if c.kind == db.PostgreSQL {
		placeholder = "$1"
	}
	found, err := c.tx.QueryContext(ctx, "SELECT "+"* FROM "+table+" WHERE "+column+" = "+placeholder, value)
	if err != nil {
		return r, fmt.Errorf("read %s: %w", table, err)
	}
	defer func() { _ = found.Close() }()
	if r.columns, err = found.Columns(); err != nil {
		return r, err
	}
	for found.Next() {
		row := make([]any, len(r.columns))
		at := make([]any, len(row))
		for i := range row {
			at[i] = &row[i]
		}
		if err := found.Scan(at...); err != nil {
			return r, err
		}
		r.values = append(r.values, row)
	}
	return r, found.Err()
}

// write writes the rows so many times; change gives the i-th copy's value of a column.
func (c copier) write(ctx context.Context, r rows, copies int, change func(i int, column string, value any) any) error {
	const parameters = 20000
	var args []any
	count := 0
	flush := func() error {
		if count == 0 {
			return nil
		}
		_, err := c.tx.ExecContext(ctx, insert(c.kind, r.table, r.columns, count), args...)
		args, count = args[:0], 0
		if err != nil {
			return fmt.Errorf("copy rows of %s: %w", r.table, err)
		}
		return nil
	}
	for i := range copies {
		for _, row := range r.values {
			for at, value := range row {
				args = append(args, change(i, r.columns[at], value))
			}
			count++
			if len(args)+len(r.columns) > parameters {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}
