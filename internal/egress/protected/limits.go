package protected

import "time"

// Limits of the proxy of one Computer. They are the whole table: nothing else in the package is bounded by a number.
const (
	// MaxConnections are intercepted connections at a time; a further one is reset.
	MaxConnections = 256
	// MaxRequests are active requests at a time; a further one is answered 503.
	MaxRequests = 256
	// MaxResolutions are questions for values at a time; further ones wait.
	MaxResolutions = 64
	// MaxStreams are active HTTP/2 streams on a connection.
	MaxStreams = 4

	// maxHeader bounds the headers of a request, as they come and with the values in them, and those of an answer, in bytes.
	maxHeader         = 64 << 10
	maxResponseHeader = 256 << 10
	// maxPlaceholders bounds the different placeholders of one request.
	maxPlaceholders = 64
	// Receive windows of HTTP/2 in bytes: with MaxConnections they bound what waits in memory for a slow reader.
	windowUpload   = 256 << 10
	windowDownload = 1 << 20
	// gather bounds what is read at once, and what is sent at once, of a connection that carries much, in bytes; gatherFor is
	// how long a full record waits for the next.
	gather    = 64 << 10
	gatherFor = 500 * time.Microsecond

	handshakeTimeout = 10 * time.Second
	headerTimeout    = 10 * time.Second // from the first byte of a request to the end of its headers
	resolveTimeout   = 10 * time.Second
	idleTimeout      = time.Minute     // of a connection without a request
	stallTimeout     = 2 * time.Minute // a body that brings nothing, or a reader that takes nothing, for so long is given up
	upstreamIdle     = 30 * time.Second
	complainEvery    = 10 * time.Second
	upstreamIdleEach = 8 // connections kept for each origin
)
