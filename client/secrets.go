package client

import (
	"context"
	"net/http"

	"helmr.dev/helmr/client/api"
)

// SecretFilter selects Secrets. Name refuses Cursor and Limit.
type SecretFilter struct {
	Name   string
	Cursor string
	Limit  int
}

// ListSecrets gives one page of Secrets by name, without values.
func (c *Client) ListSecrets(ctx context.Context, f SecretFilter) (api.SecretPage, error) {
	var out api.SecretPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/secrets", query: values("name", f.Name, "cursor", f.Cursor, "limit", number(f.Limit))}, &out)
	return out, err
}

// GetSecret gives a Secret, without its value.
func (c *Client) GetSecret(ctx context.Context, name string) (api.Secret, error) {
	var out api.Secret
	err := c.do(ctx, request{method: http.MethodGet, path: secretPath(name)}, &out)
	return out, err
}

// CreateSecret makes a Secret.
func (c *Client) CreateSecret(ctx context.Context, req api.SecretCreateRequest) (api.Secret, error) {
	var out api.Secret
	err := c.do(ctx, request{method: http.MethodPost, path: "/v1/secrets", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// RotateSecret gives a Secret another value. The request needs an idempotency key.
func (c *Client) RotateSecret(ctx context.Context, name string, req api.SecretRotateRequest) (api.Secret, error) {
	var out api.Secret
	err := c.do(ctx, request{method: http.MethodPost, path: secretPath(name) + "/rotate", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// RevokeSecret ends a Secret for good. The request needs an idempotency key.
func (c *Client) RevokeSecret(ctx context.Context, name string, req api.SecretRevokeRequest) (api.Secret, error) {
	var out api.Secret
	err := c.do(ctx, request{method: http.MethodPost, path: secretPath(name) + "/revoke", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

func secretPath(name string) string { return "/v1/secrets/" + segment(name) }
