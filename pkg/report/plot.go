package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"accel/pkg/lab"
	"accel/pkg/text"
)

// drawing is a picture in SVG, as the page's template writes it. A figure has
// two: one for a desk and paper, and one as narrow as a phone, with letters of
// the same size.
type drawing struct {
	Width, Height int
	Items         []item
}

// item is one thing in a drawing: a path where D is set, otherwise a text.
type item struct {
	Class string
	D     string // path data
	X, Y  string // of a text
	Text  string
	Title string // shown when pointed at
}

const (
	wideWidth   = 760
	narrowWidth = 360
	letterWidth = 6.6 // of a column of text at the size of labels, on average
)

func newDrawing(width float64) *drawing { return &drawing{Width: int(width)} }

// coord writes a coordinate. No picture needs more than a tenth of a pixel.
func coord(f float64) string {
	f = math.Max(-1e5, math.Min(1e5, finite(f)))
	s := strconv.FormatFloat(f, 'f', 1, 64)
	s = strings.TrimSuffix(s, ".0")
	if s == "-0" {
		return "0"
	}
	return s
}

func (d *drawing) path(class, data string) { d.Items = append(d.Items, item{Class: class, D: data}) }

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.path(class, "M"+coord(x1)+" "+coord(y1)+"L"+coord(x2)+" "+coord(y2))
}

func (d *drawing) rect(class string, x, y, w, h float64) {
	d.path(class, "M"+coord(x)+" "+coord(y)+"h"+coord(w)+"v"+coord(h)+"h"+coord(-w)+"z")
}

func (d *drawing) text(class string, x, y float64, s string) {
	d.Items = append(d.Items, item{Class: class, X: coord(x), Y: coord(y), Text: s})
}

// fits cuts a label to a width in pixels.
func fits(s string, width float64) string {
	return clip(s, max(1, int(width/letterWidth)))
}

func labelWidth(s string) float64 { return float64(text.Width(s)) * letterWidth }

// series is the class of an arm's colour, dashes and mark.
func series(arm int) string { return "s" + strconv.Itoa(arm%colours) }

// colours is how many the page's style tells apart; marks and dashes go on.
const colours = 8

// dashes are the patterns of lines, so that they differ without colour.
func dash(arm int) string { return "d" + strconv.Itoa(arm%6) }

// mark draws the mark of an arm.
func (d *drawing) mark(arm int, extra string, x, y, r float64, title string) {
	d.Items = append(d.Items, item{Class: strings.TrimSpace("mk " + series(arm) + " " + extra), D: markPath(arm, x, y, r), Title: title})
}

func markPath(arm int, x, y, r float64) string {
	at := func(points ...float64) string {
		var b strings.Builder
		for i := 0; i < len(points); i += 2 {
			c := "L"
			if i == 0 {
				c = "M"
			}
			b.WriteString(c + coord(x+points[i]*r) + " " + coord(y+points[i+1]*r))
		}
		return b.String() + "z"
	}
	switch arm % 11 {
	case 1:
		return at(-.9, -.9, .9, -.9, .9, .9, -.9, .9)
	case 2:
		return at(0, -1.2, 1.1, .8, -1.1, .8)
	case 3:
		return at(0, -1.3, 1.3, 0, 0, 1.3, -1.3, 0)
	case 4:
		return at(0, 1.2, 1.1, -.8, -1.1, -.8)
	case 5: // plus
		return at(-.4, -1.2, .4, -1.2, .4, -.4, 1.2, -.4, 1.2, .4, .4, .4, .4, 1.2, -.4, 1.2, -.4, .4, -1.2, .4, -1.2, -.4, -.4, -.4)
	case 6: // bow tie
		return at(-1.1, -1, 1.1, 1, 1.1, -1, -1.1, 1)
	case 8:
		return at(-1.2, 0, .8, -1.1, .8, 1.1)
	case 9: // cross
		return at(-1.1, -.65, -.65, -1.1, 0, -.4, .65, -1.1, 1.1, -.65, .4, 0, 1.1, .65, .65, 1.1, 0, .4, -.65, 1.1, -1.1, .65, -.4, 0)
	case 10: // star
		return at(0, -1.5, .35, -.45, 1.4, -.45, .55, .2, .9, 1.25, 0, .6, -.9, 1.25, -.55, .2, -1.4, -.45, -.35, -.45)
	case 7: // bar
		return at(-.45, -1.3, .45, -1.3, .45, 1.3, -.45, 1.3)
	}
	return "M" + coord(x-r) + " " + coord(y) + "a" + coord(r) + " " + coord(r) + " 0 1 0 " + coord(2*r) + " 0a" + coord(r) + " " + coord(r) + " 0 1 0 " + coord(-2*r) + " 0z"
}

