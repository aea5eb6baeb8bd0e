package access

import (
	"slices"
	"strings"
)

// Role is one of the built-in Roles.
type Role string

// The built-in Roles, from the one with most permissions to the one with least.
const (
	RoleOwner     Role = "owner"
	RoleAdmin     Role = "admin"
	RoleDeveloper Role = "developer"
	RoleOperator  Role = "operator"
	RoleViewer    Role = "viewer"
)

// roles stand in the order in which each holds everything of the next.
var roles = []Role{RoleOwner, RoleAdmin, RoleDeveloper, RoleOperator, RoleViewer}

// Permission is one line of the table of permissions.
type Permission struct {
	Name string
	// AgentScoped permissions can be narrowed to some Agents.
	AgentScoped bool
	// HumanOnly permissions are never given to API keys.
	HumanOnly bool
	// Least is the last built-in Role that holds it; every Role before it does too.
	Least Role
}

// Permissions is the one table of permissions. None implies another.
var Permissions = []Permission{
	{Name: "organizations.manage", HumanOnly: true, Least: RoleOwner},
	{Name: "members.manage", HumanOnly: true, Least: RoleAdmin},
	{Name: "roles.manage", HumanOnly: true, Least: RoleAdmin},
	{Name: "workers.manage", HumanOnly: true, Least: RoleAdmin},
	{Name: "projects.manage", HumanOnly: true, Least: RoleAdmin},
	{Name: "environments.manage", HumanOnly: true, Least: RoleAdmin},
	{Name: "api_keys.manage", HumanOnly: true, Least: RoleAdmin},
	{Name: "agents.delete", AgentScoped: true, HumanOnly: true, Least: RoleAdmin},
	{Name: "agent_connections.manage", AgentScoped: true, HumanOnly: true, Least: RoleAdmin},
	{Name: "secrets.write", Least: RoleAdmin},
	{Name: "deployments.write", Least: RoleDeveloper},
	{Name: "deployments.promote", Least: RoleDeveloper},
	{Name: "computers.create", Least: RoleDeveloper},
	{Name: "computers.delete", Least: RoleDeveloper},
	{Name: "commands.create", Least: RoleDeveloper},
	{Name: "sessions.create", AgentScoped: true, Least: RoleOperator},
	{Name: "sessions.send", AgentScoped: true, Least: RoleOperator},
	{Name: "sessions.interrupt", AgentScoped: true, Least: RoleOperator},
	{Name: "sessions.resume", AgentScoped: true, Least: RoleOperator},
	{Name: "sessions.close", AgentScoped: true, Least: RoleOperator},
	{Name: "sessions.cancel", AgentScoped: true, Least: RoleOperator},
	{Name: "questions.respond", AgentScoped: true, Least: RoleOperator},
	{Name: "secrets.read", Least: RoleOperator},
	{Name: "deployments.read", Least: RoleViewer},
	{Name: "computers.read", Least: RoleViewer},
	{Name: "commands.read", Least: RoleViewer},
	{Name: "agents.read", AgentScoped: true, Least: RoleViewer},
	{Name: "sessions.read", AgentScoped: true, Least: RoleViewer},
	{Name: "triggers.read", AgentScoped: true, Least: RoleViewer},
}

// Find gives the permission with a name.
func Find(name string) (Permission, bool) {
	i := slices.IndexFunc(Permissions, func(p Permission) bool { return p.Name == name })
	if i < 0 {
		return Permission{}, false
	}
	return Permissions[i], true
}

// HeldBy tells whether a built-in Role holds the permission.
func (p Permission) HeldBy(role Role) bool {
	at := slices.Index(roles, role)
	return at >= 0 && at <= slices.Index(roles, p.Least)
}

// Scope is the name of the permission as a scope of API keys, "" if keys never hold it.
func (p Permission) Scope() string {
	if p.HumanOnly {
		return ""
	}
	return strings.Replace(p.Name, ".", ":", 1)
}

// Scopes gives every scope that an API key can hold, in the order of the table.
func Scopes() []string {
	var out []string
	for _, p := range Permissions {
		if s := p.Scope(); s != "" {
			out = append(out, s)
		}
	}
	return out
}
