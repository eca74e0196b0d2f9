package bootkernel

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Story is how an install stands, for status and list.
type Story struct {
	Phase   Phase     `json:"phase"`
	Old     string    `json:"old"`
	New     string    `json:"new"`
	Since   time.Time `json:"since"`
	Reason  string    `json:"reason,omitempty"` // why the new kernel was not good
	Pinned  string    `json:"pinned,omitempty"` // the release that accel keeps the default; "" where GRUB_DEFAULT decides
	Attend  bool      `json:"needs_attention"`  // something is left for a person to do
	Summary string    `json:"summary"`          // one or two sentences
	Next    string    `json:"next,omitempty"`   // what to do
}

// Tell gives the story of the last install; nil where there is none.
func Tell(h *Host) (*Story, error) { return h.story() }

func (h *Host) story() (*Story, error) {
	s, err := h.loadState()
	if err != nil || s == nil {
		return nil, err
	}
	t, err := h.tree()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return h.tell(t, s), nil
}

func (h *Host) tell(t *kernel.Tree, s *State) *Story {
	now := running(t)
	st := &Story{Phase: s.Phase, Old: s.Old, New: s.New, Since: s.Since, Reason: text.Tell(s.Reasons)}
	if h.ours(PinFile) {
		st.Pinned = s.Old
		if s.Kept {
			st.Pinned = s.New
		}
	}
	booted := bootID(t) != s.BootID
	inTrial := trialToken(t) == s.Token && now == s.New
	switch s.Phase {
	case Preparing, Pinning, Installing, Arming:
		st.Attend = true
		st.Summary = text.T("the install of %s was interrupted (%s). %s stays the default.", s.New, stepName(s.Phase), s.Old)
		st.Next = text.T("To go on: accel kernel install. To take it back: accel kernel rollback")
	case Armed, Trying, Promoting, Failing:
		switch {
		case inTrial && s.Phase == Failing:
			st.Attend = true
			st.Summary = text.T("%s runs on trial and is not good: %s. The next boot starts %s.", s.New, st.Reason, s.Old)
			st.Next = text.T("Reboot: systemctl reboot")
		case inTrial && !s.Auto && st.Reason != "":
			st.Attend = true
			st.Summary = text.T("%s runs on trial and is not good: %s. The next boot starts %s.", s.New, st.Reason, s.Old)
			st.Next = text.T("To keep it all the same: accel kernel confirm. To go back: systemctl reboot")
		case inTrial && !s.Auto:
			st.Attend = true
			st.Summary = text.T("%s runs on trial. The next boot starts %s unless it is confirmed.", s.New, s.Old)
			st.Next = text.T("To keep it: accel kernel confirm. To go back: systemctl reboot")
		case inTrial:
			st.Summary = text.T("%s runs on trial and is being checked. If it is good it becomes the default; if not, the machine reboots into %s.", s.New, s.Old)
		case now == s.New:
			st.Attend = true
			st.Summary = text.T("%s runs, but not on trial: it was chosen by hand. By itself the machine starts %s.", s.New, s.Old)
			st.Next = text.T("To keep it: accel kernel confirm. To take it back: accel kernel rollback")
		case s.Phase == Armed && !booted:
			st.Summary = text.T("%s is installed and set for the next boot, once. %s stays the default until it has shown that it works.", s.New, s.Old)
			st.Next = text.T("To try it: systemctl reboot. To take it back: accel kernel rollback")
		default:
			st.Attend = true
			reason := st.Reason
			if reason == "" {
				reason = text.T("it did not come up, or went down before its checks were done")
			}
			st.Summary = text.T("%s was tried and did not work: %s. The machine is back on %s, which stays the default.", s.New, reason, s.Old)
			st.Next = text.T("To take it away: accel kernel remove %s", s.New)
		}
	case Promoted:
		st.Summary = text.T("%s was tried, is good, and is the default since %s. %s is still installed.", s.New, day(s.Ended), s.Old)
		if !t.Exists("/boot/vmlinuz-" + s.Old) {
			st.Summary = text.T("%s was tried, is good, and is the default since %s.", s.New, day(s.Ended))
		}
		if s.Kept {
			st.Summary += " " + text.T("GRUB_DEFAULT names another kernel, so %s keeps this one the default; later kernels do not start by themselves, as before.", PinFile)
		}
		if now != s.New && now == s.Old {
			st.Summary += " " + text.T("%s runs now.", now)
		}
	case FellBack:
		st.Attend = true
		st.Summary = text.T("%s was tried and did not work: %s. The machine is back on %s, which stays the default until %s is removed; updates of the kernel do not start by themselves meanwhile.", s.New, st.Reason, s.Old, s.New)
		st.Next = text.T("To take it away: accel kernel remove %s", s.New)
	case RolledBack:
		st.Attend = true
		if now == s.New {
			st.Summary = text.T("%s runs, and the next boot starts %s.", s.New, s.Old)
			st.Next = text.T("Reboot, and then take it away: accel kernel remove %s", s.New)
			break
		}
		st.Summary = text.T("%s was rolled back. %s stays the default until %s is removed; updates of the kernel do not start by themselves meanwhile.", s.New, s.Old, s.New)
		st.Next = text.T("To take it away: accel kernel remove %s", s.New)
	case RollingBack:
		st.Attend = true
		st.Summary = text.T("taking %s back was interrupted. %s stays the default.", s.New, s.Old)
		st.Next = text.T("To go on: accel kernel rollback")
	}
	// The kernel was taken away behind accel's back: then the pin is without
	// effect, and nothing is left to be done.
	if s.settled() && s.Phase != Promoted && !t.Exists("/boot/vmlinuz-"+s.New) {
		st.Attend = false
		st.Summary = text.T("%s was tried, did not work, and has been removed.", s.New)
		st.Next = text.T("To tidy up: accel kernel rollback")
	}
	return st
}

