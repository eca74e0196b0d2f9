package bootkernel

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Request is what a person asks install for.
type Request struct {
	Version   string // a release, a version of a package, or the beginning of either; "" for what Backports and Latest say
	Backports bool   // from the distribution's backports, which are added if need be
	Latest    bool   // the newest of all that is configured
	NoAuto    bool   // neither promote nor reboot without being asked
	DryRun    bool
}

// Face is where a person is told and asked. Its functions may be nil.
type Face struct {
	Say      func(line string)                      // what goes on
	Progress func(percent float64, what string)     // of apt
	Ask      func(plan *Plan) (yes bool, err error) // nil: yes
}

func (f Face) say(line string) {
	if f.Say != nil {
		f.Say(line)
	}
}

// Plan is what an install would do.
type Plan struct {
	Old       string `json:"old"`       // the running kernel
	Kernel    Kernel `json:"kernel"`    // the one to be tried
	Backports string `json:"backports"` // the file that would be added; "" for none
	Installed bool   `json:"installed"` // it is on the disk already
	Older     bool   `json:"older"`     // than the running one
	Space     []Need `json:"space"`
	Before    Checks `json:"-"`
	Auto      bool   `json:"auto"`
	file      []byte // of Backports
	suite     string // of the kernel, if it is not one of the host's own
}

// Result tells what a command did or, for a dry run, would do: accel.kernel/1.
type Result struct {
	Schema  string   `json:"schema"`
	Command string   `json:"command"`
	DryRun  bool     `json:"dry_run"`
	Changed bool     `json:"changed"`
	Plan    *Plan    `json:"plan,omitempty"`
	Story   *Story   `json:"upgrade"` // null: nothing is under way, and nothing was
	Notes   []string `json:"notes"`
}

// ResultSchema names the layout of Result.
const ResultSchema = "accel.kernel/1"

// Install brings a newer kernel to the host and sets it for the next boot. It
// fails with everything undone, or leaves a host whose default is the kernel that
// runs now.
func Install(ctx context.Context, h *Host, req Request, face Face) (*Result, error) {
	res := &Result{Schema: ResultSchema, Command: "install", DryRun: req.DryRun, Notes: []string{}}
	if req.DryRun {
		plan, err := h.plan(ctx, req, face)
		res.Plan = plan
		if err == nil {
			res.Changed = plan != nil
			res.Story, _ = h.story()
		}
		return res, err
	}
	return h.finish(ctx, res, func() error { return h.install(ctx, req, face, res) })
}

func (h *Host) install(ctx context.Context, req Request, face Face, res *Result) error {
	s, err := h.loadState()
	if err != nil {
		return err
	}
	if s.waiting() {
		return problem(tuning.ExitFailed, nil, text.T("%s is installed already and waits to be tried", s.New),
			text.T("Reboot to try it, or take it back: accel kernel rollback"))
	}
	plan, err := h.plan(ctx, req, face)
	if err != nil {
		return err
	}
	res.Plan = plan
	if plan == nil {
		res.Notes = append(res.Notes, text.T("nothing newer is offered"))
		return nil
	}
	if face.Ask != nil {
		yes, err := face.Ask(plan)
		if err != nil {
			return err
		}
		if !yes {
			return problem(tuning.ExitFailed, nil, text.T("not confirmed; nothing was changed"), text.T("To answer yes beforehand: --yes"))
		}
	}
	res.Changed = true
	next, err := h.newState(ctx, plan, s)
	if err != nil {
		return err
	}
	if err := h.steps(ctx, next, plan, face); err != nil {
		face.say(text.T("taking everything back"))
		if uerr := h.undo(context.WithoutCancel(ctx), next, res); uerr != nil {
			var p *tuning.Problem
			errors.As(uerr, &p)
			return problem(tuning.ExitFailed, err, text.T("installing %s, and taking it back failed too (%s)", next.New, uerr),
				text.T("This machine still starts %s. Mend the cause, then: accel kernel rollback", next.Old))
		}
		res.Changed = false
		return err
	}
	return nil
}

