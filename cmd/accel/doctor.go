package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"accel/pkg/doctor"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// doctor is the command `accel doctor`.
func (a *accel) doctor(c *cli.Context) error {
	fix, undo, dry := c.Bool("fix"), c.Bool("undo"), c.Bool("dry-run")
	switch {
	case fix && undo:
		return usage(text.T("--fix and --undo exclude each other"), text.T("Leave out one of them."))
	case len(c.StringSlice("only")) > 0 && !fix:
		return usage(text.T("--only belongs to --fix"), text.T("Write: accel doctor --fix --only %s", c.StringSlice("only")[0]))
	case dry && !fix && !undo:
		return usage(text.T("--dry-run belongs to --fix or --undo: doctor alone changes nothing"), text.T("Leave it out."))
	case (fix || undo) && !dry && c.String("root") != "":
		return usage(text.T("--root is for looking at a recorded host or a mounted image; nothing is changed there"), text.T("Leave out --fix and --undo, or add --dry-run."))
	}
	h, err := a.host(c)
	if err != nil {
		return err
	}
	switch {
	case fix:
		return a.doctorFix(c, h, dry)
	case undo:
		return a.doctorUndo(c, h, dry)
	}
	r, err := doctor.Examine(c.Context, h, doctor.Options{})
	if err != nil {
		return err
	}
	return a.doctorReport(c, r)
}

func (a *accel) doctorReport(c *cli.Context, r *doctor.Report) error {
	a.exit = r.Exit
	if c.Bool("json") {
		return printJSON(a.out, r)
	}
	p := &page{screen: a.outScreen}
	doctorPage(p, r)
	return p.print()
}

// answerable refuses, before anything is shown, a change that needs consent
// where neither --yes nor a terminal can give it.
func (a *accel) answerable(c *cli.Context, command string) error {
	if c.Bool("yes") || !c.Bool("json") && a.asks() {
		return nil
	}
	return usage(text.T("%s asks before it changes anything, and there is no terminal to ask on; nothing was changed", command),
		text.T("Look first: accel %s --dry-run. Then: accel %s --yes", command, command))
}

// consent asks one question; --yes answers it.
func (a *accel) consent(c *cli.Context, question, command string) (bool, error) {
	if err := a.answerable(c, command); err != nil || c.Bool("yes") {
		return err == nil, err
	}
	fmt.Fprint(a.err, text.Safe(question)+" ")
	line, err := bufio.NewReader(io.LimitReader(a.in, 64)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, text.Errorf("reading the answer: %w", err)
	}
	return slices.Contains([]string{"y", "yes", "j", "ja", "是"}, strings.ToLower(strings.TrimSpace(line))), nil
}

// terminals: both ends of a question are there.
func terminals() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd()))
}

