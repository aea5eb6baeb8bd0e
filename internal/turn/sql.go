package turn

import "helmr.dev/helmr/internal/session"

const (
	rowColumns = `t.id, t.session_id, t.computer_id, t.sequence, t.status, t.process_epoch, t.processing_open, t.abort_reason, t.abort_at, t.output_bytes,
		t.messages, t.questions, t.deadline_at, t.save_id, t.started_at`

	sqlInsert = `INSERT INTO turns (id, environment_id, session_id, computer_id, sequence, status, source, input, processing_open, output_bytes, created_at)
		VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, 0, 0, ?)`
	sqlUpdateColumns = `UPDATE turns SET status = ?, process_epoch = ?, processing_open = ?, abort_reason = ?, abort_at = ?, output_bytes = ?, messages = ?,
		questions = ?, deadline_at = ?, save_id = ?, started_at = ?, terminal_at = ?`
	sqlUpdate        = sqlUpdateColumns + ` WHERE id = ?`
	sqlUpdateOutcome = sqlUpdateColumns + `, result = COALESCE(?, result), response = CASE WHEN ? = 1 THEN NULL ELSE COALESCE(?, response) END,
		error_code = ?, error_message = ?, completion_save_id = ? WHERE id = ?`
	sqlHead       = `SELECT ` + rowColumns + ` FROM turns t WHERE t.session_id = ? AND t.status IN ('queued', 'running', 'finalizing') ORDER BY t.sequence LIMIT 1`
	sqlQueued     = `SELECT ` + rowColumns + ` FROM turns t WHERE t.session_id = ? AND t.status = 'queued' ORDER BY t.sequence`
	sqlAnyQueued  = `SELECT COUNT(*) FROM (SELECT 1 FROM turns WHERE session_id = ? AND status = 'queued' LIMIT 1) q`
	sqlPayload    = `SELECT source, input, created_at FROM turns WHERE id = ?`
	sqlOutcome    = `SELECT result, response FROM turns WHERE id = ?`
	sqlOfSave     = `SELECT ` + rowColumns + ` FROM turns t WHERE t.save_id = ? AND t.status = 'finalizing' ORDER BY t.session_id, t.sequence`
	sqlFinalizing = `SELECT COUNT(*) FROM (SELECT 1 FROM turns WHERE session_id = ? AND status = 'finalizing' LIMIT 1) f`

	// One row per Session of a Computer that is not released: the Session, its live process, its first unfinished Turn,
	// and whether it owns a hold.
	sqlUnitsFrom = `SELECT ` + session.Columns + `,
		p.epoch, p.status, p.recovery, p.stop_reason, p.failure_reason, p.stopping_at, p.last_operation,
		t.id, t.sequence, t.status, t.process_epoch, t.processing_open, t.abort_reason, t.abort_at, t.output_bytes, t.messages, t.questions, t.deadline_at, t.save_id, t.started_at,
		(SELECT COUNT(*) FROM holds h WHERE h.session_id = s.id AND h.released_at IS NULL)
		FROM sessions s
		LEFT JOIN session_processes p ON p.session_id = s.id AND p.status <> 'ended'
		LEFT JOIN turns t ON t.session_id = s.id AND t.status IN ('queued', 'running', 'finalizing')
			AND t.sequence = (SELECT MIN(u.sequence) FROM turns u WHERE u.session_id = s.id AND u.status IN ('queued', 'running', 'finalizing'))`
	sqlUnitsOfComputer = sqlUnitsFrom + ` WHERE s.computer_id = ? AND s.released_at IS NULL ORDER BY s.id`
	sqlUnit            = sqlUnitsFrom + ` WHERE s.id = ?`

	sqlDeadlines = `SELECT DISTINCT session_id FROM turns WHERE status = 'running' AND abort_reason IS NULL AND deadline_at <= ? LIMIT 100`
	sqlOverdue   = `SELECT DISTINCT computer_id FROM turns WHERE status = 'running' AND abort_at <= ? LIMIT 100`
	sqlDeadline  = `SELECT MIN(deadline_at) FROM turns WHERE status = 'running' AND abort_reason IS NULL AND deadline_at > ?`

	// Closing Sessions whose end may have waited for a child that is terminal by now.
	sqlClosing = `SELECT p.id FROM sessions p WHERE p.status = 'closing' AND EXISTS (SELECT 1 FROM sessions c WHERE c.parent_session_id = p.id)
		AND NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_session_id = p.id AND c.status IN ('open', 'closing')) LIMIT 100`
	sqlEnvironmentOf = `SELECT environment_id FROM sessions WHERE id = ?`

	viewColumns = `id, session_id, sequence, status, source, input, result, response, error_code, error_message, created_at, started_at, terminal_at,
		completion_save_id, payload_expired_at`
	sqlView = `SELECT ` + viewColumns + ` FROM turns WHERE session_id = ? AND id = ?`
	sqlList = `SELECT ` + viewColumns + ` FROM turns WHERE session_id = ? AND sequence > ? ORDER BY sequence LIMIT ?`
)

