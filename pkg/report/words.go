package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"accel/pkg/lab"
	"accel/pkg/text"
)

// significant writes a number with three significant digits and no exponent.
func significant(f float64) string {
	a := math.Abs(f)
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return "?"
	case a == 0:
		return "0"
	case a >= 99.95:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case a >= 0.9995:
		return strconv.FormatFloat(f, 'f', 2, 64)
	case a >= 0.001:
		return strconv.FormatFloat(f, 'f', 3, 64)
	}
	return strconv.FormatFloat(f, 'f', 6, 64)
}

// short writes a number as a person would who was asked for it: 0.5, 100, 1.25.
func short(f float64) string {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return "?"
	case math.Abs(f) < 5e-7:
		return "0"
	}
	s := strconv.FormatFloat(f, 'f', 6, 64)
	if a := math.Abs(f); a >= 0.001 {
		digits := max(0, 4-len(strconv.Itoa(int(math.Min(a, 1e15)))))
		s = strconv.FormatFloat(f, 'f', digits, 64)
	}
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// secondsText writes a time: milliseconds below a tenth of a second.
func secondsText(s float64) string {
	if s < 0.09995 {
		return significant(s*1000) + " ms"
	}
	return significant(s) + " s"
}

// secondsPair writes the two ends of an interval of times in one unit.
func secondsPair(low, high float64) string {
	if high < 0.09995 {
		return significant(low*1000) + " – " + significant(high*1000) + " ms"
	}
	return significant(low) + " – " + significant(high) + " s"
}

// rateUnit gives the unit in which to write rates up to so many bit/s.
func rateUnit(bits float64) (unit string, factor float64) {
	switch {
	case bits >= 999.5e6:
		return "Gbit/s", 1e9
	case bits >= 99.95e3:
		return "Mbit/s", 1e6
	}
	return "kbit/s", 1e3
}

func rateText(bits float64) string {
	unit, factor := rateUnit(bits)
	return significant(bits/factor) + " " + unit
}

// percentText writes a share of 1.
func percentText(share float64) string {
	p := share * 100
	switch {
	case p == 0:
		return "0 %"
	case p < 0.01:
		return "<0.01 %"
	case p < 0.995:
		return strconv.FormatFloat(p, 'f', 2, 64) + " %"
	case p < 99.95:
		return strconv.FormatFloat(p, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(p, 'f', 0, 64) + " %"
}

// millis writes a number of milliseconds without its unit.
func millis(ms float64) string {
	if ms >= 9.95 {
		return strconv.FormatFloat(ms, 'f', 0, 64)
	}
	return significant(ms)
}

// sizeText writes a number of bytes: exactly where it is a round number of a
// binary or decimal unit.
func sizeText(bytes int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"KB", 1e3}} {
		if bytes >= u.size && bytes%u.size == 0 {
			return fmt.Sprintf("%d %s", bytes/u.size, u.name)
		}
	}
	if bytes >= 1e6 {
		return significant(float64(bytes)/1e6) + " MB"
	}
	return fmt.Sprintf("%d B", bytes)
}

func durationText(d time.Duration) string {
	if d < time.Second {
		return short(float64(d)/float64(time.Millisecond)) + " ms"
	}
	return short(d.Seconds()) + " s"
}

// rttText writes a delay, in milliseconds as networks are described.
func rttText(d time.Duration) string {
	return short(float64(d)/float64(time.Millisecond)) + " ms"
}

// armName gives the name of an arm, fit to print.
func armName(run *lab.Run, arm int) string {
	a := run.Plan.Arms[arm]
	if a.Name == "" {
		return text.Safe(a.Algorithm)
	}
	return text.Safe(a.Name)
}

// pathText describes the network of a path.
func pathText(p *lab.Path) string {
	var parts []string
	if p.Loopback {
		parts = append(parts, text.T("loopback"))
	}
	if p.RateMbit > 0 {
		parts = append(parts, rateOption(p.RateMbit))
	} else if !p.Loopback {
		parts = append(parts, text.T("no rate limit"))
	}
	if p.RTT > 0 || !p.Loopback {
		parts = append(parts, rttText(p.RTT))
	}
	if p.Jitter > 0 {
		parts = append(parts, text.T("jitter %s", rttText(p.Jitter)))
	}
	switch {
	case p.LossPercent == 0:
		parts = append(parts, text.T("no loss"))
	case p.LossBurst > 1:
		parts = append(parts, text.T("%s loss in bursts of %s", short(p.LossPercent)+" %", short(p.LossBurst)))
	default:
		parts = append(parts, text.T("%s loss", short(p.LossPercent)+" %"))
	}
	if p.ReorderPercent > 0 {
		parts = append(parts, text.T("%s reordered", short(p.ReorderPercent)+" %"))
	}
	switch {
	case p.QueueBDP > 0:
		parts = append(parts, text.T("queue of %s BDP", short(p.QueueBDP)))
	case p.QueuePackets > 0:
		parts = append(parts, text.T("queue of %d packets", p.QueuePackets))
	}
	if p.ClientBuffer > 0 {
		parts = append(parts, text.T("client buffers %s", sizeText(p.ClientBuffer)))
	}
	return strings.Join(parts, text.T(", "))
}

