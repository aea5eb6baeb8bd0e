// Package e2e tests helmr as people run it: the real binaries, real gVisor, real Node, real databases. It has no code of
// its own outside tests.
package e2e
