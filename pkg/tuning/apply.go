package tuning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strconv"

	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// resultSchema names the layout of Result.
const resultSchema = "accel.result/1"

// ErrInterrupted is returned by Heal where a command was interrupted: which
// way to go on is the operator's choice.
var ErrInterrupted = errors.New("an earlier command was interrupted")

// ErrNotEnabled is returned by Heal where nothing is enabled.
var ErrNotEnabled = errors.New("nothing is enabled")

// Enable makes the host send as the request says, now and at every boot, and
// checks it. The host is either as wished afterwards or as it was before; the
// exceptions are optional settings, which are named in the notes.
// The error is a *Problem.
func Enable(ctx context.Context, h *Host, req Request) (*Result, error) {
	wish, err := req.wish()
	if err != nil {
		return nil, err
	}
	unlock := func() {}
	if !req.DryRun {
		if unlock, err = h.Lock(ctx); err != nil {
			return nil, lockProblem(err)
		}
	}
	res, err := enable(ctx, h, wish, req.DryRun)
	unlock() // before the service starts: the agent takes the lock, too
	if err != nil || req.DryRun {
		return res, err
	}
	startService(ctx, h, res)
	res.Status, err = Assess(ctx, h)
	return res, err
}

func lockProblem(err error) error {
	next := text.T("Wait until it is done and try again.")
	if errors.Is(err, fs.ErrPermission) {
		next = text.T("Run accel as root.")
	}
	return problem(ExitFailed, err, text.T("nothing was changed"), next)
}

// session is one command at work on a host.
type session struct {
	ctx   context.Context
	h     *Host
	facts *kernel.Facts
	trees []qdisc.Tree
	// routes are the default routes; routesErr says why they are not known.
	routes    []route.Route
	routesErr error
	boot      *sysctl.Config // sysctl.d without accel's file, once it was read
	old       *State         // as found; nil: nothing
	st        *State         // as it is becoming
	undo      []func() error
	// before is what the generated files held when the command began.
	before map[string][]byte
}

// begin reads the state and the facts.
func begin(ctx context.Context, h *Host) (*session, error) {
	old, err := loadState(h.Files)
	if err != nil {
		return nil, err
	}
	f, err := h.Detect()
	if err != nil {
		return nil, problem(ExitFailed, err, text.T("looking at this host"), text.T("Mend the cause and try again."))
	}
	s := &session{ctx: ctx, h: h, facts: f, old: old}
	if err := s.readTrees(); err != nil && f.DefaultQdisc != nil {
		return nil, problem(ExitFailed, err, text.T("reading the qdiscs"), text.T("Mend the cause and try again."))
	}
	s.readRoutes()
	return s, nil
}

func (s *session) readTrees() (err error) {
	s.trees, err = s.h.Qdiscs.Trees()
	return err
}

// readRoutes reads the default routes. They are never required, so not to know
// them is no failure.
func (s *session) readRoutes() {
	s.routes, s.routesErr = s.h.Routes.Defaults()
	ownTwins(s.routes, cmp.Or(s.st, s.old))
}

// adoptTwins: where the network configuration made a route once more, what that
// one has is what will be put back.
func (s *session) adoptTwins() {
	for i := range s.st.Records {
		r := &s.st.Records[i]
		name, m, ok := splitRoute(r.Name)
		if r.Kind != KindRoute || !ok {
			continue
		}
		if x := findRoute(s.routes, name); x != nil && x.Twin && x.Special == "" {
			r.Original = strconv.Itoa(x.Behind[m])
		}
	}
}

// ownTwins makes those twins an ordinary case of a shared metric of which none
// carries what accel set: they are somebody's, and putting two routes back
// where one was made of them would not be exact.
func ownTwins(routes []route.Route, st *State) {
	for i := range routes {
		r := &routes[i]
		if !r.Twin || r.Special != "" {
			continue
		}
		ours := st != nil && slices.ContainsFunc(st.Records, func(x Record) bool {
			name, m, ok := splitRoute(x.Name)
			return x.Kind == KindRoute && ok && name == r.Name() && x.ours(strconv.Itoa(r.Value(m)))
		})
		if !ours {
			r.Special = route.SharedMetric
		}
	}
}