// newState is the state that a new install begins with. What an earlier one left
// is taken over, so that it can still be undone.
func (h *Host) newState(ctx context.Context, plan *Plan, old *State) (*State, error) {
	t, err := h.tree()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	m, _, err := h.menu()
	if err != nil {
		return nil, err
	}
	s := &State{
		Version: stateVersion, Token: rand.Text()[:16], Since: h.Now().UTC(), Auto: plan.Auto, Old: plan.Old, New: plan.Kernel.Release,
		Packages: []Package{}, MadeDirs: []string{}, Before: plan.Before, Default: m.Default, Panic: read(t, "/proc/sys/kernel/panic"), Oops: read(t, "/proc/sys/kernel/panic_on_oops"), BootID: bootID(t),
	}
	if old != nil {
		s.MadeDirs = append(s.MadeDirs, old.MadeDirs...)
		if old.Default != "" && h.ours(PinFile) {
			s.Default = old.Default
		}
		if old.New == s.New {
			s.Packages = append(s.Packages, old.Packages...)
		}
		switch {
		case old.Phase == Promoted && old.New == s.Old:
			s.Earlier = old
		case old.Old == s.Old:
			s.Earlier = old.Earlier
		}
	}
	return s, nil
}

// steps are those of an install, each written down before it begins.
func (h *Host) steps(ctx context.Context, s *State, plan *Plan, face Face) error {
	if err := h.enter(s, Preparing); err != nil {
		return err
	}
	var tr *transaction
	if !plan.Installed {
		if plan.file != nil {
			if err := h.write(BackportsFile, plan.file, false); err != nil {
				return err
			}
			face.say(text.T("asking apt for %s", plan.suite))
			// Only this source, so that no other can get in the way.
			if _, err := h.change("apt-get", append(slices.Clone(aptUpdate), "-o", "Dir::Etc::sourcelist="+BackportsFile, "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0")...); err != nil {
				return problem(tuning.ExitFailed, err, text.T("fetching what %s offers", plan.suite), text.T("Look whether the mirror can be reached: apt-get update"))
			}
		}
		var err error
		if tr, err = h.download(ctx, s, plan, face); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return problem(tuning.ExitFailed, err, text.T("installing %s", s.New), text.T("Nothing was changed."))
	}

	face.say(text.T("making %s, which runs now, the default", s.Old))
	if err := h.enter(s, Pinning); err != nil {
		return err
	}
	_, err := h.Files.Lstat("/boot/vmlinuz-" + s.New)
	if err := h.pin(s, s.Old, s.New, err == nil); err != nil {
		return err
	}

	if tr != nil {
		s.Packages = append(s.Packages, tr.Packages...)
		if err := h.enter(s, Installing); err != nil {
			return err
		}
		if err := h.free(ctx, face.say); err != nil {
			return err
		}
		face.say(text.T("installing %s", s.New))
		_, err := h.Programs.Run(ctx, Command{
			Name: "apt-get", Args: append(slices.Clone(aptInstall), tr.args...), Change: true, Progress: face.Progress,
		})
		h.Sync()
		if err != nil {
			return problem(tuning.ExitFailed, err, text.T("installing %s", s.New), text.T("Mend the packages, and try again: apt-get -f install"))
		}
	}
	if err := h.verify(ctx, s, plan); err != nil {
		return err
	}

	face.say(text.T("setting %s for the next boot, once", s.New))
	if err := h.enter(s, Arming); err != nil {
		return err
	}
	// The pin says the same as before, now that both kernels are there: trial has
	// grub.cfg written and looks at it.
	if err := h.writePin(s, s.Old, s.New, true); err != nil {
		return err
	}
	if err := h.trial(ctx, s); err != nil {
		return err
	}
	return h.enter(s, Armed)
}

// aptInstall are the options of apt-get where it changes the host: no questions,
// the operator's configuration files stay, and it waits for others.
var aptInstall = []string{
	"-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300",
	"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
}

// aptUpdate fails where a source could not be fetched; without the option apt goes
// on with what it had.
var aptUpdate = []string{"-q", "update", "-o", "APT::Update::Error-Mode=any"}

// download fetches the packages and looks into them.
func (h *Host) download(ctx context.Context, s *State, plan *Plan, face Face) (*transaction, error) {
	a := h.apt()
	k := plan.Kernel
	packages := []string{k.Package + "=" + k.Version}
	if k.meta != "" {
		packages = append(packages, k.meta+"="+k.Version)
	}
	tr, err := a.simulate(ctx, plan.suite, packages...)
	if err != nil {
		return nil, err
	}
	if len(tr.Removed) > 0 {
		return nil, problem(tuning.ExitFailed, nil, text.T("apt would remove %s to install %s", strings.Join(tr.Removed, " "), s.New),
			text.T("accel removes nothing. Look at: apt-get -s install %s", strings.Join(packages, " ")))
	}
	t, err := h.tree()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if plan.Space, err = h.spaceCheck(t, tr.Unpacked, tr.Download); err != nil {
		return nil, err
	}
	face.say(text.T("fetching %s of packages", mebibytes(tr.Download)))
	_, err = h.Programs.Run(ctx, Command{
		Name: "apt-get", Args: append(append(slices.Clone(aptInstall), "--download-only"), tr.args...), Change: true, Progress: face.Progress,
	})
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("fetching the packages of %s", s.New), text.T("Look whether the mirror can be reached: apt-get update"))
	}
	facts, err := h.Detect()
	if err != nil {
		return nil, err
	}
	face.say(text.T("looking for the drivers of this machine in %s", s.New))
	mods, err := h.packagedModules(ctx, archives(t, kernelParts(tr.Packages)))
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("looking into the packages of %s", s.New), text.T("Try again."))
	}
	if err := driverCheck(neededDrivers(t, facts), mods, s.New); err != nil {
		return nil, err
	}
	return tr, nil
}

