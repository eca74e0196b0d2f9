package route

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// namespace puts the calling test into a network namespace of its own with two
// links, and returns a function that runs ip in it.
func namespace(t *testing.T) func(args string) string {
	t.Helper()
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
	// A child of this thread is in its namespace.
	ip := func(args string) string {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if out, err := exec.Command("ip", "link", "add", "left", "type", "veth", "peer", "name", "right").CombinedOutput(); strings.Contains(string(out), "not supported") {
		t.Skip("this kernel has no veth")
	} else if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, l := range []string{
		"addr add 192.0.2.1/24 dev left", "addr add 198.51.100.1/24 dev right", "addr add 192.0.2.9/24 dev left",
		"addr add 2001:db8:1::1/64 dev left nodad", "addr add 2001:db8:2::1/64 dev right nodad", "link set left up", "link set right up", "link set lo up",
	} {
		ip(l)
	}
	settle(t)
	return ip
}

// settle waits until the kernel's own IPv6 routes do not change by themselves.
func settle(t *testing.T) {
	t.Helper()
	last, same := "", 0
	for range 200 {
		tentative, err := exec.Command("ip", "-6", "addr", "show", "tentative").Output()
		if err != nil {
			t.Fatal(err)
		}
		shown, err := exec.Command("ip", "-6", "route", "show", "table", "all").Output()
		if err != nil {
			t.Fatal(err)
		}
		if same++; len(tentative) > 0 || string(shown) != last {
			last, same = string(shown), 0
		}
		if same == 4 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the addresses stay tentative, or the routes change for ever")
}

// everything is all that the kernel tells about all routes.
func everything(ip func(string) string) string {
	return ip("-4 -d route show table all") + ip("-6 -d route show table all")
}

func names2(t *testing.T) map[string]Route {
	t.Helper()
	routes, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Route{}
	for _, r := range routes {
		if have, ok := out[r.Name()]; !ok || have.Special != "" {
			out[r.Name()] = r
		}
	}
	return out
}

// What people, DHCP clients and cloud-init make, each with what else a route
// can carry. Every one is changed and put back, and must be the same to the
// byte, as must every other route.
var made = []struct {
	add, name string
}{
	{"route add default via 192.0.2.254", "default dev left"},
	{"route add default via 192.0.2.254 dev left proto dhcp src 192.0.2.9 metric 100", "default dev left metric 100"},
	{"route add default dev left scope link metric 7", "default dev left metric 7"},
	{"route add default via 203.0.113.1 dev left onlink metric 3", "default dev left metric 3"},
	{"route add default via 192.0.2.254 mtu lock 1400 advmss 1300 rtt 200ms rttvar 100ms hoplimit 9 features ecn congctl lock reno metric 8", "default dev left metric 8"},
	{"route add default via 192.0.2.254 mtu 1400 window 30000 initrwnd 20 initcwnd 30 rto_min 77ms quickack 1 metric 9", "default dev left metric 9"},
	{"route add default metric 10 nexthop via 192.0.2.253 dev left weight 3 nexthop via 198.51.100.254 dev right weight 7", "default dev left,right metric 10"},
	{"route add default metric 11 mtu 1400 nexthop via 203.0.113.7 dev left onlink nexthop via 198.51.100.254 dev right", "default dev left,right metric 11"},
	{"-4 route add default via inet6 2001:db8:1::99 dev left metric 12", "default dev left metric 12"},
	{"route add default via 192.0.2.254 realm 5 metric 13", "default dev left metric 13"},
	{"-6 route add default via 2001:db8:1::2 metric 1024", "-6 default dev left metric 1024"},
	{"-6 route add default via 2001:db8:1::2 dev left proto dhcp src 2001:db8:1::1 pref high metric 5", "-6 default dev left metric 5"},
	{"-6 route add default via fe80::1 dev right onlink mtu lock 1400 hoplimit 33 congctl reno metric 6", "-6 default dev right metric 6"},
	{"-6 route add default dev left metric 7", "-6 default dev left metric 7"},
	{"-6 route add default metric 8 nexthop via 2001:db8:1::2 dev left weight 2 nexthop via 2001:db8:2::2 dev right", "-6 default dev left,right metric 8"},
	{"-6 route add default via 2001:db8:1::2 initcwnd 20 rto_min 50ms metric 9", "-6 default dev left metric 9"},
}

// others are routes that must never change.
var others = []string{
	"route add 203.0.113.0/24 via 192.0.2.254 initcwnd 11", "route add default via 192.0.2.250 table 100", "route add default dev right table 10001 metric 5",
	"route add blackhole default metric 4000", "route add unreachable default metric 4001", "route add prohibit default metric 4002", "route add throw default table 55",
	"route add default via 192.0.2.250 tos 0x10", "route add default via 192.0.2.251 proto bird metric 300", "route add default via 192.0.2.251 proto 123 metric 301",
	"route add default via 192.0.2.251 metric 400", "route append default via 192.0.2.252 metric 400",
	"-6 route add default via 2001:db8:1::3 proto ra metric 2000 expires 900", "-6 route add default via 2001:db8:1::3 metric 2001 expires 900",
	"-6 route add default via 2001:db8:1::3 from 2001:db8:7::/48", "-6 route add blackhole default metric 4000", "-6 route add default dev right table 77",
	"rule add from 192.0.2.9 lookup 100",
}

// expiry is the only thing that moves by itself.
func still(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		words := strings.Fields(line)
		for i, w := range words {
			if i > 0 && words[i-1] == "expires" {
				words[i] = "N" + strings.TrimLeft(w, "0123456789")
			}
		}
		b.WriteString(strings.Join(words, " ") + "\n")
	}
	return b.String()
}

func build(t *testing.T, ip func(string) string) {
	t.Helper()
	for _, r := range made {
		ip(r.add)
	}
	for _, r := range others {
		ip(r)
	}
	if out, err := exec.Command("ip", "nexthop", "add", "id", "5", "via", "192.0.2.77", "dev", "left").CombinedOutput(); err == nil {
		ip("route add default nhid 5 metric 50")
		ip("-6 nexthop add id 6 via 2001:db8:1::77 dev left")
		ip("-6 route add default nhid 6 metric 50")
	} else {
		t.Logf("no next hop objects: %s", out)
	}
}

func TestSetAndUndo(t *testing.T) {
	ip := namespace(t)
	build(t, ip)
	before := still(everything(ip))
	routes := names2(t)
	list := slices.Clone(made)
	for _, n := range []string{"default dev left metric 50", "-6 default dev left metric 50"} {
		if _, ok := routes[n]; ok {
			list = append(list, struct{ add, name string }{"a next hop object", n})
		}
	}
	for _, r := range list {
		route, ok := routes[r.name]
		if !ok || route.Special != "" {
			t.Errorf("%s: not found as %q, or special: %+v", r.add, r.name, route)
			continue
		}
		for _, m := range Metrics() {
			if err := Set(r.name, m, 64); err != nil {
				t.Errorf("%s: %v", r.add, err)
			}
		}
		now := names2(t)[r.name]
		shown := everything(ip)
		for _, m := range Metrics() {
			if now.Value(m) != 64 || !strings.Contains(shown, string(m)) {
				t.Errorf("%s: after setting %s: %+v\n%s", r.add, m, now, shown)
			}
		}
		// Nothing else changed, of this route or any other.
		if changed := lineDiff(before, still(shown)); changed < 1 || changed > 3 {
			t.Errorf("%s: setting it changed %d lines:\n%s", r.add, changed, cmp.Diff(before, still(shown)))
		}
		for _, m := range Metrics() {
			if err := Set(r.name, m, route.Value(m)); err != nil {
				t.Errorf("%s: undoing %s: %v", r.add, m, err)
			}
		}
		if diff := cmp.Diff(before, still(everything(ip))); diff != "" {
			t.Fatalf("%s: after undoing (-before +after):\n%s", r.add, diff)
		}
	}
	// What must not be changed is not.
	for name, want := range map[string]Special{
		"default dev left metric 300": Daemon, "default dev left metric 301": Daemon, "default dev left metric 400": SharedMetric,
		"-6 default dev left metric 2000": Advertised, "-6 default dev left metric 2001": Expires,
	} {
		if got := routes[name].Special; got != want {
			t.Errorf("%s is special because of %q, want %q", name, got, want)
		}
		if err := Set(name, InitCwnd, 64); !errors.Is(err, ErrSpecial) {
			t.Errorf("setting it on %s: %v", name, err)
		}
	}
	for _, name := range []string{"default dev right metric 5", "default dev nowhere", "-6 default dev right", "-6 default dev right metric 1024", "default dev lo metric 4000", ""} {
		if err := Set(name, InitCwnd, 64); !errors.Is(err, ErrNoRoute) && !errors.Is(err, ErrSpecial) {
			t.Errorf("setting it on %q: %v", name, err)
		}
	}
	for m, v := range map[Metric]int{"mtu": 9, InitCwnd: -1, InitRwnd: 65536, "": 1} {
		if err := Set("default dev left", m, v); !errors.Is(err, ErrMetric) {
			t.Errorf("%s = %d: %v", m, v, err)
		}
	}
	if diff := cmp.Diff(before, still(everything(ip))); diff != "" {
		t.Errorf("what was refused changed something:\n%s", diff)
	}
}

// lineDiff counts the lines of after that are not in before.
func lineDiff(before, after string) (n int) {
	have := map[string]int{}
	for line := range strings.Lines(before) {
		have[line]++
	}
	for line := range strings.Lines(after) {
		if have[line]--; have[line] < 0 {
			n++
		}
	}
	return n
}

// Any routes, any metrics, any order of setting and undoing: in the end all is
// as it was, to the byte.
func TestSetUndoProperty(t *testing.T) {
	ip := namespace(t)
	for _, r := range others {
		ip(r)
	}
	round := 0
	// A route that is deleted costs the kernel milliseconds.
	if os.Getenv("ACCEL_LONG") == "" && flag.Lookup("rapid.checks").Value.String() == "100" {
		defer flag.Set("rapid.checks", "100")
		flag.Set("rapid.checks", "15")
	}
	rapid.Check(t, func(rt *rapid.T) {
		round++
		routes := rapid.SliceOfNDistinct(rapid.IntRange(0, len(made)-1), 1, 5, rapid.ID[int]).Draw(rt, "routes")
		extra := rapid.SampledFrom([]string{"", " initcwnd 30", " initrwnd 30 quickack 1", " rto_min 99ms", " mtu lock 1400 initcwnd 5", " congctl lock reno", " features ecn"}).Draw(rt, "extra")
		for _, i := range routes {
			add := made[i].add
			if !strings.Contains(add, "nexthop") && !strings.Contains(add, "mtu") && !strings.Contains(add, "initcwnd") {
				add += extra
			}
			ip(add)
		}
		defer func() {
			for _, i := range routes {
				ip(strings.Replace(made[i].add, "route add", "route del", 1))
			}
		}()
		before := still(everything(ip))
		original := map[string]Route{}
		for _, i := range routes {
			original[made[i].name] = names2(t)[made[i].name]
		}
		steps := rapid.IntRange(1, 8).Draw(rt, "steps")
		for range steps {
			name := made[rapid.SampledFrom(routes).Draw(rt, "route")].name
			m := rapid.SampledFrom(Metrics()).Draw(rt, "metric")
			if err := Set(name, m, rapid.IntRange(0, 500).Draw(rt, "value")); err != nil {
				rt.Fatal(err)
			}
		}
		for _, name := range slices.Sorted(mapsKeys(original)) {
			for _, m := range Metrics() {
				if err := Set(name, m, original[name].Value(m)); err != nil {
					rt.Fatal(err)
				}
			}
		}
		if diff := cmp.Diff(before, still(everything(ip))); diff != "" {
			rt.Fatalf("after undoing (-before +after):\n%s", diff)
		}
	})
	t.Logf("%d rounds", round)
}

func mapsKeys(m map[string]Route) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Somebody without the right is told so, and a route that goes meanwhile is no
// failure of the host.
func TestSetErrors(t *testing.T) {
	ip := namespace(t)
	if err := Set("default dev left", InitCwnd, 64); !errors.Is(err, ErrNoRoute) {
		t.Errorf("without a route: %v", err)
	}
	ip("route add default via 192.0.2.254 dev left")
	if err := unix.Setresuid(-1, 65534, -1); err != nil { // of this thread only
		t.Fatal(err)
	}
	err := Set("default dev left", InitCwnd, 64)
	if back := unix.Setresuid(-1, 0, -1); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("as nobody: %v", err)
	}
}