func enable(ctx context.Context, h *Host, wish Enabled, dryRun bool) (*Result, error) {
	s, err := begin(ctx, h)
	if err != nil {
		return nil, err
	}
	if err := checkLinks(s.facts, wish.Links); err != nil {
		return nil, err
	}
	w, err := profiles[wish.Profile](s.view(), wish)
	if err != nil {
		return nil, err
	}
	if k := wish.AskedFor; k != "" && s.facts.DefaultQdisc != nil && s.facts.ModuleIndex && s.facts.Qdisc(k).Origin == kernel.Absent {
		return nil, problem(ExitImpossible, nil, text.T("this kernel has no qdisc %s", k), text.T("Choose one of: %s.", join(qdiscNames(s.facts))))
	}
	if s.before, err = generated(h.Files); err != nil {
		return nil, err
	}

	s.st = &State{Version: stateVersion}
	if s.old != nil {
		s.st = s.old.clone()
	}
	s.st.Refused = nil
	s.st.Enabled = &wish
	steps := s.plan(w.Settings, nil)
	if err := unreadable(steps); err != nil {
		return nil, err
	}
	wish.Since = h.Now().UTC()
	if s.old != nil && sameWish(*s.old.Enabled, wish) {
		wish.Since = s.old.Enabled.Since
	}
	res := &Result{Schema: resultSchema, Command: "enable", DryRun: dryRun, Steps: steps, Notes: w.Notes, Left: []Left{}, Enabled: &wish}
	for _, l := range w.Left {
		if l.ConfiguredBySomeone && l.Reason != "" {
			res.Notes = append(res.Notes, text.T("%s is left alone: %s", l.Name, l.Reason))
		}
	}
	s.noteModules(w.Settings)
	noteDirs(h.Files, s.st)
	wish.Qdisc = wantedQdisc(s.st)
	if dryRun {
		for _, name := range differ(s.before, persisted(s.st)) {
			res.Steps = append(res.Steps, fileStep(name, s.before[name], s.st))
		}
		res.Changed = s.old == nil || slices.ContainsFunc(res.Steps, func(st Step) bool { return st.Action == Set || st.Action == Restore })
		return res, nil
	}
	if s.settled(steps) {
		return res, nil
	}

	s.st.Phase = Enabling
	if err := saveState(h.Files, s.st); err != nil {
		s.forget() // it is only there if the very last sync failed
		return nil, err
	}
	if err := s.apply(res, w.Settings, true); err != nil {
		return nil, s.rollBack(err)
	}
	files, err := writeFiles(h.Files, s.st)
	if err != nil {
		return nil, s.rollBack(err)
	}
	for _, name := range files {
		st := fileStep(name, s.before[name], s.st)
		st.Changed = true
		res.Steps = append(res.Steps, st)
	}
	wish.Qdisc = wantedQdisc(s.st)
	s.settle(s.st)
	if err := saveState(h.Files, s.st); err != nil {
		return nil, s.rollBack(err)
	}
	res.Changed = anyChanged(res.Steps) || !reflect.DeepEqual(s.st, s.old)
	return res, nil
}

func anyChanged(steps []Step) bool {
	return slices.ContainsFunc(steps, func(st Step) bool { return st.Changed })
}

func sameWish(a, b Enabled) bool {
	return a.Algorithm == b.Algorithm && a.Profile == b.Profile && a.AskedFor == b.AskedFor && slices.Equal(a.Links, b.Links)
}

func wantedQdisc(st *State) string {
	if r := st.record(KindSysctl, string(sysctl.DefaultQdisc)); r != nil {
		return r.Wanted
	}
	return ""
}

func (s *session) noteModules(settings []Setting) {
	s.st.Modules = nil
	for _, w := range settings {
		if w.Kind == KindModule && !slices.Contains(s.st.Modules, w.Name) {
			s.st.Modules = append(s.st.Modules, w.Name)
		}
	}
}

// settled: the host and the disk are as wished, and nothing is left to do.
func (s *session) settled(steps []Step) bool {
	if s.old == nil || s.old.Phase != Settled || slices.ContainsFunc(steps, func(st Step) bool { return st.Action == Set || st.Action == Restore }) {
		return false
	}
	if len(differ(s.before, persisted(s.st))) > 0 {
		return false
	}
	next := s.st.clone()
	s.settle(next)
	next.Enabled.Qdisc = wantedQdisc(next)
	return reflect.DeepEqual(next, s.old.clone())
}

// apply acts on every Set and Restore step. With strict a required one that
// fails ends it; otherwise, and for optional ones, the step says what failed
// and the rest goes on.
func (s *session) apply(res *Result, settings []Setting, strict bool) error {
	for i := range res.Steps {
		st := &res.Steps[i]
		if st.Action != Set && st.Action != Restore {
			continue
		}
		if strict && s.ctx.Err() != nil {
			return problem(ExitFailed, s.ctx.Err(), text.T("interrupted"), text.T("Run it again."))
		}
		w := Setting{Want: st.Wanted}
		if st.Action == Set {
			w = settings[i]
		} else if r := s.recordByID(st.Setting); r != nil {
			w.Kind, w.Name = r.Kind, r.Name
		}
		err := s.set(w, *st.Current)
		switch {
		case err == nil:
			st.Changed = true
			if st.Action == Restore {
				s.st.record(w.Kind, w.Name).Wrote = nil
			}
		case st.Required && strict:
			return cannotSet(s.facts, st, err)
		default:
			s.refuse(w, st, err)
			res.Notes = append(res.Notes, text.T("%s stays %s: %s", st.Setting, *st.Current, err))
			if w.Kind == KindSysctl && w.Name == string(sysctl.DefaultQdisc) && st.Action == Skip {
				res.Notes = append(res.Notes, noQdisc(w.Want, s.st.Enabled.Algorithm))
				s.skipLinks(res.Steps[i+1:], settings[i+1:], st.Reason)
			}
		}
	}
	return nil
}

