//go:build tools

// Package runsc pins the gVisor runtime that Computers run on. It is a module of its own so that gVisor's
// dependencies never reach helmr's.
package runsc

import _ "gvisor.dev/gvisor/runsc"