// polyline joins points, leaving out what would not be seen.
func polyline(xs, ys []float64) string {
	var b strings.Builder
	last := ""
	for i := range xs {
		p := coord(xs[i]) + " " + coord(ys[i])
		if p == last {
			continue
		}
		if i == 0 {
			b.WriteString("M" + p)
		} else {
			b.WriteString("L" + p)
		}
		last = p
	}
	return b.String()
}

// legendEntry is an arm in the legend of a figure: its line and its mark.
type legendEntry struct {
	Name string
	Mark drawing
}

func legend(run *lab.Run, arms []int, lines bool) []legendEntry {
	var out []legendEntry
	for _, a := range arms {
		d := drawing{Width: 28, Height: 14}
		if lines {
			d.line("ln "+series(a)+" "+dash(a), 0, 7, 28, 7)
		}
		d.mark(a, "", 14, 7, 4, "")
		out = append(out, legendEntry{armName(run, a), d})
	}
	return out
}

func allArms(run *lab.Run) []int {
	out := make([]int, len(run.Plan.Arms))
	for i := range out {
		out[i] = i
	}
	return out
}

// figure is a plot with its words.
type figure struct {
	Title, Caption string
	Legend         []legendEntry
	Wide, Narrow   *drawing
	Label          string // for those who do not see it
	Folded         bool   // shown on request
}

// both draws a figure at its two widths.
func both(f figure, draw func(width float64) *drawing) figure {
	f.Caption = glue(f.Caption)
	f.Wide, f.Narrow = draw(wideWidth), draw(narrowWidth)
	if f.Label == "" {
		f.Label = f.Title
	}
	return f
}

// horizontalAxis draws the ticks of an axis under (or over) a plot.
func (d *drawing) horizontalAxis(s scale, x0, x1, top, bottom float64, label func(float64) string, unit string) {
	n := int((x1 - x0) / 75)
	for _, k := range spaced(s.ticks(n), func(f float64) float64 { return x0 + s.at(f)*(x1-x0) }, func(f float64) float64 { return labelWidth(label(f)) + 8 }) {
		x := x0 + s.at(k)*(x1-x0)
		d.line("grid", x, top, x, bottom)
		d.text("tick ta-m", x, bottom+17, label(k))
	}
	d.line("axis", x0, bottom, x1, bottom)
	if unit != "" {
		d.text("unit ta-e", x1, bottom+34, unit)
	}
}

// spaced leaves out ticks whose labels would touch.
func spaced(ticks []float64, place, width func(float64) float64) []float64 {
	var out []float64
	end := math.Inf(-1)
	for _, k := range ticks {
		x, w := place(k), width(k)
		if x-w/2 < end {
			continue
		}
		end = x + w/2
		out = append(out, k)
	}
	return out
}

// verticalAxis draws the ticks of an axis at the left of a plot.
func (d *drawing) verticalAxis(s scale, x0, x1, top, bottom float64, n int) {
	for _, k := range s.ticks(n) {
		y := bottom - s.at(k)*(bottom-top)
		if y < top-1 || y > bottom+1 {
			continue
		}
		d.line("grid", x0, y, x1, y)
		d.text("tick ta-e", x0-8, y+4, short(k))
	}
}

// axisWidth is the room that the labels of a vertical axis need.
func axisWidth(s scale, n int) float64 {
	w := 0.0
	for _, k := range s.ticks(n) {
		w = max(w, labelWidth(short(k)))
	}
	return w + 14
}

