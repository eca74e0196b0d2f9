package vm

import (
	"strings"
	"testing"
)

// TestSmall boots every kernel of the matrix and has modules loaded the way
// that tests of accel rely on: by modprobe, and by the kernel itself.
func TestSmall(t *testing.T) {
	for _, k := range append(Kernels(), Kernel612ARM64) {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			m := Small(t, Guest{Kernel: k})
			t.Logf("%s took %v to boot", m.Release, m.Booted)
			if got := m.MustRun(t, "uname -r"); strings.TrimSpace(got) != m.Release {
				t.Errorf("uname -r: %q, want %q", got, m.Release)
			}
			m.MustRun(t, "modprobe sch_fq && tc qdisc show")
			m.MustRun(t, "echo bbr > /proc/sys/net/ipv4/tcp_congestion_control")
			if got := m.MustRun(t, "cat /proc/sys/net/ipv4/tcp_congestion_control"); got != "bbr\n" {
				t.Errorf("the kernel did not load bbr by itself: %q", got)
			}
			r := m.Run(t, "echo out; echo err >&2; exit 7")
			if r != (Result{"out\n", "err\n", 7}) {
				t.Errorf("a command's result came back as %+v", r)
			}
		})
	}
}
