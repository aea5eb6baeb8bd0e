package server

import (
	"net/http"

	"helmr.dev/helmr/client/api"
)

// conversationRoutes are the routes that reach into running Turns.
func (s *Server) conversationRoutes() []route {
	const turn = "/sessions/{session_id}/turns/{turn_id}"
	return []route{
		{method: http.MethodPost, path: "/sessions/{session_id}/send", permission: "sessions.send", operation: "sendToSession", tag: "Sessions",
			summary: "Give live data to a Session: a Message to the running Turn if that takes any, otherwise a new Turn",
			limit:   limitGeneral, key: keyOptional, handler: takes(s.send)},
		{method: http.MethodPost, path: turn + "/messages", permission: "sessions.send", operation: "sendMessage", tag: "Turns",
			summary: "Give a Message to a running Turn", limit: limitGeneral, key: keyOptional, handler: takes(s.sendMessage)},
		{method: http.MethodGet, path: turn + "/questions", permission: "sessions.read", operation: "listQuestions", tag: "Questions",
			summary: "List Questions of a Turn, oldest first", query: paged(), handler: answers(s.listQuestions)},
		{method: http.MethodGet, path: turn + "/questions/{question_id}", permission: "sessions.read", operation: "getQuestion", tag: "Questions",
			summary: "Get a Question", handler: answers(s.getQuestion)},
		{method: http.MethodPost, path: turn + "/questions/{question_id}/respond", permission: "questions.respond", operation: "respondToQuestion", tag: "Questions",
			summary: "Answer a Question; the first valid response counts", limit: limitGeneral, handler: takes(s.respond)},
	}
}

func (s *Server) send(c *call, in api.SendRequest) (api.SendReceipt, error) {
	return s.deps.Converse.Send(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), in)
}

func (s *Server) sendMessage(c *call, in api.MessageRequest) (api.MessageReceipt, error) {
	return s.deps.Converse.Message(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), c.path("turn_id"), in)
}

func (s *Server) listQuestions(c *call) (api.QuestionPage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.QuestionPage{}, err
	}
	return s.deps.Converse.ListQuestions(c.ctx(), c.env(), c.path("session_id"), c.path("turn_id"), cursor, limit)
}

func (s *Server) getQuestion(c *call) (api.Question, error) {
	return s.deps.Converse.GetQuestion(c.ctx(), c.env(), c.path("session_id"), c.path("turn_id"), c.path("question_id"))
}

func (s *Server) respond(c *call, in api.RespondRequest) (api.Question, error) {
	return s.deps.Converse.Respond(c.ctx(), c.env(), c.who.Actor, c.path("session_id"), c.path("turn_id"), c.path("question_id"), in)
}