func rateOption(mbit float64) string {
	if mbit >= 1000 {
		return short(mbit/1000) + " Gbit/s"
	}
	return short(mbit) + " Mbit/s"
}

// sweptValue gives the number that a sweep varies, and how it is written.
func sweptValue(run *lab.Run, path int) (x float64, label string) {
	p := &run.Plan.Paths[path]
	switch run.Plan.Sweep {
	case "loss":
		return p.LossPercent, short(p.LossPercent) + " %"
	case "rtt":
		return float64(p.RTT) / float64(time.Millisecond), rttText(p.RTT)
	case "jitter":
		return float64(p.Jitter) / float64(time.Millisecond), rttText(p.Jitter)
	case "rate":
		if p.RateMbit == 0 {
			return 0, text.T("no rate limit")
		}
		return p.RateMbit, rateOption(p.RateMbit)
	case "queue":
		if p.QueueBDP > 0 {
			return p.QueueBDP, short(p.QueueBDP) + " BDP"
		}
		return float64(p.QueuePackets), strconv.Itoa(p.QueuePackets)
	case "client-buffer":
		return float64(p.ClientBuffer), sizeText(p.ClientBuffer)
	}
	return float64(path), ""
}

// sweepName is the title of the axis of a sweep.
func sweepName(run *lab.Run) string {
	switch run.Plan.Sweep {
	case "loss":
		return text.T("packet loss")
	case "rtt":
		return text.T("round-trip time")
	case "jitter":
		return text.T("jitter")
	case "rate":
		return text.T("rate of the path")
	case "queue":
		return text.T("queue")
	case "client-buffer":
		return text.T("client buffers")
	}
	return ""
}

// swept says that the paths differ in one number only.
func swept(run *lab.Run) bool {
	return sweepName(run) != "" && len(run.Plan.Paths) > 1
}

// cellName names a cell by what tells it from the others: the path, or the
// number swept, and the size where there are several.
func cellName(run *lab.Run, c *Cell) string {
	var parts []string
	switch p := &run.Plan.Paths[c.Path]; {
	case swept(run):
		_, label := sweptValue(run, c.Path)
		parts = append(parts, text.T("%s %s", sweepName(run), label))
	case p.Name != "":
		parts = append(parts, text.Safe(p.Name))
	default:
		parts = append(parts, pathText(p))
	}
	if len(run.Plan.Sizes) > 1 || len(run.Plan.Paths) == 1 {
		parts = append(parts, sizeText(c.Size))
	}
	return strings.Join(parts, text.T(", "))
}

// numberPair writes the ends of an interval of ratios.
func numberPair(low, high *float64) string {
	switch {
	case low != nil && high != nil:
		return text.T("%s to %s", significant(*low), significant(*high))
	case low != nil:
		return text.T("more than %s", significant(*low))
	case high != nil:
		return text.T("less than %s", significant(*high))
	}
	return text.T("not bounded")
}

// pointText writes the estimate of a ratio.
func pointText(low, high *float64) string {
	switch {
	case low != nil && high != nil && *high-*low <= 1e-9**high:
		return significant(*low)
	case low != nil && high != nil:
		return text.T("%s to %s", significant(*low), significant(*high))
	case low != nil:
		return text.T("more than %s", significant(*low))
	case high != nil:
		return text.T("less than %s", significant(*high))
	}
	return "?"
}

// inverse turns a ratio round.
func (r Ratio) inverse() Ratio {
	return Ratio{PointLow: over(r.PointHigh), PointHigh: over(r.PointLow), Low: over(r.High), High: over(r.Low)}
}

func over(f *float64) *float64 {
	if f == nil || *f == 0 {
		return nil
	}
	g := 1 / *f
	return &g
}

