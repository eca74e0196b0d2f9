package hosts

import (
	"slices"
	"strings"
	"testing"

	"accel/test/vm"
)

// TestMatrix takes accel through every kernel that Debian has, and the one of
// another architecture.
func TestMatrix(t *testing.T) {
	for _, k := range vm.Kernels() {
		t.Run("6_"+k.String(), func(t *testing.T) {
			t.Parallel()
			m := vm.Small(t, vm.Guest{Kernel: k, Files: unpacked(t, k.Arch), Links: 1})
			m.MustRun(t, "ip link set eth0 up")
			before := look(t, m)
			var facts status
			if exit := accel(t, m, "accel detect", &facts); exit != 0 || facts.Schema != "accel.detect/1" {
				t.Fatalf("detect exited %d: %v", exit, facts)
			}
			if facts.Algorithm.Origin != "loadable" || !slices.Contains(facts.Algorithm.Loadable, "bbr") || slices.Contains(facts.Algorithm.Available, "bbr") {
				t.Errorf("detect says of bbr: %+v", facts.Algorithm)
			}
			same(t, "after detect", before, look(t, m))

			r := enable(t, m)
			if !strings.Contains(strings.Join(r.Notes, "\n"), "systemd") {
				t.Errorf("enable does not say that there is no systemd: %q", r.Notes)
			}
			if got := sysctl(t, m, algorithmKey); got != "bbr" {
				t.Errorf("%s is %s", algorithmKey, got)
			}
			if got := m.MustRun(t, "tc qdisc show dev eth0 root"); !strings.HasPrefix(got, "qdisc fq 0: ") {
				t.Errorf("the qdisc of eth0 is %s", got)
			}
			s := statusOf(t, m)
			if s.Exit != 0 || s.Algorithm.Origin != "loaded" || s.Algorithm.Socket == nil || *s.Algorithm.Socket != "bbr" || !s.link(t, "eth0").Managed {
				t.Errorf("the status is not good: %v", s)
			}
			lsmod := m.MustRun(t, "lsmod")
			if len(s.Algorithm.Modules) == 0 {
				t.Error("the status shows no module")
			}
			for _, line := range s.Algorithm.Modules {
				if !slices.ContainsFunc(lines(lsmod), func(l string) bool { return slices.Equal(strings.Fields(l), strings.Fields(line)) }) {
					t.Errorf("lsmod has no line %q:\n%s", line, lsmod)
				}
			}
			t.Logf("status says:\n%s", m.Run(t, "accel status").Stdout)

			if r := disable(t, m); len(r.Left) != 0 {
				t.Errorf("disable left %+v", r.Left)
			}
			same(t, "after disable", before, look(t, m))
		})
	}
}

