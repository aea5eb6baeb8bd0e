// Package scope runs a program in a scope of its own: a PID namespace with a private /proc, whose first process is a
// small role of the same binary (see Main). Killing that first process kills every descendant of the program, also
// those that forked twice or began a session of their own, because the kernel ends a PID namespace with its first
// process. A Pool uses a scope again for the next program when nothing is left in it. The package also reaps orphans for PID 1 (see Reaper).
//
// It is no security boundary between programs (that is the sandbox around all of them) and no resource limit.
package scope
