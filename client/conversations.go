package client

import (
	"context"
	"net/http"

	"helmr.dev/helmr/client/api"
)

// Send gives live data to a Session: to the running Turn if that takes Messages, otherwise as a new Turn. The receipt
// says which.
func (c *Client) Send(ctx context.Context, sessionID string, req api.SendRequest) (api.SendReceipt, error) {
	var out api.SendReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: sessionPath(sessionID) + "/send", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// SendMessage gives a Message to a running Turn.
func (c *Client) SendMessage(ctx context.Context, sessionID, turnID string, req api.MessageRequest) (api.MessageReceipt, error) {
	var out api.MessageReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: turnPath(sessionID, turnID) + "/messages", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// ListQuestions gives one page of the Questions of a Turn, oldest first.
func (c *Client) ListQuestions(ctx context.Context, sessionID, turnID, cursor string, limit int) (api.QuestionPage, error) {
	var out api.QuestionPage
	err := c.do(ctx, request{method: http.MethodGet, path: turnPath(sessionID, turnID) + "/questions", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// GetQuestion gives a Question as it is.
func (c *Client) GetQuestion(ctx context.Context, sessionID, turnID, questionID string) (api.Question, error) {
	var out api.Question
	err := c.do(ctx, request{method: http.MethodGet, path: turnPath(sessionID, turnID) + "/questions/" + segment(questionID)}, &out)
	return out, err
}

// Respond answers a Question. Its ResponseID makes it repeatable: the same response again has no second effect.
func (c *Client) Respond(ctx context.Context, sessionID, turnID, questionID string, req api.RespondRequest) (api.Question, error) {
	var out api.Question
	err := c.do(ctx, request{method: http.MethodPost, path: turnPath(sessionID, turnID) + "/questions/" + segment(questionID) + "/respond", body: req, keyed: true}, &out)
	return out, err
}

func turnPath(sessionID, turnID string) string {
	return sessionPath(sessionID) + "/turns/" + segment(turnID)
}
