package turn

import (
	"context"
	"fmt"

	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/storage"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Exchange takes what a Worker sees of one Computer and the operations of its processes, and answers with their
// acknowledgements and with what is wanted. It is one transaction. A Worker without the lease is answered fenced.
func (s *Service) Exchange(ctx context.Context, req *workerpb.ExchangeRequest) (*workerpb.ExchangeResponse, error) {
	var out *workerpb.ExchangeResponse
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = &workerpb.ExchangeResponse{}
		c, err := computer.LockLease(tx, req.GetComputerId(), req.GetWorkerId(), req.GetEpoch())
		if fault.Is(err, fault.LeaseLost) || fault.Is(err, fault.ComputerNotFound) {
			out.Fenced = true
			return nil
		}
		if err != nil {
			return err
		}
		w := &work{tx: tx, now: db.Millis(s.now()), c: c, occupants: s.occupants}
		if err := w.loadAll(); err != nil {
			return err
		}
		x := &exchange{work: w, req: req, out: out}
		if err := x.run(); err != nil {
			return err
		}
		return w.flush()
	})
	return out, err
}

// Occupants are what uses Computers beside Sessions. A room to the right has them and decides about them in this room's
// transactions, under the Computer's lock.
type Occupants interface {
	// Exchange takes what a Worker sees of them on c, adds what is wanted of them, and tells how they use c.
	Exchange(tx *db.Tx, c *computer.Row, now int64, req *workerpb.ExchangeRequest, out *workerpb.ExchangeResponse) (Occupancy, error)
	// Unplaced records that c became unavailable before it ran.
	Unplaced(tx *db.Tx, c *computer.Row, now int64) error
	// Lost records that c is lost. proven tells that nothing of it runs any more for certain; why, if known, is for people.
	Lost(tx *db.Tx, c *computer.Row, now int64, proven bool, why string) error
}

// Occupancy counts occupants of one Computer.
type Occupancy struct {
	// Waiting are still to be begun: the Computer has to run for them.
	Waiting int
	// Inside have something in the guest that must end, or be fetched, before the Computer may be emptied.
	Inside int
	// Stuck cannot be ended: they keep the Computer in use, but not from being stopped.
	Stuck int
}

// Host lets others than Sessions use Computers. It is called once, before anything else.
func (s *Service) Host(o Occupants) { s.occupants = o }

// exchange is one Exchange under way.
type exchange struct {
	*work
	req    *workerpb.ExchangeRequest
	out    *workerpb.ExchangeResponse
	others Occupancy
	// parks tells that the Computer is being stopped in order and may hibernate instead.
	parks bool
}

func (x *exchange) run() error {
	switch x.req.GetPhase() {
	case workerpb.Phase_PHASE_START_FAILED:
		x.out.Fenced = true
		return x.startFailed()
	case workerpb.Phase_PHASE_LOST:
		x.out.Fenced = true
		return x.lost(true, toValid(x.req.GetError()))
	case workerpb.Phase_PHASE_STOPPED:
		x.out.Fenced = true
		return x.stopped()
	case workerpb.Phase_PHASE_RUNNING:
		if err := x.c.Started(x.tx, x.now); err != nil {
			return err
		}
	default:
		if x.c.Residency == computer.Running || x.c.Residency == computer.Hibernating {
			x.out.Fenced = true
			return x.lost(true, "") // it ran here before, and the Worker has nothing of it
		}
		return x.spec()
	}
	if x.c.Status == "deleting" { // nobody uses it, and its disk is of no more use
		x.out.Stop = true
		return nil
	}
	for _, ops := range x.req.GetOperations() {
		if err := x.operations(ops); err != nil {
			return err
		}
	}
	if !x.quiet() {
		x.c.DropCapture(x.now)
	}
	x.parks = x.mayPark()
	if x.req.GetGuestConnected() {
		for _, u := range x.units {
			if err := x.reconcile(u); err != nil {
				return err
			}
		}
		x.forget()
	}
	if err := x.exchangeOthers(); err != nil {
		return err
	}
	x.use()
	if hibernates, err := x.hibernate(); err != nil || hibernates {
		return err
	}
	return x.disk()
}

