package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"

	"accel/pkg/lab"
	"accel/pkg/text"
)

// narrowest is the narrowest terminal that Text fits its lines to.
const narrowest = 40

// Text writes the report of a run for a terminal of so many columns (at least
// 40): the verdict, what was measured, a table, bars or the curve of a sweep,
// and what to know about the numbers. It uses no colour and no control
// characters, whatever the run holds. The error is that of the writer.
func Text(w io.Writer, run *lab.Run, width int) error {
	t := &terminal{w: bufio.NewWriter(w), run: run, v: Judge(run), width: max(width, narrowest)}
	t.report()
	return t.w.Flush()
}

type terminal struct {
	w     *bufio.Writer
	run   *lab.Run
	v     *Verdicts
	width int
}

// line writes one line, which must fit.
func (t *terminal) line(s string) {
	t.w.WriteString(strings.TrimRight(s, " "))
	t.w.WriteByte('\n')
}

// paragraph folds a text, with every line after the first indented further.
func (t *terminal) paragraph(indent, hang int, s string) {
	for i, l := range text.Wrap(s, t.width-indent-hang) {
		n := indent
		if i > 0 {
			n += hang
		}
		t.line(strings.Repeat(" ", n) + l)
	}
}

func (t *terminal) blank() { t.line("") }

func (t *terminal) report() {
	run, v := t.run, t.v
	t.paragraph(0, 0, wholeSentence(run, v.Sentence))
	if s := largestDifference(run, v); s != "" {
		t.paragraph(0, 0, s)
	}
	for i, f := range conditions(run) {
		if i == 0 {
			t.blank()
		}
		t.paragraph(0, 2, text.T("%s: %s", f.Name, f.Value))
	}
	for i := range v.Cells {
		c := &v.Cells[i]
		if !measuredAnything(c) {
			continue
		}
		t.blank()
		if len(v.Cells) > 1 {
			t.paragraph(0, 2, cellName(run, c))
		}
		t.table(c)
	}
	t.comparisons()
	if swept(run) {
		for _, size := range sizes(v) {
			t.curve(size)
		}
	} else {
		t.bars()
	}
	if len(v.Notes) > 0 {
		t.blank()
		for _, n := range v.Notes {
			t.paragraph(0, 2, "- "+n)
		}
	}
	if len(run.Plan.Arms) > 1 {
		t.blank()
		t.paragraph(0, 0, method(v))
	}
	if run.Command != "" {
		t.blank()
		t.paragraph(0, 2, text.T("To repeat it: %s", text.Safe(run.Command)))
	}
}

func measuredAnything(c *Cell) bool {
	for i := range c.Arms {
		if c.Arms[i].Rounds > 0 || c.Arms[i].Failed > 0 {
			return true
		}
	}
	return false
}

