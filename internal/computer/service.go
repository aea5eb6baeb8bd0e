package computer

import (
	"context"
	"net/netip"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/secret"
)

// Service answers questions about Computers and keeps the Workers.
type Service struct {
	db  *db.DB
	now func() time.Time
	// readySince is when this server began, or went on after a pause: Workers that are silent are given time to come back.
	readySince time.Time
	images     PreparedImages
	// lookedAt is when it last looked for lost Workers, by the real clock; both are used by that loop alone.
	lookedAt time.Time
	// lostAfter is how long a Worker may be silent. What a Worker may do without an answer follows from it and is told to
	// Workers, so that both sides always go by one number.
	lostAfter time.Duration
	findOwn   func(context.Context) []netip.Addr // see DenyAddresses
}

// NewService makes the room's service. now is the clock.
func NewService(d *db.DB, now func() time.Time) *Service {
	return &Service{db: d, now: now, readySince: now(), lookedAt: time.Now(), lostAfter: WorkerLostAfter}
}

// LoseWorkersAfter shortens the time that a Worker may be silent, for tests that lose Workers. All servers of a database
// must use the same.
func (s *Service) LoseWorkersAfter(d time.Duration) { s.lostAfter = min(d, WorkerLostAfter) }

// Filter selects Computers: Key alone, or a page after Cursor, with Secret of those that hold a value of it.
type Filter struct {
	Key    string
	Secret string
	Cursor string
	Limit  int
}

// Get gives one Computer of an Environment; computer_not_found if it is not there.
func (s *Service) Get(ctx context.Context, environmentID, computerID string) (api.Computer, error) {
	var out api.Computer
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		r, err := one(tx, sqlGet, environmentID, computerID)
		if err == nil && r == nil {
			err = fault.New(fault.ComputerNotFound, "computer %s does not exist in this Environment", computerID)
		}
		if err != nil {
			return err
		}
		if out, err = r.observed(tx); err != nil {
			return err
		}
		out.Secrets, err = Bindings(tx, r)
		return err
	})
	return out, err
}

// List gives Computers, latest first. A Key gives the one Computer, not deleted, that has it, or none; a Secret those, not
// deleted, that were handed a value of it in readable form, not_found if there is no such Secret.
func (s *Service) List(ctx context.Context, environmentID string, f Filter) (api.ComputerPage, error) {
	page := api.ComputerPage{Computers: []api.Computer{}}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.ComputerPage{Computers: []api.Computer{}}
		if f.Key != "" {
			r, err := one(tx, sqlByKey, environmentID, f.Key)
			if err != nil || r == nil {
				return err
			}
			v, err := r.observed(tx)
			page.Computers = append(page.Computers, v)
			return err
		}
		before := f.Cursor
		if before == "" {
			before = "~" // sorts after every id
		}
		query, args, extra := sqlList, []any{environmentID, before, f.Limit + 1}, []any{}
		var exposure string
		if f.Secret != "" {
			if err := secret.Exists(tx, environmentID, f.Secret); err != nil {
				return err
			}
			query, args, extra = sqlExposed, []any{f.Secret, environmentID, before, f.Secret, f.Limit + 1}, []any{&exposure}
		}
		var rows []*Row
		err := tx.Query(func(sc func(...any) error) error {
			r, err := scan(sc, extra...)
			if err != nil {
				return err
			}
			if len(page.Computers) == f.Limit {
				page.NextCursor = page.Computers[f.Limit-1].ID
				return nil
			}
			v := r.view()
			v.SecretExposure = exposure
			page.Computers = append(page.Computers, v)
			rows = append(rows, r)
			return nil
		}, query, args...)
		for i := 0; i < len(rows) && err == nil; i++ {
			page.Computers[i].ExecutionWait, err = rows[i].executionWait(tx)
		}
		return err
	})
	return page, err
}

// observed is what a read shows of r, with what its work is seen waiting for at this moment.
func (r *Row) observed(tx *db.Tx) (api.Computer, error) {
	v := r.view()
	var err error
	v.ExecutionWait, err = r.executionWait(tx)
	return v, err
}

// executionWait tells what runnable work on r waits for: what the dispatcher wrote, or a Save of a Computer that is up.
func (r *Row) executionWait(tx *db.Tx) (*string, error) {
	if r.ExecutionWait != nil || r.WorkerID == nil || r.Status != "available" {
		return r.ExecutionWait, nil
	}
	var one int64
	if found, err := tx.Get([]any{&one}, sqlSaving, r.ID); err != nil || !found {
		return nil, err
	}
	return ptr(waitSaving), nil
}

func (r *Row) view() api.Computer {
	c := api.Computer{ID: r.ID, Template: r.TemplateID, DeploymentID: r.DeploymentID, Status: r.Status, Residency: string(r.Residency),
		ExecutionWait: r.ExecutionWait, LastActivityAt: api.At(r.LastActivityAt), CreatedAt: api.At(r.CreatedAt), UpdatedAt: api.At(r.UpdatedAt)}
	if r.Key != nil {
		c.Key = *r.Key
	}
	if r.ErrorCode != nil {
		c.Error = &api.ComputerError{Code: *r.ErrorCode}
		if r.ErrorMessage != nil {
			c.Error.Message = *r.ErrorMessage
		}
	}
	return c
}