func TestWatch(t *testing.T) {
	ip := namespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	told := func(within time.Duration) bool {
		select {
		case _, ok := <-events:
			return ok
		case <-time.After(within):
			return false
		}
	}
	for told(300 * time.Millisecond) { // the kernel may still be at work on the links
	}
	ip("route add 203.0.113.0/24 via 192.0.2.254")
	ip("-6 route add 2001:db8:9::/64 via 2001:db8:1::2")
	if told(500 * time.Millisecond) {
		t.Error("a route that is no default was told")
	}
	for _, c := range []string{"route add default via 192.0.2.254", "route change default via 192.0.2.254 initcwnd 20", "-6 route add default via 2001:db8:1::2", "route del default"} {
		ip(c)
		if !told(5 * time.Second) {
			t.Errorf("%s was not told", c)
		}
	}
	// A burst is told once, or twice where it begins before the pause.
	for i := range 50 {
		ip("route replace default via 192.0.2.254 metric " + strconv.Itoa(i%2+1))
	}
	n := 0
	for told(600 * time.Millisecond) {
		n++
	}
	if n < 1 || n > 5 {
		t.Errorf("50 changes were told %d times", n)
	}
	cancel()
	for range 100 {
		if _, ok := <-events; !ok {
			return
		}
	}
	t.Error("the channel is not closed")
}

