package computer

const (
	columns = `id, environment_id, key, template_id, deployment_id, status, residency, execution_wait, error_code, error_message,
		milli_cpu, memory_mib, disk_mib, image_digest, worker_id, lease_epoch, work_wanted, stopping, stopping_save_id, start_failures, retry_at,
		last_save_number, recovery_save_id, unused_since, last_activity_at, created_at, updated_at, secrets, capture_id,
		purpose, first_disk, preparation_id, first_manifest`

	sqlInsert = `INSERT INTO computers (` + columns + `)
		VALUES (?, ?, ?, ?, ?, 'available', 'cold', NULL, NULL, NULL, ?, ?, ?, ?, NULL, 0, 0, NULL, NULL, 0, NULL, 0, NULL, ?, ?, ?, ?, ?, NULL, ?, ?, NULL, NULL)`
	sqlLock      = `SELECT ` + columns + ` FROM computers WHERE id = ? {lock}`
	sqlGet       = `SELECT ` + columns + ` FROM computers WHERE environment_id = ? AND id = ? AND purpose = 'use'`
	sqlByKey     = `SELECT ` + columns + ` FROM computers WHERE environment_id = ? AND key = ? AND status <> 'deleted'`
	sqlResidency = `SELECT residency FROM computers WHERE environment_id = ? AND id = ? AND purpose = 'use'`
	sqlList      = `SELECT ` + columns + ` FROM computers WHERE environment_id = ? AND id < ? AND purpose = 'use' ORDER BY id DESC LIMIT ?`
	sqlUpdate    = `UPDATE computers SET status = ?, residency = ?, execution_wait = ?, error_code = ?, error_message = ?, worker_id = ?, lease_epoch = ?,
		work_wanted = ?, stopping = ?, stopping_save_id = ?, start_failures = ?, retry_at = ?, last_save_number = ?, recovery_save_id = ?, unused_since = ?,
		last_activity_at = ?, updated_at = ?, capture_id = ?, first_disk = ?, preparation_id = ?, first_manifest = ? WHERE id = ?`
	// Not those whose prepared image is still to be made, nor unavailable ones that are not tried again.
	sqlWanted = `SELECT c.id, c.environment_id, c.milli_cpu, c.memory_mib, c.disk_mib, c.execution_wait, c.first_disk FROM computers c
		WHERE c.work_wanted = 1 AND c.residency IN ('cold', 'unavailable', 'hibernated') AND c.id > ? AND ((c.retry_at IS NULL AND c.residency <> 'unavailable') OR c.retry_at <= ?)
		AND (c.first_disk <> 'awaited' OR NOT EXISTS (SELECT 1 FROM preparations p WHERE p.id = c.preparation_id AND p.status IN ('queued', 'running')))
		ORDER BY c.id LIMIT ?`
	sqlNextTry  = `SELECT MIN(retry_at) FROM computers WHERE work_wanted = 1 AND residency IN ('cold', 'unavailable', 'hibernated') AND retry_at > ?`
	sqlUnused   = `SELECT id FROM computers WHERE residency = 'running' AND stopping IS NULL AND unused_since <= ? LIMIT 100`
	sqlOfWorker = `SELECT id, lease_epoch FROM computers WHERE worker_id = ? ORDER BY id`

	// CPU is reserved in whole ones.
	wholeCPU = `(c.milli_cpu + 999) / 1000 * 1000`
	sqlFree  = `SELECT w.id, w.cpu_millis - COALESCE(SUM(` + wholeCPU + `), 0), w.memory_mib - COALESCE(SUM(c.memory_mib), 0), w.disk_mib - COALESCE(SUM(c.disk_mib), 0),
		w.heartbeat_at FROM workers w LEFT JOIN computers c ON c.worker_id = w.id WHERE w.status = 'active'
		GROUP BY w.id, w.cpu_millis, w.memory_mib, w.disk_mib, w.heartbeat_at ORDER BY w.id`
	sqlFreeOf = `SELECT w.cpu_millis - COALESCE(SUM(` + wholeCPU + `), 0), w.memory_mib - COALESCE(SUM(c.memory_mib), 0), w.disk_mib - COALESCE(SUM(c.disk_mib), 0)
		FROM workers w LEFT JOIN computers c ON c.worker_id = w.id WHERE w.id = ? GROUP BY w.id, w.cpu_millis, w.memory_mib, w.disk_mib`
	sqlLastWorker     = `SELECT COALESCE(last_worker_id, '') FROM computers WHERE id = ?`
	sqlSetLastWorker  = `UPDATE computers SET last_worker_id = ? WHERE id = ?`
	sqlEnvironmentUse = `SELECT COUNT(*), COALESCE(SUM(milli_cpu), 0), COALESCE(SUM(memory_mib), 0) FROM computers WHERE environment_id = ? AND worker_id IS NOT NULL`
	sqlEnvironmentMax = `SELECT max_resident_computers, max_cpu_millis, max_memory_bytes FROM environments WHERE id = ?`

	sqlSaveOpen     = `SELECT id FROM saves WHERE computer_id = ? AND status = 'requested' AND capture_began_at IS NULL`
	sqlSaveInsert   = `INSERT INTO saves (id, computer_id, number, status, created_at) VALUES (?, ?, ?, 'requested', ?)`
	sqlSaveNext     = `SELECT id, number FROM saves WHERE computer_id = ? AND status IN ('requested', 'captured') ORDER BY number LIMIT 1`
	sqlSaveBegin    = `UPDATE saves SET capture_began_at = ? WHERE id = ? AND status = 'requested'`
	sqlSaveGet      = `SELECT computer_id, number, status FROM saves WHERE id = ?`
	sqlSavePublish  = `UPDATE saves SET status = 'published', manifest_digest = ?, size_bytes = ?, stored_bytes = ?, published_at = ? WHERE id = ? AND status IN ('requested', 'captured')`
	sqlSaveFail     = `UPDATE saves SET status = 'failed' WHERE computer_id = ? AND status IN ('requested', 'captured')`
	sqlSaveNumber   = `SELECT number FROM saves WHERE id = ?`
	sqlSaveManifest = `SELECT manifest_digest FROM saves WHERE id = ?`
	sqlSaveState    = `SELECT manifest_digest, status FROM saves WHERE id = ?`
	// Runnable work of a resident Computer that a Save holds up: the next Turn of a Session whose present one is finalizing,
	// or whatever came while the Computer is emptied.
	sqlSaving = `SELECT 1 FROM computers c WHERE c.id = ? AND EXISTS (SELECT 1 FROM saves v WHERE v.computer_id = c.id AND v.status IN ('requested', 'captured'))
		AND ((c.stopping IS NOT NULL AND c.work_wanted = 1)
			OR EXISTS (SELECT 1 FROM turns f JOIN turns q ON q.session_id = f.session_id AND q.status = 'queued'
				WHERE f.computer_id = c.id AND f.status = 'finalizing'
					AND NOT EXISTS (SELECT 1 FROM holds o WHERE o.session_id = f.session_id AND o.released_at IS NULL)))`
	sqlSaveUnfinished = `SELECT COUNT(*) FROM saves WHERE computer_id = ? AND status IN ('requested', 'captured')`
)