func stepName(p Phase) string {
	switch p {
	case Preparing:
		return text.T("while fetching the packages")
	case Pinning:
		return text.T("while pinning the running kernel")
	case Installing:
		return text.T("while apt was at work")
	default:
		return text.T("while setting the next boot")
	}
}

// List is what `accel kernel list` shows: accel.kernels/1.
type List struct {
	Schema   string   `json:"schema"`
	Running  string   `json:"running"`
	Next     string   `json:"next"`    // release that the next boot starts; "" when not known
	After    string   `json:"after"`   // and the boots after that
	Kernels  []Kernel `json:"kernels"` // installed, newest first
	Offers   []Kernel `json:"offers"`  // newest first; null where apt could not be asked
	Possible bool     `json:"possible"`
	Reason   string   `json:"reason,omitempty"` // why accel cannot install kernels here
	Story    *Story   `json:"upgrade"`
	Notes    []string `json:"notes"`
	Exit     int      `json:"exit"`
}

// ListSchema names the layout of List.
const ListSchema = "accel.kernels/1"

// Kernels lists what is installed, what GRUB starts, and what is offered. With
// peek, what the backports offer is asked for even where they are not configured;
// nothing of the host is changed for that.
func Kernels(ctx context.Context, h *Host, peek bool) (*List, error) {
	l := &List{Schema: ListSchema, Kernels: []Kernel{}, Notes: []string{}}
	f, err := h.Detect()
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("looking at this host"), text.T("Mend the cause and try again."))
	}
	t, err := h.tree()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	l.Running = running(t)
	installed, err := h.installedKernels(ctx, t)
	if err != nil {
		return nil, err
	}
	l.Kernels = append(l.Kernels, installed...)
	possible := h.hostCheck(t, f)
	l.Possible = possible == nil
	if possible != nil {
		l.Reason = possible.Error()
	}
	if m, env, err := readMenu(t); err == nil {
		l.After = m.Find(m.Default, env).Release()
		l.Next = l.After
		if next := env["next_entry"]; next != "" && m.OneTime {
			l.Next = m.Find(next, env).Release()
		}
		if len(m.Strange) > 0 {
			l.Next, l.After = "", ""
			l.Notes = append(l.Notes, text.T("something besides GRUB_DEFAULT decides what GRUB starts: %s", m.Strange[0]))
		}
	} else if errors.Is(err, fs.ErrPermission) {
		l.Notes = append(l.Notes, text.T("only root may read what GRUB starts"))
	}
	if f.Distribution.ID == "debian" && !h.Recorded && f.Virtualization.Container == "" {
		meta := metaPackage(l.Running)
		if meta == "" {
			meta = "linux-image-" + h.Arch
		}
		if offers, err := h.apt().offers(ctx, meta); err == nil {
			l.Offers = append([]Kernel{}, offers...)
		} else {
			l.Notes = append(l.Notes, text.T("apt could not be asked what there is: %s", err))
		}
		file, configured := backports(t, f.Distribution.Codename)
		switch {
		case configured || h.ours(BackportsFile):
		case peek && file == nil:
			l.Notes = append(l.Notes, text.T("none of apt's sources is one of Debian %s that backports could be derived from", f.Distribution.Codename))
		case peek:
			a, done, err := h.peek(ctx, file)
			if err == nil {
				var offers []Kernel
				if offers, err = a.offers(ctx, meta); err == nil {
					l.Offers = append(offers, l.Offers...)
				}
				done()
			}
			if err != nil {
				l.Notes = append(l.Notes, text.T("the backports could not be asked: %s", err))
			}
		default:
			l.Notes = append(l.Notes, text.T("backports are not among apt's sources; to see what they offer: accel kernel list --backports"))
		}
	}
	for i := range l.Offers {
		onDisk(&l.Offers[i], installed)
	}
	if l.Story, err = h.story(); err != nil {
		l.Notes = append(l.Notes, err.Error())
	}
	return l, nil
}
