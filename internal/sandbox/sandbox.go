// Package sandbox says what helmr asks of the thing that isolates a Computer: start it from a read-only image and a
// saved disk, save its disk, freeze it and put its memory aside, wait for its end and remove every trace. It holds the interface and
// its types. It is not an implementation (see gvisor), knows no Session or Turn, and never talks to the program inside:
// that one dials a Unix socket which the Worker binds into the sandbox.
package sandbox

import (
	"context"
	"errors"
)

var (
	// ErrNotFound is returned for an id that the runtime has no record of.
	ErrNotFound = errors.New("no such sandbox")
	// ErrExists is returned by Start for an id whose sandbox lives.
	ErrExists = errors.New("sandbox is already running")
	// ErrNotRunning is returned by an operation that needs a living sandbox.
	ErrNotRunning = errors.New("sandbox is not running")
)

// Mount binds a folder or a file of the host into the sandbox, read-only. Unix sockets in it can be dialled from inside, also
// when the host makes them anew while the sandbox runs.
type Mount struct {
	Source      string // absolute path on the host
	Destination string // absolute path inside
}

// Spec describes one sandbox. To resume a frozen one, Args, Cwd, Mounts' destinations and limits must be those of the
// sandbox that was frozen, and what it has open in Mounts must be there; paths on the host and Env may differ.
type Spec struct {
	ID     string   // the Computer's id; letters, digits, '-', '_' and '.'
	RootFS string   // path of the read-only EROFS file
	Args   []string // program and arguments of PID 1; the program is an absolute path or found on PATH of Env
	Env    []string // KEY=value
	Cwd    string   // working folder of PID 1; "" is /
	Mounts []Mount  // at least one

	// NetNS is the path of the network namespace whose devices, addresses and routes the sandbox takes over; "" gives it
	// no network. To resume a frozen one it may be another namespace, but not one where there was none.
	NetNS string

	CPUMillis int64 // thousandths of a CPU
	MemoryMiB int64 // bound of everything the sandbox holds in memory, the runtime's own part included
	DiskMiB   int64 // bound of what is written to the root filesystem above the image

	// Dir is the folder of this sandbox's runtime files. Start makes it, Remove deletes it; it must not exist, or be
	// empty. It may lie elsewhere when the same Computer starts again.
	Dir string
	// DiskFrom is the folder of a disk that SaveDisk wrote, "" for a disk as the image has it. It may be deleted once
	// Start has returned.
	DiskFrom string
	// MemoryFrom is the folder of memory that Freeze wrote; it holds the disk too. Excludes DiskFrom. It may be deleted
	// once Start has returned.
	MemoryFrom string
	// MemoryReady returns when MemoryFrom is complete; nil when it is already. Start makes meanwhile what needs none of it.
	// With its error Start fails.
	MemoryReady func(context.Context) error `json:"-"`
}

// Status is one sandbox that the runtime has a record of.
type Status struct {
	ID  string
	Dir string
	// Running is false for one that ended, or whose start was cut off: only Remove is of use then.
	Running bool
	// Frozen is true for one that Freeze may have frozen and Thaw has not thawed.
	Frozen bool
	// PID is the host process to blame for the sandbox's CPU and memory; 0 unless running.
	PID int
}

// Exit tells how a sandbox ended. The exit code of PID 1 is not known: nobody on the host is its parent.
type Exit struct {
	// OOM is true when the kernel killed the sandbox for reaching its memory bound.
	OOM bool
	// Output is the beginning of what PID 1 wrote to its standard error, or the runtime's last words if it crashed;
	// at most 64 KiB, for the operator's log. It comes from inside: do not interpret it.
	Output string
}

// ExecResult is the outcome of a program run by Exec.
type ExecResult struct {
	Stdout, Stderr []byte
	Code           int
}

// Problem is something that this machine lacks for running sandboxes.
type Problem struct {
	What  string // what is wrong
	Fix   string // what to do, a command where there is one
	Fatal bool   // no sandbox can start; otherwise some bound or function is missing
}

// Capabilities tells which bounds the runtime can hold on this host.
type Capabilities struct {
	CPU    bool // CPUMillis is enforced
	Memory bool // MemoryMiB is enforced
	Disk   bool // DiskMiB is enforced
	// DiskSpeed is true when one sandbox cannot take all that the host's disk does.
	DiskSpeed bool
	// Reason says why a bound is missing; "" when none is.
	Reason string
}

// AppendedFile is the name of the file that holds most of what SaveDisk and Freeze write into a folder. It is written by
// appending alone, so that it may be read before they return.
const AppendedFile = "pages.img"

// Runtime runs sandboxes. Methods may be called concurrently, also for one id; those that change a sandbox take turns.
type Runtime interface {
	// Start starts PID 1 of a new sandbox, from the image or a saved disk, or resumes a frozen one. It returns when PID 1
	// has been started (not when it is ready). The sandbox is detached: it outlives this process and does not see its
	// terminal's signals. On error nothing of it is left.
	Start(ctx context.Context, spec Spec) error

	// Exec runs a program in the sandbox beside PID 1 and waits for it. For diagnostics and tests: slow, and what it
	// leaves running does not survive a resume elsewhere. A program that cannot be started is an error.
	Exec(ctx context.Context, id string, args []string) (ExecResult, error)

	// SaveDisk writes the disk (what differs from the image) into dir, which must not exist or be empty, while the
	// sandbox goes on. Every regular file in dir belongs to the save; names and contents are the runtime's own. On
	// error dir is left without files.
	SaveDisk(ctx context.Context, id, dir string) error

	// Freeze stops everything inside at one instant, and writes the disk into the folder disk, as SaveDisk does, and
	// memory and processes into the folder memory. The sandbox stays frozen, also for another program that adopts it,
	// until Thaw or Remove. On error both folders are left without files and the sandbox is thawed; if that fails too, the
	// error says so.
	Freeze(ctx context.Context, id, disk, memory string) error

	// Thaw lets a frozen sandbox go on, as if nothing had been; on one that is not frozen it does nothing.
	Thaw(ctx context.Context, id string) error

	// List returns every sandbox that the runtime has a record of, also those started by an earlier process.
	List(ctx context.Context) ([]Status, error)

	// Wait returns when the sandbox has ended, whoever started it; at once if it ended before.
	Wait(ctx context.Context, id string) (Exit, error)

	// Remove kills the sandbox and deletes everything of it from the host. Repeating it, or removing one whose start
	// was cut off, is fine; an unknown id is no error.
	Remove(ctx context.Context, id string) error

	// Capabilities tells which bounds hold on this host.
	Capabilities() Capabilities

	// Platform names the version of the runtime, and all else that a memory of its sandboxes depends on. A memory can be
	// resumed by a runtime of the same name. The name has no spaces.
	Platform() (string, error)
}
