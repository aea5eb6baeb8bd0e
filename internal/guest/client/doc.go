// Package client is the Worker's side of the channel to one Computer's guest: it listens at a socket path, accepts
// the guest's connection, sends requests and hands what the guest says to a Handler.
//
// The guest is hostile: sizes, ids, order and states are checked here before a Handler sees anything, queues are
// bounded, and a guest that does not read is disconnected. What operations mean, and whether they are believed, is
// not decided here. After a lost connection the guest dials again; operations then come again from the first
// unacknowledged one, so a Handler sees an operation at least once and in order, and the Worker or the server
// recognises repeats by Session, epoch and sequence.
package client
