// Package lab runs the tests of pkg/lab that need delay, loss and fq on real
// kernels of Debian, in virtual machines.
package lab

import (
	"os"
	"testing"

	"accel/test/vm"
)

// TestPath verifies the emulated path: delay, jitter, loss, bursts, reordering,
// rate and queue, by counting and clocking packets, and whole comparisons.
func TestPath(t *testing.T) {
	kernels := []vm.Kernel{vm.Kernel612}
	if long := os.Getenv("ACCEL_LONG"); long != "" && long != "0" {
		kernels = []vm.Kernel{vm.Kernel510, vm.Kernel61, vm.Kernel612, vm.Kernel7}
	}
	for _, k := range kernels {
		t.Run(k.String(), func(t *testing.T) {
			vm.RunTests(t, vm.Guest{Kernel: k, OwnTime: true}, "./pkg/lab", "^TestGuest")
		})
	}
}
