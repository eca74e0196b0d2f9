package report

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"accel/pkg/lab"
)

// timesRun makes a run of one cell out of completion times; a negative one is
// of a transfer that did not finish.
func timesRun(limit time.Duration, arms ...[]float64) *lab.Run {
	run := &lab.Run{Schema: lab.Schema, Complete: true}
	run.Plan = lab.Plan{Paths: []lab.Path{{RateMbit: 100}}, Sizes: []int64{1e6}, Flows: 1, Limit: limit}
	for a, times := range arms {
		run.Plan.Arms = append(run.Plan.Arms, lab.Arm{Name: string(rune('a' + a)), Algorithm: "bbr"})
		run.Plan.Rounds = max(run.Plan.Rounds, len(times))
		for i, s := range times {
			t := lab.Transfer{Arm: a, Size: 1e6, Round: i, Finished: s > 0, Seconds: s, Bytes: 1e6, Algorithm: "bbr"}
			if s < 0 {
				t.Seconds, t.Bytes = limit.Seconds(), 5e5
			}
			t.Goodput = float64(t.Bytes) * 8 / t.Seconds
			run.Transfers = append(run.Transfers, t)
		}
	}
	return run
}

func only(t testing.TB, run *lab.Run) *Comparison {
	t.Helper()
	v := Judge(run)
	if v.comparisons() != 1 {
		t.Fatalf("%d comparisons", v.comparisons())
	}
	return &v.Cells[0].Comparisons[0]
}

// lognormal gives skewed times: a median, and the spread of their logarithm.
func lognormal(r *rand.Rand, n int, median, spread float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = median * math.Exp(spread*r.NormFloat64())
	}
	return out
}

func TestJudge(t *testing.T) {
	slow, fast := []float64{10, 11, 12, 13, 14, 15}, []float64{1, 1.1, 1.2, 1.3, 1.4, 1.5}
	tests := []struct {
		name     string
		a, b     []float64
		outcome  Outcome
		sentence string
	}{
		{"apart", slow, fast, Differs, "b is 10.0 times as fast as a (95 % interval: 8.00 to 12.5)"},
		{"apart, the first ahead", fast, slow, Differs, "a is 10.0 times as fast as b (95 % interval: 8.00 to 12.5)"},
		{"four each can be told apart", slow[:4], fast[:4], Differs, "b is 10.0 times as fast as a (95 % interval: 7.69 to 13.0)"},
		{"three cannot", slow[:3], fast[:3], NotEnough, "not enough rounds to tell b from a (measured 3 and 3, needed 4 of each)"},
		{"one missing", slow, nil, NotEnough, "not enough rounds to tell b from a (measured 0 and 6, needed 4 of each)"},
		{"nothing", nil, nil, NotEnough, "nothing was measured"},
		{"equal to the digit", []float64{1, 1, 1, 1, 1}, []float64{1, 1, 1, 1, 1}, NoDifference,
			"no difference seen between b and a (ratio 1.00, 95 % interval: 1.00 to 1.00; these rounds would likely have seen a difference of less than 0.1 %)"},
		{"nobody finished", []float64{-1, -1, -1, -1}, []float64{-1, -1, -1, -1}, Neither, "neither a nor b finished in 1m0s"},
		{"one arm never finished", []float64{-1, -1, -1, -1, -1}, fast[:5], Differs, "b is more than 50.0 times as fast as a (95 % interval: more than 42.9)"},
		{"the other never finished", fast[:5], []float64{-1, -1, -1, -1, -1}, Differs, "a is more than 50.0 times as fast as b (95 % interval: more than 42.9)"},
		{"both sometimes", []float64{1, 1.1, -1, -1}, []float64{1.2, 1.3, -1, -1}, NoDifference,
			"no difference seen between b and a (ratio ?, 95 % interval: not bounded; which one these rounds could have seen cannot be said, since transfers did not finish)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run := timesRun(time.Minute, tt.a, tt.b)
			v := Judge(run)
			k := v.Cells[0].Comparisons[0]
			want := strings.ReplaceAll(tt.sentence, "1m0s", "60 s")
			if k.Outcome != tt.outcome || v.Sentence != want {
				t.Errorf("%s: %s\nwant %s: %s", k.Outcome, v.Sentence, tt.outcome, want)
			}
		})
	}
}

