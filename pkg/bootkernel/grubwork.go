package bootkernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

// This file changes what GRUB does, and looks afterwards whether it will.

// updateGrub writes grub.cfg anew and brings it to the disk.
func (h *Host) updateGrub() error {
	_, err := h.change("update-grub")
	h.Sync()
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("writing GRUB's configuration anew"), text.T("Mend the cause, then: update-grub"))
	}
	return nil
}

// menu reads what GRUB will do as things are now.
func (h *Host) menu() (*Menu, map[string]string, error) {
	t, err := h.tree()
	if err != nil {
		return nil, nil, err
	}
	defer t.Close()
	m, env, err := readMenu(t)
	if err != nil {
		return nil, nil, problem(tuning.ExitFailed, err, text.T("reading GRUB's configuration"), text.T("Write it anew: update-grub"))
	}
	return m, env, nil
}

// starts checks that GRUB, without a one-time entry, starts the release.
func (h *Host) starts(release string) error {
	m, env, err := h.menu()
	if err != nil {
		return err
	}
	if len(m.Strange) > 0 {
		return problem(tuning.ExitFailed, nil, text.T("something besides GRUB_DEFAULT decides what GRUB starts: %s", m.Strange[0]),
			text.T("Find it below /etc/grub.d or in %s/custom.cfg, take it away, and try again.", grubDir))
	}
	e := m.Find(m.Default, env)
	if e.Release() != release {
		return problem(tuning.ExitFailed, nil, text.T("GRUB would start %s by itself, and not %s, although its configuration was written anew", orUnknown(e.Release()), release),
			text.T("A file in /etc/default/grub.d whose name sorts after zz-accel.cfg may set GRUB_DEFAULT."))
	}
	return nil
}

func orUnknown(s string) string {
	if s == "" {
		return text.T("something unknown")
	}
	return s
}

// makeDirs makes the directories of accel's files where they are missing, and
// remembers which.
func (h *Host) makeDirs(s *State, names ...string) error {
	for _, name := range names {
		dir := path.Dir(name)
		if _, err := h.Files.Lstat(dir); err == nil {
			continue
		}
		s.MadeDirs = append(s.MadeDirs, dir)
		if err := h.saveState(s); err != nil {
			return err
		}
		if err := h.Files.Mkdir(dir, 0o755); err != nil {
			return problem(tuning.ExitFailed, err, text.T("making %s", dir), tuning.FileHint(err, dir))
		}
	}
	return nil
}

func (h *Host) write(name string, data []byte, executable bool) error {
	perm := fs.FileMode(0o644)
	if executable {
		perm = 0o755
	}
	old, err := h.Files.ReadFile(name)
	if err == nil && !ours(old) {
		return problem(tuning.ExitFailed, nil, text.T("%s was not written by accel", name), text.T("Move it away and try again."))
	}
	if err := h.Files.WriteFile(name, data, perm); err != nil {
		return problem(tuning.ExitFailed, err, text.T("writing %s", name), tuning.FileHint(err, name))
	}
	return nil
}

// remove removes one of accel's files; a stranger's of the same name stays.
func (h *Host) remove(name string) error {
	if old, err := h.Files.ReadFile(name); err == nil && !ours(old) {
		return nil
	}
	if err := h.Files.Remove(name); err != nil {
		return problem(tuning.ExitFailed, err, text.T("removing %s", name), tuning.FileHint(err, name))
	}
	return nil
}

// pin makes a kernel the default and verifies it, and keeps apt from taking that
// kernel away.
func (h *Host) pin(s *State, good, other string, installed bool) error {
	if err := h.writePin(s, good, other, installed); err != nil {
		return err
	}
	if err := h.updateGrub(); err != nil {
		return err
	}
	return h.starts(good)
}

// writePin writes the files of a pin, and not grub.cfg.
func (h *Host) writePin(s *State, good, other string, installed bool) error {
	m, _, err := h.menu()
	if err != nil {
		return err
	}
	e := m.Ordinary(good)
	if e == nil {
		return problem(tuning.ExitFailed, nil, text.T("GRUB's menu has no entry for %s", good), text.T("Write it anew: update-grub"))
	}
	if err := h.makeDirs(s, PinFile, KeepFile); err != nil {
		return err
	}
	if err := h.write(KeepFile, renderKeep(good), false); err != nil {
		return err
	}
	return h.write(PinFile, renderPin(e, good, other, installed), false)
}

