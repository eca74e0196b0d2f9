package bootkernel

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Rollback takes an install back. Where the old kernel runs, all of it: the
// one-time entry, the packages, the pin. Where the new one runs, the old one
// becomes the default for the next boot, and the rest can be done after it.
func Rollback(ctx context.Context, h *Host, dryRun bool, face Face) (*Result, error) {
	res := &Result{Schema: ResultSchema, Command: "rollback", DryRun: dryRun, Notes: []string{}}
	return h.finish(ctx, res, func() error { return h.rollback(ctx, dryRun, face, res) })
}

// finish does the work of a command, alone unless it is a dry run, and ends its
// result with how things stand after it.
func (h *Host) finish(ctx context.Context, res *Result, work func() error) (*Result, error) {
	var err error
	if res.DryRun {
		err = work()
	} else {
		err = h.locked(ctx, work)
	}
	if story, serr := h.story(); serr == nil {
		res.Story = story
	}
	return res, err
}

func (h *Host) rollback(ctx context.Context, dryRun bool, face Face, res *Result) error {
	s, err := h.loadState()
	if err != nil {
		return err
	}
	if s == nil {
		if !dryRun {
			return h.strays(res)
		}
		return nil
	}
	t, err := h.tree()
	if err != nil {
		return err
	}
	defer t.Close()
	now := running(t)
	if s.Phase == Promoted && now != s.New && now != s.Old {
		return problem(tuning.ExitFailed, nil, text.T("%s was made the default, and another kernel runs by now (%s): there is nothing to go back from", s.New, now),
			text.T("To take a kernel away: accel kernel remove VERSION"))
	}
	res.Changed = true
	if now == s.New {
		res.Notes = append(res.Notes, text.T("the next boot starts %s", s.Old), text.T("%s runs now, so it can be taken away only after that: accel kernel remove %s", s.New, s.New))
		if dryRun {
			return nil
		}
		if !t.Exists("/boot/vmlinuz-" + s.Old) {
			return problem(tuning.ExitFailed, nil, text.T("%s is no longer installed, so there is nothing to go back to", s.Old), text.T("See what there is: accel kernel list"))
		}
		if err := h.enter(s, RollingBack); err != nil {
			return err
		}
		if err := h.clearOnce(); err != nil {
			return err
		}
		if err := h.remove(TrialFile); err != nil {
			return err
		}
		if err := h.pin(s, s.Old, s.New, true); err != nil {
			return err
		}
		s.Reasons, s.Kept, s.Ended = []text.Sentence{text.Keep("it was rolled back by hand")}, false, h.Now().UTC()
		return h.enter(s, RolledBack)
	}
	if dryRun {
		for _, p := range s.Packages {
			if p.Before == "" {
				res.Notes = append(res.Notes, text.T("%s would be removed", p.Name))
			} else {
				res.Notes = append(res.Notes, text.T("%s would go back to %s", p.Name, p.Before))
			}
		}
		return nil
	}
	if err := h.free(ctx, face.say); err != nil {
		return err
	}
	return h.undo(context.WithoutCancel(ctx), s, res)
}

// strays removes files that a crash or a lost state left behind.
func (h *Host) strays(res *Result) error {
	t, err := h.tree()
	if err != nil {
		return err
	}
	defer t.Close()
	names := []string{TrialFile, PinFile, KeepFile}
	if pin, err := h.Files.ReadFile(PinFile); err == nil && ours(pin) {
		if m := pinnedBeside.FindSubmatch(pin); m != nil && t.Exists("/boot/vmlinuz-"+string(m[1])) {
			names = names[:1]
			res.Notes = append(res.Notes, text.T("%s stays until %s is removed: without it that kernel might be the default, and accel no longer knows whether it works here", PinFile, m[1]))
		}
	}
	found := false
	for _, name := range names {
		if h.ours(name) {
			found = true
			if err := h.remove(name); err != nil {
				return err
			}
		}
	}
	if found {
		res.Changed = true
		if err := h.clearOnce(); err != nil {
			return err
		}
		return h.updateGrub()
	}
	return nil
}

// pinnedBeside finds in a pin the kernel that it keeps from being started.
var pinnedBeside = regexp.MustCompile(`(?m)^# the default beside (\S+)\.$`)

// undo takes an install back while the old kernel runs. Each step may have been
// done already.
func (h *Host) undo(ctx context.Context, s *State, res *Result) error {
	if err := h.enter(s, RollingBack); err != nil {
		return err
	}
	if err := h.clearOnce(); err != nil {
		return err
	}
	if err := h.remove(TrialFile); err != nil {
		return err
	}
	if err := h.takeAway(ctx, s, res); err != nil {
		return err
	}
	return h.release(s, res)
}

