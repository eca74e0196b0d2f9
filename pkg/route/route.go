// Package route reads the default routes of a host and what they say about
// TCP, and changes that: a route's congctl beats
// net.ipv4.tcp_congestion_control for every connection that leaves through it,
// and its initcwnd decides how much such a connection sends at once when it
// begins.
package route

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Route is one default route, or one path of it where it has several. It
// holds no addresses, so that it can be recorded and shown.
type Route struct {
	Family   string `json:"family"`   // "inet" or "inet6"
	Dst      string `json:"dst"`      // always "default"
	Link     string `json:"link"`     // "" where the kernel names none
	Table    int    `json:"table"`    // 254 is main
	Metric   int    `json:"metric"`   // the lowest wins within a table
	Protocol string `json:"protocol"` // who made it, as `ip route` says: "dhcp", "ra", "static", "boot", ... or a number
	// CongestionControl is the algorithm that connections through this route
	// get (congctl), "" where the route says nothing.
	CongestionControl string `json:"congestion_control,omitempty"`
	// CongctlLocked: connections may not choose another algorithm by
	// themselves; setsockopt(TCP_CONGESTION) fails with EPERM.
	CongctlLocked bool `json:"congctl_locked,omitempty"`
	InitialCwnd   int  `json:"initial_cwnd,omitempty"` // segments, 0 = the kernel's own
	InitialRwnd   int  `json:"initial_rwnd,omitempty"` // segments, 0 = the kernel's own
	RTOMin        int  `json:"rto_min,omitempty"`      // milliseconds, 0 = the kernel's own
	QuickAck      int  `json:"quickack,omitempty"`     // 1 = no delayed acknowledgements, 0 = the kernel's own
	// Links are all links of a route that has several paths, in the kernel's
	// order; nil where there is one.
	Links []string `json:"links,omitempty"`
	// Twin: the same route stands there once more and differs in nothing but its
	// metrics. systemd-networkd and NetworkManager append theirs anew, with a
	// renewed lease, beside one whose metrics somebody changed. The first one
	// counts; the other is not listed.
	Twin bool `json:"twin,omitempty"`
	// Behind are the metrics of the last twin, which are the network's own; those
	// that it does not have are missing.
	Behind map[Metric]int `json:"-"`
	// Special says why the metrics of this route are not to be changed; "" where
	// it is an ordinary one.
	Special Special `json:"special,omitempty"`
}

// Special is a reason to leave a route as it is.
type Special string

// The reasons. Each stands for somebody who owns the meaning of the route, or
// for something that a change would lose.
const (
	PolicyTable  Special = "policy-table"  // not in the main table: policy routing, or a VPN
	Advertised   Special = "ra"            // learnt from a router advertisement: a change loses its expiry, and the router can no longer withdraw it
	Expires      Special = "expires"       // has an expiry, which a change would lose
	Daemon       Special = "daemon"        // made by a routing daemon, or by whoever else marks routes with a protocol number of his own
	PolicyMatch  Special = "policy-match"  // only for one type of service or one source prefix
	Encapsulated Special = "encapsulated"  // wraps the packets: a tunnel
	SharedMetric Special = "shared-metric" // another default route has the same metric: the kernel cannot be told which of them to change
)

// Name names a route of the main table, as short as can be and without
// addresses: "default dev eth0 metric 100", with "-6 " before it for IPv6. The
// several links of a route are joined by commas.
func (r Route) Name() string {
	links := r.Links
	if len(links) == 0 {
		links = []string{r.Link}
	}
	name := "default dev " + strings.Join(links, ",")
	if r.Metric != 0 {
		name += " metric " + strconv.Itoa(r.Metric)
	}
	if r.Family == "inet6" {
		return "-6 " + name
	}
	return name
}

const (
	// How often a dump is repeated that the kernel marks as interrupted: it
	// does so whenever a route changes meanwhile, and on a router one always
	// does. The last answer is taken then.
	dumpAttempts = 5
	// The routing table of a backbone router has a million entries.
	answerSeconds = 60
)

