package qdisc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// These tests change links and qdiscs of a real kernel. Each runs in network
// namespaces of its own. net.core.default_qdisc belongs to the whole machine:
// tests that change it run only inside a virtual machine of package test/vm,
// and so do those that need a kernel with fq.

// needRoot skips the test without root, or fails it where that must not be.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() == 0 {
		return
	}
	const reason = "needs root, to make network namespaces"
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// needMachine skips the test outside a virtual machine of package test/vm.
func needMachine(t *testing.T) {
	t.Helper()
	needRoot(t)
	if os.Getenv("ACCEL_GUEST") != "1" {
		t.Skip("changes net.core.default_qdisc of the machine: runs inside the virtual machines of test/vm")
	}
}

// inNamespace moves the rest of the test to a network namespace of its own.
// The thread is not unlocked, so that it ends with the test.
func inNamespace(t *testing.T) {
	t.Helper()
	needRoot(t)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal("making a network namespace:", err)
	}
}

func handle(t *testing.T) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// modprobe loads a module where there is something to load it with; whether it
// worked shows later.
func modprobe(name string) {
	for _, p := range []string{"/sbin/modprobe", "/usr/sbin/modprobe"} {
		if exec.Command(p, "-q", name).Run() == nil {
			return
		}
	}
}

// add makes a link and sets it up; it skips the test if this kernel has no
// such links.
func add(t *testing.T, l netlink.Link) netlink.Link {
	t.Helper()
	h := handle(t)
	err := h.LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no links of kind %s", l.Type())
	}
	if err != nil {
		t.Fatalf("making %s: %v", l.Attrs().Name, err)
	}
	t.Cleanup(func() { _ = h.LinkDel(l) })
	if err := h.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	l, err = h.LinkByName(l.Attrs().Name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func attrs(name string, queues int) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.NumTxQueues = name, queues
	return a
}

// ifb makes an up link with so many queues, one that nothing is sent through.
func ifb(t *testing.T, name string, queues int) netlink.Link {
	t.Helper()
	return add(t, &netlink.Ifb{LinkAttrs: attrs(name, queues)})
}

func tree(t *testing.T, link string) Tree {
	t.Helper()
	trees, err := Trees()
	if err != nil {
		t.Fatal(err)
	}
	for _, tree := range trees {
		if tree.Link == link {
			return tree
		}
	}
	t.Fatalf("no link %s", link)
	return Tree{}
}

// defaultQdisc reads, or writes if kind is not "", net.core.default_qdisc. Only
// the machine's own namespace has that key: a goroutine of its own runs there,
// wherever the thread of the test is.
func defaultQdisc(kind string) (was string, err error) {
	const name = "/proc/sys/net/core/default_qdisc"
	done := make(chan struct{})
	go func() {
		defer close(done)
		if kind != "" {
			err = os.WriteFile(name, []byte(kind), 0)
			return
		}
		var data []byte
		data, err = os.ReadFile(name)
		was = strings.TrimSpace(string(data))
	}()
	<-done
	return was, err
}

// setDefault changes net.core.default_qdisc of the machine until the test
// ends; it skips the test if the kernel does not have the kind.
func setDefault(t *testing.T, kind string) {
	t.Helper()
	before, err := defaultQdisc("")
	if err != nil {
		t.Fatal(err)
	}
	modprobe("sch_" + kind)
	_, err = defaultQdisc(kind)
	if errors.Is(err, unix.ENOENT) {
		t.Skipf("this kernel has no qdisc %s", kind)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := defaultQdisc(before); err != nil {
			t.Error(err)
		}
	})
}

// messages collects what the kernel multicasts about links and qdiscs.
type messages struct {
	t      *testing.T
	socket *nl.NetlinkSocket
}

func listen(t *testing.T) messages {
	t.Helper()
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_TC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.SetReceiveBufferSize(8<<20, true); err != nil {
		t.Fatal(err)
	}
	if err := s.SetReceiveTimeout(&unix.Timeval{Usec: 100_000}); err != nil {
		t.Fatal(err)
	}
	return messages{t, s}
}

