//go:build tools

// Package s3 pins the S3 server that tests of the bucket store run against. It is a module of its own so that its
// dependencies never reach helmr's.
package s3

import _ "github.com/versity/versitygw/cmd/versitygw"