// Messages and Questions.
const (
	sqlTurnOfSession = `SELECT sequence FROM turns WHERE session_id = ? AND id = ?`

	sqlMessageInsert     = `INSERT INTO messages (id, session_id, turn_id, number, status, delivery, data, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
	sqlMessageUpdate     = `UPDATE messages SET status = ?, delivery = ?, reason = ?, settled_at = ? WHERE id = ?`
	sqlMessageGet        = `SELECT status FROM messages WHERE turn_id = ? AND id = ?`
	sqlMessagesUnsettled = `SELECT id, status FROM messages WHERE turn_id = ? AND status IN ('admitted', 'started') ORDER BY number`
	sqlMessagesAhead     = `SELECT id, data FROM messages WHERE turn_id = ? AND status = 'admitted' ORDER BY number LIMIT ?`

	questionColumns = `id, session_id, turn_id, status, digest, prompt, answer_control, answer, answer_digest, response_id, responder_kind, responder_id,
		created_at, responded_at, cancelled_at, payload_expired_at`
	sqlQuestionInsert = `INSERT INTO questions (id, session_id, turn_id, number, status, digest, prompt, answer_control, settled_by_process, created_at)
		VALUES (?, ?, ?, ?, 'pending', ?, ?, ?, 0, ?)`
	sqlQuestionCancel  = `UPDATE questions SET status = 'cancelled', cancelled_at = ?, settled_by_process = ? WHERE turn_id = ? AND id = ? AND status = 'pending'`
	sqlQuestionRespond = `UPDATE questions SET status = 'responded', answer = ?, answer_digest = ?, response_id = ?, responder_kind = ?, responder_id = ?, responded_at = ?
		WHERE turn_id = ? AND id = ? AND status = 'pending'`
	sqlQuestionGet      = `SELECT ` + questionColumns + ` FROM questions WHERE turn_id = ? AND id = ? AND session_id = ?`
	sqlQuestions        = `SELECT ` + questionColumns + `, number FROM questions WHERE turn_id = ? AND number > ? ORDER BY number LIMIT ?`
	sqlQuestionsPending = `SELECT id FROM questions WHERE turn_id = ? AND status = 'pending' ORDER BY number`
	sqlQuestionsSettled = `SELECT id, answer, responder_kind, responder_id FROM questions WHERE turn_id = ? AND status <> 'pending' AND settled_by_process = 0 ORDER BY number`

	sqlRefusalInsert = `INSERT INTO refused_operations (session_id, process_epoch, operation, code, message) VALUES (?, ?, ?, ?, ?)`
	sqlRefusalGet    = `SELECT code, message FROM refused_operations WHERE session_id = ? AND process_epoch = ? AND operation = ?`
	sqlRefusalForget = `DELETE FROM refused_operations WHERE session_id = ? AND process_epoch = ? AND operation < ?`
)

// Admission. The interval of a token is 1000000 / rate microseconds in whole numbers, as in admissionLimits.
const (
	sqlAdmissionTake = `UPDATE environment_admissions SET
			free_at_us = (CASE WHEN free_at_us > ? THEN free_at_us ELSE ? END) + (SELECT 1000000 / e.admission_rate_per_second FROM environments e WHERE e.id = environment_id),
			outstanding = outstanding + 1
		WHERE environment_id = ?
			AND free_at_us <= ? + (SELECT (e.admission_burst - 1) * (1000000 / e.admission_rate_per_second) FROM environments e WHERE e.id = environment_id)
			AND outstanding < (SELECT e.max_outstanding_admissions FROM environments e WHERE e.id = environment_id)`
	sqlAdmissionLimits = `SELECT max_outstanding_admissions, admission_rate_per_second, admission_burst FROM environments WHERE id = ?`
	sqlAdmissionCreate = `INSERT INTO environment_admissions (environment_id, free_at_us, outstanding) VALUES (?, 0, 0) ON CONFLICT DO NOTHING`
	sqlAdmissionLock   = `SELECT free_at_us FROM environment_admissions WHERE environment_id = ? {lock}`
	sqlAdmissionSet    = `UPDATE environment_admissions SET free_at_us = ?, outstanding = ? WHERE environment_id = ?`
	sqlOutstanding     = `SELECT COUNT(*) FROM turns WHERE environment_id = ? AND status IN ('queued', 'running', 'finalizing')`
	sqlMaxCausalDepth  = `SELECT max_causal_depth FROM environments WHERE id = ?`
)

// Retention: what a released Session's Turns held.
const (
	sqlExpireTurns     = `UPDATE turns SET input = NULL, result = NULL, response = NULL, error_message = NULL, payload_expired_at = ? WHERE session_id = ?`
	sqlExpireMessages  = `UPDATE messages SET data = NULL WHERE session_id = ?`
	sqlExpireQuestions = `UPDATE questions SET prompt = NULL, answer_control = NULL, answer = NULL, payload_expired_at = ? WHERE session_id = ?`
)