func FuzzWithMetric(f *testing.F) {
	f.Add(message(unix.AF_INET, 0, 254, 16, unix.RTN_UNICAST, attribute(unix.RTA_OIF, u32(2)),
		attribute(unix.RTA_METRICS, join(attribute(unix.RTAX_LOCK, u32(1<<16)), attribute(unix.RTAX_CC_ALGO, []byte("reno\x00"))))), uint16(64))
	f.Add(message(unix.AF_INET, 0, 254, 16, unix.RTN_UNICAST, attribute(unix.RTA_MULTIPATH, join(nextHop(2), nextHop(3)))), uint16(0))
	f.Fuzz(func(t *testing.T, msg []byte, value uint16) {
		if !isDefault(msg, unix.AF_INET) || parse(msg, unix.AF_INET, names) == nil {
			return
		}
		for _, m := range Metrics() {
			out, err := withMetric(msg, m, uint32(value))
			if err != nil {
				continue
			}
			got := parse(out, unix.AF_INET, names)
			if len(got) == 0 || got[0].Value(m) != int(value) {
				t.Fatalf("%s = %d: %+v", m, value, got)
			}
			before := parse(msg, unix.AF_INET, names)[0]
			back, err := withMetric(out, m, uint32(before.Value(m)))
			if err != nil {
				t.Fatal(err)
			}
			if again := parse(back, unix.AF_INET, names); again[0].Value(m) != before.Value(m) || again[0].Name() != before.Name() && binary.NativeEndian.Uint32(msg[flagsAt:]) == 0 && before.Links == nil && before.Link != "" && again[0].Link == "" {
				t.Fatalf("undone: %+v, was %+v", again[0], before)
			}
		}
	})
}