// TestLinks has every sort of link on one machine.
func TestLinks(t *testing.T) {
	t.Parallel()
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel612, Files: unpacked(t, "amd64"), Links: 4, Queues: 4, CPUs: 4})
	// Somebody's shaping on links that would be accel's otherwise, and links
	// that never are. eth3 is as the kernel made it.
	m.MustRun(t, `set -e
ip link set eth0 up; ip link set eth1 up; ip link set eth2 up; ip link set eth3 up
tc qdisc add dev eth1 root handle 1: htb default 20
tc class add dev eth1 parent 1: classid 1:1 htb rate 100mbit ceil 100mbit
tc class add dev eth1 parent 1:1 classid 1:10 htb rate 60mbit ceil 100mbit prio 1
tc class add dev eth1 parent 1:1 classid 1:20 htb rate 40mbit ceil 100mbit prio 2
tc qdisc add dev eth1 parent 1:10 handle 10: fq_codel limit 600 target 4ms
tc qdisc add dev eth1 parent 1:20 handle 20: sfq perturb 10
tc filter add dev eth1 parent 1: protocol ip prio 1 u32 match ip dport 22 0xffff flowid 1:10
tc qdisc add dev eth2 root cake bandwidth 50mbit besteffort rtt 80ms
ip link add veth0 type veth peer name veth1; ip link set veth0 up; ip link set veth1 up
ip link add br0 type bridge; ip link set br0 up; ip link set veth1 master br0
ip link add dum1 type dummy; ip link set dum1 up
tc qdisc add dev dum1 root netem delay 1ms
ip link add gre1 type gre local 192.0.2.1 remote 192.0.2.2; ip link set gre1 up
ip link add wg0 type wireguard; ip link set wg0 up
ip link add vx0 type vxlan id 7 dev eth3 dstport 4789; ip link set vx0 up
ip link add link eth3 name eth3.100 type vlan id 100; ip link set eth3.100 up`)
	const trees = "for l in eth1 eth2 veth0 veth1 br0 dum1 gre1 wg0 vx0 eth3.100 lo; do tc -d qdisc show dev $l; tc -d class show dev $l | grep '^class htb'; tc -d filter show dev $l; done"
	before := look(t, m)
	others := m.MustRun(t, trees)
	up := m.MustRun(t, "cat /sys/class/net/eth0/carrier_changes /sys/class/net/eth3/carrier_changes")
	enable(t, m)
	s := statusOf(t, m)

	t.Run("5_four_queues", func(t *testing.T) {
		got := m.MustRun(t, "tc qdisc show dev eth0")
		if strings.Count(got, "qdisc mq 0: root") != 1 || strings.Count(got, "qdisc fq 0: parent :") != 4 || len(lines(got)) != 5 {
			t.Errorf("eth0 has:\n%s", got)
		}
		if l := s.link(t, "eth0"); !l.Managed || l.Kind != "fq" || l.Root.Kind != "mq" || len(l.Leaves) != 4 {
			t.Errorf("the status says of eth0: %+v", l)
		}
		if got := m.MustRun(t, "tc qdisc show dev eth3"); !strings.HasPrefix(got, "qdisc fq 0: root") {
			t.Errorf("eth3 has:\n%s", got)
		}
		if now := m.MustRun(t, "cat /sys/class/net/eth0/carrier_changes /sys/class/net/eth3/carrier_changes"); now != up {
			t.Errorf("the links went down and up: carrier changes were %q and are %q", up, now)
		}
	})
	t.Run("5_others_untouched", func(t *testing.T) {
		if now := m.MustRun(t, trees); now != others {
			t.Errorf("somebody's trees were:\n%s\nand are:\n%s", others, now)
		}
		for _, name := range []string{"eth1", "eth2", "dum1"} {
			if l := s.link(t, name); !l.ConfiguredBySomeone || l.Managed || l.Reason == "" {
				t.Errorf("the status says of %s: %+v", name, l)
			}
		}
		for _, name := range []string{"veth0", "veth1", "br0", "gre1", "wg0", "vx0", "eth3.100", "lo"} {
			if l := s.link(t, name); l.Managed || l.Reason == "" {
				t.Errorf("the status says of %s: %+v", name, l)
			}
		}
		if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, "eth1") || !strings.Contains(notes, "eth2") {
			t.Errorf("the notes do not name the links that somebody configured: %q", s.Notes)
		}
	})
	t.Run("5_restored", func(t *testing.T) {
		if r := disable(t, m); len(r.Left) != 0 {
			t.Errorf("disable left %+v", r.Left)
		}
		same(t, "after disable", before, look(t, m))
		if now := m.MustRun(t, trees); now != others {
			t.Errorf("somebody's trees were:\n%s\nand are:\n%s", others, now)
		}
	})
}

// TestWithoutBBR has a kernel that cannot do it.
func TestWithoutBBR(t *testing.T) {
	t.Parallel()
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel61, Files: unpacked(t, "amd64"), Without: []string{"tcp_bbr"}, Links: 1})
	m.MustRun(t, "ip link set eth0 up")
	t.Run("7_no_bbr", func(t *testing.T) {
		before := look(t, m)
		var r result
		if exit := accel(t, m, "accel enable bbr", &r); exit != 5 {
			t.Errorf("enable exited %d: %+v", exit, r)
		}
		if r.Error == "" || !strings.Contains(r.Next, "kernel") {
			t.Errorf("enable does not say what to do: %q, %q", r.Error, r.Next)
		}
		if text := m.Run(t, "accel enable bbr"); text.Exit != 5 || !strings.Contains(text.Stderr, "bbr") {
			t.Errorf("enable exited %d and says:\n%s%s", text.Exit, text.Stdout, text.Stderr)
		}
		same(t, "after a refused enable", before, look(t, m))
		if m.Run(t, "ls -A /var/lib/accel").Stdout != "" {
			t.Error("there is something in /var/lib/accel")
		}
	})
	t.Run("7_another_algorithm", func(t *testing.T) {
		before := look(t, m)
		var r result
		if exit := accel(t, m, "accel enable htcp", &r); exit != 0 {
			t.Fatalf("enable htcp exited %d: %s %s", exit, r.Error, r.Next)
		}
		if got := sysctl(t, m, algorithmKey); got != "htcp" {
			t.Errorf("the algorithm is %s", got)
		}
		disable(t, m)
		same(t, "after disable", before, look(t, m))
	})
}

