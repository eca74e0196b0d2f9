package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"accel/pkg/sysctl"
)

// Every end hangs on the router by a veth pair of its own, in a network of its
// own out of the addresses for benchmarks (RFC 2544, 198.18.0.0/15): the
// router's side is .1, the end's .2. Neighbours are entered by hand, for a lost
// question about them would cost a second.

// endLink is the name of an end's link in its namespace.
const endLink = "eth0"

// tree is /proc/sys, which shows every process its own network namespace.
var tree = sysctl.Tree{Root: "/proc/sys"}

func endAddress(n int) netip.Addr    { return netip.AddrFrom4([4]byte{198, 18, byte(n), 2}) }
func routerAddress(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(n), 1}) }

func routerLink(n int) string { return fmt.Sprintf("end%d", n) }

// hardware is a locally administered address.
func hardware(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{2, 0, b[0], b[1], b[2], b[3]}
}

func network(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(30, 32)}}
}

// quiet sets up lo and turns IPv6 off, whose own packets would be in the way.
func quiet() error {
	for _, k := range []sysctl.Key{"net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"} {
		if tree.Exists(k) {
			if err := tree.Write(k, "1"); err != nil {
				return err
			}
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback link: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting up the loopback link: %w", err)
	}
	return nil
}

// addEnd connects end n, whose namespace is that of a process, to the router's,
// which is ours. Errors: *Missing.
func addEnd(n, pid int) error {
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: routerLink(n), HardwareAddr: hardware(routerAddress(n))},
		PeerName:         endLink,
		PeerHardwareAddr: hardware(endAddress(n)),
		PeerNamespace:    netlink.NsPid(pid),
	}
	// A queue for each CPU means nothing to one flow, and mq in the way.
	veth.NumTxQueues, veth.NumRxQueues = 1, 1
	err := netlink.LinkAdd(veth)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return &Missing{What: "link", Name: "veth", Module: "veth"}
	}
	if err != nil {
		return fmt.Errorf("making a veth pair: %w", err)
	}
	return setUp(routerLink(n), routerAddress(n), endAddress(n))
}

// setUp gives a link its address and its neighbour, takes its offloads away and
// sets it up.
func setUp(name string, own, neighbour netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding the link %s: %w", name, err)
	}
	if err := noOffloads(name); err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, network(own)); err != nil {
		return fmt.Errorf("giving the link %s an address: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting up the link %s: %w", name, err)
	}
	err = netlink.NeighAdd(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: neighbour.AsSlice(), HardwareAddr: hardware(neighbour),
	})
	if err != nil {
		return fmt.Errorf("entering the neighbour on the link %s: %w", name, err)
	}
	return nil
}

// routeAll sets the default route of end n, with the metrics of an arm.
func routeAll(n int, arm Arm) error {
	link, err := netlink.LinkByName(endLink)
	if err != nil {
		return fmt.Errorf("finding the link %s: %w", endLink, err)
	}
	err = netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Gw: routerAddress(n).AsSlice(),
		InitCwnd: arm.InitialCwnd, InitRwnd: arm.InitialRwnd,
		RtoMin: arm.RTOMin, RtoMinLock: true, // unlocked the kernel does not look at it
	})
	if err != nil {
		return fmt.Errorf("setting the default route: %w", err)
	}
	return nil
}

// rootQdisc gives the link of an end a root qdisc of a kind; "" is the kernel's
// own, which for a veth is none. Errors: *Missing.
func rootQdisc(kind string) error {
	link, err := netlink.LinkByName(endLink)
	if err != nil {
		return fmt.Errorf("finding the link %s: %w", endLink, err)
	}
	if err := clearRoot(link.Attrs().Index); err != nil || kind == "" {
		return err
	}
	return addQdisc(link.Attrs().Index, netlink.HANDLE_ROOT, 3<<16, kind, nil)
}

// Commands of ethtool (linux/ethtool.h) that turn offloads on and off. With one
// of them on, a "packet" of up to 64 KiB would be delayed, lost and counted as
// one.
const (
	setTSO = 0x1f
	setGSO = 0x24
	setGRO = 0x2c
)

// ifreq is struct ifreq with a pointer.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

func noOffloads(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(fd)
	for _, command := range []uint32{setTSO, setGSO, setGRO} {
		value := &struct{ command, data uint32 }{command, 0}
		req := &ifreq{data: unsafe.Pointer(value)}
		copy(req.name[:unix.IFNAMSIZ-1], link)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(req)))
		runtime.KeepAlive(value)
		if errno != 0 && errno != unix.EOPNOTSUPP { // what does not exist is off
			return fmt.Errorf("turning off the offloads of the link %s: %w", link, errno)
		}
	}
	return nil
}

// Generic netlink of the TCP metrics cache (linux/tcp_metrics.h).
const (
	metricsFamily = "tcp_metrics"
	metricsDelete = 2 // TCP_METRICS_CMD_DEL; without an address: all
)

// forget clears what TCP remembers about its peers in this namespace.
func forget() error {
	family, err := netlink.GenlFamilyGet(metricsFamily)
	if err != nil {
		return fmt.Errorf("clearing the cached TCP metrics: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: metricsDelete, Version: 1})
	if _, err := req.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		return fmt.Errorf("clearing the cached TCP metrics: %w", err)
	}
	return nil
}
