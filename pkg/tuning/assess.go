package tuning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// StatusSchema names the layout of Status; DetectSchema that of its projection
// without enabled, service and drift.
const (
	StatusSchema = "accel.status/1"
	DetectSchema = "accel.detect/1"
)

// Assess judges a host. It changes nothing, works without root and with any
// file missing: what cannot be known is null and, where it matters, a note.
// The error is of the host as a whole, such as a recorded tree that cannot be
// opened.
func Assess(ctx context.Context, h *Host) (*Status, error) {
	f, err := h.Detect()
	if err != nil {
		return nil, problem(ExitFailed, err, text.T("looking at this host"), text.T("Mend the cause and try again."))
	}
	a := &assessment{ctx: ctx, h: h, f: f, s: &Status{
		Schema: StatusSchema, Settings: []StatusSetting{}, Boot: []BootValue{}, Drift: []Drift{}, Notes: []string{},
		Kernel: StatusKernel{
			Release: f.Release.Raw, Major: f.Release.Major, Minor: f.Release.Minor, Patch: f.Release.Patch,
			Flavour: f.Release.Flavour, Distribution: f.Distribution.Name,
		},
		Virtualization: StatusVirtualization(f.Virtualization),
	}}
	a.st, a.stateErr = loadState(h.Files)
	if a.st != nil {
		a.s.Enabled = a.st.Enabled
	}
	a.algorithm()
	a.qdiscs()
	a.routes()
	a.boot()
	a.service()
	a.drift()
	a.settings()
	a.judge()
	a.notes()
	return a.s, nil
}

// assessment is one Assess at work.
type assessment struct {
	ctx      context.Context
	h        *Host
	f        *kernel.Facts
	st       *State
	stateErr error
	s        *Status
	systemd  *sysctl.Config
	socket   error // why no connection to ourselves could be made
	// routeList are the default routes.
	routeList []route.Route
}

func (a *assessment) note(s string) { a.s.Notes = append(a.s.Notes, s) }

// wanted is the algorithm that the status speaks of.
func (a *assessment) wanted() string {
	if a.st != nil {
		return a.st.Enabled.Algorithm
	}
	return DefaultAlgorithm
}

func (a *assessment) algorithm() {
	f, s := a.f, &a.s.Algorithm
	s.Name = a.wanted()
	if f.DefaultAlgorithm != "" {
		s.Default = &f.DefaultAlgorithm
	}
	s.Available, s.Loadable, s.Modules = []string{}, []string{}, []string{}
	for _, x := range f.Algorithms {
		switch {
		case x.Available:
			s.Available = append(s.Available, x.Name)
		case x.Origin == kernel.Loadable && x.Blocked == "":
			s.Loadable = append(s.Loadable, x.Name)
		}
	}
	alg := f.Algorithm(s.Name)
	s.Origin = alg.Origin
	for _, m := range f.Modules {
		if isOurModule(m.Name, alg) {
			s.Modules = append(s.Modules, m.Raw)
		}
	}
	a.connections()
	if f.BBRVersion != 0 && isBBR(s.Name) {
		s.BBRVersion = &f.BBRVersion
	}
	if a.h.Recorded {
		return
	}
	ctx, cancel := context.WithTimeout(a.ctx, 3*time.Second)
	defer cancel()
	ev, err := a.h.Sockets.SelfConnect(ctx)
	if err != nil {
		a.socket = err
	} else {
		s.Evidence = &ev
		s.Socket = &ev.Server
		if ev.Client != ev.Server {
			both := ev.Client + "/" + ev.Server
			s.Socket = &both
		}
	}
	if s.BBRVersion != nil || !isBBR(s.Name) {
		return
	}
	// Asking a socket of ours never loads a module: the algorithm is there.
	if ev.BBRVersion == 0 && alg.Available {
		ev.BBRVersion, _ = a.h.Sockets.BBRVersionOf(s.Name)
	}
	if ev.BBRVersion != 0 {
		s.BBRVersion = &ev.BBRVersion
	}
}