// Defaults returns the default routes of all tables and both families in the
// network namespace of the calling thread, ordered by family, table, metric
// and link. Only routes that send packets are among them, not "unreachable",
// "blackhole" and their like. A family that the kernel does not have has no
// routes.
func Defaults() ([]Route, error) {
	c, err := dial()
	if err != nil {
		return nil, fmt.Errorf("reading the default routes: %w", err)
	}
	defer c.close()
	names, err := linkNames(c.sockets)
	if err != nil {
		return nil, fmt.Errorf("reading the default routes: %w", err)
	}
	var routes []Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		found, err := defaults(c.sockets, family, names)
		if err != nil {
			return nil, fmt.Errorf("reading the default routes: %w", err)
		}
		for _, e := range found {
			routes = append(routes, e.paths...)
		}
	}
	slices.SortStableFunc(routes, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table),
			cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Link, b.Link))
	})
	return routes, nil
}

// conn is one NETLINK_ROUTE socket.
type conn struct {
	sockets map[int]*nl.SocketHandle
}

func dial() (*conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	timeout := &unix.Timeval{Sec: answerSeconds}
	if err := errors.Join(s.SetSendTimeout(timeout), s.SetReceiveTimeout(timeout)); err != nil {
		s.Close()
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	// Kernels before 4.12 do not explain their errors.
	_ = s.SetExtAck(true)
	return &conn{map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (c *conn) close() { c.sockets[unix.NETLINK_ROUTE].Close() }

func linkNames(sockets map[int]*nl.SocketHandle) (map[int]string, error) {
	names := map[int]string{}
	for range dumpAttempts {
		clear(names)
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWLINK, func(msg []byte) bool {
			if len(msg) >= unix.SizeofIfInfomsg {
				attributes(msg[unix.SizeofIfInfomsg:], func(kind int, value []byte) {
					if kind == unix.IFLA_IFNAME {
						names[int(int32(binary.NativeEndian.Uint32(msg[4:])))] = unix.ByteSliceToString(value)
					}
				})
			}
			return true
		})
		if err == nil {
			break
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("listing the links: %w", err)
		}
	}
	return names, nil
}

// entry is one default route as the kernel told it.
type entry struct {
	body  []byte  // of the RTM_NEWROUTE message
	paths []Route // none where the route does not send packets
}

func defaults(sockets map[int]*nl.SocketHandle, family int, names map[int]string) ([]entry, error) {
	var entries []entry
	for range dumpAttempts {
		entries = nil
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}})
		// Message by message: the whole table may be very long.
		err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(msg []byte) bool {
			if isDefault(msg, family) {
				entries = append(entries, entry{slices.Clone(msg), parse(msg, family, names)})
			}
			return true
		})
		switch {
		case err == nil:
			markShared(entries)
			return entries, nil
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case !errors.Is(err, netlink.ErrDumpInterrupted):
			return nil, fmt.Errorf("listing the routes: %w", err)
		}
	}
	markShared(entries)
	return entries, nil
}

// place is what tells one route from another when the kernel is asked to
// replace it.
type place struct {
	table, metric int
	tos           byte
	source        string
}

func (e entry) place() place {
	p := place{table: int(e.body[tableByte]), tos: e.body[tosByte]}
	attributes(e.body[unix.SizeofRtMsg:], func(kind int, value []byte) {
		switch kind {
		case unix.RTA_TABLE:
			p.table = number(value)
		case unix.RTA_PRIORITY:
			p.metric = number(value)
		case unix.RTA_SRC:
			p.source = fmt.Sprint(value, e.body[srcLenByte])
		}
	})
	return p
}

