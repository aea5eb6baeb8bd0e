package computer

import (
	"errors"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/secret"
)

// PreparedImages knows prepared images. A room to the right has them and answers in this room's transactions, under the
// Computer's lock.
type PreparedImages interface {
	// Find gives the prepared image that the disk of r, which awaits one, starts with. nil: there is none yet, or will be
	// none; then it has said so on r with AwaitPreparation or PreparationFailed.
	Find(tx *db.Tx, r *Row, now int64) (*PreparedImage, error)
}

// PreparedImage is a disk for Computers to start with.
type PreparedImage struct {
	PreparationID string
	// Manifest is that of its Save.
	Manifest string
	// MadeOn is the Computer on which it was made: what that was handed in readable form may be on the disk.
	MadeOn string
}

// Prepare gives the room the images that Computers of prepared Templates start with. It is called once, before anything else.
func (s *Service) Prepare(images PreparedImages) { s.images = images }

// firstDisk finds what a Computer that awaits its prepared image starts with, nil for one that does not or has to wait.
func (s *Service) firstDisk(tx *db.Tx, r *Row, now int64) (image *PreparedImage, wait bool, err error) {
	if r.FirstDisk != FirstAwaited {
		return nil, false, nil
	}
	if s.images == nil {
		return nil, false, errors.New("nothing prepares images here")
	}
	image, err = s.images.Find(tx, r, now)
	return image, image == nil, err
}

// usePrepared settles the first disk of r.
func (r *Row) usePrepared(tx *db.Tx, image *PreparedImage, now int64) error {
	r.FirstDisk, r.PreparationID, r.FirstManifest = FirstPrepared, &image.PreparationID, &image.Manifest
	r.touch(now)
	return secret.ExposeImage(tx, r.EnvironmentID, image.MadeOn, r.ID, now)
}

// AwaitAnother has a Computer whose prepared image cannot be read start with another one: it has nothing of its own yet. It
// tells which image that was, "" if the Computer has none or does not need another.
func (r *Row) AwaitAnother(now int64) (preparationID string, err error) {
	if r.FirstDisk != FirstPrepared || r.RecoverySaveID != nil || r.Residency != Unavailable || *r.ErrorCode != string(fault.ComputerRecoveryRequired) {
		return "", nil
	}
	preparationID = *r.PreparationID
	r.FirstDisk, r.PreparationID, r.FirstManifest, r.RetryAt, r.ErrorCode, r.ErrorMessage = FirstAwaited, nil, nil, nil, nil, nil
	return preparationID, r.move(Cold, now)
}

// AwaitPreparation records which preparation a Computer waits for: it is placed when that has ended.
func (r *Row) AwaitPreparation(preparationID string, now int64) {
	if r.PreparationID == nil || *r.PreparationID != preparationID {
		r.PreparationID = &preparationID
		r.touch(now)
	}
	if r.ExecutionWait == nil || *r.ExecutionWait != waitScheduling {
		r.ExecutionWait = ptr(waitScheduling)
		r.touch(now)
	}
}

// PreparationFailed records that the Computer will never have the disk that it is to start with.
func (r *Row) PreparationFailed(message string, now int64) error {
	r.ErrorCode, r.ErrorMessage, r.RetryAt, r.ExecutionWait = ptr(string(fault.ComputerPreparationExhausted)), &message, nil, nil
	return r.move(Unavailable, now)
}
