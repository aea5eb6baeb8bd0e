package server

// sqlProbe is the write that readiness tries and takes back.
const sqlProbe = `INSERT INTO schema_migrations (name) VALUES ('readiness probe')`
