// Package worker hosts Computers. It keeps the leases the server gave it, starts and adopts sandboxes, speaks with the
// guest in each, brings their operations to the server and what is wanted back to them, and stores Saves.
//
// It decides nothing: the server says what is wanted (Exchange), the guest what is. One actor per Computer moves the one
// towards the other; it may be woken at any time and repeats what was not confirmed. The Worker never opens the
// database; the server's calls are an interface that is the service itself in the same process, or Connect.
//
// What it leaves on the host is under one folder: computers/ID/sock (the guest's socket), computers/ID/EPOCH (the
// sandbox), images, programs and runtime (read-only, shared), tmp. A Worker program that starts again on the same folder
// finds its living sandboxes there and goes on with them; one without a lease is removed.
package worker
