package db

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Kind names the database behind a DB.
type Kind string

// The two databases helmr runs on.
const (
	SQLite     Kind = "sqlite"
	PostgreSQL Kind = "postgres"
)

// DB is an open database. It is safe for concurrent use.
type DB struct {
	kind    Kind
	pool    *sql.DB  // of PostgreSQL; on SQLite what the readers' connections come from
	writer  *writer  // SQLite only
	readers *readers // SQLite only
	hub     *Hub
	echoes  echoes        // PostgreSQL only
	lock    *instanceLock // SQLite only: a second server on the file is refused
	cancel  context.CancelFunc
	done    sync.WaitGroup
	queries sync.Map // SQL text as written -> text for this database
}

// Open opens the database at url without touching its schema. url is "sqlite:PATH" or a "postgres:" URL.
func Open(ctx context.Context, url string) (*DB, error) {
	switch {
	case strings.HasPrefix(url, "sqlite:"):
		return openSQLite(ctx, strings.TrimPrefix(url, "sqlite:"))
	case strings.HasPrefix(url, "postgres:"), strings.HasPrefix(url, "postgresql:"):
		return openPostgres(ctx, url)
	}
	return nil, errors.New(`database URL: want "sqlite:PATH" or "postgres://USER:PASSWORD@HOST/NAME"`)
}

// Kind tells which database this is.
func (d *DB) Kind() Kind { return d.kind }

// Hub gives the topics that committed transactions signal.
func (d *DB) Hub() *Hub { return d.hub }

// Close ends running work and closes the database.
func (d *DB) Close() error {
	d.cancel()
	if d.writer != nil {
		d.writer.stop()
	}
	d.done.Wait()
	if d.readers != nil {
		d.readers.close()
	}
	err := d.pool.Close()
	if d.lock != nil {
		d.lock.release()
	}
	return err
}

// Write runs fn in a transaction and returns once its effect is durable. If fn returns an error nothing of it stays. Any
// other error may mean that the answer to a commit was lost, and the effect is there.
// fn may run more than once; it must not keep tx, call outside systems or wait for anything.
func (d *DB) Write(ctx context.Context, fn func(tx *Tx) error) error {
	if d.kind == PostgreSQL {
		limited, cancel := context.WithTimeout(ctx, transactionWithin)
		defer cancel()
		ctx = limited
	}
	return d.write(ctx, fn)
}

// write is Write without a bound of its own.
func (d *DB) write(ctx context.Context, fn func(tx *Tx) error) error {
	if d.kind == SQLite {
		return d.writer.do(ctx, fn)
	}
	return d.writePostgres(ctx, fn)
}

// Read runs fn on one consistent snapshot. Writes inside it fail.
func (d *DB) Read(ctx context.Context, fn func(tx *Tx) error) error {
	if d.kind == SQLite {
		return d.readers.do(ctx, fn)
	}
	return d.readPostgres(ctx, fn)
}

// ReadOne is Read for an fn that makes one query: it is a snapshot by itself, and PostgreSQL needs no transaction around it.
func (d *DB) ReadOne(ctx context.Context, fn func(tx *Tx) error) error {
	if d.kind == SQLite {
		return d.readers.do(ctx, fn)
	}
	ctx, cancel := context.WithTimeout(ctx, transactionWithin)
	defer cancel()
	return d.withConn(ctx, func(conn *pgx.Conn) error {
		return fn(&Tx{db: d, q: &oneQuery{conn: conn}, ctx: ctx})
	})
}

// Tx is a running transaction.
type Tx struct {
	db     *DB
	q      querier
	ctx    context.Context
	topics []string
}

// querier runs statements in the text of its database.
type querier interface {
	exec(ctx context.Context, text string, args []any) (changed int64, err error)
	// write is exec without the count. Its error may be that of a later statement, or of the commit.
	write(ctx context.Context, text string, args []any) error
	query(ctx context.Context, each func(scan func(dest ...any) error) error, text string, args []any) error
}

// Exec runs a statement and gives the number of rows it changed.
func (t *Tx) Exec(query string, args ...any) (int64, error) {
	return t.q.exec(t.ctx, t.db.text(query), args)
}

// Do runs a statement that changes rows, nobody needs to know how many. It is faster than Exec. On PostgreSQL a failure of
// the database may be the error of a later statement of the transaction, or of its commit.
func (t *Tx) Do(query string, args ...any) error { return t.q.write(t.ctx, t.db.text(query), args) }

// Query runs a SELECT; each row is handed to scan. It stops at the first error.
func (t *Tx) Query(scan func(scan func(dest ...any) error) error, query string, args ...any) error {
	return t.q.query(t.ctx, scan, t.db.text(query), args)
}

// Get scans the single row of query into dest. It tells whether there was one.
func (t *Tx) Get(dest []any, query string, args ...any) (bool, error) {
	found := false
	err := t.Query(func(scan func(...any) error) error {
		if found {
			return nil
		}
		found = true
		return scan(dest...)
	}, query, args...)
	return found, err
}

// Column gives the only column of each row of query, a text.
func (t *Tx) Column(query string, args ...any) ([]string, error) {
	var out []string
	err := t.Query(func(scan func(...any) error) error {
		var one string
		err := scan(&one)
		out = append(out, one)
		return err
	}, query, args...)
	return out, err
}

// Signal asks that whoever waits on topic looks again once this transaction is committed.
func (t *Tx) Signal(topic string) {
	for _, have := range t.topics {
		if have == topic {
			return
		}
	}
	t.topics = append(t.topics, topic)
}

// Context is the context the transaction runs under.
func (t *Tx) Context() context.Context { return t.ctx }

// text turns a statement as written into the database's own: {lock} and placeholders.
func (d *DB) text(query string) string {
	if s, ok := d.queries.Load(query); ok {
		return s.(string)
	}
	s := query
	if d.kind == PostgreSQL {
		s = strings.ReplaceAll(s, "{lock}", "FOR UPDATE")
		var b strings.Builder
		n := 0
		for i := 0; i < len(s); i++ {
			if s[i] == '?' {
				n++
				b.WriteString("$" + strconv.Itoa(n))
				continue
			}
			b.WriteByte(s[i])
		}
		s = b.String()
	} else {
		s = strings.ReplaceAll(s, "{lock}", "")
	}
	d.queries.Store(query, s)
	return s
}

// Millis gives t as the database stores it.
func Millis(t time.Time) int64 { return t.UnixMilli() }

// Time gives the time that the database stored as ms.
func Time(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// In gives "?, ?, ?" for n values of an IN list; n must be positive.
func In(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }
