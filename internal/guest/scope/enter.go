package scope

import (
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// visit is something to do inside a scope.
type visit struct {
	to   *blank
	do   func() error
	done chan<- error
}

// visits leads to the one thread of this process that goes into scopes. It stays where it was last and does nothing else:
// a thread that was elsewhere may not start threads, and gVisor does not let it come home.
var visits = sync.OnceValue(func() chan<- visit {
	visits := make(chan visit)
	go func() {
		runtime.LockOSThread()
		// A thread that shares its root and working directory with others may not change mounts.
		unshared := unix.Unshare(unix.CLONE_FS)
		var at *blank
		for v := range visits {
			err := unshared
			if err == nil && at != v.to {
				at = nil
				if err = unix.Setns(v.to.handle, unix.CLONE_NEWNS|unix.CLONE_NEWPID); err == nil {
					at = v.to
				}
			}
			if err != nil {
				v.done <- fmt.Errorf("%w: enter it: %w", errGone, err)
				continue
			}
			v.done <- v.do()
		}
	}()
	return visits
})

// visit calls do in the mounts of the scope; children that do starts are in its PID namespace. The error wraps errGone if
// the scope has ended, and do was not called.
func (b *blank) visit(do func() error) error {
	done := make(chan error, 1)
	visits() <- visit{to: b, do: do, done: done}
	return <-done
}