// excludesOne says that the interval lies wholly on one side of 1.
func (r Ratio) excludesOne() bool {
	return r.Low != nil && *r.Low > 1 || r.High != nil && *r.High < 1
}

// toward gives the ratio as seen from the arm that is ahead.
func (k *Comparison) toward() (ahead, behind int, r Ratio) {
	if k.Faster == k.Reference {
		return k.Reference, k.Arm, k.Ratio.inverse()
	}
	return k.Arm, k.Reference, k.Ratio
}

// differenceText writes a ratio above 1 as a difference.
func differenceText(ratio float64) string {
	switch {
	case ratio < 1.001:
		return text.T("less than %s", "0.1 %")
	case ratio < 2:
		return strconv.FormatFloat((ratio-1)*100, 'f', digitsFor((ratio-1)*100), 64) + " %"
	}
	return text.T("factor %s", significant(ratio))
}

func digitsFor(percent float64) int {
	if percent < 9.95 {
		return 1
	}
	return 0
}

// comparisonWords puts the verdict on two arms into words: what is claimed, and
// the numbers that belong to it, which may be none.
func comparisonWords(run *lab.Run, c *Cell, k *Comparison, family int) (claim, detail string) {
	arm, reference := armName(run, k.Arm), armName(run, k.Reference)
	switch k.Outcome {
	case Differs:
		ahead, behind, r := k.toward()
		return text.T("%s is %s times as fast as %s", armName(run, ahead), pointText(r.PointLow, r.PointHigh), armName(run, behind)),
			text.T("95 %% interval: %s", numberPair(r.Low, r.High))
	case Neither:
		return text.T("neither %s nor %s finished in %s", reference, arm, durationText(run.Plan.Limit)), ""
	case NoDifference:
		claim = text.T("no difference seen between %s and %s", arm, reference)
		detail = text.T("ratio %s, 95 %% interval: %s", pointText(k.Ratio.PointLow, k.Ratio.PointHigh), numberPair(k.Ratio.Low, k.Ratio.High))
		if k.Ratio.excludesOne() && k.P <= Alpha && family > 1 {
			detail += text.T("; ") + text.T("alone it would count as one, but not among %d comparisons", family)
		}
		if k.SmallestSeen == nil {
			return claim, detail + text.T("; ") + text.T("which one these rounds could have seen cannot be said, since transfers did not finish")
		}
		return claim, detail + text.T("; ") + text.T("these rounds would likely have seen a difference of %s", differenceText(*k.SmallestSeen))
	}
	n, m := c.Arms[k.Arm].Rounds, c.Arms[k.Reference].Rounds
	if n == 0 && m == 0 {
		return text.T("not enough rounds: nothing was measured of %s and %s", arm, reference), ""
	}
	return text.T("not enough rounds to tell %s from %s", arm, reference),
		text.T("measured %d and %d, needed %d of each", n, m, k.RoundsNeeded)
}

func comparisonSentence(run *lab.Run, c *Cell, k *Comparison, family int) string {
	claim, detail := comparisonWords(run, c, k, family)
	if detail == "" {
		return claim
	}
	return text.T("%s (%s)", claim, detail)
}

// span is the smallest and the largest of the estimates of some ratios.
type span struct {
	n         int
	low, high float64
	above     bool // the largest is more than high
}

func (s *span) add(r Ratio) {
	low, high := r.PointLow, r.PointHigh
	if low == nil {
		low = high
	}
	if low == nil {
		return
	}
	if high == nil {
		s.above = true
		high = low
	}
	if s.n == 0 || *low < s.low {
		s.low = *low
	}
	s.high = max(s.high, *high)
	s.n++
}

func (s *span) String() string {
	switch {
	case s.above && s.n == 1:
		return text.T("more than %s", significant(s.high))
	case s.above:
		return text.T("%s to more than %s", significant(s.low), significant(s.high))
	case significant(s.low) == significant(s.high):
		return significant(s.low)
	}
	return text.T("%s to %s", significant(s.low), significant(s.high))
}

