package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/lab"
	"accel/pkg/probe"
	"accel/pkg/report"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// compareDocument is what `accel compare --json` prints: accel.compare/1.
type compareDocument struct {
	*report.Saved
	Exit int `json:"exit"`
}

// compareFlags are the flags of compare.
func compareFlags(asJSON func() cli.Flag) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "path", Usage: text.T("the path called `NAME`, or several with commas between; the other options change it: %s", pathNames())},
		&cli.StringFlag{Name: "rate", Usage: text.T("the `RATE` of the bottleneck in Mbit/s, or with k, M or G; 0 for none (default 100)")},
		&cli.StringFlag{Name: "rtt", Usage: text.T("the round-trip `TIME` in milliseconds, or with a unit (default 100ms)")},
		&cli.StringFlag{Name: "loss", Usage: text.T("the `PERCENT` of packets that get lost, in each direction (default 0.1)")},
		&cli.StringFlag{Name: "burst", Usage: text.T("the mean `NUMBER` of packets that get lost in a row (default 1, each by itself)")},
		&cli.StringFlag{Name: "jitter", Usage: text.T("the most `TIME` by which the delay of a packet varies either way (default 0)")},
		&cli.StringFlag{Name: "reorder", Usage: text.T("the `PERCENT` of packets that overtake others (default 0)")},
		&cli.StringFlag{Name: "queue", Usage: text.T("the `LENGTH` of the queue in packets, or with x in bandwidth-delay products (default 1x)")},
		&cli.StringFlag{Name: "client-buffer", Usage: text.T("the most that the receiver buffers, `SIZE` in bytes or with K, M or G (default 6M, as the kernel comes)")},
		&cli.StringSliceFlag{Name: "size", Usage: text.T("how much to transfer, `SIZE` in bytes or with K, M or G; may be repeated (default 4M)")},
		&cli.StringFlag{Name: "flows", Usage: text.T("the `NUMBER` of connections at once, each transferring the size (default 1)")},
		&cli.StringFlag{Name: "rounds", Usage: text.T("the `NUMBER` of measured transfers of each arm (default 7)")},
		&cli.StringFlag{Name: "against", Usage: text.T("let a flow with the algorithm `NAME` compete, and measure what it keeps")},
		&cli.StringFlag{Name: "seed", Usage: text.T("the `NUMBER` that decides the order of the rounds and, on kernels since 6.6, which packets get lost (default 1)")},
		&cli.StringSliceFlag{Name: "arm", Usage: text.T("an arm with settings, as `NAME=FILE`: a file in sysctl.d syntax that may have the comments \"# route initcwnd 30\" and \"# qdisc fq\"; may be repeated")},
		&cli.StringFlag{Name: "html", Usage: text.T("write the report into `FILE` too, as a page with plots that needs nothing else")},
		&cli.StringFlag{Name: "resume", Usage: text.T("keep what is measured in `FILE`, and go on from there if it exists")},
		asJSON(),
	}
}

func pathNames() string {
	var names []string
	for _, p := range lab.Paths() {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// reportFlags are the flags of report.
func reportFlags(asJSON func() cli.Flag) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "html", Usage: text.T("write the report into `FILE` too, as a page with plots that needs nothing else")},
		asJSON(),
	}
}

