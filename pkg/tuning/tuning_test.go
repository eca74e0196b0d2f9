package tuning

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/sysctl"
)

func TestEnableDisable(t *testing.T) {
	f := newFakeHost()
	before := f.seen()
	res := mustEnable(t, f, Request{})
	if s := res.Status; s.Verdict != Good || s.Exit != 0 {
		t.Fatalf("status %s (%s), drift %v", s.Verdict, s.Reason, s.Drift)
	}
	want := map[sysctl.Key]string{
		sysctl.CongestionControl: "bbr", sysctl.DefaultQdisc: "fq", sysctl.AllowedCongestionControl: "reno cubic bbr",
	}
	if d := cmp.Diff(want, f.values); d != "" {
		t.Error(d)
	}
	if f.links["eth0"].kind != "fq" || f.links["eth1"].kind != "fq" {
		t.Errorf("links %+v %+v", f.links["eth0"], f.links["eth1"])
	}
	wantFile := mark + "\n# To undo everything: accel disable\n"
	if got := f.files[SysctlFile]; !strings.HasPrefix(got, wantFile) || !strings.Contains(got, "net.core.default_qdisc = fq\n") || !strings.Contains(got, "net.ipv4.tcp_congestion_control = bbr\n") || strings.Contains(got, "allowed") {
		t.Errorf("sysctl file:\n%s", got)
	}
	if got := uncomment(f.files[ModulesFile]); got != "tcp_bbr\nsch_fq\n" {
		t.Errorf("modules file: %q", got)
	}
	if !f.service.enabled || !f.service.active {
		t.Error("the service is off")
	}

	again := mustEnable(t, f, Request{})
	if again.Changed {
		t.Errorf("the second enable changed something: %+v", again)
	}

	f.reboot()
	if s := mustAssess(t, f); s.Verdict != Good {
		t.Fatalf("after a reboot: %s (%s)", s.Verdict, s.Reason)
	}
	undo, err := Disable(t.Context(), f.host(), false)
	if err != nil || len(undo.Left) != 0 {
		t.Fatalf("disable: %v, left %v", err, undo)
	}
	if d := cmp.Diff(before, f.seen()); d != "" {
		t.Errorf("disable did not restore (-before +after):\n%s", d)
	}
	if s := mustAssess(t, f); s.Verdict != NotEnabled || s.Exit != 3 {
		t.Errorf("after disable: %s", s.Verdict)
	}
	if undo, err = Disable(t.Context(), f.host(), false); err != nil || undo.Changed {
		t.Errorf("the second disable: %v %+v", err, undo)
	}
}

