package hosts

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/test/vm"
)

// TestBoostBookworm is the profile boost on Debian 12, where dhclient makes the
// default route.
func TestBoostBookworm(t *testing.T) {
	t.Parallel()
	m := vm.Whole(t, vm.Bookworm, vm.Options{})
	// The network of these machines has no way out, and its DHCP server tells of
	// no router: dhclient is to know one.
	const lease = "dhclient -4 -1 -pf /run/dhclient.eth0.pid -lf /var/lib/dhcp/dhclient.eth0.leases -I eth0"
	m.MustRun(t, "echo 'supersede routers 10.0.2.2;' >> /etc/dhcp/dhclient.conf && kill $(cat /run/dhclient.eth0.pid) && "+lease)
	boosted(t, m, map[string]string{
		"renewal": "kill $(cat /run/dhclient.eth0.pid); " + lease,
		"anew":    "kill $(cat /run/dhclient.eth0.pid); ip -4 route del default; " + lease,
	})
}

// TestBoostTrixie is the same on Debian 13 with systemd-networkd, as small as
// virtual servers are sold, and with too many customers.
func TestBoostTrixie(t *testing.T) {
	t.Parallel()
	m := vm.Whole(t, vm.Trixie, vm.Options{MemoryMB: 512, CPUs: 1})
	// The network of these machines has no way out, and its DHCP server tells of
	// no router: networkd gets a provider of its own, at the other end of a pair
	// of links. Its lease is long: only the steps below have it renewed.
	m.MustRun(t, `cd /etc/systemd/network
printf '[NetDev]\nName=isp\nKind=veth\n[Peer]\nName=up0\n' > 20-isp.netdev
printf '[Match]\nName=isp\n[Network]\nAddress=10.98.0.1/24\nDHCPServer=yes\nLinkLocalAddressing=no\n[DHCPServer]\nEmitRouter=yes\nDefaultLeaseTimeSec=3600\n' > 20-isp.network
printf '[Match]\nName=up0\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n' > 21-up0.network
networkctl reload`)
	m.Eventually(t, time.Minute, "ip -4 route show default | grep -q 'proto dhcp'")
	boosted(t, m, map[string]string{
		"renewal": "networkctl renew up0",
		"anew":    "networkctl reconfigure up0",
	})
	step(t, "slow_readers", func(t *testing.T) { slowReaders(t, m) })
}

// routes is all that the kernel tells about the routes of a machine, but for
// what moves by itself. Sorted, since links have the order of their appearance in
// a boot.
func routes(t *testing.T, m *vm.Machine) string {
	t.Helper()
	all := m.MustRun(t, "ip -4 -d route show table all && ip -6 -d route show table all")
	sorted := lines(expiry.ReplaceAllString(all, "expires Nsec"))
	slices.Sort(sorted)
	return strings.Join(sorted, "\n")
}

var (
	expiry   = regexp.MustCompile(`expires \d+sec`)
	initcwnd = regexp.MustCompile(`initcwnd (\d+)`)
)

