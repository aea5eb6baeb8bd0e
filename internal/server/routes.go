package server

import (
	"net/http"
	"strings"

	"helmr.dev/helmr/internal/fault"
)

// Body limits in bytes.
const (
	limitGeneral    = 128 << 20
	limitManifest   = 16 << 20
	limitManagement = 64 << 10
	limitObject     = 4 << 30
	limitCommand    = 2 << 20
)

// Whether a route takes an idempotency key.
type keyRule int

const (
	keyNone keyRule = iota
	keyOptional
	keyRequired
)

// route is one line of the API. path is relative to its prefix: "/v1", which fixes the Environment, or for people "/api".
type route struct {
	method     string
	path       string
	permission string // what the caller must hold; the handler asks for more where it depends on the body
	also       string // a permission that suffices in its place to come to the handler, which then decides
	operation  string
	summary    string
	tag        string
	query      []param
	limit      int64
	key        keyRule
	status     int        // of a success with a body; 0: 200
	tooLarge   fault.Code // of a body above the limit; "": request_too_large
	stream     string     // media type of a streamed answer, described in words
	accepts    string     // media type of a body that is not a JSON request type
	people     bool       // for people only, about the installation: under "/api", never with an API key
	handler    handler
}

// prefix is where the path begins.
func (rt *route) prefix() string {
	if rt.people {
		return "/api"
	}
	return "/v1"
}

const eventStream = "text/event-stream"

// routes is the API: every route that exists.
func (s *Server) routes() []route {
	var all []route
	for _, group := range [][]route{s.agentRoutes(), s.preparationRoutes(), s.sessionRoutes(), s.conversationRoutes(), s.computerRoutes(), s.commandRoutes(), s.secretRoutes(), s.deploymentRoutes(), s.workerRoutes()} {
		all = append(all, group...)
	}
	return all
}

func (s *Server) sessionRoutes() []route {
	const tag = "Sessions"
	return []route{
		{method: http.MethodPost, path: "/sessions", permission: "sessions.create", also: "sessions.send", operation: "createSession", tag: tag,
			summary: "Create a Session with its first Turn, or queue the input on the Session that holds the key",
			limit:   limitGeneral, key: keyOptional, handler: takes(s.createSession)},
		{method: http.MethodGet, path: "/sessions", permission: "sessions.read", operation: "listSessions", tag: tag,
			summary: "List Sessions, latest first", query: sessionFilters, handler: answers(s.listSessions)},
		{method: http.MethodGet, path: "/sessions/{session_id}", permission: "sessions.read", operation: "getSession", tag: tag,
			summary: "Get a Session", handler: answers(s.getSession)},
		{method: http.MethodPost, path: "/sessions/{session_id}/enqueue", permission: "sessions.send", operation: "enqueueTurn", tag: tag,
			summary: "Queue one more Turn", limit: limitGeneral, key: keyOptional, handler: takes(s.enqueue)},
		{method: http.MethodPost, path: "/sessions/{session_id}/interrupt", permission: "sessions.interrupt", operation: "interruptSession", tag: tag,
			summary: "Abort the running Turns of a Session and its descendants and hold their queues", limit: limitManagement, key: keyOptional,
			handler: takes(s.interruptSession)},
		{method: http.MethodPost, path: "/sessions/{session_id}/resume", permission: "sessions.resume", operation: "resumeSession", tag: tag,
			summary: "Release one hold of a Session", limit: limitManagement, key: keyOptional, handler: takes(s.resumeSession)},
		{method: http.MethodPost, path: "/sessions/{session_id}/close", permission: "sessions.close", operation: "closeSession", tag: tag,
			summary: "Close a Session once its accepted work is done", limit: limitManagement, key: keyOptional, handler: takes(s.closeSession)},
		{method: http.MethodPost, path: "/sessions/{session_id}/cancel", permission: "sessions.cancel", operation: "cancelSession", tag: tag,
			summary: "Cancel a Session and its work", limit: limitManagement, key: keyOptional, handler: takes(s.cancelSession)},
		{method: http.MethodGet, path: "/sessions/{session_id}/events", permission: "sessions.read", operation: "listSessionEvents", tag: tag,
			summary: "Read events of a Session", query: []param{afterParam, batchParam}, handler: answers(s.listEvents)},
		{method: http.MethodGet, path: "/sessions/{session_id}/events/stream", permission: "sessions.read", operation: "streamSessionEvents", tag: tag,
			summary: "Follow the events of a Session: id is the sequence, event the kind, data the record; event: end after the last one",
			query:   []param{afterParam}, stream: eventStream, handler: handler{serve: s.streamEvents}},
		{method: http.MethodGet, path: "/sessions/{session_id}/turns", permission: "sessions.read", operation: "listTurns", tag: "Turns",
			summary: "List Turns, oldest first", query: paged(), handler: answers(s.listTurns)},
		{method: http.MethodGet, path: "/sessions/{session_id}/turns/{turn_id}", permission: "sessions.read", operation: "getTurn", tag: "Turns",
			summary: "Get a Turn, at once or when it is terminal or the wait is over", query: []param{waitParam}, handler: answers(s.getTurn)},
	}
}