func TestSecondEnableWritesNothing(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	var res *Result
	f.during(0, 0, nil, func() { res = mustEnable(t, f, Request{}) })
	if len(f.ops) != 0 || res.Changed {
		t.Errorf("changed %v: %q", res.Changed, f.ops)
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	f := newFakeHost()
	f.during(0, 0, nil, func() {
		res := mustEnable(t, f, Request{DryRun: true})
		if !res.Changed || len(res.Steps) != 8 {
			t.Errorf("%+v", res)
		}
	})
	if len(f.ops) != 0 {
		t.Errorf("a dry run did: %q", f.ops)
	}
	mustEnable(t, f, Request{})
	f.during(0, 0, nil, func() {
		res, err := Disable(t.Context(), f.host(), true)
		if err != nil || !res.Changed || len(res.Steps) != 6 {
			t.Errorf("%v %+v", err, res)
		}
	})
	if len(f.ops) != 0 {
		t.Errorf("a dry run did: %q", f.ops)
	}
}

// Switching keeps the first originals.
func TestSwitch(t *testing.T) {
	f := newFakeHost()
	before := f.seen()
	mustEnable(t, f, Request{})
	mustEnable(t, f, Request{Algorithm: "htcp", Qdisc: "cake", Links: []string{"eth0"}})
	if f.values[sysctl.CongestionControl] != "htcp" || f.links["eth0"].kind != "cake" || f.links["eth1"].kind != "pfifo_fast" {
		t.Errorf("%v %+v %+v", f.values, f.links["eth0"], f.links["eth1"])
	}
	if s := mustAssess(t, f); s.Verdict != Good || s.Enabled.Algorithm != "htcp" || s.Enabled.Qdisc != "cake" {
		t.Errorf("%s %s %+v", s.Verdict, s.Reason, s.Enabled)
	}
	mustEnable(t, f, Request{})
	if _, err := Disable(t.Context(), f.host(), false); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, f.seen()); d != "" {
		t.Error(d)
	}
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name string
		req  Request
		host func(*fakeHost)
		exit int
		says []string // in the message or the next step
	}{
		{"upper case", Request{Algorithm: "BBR"}, nil, ExitUsage, []string{"accel enable bbr"}},
		{"padded", Request{Algorithm: "bbr "}, nil, ExitUsage, []string{"accel enable bbr"}},
		{"carriage return", Request{Algorithm: "bbr\r"}, nil, ExitUsage, []string{"accel enable bbr"}},
		{"injected", Request{Algorithm: "reno\ncubic"}, nil, ExitUsage, nil},
		{"list", Request{Algorithm: "bbr,cubic"}, nil, ExitUsage, nil},
		{"path", Request{Algorithm: "../bbr"}, nil, ExitUsage, nil},
		{"long", Request{Algorithm: strings.Repeat("b", 16)}, nil, ExitUsage, nil},
		{"brutal", Request{Algorithm: "brutal"}, func(f *fakeHost) { f.modules["brutal"] = kernel.Builtin }, ExitUsage, []string{"1 Mbit/s"}},
		{"near miss", Request{Algorithm: "brr"}, nil, ExitImpossible, []string{"accel enable bbr"}},
		{"unknown", Request{Algorithm: "nosuch"}, nil, ExitImpossible, []string{"bbr cubic htcp reno"}},
		{"no bbr", Request{}, func(f *fakeHost) { delete(f.modules, "bbr") }, ExitImpossible, []string{"cubic htcp reno", "apt install linux-image-amd64"}},
		{"no bbr, but a name like it", Request{}, func(f *fakeHost) { delete(f.modules, "bbr"); f.modules["bic"] = kernel.Loadable }, ExitImpossible, []string{"apt install linux-image-amd64"}},
		{"no key", Request{}, func(f *fakeHost) { delete(f.values, sysctl.CongestionControl) }, ExitImpossible, []string{"does not exist here"}},
		{"openvz", Request{}, func(f *fakeHost) {
			delete(f.values, sysctl.CongestionControl)
			f.virt.Container = "openvz"
		}, ExitImpossible, []string{"OpenVZ", "KVM"}},
		{"old kernel without fq", Request{}, func(f *fakeHost) { f.release = "4.9.0-19-amd64"; delete(f.modules, "fq") }, ExitImpossible, []string{"needs the qdisc fq"}},
		{"profile", Request{Profile: "turbo"}, nil, ExitUsage, []string{"basic"}},
		{"qdisc that is none", Request{Qdisc: "htb"}, nil, ExitUsage, []string{"fq"}},
		{"qdisc not here", Request{Qdisc: "fq_pie"}, nil, ExitImpossible, []string{"fq_codel"}},
		{"link not here", Request{Links: []string{"eth9"}}, nil, ExitUsage, []string{"eth0"}},
		{"sacred link", Request{Links: []string{"veth0"}}, nil, ExitImpossible, []string{"veth"}},
		{"configured link", Request{Links: []string{"eth0"}}, func(f *fakeHost) { f.links["eth0"].configured = "htb" }, ExitImpossible, []string{"configured"}},
		{"stranger's file", Request{}, func(f *fakeHost) { f.files[SysctlFile] = "net.ipv4.tcp_congestion_control = reno\n" }, ExitFailed, []string{"not written by accel"}},
		{"newer state", Request{}, func(f *fakeHost) { f.files[StateFile] = `{"version": 99}` }, ExitFailed, []string{"newer"}},
		{"damaged state", Request{}, func(f *fakeHost) { f.files[StateFile] = `{"version": 1, "pha` }, ExitFailed, []string{"originals"}},
		{"tampered state", Request{}, func(f *fakeHost) {
			f.files[StateFile] = `{"version":1,"phase":"settled","enabled":{"algorithm":"bbr"},"records":[{"kind":"sysctl","name":"kernel/core_pattern","original":"|x"}]}`
		}, ExitFailed, []string{"not one of accel's"}},
		{"refused by the kernel", Request{}, func(f *fakeHost) { f.refuse["net.ipv4.tcp_congestion_control=bbr"] = sysctl.ErrValue }, ExitImpossible, []string{"cannot be set"}},
		{"no capability", Request{}, func(f *fakeHost) { f.refuse["net.ipv4.tcp_congestion_control=bbr"] = sysctl.ErrPermission }, ExitImpossible, []string{"CAP_NET_ADMIN"}},
		{"read-only", Request{}, func(f *fakeHost) { f.refuse["net.ipv4.tcp_congestion_control=bbr"] = sysctl.ErrReadOnly }, ExitImpossible, []string{"ProtectKernelTunables"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFakeHost()
			if tc.host != nil {
				tc.host(f)
			}
			before := f.seen()
			_, err := Enable(t.Context(), f.host(), tc.req)
			if err == nil || ExitCode(err) != tc.exit {
				t.Fatalf("exit %d, error %v; want exit %d", ExitCode(err), err, tc.exit)
			}
			var p *Problem
			errors.As(err, &p)
			said := err.Error() + " " + p.Next
			for _, w := range tc.says {
				if !strings.Contains(said, w) {
					t.Errorf("%q does not say %q", said, w)
				}
			}
			if p.Next == "" {
				t.Error("no next step")
			}
			if d := cmp.Diff(before, f.seen()); d != "" {
				t.Errorf("something changed:\n%s", d)
			}
			if f.service.enabled {
				t.Error("the service was enabled")
			}
		})
	}
}

