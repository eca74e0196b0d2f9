package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"accel/pkg/bootkernel"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// kernelCommands are the commands of `accel kernel`.
func (a *accel) kernelCommands(dryRun, asJSON func() cli.Flag) []*cli.Command {
	yes := func() cli.Flag {
		return &cli.BoolFlag{Name: "yes", Usage: text.T("answer every question with yes (for scripts)")}
	}
	return []*cli.Command{
		{
			Name:        "kernel list",
			Usage:       text.T("show the kernels: running, installed, next, and what is offered"),
			Description: text.T("Shows the running kernel, those that are installed, what GRUB starts at the next boot and after that, and what the distribution's own repositories offer, each with its algorithms, the version of BBR where that can be known without booting, whether it is signed, and its size. Changes nothing and works without root."),
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "backports", Usage: text.T("ask Debian's backports too, even where they are not among apt's sources")},
				asJSON(),
			},
			Action: a.kernelList,
		},
		{
			Name:        "kernel install",
			Usage:       text.T("install a newer kernel and try it once"),
			ArgsUsage:   "[VERSION]",
			Description: text.T("Installs a kernel with apt and sets it for the next boot only. The running kernel is pinned as the default before anything is installed. After the reboot accel checks that the default routes' gateways answer, that the SSH server listens and that the algorithm is in force as before: if so the new kernel becomes the default, and if not the machine reboots into the old one. A panic, a missing disk, a hang and a reset lead back to the old one too. No kernel is ever removed. VERSION is a release, a version of a package, or the beginning of one; without it, the newest of the distribution's own release."),
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "backports", Usage: text.T("take it from Debian's backports, and add them to apt's sources if they are not there")},
				&cli.BoolFlag{Name: "latest", Usage: text.T("take the newest of all that apt's sources offer")},
				&cli.BoolFlag{Name: "no-auto", Usage: text.T("after the reboot neither make it the default nor reboot by itself: wait for accel kernel confirm")},
				dryRun(), yes(), asJSON(),
			},
			Action: a.kernelInstall,
		},
		{
			Name:        "kernel confirm",
			Usage:       text.T("make the new kernel that runs on trial the default"),
			Description: text.T("Makes the running new kernel the default, whatever its checks said. Needed after install --no-auto only."),
			Flags:       []cli.Flag{dryRun(), yes(), asJSON()},
			Action:      a.kernelConfirm,
		},
		{
			Name:        "kernel rollback",
			Usage:       text.T("go back to the kernel from before the install"),
			Description: text.T("Takes an install back. Where the old kernel runs: the one-time boot, the packages that were installed, and the pin, so that GRUB_DEFAULT decides as before. Where the new kernel runs: the old one becomes the default for the next boot, and accel kernel remove takes the new one away after it."),
			Flags:       []cli.Flag{dryRun(), yes(), asJSON()},
			Action:      a.kernelRollback,
		},
		{
			Name:        "kernel remove",
			Usage:       text.T("remove an installed kernel"),
			ArgsUsage:   "VERSION",
			Description: text.T("Removes the packages of a kernel: never of the running one, never of the one that is known to work. With the last kernel that accel installed goes what accel added for it: the pin, and the source for backports."),
			Flags:       []cli.Flag{dryRun(), yes(), asJSON()},
			Action:      a.kernelRemove,
		},
		{
			Name:   "kernel settle",
			Usage:  text.T("what accel-kernel.service runs after a boot; not for the command line"),
			Hidden: true,
			Action: a.kernelSettle,
		},
		{
			Name:   "kernel deadline",
			Usage:  text.T("what runs ten minutes after the boot of an untried kernel; not for the command line"),
			Hidden: true,
			Action: a.kernelDeadline,
		},
		{
			Name:   "kernel abandon",
			Usage:  text.T("what the removal of the package runs; not for the command line"),
			Hidden: true,
			Action: a.kernelAbandon,
		},
	}
}

// bootHost is the host whose kernels a command looks at.
func (a *accel) bootHost(c *cli.Context) (*bootkernel.Host, error) {
	if dir := c.String("root"); dir != "" {
		return bootkernel.Recorded(dir)
	}
	return a.liveBoot(), nil
}