// headline puts the whole into words: the claim that matters most, then the rest.
func headline(run *lab.Run, v *Verdicts) (claim, rest string) {
	var all []*Comparison
	var where []*Cell
	measured := 0
	for i := range v.Cells {
		c := &v.Cells[i]
		for j := range c.Arms {
			measured += c.Arms[j].Rounds
		}
		for j := range c.Comparisons {
			all = append(all, &c.Comparisons[j])
			where = append(where, c)
		}
	}
	switch {
	case measured == 0:
		return text.T("nothing was measured"), ""
	case len(all) == 0:
		return aloneSentence(run, v), ""
	case len(all) == 1:
		return comparisonWords(run, where[0], all[0], v.Comparisons)
	}
	var ahead, behind span // of the other arms, against the reference
	var none, few, neither int
	for _, k := range all {
		switch k.Outcome {
		case Differs:
			_, _, r := k.toward()
			if k.Faster == k.Arm {
				ahead.add(r)
			} else {
				behind.add(r)
			}
		case NoDifference:
			none++
		case Neither:
			neither++
		default:
			few++
		}
	}
	reference := armName(run, v.Reference)
	other := text.T("another arm")
	if len(run.Plan.Arms) == 2 {
		other = armName(run, 1)
	}
	many := len(run.Plan.Arms) > 2 && len(v.Cells) == 1
	var parts []string
	// The arm that is ahead more often comes first.
	aheadPart := func() {
		switch {
		case ahead.n == 1 && many:
			parts = append(parts, text.T("1 of %d other arms is %s times as fast as %s", len(all), ahead.String(), reference))
		case ahead.n > 0 && many:
			parts = append(parts, text.T("%d of %d other arms are %s times as fast as %s", ahead.n, len(all), ahead.String(), reference))
		case ahead.n > 0:
			parts = append(parts, text.T("%s is %s times as fast as %s in %d of %d comparisons", other, ahead.String(), reference, ahead.n, len(all)))
		}
	}
	behindPart := func() {
		switch {
		case behind.n > 0 && many:
			parts = append(parts, text.T("%s is %s times as fast as %d of %d other arms", reference, behind.String(), behind.n, len(all)))
		case behind.n > 0:
			parts = append(parts, text.T("%s is %s times as fast as %s in %d of %d comparisons", reference, behind.String(), other, behind.n, len(all)))
		}
	}
	if behind.n > ahead.n {
		behindPart()
		aheadPart()
	} else {
		aheadPart()
		behindPart()
	}
	switch {
	case none == len(all):
		parts = append(parts, text.T("no difference seen between %s and %s in any of %d comparisons", reference, other, len(all)))
	case none > 0:
		parts = append(parts, text.T("no difference seen in %d of %d", none, len(all)))
	}
	if neither > 0 {
		parts = append(parts, text.T("neither finished in %d of %d", neither, len(all)))
	}
	if few > 0 {
		parts = append(parts, text.T("not enough rounds in %d of %d", few, len(all)))
	}
	return parts[0], strings.Join(parts[1:], text.T("; "))
}

// largestDifference gives the sentence of the comparison with the largest
// difference, where the headline is a count of several; "" otherwise.
func largestDifference(run *lab.Run, v *Verdicts) string {
	var best *Comparison
	var at *Cell
	n, by := 0, 0.0
	for i := range v.Cells {
		for j := range v.Cells[i].Comparisons {
			k := &v.Cells[i].Comparisons[j]
			n++
			if k.Outcome != Differs {
				continue
			}
			_, _, r := k.toward()
			if r.PointLow != nil && *r.PointLow > by {
				best, at, by = k, &v.Cells[i], *r.PointLow
			}
		}
	}
	if best == nil || n < 2 {
		return ""
	}
	if len(v.Cells) < 2 {
		return text.T("The largest difference: %s.", best.Sentence)
	}
	return text.T("The largest difference, with %s: %s.", cellName(run, at), best.Sentence)
}

// aloneSentence is the headline of a run with one arm.
func aloneSentence(run *lab.Run, v *Verdicts) string {
	for i := range v.Cells {
		c := &v.Cells[i]
		if e := c.Arms[0].Seconds; e != nil {
			s := text.T("%s alone, so nothing is compared: %s in %s", armName(run, 0), sizeText(c.Size), timeText(e))
			if len(v.Cells) > 1 {
				s += text.T(" with %s", cellName(run, c))
			}
			return s
		}
	}
	return text.T("nothing was measured")
}

// timeText writes a median time.
func timeText(e *Estimate) string {
	if e == nil {
		return "–"
	}
	if e.Above {
		return "> " + secondsText(e.Median)
	}
	return secondsText(e.Median)
}

// timeInterval writes the interval of a median time.
func timeInterval(e *Estimate) string {
	switch {
	case e == nil || e.Low == nil || e.High == nil:
		return "–"
	case e.LowAbove:
		return "> " + secondsText(*e.Low)
	case e.HighAbove:
		return secondsText(*e.Low) + " – > " + secondsText(*e.High)
	}
	return secondsPair(*e.Low, *e.High)
}