// take returns how many messages about qdiscs came since the last call, and
// the flags of the link in each message about it.
func (m messages) take(index int) (qdiscs int, flags []uint32) {
	m.t.Helper()
	for {
		batch, _, err := m.socket.Receive()
		if errors.Is(err, unix.EAGAIN) {
			return qdiscs, flags
		}
		if err != nil {
			m.t.Fatal("listening:", err)
		}
		for _, msg := range batch {
			switch msg.Header.Type {
			case unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
				qdiscs++
			case unix.RTM_NEWLINK, unix.RTM_DELLINK:
				if l, ok := parseLink(msg.Data); ok && l.index == index {
					flags = append(flags, l.flags)
				}
			}
		}
	}
}

// checkNoFlap fails the test if a message shows the link down.
func checkNoFlap(t *testing.T, flags []uint32) {
	t.Helper()
	for _, f := range flags {
		if f&unix.IFF_UP == 0 || f&unix.IFF_RUNNING == 0 {
			t.Errorf("the link was down: flags %#x", f)
		}
	}
}

func carrierChanges(t *testing.T, h *netlink.Handle, link string) uint32 {
	t.Helper()
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(link)))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(msgs) != 1 {
		t.Fatal(err, len(msgs))
	}
	var n uint32
	attributes(msgs[0][sizeofIfinfo:], func(kind int, value []byte) {
		if kind == unix.IFLA_CARRIER_CHANGES {
			n = nl.NativeEndian().Uint32(value)
		}
	})
	return n
}

// On whatever kernel runs the tests, with its default qdisc as it is: a
// rebuild gives the same tree back, parameters included.
func TestRebuildSame(t *testing.T) {
	for _, queues := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d queues", queues), func(t *testing.T) {
			inNamespace(t)
			link := ifb(t, "ifb9", queues)
			before := tree(t, "ifb9")
			if want := map[int]int{1: 0, 4: 4}[queues]; !before.KernelMade() || len(before.Leaves) != want {
				t.Fatalf("unexpected tree: %+v", before)
			}
			m := listen(t)
			if err := Rebuild("ifb9"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, tree(t, "ifb9")); diff != "" {
				t.Errorf("(-before +after)\n%s", diff)
			}
			changes, flags := m.take(link.Attrs().Index)
			if changes == 0 {
				t.Error("Rebuild did nothing")
			}
			checkNoFlap(t, flags)

			// RebuildTo what is there already must not touch it.
			if err := RebuildTo("ifb9", before.Kind()); err != nil {
				t.Fatal(err)
			}
			if changes, _ := m.take(link.Attrs().Index); changes != 0 {
				t.Errorf("RebuildTo the same kind made %d changes", changes)
			}
		})
	}
}

func TestRebuildWithoutLink(t *testing.T) {
	inNamespace(t)
	for _, name := range []string{"", "nosuch0", strings.Repeat("x", 16), strings.Repeat("x", 300)} {
		if err := Rebuild(name); !errors.Is(err, ErrNoLink) {
			t.Errorf("Rebuild(%q) = %v, want ErrNoLink", name, err)
		}
	}
}

