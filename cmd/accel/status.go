package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"accel/pkg/bootkernel"
	"accel/pkg/doctor"
	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// status is the command `accel status`.
func (a *accel) status(c *cli.Context) error {
	h, err := a.host(c)
	if err != nil {
		return err
	}
	s, err := tuning.Assess(c.Context, h)
	if err != nil {
		return err
	}
	if hint := doctor.Hint(c.Context, h); hint != "" {
		s.Notes = append(s.Notes, hint)
	}
	doc := statusDocument{Status: *s}
	if b, err := a.bootHost(c); err == nil {
		if doc.Upgrade, err = bootkernel.Tell(b); err != nil {
			doc.Notes = append(doc.Notes, err.Error())
		}
	}
	a.exit = s.Exit
	if c.Bool("json") {
		return printJSON(a.out, doc)
	}
	p := &page{screen: a.outScreen}
	statusPage(p, &doc.Status)
	if doc.Upgrade != nil {
		p.gap()
		storyLines(p, doc.Upgrade)
	}
	return p.print()
}

// statusDocument is what `accel status` shows: the status, and how the last
// install of a kernel stands.
type statusDocument struct {
	tuning.Status
	Upgrade *bootkernel.Story `json:"upgrade,omitempty"`
}

func statusPage(p *page, s *tuning.Status) {
	verdictLines(p, s)
	p.gap()
	if e := s.Enabled; e != nil {
		p.row(text.T("Enabled"), enabledLine(e))
	}
	algorithmRows(p, s)
	qdiscRows(p, s)
	routeRows(p, s)
	settingRows(p, s)
	if s.Enabled != nil {
		p.row(text.T("File"), tuning.SysctlFile)
	}
	bootRows(p, s)
	p.row(text.T("Service"), serviceLine(s.Service))
	p.row(text.T("Drift"), driftLines(s)...)
	hostRows(p, s)
	notes(p, s.Notes)
}

// detectDocument is what `accel detect --json` prints: the status document
// without what was enabled. The fields here hide those of the same name.
type detectDocument struct {
	tuning.Status
	Enabled  *struct{} `json:"enabled,omitempty"`
	Service  *struct{} `json:"service,omitempty"`
	Settings *struct{} `json:"settings,omitempty"`
	Drift    *struct{} `json:"drift,omitempty"`
}

// detect is the command `accel detect`.
func (a *accel) detect(c *cli.Context) error {
	dir := c.String("record")
	if dir != "" {
		if err := tuning.WriteRecording(a.live(), dir); err != nil {
			return &tuning.Problem{Exit: tuning.ExitFailed, Err: err, Next: text.T("Name a new or empty directory that you may write to.")}
		}
	}
	s, err := a.assess(c)
	if err != nil {
		return err
	}
	// The facts were found, which is all that was asked for. Only a host that
	// can have nothing is told apart, unless it was to be recorded.
	s.Schema, s.Exit = tuning.DetectSchema, tuning.ExitGood
	if s.Verdict == tuning.Unsupported && dir == "" {
		s.Exit = tuning.ExitImpossible
	}
	a.exit = s.Exit
	if c.Bool("json") {
		return printJSON(a.out, detectDocument{Status: *s})
	}
	p := &page{screen: a.outScreen}
	if dir != "" {
		p.headline(green, text.T("recorded"), dir)
		p.paragraph(text.T("It holds no addresses and no host names. To look at it: accel --root %s status", dir))
		return p.print()
	}
	if s.Verdict == tuning.Unsupported {
		verdictLines(p, s)
	} else {
		colour, sentence := obtainable(s)
		p.headline(colour, s.Algorithm.Name, sentence)
	}
	p.gap()
	hostRows(p, s)
	algorithmRows(p, s)
	qdiscRows(p, s)
	routeRows(p, s)
	bootRows(p, s)
	notes(p, s.Notes)
	return p.print()
}

func (a *accel) assess(c *cli.Context) (*tuning.Status, error) {
	h, err := a.host(c)
	if err != nil {
		return nil, err
	}
	return tuning.Assess(c.Context, h)
}

// verdictLines prints the verdict, the reason and what to do.
func verdictLines(p *page, s *tuning.Status) {
	colour, word := verdictWord(s.Verdict)
	p.headline(colour, word, s.Reason)
	if s.Next != "" {
		p.paragraph(s.Next)
	}
}

func verdictWord(v tuning.Verdict) (colour int, word string) {
	switch v {
	case tuning.Good:
		return green, text.T("good")
	case tuning.NotEnabled:
		return yellow, text.T("not enabled")
	case tuning.NotInForce:
		return red, text.T("not in force")
	case tuning.Drifted:
		return red, text.T("drifted")
	case tuning.Unsupported:
		return red, text.T("not possible")
	}
	return red, string(v)
}

