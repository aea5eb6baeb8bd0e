package servertest

const sqlCopyEnvironment = `INSERT INTO environments (id, project_id, slug, name, color_hex, is_default, history_retention_mode,
	history_retention_seconds, max_resident_computers, max_cpu_millis, max_memory_bytes, max_reserved_storage_bytes,
	max_outstanding_admissions, max_causal_depth, admission_rate_per_second, admission_burst, preparation_timeout_ms, created_at, updated_at)
	SELECT ?, project_id, 'other', 'other', color_hex, 0, history_retention_mode,
	history_retention_seconds, max_resident_computers, max_cpu_millis, max_memory_bytes, max_reserved_storage_bytes,
	max_outstanding_admissions, max_causal_depth, admission_rate_per_second, admission_burst, preparation_timeout_ms, created_at, updated_at
	FROM environments WHERE id = ?`