func (a *accel) doctorFix(c *cli.Context, h *tuning.Host, dry bool) error {
	if !dry {
		if err := a.needRoot("doctor --fix", "doctor --fix"); err != nil {
			return err
		}
	}
	plan, err := doctor.PlanFix(c.Context, h, c.StringSlice("only"))
	if err != nil {
		return err
	}
	plan.Change.DryRun = dry
	finish := func(r *doctor.Report, show func(*page)) error {
		r.Change = &plan.Change
		a.exit = r.Exit
		if c.Bool("json") {
			return afterwards(a, printJSON(a.out, r))
		}
		p := &page{screen: a.outScreen}
		show(p)
		return afterwards(a, p.print())
	}
	if dry || plan.Empty() {
		return finish(plan.Report, func(p *page) {
			switch {
			case plan.Empty():
				p.headline(green, text.T("nothing to change"), text.T("doctor found no line that it can attribute to a tool and take out"))
				if plan.Report.Exit != tuning.ExitGood {
					p.paragraph(text.T("What else was found: accel doctor"))
				}
			default:
				p.headline(yellow, text.T("dry run"), text.T("nothing was changed; this is what doctor --fix would do"))
			}
			changes(p, plan.Change)
		})
	}
	if err := a.answerable(c, "doctor --fix"); err != nil {
		return err
	}
	if !c.Bool("json") {
		p := &page{screen: a.outScreen}
		changes(p, plan.Change)
		if err := p.print(); err != nil {
			return err
		}
	}
	ok, err := a.consent(c, text.T("Make these changes? Copies are kept, and accel doctor --undo puts all of it back. [y/N]"), "doctor --fix")
	if err != nil {
		return err
	}
	if !ok {
		return finish(plan.Report, func(p *page) { p.headline(yellow, text.T("nothing was changed"), text.T("the answer was no")) })
	}
	if err := plan.Apply(c.Context); err != nil {
		return err
	}
	after, err := doctor.Examine(c.Context, h, doctor.Options{})
	if err != nil {
		return afterwards(a, err)
	}
	return finish(after, func(p *page) {
		p.headline(green, text.T("cleaned up"), text.T("the copies are in %s", plan.Change.Directory))
		p.gap()
		leftBehind(p, plan.Change.Left)
		if after.Exit != tuning.ExitGood {
			p.paragraph(text.T("Still there: %s", after.Reason))
		}
		p.paragraph(text.T("To put everything back: accel doctor --undo"))
	})
}

func (a *accel) doctorUndo(c *cli.Context, h *tuning.Host, dry bool) error {
	if !dry {
		if err := a.needRoot("doctor --undo", "doctor --undo"); err != nil {
			return err
		}
	}
	preview, err := doctor.Undo(c.Context, h, true)
	if err != nil {
		return err
	}
	change := preview
	if !dry && preview.Changed {
		if err := a.answerable(c, "doctor --undo"); err != nil {
			return err
		}
		if !c.Bool("json") {
			p := &page{screen: a.outScreen}
			changes(p, *preview)
			if err := p.print(); err != nil {
				return err
			}
		}
		ok, err := a.consent(c, text.T("Put all of this back? [y/N]"), "doctor --undo")
		if err != nil {
			return err
		}
		if !ok {
			p := &page{screen: a.outScreen}
			p.headline(yellow, text.T("nothing was changed"), text.T("the answer was no"))
			return p.print()
		}
	}
	if !dry {
		if change, err = doctor.Undo(c.Context, h, false); err != nil {
			return err
		}
	}
	r, err := doctor.Examine(c.Context, h, doctor.Options{})
	if err != nil {
		return err
	}
	r.Change = change
	a.exit = tuning.ExitGood
	if len(change.Left) > 0 {
		a.exit = tuning.ExitAttention
	}
	if c.Bool("json") {
		r.Exit = a.exit
		return afterwards(a, printJSON(a.out, r))
	}
	p := &page{screen: a.outScreen}
	switch {
	case !change.Changed && len(change.Left) == 0:
		p.headline(green, text.T("nothing to put back"), text.T("no clean-up was made"))
	case dry:
		p.headline(yellow, text.T("dry run"), text.T("nothing was changed; this is what doctor --undo would put back"))
		changes(p, *change)
	case len(change.Left) > 0:
		p.headline(yellow, text.T("put back in part"), text.T("what somebody changed since was left"))
		leftBehind(p, change.Left)
	default:
		p.headline(green, text.T("put back"), text.T("everything is as it was before doctor --fix"))
	}
	return afterwards(a, p.print())
}