// isOurModule: a line that people look for in lsmod.
func isOurModule(name string, alg kernel.Algorithm) bool {
	return name == alg.Module || name == "tcp_"+alg.Name || name == "sch_fq" || strings.HasPrefix(name, "tcp_bbr")
}

func (a *assessment) connections() {
	c, err := a.h.Sockets.Connections()
	if err == nil {
		a.s.Connections = c
	}
}

func (a *assessment) qdiscs() {
	f, s := a.f, &a.s.Qdisc
	s.Default, s.Available, s.Links = f.DefaultQdisc, []string{}, []StatusLink{}
	for _, q := range f.Qdiscs {
		// Only what enable --qdisc takes: a kernel has thirty others.
		if slices.Contains(defaultQdiscs, q.Name) && (q.Available || q.Origin == kernel.Loadable && q.Blocked == "") {
			s.Available = append(s.Available, q.Name)
		}
	}
	trees, err := a.h.Qdiscs.Trees()
	if err != nil && !a.h.Recorded {
		a.note(text.T("the qdiscs of the links could not be read: %s", err))
	}
	for _, l := range f.Links {
		s.Links = append(s.Links, linkStatus(l.Name, trees, a.unmanaged(l, unsuitable(l, findTree(trees, l.Name)))))
	}
}

// unmanaged completes the reason why a link is not managed now.
func (a *assessment) unmanaged(l kernel.Link, reason string) string {
	switch {
	case reason != "":
		return reason
	case a.st == nil:
		return text.T("managed once something is enabled")
	case a.f.DefaultQdisc == nil:
		return text.T("the qdisc belongs to the host")
	case wantedQdisc(a.st) == "":
		return text.T("accel sets no qdisc here")
	case len(a.st.Enabled.Links) > 0 && !slices.Contains(a.st.Enabled.Links, l.Name):
		return text.T("not among the links asked for")
	}
	return a.st.refused(Setting{Kind: KindQdisc, Name: l.Name, Want: wantedQdisc(a.st)})
}

func (a *assessment) routes() {
	r, err := a.h.Routes.Defaults()
	if err != nil {
		if !a.h.Recorded {
			a.note(text.T("the default routes could not be read: %s", err))
		}
		return
	}
	ownTwins(r, a.st)
	a.routeList = r
	a.s.Routes = []StatusRoute{}
	for _, x := range r {
		s := StatusRoute{Route: x, Reason: unsuitableRoute(a.f, x)}
		if s.Reason == "" && (a.st == nil || !UsesRoutes(a.st.Enabled.Profile)) {
			s.Reason = text.T("the profile sets no metrics of routes")
			if a.st == nil {
				s.Reason = text.T("managed once a profile is enabled that sets metrics of routes")
			}
		}
		s.Managed = s.Reason == ""
		a.s.Routes = append(a.s.Routes, s)
	}
}

// settings compares what the enabled profile sets beside the algorithm and the
// qdisc with the host.
func (a *assessment) settings() {
	if a.st == nil {
		return
	}
	trees, _ := a.h.Qdiscs.Trees() // only the links need them
	profile, ok := profiles[a.st.Enabled.Profile]
	if !ok {
		return
	}
	w, err := profile(View{a.f, trees, a.routeList}, *a.st.Enabled)
	if err != nil {
		return // the verdict tells
	}
	s := &session{h: a.h, facts: a.f, st: a.st, routes: a.routeList}
	for _, x := range w.Settings {
		if x.Kind != KindRoute && x.Kind != KindSysctl || slices.Contains(bootKeys, sysctl.Key(x.Name)) {
			continue
		}
		out := StatusSetting{Setting: x.ID(), Wanted: x.Want, AtLeast: x.Floor, Why: x.Why}
		r := a.st.record(x.Kind, x.Name)
		cur, err := s.current(x)
		if err == nil {
			out.Live = &cur
		}
		switch {
		case errors.Is(err, sysctl.ErrMissing):
			out.State = StateAbsent
		case a.st.refused(x) != "":
			out.State = StateRefused
		case err != nil, !(Record{Wanted: x.Want, Floor: floorOf(x)}).had(cur):
			out.State = StateDrifted
			drifted := func(d Drift) bool { return d.Setting == x.ID() }
			if err == nil && !slices.ContainsFunc(a.s.Drift, drifted) {
				a.s.Drift = append(a.s.Drift, Drift{Setting: x.ID(), Wanted: x.Want, Live: cur})
			}
		case r == nil, len(r.Wrote) == 0, !x.Floor && sysctl.Equal(r.Original, cur):
			out.State = StateKept
		case r.ours(cur):
			out.State = StateSet
		default:
			out.State = StateForeign
		}
		a.s.Settings = append(a.s.Settings, out)
	}
}

