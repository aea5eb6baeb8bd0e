package preparation

const (
	columns = `id, environment_id, deployment_id, template_id, digest, subject, reason, status, attempts, losses, computer_id, command_id, save_id, manifest_digest,
		error_message, deadline_at, created_at, started_at, terminal_at`

	// The deadline is as long after the creation as the Environment says.
	sqlInsert = `INSERT INTO preparations (id, environment_id, deployment_id, template_id, digest, subject, reason, status, attempts, losses, deadline_at, created_at)
		SELECT ?, e.id, ?, ?, ?, ?, ?, 'queued', 0, 0, ? + e.preparation_timeout_ms, ? FROM environments e WHERE e.id = ? ON CONFLICT DO NOTHING`
	sqlUpdate = `UPDATE preparations SET digest = ?, status = ?, attempts = ?, losses = ?, computer_id = ?, command_id = ?, save_id = ?, manifest_digest = ?,
		error_message = ?, started_at = ?, terminal_at = ? WHERE id = ?`
	sqlAttempt  = `INSERT INTO preparation_attempts (preparation_id, number, command_id) VALUES (?, ?, ?)`
	sqlAttempts = `SELECT command_id FROM preparation_attempts WHERE preparation_id = ? ORDER BY number`
	// The Computers of a preparation, and whether the log of each is over.
	sqlComputers = `SELECT c.computer_id, c.expired_at FROM preparation_attempts a, commands c WHERE a.preparation_id = ? AND c.id = a.command_id ORDER BY a.number`
	sqlOf        = `SELECT ` + columns + ` FROM preparations WHERE environment_id = ? AND id = ?`

	sqlGet  = `SELECT ` + columns + ` FROM preparations WHERE id = ?`
	sqlLock = sqlGet + ` {lock}`
	sqlOpen = `SELECT ` + columns + ` FROM preparations WHERE environment_id = ? AND digest = ? AND status IN ('queued', 'running')`
	// The latest image of an identity.
	sqlImage = `SELECT ` + columns + ` FROM preparations WHERE environment_id = ? AND digest = ? AND manifest_digest IS NOT NULL ORDER BY terminal_at DESC, id DESC LIMIT 1`
	sqlLast  = `SELECT ` + columns + ` FROM preparations WHERE environment_id = ? AND subject = ? ORDER BY id DESC LIMIT 1`
	sqlEver  = `SELECT id FROM preparations WHERE environment_id = ? AND subject = ? AND manifest_digest IS NOT NULL LIMIT 1`

	sqlAllOpen = `SELECT id, deadline_at FROM preparations WHERE status IN ('queued', 'running') ORDER BY id`

	// What new Computers start with, and what a preparation that is about to end has saved.
	sqlManifests = `SELECT manifest_digest FROM preparations WHERE environment_id = ? AND manifest_digest IS NOT NULL
		UNION SELECT s.manifest_digest FROM preparations p, saves s WHERE p.environment_id = ? AND p.status = 'running' AND s.id = p.save_id AND s.manifest_digest IS NOT NULL`

	// Computers that cannot read the prepared image that they are to start with.
	sqlUnreadable = `SELECT id FROM computers WHERE work_wanted = 1 AND residency = 'unavailable' AND error_code = 'computer_recovery_required'
		AND first_disk = 'prepared' AND recovery_save_id IS NULL LIMIT 100`
	// Computers of preparations whose logs are gone, and that still have a list of what they tried on their networks.
	sqlTried = `SELECT n.computer_id FROM computer_network n, preparation_attempts a, commands c
		WHERE c.id = a.command_id AND c.computer_id = n.computer_id AND c.expired_at IS NOT NULL LIMIT 100`
	sqlForget = `UPDATE preparations SET manifest_digest = NULL WHERE id = ?`

	// Images that nothing will start with: those superseded, and those of Deployments that are not current which no
	// new Computer has used for long. What Computers have started with stays theirs.
	sqlExpire = `UPDATE preparations SET manifest_digest = NULL WHERE manifest_digest IS NOT NULL AND (
		EXISTS (SELECT 1 FROM preparations n WHERE n.environment_id = preparations.environment_id AND n.digest = preparations.digest
			AND n.manifest_digest IS NOT NULL AND n.terminal_at > preparations.terminal_at AND n.terminal_at <= ?)
		OR (terminal_at <= ? AND NOT EXISTS (SELECT 1 FROM current_deployments d WHERE d.deployment_id = preparations.deployment_id)
			AND NOT EXISTS (SELECT 1 FROM computers c WHERE c.preparation_id = preparations.id AND c.created_at > ?)))`
)
