package api

// Computer is a durable Linux machine.
type Computer struct {
	ID            string         `json:"id"`
	Key           string         `json:"key,omitempty"`
	Template      string         `json:"template"`
	DeploymentID  string         `json:"deployment_id"`
	Status        string         `json:"status" enum:"available,deleting,deleted"`
	Residency     string         `json:"residency" enum:"cold,starting,running,hibernating,hibernated,resuming,unavailable"`
	ExecutionWait *string        `json:"execution_wait" enum:"scheduling,environment_limit,saving"`
	Error         *ComputerError `json:"error,omitempty"`
	// SecretExposure stands with the secret filter of a list: how the Computer came to hold the value.
	SecretExposure string `json:"secret_exposure,omitempty" enum:"received,image"`
	// Secrets are its bindings; present on get only.
	Secrets        []SecretBinding `json:"secrets,omitzero"`
	LastActivityAt Time            `json:"last_activity_at"`
	CreatedAt      Time            `json:"created_at"`
	UpdatedAt      Time            `json:"updated_at"`
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

// ComputerCreateRequest makes a Computer from a Template of the current Deployment.
type ComputerCreateRequest struct {
	Template string `json:"template"`
	Key      string `json:"key,omitempty" minLength:"1"`
	// Secrets are bound beside those of the Template.
	Secrets        []SecretBinding `json:"secrets,omitempty"`
	IdempotencyKey string          `json:"idempotency_key,omitempty" minLength:"1"`
}

// ComputerReceipt answers the creation and the deletion of a Computer.
type ComputerReceipt struct {
	ComputerID string `json:"computer_id"`
}

// NetworkAttempt is something that a Computer tried on its network, once or often in a row. Name and address are what it
// asked for, at most: no content.
type NetworkAttempt struct {
	Kind    string `json:"kind" enum:"dns,tls,http,https,tcp,udp,icmp,ip"`
	Name    string `json:"name,omitempty"`
	Address string `json:"address,omitempty"`
	Port    int    `json:"port,omitempty"`
	Outcome string `json:"outcome" enum:"allowed,refused"`
	// Reason says why it was refused.
	Reason  string `json:"reason,omitempty"`
	Count   int64  `json:"count"`
	FirstAt Time   `json:"first_at"`
	LastAt  Time   `json:"last_at"`
}

// ComputerNetwork is what a Computer tried on its network lately, latest first.
type ComputerNetwork struct {
	Attempts []NetworkAttempt `json:"attempts"`
}

// ComputerUsage is a Session or Command that occupies a Computer now. UsageState is neither its history nor its status.
type ComputerUsage struct {
	ID         string `json:"id"`
	UsageState string `json:"usage_state" enum:"admitted,running,waiting,parked,draining,unreconciled"`
	CreatedAt  Time   `json:"created_at"`
}

// ComputerSessionPage is one page of the Sessions that occupy a Computer, oldest first.
type ComputerSessionPage struct {
	Sessions   []ComputerUsage `json:"sessions"`
	NextCursor string          `json:"next_cursor,omitempty"`
}

// ComputerCommandPage is one page of the Commands that occupy a Computer, oldest first.
type ComputerCommandPage struct {
	Commands   []ComputerUsage `json:"commands"`
	NextCursor string          `json:"next_cursor,omitempty"`
}
