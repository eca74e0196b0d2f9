#!/bin/bash
# fuzz.sh COUNT: runs every fuzz target of the module with COUNT inputs. A count,
# because a time that runs out can fail a target of itself (go.dev/issue/75804).
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./pkg/... ./cmd/...)
for package in $packages; do
	# Also proves that the tests compile; the closing "ok" line is no target.
	listed=$(go test -list '^Fuzz' "$package")
	for target in $(grep '^Fuzz' <<<"$listed" || true); do
		echo "-- $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1x" "$package"
	done
done
