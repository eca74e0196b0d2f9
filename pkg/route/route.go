// Package route reads the default routes of a host and what they say about
// TCP: a route's congctl beats net.ipv4.tcp_congestion_control for every
// connection that leaves through it.
package route

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

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
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("reading the default routes: opening a netlink socket: %w", err)
	}
	defer s.Close()
	timeout := &unix.Timeval{Sec: answerSeconds}
	if err := errors.Join(s.SetSendTimeout(timeout), s.SetReceiveTimeout(timeout)); err != nil {
		return nil, fmt.Errorf("reading the default routes: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}

	names, err := linkNames(sockets)
	if err != nil {
		return nil, fmt.Errorf("reading the default routes: %w", err)
	}
	var routes []Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		found, err := defaults(sockets, family, names)
		if err != nil {
			return nil, fmt.Errorf("reading the default routes: %w", err)
		}
		routes = append(routes, found...)
	}
	slices.SortStableFunc(routes, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table),
			cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Link, b.Link))
	})
	return routes, nil
}

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

func defaults(sockets map[int]*nl.SocketHandle, family int, names map[int]string) ([]Route, error) {
	var routes []Route
	for range dumpAttempts {
		routes = nil
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}})
		// Message by message: the whole table may be very long.
		err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(msg []byte) bool {
			routes = append(routes, parse(msg, family, names)...)
			return true
		})
		switch {
		case err == nil:
			return routes, nil
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case !errors.Is(err, netlink.ErrDumpInterrupted):
			return nil, fmt.Errorf("listing the routes: %w", err)
		}
	}
	return routes, nil
}

// Wire formats: linux/rtnetlink.h.
const (
	attrHeader    = 4
	attrTypeMask  = 0x3fff // NLA_TYPE_MASK
	sizeofNextHop = 8      // struct rtnexthop
)

// parse reads the body of an RTM_NEWROUTE message of the given family: nothing
// if it is no default route, one Route for each path if it is.
func parse(msg []byte, family int, names map[int]string) []Route {
	if len(msg) < unix.SizeofRtMsg {
		return nil
	}
	const (
		famByte, dstLen, table, protocol, kind = 0, 1, 4, 5, 7
	)
	flags := binary.NativeEndian.Uint32(msg[8:])
	// A kernel without IPv6 answers for all families when asked for one it does
	// not have. Cloned entries are the cache of old kernels. A route for one
	// source prefix is still a default.
	if int(msg[famByte]) != family || msg[dstLen] != 0 || msg[kind] != unix.RTN_UNICAST || flags&unix.RTM_F_CLONED != 0 {
		return nil
	}
	r := Route{Family: "inet", Dst: "default", Table: int(msg[table]), Protocol: protocolName(msg[protocol])}
	if family == unix.AF_INET6 {
		r.Family = "inet6"
	}
	var links []string
	attributes(msg[unix.SizeofRtMsg:], func(kind int, value []byte) {
		switch kind {
		case unix.RTA_TABLE:
			r.Table = number(value)
		case unix.RTA_PRIORITY:
			r.Metric = number(value)
		case unix.RTA_OIF:
			links = append(links, names[number(value)])
		case unix.RTA_MULTIPATH:
			links = append(links, nextHops(value, names)...)
		case unix.RTA_METRICS:
			metrics(value, &r)
		}
	})
	if len(links) == 0 {
		links = []string{""}
	}
	routes := make([]Route, len(links))
	for i, l := range links {
		routes[i] = r
		routes[i].Link = l
	}
	return routes
}

func nextHops(b []byte, names map[int]string) (links []string) {
	for len(b) >= sizeofNextHop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < sizeofNextHop || size > len(b) {
			return links
		}
		links = append(links, names[int(int32(binary.NativeEndian.Uint32(b[4:])))])
		b = b[min((size+3)&^3, len(b)):]
	}
	return links
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
