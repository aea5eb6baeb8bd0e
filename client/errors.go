package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"helmr.dev/helmr/client/api"
)

// Error is a refusal or failure that the server reported. Code is stable, Message is for people. RequestID finds the
// request in the server's log.
type Error struct {
	Status    int
	Code      string
	Message   string
	RequestID string
	Details   map[string]any
}

// Error gives the sentence with its code.
func (e *Error) Error() string {
	if e.RequestID == "" {
		return fmt.Sprintf("%s (%s)", e.Message, e.Code)
	}
	return fmt.Sprintf("%s (%s, request %s)", e.Message, e.Code, e.RequestID)
}

// readError makes an Error of an answer that is no success.
func readError(res *http.Response) *Error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var p api.Problem
	if json.Unmarshal(text, &p) == nil && p.Code != "" {
		return fromProblem(p, res.StatusCode)
	}
	// Not a helmr server, or something between: a proxy, another program on the port.
	return &Error{Status: res.StatusCode, Code: "unexpected_answer", RequestID: res.Header.Get("X-Request-Id"),
		Message: fmt.Sprintf("The server answered %s without a problem document; is this the address of a helmr server?", res.Status)}
}

func fromProblem(p api.Problem, status int) *Error {
	return &Error{Status: status, Code: p.Code, Message: p.Detail, RequestID: p.RequestID, Details: p.Details}
}

// passing tells whether an error may be gone at the next try: anything but a refusal of the request itself.
func (e *Error) passing() bool { return e.Status >= 500 || e.Status == http.StatusTooManyRequests }
