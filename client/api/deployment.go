package api

import "encoding/json"

// Deployment is an immutable set of Agent and Template definitions. Agents and Templates are present on get.
type Deployment struct {
	ID           string               `json:"id"`
	Version      int64                `json:"version"`
	BundleDigest string               `json:"bundle_digest"`
	CreatedAt    Time                 `json:"created_at"`
	Current      bool                 `json:"current"`
	PromotedAt   *Time                `json:"promoted_at,omitempty"`
	Agents       []DeploymentAgent    `json:"agents,omitempty"`
	Templates    []DeploymentTemplate `json:"templates,omitempty"`
}

// DeploymentAgent is an Agent as one Deployment defines it. Periods are milliseconds; null means never.
type DeploymentAgent struct {
	ID                 string          `json:"id"`
	Template           string          `json:"template"`
	MaxTurnDuration    *int64          `json:"max_turn_duration,omitempty"`
	CloseAfterIdle     *int64          `json:"close_after_idle"`
	HibernateAfterIdle *int64          `json:"hibernate_after_idle"`
	Triggers           json.RawMessage `json:"triggers,omitempty"`
}

// DeploymentTemplate is a Template as one Deployment defines it.
type DeploymentTemplate struct {
	ID        string    `json:"id"`
	Resources Resources `json:"resources"`
}

// Resources bound a Computer.
type Resources struct {
	MilliCPU  int64  `json:"milli_cpu"`
	MemoryMiB int64  `json:"memory_mib"`
	DiskMiB   *int64 `json:"disk_mib,omitempty"`
}

// DeploymentPage is one page of Deployments, latest first.
type DeploymentPage struct {
	Deployments []Deployment `json:"deployments"`
	NextCursor  string       `json:"next_cursor,omitempty"`
}

// DeploymentEvent is one step in the life of a Deployment.
type DeploymentEvent struct {
	Sequence  int64  `json:"sequence"`
	Kind      string `json:"kind" enum:"deployment.finalized,deployment.promoted,deployment.superseded"`
	Actor     Actor  `json:"actor"`
	Reason    string `json:"reason,omitempty"`
	CreatedAt Time   `json:"created_at"`
}

// DeploymentEventPage lists the events of one Deployment, oldest first.
type DeploymentEventPage struct {
	Events     []DeploymentEvent `json:"events"`
	NextCursor string            `json:"next_cursor,omitempty"`
}

// UploadPlan names the objects of a bundle that the server lacks.
type UploadPlan struct {
	BundleDigest string   `json:"bundle_digest"`
	Uploads      []Upload `json:"uploads"`
}

// Upload says how to send one object: Method to URL (absolute, or a path of the server) with Headers.
type Upload struct {
	Digest  string            `json:"digest"`
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	// SizeBytes is for the server alone: it makes the URL out of it.
	SizeBytes int64 `json:"-"`
}

// FinalizeRequest registers an uploaded bundle as a Deployment.
type FinalizeRequest struct {
	BundleDigest   string `json:"bundle_digest"`
	IdempotencyKey string `json:"idempotency_key"`
}

// PromoteRequest makes a Deployment current.
type PromoteRequest struct {
	Reason         string `json:"reason,omitempty"`
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1"`
}

// Promotion answers PromoteRequest.
type Promotion struct {
	DeploymentID   string     `json:"deployment_id"`
	PromotedAt     Time       `json:"promoted_at"`
	RestoredAgents []AgentRef `json:"restored_agents"`
}

// AgentRef names an Agent.
type AgentRef struct {
	ID string `json:"id"`
}

// Agent is a stable identity in its Environment.
type Agent struct {
	ID                  string `json:"id"`
	InCurrentDeployment bool   `json:"in_current_deployment"`
	CreatedAt           Time   `json:"created_at"`
	DeletedAt           *Time  `json:"deleted_at,omitempty"`
}

// AgentDetail is an Agent with its definition in one Deployment: null when that one lacks the Agent, or when none is
// current.
type AgentDetail struct {
	Agent
	Definition *AgentDefinition `json:"definition"`
}

// AgentDefinition is what one Deployment says of an Agent.
type AgentDefinition struct {
	DeploymentID       string          `json:"deployment_id"`
	Template           string          `json:"template"`
	MaxTurnDuration    *int64          `json:"max_turn_duration,omitempty"`
	CloseAfterIdle     *int64          `json:"close_after_idle"`
	HibernateAfterIdle *int64          `json:"hibernate_after_idle"`
	Triggers           json.RawMessage `json:"triggers"`
}

// AgentPage is one page of Agents.
type AgentPage struct {
	Agents     []Agent `json:"agents"`
	NextCursor string  `json:"next_cursor,omitempty"`
}

// TemplateInfo is the pinned configuration of a Template. DeploymentID stands on the page in lists.
type TemplateInfo struct {
	Template       string          `json:"template"`
	DeploymentID   string          `json:"deployment_id,omitempty"`
	Resources      Resources       `json:"resources"`
	Network        json.RawMessage `json:"network"`
	PrepareNetwork json.RawMessage `json:"prepare_network"`
	PrepareSecrets json.RawMessage `json:"prepare_secrets"`
}

// TemplatePage is one page of the Templates of one Deployment.
type TemplatePage struct {
	DeploymentID string         `json:"deployment_id"`
	Templates    []TemplateInfo `json:"templates"`
	NextCursor   string         `json:"next_cursor,omitempty"`
}

// Preparation is the making of the disk that Computers of a Template start with. Status is queued, running, succeeded or
// failed; Reason is why it was begun: needed, refresh or rotation.
type Preparation struct {
	ID           string            `json:"id"`
	Template     string            `json:"template"`
	DeploymentID string            `json:"deployment_id"`
	Status       string            `json:"status"`
	Reason       string            `json:"reason"`
	CreatedAt    Time              `json:"created_at"`
	StartedAt    *Time             `json:"started_at,omitempty"`
	TerminalAt   *Time             `json:"terminal_at,omitempty"`
	Error        *PreparationError `json:"error,omitempty"`
}

// PreparationError says why a preparation failed.
type PreparationError struct {
	Message string `json:"message"`
}
