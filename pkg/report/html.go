package report

import (
	"bufio"
	"embed"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"accel/pkg/lab"
	"accel/pkg/text"
)

//go:embed page.html page.css
var pageFiles embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"style": func() (template.CSS, error) {
		css, err := pageFiles.ReadFile("page.css")
		return template.CSS(css), err // our own file: nothing of a run is in it
	},
}).ParseFS(pageFiles, "page.html"))

// page is what the template shows. Every text in it comes from pkg/text or was
// made safe to print.
type page struct {
	Language, Title   string
	Claim, Detail     string
	Largest           string
	Conditions        []fact
	Notes             []string
	First             []figure // what the verdict stands on
	Compared          []verdictLine
	Tables            []table
	Transfers         []figure
	Times             []figure
	Arms              []armFacts
	Paths             []fact
	PathSources       []fact
	Parameters        []fact
	Host              []fact
	Command           string
	Method            []string
	Made              string
	Words             words
	Columns           []string
	ManyArms, OneCell bool
}

// unit finds the space between a number and its unit, where no line may break.
var unit = regexp.MustCompile(`([0-9]) (%|ms|s|[kMG]?bit/s|[KMG]i?B|B|BDP|GiB)([^A-Za-z0-9]|$)`)

// glue keeps numbers and their units on one line.
func glue(s string) string { return unit.ReplaceAllString(s, "$1\u00a0$2$3") }

func glueFacts(facts []fact) []fact {
	for i := range facts {
		facts[i].Value = glue(facts[i].Value)
	}
	return facts
}

func glueAll(list []string) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = glue(list[i])
	}
	return out
}

// words are the page's own texts.
type words struct {
	Eyebrow, Conditions, Notes, Verdicts, VerdictsSummary, Numbers, NumbersCaption, Transfers, Times, More, Setup, Arms, Paths, Parameters, Host, Repeat, Method, Median string
}

type verdictLine struct{ Name, Sentence, Class string }

// table is the numbers of one cell.
type table struct {
	Name string
	Rows []tableRow
}

type tableRow struct {
	Name    string
	Mark    drawing
	Columns []tableCell
}

type tableCell struct{ Label, Value, Under string }

type armFacts struct {
	Name     string
	Mark     drawing
	Facts    []fact
	Settings []fact
}

// HTML writes the report of a run as one page that needs nothing else: no
// script, no font, no picture from anywhere; its content security policy forbids
// all of them. It follows the reader's choice of light or dark, fits a phone and
// prints. The error is that of the writer.
func HTML(w io.Writer, run *lab.Run) error {
	b := bufio.NewWriter(w)
	if err := pageTemplate.Execute(b, newPage(run, Judge(run))); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return b.Flush()
}

func newPage(run *lab.Run, v *Verdicts) *page {
	claim, rest := headline(run, v)
	p := &page{
		// The language tag of the page, for the browser's fonts and hyphens.
		Language:   text.T("en"),
		Claim:      glue(capital(run, claim)),
		Title:      capital(run, claim),
		Conditions: glueFacts(conditions(run)),
		Notes:      glueAll(v.Notes),
		Command:    text.Safe(run.Command),
		Method:     methodText(run, v),
		ManyArms:   len(run.Plan.Arms) > 2,
		OneCell:    len(v.Cells) == 1,
		Words: words{
			Eyebrow:         "accel compare",
			Notes:           text.T("What to know about these numbers"),
			Verdicts:        text.T("All verdicts in words"),
			Numbers:         text.T("Numbers"),
			NumbersCaption:  text.T("Medians, with the 95 %% interval below the time. Resent is the share of the payload that was sent again; RTT is the smallest and that under load."),
			More:            text.T("More transfers over time"),
			Setup:           text.T("How it was measured"),
			Arms:            text.T("Arms"),
			Paths:           text.T("Paths"),
			Parameters:      text.T("Parameters"),
			Host:            text.T("Host"),
			Repeat:          text.T("To repeat it"),
			Method:          text.T("What stands behind the verdicts"),
			VerdictsSummary: "",
		},
	}
	if rest != "" {
		p.Detail = glue(capital(run, rest) + text.T("."))
	}
	p.Largest = glue(largestDifference(run, v))
	if !run.Started.IsZero() {
		p.Words.Eyebrow += " · " + run.Started.UTC().Format("2006-01-02")
	}
	p.figures(run, v)
	p.verdictLines(run, v)
	p.tables(run, v)
	p.facts(run)
	made := text.T("Made by accel.")
	if run.Version != "" {
		made = text.T("Made by accel %s.", text.Safe(run.Version))
	}
	p.Made = made + text.T(" ") + text.T("This page loads nothing from anywhere.")
	return p
}