// window returns the initial window of the IPv4 default route; 0 is the
// kernel's own.
func window(t *testing.T, m *vm.Machine) int {
	t.Helper()
	found := initcwnd.FindStringSubmatch(m.MustRun(t, "ip -4 route show default"))
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func enableBoost(t *testing.T, m *vm.Machine) {
	t.Helper()
	var r result
	if exit := accel(t, m, "accel enable bbr --profile boost --no-probe", &r); exit != 0 {
		t.Fatalf("enable exited %d: %s; %s\n%s", exit, r.Error, r.Next, journal(t, m))
	}
}

// boosted takes a machine from enable to disable. renewals are commands that
// have the DHCP client make the default route again.
func boosted(t *testing.T, m *vm.Machine, renewals map[string]string) {
	install(t, m)
	before, world := routes(t, m), look(t, m)
	// The window is there, and the route is not there twice.
	const one = "ip -4 route show default | grep -q 'initcwnd 45 ' && test $(ip -4 route show default | wc -l) = 1"

	step(t, "6_enable", func(t *testing.T) {
		t.Logf("a dry run says:\n%s", m.MustRun(t, "accel enable bbr --profile boost --dry-run"))
		if got := routes(t, m); got != before {
			t.Errorf("a dry run changed the routes:\n%s", cmp.Diff(before, got))
		}
		enableBoost(t, m)
		if n := window(t, m); n != 45 {
			t.Errorf("the initial window is %d", n)
		}
		inForce(t, m)
		if out := m.MustRun(t, "ip -6 route show default"); strings.Contains(out, "proto ra") && strings.Contains(out, "initcwnd") {
			t.Errorf("a route that a router advertised was changed: %s", out)
		}
		t.Logf("status says:\n%s", m.MustRun(t, "accel status"))
	})
	step(t, "6_switch", func(t *testing.T) {
		enable(t, m) // the profile basic
		if got := routes(t, m); got != before {
			t.Errorf("with the profile basic the routes differ (-before +after):\n%s", cmp.Diff(before, got))
		}
		enableBoost(t, m)
	})
	step(t, "6_reboot", func(t *testing.T) {
		m.Reboot(t)
		booted(t, m)
		m.Eventually(t, 2*time.Minute, one)
		inForce(t, m)
	})
	for name, command := range renewals {
		step(t, "6_dhcp_"+name, func(t *testing.T) {
			m.MustRun(t, command)
			m.Eventually(t, 2*time.Minute, one)
			t.Logf("%s: %s", command, m.MustRun(t, "ip -4 route show default"))
		})
	}
	step(t, "6_replaced", func(t *testing.T) {
		// What every DHCP client could do: the route anew, without the metric.
		m.MustRun(t, "set -- $(ip -4 route show default | sed 's/ initcwnd.*//'); ip route replace $*; ! ip -4 route show default | grep initcwnd")
		start := time.Now()
		m.Eventually(t, 2*time.Minute, one)
		t.Logf("it was back after %v", time.Since(start).Round(100*time.Millisecond))
		inForce(t, m)
	})
	step(t, "6_disable", func(t *testing.T) {
		if r := disable(t, m); len(r.Left) != 0 {
			t.Errorf("disable left %+v", r.Left)
		}
		if got := routes(t, m); got != before {
			t.Errorf("after disable the routes differ (-before +after):\n%s", cmp.Diff(before, got))
		}
		same(t, "after disable", world, look(t, m))
	})
}

const readers = 500

// slowReaders lets more customers than a small server expects read slowly, over
// a default route that has the large initial window.
func slowReaders(t *testing.T, m *vm.Machine) {
	binary := filepath.Join(t.TempDir(), "slowreaders")
	build := exec.Command("go", "build", "-o", binary, "./slowreaders")
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m.Push(t, binary, "/root/slowreaders")
	m.MustRun(t, `chmod +x /root/slowreaders
ip netns add far && ip link add near type veth peer name far netns far
ip addr add 10.99.0.1/30 dev near && ip link set near up
ip -n far addr add 10.99.0.2/30 dev far && ip -n far addr add 203.0.113.7/32 dev far && ip -n far link set far up
ip -n far route add default via 10.99.0.1 dev far src 203.0.113.7
ip route add default via 10.99.0.2 dev near metric 5`)
	enableBoost(t, m)
	if got := m.MustRun(t, "ip route get 203.0.113.7"); !strings.Contains(got, "dev near") {
		t.Fatalf("the readers are not behind the default route: %s", got)
	}
	if got := m.MustRun(t, "ip route show default dev near"); !strings.Contains(got, "initcwnd 45") {
		t.Fatalf("the default route to the readers: %s", got)
	}
	oom := func() string {
		return m.MustRun(t, `grep -w oom_kill /proc/vmstat; dmesg | grep -icE 'out of memory|oom-kill|page allocation failure' || true
awk '/^TcpExt:/ {if (n++) {for (i in h) if (h[i] == "TCPAbortOnMemory") print h[i], $i} else split($0, h)}' /proc/net/netstat`)
	}
	before := oom()
	m.MustRun(t, "systemd-run -q --unit=server /root/slowreaders serve 0.0.0.0:8080")
	m.Eventually(t, time.Minute, "ss -Hltn sport = 8080 | grep -q .")
	m.MustRun(t, fmt.Sprintf("systemd-run -q --unit=readers sh -c 'ip netns exec far /root/slowreaders read 10.99.0.1:8080 %d 20 >/root/readers 2>&1; echo exit $? >>/root/readers'", readers))
	most := ""
	peak := 0
	for range 6 {
		time.Sleep(4 * time.Second)
		state := m.MustRun(t, "grep ^TCP: /proc/net/sockstat; grep MemAvailable /proc/meminfo; cat /proc/sys/net/ipv4/tcp_mem")
		fields := strings.Fields(state)
		if n, err := strconv.Atoi(fields[10]); err == nil && n > peak {
			peak, most = n, state
		}
	}
	m.Eventually(t, time.Minute, "grep -q ^exit /root/readers")
	t.Logf("at the most:\n%s", most)
	if got, want := m.MustRun(t, "cat /root/readers"), fmt.Sprintf("connected %d lived %d\nexit 0\n", readers, readers); got != want {
		t.Errorf("the readers say %q, want %q", got, want)
	}
	if after := oom(); after != before {
		t.Errorf("memory ran out: before %q, after %q\n%s", before, after, m.Run(t, "dmesg | tail -n 40").Stdout)
	}
	if !strings.Contains(before, "oom_kill") || !strings.Contains(before, "TCPAbortOnMemory") || peak == 0 {
		t.Errorf("the kernel does not tell about its memory: %q, %q", before, most)
	}
	m.MustRun(t, "systemctl is-active server.service && systemctl stop server.service; ip route del default dev near; ip netns del far")
	disable(t, m)
}