// systemd-networkd appends its route anew, with every renewed lease, beside one
// whose metrics somebody changed.
func TestTwins(t *testing.T) {
	ip := namespace(t)
	for _, r := range []string{
		"default via 192.0.2.254 dev left proto dhcp src 192.0.2.9 metric 100",
		"default via 192.0.2.254 dev left proto dhcp src 192.0.2.9 mtu 1400 metric 100",
		"default metric 100 nexthop via 192.0.2.253 dev left weight 3 nexthop via 198.51.100.254 dev right weight 7",
	} {
		name := "default dev left metric 100"
		if strings.Contains(r, "nexthop") {
			name = "default dev left,right metric 100"
		}
		ip("route add " + r)
		before := still(everything(ip))
		if err := Set(name, InitCwnd, 45); err != nil {
			t.Fatal(err)
		}
		one := still(everything(ip))
		for range 3 { // leases
			ip("route append " + r)
			routes, err := Defaults()
			if err != nil || len(slices.DeleteFunc(slices.Clone(routes), func(x Route) bool { return x.Name() != name })) != len(strings.Split(name, ",")) {
				t.Fatalf("%v, %+v", err, routes)
			}
			if got := routes[0]; got.Special != "" || !got.Twin || got.InitialCwnd != 45 || len(got.Behind) != 0 {
				t.Fatalf("a twin is %+v", got)
			}
			if err := Set(name, InitCwnd, 45); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(one, still(everything(ip))); diff != "" {
				t.Fatalf("%s: two did not become one (-want +got):\n%s", r, diff)
			}
		}
		ip("route append " + r)
		if err := Set(name, InitCwnd, 0); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, still(everything(ip))); diff != "" {
			t.Fatalf("%s: after undoing beside a twin (-before +after):\n%s", r, diff)
		}
		// The other way round, and three of them.
		ip("route append " + strings.Replace(r, "metric", "initcwnd 45 metric", 1))
		ip("route append " + strings.Replace(r, "metric", "initcwnd 46 metric", 1))
		if err := Set(name, InitCwnd, 0); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, still(everything(ip))); diff != "" {
			t.Fatalf("%s: of three (-before +after):\n%s", r, diff)
		}
		ip("route del default metric 100")
	}
}