// changes shows every change of a plan.
func changes(p *page, c doctor.Change) {
	p.gap()
	switch {
	case c.Adopt != "" && c.Command == "fix":
		p.paragraph(text.T("First accel is enabled with %s, which is in force already: nothing is interrupted.", c.Adopt))
		p.gap()
	case c.Adopt != "":
		p.paragraph(text.T("At the end accel is disabled, which doctor --fix had enabled with %s.", c.Adopt))
		p.gap()
	}
	for _, f := range c.Files {
		if f.Diff == "" {
			p.row(text.T("File"), f.File)
			continue
		}
		p.paragraph(text.T("%s, left by %s:", f.File, f.Tool))
		for line := range strings.Lines(f.Diff) {
			p.verbatim(strings.TrimSuffix(line, "\n"))
		}
		p.gap()
	}
	for _, l := range c.Live {
		p.row(text.T("Live value"), fmt.Sprintf("%s: %s -> %s", l.Key, l.From, l.To))
	}
	leftBehind(p, c.Left)
	p.gap()
}

func leftBehind(p *page, left []doctor.Left) {
	var lines []string
	for _, l := range left {
		lines = append(lines, l.What+": "+l.Reason)
	}
	p.row(text.T("Left as it is"), lines...)
}

// doctorPage shows a report.
func doctorPage(p *page, r *doctor.Report) {
	colour, word := green, text.T("clean")
	if r.Verdict != doctor.Clean {
		colour, word = yellow, text.T("found")
	}
	p.headline(colour, word, r.Reason)
	if r.Next != "" {
		p.paragraph(r.Next)
	}
	for _, k := range r.Keys {
		p.gap()
		p.paragraph(k.Key)
		keyRows(p, k, r.Enabled != nil)
	}
	for _, l := range r.Leftovers {
		p.gap()
		p.paragraph(text.T("Left by %s", l.Name))
		leftoverRows(p, l)
	}
	if len(r.Harmful) > 0 {
		p.gap()
		p.paragraph(text.T("Does harm here"))
		for _, h := range r.Harmful {
			harmRows(p, h)
		}
	}
	if len(r.Writers) > 0 {
		p.gap()
		p.paragraph(text.T("What else sets something"))
		for _, w := range r.Writers {
			writerRow(p, w)
		}
	}
	connectionRows(p, r.Connections)
	if len(r.Fixed) > 0 {
		p.gap()
		var lines []string
		for _, f := range r.Fixed {
			line := text.T("%s (%d files)", f.Directory, len(f.Files))
			if f.Interrupted {
				line = text.T("%s (interrupted)", f.Directory)
			}
			lines = append(lines, line)
		}
		p.row(text.T("Can be put back"), lines...)
	}
	notes(p, r.Notes)
}

func orNothing(v *string) string {
	if v == nil {
		return text.T("not known")
	}
	return *v
}

func keyRows(p *page, k doctor.Key, enabled bool) {
	now := orNothing(k.Live)
	switch {
	case k.Wish != nil && enabled:
		now = text.T("%s; accel wants %s", now, *k.Wish)
	case k.Wish != nil:
		now = text.T("%s; accel enable would set %s", now, *k.Wish)
	}
	p.row("  "+text.T("now"), now)
	next := text.T("the kernel's own value")
	if k.Next != nil {
		next = *k.Next
	}
	p.row("  "+text.T("next boot"), next)
	bootLines(p, k.Boot)
	if k.Why != "" {
		p.row("  "+text.T("why"), k.Why)
	}
}

// bootLines shows which line decides in each order; what both say is said once,
// and what no file says is not said at all.
func bootLines(p *page, boot []doctor.Boot) {
	var said [][]string
	for _, b := range boot {
		said = append(said, bootLine(b))
	}
	if len(boot) == 2 && slices.Equal(said[0], said[1]) {
		if boot[0].File != "" || len(boot[0].Loses) > 0 {
			p.row("  "+text.T("in both orders"), said[0]...)
		}
		return
	}
	for i, b := range boot {
		p.row("  "+text.T("by %s", b.Order), said[i]...)
	}
}

