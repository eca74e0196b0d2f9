package main

import (
	"context"
	"errors"
	"time"

	"github.com/urfave/cli/v2"

	"accel/pkg/probe"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// The short download at the end of enable.
const (
	shortProbe     = 16 << 20 // bytes
	shortProbeTime = 10 * time.Second
)

// resultDocument is what enable and disable print with --json: accel.result/1,
// with the exit code, the error if there was one, and the short download.
type resultDocument struct {
	tuning.Result
	Exit       int           `json:"exit"`
	Error      string        `json:"error,omitempty"`
	Next       string        `json:"next,omitempty"`
	Probe      *probe.Result `json:"probe,omitempty"`
	ProbeError string        `json:"probe_error,omitempty"`
}

// enable is the command `accel enable [ALGORITHM]`.
func (a *accel) enable(c *cli.Context) error {
	req := tuning.Request{
		Algorithm: c.Args().First(),
		Profile:   c.String("profile"),
		Qdisc:     c.String("qdisc"),
		Links:     c.StringSlice("link"),
		DryRun:    c.Bool("dry-run"),
	}
	if !req.DryRun {
		command := "enable"
		if req.Algorithm != "" {
			command += " " + req.Algorithm
		}
		if err := a.needRoot("enable", command); err != nil {
			return err
		}
	}
	stop := a.working(text.T("enabling"))
	res, err := tuning.Enable(c.Context, a.live(), req)
	stop()
	doc := resultDocument{}
	if res != nil {
		doc.Result = *res
		if res.Status != nil {
			doc.Exit = res.Status.Exit
		}
	}
	if res == nil || err != nil {
		return a.failed(c, doc, res != nil, err)
	}
	if !req.DryRun && !c.Bool("no-probe") {
		doc.Probe, doc.ProbeError = a.shortDownload(c.Context)
	}
	a.exit = doc.Exit
	if c.Bool("json") {
		return afterwards(a, printJSON(a.out, doc))
	}
	p := &page{screen: a.outScreen}
	enablePage(p, doc)
	return afterwards(a, p.print())
}

// afterwards keeps the exit code of a change that was made when only printing
// it failed: exit 1 would say that everything was undone.
func afterwards(a *accel, err error) error {
	if err != nil {
		a.report(err, false)
	}
	return nil
}

// failed reports a command that failed. What it did all the same is shown
// before the error.
func (a *accel) failed(c *cli.Context, doc resultDocument, partly bool, err error) error {
	if !partly {
		return err
	}
	doc.Exit = tuning.ExitCode(err)
	doc.Error = err.Error()
	var problem *tuning.Problem
	if errors.As(err, &problem) {
		doc.Next = problem.Next
	}
	if c.Bool("json") {
		a.exit = a.report(err, false)
		return afterwards(a, printJSON(a.out, doc))
	}
	p := &page{screen: a.outScreen}
	changedRows(p, doc.Result)
	leftRows(p, doc.Left)
	notes(p, doc.Notes)
	if perr := p.print(); perr != nil {
		a.report(perr, false)
	}
	return err
}

// shortDownload is the check at the end of enable. It never makes a success a
// failure.
func (a *accel) shortDownload(ctx context.Context) (*probe.Result, string) {
	ctx, cancel := context.WithTimeout(ctx, shortProbeTime)
	defer cancel()
	line := newProgress(a.errScreen)
	defer line.clear()
	r, err := probe.Run(ctx, probe.Options{Size: shortProbe, Progress: func(done, total int64) {
		line.show(text.T("checking: %s of %s", size(done), size(total)))
	}})
	if err != nil {
		return nil, err.Error()
	}
	return &r, ""
}

func enablePage(p *page, doc resultDocument) {
	switch s := doc.Status; {
	case doc.DryRun && !doc.Changed:
		p.headline(green, text.T("dry run"), text.T("nothing would change"))
	case doc.DryRun:
		p.headline(yellow, text.T("dry run"), text.T("nothing was changed; this is what enable would do"))
	case s == nil:
		p.headline(yellow, text.T("enabled"), doc.Enabled.Algorithm)
	case s.Verdict == tuning.Good && !doc.Changed:
		p.headline(green, text.T("nothing to change"), s.Reason)
	case s.Verdict == tuning.Good:
		p.headline(green, text.T("enabled"), s.Reason)
	default:
		colour, word := verdictWord(s.Verdict)
		p.headline(colour, text.T("enabled, but %s", word), s.Reason)
		if s.Next != "" {
			p.paragraph(s.Next)
		}
	}
	p.gap()
	changedRows(p, doc.Result)
	switch {
	case doc.Probe != nil:
		p.row(text.T("Check"), probeLine(*doc.Probe))
	case doc.ProbeError != "":
		p.row(text.T("Check"), text.T("the download did not work: %s", doc.ProbeError))
	}
	list := doc.Notes
	if doc.Status != nil {
		list = merge(list, doc.Status.Notes)
	}
	notes(p, list)
	if !doc.DryRun {
		p.gap()
		p.paragraph(text.T("To put everything back: accel disable"))
	}
}

// merge joins two lists of notes without repeating one.
func merge(a, b []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, n := range append(append([]string{}, a...), b...) {
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

// changedRows shows what was changed and what was not possible.
func changedRows(p *page, r tuning.Result) {
	var changed, kept, skipped []string
	for _, s := range r.Steps {
		switch {
		case s.Action == tuning.Skip:
			skipped = append(skipped, text.T("%s: %s", s.Setting, s.Reason))
		case s.Action == tuning.Keep:
			kept = append(kept, text.T("%s: %s", s.Setting, s.Wanted))
		case r.DryRun && s.Why != "":
			changed = append(changed, text.T("%s: %s -> %s (%s)", s.Setting, orMissing(s.Current), s.Wanted, s.Why))
		case s.Changed || r.DryRun:
			changed = append(changed, text.T("%s: %s -> %s", s.Setting, orMissing(s.Current), s.Wanted))
		}
	}
	label := text.T("Changed")
	if r.DryRun {
		label = text.T("Would change")
	}
	p.row(label, changed...)
	if r.DryRun {
		p.row(text.T("Already so"), kept...)
	}
	p.row(text.T("Left out"), skipped...)
}

func leftRows(p *page, list []tuning.Left) {
	var left, failed []string
	for _, l := range list {
		line := text.T("%s is %s, was %s before accel: %s", l.Setting, l.Live, l.Original, l.Reason)
		if l.Failed {
			failed = append(failed, line)
		} else {
			left = append(left, line)
		}
	}
	p.row(text.T("Left as it is"), left...)
	p.row(text.T("Not put back"), failed...)
}

// disable is the command `accel disable`.
func (a *accel) disable(c *cli.Context) error {
	dryRun := c.Bool("dry-run")
	if !dryRun {
		if err := a.needRoot("disable", "disable"); err != nil {
			return err
		}
	}
	stop := a.working(text.T("disabling"))
	res, err := tuning.Disable(c.Context, a.live(), dryRun)
	stop()
	doc := resultDocument{}
	if res != nil {
		doc.Result = *res
	}
	if res == nil || err != nil {
		return a.failed(c, doc, res != nil, err)
	}
	if c.Bool("json") {
		return afterwards(a, printJSON(a.out, doc))
	}
	p := &page{screen: a.outScreen}
	disablePage(p, *res)
	return afterwards(a, p.print())
}

func disablePage(p *page, r tuning.Result) {
	switch {
	case r.DryRun && !r.Changed:
		p.headline(green, text.T("dry run"), text.T("nothing would change"))
	case r.DryRun:
		p.headline(yellow, text.T("dry run"), text.T("nothing was changed; this is what disable would do"))
	case !r.Changed:
		p.headline(green, text.T("nothing to change"), text.T("accel has nothing enabled"))
	case len(r.Left) > 0:
		p.headline(yellow, text.T("disabled"), text.T("all is back except what somebody else changed since"))
	default:
		p.headline(green, text.T("disabled"), text.T("everything is back as it was"))
	}
	p.gap()
	changedRows(p, r)
	leftRows(p, r.Left)
	notes(p, r.Notes)
}