// An optional wish that the host refuses does not stop the rest, and is not
// persisted.
func TestNoFq(t *testing.T) {
	for name, change := range map[string]func(*fakeHost){
		"absent": func(f *fakeHost) { delete(f.modules, "fq") },
		"refused": func(f *fakeHost) {
			f.refuse["net.core.default_qdisc=fq"] = sysctl.ErrValue
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHost()
			change(f)
			before := f.seen()
			res := mustEnable(t, f, Request{})
			if res.Status.Verdict != Good || res.Enabled.Qdisc != "" {
				t.Errorf("%s (%s), qdisc %q", res.Status.Verdict, res.Status.Reason, res.Enabled.Qdisc)
			}
			if !strings.Contains(strings.Join(res.Status.Notes, "\n"), "paces itself") {
				t.Errorf("notes: %q", res.Status.Notes)
			}
			if strings.Contains(f.files[SysctlFile], "qdisc") {
				t.Errorf("persisted what would fail:\n%s", f.files[SysctlFile])
			}
			if f.values[sysctl.DefaultQdisc] != "fq_codel" || f.links["eth0"].kind != "fq_codel" {
				t.Errorf("%v %+v", f.values, f.links["eth0"])
			}
			if again := mustEnable(t, f, Request{}); again.Changed {
				t.Errorf("the second enable says it changed something: %+v", again.Steps)
			}
			if _, err := Disable(t.Context(), f.host(), false); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, f.seen()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestNamespace(t *testing.T) {
	f := newFakeHost()
	delete(f.values, sysctl.DefaultQdisc)
	f.modules["bbr"] = kernel.Builtin
	res := mustEnable(t, f, Request{})
	if res.Status.Verdict != Good || !strings.Contains(strings.Join(res.Status.Notes, "\n"), "initial network namespace") {
		t.Errorf("%s %q", res.Status.Verdict, res.Status.Notes)
	}
	if f.files[ModulesFile] != "" || f.links["eth0"].kind != "fq_codel" {
		t.Errorf("files %q, link %+v", f.files, f.links["eth0"])
	}
}

func TestNotInForce(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	f.routes = []route.Route{{Family: "inet", Dst: "default", Link: "eth0", Table: 254, CongestionControl: "reno"}}
	if s := mustAssess(t, f); s.Verdict != NotInForce || s.Exit != 4 || !strings.Contains(s.Reason, "eth0") || !strings.Contains(s.Reason, "congctl reno") {
		t.Errorf("%s: %s", s.Verdict, s.Reason)
	}
	f.routes = nil
	f.override = "cubic"
	if s := mustAssess(t, f); s.Verdict != NotInForce || !strings.Contains(s.Reason, "cubic") {
		t.Errorf("%s: %s", s.Verdict, s.Reason)
	}
}

func TestDriftAndHeal(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*fakeHost)
		drift  string
	}{
		"algorithm":     {func(f *fakeHost) { f.values[sysctl.CongestionControl] = "cubic" }, "net.ipv4.tcp_congestion_control"},
		"default qdisc": {func(f *fakeHost) { f.values[sysctl.DefaultQdisc] = "cake" }, "net.core.default_qdisc"},
		"link":          {func(f *fakeHost) { f.links["eth0"].kind = "fq_codel" }, "qdisc eth0"},
		"leftover":      {func(f *fakeHost) { f.links["eth0"].leftover = true }, "qdisc eth0"},
		"more queues":   {func(f *fakeHost) { f.links["eth1"].grown = true }, "qdisc eth1"},
		"new link":      {func(f *fakeHost) { f.links["eth7"] = &fakeLink{index: 9, kind: "fq_codel", queues: 2} }, "qdisc eth7"},
		"file gone":     {func(f *fakeHost) { delete(f.files, SysctlFile) }, "file " + SysctlFile},
		"file edited":   {func(f *fakeHost) { f.files[ModulesFile] += "tcp_illinois\n" }, "file " + ModulesFile},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHost()
			mustEnable(t, f, Request{})
			tc.change(f)
			s := mustAssess(t, f)
			if s.Verdict != Drifted || len(s.Drift) != 1 || s.Drift[0].Setting != tc.drift {
				t.Fatalf("%s, drift %+v", s.Verdict, s.Drift)
			}
			res, err := Heal(t.Context(), f.host(), HealOptions{})
			if err != nil || !res.Changed {
				t.Fatalf("%v %+v", err, res)
			}
			if !slices.ContainsFunc(res.Steps, func(st Step) bool { return st.Setting == tc.drift && st.Changed }) {
				t.Errorf("healed %+v", res.Steps)
			}
			if s := mustAssess(t, f); s.Verdict != Good {
				t.Errorf("after healing: %s, %v", s.Verdict, s.Drift)
			}
			f.during(0, 0, nil, func() {
				if res, err := Heal(t.Context(), f.host(), HealOptions{}); err != nil || res.Changed {
					t.Errorf("healing again: %v %+v", err, res)
				}
			})
			if len(f.ops) != 0 {
				t.Errorf("healing again did: %q", f.ops)
			}
		})
	}
}