// A link that is down keeps its tree, and one that never was up has none.
func TestRebuildDown(t *testing.T) {
	inNamespace(t)
	h := handle(t)
	link := ifb(t, "ifb9", 4)
	if err := h.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	before := tree(t, "ifb9")
	if !before.KernelMade() {
		t.Fatalf("the tree is gone: %+v", before)
	}
	if err := Rebuild("ifb9"); !errors.Is(err, ErrDown) {
		t.Errorf("Rebuild of a down link: %v, want ErrDown", err)
	}
	if diff := cmp.Diff(before, tree(t, "ifb9")); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}

	if err := h.LinkAdd(&netlink.Ifb{LinkAttrs: attrs("ifb8", 4)}); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, "ifb8"); got.Kind() != "noop" {
		t.Fatalf("a new link has %+v", got)
	}
	if err := Rebuild("ifb8"); !errors.Is(err, ErrDown) {
		t.Errorf("Rebuild of a link that never was up: %v, want ErrDown", err)
	}

	// A placeholder is cleaned up nevertheless.
	c := placeholderOn(t, "ifb7")
	l, err := c.link("ifb7")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetDown(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: l.index}}); err != nil {
		t.Fatal(err)
	}
	if err := Rebuild("ifb7"); !errors.Is(err, ErrDown) {
		t.Errorf("Rebuild of a down link with a placeholder: %v, want ErrDown", err)
	}
	if got := tree(t, "ifb7"); got.Kind() != "noop" {
		t.Errorf("the placeholder is still there: %+v", got)
	}
}

// placeholderOn makes a link in the state in which a Rebuild leaves it that is
// killed between its two steps.
func placeholderOn(t *testing.T, name string) *conn {
	t.Helper()
	link := ifb(t, name, 4)
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	if err := c.put(link.Attrs().Index); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRebuildLeftover(t *testing.T) {
	inNamespace(t)
	ifb(t, "ifb8", 4)
	want := tree(t, "ifb8")
	placeholderOn(t, "ifb9")
	left := tree(t, "ifb9")
	if !left.Leftover() || left.KernelMade() {
		t.Fatalf("not recognised: %+v", left)
	}
	if err := RebuildTo("ifb9", want.Kind()); err != nil {
		t.Fatal(err)
	}
	got := tree(t, "ifb9")
	got.Link, got.Index = want.Link, want.Index
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The kernel must refuse both steps on a root that is not the one we mean.
func TestStepsAreConditional(t *testing.T) {
	inNamespace(t)
	h := handle(t)
	link := ifb(t, "ifb9", 4)
	index := link.Attrs().Index
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	foreign := &netlink.GenericQdisc{QdiscType: "pfifo", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: 0x10000}}
	if err := h.QdiscAdd(foreign); err != nil {
		t.Fatal(err)
	}
	before := tree(t, "ifb9")
	if err := c.put(index); !errors.Is(err, unix.EEXIST) {
		t.Errorf("put over a foreign root: %v, want EEXIST", err)
	}
	if err := c.remove(index); err == nil {
		t.Error("removed a foreign root")
	}
	if err := Rebuild("ifb9"); !errors.Is(err, ErrConfigured) {
		t.Errorf("Rebuild: %v, want ErrConfigured", err)
	}
	if diff := cmp.Diff(before, tree(t, "ifb9")); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// Somebody who sets a root qdisc while we rebuild never loses it.
func TestRebuildRace(t *testing.T) {
	inNamespace(t)
	link := ifb(t, "ifb9", 4)
	h := handle(t)
	foreign := &netlink.GenericQdisc{QdiscType: "pfifo", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: 0x10000}}
	start, done := make(chan struct{}), make(chan struct{})
	ready := make(chan error)
	go func() {
		// Its sockets are opened in this namespace, its thread is another.
		defer close(done)
		for range start {
			ready <- h.QdiscReplace(foreign)
		}
	}()
	var kept int
	for i := range 30 {
		result := make(chan error)
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer c.close()
			var err error
			for range rebuildAttempts {
				var again bool
				if again, err = c.rebuildOnce(link.Attrs().Index, ""); err == nil || !again {
					break
				}
			}
			result <- err
		}()
		time.Sleep(time.Duration(i) * 300 * time.Microsecond)
		start <- struct{}{}
		if err := <-ready; err != nil {
			t.Fatal("the other one:", err)
		}
		err = <-result
		got := tree(t, "ifb9")
		if got.Root.Handle != "1:" {
			t.Fatalf("the other one's qdisc was lost (Rebuild said %v): %+v", err, got)
		}
		if err != nil && !errors.Is(err, ErrConfigured) && !errors.Is(err, unix.EEXIST) {
			t.Errorf("Rebuild: %v", err)
		}
		if err != nil {
			kept++
		}
		if err := h.QdiscDel(foreign); err != nil {
			t.Fatal(err)
		}
		if got := tree(t, "ifb9"); !got.KernelMade() {
			t.Fatalf("left over: %+v", got)
		}
	}
	close(start)
	<-done
	t.Logf("the other one came first or in between %d times of 30", kept)
}

