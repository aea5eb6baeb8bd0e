package deployment

const (
	sqlCurrent   = `SELECT deployment_id FROM current_deployments WHERE environment_id = ?`
	sqlFindAgent = `SELECT template_id, max_turn_duration_ms, close_after_idle_ms, hibernate_after_idle_ms
		FROM agent_definitions WHERE deployment_id = ? AND agent_id = ?`
	sqlFindTemplate = `SELECT milli_cpu, memory_mib, disk_mib, image_digest, delete_after_unused_ms, definition
		FROM template_definitions WHERE deployment_id = ? AND template_id = ?`
	sqlAgentDeletedAt = `SELECT deleted_at FROM agents WHERE environment_id = ? AND id = ?`
	sqlProgram        = `SELECT program_digest, program_entry FROM deployments WHERE id = ?`
)