func TestHealExcept(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	state := f.files[StateFile]
	f.values[sysctl.CongestionControl] = "cubic"
	f.values[sysctl.DefaultQdisc] = "cake"
	if _, err := Heal(t.Context(), f.host(), HealOptions{Except: []string{"net.ipv4.tcp_congestion_control"}}); err != nil {
		t.Fatal(err)
	}
	if f.values[sysctl.CongestionControl] != "cubic" || f.values[sysctl.DefaultQdisc] != "fq" {
		t.Errorf("%v", f.values)
	}
	if !strings.Contains(f.files[SysctlFile], "= bbr") {
		t.Errorf("the wish is no longer persisted:\n%s", f.files[SysctlFile])
	}
	if d := cmp.Diff(state, f.files[StateFile]); d != "" {
		t.Error(d)
	}
}

// At boot the service may heal before a link is there. It is wished for as
// before, or what changes it afterwards would be no drift.
func TestHealBeforeLink(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	state, link := f.files[StateFile], f.links["eth0"]
	delete(f.links, "eth0")
	if _, err := Heal(t.Context(), f.host(), HealOptions{RetryRefused: true}); err != nil {
		t.Fatal(err)
	}
	f.links["eth0"] = link
	if d := cmp.Diff(state, f.files[StateFile]); d != "" {
		t.Error(d)
	}
	link.kind = "fq_codel"
	if d, err := Drifts(t.Context(), f.host()); err != nil || len(d) != 1 || d[0].Setting != "qdisc eth0" {
		t.Errorf("%+v, %v", d, err)
	}
}