// release gives GRUB_DEFAULT its say again where that is safe: where the new
// kernel is gone, or the operator's own default starts the old one. Otherwise the
// pin stays.
func (h *Host) release(s *State, res *Result) error {
	t, err := h.tree()
	if err != nil {
		return err
	}
	defer t.Close()
	gone := !t.Exists("/boot/vmlinuz-" + s.New)
	pinned := h.ours(PinFile) || h.ours(TrialFile)
	if gone {
		if err := h.dropBackports(context.Background()); err != nil {
			return err
		}
	}
	if !gone {
		// Looked up before the pin goes: a power cut between two writes of grub.cfg
		// would start the new kernel, and not on trial.
		if m, env, err := readMenu(t); err != nil || m.Find(s.Default, env).Release() != s.Old {
			return h.stayPinned(s, res)
		}
	}
	dirs := slices.Clone(s.MadeDirs)
	if err := h.unpin(s); err != nil {
		return err
	}
	if pinned {
		if err := h.updateGrub(); err != nil {
			return err
		}
	}
	if !gone {
		if err := h.starts(s.Old); err != nil { // GRUB_DEFAULT is another one by now
			s.MadeDirs = dirs
			return h.stayPinned(s, res)
		}
	}
	if s.Earlier != nil {
		s.Earlier.MadeDirs = s.MadeDirs
		return h.saveState(s.Earlier)
	}
	if err := h.Files.Remove(StateFile); err != nil {
		return problem(tuning.ExitFailed, err, text.T("removing %s", StateFile), tuning.FileHint(err, StateFile))
	}
	return nil
}

// stayPinned is the end of a rollback that leaves the new kernel installed, where
// GRUB_DEFAULT would start it.
func (h *Host) stayPinned(s *State, res *Result) error {
	if err := h.pin(s, s.Old, s.New, true); err != nil {
		return err
	}
	res.Notes = append(res.Notes, text.T("%s is still installed and would be the default, so %s stays pinned until it is removed: accel kernel remove %s", s.New, s.Old, s.New))
	s.Ended = h.Now().UTC()
	if len(s.Reasons) == 0 {
		s.Reasons = []text.Sentence{text.Keep("it was rolled back by hand")}
	}
	return h.enter(s, RolledBack)
}

// takeAway lets apt put back what it changed: new packages go, and those that
// were upgraded (the one that always brings the newest kernel) get their version
// back, or the newest that the distribution itself has.
func (h *Host) takeAway(ctx context.Context, s *State, res *Result) error {
	h.mend(ctx, s.Packages)
	now, err := h.installed(ctx, s.Packages)
	if err != nil {
		return err
	}
	var gone, back []string
	for _, p := range s.Packages {
		i, there := now[p.Name]
		switch {
		case there && p.Before == "":
			gone = append(gone, p.Name)
		case there && i.version != p.Before && compareVersions(i.version, p.Before) > 0:
			back = append(back, p.Name)
		}
	}
	if len(gone)+len(back) == 0 {
		return nil
	}
	before := func(name string) string {
		for _, p := range s.Packages {
			if p.Name == name {
				return p.Before
			}
		}
		return ""
	}
	var attempts [][]string
	if len(back) > 0 {
		exact := []string{"install", "--allow-downgrades", "--no-install-recommends"}
		newest := slices.Clone(exact)
		for _, name := range back {
			exact = append(exact, name+"="+before(name))
			if v := h.stable(ctx, name); v != "" {
				newest = append(newest, name+"="+v)
			}
		}
		for _, name := range gone {
			exact, newest = append(exact, name+"-"), append(newest, name+"-")
		}
		attempts = append(attempts, exact, newest)
	}
	if len(gone) > 0 {
		attempts = append(attempts, append([]string{"remove"}, gone...))
	}
	var failed error
	for _, args := range attempts {
		said, err := h.run(ctx, "apt-get", append([]string{"-s"}, args...)...)
		if err == nil {
			err = h.harmless(parseSimulation(said), s, args)
		}
		if err != nil {
			failed = err
			continue
		}
		_, err = h.Programs.Run(ctx, Command{Name: "apt-get", Args: append(slices.Clone(aptInstall), args...), Change: true})
		h.Sync()
		if err == nil {
			return nil
		}
		failed = err
	}
	return problem(tuning.ExitFailed, failed, text.T("taking the packages of %s away", s.New), text.T("Mend the packages, and try again: apt-get -f install"))
}