// comparePlan reads the plan from a command line.
func comparePlan(c *cli.Context) (lab.Plan, error) {
	var p lab.Plan
	var err error
	if p.Arms, err = compareArms(c); err != nil {
		return p, err
	}
	for _, s := range c.StringSlice("size") {
		for part := range strings.SplitSeq(s, ",") {
			n, err := parseSize(part)
			if err != nil {
				return p, usage(text.T("--%s: %s", "size", err), text.T("A size is a whole number of bytes, or one with K, M or G: --size=16M"))
			}
			if slices.Contains(p.Sizes, n) {
				return p, usage(text.T("--size: %q is there twice", part), text.T("Give it once."))
			}
			p.Sizes = append(p.Sizes, n)
		}
	}
	for _, o := range []struct {
		name string
		into *int
	}{{"flows", &p.Flows}, {"rounds", &p.Rounds}} {
		if c.IsSet(o.name) {
			n, err := strconv.Atoi(c.String(o.name))
			if err != nil || n < 1 {
				return p, usage(text.T("--%s: %q is no whole number above 0", o.name, c.String(o.name)), text.T("Write --%s=%s.", o.name, "2"))
			}
			*o.into = n
		}
	}
	p.Seed = lab.DefaultSeed
	if c.IsSet("seed") {
		if p.Seed, err = strconv.ParseUint(c.String("seed"), 10, 64); err != nil {
			return p, usage(text.T("--seed: %q is no whole number", c.String("seed")), text.T("Write --%s=%s.", "seed", "2"))
		}
	}
	p.Against = c.String("against")
	if err := comparePaths(c, &p); err != nil {
		return p, err
	}
	complete, err := p.Complete()
	switch {
	case errors.Is(err, lab.ErrPath):
		return p, usage(err.Error(), text.T("For help: accel %s --help", "compare"))
	case err != nil:
		return p, usage(err.Error(), text.T("Name two or more, such as: accel compare bbr cubic"))
	}
	if len(complete.Arms) < 2 {
		return p, usage(text.T("there is only one arm, and nothing to compare it with"), text.T("Name two or more, such as: accel compare bbr cubic"))
	}
	return complete, nil
}

// compareArms reads the arms: those that are named, in their order, and then the
// files that nobody named.
func compareArms(c *cli.Context) ([]lab.Arm, error) {
	var fromFiles, arms []lab.Arm
	for _, s := range c.StringSlice("arm") {
		name, file, ok := strings.Cut(s, "=")
		if !ok || name == "" || file == "" {
			return nil, usage(text.T("--arm: %q is not NAME=FILE", s), text.T("Write --%s=%s.", "arm", "mine=/etc/sysctl.d/mine.conf"))
		}
		data, err := readSmall(file)
		if err != nil {
			return nil, usage(text.T("--arm: reading %s: %s", file, err), text.T("Name a file in sysctl.d syntax."))
		}
		arm, err := lab.ParseArm(name, filepath.Base(file), data)
		if err != nil {
			return nil, usage(text.T("--arm: %s", err), text.T("For help: accel %s --help", "compare"))
		}
		fromFiles = append(fromFiles, arm)
	}
	for _, word := range c.Args().Slice() {
		if i := slices.IndexFunc(fromFiles, func(a lab.Arm) bool { return a.Name == word }); i >= 0 {
			arms = append(arms, fromFiles[i])
			fromFiles = slices.Delete(fromFiles, i, i+1)
			continue
		}
		arm, err := profileArm(word)
		if err == nil && arm == nil {
			arm, err = algorithmArm(word)
		}
		if err != nil {
			return nil, usage(err.Error(), text.T("Name two or more, such as: accel compare bbr cubic"))
		}
		arms = append(arms, *arm)
	}
	return append(arms, fromFiles...), nil
}

func algorithmArm(word string) (*lab.Arm, error) {
	arm, err := lab.AlgorithmArm(word)
	return &arm, err
}

// profileArm is a profile as an arm: what it would give this host, computed
// from its memory and links, in the sender's namespace; nil where there is no
// profile of that name. What belongs to the whole host, such as
// net.core.wmem_max, a namespace cannot have, and the report lists it.
func profileArm(word string) (*lab.Arm, error) {
	if !slices.Contains(tuning.Profiles(), word) {
		return nil, nil
	}
	facts, err := kernel.Detect("/")
	if err != nil {
		return nil, err
	}
	a, _ := tuning.ProfileArm(facts, word)
	return &lab.Arm{
		Name: word, Algorithm: a.Algorithm, Qdisc: a.Qdisc, Settings: a.Settings,
		InitialCwnd: a.InitialCwnd, InitialRwnd: a.InitialRwnd, Source: "profile " + word,
	}, nil
}

// readSmall reads a file that a person wrote.
func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 1<<17))
}

