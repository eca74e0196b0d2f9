// Package sysctld holds the differential test of pkg/sysctl: generated worlds of
// sysctl files, for which accel's answer must be what the real systemd-sysctl and
// the real `sysctl --system` of Debian 12 and of Debian 13 do.
//
// The tools run in private mount, network and process namespaces that the test
// makes, in minimal Debian roots that it builds with mmdebstrap from the
// machine's own Debian mirror and keeps in $ACCEL_CACHE (or accel-test in the
// user's cache directory). It needs root. For a longer run:
//
//	go test ./test/sysctld -configs 50000 [-seed 7]
package sysctld