// curveFigure draws the goodput of a sweep, with intervals, over what was swept.
func curveFigure(run *lab.Run, v *Verdicts, size int64) (figure, bool) {
	type point struct{ x, median, low, high float64 }
	points := make([][]point, len(run.Plan.Arms))
	var xs []float64
	least, most := math.Inf(1), 0.0
	limited := true
	for i := range v.Cells {
		c := &v.Cells[i]
		if c.Size != size {
			continue
		}
		x, _ := sweptValue(run, c.Path)
		if !slices.Contains(xs, x) {
			xs = append(xs, x)
		}
		limited = limited && run.Plan.Paths[c.Path].RateMbit > 0
		for a := range c.Arms {
			if e := c.Arms[a].Goodput; e != nil && e.Median > 0 {
				m, l, h := ends(e)
				points[a] = append(points[a], point{x, m, l, h})
				least, most = min(least, m, max(l, m/10)), max(most, h)
			}
		}
	}
	if most <= 0 || len(xs) < 2 {
		return figure{}, false
	}
	slices.Sort(xs)
	for a := range points {
		slices.SortStableFunc(points[a], func(p, q point) int {
			switch {
			case p.x < q.x:
				return -1
			case p.x > q.x:
				return 1
			}
			return 0
		})
	}
	capacity := func(path *lab.Path) float64 {
		return path.RateMbit * 1e6 * (1 - min(1, path.LossPercent/100)) * payload
	}
	if limited {
		for i := range run.Plan.Paths {
			if c := capacity(&run.Plan.Paths[i]); c > 0 {
				least, most = min(least, c), max(most, c)
			}
		}
	}
	unit, factor := rateUnit(most)
	logY := most/least > 15
	y := newScale(0, most/factor, false)
	if logY {
		y = newScale(least/factor/1.25, most/factor*1.25, true)
	}
	positive := xs
	zero := xs[0] == 0
	if zero {
		positive = xs[1:]
	}
	logX := positive[len(positive)-1]/positive[0] > 15
	f := figure{
		Title:   text.T("Goodput by %s", sweepName(run)),
		Caption: text.T("Medians of %d rounds with their 95 %% intervals; more is better.", run.Plan.Rounds),
		Legend:  legend(run, allArms(run), true),
	}
	if len(sizes(v)) > 1 {
		f.Title += text.T(", ") + sizeText(size)
	}
	if limited {
		f.Caption += text.T(" ") + text.T("The thin dotted line is what the path carries: its rate, less the headers and what is lost.")
	}
	if logY {
		f.Caption += text.T(" ") + text.T("The scale of goodput is logarithmic.")
	}
	return both(f, func(width float64) *drawing {
		d := newDrawing(width)
		ticksY := 6
		left, right, top, bottom := axisWidth(y, ticksY), width-14, 30.0, 330.0
		if width < wideWidth {
			bottom = 290
		}
		d.Height = int(bottom) + 42
		d.text("unit", 0, 14, unit)
		d.verticalAxis(y, left, right, top, bottom, ticksY)
		// A zero has no place on a logarithmic axis: it stands apart.
		x0 := left + 14
		if zero && logX {
			x0 = left + 0.13*(right-left)
		}
		sx := scale{positive[0], positive[len(positive)-1], true}
		if !logX {
			sx = scale{xs[0], xs[len(xs)-1], false}
		}
		placeX := func(f float64) float64 {
			if logX && f <= 0 {
				return left + 14
			}
			return x0 + sx.at(f)*(right-14-x0)
		}
		placeY := func(f float64) float64 { return bottom - y.at(max(f, 1e-9)/factor)*(bottom-top) }
		unitX := sweepUnit(run)
		for _, k := range spaced(xs, placeX, func(f float64) float64 { return labelWidth(short(f)) + 8 }) {
			d.line("axis", placeX(k), bottom, placeX(k), bottom+5)
			d.text("tick ta-m", placeX(k), bottom+19, short(k))
		}
		d.line("axis", left, bottom, right, bottom)
		if zero && logX { // the break of the axis
			x := (left + 14 + x0) / 2
			d.rect("paper", x-3, bottom-4, 6, 8)
			d.line("axis", x-6, bottom+5, x, bottom-5)
			d.line("axis", x, bottom+5, x+6, bottom-5)
		}
		name := sweepName(run)
		if unitX != "" {
			name = text.T("%s, %s", name, unitX)
		}
		d.text("unit ta-e", right, bottom+38, name)
		if limited {
			var px, py []float64
			paths := make([]*lab.Path, 0, len(run.Plan.Paths))
			for i := range run.Plan.Paths {
				paths = append(paths, &run.Plan.Paths[i])
			}
			for _, x := range xs {
				for i, p := range paths {
					if v, _ := sweptValue(run, i); v == x {
						px, py = append(px, placeX(x)), append(py, placeY(capacity(p)))
						break
					}
				}
			}
			d.path("ref", polyline(px, py))
		}
		for a := range points {
			var px, py, band []float64
			for _, p := range points[a] {
				px, py, band = append(px, placeX(p.x)), append(py, placeY(p.median)), append(band, placeY(p.high))
			}
			bx := slices.Clone(px)
			for i := len(points[a]) - 1; i >= 0; i-- {
				bx, band = append(bx, placeX(points[a][i].x)), append(band, min(bottom, placeY(points[a][i].low)))
			}
			if len(points[a]) > 1 {
				d.path("band "+series(a), polyline(bx, band)+"z")
			}
			d.path("ln "+series(a)+" "+dash(a), polyline(px, py))
		}
		for a := range points {
			for _, p := range points[a] {
				d.line("err "+series(a), placeX(p.x), min(bottom, placeY(p.low)), placeX(p.x), placeY(p.high))
				d.mark(a, "halo", placeX(p.x), placeY(p.median), 4.5,
					fmt.Sprintf("%s: %s (%s – %s)", armName(run, a), rateText(p.median), rateText(p.low), rateText(p.high)))
			}
		}
		return d
	}), true
}

