package api

// Computer is a durable Linux machine.
type Computer struct {
	ID             string         `json:"id"`
	Key            string         `json:"key,omitempty"`
	Template       string         `json:"template"`
	DeploymentID   string         `json:"deployment_id"`
	Status         string         `json:"status" enum:"available,deleting,deleted"`
	Residency      string         `json:"residency" enum:"cold,starting,running,hibernating,hibernated,resuming,unavailable"`
	ExecutionWait  *string        `json:"execution_wait" enum:"scheduling,environment_limit,saving"`
	Error          *ComputerError `json:"error,omitempty"`
	LastActivityAt Time           `json:"last_activity_at"`
	CreatedAt      Time           `json:"created_at"`
	UpdatedAt      Time           `json:"updated_at"`
}

// ComputerError says why a Computer cannot run.
type ComputerError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ComputerPage is one page of Computers, latest first.
type ComputerPage struct {
	Computers  []Computer `json:"computers"`
	NextCursor string     `json:"next_cursor,omitempty"`
}
