package server

import (
	"helmr.dev/helmr/client/api"
)

var (
	scopeParam      = param{name: "scope", kind: "string", enum: []string{"current", "all"}, doc: "current (default): the Agents of the current Deployment; all: every identity."}
	deploymentParam = uuidParam("deployment_id", "Definitions of this Deployment instead of the current one.")
)

func (s *Server) listAgents(c *call) (api.AgentPage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.AgentPage{}, err
	}
	scope := c.query.Get("scope")
	if scope == "all" && c.query.Has("deployment_id") {
		return api.AgentPage{}, badParam("deployment_id", "deployment_id cannot stand beside scope=all, which lists the Agents of every Deployment.")
	}
	if scope == "" {
		scope = "current"
	}
	return s.deps.Catalog.Agents(c.ctx(), c.env(), scope, c.query.Get("deployment_id"), cursor, limit)
}

func (s *Server) getAgent(c *call) (api.AgentDetail, error) {
	return s.deps.Catalog.Agent(c.ctx(), c.env(), c.path("agent_id"), c.query.Get("deployment_id"))
}

func (s *Server) listTemplates(c *call) (api.TemplatePage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.TemplatePage{}, err
	}
	return s.deps.Catalog.Templates(c.ctx(), c.env(), c.query.Get("deployment_id"), cursor, limit)
}

func (s *Server) getTemplate(c *call) (api.TemplateInfo, error) {
	return s.deps.Catalog.Template(c.ctx(), c.env(), c.path("template_id"), c.query.Get("deployment_id"))
}
