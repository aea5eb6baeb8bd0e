// Package turn is the room of Turns: admission, claim, operations of Session processes, results, finalization, and the
// controls and failures that end Turns. What concerns a Session, its process, its Turns and its Computer at once is
// decided here, in one transaction.
//
// Turn (the table is Statuses in turn.go):
//
//	queued ----> running      claimed for a ready process
//	queued ----> cancelled    Session cancelled, or closed while a hold blocks the Turn
//	running ---> finalizing   handler returned, drained, result recorded, Save requested
//	running ---> failed       handler threw, result bad, drain failed
//	running ---> interrupted  interrupt, deadline, shutdown (after cleanup); process or Computer lost
//	running ---> cancelled    Session cancelled, after cleanup
//	finalizing > completed    its own Save published
//	finalizing > interrupted  Computer lost first
//
// At most once: a claim is the only way to running; it names the one process (its epoch) that may call the handler, and
// the guest hands a Turn to that process once. If the process is gone, the Turn ends; it is never claimed again.
//
// Nothing lost, nothing doubled: operations of a process are numbered; they are applied in order, each in the
// transaction that moves the process's last_operation over it, and acknowledged after the commit. An operation that
// comes again is acknowledged again and has no second effect.
//
// Locks are taken in the order Computer, Session. Everything of one Computer is therefore decided one thing at a time.
//
// The wire is the Worker's Exchange (internal/worker/proto): what a Worker sees of one Computer, answered by what is
// wanted of it. Both directions are complete states, so that a lost or repeated call does no harm.
//
// Table owned: turns.
package turn