// obtainable says whether and how the algorithm can be had.
func obtainable(s *tuning.Status) (colour int, sentence string) {
	switch a := s.Algorithm; {
	case slices.Contains(a.Available, a.Name):
		return green, text.T("available now (%s)", origin(a.Origin))
	case slices.Contains(a.Loadable, a.Name):
		return green, text.T("available, enable loads it (%s)", origin(a.Origin))
	default:
		return yellow, text.T("not available (%s)", origin(a.Origin))
	}
}

func origin(o kernel.Origin) string {
	switch o {
	case kernel.Builtin:
		return text.T("built into the kernel")
	case kernel.Loaded:
		return text.T("a module, loaded")
	case kernel.Loadable:
		return text.T("a module, not loaded")
	case kernel.Absent:
		return text.T("neither built in nor a module")
	}
	return text.T("origin not known")
}

func enabledLine(e *tuning.Enabled) string {
	since := text.T("since %s", e.Since.UTC().Format("2006-01-02 15:04 UTC"))
	if e.Qdisc == "" {
		return text.T("%s without a qdisc (profile %s), %s", e.Algorithm, e.Profile, since)
	}
	return text.T("%s with %s (profile %s), %s", e.Algorithm, e.Qdisc, e.Profile, since)
}

func names(list []string) string {
	if len(list) == 0 {
		return text.T("none")
	}
	return strings.Join(list, " ")
}

func algorithmRows(p *page, s *tuning.Status) {
	a := s.Algorithm
	lines := []string{text.T("sysctl: %s", orMissing(a.Default))}
	if a.Socket != nil {
		lines = append(lines, text.T("in force: %s, on an established connection", *a.Socket))
	} else {
		lines = append(lines, text.T("in force: not known"))
	}
	lines = append(lines, text.T("available: %s", names(a.Available)))
	if len(a.Loadable) > 0 {
		lines = append(lines, text.T("loadable: %s", names(a.Loadable)))
	}
	p.row(text.T("Algorithm"), lines...)

	var counts []string
	for _, n := range slices.Sorted(maps.Keys(s.Connections)) {
		counts = append(counts, fmt.Sprintf("%s %d", n, s.Connections[n]))
	}
	switch {
	case s.Connections == nil:
		p.row(text.T("Connections"), text.T("not known"))
	case len(counts) == 0:
		p.row(text.T("Connections"), text.T("none"))
	default:
		p.row(text.T("Connections"), strings.Join(counts, ", "))
	}

	version := text.T("not known")
	if a.BBRVersion != nil {
		version = strconv.Itoa(*a.BBRVersion)
	}
	if strings.HasPrefix(a.Name, "bbr") {
		p.row(text.T("BBR version"), version)
	}
	switch {
	case len(a.Modules) > 0:
		p.row(text.T("Modules"), a.Modules...)
	case a.Origin == kernel.Builtin:
		p.row(text.T("Modules"), text.T("none: %s is built into the kernel, so lsmod does not show it", a.Name))
	default:
		p.row(text.T("Modules"), text.T("no line in lsmod"))
	}
}

// orMissing tells a sysctl that is not there apart from one with a value.
func orMissing(s *string) string {
	if s == nil {
		return text.T("no such key here")
	}
	return *s
}

func qdiscRows(p *page, s *tuning.Status) {
	p.row(text.T("Qdisc"),
		text.T("default: %s", orMissing(s.Qdisc.Default)),
		text.T("available: %s", names(s.Qdisc.Available)))
	width := 0
	for _, l := range s.Qdisc.Links {
		width = max(width, text.Width(text.Safe(l.Name)))
	}
	width = min(width, 15) // IFNAMSIZ
	var lines []string
	for _, l := range s.Qdisc.Links {
		line := text.Pad(text.Safe(l.Name), width) + "  " + linkLine(l)
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = []string{text.T("not known")}
	}
	p.row(text.T("Links"), lines...)
}

func linkLine(l tuning.StatusLink) string {
	kind := cmp.Or(l.Kind, text.T("qdisc not known"))
	if l.Root != nil && l.Root.Kind != l.Kind {
		kind = text.T("%s below %s (%d queues)", l.Kind, l.Root.Kind, len(l.Leaves))
	}
	switch {
	case l.Managed:
		return text.T("%s, managed", kind)
	case l.Reason != "":
		return text.T("%s: %s", kind, l.Reason)
	}
	return kind
}

