package computer

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/state"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// WorkerStatus is the state of a Worker.
type WorkerStatus string

// The states of a Worker.
const (
	WorkerRegistering      = WorkerStatus("registering")
	WorkerActive           = WorkerStatus("active")
	WorkerDraining         = WorkerStatus("draining")
	WorkerTerminationReady = WorkerStatus("termination_ready")
	WorkerLost             = WorkerStatus("lost")
)

// WorkerStatuses are the allowed arrows. A Worker that is ready for termination has nothing that could be lost: it becomes
// lost only when another machine takes its name.
var WorkerStatuses = state.Table[WorkerStatus]{
	WorkerRegistering:      {WorkerActive, WorkerLost},
	WorkerActive:           {WorkerDraining, WorkerLost},
	WorkerDraining:         {WorkerTerminationReady, WorkerActive, WorkerLost},
	WorkerTerminationReady: {WorkerActive, WorkerLost},
	WorkerLost:             {WorkerRegistering},
}

// Bounds of what a Worker says of itself.
const (
	maxWorkerName   = 128
	minWorkerSecret = 32
)

// workerRow is a Worker as stored.
type workerRow struct {
	id, name, secretHash string
	status               WorkerStatus
	heartbeatAt          int64
	shutdownAt           *int64
}

func lockWorker(tx *db.Tx, query, arg string) (*workerRow, error) {
	found, err := workerRows(tx, query, arg)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func workerRows(tx *db.Tx, query, arg string) ([]*workerRow, error) {
	var found []*workerRow
	err := tx.Query(func(sc func(...any) error) error {
		var w workerRow
		err := sc(&w.id, &w.name, &w.status, &w.secretHash, &w.heartbeatAt, &w.shutdownAt)
		found = append(found, &w)
		return err
	}, query, arg)
	if err != nil {
		return nil, fmt.Errorf("read workers: %w", err)
	}
	return found, nil
}

// move takes one arrow of the table and writes it.
func (w *workerRow) move(tx *db.Tx, to WorkerStatus, shutdownAt *int64) error {
	if err := WorkerStatuses.Check("worker "+w.name, w.status, to); err != nil {
		return err
	}
	if _, err := tx.Exec(sqlWorkerMove, string(to), shutdownAt, w.id, string(w.status)); err != nil {
		return fmt.Errorf("update worker: %w", err)
	}
	w.status, w.shutdownAt = to, shutdownAt
	tx.Signal(DispatchTopic)
	return nil
}

func checkIntroduction(r *workerpb.RegisterRequest) (secretHash string, err error) {
	if r.GetName() == "" || len(r.GetName()) > maxWorkerName || len(r.GetSecret()) < minWorkerSecret {
		return "", fault.New(fault.BadRequest, "a Worker needs a name of 1 to %d bytes and a secret of at least %d bytes", maxWorkerName, minWorkerSecret)
	}
	return hashed(r.GetSecret()), nil
}

func hashed(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// RegisterWorker makes the Worker of this very process known, which needs no token, and makes it active: its start ends
// the orderly stop before. A name that another unfenced Worker uses is refused with worker_resource_custody.
func (s *Service) RegisterWorker(ctx context.Context, r *workerpb.RegisterRequest) (string, error) {
	workerID, err := s.register(ctx, r, true)
	if err != nil {
		return "", err
	}
	return workerID, s.db.Write(ctx, func(tx *db.Tx) error {
		if err := offer(tx, workerID, &workerpb.Capacity{CpuMillis: r.GetCpuMillis(), MemoryMib: r.GetMemoryMib(), DiskMib: r.GetDiskMib()}); err != nil {
			return err
		}
		w, err := lockWorker(tx, sqlWorkerLock, workerID)
		if err != nil || w == nil || w.status == WorkerActive {
			return err
		}
		return s.activate(tx, w)
	})
}

// EnrollWorker makes a Worker on another machine known under its name, or known again: a secret that belongs to an
// unfenced Worker proves the name. Otherwise the request needs a valid token (authentication_required), and the name must
// not be in use by an unfenced Worker (worker_resource_custody). Repeating a call changes nothing.
func (s *Service) EnrollWorker(ctx context.Context, r *workerpb.RegisterRequest) (string, error) {
	return s.register(ctx, r, false)
}

func (s *Service) register(ctx context.Context, r *workerpb.RegisterRequest, trusted bool) (string, error) {
	hash, err := checkIntroduction(r)
	if err != nil {
		return "", err
	}
	var workerID string
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		workerID = ""
		now := db.Millis(s.now())
		named, err := workerRows(tx, sqlWorkersByName, r.GetName())
		if err != nil {
			return err
		}
		var own *workerRow
		for _, w := range named {
			if subtle.ConstantTimeCompare([]byte(w.secretHash), []byte(hash)) == 1 {
				own = w
			}
		}
		if own != nil && own.status != WorkerLost {
			workerID = own.id
			if !trusted && r.GetEnrollmentToken() == "" {
				return nil // another credential, or a question of its machine: no sign of life of the Worker
			}
			_, err = tx.Exec(sqlWorkerSeen, now, own.id)
			return err
		}
		if !trusted {
			if err := useToken(tx, now, r.GetEnrollmentToken()); err != nil {
				return err
			}
		}
		for _, w := range named {
			if err := s.giveUpName(tx, w, now); err != nil {
				return err
			}
		}
		if own != nil { // the same machine: it has discarded what it had
			workerID = own.id
			if _, err := tx.Exec(sqlWorkerEnrolled, now, now, own.id); err != nil {
				return fmt.Errorf("enroll worker: %w", err)
			}
			return own.move(tx, WorkerRegistering, nil)
		}
		// Another machine is another Worker, so that nothing the one before may still say counts.
		workerID = id.New()
		_, err = tx.Exec(sqlWorkerInsert, workerID, r.GetName(), hash, now, now)
		return err
	})
	return workerID, err
}

