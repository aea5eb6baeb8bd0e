package server

import (
	"context"
	"net/http"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
)

// Workers shows and drains the Workers of the installation and keeps the tokens that they enroll with.
type Workers interface {
	ListWorkers(ctx context.Context, cursor string, limit int) (api.WorkerPage, error)
	Drain(ctx context.Context, workerID string, timeout time.Duration) (api.Worker, error)
	Activate(ctx context.Context, workerID string) (api.Worker, error)
	CreateWorkerToken(ctx context.Context, by string, req api.WorkerTokenCreateRequest) (api.WorkerToken, error)
	ListWorkerTokens(ctx context.Context, cursor string, limit int) (api.WorkerTokenPage, error)
	RevokeWorkerToken(ctx context.Context, tokenID string) error
}

func (s *Server) workerRoutes() []route {
	const tag, permission = "Workers", "workers.manage"
	return []route{
		{method: http.MethodGet, path: "/workers", people: true, permission: permission, operation: "listWorkers", tag: tag,
			summary: "List Workers by name", query: paged(), handler: answers(s.listWorkers)},
		{method: http.MethodPost, path: "/workers/{worker_id}/drain", people: true, permission: permission, operation: "drainWorker", tag: tag,
			summary: "Keep new Computers off a Worker and empty it; running work is waited for, for timeout_ms if given", limit: limitManagement,
			handler: takes(s.drainWorker)},
		{method: http.MethodPost, path: "/workers/{worker_id}/activate", people: true, permission: permission, operation: "activateWorker", tag: tag,
			summary: "End a drain", limit: limitManagement, handler: takes(s.activateWorker)},
		{method: http.MethodGet, path: "/worker-tokens", people: true, permission: permission, operation: "listWorkerTokens", tag: tag,
			summary: "List enrollment tokens, latest first, without their text", query: paged(), handler: answers(s.listWorkerTokens)},
		{method: http.MethodPost, path: "/worker-tokens", people: true, permission: permission, operation: "createWorkerToken", tag: tag,
			summary: "Make an enrollment token; its text is answered this once", limit: limitManagement, status: http.StatusCreated, handler: takes(s.createWorkerToken)},
		{method: http.MethodDelete, path: "/worker-tokens/{token_id}", people: true, permission: permission, operation: "revokeWorkerToken", tag: tag,
			summary: "Revoke an enrollment token; Workers that used it go on", handler: handler{serve: s.revokeWorkerToken}},
	}
}

func (s *Server) listWorkers(c *call) (api.WorkerPage, error) {
	cursor, limit, err := c.page()
	if err == nil && len(cursor) > 128 {
		err = fault.New(fault.InvalidCursor, "cursor must be the next_cursor of the page before.").With("parameter", "cursor")
	}
	if err != nil {
		return api.WorkerPage{}, err
	}
	return s.deps.Worker.ListWorkers(c.ctx(), cursor, limit)
}

func (s *Server) drainWorker(c *call, in api.WorkerDrainRequest) (api.Worker, error) {
	if in.TimeoutMs < 0 || in.TimeoutMs > int64(1<<40) {
		return api.Worker{}, badField("timeout_ms", "timeout_ms must be a number of milliseconds, at most a week.")
	}
	return s.deps.Worker.Drain(c.ctx(), c.path("worker_id"), time.Duration(in.TimeoutMs)*time.Millisecond)
}

func (s *Server) activateWorker(c *call, _ api.WorkerActivateRequest) (api.Worker, error) {
	return s.deps.Worker.Activate(c.ctx(), c.path("worker_id"))
}

func (s *Server) listWorkerTokens(c *call) (api.WorkerTokenPage, error) {
	cursor, limit, err := c.page()
	if err == nil {
		err = idCursor(cursor)
	}
	if err != nil {
		return api.WorkerTokenPage{}, err
	}
	return s.deps.Worker.ListWorkerTokens(c.ctx(), cursor, limit)
}

func (s *Server) createWorkerToken(c *call, in api.WorkerTokenCreateRequest) (api.WorkerToken, error) {
	return s.deps.Worker.CreateWorkerToken(c.ctx(), c.who.Actor.ID, in)
}

func (s *Server) revokeWorkerToken(c *call) error {
	if err := s.deps.Worker.RevokeWorkerToken(c.ctx(), c.path("token_id")); err != nil {
		return err
	}
	c.w.send(http.StatusNoContent, "", nil)
	return nil
}