// unpin gives the operator's GRUB_DEFAULT its say again, or the pin that an earlier
// install was promoted with. It does not write grub.cfg.
func (h *Host) unpin(s *State) error {
	if e := s.Earlier; e != nil && e.Kept {
		if _, err := h.Files.Lstat("/boot/vmlinuz-" + e.Old); err == nil {
			if err := h.remove(TrialFile); err != nil {
				return err
			}
			return h.writePin(s, e.New, e.Old, true)
		}
	}
	for _, name := range []string{TrialFile, PinFile, KeepFile} {
		if err := h.remove(name); err != nil {
			return err
		}
	}
	for len(s.MadeDirs) > 0 {
		dir := s.MadeDirs[len(s.MadeDirs)-1]
		_ = h.Files.Remove(dir) // somebody else may use it by now
		s.MadeDirs = s.MadeDirs[:len(s.MadeDirs)-1]
	}
	return nil
}

// trial makes the entry for the one start, and sets it.
func (h *Host) trial(ctx context.Context, s *State) error {
	m, _, err := h.menu()
	if err != nil {
		return err
	}
	e := m.Ordinary(s.New)
	switch {
	case e == nil:
		return problem(tuning.ExitFailed, nil, text.T("GRUB's menu has no entry for %s, although it is installed", s.New), text.T("Look at what update-grub says."))
	case len(e.Initrd) == 0:
		return problem(tuning.ExitFailed, nil, text.T("GRUB would start %s without an initial ramdisk, and it could not find its disk", s.New), text.T("Look at what this says: update-initramfs -u -k %s", s.New))
	}
	old := m.Ordinary(s.Old)
	if old == nil {
		return problem(tuning.ExitFailed, nil, text.T("GRUB's menu has no entry for %s", s.Old), text.T("Write it anew: update-grub"))
	}
	// What stands after "--" goes to init, and a kernel takes 2048 characters
	// (COMMAND_LINE_SIZE): neither panic= nor the mark of the trial would be seen.
	if slices.Contains(strings.Fields(e.Args), "--") || len(e.Args) > maxArgs {
		return problem(tuning.ExitFailed, nil, text.T("nothing can be added to the kernel's command line: it is too long, or has arguments for init (--)"), text.T("Look at GRUB_CMDLINE_LINUX in /etc/default/grub."))
	}
	if err := h.makeDirs(s, TrialFile); err != nil {
		return err
	}
	if err := h.write(TrialFile, renderTrial(old, e, s.New, s.Token), true); err != nil {
		return err
	}
	if err := h.updateGrub(); err != nil {
		return err
	}
	if err := h.starts(s.Old); err != nil {
		return err
	}
	m, _, err = h.menu()
	if err != nil {
		return err
	}
	if e := m.Trial(); e.Release() != s.New || len(e.Initrd) == 0 {
		return problem(tuning.ExitFailed, nil, text.T("the entry that starts %s once is not in GRUB's menu, although its configuration was written anew", s.New),
			text.T("Look at what update-grub says."))
	}
	return h.setOnce(trialID)
}

// maxArgs leaves room for what accel adds, and for BOOT_IMAGE=, which GRUB adds.
const maxArgs = 1700

// setOnce sets the one-time entry, or clears it, and verifies it.
func (h *Host) setOnce(id string) error {
	var err error
	if id != "" {
		_, err = h.change("grub-editenv", grubEnv, "set", "next_entry="+id)
	} else {
		_, err = h.change("grub-editenv", grubEnv, "unset", "next_entry")
	}
	h.Sync()
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("setting what GRUB starts next"), text.T("Mend the cause and try again."))
	}
	t, terr := h.tree()
	if terr != nil {
		return terr
	}
	defer t.Close()
	_, env, err := readMenu(t)
	if err == nil && env["next_entry"] != id {
		err = errors.New(text.T("it says %q", env["next_entry"]))
	}
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("setting what GRUB starts next"), text.T("Mend the cause and try again."))
	}
	return nil
}

// clearOnce clears the one-time entry if it is accel's, and the empty one that GRUB
// leaves where it has used one up.
func (h *Host) clearOnce() error {
	t, err := h.tree()
	if err != nil {
		return err
	}
	defer t.Close()
	if _, env, err := readMenu(t); err == nil {
		if id, set := env["next_entry"]; !set || id != "" && id != trialID {
			return nil
		}
	}
	return h.setOnce("")
}

// renderKeep keeps apt from removing the good kernel as no longer needed
// (apt.conf(5), APT::NeverAutoRemove).
func renderKeep(release string) []byte {
	return fmt.Appendf(nil, "%sIt keeps apt from taking away Linux\n# %s, which the host needs while a newer one is tried.\nAPT::NeverAutoRemove { \"^linux-image-%s$\"; };\n",
		written, release, regexp.QuoteMeta(release))
}