// kernelParts are those of the packages that may hold modules.
func kernelParts(packages []Package) []Package {
	return slices.DeleteFunc(slices.Clone(packages), func(p Package) bool {
		return !strings.HasPrefix(p.Name, "linux-image-") && !strings.HasPrefix(p.Name, "linux-modules-") &&
			!strings.HasPrefix(p.Name, "linux-binary-") && !strings.HasPrefix(p.Name, "linux-base-")
	})
}

// archives are the files in apt's cache that hold the packages.
func archives(t *kernel.Tree, packages []Package) []string {
	const dir = "/var/cache/apt/archives"
	entries, err := t.ReadDir(dir)
	if err != nil {
		return nil
	}
	var list []string
	for _, p := range packages {
		// apt writes ":" as "%3a" in names of files.
		prefix := p.Name + "_" + strings.ReplaceAll(p.After, ":", "%3a") + "_"
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), ".deb") {
				list = append(list, path.Join(dir, e.Name()))
			}
		}
	}
	return list
}

func driverCheck(needed []driver, m *modules, release string) error {
	for _, d := range needed {
		if !d.in(m) {
			return impossible(text.T("%s has no driver %s, which %s needs", release, d.Names[0], d.For),
				text.T("Choose a kernel of another flavour: accel kernel list"))
		}
	}
	return nil
}

// verify looks at what apt has installed: a disk that ran full leaves a kernel
// without an initial ramdisk, which GRUB would start all the same.
func (h *Host) verify(ctx context.Context, s *State, plan *Plan) error {
	t, err := h.tree()
	if err != nil {
		return err
	}
	defer t.Close()
	if why := bootable(t, s.New); why != "" {
		return problem(tuning.ExitFailed, nil, text.T("%s is installed, but it cannot be started: %s", s.New, why),
			text.T("See whether /boot is full, and what this says: update-initramfs -c -k %s", s.New))
	}
	m := readModules(t, s.New)
	if m == nil {
		return problem(tuning.ExitFailed, nil, text.T("%s is installed, but its modules are not", s.New), text.T("Mend the packages, and try again: apt-get -f install"))
	}
	facts, err := h.Detect()
	if err != nil {
		return err
	}
	needed := neededDrivers(t, facts)
	if err := driverCheck(needed, m, s.New); err != nil {
		return err
	}
	said, err := h.run(ctx, "lsinitramfs", "/boot/initrd.img-"+s.New)
	if errors.Is(err, ErrNoProgram) {
		return nil // made by something else than initramfs-tools
	}
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("the initial ramdisk of %s cannot be read", s.New), text.T("Look at what this says: update-initramfs -u -k %s", s.New))
	}
	in := map[string]bool{}
	for line := range strings.Lines(said) {
		in[moduleName(line)] = true
	}
	for _, d := range needed {
		if d.Root && !slices.ContainsFunc(d.Names, func(n string) bool { return in[n] || m.builtin[n] }) {
			return problem(tuning.ExitFailed, nil, text.T("the initial ramdisk of %s has no driver %s, which %s needs", s.New, d.Names[0], d.For),
				text.T("Add it to /etc/initramfs-tools/modules, and try again."))
		}
	}
	return nil
}

