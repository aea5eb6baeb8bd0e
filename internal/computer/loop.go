package computer

import (
	"context"
	"fmt"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/loop"
)

// LostTopic is signalled when a Worker was found lost: the turn room records what that means for its Computers.
const LostTopic = "workers-lost"

// Loops gives the room's background work: placing Computers, emptying unused ones, finding lost Workers.
func (s *Service) Loops() []loop.Piece {
	return []loop.Piece{
		{Name: "computer.dispatch", Every: 5 * time.Second, Topics: []string{DispatchTopic}, Run: s.dispatch},
		{Name: "computer.unused", Every: 10 * time.Second, Run: s.emptyUnused},
		{Name: "computer.workers", Every: s.beatEvery(), Run: s.findLost},
		{Name: "computer.drain", Every: 5 * time.Second, Topics: []string{WorkersTopic, DispatchTopic}, Run: s.drainAll},
		{Name: "computer.addresses", Every: seeEvery, Run: s.seeOwn},
	}
}

// free is what a Worker has left.
type free struct {
	workerID             string
	cpu, memory, diskMiB int64
	heartbeatAt          int64
}

func (f *free) fits(r *Row) bool {
	return f.cpu >= (r.MilliCPU+999)/1000*1000 && f.memory >= r.MemoryMiB && f.diskMiB >= r.DiskMiB
}

// pick gives the Worker for r among those that fit, "" if none does: first one that was heard of since recent, then last,
// the one that r was on, which may still have what its disk is made of, then the one with the most free memory.
func pick(workers []free, r *Row, last string, recent int64) string {
	var best *free
	better := func(a, b *free) bool {
		switch {
		case (a.heartbeatAt >= recent) != (b.heartbeatAt >= recent):
			return a.heartbeatAt >= recent
		case (a.workerID == last) != (b.workerID == last):
			return a.workerID == last
		case a.memory != b.memory:
			return a.memory > b.memory
		}
		return a.workerID < b.workerID
	}
	for i := range workers {
		if f := &workers[i]; f.fits(r) && (best == nil || better(f, best)) {
			best = f
		}
	}
	if best == nil {
		return ""
	}
	return best.workerID
}

// waiting is a Computer that has work and no Worker.
type waiting struct {
	id    string
	wants request
	// wait is what its last look found it waiting for; nil before the first.
	wait *string
	// firstDisk may end its waiting without a place: its prepared image will never be.
	firstDisk string
}

// request is what placement asks for: two Computers with the same get the same answer.
type request struct {
	environmentID        string
	cpu, memory, diskMiB int64
}

// dispatchPage is how many waiting Computers one read gives.
const dispatchPage = 100

// dispatch places every Computer that is wanted and not resident on a Worker with room. The oldest come first, but none
// that finds no room keeps a later one that does from its place.
func (s *Service) dispatch(ctx context.Context) (time.Duration, error) {
	now := db.Millis(s.now())
	refused := map[request]string{} // what this round found no room for
	for after := ""; ; {
		page, err := s.wanted(ctx, now, after)
		if err != nil {
			return 0, fmt.Errorf("find wanted computers: %w", err)
		}
		for _, c := range page {
			after = c.id
			if wait, ok := refused[c.wants]; ok && c.wait != nil && *c.wait == wait && c.firstDisk != FirstAwaited {
				continue
			}
			wait, err := s.place(ctx, c.id)
			if err != nil {
				return 0, err
			}
			if wait != "" {
				refused[c.wants] = wait
			}
		}
		if len(page) < dispatchPage {
			break
		}
	}
	var next *int64
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		next = nil
		_, err := tx.Get([]any{&next}, sqlNextTry, now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the next try: %w", err)
	}
	if next != nil {
		return time.Duration(*next-now) * time.Millisecond, nil
	}
	return 0, nil
}

func (s *Service) wanted(ctx context.Context, now int64, after string) ([]waiting, error) {
	var page []waiting
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = nil
		return tx.Query(func(sc func(...any) error) error {
			var c waiting
			err := sc(&c.id, &c.wants.environmentID, &c.wants.cpu, &c.wants.memory, &c.wants.diskMiB, &c.wait, &c.firstDisk)
			page = append(page, c)
			return err
		}, sqlWanted, after, now, dispatchPage)
	})
	return page, err
}

// place gives a Computer a Worker, or tells what it has to wait for.
func (s *Service) place(ctx context.Context, computerID string) (wait string, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		wait = ""
		now := db.Millis(s.now())
		r, err := Lock(tx, computerID)
		if err != nil || !r.WorkWanted || r.Resident() || r.Status != "available" || (r.RetryAt != nil && *r.RetryAt > now) || (r.RetryAt == nil && r.Residency == Unavailable) {
			return err
		}
		image, wanting, err := s.firstDisk(tx, r, now)
		if err != nil {
			return err
		}
		if wanting {
			return Update(tx, r)
		}
		var worker string
		if wait, worker, err = s.choose(tx, r); err != nil {
			return err
		}
		if wait != "" {
			if r.ExecutionWait != nil && *r.ExecutionWait == wait {
				return nil
			}
			r.ExecutionWait = ptr(wait)
			r.touch(now)
			return Update(tx, r)
		}
		if r.Residency == Unavailable {
			if err := r.move(Cold, now); err != nil {
				return err
			}
		}
		if image != nil {
			if err := r.usePrepared(tx, image, now); err != nil {
				return err
			}
		}
		r.WorkerID, r.ExecutionWait, r.RetryAt, r.Stopping, r.StoppingSaveID, r.UnusedSince = &worker, nil, nil, nil, nil, nil
		r.LeaseEpoch++
		to := Starting
		if r.Residency == Hibernated {
			to = Resuming
		}
		if err := r.move(to, now); err != nil {
			return err
		}
		SignalWorker(tx, r)
		if _, err := tx.Exec(sqlSetLastWorker, worker, r.ID); err != nil {
			return err
		}
		return Update(tx, r)
	})
	if err != nil {
		return "", fmt.Errorf("place computer %s: %w", computerID, err)
	}
	return wait, nil
}