func bootLine(b doctor.Boot) []string {
	line := text.T("the kernel's own value")
	if b.Value != nil {
		line = fmt.Sprintf("%s  %s:%d", *b.Value, b.File, b.Line)
	} else if b.Refused != "" {
		line = text.T("%s is refused  %s:%d", b.Refused, b.File, b.Line)
	}
	lines := []string{line}
	const most = 4
	for i, l := range b.Loses {
		if i == most && len(b.Loses) > most+1 {
			return append(lines, text.T("and %d more lines that lose", len(b.Loses)-i+b.More))
		}
		lines = append(lines, text.T("loses: %s  %s:%d", l.Value, l.File, l.Line))
	}
	return lines
}

func leftoverRows(p *page, l doctor.Leftover) {
	var where []string
	for _, f := range l.Places {
		line := text.T("%s, the whole file", f.File)
		switch {
		case f.Whole:
		case len(f.Lines) == 1:
			line = text.T("%s, line %d", f.File, f.Lines[0])
		default:
			line = text.T("%s, %d lines (%s)", f.File, len(f.Lines), ranges(f.Lines))
		}
		if f.Blocked != "" {
			line += "; " + text.T("left alone: %s", f.Blocked)
		}
		where = append(where, line)
	}
	p.row("  "+text.T("where"), where...)
	for _, c := range []struct {
		class doctor.Class
		label string
	}{
		{doctor.Harmful, text.T("harmful")}, {doctor.Same, text.T("as accel")}, {doctor.NoEffect, text.T("no effect")}, {doctor.Harmless, text.T("harmless")},
	} {
		var keys []string
		for _, k := range l.Keys {
			// Many append the same lines again and again.
			if set := strings.ReplaceAll(k.Key+"="+k.Value, " ", "\u00a0"); k.Class == c.class && !slices.Contains(keys, set) {
				keys = append(keys, set)
			}
		}
		if len(keys) > 0 {
			p.row("  "+c.label, strings.Join(keys, " "))
		}
	}
	p.row("  "+text.T("known from"), l.Source)
	if l.Fixable {
		p.row("  "+text.T("this alone"), "accel doctor --fix --only "+l.Tool)
	}
}

// ranges is "3-7, 9"; of many only the first and the last line.
func ranges(lines []int) string {
	const most = 6
	var out []string
	for i := 0; i < len(lines); {
		j := i
		for j+1 < len(lines) && lines[j+1] == lines[j]+1 {
			j++
		}
		if i == j {
			out = append(out, fmt.Sprint(lines[i]))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", lines[i], lines[j]))
		}
		i = j + 1
	}
	if len(out) > most {
		return text.T("between %d and %d", lines[0], lines[len(lines)-1])
	}
	return strings.Join(out, ", ")
}

func harmRows(p *page, h doctor.Harm) {
	what := h.Setting
	if h.Value != "" {
		what += " = " + h.Value
	}
	where := text.T("set live; no file of sysctl sets it so")
	switch {
	case h.File != "" && h.Line > 0:
		where = fmt.Sprintf("%s:%d", h.File, h.Line)
	case h.File != "":
		where = h.File
	}
	lines := []string{what, "  " + where, "  " + h.Reason, "  " + text.T("Shows as: %s", h.Symptom)}
	if where == what {
		lines = slices.Delete(lines, 1, 2)
	}
	if strings.HasPrefix(where, what+":") {
		lines = slices.Delete(lines, 0, 1)
		lines[0] = where
	}
	p.row("  "+h.Rule, lines...)
	if h.Tool == "" {
		p.row("", "  "+text.T("Nobody known wrote this, so it is left to you."))
	}
}

func writerRow(p *page, w doctor.Writer) {
	what := w.Key
	if w.Value != "" {
		what = strings.TrimPrefix(what+" = "+w.Value, " = ")
	}
	lines := []string{}
	if what != "" {
		lines = append(lines, what)
	}
	if w.File != "" {
		lines = append(lines, fmt.Sprintf("%s:%d", w.File, w.Line))
	}
	p.row("  "+w.Tool, append(lines, w.Meaning)...)
}