// TestWithoutFq has a kernel where BBR must pace itself.
func TestWithoutFq(t *testing.T) {
	t.Parallel()
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel61, Files: unpacked(t, "amd64"), Without: []string{"sch_fq"}, Links: 1})
	m.MustRun(t, "ip link set eth0 up")
	t.Run("7_no_fq", func(t *testing.T) {
		before := look(t, m)
		r := enable(t, m)
		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "fq") {
			t.Errorf("enable does not speak of fq: %q", r.Notes)
		}
		s := statusOf(t, m)
		if s.Exit != 0 || s.Verdict != "good" || s.Algorithm.Socket == nil || *s.Algorithm.Socket != "bbr" || s.link(t, "eth0").Managed {
			t.Errorf("the status: %v", s)
		}
		if file := m.MustRun(t, "cat "+sysctlFile); strings.Contains(file, "default_qdisc") {
			t.Errorf("what fails at every boot was written down:\n%s", file)
		}
		disable(t, m)
		same(t, "after disable", before, look(t, m))
	})
}

// TestNetns is about what is not the whole host, and who is not root.
func TestNetns(t *testing.T) {
	t.Parallel()
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel612, Files: unpacked(t, "amd64"), Links: 1})
	m.MustRun(t, "ip link set eth0 up && ip netns add fresh && ip -n fresh link set lo up")

	t.Run("7_not_root", func(t *testing.T) {
		before := look(t, m)
		if r := m.Run(t, "su -s /bin/sh nobody -c 'accel status'"); r.Exit != 3 || r.Stdout == "" {
			t.Errorf("status as nobody exited %d:\n%s%s", r.Exit, r.Stdout, r.Stderr)
		}
		if r := m.Run(t, "su -s /bin/sh nobody -c 'accel enable bbr'"); r.Exit != 1 || !strings.Contains(r.Stderr, "root") {
			t.Errorf("enable as nobody exited %d:\n%s%s", r.Exit, r.Stdout, r.Stderr)
		}
		same(t, "after what nobody did", before, look(t, m))
	})

	t.Run("7_namespace", func(t *testing.T) {
		// A container's owner cannot load modules, the host's can.
		m.MustRun(t, "modprobe tcp_bbr")
		before := look(t, m)
		var r result
		if exit := accel(t, m, "ip netns exec fresh accel enable bbr", &r); exit != 0 {
			t.Fatalf("enable in a fresh namespace exited %d: %s %s", exit, r.Error, r.Next)
		}
		var s status
		if exit := accel(t, m, "ip netns exec fresh accel status", &s); exit != 0 || *s.Algorithm.Socket != "bbr" {
			t.Errorf("the status there: %v", s)
		}
		if !strings.Contains(strings.Join(r.Notes, "\n"), "namespace") || !strings.Contains(strings.Join(s.Notes, "\n"), "namespace") {
			t.Errorf("nothing says that this is only a namespace: %q, %q", r.Notes, s.Notes)
		}
		if got := m.MustRun(t, "ip netns exec fresh cat /proc/sys/net/ipv4/tcp_congestion_control"); got != "bbr\n" {
			t.Errorf("the algorithm there is %q", got)
		}
		during := look(t, m)
		during.etc, during.lib = before.etc, before.lib // the file system is shared here
		same(t, "outside the namespace", before, during)
		if exit := accel(t, m, "ip netns exec fresh accel disable", &r); exit != 0 {
			t.Errorf("disable there exited %d: %s %s", exit, r.Error, r.Next)
		}
		if got := m.MustRun(t, "ip netns exec fresh cat /proc/sys/net/ipv4/tcp_congestion_control"); got == "bbr\n" {
			t.Error("disable there left bbr")
		}
		same(t, "after disable", before, look(t, m))
	})

	t.Run("7_route_with_congctl", func(t *testing.T) {
		enable(t, m)
		m.MustRun(t, "ip addr add 192.0.2.2/24 dev eth0 && ip route add default via 192.0.2.1 dev eth0 congctl reno")
		s := statusOf(t, m)
		if s.Exit != 4 || s.Verdict != "not-in-force" || !strings.Contains(s.Reason, "reno") || !strings.Contains(s.Reason, "eth0") {
			t.Errorf("with a default route that has congctl reno: %v", s)
		}
		m.MustRun(t, "ip route change default via 192.0.2.1 dev eth0")
		if s := statusOf(t, m); s.Exit != 0 {
			t.Errorf("without it: %v", s)
		}
		disable(t, m)
	})
}