func (a *accel) kernelRoot(command string) error {
	if a.euid() == 0 {
		return nil
	}
	return &tuning.Problem{
		Exit: tuning.ExitFailed,
		Err:  errors.New(text.T("%s changes what this machine boots, which only root may do; nothing was changed", command)),
		Next: text.T("Run it as root: sudo accel %s", command),
	}
}

// kernelFace tells and asks a person. Without a terminal nothing is asked: the
// answer has to be given beforehand.
func (a *accel) kernelFace(c *cli.Context) (bootkernel.Face, *progress) {
	line := newProgress(a.errScreen)
	line.start = time.Time{}
	face := bootkernel.Face{
		Say: func(s string) {
			line.clear()
			if line.screen.live {
				line.show(s)
			} else {
				fmt.Fprintln(a.err, text.Safe(s))
			}
		},
		Progress: func(percent float64, what string) {
			if percent < 0 {
				line.show(what)
				return
			}
			line.show(text.T("%d %%: %s", int(percent), what))
		},
	}
	if !c.Bool("yes") {
		face.Ask = func(plan *bootkernel.Plan) (bool, error) {
			line.clear()
			if !c.Bool("json") {
				p := &page{screen: a.errScreen}
				planRows(p, plan)
				p.gap()
				if err := p.print(); err != nil {
					return false, err
				}
			}
			return a.consent(c, text.T("Install it and set it for the next boot? [y/N]"), "kernel install")
		}
	}
	return face, line
}

// kernelList is the command `accel kernel list`.
func (a *accel) kernelList(c *cli.Context) error {
	h, err := a.bootHost(c)
	if err != nil {
		return err
	}
	stop := a.working(text.T("looking at the kernels"))
	l, err := bootkernel.Kernels(c.Context, h, c.Bool("backports"))
	stop()
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(a.out, l)
	}
	p := &page{screen: a.outScreen}
	kernelsPage(p, l)
	return p.print()
}

func kernelsPage(p *page, l *bootkernel.List) {
	running := cmp.Or(l.Running, text.T("not known"))
	switch {
	case l.Story != nil && l.Story.Attend:
		storyLines(p, l.Story)
	case l.Story != nil:
		p.headline(green, running, l.Story.Summary)
		if l.Story.Next != "" {
			p.paragraph(l.Story.Next)
		}
	case !l.Possible:
		p.headline(yellow, running, text.T("no kernel can be installed with accel here: %s", l.Reason))
	default:
		p.headline(green, running, text.T("runs"))
	}
	p.gap()
	p.row(text.T("Running"), running)
	p.row(text.T("Next boot"), cmp.Or(l.Next, text.T("not known")))
	p.row(text.T("After that"), cmp.Or(l.After, text.T("not known")))
	var installed []string
	for _, k := range l.Kernels {
		installed = append(installed, kernelLines(k, l)...)
	}
	p.row(text.T("Installed"), installed...)
	var offers []string
	for _, k := range l.Offers {
		if !k.Installed {
			offers = append(offers, kernelLines(k, l)...)
		}
	}
	if len(offers) == 0 && l.Offers != nil {
		offers = []string{text.T("nothing that is not installed")}
	}
	p.row(text.T("Offered"), offers...)
	notes(p, l.Notes)
}

// kernelLines describes a kernel in two lines.
func kernelLines(k bootkernel.Kernel, l *bootkernel.List) []string {
	first := k.Release
	var marks []string
	if k.Running {
		marks = append(marks, text.T("running"))
	}
	if k.Installed && k.Release == l.Next {
		marks = append(marks, text.T("next"))
	}
	if k.Problem != "" {
		marks = append(marks, text.T("cannot be started: %s", k.Problem))
	}
	if !k.Installed {
		marks = append(marks, k.Source)
	}
	if k.Vendor != "" {
		marks = append(marks, text.T("not the distribution's: %s", k.Vendor))
	}
	if len(marks) > 0 {
		first += " (" + strings.Join(marks, ", ") + ")"
	}
	var facts []string
	if k.Version != "" {
		facts = append(facts, k.Version)
	}
	switch {
	case k.BBRVersion != nil:
		facts = append(facts, text.T("BBR version %d", *k.BBRVersion))
	case k.Algorithms != nil && !slices.Contains(k.Algorithms, "bbr"):
		facts = append(facts, text.T("no BBR"))
	case k.Installed:
		facts = append(facts, text.T("BBR version not known"))
	}
	if k.Signed != nil && *k.Signed {
		facts = append(facts, text.T("signed"))
	} else if k.Signed != nil {
		facts = append(facts, text.T("not signed"))
	}
	if k.SizeBytes != nil {
		facts = append(facts, strconv.FormatUint(*k.SizeBytes>>20, 10)+" MiB")
	}
	if len(k.Algorithms) > 0 {
		facts = append(facts, strings.Join(k.Algorithms, " "))
	}
	return []string{first, "  " + strings.Join(facts, ", ")}
}

