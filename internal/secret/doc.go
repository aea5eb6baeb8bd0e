// Package secret is the room of Secrets: named values of an Environment that Computers may be given. It seals values,
// keeps their versions, and records which Computer received which version in readable form.
//
// A value enters by Create and Rotate and leaves by Resolve alone, for a Computer whose binding asks for it. It is never in
// an answer, an error, an event or a log. Sealed values lie in the database; the key that seals them lies there too, itself
// sealed under a root key that never does (see Keyring).
//
// # States
//
//	From      Event      To         Side effects
//	-         create     active     -
//	active    rotate     active     a new version for later resolutions
//	active    revoke     revoked    later resolutions refused; final
//
// # Invariants
//
//   - A version is sealed for its Environment, name and number: moved to another row it does not open.
//   - Only the present version of an active Secret is ever opened.
//   - Before a value is handed out in readable form, its exposure is committed.
//   - Whether a request repeats an earlier one is decided by a keyed fingerprint of its value, so that the idempotency
//     records say nothing of it.
//
// # Tables
//
// encryption_keys, secrets, secret_versions, secret_exposures. Bindings belong to whoever binds: Templates and Computers.
// What a binding may say is package binding.
package secret