// skipLinks refuses the links' qdiscs where the kernel refused the kind.
func (s *session) skipLinks(steps []Step, settings []Setting, reason string) {
	for i, w := range settings {
		if w.Kind == KindQdisc && steps[i].Action == Set {
			s.refuse(w, &steps[i], errors.New(reason))
		}
	}
}

func (s *session) recordByID(id string) *Record {
	for i := range s.st.Records {
		if s.st.Records[i].ID() == id {
			return &s.st.Records[i]
		}
	}
	return nil
}

// refuse takes a wish that the host did not grant out of the becoming state.
func (s *session) refuse(w Setting, st *Step, err error) {
	failed := *st
	st.Action, st.Reason = Skip, err.Error()
	if failed.Action == Restore {
		return // the record keeps the original; the next command tries again
	}
	if s.old != nil {
		if before := s.old.record(w.Kind, w.Name); before != nil && before.Wanted == w.Want {
			return // it was had before: a passing failure, and the wish stays
		}
	}
	s.st.Refused = append(s.st.Refused, Refusal{Kind: w.Kind, Name: w.Name, Wanted: w.Want, Reason: err.Error()})
	if w.Kind == KindModule {
		s.st.Modules = slices.DeleteFunc(s.st.Modules, func(m string) bool { return m == w.Name })
		return
	}
	if s.old != nil {
		if before := s.old.record(w.Kind, w.Name); before != nil {
			*s.st.record(w.Kind, w.Name) = *before
			return
		}
	}
	if w.Kind == KindQdisc {
		r := s.st.record(w.Kind, w.Name)
		r.Wanted, r.Wrote = "", nil
		return
	}
	s.st.Records = slices.DeleteFunc(s.st.Records, func(r Record) bool { return r.Kind == w.Kind && r.Name == w.Name })
}

// set changes one setting of the host and remembers how to take it back.
func (s *session) set(w Setting, current string) error {
	switch w.Kind {
	case KindSysctl:
		key := sysctl.Key(w.Name)
		allowed, aerr := s.h.Sysctl.Read(sysctl.AllowedCongestionControl)
		if err := s.h.Sysctl.Write(key, w.Want); err != nil {
			return err
		}
		s.undo = append(s.undo, func() error {
			err := s.h.Sysctl.Write(key, current)
			if key == sysctl.CongestionControl && s.st.record(KindSysctl, string(sysctl.AllowedCongestionControl)) != nil && aerr == nil {
				// The kernel widened the list when the default changed.
				err = errors.Join(err, s.h.Sysctl.Write(sysctl.AllowedCongestionControl, allowed))
			}
			return err
		})
	case KindQdisc:
		if err := s.rebuild(w.Name, w.Want); err != nil {
			return errors.Join(err, s.rebuild(w.Name, current))
		}
		s.undo = append(s.undo, func() error { return s.rebuild(w.Name, current) })
	case KindRoute:
		if err := s.setRoute(w.Name, w.Want); err != nil {
			return err
		}
		s.undo = append(s.undo, func() error {
			if err := s.setRoute(w.Name, current); !errors.Is(err, route.ErrNoRoute) {
				return err
			}
			return nil // the route is gone, and what was set went with it
		})
	default:
		return s.h.Modules.Load(s.ctx, w.Name)
	}
	return nil
}

func (s *session) setRoute(setting, value string) error {
	name, m, ok := splitRoute(setting)
	n, err := strconv.Atoi(value)
	if !ok || err != nil {
		return fmt.Errorf("%s = %q: %w", setting, value, route.ErrMetric)
	}
	return s.h.Routes.Set(name, m, n)
}

// rebuild makes the kernel give a link a tree of the kind: the default qdisc
// is that kind for the moment, and what it was before afterwards.
func (s *session) rebuild(link, kind string) (err error) {
	before, err := s.h.Sysctl.Read(sysctl.DefaultQdisc)
	if err != nil {
		return err
	}
	if before != kind {
		if err := s.h.Sysctl.Write(sysctl.DefaultQdisc, kind); err != nil {
			return err
		}
		defer func() {
			if werr := s.h.Sysctl.Write(sysctl.DefaultQdisc, before); werr != nil {
				err = errors.Join(err, werr)
			}
		}()
	}
	if err := s.h.Qdiscs.Rebuild(link); err != nil {
		return err
	}
	trees, err := s.h.Qdiscs.Trees()
	if err != nil {
		return err
	}
	s.trees = trees
	if t := findTree(trees, link); t == nil || t.Kind() != kind {
		return fmt.Errorf("qdisc of %s: asked for %s, the kernel made something else", link, kind)
	}
	return nil
}