func (p *page) figures(run *lab.Run, v *Verdicts) {
	for _, size := range sizes(v) {
		if swept(run) {
			if f, ok := curveFigure(run, v, size); ok {
				p.First = append(p.First, f)
			}
		}
		if f, ok := transfersFigure(run, v, size); ok {
			p.Transfers = append(p.Transfers, f)
		}
	}
	if f, ok := ratioFigure(run, v); ok {
		p.First = append(p.First, f)
	}
	// One transfer over time: of the cell with the largest difference first.
	order := make([]*Cell, 0, len(v.Cells))
	if c := largestCell(v); c != nil {
		order = append(order, c)
	}
	for i := range v.Cells {
		if len(order) == 0 || order[0] != &v.Cells[i] {
			order = append(order, &v.Cells[i])
		}
	}
	for _, c := range order {
		for _, arms := range groups(run) {
			if f, ok := timesFigure(run, v, c, arms); ok && len(p.Times) < 24 {
				f.Folded = len(p.Times) > 0
				p.Times = append(p.Times, f)
			}
		}
	}
}

// groups cuts the arms into groups that one picture bears: up to four lines, the
// first arm in each.
func groups(run *lab.Run) [][]int {
	all := allArms(run)
	if len(all) <= 4 {
		return [][]int{all}
	}
	var out [][]int
	for i := 1; i < len(all); i += 3 {
		out = append(out, append([]int{0}, all[i:min(len(all), i+3)]...))
	}
	return out
}

// largestCell gives the cell with the largest difference; nil where there is
// none.
func largestCell(v *Verdicts) *Cell {
	var best *Cell
	by := 0.0
	for i := range v.Cells {
		for j := range v.Cells[i].Comparisons {
			k := &v.Cells[i].Comparisons[j]
			if k.Outcome != Differs {
				continue
			}
			if _, _, r := k.toward(); r.PointLow != nil && *r.PointLow > by {
				best, by = &v.Cells[i], *r.PointLow
			}
		}
	}
	return best
}

func (p *page) verdictLines(run *lab.Run, v *Verdicts) {
	if v.comparisons() < 2 {
		return
	}
	for i := range v.Cells {
		c := &v.Cells[i]
		if !measuredAnything(c) {
			continue
		}
		for j := range c.Comparisons {
			k := &c.Comparisons[j]
			l := verdictLine{Sentence: wholeSentence(run, k.Sentence), Class: string(k.Outcome)}
			if len(v.Cells) > 1 {
				l.Name = cellName(run, c)
			}
			p.Compared = append(p.Compared, l)
		}
	}
}

func small14(arm int) drawing {
	d := drawing{Width: 14, Height: 14}
	d.mark(arm, "", 7, 7, 4.5, "")
	return d
}

func (p *page) tables(run *lab.Run, v *Verdicts) {
	against := run.Plan.Against != ""
	p.Columns = []string{text.T("arm"), text.T("time"), text.T("goodput"), text.T("resent"), text.T("RTT, loaded"), text.T("first byte"), text.T("90 %% of its rate")}
	if against {
		p.Columns = append(p.Columns, text.T("kept by %s", text.Safe(run.Plan.Against)))
	}
	for i := range v.Cells {
		c := &v.Cells[i]
		if !measuredAnything(c) {
			continue
		}
		t := table{Name: cellName(run, c)}
		for a := range c.Arms {
			s := &c.Arms[a]
			cells := []tableCell{
				{Value: timeText(s.Seconds), Under: timeInterval(s.Seconds)},
				{Value: orDash(s.Goodput, rateText)},
				{Value: orDash(s.RetransShare, percentText)},
				{Value: rttWords(s)},
				{Value: orDash(s.FirstByte, secondsText)},
				{Value: orDash(s.To90, secondsText)},
			}
			if cells[0].Under == "–" {
				cells[0].Under = ""
			}
			if s.Unfinished > 0 {
				cells[0].Under = text.T("%d of %d did not finish", s.Unfinished, s.Rounds)
			}
			if against {
				cells = append(cells, tableCell{Value: orDash(s.Share, percentText)})
			}
			for j := range cells {
				cells[j].Label = p.Columns[j+1]
			}
			t.Rows = append(t.Rows, tableRow{Name: armName(run, a), Mark: small14(a), Columns: cells})
		}
		p.Tables = append(p.Tables, t)
	}
}

// rttWords writes the smallest RTT and that under load.
func rttWords(s *Summary) string {
	a, b := orDash(s.MinRTT, millis), orDash(s.LoadedRTT, millis)
	if a == "–" && b == "–" {
		return "–"
	}
	return a + " →\u00a0" + b + "\u00a0ms"
}