func (x *exchange) exchangeOthers() (err error) {
	if x.occupants != nil {
		x.others, err = x.occupants.Exchange(x.tx, x.c, x.now, x.req, x.out)
	}
	return err
}

// startFailed records a failed start. Turns wait for the next one; others fail when there is none soon.
func (x *exchange) startFailed() error {
	if x.c.Residency == computer.Resuming {
		return x.lost(true, "its memory cannot be restored: "+message(x.req.GetError(), "the sandbox did not start"))
	}
	failed := x.c.StartFailed
	if x.req.GetDiskUnreadable() {
		failed = x.c.DiskUnreadable
	}
	if err := failed(x.now, message(x.req.GetError(), "the sandbox did not start")); err != nil {
		return err
	}
	if x.c.Residency != computer.Unavailable || x.occupants == nil {
		return nil
	}
	return x.occupants.Unplaced(x.tx, x.c, x.now)
}

// use keeps the Computer's record of whether anything needs it.
func (x *exchange) use() {
	for _, u := range x.units {
		if u.p != nil || u.runnable() || u.busy() {
			return
		}
	}
	if x.others == (Occupancy{}) && x.c.Purpose == computer.ForUse {
		x.c.Unwanted(x.now)
	}
}

// spec tells a Worker that has no sandbox yet what to start.
func (x *exchange) spec() error {
	manifest, err := computer.RecoveryManifest(x.tx, x.c)
	if err != nil {
		return err
	}
	template, err := deployment.FindTemplate(x.tx, x.c.DeploymentID, x.c.TemplateID)
	if err != nil {
		return err
	}
	network := "" // blocks everything
	switch {
	case template == nil:
	case x.c.Purpose == computer.ForPreparation:
		network = string(template.PrepareNetwork)
	default:
		network = string(template.Network)
	}
	protected, err := computer.Protected(x.tx, x.c)
	if err != nil {
		return err
	}
	x.out.Spec = &workerpb.ComputerSpec{EnvironmentId: x.c.EnvironmentID, ImageDigest: x.c.ImageDigest, MilliCpu: x.c.MilliCPU, MemoryMib: x.c.MemoryMiB,
		DiskMib: x.c.DiskMiB, SaveManifest: manifest, Network: network, Protected: protected, Shared: manifest != "" && x.c.RecoverySaveID == nil}
	if x.c.Residency == computer.Resuming {
		return x.resume()
	}
	return nil
}

// disk orders the next Save, or the stop of an emptied Computer whose last Save is published.
func (x *exchange) disk() error {
	if x.c.Stopping != nil && x.req.GetGuestConnected() && x.empty() {
		published, err := computer.FinalSave(x.tx, x.c, x.now)
		if err != nil {
			return err
		}
		if published {
			x.out.Stop = true
			return nil
		}
	}
	if x.req.GetSaveId() != "" {
		return nil
	}
	saveID, number, err := computer.NextSave(x.tx, x.c, x.now)
	if err != nil {
		return err
	}
	if saveID != "" {
		x.out.Save = &workerpb.SaveOrder{SaveId: saveID, Number: number}
	}
	return nil
}

// empty tells whether no process is left and no Turn waits for a Save.
func (x *exchange) empty() bool {
	for _, u := range x.units {
		if u.p != nil || (u.head != nil && u.head.Status != Queued) {
			return false
		}
	}
	return x.others.Inside == 0
}

// stopped records that the Worker removed an emptied Computer. Work that came meanwhile starts it again.
func (x *exchange) stopped() error {
	if err := x.exchangeOthers(); err != nil {
		return err
	}
	told := x.c.Status == "deleting" || (x.c.Stopping != nil && x.c.StoppingSaveID != nil)
	if !told || !x.empty() {
		return x.lost(true, "") // it was not told to stop: its processes and unsaved changes are gone
	}
	runnable := x.others.Waiting > 0
	for _, u := range x.units {
		runnable = runnable || u.runnable()
	}
	return x.c.Stopped(x.now, runnable)
}

