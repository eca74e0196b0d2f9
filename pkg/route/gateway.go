package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Gateway is where a default route of the main table leads.
type Gateway struct {
	Family string `json:"family"` // "inet" or "inet6"
	Link   string `json:"link"`
	// Address is the gateway's; the zero Addr for a route straight onto the link.
	Address netip.Addr `json:"address,omitzero"`
	// Neighbour: the link finds its neighbours by ARP or neighbour discovery.
	Neighbour bool `json:"neighbour"`
}

// Gateways returns the default routes of the main table with their gateways, in
// the order of the table. A family that the kernel does not have has none.
func Gateways() ([]Gateway, error) {
	var all []Gateway
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("reading the default routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.Dst != nil && ones(r.Dst) != 0 || r.Type != unix.RTN_UNICAST {
				continue
			}
			hops := []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
			if len(r.MultiPath) > 0 {
				hops = r.MultiPath
			}
			for _, hop := range hops {
				g := Gateway{Family: "inet"}
				if family == netlink.FAMILY_V6 {
					g.Family = "inet6"
				}
				ip := hop.Gw
				if via, ok := hop.Via.(*netlink.Via); ok && via != nil {
					ip = via.Addr // an IPv4 route over an IPv6 neighbour
				}
				if a, ok := netip.AddrFromSlice(ip); ok && !a.IsUnspecified() {
					g.Address = a.Unmap()
				}
				link, err := netlink.LinkByIndex(hop.LinkIndex)
				if err != nil {
					continue // gone meanwhile
				}
				g.Link = link.Attrs().Name
				g.Neighbour = link.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT|unix.IFF_LOOPBACK) == 0
				if !slices.Contains(all, g) {
					all = append(all, g)
				}
			}
		}
	}
	return all, nil
}

// CanAnswer reports whether there is somebody to ask: not so for a route straight
// onto its link, and for a tunnel, which is up without any network card.
func (g Gateway) CanAnswer() bool { return g.Neighbour && g.Address.IsValid() }

func ones(n *net.IPNet) int {
	o, _ := n.Mask.Size()
	return o
}

// resolveTries is how often a gateway is asked for, half a second apart. The
// kernel itself repeats a question three times, a second apart.
const resolveTries = 8

// Resolve reports whether the gateway answers ARP or neighbour discovery, which
// every gateway does, while many drop pings. It sends one byte to the discard
// port, so that the kernel asks for the address, and reads the kernel's table of
// neighbours. A route without a gateway, and a link without neighbours, count as
// resolved where the link exists.
func (g Gateway) Resolve(ctx context.Context) bool {
	link, err := netlink.LinkByName(g.Link)
	if err != nil {
		return false
	}
	if !g.CanAnswer() {
		return true
	}
	family := netlink.FAMILY_V4
	if g.Address.Is6() {
		family = netlink.FAMILY_V6
	}
	const answered = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
	for try := range resolveTries {
		neighbours, err := netlink.NeighList(link.Attrs().Index, family)
		if err == nil {
			for _, n := range neighbours {
				if a, ok := netip.AddrFromSlice(n.IP); !ok || a.Unmap() != g.Address || len(n.HardwareAddr) == 0 {
					continue
				}
				// An old answer (stale) counts only if it is not renewed in the
				// first place: asked again below, it becomes reachable or fails.
				if n.State&answered != 0 || try == resolveTries-1 && n.State&netlink.NUD_FAILED == 0 {
					return true
				}
			}
		}
		g.knock()
		select {
		case <-ctx.Done():
			return false
		case <-time.After(500 * time.Millisecond):
		}
	}
	return false
}

// knock makes the kernel ask for the gateway's hardware address.
func (g Gateway) knock() {
	a := g.Address
	if a.IsLinkLocalUnicast() && a.Is6() {
		a = a.WithZone(g.Link)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte{0})
}
