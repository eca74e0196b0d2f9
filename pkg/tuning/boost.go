package tuning

import (
	"fmt"
	"slices"
	"strconv"

	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// boost is basic, and more data in flight from the first packet on.
func boost(v View, e Enabled) (*Wishes, error) {
	w, err := basic(v, e)
	if err != nil {
		return nil, err
	}
	z := sizeOf(v.Facts)
	for _, x := range boostTable {
		if x.sysctl != "" {
			w.Settings = append(w.Settings, Setting{Kind: KindSysctl, Name: string(x.sysctl), Want: x.value(z), Floor: x.floor, Why: x.why(z)})
		}
	}
	if why := z.why(); why != "" {
		w.Notes = append(w.Notes, why)
	}
	w.addRoutes(v, z)
	return w, nil
}

// addRoutes wishes the metrics for the routes that are accel's to change, and
// names the others.
func (w *Wishes) addRoutes(v View, z hostSize) {
	seen := map[string]bool{}
	managed := 0
	for _, r := range v.Routes {
		name := r.Name()
		reason := unsuitableRoute(v.Facts, r)
		if key := name + "\x00" + strconv.Itoa(r.Table) + reason; seen[key] {
			continue // another path of the same route
		} else {
			seen[key] = true
		}
		if reason != "" {
			w.Notes = append(w.Notes, text.T("the route %s is left alone: %s", routeName(r), reason))
			continue
		}
		managed++
		for _, x := range boostTable {
			if x.metric != "" {
				w.Settings = append(w.Settings, Setting{Kind: KindRoute, Name: routeSetting(name, x.metric), Want: x.value(z), Floor: x.floor, Why: x.why(z)})
			}
		}
	}
	if managed == 0 {
		w.Notes = append(w.Notes, text.T("there is no default route now that accel may change; the agent looks again when one comes"))
	}
}

// routeName names a route for people, with its table where that is not main.
func routeName(r route.Route) string {
	if r.Table == mainTable {
		return r.Name()
	}
	return text.T("%s (table %d)", r.Name(), r.Table)
}

// mainTable is RT_TABLE_MAIN of linux/rtnetlink.h.
const mainTable = 254

// UsesRoutes tells whether a profile sets metrics of routes, so that a default
// route that comes or changes is of interest.
func UsesRoutes(profile string) bool { return profile == "boost" }

// routeKinds are the kinds of links whose default route leads to the Internet
// as a hardware link's does. All others, such as wireguard, tun, vxlan or a
// GRE, wrap the packets: the path behind them is somebody else's design.
var routeKinds = []string{"", "bond", "bridge", "ipvlan", "macvlan", "team", "veth", "vlan"}

// unsuitableRoute tells why the metrics of a default route must be left alone;
// "" if they are accel's to set.
func unsuitableRoute(f *kernel.Facts, r route.Route) string {
	switch r.Special {
	case "":
	case route.PolicyTable:
		return text.T("it belongs to policy routing")
	case route.Advertised:
		return text.T("it was learnt from a router advertisement, and a change would lose its expiry")
	case route.Expires:
		return text.T("it expires, and a change would lose that")
	case route.Daemon:
		return text.T("it was made by a routing daemon (%s)", r.Protocol)
	case route.PolicyMatch:
		return text.T("it is for one type of service or one source only")
	case route.Encapsulated:
		return text.T("it wraps the packets: a tunnel")
	case route.SharedMetric:
		return text.T("another default route has the same metric, and the kernel cannot be told which to change")
	default:
		return string(r.Special)
	}
	links := r.Links
	if len(links) == 0 {
		links = []string{r.Link}
	}
	for _, name := range links {
		i := slices.IndexFunc(f.Links, func(l kernel.Link) bool { return l.Name == name })
		switch {
		case i < 0:
			return text.T("its link is not known")
		case f.Links[i].Type != kernel.TypeEthernet, !slices.Contains(routeKinds, f.Links[i].Kind):
			return text.T("it leads over a tunnel (%s)", name)
		}
	}
	return ""
}

func findRoute(routes []route.Route, name string) *route.Route {
	var found *route.Route
	for i := range routes {
		if r := &routes[i]; r.Table == mainTable && r.Name() == name && (found == nil || found.Special != "") {
			found = r
		}
	}
	return found
}

// hostSize is what the sizes of boost are computed from.
type hostSize struct {
	memory uint64 // bytes; 0 when not known
	mbit   int    // of the fastest link; 0 when none says
	link   string
}

func sizeOf(f *kernel.Facts) hostSize {
	z := hostSize{memory: f.MemoryBytes}
	for _, l := range f.Links {
		if l.Hardware && l.SpeedMbit != nil && *l.SpeedMbit > z.mbit {
			z.mbit, z.link = *l.SpeedMbit, l.Name
		}
	}
	return z
}

func (z hostSize) why() string {
	memory := text.T("memory not known")
	if z.memory > 0 {
		memory = text.T("%d MiB of memory", z.memory>>20)
	}
	speed := text.T("no link tells its speed: %d Mbit/s assumed", assumedMbit)
	if z.mbit > 0 {
		speed = text.T("%s has %d Mbit/s", z.link, z.mbit)
	}
	return text.T("boost computes its sizes from this host: %s; %s", memory, speed)
}

const (
	// assumedMbit is the speed of a link that does not tell, as virtual ones do
	// not: what virtual servers are sold with.
	assumedMbit = 1000
	// assumedMemory is that of a small virtual server.
	assumedMemory = 512 << 20
	// farthest is the round-trip time, in milliseconds, of the paths that
	// the buffers are to fill: around half the Earth, with detours. Measured at
	// 100 Mbit/s: with 16 MiB 25 MB went 1.07 times as fast over 400 ms, and no
	// faster over 180 ms.
	farthest = 400
	// mostBuffer bounds the buffer of one socket: the most that was measured.
	mostBuffer = 16 << 20
	// memoryShare of a host's memory is what one socket may take: a quarter of
	// what all TCP together may have before the kernel begins to press them,
	// which is 1/16 (tcp_mem[1], tcp_init in net/ipv4/tcp.c).
	memoryShare = 64
)

// buffer is the ceiling, in bytes, of what one socket may buffer: four times
// what is in flight on the farthest path at the speed of the link, since BBR
// keeps twice the bandwidth-delay product in flight and the kernel counts a
// packet's bookkeeping too, but never more than memory allows. 128 MiB of
// memory give 2 MiB, 512 MiB give 8 MiB, 1 GiB and more the most.
func (z hostSize) buffer() uint64 {
	memory, mbit := z.memory, uint64(z.mbit)
	if memory == 0 {
		memory = assumedMemory
	}
	if mbit == 0 {
		mbit = assumedMbit
	}
	inFlight := mbit * 1e6 / 8 * farthest / 1000
	return min(4*inFlight, memory/memoryShare, mostBuffer) &^ (1<<16 - 1)
}

func (z hostSize) bufferWhy() string {
	memory := z.memory
	if memory == 0 {
		memory = assumedMemory
	}
	switch b := z.buffer(); b {
	case mostBuffer:
		return text.T("%d MiB, the most for one socket", b>>20)
	case memory / memoryShare &^ (1<<16 - 1):
		return text.T("one socket may buffer 1/%d of the memory", memoryShare)
	}
	return text.T("what the link can have in flight over %d ms", farthest)
}

// boosted is one line of the table of boost.
type boosted struct {
	sysctl sysctl.Key   // one of these two
	metric route.Metric // of the default routes
	floor  bool
	value  func(hostSize) string
	why    func(hostSize) string
}

// Arm is what a profile gives the sending end of a comparison.
type Arm struct {
	Algorithm, Qdisc string
	Settings         []sysctl.KeyValue
	InitialCwnd      int // segments; 0 is the kernel's own
	InitialRwnd      int // segments; 0 is the kernel's own
}

// stockTriples are the values of a kernel as it comes on a host with 4 GiB of
// memory or more, above which a floor is raised in a comparison, whatever the
// host has: tcp_init in net/ipv4/tcp.c.
var stockTriples = map[sysctl.Key]string{"net/ipv4/tcp_rmem": "4096 131072 6291456", "net/ipv4/tcp_wmem": "4096 16384 4194304"}

// ProfileArm is a profile as an arm of a comparison: DefaultAlgorithm, with
// the settings that this profile computes from the memory and the links of
// this host. Floors stand on the values of a kernel as it comes, not on what
// this host was tuned to. ok is false where there is no such profile.
func ProfileArm(f *kernel.Facts, profile string) (a Arm, ok bool) {
	if _, ok := profiles[profile]; !ok {
		return a, false
	}
	a = Arm{Algorithm: DefaultAlgorithm, Qdisc: "fq"}
	if profile != "boost" {
		return a, true
	}
	z := sizeOf(f)
	for _, x := range boostTable {
		value := x.value(z)
		switch {
		case x.metric == route.InitCwnd:
			a.InitialCwnd, _ = strconv.Atoi(value)
		case x.metric == route.InitRwnd:
			a.InitialRwnd, _ = strconv.Atoi(value)
		case x.sysctl != "":
			if stock, ok := stockTriples[x.sysctl]; ok && x.floor {
				value = raise(stock, value)
			}
			a.Settings = append(a.Settings, sysctl.KeyValue{Key: x.sysctl, Value: value})
		}
	}
	return a, true
}

func fixed(v string) func(hostSize) string { return func(hostSize) string { return v } }

func triple(z hostSize) string { return fmt.Sprintf("0 0 %d", z.buffer()) }
