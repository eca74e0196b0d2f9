package report

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"

	"accel/pkg/lab"
	"accel/pkg/text"
)

// Alpha is the chance of claiming at least one difference, in a whole
// comparison, where there is none.
const Alpha = 0.05

// confidence of every interval.
const confidence = 1 - Alpha

// power is the chance of being claimed that a difference of SmallestSeen has.
const power = 0.8

// Outcome is one of the three things that can be said about two arms.
type Outcome string

// The outcomes.
const (
	Differs      Outcome = "differs"              // one is x times as fast as the other
	NoDifference Outcome = "no-difference-seen"   // not: they are equal
	NotEnough    Outcome = "not-enough-rounds"    // no data whatever could have shown a difference
	Neither      Outcome = "neither-has-finished" // no time of any transfer is known
)

// Estimate is a median with its interval. A value that lies beyond the limit of
// a transfer is known only to be more than the limit: Above and HighAbove.
type Estimate struct {
	Median     float64  `json:"median"`
	Above      bool     `json:"above"`      // the median is more than that
	Low        *float64 `json:"low"`        // of the interval; null: too few rounds for one
	High       *float64 `json:"high"`       // likewise
	LowAbove   bool     `json:"low_above"`  // the low end is more than Low
	HighAbove  bool     `json:"high_above"` // the high end is more than High
	Confidence float64  `json:"confidence"` // of the interval: at least 0.95, since it ends at measured values
	Values     int      `json:"values"`     // how many it is the median of
}

// Summary is what was measured of one arm in one cell. An estimate is null where
// nothing was measured. Where several flows ran at once, a round counts once:
// the time of its last flow, the goodput of all, the mean of the rest.
type Summary struct {
	Arm          int       `json:"arm"`        // index in the plan
	Rounds       int       `json:"rounds"`     // measured, unfinished ones included
	Unfinished   int       `json:"unfinished"` // of Rounds: not all bytes arrived within the limit
	Failed       int       `json:"failed"`     // rounds that measured nothing, by an error
	Seconds      *Estimate `json:"seconds"`
	Goodput      *Estimate `json:"goodput"`       // bit/s; of an unfinished transfer until the limit
	RetransShare *Estimate `json:"retrans_share"` // 0 to 1
	MinRTT       *Estimate `json:"min_rtt"`       // ms
	SRTT         *Estimate `json:"srtt"`          // ms
	LoadedRTT    *Estimate `json:"loaded_rtt"`    // ms
	FirstByte    *Estimate `json:"first_byte"`    // s
	To90         *Estimate `json:"to90"`          // s
	Share        *Estimate `json:"share"`         // of the competing flow, 0 to 1

	values []value // completion times, in order of rounds
}

// value is a completion time; of an unfinished transfer the limit.
type value struct {
	seconds  float64
	censored bool
	round    int
	goodput  float64
}

// Ratio says how many times as fast Arm is as Reference: the time of Reference
// by that of Arm. Null ends are not bounded, because transfers did not finish or
// the rounds were too few.
type Ratio struct {
	PointLow  *float64 `json:"point_low"`  // the estimate lies between PointLow and PointHigh;
	PointHigh *float64 `json:"point_high"` // they differ only where transfers did not finish
	Low       *float64 `json:"low"`
	High      *float64 `json:"high"`
}

// Comparison is the verdict on one arm against the reference in one cell.
type Comparison struct {
	Arm       int     `json:"arm"`       // index in the plan
	Reference int     `json:"reference"` // likewise
	P         float64 `json:"p"`         // of the Mann-Whitney test, two-sided
	AdjustedP float64 `json:"adjusted_p"`
	Outcome   Outcome `json:"outcome"`
	Ratio     Ratio   `json:"ratio"`
	// Faster is the arm with the shorter times, where the outcome is Differs; -1
	// otherwise.
	Faster int `json:"faster"`
	// SmallestSeen is the ratio, above 1, that these rounds would have claimed
	// with a chance of four in five; null where it cannot be said.
	SmallestSeen *float64 `json:"smallest_seen"`
	RoundsNeeded int      `json:"rounds_needed"` // of each arm, for any claim; where the outcome is NotEnough
	Sentence     string   `json:"sentence"`

	mayClaim bool
}

// Cell is one path with one size.
type Cell struct {
	Path        int          `json:"path"` // index in the plan
	Size        int64        `json:"size"`
	Arms        []Summary    `json:"arms"`
	Comparisons []Comparison `json:"comparisons"`
}

