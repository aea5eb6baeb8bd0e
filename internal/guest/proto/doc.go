// Package proto is the language of the channel between the Worker and helmr-guest: the messages, their framing and
// the bounds that both sides hold each other to. It opens no socket and keeps no state; server and client do.
package proto

//go:generate ../../../tools/generate/protoc.sh internal/guest/proto/guest.proto
