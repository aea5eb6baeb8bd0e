// Package session is the room of Sessions: continuing conversations, their holds, their Session processes and their one
// ordered event log.
//
// It decides nothing about Turns; the turn room admits, claims and ends them, and calls this room to change the Session
// around them. Every change of a Session appends its events in the same transaction.
//
// Session (the table is Statuses in session.go):
//
//	open -----> closing --> closed      close accepted or idle close due; nothing left to drain
//	open, closing --------> cancelled   cancel accepted
//
// Session process (ProcessStatuses):
//
//	starting --> ready <--> serving        init resolved; a Turn is served
//	starting, ready, serving --> stopping  told to stop
//	any of them --> ended                  exited, killed, or lost with its Computer
//
// Invariants: event sequences of a Session start at 1 and have no gap; a Session has at most one process that has not
// ended; process epochs grow; last_operation of a process grows, and an operation at or below it has been applied.
//
// Tables owned: sessions, session_events, holds, session_processes.
package session
