package client

import (
	"context"
	"net/http"

	"helmr.dev/helmr/client/api"
)

// The calls about Workers need a credential of a person, not an API key.

// ListWorkers gives one page of Workers by name.
func (c *Client) ListWorkers(ctx context.Context, cursor string, limit int) (api.WorkerPage, error) {
	var out api.WorkerPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/api/workers", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// DrainWorker empties a Worker; repeated, it sets another time.
func (c *Client) DrainWorker(ctx context.Context, workerID string, req api.WorkerDrainRequest) (api.Worker, error) {
	var out api.Worker
	err := c.do(ctx, request{method: http.MethodPost, path: "/api/workers/" + segment(workerID) + "/drain", body: req, keyed: true}, &out)
	return out, err
}

// ActivateWorker ends a drain.
func (c *Client) ActivateWorker(ctx context.Context, workerID string) (api.Worker, error) {
	var out api.Worker
	err := c.do(ctx, request{method: http.MethodPost, path: "/api/workers/" + segment(workerID) + "/activate", body: api.WorkerActivateRequest{}, keyed: true}, &out)
	return out, err
}

// ListWorkerTokens gives one page of enrollment tokens, latest first, without their text.
func (c *Client) ListWorkerTokens(ctx context.Context, cursor string, limit int) (api.WorkerTokenPage, error) {
	var out api.WorkerTokenPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/api/worker-tokens", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// CreateWorkerToken makes an enrollment token. Its text is answered this once.
func (c *Client) CreateWorkerToken(ctx context.Context, req api.WorkerTokenCreateRequest) (api.WorkerToken, error) {
	var out api.WorkerToken
	err := c.do(ctx, request{method: http.MethodPost, path: "/api/worker-tokens", body: req}, &out)
	return out, err
}

// RevokeWorkerToken ends an enrollment token.
func (c *Client) RevokeWorkerToken(ctx context.Context, tokenID string) error {
	return c.do(ctx, request{method: http.MethodDelete, path: "/api/worker-tokens/" + segment(tokenID), keyed: true}, nil)
}
