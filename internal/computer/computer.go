package computer

import (
	"time"

	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/state"
)

// Residency says where a Computer's disk and memory are.
type Residency string

// The residencies of a Computer.
const (
	Cold        = Residency("cold")
	Starting    = Residency("starting")
	Running     = Residency("running")
	Hibernating = Residency("hibernating")
	Hibernated  = Residency("hibernated")
	Resuming    = Residency("resuming")
	Unavailable = Residency("unavailable")
)

// Residencies are the allowed arrows.
var Residencies = state.Table[Residency]{
	Cold:        {Starting, Unavailable},
	Starting:    {Running, Cold, Unavailable},
	Running:     {Hibernating, Cold},
	Hibernating: {Running, Hibernated, Cold},
	Hibernated:  {Resuming, Cold},
	Resuming:    {Running, Cold},
	Unavailable: {Cold},
}

// Limits of starting and emptying Computers.
const (
	DefaultDiskMiB   = 32 * 1024
	StartFailures    = 5
	UnavailableRetry = 5 * time.Minute
	StaysUnused      = 60 * time.Second
	// WorkerLostAfter is how long a Worker may be silent; a server waits twice as long after its own start.
	WorkerLostAfter = 60 * time.Second
)

// Stopping reasons: why a resident Computer is being emptied.
const (
	StopUnused   = "unused"
	StopShutdown = "shutdown"
	// StopDrain waits for running Turns and Commands.
	StopDrain = "drain"
)

// What an accepted piece of work waits for.
const (
	waitScheduling = "scheduling"
	waitLimit      = "environment_limit"
	waitSaving     = "saving"
)

// Purposes of Computers.
const (
	ForUse         = "use"
	ForPreparation = "preparation"
)

// What the disk of a Computer starts with: the image of its Template, a prepared image that is not chosen yet, or one that is.
const (
	FirstImage    = "image"
	FirstAwaited  = "awaited"
	FirstPrepared = "prepared"
)

// Row is a Computer as stored. Change it through the functions of this package, then Update it.
type Row struct {
	ID, EnvironmentID         string
	Key                       *string
	TemplateID, DeploymentID  string
	Status                    string
	Residency                 Residency
	ExecutionWait             *string
	ErrorCode, ErrorMessage   *string
	MilliCPU, MemoryMiB       int64
	DiskMiB                   int64
	ImageDigest               string
	WorkerID                  *string
	LeaseEpoch                int64
	WorkWanted                bool
	Stopping, StoppingSaveID  *string
	StartFailures             int64
	RetryAt                   *int64
	LastSaveNumber            int64
	RecoverySaveID            *string
	UnusedSince               *int64
	LastActivityAt, CreatedAt int64
	UpdatedAt                 int64
	// Secrets is how many Secrets are bound to it.
	Secrets int64
	// CaptureID is the capture under way while hibernating, and the one to restore while hibernated or resuming.
	CaptureID *string
	// Purpose is ForUse, or ForPreparation of a Computer that makes a prepared image.
	Purpose string
	// FirstDisk says what its disk starts with; PreparationID is the prepared image it waits for or has, FirstManifest that
	// of the chosen one.
	FirstDisk                    string
	PreparationID, FirstManifest *string
	changed                      bool
}

// move takes one arrow of the residency table.
func (r *Row) move(to Residency, now int64) error {
	if err := Residencies.Check("computer "+r.ID, r.Residency, to); err != nil {
		return err
	}
	r.Residency = to
	r.touch(now)
	return nil
}

func (r *Row) touch(now int64) {
	r.UpdatedAt = now
	r.changed = true
}

// Resident tells whether a Worker holds the Computer.
func (r *Row) Resident() bool { return r.WorkerID != nil }

// RequireWork refuses new work on a Computer that cannot take any.
func (r *Row) RequireWork() error {
	switch r.Status {
	case "deleting":
		return fault.New(fault.ComputerDeleting, "computer %s is being deleted and takes no new work", r.ID)
	case "deleted":
		return fault.New(fault.ComputerNotFound, "computer %s does not exist", r.ID)
	}
	return nil
}

// startBackoff is the wait before the next start after n failures in a row: 1 s doubling to 16 s.
func startBackoff(n int64) time.Duration { return time.Second << min(max(n-1, 0), 4) }

func ptr[T any](v T) *T { return &v }
