package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the driver named "sqlite"
)

// Limits of one shared commit. A batch ends at whichever comes first.
const (
	batchWrites = 128
	batchTime   = 10 * time.Millisecond
	readConns   = 8
)

func openSQLite(ctx context.Context, path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("database path: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("database folder: %w", err)
	}
	lock, err := lockInstance(path + ".lock")
	if err != nil {
		return nil, err
	}
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=busy_timeout(10000)" +
		"&_pragma=cache_size(-32000)&_pragma=temp_store(MEMORY)"
	writes, err := sql.Open("sqlite", dsn)
	if err != nil {
		lock.release()
		return nil, fmt.Errorf("open sqlite: %w", err)
	}
	writes.SetMaxOpenConns(1)
	conn, err := writes.Conn(ctx)
	if err != nil {
		_ = writes.Close()
		lock.release()
		return nil, fmt.Errorf("open sqlite %s: %w", path, err)
	}
	_ = os.Chmod(path, 0o600)
	reads, err := sql.Open("sqlite", dsn+"&_pragma=query_only(1)")
	if err != nil {
		_ = writes.Close()
		lock.release()
		return nil, fmt.Errorf("open sqlite: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	d := &DB{kind: SQLite, pool: reads, hub: newHub(), lock: lock, cancel: cancel}
	d.readers = newReaders(d, reads)
	d.writer = &writer{db: d, pool: writes, conn: conn, in: make(chan *job, 4096), ctx: run, stmts: stmts{}}
	d.done.Go(d.writer.loop)
	return d, nil
}

// instanceLock keeps a second server off one SQLite file.
type instanceLock struct{ f *os.File }

func lockInstance(path string) (*instanceLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("database lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another helmr process uses this SQLite database (%s is locked): stop it, or use PostgreSQL for several servers", path)
	}
	return &instanceLock{f}, nil
}

func (l *instanceLock) release() { _ = l.f.Close() }

// job is one write waiting for, or being part of, a shared commit.
type job struct {
	ctx    context.Context
	fn     func(*Tx) error
	err    error
	topics []string
	done   chan struct{}
}

// writer is the only connection that writes to SQLite.
type writer struct {
	db    *DB
	pool  *sql.DB
	conn  *sql.Conn
	in    chan *job
	ctx   context.Context
	stmts stmts
}

var errClosed = errors.New("database is closed")

func (w *writer) do(ctx context.Context, fn func(*Tx) error) error {
	j := &job{ctx: ctx, fn: fn, done: make(chan struct{})}
	select {
	case w.in <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ctx.Done():
		return errClosed
	}
	select {
	case <-j.done:
		return j.err
	case <-w.ctx.Done():
		// The loop answers what it has already taken; what is left in the queue is refused here.
		select {
		case <-j.done:
			return j.err
		case <-time.After(time.Second):
			return errClosed
		}
	}
}

func (w *writer) stop() { <-w.ctx.Done() }

func (w *writer) loop() {
	defer func() {
		w.stmts.close()
		_ = w.conn.Close()
		_ = w.pool.Close()
	}()
	for {
		select {
		case <-w.ctx.Done():
			return
		case j := <-w.in:
			w.batch(j)
		}
	}
}

// batch runs first and whatever else is waiting in one transaction, then answers all of them.
func (w *writer) batch(first *job) {
	ctx := context.WithoutCancel(w.ctx)
	if _, err := w.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		w.refuse(first, fmt.Errorf("begin: %w", err))
		return
	}
	jobs := make([]*job, 0, 8)
	began := time.Now()
	var broken error
	for j := first; j != nil; {
		jobs = append(jobs, j)
		broken = w.run(ctx, j)
		j = nil
		if broken == nil && len(jobs) < batchWrites && time.Since(began) < batchTime {
			select {
			case j = <-w.in:
			default:
			}
		}
	}
	if broken == nil {
		_, broken = w.conn.ExecContext(ctx, "COMMIT")
	}
	if broken != nil {
		_, _ = w.conn.ExecContext(ctx, "ROLLBACK") // fails where SQLite has rolled back by itself
		for _, j := range jobs {
			if j.err == nil {
				j.err = fmt.Errorf("commit: %w", broken)
				j.topics = nil
			}
		}
	}
	for _, j := range jobs {
		w.db.hub.Signal(j.topics...)
		close(j.done)
	}
}

// refuse answers first and whatever else is waiting: a file that another program has locked for so long would make each of
// them wait as long again.
func (w *writer) refuse(first *job, err error) {
	for j := first; j != nil; {
		j.err = err
		close(j.done)
		select {
		case j = <-w.in:
		default:
			j = nil
		}
	}
}