// mend lets dpkg finish what a power cut, or a full disk, left half done. A package
// that was torn while it was unpacked can be neither configured nor removed: it is
// unpacked anew, from apt's cache, where install had put it. What dpkg says is of no
// interest: what comes after it says more.
func (h *Host) mend(ctx context.Context, packages []Package) {
	if said, err := h.run(ctx, "dpkg", "--audit"); err != nil || strings.TrimSpace(said) == "" {
		return
	}
	if now, err := h.installed(ctx, packages); err == nil {
		torn := slices.DeleteFunc(slices.Clone(packages), func(p Package) bool { return !now[p.Name].torn })
		if t, err := h.tree(); err == nil {
			defer t.Close()
			if debs := archives(t, torn); len(debs) > 0 {
				_, _ = h.change("dpkg", append([]string{"--force-confold", "--unpack"}, debs...)...)
			}
		}
	}
	_, _ = h.change("dpkg", "--force-confold", "--configure", "-a")
}

// dropBackports removes the source for backports, if it is accel's and no kernel
// is left that gets its updates from there.
func (h *Host) dropBackports(ctx context.Context) error {
	if !h.ours(BackportsFile) {
		return nil
	}
	said, err := h.run(ctx, "dpkg-query", "-W", "-f", `${db:Status-Abbrev}\t${Package}\t${Version}\n`, "linux-image-*")
	if err != nil {
		return nil // it does no harm
	}
	for line := range strings.Lines(said) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) == 3 && len(f[0]) >= 2 && f[0][1] != 'n' && f[0][1] != 'c' && strings.Contains(f[2], "~bpo") {
			return nil
		}
	}
	return h.remove(BackportsFile)
}

// harmless refuses to let apt remove anything but what accel had it install, and
// packages that bring the newest kernel and nothing else.
func (h *Host) harmless(tr *transaction, s *State, args []string) error {
	for _, name := range tr.Removed {
		known := slices.ContainsFunc(s.Packages, func(p Package) bool { return p.Name == name }) || slices.Contains(args, name)
		if !known {
			return errors.New(text.T("apt would remove %s too", name))
		}
	}
	return nil
}

// installed is what dpkg knows of a package that is there, whole or in part.
type installed struct {
	version string
	torn    bool // it has to be unpacked anew ("reinst-required", dpkg(1))
}

// installed asks dpkg which of the packages are there.
func (h *Host) installed(ctx context.Context, packages []Package) (map[string]installed, error) {
	out := map[string]installed{}
	if len(packages) == 0 {
		return out, nil
	}
	args := []string{"-W", "-f", `${db:Status-Abbrev}\t${Package}\t${Version}\n`}
	for _, p := range packages {
		args = append(args, p.Name)
	}
	said, err := h.run(ctx, "dpkg-query", args...)
	var failed *ProgramError
	if err != nil && !errors.As(err, &failed) { // it fails for packages that it never heard of
		return nil, problem(tuning.ExitFailed, err, text.T("asking dpkg what is installed"), text.T("Mend the packages first: dpkg --configure -a"))
	}
	for line := range strings.Lines(said) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) == 3 && len(f[0]) >= 2 && f[0][1] != 'n' && f[0][1] != 'c' {
			out[f[1]] = installed{version: f[2], torn: strings.HasSuffix(f[0], "R")}
		}
	}
	return out, nil
}

// stable is the newest version of a package outside of backports.
func (h *Host) stable(ctx context.Context, name string) string {
	said, err := h.run(ctx, "apt-cache", "madison", name)
	if err != nil {
		return ""
	}
	best := ""
	for line := range strings.Lines(said) {
		f := strings.Split(line, "|")
		if len(f) != 3 || strings.Contains(f[2], "-backports/") {
			continue
		}
		if v := strings.TrimSpace(f[1]); best == "" || compareVersions(v, best) > 0 {
			best = v
		}
	}
	return best
}

// Remove takes an installed kernel away: never the running one, never the one
// that is known to work while another has not shown that it does.
func Remove(ctx context.Context, h *Host, version string, dryRun bool, face Face) (*Result, error) {
	res := &Result{Schema: ResultSchema, Command: "remove", DryRun: dryRun, Notes: []string{}}
	return h.finish(ctx, res, func() error { return h.removeKernel(ctx, version, dryRun, face, res) })
}