// rollBack takes everything of this command back after a failure.
func (s *session) rollBack(cause error) error {
	var errs []error
	for _, u := range slices.Backward(s.undo) {
		if err := u(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = append(errs, s.filesBack(), s.forget())
	}
	err := errors.Join(errs...)
	if err == nil {
		return cause
	}
	return problem(ExitFailed, errors.Join(cause, err), text.T("undoing the change was not possible in full"),
		text.T("The original values are kept. Mend the cause, then run: accel disable"))
}

// filesBack makes the generated files what they were before this command.
func (s *session) filesBack() error {
	made := slices.DeleteFunc(slices.Clone(s.st.Dirs), func(d string) bool { return s.old != nil && slices.Contains(s.old.Dirs, d) })
	return putFiles(s.h.Files, s.before, made)
}

// forget puts the state of before this command back.
func (s *session) forget() error {
	if s.old == nil {
		return s.h.Files.Remove(StateFile)
	}
	return saveState(s.h.Files, s.old)
}

// cannotSet is the error of a required setting that the kernel did not take.
func cannotSet(f *kernel.Facts, st *Step, err error) error {
	next := text.T("accel status says what this host is.")
	switch {
	case errors.Is(err, sysctl.ErrReadOnly):
		next = text.T("/proc/sys is read-only here: in a container the owner of the host must set it; in a service, ProtectKernelTunables= must be off.")
	case errors.Is(err, sysctl.ErrPermission) && f.UID != 0:
		return problem(ExitFailed, err, text.T("%s cannot be set to %s", st.Setting, st.Wanted), text.T("Run accel as root."))
	case errors.Is(err, sysctl.ErrPermission), errors.Is(err, sysctl.ErrNamespace):
		next = text.T("The capability CAP_NET_ADMIN over this network namespace is missing, or the host does not allow this value here: the owner of the host must grant it.")
	case errors.Is(err, sysctl.ErrMissing):
		next = ownerOfKernel(f)
	case errors.Is(err, sysctl.ErrValue):
		next = moreModules(f)
	}
	return problem(ExitImpossible, err, text.T("%s cannot be set to %s", st.Setting, st.Wanted), next)
}

// settle ends a command that went well: it forgets the values that were only
// on the way, and the records of wishes that are gone and put back.
func (s *session) settle(st *State) {
	st.Phase = Settled
	allowed := string(sysctl.AllowedCongestionControl)
	st.Records = slices.DeleteFunc(st.Records, func(r Record) bool {
		return r.Wanted == "" && len(r.Wrote) == 0 && r.Name != allowed && r.Kind != KindQdisc
	})
	for i := range st.Records {
		r := &st.Records[i]
		if r.Wanted == "" || len(r.Wrote) == 0 {
			continue
		}
		on := r.Wrote
		r.Wrote = []string{r.Wanted}
		if len(on) < 2 || r.Kind != KindSysctl {
			continue
		}
		// A default qdisc that was borrowed and could not be given back is
		// still ours.
		live, err := s.h.Sysctl.Read(sysctl.Key(r.Name))
		if err == nil && !sysctl.Equal(live, r.Wanted) && slices.Contains(on, live) {
			r.wrote(live)
		}
	}
}

// startService lets the service re-apply from now on. It is optional: without
// it sysctl.d still applies at boot.
func startService(ctx context.Context, h *Host, res *Result) {
	if h.Service == nil {
		return
	}
	state, err := h.Service.State(ctx)
	if err == nil && state.Enabled && state.Active && !res.Changed && !gaveUp(h.Files) {
		return
	}
	if err == nil && !state.Installed {
		err = fs.ErrNotExist
	}
	if err == nil {
		err = h.Service.Enable(ctx)
	}
	switch {
	case err == nil:
		res.Changed = res.Changed || !state.Enabled || !state.Active
	case errors.Is(err, ErrNoManager):
		res.Notes = append(res.Notes, text.T("systemd is not running here: nothing re-applies the settings beyond what reads %s at boot", SysctlFile))
	case errors.Is(err, fs.ErrNotExist):
		res.Notes = append(res.Notes, text.T("the service is not installed: nothing re-applies the settings beyond what reads %s at boot", SysctlFile))
	default:
		res.Notes = append(res.Notes, text.T("the service could not be started: %s", err))
	}
}
