// Package db opens helmr's one source of truth, SQLite or PostgreSQL, and runs transactions on it.
//
// One SQL text serves both: placeholders are `?`, types are TEXT, BIGINT, INTEGER and BYTEA, times are milliseconds
// since 1970 in UTC, flags are 0 or 1, and the token {lock} at the end of a SELECT takes the row lock that PostgreSQL
// needs (SQLite has one writer and needs none). Everything else that differs between the two stands in this package.
//
// On SQLite, writes that arrive together share one commit: a single writer runs each in a savepoint and answers all of
// them after the commit is on disk. On PostgreSQL each write is a transaction of its own; a conflict is retried. A
// function given to Write may therefore run more than once and must set its results afresh each time.
//
// A transaction can Signal topics. Signals are delivered after the commit, to this process and, on PostgreSQL, to every
// other server of the installation. A signal only says "look again": it may be lost or repeated.
//
// The package knows no resource. Statements live in the files named sql.go of the rooms that own the tables.
package db
