package session

const (
	columns = `s.id, s.environment_id, s.agent_id, s.deployment_id, s.computer_id, s.root_session_id, s.parent_session_id, s.requester_session_id, s.key, s.status,
		s.max_turn_duration_ms, s.close_after_idle_ms, s.hibernate_after_idle_ms, s.initial_turn_id, s.last_turn_sequence, s.last_event_sequence,
		s.retained_after, s.process_epoch, s.initialised, s.recovery_reason, s.consecutive_failures, s.idle_since, s.released_at, s.created_at, s.updated_at`

	sqlInsert = `INSERT INTO sessions (id, environment_id, agent_id, deployment_id, computer_id, root_session_id, parent_session_id, requester_session_id, key, status,
		max_turn_duration_ms, close_after_idle_ms, hibernate_after_idle_ms, history_retention_mode, history_retention_seconds, initial_turn_id,
		last_turn_sequence, last_event_sequence, retained_after, process_epoch, initialised, recovery_reason, consecutive_failures, idle_since, released_at, created_at, updated_at)
		SELECT ?, e.id, ?, ?, ?, ?, ?, ?, ?, 'open', ?, ?, ?, e.history_retention_mode, e.history_retention_seconds, NULL, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL, ?, ?
		FROM environments e WHERE e.id = ?`
	sqlByKey      = `SELECT s.id, s.computer_id FROM sessions s WHERE s.environment_id = ? AND s.agent_id = ? AND s.key = ? AND s.status IN ('open', 'closing')`
	sqlComputerOf = `SELECT computer_id FROM sessions WHERE environment_id = ? AND id = ?`
	sqlUpdate     = `UPDATE sessions SET status = ?, initial_turn_id = ?, last_turn_sequence = ?, last_event_sequence = ?, process_epoch = ?, initialised = ?, recovery_reason = ?,
		consecutive_failures = ?, idle_since = ?, released_at = ?, updated_at = ? WHERE id = ?`
	sqlChildren       = `SELECT id, computer_id FROM sessions WHERE parent_session_id = ?`
	sqlUnclosedChilds = `SELECT COUNT(*) FROM sessions WHERE parent_session_id = ? AND status IN ('open', 'closing')`
	// A child that has not ended keeps its parent open; such a parent must not take a place among those that can be closed.
	sqlIdleDue = `SELECT s.id FROM sessions s WHERE s.status = 'open' AND s.idle_since IS NOT NULL AND s.close_after_idle_ms IS NOT NULL
		AND s.idle_since + s.close_after_idle_ms <= ?
		AND NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_session_id = s.id AND c.status IN ('open', 'closing'))
		ORDER BY s.idle_since + s.close_after_idle_ms LIMIT 100`

	// The expression of the index sessions_hibernating.
	sqlHibernationFrom = ` FROM sessions WHERE status IN ('open', 'closing') AND idle_since IS NOT NULL AND hibernate_after_idle_ms IS NOT NULL
		AND idle_since + hibernate_after_idle_ms > ?`
	sqlHibernationDue  = `SELECT DISTINCT computer_id` + sqlHibernationFrom + ` AND idle_since + hibernate_after_idle_ms <= ? LIMIT 1000`
	sqlHibernationNext = `SELECT MIN(idle_since + hibernate_after_idle_ms)` + sqlHibernationFrom

	sqlEventInsert = `INSERT INTO session_events (session_id, sequence, turn_id, kind, data, process_epoch, operation, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
	sqlEvents      = `SELECT s.last_event_sequence, s.retained_after, s.released_at, e.turn_id, e.sequence, e.kind, e.data, e.created_at
		FROM sessions s LEFT JOIN session_events e ON e.session_id = s.id AND e.sequence > ?
		WHERE s.environment_id = ? AND s.id = ? ORDER BY e.sequence LIMIT ?`
	sqlEventOfOp = `SELECT sequence FROM session_events WHERE session_id = ? AND process_epoch = ? AND operation = ?`

	// The expression of the index sessions_expiring.
	sqlExpiring = `SELECT id FROM sessions WHERE payload_expired_at IS NULL AND history_retention_mode = 'duration'
		AND released_at + history_retention_seconds * 1000 <= ? ORDER BY released_at + history_retention_seconds * 1000 LIMIT ?`
	sqlExpire       = `UPDATE sessions SET payload_expired_at = ? WHERE id = ? AND released_at IS NOT NULL AND payload_expired_at IS NULL`
	sqlExpireEvents = `UPDATE session_events SET data = NULL WHERE session_id = ? AND data IS NOT NULL`

	sqlHoldInsert  = `INSERT INTO holds (id, session_id, scope, reason, created_at) VALUES (?, ?, ?, ?, ?)`
	sqlHoldRelease = `UPDATE holds SET released_at = ? WHERE id = ? AND session_id = ? AND released_at IS NULL`
	sqlHoldReason  = `SELECT reason FROM holds WHERE id = ? AND session_id = ? AND released_at IS NULL`
	sqlHoldOwn     = `SELECT id FROM holds WHERE session_id = ? AND reason = ? AND released_at IS NULL`
	sqlHolds       = `WITH RECURSIVE up (id, parent, depth) AS (
			SELECT id, parent_session_id, 0 FROM sessions WHERE id = ?
			UNION ALL SELECT s.id, s.parent_session_id, up.depth + 1 FROM sessions s JOIN up ON s.id = up.parent)
		SELECT h.id, h.session_id, h.scope, h.reason, h.created_at FROM holds h JOIN up ON up.id = h.session_id
		WHERE h.released_at IS NULL AND (up.depth = 0 OR h.scope = 'subtree') ORDER BY h.id`

	sqlCausalDepth = `WITH RECURSIVE up (id, cause) AS (
			SELECT id, COALESCE(parent_session_id, requester_session_id) FROM sessions WHERE id = ?
			UNION ALL SELECT s.id, COALESCE(s.parent_session_id, s.requester_session_id) FROM sessions s JOIN up ON s.id = up.cause)
		SELECT COUNT(*) - 1 FROM up`

	sqlProcessInsert = `INSERT INTO session_processes (session_id, epoch, computer_id, status, recovery, last_operation, created_at) VALUES (?, ?, ?, 'starting', ?, 0, ?)`
	sqlProcessUpdate = `UPDATE session_processes SET status = ?, stop_reason = ?, failure_reason = ?, stopping_at = ?, last_operation = ?, ended_at = ? WHERE session_id = ? AND epoch = ?`
	sqlLiveProcesses = `SELECT COUNT(*) FROM session_processes WHERE computer_id = ? AND status <> 'ended'`
	sqlOverdue       = `SELECT DISTINCT computer_id FROM session_processes WHERE status = 'stopping' AND stopping_at <= ?`
)

// A Session as callers see it: its columns and the status of its first Turn.
const (
	sqlViewFrom  = `SELECT ` + columns + `, (SELECT t.status FROM turns t WHERE t.id = s.initial_turn_id) FROM sessions s `
	sqlViewGet   = sqlViewFrom + `WHERE s.environment_id = ? AND s.id = ?`
	sqlViewList  = sqlViewFrom + `WHERE `
	sqlViewOrder = ` ORDER BY s.id DESC LIMIT ?`
)
