package api

import "encoding/json"

// Session is one continuing conversation of one Agent on one Computer.
type Session struct {
	ID                 string       `json:"id"`
	AgentID            string       `json:"agent_id"`
	DeploymentID       string       `json:"deployment_id"`
	ComputerID         string       `json:"computer_id"`
	RootSessionID      string       `json:"root_session_id"`
	ParentSessionID    *string      `json:"parent_session_id"`
	RequesterSessionID *string      `json:"requester_session_id"`
	Key                string       `json:"key,omitempty"`
	InitialTurn        *InitialTurn `json:"initial_turn"`
	Status             string       `json:"status" enum:"open,closing,closed,cancelled"`
	CreatedAt          Time         `json:"created_at"`
	Holds              []Hold       `json:"holds"`
}

// InitialTurn is the Turn a Session was created with.
type InitialTurn struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

// Hold blocks the dispatch of queued Turns. SessionID is the Session that owns it.
type Hold struct {
	ID        string `json:"id"`
	SessionID string `json:"session_id"`
	Scope     string `json:"scope" enum:"local,subtree"`
	Reason    string `json:"reason" enum:"interrupt,process_failures,cancellation_failed,computer_lost"`
	CreatedAt Time   `json:"created_at"`
}

// SessionPage is one page of Sessions, latest first.
type SessionPage struct {
	Sessions   []Session `json:"sessions"`
	NextCursor string    `json:"next_cursor,omitempty"`
}

// SessionCreateRequest creates a Session with its first Turn, or queues the input on the Session that holds Key.
type SessionCreateRequest struct {
	Agent          string          `json:"agent"`
	Input          json.RawMessage `json:"input"`
	Key            string          `json:"key,omitempty" minLength:"1"`
	ComputerID     string          `json:"computer_id,omitempty" minLength:"1"`
	IdempotencyKey string          `json:"idempotency_key,omitempty" minLength:"1"`
}

// SessionCreateReceipt answers SessionCreateRequest. Created is false if an open Session held the key.
type SessionCreateReceipt struct {
	SessionID string `json:"session_id"`
	TurnID    string `json:"turn_id"`
	Sequence  int64  `json:"sequence"`
	Created   bool   `json:"created"`
}

// EnqueueRequest admits one more Turn.
type EnqueueRequest struct {
	Input          json.RawMessage `json:"input"`
	IdempotencyKey string          `json:"idempotency_key,omitempty" minLength:"1"`
}

// EnqueueReceipt answers EnqueueRequest.
type EnqueueReceipt struct {
	SessionID string `json:"session_id"`
	TurnID    string `json:"turn_id"`
	Sequence  int64  `json:"sequence"`
}

// ControlRequest is the body of interrupt, close and cancel.
type ControlRequest struct {
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1"`
}

// ResumeRequest releases one hold that the Session owns.
type ResumeRequest struct {
	HoldID         string `json:"hold_id"`
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1"`
}

// ControlReceipt answers a control. "accepted" does not prove that a process has stopped.
type ControlReceipt struct {
	ID        string `json:"id"`
	SessionID string `json:"session_id"`
	HoldID    string `json:"hold_id,omitempty"`
	Status    string `json:"status" enum:"accepted"`
}

// Turn is one admitted input and its handling.
type Turn struct {
	ID               string          `json:"id"`
	SessionID        string          `json:"session_id"`
	Sequence         int64           `json:"sequence"`
	Status           string          `json:"status" enum:"queued,running,finalizing,completed,failed,interrupted,cancelled"`
	Source           json.RawMessage `json:"source"`
	Input            json.RawMessage `json:"input,omitempty"`
	Result           json.RawMessage `json:"result,omitempty"`
	Response         json.RawMessage `json:"response,omitempty"`
	Error            *TurnError      `json:"error,omitempty"`
	CreatedAt        Time            `json:"created_at"`
	StartedAt        *Time           `json:"started_at,omitempty"`
	TerminalAt       *Time           `json:"terminal_at,omitempty"`
	CompletionSaveID string          `json:"completion_save_id,omitempty"`
	PayloadExpiredAt *Time           `json:"payload_expired_at,omitempty"`
}

// Terminal tells whether the Turn will never change again.
func (t Turn) Terminal() bool {
	switch t.Status {
	case "completed", "failed", "interrupted", "cancelled":
		return true
	}
	return false
}

// TurnError says why a Turn did not complete.
type TurnError struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// TurnPage is one page of Turns, oldest first; the cursor is a sequence.
type TurnPage struct {
	Turns      []Turn `json:"turns"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// Event is one record of a Session's event log.
type Event struct {
	SessionID string          `json:"session_id"`
	TurnID    *string         `json:"turn_id"`
	Sequence  int64           `json:"sequence"`
	Kind      string          `json:"kind"`
	Data      json.RawMessage `json:"data"`
	CreatedAt Time            `json:"created_at"`
}

// EventPage is one page of events. HasMore false means caught up, not finished.
type EventPage struct {
	Records       []Event `json:"records"`
	NextAfter     int64   `json:"next_after"`
	HasMore       bool    `json:"has_more"`
	RetainedAfter int64   `json:"retained_after"`
}

// SendRequest gives live data to a Session: to the running Turn if that takes Messages, otherwise as a new Turn.
type SendRequest struct {
	Data           json.RawMessage `json:"data"`
	IdempotencyKey string          `json:"idempotency_key,omitempty" minLength:"1"`
}

// SendReceipt answers SendRequest: which of the two it became. MessageID stands with kind "messaged" only.
type SendReceipt struct {
	ID        string `json:"id"`
	Kind      string `json:"kind" enum:"enqueued,messaged"`
	TurnID    string `json:"turn_id"`
	MessageID string `json:"message_id,omitempty"`
}

// MessageRequest gives data to one running Turn.
type MessageRequest struct {
	Data           json.RawMessage `json:"data"`
	IdempotencyKey string          `json:"idempotency_key,omitempty" minLength:"1"`
}

// MessageReceipt answers MessageRequest. "accepted" does not say that the handler has seen it; the events do.
type MessageReceipt struct {
	ID        string `json:"id"`
	TurnID    string `json:"turn_id"`
	MessageID string `json:"message_id"`
	Status    string `json:"status" enum:"accepted"`
}

// Question is a typed prompt that a running Turn put to a person.
type Question struct {
	ID                  string          `json:"id"`
	SessionID           string          `json:"session_id"`
	TurnID              string          `json:"turn_id"`
	Status              string          `json:"status" enum:"pending,responded,cancelled"`
	Prompt              json.RawMessage `json:"prompt,omitempty"`
	AnswerControl       json.RawMessage `json:"answer_control,omitempty"`
	Answer              json.RawMessage `json:"answer,omitempty"`
	PayloadExpired      bool            `json:"payload_expired,omitempty"`
	CreatedAt           Time            `json:"created_at"`
	RespondedAt         *Time           `json:"responded_at,omitempty"`
	CancelledAt         *Time           `json:"cancelled_at,omitempty"`
	RespondedByUserID   string          `json:"responded_by_user_id,omitempty"`
	RespondedByAPIKeyID string          `json:"responded_by_api_key_id,omitempty"`
}

// QuestionPage is one page of Questions, oldest first.
type QuestionPage struct {
	Questions  []Question `json:"questions"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// RespondRequest answers a Question. The same ResponseID with the same answer is one response.
type RespondRequest struct {
	Answer     json.RawMessage `json:"answer"`
	ResponseID string          `json:"response_id"`
}
