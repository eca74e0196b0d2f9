package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"accel/pkg/socket"
	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Connections tells which established connections have another algorithm than
// the one that was chosen, and why; those that do not leave the host are left
// out. Listeners are none of it: what they accept
// gets the default of that moment, whatever they show.
type Connections struct {
	Algorithm  string        `json:"algorithm"`  // the one chosen; "" where nobody chose one
	Known      bool          `json:"known"`      // false: the lists say nothing, Reason why
	Reason     string        `json:"reason"`     //
	Namespaces []NamespaceOf `json:"namespaces"` // the own first
	Processes  []ProcessOf   `json:"processes"`  // those with the most connections first
	Notes      []string      `json:"notes"`
}

// NamespaceOf is a network namespace of this host.
type NamespaceOf struct {
	Number      uint64         `json:"namespace"` // as in net:[4026531840]
	Own         bool           `json:"own"`       // accel's own
	Owner       string         `json:"owner"`     // whose, as far as known: "docker 0123456789ab", "ip netns blue", a unit
	Default     string         `json:"default"`   // its own algorithm of new connections; "" if not known
	Old         bool           `json:"old"`       // new connections do not get the chosen one
	Links       int            `json:"links"`     // besides the loopback; -1 if not known
	Connections map[string]int `json:"connections"`
	Unheld      map[string]int `json:"unheld"`  // of those with another algorithm: held by no process that could be seen
	Restart     string         `json:"restart"` // a command that makes the namespace anew; "" if none is known
	Advice      string         `json:"advice"`  // what gives it the chosen algorithm; "" where nothing is to be done
	Reason      string         `json:"reason"`  // why Connections is null
}

// Source says where an algorithm that is not the chosen one comes from.
type Source string

// The sources.
const (
	// Before: it was the default once, so the connection is from before the
	// switch, as far as is known.
	Before Source = "before"
	// OfNamespace: it is the default of the connection's namespace.
	OfNamespace Source = "namespace"
	// Chosen: it never was a default, or the process is younger than the switch.
	// The program asks for it (TCP_CONGESTION), or a route or a BPF program
	// gives it.
	Chosen Source = "chosen"
	// Mixed: the process has connections of several other algorithms, of which
	// the switch explains only one.
	Mixed Source = "mixed"
)

// ProcessOf is a group of processes of one name and owner, in one namespace, with
// connections of one algorithm that is not the chosen one.
type ProcessOf struct {
	Command     string `json:"command"`
	Owner       string `json:"owner"`
	Namespace   uint64 `json:"namespace"`
	Algorithm   string `json:"algorithm"`
	Source      Source `json:"source"`
	Connections int    `json:"connections"`
	Processes   int    `json:"processes"`
	PIDs        []int  `json:"pids"`    // the first few
	Restart     string `json:"restart"` // the command; "" if none is known, or if it changes nothing
	Advice      string `json:"advice"`  // what would give these connections the chosen one
}

// Bounds of what is listed.
const (
	mostPIDs      = 8
	mostProcesses = 500
)

// change is what is known of the switch to the chosen algorithm.
type change struct {
	algorithm string
	since     time.Time // when it was made the default; zero if not known
	enabled   bool      // accel watches over it, so that since then nothing else was the default
	// defaults are the algorithms that were, or may have been, the default of new
	// connections at some time since the kernel started.
	defaults []string
	// podsNeedOlder: on this kernel pods are better off with what they have.
	podsNeedOlder bool
	root          bool // whoever asks may see everything
}

// settled is how long after the switch, or the boot, a process must have begun
// to be certainly younger: clocks are set in the first minute, and services
// that override each other come to rest.
const settled = time.Minute

// survey is socket.LookAround.
type survey func(context.Context, func(socket.Connection) bool) (*socket.Survey, error)

// looker is what the sockets of a live host can do besides.
type looker interface {
	LookAround(context.Context, func(socket.Connection) bool) (*socket.Survey, error)
}