func TestRebuildPermission(t *testing.T) {
	inNamespace(t)
	ifb(t, "ifb9", 1)
	before := tree(t, "ifb9")
	// Capabilities belong to the thread.
	var header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	full := data
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	err := Rebuild("ifb9")
	got := tree(t, "ifb9") // reading must work
	if err := unix.Capset(&header, &full[0]); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, ErrPermission) {
		t.Errorf("Rebuild: %v, want ErrPermission", err)
	}
	if diff := cmp.Diff(before, got); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// Links that do not queue, and everything that somebody configured, are left
// exactly as they are.
func TestUntouched(t *testing.T) {
	root := func(l netlink.Link, handle uint32) netlink.QdiscAttrs {
		return netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: handle}
	}
	set := func(t *testing.T, h *netlink.Handle, q netlink.Qdisc) {
		t.Helper()
		modprobe("sch_" + q.Type())
		err := h.QdiscAdd(q)
		if errors.Is(err, unix.ENOENT) {
			t.Skipf("this kernel has no qdisc %s", q.Type())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// configured makes a link with one qdisc of a kind at the root.
	configured := func(kind string) func(*testing.T, *netlink.Handle) {
		return func(t *testing.T, h *netlink.Handle) {
			l := ifb(t, "link", 4)
			set(t, h, &netlink.GenericQdisc{QdiscType: kind, QdiscAttrs: root(l, 0x80010000)})
		}
	}
	for name, tc := range map[string]struct {
		make func(t *testing.T, h *netlink.Handle)
		want error
	}{
		"htb": {func(t *testing.T, h *netlink.Handle) {
			l := ifb(t, "link", 4)
			htb := netlink.NewHtb(root(l, 0x10000))
			htb.Defcls = 10
			set(t, h, htb)
			class := netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: l.Attrs().Index, Parent: 0x10000, Handle: 0x1000a}, netlink.HtbClassAttrs{Rate: 10_000_000})
			if err := h.ClassAdd(class); err != nil {
				t.Fatal(err)
			}
			set(t, h, &netlink.GenericQdisc{QdiscType: "pfifo", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: 0x1000a, Handle: 0x20000}})
		}, ErrConfigured},
		"tbf": {func(t *testing.T, h *netlink.Handle) {
			l := ifb(t, "link", 1)
			set(t, h, &netlink.Tbf{QdiscAttrs: root(l, 0x80010000), Rate: 1_000_000, Limit: 100_000, Buffer: 10_000})
		}, ErrConfigured},
		"netem": {func(t *testing.T, h *netlink.Handle) {
			l := ifb(t, "link", 1)
			set(t, h, netlink.NewNetem(root(l, 0x80010000), netlink.NetemQdiscAttrs{Latency: 10_000, Limit: 1000}))
		}, ErrConfigured},
		"prio": {func(t *testing.T, h *netlink.Handle) {
			l := ifb(t, "link", 1)
			set(t, h, netlink.NewPrio(root(l, 0x80010000)))
		}, ErrConfigured},
		"cake":            {configured("cake"), ErrConfigured},
		"fq by hand":      {configured("fq"), ErrConfigured},
		"pfifo by hand":   {configured("pfifo"), ErrConfigured},
		"mq by hand":      {configured("mq"), ErrConfigured},
		"noqueue by hand": {configured("noqueue"), ErrNoQueue},
		"leaf of mq by hand": {func(t *testing.T, h *netlink.Handle) {
			l := ifb(t, "link", 4)
			set(t, h, &netlink.GenericQdisc{QdiscType: "mq", QdiscAttrs: root(l, 0x10000)})
			set(t, h, &netlink.GenericQdisc{QdiscType: "pfifo", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: 0x10002, Handle: 0x20000}})
		}, ErrConfigured},
		"loopback": {func(t *testing.T, h *netlink.Handle) {
			lo, err := h.LinkByName("lo")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(h.LinkSetUp(lo), h.LinkSetName(lo, "link")); err != nil {
				// Linux before 6.2 does not rename links that are up.
				if err = errors.Join(h.LinkSetDown(lo), h.LinkSetName(lo, "link"), h.LinkSetUp(lo)); err != nil {
					t.Fatal(err)
				}
			}
		}, ErrNoQueue},
		"veth": {func(t *testing.T, h *netlink.Handle) {
			add(t, &netlink.Veth{LinkAttrs: attrs("link", 4), PeerName: "peer"})
		}, ErrNoQueue},
		"bridge": {func(t *testing.T, h *netlink.Handle) { add(t, &netlink.Bridge{LinkAttrs: attrs("link", 0)}) }, ErrNoQueue},
		"dummy":  {func(t *testing.T, h *netlink.Handle) { add(t, &netlink.Dummy{LinkAttrs: attrs("link", 4)}) }, ErrNoQueue},
		"ipip tunnel": {func(t *testing.T, h *netlink.Handle) {
			add(t, &netlink.Iptun{LinkAttrs: attrs("link", 0), Local: net.IPv4(10, 9, 9, 1), Remote: net.IPv4(10, 9, 9, 2)})
		}, ErrNoQueue},
		"vxlan": {func(t *testing.T, h *netlink.Handle) {
			add(t, &netlink.Vxlan{LinkAttrs: attrs("link", 0), VxlanId: 7, Port: 4789, Group: net.IPv4(10, 9, 9, 2)})
		}, ErrNoQueue},
		"vlan": {func(t *testing.T, h *netlink.Handle) {
			parent := ifb(t, "parent", 4)
			a := attrs("link", 0)
			a.ParentIndex = parent.Attrs().Index
			add(t, &netlink.Vlan{LinkAttrs: a, VlanId: 5, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
		}, ErrNoQueue},
		"wireguard": {func(t *testing.T, h *netlink.Handle) { add(t, &netlink.Wireguard{LinkAttrs: attrs("link", 0)}) }, ErrNoQueue},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t)
			tc.make(t, handle(t))
			before := tree(t, "link")
			if before.KernelMade() {
				t.Errorf("taken for kernel-made: %+v", before)
			}
			m := listen(t)
			for _, err := range []error{Rebuild("link"), RebuildTo("link", "fq")} {
				if !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			}
			if diff := cmp.Diff(before, tree(t, "link")); diff != "" {
				t.Errorf("(-before +after)\n%s", diff)
			}
			if changes, _ := m.take(before.Index); changes != 0 {
				t.Errorf("%d changes of qdiscs were made", changes)
			}
		})
	}
}