// bare is what a route says but for its metrics and what the kernel reports.
func (e entry) bare() string {
	out := slices.Clone(e.body[:unix.SizeofRtMsg])
	binary.NativeEndian.PutUint32(out[flagsAt:], binary.NativeEndian.Uint32(out[flagsAt:])&madeFlags)
	attributes(e.body[unix.SizeofRtMsg:], func(kind int, value []byte) {
		switch kind {
		case unix.RTA_METRICS, unix.RTA_CACHEINFO:
			return
		case unix.RTA_MULTIPATH:
			value = maskHops(value)
		}
		out = appendAttribute(out, kind, value)
	})
	return string(out)
}

// markShared finds the routes that share a place, whatever else they are.
// Twins are told apart by the kernel's order; others cannot be.
func markShared(entries []entry) {
	first := map[place]int{}
	shared := map[place]bool{}
	for i, e := range entries {
		p := e.place()
		if f, ok := first[p]; !ok {
			first[p] = i
		} else if len(entries[f].paths) > 0 && entries[f].bare() == e.bare() {
			entries[i].paths = nil
			behind := map[Metric]int{}
			for _, m := range Metrics() {
				if v := e.read(m); v != 0 {
					behind[m] = v
				}
			}
			for j := range entries[f].paths {
				entries[f].paths[j].Twin, entries[f].paths[j].Behind = true, behind
			}
		} else {
			shared[p] = true
		}
	}
	for _, e := range entries {
		for i := range e.paths {
			if e.paths[i].Special == "" && shared[e.place()] {
				e.paths[i].Special = SharedMetric
			}
		}
	}
}

// Wire formats: linux/rtnetlink.h.
const (
	attrHeader    = 4
	attrTypeMask  = 0x3fff // NLA_TYPE_MASK
	sizeofNextHop = 8      // struct rtnexthop
	// struct rtmsg
	familyByte, dstLenByte, srcLenByte, tosByte, tableByte, protocolByte, typeByte = 0, 1, 2, 3, 4, 5, 7
	flagsAt                                                                        = 8
)

// isDefault tells whether the body of an RTM_NEWROUTE message is a default
// route of the given family, of whatever type.
func isDefault(msg []byte, family int) bool {
	if len(msg) < unix.SizeofRtMsg {
		return false
	}
	// A kernel without IPv6 answers for all families when asked for one it does
	// not have. Cloned entries are the cache of old kernels. A route for one
	// source prefix is still a default.
	return int(msg[familyByte]) == family && msg[dstLenByte] == 0 &&
		binary.NativeEndian.Uint32(msg[flagsAt:])&unix.RTM_F_CLONED == 0
}

// parse reads the body of an RTM_NEWROUTE message of the given family: nothing
// if it is no default route, one Route for each path if it is.
func parse(msg []byte, family int, names map[int]string) []Route {
	if !isDefault(msg, family) || msg[typeByte] != unix.RTN_UNICAST {
		return nil
	}
	r := Route{Family: "inet", Dst: "default", Table: int(msg[tableByte]), Protocol: protocolName(msg[protocolByte])}
	if family == unix.AF_INET6 {
		r.Family = "inet6"
	}
	var links []string
	expires, encapsulated := false, false
	attributes(msg[unix.SizeofRtMsg:], func(kind int, value []byte) {
		switch kind {
		case unix.RTA_TABLE:
			r.Table = number(value)
		case unix.RTA_PRIORITY:
			r.Metric = number(value)
		case unix.RTA_OIF:
			links = append(links, names[number(value)])
		case unix.RTA_MULTIPATH:
			hops, wrapped := nextHops(value, names)
			links, encapsulated = append(links, hops...), encapsulated || wrapped
		case unix.RTA_METRICS:
			metrics(value, &r)
		case unix.RTA_ENCAP:
			encapsulated = true
		case unix.RTA_EXPIRES:
			expires = true
		case unix.RTA_CACHEINFO:
			// struct rta_cacheinfo: clntref, lastuse, expires, ...
			expires = expires || len(value) >= 12 && binary.NativeEndian.Uint32(value[8:]) != 0
		}
	})
	switch {
	case r.Table != unix.RT_TABLE_MAIN:
		r.Special = PolicyTable
	case msg[protocolByte] == unix.RTPROT_RA, family == unix.AF_INET6 && msg[protocolByte] == unix.RTPROT_KERNEL:
		r.Special = Advertised // by the kernel itself before Linux 4.x, which had no name for it
	case expires:
		r.Special = Expires
	case !slices.Contains(ordinary, msg[protocolByte]):
		r.Special = Daemon
	case msg[tosByte] != 0 || msg[srcLenByte] != 0:
		r.Special = PolicyMatch
	case encapsulated:
		r.Special = Encapsulated
	}
	if len(links) == 0 {
		links = []string{""}
	}
	if len(links) > 1 {
		r.Links = links
	}
	routes := make([]Route, len(links))
	for i, l := range links {
		routes[i] = r
		routes[i].Link = l
	}
	return routes
}

