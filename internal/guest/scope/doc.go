// Package scope runs a program in a scope of its own: a PID namespace with a private /proc, whose first process is a
// small role of the same binary (see Main). Killing that first process kills every descendant of the program, also
// those that forked twice or began a session of their own, because the kernel ends a PID namespace with its first
// process. The program itself is a child of this process, begun in the namespaces of the scope: so nothing stands between
// this process and the start of a program, or its end, and the first process sleeps. A Pool uses a scope again for the next
// program when nothing is left in it. The package also reaps orphans for PID 1 (see Reaper).
//
//	fresh --its first process is ready--> blank --begin--> running --program ended, nothing left, mounts unchanged--> blank
//	blank, running --first process ended, Kill, anything left or changed--> dead
//
// A program begins at most once. Its start is one fork and exec, whose outcome this process learns before it goes on:
// an error says that nothing began (then another scope may be tried, if this one is dead), anything else that it did (then
// the end of the scope is the end of the program).
//
// It is no security boundary between programs (that is the sandbox around all of them) and no resource limit.
package scope
