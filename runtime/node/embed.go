// Package node carries the TypeScript source of the host program that runs an Agent inside a Computer. It runs
// nothing; package build bundles it and the Worker puts it into Computers.
package node

import "embed"

// Files holds src.
//
//go:embed src
var Files embed.FS
