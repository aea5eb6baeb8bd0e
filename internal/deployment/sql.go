package deployment

// environments belongs to access; its row is only locked here, so that one Environment's versions and current
// Deployment change one after the other.
const sqlLockEnvironment = `SELECT id FROM environments WHERE id = ? {lock}`

const (
	sqlBundleInsert = `INSERT INTO bundles (environment_id, digest, manifest, created_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`
	sqlBundleGet    = `SELECT manifest FROM bundles WHERE environment_id = ? AND digest = ?`
	sqlObjectInsert = `INSERT INTO bundle_objects (environment_id, digest, bundle_digest, size_bytes) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`
	sqlObjectFind   = `SELECT COUNT(*) FROM bundle_objects WHERE environment_id = ? AND digest = ? AND size_bytes = ?`
)

const (
	deploymentColumns = `d.id, d.version, d.bundle_digest, d.created_at, d.promoted_at, CASE WHEN c.deployment_id IS NULL THEN 0 ELSE 1 END`
	deploymentFrom    = ` FROM deployments d LEFT JOIN current_deployments c ON c.environment_id = d.environment_id AND c.deployment_id = d.id`

	sqlDeploymentInsert = `INSERT INTO deployments (id, environment_id, version, bundle_digest, program_digest, program_entry, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?)`
	sqlDeploymentGet  = `SELECT ` + deploymentColumns + deploymentFrom + ` WHERE d.environment_id = ? AND d.id = ?`
	sqlDeploymentList = `SELECT ` + deploymentColumns + deploymentFrom + ` WHERE d.environment_id = ? AND d.version < ? ORDER BY d.version DESC LIMIT ?`
	sqlLastVersion    = `SELECT COALESCE(MAX(version), 0) FROM deployments WHERE environment_id = ?`
	sqlPromotedAt     = `UPDATE deployments SET promoted_at = ? WHERE id = ?`
	sqlProgram        = `SELECT program_digest, program_entry FROM deployments WHERE id = ?`

	sqlCurrent    = `SELECT deployment_id FROM current_deployments WHERE environment_id = ?`
	sqlSetCurrent = `INSERT INTO current_deployments (environment_id, deployment_id) VALUES (?, ?)
		ON CONFLICT (environment_id) DO UPDATE SET deployment_id = excluded.deployment_id`

	sqlEventInsert = `INSERT INTO deployment_events (deployment_id, sequence, kind, actor_kind, actor_id, reason, created_at)
		SELECT ?, COALESCE(MAX(sequence), 0) + 1, ?, ?, ?, ?, ? FROM deployment_events WHERE deployment_id = ?`
	sqlEventList = `SELECT sequence, kind, actor_kind, actor_id, reason, created_at FROM deployment_events
		WHERE deployment_id = ? AND sequence > ? ORDER BY sequence LIMIT ?`
)

const (
	agentDefinition = `template_id, max_turn_duration_ms, close_after_idle_ms, hibernate_after_idle_ms`

	sqlFindAgent   = `SELECT ` + agentDefinition + ` FROM agent_definitions WHERE deployment_id = ? AND agent_id = ?`
	sqlAgentDetail = `SELECT ` + agentDefinition + `, definition FROM agent_definitions WHERE deployment_id = ? AND agent_id = ?`
	sqlAgentsOf    = `SELECT agent_id, ` + agentDefinition + `, definition FROM agent_definitions WHERE deployment_id = ? ORDER BY agent_id`

	sqlAgentDefinitionInsert = `INSERT INTO agent_definitions (deployment_id, agent_id, ` + agentDefinition + `, definition) VALUES (?, ?, ?, ?, ?, ?, ?)`

	sqlAgentInsert    = `INSERT INTO agents (environment_id, id, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`
	sqlAgentDeletedAt = `SELECT deleted_at FROM agents WHERE environment_id = ? AND id = ?`
	sqlAgentsDeleted  = `SELECT a.id FROM agents a JOIN agent_definitions f ON f.agent_id = a.id AND f.deployment_id = ?
		WHERE a.environment_id = ? AND a.deleted_at IS NOT NULL ORDER BY a.id`
	sqlAgentRestore = `UPDATE agents SET deleted_at = NULL WHERE environment_id = ? AND id = ?`

	// The first parameter is the current Deployment, "" for none.
	agentFrom    = `SELECT a.id, a.created_at, a.deleted_at, CASE WHEN f.agent_id IS NULL THEN 0 ELSE 1 END FROM agents a LEFT JOIN agent_definitions f ON f.deployment_id = ? AND f.agent_id = a.id`
	sqlAgentGet  = agentFrom + ` WHERE a.environment_id = ? AND a.id = ?`
	sqlAgentsAll = agentFrom + ` WHERE a.environment_id = ? AND a.id > ? ORDER BY a.id LIMIT ?`
	sqlAgentsIn  = agentFrom + ` JOIN agent_definitions g ON g.deployment_id = ? AND g.agent_id = a.id WHERE a.environment_id = ? AND a.id > ? ORDER BY a.id LIMIT ?`
)

const (
	templateResources = `milli_cpu, memory_mib, disk_mib`

	sqlFindTemplate = `SELECT ` + templateResources + `, image_digest, delete_after_unused_ms, refresh_every_ms, definition
		FROM template_definitions WHERE deployment_id = ? AND template_id = ?`
	sqlTemplateDetail = `SELECT template_id, ` + templateResources + `, definition FROM template_definitions WHERE deployment_id = ? AND template_id = ?`
	sqlTemplateList   = `SELECT template_id, ` + templateResources + `, definition FROM template_definitions
		WHERE deployment_id = ? AND template_id > ? ORDER BY template_id LIMIT ?`
	sqlTemplatesOf = `SELECT template_id, ` + templateResources + ` FROM template_definitions WHERE deployment_id = ? ORDER BY template_id`

	sqlTemplateInsert = `INSERT INTO template_definitions (deployment_id, template_id, ` + templateResources + `, image_digest, delete_after_unused_ms, refresh_every_ms, definition)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlRefreshing = `SELECT c.environment_id, c.deployment_id, d.template_id, d.refresh_every_ms FROM current_deployments c
		JOIN template_definitions d ON d.deployment_id = c.deployment_id WHERE d.refresh_every_ms IS NOT NULL ORDER BY c.environment_id, d.template_id`
)