// What hangs on the receiving side of a link is not ours, whatever happens to
// its root.
func TestRebuildKeepsClsact(t *testing.T) {
	inNamespace(t)
	h := handle(t)
	link := ifb(t, "ifb9", 4)
	modprobe("sch_ingress")
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: 0xffff0000}}
	if err := h.QdiscAdd(clsact); errors.Is(err, unix.ENOENT) {
		t.Skip("this kernel has no clsact")
	} else if err != nil {
		t.Fatal(err)
	}
	modprobe("cls_u32")
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 1, Protocol: unix.ETH_P_ALL},
		ClassId:     0x10001,
	}
	if err := h.FilterAdd(filter); err != nil {
		t.Skip("this kernel has no u32 filters:", err)
	}
	before := tree(t, "ifb9")
	if !before.KernelMade() {
		t.Fatalf("clsact made the tree a configured one: %+v", before)
	}
	if err := Rebuild("ifb9"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree(t, "ifb9")); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
	filters, err := h.FilterList(link, netlink.HANDLE_MIN_EGRESS)
	if err != nil || len(filters) == 0 {
		t.Errorf("the filters are gone: %v, %v", filters, err)
	}
}

const (
	serverAddress = "10.77.0.1"
	clientAddress = "10.77.0.2"
)