func TestMedians(t *testing.T) {
	tests := []struct {
		times  []float64
		median string
		ci     string
	}{
		{[]float64{3}, "3.00 s", "–"},
		{[]float64{1, 2, 3, 4, 5}, "3.00 s", "–"},
		{[]float64{6, 5, 4, 3, 2, 1}, "3.50 s", "1.00 – 6.00 s"},
		{[]float64{1, 2, 3, -1, -1}, "3.00 s", "–"},
		{[]float64{1, 2, -1, -1}, "> 31.0 s", "–"}, // half way from 2 to something above 60
		{[]float64{1, 2, 3, -1, -1, -1}, "> 31.5 s", "1.00 s – > 60.0 s"},
		{[]float64{1, 2, 3, 4, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}, "> 60.0 s", "3.00 s – > 60.0 s"},
		{[]float64{-1, -1, -1, -1, -1, -1, -1}, "> 60.0 s", "> 60.0 s"},
		{[]float64{0.01, 0.02, 0.03, 0.04, 0.05, 0.06}, "35.0 ms", "10.0 – 60.0 ms"},
	}
	for _, tt := range tests {
		e := Judge(timesRun(time.Minute, tt.times)).Cells[0].Arms[0].Seconds
		if got := timeText(e); got != tt.median {
			t.Errorf("%v: median %s, want %s", tt.times, got, tt.median)
		}
		if got := timeInterval(e); got != tt.ci {
			t.Errorf("%v: interval %s, want %s", tt.times, got, tt.ci)
		}
	}
}

// TestFlows holds that a round with several flows counts once: taking each flow
// for a round would make claims out of nothing.
func TestFlows(t *testing.T) {
	run := timesRun(time.Minute, []float64{1, 2, 3}, []float64{4, 5, 6})
	run.Plan.Flows = 2
	for _, tr := range slices.Clone(run.Transfers) {
		tr.Flow = 1
		tr.Seconds *= 2
		run.Transfers = append(run.Transfers, tr)
	}
	run.Transfers = run.Transfers[:len(run.Transfers)-1] // interrupted in the last round
	v := Judge(run)
	a, b := v.Cells[0].Arms[0], v.Cells[0].Arms[1]
	if a.Rounds != 3 || a.Seconds.Median != 4 || b.Rounds != 2 {
		t.Errorf("%d rounds with the median %g, %d rounds; want 3, 4 (of the later flow), 2", a.Rounds, a.Seconds.Median, b.Rounds)
	}
	if want := 2e6 * 8 / 4.0; a.Goodput.Median != want {
		t.Errorf("goodput %g, want that of both flows, %g", a.Goodput.Median, want)
	}
	if v.Cells[0].Comparisons[0].Outcome != NotEnough {
		t.Error("a claim out of three rounds")
	}
}

// TestWarmupsAndFailures holds that neither is counted, and that failures are
// told.
func TestWarmupsAndFailures(t *testing.T) {
	run := timesRun(time.Minute, []float64{1, 1, 1, 1}, []float64{2, 2, 2, 2})
	run.Transfers[0].Warmup = true
	run.Transfers[5].Error = "connection reset"
	v := Judge(run)
	if a, b := v.Cells[0].Arms[0], v.Cells[0].Arms[1]; a.Rounds != 3 || b.Rounds != 3 || b.Failed != 1 {
		t.Errorf("rounds %d and %d, failed %d", a.Rounds, b.Rounds, b.Failed)
	}
	if !slices.ContainsFunc(v.Notes, func(s string) bool { return strings.Contains(s, "connection reset") }) {
		t.Errorf("the failure is not told: %q", v.Notes)
	}
}

