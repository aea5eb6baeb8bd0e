package computer

import (
	"cmp"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// DispatchTopic is signalled when a Computer may need a Worker.
const DispatchTopic = "dispatch"

// PreparationTopic is signalled when something about a Computer that makes a prepared image has changed.
const PreparationTopic = "preparations"

// PreparationsOf is the topic that is signalled when something about a preparation of an Environment, its log included, has
// changed.
func PreparationsOf(environmentID string) string { return "preparations-of/" + environmentID }

// Topic is signalled when a client's view of the Computer may have changed.
func Topic(computerID string) string { return "computer/" + computerID }

// WorkerTopic is the topic under which a Worker's Computers are signalled, as WorkerTopic(worker)/computer.
func WorkerTopic(workerID string) string { return "worker-" + workerID }

// New describes a Computer to create.
type New struct {
	EnvironmentID, Key       string
	TemplateID, DeploymentID string
	MilliCPU, MemoryMiB      int64
	DiskMiB                  *int64
	ImageDigest              string
	// Secrets are its bindings, normalized; the Secrets exist.
	Secrets []api.SecretBinding
	// Prepared says that its disk starts with a prepared image.
	Prepared bool
	// Purpose is ForUse if empty.
	Purpose string
}

// Create adds a cold Computer and gives it locked.
func Create(tx *db.Tx, now int64, n New) (*Row, error) {
	disk := int64(DefaultDiskMiB)
	if n.DiskMiB != nil {
		disk = *n.DiskMiB
	}
	var key *string
	if n.Key != "" {
		key = &n.Key
	}
	first := FirstImage
	if n.Prepared {
		first = FirstAwaited
	}
	r := &Row{ID: id.New(), EnvironmentID: n.EnvironmentID, Key: key, TemplateID: n.TemplateID, DeploymentID: n.DeploymentID, Status: "available",
		Residency: Cold, MilliCPU: n.MilliCPU, MemoryMiB: n.MemoryMiB, DiskMiB: disk, ImageDigest: n.ImageDigest, UnusedSince: &now,
		LastActivityAt: now, CreatedAt: now, UpdatedAt: now, Secrets: int64(len(n.Secrets)),
		Purpose: cmp.Or(n.Purpose, ForUse), FirstDisk: first}
	err := tx.Do(sqlInsert, r.ID, r.EnvironmentID, r.Key, r.TemplateID, r.DeploymentID, r.MilliCPU, r.MemoryMiB, r.DiskMiB, r.ImageDigest, now, now, now, now, r.Secrets, r.Purpose, r.FirstDisk)
	if err != nil {
		return nil, fmt.Errorf("insert computer: %w", err)
	}
	return r, bind(tx, r.ID, n.Secrets)
}

// scan reads the columns and, behind them, what extra points at.
func scan(scan func(...any) error, extra ...any) (*Row, error) {
	var r Row
	var wanted int
	err := scan(append([]any{&r.ID, &r.EnvironmentID, &r.Key, &r.TemplateID, &r.DeploymentID, &r.Status, &r.Residency, &r.ExecutionWait, &r.ErrorCode, &r.ErrorMessage,
		&r.MilliCPU, &r.MemoryMiB, &r.DiskMiB, &r.ImageDigest, &r.WorkerID, &r.LeaseEpoch, &wanted, &r.Stopping, &r.StoppingSaveID, &r.StartFailures, &r.RetryAt,
		&r.LastSaveNumber, &r.RecoverySaveID, &r.UnusedSince, &r.LastActivityAt, &r.CreatedAt, &r.UpdatedAt, &r.Secrets, &r.CaptureID,
		&r.Purpose, &r.FirstDisk, &r.PreparationID, &r.FirstManifest}, extra...)...)
	r.WorkWanted = wanted == 1
	return &r, err
}

func one(tx *db.Tx, query string, args ...any) (*Row, error) {
	var r *Row
	err := tx.Query(func(s func(...any) error) (err error) {
		r, err = scan(s)
		return err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read computer: %w", err)
	}
	return r, nil
}

// Lock reads a Computer and keeps others from changing it until the transaction ends. Whoever locks a Computer and its
// Sessions locks the Computer first.
func Lock(tx *db.Tx, computerID string) (*Row, error) {
	r, err := one(tx, sqlLock, computerID)
	if err == nil && r == nil {
		err = fault.New(fault.ComputerNotFound, "computer %s does not exist", computerID)
	}
	return r, err
}

// LockAvailable is Lock for a Computer that a caller of its Environment names for new work.
func LockAvailable(tx *db.Tx, environmentID, computerID string) (*Row, error) {
	r, err := Lock(tx, computerID)
	if err != nil {
		return nil, err
	}
	if r.EnvironmentID != environmentID || r.Purpose != ForUse {
		return nil, fault.New(fault.ComputerNotFound, "computer %s does not exist", computerID)
	}
	return r, r.RequireWork()
}

// LockLease locks a Computer for the Worker that holds it under epoch; lease_lost if it does not any more.
func LockLease(tx *db.Tx, computerID, workerID string, epoch int64) (*Row, error) {
	r, err := Lock(tx, computerID)
	if err != nil {
		return nil, err
	}
	if r.WorkerID == nil || *r.WorkerID != workerID || r.LeaseEpoch != epoch {
		return nil, fault.New(fault.LeaseLost, "computer %s is not held under epoch %d", computerID, epoch)
	}
	return r, nil
}

// Update writes what was changed on r and signals it.
func Update(tx *db.Tx, r *Row) error {
	if !r.changed {
		return nil
	}
	r.changed = false
	wanted := 0
	if r.WorkWanted {
		wanted = 1
	}
	err := tx.Do(sqlUpdate, r.Status, string(r.Residency), r.ExecutionWait, r.ErrorCode, r.ErrorMessage, r.WorkerID, r.LeaseEpoch, wanted, r.Stopping,
		r.StoppingSaveID, r.StartFailures, r.RetryAt, r.LastSaveNumber, r.RecoverySaveID, r.UnusedSince, r.LastActivityAt, r.UpdatedAt, r.CaptureID,
		r.FirstDisk, r.PreparationID, r.FirstManifest, r.ID)
	if err != nil {
		return fmt.Errorf("update computer: %w", err)
	}
	if r.Purpose == ForPreparation {
		tx.Signal(PreparationTopic)
	}
	if r.Status == "deleted" && r.Secrets > 0 {
		if err := tx.Do(sqlAuthorityDelete, r.ID); err != nil {
			return fmt.Errorf("forget authority: %w", err)
		}
	}
	tx.Signal(Topic(r.ID))
	if r.WorkerID == nil {
		tx.Signal(DispatchTopic) // room may have become free on a Worker, or r itself may want a place
	}
	return nil
}

// SignalWorker asks the Worker that holds r to look at it, or the dispatcher if none does.
func SignalWorker(tx *db.Tx, r *Row) {
	if r.WorkerID != nil {
		tx.Signal(WorkerTopic(*r.WorkerID) + "/" + r.ID)
		return
	}
	if r.WorkWanted {
		tx.Signal(DispatchTopic)
	}
}

// Want says that runnable work exists on r: it will be placed, and is not emptied for want of use. A capture that is not
// published yet is dropped.
func Want(tx *db.Tx, r *Row, now int64) {
	r.LastActivityAt = now
	r.DropCapture(now)
	if !r.WorkWanted || r.UnusedSince != nil || (r.Stopping != nil && *r.Stopping == StopUnused && r.StoppingSaveID == nil) {
		r.WorkWanted = true
		r.UnusedSince = nil
		if r.Stopping != nil && *r.Stopping == StopUnused && r.StoppingSaveID == nil {
			r.Stopping = nil
		}
		r.touch(now)
	}
	SignalWorker(tx, r)
}

// Unwanted says that neither runnable work nor a process is on r.
func (r *Row) Unwanted(now int64) {
	if r.WorkWanted || r.UnusedSince == nil {
		r.WorkWanted = false
		r.UnusedSince = &now
		r.touch(now)
	}
}

// Started records that the guest of a placed Computer is ready. A capture that it was resumed from has served.
func (r *Row) Started(tx *db.Tx, now int64) error {
	if r.Residency == Running || r.Residency == Hibernating {
		return nil
	}
	if err := r.endCapture(tx); err != nil {
		return err
	}
	r.StartFailures, r.RetryAt, r.ExecutionWait, r.ErrorCode, r.ErrorMessage = 0, nil, nil, nil, nil
	return r.move(Running, now)
}

// release gives the lease back.
func (r *Row) release(to Residency, now int64) error {
	r.WorkerID, r.Stopping, r.StoppingSaveID = nil, nil, nil
	r.endDeletion()
	return r.move(to, now)
}

// Stopped records that an emptied, saved Computer left its Worker.
func (r *Row) Stopped(now int64, runnable bool) error {
	r.WorkWanted = runnable
	if !runnable && r.UnusedSince == nil {
		r.UnusedSince = &now
	}
	return r.release(Cold, now)
}

// StartFailed records a failed start: another follows after a pause, the fifth in a row, and each
// that follows on it, makes the Computer unavailable.
func (r *Row) StartFailed(now int64, message string) error {
	r.StartFailures++
	if r.StartFailures >= StartFailures {
		r.StartFailures = StartFailures // so does each retry that fails
		r.ErrorCode, r.ErrorMessage = ptr(string(fault.ComputerStartFailed)), &message
		r.RetryAt = ptr(now + UnavailableRetry.Milliseconds())
		return r.release(Unavailable, now)
	}
	r.ErrorCode, r.ErrorMessage = ptr(string(fault.ComputerStartFailed)), &message
	r.RetryAt = ptr(now + startBackoff(r.StartFailures).Milliseconds())
	return r.release(Cold, now)
}

// DiskUnreadable records a start that failed because the recovery point cannot be read: the Computer is unavailable, and tried
// again now and then in case somebody repairs the blob storage.
func (r *Row) DiskUnreadable(now int64, message string) error {
	r.StartFailures = 0
	r.ErrorCode, r.ErrorMessage = ptr(string(fault.ComputerRecoveryRequired)), &message
	r.RetryAt = ptr(now + UnavailableRetry.Milliseconds())
	return r.release(Unavailable, now)
}

// Lost records that the Computer's sandbox is gone: unfinished Saves fail, the disk is the recovery point.
func (r *Row) Lost(tx *db.Tx, now int64) error {
	if err := tx.Do(sqlSaveFail, r.ID); err != nil {
		return fmt.Errorf("fail saves: %w", err)
	}
	if err := r.endCapture(tx); err != nil {
		return err
	}
	r.WorkWanted = false
	r.UnusedSince = &now
	return r.release(Cold, now)
}

// RetryNow makes an unavailable or backing-off Computer eligible for placement at once.
func (r *Row) RetryNow(now int64) {
	if r.RetryAt != nil {
		r.RetryAt = ptr(now)
		r.touch(now)
	}
}
