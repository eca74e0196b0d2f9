// Package hosts tests the package as an operator has it: installed on Debian
// systems in virtual machines, enabled, rebooted, killed in the middle, and
// taken away again; and under every kernel of the matrix. One scenario alone:
//
//	go test ./test/hosts -v -run TestWholeBookworm
//
// The names of subtests begin with the number of what they show in the issue
// that asked for it. ACCEL_LONG=1 runs the full counts. ACCEL_DEB names a
// package to test (accel_..._amd64.deb, with the other architectures' beside
// it); otherwise it is built by "make deb".
package hosts
