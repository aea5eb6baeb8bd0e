package fault

import "net/http"

// The codes of the REST contract.
const (
	Internal = Code("internal")

	BadRequest               = Code("bad_request")
	InvalidComputerReference = Code("invalid_computer_reference")
	InvalidCommandReference  = Code("invalid_command_reference")
	InvalidComputerCommand   = Code("invalid_computer_command")
	InvalidIdempotencyKey    = Code("invalid_idempotency_key")
	InvalidCursor            = Code("invalid_cursor")
	InvalidArguments         = Code("invalid_arguments")

	AuthenticationRequired = Code("authentication_required")
	PermissionRequired     = Code("permission_required")
	HumanRequired          = Code("human_required")
	RootSessionRequired    = Code("root_session_required")

	NotFound           = Code("not_found")
	DeploymentNotFound = Code("deployment_not_found")
	ComputerNotFound   = Code("computer_not_found")
	CommandNotFound    = Code("computer_command_not_found")
	MethodNotAllowed   = Code("method_not_allowed")

	AdmissionUnavailable        = Code("admission_unavailable")
	NoCurrentDeployment         = Code("no_current_deployment")
	AgentNotInCurrentDeployment = Code("agent_not_in_current_deployment")
	AgentNotInPinnedDeployment  = Code("agent_not_in_pinned_deployment")
	AgentDeleted                = Code("agent_deleted")
	SessionNotOpen              = Code("session_not_open")
	SessionTerminal             = Code("session_terminal")
	ComputerMismatch            = Code("computer_mismatch")
	MessageClosed               = Code("message_closed")
	HoldNotActive               = Code("hold_not_active")

	ComputerBusy                 = Code("computer_busy")
	ComputerDeleting             = Code("computer_deleting")
	ComputerKeyConflict          = Code("computer_key_conflict")
	ComputerRecoveryRequired     = Code("computer_recovery_required")
	ComputerPreparationExhausted = Code("computer_preparation_exhausted")
	ComputerStartFailed          = Code("computer_start_failed")

	SecretUnavailable = Code("secret_unavailable")
	SecretExists      = Code("secret_exists")

	QuestionAlreadyResponded = Code("question_already_responded")
	QuestionCancelled        = Code("question_cancelled")
	IdempotencyConflict      = Code("idempotency_conflict")
	LeaseLost                = Code("lease_lost")
	WorkerResourceCustody    = Code("worker_resource_custody")

	CursorExpired        = Code("cursor_expired")
	CommandResultExpired = Code("command_result_expired")
	IdempotencyExpired   = Code("idempotency_expired")

	ContentLimitExceeded   = Code("content_limit_exceeded")
	RequestTooLarge        = Code("request_too_large")
	StdinTooLarge          = Code("computer_stdin_too_large")
	CommandTooLarge        = Code("computer_command_request_too_large")
	ContentKindUnsupported = Code("content_kind_unsupported")
	AnswerInvalid          = Code("answer_invalid")

	// CommandOutputUnavailable ends the log stream of a Command whose output is not all there.
	CommandOutputUnavailable = Code("command_output_unavailable")

	RateLimited = Code("rate_limited")
	Unavailable = Code("unavailable")
	NotReady    = Code("not_ready")
)

// statuses is the one table from code to HTTP status.
var statuses = map[Code]int{
	Internal: http.StatusInternalServerError,

	BadRequest: 400, InvalidComputerReference: 400, InvalidCommandReference: 400, InvalidComputerCommand: 400,
	InvalidIdempotencyKey: 400, InvalidCursor: 400, InvalidArguments: 400,

	AuthenticationRequired: 401, PermissionRequired: 403, HumanRequired: 403, RootSessionRequired: 403,

	NotFound: 404, DeploymentNotFound: 404, ComputerNotFound: 404, CommandNotFound: 404, MethodNotAllowed: 405,

	AdmissionUnavailable: 409, NoCurrentDeployment: 409, AgentNotInCurrentDeployment: 409, AgentNotInPinnedDeployment: 409,
	AgentDeleted: 409, SessionNotOpen: 409, SessionTerminal: 409, ComputerMismatch: 409, MessageClosed: 409, HoldNotActive: 409,
	ComputerBusy: 409, ComputerDeleting: 409, ComputerKeyConflict: 409, ComputerRecoveryRequired: 409,
	ComputerPreparationExhausted: 409, ComputerStartFailed: 409, SecretUnavailable: 409, SecretExists: 409, QuestionAlreadyResponded: 409, QuestionCancelled: 409,
	IdempotencyConflict: 409, LeaseLost: 409, WorkerResourceCustody: 409,

	CommandOutputUnavailable: 409,
	CursorExpired:            410, CommandResultExpired: 410, IdempotencyExpired: 410,
	ContentLimitExceeded: 413, RequestTooLarge: 413, StdinTooLarge: 413, CommandTooLarge: 413, ContentKindUnsupported: 422, AnswerInvalid: 422,
	RateLimited: 429, Unavailable: 503, NotReady: 503,
}

// Status gives the HTTP status of a code; an unknown code is 500.
func Status(code Code) int {
	if s, ok := statuses[code]; ok {
		return s
	}
	return http.StatusInternalServerError
}
