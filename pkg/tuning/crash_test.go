package tuning

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/sysctl"
)

// truthful checks that the verdict is what the host is, whatever happened.
func truthful(f *fakeHost, original seen) error {
	s, err := Assess(context.Background(), f.host())
	if err != nil {
		return err
	}
	switch s.Verdict {
	case Good:
		alg := s.Enabled.Algorithm
		if f.values[sysctl.CongestionControl] != alg || !strings.Contains(f.files[SysctlFile], "tcp_congestion_control = "+alg+"\n") {
			return fmt.Errorf("status says good, the host has %v and %q", f.values, f.files[SysctlFile])
		}
		for _, link := range s.Qdisc.Links {
			if l := f.links[link.Name]; l.leftover || link.Managed && l.kind != s.Enabled.Qdisc {
				return fmt.Errorf("status says good, %s has %+v", link.Name, l)
			}
		}
		boosted := s.Enabled.Profile == "boost"
		for _, r := range f.routes {
			if ordinary := r.Special == ""; boosted && ordinary && r.InitialCwnd < 64 || (!boosted || !ordinary) && r.InitialCwnd >= 64 {
				return fmt.Errorf("status says good with %s, the routes are %+v", s.Enabled.Profile, f.routes)
			}
		}
		if len(f.routes) > 0 && boosted != strings.Contains(f.files[SysctlFile], "tcp_wmem = ") || boosted != (f.values[idle] == "0") {
			return fmt.Errorf("status says good with %s, the host has %v and %q", s.Enabled.Profile, f.values, f.files[SysctlFile])
		}
	case NotEnabled:
		now := f.seen()
		if d := cmp.Diff(original, now); d != "" {
			return fmt.Errorf("status says not enabled, the host differs:\n%s", d)
		}
	case Drifted:
		if s.Next == "" {
			return fmt.Errorf("drifted without a next step: %s", s.Reason)
		}
	default:
		return fmt.Errorf("verdict %s (%s)", s.Verdict, s.Reason)
	}
	return nil
}

// TestCrash stops enable, a switch and disable before every single step, with
// and without a power cut, and lets both enable and disable converge.
func TestCrash(t *testing.T) {
	commands := map[string]struct {
		before func(*testing.T, *fakeHost)
		run    func(*Host)
	}{
		"enable": {func(*testing.T, *fakeHost) {}, func(h *Host) { Enable(context.Background(), h, Request{}) }},
		"enable where a directory is missing": {func(_ *testing.T, f *fakeHost) { delete(f.dirs, "/etc/modules-load.d") },
			func(h *Host) { Enable(context.Background(), h, Request{}) }},
		"switch": {func(t *testing.T, f *fakeHost) { mustEnable(t, f, Request{}) },
			func(h *Host) { Enable(context.Background(), h, Request{Algorithm: "htcp", Qdisc: "cake"}) }},
		"narrow": {func(t *testing.T, f *fakeHost) { mustEnable(t, f, Request{}) },
			func(h *Host) { Enable(context.Background(), h, Request{Links: []string{"eth0"}, Qdisc: "fq"}) }},
		"disable": {func(t *testing.T, f *fakeHost) { mustEnable(t, f, Request{}) }, func(h *Host) { Disable(context.Background(), h, false) }},
		"heal": {func(t *testing.T, f *fakeHost) {
			mustEnable(t, f, Request{})
			f.values[sysctl.CongestionControl] = "cubic"
			f.links["eth0"].kind = "fq_codel"
			delete(f.files, SysctlFile)
		}, func(h *Host) { Heal(context.Background(), h, HealOptions{RetryRefused: true}) }},
		"enable boost":   {func(*testing.T, *fakeHost) {}, func(h *Host) { Enable(context.Background(), h, Request{Profile: "boost"}) }},
		"basic to boost": {func(t *testing.T, f *fakeHost) { mustEnable(t, f, Request{}) }, func(h *Host) { Enable(context.Background(), h, Request{Profile: "boost"}) }},
		"boost to basic": {func(t *testing.T, f *fakeHost) { mustEnable(t, f, Request{Profile: "boost"}) }, func(h *Host) { Enable(context.Background(), h, Request{}) }},
		"disable boost":  {func(t *testing.T, f *fakeHost) { mustEnable(t, f, Request{Profile: "boost"}) }, func(h *Host) { Disable(context.Background(), h, false) }},
		"heal boost": {func(t *testing.T, f *fakeHost) {
			mustEnable(t, f, Request{Profile: "boost"})
			f.values[wmem], f.values[idle] = f.boot[wmem], "1"
			f.routes = slices.Clone(f.bootRoutes)
			delete(f.files, SysctlFile)
		}, func(h *Host) { Heal(context.Background(), h, HealOptions{RetryRefused: true}) }},
	}
	for name, c := range commands {
		t.Run(name, func(t *testing.T) {
			crashes := 0
			for at := 1; ; at++ {
				ended := false
				for variant := range 16 {
					powerCut, lost, disable, other := variant&1 != 0, variant&2 != 0, variant&4 != 0, variant&8 != 0
					f := newFakeHost()
					if strings.Contains(name, "boost") {
						withBoost(f)
						f.routes[0].InitialCwnd, f.bootRoutes[0].InitialCwnd = 20, 20
					} else if other {
						continue
					}
					f.links["eth1"].kind = "fq_codel" // as it is after a reboot
					original := f.seen()
					c.before(t, f)
					if name == "enable where a directory is missing" {
						original = f.seen()
					}
					f.coin = func() bool { return lost }
					if !f.during(at, 0, nil, func() { c.run(f.host()) }) {
						ended = true
						break
					}
					crashes++
					op := f.ops[at-1]
					where := fmt.Sprintf("before %q (power cut %v, lost %v)", op, powerCut, lost)
					if powerCut {
						f.reboot()
					}
					if err := truthful(f, original); err != nil {
						t.Fatalf("%s: %v", where, err)
					}
					if !disable {
						r := Request{}
						if other {
							r.Profile = "boost"
						}
						res := mustEnable(t, f, r)
						if res.Status.Verdict != Good {
							t.Fatalf("%s, then enable: %s (%s) %v", where, res.Status.Verdict, res.Status.Reason, res.Status.Drift)
						}
					}
					if _, err := Disable(t.Context(), f.host(), false); err != nil {
						t.Fatalf("%s, then disable: %v", where, err)
					}
					after := f.seen()
					if powerCut && after.Values[sysctl.AllowedCongestionControl] == "reno cubic" {
						original.Values[sysctl.AllowedCongestionControl] = "reno cubic"
					}
					if d := cmp.Diff(original, after); d != "" {
						t.Fatalf("%s, then disable: the host differs:\n%s", where, d)
					}
					if left := f.unfinished(); len(left) > 0 {
						t.Fatalf("%s, then disable: left %q", where, left)
					}
					if err := truthful(f, original); err != nil {
						t.Fatalf("%s, then disable: %v", where, err)
					}
				}
				if ended {
					break
				}
			}
			t.Logf("%d crashes", crashes)
			if crashes < 8 {
				t.Error("too few steps to be true")
			}
		})
	}
}