// A new kernel without the algorithm: nothing is pretended.
func TestHealImpossible(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	delete(f.modules, "bbr")
	f.reboot()
	if _, err := Heal(t.Context(), f.host(), HealOptions{RetryRefused: true}); ExitCode(err) != ExitImpossible {
		t.Errorf("%v", err)
	}
	if s := mustAssess(t, f); s.Verdict != Drifted {
		t.Errorf("%s %s", s.Verdict, s.Reason)
	}
}

// A kernel that gained fq gets it at the next boot.
func TestHealRetriesRefused(t *testing.T) {
	f := newFakeHost()
	delete(f.modules, "fq")
	before := f.seen()
	mustEnable(t, f, Request{})
	f.modules["fq"] = kernel.Loadable
	f.reboot()
	if _, err := Heal(t.Context(), f.host(), HealOptions{RetryRefused: true}); err != nil {
		t.Fatal(err)
	}
	if s := mustAssess(t, f); s.Verdict != Good || s.Enabled.Qdisc != "fq" || f.links["eth0"].kind != "fq" {
		t.Errorf("%s %+v %+v", s.Verdict, s.Enabled, f.links["eth0"])
	}
	if _, err := Disable(t.Context(), f.host(), false); err != nil {
		t.Fatal(err)
	}
	before.Trees = nil // eth1 came up anew at the reboot
	after := f.seen()
	after.Trees = nil
	if d := cmp.Diff(before, after); d != "" {
		t.Error(d)
	}
}

// What somebody else changed since is left and named.
func TestDisableLeavesForeignChanges(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	f.values[sysctl.CongestionControl] = "reno"
	f.links["eth0"].configured = "htb"
	res, err := Disable(t.Context(), f.host(), false)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range res.Left {
		names = append(names, l.Setting)
	}
	slices.Sort(names)
	if d := cmp.Diff([]string{"net.ipv4.tcp_congestion_control", "qdisc eth0"}, names); d != "" {
		t.Error(d)
	}
	if f.values[sysctl.CongestionControl] != "reno" || f.links["eth0"].configured != "htb" || f.values[sysctl.DefaultQdisc] != "fq_codel" || f.links["eth1"].kind != "pfifo_fast" {
		t.Errorf("%v %+v %+v", f.values, f.links["eth0"], f.links["eth1"])
	}
}

// Connections that fq paced go on without pacing: who disables is told.
func TestDisableNamesUnpacedConnections(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	f.connections = map[string]int{"bbr": 3, "cubic": 2}
	res, err := Disable(t.Context(), f.host(), false)
	if err != nil || !strings.Contains(strings.Join(res.Notes, "\n"), "3 established BBR connections") {
		t.Errorf("%v, notes %q", err, res.Notes)
	}
	f = newFakeHost()
	f.links = nil
	mustEnable(t, f, Request{})
	f.connections = map[string]int{"bbr": 3}
	if res, err = Disable(t.Context(), f.host(), false); err != nil || len(res.Notes) != 0 {
		t.Errorf("no fq went away: %v, notes %q", err, res.Notes)
	}
}

// A tree with leaves of two kinds is put back to the kind it was built from.
func TestDisableMixed(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	f.links["eth1"].grown = true
	if res, err := Disable(t.Context(), f.host(), false); err != nil || len(res.Left) != 0 || f.links["eth1"].kind != "pfifo_fast" {
		t.Errorf("%v %+v, eth1 %+v", err, res, f.links["eth1"])
	}
}

