package tuning

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/sysctl"
)

const (
	wmem = sysctl.Key("net/ipv4/tcp_wmem")
	rmem = sysctl.Key("net/ipv4/tcp_rmem")
	idle = sysctl.Key("net/ipv4/tcp_slow_start_after_idle")
)

// shipped is the table of boost. The tests of the mechanism work with a fuller
// one, which has every sort of setting.
var shipped = boostTable

func init() {
	why := func(hostSize) string { return "why" }
	single := func(z hostSize) string { return strconv.FormatUint(z.buffer(), 10) }
	boostTable = []boosted{
		{metric: route.InitCwnd, floor: true, value: fixed("64"), why: why},
		{metric: route.InitRwnd, floor: true, value: fixed("64"), why: why},
		{sysctl: idle, value: fixed("0"), why: why},
		{sysctl: wmem, floor: true, value: triple, why: hostSize.bufferWhy},
		{sysctl: rmem, floor: true, value: triple, why: why},
		{sysctl: "net/core/wmem_max", floor: true, value: single, why: why},
		{sysctl: "net/core/rmem_max", floor: true, value: single, why: why},
	}
}

// What people get.
func TestShipped(t *testing.T) {
	full := boostTable
	boostTable = shipped
	defer func() { boostTable = full }()
	f := withBoost(newFakeHost())
	f.links["eth1"].kind = "fq_codel"
	before := f.seen()
	res := mustEnable(t, f, Request{Profile: "boost"})
	var settings []string
	for _, s := range res.Status.Settings {
		settings = append(settings, s.Setting+" "+*s.Live+" "+string(s.State))
		if s.Why == "" {
			t.Errorf("%s has no reason", s.Setting)
		}
	}
	want := []string{"net.ipv4.tcp_wmem 4096 16384 8388608 set", "route default dev eth0 metric 100 initcwnd 45 set"}
	if diff := cmp.Diff(want, settings); diff != "" {
		t.Error(diff)
	}
	if _, err := Disable(t.Context(), f.host(), false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, f.seen()); diff != "" {
		t.Errorf("after disable (-before +after):\n%s", diff)
	}

	arm, ok := ProfileArm(&kernel.Facts{MemoryBytes: 512 << 20}, "boost")
	if diff := cmp.Diff(Arm{Algorithm: "bbr", Qdisc: "fq", InitialCwnd: 45, Settings: []sysctl.KeyValue{{Key: wmem, Value: "4096 16384 8388608"}}}, arm); diff != "" || !ok {
		t.Errorf("the arm: %v\n%s", ok, diff)
	}
	// A floor below what a kernel has by itself stays there.
	if arm, _ := ProfileArm(&kernel.Facts{MemoryBytes: 128 << 20}, "boost"); arm.Settings[0].Value != "4096 16384 4194304" {
		t.Errorf("the arm of a small host: %+v", arm)
	}
	if arm, ok := ProfileArm(&kernel.Facts{}, "basic"); !ok || arm.InitialCwnd != 0 || arm.Settings != nil || arm.Algorithm != "bbr" {
		t.Errorf("%+v", arm)
	}
	if _, ok := ProfileArm(&kernel.Facts{}, "other"); ok {
		t.Error("there is an arm of a profile that does not exist")
	}
}

// withBoost gives a fake host what the profile boost is about.
func withBoost(f *fakeHost) *fakeHost {
	for k, v := range map[sysctl.Key]string{
		wmem: "4096 16384 4194304", rmem: "4096 131072 6291456", idle: "1", "net/core/wmem_max": "212992", "net/core/rmem_max": "212992",
	} {
		f.values[k], f.boot[k] = v, v
	}
	f.routes = []route.Route{
		{Family: "inet", Dst: "default", Link: "eth0", Table: 254, Metric: 100, Protocol: "dhcp"},
		{Family: "inet6", Dst: "default", Link: "eth0", Table: 254, Metric: 1024, Protocol: "ra", Special: route.Advertised},
		{Family: "inet", Dst: "default", Link: "eth1", Table: 100, Protocol: "static", Special: route.PolicyTable},
	}
	f.bootRoutes = slices.Clone(f.routes)
	return f
}