// Captures. One is published with its Save in one transaction.
const (
	sqlSavePublished = `INSERT INTO saves (id, computer_id, number, status, capture_began_at, manifest_digest, size_bytes, stored_bytes, created_at, published_at)
		VALUES (?, ?, ?, 'published', ?, ?, ?, ?, ?, ?)`
	sqlCaptureInsert = `INSERT INTO captures (id, computer_id, save_id, memory_manifest, platform, size_bytes, stored_bytes, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
	sqlCaptureGet    = `SELECT memory_manifest, platform FROM captures WHERE id = ?`
	sqlCaptureDelete = `DELETE FROM captures WHERE id = ?`
)

// Workers.
const (
	workerColumns      = `id, name, status, secret_hash, heartbeat_at, shutdown_at`
	sqlWorkersByName   = `SELECT ` + workerColumns + ` FROM workers WHERE name = ? ORDER BY id {lock}`
	sqlWorkerLock      = `SELECT ` + workerColumns + ` FROM workers WHERE id = ? {lock}`
	sqlWorkerGet       = `SELECT ` + workerColumns + ` FROM workers WHERE id = ?`
	sqlWorkerHolds     = `SELECT COUNT(*) FROM computers WHERE worker_id = ?`
	sqlWorkerInsert    = `INSERT INTO workers (id, name, status, secret_hash, cpu_millis, memory_mib, disk_mib, heartbeat_at, created_at) VALUES (?, ?, 'registering', ?, 0, 0, 0, ?, ?)`
	sqlWorkerSeen      = `UPDATE workers SET heartbeat_at = ? WHERE id = ?`
	sqlWorkerEnrolled  = `UPDATE workers SET heartbeat_at = ?, discarded_at = ?, cpu_millis = 0, memory_mib = 0, disk_mib = 0 WHERE id = ?`
	sqlWorkerMove      = `UPDATE workers SET status = ?, shutdown_at = ? WHERE id = ? AND status = ?`
	sqlWorkerOffer     = `UPDATE workers SET cpu_millis = ?, memory_mib = ?, disk_mib = ? WHERE id = ?`
	sqlWorkerHeartbeat = `UPDATE workers SET heartbeat_at = ? WHERE id = ? AND status <> 'lost'`

	sqlWorkerShutdownAt = `UPDATE workers SET shutdown_at = ? WHERE id = ?`
	sqlWorkersDraining  = `SELECT id FROM workers WHERE status = 'draining' ORDER BY id`
	sqlNextShutdown     = `SELECT MIN(shutdown_at) FROM workers WHERE status = 'draining' AND shutdown_at > ?`
	// A Worker that is ready for termination has nothing to lose.
	sqlWorkersSilent   = `SELECT id FROM workers WHERE status IN ('registering', 'active', 'draining') AND heartbeat_at <= ?`
	sqlWorkersLostHold = `SELECT id FROM computers WHERE worker_id IN (SELECT id FROM workers WHERE status = 'lost')`

	workerView = `SELECT w.id, w.name, w.status, w.cpu_millis, w.memory_mib, w.disk_mib, w.shutdown_at, w.heartbeat_at, w.created_at,
		COUNT(c.id), COALESCE(SUM(` + wholeCPU + `), 0), COALESCE(SUM(c.memory_mib), 0), COALESCE(SUM(c.disk_mib), 0),
		(SELECT COUNT(*) FROM turns t JOIN computers o ON o.id = t.computer_id WHERE o.worker_id = w.id AND t.status = 'running'),
		(SELECT COUNT(*) FROM commands k JOIN computers o ON o.id = k.computer_id WHERE o.worker_id = w.id AND k.status IN ('starting', 'running', 'stopping'))
		FROM workers w LEFT JOIN computers c ON c.worker_id = w.id`
	workerGroup   = ` GROUP BY w.id, w.name, w.status, w.cpu_millis, w.memory_mib, w.disk_mib, w.shutdown_at, w.heartbeat_at, w.created_at`
	sqlWorkerView = workerView + ` WHERE w.id = ?` + workerGroup
	// A name shows once: as the Worker that uses it, or the last that did.
	sqlWorkerList = workerView + ` WHERE w.name > ? AND NOT (w.status = 'lost' AND EXISTS
		(SELECT 1 FROM workers n WHERE n.name = w.name AND n.id <> w.id AND (n.status <> 'lost' OR n.id > w.id)))` + workerGroup + ` ORDER BY w.name LIMIT ?`

	sqlDeniedOf     = `SELECT address FROM denied_addresses WHERE owner = ? AND seen_at > ?`
	sqlDeniedSee    = `INSERT INTO denied_addresses (owner, address, seen_at) VALUES (?, ?, ?) ON CONFLICT (owner, address) DO UPDATE SET seen_at = excluded.seen_at`
	sqlDenied       = `SELECT address FROM denied_addresses WHERE seen_at > ? GROUP BY address ORDER BY MAX(seen_at) DESC, address LIMIT ?`
	sqlDeniedForget = `DELETE FROM denied_addresses WHERE seen_at <= ?`

	sqlTokenInsert = `INSERT INTO worker_tokens (id, name, prefix, token_hash, created_by, created_at) VALUES (?, ?, ?, ?, ?, ?)`
	sqlTokenList   = `SELECT id, name, prefix, created_at, last_used_at, revoked_at FROM worker_tokens WHERE id < ? ORDER BY id DESC LIMIT ?`
	sqlTokenGet    = `SELECT revoked_at FROM worker_tokens WHERE id = ?`
	sqlTokenRevoke = `UPDATE worker_tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL`
	sqlTokenUse    = `UPDATE worker_tokens SET last_used_at = ? WHERE token_hash = ? AND revoked_at IS NULL`
)

// Reserved storage of an Environment.
const (
	sqlReserve = `UPDATE environment_reservations SET reserved_mib = reserved_mib + ? WHERE environment_id = ?
		AND (reserved_mib + ?) * 1048576 <= (SELECT e.max_reserved_storage_bytes FROM environments e WHERE e.id = environment_id)`
	sqlReservationCreate = `INSERT INTO environment_reservations (environment_id, reserved_mib) VALUES (?, 0) ON CONFLICT DO NOTHING`
	sqlReservationLock   = `SELECT reserved_mib FROM environment_reservations WHERE environment_id = ? {lock}`
	sqlReservationSet    = `UPDATE environment_reservations SET reserved_mib = ? WHERE environment_id = ?`
	sqlReserved          = `SELECT (SELECT COALESCE(SUM(c.disk_mib), 0) FROM computers c WHERE c.environment_id = ? AND c.status <> 'deleted' AND c.purpose = 'use'), e.max_reserved_storage_bytes
		FROM environments e WHERE e.id = ?`
)

const (
	sqlNetwork    = `SELECT attempts FROM computer_network WHERE computer_id = ?`
	sqlNetworkSet = `INSERT INTO computer_network (computer_id, attempts, updated_at) VALUES (?, ?, ?)
		ON CONFLICT (computer_id) DO UPDATE SET attempts = excluded.attempts, updated_at = excluded.updated_at`
	sqlNetworkDelete = `DELETE FROM computer_network WHERE computer_id = ?`
)

const (
	sqlBind     = `INSERT INTO computer_secrets (computer_id, position, secret, binding, placeholder) VALUES (?, ?, ?, ?, ?)`
	sqlBindings = `SELECT binding FROM computer_secrets WHERE computer_id = ? ORDER BY position`
	// Bindings whose Secret is revoked, or so long that a variable may not hold it.
	sqlSuspectBindings = `SELECT b.binding FROM computer_secrets b, secrets s, secret_versions v WHERE b.computer_id = ?
		AND s.environment_id = ? AND s.name = b.secret AND v.environment_id = s.environment_id AND v.secret = s.name AND v.version = s.version
		AND (s.status <> 'active' OR v.size_bytes > ?) ORDER BY b.position`
	sqlExposed = `SELECT ` + columns + `, (SELECT MAX(e.kind) FROM secret_exposures e WHERE e.environment_id = c.environment_id AND e.secret = ? AND e.computer_id = c.id)
		FROM computers c WHERE c.environment_id = ? AND c.status <> 'deleted' AND c.purpose = 'use' AND c.id < ?
		AND EXISTS (SELECT 1 FROM secret_exposures e WHERE e.environment_id = c.environment_id AND e.secret = ? AND e.computer_id = c.id)
		ORDER BY c.id DESC LIMIT ?`
)

// What Computers need in blob storage.
const (
	sqlManifests = `SELECT s.manifest_digest FROM computers c JOIN saves s ON s.id = c.recovery_save_id WHERE c.environment_id = ? AND c.status <> 'deleted'`

	sqlFirstManifests = `SELECT first_manifest FROM computers WHERE environment_id = ? AND status <> 'deleted' AND recovery_save_id IS NULL AND first_manifest IS NOT NULL`

	sqlMemoryManifests = `SELECT p.memory_manifest FROM computers c JOIN captures p ON p.computer_id = c.id WHERE c.environment_id = ?`
)

// Protected Secrets.
const (
	sqlProtected = `SELECT COUNT(*) FROM computer_secrets WHERE computer_id = ? AND placeholder IS NOT NULL`
	sqlGuarded   = `SELECT binding, placeholder FROM computer_secrets WHERE computer_id = ? AND placeholder IS NOT NULL ORDER BY position`
	sqlBehind    = `SELECT binding FROM computer_secrets WHERE computer_id = ? AND placeholder = ?`
	sqlHeld      = `SELECT environment_id, worker_id, lease_epoch FROM computers WHERE id = ?`

	sqlAuthority       = `SELECT certificate, sealed_key FROM computer_authorities WHERE computer_id = ?`
	sqlAuthorityDelete = `DELETE FROM computer_authorities WHERE computer_id = ?`
	sqlAuthorityInsert = `INSERT INTO computer_authorities (computer_id, certificate, sealed_key, created_at) VALUES (?, ?, ?, ?)`
)
