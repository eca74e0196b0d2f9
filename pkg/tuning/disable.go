package tuning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// Disable puts every original back, live and on disk, and takes accel's files
// away. Values that somebody else changed since are left and named. What could
// not be put back is in Result.Left with Failed set, its original is kept, and
// the error, a *Problem, says so.
func Disable(ctx context.Context, h *Host, dryRun bool) (*Result, error) {
	if dryRun {
		return disable(ctx, h, true)
	}
	// The service first, or it would heal what is being put back.
	note := stopService(ctx, h)
	unlock, err := h.Lock(ctx)
	if err != nil {
		return nil, lockProblem(err)
	}
	defer unlock()
	res, err := disable(ctx, h, false)
	if res != nil && note != "" {
		res.Notes = append(res.Notes, note)
	}
	return res, err
}

func stopService(ctx context.Context, h *Host) (note string) {
	if h.Service == nil {
		return ""
	}
	state, err := h.Service.State(ctx)
	if errors.Is(err, ErrNoManager) || err == nil && !state.Enabled && !state.Active {
		return ""
	}
	if err = h.Service.Disable(ctx); err != nil && !errors.Is(err, ErrNoManager) {
		return text.T("the service could not be stopped: %s", err)
	}
	return ""
}

func disable(ctx context.Context, h *Host, dryRun bool) (*Result, error) {
	res := &Result{Schema: resultSchema, Command: "disable", DryRun: dryRun, Steps: []Step{}, Notes: []string{}, Left: []Left{}}
	old, err := loadState(h.Files)
	if err != nil {
		return nil, err
	}
	s := &session{ctx: ctx, h: h, old: old}
	if old == nil {
		return res, s.disableOrphans(res)
	}
	s.st = old.clone()
	if f, err := h.Detect(); err == nil {
		s.facts = f
	}
	treesErr := s.readTrees()
	s.readRoutes()
	s.adoptTwins()

	steps := s.undoSteps(res, treesErr)
	res.Changed = true
	if dryRun {
		for _, u := range steps {
			res.Steps = append(res.Steps, u.step)
		}
		for _, name := range generatedFiles {
			if have, ours, err := ourFile(h.Files, name); err == nil && ours && have != nil {
				res.Steps = append(res.Steps, removeStep(name))
			}
		}
		res.Enabled = nil
		return res, nil
	}

	s.st.Phase = Disabling
	if err := saveState(h.Files, s.st); err != nil {
		return nil, err
	}
	removed, filesErr := removeFiles(h.Files, s.st.Dirs)
	for _, name := range removed {
		st := removeStep(name)
		st.Changed = true
		res.Steps = append(res.Steps, st)
	}
	for _, u := range steps {
		if err := s.set(u.w, *u.step.Current); err != nil {
			u.step.Action, u.step.Reason = Skip, err.Error()
			res.Left = append(res.Left, Left{Setting: u.step.Setting, Live: *u.step.Current, Original: u.w.Want, Reason: err.Error(), Failed: true})
		} else {
			u.step.Changed = true
		}
		res.Steps = append(res.Steps, u.step)
	}
	s.undoAllowed(res)
	s.noteUnpaced(res)
	return res, s.endDisable(res, filesErr)
}

// noteUnpaced speaks of connections that fq paced. Measured on 5.10, 6.1, 6.12
// and 7.3: once fq is gone under it, such a BBR connection sends its bursts
// whole until it closes, and may misjudge the path.
func (s *session) noteUnpaced(res *Result) {
	gone := slices.ContainsFunc(res.Steps, func(st Step) bool {
		return st.Changed && strings.HasPrefix(st.Setting, string(KindQdisc)+" ") && *st.Current == "fq"
	})
	if !gone {
		return
	}
	connections, err := s.h.Sockets.Connections()
	if err != nil {
		return
	}
	n := 0
	for name, count := range connections {
		if isBBR(name) {
			n += count
		}
	}
	if n == 1 {
		res.Notes = append(res.Notes, text.T("one established BBR connection was paced by fq and may send in bursts until it closes; restarting a long-lived service ends that"))
	}
	if n > 1 {
		res.Notes = append(res.Notes, text.T("%d established BBR connections were paced by fq and may send in bursts until they close; restarting long-lived services ends that", n))
	}
}