// Verdicts is the judgement on a run.
type Verdicts struct {
	Sentence    string   `json:"sentence"`    // the whole in one or two sentences
	Reference   int      `json:"reference"`   // the arm that all others are compared with: the first
	Alpha       float64  `json:"alpha"`       // the chance of any false claim in the whole run
	Comparisons int      `json:"comparisons"` // how many Holm's correction reckons with
	Cells       []Cell   `json:"cells"`
	Notes       []string `json:"notes"` // what a reader must know to trust the numbers
}

// Judge comes to the verdicts of a run. It compares completion times: every arm
// with the first, in every cell (path and size).
//
// A difference is claimed where the two-sided Mann-Whitney test [benchmath]
// finds one at the 5 % level after Holm's correction for all comparisons of the
// run [1]; comparisons with so few rounds that no data could have made a claim
// are not reckoned with [2]. Transfers that did not finish rank behind all that
// did, which is all that this test needs to know about them.
//
// The ratio is the Hodges-Lehmann estimate on logarithms [3]: the median of all
// ratios of a transfer of one arm to a transfer of the other. Its interval is
// the one that belongs to the test [4], of the single comparison: it leaves out
// 1 where the test alone would claim. It was preferred to a bootstrap since it
// is exact for few rounds (a bootstrap of six values is not), needs no random
// numbers, and holds with unfinished transfers: each ratio with one is known to
// lie in a range, and the interval is made from the outer ends of these ranges.
//
// The smallest difference that could have been seen is reckoned from the width
// of that interval, not from the difference that happened to come out [5], [6]:
// half the width, widened from the quantile of the interval's level to that of
// an 80 % chance. A test holds it against simulation.
//
// [1] S. Holm, A simple sequentially rejective multiple test procedure, Scand.
// J. Statist. 6 (1979) 65-70. [2] R. E. Tarone, A modified Bonferroni method for
// discrete data, Biometrics 46 (1990) 515-522. [3] J. L. Hodges, E. L. Lehmann,
// Estimates of location based on rank tests, Ann. Math. Statist. 34 (1963)
// 598-611. [4] D. F. Bauer, Constructing confidence sets using rank statistics,
// J. Amer. Statist. Assoc. 67 (1972) 687-690. [5] H. S. Bloom, Minimum detectable
// effects, Evaluation Review 19 (1995) 547-556. [6] J. M. Hoenig, D. M. Heisey,
// The abuse of power, Amer. Statist. 55 (2001) 19-24.
func Judge(run *lab.Run) *Verdicts {
	v := &Verdicts{Alpha: Alpha, Cells: cells(run)}
	for i := range v.Cells {
		v.Cells[i].Comparisons = []Comparison{} // [] in JSON, not null
	}
	var family []*Comparison
	byComparison := map[*Comparison]*Cell{}
	for i := range v.Cells {
		c := &v.Cells[i]
		for a := 1; a < len(c.Arms); a++ {
			c.Comparisons = append(c.Comparisons, compare(&c.Arms[0], &c.Arms[a]))
		}
		for j := range c.Comparisons {
			family = append(family, &c.Comparisons[j])
			byComparison[&c.Comparisons[j]] = c
		}
	}
	level := holm(family, v)
	for _, k := range family {
		c := byComparison[k]
		conclude(k, &c.Arms[k.Reference], &c.Arms[k.Arm], level, len(family))
		k.Sentence = comparisonSentence(run, c, k, v.Comparisons)
	}
	v.Notes = notes(run, v)
	claim, rest := headline(run, v)
	v.Sentence = claim
	switch {
	case rest != "" && v.comparisons() == 1:
		v.Sentence = text.T("%s (%s)", claim, rest)
	case rest != "":
		v.Sentence = claim + text.T("; ") + rest
	}
	return v
}

// comparisons counts them, those that could make no claim included.
func (v *Verdicts) comparisons() int {
	n := 0
	for i := range v.Cells {
		n += len(v.Cells[i].Comparisons)
	}
	return n
}

