package computer

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// WorkersTopic is signalled when a drain begins or ends.
const WorkersTopic = "workers"

// MaxDrain bounds the time that a drain waits for running work.
const MaxDrain = 7 * 24 * time.Hour

// Drain keeps new Computers off a Worker and empties it: idle Computers are saved and stopped, running Turns and Commands
// are waited for; those that still run after timeout (0: however long it takes) are stopped in order. A later call sets
// another time. bad_request for a Worker that is neither active nor draining.
func (s *Service) Drain(ctx context.Context, workerID string, timeout time.Duration) (api.Worker, error) {
	if timeout < 0 || timeout > MaxDrain {
		return api.Worker{}, fault.New(fault.BadRequest, "timeout_ms must be from 0 to %d", MaxDrain.Milliseconds()).With("field", "timeout_ms")
	}
	return s.control(ctx, workerID, func(tx *db.Tx, w *workerRow) error {
		var at *int64
		if timeout > 0 {
			at = ptr(db.Millis(s.now().Add(timeout)))
		}
		switch w.status {
		case WorkerTerminationReady:
			return nil
		case WorkerActive, WorkerDraining:
			return s.drain(tx, w, at)
		}
		return fault.New(fault.BadRequest, "the Worker %q is %s: only an active one can be drained", w.name, w.status)
	})
}

// Activate ends a drain: the Worker may get Computers again. What is being stopped in order already goes on stopping.
// bad_request for a Worker that is registering or lost.
func (s *Service) Activate(ctx context.Context, workerID string) (api.Worker, error) {
	return s.control(ctx, workerID, func(tx *db.Tx, w *workerRow) error {
		switch w.status {
		case WorkerActive:
			return nil
		case WorkerDraining, WorkerTerminationReady:
			return s.activate(tx, w)
		}
		return fault.New(fault.BadRequest, "the Worker %q is %s: it becomes active by itself when it runs", w.name, w.status)
	})
}

func (s *Service) control(ctx context.Context, workerID string, do func(tx *db.Tx, w *workerRow) error) (api.Worker, error) {
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		w, err := lockWorker(tx, sqlWorkerLock, workerID)
		if err == nil && w == nil {
			err = fault.New(fault.NotFound, "There is no Worker with this id.")
		}
		if err != nil {
			return err
		}
		return do(tx, w)
	})
	if err != nil {
		return api.Worker{}, err
	}
	if err := s.tell(ctx, workerID); err != nil {
		return api.Worker{}, err
	}
	return s.GetWorker(ctx, workerID)
}

// drain begins or changes a drain of a locked Worker. Its Computers are told after the transaction, by tell: a Computer is
// locked before a Worker, never after.
func (s *Service) drain(tx *db.Tx, w *workerRow, shutdownAt *int64) error {
	switch w.status {
	case WorkerDraining:
		if _, err := tx.Exec(sqlWorkerShutdownAt, shutdownAt, w.id); err != nil {
			return fmt.Errorf("drain worker: %w", err)
		}
		w.shutdownAt = shutdownAt
	case WorkerActive:
		if err := w.move(tx, WorkerDraining, shutdownAt); err != nil {
			return err
		}
	}
	tx.Signal(WorkersTopic)
	return nil
}

func (s *Service) activate(tx *db.Tx, w *workerRow) error {
	tx.Signal(WorkersTopic)
	return w.move(tx, WorkerActive, nil)
}

// tell makes the Computers of a Worker follow its state: those of a draining one leave, after their work or at once;
// those of one that is active again stay, unless their last Save was asked for. A draining Worker without Computers
// becomes ready for termination.
func (s *Service) tell(ctx context.Context, workerID string) error {
	leases, err := s.Leases(ctx, workerID)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if err := s.db.Write(ctx, func(tx *db.Tx) error { return s.follow(tx, l.GetComputerId(), workerID) }); err != nil {
			return fmt.Errorf("tell computer %s: %w", l.GetComputerId(), err)
		}
	}
	return s.db.Write(ctx, func(tx *db.Tx) error {
		w, err := lockWorker(tx, sqlWorkerLock, workerID)
		if err != nil || w == nil || w.status != WorkerDraining {
			return err
		}
		var computers int64
		if _, err := tx.Get([]any{&computers}, sqlWorkerHolds, w.id); err != nil || computers > 0 {
			return err
		}
		tx.Signal(WorkersTopic)
		return w.move(tx, WorkerTerminationReady, nil)
	})
}