func (p *page) facts(run *lab.Run) {
	for a := range run.Plan.Arms {
		arm := &run.Plan.Arms[a]
		f := armFacts{Name: armName(run, a), Mark: small14(a)}
		f.add(text.T("algorithm"), text.Safe(arm.Algorithm))
		f.add(text.T("qdisc"), text.Safe(arm.Qdisc))
		if arm.Qdisc == "" {
			f.add(text.T("qdisc"), text.T("the kernel's default"))
		}
		if arm.InitialCwnd > 0 {
			f.add("initcwnd", strconv.Itoa(arm.InitialCwnd))
		}
		if arm.InitialRwnd > 0 {
			f.add("initrwnd", strconv.Itoa(arm.InitialRwnd))
		}
		if arm.RTOMin > 0 {
			f.add("rto_min", text.T("%d ms", arm.RTOMin))
		}
		f.add(text.T("file"), text.Safe(arm.Source))
		for _, s := range arm.Settings {
			f.Settings = append(f.Settings, fact{text.Safe(s.Key.String()), text.Safe(s.Value)})
		}
		p.Arms = append(p.Arms, f)
	}
	for i := range run.Plan.Paths {
		q := &run.Plan.Paths[i]
		name := text.Safe(q.Name)
		if name == "" || swept(run) {
			_, name = sweptValue(run, i)
		}
		if name == "" {
			name = text.T("path")
		}
		value := pathText(q)
		if q.QueueBDP > 0 && q.QueuePackets > 0 {
			value += " " + text.T("(%d packets)", q.QueuePackets)
		}
		p.Paths = append(p.Paths, fact{name, value})
		if q.Source != "" && (i == 0 || q.Source != run.Plan.Paths[i-1].Source) {
			p.PathSources = append(p.PathSources, fact{text.Safe(q.Name), text.Safe(q.Source)})
		}
	}
	par := &p.Parameters
	plan := &run.Plan
	var all []string
	for _, s := range plan.Sizes {
		l := sizeText(s)
		if exact := strconv.FormatInt(s, 10) + " B"; exact != l {
			l += " (" + exact + ")"
		}
		all = append(all, l)
	}
	addFact(par, text.T("sizes"), strings.Join(all, text.T(", ")))
	addFact(par, text.T("flows at once"), strconv.Itoa(max(1, plan.Flows)))
	addFact(par, text.T("rounds"), strconv.Itoa(plan.Rounds))
	against := text.T("nothing")
	if plan.Against != "" {
		against = text.Safe(plan.Against)
	}
	addFact(par, text.T("competing flow"), against)
	addFact(par, text.T("limit of a transfer"), durationText(plan.Limit))
	addFact(par, text.T("seed"), strconv.FormatUint(plan.Seed, 10))
	host := &p.Host
	addFact(host, text.T("kernel"), text.Safe(run.Kernel))
	addFact(host, text.T("distribution"), text.Safe(run.Distribution))
	addFact(host, text.T("machine"), text.Safe(run.Machine))
	if run.CPUs > 0 {
		addFact(host, text.T("CPUs"), strconv.Itoa(run.CPUs))
	}
	if run.MemoryBytes > 0 {
		addFact(host, text.T("memory"), significant(float64(run.MemoryBytes)/(1<<30))+" GiB")
	}
	if run.TimerLate > 0 {
		addFact(host, text.T("timers"), text.T("%s late", short(run.TimerLate)+" ms"))
	}
	if !run.Started.IsZero() {
		addFact(host, text.T("started"), run.Started.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	if !run.Ended.IsZero() && run.Ended.After(run.Started) {
		addFact(host, text.T("took"), run.Ended.Sub(run.Started).Round(time.Second).String())
	}
	if run.Version != "" {
		addFact(host, "accel", text.Safe(run.Version))
	}
}

func (f *armFacts) add(name, value string) { addFact(&f.Facts, name, value) }

// addFact adds what there is to say.
func addFact(to *[]fact, name, value string) {
	if value != "" {
		*to = append(*to, fact{name, value})
	}
}

// methodText says how the numbers came to be, for a reader who wants to trust
// them.
func methodText(run *lab.Run, v *Verdicts) []string {
	var out []string
	loopback := 0
	for i := range run.Plan.Paths {
		if run.Plan.Paths[i].Loopback {
			loopback++
		}
	}
	where := ""
	if loopback > 0 {
		where = text.T("On a loopback path both ends share one network namespace, and netem is on its loopback.")
	}
	if loopback < len(run.Plan.Paths) || loopback == 0 {
		if where != "" {
			where += text.T(" ")
		}
		where += text.T("Sender, router and receiver are three network namespaces of one kernel; the router emulates the path.")
	}
	out = append(out, where+text.T(" ")+text.T("Rounds of the arms take turns, one round to warm up is not counted, and what the kernel remembers of earlier connections is cleared between transfers. Times and bytes are those of the receiver; everything else is the sending socket's own account."))
	if len(run.Plan.Arms) < 2 {
		return out
	}
	s := text.T("A difference counts where the two-sided Mann-Whitney test finds one at the 5 %% level.")
	if v.Comparisons > 1 {
		s = text.T("A difference counts where the two-sided Mann-Whitney test finds one at the 5 %% level after Holm's correction for %d comparisons.", v.Comparisons)
	}
	return append(out,
		s+text.T(" ")+text.T("The ratio is the median of all ratios of two transfers, one of each arm (Hodges-Lehmann), and its interval the one that belongs to that test. Transfers that did not finish rank behind all that did, and bound the ratio from one side only."),
		text.T("“No difference seen” does not mean equal: the difference named with it is the smallest that as many rounds with this spread would have found four times in five."),
	)
}
