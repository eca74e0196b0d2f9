package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestNamedPathsCanBeEmulated(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range append(Paths(), DefaultPath) {
		if _, err := p.Complete(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.Name != "" && p.Source == "" || seen[p.Name] {
			t.Errorf("%q has no source, or is there twice", p.Name)
		}
		seen[p.Name] = true
	}
	if _, ok := PathNamed("nosuch"); ok {
		t.Error("found a path that is not there")
	}
}

func TestQueueIsComputed(t *testing.T) {
	for _, test := range []struct {
		path Path
		want int
	}{
		{Path{RateMbit: 100, RTT: 100 * time.Millisecond, QueueBDP: 1}, 826}, // 1.25 MB / 1514
		{Path{RateMbit: 100, RTT: 100 * time.Millisecond, QueueBDP: 0.5}, 413},
		{Path{RateMbit: 1, RTT: time.Millisecond, QueueBDP: 1}, minQueue},
		{Path{RateMbit: 1, QueuePackets: 64}, 64},
		{Path{RTT: time.Millisecond, QueueBDP: 1}, 0},
	} {
		p, err := test.path.Complete()
		if err != nil || p.QueuePackets != test.want {
			t.Errorf("%+v: %d packets, %v", test.path, p.QueuePackets, err)
		}
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	arms := []Arm{{Name: "a", Algorithm: "cubic"}}
	for _, p := range []Path{
		{RateMbit: -1}, {RateMbit: 1e9, QueuePackets: 9}, {RateMbit: 0.001, QueuePackets: 9}, {RateMbit: 1},
		{RTT: -1}, {RTT: 2 * time.Minute}, {RTT: time.Millisecond, Jitter: time.Millisecond},
		{LossPercent: 91}, {LossPercent: 90, LossBurst: 2}, {LossPercent: 1, LossBurst: 2000},
		{ReorderPercent: 1}, {RTT: time.Second, ReorderPercent: 101},
		{Loopback: true, RateMbit: 1}, {RateMbit: 1, QueuePackets: maxPackets + 1}, {RateMbit: 100000, RTT: time.Minute, QueueBDP: 10},
		{ClientBuffer: -1}, {ClientBuffer: 100}, {ClientBuffer: 1 << 40},
	} {
		if _, err := (Plan{Arms: arms, Paths: []Path{p}}).Complete(); !errors.Is(err, ErrPath) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, p := range []Plan{
		{}, {Arms: slices.Repeat(arms, 2)}, {Arms: slices.Repeat(arms, maxArms+1)},
	} {
		if _, err := p.Complete(); !errors.Is(err, ErrArm) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, p := range []Plan{
		{Rounds: -1}, {Rounds: maxRounds + 1}, {Flows: maxFlows + 1}, {Sizes: []int64{0}}, {Sizes: []int64{5, 5}},
		{Against: "x y"}, {Against: "cubic", Paths: []Path{{Loopback: true}}}, {Paths: make([]Path, maxCells+1)},
	} {
		p.Arms = arms
		if _, err := p.Complete(); !errors.Is(err, ErrPath) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// Whatever the plan: each transfer is made once; the arms take turns so that in
// every two rounds the second is the first backwards; and the order is that of
// the seed.
func TestOrderOfRounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Plan{
			Arms:   make([]Arm, rapid.IntRange(1, 5).Draw(t, "arms")),
			Paths:  make([]Path, rapid.IntRange(1, 3).Draw(t, "paths")),
			Sizes:  make([]int64, rapid.IntRange(1, 3).Draw(t, "sizes")),
			Rounds: rapid.IntRange(1, 6).Draw(t, "rounds"),
			Seed:   rapid.Uint64().Draw(t, "seed"),
		}
		jobs := p.jobs()
		seen := map[job]bool{}
		for _, j := range jobs {
			if seen[j] {
				t.Fatalf("%+v twice", j)
			}
			seen[j] = true
		}
		if len(jobs) != p.TransferCount() {
			t.Fatalf("%d jobs, want %d", len(jobs), p.TransferCount())
		}
		n := len(p.Arms)
		for i := 0; i+n <= len(jobs); i += n {
			round := jobs[i : i+n]
			for _, j := range round {
				if j.Round != round[0].Round || j.Path != round[0].Path || j.Size != round[0].Size {
					t.Fatalf("rounds overlap: %+v", round)
				}
			}
			if round[0].Round%2 == 1 {
				for k, j := range round {
					if jobs[i-1-k].Arm != j.Arm {
						t.Fatalf("round %d is not the one before backwards", j.Round)
					}
				}
			}
		}
		if d := cmp.Diff(jobs, p.jobs()); d != "" {
			t.Fatal(d)
		}
	})
}

// The default is to be waited for: less than 90 s of transfers.
func TestDefaultComparisonIsShort(t *testing.T) {
	p, err := Plan{Arms: arms(t, "bbr", "cubic")}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Estimate(); d > 90*time.Second || d < 10*time.Second {
		t.Errorf("%v", d)
	}
}

// Equation 6 of RFC 8312 at 100 ms and 0.1 %: 33 segments; Reno 39.
func TestEstimateOfLoss(t *testing.T) {
	p, err := Plan{Arms: arms(t, "cubic", "bbr"), Sizes: []int64{10 << 20}}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	cubic, bbr := p.estimate(job{Arm: 0}), p.estimate(job{Arm: 1})
	if cubic < 15*time.Second || cubic > 25*time.Second || bbr > 3*time.Second {
		t.Errorf("cubic %v, bbr %v", cubic, bbr)
	}
}

func TestTo90(t *testing.T) {
	// A flow that needs a second to come to 1000 bytes a millisecond, and goes
	// on for two.
	var all []arrival
	bytes := int64(0)
	for ms := int64(1); ms <= 3000; ms++ {
		bytes += min(ms, 1000)
		all = append(all, arrival{ms * 1e6, bytes})
	}
	got := to90(all, 10*time.Millisecond)
	// The window of 60 ms ends at 90 % when its middle is there.
	if got < 900*time.Millisecond || got > 960*time.Millisecond {
		t.Errorf("%v", got)
	}
	if got := to90(all, time.Second); got != 0 {
		t.Errorf("three round trips: %v", got)
	}
	if got := to90(all[:5], 0); got != 0 {
		t.Errorf("five arrivals: %v", got)
	}
}

func TestState(t *testing.T) {
	plan, err := Plan{Arms: arms(t, "bbr", "cubic"), Rounds: 2, Flows: 2}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "x.part")
	if _, err := OpenState(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	s, err := CreateState(name, plan, "accel compare", "6.1")
	if err != nil {
		t.Fatal(err)
	}
	one := []Transfer{{Arm: 1, Size: DefaultSize, Finished: true}, {Arm: 1, Size: DefaultSize, Flow: 1}}
	if err := s.append(one); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := CreateState(name, plan, "", ""); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created over another: %v", err)
	}
	// A power cut in the middle of the next line.
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, append(data, `[{"path":0,`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = OpenState(name); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(name); !errors.Is(err, ErrState) {
		t.Errorf("opened twice: %v", err)
	}
	if d := cmp.Diff([][]Transfer{one}, s.done); d != "" || !s.Fits(plan) || s.Command != "accel compare" || s.Kernel != "6.1" || s.Done() != 1 {
		t.Errorf("%s %+v", d, s)
	}
	if err := s.append(one); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s, err = OpenState(name); err != nil || s.Done() != 2 {
		t.Fatalf("%v, %d", err, s.Done())
	}
	other := plan
	other.Seed++
	if s.Fits(other) {
		t.Error("another plan fits")
	}
	s.Close()
	header, _, _ := strings.Cut(string(data), "\n")
	for _, text := range []string{
		"", "x", "\n", "{}\n", strings.Replace(header, "part/1", "part/2", 1) + "\n", header + "\n[]\n", header + "\n[{\"arm\":7}]\n",
		header + "\n[{\"round\":-1}]\n", header + "\nnull\n", strings.Replace(header, `"rounds":2`, `"rounds":-2`, 1) + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenState(name); !errors.Is(err, ErrState) {
			t.Errorf("%.50q: %v", text, err)
		}
	}
}
