package kernel

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestTreeLinks(t *testing.T) {
	const dir = "sys/class/net/"
	f := detect(t, host{
		dir + "bonding_masters":                          "bond0\n",
		dir + "eth0":                                     "-> ../../devices/pci0/virtio0/net/eth0",
		"sys/devices/pci0/virtio0/driver":                "-> ../../../bus/virtio/drivers/virtio_net",
		"sys/devices/pci0/virtio0/net/eth0/device":       "-> ../../../virtio0",
		"sys/devices/pci0/virtio0/net/eth0/type":         "1\n",
		"sys/devices/pci0/virtio0/net/eth0/ifindex":      "2\n",
		"sys/devices/pci0/virtio0/net/eth0/flags":        "0x1003\n",
		"sys/devices/pci0/virtio0/net/eth0/speed":        "2147483647\n",
		"sys/devices/pci0/virtio0/net/eth0/master":       "-> ../../../../virtual/net/bond0",
		"sys/devices/pci0/virtio0/net/eth0/queues/tx-0/": "", "sys/devices/pci0/virtio0/net/eth0/queues/tx-1/": "", "sys/devices/pci0/virtio0/net/eth0/queues/rx-0/": "",
		dir + "bond0/type": "1\n", dir + "bond0/ifindex": "3\n", dir + "bond0/lower_eth0": "-> ../eth0", dir + "bond0/bonding/": "", dir + "bond0/speed": "4294967296\n",
		dir + "br0/type": "1\n", dir + "br0/ifindex": "4\n", dir + "br0/uevent": "DEVTYPE=bridge\nINTERFACE=br0\n",
		dir + "br1/bridge/": "", dir + "br1/ifindex": "5\n",
		dir + "tun0/tun_flags": "0x1002\n", dir + "tun0/ifindex": "6\n", dir + "tun0/type": "65534\n",
		dir + "wlan0/uevent": "DEVTYPE=wlan\n", dir + "wlan0/ifindex": "7\n",
		dir + "lo/type": "772\n", dir + "lo/ifindex": "1\n", dir + "lo/flags": "0x9\n",
		"proc/net/route":      "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nbond0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\nbr0\t0000A8C0\t0\t1\t0\t0\t0\t0000FFFF\n",
		"proc/net/ipv6_route": "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 wlan0\n00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n",
	}.dir(t))
	want := []Link{
		{Name: "lo", Index: 1, Type: TypeLoopback, Loopback: true, Up: true},
		{Name: "eth0", Index: 2, Type: TypeEthernet, Driver: "virtio_net", Queues: 2, Master: "bond0", Up: true, Hardware: true},
		{Name: "bond0", Index: 3, Type: TypeEthernet, Kind: "bond", Lower: []string{"eth0"}, DefaultRoute: true},
		{Name: "br0", Index: 4, Type: TypeEthernet, Kind: "bridge"},
		{Name: "br1", Index: 5, Type: -1, Kind: "bridge"},
		{Name: "tun0", Index: 6, Type: TypeNone, Kind: "tun"},
		{Name: "wlan0", Index: 7, Type: -1, DefaultRoute: true},
	}
	if diff := cmp.Diff(want, f.Links); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPair(t *testing.T) {
	vf := func(master string) Link {
		return Link{Name: "enP1s1", Hardware: true, Driver: "mlx5_core", Master: master}
	}
	netvsc := Link{Name: "eth0", Hardware: true, Driver: "hv_netvsc"}
	for _, c := range []struct {
		name      string
		links     []Link
		addresses map[string]string
		want      string // what enP1s1 is paired with
	}{
		{"netvsc", []Link{netvsc, vf("eth0")}, nil, "eth0"},
		{"before it is enslaved", []Link{netvsc, vf("")}, map[string]string{"eth0": "a", "enP1s1": "a"}, "eth0"},
		{"two cards", []Link{netvsc, vf("")}, map[string]string{"eth0": "a", "enP1s1": "b"}, ""},
		{"no addresses", []Link{netvsc, vf("")}, map[string]string{}, ""},
		{"net_failover", []Link{{Name: "eth0", Hardware: true, Driver: "virtio_net"}, vf("eth0")}, nil, "eth0"},
		{"bond", []Link{{Name: "bond0", Kind: "bond"}, vf("bond0")}, nil, ""},
		{"bond of equal addresses", []Link{{Name: "bond0", Kind: "bond"}, vf("bond0"), netvsc}, map[string]string{"eth0": "a", "enP1s1": "a"}, ""},
		{"master in another namespace", []Link{vf("gone")}, nil, ""},
	} {
		pair(c.links, c.addresses)
		for _, l := range c.links {
			want := ""
			if l.Name == "enP1s1" {
				want = c.want
			}
			if l.PairedWith != want {
				t.Errorf("%s: %s is paired with %q, want %q", c.name, l.Name, l.PairedWith, want)
			}
		}
	}
}

func TestNexthopLinks(t *testing.T) {
	hop := func(size uint16, index uint32, more ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, size)
		b = append(b, 0, 0)
		return append(binary.NativeEndian.AppendUint32(b, index), more...)
	}
	array := slices.Concat(hop(16, 3, 1, 2, 3, 4, 5, 6, 7, 8), hop(8, 7))
	if got := nexthopLinks(array); !slices.Equal(got, []int{3, 7}) {
		t.Errorf("two hops: %v", got)
	}
	for _, bad := range [][]byte{nil, {1}, hop(0, 3), hop(200, 3), hop(7, 3)} {
		if got := nexthopLinks(bad); got != nil {
			t.Errorf("%v gives %v", bad, got)
		}
	}
}