// Links that came up while accel's default qdisc was in force get the original
// default.
func TestDisableInheritedLink(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	f.links["eth5"] = &fakeLink{index: 11, kind: "fq", queues: 1}
	if s := mustAssess(t, f); s.Verdict != Good {
		t.Fatalf("%s %v", s.Verdict, s.Drift)
	}
	if _, err := Heal(t.Context(), f.host(), HealOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Disable(t.Context(), f.host(), false); err != nil {
		t.Fatal(err)
	}
	if f.links["eth5"].kind != "fq_codel" {
		t.Errorf("eth5 has %s", f.links["eth5"].kind)
	}
}

// An undo that fails keeps the original, says so, and works once the cause is
// gone.
func TestDisablePartial(t *testing.T) {
	f := newFakeHost()
	before := f.seen()
	mustEnable(t, f, Request{})
	f.refuse["net.ipv4.tcp_congestion_control=cubic"] = sysctl.ErrPermission
	res, err := Disable(t.Context(), f.host(), false)
	if ExitCode(err) != ExitFailed || len(res.Left) != 1 || !res.Left[0].Failed {
		t.Fatalf("%v %+v", err, res)
	}
	if s := mustAssess(t, f); s.Verdict != Drifted {
		t.Errorf("%s", s.Verdict)
	}
	clear(f.refuse)
	if _, err := Disable(t.Context(), f.host(), false); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, f.seen()); d != "" {
		t.Error(d)
	}
}

func TestDiskTrouble(t *testing.T) {
	for _, cause := range []error{files.ErrReadOnly, files.ErrNoSpace, files.ErrImmutable} {
		for _, earlier := range []bool{false, true} {
			f := newFakeHost()
			if earlier {
				mustEnable(t, f, Request{Algorithm: "htcp"})
			}
			before := f.seen()
			for i := 1; ; i++ {
				var err error
				f.during(0, i, cause, func() { _, err = Enable(t.Context(), f.host(), Request{}) })
				if len(f.ops) < i {
					break
				}
				op := f.ops[i-1]
				optional := strings.Contains(op, "modprobe sch_fq") || strings.Contains(op, "default_qdisc") || strings.Contains(op, "placeholder") ||
					strings.HasPrefix(op, "enable the service")
				if (err == nil) != optional && !strings.Contains(op, "modprobe") {
					t.Errorf("%v at %q: %v", cause, op, err)
				}
				if err != nil {
					if d := cmp.Diff(before, f.seen()); d != "" {
						t.Errorf("%v at %q: not undone:\n%s", cause, op, d)
					}
					continue
				}
				if s := mustAssess(t, f); s.Verdict != Good {
					t.Errorf("%v at %q: %s", cause, op, s.Verdict)
				}
				if earlier {
					mustEnable(t, f, Request{Algorithm: "htcp"})
				} else if _, err := Disable(t.Context(), f.host(), false); err != nil {
					t.Fatal(err)
				}
				f.reboot()
				f.links["eth1"].kind = "pfifo_fast"
				f.links["eth0"].kind = "fq_codel"
				if earlier {
					mustEnable(t, f, Request{Algorithm: "htcp"})
				}
			}
		}
	}
}

func TestOtherWritersKeepTheirPlace(t *testing.T) {
	f := newFakeHost()
	f.service.missing = true
	res := mustEnable(t, f, Request{})
	if res.Status.Verdict != Good || !strings.Contains(strings.Join(res.Notes, "\n"), "systemd is not running") {
		t.Errorf("%s %q", res.Status.Verdict, res.Notes)
	}
}

func TestStateIsRefusedWhenUnreadable(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	f.files[StateFile] = "{}"
	if s := mustAssess(t, f); s.Verdict != Drifted || s.Exit != 4 {
		t.Errorf("%s", s.Verdict)
	}
}
