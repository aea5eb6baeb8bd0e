#!/bin/sh
# Generates Go from protobuf files with the plugins pinned in this module.
# usage: tools/generate/protoc.sh FILE.proto...   (paths from the repository root)
# Needs protoc (Debian: protobuf-compiler). A plugin is one more `tool` line in go.mod here, and is
# used by the files that need it: a file with a service also gets protoc-gen-connect-go.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
command -v protoc >/dev/null || { echo "protoc is missing: apt-get install protobuf-compiler" >&2; exit 1; }
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
(cd tools/generate && GOBIN="$bin" go install tool)
for file in "$@"; do
	connect=""
	if grep -q '^service ' "$file" && [ -x "$bin/protoc-gen-connect-go" ]; then
		connect="--connect-go_out=. --connect-go_opt=module=helmr.dev/helmr --connect-go_opt=simple"
	fi
	# shellcheck disable=SC2086
	PATH="$bin:$PATH" protoc --go_out=. --go_opt=module=helmr.dev/helmr $connect "$file"
done
