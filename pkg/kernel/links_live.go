package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// liveLinks returns the links of this thread's network namespace. What only sysfs
// knows (driver, speed) is added if the mounted sysfs shows the same namespace:
// it shows that of whoever mounted it.
func liveLinks(t *Tree) ([]Link, error) {
	var links []Link
	var addresses map[string]string
	var err error
	// A link that comes or goes between the two readings looks like another
	// namespace, so look again before believing that.
	for range 3 {
		if links, addresses, err = netlinkLinks(); err != nil {
			return nil, fmt.Errorf("listing links: %w", err)
		}
		if showsThese(t, links, addresses) {
			for i := range links {
				addSysfs(t, &links[i])
			}
			break
		}
	}
	onDefaultRoute, err := netlinkDefaultRoutes()
	if err != nil {
		return nil, fmt.Errorf("listing default routes: %w", err)
	}
	for i := range links {
		links[i].DefaultRoute = onDefaultRoute[links[i].Index]
	}
	pair(links, addresses)
	sortLinks(links)
	return links, nil
}

// showsThese says that sysfs shows exactly these links, by everything that names
// them.
func showsThese(t *Tree, links []Link, addresses map[string]string) bool {
	shown := 0
	entries, _ := t.ReadDir(sysfsLinks)
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 || e.IsDir() { // bonding_masters is a file
			shown++
		}
	}
	if shown != len(links) {
		return false
	}
	for _, l := range links {
		dir := path.Join(sysfsLinks, l.Name)
		if t.text(path.Join(dir, "ifindex")) != strconv.Itoa(l.Index) || sysfsAddress(t, dir) != addresses[l.Name] {
			return false
		}
	}
	return true
}

// addSysfs adds what only sysfs knows. Not all that it could: a host of containers
// has hundreds of links of no interest.
func addSysfs(t *Tree, l *Link) {
	dir := path.Join(sysfsLinks, l.Name)
	l.Hardware = t.Exists(path.Join(dir, "device"))
	if l.Hardware {
		l.Driver = linkTarget(t, path.Join(dir, "device/driver"))
	}
	if l.Hardware || l.Kind == "bond" || l.Kind == "team" {
		l.SpeedMbit = speed(t.text(path.Join(dir, "speed")))
	}
}

// dump asks the kernel for a whole table and hands each message to each. It asks
// again from the start, after calling reset, when the table changed meanwhile: a
// partial answer is worse than a slow one. Only the one netlink family is opened:
// lean kernels lack others.
func dump(request int, body nl.NetlinkRequestData, answer uint16, reset func(), each func([]byte) error) error {
	var err error
	for range 10 {
		reset()
		req := nl.NewNetlinkRequest(request, unix.NLM_F_DUMP)
		req.AddData(body)
		var bad error
		err = req.ExecuteIter(unix.NETLINK_ROUTE, answer, func(m []byte) bool {
			bad = each(m)
			return bad == nil
		})
		if bad != nil {
			return bad
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

func netlinkLinks() ([]Link, map[string]string, error) {
	type found struct {
		number uint16 // ARPHRD, which the library keeps only as text
		link   netlink.Link
	}
	var all []found
	err := dump(unix.RTM_GETLINK, nl.NewIfInfomsg(unix.AF_UNSPEC), unix.RTM_NEWLINK,
		func() { all = nil },
		func(m []byte) error {
			link, err := netlink.LinkDeserialize(nil, m)
			if err == nil {
				all = append(all, found{nl.DeserializeIfInfomsg(m).Type, link})
			}
			return err
		})
	if err != nil {
		return nil, nil, err
	}
	names := map[int]string{}
	for _, f := range all {
		names[f.link.Attrs().Index] = f.link.Attrs().Name
	}
	links := make([]Link, 0, len(all))
	lower := map[int][]string{}
	addresses := map[string]string{}
	for _, f := range all {
		a := f.link.Attrs()
		l := Link{
			Name:     a.Name,
			Index:    a.Index,
			Type:     int(f.number),
			Kind:     f.link.Type(),
			Queues:   a.NumTxQueues,
			Master:   names[a.MasterIndex],
			Loopback: a.Flags&net.FlagLoopback != 0,
			Up:       a.Flags&net.FlagUp != 0,
			Hardware: a.ParentDev != "",
		}
		switch l.Kind {
		case "device":
			l.Kind = ""
		case "tuntap": // the library's word for the kernel's
			l.Kind = "tun"
		}
		if a.MasterIndex != 0 {
			lower[a.MasterIndex] = append(lower[a.MasterIndex], a.Name)
		}
		// A veth's "parent" is its peer, and an index of another namespace means
		// nothing in this one.
		parent := names[a.ParentIndex]
		if parent != "" && a.ParentIndex != a.Index && a.NetNsID < 0 && l.Kind != "veth" {
			lower[a.Index] = append(lower[a.Index], parent)
		}
		if len(a.HardwareAddr) > 0 {
			addresses[a.Name] = a.HardwareAddr.String()
		}
		links = append(links, l)
	}
	for i := range links {
		links[i].Lower = lower[links[i].Index]
		slices.Sort(links[i].Lower)
	}
	return links, addresses, nil
}

// netlinkDefaultRoutes returns the indexes of the links that default routes of the
// main table lead over. It looks into no other message than theirs: a router has a
// million routes.
func netlinkDefaultRoutes() (map[int]bool, error) {
	indexes := map[int]bool{}
	body := &nl.RtMsg{}
	body.Family = unix.AF_UNSPEC
	err := dump(unix.RTM_GETROUTE, body, unix.RTM_NEWROUTE,
		func() { clear(indexes) },
		func(m []byte) error {
			msg := nl.DeserializeRtMsg(m)
			if msg.Dst_len != 0 || msg.Table != unix.RT_TABLE_MAIN || msg.Type != unix.RTN_UNICAST ||
				msg.Flags&unix.RTM_F_CLONED != 0 ||
				msg.Family != unix.AF_INET && msg.Family != unix.AF_INET6 {
				return nil
			}
			attrs, err := nl.ParseRouteAttr(m[msg.Len():])
			if err != nil {
				return err
			}
			for _, a := range attrs {
				switch a.Attr.Type {
				case unix.RTA_OIF:
					if len(a.Value) >= 4 {
						indexes[int(binary.NativeEndian.Uint32(a.Value))] = true
					}
				case unix.RTA_MULTIPATH:
					for _, i := range nexthopLinks(a.Value) {
						indexes[i] = true
					}
				}
			}
			return nil
		})
	return indexes, err
}

// nexthopLinks reads the link indexes out of an array of struct rtnexthop.
func nexthopLinks(b []byte) []int {
	var indexes []int
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		indexes = append(indexes, int(binary.NativeEndian.Uint32(b[4:])))
		b = b[min((size+3)&^3, len(b)):]
	}
	return indexes
}
