package bootkernel

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"time"

	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// This file is what happens after a reboot. Two services run it: one that judges
// (Settle), and one that a timer starts ten minutes after the boot of an untried
// kernel, in emergency and rescue mode too (Deadline).

const (
	// judgeFor is how long the checks may take to become good: a lease by DHCP, an
	// SSH server that waits for entropy, a route that a daemon learns. With the
	// time that a boot takes it ends before the deadline.
	judgeFor = 6 * time.Minute
	// judgeEvery is how often they are made.
	judgeEvery = 5 * time.Second
	// judgeAgain: what is good has to be good this many times in a row.
	judgeAgain = 3
)

// Settle goes on with an install after a boot, and says what it did. It is called
// at every boot while there is a state.
func Settle(ctx context.Context, h *Host) (string, error) {
	s, err := h.loadState()
	if err != nil || s == nil {
		return "", err
	}
	t, err := h.tree()
	if err != nil {
		return "", err
	}
	defer t.Close()
	now := running(t)
	inTrial := trialToken(t) == s.Token && now == s.New
	switch {
	case inTrial && (s.waiting() || s.Phase == Arming):
		// Arming: the power went after the next boot was set and before that was
		// written down.
		return h.judge(ctx, s)
	case now == s.New && s.Phase == Promoting:
		return text.T("%s is the default now", s.New), h.promoteLocked(ctx)
	case now != s.New && s.waiting() && bootID(t) != s.BootID:
		if _, env, err := readMenu(t); err == nil && env["next_entry"] == trialID && len(s.Reasons) == 0 {
			s.Reasons = []text.Sentence{text.Keep("it was never started: GRUB cannot write to its disk, or the boot did not go through GRUB")}
		}
		if now != s.Old && len(s.Reasons) == 0 {
			s.Reasons = []text.Sentence{text.Keep("another kernel was started (%s)", now)}
		}
		return text.T("back on %s", now), h.locked(ctx, func() error { return h.fellBack(s) })
	}
	return "", nil
}

// fellBack is the end of a trial that failed: the old kernel runs again.
func (h *Host) fellBack(s *State) error {
	if len(s.Reasons) == 0 {
		switch s.Phase {
		case Armed:
			s.Reasons = []text.Sentence{text.Keep("it did not come up: it could not be loaded, a panic, no root file system, it hung and was reset, or another entry was chosen in GRUB's menu")}
		default:
			s.Reasons = []text.Sentence{text.Keep("the machine went down before its checks were done")}
		}
	}
	s.Ended = h.Now().UTC()
	if err := h.enter(s, FellBack); err != nil {
		return err
	}
	// What follows only tidies the menu: the pin is there and decides. Should it
	// not be, it is made anew.
	if err := h.clearOnce(); err != nil {
		return err
	}
	if err := h.remove(TrialFile); err != nil {
		return err
	}
	return h.pin(s, s.Old, s.New, true)
}

// judge makes the checks until they are good or the time is over.
func (h *Host) judge(ctx context.Context, s *State) (string, error) {
	// On a tmpfs: the next boot has to earn it again.
	_ = h.Files.Mkdir(tuning.RuntimeDir, 0o755)
	if err := h.Files.WriteFile(SeenFile, []byte(s.Token+"\n"), 0o644); err != nil {
		return "", err
	}
	if s.Phase == Failing {
		return text.T("rebooting into %s", s.Old), h.reboot(ctx, s)
	}
	if s.Phase == Armed || s.Phase == Arming {
		if err := h.locked(ctx, func() error { return h.enter(s, Trying) }); err != nil {
			return "", err
		}
	}
	if s.Phase == Promoting {
		return text.T("%s is the default now", s.New), h.promoteLocked(ctx)
	}
	end := h.Now().Add(judgeFor)
	good := 0
	var bad []text.Sentence
	for {
		if bad = h.missing(ctx, s.Before); len(bad) == 0 {
			good++
		} else {
			good = 0
		}
		if good >= judgeAgain || len(bad) > 0 && !h.Now().Before(end) {
			break
		}
		if err := h.Sleep(ctx, judgeEvery); err != nil {
			return "", err
		}
	}
	// Somebody may have decided meanwhile.
	fresh, err := h.loadState()
	if err != nil {
		return "", err
	}
	if fresh == nil || fresh.Token != s.Token || fresh.Phase != Trying {
		return text.T("somebody has decided about %s already", s.New), nil
	}
	*s = *fresh
	switch {
	case len(bad) == 0 && s.Auto:
		return text.T("%s is good, and the default now", s.New), h.locked(ctx, func() error {
			if fresh, err = h.loadState(); err != nil || fresh == nil || fresh.Phase != Trying {
				return err
			}
			return h.promote(fresh)
		})
	case len(bad) == 0:
		return text.T("%s is good; it waits for: accel kernel confirm", s.New), nil
	}
	if !s.Auto {
		s.Reasons = bad
		err := h.locked(ctx, func() error { return h.saveState(s) })
		return text.T("%s is not good (%s); it waits for accel kernel confirm or rollback", s.New, text.Tell(bad)), err
	}
	return h.fail(ctx, s, bad)
}