// lost records that the sandbox is gone with everything that was not saved. proven tells that nothing of it runs any more
// for certain; why, if known, is for people.
func (w *work) lost(proven bool, why string) error {
	for _, u := range w.units {
		if err := w.lostSession(u, why); err != nil {
			return err
		}
	}
	if w.occupants != nil {
		if err := w.occupants.Lost(w.tx, w.c, w.now, proven, why); err != nil {
			return err
		}
	}
	return w.c.Lost(w.tx, w.now)
}

func (w *work) lostSession(u *unit, why string) error {
	u.lost = true
	if why = message(why, ""); why != "" {
		why = ": " + why
	}
	unfinished := u.head != nil
	if u.busy() {
		if err := w.end(u, Interrupted, CodeComputerLost, "the Computer was lost while the Turn ran"+why); err != nil {
			return err
		}
	} else if u.head != nil && u.head.Status == Finalizing {
		if err := w.end(u, Interrupted, CodeSaveLost, "the Computer was lost before the Turn's Save was published"+why); err != nil {
			return err
		}
	}
	initialised := u.s.Initialised && u.p != nil
	if u.p != nil {
		if err := w.endProcess(u, session.ProcessEnded); err != nil {
			return err
		}
	}
	if !u.s.Terminal() && (unfinished || initialised) {
		if err := w.hold(u, session.HoldComputerLost); err != nil {
			return err
		}
	}
	u.s.RecoveryReason = ptr("computer_lost")
	u.s.Touch(w.now)
	return w.settle(u)
}

// hold places a local hold that the platform itself decided on.
func (w *work) hold(u *unit, reason string) error {
	holdID, err := session.Hold(w.tx, u.s, w.now, "local", reason)
	if err != nil {
		return err
	}
	u.held = true
	_, err = w.event(u, "", "session.held", map[string]any{"hold_id": holdID, "reason": reason})
	return err
}

// endProcess writes the end of u's process and forgets it.
func (w *work) endProcess(u *unit, to session.ProcessStatus) error {
	if err := u.p.Move(to); err != nil {
		return err
	}
	if err := session.UpdateProcess(w.tx, u.p, w.now); err != nil {
		return err
	}
	u.p = nil
	return nil
}

// PublishSave records that a Save is whole in blob storage and completes the Turns that waited for it. It fails with
// storage.RefusedError if something that the Save needs is being removed.
func (s *Service) PublishSave(ctx context.Context, req *workerpb.PublishSaveRequest) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		c, err := computer.LockLease(tx, req.GetComputerId(), req.GetWorkerId(), req.GetEpoch())
		if err != nil {
			return err
		}
		w := &work{tx: tx, now: db.Millis(s.now()), c: c}
		did, err := computer.PublishSave(tx, c, w.now, req.GetSaveId(), storage.Publication{Manifest: req.GetManifestDigest(), Base: req.GetBaseManifest(),
			References: req.GetReferences()}, req.GetSizeBytes(), req.GetStoredBytes())
		if err != nil || !did {
			return err
		}
		if err := w.loadAll(); err != nil {
			return err
		}
		for _, u := range w.units {
			if u.head == nil || u.head.Status != Finalizing || u.head.SaveID == nil || *u.head.SaveID != req.GetSaveId() {
				continue
			}
			if err := w.complete(u, req.GetSaveId()); err != nil {
				return err
			}
		}
		computer.SignalWorker(tx, c)
		return w.flush()
	})
}

func (w *work) complete(u *unit, saveID string) error {
	var result, response *string
	if _, err := w.tx.Get([]any{&result, &response}, sqlOutcome, u.head.ID); err != nil {
		return fmt.Errorf("read outcome: %w", err)
	}
	data := map[string]any{"save_id": saveID}
	if result != nil {
		data["result"] = rawJSON(*result)
	}
	if response != nil {
		data["response"] = rawJSON(*response)
	}
	u.head.CompletionSaveID = saveID
	if err := u.head.move(Completed, w.now); err != nil {
		return err
	}
	if _, err := w.event(u, u.head.ID, "turn.completed", data); err != nil {
		return err
	}
	if u.s.ConsecutiveFailures != 0 {
		u.s.ConsecutiveFailures = 0
	}
	if err := w.next(u); err != nil {
		return err
	}
	return w.settle(u)
}