// giveUpName refuses a name that w may still use.
func (s *Service) giveUpName(tx *db.Tx, w *workerRow, now int64) error {
	var computers int64
	if _, err := tx.Get([]any{&computers}, sqlWorkerHolds, w.id); err != nil {
		return fmt.Errorf("read worker: %w", err)
	}
	switch {
	case w.status == WorkerLost && computers == 0:
		return nil
	case w.status == WorkerTerminationReady && w.heartbeatAt <= now-s.lostAfter.Milliseconds() && computers == 0:
		return w.move(tx, WorkerLost, nil)
	}
	return fault.New(fault.WorkerResourceCustody, "the Worker name %q is in use by another Worker, or its Computers are not fenced yet", w.name)
}

// offer records what a Worker offers; its first time makes a registering Worker active.
func offer(tx *db.Tx, workerID string, c *workerpb.Capacity) error {
	if c.GetCpuMillis() < 0 || c.GetMemoryMib() < 0 || c.GetDiskMib() < 0 {
		return fault.New(fault.BadRequest, "the capacity of a Worker must not be negative")
	}
	if _, err := tx.Exec(sqlWorkerOffer, c.GetCpuMillis(), c.GetMemoryMib(), c.GetDiskMib(), workerID); err != nil {
		return fmt.Errorf("record capacity: %w", err)
	}
	w, err := lockWorker(tx, sqlWorkerLock, workerID)
	if err != nil || w == nil {
		return err
	}
	if w.status == WorkerRegistering {
		return w.move(tx, WorkerActive, nil)
	}
	tx.Signal(DispatchTopic)
	return nil
}

// Beat keeps a Worker's leases, takes up what it offers and where it is, and says how long the leases last and what is denied
// to Computers. A Worker that was lost
// meanwhile is told so with lease_lost.
func (s *Service) Beat(ctx context.Context, r *workerpb.HeartbeatRequest) (*workerpb.HeartbeatResponse, error) {
	out := &workerpb.HeartbeatResponse{LeaseMs: s.leaseFor().Milliseconds(), NextMs: s.beatEvery().Milliseconds()}
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out.Leases = nil
		n, err := tx.Exec(sqlWorkerHeartbeat, db.Millis(s.now()), r.GetWorkerId())
		if err != nil {
			return fmt.Errorf("heartbeat: %w", err)
		}
		if n == 0 {
			return fault.New(fault.LeaseLost, "worker %s is lost: it must discard its Computers and enroll again", r.GetWorkerId())
		}
		if r.GetCapacity() != nil {
			if err := offer(tx, r.GetWorkerId(), r.GetCapacity()); err != nil {
				return err
			}
		}
		if out.Leases, err = leasesOf(tx, r.GetWorkerId()); err != nil {
			return err
		}
		w, err := lockWorker(tx, sqlWorkerGet, r.GetWorkerId())
		if err != nil || w == nil {
			return err
		}
		if r.GetLeaving() && w.status != WorkerTerminationReady {
			if err := s.drain(tx, w, ptr(db.Millis(s.now()))); err != nil {
				return err
			}
		}
		out.Status = string(w.status)
		if err := s.see(tx, w.id, r.GetAddresses()); err != nil {
			return err
		}
		out.Denied, err = s.denied(tx)
		return err
	})
	if err == nil && r.GetLeaving() {
		err = s.tell(ctx, r.GetWorkerId())
	}
	return out, err
}

// Heartbeat is Beat without an offer; it gives what the Worker holds. leaving begins its orderly stop: its Computers are
// emptied, saved and stopped.
func (s *Service) Heartbeat(ctx context.Context, workerID string, leaving bool) ([]*workerpb.Lease, error) {
	out, err := s.Beat(ctx, &workerpb.HeartbeatRequest{WorkerId: workerID, Leaving: leaving})
	return out.GetLeases(), err
}

// leaseFor is how long a Worker may go on without an answer: well below the time after which it is lost.
func (s *Service) leaseFor() time.Duration { return s.lostAfter * 3 / 4 }

// beatEvery is the period of heartbeats: 5 s in 60 s.
func (s *Service) beatEvery() time.Duration { return s.lostAfter / 12 }

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
	return tx.Column(sqlWorkersLostHold)
}

// OnLostWorker tells whether a locked Computer is on a lost Worker.
func OnLostWorker(tx *db.Tx, r *Row) (bool, error) {
	if r.WorkerID == nil {
		return false, nil
	}
	w, err := lockWorker(tx, sqlWorkerGet, *r.WorkerID)
	return w != nil && w.status == WorkerLost, err
}
