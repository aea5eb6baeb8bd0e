// Package server is what helmr-guest does inside a Computer: it dials the Worker's socket for ever, starts Session
// processes and Commands in scopes of their own, passes each instruction to a process at most once, and keeps every
// operation of a process until the Worker acknowledges it. So processes outlive the connection, the Worker program
// and a checkpoint.
//
// It decides nothing about Sessions or Turns: the Worker does, and believes nothing from here without a bound. It
// knows the types of a few process lines only, to follow the state
//
//	starting --init_done--> ready --DeliverTurn--> serving --turn ended--> ready
//	any --main process ended, all its operations read--> exited --acknowledged, Forget--> (gone)
//
// Server.mu guards all tables, processes and Commands; nothing blocks while it is held.
package server