// plan looks at everything and changes nothing but apt's lists. A nil plan
// without an error: there is nothing newer.
func (h *Host) plan(ctx context.Context, req Request, face Face) (*Plan, error) {
	if h.Recorded {
		return nil, problem(tuning.ExitFailed, nil, text.T("this is a recorded host"), text.T("Kernels can be installed on a live host only."))
	}
	f, err := h.Detect()
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("looking at this host"), text.T("Mend the cause and try again."))
	}
	t, err := h.tree()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if err := h.hostCheck(t, f); err != nil {
		return nil, err
	}
	if _, _, _, err := menuCheck(t); err != nil {
		return nil, err
	}
	s, err := h.loadState()
	if err != nil {
		return nil, err
	}
	if s.waiting() {
		return nil, problem(tuning.ExitFailed, nil, text.T("%s is installed already and waits to be tried", s.New),
			text.T("Reboot to try it, or take it back: accel kernel rollback"))
	}
	if !req.DryRun {
		if err := h.free(ctx, face.say); err != nil {
			return nil, err
		}
	}
	if !req.DryRun && s != nil && (s.Phase == Installing || s.Phase == RollingBack) {
		h.mend(ctx, s.Packages) // what a crash of accel itself left
	}
	if err := h.packageCheck(ctx); err != nil {
		return nil, err
	}
	var stale error
	if !req.DryRun {
		face.say(text.T("asking apt what there is"))
		if _, err := h.change("apt-get", aptUpdate...); err != nil {
			stale = problem(tuning.ExitFailed, err, text.T("fetching what the distribution offers"), text.T("Look whether the mirror can be reached: apt-get update"))
		}
	}
	plan := &Plan{Old: running(t), Auto: !req.NoAuto}
	k, err := h.choose(ctx, t, f, req, plan)
	if err != nil || k == nil {
		return nil, cmp.Or(err, stale)
	}
	if plan.Kernel = *k; stale != nil && plan.Kernel.Release == plan.Old {
		return nil, stale // something newer may be offered, who knows
	}
	if plan.Kernel.Release == plan.Old {
		return nil, nil
	}
	plan.Older = compareVersions(plan.Kernel.Release, plan.Old) < 0
	if plan.Older && req.Version == "" {
		return nil, nil // never older unless asked by name
	}
	if err := otherCheck(t, s, k); err != nil {
		return nil, err
	}
	if err := levelCheck(t, h.Arch, k); err != nil {
		return nil, err
	}
	if err := secureCheck(f, k); err != nil {
		return nil, err
	}
	if info, err := t.Stat("/boot/vmlinuz-" + k.Release); err == nil && info.Size() > 0 && bootable(t, k.Release) == "" && k.Installed {
		plan.Installed = true
	} else {
		var unpacked, download uint64
		if k.SizeBytes != nil {
			unpacked = *k.SizeBytes
		}
		if k.Download != nil {
			download = *k.Download
		}
		if plan.Space, err = h.spaceCheck(t, unpacked, download); err != nil {
			return plan, err
		}
	}
	if m := readModules(t, k.Release); m != nil && plan.Installed {
		if err := driverCheck(neededDrivers(t, f), m, k.Release); err != nil {
			return plan, err
		}
	}
	if plan.Before, err = h.observe(ctx); err != nil {
		return plan, problem(tuning.ExitFailed, err, text.T("looking at the network"), text.T("Mend the cause and try again."))
	}
	if plan.Auto && !slices.ContainsFunc(plan.Before.Gateways, route.Gateway.CanAnswer) {
		return plan, problem(tuning.ExitFailed, nil, text.T("no gateway of a default route answers now, so it could not be told whether the network works with %s", k.Release),
			text.T("To judge by yourself after the reboot: accel kernel install --no-auto"))
	}
	return plan, nil
}

// otherCheck refuses a second kernel while one is installed that has not shown
// that it works. The state and the pin know of one; without them the first would
// be the default again, and not on trial.
func otherCheck(t *kernel.Tree, s *State, k *Kernel) error {
	if s == nil || s.Phase == Promoted || s.New == k.Release || !t.Exists("/boot/vmlinuz-"+s.New) {
		return nil
	}
	next := text.T("Take it away first: accel kernel remove %s", s.New)
	if running(t) == s.New {
		next = text.T("Keep it first: accel kernel confirm. Or go back: accel kernel rollback")
	}
	return problem(tuning.ExitFailed, nil, text.T("%s is still installed and has not shown that it works here; only one kernel can be kept from being started", s.New), next)
}

