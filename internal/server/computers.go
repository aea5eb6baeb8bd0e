package server

import (
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
)

func (s *Server) listComputers(c *call) (api.ComputerPage, error) {
	if err := keyAlone(c.query, "key"); err != nil {
		return api.ComputerPage{}, err
	}
	cursor, limit, err := c.page()
	if err == nil {
		err = idCursor(cursor)
	}
	if err != nil {
		return api.ComputerPage{}, err
	}
	return s.deps.Computer.List(c.ctx(), c.env(), computer.Filter{Key: c.query.Get("key"), Cursor: cursor, Limit: limit})
}

func (s *Server) getComputer(c *call) (api.Computer, error) {
	return s.deps.Computer.Get(c.ctx(), c.env(), c.path("computer_id"))
}
