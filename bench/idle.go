package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/loop"
	"helmr.dev/helmr/internal/turn"
)

// idle measures what 10,000 idle Sessions in an Environment cost everybody else, against 100: creating one more, listing,
// and a round of the background work that looks for idle ones. The Sessions are copies, with all their rows, of one that
// really became idle. It is the last group: it stops the Worker and changes the server.
func (b *bench) idle(ctx context.Context, h *helmr) error {
	s, err := h.newWarm(ctx, "alone", "", "")
	if err != nil {
		return err
	}
	s.stop()
	if err := h.halt(); err != nil {
		return err
	}
	few, err := b.idleOf(ctx, h, s, 100)
	if err != nil {
		return fmt.Errorf("with 100: %w", err)
	}
	many, err := b.idleOf(ctx, h, s, 10_000)
	if err != nil {
		return fmt.Errorf("with 10,000: %w", err)
	}
	b.report.add("idle_10k_create", h.kind, many.create, "ms", few.create, atMostRatio(1.5))
	b.report.add("idle_10k_list", h.kind, many.list, "ms", few.list, atMostRatio(1.5))
	b.report.add("idle_10k_sweep", h.kind, many.sweep, "ms", few.sweep, atMostRatio(1.5))
	return nil
}

type idleTimes struct{ create, list, sweep float64 }

// idleOf measures with so many idle Sessions in the Environment.
func (b *bench) idleOf(ctx context.Context, h *helmr, s *session, n int) (t idleTimes, err error) {
	database, remove, err := b.copyDatabase(ctx, h)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := multiply(ctx, h.kind, database, s, n-1); err != nil {
		return t, err
	}
	if t.sweep, err = b.sweep(ctx, database); err != nil {
		return t, err
	}
	own := *h
	own.database = database
	own.env = append(own.env, "HELMR_DATABASE_URL="+database)
	if err := own.startServer(ctx); err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, own.serverIs.stop()) }()
	var creates, lists []float64
	for i := range b.few(60, 25) + 5 { // the first five are to warm up
		began := time.Now()
		r, err := own.CreateSession(ctx, api.SessionCreateRequest{Agent: "alone", Input: input("")})
		if err != nil {
			return t, err
		}
		created := time.Now()
		if _, err := own.ListSessions(ctx, client.SessionFilter{Statuses: []string{"open"}, Limit: 50}); err != nil {
			return t, err
		}
		if i >= 5 {
			creates, lists = append(creates, ms(created.Sub(began))), append(lists, ms(time.Since(created)))
		}
		if _, err := own.CancelSession(ctx, r.SessionID, api.ControlRequest{}); err != nil {
			return t, err
		}
	}
	t.create, t.list = median(creates), median(lists)
	return t, nil
}

// sweep gives the ms of one round of all background work on Sessions and Computers, with nothing due.
func (b *bench) sweep(ctx context.Context, database string) (took float64, err error) {
	d, err := db.Open(ctx, database)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var pieces []loop.Piece
	pieces = append(pieces, turn.NewService(d, time.Now).Loops()...)
	pieces = append(pieces, computer.NewService(d, time.Now).Loops()...)
	var times []float64
	for i := range b.few(40, 20) + 5 {
		began := time.Now()
		for _, p := range pieces {
			if _, err := p.Run(ctx); err != nil {
				return 0, fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		if i >= 5 {
			times = append(times, ms(time.Since(began)))
		}
	}
	return median(times), nil
}

// copyDatabase copies the database of a helmr that is stopped.
func (b *bench) copyDatabase(ctx context.Context, h *helmr) (database string, remove func() error, err error) {
	if h.kind == db.PostgreSQL {
		u, err := url.Parse(h.database)
		if err != nil {
			return "", nil, err
		}
		database, err = b.createPostgres(ctx, strings.TrimPrefix(u.Path, "/"))
		return database, func() error { return b.dropDatabase(h.kind, database) }, err
	}
	dir, err := os.MkdirTemp(h.dir, "idle-")
	if err != nil {
		return "", nil, err
	}
	found, err := filepath.Glob(strings.TrimPrefix(h.database, "sqlite:") + "*")
	if err != nil {
		return "", nil, err
	}
	for _, path := range found {
		raw, err := os.ReadFile(path)
		if err != nil {
			return "", nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), raw, 0o600); err != nil {
			return "", nil, err
		}
	}
	return "sqlite:" + filepath.Join(dir, "helmr.db"), func() error { return os.RemoveAll(dir) }, nil
}

// multiply makes copies of an idle Session and its Computer, which no Worker holds in the copies.
func multiply(ctx context.Context, kind db.Kind, database string, s *session, copies int) (err error) {
	d, err := openPlain(kind, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	tx, err := d.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	ids := make([]map[string]string, copies)
	for i := range ids {
		ids[i] = map[string]string{}
	}
	change := func(i int, column string, value any) any {
		switch column {
		case "worker_id", "recovery_save_id", "save_id", "completion_save_id", "idempotency_key":
			return nil
		case "residency":
			return "cold"
		}
		old, ok := value.(string)
		if !ok || !strings.HasSuffix("_"+column, "_id") || !id.Valid(old) || column == "environment_id" || column == "deployment_id" {
			return value
		}
		if ids[i][old] == "" {
			ids[i][old] = id.New()
		}
		return ids[i][old]
	}
	c := copier{kind: kind, tx: tx}
	for _, t := range []struct{ table, column, value string }{
		{"computers", "id", s.computer}, {"sessions", "id", s.id}, {"turns", "session_id", s.id}, {"session_events", "session_id", s.id},
	} {
		r, err := c.read(ctx, t.table, t.column, t.value)
		if err != nil {
			return err
		}
		if err := c.write(ctx, r, copies, change); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if kind == db.PostgreSQL { // as its own background work would within a minute
		_, err = d.ExecContext(ctx, "ANALYZE")
	}
	return err
}
