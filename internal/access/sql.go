package access

const (
	sqlIdempotencyGet = `SELECT request_hash, receipt FROM idempotency_records
		WHERE environment_id = ? AND caller = ? AND operation = ? AND target = ? AND idempotency_key = ?`
	sqlIdempotencyPut = `INSERT INTO idempotency_records
		(environment_id, caller, operation, target, idempotency_key, request_hash, receipt, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
)
