package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"accel/test/vm"
)

// TestBoost is the short form of the comparisons that docs/boost.md rests on: two
// of their paths, and the LAN, with few rounds.
func TestBoost(t *testing.T) {
	vm.Need(t)
	t.Chdir("../../..") // what the machine gets is named from there
	dir := t.TempDir()
	b := bench{comparison: comparison{kernel: vm.Kernel61}, accel: filepath.Join(dir, "accel")}
	if err := build(t.Context(), b.accel); err != nil {
		t.Fatal(err)
	}
	m := vm.Small(t, b.guest())
	path := map[string]string{"lan": "--path lan"}
	for _, p := range boostPaths {
		path[p.name] = p.options
	}
	const (
		clean = "100mbit-40ms"
		lossy = "50mbit-40ms-loss2-shallow"
	)
	for _, c := range []struct {
		name, other, path, options string
		// By how many times boost is at least as fast as the arm beside it: the
		// median where the path has no chance in it, else the upper end of the
		// interval, which says that boost is not shown to be slower.
		times float64
		upper bool
	}{
		{"640 KB by bbr", "bbr", clean, "--size 640K --rounds 5", 1.25, false},
		{"8 MB by bbr", "bbr", clean, "--size 8M --rounds 4", 1.05, false},
		{"640 KB by bbr with loss", "bbr", lossy, "--size 640K --rounds 10", 0.97, true},
		{"8 MB by cubic with loss", "cubic", lossy, "--size 8M --rounds 4", 1.45, false},
		{"640 KB by bbr in a LAN", "bbr", "lan", "--size 640K --rounds 5", 0.97, true},
	} {
		name := strings.ReplaceAll(c.name, " ", "_")
		t.Run(name, func(t *testing.T) {
			out := m.MustRun(t, strings.Join([]string{"accel compare boost", c.other, path[c.path], c.options, "--json"}, " "))
			if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
			r, err := load(dir, name)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			x := r.against(&r.Cells[0], 1)
			if x.point == 0 || math.IsInf(x.high, 1) {
				t.Fatalf("no verdict: %+v", r.Cells[0])
			}
			got := x.point
			if c.upper {
				got = x.high
			}
			t.Logf("boost by %s: %v", c.other, x)
			if got < c.times {
				t.Errorf("boost is %.3f times as fast, want %.2f", got, c.times)
			}
		})
	}
}
