package hosts

import (
	"testing"

	"accel/test/vm"
)

// TestPackages runs the tests of the packages that speak with the kernel
// inside Debian's kernels, where there are modules, fq and every sort of link.
func TestPackages(t *testing.T) {
	kernels := []vm.Kernel{vm.Kernel61}
	if long() {
		kernels = vm.Kernels()
	}
	for _, k := range kernels {
		for pkg, run := range map[string]string{
			"./pkg/kernel": "^TestGuest$",
			"./pkg/qdisc":  ".",
			"./pkg/route":  ".",
			"./pkg/socket": ".",
		} {
			t.Run(k.String()+" "+pkg, func(t *testing.T) {
				t.Parallel()
				vm.RunTests(t, vm.Guest{Kernel: k, Links: 1, Queues: 4, CPUs: 4}, pkg, run)
			})
		}
	}
}
