#!/bin/bash
# fuzz.sh TIME: runs every fuzz target of the module for TIME (as 3s or 2m).
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./pkg/... ./cmd/...)
for package in $packages; do
	# Also proves that the tests compile; the closing "ok" line is no target.
	listed=$(go test -list '^Fuzz' "$package")
	for target in $(grep '^Fuzz' <<<"$listed" || true); do
		echo "-- $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$package"
	done
done
