// Package sdk carries the TypeScript source of @helmr/sdk, so that the helmr binary can bundle it into programs and
// write its types beside a project without a package registry. There is no Go SDK here; the Go client is package client.
package sdk

import "embed"

// Files holds package.json and src.
//
//go:embed package.json src
var Files embed.FS
