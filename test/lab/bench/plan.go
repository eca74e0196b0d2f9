package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"accel/test/vm"
)

// comparison is one question that a result answers.
type comparison struct {
	name, group string
	kernel      vm.Kernel
	rounds      int
	command     string // of accel compare, without the rounds
}

// comparisons are all of them, in the order in which they are made.
var comparisons = slices.Concat(pathComparisons, boostComparisons())

var pathComparisons = []comparison{
	// What README shows.
	{"readme", "path", vm.Kernel612, 10, "cubic bbr --path home --size 2M"},
	// Figure 8 of the BBR paper, with what people have.
	{"bbr-paper", "path", vm.Kernel612, 6, "cubic bbr --path bbr-paper --loss 0.001,0.01,0.1,0.5,1,2,5,10,20,30 --size 50M"},
	// The same with its buffers: large on both sides, and long enough for the start
	// not to count.
	{"bbr-paper-buffers", "path", vm.Kernel612, 4, files("/candidates", "cubic-wmem32", "bbr-wmem32") + " --path bbr-paper --client-buffer 32M --loss 0.001,0.1,1,2,5 --size 200M"},
	// What people transfer, over what they have.
	{"matrix", "path", vm.Kernel612, 6, "cubic bbr --path bbr-paper,pacific,home,mobile,satellite --size 640K --size 8M --size 25M"},
	// The same against itself: no difference should be found (pkg/report).
	{"same", "path", vm.Kernel612, 60, "bbr again --arm again=/arms/bbr-fq.conf --path home --size 640K"},
	// Fairness: what is left to somebody else who shares the line.
	{"fairness", "path", vm.Kernel612, 6, "cubic bbr --rate 20 --rtt 40 --loss 0 --queue 0.5x,1x,2x,4x --size 8M --against cubic"},
	// The test that forums copy: 640 MB over loopback with loss.
	{"forum", "path", vm.Kernel612, 6, "cubic bbr --path loopback,loopback-1,loopback-10 --size 640M"},
}

// boostPaths are those that the profile boost is judged on: short and long, slow
// and fast, clean and lossy, with a shallow queue and a deep one.
var boostPaths = []struct {
	name, options string
	lossy         bool
	trixie        bool // measured on Debian 13 too
}{
	{"100mbit-40ms", "--rate 100 --rtt 40 --loss 0 --queue 2x", false, true},
	{"50mbit-80ms-shallow", "--rate 50 --rtt 80 --loss 0 --queue 0.25x", false, false},
	{"100mbit-180ms-loss0.5", "--rate 100 --rtt 180 --loss 0.5 --queue 2x", true, false},
	{"20mbit-180ms-loss1", "--rate 20 --rtt 180 --loss 1 --queue 2x", true, true},
	{"50mbit-40ms-loss2-shallow", "--rate 50 --rtt 40 --loss 2 --queue 0.25x", true, true},
	{"20mbit-80ms-loss1-shallow", "--rate 20 --rtt 80 --loss 1 --queue 0.25x", true, false},
}

// arms are published tunings, as far as a namespace can have them. Where each
// is from is in its file.
var arms = []string{
	"bbr-fq", "byjoey-crazy", "byjoey-smart", "default", "hawshemi", "nodekit", "tune-seedbox",
	"tuned-throughput", "ylx-johnrosen", "ylx-old", "ylx-radical",
}

// candidates are settings that were tried for the profile; their files say what
// each is.
var candidates = []string{
	"iw20", "iw32", "iw45", "iw64", "iw90", "iw120",
	"iw45-rto50", "iw45-rack", "iw45-reordering", "iw45-idle", "iw45-lowat", "iw45-mtu",
}

// files are the options that name arms from files of a directory.
func files(dir string, names ...string) string {
	var options []string
	for _, n := range names {
		options = append(options, fmt.Sprintf("--arm %s=%s", n, filepath.Join(dir, n+".conf")))
	}
	return strings.Join(options, " ")
}

// boostComparisons are those of the group boost. boost is the first arm, and so
// the one that all others are compared with.
func boostComparisons() []comparison {
	var all []comparison
	small := "--size 64K --size 640K --size 8M"
	for _, p := range boostPaths {
		all = append(all, comparison{"boost-" + p.name, "boost", vm.Kernel61, 15, "boost bbr cubic " + p.options + " " + small})
	}
	// What was tried for the profile, alone and with the initial window.
	tried := []struct{ name, options string }{
		{"100mbit-40ms", "--rate 100 --rtt 40 --loss 0 --queue 2x --size 640K"},
		{"20mbit-180ms-loss1", "--rate 20 --rtt 180 --loss 1 --queue 2x --size 640K"},
		{"50mbit-40ms-loss2-shallow", "--rate 50 --rtt 40 --loss 2 --queue 0.25x --size 640K"},
		{"last-mile", "--rate 2 --rtt 40 --loss 0 --queue 20 --size 64K --size 640K"},
	}
	for _, p := range tried {
		all = append(all, comparison{"candidates-" + p.name, "boost", vm.Kernel61, 15, "bbr " + files("/candidates", candidates...) + " " + p.options})
	}
	all = append(all, comparison{"candidates-wmem", "boost", vm.Kernel61, 6,
		files("/candidates", "iw45", "iw45-wmem16") + " --rate 100 --rtt 400 --loss 0 --queue 1x --size 25M"})
	// What must not become worse.
	all = append(all,
		comparison{"worst-competing", "boost", vm.Kernel61, 15, "boost bbr --rate 20 --rtt 40 --loss 0 --queue 1x --size 640K --size 8M --against cubic"},
		comparison{"worst-setup-loss20", "boost", vm.Kernel61, 40, "boost bbr --rate 50 --rtt 80 --loss 20 --queue 1x --size 2K"},
		comparison{"worst-last-mile", "boost", vm.Kernel61, 15, "boost bbr --rate 2 --rtt 40 --loss 0 --queue 20 --size 64K --size 640K"},
		comparison{"worst-last-mile-competing", "boost", vm.Kernel61, 15, "boost bbr --rate 2 --rtt 40 --loss 0 --queue 20 --size 640K --against cubic"},
		comparison{"lan", "boost", vm.Kernel61, 15, "boost bbr cubic --path lan --size 64K --size 640K --size 8M"},
	)
	for _, p := range boostPaths {
		all = append(all, comparison{"arms-" + p.name, "boost", vm.Kernel61, 8,
			"boost " + files("/arms", arms...) + " " + p.options + " --size 640K --size 8M"})
	}
	for _, p := range boostPaths {
		if p.trixie {
			all = append(all, comparison{"boost-trixie-" + p.name, "boost", vm.Kernel612, 15, "boost bbr cubic " + p.options + " " + small})
		}
	}
	for _, p := range boostPaths {
		all = append(all, comparison{"boost-large-" + p.name, "boost", vm.Kernel61, 15, "boost bbr cubic " + p.options + " --size 25M"})
	}
	return all
}
