package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// readyWithin bounds the answer of /readyz.
const readyWithin = 2 * time.Second

var errPanicked = errors.New("a handler panicked")

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.(*answer).send(http.StatusOK, "application/json", []byte(`{"status":"ok"}`))
}

// readyz tells whether this server can do its work now: the database answers, takes writes and has the current schema.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyWithin-200*time.Millisecond)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- s.ready(ctx) }() // a database that hangs must not hang the answer
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		err = fmt.Errorf("the database did not answer: %w", ctx.Err())
	}
	if s.stopping.Err() != nil {
		err = errors.New("the server is stopping")
	}
	if err != nil {
		s.fail(w.(*answer), r, fault.New(fault.NotReady, "This server is not ready.").Because(err))
		return
	}
	w.(*answer).send(http.StatusOK, "application/json", []byte(`{"status":"ready"}`))
}

// errUndo takes the probe's write back.
var errUndo = errors.New("undo")

func (s *Server) ready(ctx context.Context) error {
	pending, err := s.deps.DB.Pending(ctx)
	if err != nil {
		return err
	}
	if len(pending) > 0 {
		return fmt.Errorf("the schema lacks migrations: %s", strings.Join(pending, ", "))
	}
	err = s.deps.DB.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(sqlProbe); err != nil {
			return err
		}
		return errUndo
	})
	if !errors.Is(err, errUndo) {
		return fmt.Errorf("the database takes no writes: %w", err)
	}
	return nil
}