func removeStep(name string) Step {
	there := content([]byte{}, nil)
	return Step{Setting: fileID(name), Current: &there, Wanted: content(nil, nil), Action: Restore}
}

// endDisable forgets what was put back. Only what failed is kept.
func (s *session) endDisable(res *Result, filesErr error) error {
	failed := func(id string) bool {
		return slices.ContainsFunc(res.Left, func(l Left) bool { return l.Failed && l.Setting == id })
	}
	s.st.Records = slices.DeleteFunc(s.st.Records, func(r Record) bool { return !failed(r.ID()) })
	if len(s.st.Records) == 0 && filesErr == nil {
		if err := s.h.Files.Remove(StateFile); err != nil {
			return problem(ExitFailed, err, text.T("removing %s", StateFile), FileHint(err, StateFile))
		}
		return nil
	}
	err := saveState(s.h.Files, s.st)
	if len(s.st.Records) == 0 {
		return errors.Join(filesErr, err)
	}
	var names []string
	for _, r := range s.st.Records {
		names = append(names, r.ID())
	}
	return problem(ExitFailed, errors.Join(filesErr, err), text.T("not everything could be put back: %s", join(names)),
		text.T("The originals are kept in %s. Mend the cause, then run again: accel disable", StateFile))
}

// disableOrphans cleans up where the state is gone but files of ours are not.
func (s *session) disableOrphans(res *Result) error {
	if res.DryRun {
		return nil
	}
	removed, err := removeFiles(s.h.Files, nil)
	// There is no state, but a crash may have left its unfinished copy.
	err = errors.Join(err, s.h.Files.Remove(StateFile))
	for _, name := range removed {
		st := removeStep(name)
		st.Changed = true
		res.Steps = append(res.Steps, st)
		res.Changed = true
	}
	if res.Changed {
		res.Notes = append(res.Notes, text.T("accel's state is gone, so the original values are not known: the live values stay until the next boot"))
	}
	return err
}

type undoStep struct {
	w    Setting
	step Step
}

// undoSteps lists what must be put back, links first while the default qdisc
// can still be borrowed, and names in res what is left to somebody else.
func (s *session) undoSteps(res *Result, treesErr error) []undoStep {
	var links, sysctls []undoStep
	borrow := s.st.record(KindSysctl, string(sysctl.DefaultQdisc))
	for _, r := range slices.Backward(s.st.Records) {
		if r.Name == string(sysctl.AllowedCongestionControl) {
			continue // last, see undoAllowed
		}
		w := Setting{Kind: r.Kind, Name: r.Name, Want: r.Original}
		if r.Kind != KindQdisc && len(r.Wrote) == 0 {
			continue // the host had it and accel wrote nothing, or somebody else has it by now
		}
		if r.Kind == KindRoute && s.routesErr != nil {
			res.Left = append(res.Left, Left{Setting: r.ID(), Original: r.Original, Reason: s.routesErr.Error(), Failed: true})
			continue
		}
		if r.Kind == KindQdisc {
			t := findTree(s.trees, r.Name)
			switch {
			case treesErr != nil:
				res.Left = append(res.Left, Left{Setting: r.ID(), Original: r.Original, Reason: treesErr.Error(), Failed: true})
				continue
			case t == nil, t.Root.Kind == "noop", t.Root.Kind == "noqueue":
				continue // the link is gone, down or has no queue: nothing of ours is on it
			case !t.KernelMade() && !t.Leftover():
				res.Left = append(res.Left, Left{Setting: r.ID(), Live: t.Root.Kind, Original: r.Original, Reason: text.T("somebody configured it since")})
				continue
			}
		}
		cur, err := s.current(w)
		switch {
		case errors.Is(err, sysctl.ErrMissing), errors.Is(err, qdisc.ErrNoLink), errors.Is(err, route.ErrNoRoute):
			continue // not there, so nothing of ours is there
		case err != nil:
			res.Left = append(res.Left, Left{Setting: r.ID(), Original: r.Original, Reason: err.Error(), Failed: true})
			continue
		case sysctl.Equal(cur, r.Original) && !s.twin(w), r.Kind == KindRoute && cur == "0":
			continue // as it was; or the route was made anew without the metric
		case !s.st.ours(&r, cur) && !s.leftover(&r):
			res.Left = append(res.Left, Left{Setting: r.ID(), Live: cur, Original: r.Original, Reason: text.T("somebody changed it since")})
			continue
		}
		u := undoStep{w, Step{Setting: r.ID(), Current: &cur, Wanted: r.Original, Action: Restore}}
		if r.Kind == KindQdisc {
			links = append(links, u)
		} else {
			sysctls = append(sysctls, u)
		}
	}
	if borrow != nil {
		links = append(links, s.inheritedLinks(borrow)...)
		for _, u := range links {
			borrow.wrote(u.w.Want)
		}
	}
	return append(links, sysctls...)
}

