package kernel

import (
	"cmp"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Numbers of ARPHRD (linux/if_arp.h) that matter here.
const (
	TypeEthernet = 1   // ARPHRD_ETHER
	TypeCAN      = 280 // ARPHRD_CAN: a queue makes it lose frames
	TypeLoopback = 772 // ARPHRD_LOOPBACK
	TypeNone     = 65534
)

// Link is a network interface.
type Link struct {
	Name       string   `json:"name"`
	Index      int      `json:"index"`                 // 0 when not known
	Type       int      `json:"type"`                  // ARPHRD number; -1 when not known
	Kind       string   `json:"kind,omitempty"`        // IFLA_INFO_KIND ("bridge", "veth", "vlan"); "" for hardware
	Driver     string   `json:"driver,omitempty"`      // "virtio_net", "ena"; "" when not known
	SpeedMbit  *int     `json:"speed_mbit,omitempty"`  // Mbit/s; nil when the driver does not say, which is usual for virtual hardware
	Queues     int      `json:"queues,omitempty"`      // transmit queues; 0 when not known
	Master     string   `json:"master,omitempty"`      // the bridge, bond or failover link it belongs to
	Lower      []string `json:"lower,omitempty"`       // the links below it: a bond's members, a VLAN's parent
	PairedWith string   `json:"paired_with,omitempty"` // for a virtual function or standby: the hv_netvsc or net_failover link that carries its traffic
	Loopback   bool     `json:"loopback,omitempty"`
	Up         bool     `json:"up,omitempty"`       // administratively up
	Hardware   bool     `json:"hardware,omitempty"` // stands for a device, real or emulated (virtio)
	// DefaultRoute says that a default route of the main table, of either family,
	// leads over it.
	DefaultRoute bool `json:"default_route,omitempty"`
}

const sysfsLinks = "/sys/class/net"

// treeLinks reads the links below sys/class/net, in index and name order. The
// second result holds each link's hardware address, only for comparing.
func treeLinks(t *Tree) ([]Link, map[string]string) {
	entries, err := t.ReadDir(sysfsLinks)
	if err != nil {
		return nil, nil
	}
	var links []Link
	addresses := map[string]string{}
	for _, entry := range entries {
		at := path.Join(sysfsLinks, entry.Name())
		if !t.isDir(at) { // bonding_masters is a file
			continue
		}
		l := Link{Name: entry.Name(), Type: -1}
		number := func(name string) (int, bool) {
			n, err := strconv.Atoi(t.text(path.Join(at, name)))
			return n, err == nil
		}
		if n, ok := number("ifindex"); ok {
			l.Index = n
		}
		if n, ok := number("type"); ok {
			l.Type = n
		}
		flags, err := strconv.ParseUint(t.text(path.Join(at, "flags")), 0, 32)
		l.Up = err == nil && flags&1 != 0                                 // IFF_UP
		l.Loopback = l.Type == TypeLoopback || err == nil && flags&8 != 0 // IFF_LOOPBACK
		l.SpeedMbit = speed(t.text(path.Join(at, "speed")))
		l.Driver = linkTarget(t, path.Join(at, "device/driver"))
		l.Master = linkTarget(t, path.Join(at, "master"))
		if _, err := t.Lstat(path.Join(at, "device")); err == nil {
			l.Hardware = true
		}
		l.Kind = treeKind(t, at)
		members, _ := t.ReadDir(at)
		for _, m := range members {
			if lower, ok := strings.CutPrefix(m.Name(), "lower_"); ok && lower != "" {
				l.Lower = append(l.Lower, lower)
			}
		}
		queues, _ := t.ReadDir(path.Join(at, "queues"))
		for _, q := range queues {
			if strings.HasPrefix(q.Name(), "tx-") {
				l.Queues++
			}
		}
		addresses[l.Name] = sysfsAddress(t, at)
		links = append(links, l)
	}
	sortLinks(links)
	return links, addresses
}

// sysfsAddress returns a link's hardware address, "" for one of zeros, as the
// netlink library does.
func sysfsAddress(t *Tree, dir string) string {
	address := t.text(path.Join(dir, "address"))
	if strings.Trim(address, "0:") == "" {
		return ""
	}
	return address
}

func sortLinks(links []Link) {
	slices.SortStableFunc(links, func(a, b Link) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), strings.Compare(a.Name, b.Name))
	})
}

// speed reads what /sys/class/net/*/speed holds. -1, 4294967295 and 0 all mean that
// the driver does not know.
func speed(s string) *int {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n >= math.MaxInt32 {
		return nil
	}
	v := int(n)
	return &v
}

// linkTarget returns the last element of a link's target. Recorded trees may hold
// a plain file with the target in it where the host has a link, because not every
// archive keeps links.
func linkTarget(t *Tree, name string) string {
	info, err := t.Lstat(name)
	if err != nil {
		return ""
	}
	target := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err = t.Readlink(name)
		if err != nil {
			return ""
		}
	case info.Mode().IsRegular() && info.Size() < 4096:
		target = t.text(name)
	}
	if base := path.Base(target); target != "" && base != "." && base != ".." && base != "/" {
		return base
	}
	return ""
}

// treeKind finds the kind of a software link from the marks it leaves in sysfs;
// not every kind leaves one.
func treeKind(t *Tree, at string) string {
	for _, line := range strings.Split(t.text(path.Join(at, "uevent")), "\n") {
		if kind, ok := strings.CutPrefix(line, "DEVTYPE="); ok && kind != "wlan" && kind != "wwan" {
			return kind
		}
	}
	for _, mark := range []struct{ file, kind string }{
		{"bridge", "bridge"}, {"bonding", "bond"}, {"tun_flags", "tun"},
	} {
		if t.Exists(path.Join(at, mark.file)) {
			return mark.kind
		}
	}
	return ""
}

// treeDefaultRoutes marks the links that default routes lead over, if the tree holds
// the kernel's old routing tables.
func treeDefaultRoutes(t *Tree, links []Link) {
	over := map[string]bool{}
	for line := range strings.Lines(t.text("/proc/net/route")) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		f := strings.Fields(line)
		if len(f) >= 8 && f[1] == "00000000" && f[7] == "00000000" {
			over[f[0]] = true
		}
	}
	for line := range strings.Lines(t.text("/proc/net/ipv6_route")) {
		// destination, its length, source, its length, next hop, metric,
		// references, use, flags, link; RTF_REJECT is 0x200
		f := strings.Fields(line)
		if len(f) < 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" {
			continue
		}
		if flags, err := strconv.ParseUint(f[8], 16, 64); err == nil && flags&0x200 == 0 {
			over[f[9]] = true
		}
	}
	for i := range links {
		links[i].DefaultRoute = over[links[i].Name]
	}
}

// pair marks the links whose packets reach them through another link that is
// itself hardware: virtual functions under hv_netvsc or net_failover.
// addresses may be nil; the same hardware address beside an hv_netvsc link shows
// the pair before the kernel has made one the other's master.
func pair(links []Link, addresses map[string]string) {
	byName := map[string]*Link{}
	for i := range links {
		byName[links[i].Name] = &links[i]
	}
	for i := range links {
		l := &links[i]
		if !l.Hardware {
			continue
		}
		if m := byName[l.Master]; m != nil && m.Hardware && m.Kind == "" {
			l.PairedWith = m.Name
			continue
		}
		address := addresses[l.Name]
		if l.Master != "" || address == "" || l.Driver == "hv_netvsc" {
			continue
		}
		for _, other := range links {
			if other.Driver == "hv_netvsc" && addresses[other.Name] == address {
				l.PairedWith = other.Name
			}
		}
	}
}
