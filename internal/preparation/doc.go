// Package preparation is the room of prepared images: the disks that prepare callbacks of Templates make, and that new
// Computers of these Templates start with. It decides what is prepared, shared, renewed and no longer used.
//
// It is not where a callback runs: that is a Command of the platform on a Computer made for it, with the network policy and
// the Secrets of the phase; its Save is the prepared image, and its output the log. Worker, leases, capacity, fencing and
// adoption are those of Computers and Commands.
//
// Preparation (the table is Statuses in preparation.go):
//
//   - -------> queued                a Computer needs an image, a refresh is due, or a Secret was rotated during the one before
//     queued --> running               a Worker takes it
//     running -> succeeded             the callback resolved and the disk is published
//     queued, running -> failed        the callback threw, the deadline passed, the Worker was lost three times, a Secret is revoked
//
// A preparation whose Worker is lost, or that an orderly stop of its Worker cut short, is attempted again from the image of
// its Template, on another Computer. Its Computer is deleted when it has ended.
//
// Identity: what goes into a preparation makes its digest (identity.go). Computers of one Environment with equal digests
// share the latest image that has it, and wait for the one preparation of it that is open. The digest has the version of each
// Secret in it, so that an image is never found by a later version; a revoked Secret makes its images unusable.
//
// A Computer waits for one preparation. If that fails, the Computer never starts; a Computer created later begins another one.
//
// Locks are taken in the order Computer, preparation.
//
// Table owned: preparations.
package preparation
