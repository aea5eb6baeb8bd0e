package server

import (
	"net/http"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
)

func (s *Server) preparationRoutes() []route {
	const tag = "Templates"
	return []route{
		{method: http.MethodGet, path: "/templates/{template_id}/preparation", permission: "deployments.read", operation: "getTemplatePreparation", tag: tag,
			summary: "Get the last preparation of the disk that Computers of a Template start with", query: []param{deploymentParam}, handler: answers(s.templatePreparation)},
		{method: http.MethodGet, path: "/preparations/{preparation_id}", permission: "deployments.read", operation: "getPreparation", tag: tag,
			summary: "Get a preparation", handler: answers(s.getPreparation)},
		{method: http.MethodGet, path: "/preparations/{preparation_id}/network", permission: "deployments.read", operation: "getPreparationNetwork", tag: tag,
			summary: "What a preparation tried on its network, allowed and refused, latest first", handler: answers(s.getPreparationNetwork)},
		{method: http.MethodGet, path: "/preparations/{preparation_id}/logs", permission: "deployments.read", operation: "listPreparationLogs", tag: tag,
			summary: "Read what the attempts of a preparation wrote", query: paged(), handler: answers(s.listPreparationLogs)},
		{method: http.MethodGet, path: "/preparations/{preparation_id}/logs/stream", permission: "deployments.read", operation: "streamPreparationLogs", tag: tag,
			summary: "Follow what the attempts of a preparation write, as the output of a Command", query: []param{recordParam}, stream: eventStream,
			handler: handler{serve: s.streamPreparationLogs}},
	}
}

func (s *Server) templatePreparation(c *call) (api.Preparation, error) {
	return s.deps.Prepare.Last(c.ctx(), c.env(), c.path("template_id"), c.query.Get("deployment_id"))
}

func (s *Server) getPreparation(c *call) (api.Preparation, error) {
	return s.deps.Prepare.Get(c.ctx(), c.env(), c.path("preparation_id"))
}

func (s *Server) getPreparationNetwork(c *call) (api.ComputerNetwork, error) {
	return s.deps.Prepare.Network(c.ctx(), c.env(), c.path("preparation_id"))
}

func (s *Server) listPreparationLogs(c *call) (api.CommandLogPage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.CommandLogPage{}, err
	}
	page, _, err := s.deps.Prepare.Logs(c.ctx(), c.env(), c.path("preparation_id"), cursor, limit)
	return page, err
}

func (s *Server) streamPreparationLogs(c *call) error {
	preparationID := c.path("preparation_id")
	return s.streamLogs(c, computer.PreparationsOf(c.env()), func(after string) (api.CommandLogPage, bool, error) {
		return s.deps.Prepare.Logs(c.ctx(), c.env(), preparationID, after, maxPage)
	}, nil)
}
