package access

import "helmr.dev/helmr/client/api"

// Principal is who makes a request, and where. It is valid for that request only.
type Principal struct {
	Actor          api.Actor
	OrganizationID string
	ProjectID      string
	EnvironmentID  string
	// Scopes holds the scopes ("sessions:create") that the caller's credential has.
	Scopes map[string]bool
	// Owner is set for a person who is an owner: it holds every permission, everywhere.
	Owner bool
}

// Can tells whether the caller holds a permission, by its name in the table ("sessions.create"), for all Agents of the
// Environment. A name that is not in the table is held by nobody.
func (p Principal) Can(permission string) bool {
	known, ok := Find(permission)
	return ok && (p.Owner || (!known.HumanOnly && p.Scopes[known.Scope()]))
}
