// Package lab runs the tests of pkg/lab that need delay, loss and fq on real
// kernels of Debian, in virtual machines.
package lab

import (
	"os"
	"testing"

	"accel/test/vm"
)

// tools are what accel is measured against.
var tools = vm.Tools{
	Programs: []string{"usr/bin/iperf3", "usr/bin/curl", "usr/sbin/nginx"},
	Packages: []string{
		"iperf3", "libiperf0", "libsctp1",
		"nginx", "libcrypt1",
		"curl", "libcurl4", "libnghttp2-14", "libidn2-0", "librtmp1", "libssh2-1", "libpsl5", "libgssapi-krb5-2", "libkrb5-3", "libk5crypto3",
		"libcom-err2", "libkrb5support0", "libkeyutils1", "libldap-2.5-0", "libsasl2-2", "libbrotli1", "libunistring2", "libgnutls30",
		"libhogweed6", "libnettle8", "libgmp10", "libp11-kit0", "libffi8", "libtasn1-6",
	},
}

// TestPath verifies the emulated path: delay, jitter, loss, bursts, reordering,
// rate and queue, by counting and clocking packets, that other programs measure
// the same over it, and whole comparisons.
func TestPath(t *testing.T) {
	kernels := []vm.Kernel{vm.Kernel612}
	if long := os.Getenv("ACCEL_LONG"); long != "" && long != "0" {
		kernels = []vm.Kernel{vm.Kernel510, vm.Kernel61, vm.Kernel612, vm.Kernel7}
	}
	for _, k := range kernels {
		t.Run(k.String(), func(t *testing.T) {
			vm.RunTests(t, vm.Guest{Kernel: k, OwnTime: true, Tools: tools}, "./pkg/lab", "^TestGuest")
		})
	}
}