// payload is the part of a full packet on Ethernet (1514 bytes) that is payload
// of TCP with time stamps (1448 bytes).
const payload = 1448.0 / 1514

func sweepUnit(run *lab.Run) string {
	switch run.Plan.Sweep {
	case "loss":
		return "%"
	case "rtt", "jitter":
		return "ms"
	case "rate":
		return "Mbit/s"
	case "queue":
		if run.Plan.Paths[0].QueueBDP > 0 {
			return "BDP"
		}
		return text.T("packets")
	}
	return ""
}

// maxRows is how many rows a figure of rows has at most.
const maxRows = 160

// ratioFigure draws all ratios with their intervals.
func ratioFigure(run *lab.Run, v *Verdicts) (figure, bool) {
	type row struct {
		name, value string
		r           Ratio
		k           *Comparison
	}
	var all []row
	low, high := 1.0, 1.0
	ahead, behind := 0, 0
	for i := range v.Cells {
		for j := range v.Cells[i].Comparisons {
			if k := &v.Cells[i].Comparisons[j]; k.Outcome == Differs && k.Faster == k.Arm {
				ahead++
			} else if k.Outcome == Differs {
				behind++
			}
		}
	}
	// Of two arms the one that is ahead more often counts as the one that is so
	// many times as fast; of many, each is measured by the first.
	turned := len(run.Plan.Arms) == 2 && behind > ahead
	for i := range v.Cells {
		c := &v.Cells[i]
		if !measuredAnything(c) {
			continue
		}
		for j := range c.Comparisons {
			k := &c.Comparisons[j]
			r := row{name: comparisonName(run, v, c, k), r: k.Ratio, k: k}
			if turned {
				r.r = k.Ratio.inverse()
			}
			switch k.Outcome {
			case Neither:
				r.value = text.T("neither finished")
			case NotEnough:
				r.value = text.T("not enough rounds")
			default:
				r.value = text.T("%s× (%s)", pointText(r.r.PointLow, r.r.PointHigh), numberPair(r.r.Low, r.r.High))
			}
			for _, f := range []*float64{r.r.PointLow, r.r.PointHigh, r.r.Low, r.r.High} {
				if f != nil && *f > 0 {
					low, high = min(low, *f), max(high, *f)
				}
			}
			all = append(all, r)
		}
	}
	if len(all) < 2 || len(all) > maxRows {
		return figure{}, false
	}
	reference, other := armName(run, v.Reference), text.T("the other arm")
	if len(run.Plan.Arms) == 2 {
		other = armName(run, 1)
	}
	if turned {
		reference, other = other, reference
	}
	s := newScale(max(1e-9, low/1.15), min(1e9, high*1.15), true)
	f := figure{
		Title: text.T("How many times as fast as %s", reference),
		Caption: text.T("Ratios of the times with their 95 %% intervals, on a logarithmic scale. Filled: a difference, by the Mann-Whitney test corrected for %d comparisons. Hollow: no difference seen. An arrow: not bounded, since transfers did not finish.",
			v.Comparisons),
	}
	return both(f, func(width float64) *drawing {
		d := newDrawing(width)
		names, values := 0.0, 0.0
		for _, r := range all {
			names, values = max(names, labelWidth(r.name)), max(values, labelWidth(r.value))
		}
		narrow := width < wideWidth
		height, left, right := 28.0, 0.0, width
		if narrow {
			height, left, right = 44, 8, width-8
		} else {
			names, values = min(names, 250), min(values, 230)
			left, right = names+24, width-values-20
		}
		top := 30.0
		bottom := top + height*float64(len(all))
		d.Height = int(bottom) + 28
		one := left + s.at(1)*(right-left)
		d.horizontalAxis(s, left, right, top, bottom, func(f float64) string { return short(f) + "×" }, "")
		d.line("one", one, top-6, one, bottom)
		if one-left > 60 {
			d.text("hint ta-e", one-8, 14, fits("← "+text.T("%s ahead", reference), one-left))
		}
		if right-one > 60 {
			label, room := text.T("%s ahead", other)+" →", width-one-8
			if labelWidth(label) > room {
				label = text.T("ahead") + " →"
			}
			d.text("hint", one+8, 14, fits(label, room))
		}
		for i, r := range all {
			y := top + height*(float64(i)+0.5)
			if narrow {
				d.text("name", 0, y-8, fits(r.name, width-labelWidth(r.value)-12))
				d.text("value ta-e", width, y-8, r.value)
				y += 8
			} else {
				d.text("name", 0, y+4, fits(r.name, left-12))
				d.text("value ta-e", width, y+4, r.value)
			}
			if r.k.Outcome == Neither || r.k.Outcome == NotEnough {
				continue
			}
			d.ratioMark(run, s, left, right, y, r.r, r.k)
		}
		return d
	}), true
}