func (h *Host) removeKernel(ctx context.Context, version string, dryRun bool, face Face, res *Result) error {
	s, err := h.loadState()
	if err != nil {
		return err
	}
	f, err := h.Detect()
	if err != nil {
		return err
	}
	t, err := h.tree()
	if err != nil {
		return err
	}
	defer t.Close()
	if err := h.hostCheck(t, f); err != nil {
		return err
	}
	installed, err := h.installedKernels(ctx, t)
	if err != nil {
		return err
	}
	version = strings.TrimPrefix(version, "linux-image-")
	var k *Kernel
	for _, i := range installed {
		if i.Release == version || i.Version == version {
			k = &i
		}
	}
	if k == nil {
		return problem(tuning.ExitFailed, nil, text.T("no kernel %q is installed", version), text.T("See what there is: accel kernel list"))
	}
	switch {
	case k.Running:
		return problem(tuning.ExitFailed, nil, text.T("%s runs now, and a running kernel is never removed", k.Release), text.T("Boot another one first: accel kernel rollback"))
	case s != nil && k.Release == s.Old:
		return problem(tuning.ExitFailed, nil, text.T("%s is the kernel that worked before %s, and the way back to it", k.Release, s.New),
			text.T("If you are sure that it is no longer needed: apt-get remove %s", k.Package))
	}
	good := 0
	for _, i := range installed {
		if i.Release != k.Release && i.Problem == "" {
			good++
		}
	}
	if good == 0 {
		return problem(tuning.ExitFailed, nil, text.T("%s is the only kernel that can be started", k.Release), text.T("Install another one first: accel kernel install"))
	}
	res.Changed = true
	// With a later kernel running, the install is history: only this package goes,
	// and the one that brings updates stays as it is.
	history := s != nil && k.Release == s.New && s.Phase == Promoted && running(t) != s.Old
	if s != nil && k.Release == s.New && !history {
		if dryRun {
			res.Notes = append(res.Notes, text.T("%s would be removed", k.Release))
			return nil
		}
		if err := h.free(ctx, face.say); err != nil {
			return err
		}
		if k.Package != "" && !slices.ContainsFunc(s.Packages, func(p Package) bool { return p.Name == k.Package }) {
			s.Packages = append(s.Packages, Package{Name: k.Package, After: k.Version})
		}
		return h.undo(context.WithoutCancel(ctx), s, res)
	}
	if k.Package == "" {
		return problem(tuning.ExitFailed, nil, text.T("%s belongs to no package, so accel does not know all its files", k.Release), text.T("Remove it the way it was installed."))
	}
	said, err := h.run(ctx, "apt-get", "-s", "remove", k.Package)
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("asking apt what it would do"), text.T("Mend the packages first: apt-get -f install"))
	}
	if others := slices.DeleteFunc(parseSimulation(said).Removed, func(n string) bool { return n == k.Package }); len(others) > 0 {
		return problem(tuning.ExitFailed, nil, text.T("apt would remove %s too", strings.Join(others, " ")),
			text.T("If that is meant: apt-get remove %s", k.Package))
	}
	if dryRun {
		res.Notes = append(res.Notes, text.T("%s would be removed", k.Package))
		return nil
	}
	if err := h.free(ctx, face.say); err != nil {
		return err
	}
	_, err = h.Programs.Run(ctx, Command{Name: "apt-get", Args: append(slices.Clone(aptInstall), "remove", k.Package), Change: true, Progress: face.Progress})
	h.Sync()
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("removing %s", k.Package), text.T("Mend the packages, and try again: apt-get -f install"))
	}
	if history {
		return h.release(s, res)
	}
	return h.dropBackports(ctx)
}

// Abandon is what the removal of accel's package does: nothing that it leaves may
// start an untried kernel. It runs below dpkg, so it changes no packages. The pin
// stays where the new kernel is installed and has not shown that it works; it
// takes itself back when that kernel is removed.
func Abandon(ctx context.Context, h *Host) ([]string, error) {
	var notes []string
	err := h.locked(ctx, func() error {
		s, err := h.loadState()
		if err != nil || s == nil {
			return err
		}
		if err := h.clearOnce(); err != nil {
			return err
		}
		had := h.ours(TrialFile)
		if err := h.remove(TrialFile); err != nil {
			return err
		}
		t, err := h.tree()
		if err != nil {
			return err
		}
		defer t.Close()
		_, gone := t.Stat("/boot/vmlinuz-" + s.New)
		switch {
		case gone != nil:
			had = had || h.ours(PinFile)
			if err := h.unpin(s); err != nil {
				return err
			}
			if err := h.dropBackports(ctx); err != nil {
				return err
			}
		case h.ours(PinFile) && s.Kept:
			notes = append(notes, text.T("%s stays the default of GRUB, by %s: GRUB_DEFAULT names another kernel", s.New, PinFile))
		case h.ours(PinFile):
			// The condition belongs to it from here on, whatever step it stood at.
			m, _, err := readMenu(t)
			if err != nil {
				return err
			}
			if e := m.Ordinary(s.Old); e != nil {
				if err := h.write(PinFile, renderPin(e, s.Old, s.New, true), false); err != nil {
					return err
				}
				had = true
			}
			notes = append(notes, text.T("%s stays the default of GRUB, by %s, until %s is removed, which has not shown that it works here: apt-get remove linux-image-%s", s.Old, PinFile, s.New, s.New))
		}
		if h.ours(BackportsFile) {
			notes = append(notes, text.T("%s stays, since %s gets its updates from there", BackportsFile, s.New))
		}
		if had {
			return h.updateGrub()
		}
		return nil
	})
	return notes, err
}
