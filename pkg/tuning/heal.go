package tuning

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"accel/pkg/files"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// HealOptions says how far Heal goes.
type HealOptions struct {
	// RetryRefused asks again for optional settings that this host refused
	// before: worth it once at boot, when the kernel may be another one.
	RetryRefused bool
	// Except names settings (Step.Setting) that are left as they are found.
	Except []string
}

// Heal re-asserts the settings of what is enabled: at boot, for links that
// came up, and for values that drifted. It goes as far as it can; what failed
// is in the steps (Action Skip with a Reason) and the error, a *Problem, only
// tells that nothing could be tried. A step that healed has Changed set and
// what was found in Current.
// errors.Is: ErrNotEnabled, ErrInterrupted.
func Heal(ctx context.Context, h *Host, o HealOptions) (*Result, error) {
	unlock, err := h.Lock(ctx)
	if err != nil {
		return nil, lockProblem(err)
	}
	defer unlock()
	s, err := begin(ctx, h)
	if err != nil {
		return nil, err
	}
	switch {
	case s.old == nil:
		return nil, &Problem{Exit: ExitNotEnabled, Err: ErrNotEnabled, Next: text.T("accel enable bbr")}
	case s.old.Phase != Settled:
		return nil, &Problem{Exit: ExitAttention, Err: ErrInterrupted, Next: interruptedNext(s.old)}
	}
	e := *s.old.Enabled
	profile, ok := profiles[e.Profile]
	if !ok {
		return nil, problem(ExitFailed, nil, text.T("there is no profile %q", e.Profile), text.T("Choose one of: %s.", join(Profiles())))
	}
	w, err := profile(s.view(), e)
	if err != nil {
		return nil, err
	}

	s.st = s.old.clone()
	if o.RetryRefused {
		s.st.Refused = nil
	}
	settings := slices.DeleteFunc(w.Settings, func(w Setting) bool {
		return s.st.refused(w) != "" || slices.Contains(o.Except, w.ID())
	})
	res := &Result{Schema: resultSchema, Command: "heal", Notes: w.Notes, Left: []Left{}, Enabled: s.st.Enabled}
	res.Steps = s.plan(settings, slices.Concat(o.Except, s.absent()))
	if o.RetryRefused {
		s.noteModules(w.Settings)
	}
	noteDirs(h.Files, s.st)
	onDisk := s.old
	if !reflect.DeepEqual(s.st, s.old) && slices.ContainsFunc(res.Steps, func(st Step) bool { return st.Action == Set }) {
		// Something is going to be written that the state on disk does not
		// know of: a new link's original, for example.
		if err := saveState(h.Files, s.st); err != nil {
			return nil, err
		}
		onDisk = s.st.clone()
	}
	if err := s.apply(res, settings, false); err != nil {
		return res, err
	}
	s.settle(s.st)
	s.st.Enabled.Qdisc = wantedQdisc(s.st)
	before := map[string][]byte{}
	for _, name := range generatedFiles {
		before[name], _, _ = ourFile(h.Files, name)
	}
	changed, err := writeFiles(h.Files, s.st)
	for _, name := range changed {
		st := fileStep(name, before[name], s.st)
		st.Changed = true
		res.Steps = append(res.Steps, st)
	}
	if !reflect.DeepEqual(s.st, onDisk) {
		err = errors.Join(err, saveState(h.Files, s.st))
	}
	res.Changed = anyChanged(res.Steps)
	return res, err
}

// absent lists the links that are not there, as at boot before their drivers:
// what was wished for them is still.
func (s *session) absent() (ids []string) {
	for _, r := range s.st.Records {
		if r.Kind == KindQdisc && findTree(s.trees, r.Name) == nil {
			ids = append(ids, r.ID())
		}
	}
	return ids
}

func interruptedNext(st *State) string {
	if st.Phase == Disabling {
		return text.T("Run it again: accel disable. Or go back to: accel enable %s", st.Enabled.Algorithm)
	}
	return text.T("Run it again: accel enable %s. Or take it back: accel disable", st.Enabled.Algorithm)
}

// Drifts compares what is enabled with the host: the sysctls, the qdiscs of
// the links accel manages, and its generated files. It takes no lock, opens no
// socket and writes nothing, so that it may be asked every few seconds. Nothing
// enabled means no drift.
func Drifts(_ context.Context, h *Host) ([]Drift, error) {
	st, err := loadState(h.Files)
	if err != nil || st == nil {
		return nil, err
	}
	return drifts(h, st, true)
}

// drifts compares. With twins, a route that was made once more beside the one
// with accel's metric is drift, too: this one counts still, so it is nothing
// but work for the agent.
func drifts(h *Host, st *State, twins bool) ([]Drift, error) {
	s := &session{h: h, st: st}
	var out []Drift
	treesErr := s.readTrees()
	if slices.ContainsFunc(st.Records, func(r Record) bool { return r.Kind == KindRoute && r.Wanted != "" }) {
		s.readRoutes()
	}
	for _, r := range st.Records {
		if r.Wanted == "" {
			continue
		}
		d := Drift{Setting: r.ID(), Wanted: r.Wanted}
		switch r.Kind {
		case KindSysctl:
			cur, err := s.current(Setting{Kind: r.Kind, Name: r.Name})
			switch {
			case errors.Is(err, sysctl.ErrMissing):
				d.Live = text.T("no such key")
			case err != nil:
				return out, err
			case r.had(cur):
				continue
			default:
				d.Live = cur
			}
		case KindRoute:
			w := Setting{Kind: r.Kind, Name: r.Name}
			cur, err := s.current(w)
			twin := twins && len(r.Wrote) > 0 && s.twin(w)
			if err != nil || r.had(cur) && !twin {
				continue // not known, or the route is not there; or as wanted
			}
			if name, _, _ := splitRoute(r.Name); findRoute(s.routes, name).Special != "" {
				continue // not accel's to change by now
			}
			d.Live = cur
			if twin {
				d.Live = text.T("%s, and the route is there once more without it", cur)
			}
		case KindQdisc:
			t := findTree(s.trees, r.Name)
			if treesErr != nil || t == nil {
				continue // not known, or the link is not there
			}
			if !t.Leftover() && (!t.KernelMade() || t.Kind() == r.Wanted) {
				continue // as wanted, or configured by somebody by now
			}
			d.Live = t.Kind()
		}
		out = append(out, d)
	}
	return append(out, fileDrifts(h.Files, st)...), nil
}

// fileDrifts compares accel's generated files with what they should hold.
func fileDrifts(f files.FS, st *State) []Drift {
	var out []Drift
	want := persisted(st)
	for _, name := range generatedFiles {
		have, ours, err := ourFile(f, name)
		d := Drift{Setting: fileID(name), Wanted: content(want[name], want[name]), Live: content(have, want[name])}
		switch {
		case err != nil:
			d.Live = text.T("not readable")
		case !ours && want[name] == nil, d.Live == d.Wanted:
			continue
		case !ours:
			d.Live = text.T("somebody else's file")
		}
		out = append(out, d)
	}
	return out
}
