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

// boostTable holds every value of the profile boost. What was measured and
// left out because it showed nothing is listed in docs/boost.md.
var boostTable = []boosted{
	// An initial window of 45 segments, 64 KB, in the place of 10: a page or a
	// picture leaves in one round trip where it took three. Measured on Debian's
	// 6.1 at 640 KB: 20 segments gave 1.16 times plain bbr, 32 1.24, 45 1.28, 64
	// 1.31 and 90 1.36 on paths without loss. 45 fill the first receive window
	// of ordinary clients, which is 64 KB; beyond it the gain is small and the
	// cost grows: on a last mile of 2 Mbit/s with a queue of 20 packets, the
	// resent share of 640 KB is 1.1 % with 10 segments, 9.7 % with 45 and 16.9 %
	// with 90, in the same time.
	{metric: route.InitCwnd, floor: true, value: fixed("45"), why: func(hostSize) string {
		return text.T("64 KB leave in the first round trip: the first receive window of ordinary clients")
	}},
	// The third number is the ceiling of the kernel's own tuning of each
	// socket's send buffer, 4 MiB by default; the first two are left. With 16 MiB
	// 25 MB went 1.07 times as fast over 100 Mbit/s and 400 ms; over 180 ms no
	// difference was seen.
	{sysctl: "net/ipv4/tcp_wmem", floor: true, value: triple, why: hostSize.bufferWhy},
}
