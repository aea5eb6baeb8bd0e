package access

const (
	sqlIdempotencyGet = `SELECT request_hash, receipt, expired_at FROM idempotency_records
		WHERE environment_id = ? AND caller = ? AND operation = ? AND target = ? AND idempotency_key = ?`
	sqlIdempotencyPut = `INSERT INTO idempotency_records
		(environment_id, caller, operation, target, idempotency_key, request_hash, receipt, session_id, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlIdempotencyExpire = `UPDATE idempotency_records SET request_hash = '', receipt = '', expired_at = ? WHERE session_id = ? AND expired_at IS NULL`
)

const limitColumns = `max_resident_computers, max_cpu_millis, max_memory_bytes, max_reserved_storage_bytes, max_outstanding_admissions,
	max_causal_depth, admission_rate_per_second, admission_burst, preparation_timeout_ms`

const (
	sqlOrganizationInsert = `INSERT INTO organizations (id, slug, name, created_at) VALUES (?, ?, ?, ?)`
	sqlProjectInsert      = `INSERT INTO projects (id, organization_id, slug, name, created_at) VALUES (?, ?, ?, ?, ?)`
	sqlEnvironmentInsert  = `INSERT INTO environments (id, project_id, slug, name, color_hex, is_default, history_retention_mode, history_retention_seconds,
		` + limitColumns + `, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlEnvironmentGet = `SELECT project_id, slug, history_retention_mode, history_retention_seconds, ` + limitColumns + ` FROM environments WHERE id = ?`
	sqlUserInsert     = `INSERT INTO users (id, email, display_name, created_at) VALUES (?, ?, ?, ?)`
	sqlMemberInsert   = `INSERT INTO members (organization_id, user_id, owner, status, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)`

	sqlFirstOwner = `SELECT organization_id, user_id FROM members WHERE owner = 1 AND status = 'active' ORDER BY created_at, user_id LIMIT 1`
	// What an installation began with: the first of each, the default Environment before others.
	sqlBootstrapFind = `SELECT o.id, p.id, e.id, m.user_id FROM organizations o JOIN projects p ON p.organization_id = o.id
		JOIN environments e ON e.project_id = p.id JOIN members m ON m.organization_id = o.id AND m.owner = 1
		ORDER BY o.created_at, o.id, p.created_at, p.id, e.is_default DESC, e.created_at, e.id, m.created_at, m.user_id LIMIT 1`
)

const (
	sqlKeyByHash = `SELECT k.id, k.key_hash, k.scopes, k.expires_at, k.revoked_at, e.id, p.id, p.organization_id FROM api_keys k
		JOIN environments e ON e.id = k.environment_id JOIN projects p ON p.id = e.project_id WHERE k.key_hash = ?`
	sqlKeyIDByHash = `SELECT id FROM api_keys WHERE key_hash = ?`
	sqlKeyInsert   = `INSERT INTO api_keys (id, environment_id, name, key_prefix, key_hash, scopes, created_by, created_at, expires_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlKeyRevokedAt = `SELECT revoked_at FROM api_keys WHERE environment_id = ? AND id = ?`
	sqlKeyRevoke    = `UPDATE api_keys SET revoked_at = ? WHERE environment_id = ? AND id = ? AND revoked_at IS NULL`
)
