package client

import (
	"context"
	"net/http"

	"helmr.dev/helmr/client/api"
)

// AgentFilter selects Agents. Scope is "current" (or empty) or "all".
type AgentFilter struct {
	Scope        string
	DeploymentID string
	Cursor       string
	Limit        int
}

// ListAgents gives one page of Agents.
func (c *Client) ListAgents(ctx context.Context, f AgentFilter) (api.AgentPage, error) {
	var out api.AgentPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/agents", query: values("scope", f.Scope, "deployment_id", f.DeploymentID,
		"cursor", f.Cursor, "limit", number(f.Limit))}, &out)
	return out, err
}

// GetAgent gives an Agent with its definition in a Deployment; an empty deploymentID means the current one.
func (c *Client) GetAgent(ctx context.Context, agentID, deploymentID string) (api.AgentDetail, error) {
	var out api.AgentDetail
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/agents/" + segment(agentID), query: values("deployment_id", deploymentID)}, &out)
	return out, err
}

// ListTemplates gives one page of the Templates of a Deployment; an empty deploymentID means the current one.
func (c *Client) ListTemplates(ctx context.Context, deploymentID, cursor string, limit int) (api.TemplatePage, error) {
	var out api.TemplatePage
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/templates", query: values("deployment_id", deploymentID, "cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// GetTemplate gives a Template of a Deployment; an empty deploymentID means the current one.
func (c *Client) GetTemplate(ctx context.Context, templateID, deploymentID string) (api.TemplateInfo, error) {
	var out api.TemplateInfo
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/templates/" + segment(templateID), query: values("deployment_id", deploymentID)}, &out)
	return out, err
}

// ComputerFilter selects Computers: Key alone, or a page, with Secret of those that were handed a value of it.
type ComputerFilter struct {
	Key    string
	Secret string
	Cursor string
	Limit  int
}

// ListComputers gives one page of Computers, latest first.
func (c *Client) ListComputers(ctx context.Context, f ComputerFilter) (api.ComputerPage, error) {
	var out api.ComputerPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/computers", query: values("key", f.Key, "secret", f.Secret, "cursor", f.Cursor, "limit", number(f.Limit))}, &out)
	return out, err
}

// GetComputer gives a Computer.
func (c *Client) GetComputer(ctx context.Context, computerID string) (api.Computer, error) {
	var out api.Computer
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/computers/" + segment(computerID)}, &out)
	return out, err
}

// Me tells what the credential is and may do.
func (c *Client) Me(ctx context.Context) (api.Me, error) {
	var out api.Me
	err := c.do(ctx, request{method: http.MethodGet, path: "/api/me"}, &out)
	return out, err
}
