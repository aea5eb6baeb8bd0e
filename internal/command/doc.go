// Package command is the room of Commands: programs that callers run on Computers, beside and independent of Sessions.
// It admits them, decides about them in the Exchanges of their Computers, keeps what they wrote and how they ended. As the
// last room that knows of every use of a Computer it also tells who occupies one, and deletes it.
//
// It is not where programs run: the guest of the Computer runs each in a process scope of its own and ends the scope; a
// Worker relays. It knows nothing of shells, and reads no output.
//
// Command (the table is Statuses in command.go):
//
//	pending ---> starting     the Computer runs, and the Worker is told to run it
//	pending ---> cancelled    cancelled before that
//	pending ---> failed       placement_failed: the Computer became unavailable or was lost before that
//	starting --> running      its program runs: the execution time begins
//	starting --> exited       its program could not be executed: 127 or 126
//	running ---> exited       its main process ended; the rest of its scope was killed
//	starting, running -----> stopping     cancelled, timed out, or the Computer is stopped in order
//	stopping --> cancelled | timed_out    the scope has ended; the cause decides
//	stopping --> failed       scope_termination_failed: it did not end in time
//	starting, running -----> failed       guest_failure: the guest could not run it, or knows it no more
//	starting, running, stopping --> lost  guest_failure: the Computer was lost
//
// Invariants: a terminal status never changes. A Command is given to the guest at least once and run at most once: the
// guest knows the ids that it has had, and another guest (of a Computer that started again) never gets a Command that an
// earlier one may have had. open is 1 as long as an Exchange may have something to say about it: until the guest holds
// nothing of it, neither a process nor output. Output arrives apart from the Exchanges; chunks are numbered per stream, each
// is stored once, in order, and let go of by the guest only after that.
//
// What it needs of the Computer is said through the turn room's Occupants: both decide in one transaction under the
// Computer's lock. Locks are taken in the order Computer, Command.
//
// Tables owned: commands, command_logs.
package command