// ratioMark draws one ratio: the interval, with an arrow where it is open, and
// the estimate.
func (d *drawing) ratioMark(run *lab.Run, s scale, left, right, y float64, r Ratio, k *Comparison) {
	at := func(f float64) float64 { return left + s.at(f)*(right-left) }
	class, extra := "err none", "none hollow"
	arm := k.Arm
	if k.Outcome == Differs {
		arm = k.Faster
		class, extra = "err thick "+series(arm), ""
	}
	x0, x1 := left, right
	if r.Low != nil {
		x0 = max(left, at(*r.Low))
	}
	if r.High != nil {
		x1 = min(right, at(*r.High))
	}
	d.line(class, x0, y, x1, y)
	if r.Low == nil {
		d.path(class, "M"+coord(x0+6)+" "+coord(y-5)+"L"+coord(x0)+" "+coord(y)+"L"+coord(x0+6)+" "+coord(y+5))
	}
	if r.High == nil {
		d.path(class, "M"+coord(x1-6)+" "+coord(y-5)+"L"+coord(x1)+" "+coord(y)+"L"+coord(x1-6)+" "+coord(y+5))
	}
	p := r.PointLow
	if p == nil {
		p = r.PointHigh
	}
	if p != nil {
		d.mark(arm, extra, at(*p), y, 4.5, comparisonTitle(run, k))
	}
}

func comparisonTitle(run *lab.Run, k *Comparison) string { return k.Sentence }