// comparePaths makes the cells: the named paths, or the default one, changed by
// the options, one of which may have several values.
func comparePaths(c *cli.Context, p *lab.Plan) error {
	p.Paths = []lab.Path{lab.DefaultPath}
	if c.IsSet("path") {
		p.Paths = nil
		for name := range strings.SplitSeq(c.String("path"), ",") {
			path, ok := lab.PathNamed(strings.TrimSpace(name))
			if !ok {
				next := text.T("Paths: %s.", pathNames())
				if near := text.Nearest(strings.ToLower(name), strings.Fields(pathNames())); near != "" {
					next = text.T("Did you mean %s?", near)
				}
				return usage(text.T("--path: there is no path %q", name), next)
			}
			p.Paths = append(p.Paths, path)
		}
	}
	several := len(p.Paths) > 1
	for _, o := range pathOptions {
		if !c.IsSet(o.name) {
			continue
		}
		values, err := o.parse(c.String(o.name))
		if err != nil {
			return usage(text.T("--%s: %s", o.name, err), text.T("Write --%s=%s.", o.name, o.example))
		}
		if len(values) > 1 {
			if several {
				return usage(text.T("--%s has several values, but only one option can", o.name), text.T("Give one value to all options but one."))
			}
			several = true
			p.Sweep = o.name
		}
		var cells []lab.Path
		for _, path := range p.Paths {
			for _, set := range values {
				cell := path
				set(&cell)
				cells = append(cells, cell)
			}
		}
		p.Paths = cells
	}
	return nil
}

// pathOptions are the options that change a path. parse gives for each value of
// its list what sets it.
var pathOptions = []struct {
	name, example string
	parse         func(string) ([]func(*lab.Path), error)
}{
	{"rate", "20M", setting(lab.ParseRates, func(p *lab.Path, v float64) { p.RateMbit = v })},
	{"rtt", "150ms", setting(lab.ParseTimes, func(p *lab.Path, v time.Duration) { p.RTT = v })},
	{"loss", "0.5", setting(lab.ParsePercents, func(p *lab.Path, v float64) { p.LossPercent = v })},
	{"burst", "4", single(setting(lab.ParseRates, func(p *lab.Path, v float64) { p.LossBurst = v }))},
	{"jitter", "10ms", setting(lab.ParseTimes, func(p *lab.Path, v time.Duration) { p.Jitter = v })},
	{"reorder", "0.5", single(setting(lab.ParsePercents, func(p *lab.Path, v float64) { p.ReorderPercent = v }))},
	{"queue", "1x", setting(lab.ParseQueues, func(p *lab.Path, v lab.Queue) { p.QueueBDP, p.QueuePackets = v.BDP, v.Packets })},
	{"client-buffer", "32M", setting(parseSizes, func(p *lab.Path, v int64) { p.ClientBuffer = v })},
}