func (s *Server) computerRoutes() []route {
	const tag = "Computers"
	return []route{
		{method: http.MethodGet, path: "/computers", permission: "computers.read", operation: "listComputers", tag: tag,
			summary: "List Computers, latest first", handler: answers(s.listComputers),
			query: paged(param{name: "key", kind: "string", doc: "Only the Computer with this key; refuses limit, cursor and secret."},
				secretParam("secret", "Only Computers, not deleted, that were handed a value of this Secret in readable form."))},
		{method: http.MethodGet, path: "/computers/{computer_id}", permission: "computers.read", operation: "getComputer", tag: tag,
			summary: "Get a Computer", handler: answers(s.getComputer)},
		{method: http.MethodPost, path: "/computers", permission: "computers.create", operation: "createComputer", tag: tag,
			summary: "Create a Computer from a Template of the current Deployment", limit: limitManagement, key: keyOptional, status: http.StatusCreated,
			handler: takes(s.createComputer)},
		{method: http.MethodDelete, path: "/computers/{computer_id}", permission: "computers.delete", operation: "deleteComputer", tag: tag,
			summary: "Delete a Computer that nobody uses", limit: limitManagement, key: keyOptional, status: http.StatusAccepted, handler: takes(s.deleteComputer)},
		{method: http.MethodGet, path: "/computers/{computer_id}/network", permission: "computers.read", operation: "getComputerNetwork", tag: tag,
			summary: "What a Computer tried on its network lately, allowed and refused, latest first", handler: answers(s.getComputerNetwork)},
		{method: http.MethodGet, path: "/computers/{computer_id}/sessions", permission: "computers.read", operation: "listComputerSessions", tag: tag,
			summary: "List the Sessions that occupy a Computer now", query: paged(), handler: answers(s.listComputerSessions)},
		{method: http.MethodGet, path: "/computers/{computer_id}/commands", permission: "computers.read", operation: "listComputerCommands", tag: tag,
			summary: "List the Commands that occupy a Computer now", query: paged(), handler: answers(s.listComputerCommands)},
	}
}

func (s *Server) agentRoutes() []route {
	return []route{
		{method: http.MethodGet, path: "/agents", permission: "agents.read", operation: "listAgents", tag: "Agents",
			summary: "List Agents of the current or a named Deployment, or every identity of the Environment",
			query:   paged(scopeParam, deploymentParam), handler: answers(s.listAgents)},
		{method: http.MethodGet, path: "/agents/{agent_id}", permission: "agents.read", operation: "getAgent", tag: "Agents",
			summary: "Get an Agent with its definition", query: []param{deploymentParam}, handler: answers(s.getAgent)},
		{method: http.MethodGet, path: "/templates", permission: "deployments.read", operation: "listTemplates", tag: "Templates",
			summary: "List Templates of the current or a named Deployment", query: paged(deploymentParam), handler: answers(s.listTemplates)},
		{method: http.MethodGet, path: "/templates/{template_id}", permission: "deployments.read", operation: "getTemplate", tag: "Templates",
			summary: "Get a Template", query: []param{deploymentParam}, handler: answers(s.getTemplate)},
	}
}

func (s *Server) deploymentRoutes() []route {
	const tag = "Deployments"
	return []route{
		{method: http.MethodGet, path: "/deployments", permission: "deployments.read", operation: "listDeployments", tag: tag,
			summary: "List Deployments, latest first", query: paged(), handler: answers(s.listDeployments)},
		{method: http.MethodGet, path: "/deployments/current", permission: "deployments.read", operation: "getCurrentDeployment", tag: tag,
			summary: "Get the current Deployment", handler: answers(s.currentDeployment)},
		{method: http.MethodGet, path: "/deployments/{deployment_id}", permission: "deployments.read", operation: "getDeployment", tag: tag,
			summary: "Get a Deployment with its Agents and Templates", handler: answers(s.getDeployment)},
		{method: http.MethodGet, path: "/deployments/{deployment_id}/events", permission: "deployments.read", operation: "listDeploymentEvents", tag: tag,
			summary: "List what happened to a Deployment, oldest first", query: paged(), handler: answers(s.listDeploymentEvents)},
		{method: http.MethodPost, path: "/deployments/{deployment_id}/promote", permission: "deployments.promote", operation: "promoteDeployment", tag: tag,
			summary: "Make a Deployment current", limit: limitManagement, key: keyOptional, handler: takes(s.promote)},
		{method: http.MethodPost, path: "/deployment-bundles/upload-plan", permission: "deployments.write", operation: "planBundleUpload", tag: tag,
			summary: "Send a bundle's manifest; get the uploads of the objects that are missing", limit: limitManifest, accepts: manifestType,
			handler: handler{out: uploadPlanType, serve: s.planUpload}},
		{method: http.MethodPut, path: "/deployment-bundles/objects/{digest}", permission: "deployments.write", operation: "uploadBundleObject", tag: tag,
			summary: "Upload one object of a bundle; the upload plan gives this URL", query: []param{sizeParam}, limit: limitObject,
			accepts: "application/octet-stream", handler: handler{serve: s.uploadObject}},
		{method: http.MethodPost, path: "/deployment-bundles/finalize", permission: "deployments.write", operation: "finalizeBundle", tag: tag,
			summary: "Verify an uploaded bundle and register it: events started, ping, object_verified, then complete or error",
			limit:   limitManagement, key: keyRequired, stream: eventStream, handler: handler{in: finalizeType, serve: s.finalize}},
	}
}

// scopeText gives the API key scope of a permission.
func scopeText(permission string) string { return strings.Replace(permission, ".", ":", 1) }

// RouteInfo describes one route of the table, for tests and tools that walk it.
type RouteInfo struct {
	Method, Path, Permission, Also, Operation string
	// Prefix stands before Path; People tells that only people may call it.
	Prefix string
	People bool
}

// Routes gives the route table.
func (s *Server) Routes() []RouteInfo {
	out := make([]RouteInfo, 0, len(s.table))
	for _, rt := range s.table {
		out = append(out, RouteInfo{Method: rt.method, Path: rt.path, Permission: rt.permission, Also: rt.also, Operation: rt.operation, Prefix: rt.prefix(), People: rt.people})
	}
	return out
}
