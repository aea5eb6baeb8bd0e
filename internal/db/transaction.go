package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// rollbackWithin bounds the end of a transaction that failed; a connection that does not do it is closed.
const rollbackWithin = 5 * time.Second

// maxAhead bounds the statements of a transaction that wait for another one to travel with.
const maxAhead = 64

// withConn gives fn a connection of the pool, and sees to it that no transaction stays open on it.
func (d *DB) withConn(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	pooled, err := d.pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = pooled.Close() }()
	return pooled.Raw(func(driver any) error {
		conn := driver.(*stdlib.Conn).Conn()
		defer idle(ctx, conn)
		return fn(conn)
	})
}

// idle rolls back what is open on conn, or closes it.
func idle(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || (!conn.PgConn().IsBusy() && conn.PgConn().TxStatus() == 'I') {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	if _, err := conn.Exec(limited, "rollback"); err != nil {
		_ = conn.Close(limited)
	}
}

// transaction is the querier of PostgreSQL. Each round trip is about as long as a statement takes, so nothing has one of its
// own that need not: the begin travels with the first statement, a write whose count nobody asks for with the next, and
// the signals with the commit.
type transaction struct {
	conn  *pgx.Conn
	begin string
	begun bool
	// ahead are statements that travel with the next.
	ahead []statement
}

type statement struct {
	text string
	args []any
}

// write has a statement run before the next one; its error comes with that.
func (t *transaction) write(ctx context.Context, text string, args []any) error {
	if len(t.ahead) >= maxAhead {
		_, err := t.exec(ctx, text, args)
		return err
	}
	t.start()
	t.ahead = append(t.ahead, statement{text, args})
	return nil
}

// start has the transaction begin with the next statement, if it has not begun.
func (t *transaction) start() {
	if !t.begun {
		t.begun = true
		t.ahead = append(t.ahead, statement{text: t.begin})
	}
}

func (t *transaction) exec(ctx context.Context, text string, args []any) (changed int64, err error) {
	t.start()
	err = t.send(ctx, text, args, func(answer pgx.BatchResults) error {
		tag, err := answer.Exec()
		changed = tag.RowsAffected()
		return err
	})
	return changed, err
}

func (t *transaction) query(ctx context.Context, each func(scan func(dest ...any) error) error, text string, args []any) error {
	t.start()
	return t.send(ctx, text, args, func(answer pgx.BatchResults) error {
		rows, err := answer.Query()
		return eachRow(rows, err, each)
	})
}

// send runs what waits and then a statement, whose answer take reads.
func (t *transaction) send(ctx context.Context, text string, args []any, take func(pgx.BatchResults) error) error {
	var batch pgx.Batch
	for _, s := range t.ahead {
		batch.Queue(s.text, s.args...)
	}
	batch.Queue(text, args...)
	before := len(t.ahead)
	t.ahead = nil
	answer := t.conn.SendBatch(ctx, &batch)
	err := func() error {
		for range before {
			if _, err := answer.Exec(); err != nil {
				return err
			}
		}
		return take(answer)
	}()
	closed := answer.Close()
	if err == nil {
		err = closed
	}
	return err
}

// commit makes the transaction durable and sends its signals, topics, as of sender.
func (t *transaction) commit(ctx context.Context, sender string, topics []string) error {
	if len(topics) > 0 {
		t.start()
		t.ahead = append(t.ahead, statement{"SELECT pg_notify($1, $2 || topic) FROM unnest($3::text[]) topic", []any{signalChannel, sender, topics}})
	}
	if !t.begun {
		return nil // it did nothing
	}
	return t.send(ctx, "commit", nil, func(answer pgx.BatchResults) error {
		tag, err := answer.Exec()
		if err == nil && tag.String() == "ROLLBACK" { // a statement of it had failed
			err = pgx.ErrTxCommitRollback
		}
		return err
	})
}

// oneQuery is the querier of one query, without a transaction.
type oneQuery struct {
	conn *pgx.Conn
	made bool
}

func (o *oneQuery) exec(context.Context, string, []any) (int64, error) {
	return 0, errors.New("ReadOne does not write")
}

func (o *oneQuery) write(ctx context.Context, text string, args []any) error {
	_, err := o.exec(ctx, text, args)
	return err
}

func (o *oneQuery) query(ctx context.Context, each func(scan func(dest ...any) error) error, text string, args []any) error {
	if o.made {
		return errors.New("ReadOne makes one query")
	}
	o.made = true
	rows, err := o.conn.Query(ctx, text, args...)
	return eachRow(rows, err, each)
}

// eachRow hands each row to each, and stops at the first error.
func eachRow(rows pgx.Rows, err error, each func(scan func(dest ...any) error) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
