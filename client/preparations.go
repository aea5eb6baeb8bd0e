package client

import (
	"context"
	"iter"
	"net/http"

	"helmr.dev/helmr/client/api"
)

// LastPreparation gives the last preparation of a Template of a Deployment; an empty deploymentID means the current one. Error:
// not_found if the Template has no prepare callback or was never prepared.
func (c *Client) LastPreparation(ctx context.Context, templateID, deploymentID string) (api.Preparation, error) {
	var out api.Preparation
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/templates/" + segment(templateID) + "/preparation", query: values("deployment_id", deploymentID)}, &out)
	return out, err
}

// GetPreparation gives a preparation.
func (c *Client) GetPreparation(ctx context.Context, preparationID string) (api.Preparation, error) {
	var out api.Preparation
	err := c.do(ctx, request{method: http.MethodGet, path: preparationPath(preparationID)}, &out)
	return out, err
}

// GetPreparationNetwork gives what a preparation tried on its network, latest first.
func (c *Client) GetPreparationNetwork(ctx context.Context, preparationID string) (api.ComputerNetwork, error) {
	var out api.ComputerNetwork
	err := c.do(ctx, request{method: http.MethodGet, path: preparationPath(preparationID) + "/network"}, &out)
	return out, err
}

// ListPreparationLogs gives what the attempts of a preparation wrote after a cursor ("": from the start); limit 0 means the
// server's default.
func (c *Client) ListPreparationLogs(ctx context.Context, preparationID, cursor string, limit int) (api.CommandLogPage, error) {
	var out api.CommandLogPage
	err := c.do(ctx, request{method: http.MethodGet, path: preparationPath(preparationID) + "/logs", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// StreamPreparationLogs follows what the attempts of a preparation write after a cursor, as StreamCommandLogs does.
func (c *Client) StreamPreparationLogs(ctx context.Context, preparationID, after string) iter.Seq2[api.CommandLogRecord, error] {
	return c.streamLogs(ctx, preparationPath(preparationID)+"/logs/stream", after)
}

func preparationPath(preparationID string) string {
	return "/v1/preparations/" + segment(preparationID)
}