func floorOf(w Setting) string {
	if w.Floor {
		return w.Want
	}
	return ""
}

// bootKeys are the keys whose next boot is foretold.
var bootKeys = []sysctl.Key{sysctl.CongestionControl, sysctl.DefaultQdisc}

// bootKeys are those, and what else accel has written.
func (a *assessment) bootKeys() []sysctl.Key {
	keys := slices.Clone(bootKeys)
	if a.st == nil {
		return keys
	}
	for _, r := range a.st.Records {
		if k := sysctl.Key(r.Name); r.Kind == KindSysctl && r.Wanted != "" && len(r.Wrote) > 0 && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (a *assessment) boot() {
	for _, o := range []struct {
		order sysctl.Order
		name  string
	}{{sysctl.Systemd, "systemd"}, {sysctl.Procps, "procps"}} {
		c, err := sysctl.ReadConfig(a.h.Root, o.order)
		if err != nil {
			a.note(text.T("sysctl.d could not be read: %s", err))
			continue
		}
		if o.order == sysctl.Systemd {
			a.systemd = c
		}
		for _, k := range a.bootKeys() {
			if as, ok := c.Lookup(k); ok {
				a.s.Boot = append(a.s.Boot, BootValue{Key: k.String(), Value: sysctl.Printable(as.Value), File: as.File, Line: as.Line, Order: o.name})
			}
		}
	}
}

// service asks the service manager; of a recorded host nothing is known.
func (a *assessment) service() {
	if a.h.Recorded || a.h.Service == nil {
		return
	}
	ctx, cancel := context.WithTimeout(a.ctx, 5*time.Second)
	defer cancel()
	st, err := a.h.Service.State(ctx)
	if err != nil {
		if errors.Is(err, ErrNoManager) {
			st.Note = text.T("systemd is not running here")
		} else {
			st.Note = err.Error()
		}
	}
	a.s.Service = &st
}

func (a *assessment) drift() {
	if a.st == nil {
		return
	}
	d, err := drifts(a.h, a.st, false)
	if err != nil {
		a.note(err.Error())
	}
	a.s.Drift = append(a.s.Drift, d...)
	// Links that should have the qdisc and are not in the state yet.
	for _, l := range a.s.Qdisc.Links {
		unknown := a.st.record(KindQdisc, l.Name) == nil
		if unknown && (l.Managed && l.Kind != wantedQdisc(a.st) || l.placeholder) {
			a.s.Drift = append(a.s.Drift, Drift{Setting: settingID(KindQdisc, l.Name), Wanted: wantedQdisc(a.st), Live: l.Kind})
		}
	}
	a.s.Drift = append(a.s.Drift, a.bootDrift()...)
}

// bootDrift are keys that the next boot will set to something else, with no
// service to put them right.
func (a *assessment) bootDrift() []Drift {
	if a.h.Recorded || !a.f.Systemd || a.s.Service == nil || a.s.Service.Enabled {
		return nil
	}
	var out []Drift
	for _, b := range a.s.Boot {
		k, err := sysctl.ParseKey(b.Key)
		if b.Order != "systemd" || err != nil {
			continue
		}
		if r := a.st.record(KindSysctl, string(k)); r != nil && r.Wanted != "" && !r.had(b.Value) {
			out = append(out, Drift{Setting: text.T("next boot: %s", b.Key), Wanted: r.Wanted, Live: fmt.Sprintf("%s (%s:%d)", b.Value, b.File, b.Line)})
		}
	}
	return out
}

// judge reaches the verdict. The order is from what explains the most to what
// explains the least.
func (a *assessment) judge() {
	s := a.s
	set := func(v Verdict, reason, next string) {
		s.Verdict, s.Exit, s.Reason, s.Next = v, v.Exit(), reason, next
	}
	alg := a.wanted()
	switch {
	case a.stateErr != nil && !errors.Is(a.stateErr, fs.ErrPermission):
		var p *Problem
		next := ""
		if errors.As(a.stateErr, &p) {
			next = p.Next
		}
		set(Drifted, a.stateErr.Error(), next)
	case a.st == nil && a.h.Recorded && a.f.Release.Raw == "" && a.f.DefaultAlgorithm == "":
		// A mounted image, say: no kernel ever ran below it.
		set(NotEnabled, text.T("accel has nothing enabled; the tree holds nothing of a running kernel, so what can be had is not known"), "")
	case a.st == nil && nothingPossible(a.f):
		reason, next := text.T("no other algorithm can be had on this host"), ownerOfKernel(a.f)
		var p *Problem
		if err := possible(a.f, DefaultAlgorithm); errors.As(err, &p) {
			reason, next = p.Error(), p.Next
		}
		set(Unsupported, reason, next)
	case a.st == nil:
		reason := text.T("accel has nothing enabled; new connections use %s", a.f.DefaultAlgorithm)
		next := text.T("To enable: accel enable %s", DefaultAlgorithm)
		var p *Problem
		if err := possible(a.f, DefaultAlgorithm); errors.As(err, &p) {
			reason, next = reason+"; "+p.Error(), p.Next
		}
		set(NotEnabled, reason, next)
	case a.st.Phase == Enabling:
		set(Drifted, text.T("an enable was interrupted before it was done"), interruptedNext(a.st))
	case a.st.Phase == Disabling:
		set(Drifted, text.T("a disable was interrupted, or could not put everything back"), interruptedNext(a.st))
	case len(s.Drift) > 0:
		d := s.Drift[0]
		reason := text.T("%s is %s, not %s", d.Setting, d.Live, d.Wanted)
		if n := len(s.Drift) - 1; n > 0 {
			reason += text.T(" (and %d more)", n)
		}
		next := text.T("To put it right: accel enable %s", alg)
		if r := agentReport(a.h.Files); r != nil && len(r.GaveUp) > 0 && !a.h.Recorded {
			reason = text.T("something keeps setting %s to %s; accel stopped healing it", r.GaveUp[0].Setting, r.GaveUp[0].Live)
			next = text.T("Find and stop what sets it, then: accel enable %s", alg)
		}
		set(Drifted, reason, next)
	default:
		if reason, next := a.notInForce(alg); reason != "" {
			set(NotInForce, reason, next)
			return
		}
		if a.h.Recorded {
			set(Good, text.T("enabled, and the recorded settings are as wanted (a recording cannot show it in force)"), "")
			return
		}
		reason := text.T("%s is in force", alg)
		if q := wantedQdisc(a.st); q != "" && a.managed() > 0 {
			reason = text.T("%s is in force, with %s on %d links", alg, q, a.managed())
			if a.managed() == 1 {
				reason = text.T("%s is in force, with %s on %s", alg, q, a.firstManaged())
			}
		}
		set(Good, reason, "")
	}
}

func (a *assessment) managed() (n int) {
	for _, l := range a.s.Qdisc.Links {
		if l.Managed {
			n++
		}
	}
	return n
}

func (a *assessment) firstManaged() string {
	for _, l := range a.s.Qdisc.Links {
		if l.Managed {
			return l.Name
		}
	}
	return ""
}

// notInForce: the settings are right and yet connections do not get the
// algorithm.
func (a *assessment) notInForce(alg string) (reason, next string) {
	for _, r := range a.s.Routes {
		if r.CongestionControl != "" && r.CongestionControl != alg {
			return text.T("the default route over %s (%s, table %d) carries congctl %s, which beats the sysctl", r.Link, r.Family, r.Table, r.CongestionControl),
				text.T("Take it off the route: ip route change default ... without congctl")
		}
	}
	if a.h.Recorded {
		return "", ""
	}
	if a.socket != nil {
		return text.T("no connection to this host itself could be made, so nothing proves it: %s", a.socket), text.T("See that the loopback link is up and not filtered: ip link set lo up")
	}
	ev := a.s.Algorithm.Evidence
	if ev.Client != alg || ev.Server != alg {
		return text.T("the sysctl says %s, but an established connection has %s at one end and %s at the other", alg, ev.Client, ev.Server),
			text.T("Something chooses the algorithm per connection, such as bpftune or a BPF program: stop it, or make it choose %s.", alg)
	}
	return "", ""
}

// notes adds what a person should know beside the verdict.
func (a *assessment) notes() {
	s := a.s
	enabled := a.st != nil
	if a.stateErr != nil && errors.Is(a.stateErr, fs.ErrPermission) {
		a.note(text.T("%s may not be read, so it is not known what is enabled", StateFile))
	}
	if a.f.DefaultQdisc == nil && a.f.DefaultAlgorithm != "" {
		a.note(text.T("this is not the initial network namespace: only the algorithm can be set here, the qdisc belongs to the host"))
	}
	if enabled {
		for _, r := range a.st.Refused {
			if r.Kind == KindSysctl {
				a.note(text.T("%s could not be set to %s: %s", settingID(r.Kind, r.Name), r.Wanted, r.Reason))
			}
		}
		if wantedQdisc(a.st) == "" && a.f.DefaultQdisc != nil {
			a.note(noQdisc(cmp.Or(a.st.Enabled.AskedFor, "fq"), a.st.Enabled.Algorithm))
		}
		a.bootNotes()
	} else if !slices.Contains(s.Algorithm.Available, DefaultAlgorithm) && slices.Contains(s.Algorithm.Loadable, DefaultAlgorithm) {
		a.note(text.T("%s is not loaded yet; enable loads it", DefaultAlgorithm))
	}
	for _, l := range s.Qdisc.Links {
		if l.ConfiguredBySomeone || strings.Contains(l.Reason, text.T("queueing twice")) {
			a.note(text.T("%s is left alone: %s", l.Name, l.Reason))
		}
	}
	if enabled && s.Service != nil {
		switch {
		case !a.f.Systemd:
			a.note(text.T("systemd is not running here: nothing re-applies the settings beyond what reads %s at boot", SysctlFile))
		case !s.Service.Installed:
			a.note(text.T("the service is not installed: nothing re-applies the settings beyond what reads %s at boot", SysctlFile))
		case !s.Service.Enabled || !s.Service.Active && s.Service.Note == "":
			a.note(text.T("the service is not running, so nothing heals the settings; to turn it on: accel enable %s", a.wanted()))
		}
	}
	if enabled {
		switch n := a.otherConnections(); {
		case n == 1:
			a.note(text.T("one established connection keeps another algorithm until it closes"))
		case n > 1:
			a.note(text.T("%d established connections keep another algorithm until they close", n))
		}
	}
	for _, w := range OtherWriters(a.h, bootKeys) {
		a.note(w.Note)
	}
	s.Notes = append(s.Notes, fileNotes(a.systemd)...)
	s.Notes = append(s.Notes, otherWorlds(a.f, enabled)...)
	for _, x := range a.f.Algorithms {
		if x.Name == a.wanted() && x.Note != "" {
			a.note(x.Note)
		}
	}
}

func (a *assessment) otherConnections() (n int) {
	for _, name := range slices.Sorted(maps.Keys(a.s.Connections)) {
		if name != a.wanted() {
			n += a.s.Connections[name]
		}
	}
	return n
}

// bootNotes name the file that would have won at the next boot.
func (a *assessment) bootNotes() {
	if a.systemd == nil {
		return
	}
	for _, k := range a.bootKeys() {
		r := a.st.record(KindSysctl, string(k))
		as, ok := a.systemd.Lookup(k)
		if r == nil || r.Wanted == "" || !ok || as.File == SysctlFile {
			continue
		}
		if !r.had(as.Value) && a.s.Service != nil && a.s.Service.Enabled {
			a.note(text.T("%s:%d sorts after accel's file and sets %s = %s at boot; the service puts %s back", as.File, as.Line, k, sysctl.Printable(as.Value), r.Wanted))
		}
	}
}