// inNewNetns runs a test in a network namespace of its own, on one thread that is
// thrown away with it.
func inNewNetns(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, for a network namespace")
		}
		t.Skip("needs root, for a network namespace")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("no network namespace to be had here: %v", err)
	}
}

func TestLiveLinks(t *testing.T) {
	inNewNetns(t, func() {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			t.Error(err)
			return
		}
		defer h.Close()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		attrs := func(name string) netlink.LinkAttrs {
			a := netlink.NewLinkAttrs()
			a.Name = name
			return a
		}
		veth := &netlink.Veth{LinkAttrs: attrs("v0"), PeerName: "v1"}
		veth.NumTxQueues, veth.NumRxQueues = 4, 4
		must(h.LinkAdd(veth))
		must(h.LinkSetUp(veth))
		must(h.AddrAdd(veth, &netlink.Addr{IPNet: netlink.NewIPNet([]byte{10, 9, 8, 7})}))
		everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		must(h.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Scope: netlink.SCOPE_LINK, Dst: everywhere}))

		f, err := Detect("/")
		if err != nil {
			t.Error(err)
			return
		}
		find := func(name string) Link {
			i := slices.IndexFunc(f.Links, func(l Link) bool { return l.Name == name })
			if i < 0 {
				t.Errorf("no link %s in %+v", name, f.Links)
				return Link{}
			}
			l := f.Links[i]
			l.Index = 0
			return l
		}
		want := Link{Name: "v0", Type: TypeEthernet, Kind: "veth", Queues: 4, Up: true, DefaultRoute: true}
		if diff := cmp.Diff(want, find("v0")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if lo := find("lo"); !lo.Loopback || lo.Up || lo.Type != TypeLoopback || lo.Kind != "" || lo.DefaultRoute {
			t.Errorf("%+v", lo)
		}
		if f.Virtualization.InitialNetns == nil || *f.Virtualization.InitialNetns {
			t.Errorf("a new namespace is initial: %s", show(f.Virtualization.InitialNetns))
		}
		if f.DefaultQdisc != nil {
			t.Errorf("default_qdisc is %q in a new namespace", *f.DefaultQdisc)
		}
		// The mounted sysfs shows another namespace: nothing of its links may
		// be believed, though one has our index.
		for _, l := range f.Links {
			if l.Driver != "" || l.Hardware || l.SpeedMbit != nil {
				t.Errorf("taken from another namespace: %+v", l)
			}
		}
		// The kernel here may lack these kinds; what it has must be seen right.
		bridge := &netlink.Bridge{LinkAttrs: attrs("b0")}
		if h.LinkAdd(bridge) == nil {
			must(h.LinkSetMaster(veth, bridge))
		}
		vlan := &netlink.Vlan{LinkAttrs: attrs("v1.100"), VlanId: 100}
		peer, err := h.LinkByName("v1")
		must(err)
		vlan.ParentIndex = peer.Attrs().Index
		haveVlan := h.LinkAdd(vlan) == nil
		links, err := liveLinks(openTree(t, "/"))
		must(err)
		f.Links = links
		if bridge.Index != 0 {
			if v0, b0 := find("v0"), find("b0"); v0.Master != "b0" || b0.Kind != "bridge" || !slices.Equal(b0.Lower, []string{"v0"}) {
				t.Errorf("bridge: %+v %+v", v0, b0)
			}
		}
		if haveVlan {
			if l := find("v1.100"); l.Kind != "vlan" || !slices.Equal(l.Lower, []string{"v1"}) {
				t.Errorf("vlan: %+v", l)
			}
		}
	})
}

// A link is read back from JSON as it was.
func TestLinkJSON(t *testing.T) {
	l := Link{Name: "eth0", Index: 2, Type: 1, Kind: "x", Driver: "d", SpeedMbit: ptr(10000), Queues: 4, Master: "m", Lower: []string{"a"}, PairedWith: "p", Loopback: true, Up: true, Hardware: true, DefaultRoute: true}
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var got Link
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l, got); diff != "" {
		t.Errorf("%s", diff)
	}
}

// Sysfs is believed only if it shows exactly the links that netlink lists.
func TestShowsThese(t *testing.T) {
	const dir = "sys/class/net/"
	shown := host{
		dir + "bonding_masters": "\n",
		dir + "lo/ifindex":      "1\n", dir + "lo/address": "00:00:00:00:00:00\n",
		dir + "eth0/ifindex": "2\n", dir + "eth0/address": "02:fc:00:00:00:01\n",
	}
	links := []Link{{Name: "lo", Index: 1}, {Name: "eth0", Index: 2}}
	addresses := map[string]string{"eth0": "02:fc:00:00:00:01"}
	for _, c := range []struct {
		name      string
		host      host
		links     []Link
		addresses map[string]string
		want      bool
	}{
		{"the same", shown, links, addresses, true},
		{"no sysfs", host{}, links, addresses, false},
		{"one more there", shown.with(host{dir + "eth1/ifindex": "3\n"}), links, addresses, false},
		{"one more here", shown, append(links[:2:2], Link{Name: "eth1", Index: 3}), addresses, false},
		{"another name", shown, []Link{links[0], {Name: "eth1", Index: 2}}, addresses, false},
		{"another index", shown, []Link{links[0], {Name: "eth0", Index: 3}}, addresses, false},
		{"another address", shown, links, map[string]string{"eth0": "02:fc:00:00:00:02"}, false},
	} {
		if got := showsThese(c.host.tree(t), c.links, c.addresses); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