// fail writes down why, and reboots into the old kernel, unless somebody has
// decided while the checks were made.
func (h *Host) fail(ctx context.Context, s *State, reasons []text.Sentence) (string, error) {
	c, cancel := context.WithTimeout(ctx, waitForState)
	defer cancel()
	if unlock, err := h.Lock(c); err == nil {
		defer unlock()
	} else { // whoever has it hangs, or /run cannot be written to
		h.Log.Error("waiting for another accel", "err", err)
	}
	if fresh, err := h.loadState(); err == nil {
		if fresh == nil || fresh.Token != s.Token || fresh.settled() || fresh.Phase == RollingBack {
			return text.T("somebody has decided about %s already", s.New), nil
		}
		*s = *fresh
	}
	s.Reasons = reasons
	if err := h.enter(s, Failing); err != nil {
		h.Log.Error("the reason could not be written down", "err", err)
	}
	return text.T("%s is not good (%s); rebooting into %s", s.New, text.Tell(reasons), s.Old), h.reboot(ctx, s)
}

// reboot makes the one automatic reboot of an install, and only if GRUB will start
// the old kernel.
func (h *Host) reboot(ctx context.Context, s *State) error {
	if s.Rebooted {
		return problem(tuning.ExitFailed, nil, text.T("the one automatic reboot was made already"), text.T("Reboot by hand: the next boot starts %s.", s.Old))
	}
	if err := h.clearOnce(); err != nil {
		return err
	}
	if err := h.starts(s.Old); err != nil {
		if err := h.pin(s, s.Old, s.New, true); err != nil {
			return err
		}
	}
	s.Rebooted = true
	if err := h.saveState(s); err != nil {
		h.Log.Error("the reboot could not be written down", "err", err)
	}
	return h.goDown(ctx)
}

// goDown reboots, in an orderly way if that works, and in any case.
func (h *Host) goDown(ctx context.Context) error {
	h.Sync()
	for i, args := range [][]string{{"--no-block", "reboot"}, {"--force", "reboot"}, {"--force", "--force", "reboot"}} {
		if i > 0 {
			if err := h.Sleep(ctx, patience[i-1]); err != nil {
				return err // stopped, because the machine goes down
			}
		}
		if _, err := h.change("systemctl", args...); err != nil {
			h.Log.Error("rebooting", "err", err)
		}
	}
	// Of the deadline's service systemd makes a reboot of its own then.
	return problem(tuning.ExitFailed, nil, text.T("the machine does not reboot"), text.T("Reboot by hand: systemctl --force --force reboot"))
}

// patience is how long an orderly reboot may take, databases and all, and a forced
// one. Together it is less than what systemd gives the deadline's service.
var patience = []time.Duration{5 * time.Minute, 90 * time.Second}