func (s *Service) follow(tx *db.Tx, computerID, workerID string) error {
	r, err := Lock(tx, computerID)
	if err != nil || r.WorkerID == nil || *r.WorkerID != workerID {
		return err
	}
	w, err := lockWorker(tx, sqlWorkerGet, workerID)
	if err != nil || w == nil {
		return err
	}
	now := db.Millis(s.now())
	var wanted *string
	switch {
	case w.status == WorkerDraining && w.shutdownAt != nil && *w.shutdownAt <= now:
		wanted = ptr(StopShutdown)
	case w.status == WorkerDraining:
		wanted = ptr(StopDrain)
	}
	have := ""
	if r.Stopping != nil {
		have = *r.Stopping
	}
	switch {
	case wanted == nil && (have != StopDrain || r.StoppingSaveID != nil), wanted != nil && (have == *wanted || have == StopShutdown):
		return nil
	}
	r.Stopping = wanted
	r.touch(now)
	SignalWorker(tx, r)
	return Update(tx, r)
}

// drainAll goes on with every drain: times that are over, Computers that were placed in the same moment, Workers that are
// empty now.
func (s *Service) drainAll(ctx context.Context) (time.Duration, error) {
	var draining []string
	var next *int64
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		next = nil
		if draining, err = tx.Column(sqlWorkersDraining); err != nil {
			return err
		}
		_, err = tx.Get([]any{&next}, sqlNextShutdown, db.Millis(s.now()))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find draining workers: %w", err)
	}
	for _, workerID := range draining {
		if err := s.tell(ctx, workerID); err != nil {
			return 0, fmt.Errorf("drain worker %s: %w", workerID, err)
		}
	}
	if next != nil {
		return time.Duration(*next-db.Millis(s.now())+1) * time.Millisecond, nil
	}
	return 0, nil
}

// Leases gives the Computers that a Worker holds.
func (s *Service) Leases(ctx context.Context, workerID string) ([]*workerpb.Lease, error) {
	var leases []*workerpb.Lease
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		leases, err = leasesOf(tx, workerID)
		return err
	})
	return leases, err
}

// GetWorker gives one Worker; not_found if there is none with the id.
func (s *Service) GetWorker(ctx context.Context, workerID string) (api.Worker, error) {
	var out api.Worker
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		out, err = viewWorker(tx, workerID)
		return err
	})
	return out, err
}

// ListWorkers gives Workers by name. cursor is the name of the last one seen.
func (s *Service) ListWorkers(ctx context.Context, cursor string, limit int) (api.WorkerPage, error) {
	var page api.WorkerPage
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.WorkerPage{Workers: []api.Worker{}}
		return tx.Query(func(sc func(...any) error) error {
			w, err := scanWorker(sc)
			if err != nil {
				return err
			}
			if len(page.Workers) == limit {
				page.NextCursor = page.Workers[limit-1].Name
				return nil
			}
			page.Workers = append(page.Workers, w)
			return nil
		}, sqlWorkerList, cursor, limit+1)
	})
	return page, err
}

func viewWorker(tx *db.Tx, workerID string) (api.Worker, error) {
	var out api.Worker
	found := false
	err := tx.Query(func(sc func(...any) error) (err error) {
		found = true
		out, err = scanWorker(sc)
		return err
	}, sqlWorkerView, workerID)
	if err != nil {
		return out, fmt.Errorf("read worker: %w", err)
	}
	if !found {
		return out, fault.New(fault.NotFound, "There is no Worker with this id.")
	}
	return out, nil
}

func scanWorker(sc func(...any) error) (api.Worker, error) {
	var w api.Worker
	var shutdown *int64
	var heartbeat, created int64
	err := sc(&w.ID, &w.Name, &w.Status, &w.Capacity.CPUMillis, &w.Capacity.MemoryMiB, &w.Capacity.DiskMiB, &shutdown, &heartbeat, &created,
		&w.Computers, &w.Reserved.CPUMillis, &w.Reserved.MemoryMiB, &w.Reserved.DiskMiB, &w.RunningTurns, &w.RunningCommands)
	w.ShutdownAt, w.HeartbeatAt, w.CreatedAt = at(shutdown), api.At(heartbeat), api.At(created)
	return w, err
}