// lookAround asks the kernel who still has another algorithm. A nil look is a
// recorded host.
func lookAround(ctx context.Context, look survey, c change) *Connections {
	r := &Connections{Algorithm: c.algorithm, Namespaces: []NamespaceOf{}, Processes: []ProcessOf{}, Notes: []string{}}
	switch {
	case look == nil:
		r.Reason = text.T("a recording does not hold whose connections they are")
		return r
	case c.algorithm == "":
		// Without a switch there is no old algorithm.
		r.Known = true
		return r
	}
	s, err := look(ctx, func(x socket.Connection) bool {
		return x.Algorithm != c.algorithm && !x.Local
	})
	if err != nil {
		r.Reason = err.Error()
		return r
	}
	r.Known = true
	r.fill(s, c)
	return r
}

func (r *Connections) fill(s *socket.Survey, c change) {
	if c.since.Before(s.Booted) {
		c.since = s.Booted
	}
	spaces := map[uint64]NamespaceOf{}
	for _, n := range s.Namespaces {
		spaces[n.Inode] = namespaceOf(n, c)
		r.Namespaces = append(r.Namespaces, spaces[n.Inode])
	}
	type group struct {
		namespace          uint64
		owner              owner
		command, algorithm string
		source             Source
	}
	found := map[group]*ProcessOf{}
	for _, h := range s.Holders {
		o := ownerOf(h.Cgroup)
		for algorithm, source := range sources(h, spaces[h.Namespace].Default, c) {
			g := group{h.Namespace, o, h.Command, algorithm, source}
			p := found[g]
			if p == nil {
				p = &ProcessOf{Command: h.Command, Owner: o.name(), Namespace: h.Namespace, Algorithm: algorithm, Source: source}
				p.advise(o, spaces[h.Namespace], c)
				found[g] = p
			}
			p.Connections += h.Connections[algorithm]
			p.Processes++
			if len(p.PIDs) < mostPIDs {
				p.PIDs = append(p.PIDs, h.PID)
			}
		}
	}
	for _, p := range found {
		r.Processes = append(r.Processes, *p)
	}
	slices.SortFunc(r.Processes, func(a, b ProcessOf) int {
		return cmp.Or(b.Connections-a.Connections, strings.Compare(a.Command, b.Command), a.PIDs[0]-b.PIDs[0], strings.Compare(a.Algorithm, b.Algorithm))
	})
	if n := len(r.Processes) - mostProcesses; n > 0 {
		r.Processes = r.Processes[:mostProcesses]
		r.Notes = append(r.Notes, text.T("%d more groups of processes are not listed", n))
	}
	switch {
	case s.Hidden && c.root:
		r.Notes = append(r.Notes, text.T("some processes or namespaces could not be looked into"))
	case s.Hidden:
		r.Notes = append(r.Notes, text.T("other users' processes and namespaces could not be looked into; root sees them"))
	}
	if s.Cut {
		r.Notes = append(r.Notes, text.T("there is more on this host than doctor looks at, so some connections may be missing"))
	}
}

// sources judges the algorithms of a process, def being its namespace's default.
func sources(h socket.Holder, def string, c change) map[string]Source {
	out := map[string]Source{}
	var before []string
	for algorithm := range h.Connections {
		switch {
		case algorithm == def:
			out[algorithm] = OfNamespace
		case !slices.Contains(c.defaults, algorithm):
			out[algorithm] = Chosen
		case def == c.algorithm && c.enabled && !c.since.IsZero() && h.Started.After(c.since.Add(settled)):
			out[algorithm] = Chosen
		default:
			out[algorithm] = Before
			before = append(before, algorithm)
		}
	}
	if len(before) > 1 {
		for _, algorithm := range before {
			out[algorithm] = Mixed
		}
	}
	return out
}

// advise says what would change a group's connections.
func (p *ProcessOf) advise(o owner, n NamespaceOf, c change) {
	switch p.Source {
	case OfNamespace:
		if p.Restart, p.Advice = n.Restart, n.Advice; n.Own {
			p.Advice = text.T("first make it the default again: accel enable %s", c.algorithm)
		}
	case Chosen:
		p.Advice = text.T("as far as is known a restart would not change it: the program sets it itself (TCP_CONGESTION), or a route (congctl) or a BPF program does")
	case Mixed:
		p.Restart = o.restart()
		p.Advice = text.T("%s; what keeps its algorithm then is the program's own choice", o.advice())
	default:
		p.Restart, p.Advice = o.restart(), o.advice()
	}
}