// run runs one job in a savepoint. An error of run itself means that the shared transaction is not whole any more: SQLite
// rolls it back by itself when the disk is full, and what follows would then commit alone.
func (w *writer) run(ctx context.Context, j *job) error {
	if j.err = j.ctx.Err(); j.err != nil {
		return nil
	}
	if _, err := w.exec(ctx, "SAVEPOINT job"); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	tx := &Tx{db: w.db, q: prepared(func(q string) (*sql.Stmt, error) { return w.stmt(ctx, q) }), ctx: ctx}
	if j.err = call(j.fn, tx); j.err != nil {
		if _, err := w.exec(ctx, "ROLLBACK TO job"); err != nil {
			return fmt.Errorf("roll back: %w", errors.Join(err, j.err))
		}
	}
	if _, err := w.exec(ctx, "RELEASE job"); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if j.err == nil {
		j.topics = tx.topics
	}
	return nil
}

// call runs fn and turns a panic into an error, so that one bad write cannot take the writer down.
func call(fn func(*Tx) error, tx *Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a write: %v", p)
		}
	}()
	return fn(tx)
}

func (w *writer) exec(ctx context.Context, q string) (sql.Result, error) {
	st, err := w.stmt(ctx, q)
	if err != nil {
		return nil, err
	}
	return st.ExecContext(ctx)
}

func (w *writer) stmt(ctx context.Context, q string) (*sql.Stmt, error) {
	return w.stmts.get(ctx, w.conn, q)
}

// prepared is the querier of SQLite: it gives a statement that was prepared on the connection.
type prepared func(text string) (*sql.Stmt, error)

func (p prepared) exec(ctx context.Context, text string, args []any) (int64, error) {
	st, err := p(text)
	if err != nil {
		return 0, err
	}
	res, err := st.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (p prepared) write(ctx context.Context, text string, args []any) error {
	_, err := p.exec(ctx, text, args)
	return err
}

func (p prepared) query(ctx context.Context, each func(scan func(dest ...any) error) error, text string, args []any) error {
	st, err := p(text)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// stmts holds the prepared statements of one connection.
type stmts map[string]*sql.Stmt

func (s stmts) get(ctx context.Context, conn *sql.Conn, q string) (*sql.Stmt, error) {
	if st, ok := s[q]; ok {
		return st, nil
	}
	st, err := conn.PrepareContext(ctx, q)
	if err != nil {
		return nil, err
	}
	s[q] = st
	return st, nil
}

func (s stmts) close() {
	for _, st := range s {
		_ = st.Close()
	}
}

// readers are the connections that read from SQLite. Each keeps its prepared statements; a read needs one of them and
// never waits for a second.
type readers struct {
	db   *DB
	pool *sql.DB
	free chan *reader // nil: a connection that is not open yet
}

type reader struct {
	conn  *sql.Conn
	stmts stmts
}

func newReaders(d *DB, pool *sql.DB) *readers {
	r := &readers{db: d, pool: pool, free: make(chan *reader, readConns)}
	for range readConns {
		r.free <- nil
	}
	return r
}

func (rs *readers) do(ctx context.Context, fn func(*Tx) error) (err error) {
	var r *reader
	select {
	case r = <-rs.free:
	case <-ctx.Done():
		return ctx.Err()
	}
	// What runs on the connection must end in order whatever becomes of the caller.
	inner := context.WithoutCancel(ctx)
	defer func() { rs.free <- r }()
	if r == nil {
		conn, err := rs.pool.Conn(inner)
		if err != nil {
			return fmt.Errorf("open a reader: %w", err)
		}
		r = &reader{conn: conn, stmts: stmts{}}
	}
	if err := r.exec(inner, "BEGIN"); err != nil {
		r = r.drop()
		return fmt.Errorf("begin read: %w", err)
	}
	defer func() {
		if e := r.exec(inner, "ROLLBACK"); e != nil {
			r = r.drop()
		}
	}()
	return call(fn, &Tx{db: rs.db, q: prepared(func(q string) (*sql.Stmt, error) { return r.stmts.get(inner, r.conn, q) }), ctx: inner})
}

func (r *reader) exec(ctx context.Context, q string) error {
	st, err := r.stmts.get(ctx, r.conn, q)
	if err != nil {
		return err
	}
	_, err = st.ExecContext(ctx)
	return err
}

// drop closes a reader that is not usable any more.
func (r *reader) drop() *reader {
	r.stmts.close()
	_ = r.conn.Close()
	return nil
}

// close closes the readers as they become free.
func (rs *readers) close() {
	for range readConns {
		if r := <-rs.free; r != nil {
			r.drop()
		}
	}
}