// transfersFigure draws every transfer of one size as a dot, with the median and
// its interval, in rows.
func transfersFigure(run *lab.Run, v *Verdicts, size int64) (figure, bool) {
	var shown []*Cell
	rows := 0
	least, most := math.Inf(1), 0.0
	open := false
	for i := range v.Cells {
		c := &v.Cells[i]
		if c.Size != size || !measuredAnything(c) {
			continue
		}
		shown = append(shown, c)
		rows += len(c.Arms)
		for a := range c.Arms {
			for _, x := range c.Arms[a].values {
				least, most = min(least, x.seconds), max(most, x.seconds)
				open = open || x.censored
			}
		}
	}
	if most <= 0 || rows > maxRows {
		return figure{}, false
	}
	log := most/least > 8
	pad := (most - least) * 0.06
	s := newScale(max(0, least-pad), most+pad, false)
	if open { // the axis ends at the limit; what did not finish lies beyond it
		s = between(max(0, least-pad), most)
	}
	if log && open {
		s = newScale(least/1.08, most, true)
	} else if log {
		s = newScale(least/1.08, most*1.08, true)
	} else if most-least < most/1e3 {
		s = newScale(0, most*1.1, false)
	}
	f := figure{
		Title: text.T("Every transfer"),
		Caption: text.T("Each mark is the time of one transfer of %s; the upright line is the median, the bar its 95 %% interval. Further left is better.",
			sizeText(size)),
	}
	if run.Plan.Flows > 1 {
		f.Caption = text.T("Each mark is one round: the time until the last of %d flows of %s was through. The upright line is the median, the bar its 95 %% interval. Further left is better.", run.Plan.Flows, sizeText(size))
	}
	if len(sizes(v)) > 1 {
		f.Title += text.T(", ") + sizeText(size)
	}
	if log {
		f.Caption += text.T(" ") + text.T("The scale of time is logarithmic.")
	}
	if open {
		f.Caption += text.T(" ") + text.T("Hollow marks beyond the limit of %s did not finish.", durationText(run.Plan.Limit))
	}
	return both(f, func(width float64) *drawing {
		d := newDrawing(width)
		narrow := width < wideWidth
		names, values := 0.0, 0.0
		for a := range run.Plan.Arms {
			names = max(names, labelWidth(armName(run, a)))
		}
		for _, c := range shown {
			for a := range c.Arms {
				values = max(values, labelWidth(timeText(c.Arms[a].Seconds)))
			}
		}
		names = min(names, width/3.6)
		left, right := names+20, width-values-22
		beyond := 0.0 // where those that did not finish stand
		if open {
			beyond = 76
			if narrow {
				beyond = 46
			}
			right -= beyond
		}
		height := 34.0
		switch {
		case rows <= 4:
			height = 54
		case rows > 12:
			height = 26
		}
		head := 26.0
		if len(shown) < 2 {
			head = 0
		}
		top := 8.0
		bottom := top + float64(rows)*height + float64(len(shown))*head
		d.Height = int(bottom) + 40
		ms := most < 0.1
		d.horizontalAxis(s, left, right, top, bottom, func(f float64) string {
			if ms {
				return short(f * 1000)
			}
			return short(f)
		}, "")
		unit := text.T("seconds")
		if ms {
			unit = text.T("milliseconds")
		}
		d.text("unit ta-e", width, bottom+34, unit)
		if open {
			d.rect("beyond", right, top, beyond, bottom-top)
			d.line("one", right, top, right, bottom)
		}
		y := top
		for _, c := range shown {
			if head > 0 {
				d.line("axis", 0, y, width, y)
				d.text("group", 0, y+18, fits(pathName(run, c), width))
				y += head
			}
			for a := range c.Arms {
				d.transferRow(run, &c.Arms[a], s, left, right, beyond, y+height/2, height)
				y += height
			}
		}
		return d
	}), true
}

// pathName names the path of a cell, or what was swept.
func pathName(run *lab.Run, c *Cell) string {
	one := *run
	one.Plan.Sizes = nil
	if len(run.Plan.Paths) == 1 {
		return namedPath(&run.Plan.Paths[0])
	}
	return cellName(&one, c)
}