// namespaceOf judges a namespace.
func namespaceOf(n socket.Namespace, c change) NamespaceOf {
	out := NamespaceOf{
		Number: n.Inode, Own: n.Own, Default: n.Default, Links: n.Links,
		Connections: n.Connections, Unheld: map[string]int{},
	}
	maps.Copy(out.Unheld, n.Unheld)
	if n.Err != nil {
		out.Reason = n.Err.Error()
		if errors.Is(n.Err, socket.ErrNoDiag) {
			out.Reason = text.T("this kernel cannot list connections")
		}
	}
	o := ownerOf(n.Cgroup)
	name := ""
	for _, full := range n.Names {
		if short, ok := strings.CutPrefix(full, "/run/netns/"); ok {
			name = short
			break
		}
	}
	switch {
	case n.Own:
	case o.runtime == "" && name != "":
		out.Owner = "ip netns " + name
	case o.name() != "":
		out.Owner = o.name()
	case len(n.Names) > 0:
		out.Owner = n.Names[0]
	case n.PID != 0:
		out.Owner = text.T("process %d", n.PID)
	}
	out.Old = !n.Own && n.Default != "" && n.Default != c.algorithm
	// Without a link it never sends to the outside: a service with
	// PrivateNetwork, say.
	if !out.Old || n.Links == 0 {
		return out
	}
	switch {
	case o.pod && c.podsNeedOlder:
		out.Old = false
		out.Advice = text.T("leave it: before kernel 5.18 bbr does not work well in pods")
	case o.runtime == "" && name != "" && containerName.MatchString(name):
		// A namespace with a name outlives what runs in it.
		out.Restart = fmt.Sprintf("ip netns exec %s sysctl -w net.ipv4.tcp_congestion_control=%s", name, c.algorithm)
		out.Advice = out.Restart
	case o.runtime == "" && name != "":
		out.Advice = text.T("set net.ipv4.tcp_congestion_control in it")
	case o == (owner{}):
		out.Advice = text.T("restart what runs in it")
	default:
		out.Restart, out.Advice = o.restart(), o.advice()
	}
	return out
}

// old counts the namespaces in which somebody has to do something for new
// connections to get the chosen algorithm. Connections from before the switch end
// by themselves.
func (r *Connections) old() (n int) {
	if r == nil {
		return 0
	}
	for _, x := range r.Namespaces {
		if x.Old && x.Links != 0 {
			n++
		}
	}
	return n
}

// connections fills in the section of the report.
func (e *examination) connections(ctx context.Context) {
	c := change{root: e.f.UID == 0, podsNeedOlder: e.f.Release.Major > 0 && !e.f.Release.AtLeast(5, 18)}
	now := ""
	if v := e.live(sysctl.CongestionControl); v != nil {
		now = *v
	}
	switch {
	case e.r.Enabled != nil:
		c.algorithm, c.since, c.enabled = e.r.Enabled.Algorithm, e.r.Enabled.Since, true
	case now != kernelsOwn && now != "reno":
		// Nothing is enabled, but somebody chose an algorithm.
		c.algorithm = now
	}
	// The kernel's own comes first, then what its boot set, then what accel did.
	c.defaults = append(tuning.OnceDefault(e.h), kernelsOwn, now)
	for _, config := range []*sysctl.Config{e.systemd, e.procps} {
		for _, a := range config.All(sysctl.CongestionControl) {
			c.defaults = append(c.defaults, a.Value)
		}
	}
	var look survey
	if l, ok := e.h.Sockets.(looker); ok {
		look = l.LookAround
	}
	e.r.Connections = lookAround(ctx, look, c)
}

// kernelsOwn is the default of every kernel that nobody built otherwise
// (DEFAULT_TCP_CONG in net/ipv4/Kconfig).
const kernelsOwn = "cubic"