// storyLines prints how an install stands.
func storyLines(p *page, s *bootkernel.Story) {
	colour, word := yellow, text.T("needs attention")
	if !s.Attend {
		colour, word = green, text.T("kernel")
	}
	p.headline(colour, word, s.Summary)
	if s.Next != "" {
		p.paragraph(s.Next)
	}
}

func planRows(p *page, plan *bootkernel.Plan) {
	k := plan.Kernel
	p.row(text.T("Running"), plan.Old)
	p.row(text.T("Install"), kernelLines(k, &bootkernel.List{})...)
	if plan.Installed {
		p.row(text.T("Packages"), text.T("installed already"))
	}
	if plan.Older {
		p.row(text.T("Older"), text.T("it is older than the running one"))
	}
	if plan.Backports != "" {
		p.row(text.T("New source"), plan.Backports)
	}
	var room []string
	for _, n := range plan.Space {
		room = append(room, text.T("%s: %d MiB needed, %d MiB free", n.Dir, n.Need>>20, n.Free>>20))
	}
	p.row(text.T("Room"), room...)
	p.row(text.T("Default"), text.T("%s, until the new one has shown that it works", plan.Old))
	switch {
	case plan.Auto:
		p.row(text.T("After it"), text.T("checked after the reboot: good, and it becomes the default; not good, and the machine reboots into %s", plan.Old))
	default:
		p.row(text.T("After it"), text.T("waits for accel kernel confirm; every other boot starts %s", plan.Old))
	}
}

// kernelDocument is what the commands that change something print with --json.
type kernelDocument struct {
	*bootkernel.Result
	Exit  int    `json:"exit"`
	Error string `json:"error,omitempty"`
	Next  string `json:"next,omitempty"`
}

// kernelDone prints what a command did.
func (a *accel) kernelDone(c *cli.Context, res *bootkernel.Result, err error, page func(p *page)) error {
	if c.Bool("json") && res != nil {
		doc := kernelDocument{Result: res, Exit: tuning.ExitCode(err)}
		if err != nil {
			doc.Error = err.Error()
			var problem *tuning.Problem
			if errors.As(err, &problem) {
				doc.Next = problem.Next
			}
			a.report(err, false)
		}
		a.exit = doc.Exit
		return afterwards(a, printJSON(a.out, doc))
	}
	if err != nil {
		return err
	}
	p := newPage(a)
	page(p)
	return afterwards(a, p.print())
}

func newPage(a *accel) *page { return &page{screen: a.outScreen} }

// kernelInstall is the command `accel kernel install`.
func (a *accel) kernelInstall(c *cli.Context) error {
	req := bootkernel.Request{
		Version: c.Args().First(), Backports: c.Bool("backports"), Latest: c.Bool("latest"), NoAuto: c.Bool("no-auto"), DryRun: c.Bool("dry-run"),
	}
	if req.Latest && (req.Version != "" || req.Backports) {
		return usage(text.T("--latest excludes a version and --backports"), text.T("Leave out one of them."))
	}
	if !req.DryRun {
		if err := a.kernelRoot("kernel install"); err != nil {
			return err
		}
	}
	face, line := a.kernelFace(c)
	res, err := bootkernel.Install(c.Context, a.liveBoot(), req, face)
	line.clear()
	return a.kernelDone(c, res, err, func(p *page) {
		switch {
		case !res.Changed:
			p.headline(green, text.T("nothing to change"), text.T("no newer kernel is offered"))
		case res.DryRun:
			p.headline(yellow, text.T("dry run"), text.T("nothing was changed; this is what install would do"))
			p.gap()
			planRows(p, res.Plan)
		default:
			p.headline(green, text.T("installed"), res.Story.Summary)
			p.paragraph(res.Story.Next)
		}
		notes(p, res.Notes)
	})
}

