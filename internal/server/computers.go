package server

import (
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
)

func (s *Server) listComputers(c *call) (api.ComputerPage, error) {
	if err := keyAlone(c.query, "key"); err != nil {
		return api.ComputerPage{}, err
	}
	if c.query.Get("key") != "" && c.query.Get("secret") != "" {
		return api.ComputerPage{}, badParam("secret", "key names one Computer and takes no secret with it.")
	}
	cursor, limit, err := c.page()
	if err == nil {
		err = idCursor(cursor)
	}
	if err != nil {
		return api.ComputerPage{}, err
	}
	return s.deps.Computer.List(c.ctx(), c.env(), computer.Filter{Key: c.query.Get("key"), Secret: c.query.Get("secret"), Cursor: cursor, Limit: limit})
}

func (s *Server) getComputer(c *call) (api.Computer, error) {
	return s.deps.Computer.Get(c.ctx(), c.env(), c.path("computer_id"))
}

func (s *Server) createComputer(c *call, in api.ComputerCreateRequest) (api.ComputerReceipt, error) {
	if err := checkBody(checkDeclared, "template", in.Template); err != nil {
		return api.ComputerReceipt{}, err
	}
	return s.deps.Computer.Create(c.ctx(), c.env(), c.who.Actor, in)
}

func (s *Server) deleteComputer(c *call, in api.ControlRequest) (api.ComputerReceipt, error) {
	return s.deps.Command.DeleteComputer(c.ctx(), c.env(), c.who.Actor, c.path("computer_id"), in.IdempotencyKey)
}

func (s *Server) getComputerNetwork(c *call) (api.ComputerNetwork, error) {
	return s.deps.Computer.Network(c.ctx(), c.env(), c.path("computer_id"))
}

func (s *Server) listComputerSessions(c *call) (api.ComputerSessionPage, error) {
	cursor, limit, err := c.page()
	if err == nil {
		err = idCursor(cursor)
	}
	if err != nil {
		return api.ComputerSessionPage{}, err
	}
	return s.deps.Command.SessionUsage(c.ctx(), c.env(), c.path("computer_id"), cursor, limit)
}

func (s *Server) listComputerCommands(c *call) (api.ComputerCommandPage, error) {
	cursor, limit, err := c.page()
	if err == nil {
		err = idCursor(cursor)
	}
	if err != nil {
		return api.ComputerCommandPage{}, err
	}
	return s.deps.Command.CommandUsage(c.ctx(), c.env(), c.path("computer_id"), cursor, limit)
}
