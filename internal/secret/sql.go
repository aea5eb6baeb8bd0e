package secret

const (
	sqlKeys      = `SELECT purpose, root_id, sealed FROM encryption_keys ORDER BY purpose`
	sqlKeyInsert = `INSERT INTO encryption_keys (purpose, root_id, sealed, created_at, updated_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`
	sqlKeyReseal = `UPDATE encryption_keys SET root_id = ?, sealed = ?, updated_at = ? WHERE purpose = ? AND root_id = ?`
)

const (
	columns = `name, status, version, created_at, rotated_at, revoked_at`

	sqlGet    = `SELECT ` + columns + ` FROM secrets WHERE environment_id = ? AND name = ?`
	sqlLock   = sqlGet + ` {lock}`
	sqlList   = `SELECT ` + columns + ` FROM secrets WHERE environment_id = ? AND name > ? ORDER BY name LIMIT ?`
	sqlInsert = `INSERT INTO secrets (environment_id, name, status, version, created_at) VALUES (?, ?, 'active', 1, ?) ON CONFLICT DO NOTHING`
	sqlUpdate = `UPDATE secrets SET status = ?, version = ?, rotated_at = ?, revoked_at = ? WHERE environment_id = ? AND name = ?`

	sqlVersionInsert = `INSERT INTO secret_versions (environment_id, secret, version, sealed, size_bytes, actor_kind, actor_id, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
	sqlPresent       = `SELECT s.status, s.version, v.sealed, v.size_bytes FROM secrets s
		JOIN secret_versions v ON v.environment_id = s.environment_id AND v.secret = s.name AND v.version = s.version
		WHERE s.environment_id = ? AND s.name = ?`

	sqlExposeImage = `INSERT INTO secret_exposures (environment_id, secret, computer_id, version, kind, created_at)
		SELECT environment_id, secret, ?, version, 'image', ? FROM secret_exposures WHERE environment_id = ? AND computer_id = ? AND kind = 'received' ON CONFLICT DO NOTHING`
	sqlExposure = `INSERT INTO secret_exposures (environment_id, secret, computer_id, version, kind, created_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`
)
