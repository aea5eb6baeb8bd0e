package db

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	pgConns        = 32
	pgAttempts     = 20
	uniqueAttempts = 3
	signalChannel  = "helmr_signals"
)

// Bounds of a database that says nothing, because it hangs or the network is cut: shorter than a lease.
const (
	// connectWithin bounds the making of a connection, transactionWithin a transaction with its retries. A migration may
	// take as long as it needs.
	connectWithin     = 10 * time.Second
	transactionWithin = 30 * time.Second
	// idleWithin is after how long the database gives up a transaction whose server says nothing, and frees its locks.
	idleWithin = 15 * time.Second
	// listenLooks is how often a connection that brings no signals is asked whether it lives.
	listenLooks = 15 * time.Second
)

func openPostgres(ctx context.Context, url string) (*DB, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectWithin
	}
	pool := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf("SET idle_in_transaction_session_timeout = %d", idleWithin.Milliseconds()))
		return err
	}))
	pool.SetMaxOpenConns(pgConns)
	pool.SetMaxIdleConns(pgConns)
	if err := pool.PingContext(ctx); err != nil {
		_ = pool.Close()
		return nil, fmt.Errorf("connect to postgres: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	d := &DB{kind: PostgreSQL, pool: pool, hub: newHub(), echoes: newEchoes(), cancel: cancel}
	d.done.Go(func() { d.listen(run, config) })
	return d, nil
}

// Hosts gives the names or addresses of the machines that a database is on, by its URL; none for one that is on this.
func Hosts(url string) []string {
	if strings.HasPrefix(url, "sqlite:") {
		return nil
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil // Open says what is wrong with it
	}
	hosts := []string{cfg.Host}
	for _, f := range cfg.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	slices.Sort(hosts)
	return slices.DeleteFunc(slices.Compact(hosts), func(h string) bool { return strings.HasPrefix(h, "/") }) // a socket
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
	return d.withConn(ctx, func(conn *pgx.Conn) error {
		q := &transaction{conn: conn, begin: "begin"}
		tx := &Tx{db: d, q: q, ctx: ctx}
		if err := call(fn, tx); err != nil {
			return err
		}
		if err := q.commit(ctx, d.echoes.sender, tx.topics); err != nil {
			if conn.IsClosed() { // the answer may be lost, and the commit done
				d.echoes.heed()
				d.hub.Signal(tx.topics...)
			}
			return fmt.Errorf("commit: %w", err)
		}
		d.hub.Signal(tx.topics...)
		return nil
	})
}

// readPostgres runs fn on one snapshot.
func (d *DB) readPostgres(ctx context.Context, fn func(*Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, transactionWithin)
	defer cancel()
	return d.withConn(ctx, func(conn *pgx.Conn) error {
		return fn(&Tx{db: d, q: &transaction{conn: conn, begin: "begin isolation level repeatable read read only"}, ctx: ctx})
	})
}

// listen hands on the signals of other servers. After each (re)connection everyone is told to look again, since
// signals may have been lost meanwhile.
func (d *DB) listen(ctx context.Context, config *pgx.ConnConfig) {
	for ctx.Err() == nil {
		d.listenOnce(ctx, config)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (d *DB) listenOnce(ctx context.Context, config *pgx.ConnConfig) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	limited, cancel := context.WithTimeout(ctx, connectWithin)
	_, err = conn.Exec(limited, "LISTEN "+signalChannel)
	cancel()
	if err != nil {
		return
	}
	d.hub.signalAll()
	for {
		limited, cancel := context.WithTimeout(ctx, listenLooks)
		n, err := conn.WaitForNotification(limited)
		cancel()
		switch {
		case err == nil:
			if topic, mine := d.echoes.topic(n.Payload); !mine {
				d.hub.Signal(topic)
			}
		case ctx.Err() != nil || conn.IsClosed():
			return
		default: // nothing came, or nothing comes any more
			limited, cancel := context.WithTimeout(ctx, connectWithin)
			err := conn.Ping(limited)
			cancel()
			if err != nil {
				return
			}
		}
	}
}