// sizes gives the sizes of the cells in their order.
func sizes(v *Verdicts) []int64 {
	var out []int64
	seen := map[int64]bool{}
	for i := range v.Cells {
		if s := v.Cells[i].Size; !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// method says in a few sentences what stands behind the verdicts.
func method(v *Verdicts) string {
	if v.Comparisons > 1 {
		return text.T("Intervals are 95 %% confidence intervals of medians and of the ratio of times (Hodges-Lehmann). A difference counts by the Mann-Whitney test at 5 %%, corrected for %d comparisons (Holm).", v.Comparisons)
	}
	return text.T("Intervals are 95 %% confidence intervals of medians and of the ratio of times (Hodges-Lehmann). A difference counts by the Mann-Whitney test at 5 %%.")
}

// fact is a line of the conditions or of the parameters.
type fact struct{ Name, Value string }

// conditions says what was measured, in a few lines.
func conditions(run *lab.Run) []fact {
	p := &run.Plan
	var out []fact
	switch {
	case len(p.Paths) == 1:
		out = append(out, fact{text.T("Path"), namedPath(&p.Paths[0])})
	case swept(run):
		var labels []string
		for i := range p.Paths {
			_, l := sweptValue(run, i)
			labels = append(labels, l)
		}
		out = append(out, fact{text.T("Paths"), text.T("%s of %s; else %s", sweepName(run), strings.Join(labels, text.T(", ")), pathWithout(run))})
	default:
		for i := range p.Paths {
			out = append(out, fact{text.T("Path"), namedPath(&p.Paths[i])})
		}
	}
	var all []string
	for _, s := range p.Sizes {
		all = append(all, sizeText(s))
	}
	if len(all) > 0 {
		s := strings.Join(all, text.T(", "))
		if p.Flows > 1 {
			s = text.T("%s in each of %d flows", s, p.Flows)
		}
		if p.Rounds > 0 {
			s = text.T("%s, %d rounds", s, p.Rounds)
		}
		if p.Against != "" {
			s = text.T("%s, beside a competing flow of %s", s, text.Safe(p.Against))
		}
		out = append(out, fact{text.T("Transfers"), s})
	}
	host := text.Safe(run.Kernel)
	if run.Distribution != "" {
		host += text.T(", ") + text.Safe(run.Distribution)
	}
	if !run.Started.IsZero() {
		host += text.T(", ") + run.Started.UTC().Format("2006-01-02")
	}
	if run.Kernel != "" {
		out = append(out, fact{text.T("Kernel"), host})
	}
	return out
}

func namedPath(p *lab.Path) string {
	if p.Name == "" {
		return pathText(p)
	}
	return text.T("%s (%s)", text.Safe(p.Name), pathText(p))
}

// pathWithout describes the paths of a sweep, apart from what is swept.
func pathWithout(run *lab.Run) string {
	p := run.Plan.Paths[0]
	var drop string
	one := p
	switch run.Plan.Sweep {
	case "loss":
		one.LossPercent, one.LossBurst = 0, p.LossBurst
		drop = text.T("no loss")
	case "rtt":
		drop = rttText(p.RTT)
	case "jitter":
		one.Jitter = 0
	case "rate":
		drop = rateOption(p.RateMbit)
		if p.RateMbit == 0 {
			drop = text.T("no rate limit")
		}
	case "queue":
		one.QueueBDP, one.QueuePackets = 0, 0
	case "client-buffer":
		one.ClientBuffer = 0
	}
	var parts []string
	for _, s := range strings.Split(pathText(&one), text.T(", ")) {
		if s != drop {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, text.T(", "))
}

// clip cuts a text to a number of columns.
func clip(s string, columns int) string {
	if text.Width(s) <= columns {
		return s
	}
	n := 0
	for i, r := range s {
		w := text.Width(string(r))
		if n+w > columns-1 {
			return s[:i] + "…"
		}
		n += w
	}
	return s
}

// row gives the cells of the table for one arm.
func (t *terminal) row(s *Summary) []string {
	out := []string{
		armName(t.run, s.Arm),
		timeText(s.Seconds),
		timeInterval(s.Seconds),
		orDash(s.Goodput, rateText),
		orDash(s.RetransShare, percentText),
		rttPair(s),
	}
	if t.run.Plan.Against != "" {
		out = append(out, orDash(s.Share, percentText))
	}
	return out
}

func orDash(e *Estimate, f func(float64) string) string {
	if e == nil {
		return "–"
	}
	return f(e.Median)
}

// rttPair writes the smallest RTT and the RTT under load.
func rttPair(s *Summary) string {
	a, b := orDash(s.MinRTT, millis), orDash(s.LoadedRTT, millis)
	if a == "–" && b == "–" {
		return "–"
	}
	return a + "/" + b + " ms"
}

func (t *terminal) header() []string {
	out := []string{text.T("arm"), text.T("time"), text.T("95 %% interval"), text.T("goodput"), text.T("resent"), text.T("RTT/loaded")}
	if t.run.Plan.Against != "" {
		out = append(out, text.T("it kept"))
	}
	return out
}

func (t *terminal) table(c *Cell) {
	rows := [][]string{t.header()}
	for i := range c.Arms {
		rows = append(rows, t.row(&c.Arms[i]))
	}
	widths := make([]int, len(rows[0]))
	total := 2*len(widths) - 2
	for i := range widths {
		for _, r := range rows {
			widths[i] = max(widths[i], text.Width(r[i]))
		}
		total += widths[i]
	}
	if over := total - t.width; over > 0 {
		if widths[0]-over < 8 {
			t.stacked(rows)
			return
		}
		widths[0] -= over
	}
	for _, r := range rows {
		var b strings.Builder
		for i, s := range r {
			s = clip(s, widths[i])
			if i == 0 {
				b.WriteString(text.Pad(s, widths[0]))
				continue
			}
			b.WriteString("  " + strings.Repeat(" ", widths[i]-text.Width(s)) + s)
		}
		t.line(b.String())
	}
}

// stacked writes a table that is too wide for the terminal line by line.
func (t *terminal) stacked(rows [][]string) {
	label := 0
	for _, h := range rows[0] {
		label = max(label, text.Width(h))
	}
	label = min(label, t.width/2)
	for _, r := range rows[1:] {
		t.line(clip(r[0], t.width))
		for i := 1; i < len(r); i++ {
			t.line("  " + text.Pad(clip(rows[0][i], label), label) + "  " + clip(r[i], t.width-label-4))
		}
	}
}

// shortVerdict puts a comparison into few words.
func shortVerdict(run *lab.Run, c *Cell, k *Comparison) string {
	switch k.Outcome {
	case Differs:
		ahead, behind, r := k.toward()
		return text.T("%s is %s × %s (%s)", armName(run, ahead), pointText(r.PointLow, r.PointHigh), armName(run, behind), numberPair(r.Low, r.High))
	case NoDifference:
		if k.SmallestSeen == nil {
			return text.T("no difference seen: %s (%s)", pointText(k.Ratio.PointLow, k.Ratio.PointHigh), numberPair(k.Ratio.Low, k.Ratio.High))
		}
		return text.T("no difference seen: %s (%s); could have seen %s", pointText(k.Ratio.PointLow, k.Ratio.PointHigh), numberPair(k.Ratio.Low, k.Ratio.High), differenceText(*k.SmallestSeen))
	case Neither:
		return text.T("neither finished")
	}
	return text.T("not enough rounds: %d and %d, needed %d", c.Arms[k.Arm].Rounds, c.Arms[k.Reference].Rounds, k.RoundsNeeded)
}

// comparisonName says which one of many a comparison is.
func comparisonName(run *lab.Run, v *Verdicts, c *Cell, k *Comparison) string {
	switch {
	case len(run.Plan.Arms) <= 2:
		return cellName(run, c)
	case len(v.Cells) <= 1:
		return armName(run, k.Arm)
	}
	return text.T("%s: %s", cellName(run, c), armName(run, k.Arm))
}

func (t *terminal) comparisons() {
	type entry struct{ name, verdict string }
	var all []entry
	names := 0
	for i := range t.v.Cells {
		c := &t.v.Cells[i]
		if !measuredAnything(c) {
			continue
		}
		for j := range c.Comparisons {
			k := &c.Comparisons[j]
			e := entry{comparisonName(t.run, t.v, c, k), shortVerdict(t.run, c, k)}
			names = max(names, text.Width(e.name))
			all = append(all, e)
		}
	}
	if len(all) < 2 {
		return
	}
	names = min(names, t.width*2/5)
	t.blank()
	t.paragraph(0, 2, text.T("Compared with %s (how many times as fast, 95 %% interval)", armName(t.run, t.v.Reference)))
	if len(t.v.Cells) == 1 { // the verdict names the arm
		names = -2
		for i := range all {
			all[i].name = ""
			if k := &t.v.Cells[0].Comparisons[i]; k.Outcome != Differs {
				all[i].verdict = text.T("%s: %s", armName(t.run, k.Arm), all[i].verdict)
			}
		}
	}
	for _, e := range all {
		for i, l := range text.Wrap(e.verdict, t.width-names-2) {
			switch {
			case names < 0:
				t.line(l)
			case i == 0:
				t.line(text.Pad(clip(e.name, names), names) + "  " + l)
			default:
				t.line(strings.Repeat(" ", names+2) + l)
			}
		}
	}
}

// bars draws the goodput of every arm in every cell: solid up to the low end of
// its interval, light up to the high end.
func (t *terminal) bars() {
	names, values := 0, 0
	for i := range t.v.Cells {
		for j := range t.v.Cells[i].Arms {
			s := &t.v.Cells[i].Arms[j]
			names = max(names, text.Width(armName(t.run, s.Arm)))
			values = max(values, text.Width(orDash(s.Goodput, rateText)))
		}
	}
	names = min(names, t.width/4)
	space := t.width - names - values - 4
	first := true
	for i := range t.v.Cells {
		c := &t.v.Cells[i]
		most := 0.0
		for j := range c.Arms {
			if e := c.Arms[j].Goodput; e != nil {
				_, _, high := ends(e)
				most = max(most, high)
			}
		}
		if most <= 0 {
			continue
		}
		t.blank()
		if first {
			t.paragraph(0, 2, text.T("Goodput (median # and its interval +; a longer bar is more)"))
			first = false
		}
		if len(t.v.Cells) > 1 {
			t.paragraph(0, 2, cellName(t.run, c))
		}
		for j := range c.Arms {
			s := &c.Arms[j]
			bar := ""
			if s.Goodput != nil {
				bar = barText(s.Goodput, most, space)
			}
			value := orDash(s.Goodput, rateText)
			t.line(text.Pad(clip(armName(t.run, s.Arm), names), names) + "  " + strings.Repeat(" ", values-text.Width(value)) + value + "  " + bar)
		}
	}
}

// ends gives the median of a goodput and its interval, which is the median
// itself where there are too few rounds for one.
func ends(e *Estimate) (median, low, high float64) {
	median, low, high = e.Median, e.Median, e.Median
	if e.Low != nil && e.High != nil {
		low, high = *e.Low, *e.High
	}
	return finite(median), finite(low), finite(high)
}

func barText(e *Estimate, most float64, space int) string {
	_, low, high := ends(e)
	at := func(f float64) int { return min(space, max(0, int(math.Round(f/most*float64(space))))) }
	a, b := at(low), at(high)
	if b == 0 && high > 0 {
		return "|" // something, if too little to draw
	}
	return strings.Repeat("#", a) + strings.Repeat("+", b-a)
}

// letter is the mark of an arm in a plot of characters.
func letter(arm int) string {
	const marks = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	return marks[arm%len(marks) : arm%len(marks)+1]
}

// curve draws the goodput of a sweep over what was swept.
func (t *terminal) curve(size int64) {
	const height = 14
	type point struct {
		arm, x int
		y      float64
	}
	var cells []*Cell
	var points []point
	least, most := math.Inf(1), 0.0
	for i := range t.v.Cells {
		c := &t.v.Cells[i]
		if c.Size != size {
			continue
		}
		for j := range c.Arms {
			if e := c.Arms[j].Goodput; e != nil && e.Median > 0 {
				points = append(points, point{j, len(cells), e.Median})
				least, most = min(least, e.Median), max(most, e.Median)
			}
		}
		cells = append(cells, c)
	}
	if len(points) == 0 {
		return
	}
	log := most/least > 20
	unit, factor := rateUnit(most)
	scale := newScale(0, most/factor, false)
	if log {
		scale = newScale(least/factor, most/factor, true)
	}
	ticks := scale.ticks(5)
	axis := 0
	for _, k := range ticks {
		axis = max(axis, len(short(k)))
	}
	space := t.width - axis - 2
	step := float64(space) / float64(len(cells))
	column := func(i int) int { return min(space-1, int(step*(float64(i)+0.5))) }
	row := func(y float64) int {
		return height - 1 - int(math.Round(scale.at(y/factor)*float64(height-1)))
	}
	grid := make([][]string, height)
	for i := range grid {
		grid[i] = make([]string, space)
		for j := range grid[i] {
			grid[i][j] = " "
		}
	}
	last := map[int]point{}
	for _, p := range points { // lines first, marks over them
		if q, ok := last[p.arm]; ok {
			x0, x1 := column(q.x), column(p.x)
			for x := x0 + 1; x < x1; x++ {
				f := float64(x-x0) / float64(x1-x0)
				y := float64(row(q.y)) + f*float64(row(p.y)-row(q.y))
				grid[clamp(int(math.Round(y)), height)][x] = "."
			}
		}
		last[p.arm] = p
	}
	marks := map[[2]int]bool{}
	crowded := false
	for _, p := range points {
		at := [2]int{clamp(row(p.y), height), column(p.x)}
		m := letter(p.arm)
		if marks[at] {
			m = "*"
			crowded = true
		}
		marks[at] = true
		grid[at[0]][at[1]] = m
	}
	t.blank()
	title := text.T("Goodput in %s by %s", unit, sweepName(t.run))
	if len(sizes(t.v)) > 1 {
		title += text.T(", ") + sizeText(size)
	}
	if log {
		title += text.T(" (logarithmic)")
	}
	t.paragraph(0, 2, title)
	labels := map[int]string{}
	for _, k := range ticks {
		if r := row(k * factor); r >= 0 && r < height {
			labels[r] = short(k)
		}
	}
	for i := range grid {
		l := labels[i]
		edge := "|"
		if l != "" {
			edge = "+"
		}
		t.line(strings.Repeat(" ", axis-len(l)) + l + " " + edge + strings.Join(grid[i], ""))
	}
	t.line(strings.Repeat(" ", axis+1) + "+" + strings.Repeat("-", space))
	var under strings.Builder
	for i, c := range cells {
		x, l := sweptValue(t.run, c.Path)
		if w := int(step) - 1; text.Width(l) > w {
			l = short(x)
		}
		at := column(i) - text.Width(l)/2
		if at < 0 || i > 0 && at <= text.Width(under.String()) || at+text.Width(l) > space {
			continue
		}
		under.WriteString(strings.Repeat(" ", at-text.Width(under.String())) + l)
	}
	t.line(strings.Repeat(" ", axis+2) + under.String())
	var legend []string
	for a := range t.run.Plan.Arms {
		legend = append(legend, fmt.Sprintf("%s = %s", letter(a), armName(t.run, a)))
	}
	if crowded {
		legend = append(legend, text.T("* = several"))
	}
	t.paragraph(0, 2, strings.Join(legend, text.T(", ")))
}

func clamp(i, n int) int { return max(0, min(n-1, i)) }
