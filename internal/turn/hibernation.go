package turn

import (
	"context"
	"fmt"
	"slices"
	"time"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/session"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// quiet tells whether the Sessions of the Computer have processes and nothing at all for them to do.
func (w *work) quiet() bool {
	processes := 0
	for _, u := range w.units {
		if u.p != nil {
			processes++
		}
		if (u.p != nil && u.p.Status != session.ProcessReady) || u.runnable() || (u.head != nil && u.head.Status != Queued) {
			return false
		}
	}
	return processes > 0
}

// mayPark tells whether a Computer that is being stopped in order keeps its processes in a capture: all of their
// Sessions allow it, and are idle but for Saves and, in a drain, Turns that are waited for.
func (x *exchange) mayPark() bool {
	if x.c.Stopping == nil || *x.c.Stopping == computer.StopUnused {
		return false
	}
	processes := 0
	for _, u := range x.units {
		if u.p != nil {
			processes++
		}
		waits := u.busy() && *x.c.Stopping == computer.StopDrain
		if u.runnable() || (u.p != nil && (u.s.HibernateAfterIdleMs == nil || (u.p.Status != session.ProcessReady && !waits))) {
			return false
		}
	}
	return processes > 0
}

// stopInstead stops the processes of a Computer that was to hibernate and has other things to do, on another Worker.
func (x *exchange) stopInstead() error {
	x.parks = false
	computer.SignalWorker(x.tx, x.c)
	for _, u := range x.units {
		if u.p != nil && u.p.Status != session.ProcessStopping {
			if err := x.emptyOut(u); err != nil {
				return err
			}
		}
	}
	return nil
}

// idle tells whether each Session with a process has been idle for as long as it wants.
func (x *exchange) idle() bool {
	for _, u := range x.units {
		if u.p == nil {
			continue
		}
		if u.s.HibernateAfterIdleMs == nil || u.s.IdleSince == nil || *u.s.IdleSince+*u.s.HibernateAfterIdleMs > x.now {
			return false
		}
	}
	return true
}

// hibernate begins, or goes on with, the capture of a Computer that nobody uses, and tells whether there is one.
func (x *exchange) hibernate() (bool, error) {
	still := x.quiet() && x.others == Occupancy{}
	switch {
	case x.parks && (x.others.Waiting > 0 || x.others.Stuck > 0):
		return false, x.stopInstead()
	case x.c.Residency == computer.Hibernating && !still:
		x.c.DropCapture(x.now)
		return false, nil
	case x.c.Residency == computer.Hibernating && x.req.GetCaptureId() == *x.c.CaptureID:
	case x.c.Residency == computer.Hibernating: // the Worker does not know of it: whatever it began before does not count
		x.c.RenewCapture(x.now)
	case !still || !x.req.GetGuestConnected() || x.req.GetSaveId() != "" || x.c.Residency != computer.Running || (x.c.Stopping != nil && !x.parks):
		return false, nil
	case x.c.Stopping == nil && !x.idle():
		return false, nil
	default:
		if unfinished, err := computer.UnfinishedSaves(x.tx, x.c); err != nil || unfinished > 0 {
			return false, err
		}
		if err := x.c.Hibernate(x.now); err != nil {
			return false, err
		}
	}
	x.out.Hibernate = &workerpb.HibernateOrder{CaptureId: *x.c.CaptureID}
	return true, nil
}

// resume tells a Worker from what to restore the memory of a hibernated Computer.
func (x *exchange) resume() error {
	manifest, platform, err := computer.Memory(x.tx, x.c)
	if err != nil {
		return err
	}
	r := &workerpb.Resume{MemoryManifest: manifest, Platform: platform}
	for _, u := range x.units {
		if u.p == nil {
			continue
		}
		program, _, err := deployment.Program(x.tx, u.s.DeploymentID)
		if err != nil {
			return err
		}
		if !slices.Contains(r.ProgramDigests, program) {
			r.ProgramDigests = append(r.ProgramDigests, program)
		}
	}
	x.out.Spec.Resume = r
	return nil
}

// PublishCapture hibernates a Computer whose disk and memory are whole in blob storage. If something has come to do since
// the capture was ordered, it is dropped instead: the Computer goes on. Errors: lease_lost.
func (s *Service) PublishCapture(ctx context.Context, req *workerpb.PublishCaptureRequest) (*workerpb.PublishCaptureResponse, error) {
	out := &workerpb.PublishCaptureResponse{}
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		c, err := computer.LockLease(tx, req.GetComputerId(), req.GetWorkerId(), req.GetEpoch())
		if err != nil {
			return err
		}
		w := &work{tx: tx, now: db.Millis(s.now()), c: c}
		if err := w.loadAll(); err != nil {
			return err
		}
		if !w.quiet() {
			c.DropCapture(w.now)
		}
		computer.SignalWorker(tx, c)
		hibernated, err := computer.PublishCapture(tx, c, w.now, computer.Capture{ID: req.GetCaptureId(), Platform: req.GetPlatform(),
			Disk:   computer.Stored{Manifest: req.GetDiskManifest(), References: req.GetDiskReferences(), Size: req.GetDiskSizeBytes(), StoredBytes: req.GetDiskStoredBytes()},
			Memory: computer.Stored{Manifest: req.GetMemoryManifest(), References: req.GetMemoryReferences(), Size: req.GetMemorySizeBytes(), StoredBytes: req.GetMemoryStoredBytes()}})
		if err != nil {
			return err
		}
		out.Dropped = !hibernated
		return w.flush()
	})
	return out, err
}

// unpark ends a process that exists only in a capture, for a Session that needs it no more. The capture goes with the
// last of them.
func (w *work) unpark(u *unit, reason string) error {
	epoch := u.p.Epoch
	if err := w.endProcess(u, session.ProcessEnded); err != nil {
		return err
	}
	if _, err := w.event(u, "", "session.process_stopped", map[string]any{"epoch": epoch, "reason": reason}); err != nil {
		return err
	}
	left, err := session.LiveProcesses(w.tx, w.c.ID)
	if err != nil || left > 0 {
		return err
	}
	return computer.DropMemory(w.tx, w.c, w.now)
}

// hibernateLate is how long after its time a Session is still looked at by hibernateIdle; later the Exchange of its
// Computer, which comes anyway, is enough.
const hibernateLate = time.Minute

// hibernateIdle wakes the Workers of Computers with a Session whose idle clock has reached hibernateAfterIdle. Their
// Exchange decides.
func (s *Service) hibernateIdle(ctx context.Context) (time.Duration, error) {
	now := db.Millis(s.now())
	var due []string
	var next *int64
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		due, next, err = session.HibernationDue(tx, now-hibernateLate.Milliseconds(), now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find sessions to hibernate: %w", err)
	}
	if len(due) > 0 {
		err := s.db.Write(ctx, func(tx *db.Tx) error {
			for _, computerID := range due {
				c, err := computer.Lock(tx, computerID)
				if err != nil {
					return err
				}
				if c.Residency == computer.Running {
					computer.SignalWorker(tx, c)
				}
			}
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("hibernate idle computers: %w", err)
		}
	}
	if next != nil {
		return time.Duration(max(*next-now, 1)) * time.Millisecond, nil
	}
	return 0, nil
}