// tun opens so many queues of a tun link in the namespace of this thread.
func tun(t *testing.T, name string, queues int) []*os.File {
	t.Helper()
	modprobe("tun")
	var files []*os.File
	for range queues {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
			t.Skip("this kernel has no tun")
		}
		if err != nil {
			t.Fatal(err)
		}
		req, err := unix.NewIfreq(name)
		if err != nil {
			t.Fatal(err)
		}
		flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if queues > 1 {
			flags |= unix.IFF_MULTI_QUEUE
		}
		req.SetUint16(flags)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			t.Fatal("making a tun link:", err)
		}
		f := os.NewFile(uintptr(fd), "tun")
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	return files
}

func setUp(t *testing.T, link, address string) {
	t.Helper()
	h := handle(t)
	l, err := h.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(address + "/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.AddrAdd(l, a), h.LinkSetUp(l)); err != nil {
		t.Fatal(err)
	}
}

// connect makes two links "tun0" with so many queues, each in a namespace of
// its own; forward carries the packets from one queue to the other's. Unlike
// veth such links queue, so that the kernel gives them a tree. The test is left
// in the namespace of the first link; sender makes a TCP connection from there,
// whose other end then comes out of receiver.
func connect(t *testing.T, queues int, forward func(from, to *os.File, outgoing bool)) (sender func() net.Conn, receiver <-chan net.Conn) {
	t.Helper()
	inNamespace(t)
	here, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(here)
	near := tun(t, "tun0", queues)
	setUp(t, "tun0", serverAddress)

	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	far := tun(t, "tun0", queues)
	setUp(t, "tun0", clientAddress)
	listener, err := net.Listen("tcp4", clientAddress+":7")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Setns(here, unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	for i := range near {
		wg.Go(func() { forward(near[i], far[i], true) })
		wg.Go(func() { forward(far[i], near[i], false) })
	}
	t.Cleanup(func() {
		listener.Close()
		for _, f := range slices.Concat(near, far) {
			f.Close()
		}
		wg.Wait()
	})
	accepted := make(chan net.Conn, 16)
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			accepted <- c
		}
	})
	return func() net.Conn {
		t.Helper()
		// Only the thread of the test is in the namespace, and a dialer may use
		// others.
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "connection")
		defer f.Close()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 7, Addr: [4]byte(net.ParseIP(clientAddress).To4())}); err != nil {
			t.Fatal("connecting:", err)
		}
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}, accepted
}

// forwardNow carries packets at once.
func forwardNow(from, to *os.File, _ bool) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		_, _ = to.Write(buf[:n]) // a full queue drops
	}
}