// inheritedLinks are those that came up while the default qdisc was accel's:
// without accel they would have had the original default.
func (s *session) inheritedLinks(def *Record) []undoStep {
	if s.facts == nil {
		return nil
	}
	var out []undoStep
	for _, l := range s.facts.Links {
		t := findTree(s.trees, l.Name)
		if s.st.record(KindQdisc, l.Name) != nil || unsuitable(l, t) != "" {
			continue
		}
		w := Setting{Kind: KindQdisc, Name: l.Name, Want: def.Original}
		cur := t.DefaultKind()
		if cur == def.Original || !t.Leftover() && !slices.Contains(s.st.Defaults, cur) {
			continue
		}
		out = append(out, undoStep{w, Step{Setting: w.ID(), Current: &cur, Wanted: w.Want, Action: Restore}})
	}
	return out
}

// undoAllowed puts the list of algorithms open to unprivileged programs back,
// unless somebody else changed it: the kernel itself only ever added the
// algorithms that accel made the default.
func (s *session) undoAllowed(res *Result) {
	key := sysctl.AllowedCongestionControl
	r := s.st.record(KindSysctl, string(key))
	if r == nil {
		return
	}
	live, err := s.h.Sysctl.Read(key)
	if err != nil {
		return
	}
	available, err := s.h.Sysctl.Read(sysctl.AvailableCongestionControl)
	if err != nil {
		return
	}
	// An algorithm that was allowed then may not even be loaded now.
	original := slices.DeleteFunc(strings.Fields(r.Original), func(n string) bool { return !slices.Contains(strings.Fields(available), n) })
	now := strings.Fields(live)
	stranger := slices.ContainsFunc(now, func(n string) bool { return !slices.Contains(original, n) && !slices.Contains(r.Wrote, n) })
	gone := slices.ContainsFunc(original, func(n string) bool { return !slices.Contains(now, n) })
	switch {
	case stranger || gone:
		res.Left = append(res.Left, Left{Setting: r.ID(), Live: live, Original: r.Original, Reason: text.T("somebody changed it since")})
		return
	case len(now) == len(original):
		return
	}
	want := strings.Join(original, " ")
	st := Step{Setting: r.ID(), Current: &live, Wanted: want, Action: Restore}
	if err := s.h.Sysctl.Write(key, want); err != nil {
		st.Action, st.Reason = Skip, err.Error()
		res.Left = append(res.Left, Left{Setting: r.ID(), Live: live, Original: r.Original, Reason: err.Error(), Failed: true})
	} else {
		st.Changed = true
	}
	res.Steps = append(res.Steps, st)
}

// String tells one leftover in a line.
func (l Left) String() string {
	return fmt.Sprintf("%s = %s (%s)", l.Setting, l.Live, l.Reason)
}