// Enrollment tokens: their mark, how much of one people see again, and the bounds of their names in characters.
const (
	tokenMark    = "hlmr_wgt_"
	tokenBytes   = 32
	shownOfToken = 8
	maxTokenName = 64
)

// CreateWorkerToken makes a token with which Workers enroll. by is the person who makes it, "" for the machine's owner.
func (s *Service) CreateWorkerToken(ctx context.Context, by string, req api.WorkerTokenCreateRequest) (api.WorkerToken, error) {
	if n := utf8.RuneCountInString(req.Name); n < 1 || n > maxTokenName || strings.ContainsFunc(req.Name, unicode.IsControl) {
		return api.WorkerToken{}, fault.New(fault.BadRequest, "name must be 1 to %d characters without control characters", maxTokenName).With("field", "name")
	}
	raw := make([]byte, tokenBytes)
	_, _ = rand.Read(raw) // never fails
	token := tokenMark + base64.RawURLEncoding.EncodeToString(raw)
	now := db.Millis(s.now())
	out := api.WorkerToken{ID: id.New(), Name: req.Name, Token: token, Prefix: token[:len(tokenMark)+shownOfToken], Status: "active", CreatedAt: api.At(now)}
	var creator *string
	if by != "" {
		creator = &by
	}
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		_, err := tx.Exec(sqlTokenInsert, out.ID, out.Name, out.Prefix, hashed(token), creator, now)
		return err
	})
	if err != nil {
		return api.WorkerToken{}, fmt.Errorf("create worker token: %w", err)
	}
	return out, nil
}

// ListWorkerTokens gives tokens, latest first, without their text. cursor is the id of the last one seen.
func (s *Service) ListWorkerTokens(ctx context.Context, cursor string, limit int) (api.WorkerTokenPage, error) {
	page := api.WorkerTokenPage{}
	if cursor == "" {
		cursor = "~" // sorts after every id
	}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.WorkerTokenPage{Tokens: []api.WorkerToken{}}
		return tx.Query(func(sc func(...any) error) error {
			t := api.WorkerToken{Status: "active"}
			var created int64
			var used, revoked *int64
			if err := sc(&t.ID, &t.Name, &t.Prefix, &created, &used, &revoked); err != nil {
				return err
			}
			if len(page.Tokens) == limit {
				page.NextCursor = page.Tokens[limit-1].ID
				return nil
			}
			t.CreatedAt, t.LastUsedAt, t.RevokedAt = api.At(created), at(used), at(revoked)
			if revoked != nil {
				t.Status = "revoked"
			}
			page.Tokens = append(page.Tokens, t)
			return nil
		}, sqlTokenList, cursor, limit+1)
	})
	return page, err
}

// RevokeWorkerToken ends a token: nobody enrolls with it any more. Workers that did go on. Revoking again changes nothing;
// not_found if there is no such token.
func (s *Service) RevokeWorkerToken(ctx context.Context, tokenID string) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		var revoked *int64
		found, err := tx.Get([]any{&revoked}, sqlTokenGet, tokenID)
		if err != nil {
			return fmt.Errorf("read worker token: %w", err)
		}
		if !found {
			return fault.New(fault.NotFound, "There is no Worker token with this id.")
		}
		if _, err := tx.Exec(sqlTokenRevoke, db.Millis(s.now()), tokenID); err != nil {
			return fmt.Errorf("revoke worker token: %w", err)
		}
		return nil
	})
}

// useToken refuses an enrollment whose token is not valid, and remembers the use of one that is. Tokens are looked up by
// their hash, so that the time it takes says nothing of them.
func useToken(tx *db.Tx, now int64, token string) error {
	n, err := tx.Exec(sqlTokenUse, now, hashed(token))
	if err != nil {
		return fmt.Errorf("look up worker token: %w", err)
	}
	if n == 0 {
		return fault.New(fault.AuthenticationRequired, "the enrollment token is not valid, or was revoked; `helmr worker token create` makes one (the first: `helmr server worker-token`)")
	}
	return nil
}

func at(ms *int64) *api.Time {
	if ms == nil {
		return nil
	}
	t := api.At(*ms)
	return &t
}
