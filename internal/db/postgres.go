package db

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver named "pgx"
)

const (
	pgConns        = 32
	pgAttempts     = 20
	uniqueAttempts = 3
	signalChannel  = "helmr_signals"
)

func openPostgres(ctx context.Context, url string) (*DB, error) {
	pool, err := sql.Open("pgx", url)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	pool.SetMaxOpenConns(pgConns)
	pool.SetMaxIdleConns(pgConns)
	if err := pool.PingContext(ctx); err != nil {
		_ = pool.Close()
		return nil, fmt.Errorf("connect to postgres: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	d := &DB{kind: PostgreSQL, pool: pool, hub: newHub(), cancel: cancel}
	d.done.Go(func() { d.listen(run, url) })
	return d, nil
}

// writePostgres runs fn in a transaction of its own and repeats it while the database reports a conflict.
func (d *DB) writePostgres(ctx context.Context, fn func(*Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := d.tryPostgres(ctx, fn)
		// A unique violation may be a race with a transaction that has committed since: run again, the rooms look
		// before they write and name the conflict themselves. One that stays is returned.
		again := IsConflict(err) && attempt < pgAttempts || IsUnique(err) && attempt < uniqueAttempts
		if err == nil || !again || ctx.Err() != nil {
			return err
		}
		pause := time.Duration(rand.IntN(attempt*4)+1) * time.Millisecond
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (d *DB) tryPostgres(ctx context.Context, fn func(*Tx) error) error {
	stx, err := d.pool.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = stx.Rollback() }()
	tx := &Tx{db: d, q: stx, ctx: ctx}
	if err := call(fn, tx); err != nil {
		return err
	}
	if len(tx.topics) > 0 {
		if _, err := stx.ExecContext(ctx, "SELECT pg_notify($1, topic) FROM unnest($2::text[]) topic", signalChannel, tx.topics); err != nil {
			return fmt.Errorf("signal: %w", err)
		}
	}
	if err := stx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	d.hub.Signal(tx.topics...)
	return nil
}

// listen hands on the signals of other servers. After each (re)connection everyone is told to look again, since
// signals may have been lost meanwhile.
func (d *DB) listen(ctx context.Context, url string) {
	for ctx.Err() == nil {
		d.listenOnce(ctx, url)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (d *DB) listenOnce(ctx context.Context, url string) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+signalChannel); err != nil {
		return
	}
	d.hub.signalAll()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return
		}
		d.hub.Signal(n.Payload)
	}
}
