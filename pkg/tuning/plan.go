package tuning

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// plan compares every setting with the host and writes the originals and the
// intent into the becoming state. Records that no setting wants any more get a
// Restore step; those named in except are left as they are.
func (s *session) plan(settings []Setting, except []string) []Step {
	s.adoptTwins()
	first := s.st.record(KindSysctl, string(sysctl.DefaultQdisc)) == nil
	steps := []Step{}
	keep := slices.Clone(except)
	for i := range settings {
		steps = append(steps, s.compare(&settings[i], first))
		keep = append(keep, settings[i].ID())
	}
	if first && s.st.record(KindSysctl, string(sysctl.DefaultQdisc)) != nil {
		s.seeLinks()
	}
	if s.facts.DefaultQdisc != nil {
		s.intendAllowed(s.st.Enabled.Algorithm)
	}
	s.adoptLeftovers(keep)
	return append(steps, s.retire(keep)...)
}

// compare makes the step of one setting. first says that accel has not touched
// the default qdisc before. The value of a floor becomes the one that this host
// gets.
func (s *session) compare(wish *Setting, first bool) Step {
	w := *wish
	st := Step{Setting: w.ID(), Wanted: w.Want, Required: w.Required, Why: w.Why, Action: Set}
	cur, err := s.current(w)
	if err != nil {
		st.Action, st.Reason = Skip, err.Error()
		return st
	}
	st.Current = &cur
	if w.Floor {
		return s.compareFloor(wish, st)
	}
	if sysctl.Equal(cur, w.Want) && !s.mixed(w) {
		st.Action = Keep
	}
	original := cur
	switch {
	case w.Kind == KindModule:
		return st // a module stays loaded, so there is nothing to put back
	case w.Kind == KindQdisc && !first && s.st.record(w.Kind, w.Name) == nil:
		// A link that came up while the default qdisc was already ours has
		// what it has because of us: its own original is not known, and
		// disable gives it the original default.
		if st.Action == Keep {
			return st
		}
		if slices.Contains(s.st.Defaults, cur) {
			original = s.st.record(KindSysctl, string(sysctl.DefaultQdisc)).Original
		}
	}
	s.intend(w, cur, original)
	return st
}

// compareFloor completes the step of a setting that is at least something.
func (s *session) compareFloor(wish *Setting, st Step) Step {
	floor, cur := wish.Want, *st.Current
	r := s.st.record(wish.Kind, wish.Name)
	if r != nil && !r.ours(cur) && (wish.Kind == KindRoute || len(r.Wrote) == 0) {
		// Somebody made the route anew, or accel has not touched this yet: what
		// is there now is what will be put back.
		r.Original = cur
	}
	base := cur
	if r != nil && r.ours(cur) {
		base = r.Original
	}
	if wish.Kind == KindSysctl {
		base = raise(base, s.elsewhere(sysctl.Key(wish.Name)))
	}
	wish.Want = raise(base, floor)
	st.Wanted = wish.Want
	switch {
	case !sysctl.Equal(cur, wish.Want), s.twin(*wish):
		if s.twin(*wish) {
			st.Why = text.T("the network configuration made the route once more: the two become one")
		}
		s.intend(*wish, cur, cur)
	case r != nil && r.ours(cur):
		st.Action = Keep
		s.intend(*wish, cur, cur)
	default:
		// As good or better without accel: nothing to write, now or at boot. A
		// record without a value of accel's lets the agent see when it falls.
		st.Action = Keep
		if r == nil {
			s.st.Records = append(s.st.Records, Record{Kind: wish.Kind, Name: wish.Name, Original: cur})
			r = &s.st.Records[len(s.st.Records)-1]
		}
		if len(r.Wrote) == 0 {
			r.Wanted = floor
		}
	}
	s.st.record(wish.Kind, wish.Name).Floor = floor
	return st
}

// twin: the network configuration made the route once more, beside the one that
// carries what accel set. They are to be one again, or the network's own
// removal of its route would take only one of them.
func (s *session) twin(w Setting) bool {
	if w.Kind != KindRoute {
		return false
	}
	name, _, _ := splitRoute(w.Name)
	r := findRoute(s.routes, name)
	return r != nil && r.Twin
}

// elsewhere is what the other files of sysctl.d set a key to at boot; "" where
// none does. Accel's file is read last, so it must not ask for less.
func (s *session) elsewhere(k sysctl.Key) string {
	if s.boot == nil {
		c, err := sysctl.ReadConfig(s.h.Root, sysctl.Systemd)
		if err != nil {
			return "" // the boot reads none of it either
		}
		s.boot = c.Without(SysctlFile)
	}
	a, _ := s.boot.Lookup(k)
	return a.Value
}

// retire ends the wishes of the records that are not to be kept, and makes the
// steps that put their originals back.
func (s *session) retire(keep []string) []Step {
	var steps []Step
	for i := range s.st.Records {
		r := &s.st.Records[i]
		if slices.Contains(keep, r.ID()) || r.Name == string(sysctl.AllowedCongestionControl) {
			continue
		}
		r.Wanted, r.Floor = "", ""
		t := findTree(s.trees, r.Name)
		if r.Kind == KindQdisc && (t == nil || !t.KernelMade() && !t.Leftover()) {
			continue // not there now, or somebody's: the original is kept for later
		}
		cur, err := s.current(Setting{Kind: r.Kind, Name: r.Name})
		switch {
		case err != nil:
		case (s.st.ours(r, cur) || s.leftover(r)) && !sysctl.Equal(cur, r.Original):
			steps = append(steps, Step{Setting: r.ID(), Current: &cur, Wanted: r.Original, Action: Restore, Why: text.T("no longer wished for")})
			if r.Kind == KindQdisc {
				s.borrow(cur, r.Original)
			}
		default:
			r.Wrote = nil // the original, or somebody else's by now
		}
	}
	return steps
}

