package tuning

import (
	"slices"

	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// Wishes is what a profile makes of a host: the settings in the order in which
// they are applied, and what it does without, with the reasons.
type Wishes struct {
	Settings []Setting
	Left     []StatusLink // every link that is not managed, and why
	Notes    []string
}

// View is what a profile sees of a host.
type View struct {
	Facts  *kernel.Facts
	Trees  []qdisc.Tree
	Routes []route.Route
}

func (s *session) view() View { return View{s.facts, s.trees, s.routes} }

// Profile turns facts into settings. It decides and changes nothing; what is
// not possible at all on this host is a *Problem.
type Profile func(v View, e Enabled) (*Wishes, error)

// profiles by name. A new profile is added here and nowhere else.
var profiles = map[string]Profile{
	"basic": basic,
	"boost": boost,
}

// Profiles lists the names of the profiles, sorted.
func Profiles() []string {
	var names []string
	for n := range profiles {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// basic is the algorithm, the qdisc it works best with on every suitable link,
// and the modules for both.
func basic(v View, e Enabled) (*Wishes, error) {
	f, trees := v.Facts, v.Trees
	w := &Wishes{}
	if err := possible(f, e.Algorithm); err != nil {
		return nil, err
	}
	alg := f.Algorithm(e.Algorithm)
	modules := !foreignKernel(f)
	if modules && isModule(alg) {
		w.add(KindModule, alg.Module, loaded, !alg.Available, text.T("brings %s", e.Algorithm))
	}

	kind, required := e.AskedFor, needsFq(f, e.Algorithm)
	if kind == "" {
		kind = "fq"
	}
	missing := ""
	switch q := f.Qdisc(kind); {
	case f.DefaultQdisc == nil:
		w.Notes = append(w.Notes, text.T("this is not the initial network namespace: only the algorithm can be set here, the qdisc belongs to the host"))
		missing = text.T("the qdisc belongs to the host")
	case q.Origin == kernel.Absent && f.ModuleIndex:
		if required {
			return nil, problem(ExitImpossible, nil, text.T("%s on kernel %s needs the qdisc fq, and this kernel has no sch_fq", e.Algorithm, f.Release.Raw), moreModules(f))
		}
		missing = text.T("this kernel has no qdisc %s", kind)
		w.Notes = append(w.Notes, noQdisc(kind, e.Algorithm))
	case modules && isModule(q):
		w.add(KindModule, q.Module, loaded, false, text.T("brings %s", kind))
	}
	if missing == "" {
		w.add(KindSysctl, string(sysctl.DefaultQdisc), kind, required, text.T("the qdisc of links that come up later"))
	}
	w.add(KindSysctl, string(sysctl.CongestionControl), e.Algorithm, true, text.T("the algorithm of new connections"))

	managed, left, err := chooseLinks(f, trees, e.Links)
	if err != nil {
		return nil, err
	}
	w.Left = left
	for _, name := range managed {
		if missing != "" {
			w.Left = append(w.Left, linkStatus(name, trees, missing))
			continue
		}
		w.add(KindQdisc, name, kind, required, text.T("the qdisc of this link"))
	}
	return w, nil
}

func (w *Wishes) add(k Kind, name, want string, required bool, why string) {
	w.Settings = append(w.Settings, Setting{Kind: k, Name: name, Want: want, Required: required, Why: why})
}

// noQdisc is the note of a host that goes without the qdisc.
func noQdisc(kind, algorithm string) string {
	if isBBR(algorithm) {
		return text.T("this kernel has no qdisc %s: %s paces itself, which works at some CPU cost", kind, algorithm)
	}
	return text.T("this kernel has no qdisc %s: the links keep what they have", kind)
}

// isModule: the thing comes, or came, from a module file of this kernel.
func isModule(a kernel.Algorithm) bool {
	return a.Module != "" && (a.Origin == kernel.Loaded || a.Origin == kernel.Loadable)
}

// foreignKernel: the kernel is somebody else's, so modules cannot be loaded
// from here.
func foreignKernel(f *kernel.Facts) bool {
	return f.Virtualization.Container != "" || f.DefaultQdisc == nil ||
		f.Virtualization.InitialNetns != nil && !*f.Virtualization.InitialNetns
}

// needsFq: BBR paces itself since Linux 4.13 (tcp: internal implementation for
// pacing, May 2017); before that it relies on fq.
func needsFq(f *kernel.Facts, algorithm string) bool {
	return isBBR(algorithm) && f.Release.Major > 0 && !f.Release.AtLeast(4, 13)
}

// boostTable holds every value of the profile boost.
var boostTable = []boosted{
	// An initial window of 64 segments, 90 KB, in the place of 10: a page or a
	// picture leaves in one round trip where it took three. More than about 45
	// segments are of use only to a client whose first receive window is larger
	// than the usual 64 KB.
	{metric: route.InitCwnd, floor: true, value: fixed("64"), why: func(hostSize) string {
		return text.T("a short answer leaves in one round trip")
	}},
	// The same for what is sent to this host.
	{metric: route.InitRwnd, floor: true, value: fixed("64"), why: func(hostSize) string {
		return text.T("a short request arrives in one round trip")
	}},
	// A connection that was idle, as one kept alive between two pages is, goes
	// on at the rate it had. BBR paces it, so it is no burst.
	{sysctl: "net/ipv4/tcp_slow_start_after_idle", value: fixed("0"), why: func(hostSize) string {
		return text.T("a connection that was idle goes on at its rate")
	}},
	// The third number is the ceiling of the kernel's own tuning of each socket;
	// the first two are left.
	{sysctl: "net/ipv4/tcp_wmem", floor: true, value: triple, why: hostSize.bufferWhy},
	{sysctl: "net/ipv4/tcp_rmem", floor: true, value: triple, why: hostSize.bufferWhy},
	// The same for programs that set their buffers themselves.
	{sysctl: "net/core/wmem_max", floor: true, value: single, why: hostSize.bufferWhy},
	{sysctl: "net/core/rmem_max", floor: true, value: single, why: hostSize.bufferWhy},
}
