package lab

import (
	"strings"
	"testing"

	"accel/pkg/report"
	"accel/test/vm"
)

// TestBoost is the short form of the comparisons that docs/boost.md rests on: two
// of its paths, with few rounds, on a clock of their own. The long form is "make
// bench-boost".
func TestBoost(t *testing.T) {
	vm.Need(t)
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel61, OwnTime: true, Parameters: "mitigations=off", Files: map[string]string{"/usr/bin/accel": build(t)}})
	const (
		clean = " --rate 100 --rtt 40 --loss 0 --queue 2x"
		lossy = " --rate 50 --rtt 40 --loss 2 --queue 0.25x"
	)
	for _, c := range []struct {
		name, options string
		// By how many times boost is at least as fast as the arm beside it: the
		// median where the path has no chance in it, else the upper end of the
		// interval, which says that boost is not shown to be slower.
		times float64
		upper bool
	}{
		{"640 KB by bbr", "bbr" + clean + " --size 640K --rounds 5", 1.25, false},
		{"8 MB by bbr", "bbr" + clean + " --size 8M --rounds 4", 1.05, false},
		{"640 KB by bbr with loss", "bbr" + lossy + " --size 640K --rounds 10", 0.97, true},
		{"8 MB by cubic with loss", "cubic" + lossy + " --size 8M --rounds 4", 1.45, false},
		{"640 KB by bbr in a LAN", "bbr --path lan --size 640K --rounds 5", 0.97, true},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			out := m.MustRun(t, "accel compare boost "+c.options+" --json")
			run, err := report.Load(strings.NewReader(out))
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			cell := report.Judge(run).Cells[0]
			boost, other, k := cell.Arms[0].Seconds, cell.Arms[1].Seconds, cell.Comparisons[0]
			if boost == nil || other == nil || k.Ratio.Low == nil {
				t.Fatalf("no verdict: %+v", cell)
			}
			got := other.Median / boost.Median
			if c.upper {
				got = 1 / *k.Ratio.Low
			}
			t.Logf("boost %.3f s, %s %.3f s: %.2f", boost.Median, run.Plan.Arms[1].Name, other.Median, got)
			if got < c.times {
				t.Errorf("boost is %.3f times as fast, want %.2f", got, c.times)
			}
		})
	}
}