// choose finds the kernel that was asked for; nil where nothing is newer.
func (h *Host) choose(ctx context.Context, t *kernel.Tree, f *kernel.Facts, req Request, plan *Plan) (*Kernel, error) {
	meta := metaPackage(plan.Old)
	if meta == "" {
		// Of the flavours, this one has the drivers of all machines.
		meta = "linux-image-" + h.Arch
	}
	installed, err := h.installedKernels(ctx, t)
	if err != nil {
		return nil, err
	}
	suite := f.Distribution.Codename + "-backports"
	a := h.apt()
	if req.Backports {
		file, configured := backports(t, f.Distribution.Codename)
		if !configured && file == nil {
			return nil, problem(tuning.ExitFailed, nil, text.T("none of apt's sources is one of Debian %s that backports could be derived from", f.Distribution.Codename),
				text.T("Add %s to apt's sources yourself, and try again.", suite))
		}
		plan.suite = suite
		if !configured {
			plan.file, plan.Backports = file, BackportsFile
			if old, err := h.Files.ReadFile(BackportsFile); err != nil || !bytes.Equal(old, file) {
				var done func()
				if a, done, err = h.peek(ctx, file); err != nil {
					return nil, problem(tuning.ExitFailed, err, text.T("fetching what %s offers", suite), text.T("Look whether the mirror can be reached: apt-get update"))
				}
				defer done()
			}
		}
	}
	offers, err := a.offers(ctx, meta)
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("asking apt what there is"), text.T("Look whether the mirror can be reached: apt-get update"))
	}
	if flavour := strings.TrimPrefix(req.Version, "linux-image-"); flavourPattern.MatchString(flavour) {
		// The newest of another flavour, by the package that brings it.
		if offers, err = a.offersOf(ctx, "linux-image-"+flavour); err != nil {
			return nil, problem(tuning.ExitFailed, err, text.T("asking apt what there is"), text.T("Look whether the mirror can be reached: apt-get update"))
		}
		slices.SortStableFunc(offers, func(a, b Kernel) int { return compareVersions(b.Version, a.Version) })
		for _, o := range offers {
			if req.Backports == strings.HasSuffix(o.Source, "-backports") {
				return onDisk(&o, installed), nil
			}
		}
	}
	if req.Version != "" {
		return h.named(ctx, a, req.Version, installed, offers)
	}
	var best *Kernel
	for _, o := range offers {
		isBackport := strings.HasSuffix(o.Source, "-backports")
		if req.Backports && !isBackport || !req.Backports && !req.Latest && isBackport {
			continue
		}
		if best == nil || compareVersions(o.Version, best.Version) > 0 {
			best = &o
		}
	}
	if best == nil {
		if req.Backports {
			return nil, problem(tuning.ExitFailed, nil, text.T("%s offers no %s", suite, meta), text.T("See what there is: accel kernel list --backports"))
		}
		return nil, nil
	}
	if strings.HasSuffix(best.Source, "-backports") {
		plan.suite = best.Source
	}
	return onDisk(best, installed), nil
}

// flavourPattern is a kernel by its flavour: "amd64", "cloud-amd64", "6.12-amd64".
var flavourPattern = regexp.MustCompile(`^([0-9]+\.[0-9]+-)?((cloud|rt)-)?(amd64|arm64)$`)

// onDisk marks an offer that is installed already.
func onDisk(k *Kernel, installed []Kernel) *Kernel {
	for _, i := range installed {
		if i.Release == k.Release && i.Version == k.Version {
			k.Installed, k.Running = true, i.Running
		}
	}
	return k
}

// named finds a kernel by what a person calls it.
func (h *Host) named(ctx context.Context, a apt, name string, installed, offers []Kernel) (*Kernel, error) {
	name = strings.TrimPrefix(name, "linux-image-")
	for _, list := range [][]Kernel{offers, installed} {
		for _, k := range list {
			if k.Release == name || k.Version == name {
				return onDisk(&k, installed), nil
			}
		}
	}
	var found []Kernel
	for _, list := range [][]Kernel{offers, installed} {
		for _, k := range list {
			if rest, ok := strings.CutPrefix(k.Release, name); ok && strings.ContainsAny(rest[:1], ".-+") {
				if !slices.ContainsFunc(found, func(f Kernel) bool { return f.Release == k.Release }) {
					found = append(found, k)
				}
			}
		}
	}
	if len(found) > 0 { // the newest comes first in both lists
		return onDisk(&found[0], installed), nil
	}
	if packagePattern.MatchString("linux-image-" + name) {
		if k, err := a.image(ctx, "linux-image-"+name, "", ""); err == nil && k.Version != "" {
			return onDisk(k, installed), nil
		}
	}
	return nil, problem(tuning.ExitFailed, nil, text.T("neither apt nor /boot has a kernel %q", name), text.T("See what there is: accel kernel list"))
}

// ours: the content is a file that accel has written.
func ours(data []byte) bool {
	first, _, _ := bytes.Cut(bytes.TrimPrefix(data, []byte("#!/bin/sh\n")), []byte("\n"))
	return bytes.HasPrefix(first, []byte(strings.TrimSpace(written)))
}

func (h *Host) ours(name string) bool {
	data, err := h.Files.ReadFile(name)
	return err == nil && ours(data)
}

// day prints a time for people.
func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
