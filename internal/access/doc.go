// Package access is the room of who may do what: Organization, Project, Environment with its limits, people, API keys,
// the table of permissions, and the records that make requests idempotent. It knows no HTTP and checks no route by
// itself: the server asks Authenticate who calls and Principal.Can what the caller may do.
//
// An API key:
//
//	from     event                  to
//	-        created                active
//	active   its expiry passes      expired   (read from the clock, nothing is written)
//	active   revoke                 revoked   (final)
//	expired  revoke                 revoked
//
// Invariants:
//   - The text of a key is never stored, only its SHA-256; it is shown once, to whoever creates it.
//   - A key belongs to one Environment and holds scopes only, never a permission of people.
//   - Every request is looked up anew, so a revocation counts from the next request on, on every server.
//   - Bootstrap makes the first Organization, Project, Environment, owner and key together or not at all.
//   - An idempotency record is written in the transaction of the effect it stands for.
//
// It owns the tables organizations, projects, environments, users, members, api_keys and idempotency_records.
package access