func state(s *Status, setting string) SettingState {
	for _, x := range s.Settings {
		if x.Setting == setting {
			return x.State
		}
	}
	return ""
}

func TestBoost(t *testing.T) {
	f := withBoost(newFakeHost())
	f.links["eth1"].kind = "fq_codel"
	f.values["net/core/wmem_max"] = "134217728" // more than boost asks
	before := f.seen()
	res := mustEnable(t, f, Request{Profile: "boost"})
	if res.Status.Verdict != Good {
		t.Fatalf("%s: %s %v", res.Status.Verdict, res.Status.Reason, res.Status.Drift)
	}
	if got := f.routes[0].InitialCwnd; got != 64 {
		t.Errorf("initcwnd %d", got)
	}
	if f.routes[1].InitialCwnd != 0 || f.routes[2].InitialCwnd != 0 {
		t.Errorf("a route that is not accel's was changed: %+v", f.routes)
	}
	if f.values[wmem] != "4096 16384 8388608" || f.values[idle] != "0" || f.values["net/core/wmem_max"] != "134217728" {
		t.Errorf("values: %v", f.values)
	}
	file := f.files[SysctlFile]
	if !strings.Contains(file, "net.ipv4.tcp_wmem = 4096 16384 8388608\n") || strings.Contains(file, "wmem_max") {
		t.Errorf("the file:\n%s", file)
	}
	for setting, want := range map[string]SettingState{
		"net.ipv4.tcp_wmem": StateSet, "net.core.wmem_max": StateKept, "route default dev eth0 metric 100 initcwnd": StateSet,
	} {
		if got := state(res.Status, setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	for _, n := range []string{"-6 default dev eth0 metric 1024", "default dev eth1"} {
		if !strings.Contains(strings.Join(res.Notes, "\n"), n) {
			t.Errorf("the route %s is not named in %q", n, res.Notes)
		}
	}
	if again := mustEnable(t, f, Request{Profile: "boost"}); again.Changed {
		t.Errorf("a second enable changed %+v", again.Steps)
	}

	// Somebody raises one value, lowers another, and DHCP makes the route anew.
	f.values[rmem] = "4096 131072 67108864"
	f.values["net/core/wmem_max"] = "1000"
	f.values[wmem] = "4096 16384 65536"
	f.routes[0].InitialCwnd, f.routes[0].InitialRwnd = 0, 0
	drift, err := Drifts(t.Context(), f.host())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range drift {
		names = append(names, d.Setting)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"net.core.wmem_max", "net.ipv4.tcp_wmem", "route default dev eth0 metric 100 initcwnd"}, slices.DeleteFunc(names, func(n string) bool { return strings.Contains(n, "initrwnd") })); diff != "" {
		t.Error(diff)
	}
	if s := mustAssess(t, f); s.Verdict != Drifted || state(s, "net.ipv4.tcp_rmem") != StateForeign {
		t.Errorf("%s, %v", s.Verdict, s.Settings)
	}
	if _, err := Heal(t.Context(), f.host(), HealOptions{}); err != nil {
		t.Fatal(err)
	}
	if s := mustAssess(t, f); s.Verdict != Good {
		t.Errorf("after healing: %s %v", s.Reason, s.Drift)
	}
	if f.values[rmem] != "4096 131072 67108864" || f.values["net/core/wmem_max"] != "8388608" || f.routes[0].InitialCwnd != 64 {
		t.Errorf("after healing: %v %+v", f.values, f.routes)
	}

	// basic and back are exact, too.
	mustEnable(t, f, Request{})
	if f.routes[0].InitialCwnd != 0 || f.values[wmem] != "4096 16384 4194304" || f.values[idle] != "1" || strings.Contains(f.files[SysctlFile], "wmem") {
		t.Errorf("after enabling basic: %v %+v\n%s", f.values, f.routes, f.files[SysctlFile])
	}
	mustEnable(t, f, Request{Profile: "boost"})
	res2, err := Disable(t.Context(), f.host(), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(res2.Left) != 0 {
		t.Errorf("left: %v", res2.Left)
	}
	before.Values["net/core/wmem_max"] = "1000"  // somebody's
	before.Values[rmem] = "4096 131072 67108864" // somebody's
	if diff := cmp.Diff(before, f.seen()); diff != "" {
		t.Errorf("after disable (-before +after):\n%s", diff)
	}
}

func TestRaise(t *testing.T) {
	for _, c := range []struct{ value, floor, want string }{
		{"10", "64", "64"}, {"100", "64", "100"}, {"0", "64", "64"}, {"4096\t16384\t4194304", "0 0 8388608", "4096 16384 8388608"},
		{"4096 16384 99999999", "0 0 8388608", "4096 16384 99999999"}, {"1 2 3", "4 1 4", "4 2 4"}, {"x", "64", "x"}, {"1 2", "0 0 3", "1 2"}, {"", "3", ""}, {"-1", "3", "-1"},
	} {
		if got := raise(c.value, c.floor); got != c.want {
			t.Errorf("%q with %q: %q, want %q", c.value, c.floor, got, c.want)
		}
	}
}

// Ceilings follow memory.
func TestBuffer(t *testing.T) {
	speed := func(n int) *int { return &n }
	for _, c := range []struct {
		memory uint64
		speed  *int
		want   uint64
	}{
		{128 << 20, nil, 2 << 20}, {256 << 20, nil, 4 << 20}, {512 << 20, nil, 8 << 20}, {1 << 30, nil, 16 << 20}, {0, nil, 8 << 20},
		{4 << 30, nil, 16 << 20}, {64 << 30, nil, 16 << 20}, {64 << 30, speed(100), 16 << 20}, {64 << 30, speed(50), 9961472}, {64 << 30, speed(10000), 16 << 20}, {512 << 20, speed(100), 8 << 20}, {512 << 20, speed(10), 1966080},
	} {
		f := &kernel.Facts{MemoryBytes: c.memory, Links: []kernel.Link{{Name: "eth0", Hardware: true, SpeedMbit: c.speed}, {Name: "veth0", SpeedMbit: speed(10000)}}}
		if got := sizeOf(f).buffer(); got != c.want {
			t.Errorf("%d MiB, %v: %d, want %d", c.memory>>20, c.speed, got, c.want)
		}
	}
}

// Another file of sysctl.d asks for more than boost: accel's file is read last
// and must not ask for less.
func TestFloorAboveOtherFiles(t *testing.T) {
	f := withBoost(newFakeHost())
	f.links["eth1"].kind = "fq_codel"
	mustEnable(t, f, Request{Profile: "boost"})
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/etc/sysctl.d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/etc/sysctl.d/50-somebody.conf", []byte("net.ipv4.tcp_wmem = 4096 65536 134217728\nnet.core.wmem_max=1000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.reboot() // accel's file won
	h := f.host()
	h.Root = dir
	if _, err := Heal(t.Context(), h, HealOptions{RetryRefused: true}); err != nil {
		t.Fatal(err)
	}
	if got := f.values[wmem]; got != "4096 65536 134217728" {
		t.Errorf("tcp_wmem is %s", got)
	}
	if got := f.values["net/core/wmem_max"]; got != "8388608" {
		t.Errorf("wmem_max is %s", got)
	}
	if !strings.Contains(f.files[SysctlFile], "tcp_wmem = 4096 65536 134217728\n") {
		t.Errorf("the file:\n%s", f.files[SysctlFile])
	}
	if _, err := Disable(t.Context(), h, false); err != nil {
		t.Fatal(err)
	}
	if got := f.values[wmem]; got != "4096 16384 4194304" {
		t.Errorf("after disable tcp_wmem is %s", got)
	}
}

// Routes that must not be touched, and a host whose routes cannot be had.
func TestBoostLeavesRoutes(t *testing.T) {
	f := withBoost(newFakeHost())
	f.links["wg0"] = &fakeLink{index: 9, veth: true}
	ordinary := route.Route{Family: "inet", Dst: "default", Link: "eth0", Table: 254, Protocol: "static"}
	f.routes = []route.Route{ordinary}
	for i, special := range []route.Special{route.PolicyTable, route.Advertised, route.Expires, route.Daemon, route.PolicyMatch, route.Encapsulated, route.SharedMetric, "new"} {
		r := ordinary
		r.Metric, r.Special = i+1, special
		f.routes = append(f.routes, r)
	}
	tunnel, several, unknown := ordinary, ordinary, ordinary
	tunnel.Link, tunnel.Metric = "wg0", 20
	several.Links, several.Metric = []string{"eth0", "wg0"}, 21
	unknown.Link, unknown.Metric = "eth9", 22
	f.routes = append(f.routes, tunnel, several, unknown)
	h := f.host()
	detect := h.Detect
	h.Detect = func() (*kernel.Facts, error) {
		facts, err := detect()
		for i := range facts.Links {
			if facts.Links[i].Name == "wg0" {
				facts.Links[i].Type, facts.Links[i].Kind = kernel.TypeNone, "wireguard"
			}
		}
		return facts, err
	}
	res, err := Enable(t.Context(), h, Request{Profile: "boost"})
	if err != nil || res.Status.Verdict != Good {
		t.Fatalf("%v %+v", err, res.Status)
	}
	for i, r := range f.routes {
		if (r.InitialCwnd != 0) != (i == 0) {
			t.Errorf("%s (%s): initcwnd %d", r.Name(), r.Special, r.InitialCwnd)
		}
		s := res.Status.Routes[i]
		if s.Managed != (i == 0) || (s.Reason == "") != (i == 0) {
			t.Errorf("%s: managed %v, %q", r.Name(), s.Managed, s.Reason)
		}
		if i > 0 && !slices.ContainsFunc(res.Notes, func(n string) bool { return strings.Contains(n, r.Name()) && strings.Contains(n, s.Reason) }) {
			t.Errorf("%s is not named in %q", r.Name(), res.Notes)
		}
	}
	// It became somebody's: left, and no drift.
	f.routes[0].Special, f.routes[0].InitialCwnd = route.Daemon, 0
	if d, err := Drifts(t.Context(), h); err != nil || len(d) != 0 {
		t.Errorf("drift %v, %v", d, err)
	}
	// A route that comes later is drift until the agent has seen it.
	late := ordinary
	late.Metric = 7777
	f.routes = append(f.routes, late)
	if s, err := Assess(t.Context(), h); err != nil || s.Verdict != Drifted {
		t.Errorf("%v, %v", s.Verdict, err)
	}
	if _, err := Heal(t.Context(), h, HealOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := f.routes[len(f.routes)-1].InitialCwnd; n != 64 {
		t.Errorf("the late route has initcwnd %d", n)
	}
}

// A kernel or a namespace that lacks or refuses part of it has the rest.
func TestBoostInPart(t *testing.T) {
	f := withBoost(newFakeHost())
	f.links["eth1"].kind = "fq_codel"
	delete(f.values, "net/core/wmem_max")
	delete(f.boot, "net/core/wmem_max")
	f.values["net/core/rmem_max"] = "what"
	f.refuse["net.ipv4.tcp_wmem=4096 16384 8388608"] = sysctl.ErrNamespace
	before := f.seen()
	res := mustEnable(t, f, Request{Profile: "boost"})
	if res.Status.Verdict != Good {
		t.Fatalf("%s %v", res.Status.Reason, res.Status.Drift)
	}
	for setting, want := range map[string]SettingState{
		"net.core.wmem_max": StateAbsent, "net.ipv4.tcp_wmem": StateRefused, "net.ipv4.tcp_rmem": StateSet,
	} {
		if got := state(res.Status, setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	if strings.Contains(f.files[SysctlFile], "wmem") {
		t.Errorf("what was not had is in the file:\n%s", f.files[SysctlFile])
	}
	if _, err := Heal(t.Context(), f.host(), HealOptions{}); err != nil {
		t.Fatal(err)
	}
	if again := mustEnable(t, f, Request{Profile: "boost"}); slices.ContainsFunc(again.Steps, func(s Step) bool { return s.Changed }) {
		t.Errorf("a second enable changed %+v", again.Steps)
	}
	if _, err := Disable(t.Context(), f.host(), false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, f.seen()); diff != "" {
		t.Errorf("after disable (-before +after):\n%s", diff)
	}
}

// A state of the first version, which knew neither floors nor routes, is
// understood; the next command writes the present one.
func TestFirstStateVersion(t *testing.T) {
	f := withBoost(newFakeHost())
	mustEnable(t, f, Request{})
	f.files[StateFile] = strings.Replace(f.files[StateFile], `"version": 2`, `"version": 1`, 1)
	if s := mustAssess(t, f); s.Verdict != Good {
		t.Errorf("%s", s.Reason)
	}
	mustEnable(t, f, Request{Profile: "boost"})
	if !strings.Contains(f.files[StateFile], `"version": 2`) {
		t.Error("the state has the old version")
	}
}

// networkd appends its route anew beside the one with accel's metric: that one
// counts still, so nothing is wrong with the host, and the agent makes one of
// the two.
func TestBoostTwins(t *testing.T) {
	f := withBoost(newFakeHost())
	f.links["eth1"].kind = "fq_codel"
	before := f.seen()
	mustEnable(t, f, Request{Profile: "boost"})
	f.bootRoutes[0].InitialCwnd = 20 // the network has another wish by now
	f.renew(true)
	if !f.routes[0].Twin {
		t.Fatal("the fake host has no twin")
	}
	if s := mustAssess(t, f); s.Verdict != Good || state(s, "route default dev eth0 metric 100 initcwnd") != StateSet {
		t.Errorf("%s: %s %+v", s.Verdict, s.Reason, s.Settings)
	}
	if d, err := Drifts(t.Context(), f.host()); err != nil || len(d) != 2 {
		t.Errorf("drift %v, %v", d, err)
	}
	res, err := Heal(t.Context(), f.host(), HealOptions{})
	if err != nil || !res.Changed {
		t.Fatalf("%+v, %v", res, err)
	}
	if r := f.routes[0]; r.Twin || r.InitialCwnd != 64 || r.InitialRwnd != 64 {
		t.Errorf("after healing: %+v", r)
	}
	if d, err := Drifts(t.Context(), f.host()); err != nil || len(d) != 0 {
		t.Errorf("after healing: drift %v, %v", d, err)
	}
	f.renew(true)
	if res, err := Disable(t.Context(), f.host(), false); err != nil || len(res.Left) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	before.Routes[0].InitialCwnd = 20
	if diff := cmp.Diff(before, f.seen()); diff != "" {
		t.Errorf("after disable (-before +after):\n%s", diff)
	}

	// Twins of which none is accel's stay two, whoever made them.
	f = withBoost(newFakeHost())
	f.routes[0].InitialCwnd = 5
	f.renew(true)
	mine := f.seen().Routes
	res = mustEnable(t, f, Request{Profile: "boost"})
	if diff := cmp.Diff(mine, f.seen().Routes); diff != "" || res.Status.Routes[0].Managed {
		t.Errorf("somebody's twins were changed:\n%s", diff)
	}
}
