package api

// Me says who a credential belongs to and what it may do. A person has no Project and Environment of its own.
type Me struct {
	Actor          Actor    `json:"actor"`
	OrganizationID string   `json:"organization_id"`
	ProjectID      string   `json:"project_id,omitempty"`
	EnvironmentID  string   `json:"environment_id,omitempty"`
	Permissions    []string `json:"permissions"`
}
