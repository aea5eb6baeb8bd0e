package computer

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// RegisterWorker makes a Worker known under its name, or known again if it proves with its secret that the name is its
// own; a name that another unfenced Worker uses is refused with worker_resource_custody.
func (s *Service) RegisterWorker(ctx context.Context, r *workerpb.RegisterRequest) (string, error) {
	if r.GetName() == "" || len(r.GetName()) > 128 || len(r.GetSecret()) < 32 {
		return "", fault.New(fault.BadRequest, "a Worker needs a name of 1 to 128 bytes and a secret of at least 32 bytes")
	}
	sum := sha256.Sum256([]byte(r.GetSecret()))
	hash := hex.EncodeToString(sum[:])
	var workerID string
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		workerID = ""
		var status, have string
		found, err := tx.Get([]any{&workerID, &status, &have}, sqlWorkerByName, r.GetName())
		if err != nil {
			return fmt.Errorf("read worker: %w", err)
		}
		now := db.Millis(s.now())
		defer tx.Signal(DispatchTopic)
		if found {
			if subtle.ConstantTimeCompare([]byte(have), []byte(hash)) != 1 {
				return fault.New(fault.WorkerResourceCustody, "the Worker name %q is in use by another Worker", r.GetName())
			}
			_, err = tx.Exec(sqlWorkerUpdate, r.GetCpuMillis(), r.GetMemoryMib(), r.GetDiskMib(), now, workerID)
			return err
		}
		workerID = id.New()
		_, err = tx.Exec(sqlWorkerInsert, workerID, r.GetName(), hash, r.GetCpuMillis(), r.GetMemoryMib(), r.GetDiskMib(), now, now)
		return err
	})
	return workerID, err
}

// Heartbeat keeps a Worker's leases and gives what it holds. leaving begins its orderly stop: its Computers are emptied,
// saved and stopped. A Worker that was lost meanwhile is told so with lease_lost.
func (s *Service) Heartbeat(ctx context.Context, workerID string, leaving bool) ([]*workerpb.Lease, error) {
	var leases []*workerpb.Lease
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		leases = nil
		n, err := tx.Exec(sqlWorkerHeartbeat, db.Millis(s.now()), workerID)
		if err != nil {
			return fmt.Errorf("heartbeat: %w", err)
		}
		if n == 0 {
			return fault.New(fault.LeaseLost, "worker %s is lost: it must discard its Computers and register again", workerID)
		}
		if leases, err = leasesOf(tx, workerID); err != nil || !leaving {
			return err
		}
		if _, err := tx.Exec(sqlWorkerDraining, workerID); err != nil {
			return fmt.Errorf("drain worker: %w", err)
		}
		for _, l := range leases {
			r, err := Lock(tx, l.GetComputerId())
			if err != nil {
				return err
			}
			if r.Stopping == nil || *r.Stopping != StopShutdown {
				r.Stopping = ptr(StopShutdown)
				r.touch(db.Millis(s.now()))
				if err := Update(tx, r); err != nil {
					return err
				}
				SignalWorker(tx, r)
			}
		}
		return nil
	})
	return leases, err
}

// Leases gives the Computers a Worker holds.
func (s *Service) Leases(ctx context.Context, workerID string) ([]*workerpb.Lease, error) {
	var leases []*workerpb.Lease
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		leases, err = leasesOf(tx, workerID)
		return err
	})
	return leases, err
}

func leasesOf(tx *db.Tx, workerID string) ([]*workerpb.Lease, error) {
	var leases []*workerpb.Lease
	err := tx.Query(func(sc func(...any) error) error {
		var l workerpb.Lease
		err := sc(&l.ComputerId, &l.Epoch)
		leases = append(leases, &l)
		return err
	}, sqlOfWorker, workerID)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	return leases, nil
}

// LostComputers gives the Computers whose Worker is lost but whose loss is not recorded yet.
func LostComputers(tx *db.Tx) ([]string, error) {
	return ids(tx, sqlWorkersLostHold)
}

func ids(tx *db.Tx, query string, args ...any) ([]string, error) {
	var out []string
	err := tx.Query(func(sc func(...any) error) error {
		var one string
		err := sc(&one)
		out = append(out, one)
		return err
	}, query, args...)
	return out, err
}