// Deadline ends a trial that nobody has judged: it is called ten minutes after the
// boot of an untried kernel, whatever state the host is in.
func Deadline(ctx context.Context, h *Host) (string, error) {
	t, err := h.tree()
	if err != nil {
		return "", err
	}
	defer t.Close()
	token := trialToken(t)
	if token == "" {
		return text.T("this boot is no trial"), nil
	}
	s, err := h.loadState()
	if err != nil || s == nil {
		// /var may not be mounted. GRUB has cleared the one-time entry before it
		// started this kernel, so the machine comes back with the old one.
		if err == nil && h.mounted(tuning.StateDir) {
			return text.T("nothing is under way"), nil
		}
		return text.T("the state cannot be read; rebooting"), h.goDown(ctx)
	}
	for try := 0; s.Phase == Promoting && try < 12; try++ { // it is being decided just now
		if err := h.Sleep(ctx, judgeEvery); err != nil {
			return "", err
		}
		if fresh, err := h.loadState(); err == nil && fresh != nil {
			s = fresh
		}
	}
	if s.Token != token || s.settled() || s.Phase == RollingBack {
		return text.T("nothing is to be decided"), nil
	}
	if _, err := h.Files.Lstat(SeenFile); err == nil && !s.Auto {
		return text.T("%s waits for: accel kernel confirm", s.New), nil
	}
	reasons := s.Reasons
	if len(reasons) == 0 {
		reasons = append([]text.Sentence{text.Keep("ten minutes after the boot it was not known to be good")}, h.missing(ctx, s.Before)...)
	}
	return h.fail(ctx, s, reasons)
}

// mounted: the directory is where it belongs, so that a missing file in it means
// something. On a host whose /var is not mounted the directory is not there either,
// or empty.
func (h *Host) mounted(dir string) bool {
	_, err := h.Files.Lstat(dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// Confirm makes the running new kernel the default.
func Confirm(ctx context.Context, h *Host, dryRun bool) (*Result, error) {
	res := &Result{Schema: ResultSchema, Command: "confirm", DryRun: dryRun, Notes: []string{}}
	s, err := h.loadState()
	if err != nil {
		return res, err
	}
	t, err := h.tree()
	if err != nil {
		return res, err
	}
	defer t.Close()
	now := running(t)
	switch {
	case s == nil:
		return res, problem(tuning.ExitFailed, nil, text.T("there is nothing to confirm: no new kernel is on trial"), text.T("See how things stand: accel kernel list"))
	case s.Phase == Promoted && now == s.New:
		res.Notes = append(res.Notes, text.T("%s is the default already", s.New))
	case now != s.New:
		return res, problem(tuning.ExitFailed, nil, text.T("%s does not run, so it cannot be confirmed; %s does", s.New, now), text.T("See how things stand: accel kernel list"))
	case dryRun:
		res.Changed = true
	default:
		res.Changed = true
		if err := h.promoteLocked(ctx); err != nil {
			return res, err
		}
	}
	res.Story, _ = h.story()
	return res, nil
}

func (h *Host) promoteLocked(ctx context.Context) error {
	return h.locked(ctx, func() error {
		s, err := h.loadState()
		if err != nil || s == nil {
			return err
		}
		return h.promote(s)
	})
}

// promote makes the running new kernel the default: by taking the pin away, so
// that the operator's GRUB_DEFAULT decides as ever, or, where that names another
// kernel, by a pin of its own.
func (h *Host) promote(s *State) error {
	s.Earlier = nil
	if err := h.enter(s, Promoting); err != nil {
		return err
	}
	if err := h.clearOnce(); err != nil {
		return err
	}
	dirs := append([]string{}, s.MadeDirs...)
	if err := h.unpin(s); err != nil {
		return err
	}
	if err := h.updateGrub(); err != nil {
		return err
	}
	s.Kept = false
	if !h.startsAtLeast(s.New, s.Old) {
		s.MadeDirs = dirs
		if err := h.pin(s, s.New, s.Old, true); err != nil {
			return err
		}
		s.Kept = true
	}
	// The command line of the trial is in force until the next boot.
	for _, k := range []struct {
		key           sysctl.Key
		trial, before string
	}{{panicKey, strconv.Itoa(panicSeconds), s.Panic}, {oopsKey, "1", s.Oops}} {
		if v, err := h.Sysctl.Read(k.key); err == nil && v == k.trial && k.before != "" {
			_ = h.Sysctl.Write(k.key, k.before)
		}
	}
	s.Reasons, s.Ended = nil, h.Now().UTC()
	return h.enter(s, Promoted)
}

// What the command line of a trial sets (panicSeconds).
const (
	panicKey sysctl.Key = "kernel/panic"
	oopsKey  sysctl.Key = "kernel/panic_on_oops"
)

// startsAtLeast: by itself GRUB starts this release, or a later one that came
// meanwhile, but not the one that ran before.
func (h *Host) startsAtLeast(release, before string) bool {
	m, env, err := h.menu()
	if err != nil {
		return false
	}
	r := m.Find(m.Default, env).Release()
	return r != "" && r != before && compareVersions(r, release) >= 0
}
