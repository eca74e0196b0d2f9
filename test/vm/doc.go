// Package vm starts real Debian kernels and whole Debian systems in qemu, for
// tests that cannot be had on the host: other kernels, systemd as PID 1, boots,
// power cuts, packages.
//
// There are two kinds of machine, and both are driven alike, by running shell
// commands in them:
//
//   - Small: a stock Debian kernel with an initramfs made on the spot: a Go
//     program as /init, the real modprobe, ip, tc and ss, busybox for the rest,
//     and the kernel's network modules. It is up in a few seconds and has no
//     disk. See [Small] and [RunTests].
//   - Whole: Debian installed on a disk, with systemd, reached by ssh. It is
//     up in half a minute, survives reboots, and can be killed in the middle
//     of anything. See [Whole].
//     The emulator loads its kernel, unless [Options].Boot says that a boot
//     loader on the disk does: then it also reboots by itself, and finds a small
//     Debian archive to install kernels from.
//
// Kernels, user land and images come from the Debian mirror in this machine's
// own apt configuration and are kept in a cache ($ACCEL_CACHE, or accel-test in
// the user's cache directory), each built once. Delete the directory to start
// afresh.
//
// The processor is emulated in software: that works everywhere, also inside
// virtual machines whose /dev/kvm exists but does not work. ACCEL_VM_ACCEL=kvm
// asks for KVM, which is used if a trial boot with it succeeds.
//
// Environment:
//
//	ACCEL_VM=1         missing tools fail the tests (as CI=true does) instead of skipping them
//	ACCEL_VM_SLOTS=n   how many machines may run at once, over all test processes (default: the number of CPUs, at most 4)
//	ACCEL_VM_ACCEL=kvm try KVM
//	ACCEL_CACHE=dir    where the cache is
package vm
