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
	reads.SetMaxOpenConns(readConns)
	reads.SetMaxIdleConns(readConns)
	run, cancel := context.WithCancel(context.Background())
	d := &DB{kind: SQLite, reads: reads, hub: newHub(), lock: lock, cancel: cancel}
	d.writer = &writer{db: d, pool: writes, conn: conn, in: make(chan *job, 4096), ctx: run, stmts: map[string]*sql.Stmt{}}
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
	stmts map[string]*sql.Stmt
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
		for _, st := range w.stmts {
			_ = st.Close()
		}
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
		first.err = fmt.Errorf("begin: %w", err)
		close(first.done)
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

// run runs one job in a savepoint. An error of run itself means that the shared transaction is not whole any more: SQLite
// rolls it back by itself when the disk is full, and what follows would then commit alone.
func (w *writer) run(ctx context.Context, j *job) error {
	if j.err = j.ctx.Err(); j.err != nil {
		return nil
	}
	if _, err := w.exec(ctx, "SAVEPOINT job"); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	tx := &Tx{db: w.db, q: w.conn, ctx: ctx, prepare: func(q string) (*sql.Stmt, error) { return w.stmt(ctx, q) }}
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
	if st, ok := w.stmts[q]; ok {
		return st, nil
	}
	st, err := w.conn.PrepareContext(ctx, q)
	if err != nil {
		return nil, err
	}
	w.stmts[q] = st
	return st, nil
}