// cells collects what was measured, in the order of the plan.
func cells(run *lab.Run) []Cell {
	type key struct {
		path, arm int
		size      int64
	}
	byRound := map[key]map[int][]*lab.Transfer{}
	for i := range run.Transfers {
		t := &run.Transfers[i]
		if t.Warmup {
			continue
		}
		k := key{t.Path, t.Arm, t.Size}
		if byRound[k] == nil {
			byRound[k] = map[int][]*lab.Transfer{}
		}
		byRound[k][t.Round] = append(byRound[k][t.Round], t)
	}
	out := []Cell{}
	for p := range run.Plan.Paths {
		for i, size := range run.Plan.Sizes {
			if slices.Contains(run.Plan.Sizes[:i], size) {
				continue
			}
			c := Cell{Path: p, Size: size}
			for a := range run.Plan.Arms {
				c.Arms = append(c.Arms, summarize(run, a, byRound[key{p, a, size}]))
			}
			out = append(out, c)
		}
	}
	return out
}

func summarize(run *lab.Run, arm int, rounds map[int][]*lab.Transfer) Summary {
	s := Summary{Arm: arm}
	var goodput, retrans, minRTT, srtt, loaded, first, to90, share []float64
	for _, r := range sortedKeys(rounds) {
		flows := rounds[r]
		v := value{round: r}
		failed := false
		var bytes, n float64
		var sum struct{ retrans, minRTT, srtt, loaded, first, to90, share float64 }
		var count struct{ minRTT, srtt, loaded, first, to90, share float64 }
		for _, t := range flows {
			if t.Error != "" || !(t.Seconds > 0) || math.IsInf(t.Seconds, 0) {
				failed = true
				break
			}
			v.censored = v.censored || !t.Finished
			v.seconds = max(v.seconds, t.Seconds)
			bytes += float64(t.Bytes)
			n++
			sum.retrans += finite(t.RetransShare)
			add(&sum.minRTT, &count.minRTT, t.MinRTT)
			add(&sum.srtt, &count.srtt, t.SRTT)
			add(&sum.loaded, &count.loaded, t.LoadedRTT)
			add(&sum.first, &count.first, t.FirstByte)
			add(&sum.to90, &count.to90, t.To90)
			if t.Share != nil {
				sum.share += finite(*t.Share)
				count.share++
			}
		}
		switch {
		case failed:
			s.Failed++
			continue
		case len(flows) < run.Plan.Flows: // interrupted in the middle of a round
			continue
		}
		if v.censored && run.Plan.Limit > 0 {
			v.seconds = run.Plan.Limit.Seconds()
		}
		s.Rounds++
		if v.censored {
			s.Unfinished++
		}
		v.goodput = finite(flows[0].Goodput)
		if len(flows) > 1 {
			v.goodput = min(maxNumber, bytes*8/v.seconds)
		}
		s.values = append(s.values, v)
		goodput = append(goodput, v.goodput)
		retrans = append(retrans, sum.retrans/n)
		for _, m := range []struct {
			to         *[]float64
			sum, count float64
		}{
			{&minRTT, sum.minRTT, count.minRTT},
			{&srtt, sum.srtt, count.srtt},
			{&loaded, sum.loaded, count.loaded},
			{&first, sum.first, count.first},
			{&to90, sum.to90, count.to90},
			{&share, sum.share, count.share},
		} {
			if m.count > 0 {
				*m.to = append(*m.to, m.sum/m.count)
			}
		}
	}
	s.Seconds = estimateTimes(s.values)
	s.Goodput = estimate(goodput)
	s.RetransShare = estimate(retrans)
	s.MinRTT = estimate(minRTT)
	s.SRTT = estimate(srtt)
	s.LoadedRTT = estimate(loaded)
	s.FirstByte = estimate(first)
	s.To90 = estimate(to90)
	s.Share = estimate(share)
	return s
}

// add counts a measurement that is 0 where nothing could be measured.
func add(sum, count *float64, f float64) {
	if f > 0 && !math.IsInf(f, 0) {
		*sum += f
		*count++
	}
}

func sortedKeys[V any](m map[int]V) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// beyond stands for the time of a transfer that did not finish, in what ranks
// values: no transfer takes that long.
const beyond = 1e200

// estimate gives the median of some values and its interval; nil of none.
func estimate(values []float64) *Estimate {
	if len(values) == 0 {
		return nil
	}
	vs := make([]value, len(values))
	for i, f := range values {
		vs[i].seconds = f
	}
	return estimateTimes(vs)
}

