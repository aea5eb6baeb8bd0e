package server

import (
	"context"
	"net/http"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/secret"
)

// limitSecret bounds a body that holds a value.
const limitSecret = 1 << 20

// Secrets keeps values and answers everything of them but the value.
type Secrets interface {
	Create(ctx context.Context, environmentID string, by api.Actor, req api.SecretCreateRequest) (api.Secret, error)
	Rotate(ctx context.Context, environmentID string, by api.Actor, name string, req api.SecretRotateRequest) (api.Secret, error)
	Revoke(ctx context.Context, environmentID string, by api.Actor, name string, req api.SecretRevokeRequest) (api.Secret, error)
	Get(ctx context.Context, environmentID, name string) (api.Secret, error)
	List(ctx context.Context, environmentID string, filter secret.Filter) (api.SecretPage, error)
}

// secretParam selects by the name of a Secret.
func secretParam(name, doc string) param {
	return param{name: name, kind: "string", doc: doc, check: func(v string) error { return checkDeclared(name, v) }}
}

func (s *Server) secretRoutes() []route {
	const tag = "Secrets"
	return []route{
		{method: http.MethodGet, path: "/secrets", permission: "secrets.read", operation: "listSecrets", tag: tag,
			summary: "List Secrets by name, without values", handler: answers(s.listSecrets),
			query: paged(secretParam("name", "Only the Secret with this name; refuses limit and cursor."))},
		{method: http.MethodGet, path: "/secrets/{secret_id}", permission: "secrets.read", operation: "getSecret", tag: tag,
			summary: "Get a Secret, without its value", handler: answers(s.getSecret)},
		{method: http.MethodPost, path: "/secrets", permission: "secrets.write", operation: "createSecret", tag: tag,
			summary: "Create a Secret", limit: limitSecret, key: keyOptional, handler: takes(s.createSecret)},
		{method: http.MethodPost, path: "/secrets/{secret_id}/rotate", permission: "secrets.write", operation: "rotateSecret", tag: tag,
			summary: "Give a Secret another value", limit: limitSecret, key: keyRequired, handler: takes(s.rotateSecret)},
		{method: http.MethodPost, path: "/secrets/{secret_id}/revoke", permission: "secrets.write", operation: "revokeSecret", tag: tag,
			summary: "End a Secret for good", limit: limitManagement, key: keyRequired, handler: takes(s.revokeSecret)},
	}
}

func (s *Server) listSecrets(c *call) (api.SecretPage, error) {
	if err := keyAlone(c.query, "name"); err != nil {
		return api.SecretPage{}, err
	}
	cursor, limit, err := c.page()
	if err == nil && cursor != "" && !id.Declared(cursor) {
		err = fault.New(fault.InvalidCursor, "cursor must be the next_cursor of the page before.").With("parameter", "cursor")
	}
	if err != nil {
		return api.SecretPage{}, err
	}
	return s.deps.Secret.List(c.ctx(), c.env(), secret.Filter{Name: c.query.Get("name"), Cursor: cursor, Limit: limit})
}

func (s *Server) getSecret(c *call) (api.Secret, error) {
	return s.deps.Secret.Get(c.ctx(), c.env(), c.path("secret_id"))
}

func (s *Server) createSecret(c *call, in api.SecretCreateRequest) (api.Secret, error) {
	return s.deps.Secret.Create(c.ctx(), c.env(), c.who.Actor, in)
}

func (s *Server) rotateSecret(c *call, in api.SecretRotateRequest) (api.Secret, error) {
	return s.deps.Secret.Rotate(c.ctx(), c.env(), c.who.Actor, c.path("secret_id"), in)
}

func (s *Server) revokeSecret(c *call, in api.SecretRevokeRequest) (api.Secret, error) {
	return s.deps.Secret.Revoke(c.ctx(), c.env(), c.who.Actor, c.path("secret_id"), in)
}
