// Package policy is what a Template's network policy means: its JSON form, its normal form, and whether a name and an
// address are permitted under it. Everything is a pure function. It opens no connection and resolves no name: see egress
// for what enforces a policy. The SDK checks policies by the same rules; both are tested with testdata/vectors.json.
package policy