// TestHolm compares with values worked out by hand.
func TestHolm(t *testing.T) {
	var family []*Comparison
	for _, p := range []float64{0.01, 0.04, 0.03, 0.005, 0.9} {
		family = append(family, &Comparison{P: p, AdjustedP: 1, mayClaim: p < 0.5})
	}
	var v Verdicts
	level := holm(family, &v)
	for i, want := range []float64{0.03, 0.06, 0.06, 0.02, 1} {
		if math.Abs(family[i].AdjustedP-want) > 1e-12 {
			t.Errorf("adjusted P %d is %g, want %g", i, family[i].AdjustedP, want)
		}
	}
	if v.Comparisons != 4 || level != Alpha/2 {
		t.Errorf("%d comparisons, level %g; want 4, %g", v.Comparisons, level, Alpha/2)
	}
}

// TestMannWhitney compares with values counted by hand, those with ties and
// samples of different size among them.
func TestMannWhitney(t *testing.T) {
	tests := []struct {
		x, y []float64
		want float64
	}{
		{[]float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}, 2.0 / 70},
		{[]float64{1, 2, 3, 5}, []float64{4, 6, 7, 8}, 4.0 / 70},
		{[]float64{9}, []float64{9, 1}, 1},                           // 2 of 3 arrangements are as far out
		{[]float64{9, 9, 9, 9}, []float64{1, 2, 3, 4, 5}, 2.0 / 126}, // none finished, all finished
		{[]float64{9, 9}, []float64{1, 9, 9, 9}, 2 * 10.0 / 15},      // as far out: 10 of 15
		{[]float64{1, 1, 1, 1}, []float64{1, 1, 1, 1}, 1},
	}
	for _, tt := range tests {
		for _, got := range []float64{mannWhitney(tt.x, tt.y), mannWhitney(tt.y, tt.x)} {
			if want := min(1, tt.want); math.Abs(got-want) > 1e-9 {
				t.Errorf("%v, %v: P is %g, want %g", tt.x, tt.y, got, want)
			}
		}
	}
}

// TestTail compares with R: qwilcox(0.025, n, m), as wilcox.test(conf.int) uses.
func TestTail(t *testing.T) {
	tests := []struct{ n, m, want int }{{3, 3, 0}, {4, 4, 1}, {5, 5, 3}, {6, 6, 6}, {7, 7, 9}, {8, 8, 14}, {10, 10, 24}, {5, 8, 7}}
	for _, tt := range tests {
		if got := tail(tt.n, tt.m, 0.05); got != tt.want {
			t.Errorf("tail(%d, %d) = %d, want %d", tt.n, tt.m, got, tt.want)
		}
	}
	// The approximation meets the exact values where it takes over.
	exact, approximate := tail(50, 50, 0.05), tail(50, 51, 0.05)
	if d := approximate - exact; d < 0 || d > 40 {
		t.Errorf("the interval jumps from %d to %d", exact, approximate)
	}
}

// TestAAgainstA shuffles the labels of recorded-like transfers 200 times: at the
// 5 % level there may be at most 18 claims of a difference (with a true rate of
// 5 %, more happen once in 150 tries; the seeds are fixed).
func TestAAgainstA(t *testing.T) {
	var r *rand.Rand
	walk := 0.0
	kinds := map[string]func(i int) float64{
		"normal":     func(int) float64 { return 2 + 0.1*r.NormFloat64() },
		"skewed":     func(int) float64 { return math.Exp(1.2 * r.NormFloat64()) },
		"drifting":   func(i int) float64 { return 1 + 0.05*float64(i) + 0.02*r.NormFloat64() },
		"two humps":  func(int) float64 { return 1 + 4*float64(r.IntN(2)) + 0.05*r.Float64() },
		"many ties":  func(int) float64 { return 1 + float64(r.IntN(4)) },
		"unfinished": func(int) float64 { return []float64{-1, 5 + r.Float64(), 30 + r.Float64()}[r.IntN(3)] },
		"correlated": func(int) float64 { walk = 0.95*walk + r.NormFloat64(); return math.Exp(0.1 * walk) },
	}
	for name, draw := range kinds {
		for _, n := range []int{4, 7, 10, 14} {
			r = rand.New(rand.NewPCG(uint64(n), 1))
			walk = 0
			all := make([]float64, 2*n)
			for i := range all {
				all[i] = draw(i)
			}
			claims := 0
			for range 200 {
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				if only(t, timesRun(time.Minute, all[:n], all[n:])).Outcome == Differs {
					claims++
				}
			}
			if claims > 18 {
				t.Errorf("%s, %d rounds: %d of 200 label shuffles claim a difference", name, n, claims)
			}
			t.Logf("%s, %d rounds: %d of 200", name, n, claims)
		}
	}
}