func estimateTimes(values []value) *Estimate {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Clone(values)
	slices.SortFunc(sorted, func(a, b value) int { return cmp.Compare(rankValue(a), rankValue(b)) })
	n := len(sorted)
	// The middle one, or half way between the two in the middle.
	a, b := sorted[(n-1)/2], sorted[n/2]
	e := &Estimate{Median: a.seconds + (b.seconds-a.seconds)/2, Above: b.censored, Values: n}
	ranks := make([]float64, n)
	for i := range ranks {
		ranks[i] = float64(i)
	}
	// The library gives the interval as two measured values; asked about their
	// places it gives the places, which also holds for values that are not known.
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(ranks, &benchmath.DefaultThresholds), confidence)
	e.Confidence = s.Confidence
	if !math.IsInf(s.Lo, 0) && !math.IsInf(s.Hi, 0) {
		low, high := sorted[int(math.Round(s.Lo))], sorted[int(math.Round(s.Hi))]
		e.Low, e.LowAbove = &low.seconds, low.censored
		e.High, e.HighAbove = &high.seconds, high.censored
	}
	return e
}

func rankValue(v value) float64 {
	if v.censored {
		return beyond
	}
	return v.seconds
}

// compare tests two arms and estimates their ratio; what follows from it depends
// on the other comparisons.
func compare(reference, arm *Summary) Comparison {
	k := Comparison{Arm: arm.Arm, Reference: reference.Arm, P: 1, AdjustedP: 1, Faster: -1}
	n, m := len(arm.values), len(reference.values)
	if n == 0 || m == 0 {
		return k
	}
	x, y := make([]float64, n), make([]float64, m)
	for i, v := range arm.values {
		x[i] = rankValue(v)
	}
	for i, v := range reference.values {
		y[i] = rankValue(v)
	}
	k.P = mannWhitney(x, y)
	k.mayClaim = smallestP(n, m) <= Alpha
	lower, upper := logRatios(reference.values, arm.values)
	k.Ratio.PointLow = exp(middle(lower))
	k.Ratio.PointHigh = exp(middle(upper))
	if t := tail(n, m, Alpha); t > 0 {
		k.Ratio.Low, k.Ratio.High = exp(lower[t-1]), exp(upper[len(upper)-t])
	}
	return k
}

// mannWhitney gives the P of the two-sided test. With ties and samples of
// different size the distribution of U is not symmetric, which the library
// overlooks where the first sample has the larger U: its P is then that of
// another test and may be too small. Of both orders one is right, and the larger
// P is never too small.
func mannWhitney(x, y []float64) float64 {
	p := 0.0
	for range 2 {
		t := benchmath.DefaultThresholds
		c := benchmath.AssumeNothing.Compare(benchmath.NewSample(slices.Clone(x), &t), benchmath.NewSample(slices.Clone(y), &t))
		p = max(p, c.P)
		x, y = y, x
	}
	if math.IsNaN(p) {
		return 1
	}
	return min(1, p)
}

// logRatios gives, for each pair of transfers, the logarithm of the time of the
// reference by the time of the arm. Where a transfer has not finished, it lies
// between a lower and an upper end. Both are sorted.
func logRatios(reference, arm []value) (lower, upper []float64) {
	for _, r := range reference {
		for _, a := range arm {
			d := math.Log(r.seconds) - math.Log(a.seconds)
			l, u := d, d
			if r.censored {
				u = math.Inf(1)
			}
			if a.censored {
				l = math.Inf(-1)
			}
			lower, upper = append(lower, l), append(upper, u)
		}
	}
	slices.Sort(lower)
	slices.Sort(upper)
	return lower, upper
}

// middle gives the median of sorted values, which may be infinite.
func middle(sorted []float64) float64 {
	n := len(sorted)
	a, b := sorted[(n-1)/2], sorted[n/2]
	if a == b || math.IsInf(a, 0) {
		return a
	}
	if math.IsInf(b, 0) {
		return b
	}
	return a + (b-a)/2
}

// exp gives e^f, or nil where that is no number one could write down.
func exp(f float64) *float64 {
	if math.IsNaN(f) || math.Abs(f) > 300 {
		return nil
	}
	e := math.Exp(f)
	return &e
}

// smallestP is the smallest P that the test can give for so many values: both
// arms do not overlap at all.
func smallestP(n, m int) float64 {
	return math.Min(1, 2/choose(n+m, n))
}