func (d *drawing) transferRow(run *lab.Run, s *Summary, axis scale, left, right, beyond, y, height float64) {
	d.text("name ta-e", left-12, y+4, fits(armName(run, s.Arm), left-14))
	d.text("value ta-e", float64(d.Width), y+4, timeText(s.Seconds))
	if s.Seconds == nil {
		return
	}
	at := func(f float64) float64 { return left + axis.at(f)*(right-left) }
	h := height * 0.36
	if e := s.Seconds; e.Low != nil && e.High != nil {
		low, high := at(*e.Low), at(*e.High)
		if e.LowAbove {
			low = right
		}
		if e.HighAbove {
			high = right + beyond
		}
		d.rect("ci "+series(s.Arm), low, y-h, max(1, high-low), 2*h)
	}
	values := slices.Clone(s.values)
	slices.SortStableFunc(values, func(a, b value) int {
		switch x, z := rankValue(a), rankValue(b); {
		case x < z:
			return -1
		case x > z:
			return 1
		}
		return 0
	})
	// Marks that would cover each other move up and down from the middle.
	r := 3.6
	switch {
	case height > 50:
		r = 4.4
	case len(values) > 40:
		r = 2.4
	}
	every := 1 + len(values)/400
	var placed []float64
	stack := 0
	for i, v := range values {
		if i%every != 0 {
			continue
		}
		if v.censored {
			n := float64(i - (len(values) - s.Unfinished))
			x := right + 10 + n*min(2.4*r, (beyond-18)/float64(max(1, s.Unfinished-1)))
			d.mark(s.Arm, "dot hollow", x, y, r, text.T("round %d: %s", v.round+1, text.T("did not finish in %s", secondsText(v.seconds))))
			continue
		}
		x := at(v.seconds)
		if len(placed) > 0 && x-placed[len(placed)-1] < r*1.6 {
			stack++
		} else {
			stack = 0
			placed = append(placed, x)
		}
		steps := int(h / (r * 1.3))
		dy := 0.0
		if n := stack % (2*steps + 1); n > 0 {
			dy = float64((n+1)/2) * r * 1.3
			if n%2 == 0 {
				dy = -dy
			}
		}
		d.mark(s.Arm, "dot", x, y+dy, r, text.T("round %d: %s", v.round+1, secondsText(v.seconds)))
	}
	if x := min(right, at(s.Seconds.Median)); !s.Seconds.Above {
		d.line("median "+series(s.Arm), x, y-h-2, x, y+h+2)
	}
}

// maxPoints is how many points of a series are drawn.
const maxPoints = 180