// TestRecordedAgainstItself does the same with transfers that were measured: an
// algorithm compared with itself.
func TestRecordedAgainstItself(t *testing.T) {
	data, err := os.ReadFile("../../docs/results/same.json")
	if err != nil {
		t.Fatal(err)
	}
	run, err := Load(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if k := Judge(run).Cells[0].Comparisons[0]; k.Outcome != NoDifference {
		t.Errorf("as it was measured: %s", k.Sentence)
	}
	var all []float64
	for _, x := range run.Transfers {
		if !x.Finished || x.Error != "" {
			t.Fatalf("%+v", x)
		}
		all = append(all, x.Seconds)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{5, 10, len(all) / 2} {
		claims := 0
		for range 200 {
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			if only(t, timesRun(time.Minute, all[:n], all[n:2*n])).Outcome == Differs {
				claims++
			}
		}
		if claims > 18 {
			t.Errorf("%d rounds: %d of 200 label shuffles claim a difference", n, claims)
		}
		t.Logf("%d rounds: %d of 200", n, claims)
	}
}

// TestFamily holds that a whole comparison of many arms alike claims anything in
// at most 5 % of runs, and that it does find what is there.
func TestFamily(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	claims, found := 0, 0
	const runs = 200
	for range runs {
		arms := make([][]float64, 11)
		for i := range arms {
			arms[i] = lognormal(r, 8, 1, 0.1)
		}
		claimed := func() bool {
			return slices.ContainsFunc(Judge(timesRun(time.Minute, arms...)).Cells[0].Comparisons, func(k Comparison) bool { return k.Outcome == Differs })
		}
		if claimed() {
			claims++
		}
		arms[7] = lognormal(r, 8, 1.5, 0.1)
		if claimed() {
			found++
		}
	}
	if claims > 18 || found < runs*9/10 {
		t.Errorf("%d of %d runs of arms alike claim a difference, %d one of 50 %%", claims, runs, found)
	}
}

// TestSmallestSeen simulates: the difference that is said to be the smallest that
// the rounds could have seen is claimed about four times in five.
func TestSmallestSeen(t *testing.T) {
	for _, n := range []int{4, 5, 6, 10, 20} {
		for _, spread := range []float64{0.02, 0.3} {
			r := rand.New(rand.NewPCG(uint64(n), 9))
			var seen []float64
			for len(seen) < 100 {
				k := only(t, timesRun(time.Hour, lognormal(r, n, 1, spread), lognormal(r, n, 1, spread)))
				if k.Outcome == NoDifference {
					seen = append(seen, math.Log(*k.SmallestSeen))
				}
			}
			slices.Sort(seen)
			ratio := math.Exp(seen[len(seen)/2])
			claims := 0
			const tries = 300
			for range tries {
				if only(t, timesRun(time.Hour, lognormal(r, n, 1, spread), lognormal(r, n, ratio, spread))).Outcome == Differs {
					claims++
				}
			}
			share := float64(claims) / tries
			t.Logf("%d rounds, spread %g: a difference of %s is claimed in %.0f %%", n, spread, differenceText(ratio), 100*share)
			if share < 0.68 || share > 0.92 {
				t.Errorf("%d rounds, spread %g: a difference of %s is claimed in %.0f %%, not about 80 %%", n, spread, differenceText(ratio), 100*share)
			}
		}
	}
}

// TestIntervalCovers simulates: the true ratio lies in the interval at least 95
// times in a hundred (less what chance allows here), with and without transfers
// that do not finish.
func TestIntervalCovers(t *testing.T) {
	for _, limit := range []float64{1000, 2.2} {
		for _, n := range []int{4, 6, 10, 55} {
			r := rand.New(rand.NewPCG(uint64(n), uint64(limit)))
			const truth, tries = 1.7, 300
			covered := 0
			for range tries {
				a, b := lognormal(r, n, truth, 0.3), lognormal(r, n, 1, 0.3)
				for i := range a {
					if a[i] > limit {
						a[i] = -1
					}
				}
				k := only(t, timesRun(time.Duration(limit*float64(time.Second)), a, b))
				if (k.Ratio.Low == nil || *k.Ratio.Low <= truth) && (k.Ratio.High == nil || *k.Ratio.High >= truth) {
					covered++
				}
			}
			if covered < tries*91/100 {
				t.Errorf("limit %g, %d rounds: the interval holds the true ratio in %d of %d", limit, n, covered, tries)
			}
		}
	}
}

// TestJudgeProperties holds for any times: turning the arms round turns the
// verdict round, the unit of time does not matter, and the parts of a verdict
// agree with each other.
func TestJudgeProperties(t *testing.T) {
	one := rapid.Custom(func(t *rapid.T) float64 {
		if rapid.IntRange(0, 9).Draw(t, "unfinished") == 0 {
			return -1
		}
		return float64(rapid.IntRange(1, 3000).Draw(t, "hundredths")) / 100
	})
	times := rapid.SliceOfN(one, 0, 12)
	rapid.Check(t, func(t *rapid.T) {
		a, b := times.Draw(t, "a"), times.Draw(t, "b")
		v := Judge(timesRun(time.Minute, a, b))
		w := Judge(timesRun(time.Minute, b, a))
		k, l := v.Cells[0].Comparisons[0], w.Cells[0].Comparisons[0]
		if k.Outcome != l.Outcome || math.Abs(k.P-l.P) > 1e-9 {
			t.Fatalf("turned round: %s, %g and %s, %g", k.Outcome, k.P, l.Outcome, l.P)
		}
		if k.Outcome == Differs && k.Faster == l.Faster {
			t.Fatalf("the arm ahead does not turn round")
		}
		near := func(p, q *float64) bool {
			return (p == nil) == (q == nil) && (p == nil || math.Abs(*p-*q) < 1e-9*(*p+*q))
		}
		turned := l.Ratio.inverse()
		if !near(k.Ratio.Low, turned.Low) || !near(k.Ratio.High, turned.High) || !near(k.Ratio.PointLow, turned.PointLow) {
			t.Fatalf("the ratio does not turn round: %v, %v", k.Ratio, turned)
		}
		if r := k.Ratio; r.Low != nil && r.PointHigh != nil && *r.Low > *r.PointHigh*(1+1e-9) || r.High != nil && r.PointLow != nil && *r.High < *r.PointLow*(1-1e-9) {
			t.Fatalf("the estimate lies outside of its interval: %v", r)
		}
		if (k.SmallestSeen != nil) && (k.Outcome != NoDifference || !(*k.SmallestSeen >= 1)) {
			t.Fatalf("%s, smallest seen %g", k.Outcome, *k.SmallestSeen)
		}
		if k.Outcome == NotEnough && k.RoundsNeeded < 4 {
			t.Fatalf("needed %d rounds", k.RoundsNeeded)
		}
		for _, s := range []string{v.Sentence, k.Sentence} {
			if s == "" || noNumber.MatchString(s) {
				t.Fatalf("sentence %q", s)
			}
		}
	})
}

// TestNoBareFaster holds every sentence to the rule: who says that one is ahead
// says by how much.
func TestNoBareFaster(t *testing.T) {
	for name, make := range runs {
		v := Judge(make())
		for _, c := range v.Cells {
			for _, k := range c.Comparisons {
				if k.Outcome == Differs && (!strings.Contains(k.Sentence, " times as fast as ") || !strings.Contains(k.Sentence, "interval")) {
					t.Errorf("%s: %q", name, k.Sentence)
				}
				if strings.Contains(k.Sentence, "faster") {
					t.Errorf("%s: %q", name, k.Sentence)
				}
			}
		}
	}
}

func ExampleJudge() {
	v := Judge(timesRun(time.Minute, []float64{10, 11, 12, 13, 14, 15}, []float64{1, 1.1, 1.2, 1.3, 1.4, 1.5}))
	fmt.Println(v.Sentence)
	// Output: b is 10.0 times as fast as a (95 % interval: 8.00 to 12.5)
}
