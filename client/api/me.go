package api

// Me says who a credential belongs to and what it may do.
type Me struct {
	Actor          Actor    `json:"actor"`
	OrganizationID string   `json:"organization_id"`
	ProjectID      string   `json:"project_id"`
	EnvironmentID  string   `json:"environment_id"`
	Permissions    []string `json:"permissions"`
}