// Connections survive rebuilds under load, whole and unchanged.
func TestRebuildUnderTraffic(t *testing.T) {
	for _, queues := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d queues", queues), func(t *testing.T) {
			dial, accepted := connect(t, queues, forwardNow)
			before := tree(t, "tun0")
			if !before.KernelMade() {
				t.Fatalf("unexpected tree: %+v", before)
			}
			// Everybody sends until the rebuilds are over.
			const connections, rebuilds = 4, 8
			over := make(chan struct{})
			var wg sync.WaitGroup
			var sent, received [connections][sha256.Size]byte
			var bytes [connections]int64
			for i := range connections {
				c := dial()
				peer := <-accepted
				deadline := time.Now().Add(2 * time.Minute)
				c.SetDeadline(deadline)
				peer.SetDeadline(deadline)
				wg.Go(func() {
					defer c.Close()
					h, block := sha256.New(), make([]byte, 32<<10)
					for n := uint64(i); ; n++ {
						binary.LittleEndian.PutUint64(block, n)
						if _, err := c.Write(block); err != nil {
							t.Error("sending:", err)
							return
						}
						h.Write(block)
						select {
						case <-over:
							h.Sum(sent[i][:0])
							return
						default:
						}
					}
				})
				wg.Go(func() {
					h := sha256.New()
					var err error
					if bytes[i], err = io.Copy(h, peer); err != nil {
						t.Errorf("received %d bytes: %v", bytes[i], err)
					}
					h.Sum(received[i][:0])
				})
			}
			for range rebuilds {
				time.Sleep(30 * time.Millisecond)
				if err := Rebuild("tun0"); err != nil {
					t.Fatal(err)
				}
			}
			close(over)
			wg.Wait()
			if sent != received {
				t.Error("what was received is not what was sent")
			}
			if diff := cmp.Diff(before, tree(t, "tun0")); diff != "" {
				t.Errorf("(-before +after)\n%s", diff)
			}
			t.Logf("%d rebuilds, bytes received: %v", rebuilds, bytes)
		})
	}
}

func TestWatch(t *testing.T) {
	inNamespace(t)
	h := handle(t)
	ifb(t, "old0", 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := func() LinkEvent {
		t.Helper()
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatal("closed")
			}
			return e
		case <-time.After(10 * time.Second):
			t.Fatal("no event")
		}
		return LinkEvent{}
	}
	// expect reads events until one is as wanted. On a slow machine others may
	// come before it, for what is one change to us is several to the kernel; a
	// link that has appeared then changes.
	expect := func(want LinkEvent) {
		t.Helper()
		appeared := false
		for {
			got := next()
			appeared = appeared || got.Change == Appeared
			if appeared && got.Change == Changed {
				got.Change = Appeared
			}
			if got == want {
				return
			}
		}
	}
	quiet := func() {
		t.Helper()
		select {
		case e := <-events:
			t.Errorf("unexpected event %+v", e)
		case <-time.After(2 * watchPause):
		}
	}
	quiet() // what is there already is no news

	link := ifb(t, "new0", 1)
	index := link.Attrs().Index
	expect(LinkEvent{Link: "new0", Index: index, Change: Appeared, Up: true})
	quiet()

	if err := h.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	expect(LinkEvent{Link: "new0", Index: index, Change: Changed})
	if err := errors.Join(h.LinkSetName(link, "renamed0"), h.LinkSetUp(link)); err != nil {
		t.Fatal(err)
	}
	expect(LinkEvent{Link: "renamed0", Index: index, Change: Changed, Up: true})
	// Nothing that concerns us.
	if err := errors.Join(h.LinkSetMTU(link, 1400), h.LinkSetTxQLen(link, 77)); err != nil {
		t.Fatal(err)
	}
	quiet()
	if err := h.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	expect(LinkEvent{Link: "renamed0", Index: index, Change: Gone})
	cancel()
	select {
	case _, ok := <-events:
		if ok {
			t.Error("an event after the end")
		}
	case <-time.After(10 * time.Second):
		t.Error("the channel stays open")
	}
}

// With a receive buffer for one message or two and a reader that is not there,
// the kernel drops most messages; nothing must be missed in the end.
func TestWatchOverflow(t *testing.T) {
	inNamespace(t)
	h := handle(t)
	events, err := watch(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for i := range 30 {
		name := fmt.Sprintf("ifb%d", i+10)
		l := &netlink.Ifb{LinkAttrs: attrs(name, 1)}
		if err := h.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			if err := h.LinkDel(l); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := h.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		want[name] = true
	}
	got := map[string]bool{}
	deadline := time.After(20 * time.Second)
	for !cmp.Equal(want, got) {
		select {
		case e := <-events:
			if e.Change == Gone {
				delete(got, e.Link)
			} else if e.Up {
				got[e.Link] = true
			}
		case <-deadline:
			t.Fatalf("(-want +got)\n%s", cmp.Diff(want, got))
		}
	}
}
