package turn

import "helmr.dev/helmr/internal/session"

const (
	rowColumns = `t.id, t.session_id, t.computer_id, t.sequence, t.status, t.process_epoch, t.processing_open, t.abort_reason, t.abort_at, t.output_bytes,
		t.messages, t.questions, t.deadline_at, t.save_id, t.started_at`

	sqlInsert = `INSERT INTO turns (id, environment_id, session_id, computer_id, sequence, status, source, input, processing_open, output_bytes, created_at)
		VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, 0, 0, ?)`
	sqlUpdate = `UPDATE turns SET status = ?, process_epoch = ?, processing_open = ?, abort_reason = ?, abort_at = ?, output_bytes = ?, messages = ?, questions = ?, deadline_at = ?,
		save_id = ?, started_at = ?, terminal_at = ? WHERE id = ?`
	sqlEnd = `UPDATE turns SET result = COALESCE(?, result), response = COALESCE(?, response), error_code = ?, error_message = ?, completion_save_id = ? WHERE id = ?`
	// A Turn that fails or is interrupted after it staged a response or recorded a result keeps the result hidden and drops the response.
	sqlDropResponse = `UPDATE turns SET response = NULL WHERE id = ?`
	sqlHead         = `SELECT ` + rowColumns + ` FROM turns t WHERE t.session_id = ? AND t.status IN ('queued', 'running', 'finalizing') ORDER BY t.sequence LIMIT 1`
	sqlQueued       = `SELECT ` + rowColumns + ` FROM turns t WHERE t.session_id = ? AND t.status = 'queued' ORDER BY t.sequence`
	sqlAnyQueued    = `SELECT COUNT(*) FROM (SELECT 1 FROM turns WHERE session_id = ? AND status = 'queued' LIMIT 1) q`
	sqlPayload      = `SELECT source, input, created_at FROM turns WHERE id = ?`
	sqlOutcome      = `SELECT result, response FROM turns WHERE id = ?`
	sqlOfSave       = `SELECT ` + rowColumns + ` FROM turns t WHERE t.save_id = ? AND t.status = 'finalizing' ORDER BY t.session_id, t.sequence`
	sqlFinalizing   = `SELECT COUNT(*) FROM (SELECT 1 FROM turns WHERE session_id = ? AND status = 'finalizing' LIMIT 1) f`

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
