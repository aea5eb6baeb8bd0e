package storage

import "strings"

// lookAtOnce is how many names one statement looks for.
const lookAtOnce = 200

const (
	sqlBegin = `INSERT INTO storage (environment_id, collected_at) VALUES (?, 0) ON CONFLICT DO NOTHING`
	sqlLock  = `SELECT collected_at FROM storage WHERE environment_id = ? {lock}`
	sqlClaim = `UPDATE storage SET collected_at = ? WHERE environment_id = ? AND collected_at <= ?`
	sqlAll   = `SELECT id FROM environments ORDER BY id`

	sqlRetire = `INSERT INTO retired_objects (environment_id, name, retired_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`
	sqlOld    = `SELECT name FROM retired_objects WHERE environment_id = ? AND retired_at <= ? ORDER BY retired_at LIMIT 2000`
	sqlForget = `DELETE FROM retired_objects WHERE environment_id = ? AND name = ? AND retired_at <= ?`
)

// sqlRetired looks for lookAtOnce names; fewer are filled up with one of them.
var sqlRetired = `SELECT name FROM retired_objects WHERE environment_id = ? AND name IN (?` + strings.Repeat(", ?", lookAtOnce-1) + `)`