// wholeSentence makes a sentence of a verdict: a capital, a full stop. The name
// of an arm keeps its letters.
func wholeSentence(run *lab.Run, s string) string {
	if s == "" {
		return s
	}
	return capital(run, s) + text.T(".")
}

func capital(run *lab.Run, s string) string {
	for a := range run.Plan.Arms {
		if strings.HasPrefix(s, armName(run, a)) {
			return s
		}
	}
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		return strings.ToUpper(s[:1]) + s[1:]
	}
	return s
}

// roughTimers is from how many milliseconds of lateness on a reader is warned: at
// 100 Mbit/s the bottleneck then lets 25 packets through at once.
const roughTimers = 3

// notes says what a reader must know to trust the numbers.
func notes(run *lab.Run, v *Verdicts) []string {
	out := []string{}
	p := &run.Plan
	measured := 0
	type failure struct {
		arm int
		why string
	}
	failures := map[failure]int{}
	type other struct {
		arm  int
		name string
	}
	others := map[other]int{}
	for i := range run.Transfers {
		t := &run.Transfers[i]
		if t.Warmup {
			continue
		}
		if t.Error != "" {
			failures[failure{t.Arm, t.Error}]++
			continue
		}
		measured++
		if want := p.Arms[t.Arm].Algorithm; t.Algorithm != "" && want != "" && t.Algorithm != want {
			others[other{t.Arm, t.Algorithm}]++
		}
	}
	planned := len(p.Arms) * len(p.Paths) * len(p.Sizes) * p.Rounds * max(1, p.Flows)
	if !run.Complete {
		out = append(out, text.T("The run is not complete: %d of %d transfers were measured.", measured, planned))
	}
	if run.TimerLate > roughTimers {
		out = append(out, text.T("The timers of this machine were %s ms late: it was busy or is emulated, and its numbers are rough.", short(run.TimerLate)))
	}
	for a := range p.Arms {
		unfinished, rounds, fewest := 0, 0, math.MaxInt
		for i := range v.Cells {
			s := &v.Cells[i].Arms[a]
			unfinished += s.Unfinished
			rounds += s.Rounds
			fewest = min(fewest, s.Rounds)
		}
		if unfinished > 0 {
			out = append(out, text.T("%s: %d of %d did not finish in %s. They count as slower than all that did.", armName(run, a), unfinished, rounds, durationText(p.Limit)))
		}
		var why []failure
		for f := range failures {
			if f.arm == a {
				why = append(why, f)
			}
		}
		slices.SortFunc(why, func(x, y failure) int { return strings.Compare(x.why, y.why) })
		for i, f := range why {
			if i == 3 {
				break
			}
			out = append(out, text.T("%s: transfers that failed, not counted: %d (%s)", armName(run, a), failures[f], text.Safe(f.why)))
		}
		var names []other
		for o := range others {
			if o.arm == a {
				names = append(names, o)
			}
		}
		slices.SortFunc(names, func(x, y other) int { return strings.Compare(x.name, y.name) })
		for _, o := range names {
			out = append(out, text.T("%s: transfers whose socket had the algorithm %s instead of %s: %d", armName(run, a), text.Safe(o.name), text.Safe(p.Arms[a].Algorithm), others[o]))
		}
	}
	out = append(out, notCompared(run)...)
	for i := range v.Cells {
		if slices.ContainsFunc(v.Cells[i].Arms, func(s Summary) bool { return s.Rounds > 0 && s.Seconds.Low == nil }) {
			out = append(out, text.T("Fewer than 6 rounds have no 95 %% interval of a median."))
			break
		}
	}
	return out
}

// notCompared names what the files of arms ask for and the lab cannot give,
// once for all arms that ask for the same.
func notCompared(run *lab.Run) []string {
	arms := map[string][]string{}
	var order []string
	for a := range run.Plan.Arms {
		n := run.Plan.Arms[a].NotCompared
		if len(n) == 0 {
			continue
		}
		safe := make([]string, len(n))
		for i := range n {
			safe[i] = text.Safe(lab.Translated(n[i]))
		}
		keys := strings.Join(safe, text.T(", "))
		if arms[keys] == nil {
			order = append(order, keys)
		}
		arms[keys] = append(arms[keys], armName(run, a))
	}
	var out []string
	for _, keys := range order {
		out = append(out, text.T("%s: could not be compared here: %s", strings.Join(arms[keys], text.T(", ")), keys))
	}
	return out
}