// timesFigure draws what one transfer of each of some arms did over time.
func timesFigure(run *lab.Run, v *Verdicts, c *Cell, arms []int) (figure, bool) {
	type track struct {
		arm     int
		samples []lab.Sample
		whole   float64
		ended   bool
	}
	var tracks []track
	shortest, longest := math.Inf(1), 0.0
	for _, a := range arms {
		for i := range run.Transfers {
			t := &run.Transfers[i]
			if t.Path != c.Path || t.Arm != a || t.Size != c.Size || len(t.Samples) < 2 || t.Error != "" {
				continue
			}
			end := t.Samples[len(t.Samples)-1].At
			if !(end > 0) || math.IsInf(end, 0) {
				continue
			}
			tracks = append(tracks, track{a, t.Samples, end, t.Finished})
			shortest, longest = min(shortest, end), max(longest, end)
			break
		}
	}
	if len(tracks) == 0 {
		return figure{}, false
	}
	end := longest
	f := figure{Title: text.T("One transfer of each arm over time")}
	if len(tracks) == 1 {
		f.Title = text.T("One transfer over time")
	}
	f.Caption = text.T("%s: what the sending socket's own account says, sampled while it sent.", cellLong(run, c))
	if longest > 6*shortest {
		end = 6 * shortest
		f.Caption += text.T(" ") + text.T("Shown are the first %s; the longest transfer took %s.", secondsText(end), secondsText(longest))
	}
	var shown []int
	for i := range tracks {
		t := &tracks[i]
		shown = append(shown, t.arm)
		last := len(t.samples)
		for j, s := range t.samples {
			if s.At > end {
				last = j + 1 // one beyond, so that the line reaches the edge
				break
			}
		}
		t.samples = t.samples[:last]
	}
	f.Legend = legend(run, shown, true)
	path := &run.Plan.Paths[c.Path]
	rateMost := 0.0
	for _, t := range tracks {
		for _, s := range t.samples {
			rateMost = max(rateMost, finite(s.DeliveryRate))
		}
	}
	unit, factor := rateUnit(max(rateMost, path.RateMbit*1e6))
	if path.RateMbit > 0 {
		unit, factor = rateUnit(path.RateMbit * 1e6)
	}
	panels := []struct {
		name, unit string
		of         func(lab.Sample) float64
		reference  float64
		refName    string
	}{
		{text.T("delivery rate"), unit, func(s lab.Sample) float64 { return s.DeliveryRate / factor }, path.RateMbit * 1e6 / factor, text.T("rate of the path")},
		{text.T("round-trip time"), "ms", func(s lab.Sample) float64 { return s.RTT }, float64(path.RTT) / 1e6, text.T("without a queue")},
		{text.T("congestion window"), text.T("segments"), func(s lab.Sample) float64 { return float64(s.Cwnd) }, 0, ""},
	}
	// The kernel's rate of a single acknowledged burst may be many times that of
	// the path; such needles would press everything else to the ground.
	tallest := math.Inf(1)
	if r := path.RateMbit * 1e6; r > 0 && rateMost > 1.6*r {
		tallest = 1.6 * r / factor
		f.Caption += text.T(" ") + text.T("Rates beyond 1.6 times that of the path, of single bursts, are cut off.")
	}
	return both(f, func(width float64) *drawing {
		d := newDrawing(width)
		const ticks = 4
		height, gap := 128.0, 44.0
		if width < wideWidth {
			height = 112
		}
		left := 0.0
		scales := make([]scale, len(panels))
		for i, p := range panels {
			// Where the arms lie far apart the lesser would creep along the axis.
			most, least, lowest := p.reference, math.Inf(1), math.Inf(1)
			for _, t := range tracks {
				peak := 0.0
				for _, s := range t.samples {
					if f := finite(p.of(s)); s.At <= end && f > 0 {
						peak, lowest = max(peak, f), min(lowest, f)
					}
				}
				if peak > 0 {
					most, least = max(most, peak), min(least, peak)
				}
			}
			if i == 0 {
				most = min(most, tallest)
			}
			scales[i] = between(0, most*1.06)
			if most > 12*least {
				scales[i] = newScale(max(lowest, least/20)/1.1, most*1.2, true)
			}
			left = max(left, axisWidth(scales[i], ticks))
		}
		right := width - 10
		sx := between(0, end)
		top := 28.0
		for i, p := range panels {
			y := scales[i]
			bottom := top + height
			title := text.T("%s, %s", p.name, p.unit)
			if y.log {
				title += text.T(" (logarithmic)")
			}
			d.text("panel", 0, top-12, title)
			d.verticalAxis(y, left, right, top, bottom, ticks)
			d.line("axis", left, bottom, right, bottom)
			if p.reference > 0 {
				ry := bottom - y.at(p.reference)*height
				d.line("ref", left, ry, right, ry)
				defer d.text("hint ta-e", right, ry-5, p.refName) // over the lines
			}
			for _, t := range tracks {
				var xs, ys []float64
				every := 1 + len(t.samples)/maxPoints
				for j, s := range t.samples {
					f := p.of(s)
					if j%every != 0 && j != len(t.samples)-1 || math.IsNaN(f) || math.IsInf(f, 0) || f == 0 && i < 2 {
						continue
					}
					x := left + sx.at(min(s.At, end))*(right-left)
					xs, ys = append(xs, x), append(ys, min(bottom, max(top, bottom-y.at(f)*height)))
				}
				if len(xs) == 0 {
					continue
				}
				d.path("ln thin "+series(t.arm)+" "+dash(t.arm), polyline(xs, ys))
				if t.whole <= end {
					d.mark(t.arm, "halo", xs[len(xs)-1], ys[len(ys)-1], 4, "")
				} else { // somewhere, to tell which line it is
					d.mark(t.arm, "halo", xs[len(xs)*2/3], ys[len(ys)*2/3], 4, "")
				}
			}
			if i == len(panels)-1 {
				for _, k := range spaced(sx.ticks(int((right-left)/80)), func(f float64) float64 { return left + sx.at(f)*(right-left) }, func(f float64) float64 { return labelWidth(short(f)) + 8 }) {
					x := left + sx.at(k)*(right-left)
					d.line("axis", x, bottom, x, bottom+5)
					d.text("tick ta-m", x, bottom+19, short(k))
				}
				d.text("unit ta-e", right, bottom+36, text.T("seconds since the request"))
				d.Height = int(bottom) + 42
			}
			top = bottom + gap
		}
		return d
	}), true
}

// cellLong names a cell with the path's numbers.
func cellLong(run *lab.Run, c *Cell) string {
	return text.T("%s over %s", sizeText(c.Size), namedPath(&run.Plan.Paths[c.Path]))
}
