package computer

import (
	"fmt"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/storage"
)

// RequestSave gives the Save that will cover the disk as it is now: one that waits for capture is shared, otherwise the
// next number is made.
func RequestSave(tx *db.Tx, r *Row, now int64) (string, error) {
	var saveID string
	found, err := tx.Get([]any{&saveID}, sqlSaveOpen, r.ID)
	if err != nil {
		return "", fmt.Errorf("read save: %w", err)
	}
	if found {
		return saveID, nil
	}
	r.LastSaveNumber++
	r.touch(now)
	saveID = id.New()
	if err := tx.Do(sqlSaveInsert, saveID, r.ID, r.LastSaveNumber, now); err != nil {
		return "", fmt.Errorf("insert save: %w", err)
	}
	return saveID, nil
}

// NextSave gives the Save to capture now and records that its capture begins, so that no later Turn joins it. The
// Worker calls for it only while it captures none; a Save whose capture was cut short comes again.
func NextSave(tx *db.Tx, r *Row, now int64) (saveID string, number int64, err error) {
	found, err := tx.Get([]any{&saveID, &number}, sqlSaveNext, r.ID)
	if err != nil {
		return "", 0, fmt.Errorf("read next save: %w", err)
	}
	if !found {
		return "", 0, nil
	}
	if err := tx.Do(sqlSaveBegin, now, saveID); err != nil {
		return "", 0, fmt.Errorf("begin save: %w", err)
	}
	return saveID, number, nil
}

// PublishSave records that a Save is whole in blob storage; it becomes the recovery point unless a later one is. It
// tells whether this call did it: a repeated call changes nothing.
// fails with storage.RefusedError if something that the Save needs is being removed.
func PublishSave(tx *db.Tx, r *Row, now int64, saveID string, p storage.Publication, size, stored int64) (bool, error) {
	var computerID, status string
	var number int64
	found, err := tx.Get([]any{&computerID, &number, &status}, sqlSaveGet, saveID)
	if err != nil {
		return false, fmt.Errorf("read save: %w", err)
	}
	if !found || computerID != r.ID {
		return false, fault.New(fault.NotFound, "save %s is not of computer %s", saveID, r.ID)
	}
	if status == "published" {
		return false, nil
	}
	kept, err := RecoveryManifest(tx, r)
	if err != nil {
		return false, err
	}
	if err := storage.Publish(tx, r.EnvironmentID, kept, p); err != nil {
		return false, err
	}
	n, err := tx.Exec(sqlSavePublish, p.Manifest, size, stored, now, saveID)
	if err != nil {
		return false, fmt.Errorf("publish save: %w", err)
	}
	if n == 0 {
		return false, fault.New(fault.LeaseLost, "save %s has failed", saveID)
	}
	last := int64(0)
	if r.RecoverySaveID != nil {
		if _, err := tx.Get([]any{&last}, sqlSaveNumber, *r.RecoverySaveID); err != nil {
			return false, fmt.Errorf("read recovery point: %w", err)
		}
	}
	if number > last {
		r.RecoverySaveID = &saveID
		r.touch(now)
	}
	return true, nil
}

// RecoveryManifest gives the manifest the disk starts from, "" for the image itself. Before the first Save of r that is
// the prepared image.
func RecoveryManifest(tx *db.Tx, r *Row) (string, error) {
	if r.RecoverySaveID == nil {
		if r.FirstManifest != nil {
			return *r.FirstManifest, nil
		}
		return "", nil
	}
	var manifest string
	if _, err := tx.Get([]any{&manifest}, sqlSaveManifest, *r.RecoverySaveID); err != nil {
		return "", fmt.Errorf("read recovery point: %w", err)
	}
	return manifest, nil
}

// Published gives the manifest of a Save once it is published, or tells that it has failed.
func Published(tx *db.Tx, saveID string) (manifest string, failed bool, err error) {
	var digest *string
	var status string
	if _, err := tx.Get([]any{&digest, &status}, sqlSaveState, saveID); err != nil {
		return "", false, fmt.Errorf("read save: %w", err)
	}
	if digest != nil && status == "published" {
		manifest = *digest
	}
	return manifest, status == "failed", nil
}

// Manifests hands each manifest to each that a Computer of the Environment needs: the disk it would start from, and the
// memory it is hibernated in. They are kept until it is deleted.
func Manifests(tx *db.Tx, environmentID string, each func(manifest string)) error {
	for _, query := range []string{sqlManifests, sqlFirstManifests, sqlMemoryManifests} {
		err := tx.Query(func(scan func(...any) error) error {
			var manifest string
			if err := scan(&manifest); err != nil {
				return err
			}
			each(manifest)
			return nil
		}, query, environmentID)
		if err != nil {
			return fmt.Errorf("read manifests: %w", err)
		}
	}
	return nil
}

// UnfinishedSaves counts the Saves of r that are neither published nor failed.
func UnfinishedSaves(tx *db.Tx, r *Row) (int64, error) {
	var n int64
	_, err := tx.Get([]any{&n}, sqlSaveUnfinished, r.ID)
	return n, err
}

// FinalSave gives the Save that must be published before an emptied Computer leaves its Worker, asking for it first.
func FinalSave(tx *db.Tx, r *Row, now int64) (published bool, err error) {
	if r.StoppingSaveID == nil {
		saveID, err := RequestSave(tx, r, now)
		if err != nil {
			return false, err
		}
		r.StoppingSaveID = &saveID
		r.touch(now)
		return false, nil
	}
	var computerID, status string
	var number int64
	if _, err := tx.Get([]any{&computerID, &number, &status}, sqlSaveGet, *r.StoppingSaveID); err != nil {
		return false, fmt.Errorf("read final save: %w", err)
	}
	return status == "published", nil
}