// ordinary are the protocols of routes that a person or his network
// configuration made.
var ordinary = []byte{unix.RTPROT_BOOT, unix.RTPROT_STATIC, unix.RTPROT_DHCP}

func nextHops(b []byte, names map[int]string) (links []string, encapsulated bool) {
	for len(b) >= sizeofNextHop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < sizeofNextHop || size > len(b) {
			return links, encapsulated
		}
		attributes(b[sizeofNextHop:size], func(kind int, _ []byte) {
			encapsulated = encapsulated || kind == unix.RTA_ENCAP
		})
		links = append(links, names[int(int32(binary.NativeEndian.Uint32(b[4:])))])
		b = b[min((size+3)&^3, len(b)):]
	}
	return links, encapsulated
}

func metrics(b []byte, r *Route) {
	attributes(b, func(kind int, value []byte) {
		switch kind {
		case unix.RTAX_LOCK:
			r.CongctlLocked = number(value)&(1<<unix.RTAX_CC_ALGO) != 0
		case unix.RTAX_CC_ALGO:
			r.CongestionControl = unix.ByteSliceToString(value)
		case unix.RTAX_INITCWND:
			r.InitialCwnd = number(value)
		case unix.RTAX_INITRWND:
			r.InitialRwnd = number(value)
		case unix.RTAX_RTO_MIN:
			r.RTOMin = number(value)
		case unix.RTAX_QUICKACK:
			r.QuickAck = number(value)
		}
	})
}

// attributes walks netlink attributes and stops at the first malformed one.
func attributes(b []byte, each func(kind int, value []byte)) {
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) {
			return
		}
		each(int(binary.NativeEndian.Uint16(b[2:]))&attrTypeMask, b[attrHeader:size])
		b = b[min((size+3)&^3, len(b)):]
	}
}

// number reads a 32 bit attribute; 0 if it is none.
func number(value []byte) int {
	if len(value) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(value))
}

// protocols are the names that `ip route` prints (etc/iproute2/rt_protos);
// numbers from linux/rtnetlink.h.
var protocols = map[uint8]string{
	unix.RTPROT_REDIRECT: "redirect",
	unix.RTPROT_KERNEL:   "kernel",
	unix.RTPROT_BOOT:     "boot",
	unix.RTPROT_STATIC:   "static",
	unix.RTPROT_GATED:    "gated",
	unix.RTPROT_RA:       "ra",
	unix.RTPROT_MRT:      "mrt",
	unix.RTPROT_ZEBRA:    "zebra",
	unix.RTPROT_BIRD:     "bird",
	unix.RTPROT_BABEL:    "babel",
	unix.RTPROT_DNROUTED: "dnrouted",
	unix.RTPROT_XORP:     "xorp",
	unix.RTPROT_NTK:      "ntk",
	unix.RTPROT_DHCP:     "dhcp",
	unix.RTPROT_BGP:      "bgp",
	unix.RTPROT_ISIS:     "isis",
	unix.RTPROT_OSPF:     "ospf",
	unix.RTPROT_RIP:      "rip",
	unix.RTPROT_EIGRP:    "eigrp",
}

func protocolName(p uint8) string {
	if name, ok := protocols[p]; ok {
		return name
	}
	return strconv.Itoa(int(p))
}
