package computer

import (
	"fmt"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/storage"
)

// Capture is the memory and the disk of a Computer at one instant, both whole in blob storage.
type Capture struct {
	ID string
	// Disk is its disk, as a Save has it.
	Disk Stored
	// Memory is the rest of it, and Platform what it can be restored with: only Workers read that.
	Memory   Stored
	Platform string
}

// Stored is a folder in blob storage.
type Stored struct {
	Manifest          string
	References        []string
	Size, StoredBytes int64
}

// Hibernate begins to capture a running Computer.
func (r *Row) Hibernate(now int64) error {
	r.CaptureID = ptr(id.New())
	return r.move(Hibernating, now)
}

// RenewCapture has a hibernating Computer captured anew: the capture ordered before can be published no more.
func (r *Row) RenewCapture(now int64) {
	r.CaptureID = ptr(id.New())
	r.touch(now)
}

// DropCapture lets a hibernating Computer run on; in any other residency it changes nothing.
func (r *Row) DropCapture(now int64) {
	if r.Residency != Hibernating {
		return
	}
	r.CaptureID, r.Residency = nil, Running // an arrow of the table
	r.touch(now)
}

// PublishCapture hibernates r: its Worker has it no more, the captured disk is the recovery point, and the memory is kept
// until it has been restored or nobody needs it. It tells whether it did; it does not when the capture was dropped. It fails
// with storage.RefusedError if something that the capture needs is being removed.
func PublishCapture(tx *db.Tx, r *Row, now int64, c Capture) (bool, error) {
	if r.Residency != Hibernating || r.CaptureID == nil || *r.CaptureID != c.ID {
		return false, nil
	}
	for _, s := range []Stored{c.Disk, c.Memory} {
		if err := storage.Publish(tx, r.EnvironmentID, "", storage.Publication{Manifest: s.Manifest, References: s.References}); err != nil {
			return false, err
		}
	}
	r.LastSaveNumber++
	saveID := id.New()
	if err := tx.Do(sqlSavePublished, saveID, r.ID, r.LastSaveNumber, now, c.Disk.Manifest, c.Disk.Size, c.Disk.StoredBytes, now, now); err != nil {
		return false, fmt.Errorf("insert save: %w", err)
	}
	if err := tx.Do(sqlCaptureInsert, c.ID, r.ID, saveID, c.Memory.Manifest, c.Platform, c.Memory.Size, c.Memory.StoredBytes, now); err != nil {
		return false, fmt.Errorf("insert capture: %w", err)
	}
	r.RecoverySaveID, r.WorkWanted, r.ExecutionWait = &saveID, false, nil
	return true, r.release(Hibernated, now)
}

// Memory gives the memory that a resuming Computer is restored from.
func Memory(tx *db.Tx, r *Row) (manifest, platform string, err error) {
	found, err := tx.Get([]any{&manifest, &platform}, sqlCaptureGet, r.CaptureID)
	if err == nil && !found {
		err = fmt.Errorf("computer %s is %s without a capture", r.ID, r.Residency)
	}
	if err != nil {
		return "", "", fmt.Errorf("read capture: %w", err)
	}
	return manifest, platform, nil
}

// DropMemory makes a hibernated Computer whose processes nobody needs cold. The captured disk stays its recovery point.
func DropMemory(tx *db.Tx, r *Row, now int64) error {
	if err := r.endCapture(tx); err != nil {
		return err
	}
	r.UnusedSince = &now
	return r.move(Cold, now)
}

// endCapture lets go of the capture, if there is one: its memory may be deleted.
func (r *Row) endCapture(tx *db.Tx) error {
	if r.CaptureID == nil {
		return nil
	}
	if err := tx.Do(sqlCaptureDelete, *r.CaptureID); err != nil {
		return fmt.Errorf("delete capture: %w", err)
	}
	r.CaptureID, r.changed = nil, true
	return nil
}
