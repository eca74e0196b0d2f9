package route

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var names = map[int]string{2: "eth0", 3: "eth1"}

func u32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func attribute(kind int, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// message is the body of an RTM_NEWROUTE message: family, length of the
// destination, table, protocol, type.
func message(family, length, table, protocol, kind byte, attrs ...[]byte) []byte {
	return join(append([][]byte{{family, length, 0, 0, table, protocol, 0, kind, 0, 0, 0, 0}}, attrs...)...)
}

func nextHop(index uint32) []byte {
	return join(binary.NativeEndian.AppendUint16(nil, 8), []byte{0, 0}, u32(index))
}

func wrappedHop(index uint32) []byte {
	wrap := attribute(unix.RTA_ENCAP, attribute(1, u32(1)))
	return join(binary.NativeEndian.AppendUint16(nil, uint16(8+len(wrap))), []byte{0, 0}, u32(index), wrap)
}

func TestParse(t *testing.T) {
	const family, main, dhcp, unicast = unix.AF_INET, 254, unix.RTPROT_DHCP, unix.RTN_UNICAST
	oif := attribute(unix.RTA_OIF, u32(2))
	plain := Route{Family: "inet", Dst: "default", Link: "eth0", Table: 254, Protocol: "dhcp"}
	with := func(change func(*Route)) []Route {
		r := plain
		change(&r)
		return []Route{r}
	}
	for name, tc := range map[string]struct {
		msg    []byte
		family int
		want   []Route
	}{
		"plain":  {message(family, 0, main, dhcp, unicast, oif), family, []Route{plain}},
		"metric": {message(family, 0, main, dhcp, unicast, oif, attribute(unix.RTA_PRIORITY, u32(100))), family, with(func(r *Route) { r.Metric = 100 })},
		// A table above 255 does not fit the header, which then says 252.
		"big table": {message(family, 0, 252, dhcp, unicast, oif, attribute(unix.RTA_TABLE, u32(10001))), family, with(func(r *Route) { r.Table, r.Special = 10001, PolicyTable })},
		"protocol":  {message(family, 0, main, 123, unicast, oif), family, with(func(r *Route) { r.Protocol, r.Special = "123", Daemon })},
		"congctl": {message(family, 0, main, dhcp, unicast, oif, attribute(unix.RTA_METRICS, attribute(unix.RTAX_CC_ALGO, []byte("reno\x00")))), family,
			with(func(r *Route) { r.CongestionControl = "reno" })},
		"congctl locked": {message(family, 0, main, dhcp, unicast, oif, attribute(unix.RTA_METRICS|unix.NLA_F_NESTED, join(
			attribute(unix.RTAX_LOCK, u32(1<<unix.RTAX_CC_ALGO)), attribute(unix.RTAX_CC_ALGO, []byte("reno\x00")),
			attribute(unix.RTAX_INITCWND, u32(30)), attribute(unix.RTAX_INITRWND, u32(40)),
		))), family, with(func(r *Route) {
			r.CongestionControl, r.CongctlLocked, r.InitialCwnd, r.InitialRwnd = "reno", true, 30, 40
		})},
		"another lock": {message(family, 0, main, dhcp, unicast, oif, attribute(unix.RTA_METRICS, attribute(unix.RTAX_LOCK, u32(1<<unix.RTAX_MTU)))), family, []Route{plain}},
		"two paths": {message(family, 0, main, dhcp, unicast, attribute(unix.RTA_MULTIPATH, join(nextHop(2), nextHop(3)))), family,
			append(with(func(r *Route) { r.Links = []string{"eth0", "eth1"} }), with(func(r *Route) { r.Link, r.Links = "eth1", []string{"eth0", "eth1"} })...)},
		"wrapped path": {message(family, 0, main, dhcp, unicast, attribute(unix.RTA_MULTIPATH, join(nextHop(2), wrappedHop(3)))), family,
			append(with(func(r *Route) { r.Links, r.Special = []string{"eth0", "eth1"}, Encapsulated }), with(func(r *Route) {
				r.Link, r.Links, r.Special = "eth1", []string{"eth0", "eth1"}, Encapsulated
			})...)},
		"wrapped": {message(family, 0, main, dhcp, unicast, oif, attribute(unix.RTA_ENCAP, attribute(1, u32(1)))), family,
			with(func(r *Route) { r.Special = Encapsulated })},
		"type of service": {append([]byte{family, 0, 0, 16}, message(family, 0, main, dhcp, unicast, oif)[4:]...), family,
			with(func(r *Route) { r.Special = PolicyMatch })},
		"timers": {message(family, 0, main, dhcp, unicast, oif, attribute(unix.RTA_METRICS, join(
			attribute(unix.RTAX_LOCK, u32(1<<unix.RTAX_RTO_MIN)), attribute(unix.RTAX_RTO_MIN, u32(50)), attribute(unix.RTAX_QUICKACK, u32(1))))), family,
			with(func(r *Route) { r.RTOMin, r.QuickAck = 50, 1 })},
		"inet6 for one source": {append([]byte{unix.AF_INET6, 0, 64}, message(unix.AF_INET6, 0, main, unix.RTPROT_STATIC, unicast, oif)[3:]...), unix.AF_INET6,
			with(func(r *Route) { r.Family, r.Protocol, r.Special = "inet6", "static", PolicyMatch })},
		"inet6 expires": {message(unix.AF_INET6, 0, main, unix.RTPROT_STATIC, unicast, oif, attribute(unix.RTA_CACHEINFO, join(u32(0), u32(0), u32(100), u32(0)))), unix.AF_INET6,
			with(func(r *Route) { r.Family, r.Protocol, r.Special = "inet6", "static", Expires })},
		"inet6 does not expire": {message(unix.AF_INET6, 0, main, unix.RTPROT_STATIC, unicast, oif, attribute(unix.RTA_CACHEINFO, join(u32(0), u32(0), u32(0), u32(0)))), unix.AF_INET6,
			with(func(r *Route) { r.Family, r.Protocol = "inet6", "static" })},
		"no link":      {message(family, 0, main, dhcp, unicast), family, with(func(r *Route) { r.Link = "" })},
		"unknown link": {message(family, 0, main, dhcp, unicast, attribute(unix.RTA_OIF, u32(99))), family, with(func(r *Route) { r.Link = "" })},
		"inet6": {message(unix.AF_INET6, 0, main, unix.RTPROT_RA, unicast, oif), unix.AF_INET6,
			with(func(r *Route) { r.Family, r.Protocol, r.Special = "inet6", "ra", Advertised })},
		"inet6 by an old kernel": {message(unix.AF_INET6, 0, main, unix.RTPROT_KERNEL, unicast, oif), unix.AF_INET6,
			with(func(r *Route) { r.Family, r.Protocol, r.Special = "inet6", "kernel", Advertised })},
		"other family":       {message(unix.AF_INET6, 0, main, dhcp, unicast, oif), family, nil},
		"not a default":      {message(family, 8, main, dhcp, unicast, oif), family, nil},
		"blackhole":          {message(family, 0, main, dhcp, unix.RTN_BLACKHOLE, oif), family, nil},
		"unreachable":        {message(family, 0, main, dhcp, unix.RTN_UNREACHABLE, oif), family, nil},
		"short":              {make([]byte, 11), family, nil},
		"nothing":            {nil, family, nil},
		"truncated path":     {message(family, 0, main, dhcp, unicast, attribute(unix.RTA_MULTIPATH, []byte{99, 0, 0, 0, 2, 0, 0, 0})), family, with(func(r *Route) { r.Link = "" })},
		"truncated metric":   {message(family, 0, main, dhcp, unicast, oif, attribute(unix.RTA_PRIORITY, []byte{1})), family, []Route{plain}},
		"truncated property": {message(family, 0, main, dhcp, unicast, oif, []byte{200, 0, 6, 0}), family, []Route{plain}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, parse(tc.msg, tc.family, names)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	cloned := message(family, 0, main, dhcp, unicast, oif)
	binary.NativeEndian.PutUint32(cloned[8:], unix.RTM_F_CLONED)
	if got := parse(cloned, family, names); got != nil {
		t.Errorf("an entry of the cache was taken for a route: %+v", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(unix.AF_INET, 0, 254, 16, unix.RTN_UNICAST, attribute(unix.RTA_OIF, u32(2)),
		attribute(unix.RTA_METRICS, join(attribute(unix.RTAX_LOCK, u32(1<<16)), attribute(unix.RTAX_CC_ALGO, []byte("reno\x00"))))))
	f.Add(message(unix.AF_INET, 0, 254, 16, unix.RTN_UNICAST, attribute(unix.RTA_MULTIPATH, join(nextHop(2), nextHop(3)))))
	f.Fuzz(func(t *testing.T, msg []byte) {
		for _, r := range parse(msg, unix.AF_INET, names) {
			if r.Family != "inet" || r.Dst != "default" || r.Protocol == "" {
				t.Errorf("accepted as %+v", r)
			}
		}
	})
}

func TestJSON(t *testing.T) {
	got, err := json.Marshal([]Route{
		{Family: "inet", Dst: "default", Link: "eth0", Table: 254, Protocol: "dhcp"},
		{Family: "inet6", Dst: "default", Link: "eth0", Table: 254, Metric: 1024, Protocol: "ra", CongestionControl: "reno", CongctlLocked: true, InitialCwnd: 10, InitialRwnd: 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"family":"inet","dst":"default","link":"eth0","table":254,"metric":0,"protocol":"dhcp"},` +
		`{"family":"inet6","dst":"default","link":"eth0","table":254,"metric":1024,"protocol":"ra",` +
		`"congestion_control":"reno","congctl_locked":true,"initial_cwnd":10,"initial_rwnd":20}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDefaultsOfThisHost(t *testing.T) {
	routes, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst != "default" || r.Table == 0 {
			t.Errorf("not a default route: %+v", r)
		}
	}
}

// add makes a route with metrics, which package netlink cannot lock.
func add(t *testing.T, family uint8, table, kind uint8, attrs ...[]byte) {
	t.Helper()
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND|unix.NLM_F_ACK)
	req.AddRawData(message(family, 0, table, unix.RTPROT_STATIC, kind, attrs...))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		t.Fatal("adding a route:", err)
	}
}

// What a real kernel tells of routes that it was given.
func TestDefaultsOfKernel(t *testing.T) {
	if os.Getuid() != 0 {
		const reason = "needs root, to make a network namespace"
		if os.Getenv("CI") == "true" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if got, err := Defaults(); err != nil || len(got) != 0 {
		t.Fatalf("in an empty namespace: %+v, %v", got, err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "left"
	if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "right"}); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no veth")
	} else if err != nil {
		t.Fatal(err)
	}
	index := map[string]uint32{}
	for name, addresses := range map[string][]string{"left": {"192.0.2.1/24", "2001:db8:1::1/64"}, "right": {"198.51.100.1/24", "2001:db8:2::1/64"}} {
		l, err := h.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		index[name] = uint32(l.Attrs().Index)
		if err := h.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		for _, s := range addresses {
			a, err := netlink.ParseAddr(s)
			if err != nil {
				t.Fatal(err)
			}
			a.Flags = unix.IFA_F_NODAD
			if err := h.AddrAdd(l, a); err != nil {
				t.Fatal(err)
			}
		}
	}
	oif := func(name string) []byte { return attribute(unix.RTA_OIF, u32(index[name])) }
	gateway := func(s string) []byte {
		ip := net.ParseIP(s)
		if v4 := ip.To4(); v4 != nil {
			ip = v4
		}
		return attribute(unix.RTA_GATEWAY, ip)
	}
	metric := func(n uint32) []byte { return attribute(unix.RTA_PRIORITY, u32(n)) }
	add(t, unix.AF_INET, 254, unix.RTN_UNICAST, oif("left"), gateway("192.0.2.254"), attribute(unix.RTA_METRICS, join(
		attribute(unix.RTAX_LOCK, u32(1<<unix.RTAX_CC_ALGO)), attribute(unix.RTAX_CC_ALGO, []byte("reno\x00")),
		attribute(unix.RTAX_INITCWND, u32(30)), attribute(unix.RTAX_INITRWND, u32(40)))))
	add(t, unix.AF_INET, 254, unix.RTN_UNICAST, metric(10), attribute(unix.RTA_MULTIPATH, join(
		hop(index["left"], "192.0.2.253"), hop(index["right"], "198.51.100.254"))))
	add(t, unix.AF_INET, 0, unix.RTN_UNICAST, attribute(unix.RTA_TABLE, u32(10001)), oif("right"),
		attribute(unix.RTA_METRICS, attribute(unix.RTAX_CC_ALGO, []byte("cubic\x00"))))
	add(t, unix.AF_INET, 254, unix.RTN_BLACKHOLE, metric(4000))
	add(t, unix.AF_INET6, 254, unix.RTN_UNICAST, oif("left"), gateway("2001:db8:1::2"), metric(1024),
		attribute(unix.RTA_METRICS, attribute(unix.RTAX_CC_ALGO, []byte("reno\x00"))))
	add(t, unix.AF_INET6, 254, unix.RTN_UNICAST, oif("right"), gateway("2001:db8:2::2"), metric(2048))

	got, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	want := []Route{
		{Family: "inet", Link: "left", Table: 254, CongestionControl: "reno", CongctlLocked: true, InitialCwnd: 30, InitialRwnd: 40},
		{Family: "inet", Link: "left", Table: 254, Metric: 10, Links: []string{"left", "right"}},
		{Family: "inet", Link: "right", Table: 254, Metric: 10, Links: []string{"left", "right"}},
		{Family: "inet", Link: "right", Table: 10001, CongestionControl: "cubic", Special: PolicyTable},
		{Family: "inet6", Link: "left", Table: 254, Metric: 1024, CongestionControl: "reno"},
		{Family: "inet6", Link: "right", Table: 254, Metric: 2048},
	}
	for i := range want {
		want[i].Dst, want[i].Protocol = "default", "static"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func hop(index uint32, gateway string) []byte {
	g := attribute(unix.RTA_GATEWAY, net.ParseIP(gateway).To4())
	return join(binary.NativeEndian.AppendUint16(nil, uint16(8+len(g))), []byte{0, 0}, u32(index), g)
}
