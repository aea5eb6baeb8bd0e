package api

// CommandCreateRequest runs a program on a Computer. Env are variables beyond those of the Computer's image. Stdin is
// written to the program and then closed. Timeout bounds its execution ("5m" when empty).
type CommandCreateRequest struct {
	Command        []string          `json:"command" checked:"room"`
	Cwd            string            `json:"cwd,omitempty" minLength:"1" checked:"room"`
	Env            map[string]string `json:"env,omitempty" checked:"room"`
	StdinBase64    string            `json:"stdin_base64,omitempty" checked:"room"`
	Timeout        string            `json:"timeout,omitempty" minLength:"1" checked:"room"`
	IdempotencyKey string            `json:"idempotency_key,omitempty" minLength:"1"`
}

// CommandReceipt answers CommandCreateRequest.
type CommandReceipt struct {
	CommandID string `json:"command_id"`
}

// Command is a program run on a Computer from outside any Session. Outcome stands exactly when the status is terminal.
type Command struct {
	ID                string          `json:"id"`
	ComputerID        string          `json:"computer_id"`
	Status            string          `json:"status" enum:"pending,starting,running,stopping,exited,failed,cancelled,timed_out,lost"`
	ProcessReconciled bool            `json:"process_reconciled"`
	CreatedAt         Time            `json:"created_at"`
	Outcome           *CommandOutcome `json:"outcome,omitempty"`
}

// Terminal tells whether the outcome is known.
func (c Command) Terminal() bool { return c.Outcome != nil }

// CommandOutcome says how a Command ended. ExitCode stands with kind "exited" only, Failure with "system_failed" only.
type CommandOutcome struct {
	CommandID  string          `json:"command_id"`
	TerminalAt Time            `json:"terminal_at"`
	Kind       string          `json:"kind" enum:"exited,cancelled,timed_out,system_failed"`
	ExitCode   *int32          `json:"exit_code,omitempty"`
	Failure    *CommandFailure `json:"failure,omitempty"`
}

// CommandFailure says why helmr could not bring a Command to an end of its own. Message is for people.
type CommandFailure struct {
	Reason  string `json:"reason" enum:"placement_failed,guest_failure,scope_termination_failed"`
	Message string `json:"message,omitempty"`
}

// CommandCancelReceipt answers a cancellation: the same one every time. It is no proof that a process has stopped.
type CommandCancelReceipt struct {
	ID       string `json:"id"`
	TargetID string `json:"target_id"`
	Status   string `json:"status" enum:"accepted"`
}

// CommandLogRecord is a piece of a Command's output (kind "output"), or (kind "gap") the chunks of a stream that are lost,
// as decimal strings. Pieces are bytes, neither lines nor characters; order holds within one stream.
type CommandLogRecord struct {
	Cursor          string `json:"cursor"`
	Kind            string `json:"kind" enum:"output,gap"`
	Stream          string `json:"stream" enum:"stdout,stderr"`
	Content         []byte `json:"content_base64,omitempty"`
	ObservedAt      *Time  `json:"observed_at,omitempty"`
	FromSequence    string `json:"from_sequence,omitempty"`
	ThroughSequence string `json:"through_sequence,omitempty"`
}

// CommandLogPage is one page of a Command's output. NextCursor is the cursor of its last record; an empty page has none,
// which does not mean that no more comes while OutputState is "open".
type CommandLogPage struct {
	OutputState string             `json:"output_state" enum:"open,closed,unavailable"`
	Logs        []CommandLogRecord `json:"logs"`
	NextCursor  string             `json:"next_cursor,omitempty"`
}
