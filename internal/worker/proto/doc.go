// Package workerpb holds the messages and the service between Workers and the server, generated from worker.proto. The
// rooms fill these messages directly; a Worker in the same process calls the service without any encoding between.
package workerpb

// CodeHeader carries the public code of an error over Connect.
const CodeHeader = "Helmr-Code"