// parseSizes reads a list of sizes with commas between.
func parseSizes(s string) ([]int64, error) {
	var list []int64
	for part := range strings.SplitSeq(s, ",") {
		n, err := parseSize(part)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

func parseSize(s string) (int64, error) {
	n, err := probe.ParseSize(strings.TrimSpace(s))
	if err != nil {
		return 0, errors.New(text.T("%q is no size", s))
	}
	return n, nil
}

func setting[T any](parse func(string) ([]T, error), set func(*lab.Path, T)) func(string) ([]func(*lab.Path), error) {
	return func(s string) ([]func(*lab.Path), error) {
		values, err := parse(s)
		if err != nil {
			return nil, err
		}
		var sets []func(*lab.Path)
		for _, v := range values {
			sets = append(sets, func(p *lab.Path) { set(p, v) })
		}
		return sets, nil
	}
}

// single allows one value only.
func single(parse func(string) ([]func(*lab.Path), error)) func(string) ([]func(*lab.Path), error) {
	return func(s string) ([]func(*lab.Path), error) {
		if strings.Contains(s, ",") {
			return nil, errors.New(text.T("%q has several values, but this option takes one", s))
		}
		return parse(s)
	}
}

// compare is the command `accel compare`.
func (a *accel) compare(c *cli.Context) error {
	resume := c.String("resume")
	state, plan, err := a.compareState(c)
	if err != nil {
		return err
	}
	if state != nil {
		defer state.Close()
	}
	html := c.String("html")
	if html != "" {
		if err := canWrite(html); err != nil {
			return err
		}
	}
	if a.euid() != 0 {
		return &tuning.Problem{
			Exit: tuning.ExitFailed,
			Err:  errors.New(text.T("compare makes network namespaces of its own, which only root may do; nothing of the host's network is touched")),
			Next: text.T("Run it as root: sudo accel %s", strings.TrimPrefix(a.commandLine(c), "accel ")),
		}
	}
	facts, err := kernel.Detect("/")
	if err != nil {
		return err
	}
	release := facts.Release.Raw
	command := a.commandLine(c)
	keep := resume != ""
	switch {
	case state != nil:
		command = state.Command
		if state.Kernel != release {
			return &tuning.Problem{
				Exit: tuning.ExitFailed,
				Err:  errors.New(text.T("%s was begun on the kernel %s, and this is %s", resume, state.Kernel, release)),
				Next: text.T("Transfers of two kernels cannot be compared: boot that kernel, or begin anew with another file."),
			}
		}
	case keep:
		if state, err = lab.CreateState(resume, plan, command, release); err != nil {
			return &tuning.Problem{Exit: tuning.ExitFailed, Err: err, Next: text.T("Name a file that can be written with --resume.")}
		}
	default:
		name := filepath.Join(os.TempDir(), "accel-compare-"+rand.Text()[:10]+".part")
		if state, err = lab.CreateState(name, plan, command, release); err != nil {
			a.cannotResume(err)
		}
	}

	if state == nil || state.Done() < plan.TransferCount() {
		a.announce(plan, state)
	}
	line := newProgress(a.errScreen)
	line.start = time.Time{}
	run, err := lab.Compare(c.Context, plan, lab.Options{
		State: state, Load: kernel.LoadModule,
		Lost: func(err error) {
			line.clear()
			a.cannotResume(err)
			keep = true // what is there stays for a look
		},
		Progress: func(p lab.Progress) { line.show(progressLine(p)) },
	})
	line.clear()
	if err != nil {
		return a.compareProblem(err, run, state, keep)
	}
	run.Version, run.Command = versionString(), command
	run.Kernel, run.Distribution = release, facts.Distribution.Name
	run.Machine = strings.Join(slices.DeleteFunc([]string{facts.Virtualization.Machine, facts.Virtualization.Container, runtime.GOARCH},
		func(s string) bool { return s == "" }), ", ")
	run.CPUs, run.MemoryBytes = facts.CPUs, facts.MemoryBytes
	if err := a.showRun(c, run); err != nil {
		if state != nil {
			fmt.Fprintln(a.err, "accel: "+text.T("what was measured is kept in %s; to see it: accel compare --resume %s", state.Name(), state.Name()))
		}
		return err
	}
	if state != nil && !keep {
		_ = state.Remove()
	}
	return nil
}

// compareState opens the state file that is to be gone on from, if there is one,
// and gives the plan: that of the command line, or, where this names none, that
// of the file.
func (a *accel) compareState(c *cli.Context) (*lab.State, lab.Plan, error) {
	var state *lab.State
	var err error
	resume := c.String("resume")
	if resume != "" {
		state, err = lab.OpenState(resume)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			state = nil
		case err != nil:
			return nil, lab.Plan{}, &tuning.Problem{Exit: tuning.ExitFailed, Err: err, Next: text.T("Name the file of an interrupted comparison, or one that does not exist yet.")}
		}
	}
	if state != nil && c.NArg() == 0 && !planIsNamed(c) {
		return state, state.Plan, nil
	}
	plan, err := comparePlan(c)
	if err == nil && state != nil && !state.Fits(plan) {
		err = usage(text.T("%s belongs to another comparison", resume), text.T("To go on with it: accel compare --resume %s", resume))
	}
	if err != nil && state != nil {
		state.Close()
	}
	return state, plan, err
}

// planIsNamed says whether the command line names anything of the plan.
func planIsNamed(c *cli.Context) bool {
	for _, f := range c.Command.Flags {
		switch name := f.Names()[0]; name {
		case "html", "resume", "json":
		default:
			if c.IsSet(name) {
				return true
			}
		}
	}
	return false
}

// commandLine is the line that makes the same comparison again.
func (a *accel) commandLine(c *cli.Context) string {
	words := []string{"accel", c.Command.Name}
	words = append(words, c.Args().Slice()...)
	for _, f := range c.Command.Flags {
		name := f.Names()[0]
		if !c.IsSet(name) {
			continue
		}
		switch f.(type) {
		case *cli.StringSliceFlag:
			for _, v := range c.StringSlice(name) {
				words = append(words, "--"+name, v)
			}
		case *cli.StringFlag:
			if name != "html" && name != "resume" {
				words = append(words, "--"+name, c.String(name))
			}
		}
	}
	for i, w := range words {
		if strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,=/%:+@") != "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// canWrite finds out before hours are spent whether a file can be written. It
// leaves nothing behind.
func canWrite(name string) error {
	problem := func(err error) error {
		return &tuning.Problem{
			Exit: tuning.ExitFailed,
			Err:  text.Errorf("writing %s: %w", name, err),
			Next: text.T("Name a file in a directory that exists and can be written."),
		}
	}
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		return problem(files.ErrNotRegular)
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".accel-*")
	if err != nil {
		return problem(err)
	}
	// About as large as the page will be: the disk may be full.
	_, err = f.Write(make([]byte, 256<<10))
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return problem(err)
	}
	return nil
}

// cannotResume says that a comparison goes on without a state file.
func (a *accel) cannotResume(err error) {
	for _, l := range text.Wrap("accel: "+text.Safe(text.T("this comparison cannot be resumed if it is interrupted: %s", err)), a.errScreen.columns) {
		fmt.Fprintln(a.err, l)
	}
}

// announce says what is going to be done and how long it will take.
func (a *accel) announce(plan lab.Plan, state *lab.State) {
	var names []string
	for _, arm := range plan.Arms {
		names = append(names, arm.Name)
	}
	sentence := text.T("comparing %s: %d transfers, about %s", strings.Join(names, ", "), plan.TransferCount(), roughly(plan.Estimate()))
	if len(plan.Paths) > 1 {
		sentence = text.T("comparing %s over %d paths: %d transfers, about %s", strings.Join(names, ", "), len(plan.Paths), plan.TransferCount(), roughly(plan.Estimate()))
	}
	if state != nil && state.Done() > 0 {
		sentence += text.T("; %d of them are there already", state.Done())
	}
	for _, l := range text.Wrap("accel: "+text.Safe(sentence), a.errScreen.columns) {
		fmt.Fprintln(a.err, l)
	}
}

// roughly is a duration to wait for.
func roughly(d time.Duration) string {
	switch s := d.Seconds(); {
	case s < 120:
		return text.T("%d s", int(s)+1)
	case s < 7200:
		return text.T("%d min", int(s/60)+1)
	default:
		return text.T("%d h", int(s/3600)+1)
	}
}

func progressLine(p lab.Progress) string {
	if p.Warmup {
		return text.T("%d of %d, %s left; warming up %s", p.Done, p.Total, roughly(p.Remaining), p.Arm)
	}
	return text.T("%d of %d, %s left; %s of %s with %s", p.Done, p.Total, roughly(p.Remaining), size(p.Size), pathWords(p.Path), p.Arm)
}

// pathWords is a path in a few words.
func pathWords(p lab.Path) string {
	words := []string{}
	if p.Loopback {
		words = append(words, text.T("loopback"))
	}
	if p.RateMbit > 0 {
		words = append(words, rate(uint64(p.RateMbit*1e6)))
	}
	if p.RTT > 0 {
		words = append(words, roundTrip(p.RTT.Microseconds()))
	}
	if p.LossPercent > 0 {
		words = append(words, text.T("%s %% loss", strconv.FormatFloat(p.LossPercent, 'g', -1, 64)))
	}
	if p.Jitter > 0 {
		words = append(words, text.T("%s jitter", roundTrip(p.Jitter.Microseconds())))
	}
	return strings.Join(words, ", ")
}

// showRun prints the report, and writes the page.
func (a *accel) showRun(c *cli.Context, run *lab.Run) error {
	if name := c.String("html"); name != "" {
		var b bytes.Buffer
		if err := report.HTML(&b, run); err != nil {
			return err
		}
		name, err := filepath.Abs(name)
		if err == nil {
			err = files.OS{}.WriteFile(name, b.Bytes(), 0o644)
		}
		if err != nil {
			return &tuning.Problem{
				Exit: tuning.ExitFailed, Err: err,
				Next: text.T("Name a file in a directory that exists and can be written."),
			}
		}
	}
	if c.Bool("json") {
		return printJSON(a.out, compareDocument{Saved: report.Document(run)})
	}
	var b bytes.Buffer
	if err := report.Text(&b, run, a.outScreen.columns); err != nil {
		return err
	}
	return write(a.out, b.Bytes())
}

// compareProblem says what to do about a comparison that failed.
func (a *accel) compareProblem(err error, run *lab.Run, state *lab.State, keep bool) error {
	if lab.Interrupted(err) || errors.Is(err, context.Canceled) {
		p := &tuning.Problem{Exit: tuning.ExitFailed, Err: errors.New(text.T("interrupted; nothing is left of the namespaces"))}
		if state != nil && state.Done() > 0 {
			p.Next = text.T("%d of %d transfers are kept. To go on: accel compare --resume %s", state.Done(), run.Plan.TransferCount(), state.Name())
		} else if state != nil && !keep {
			_ = state.Remove()
		}
		return p
	}
	if state != nil && !keep && state.Done() == 0 {
		_ = state.Remove()
	}
	p := &tuning.Problem{Exit: tuning.ExitFailed, Err: err}
	var m *lab.Missing
	switch {
	case errors.As(err, &m):
		p.Exit = tuning.ExitImpossible
		p.Next = missingNext(m)
	case errors.Is(err, lab.ErrNoNamespaces):
		p.Exit = tuning.ExitImpossible
		p.Next = text.T("It needs a kernel with network namespaces (CONFIG_NET_NS), and /proc/sys/user/max_net_namespaces above 0.")
	case errors.Is(err, lab.ErrPermission):
		p.Exit = tuning.ExitImpossible
		p.Next = text.T("This is root without CAP_SYS_ADMIN, as in most containers: run it on the host itself or in a virtual machine.")
	}
	if state != nil && state.Done() > 0 {
		p.Next = strings.TrimSpace(p.Next + " " + text.T("%d of %d transfers are kept. To go on: accel compare --resume %s", state.Done(), state.Plan.TransferCount(), state.Name()))
	}
	return p
}

// missingNext says where something that the kernel does not have is to be had.
func missingNext(m *lab.Missing) string {
	switch {
	case m.What == "algorithm":
		return text.T("The algorithms that can be had are listed by: accel detect")
	case m.Name == "netem":
		return text.T("It is the module sch_netem: modprobe sch_netem. It comes with Debian's linux-image-amd64, with linux-modules-extra-$(uname -r) on Ubuntu, and with kernel-modules-extra on Fedora and its kin. Without it: --rtt 0 --loss 0 --jitter 0")
	}
	return text.T("It is the module %s: modprobe %s. It comes with the distribution's kernel; this one was built without it.", m.Module, m.Module)
}

// saved is the command `accel report`.
func (a *accel) saved(c *cli.Context) error {
	name := c.Args().First()
	f, err := os.Open(name)
	if err != nil {
		return &tuning.Problem{Exit: tuning.ExitFailed, Err: text.Errorf("opening the result: %w", err), Next: text.T("Name a file that accel compare --json wrote.")}
	}
	defer f.Close()
	run, err := report.Load(f)
	if err != nil {
		p := &tuning.Problem{Exit: tuning.ExitFailed, Err: fmt.Errorf("%s: %w", name, err), Next: text.T("Name a file that accel compare --json wrote.")}
		if errors.Is(err, report.ErrNewer) {
			p.Next = text.T("Install the newer accel to read it.")
		}
		return p
	}
	return a.showRun(c, run)
}

// labChild is what compare executes accel as inside its namespaces. It is no
// command for people.
func labChild() int {
	if err := lab.Child(); err != nil {
		fmt.Fprintln(os.Stderr, "accel: "+err.Error())
		return tuning.ExitFailed
	}
	return tuning.ExitGood
}