// kernelConfirm is the command `accel kernel confirm`.
func (a *accel) kernelConfirm(c *cli.Context) error {
	if !c.Bool("dry-run") {
		if err := a.kernelRoot("kernel confirm"); err != nil {
			return err
		}
	}
	res, err := bootkernel.Confirm(c.Context, a.liveBoot(), c.Bool("dry-run"))
	return a.kernelDone(c, res, err, func(p *page) {
		switch {
		case !res.Changed:
			p.headline(green, text.T("nothing to change"), strings.Join(res.Notes, " "))
		case res.DryRun:
			p.headline(yellow, text.T("dry run"), text.T("%s would become the default", res.Story.New))
		default:
			p.headline(green, text.T("confirmed"), res.Story.Summary)
		}
	})
}

// kernelRollback is the command `accel kernel rollback`.
func (a *accel) kernelRollback(c *cli.Context) error {
	return a.kernelUndo(c, "kernel rollback", text.T("Go back to the kernel from before? [y/N]"), func(h *bootkernel.Host, dryRun bool, face bootkernel.Face) (*bootkernel.Result, error) {
		return bootkernel.Rollback(c.Context, h, dryRun, face)
	}, text.T("rolled back"), text.T("everything is as it was before the install"), text.T("no kernel was installed with accel"))
}

// kernelRemove is the command `accel kernel remove`.
func (a *accel) kernelRemove(c *cli.Context) error {
	version := c.Args().First()
	return a.kernelUndo(c, "kernel remove "+version, text.T("Remove %s? [y/N]", version), func(h *bootkernel.Host, dryRun bool, face bootkernel.Face) (*bootkernel.Result, error) {
		return bootkernel.Remove(c.Context, h, version, dryRun, face)
	}, text.T("removed"), version, "")
}

// kernelUndo shows what would be done, asks, and does it.
func (a *accel) kernelUndo(c *cli.Context, command, question string, do func(*bootkernel.Host, bool, bootkernel.Face) (*bootkernel.Result, error), done, sentence, nothing string) error {
	dryRun := c.Bool("dry-run")
	if !dryRun {
		if err := a.kernelRoot(command); err != nil {
			return err
		}
	}
	h := a.liveBoot()
	face, line := a.kernelFace(c)
	if !dryRun && !c.Bool("yes") {
		would, err := do(h, true, bootkernel.Face{})
		if err != nil {
			return a.kernelDone(c, would, err, func(*page) {})
		}
		if would.Changed {
			p := &page{screen: a.errScreen}
			for _, n := range would.Notes {
				p.paragraph(n)
			}
			if err := p.print(); err != nil {
				return err
			}
			yes, err := a.consent(c, question, command)
			if err != nil {
				return err
			}
			if !yes {
				return &tuning.Problem{Exit: tuning.ExitFailed, Err: errors.New(text.T("not confirmed; nothing was changed")), Next: text.T("To answer yes beforehand: --yes")}
			}
		}
	}
	res, err := do(h, dryRun, face)
	line.clear()
	return a.kernelDone(c, res, err, func(p *page) {
		switch {
		case !res.Changed:
			p.headline(green, text.T("nothing to change"), nothing)
		case dryRun:
			p.headline(yellow, text.T("dry run"), text.T("nothing was changed"))
		case res.Story != nil:
			storyLines(p, res.Story)
		default:
			p.headline(green, done, sentence)
		}
		notes(p, res.Notes)
	})
}

// kernelSettle is what accel-kernel.service runs.
func (a *accel) kernelSettle(c *cli.Context) error {
	return a.said(bootkernel.Settle(c.Context, a.liveBoot()))
}

// kernelDeadline is what the timer runs.
func (a *accel) kernelDeadline(c *cli.Context) error {
	return a.said(bootkernel.Deadline(c.Context, a.liveBoot()))
}

func (a *accel) said(what string, err error) error {
	if what != "" {
		fmt.Fprintln(a.err, "accel: "+text.Safe(what))
	}
	return err
}

// kernelAbandon is what the package's removal runs.
func (a *accel) kernelAbandon(c *cli.Context) error {
	list, err := bootkernel.Abandon(c.Context, a.liveBoot())
	for _, n := range list {
		_ = a.said(n, nil)
	}
	return err
}
