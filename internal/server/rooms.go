package server

import (
	"context"
	"io"
	"log/slog"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/session"
)

// Deps are the rooms that a server speaks for. All of them are required but Logger. Each interface lists what the
// routes call; the rooms' services implement them.
type Deps struct {
	DB         *db.DB
	Access     Access
	Session    Sessions
	Turn       Turns
	Converse   Conversations
	Computer   Computers
	Command    Commands
	Secret     Secrets
	Worker     Workers
	Deployment Deployments
	Catalog    Catalog
	Bundle     Bundles
	Prepare    Preparations
	Logger     *slog.Logger
}

// Access tells who holds a credential.
type Access interface {
	Authenticate(ctx context.Context, bearer string) (access.Principal, error)
	AuthenticatePerson(ctx context.Context, bearer string) (access.Principal, error)
}

// Sessions reads Sessions and their events.
type Sessions interface {
	Get(ctx context.Context, environmentID, sessionID string) (api.Session, error)
	List(ctx context.Context, environmentID string, filter session.Filter) (api.SessionPage, error)
	Events(ctx context.Context, environmentID, sessionID string, after int64, limit int) (page api.EventPage, ended bool, err error)
}

// Turns admits work, controls Sessions and reads Turns.
type Turns interface {
	CreateSession(ctx context.Context, environmentID string, by api.Actor, req api.SessionCreateRequest, may func(permission string) error) (api.SessionCreateReceipt, error)
	Enqueue(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.EnqueueRequest) (api.EnqueueReceipt, error)
	Interrupt(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.ControlRequest) (api.ControlReceipt, error)
	Resume(ctx context.Context, environmentID string, by api.Actor, sessionID, holdID, idempotencyKey string) (api.ControlReceipt, error)
	Close(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.ControlRequest) (api.ControlReceipt, error)
	Cancel(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.ControlRequest) (api.ControlReceipt, error)
	Get(ctx context.Context, environmentID, sessionID, turnID string) (api.Turn, error)
	List(ctx context.Context, environmentID, sessionID, cursor string, limit int) (api.TurnPage, error)
}

// Conversations talks to running Turns: Messages in, Questions out, responses in.
type Conversations interface {
	Send(ctx context.Context, environmentID string, by api.Actor, sessionID string, req api.SendRequest) (api.SendReceipt, error)
	Message(ctx context.Context, environmentID string, by api.Actor, sessionID, turnID string, req api.MessageRequest) (api.MessageReceipt, error)
	ListQuestions(ctx context.Context, environmentID, sessionID, turnID, cursor string, limit int) (api.QuestionPage, error)
	GetQuestion(ctx context.Context, environmentID, sessionID, turnID, questionID string) (api.Question, error)
	Respond(ctx context.Context, environmentID string, by api.Actor, sessionID, turnID, questionID string, req api.RespondRequest) (api.Question, error)
}

// Computers makes and reads Computers.
type Computers interface {
	Create(ctx context.Context, environmentID string, by api.Actor, req api.ComputerCreateRequest) (api.ComputerReceipt, error)
	Get(ctx context.Context, environmentID, computerID string) (api.Computer, error)
	List(ctx context.Context, environmentID string, filter computer.Filter) (api.ComputerPage, error)
	Network(ctx context.Context, environmentID, computerID string) (api.ComputerNetwork, error)
}

// Commands runs Commands on Computers, reads them and what they wrote, and knows who uses a Computer.
type Commands interface {
	Create(ctx context.Context, environmentID string, by api.Actor, computerID string, req api.CommandCreateRequest) (api.CommandReceipt, error)
	Get(ctx context.Context, environmentID, commandID string) (api.Command, error)
	Cancel(ctx context.Context, environmentID string, by api.Actor, commandID string, req api.ControlRequest) (api.CommandCancelReceipt, error)
	Logs(ctx context.Context, environmentID, commandID, cursor string, limit int) (page api.CommandLogPage, done bool, err error)
	SessionUsage(ctx context.Context, environmentID, computerID, cursor string, limit int) (api.ComputerSessionPage, error)
	CommandUsage(ctx context.Context, environmentID, computerID, cursor string, limit int) (api.ComputerCommandPage, error)
	DeleteComputer(ctx context.Context, environmentID string, by api.Actor, computerID, idempotencyKey string) (api.ComputerReceipt, error)
}

// Deployments reads and promotes Deployments.
type Deployments interface {
	Get(ctx context.Context, environmentID, deploymentID string) (api.Deployment, error)
	Current(ctx context.Context, environmentID string) (api.Deployment, error)
	List(ctx context.Context, environmentID, cursor string, limit int) (api.DeploymentPage, error)
	Events(ctx context.Context, environmentID, deploymentID, cursor string, limit int) (api.DeploymentEventPage, error)
	Promote(ctx context.Context, environmentID string, by api.Actor, deploymentID string, req api.PromoteRequest) (api.Promotion, error)
}

// Catalog reads Agent and Template definitions. An empty deploymentID means the current Deployment.
type Catalog interface {
	Agents(ctx context.Context, environmentID, scope, deploymentID, cursor string, limit int) (api.AgentPage, error)
	Agent(ctx context.Context, environmentID, agentID, deploymentID string) (api.AgentDetail, error)
	Templates(ctx context.Context, environmentID, deploymentID, cursor string, limit int) (api.TemplatePage, error)
	Template(ctx context.Context, environmentID, templateID, deploymentID string) (api.TemplateInfo, error)
}

// Bundles takes uploaded bundles. PutObject keeps an object only if its size and SHA-256 are as announced.
type Bundles interface {
	UploadPlan(ctx context.Context, environmentID string, manifest []byte) (api.UploadPlan, error)
	PutObject(ctx context.Context, environmentID, digest string, size int64, r io.Reader) error
	Finalize(ctx context.Context, environmentID string, by api.Actor, req api.FinalizeRequest, verified func(digest string)) (api.Deployment, error)
}

// Preparations reads how the disks of Templates are prepared. An empty deploymentID means the current Deployment.
type Preparations interface {
	Last(ctx context.Context, environmentID, templateID, deploymentID string) (api.Preparation, error)
	Get(ctx context.Context, environmentID, preparationID string) (api.Preparation, error)
	Network(ctx context.Context, environmentID, preparationID string) (api.ComputerNetwork, error)
	Logs(ctx context.Context, environmentID, preparationID, cursor string, limit int) (page api.CommandLogPage, done bool, err error)
}
