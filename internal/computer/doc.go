// Package computer is the room of Computers: durable Linux machines, where they run, and the Saves of their disks. It
// also knows the Workers, since a Computer that is resident is resident on one of them.
//
// It is not where work is decided: the turn room says that runnable work exists (Want), and this room places the
// Computer on a Worker. It starts no sandbox; a Worker does, and reports through the turn room's Exchange.
//
// Residency (the table is Residencies in computer.go):
//
//	cold ---------> starting ----> running ----> cold           placed, guest ready, emptied and saved
//	starting -----> cold | unavailable                         start failed; the fifth failure in a row
//	running ------> cold                                       lost, or its last Save published and the sandbox gone
//	running ------> hibernating --> hibernated                 idle for long enough; memory and disk published
//	hibernating --> running | cold                             new work before that; lost
//	hibernated ---> resuming ----> running                     placed, memory restored
//	hibernated ---> cold                                       no Session needs its processes any more
//	resuming -----> cold                                       lost, or its memory cannot be restored
//	unavailable --> cold                                       retried every five minutes
//
// Invariants: a Computer has a Worker exactly while it is starting, running, hibernating or resuming. A capture is there
// exactly while a Computer is hibernated or resuming, and is restored by nobody after the Computer has run again.
// lease_epoch grows with each placement; whatever a Worker reports counts only under the epoch of the present placement.
// Saves are numbered per Computer; a Save may be joined by Turns until its capture begins; the recovery point is the published Save with the highest number.
//
// Tables owned: workers, computers, computer_network, saves, captures.
package computer