// choose gives the number of ways to choose k of n; infinite where it is huge.
func choose(n, k int) float64 {
	k = min(k, n-k)
	c := 1.0
	for i := 1; i <= k; i++ {
		c = c * float64(n-k+i) / float64(i)
	}
	return c
}

// roundsNeeded gives how many rounds of each arm a claim at a level takes.
func roundsNeeded(level float64) int {
	n := 1
	for smallestP(n, n) > level {
		n++
	}
	return n
}

// tail gives which of the sorted ratios, counted from either end beginning with
// 1, bounds the interval that belongs to the Mann-Whitney test at a level; 0
// where no interval is bounded.
func tail(n, m int, level float64) int {
	if smallestP(n, m) > level {
		return 0
	}
	key := tailKey{n, m, level}
	if t, ok := tails.Load(key); ok {
		return t.(int)
	}
	t := newTail(n, m, level)
	tails.Store(key, t)
	return t
}

// tails remembers what tail found: a run asks for the same again and again, and
// the exact distribution takes milliseconds.
var tails sync.Map

type tailKey struct {
	n, m  int
	level float64
}

func newTail(n, m int, level float64) int {
	if n <= stats.MannWhitneyExactLimit && m <= stats.MannWhitneyExactLimit {
		dist := stats.UDist{N1: n, N2: m}
		// The ends are in while 2 P(U <= t-1) <= level.
		lo, hi := 1, n*m/2
		for lo < hi {
			mid := (lo + hi + 1) / 2
			if 2*dist.CDF(float64(mid-1)) <= level {
				lo = mid
			} else {
				hi = mid - 1
			}
		}
		return lo
	}
	z := normalQuantile(1 - level/2)
	mean := float64(n) * float64(m) / 2
	sd := math.Sqrt(float64(n) * float64(m) * float64(n+m+1) / 12)
	return max(1, int(math.Floor(mean-z*sd)))
}

func normalQuantile(p float64) float64 {
	return math.Sqrt2 * math.Erfinv(2*p-1)
}

// holm corrects the P of those comparisons that could make a claim, and returns
// the level at which the next one would have been tested.
func holm(family []*Comparison, v *Verdicts) (level float64) {
	var in []*Comparison
	for _, k := range family {
		if k.mayClaim {
			in = append(in, k)
		}
	}
	v.Comparisons = len(in)
	slices.SortStableFunc(in, func(a, b *Comparison) int { return cmp.Compare(a.P, b.P) })
	claimed := 0
	last := 0.0
	for i, k := range in {
		last = max(last, math.Min(1, k.P*float64(len(in)-i)))
		k.AdjustedP = last
		if last <= Alpha {
			k.Outcome = Differs
			claimed++
		}
	}
	return Alpha / float64(max(1, len(in)-claimed))
}

// conclude gives a comparison, one of all in the run, its outcome and what
// belongs to it.
func conclude(k *Comparison, reference, arm *Summary, level float64, all int) {
	n, m := len(arm.values), len(reference.values)
	switch {
	case k.Outcome == Differs:
		// The sum of ranks says which: it needs no time of the unfinished.
		better, worse := 0, 0
		for _, a := range arm.values {
			for _, r := range reference.values {
				switch cmp.Compare(rankValue(a), rankValue(r)) {
				case -1:
					better++
				case 1:
					worse++
				}
			}
		}
		k.Faster = k.Arm
		if worse > better {
			k.Faster = k.Reference
		}
	case n > 0 && m > 0 && arm.Unfinished == n && reference.Unfinished == m:
		k.Outcome = Neither
	case n == 0 || m == 0 || smallestP(n, m) > level:
		k.Outcome = NotEnough
		k.RoundsNeeded = roundsNeeded(Alpha / float64(all))
	default:
		k.Outcome = NoDifference
		k.SmallestSeen = smallestSeen(reference.values, arm.values, level)
	}
}

// smallestSeen gives the ratio that would have been claimed at a level with the
// chance of power, nil where unfinished transfers leave it open.
func smallestSeen(reference, arm []value, level float64) *float64 {
	t := tail(len(arm), len(reference), level)
	if t == 0 {
		return nil
	}
	lower, upper := logRatios(reference, arm)
	half := (upper[len(upper)-t] - lower[t-1]) / 2
	if math.IsInf(half, 0) || math.IsNaN(half) {
		return nil
	}
	z := normalQuantile(1 - level/2)
	return exp(half * (z + normalQuantile(power)) / z)
}
