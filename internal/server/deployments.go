package server

import (
	"helmr.dev/helmr/client/api"
)

func (s *Server) listDeployments(c *call) (api.DeploymentPage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.DeploymentPage{}, err
	}
	return s.deps.Deployment.List(c.ctx(), c.env(), cursor, limit)
}

func (s *Server) currentDeployment(c *call) (api.Deployment, error) {
	return s.deps.Deployment.Current(c.ctx(), c.env())
}

func (s *Server) getDeployment(c *call) (api.Deployment, error) {
	return s.deps.Deployment.Get(c.ctx(), c.env(), c.path("deployment_id"))
}

func (s *Server) listDeploymentEvents(c *call) (api.DeploymentEventPage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.DeploymentEventPage{}, err
	}
	return s.deps.Deployment.Events(c.ctx(), c.env(), c.path("deployment_id"), cursor, limit)
}

func (s *Server) promote(c *call, in api.PromoteRequest) (api.Promotion, error) {
	return s.deps.Deployment.Promote(c.ctx(), c.env(), c.who.Actor, c.path("deployment_id"), in)
}
