package command

const (
	columns = `id, environment_id, computer_id, status, timeout_ms, cause, exit_code, failure_reason, failure_message, cancel_id, worker_id, open, reconciled,
		output_state, deadline_at, stopping_at, terminal_at, expired_at, created_at`

	sqlInsert = `INSERT INTO commands (id, environment_id, computer_id, status, request, timeout_ms, open, reconciled, output_state, stdout_through, stderr_through,
		last_record, created_at) VALUES (?, ?, ?, 'pending', ?, ?, 1, 0, 'open', 0, 0, 0, ?)`
	// A terminal Command needs what it was asked for no more.
	sqlUpdate = `UPDATE commands SET status = ?, request = CASE WHEN ? = 1 THEN NULL ELSE request END, cause = ?, exit_code = ?, failure_reason = ?,
		failure_message = ?, cancel_id = ?, worker_id = ?, open = ?, reconciled = ?, output_state = ?, deadline_at = ?, stopping_at = ?, terminal_at = ? WHERE id = ?`
	sqlGet      = `SELECT ` + columns + ` FROM commands WHERE environment_id = ? AND id = ?`
	sqlLock     = `SELECT ` + columns + ` FROM commands WHERE id = ? {lock}`
	sqlOpen     = `SELECT ` + columns + ` FROM commands WHERE computer_id = ? AND open = 1 ORDER BY id`
	sqlRequest  = `SELECT request FROM commands WHERE id = ?`
	sqlUsage    = `SELECT ` + columns + ` FROM commands WHERE computer_id = ? AND id > ? AND (open = 1 OR (reconciled = 0 AND terminal_at IS NOT NULL)) ORDER BY id LIMIT ?`
	sqlUnended  = `SELECT COUNT(*) FROM commands WHERE computer_id = ? AND open = 1 AND terminal_at IS NULL`
	sqlTimedOut = `SELECT id, computer_id FROM commands WHERE status = 'running' AND deadline_at <= ? ORDER BY deadline_at LIMIT 100`
	sqlNextOut  = `SELECT MIN(deadline_at) FROM commands WHERE status = 'running' AND deadline_at > ?`

	sqlExpiring    = `SELECT id FROM commands WHERE expired_at IS NULL AND created_at <= ? AND terminal_at IS NOT NULL AND open = 0 ORDER BY created_at LIMIT 100`
	sqlExpire      = `UPDATE commands SET expired_at = ?, failure_message = NULL WHERE id = ? AND expired_at IS NULL`
	sqlLogsDelete  = `DELETE FROM command_logs WHERE command_id = ?`
	sqlLogPosition = `SELECT computer_id, open, stdout_through, stderr_through, last_record FROM commands WHERE id = ? {lock}`
	sqlLogAdvance  = `UPDATE commands SET stdout_through = ?, stderr_through = ?, last_record = ? WHERE id = ?`
	sqlLogInsert   = `INSERT INTO command_logs (command_id, number, stream, first_chunk, last_chunk, content, observed_at) VALUES (?, ?, ?, ?, ?, ?, ?)`
	sqlLogState    = `SELECT output_state, last_record, expired_at FROM commands WHERE environment_id = ? AND id = ?`
	sqlLogs        = `SELECT number, stream, first_chunk, last_chunk, content, observed_at FROM command_logs WHERE command_id = ? AND number > ? ORDER BY number LIMIT ?`

	// Terminal Commands on Workers whose processes are gone by now for certain: a Worker comes back under its name only after
	// it has discarded what it had.
	sqlReconcilable = `SELECT c.id FROM commands c JOIN workers w ON w.id = c.worker_id WHERE c.reconciled = 0 AND c.terminal_at IS NOT NULL AND c.open = 0
		AND w.status <> 'registering' AND w.discarded_at > c.terminal_at LIMIT 100`
	sqlReconciled = `UPDATE commands SET reconciled = 1 WHERE id = ? AND reconciled = 0`
)

// Who occupies a Computer, and whether it can be deleted.
const (
	sqlUnreleasedSession = `SELECT id, status FROM sessions WHERE computer_id = ? AND released_at IS NULL ORDER BY id LIMIT 1`

	sqlSessionUsage = `SELECT s.id, s.status, s.created_at, p.status, t.status,
			(SELECT COUNT(*) FROM questions q WHERE q.turn_id = t.id AND q.status = 'pending')
		FROM sessions s
		LEFT JOIN session_processes p ON p.session_id = s.id AND p.status <> 'ended'
		LEFT JOIN turns t ON t.session_id = s.id AND t.status IN ('queued', 'running', 'finalizing')
			AND t.sequence = (SELECT MIN(u.sequence) FROM turns u WHERE u.session_id = s.id AND u.status IN ('queued', 'running', 'finalizing'))
		WHERE s.computer_id = ? AND s.id > ? AND s.released_at IS NULL AND (p.status IS NOT NULL OR t.status IS NOT NULL) ORDER BY s.id LIMIT ?`

	// Computers whose Template has them deleted when they are unused, that are. The clock runs from the last end of a Session
	// or Command, or from the creation. CROSS JOIN keeps SQLite from walking through all Computers to find such Templates.
	sqlUnusedFrom = `FROM template_definitions d CROSS JOIN computers c
		WHERE d.delete_after_unused_ms IS NOT NULL AND c.deployment_id = d.deployment_id AND c.template_id = d.template_id AND c.status = 'available' AND c.purpose = 'use'
			AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.computer_id = c.id AND s.released_at IS NULL)
			AND NOT EXISTS (SELECT 1 FROM commands m WHERE m.computer_id = c.id AND m.open = 1)
			AND c.created_at + d.delete_after_unused_ms <= ?
			AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.computer_id = c.id AND s.released_at + d.delete_after_unused_ms > ?)
			AND NOT EXISTS (SELECT 1 FROM commands m WHERE m.computer_id = c.id AND m.terminal_at + d.delete_after_unused_ms > ?)`
	sqlUnused    = `SELECT c.id ` + sqlUnusedFrom + ` LIMIT 100`
	sqlUnusedOne = `SELECT c.id ` + sqlUnusedFrom + ` AND c.id = ?`
)