// routeRows shows only default routes that say something about TCP, and, where
// the profile has to do with routes, why it leaves one.
func routeRows(p *page, s *tuning.Status) {
	var lines []string
	for _, r := range s.Routes {
		if r.CongestionControl != "" {
			lines = append(lines, text.T("default over %s (%s, table %d): congctl %s", r.Link, r.Family, r.Table, r.CongestionControl))
		}
		var metrics []string
		for _, m := range route.Metrics() {
			if v := r.Value(m); v != 0 {
				metrics = append(metrics, fmt.Sprintf("%s %d", m, v))
			}
		}
		said := strings.Join(metrics, " ")
		if !r.Managed && s.Enabled != nil && tuning.UsesRoutes(s.Enabled.Profile) {
			if said != "" {
				said += "; "
			}
			said += text.T("left alone: %s", r.Reason)
		}
		if said != "" {
			line := r.Name() + ": " + said
			if r.Table != mainTable {
				line = text.T("%s (table %d)", r.Name(), r.Table) + ": " + said
			}
			if !slices.Contains(lines, line) { // another path of the same route
				lines = append(lines, line)
			}
		}
	}
	p.row(text.T("Routes"), lines...)
}

// mainTable is RT_TABLE_MAIN of linux/rtnetlink.h.
const mainTable = 254

// settingRows shows what the profile sets beside the algorithm and the qdisc,
// and whose each value is.
func settingRows(p *page, s *tuning.Status) {
	var lines []string
	for _, x := range s.Settings {
		if strings.HasPrefix(x.Setting, string(tuning.KindRoute)+" ") && x.State == tuning.StateSet {
			continue // the routes are shown
		}
		switch x.State {
		case tuning.StateSet:
			lines = append(lines, text.T("%s: %s, set by accel", x.Setting, orMissing(x.Live)))
		case tuning.StateKept:
			lines = append(lines, text.T("%s: %s, kept as it was", x.Setting, orMissing(x.Live)))
		case tuning.StateForeign:
			lines = append(lines, text.T("%s: %s, set to more by somebody else", x.Setting, orMissing(x.Live)))
		case tuning.StateAbsent:
			lines = append(lines, text.T("%s: this kernel does not have it here", x.Setting))
		case tuning.StateRefused:
			lines = append(lines, text.T("%s: %s, the host did not take %s", x.Setting, orMissing(x.Live), x.Wanted))
		default:
			lines = append(lines, text.T("%s: %s, drifted", x.Setting, orMissing(x.Live)))
		}
	}
	p.row(text.T("Settings"), lines...)
}

// bootRows shows what the next boot sets. Where systemd and procps agree it is
// said once.
func bootRows(p *page, s *tuning.Status) {
	type line struct{ setting, where string }
	var order []line
	by := map[line][]string{}
	for _, b := range s.Boot {
		l := line{b.Key + " = " + b.Value, fmt.Sprintf("%s:%d", b.File, b.Line)}
		if by[l] == nil {
			order = append(order, l)
		}
		by[l] = append(by[l], b.Order)
	}
	slices.SortStableFunc(order, func(a, b line) int { return cmp.Compare(a.setting, b.setting) })
	var lines []string
	for _, l := range order {
		lines = append(lines, l.setting, "  "+text.T("by %s (read by %s)", l.where, strings.Join(by[l], ", ")))
	}
	if len(lines) == 0 {
		lines = []string{text.T("no file sets the algorithm or the qdisc: the kernel's own defaults")}
	}
	p.row(text.T("Next boot"), lines...)
}

func serviceLine(s *tuning.ServiceState) string {
	if s == nil {
		return text.T("not known")
	}
	var line string
	switch {
	case !s.Installed:
		line = text.T("not installed")
	case s.Enabled && s.Active:
		line = text.T("enabled and running")
	case s.Enabled:
		line = text.T("enabled, not running")
	case s.Active:
		line = text.T("running, not enabled at boot")
	default:
		line = text.T("installed, off")
	}
	if s.Note != "" {
		line += "; " + s.Note
	}
	return line
}

func driftLines(s *tuning.Status) []string {
	var lines []string
	for _, d := range s.Drift {
		lines = append(lines, text.T("%s is %s, wanted %s", d.Setting, d.Live, d.Wanted))
	}
	if len(lines) == 0 && s.Enabled != nil {
		lines = []string{text.T("none")}
	}
	return lines
}

func hostRows(p *page, s *tuning.Status) {
	release := cmp.Or(s.Kernel.Release, text.T("not known"))
	p.row(text.T("Kernel"), release)
	p.row(text.T("System"), cmp.Or(s.Kernel.Distribution, text.T("not known")))
	v := s.Virtualization
	line := cmp.Or(v.Machine, text.T("not known"))
	if v.Machine == "none" {
		line = text.T("hardware")
	}
	if v.Container != "" && v.Container != "none" {
		line += text.T(", container: %s", v.Container)
	}
	if v.InitialNetns != nil && !*v.InitialNetns {
		line += text.T(", not the initial network namespace")
	}
	p.row(text.T("Machine"), line)
}

// notes prints what a person should know beside the verdict.
func notes(p *page, list []string) {
	if len(list) == 0 {
		return
	}
	p.gap()
	p.row(text.T("Notes"), list...)
}