// choose gives the Worker for r, or what it has to wait for.
func (s *Service) choose(tx *db.Tx, r *Row) (wait, workerID string, err error) {
	// Placements of one Environment are counted one after the other, also those of other servers.
	if _, err := tx.Get([]any{new(int64)}, sqlReservationLock, r.EnvironmentID); err != nil {
		return "", "", fmt.Errorf("lock reservation: %w", err)
	}
	var count, cpu, memory, maxCount, maxCPU, maxMemory int64
	if _, err := tx.Get([]any{&count, &cpu, &memory}, sqlEnvironmentUse, r.EnvironmentID); err != nil {
		return "", "", fmt.Errorf("read use: %w", err)
	}
	if _, err := tx.Get([]any{&maxCount, &maxCPU, &maxMemory}, sqlEnvironmentMax, r.EnvironmentID); err != nil {
		return "", "", fmt.Errorf("read limits: %w", err)
	}
	if count+1 > maxCount || cpu+r.MilliCPU > maxCPU || (memory+r.MemoryMiB)<<20 > maxMemory {
		return waitLimit, "", nil
	}
	var last string
	if _, err := tx.Get([]any{&last}, sqlLastWorker, r.ID); err != nil {
		return "", "", fmt.Errorf("read last worker: %w", err)
	}
	var workers []free
	err = tx.Query(func(sc func(...any) error) error {
		var f free
		err := sc(&f.workerID, &f.cpu, &f.memory, &f.diskMiB, &f.heartbeatAt)
		workers = append(workers, f)
		return err
	}, sqlFree)
	if err != nil {
		return "", "", fmt.Errorf("read workers: %w", err)
	}
	if workerID = pick(workers, r, last, db.Millis(s.now().Add(-3*s.beatEvery()))); workerID == "" {
		return waitScheduling, "", nil
	}
	// Another server may have placed something there or drained it since: what counts is read under its lock.
	w, err := lockWorker(tx, sqlWorkerLock, workerID)
	if err != nil || w == nil || w.status != WorkerActive {
		return waitScheduling, "", err
	}
	var f free
	if _, err := tx.Get([]any{&f.cpu, &f.memory, &f.diskMiB}, sqlFreeOf, workerID); err != nil {
		return "", "", fmt.Errorf("read worker: %w", err)
	}
	if !f.fits(r) {
		tx.Signal(DispatchTopic) // another one may have room
		return waitScheduling, "", nil
	}
	return "", workerID, nil
}

// emptyUnused begins to empty Computers that nothing has used for a while.
func (s *Service) emptyUnused(ctx context.Context) (time.Duration, error) {
	before := db.Millis(s.now().Add(-StaysUnused))
	var unused []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		unused, err = tx.Column(sqlUnused, before)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find unused computers: %w", err)
	}
	for _, computerID := range unused {
		err := s.db.Write(ctx, func(tx *db.Tx) error {
			r, err := Lock(tx, computerID)
			if err != nil || r.Residency != Running || r.Stopping != nil || r.UnusedSince == nil || *r.UnusedSince > before {
				return err
			}
			r.Stopping = ptr(StopUnused)
			r.touch(db.Millis(s.now()))
			SignalWorker(tx, r)
			return Update(tx, r)
		})
		if err != nil {
			return 0, fmt.Errorf("empty computer %s: %w", computerID, err)
		}
	}
	return 0, nil
}

// findLost marks Workers that have been silent for too long. A server that has just begun, or that was itself stopped for
// a while (its machine slept, its process was paused), waits for them first: they could not reach it.
func (s *Service) findLost(ctx context.Context) (time.Duration, error) {
	now := s.now().Round(0) // without the monotonic reading, which stands still while a machine sleeps
	looked := time.Now().Round(0)
	if looked.Sub(s.lookedAt) > s.lostAfter/2 {
		s.readySince = now
	}
	s.lookedAt = looked
	if now.Sub(s.readySince) < 2*s.lostAfter {
		return 0, nil
	}
	before := db.Millis(now.Add(-s.lostAfter))
	var silent []string
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		silent, err = tx.Column(sqlWorkersSilent, before)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find silent workers: %w", err)
	}
	for _, workerID := range silent {
		err := s.db.Write(ctx, func(tx *db.Tx) error {
			w, err := lockWorker(tx, sqlWorkerLock, workerID)
			if err != nil || w == nil || w.heartbeatAt > before {
				return err
			}
			switch w.status {
			case WorkerRegistering, WorkerActive, WorkerDraining:
				tx.Signal(LostTopic)
				return w.move(tx, WorkerLost, nil)
			}
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("mark worker %s lost: %w", workerID, err)
		}
	}
	return 0, nil
}
