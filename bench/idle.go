package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
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
// really became idle. Both numbers are measured in turn, so that other load on the machine meets both. It is the last
// group: it stops server and Worker.
func (b *bench) idle(ctx context.Context, h *helmr) (err error) {
	s, err := h.newWarm(ctx, "alone", "", "")
	if err != nil {
		return err
	}
	s.stop()
	if err := h.halt(); err != nil {
		return err
	}
	var sizes [2]*idleSize
	for i, n := range []int{100, 10_000} {
		sizes[i] = &idleSize{}
		database, remove, err := b.copyDatabase(ctx, h)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove()) }()
		if err := multiply(ctx, h.kind, database, s, n-1); err != nil {
			return err
		}
		own := *h
		own.database, sizes[i].h = database, &own
	}
	if err := b.idleSweeps(ctx, sizes); err != nil {
		return err
	}
	for _, size := range sizes {
		if err := size.serve(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, size.h.serverIs.stop()) }()
	}
	const warmUp = 20 // each of the server's connections to the database
	for i := range b.few(60, 25) + warmUp {
		for n := range sizes { // either goes first as often
			if err := sizes[(i+n)%len(sizes)].call(ctx, i >= warmUp); err != nil {
				return err
			}
		}
	}
	few, many := sizes[0], sizes[1]
	b.report.add("idle_10k_create", h.kind, median(many.creates), "ms", median(few.creates), atMostRatio(1.5))
	b.report.add("idle_10k_list", h.kind, median(many.lists), "ms", median(few.lists), atMostRatio(1.5))
	b.report.add("idle_10k_sweep", h.kind, median(many.sweeps), "ms", median(few.sweeps), atMostRatio(1.5))
	return nil
}

// idleSize is an Environment with a number of idle Sessions, and the ms that things took in it.
type idleSize struct {
	h                      *helmr
	creates, lists, sweeps []float64
}

// serve starts a server on the database, with an address of its own.
func (s *idleSize) serve(ctx context.Context) error {
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	s.h.url = "http://" + addr
	s.h.env = append(slices.Clone(s.h.env), "HELMR_DATABASE_URL="+s.h.database, "HELMR_ADDR="+addr)
	s.h.Client = client.New(s.h.url, s.h.key)
	return s.h.startServer(ctx)
}

// call creates a Session, lists, and ends the Session again.
func (s *idleSize) call(ctx context.Context, count bool) error {
	began := time.Now()
	r, err := s.h.CreateSession(ctx, api.SessionCreateRequest{Agent: "alone", Input: input("")})
	if err != nil {
		return err
	}
	created := time.Now()
	if _, err := s.h.ListSessions(ctx, client.SessionFilter{Statuses: []string{"open"}, Limit: 50}); err != nil {
		return err
	}
	if count {
		s.creates, s.lists = append(s.creates, ms(created.Sub(began))), append(s.lists, ms(time.Since(created)))
	}
	_, err = s.h.CancelSession(ctx, r.SessionID, api.ControlRequest{})
	return err
}

// idleSweeps measures rounds of all background work on Sessions and Computers, with nothing due.
func (b *bench) idleSweeps(ctx context.Context, sizes [2]*idleSize) (err error) {
	var pieces [2][]loop.Piece
	for i, size := range sizes {
		d, err := db.Open(ctx, size.h.database)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.Close()) }()
		pieces[i] = append(turn.NewService(d, time.Now).Loops(), computer.NewService(d, time.Now).Loops()...)
	}
	for n := range b.few(60, 30) + 5 {
		for i, size := range sizes {
			began := time.Now()
			for _, p := range pieces[i] {
				if _, err := p.Run(ctx); err != nil {
					return fmt.Errorf("%s: %w", p.Name, err)
				}
			}
			if n >= 5 {
				size.sweeps = append(size.sweeps, ms(time.Since(began)))
			}
		}
	}
	return nil
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

// multiply makes copies of an idle Session and its Computer. The copies' Computers have left the Worker, as they do when
// nothing needs them for a while.
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
		case "work_wanted":
			return 0
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