// intend puts the original, once, and the value that is about to be written
// into the becoming state.
func (s *session) intend(w Setting, current, original string) {
	r := s.st.record(w.Kind, w.Name)
	if r == nil {
		s.st.Records = append(s.st.Records, Record{Kind: w.Kind, Name: w.Name, Original: original})
		r = &s.st.Records[len(s.st.Records)-1]
	}
	if w.Kind == KindSysctl && r.Wanted == "" && len(r.Wrote) == 0 {
		r.Original = current // it was somebody else's by now
	}
	r.Wanted = w.Want
	r.wrote(w.Want)
	if w.Kind != KindQdisc {
		if w.Name == string(sysctl.DefaultQdisc) && !slices.Contains(s.st.Defaults, w.Want) {
			s.st.Defaults = append(s.st.Defaults, w.Want)
		}
		return
	}
	s.borrow(w.Want, current, r.Original)
}

// borrow: the default qdisc may take these values for a moment.
func (s *session) borrow(kinds ...string) {
	if d := s.st.record(KindSysctl, string(sysctl.DefaultQdisc)); d != nil {
		for _, k := range kinds {
			d.wrote(k)
		}
	}
}

// adoptLeftovers makes a record for every link on which an interrupted rebuild
// left its placeholder, so that it is put back if nobody wants anything else.
func (s *session) adoptLeftovers(keep []string) {
	def := s.st.record(KindSysctl, string(sysctl.DefaultQdisc))
	for _, t := range s.trees {
		if def != nil && t.Leftover() && !slices.Contains(keep, settingID(KindQdisc, t.Link)) && s.st.record(KindQdisc, t.Link) == nil {
			s.st.Records = append(s.st.Records, Record{Kind: KindQdisc, Name: t.Link, Original: def.Original})
		}
	}
}

// leftover: an interrupted rebuild left its placeholder on the record's link.
func (s *session) leftover(r *Record) bool {
	t := findTree(s.trees, r.Name)
	return r.Kind == KindQdisc && t != nil && t.Leftover()
}

// seeLinks keeps the originals of the links that are not asked for, too: they
// get accel's default qdisc when they come up again.
func (s *session) seeLinks() {
	for _, l := range s.facts.Links {
		t := findTree(s.trees, l.Name)
		if unsuitable(l, t) == "" && t.KernelMade() && s.st.record(KindQdisc, l.Name) == nil {
			s.st.Records = append(s.st.Records, Record{Kind: KindQdisc, Name: l.Name, Original: t.DefaultKind()})
		}
	}
}

func (r *Record) wrote(v string) {
	if !slices.Contains(r.Wrote, v) {
		r.Wrote = append(r.Wrote, v)
	}
}

// intendAllowed keeps the list of algorithms that unprivileged programs may
// choose: the kernel adds every algorithm that becomes the default.
func (s *session) intendAllowed(algorithm string) {
	key := string(sysctl.AllowedCongestionControl)
	if s.st.record(KindSysctl, key) == nil {
		cur, err := s.h.Sysctl.Read(sysctl.AllowedCongestionControl)
		if err != nil {
			return
		}
		s.st.Records = append(s.st.Records, Record{Kind: KindSysctl, Name: key, Original: cur})
	}
	s.st.record(KindSysctl, key).wrote(algorithm)
}

// current reads the live value of a setting.
func (s *session) current(w Setting) (string, error) {
	switch w.Kind {
	case KindSysctl:
		v, err := s.h.Sysctl.Read(sysctl.Key(w.Name))
		return strings.Join(strings.Fields(v), " "), err // the kernel has tabs between numbers
	case KindRoute:
		name, m, _ := splitRoute(w.Name)
		r := findRoute(s.routes, name)
		if r == nil {
			return "", route.ErrNoRoute
		}
		return strconv.Itoa(r.Value(m)), nil
	case KindQdisc:
		t := findTree(s.trees, w.Name)
		if t == nil {
			return "", fmt.Errorf("%s: %w", w.Name, qdisc.ErrNoLink)
		}
		if t.Leftover() {
			return t.Root.Kind, nil
		}
		return t.DefaultKind(), nil
	default:
		for _, a := range slices.Concat(s.facts.Algorithms, s.facts.Qdiscs) {
			if a.Module == w.Name && (a.Available || a.Origin == kernel.Loaded || a.Origin == kernel.Builtin) {
				return loaded, nil
			}
		}
		return text.T("not loaded"), nil
	}
}

// mixed: the link got more queues since its tree was built. The kernel gave the
// new ones pfifo_fast, whatever the default qdisc.
func (s *session) mixed(w Setting) bool {
	t := findTree(s.trees, w.Name)
	return w.Kind == KindQdisc && t != nil && t.KernelMade() && t.Kind() != t.DefaultKind()
}

// unreadable fails where a required setting cannot even be read.
func unreadable(steps []Step) error {
	for _, st := range steps {
		if st.Action == Skip && st.Required {
			return problem(ExitImpossible, errors.New(st.Reason), text.T("%s cannot be set to %s", st.Setting, st.Wanted), text.T("accel status says what this host is."))
		}
	}
	return nil
}
