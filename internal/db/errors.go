package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// IsUnique tells whether err says that a unique index already holds the value.
func IsUnique(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "23505"
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
	}
	return false
}

// IsConflict tells whether the same transaction may succeed when it is run again.
func IsConflict(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "40001" || e.Code == "40P01"
	}
	return false
}

// IsFull tells whether err says that the disk of the database is full.
func IsFull(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "53100"
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()&0xff == sqlite3.SQLITE_FULL
	}
	return false
}

// IsAway tells whether err says that the database cannot be used at present: it does not answer, refuses connections or
// writes, or broke a connection. What was being written may be there or not.
func IsAway(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		// Connections refused or lost, resources that are short, stopped or starting, read-only, a transaction that took too long.
		return strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "53") || strings.HasPrefix(e.Code, "57P") || strings.HasPrefix(e.Code, "58") ||
			e.Code == "25006" || e.Code == "25P03"
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN:
			return true
		}
		return false
	}
	if _, ok := errors.AsType[net.Error](err); ok { // context.DeadlineExceeded too, which is one
		return true
	}
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	return connect || pgconn.SafeToRetry(err) || errors.Is(err, sql.ErrTxDone) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
