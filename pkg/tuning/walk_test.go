package tuning

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/files"
	"accel/pkg/route"
	"accel/pkg/sysctl"
)

var (
	walks    = flag.Int("walks", 2000, "random walks to take; ten times as many with ACCEL_LONG")
	walkSeed = flag.Uint64("walkseed", 0, "seed of the one random walk to take; 0: all of them")
)

// TestRandomWalks takes a host through any sequence of enable, disable, switch,
// foreign change, failing write, crash, reboot and healing. A model that knows
// only the rules says what the host must be at each end.
func TestRandomWalks(t *testing.T) {
	if *walkSeed != 0 {
		walk(t, *walkSeed)
		return
	}
	n := uint64(*walks)
	if os.Getenv("ACCEL_LONG") != "" {
		n *= 10
	}
	for seed := range n {
		walk(t, seed+1)
		if t.Failed() {
			t.Fatalf("run again: go test ./pkg/tuning -run TestRandomWalks -walkseed %d -v", seed+1)
		}
	}
}

// model is what the rules say the host would be without accel.
type model struct {
	values map[sysctl.Key]string
	links  map[string]fakeLink
	routes []route.Route
}

// foreign values are never accel's nor anybody's original, so that the model
// need not guess whose a value is.
var foreignValues = map[sysctl.Key]string{sysctl.CongestionControl: "reno", sysctl.DefaultQdisc: "pfifo_fast"}

// Of what only boost sets, there are values below its floors and above.
var (
	boostKeys = []sysctl.Key{wmem, rmem, idle}
	lowValues = map[sysctl.Key]string{wmem: "4096 16384 65536", rmem: "4096 65536 65536", idle: "2"}
	// Of what must be exact there is none that is better.
	highValues = map[sysctl.Key]string{wmem: "4096 32768 134217728", rmem: "8192 131072 134217728"}
)

const onlyRoute = "default dev eth0 metric 100"

func walk(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	f := withBoost(newFakeHost())
	f.links["eth1"].kind = "fq_codel"
	f.coin = func() bool { return r.IntN(2) == 0 }
	m := model{values: maps.Clone(f.values), links: map[string]fakeLink{}, routes: slices.Clone(f.routes)}
	for n, l := range f.links {
		m.links[n] = *l
	}
	var story []string
	tell := func(format string, args ...any) { story = append(story, fmt.Sprintf(format, args...)) }
	request := func() Request {
		q := Request{Algorithm: []string{"bbr", "htcp", "cubic"}[r.IntN(3)], Qdisc: []string{"", "fq", "cake"}[r.IntN(3)], Profile: []string{"", "boost"}[r.IntN(2)]}
		if r.IntN(4) == 0 {
			q.Links = []string{"eth0"}
		}
		return q
	}
	// foreign are the settings that somebody else changed since, and to what.
	foreign := map[string]string{}
	disable := func() {
		res, err := Disable(t.Context(), f.host(), false)
		if err != nil {
			t.Errorf("disable: %v", err)
		}
		for _, l := range res.Left {
			if _, ok := foreign[l.Setting]; !ok {
				t.Errorf("disable left %s, which nobody changed", l)
			}
		}
		m.check(t, f, foreign)
		// What somebody changed is the host's own from now on.
		for setting := range foreign {
			m.adopt(f, setting)
		}
		clear(foreign)
	}

	steps := 3 + r.IntN(8)
	for range steps {
		switch n := r.IntN(15); {
		case n < 4:
			q := request()
			tell("enable %+v", q)
			before := f.seen()
			res, err := Enable(t.Context(), f.host(), q)
			if err != nil {
				if !strings.Contains(err.Error(), "configured") {
					t.Errorf("enable: %v", err)
				}
				if d := cmp.Diff(before, f.seen()); d != "" {
					t.Errorf("a refused enable changed the host:\n%s", d)
				}
				break
			}
			if res.Status.Verdict != Good {
				t.Errorf("enable: %s (%s) %v", res.Status.Verdict, res.Status.Reason, res.Status.Drift)
			}
			m.beforeFirst(f, before)
			m.released(f, foreign)
			claimed(foreign)
		case n < 6:
			tell("disable")
			disable()
		case n < 7:
			k := []sysctl.Key{sysctl.CongestionControl, sysctl.DefaultQdisc}[r.IntN(2)]
			tell("somebody sets %s", k)
			f.writeSysctl(k, foreignValues[k])
			if f.files[StateFile] == "" {
				m.values[k] = foreignValues[k]
			} else {
				foreign[k.String()] = foreignValues[k]
			}
		case n < 8:
			name := []string{"eth0", "eth1"}[r.IntN(2)]
			tell("somebody toggles htb on %s", name)
			l := f.links[name]
			if l.leftover {
				break
			}
			if l.configured == "" {
				l.configured = "htb"
			} else {
				l.configured, l.kind = "", f.values[sysctl.DefaultQdisc]
			}
			if f.files[StateFile] == "" {
				m.links[name] = *l
			} else {
				foreign["qdisc "+name] = "htb"
			}
		case n < 9:
			tell("reboot")
			f.reboot()
			clear(foreign)
			m.reboot(f, foreign)
		case n < 10:
			tell("heal")
			before := f.seen()
			if _, err := Heal(t.Context(), f.host(), HealOptions{RetryRefused: r.IntN(2) == 0}); err == nil {
				m.beforeFirst(f, before)
				reached(f, foreign)
			}
		case n < 11:
			at := 1 + r.IntN(30)
			tell("a command whose step %d fails", at)
			before := f.seen()
			phase := f.files[StateFile]
			var err error
			f.during(0, at, files.ErrNoSpace, func() { _, err = Enable(t.Context(), f.host(), request()) })
			// Twins that became one stay one.
			for i := range before.Routes {
				before.Routes[i].Twin = before.Routes[i].Twin && f.routes[i].Twin
			}
			if err != nil && !strings.Contains(err.Error(), "in full") {
				if d := cmp.Diff(before, f.seen()); d != "" && phase == f.files[StateFile] {
					t.Errorf("a failed enable was not undone:\n%s", d)
				}
			}
			if err == nil {
				m.beforeFirst(f, before)
				reached(f, foreign)
			}
		case n < 12:
			tell("the lease is renewed")
			networkd := r.IntN(2) == 0
			ours := func() bool {
				s, err := parseState([]byte(f.files[StateFile]))
				if err != nil {
					return false
				}
				cwnd, rwnd := s.record(KindRoute, onlyRoute+" initcwnd"), s.record(KindRoute, onlyRoute+" initrwnd")
				return cwnd != nil && cwnd.ours(strconv.Itoa(f.routes[0].InitialCwnd)) || rwnd != nil && rwnd.ours(strconv.Itoa(f.routes[0].InitialRwnd))
			}()
			f.renew(networkd)
			m.routes = slices.Clone(f.bootRoutes)
			if f.routes[0].Twin && !ours {
				m.routes[0] = f.routes[0] // somebody's
			}
		case n < 13:
			v := []int{5, 30, 100}[r.IntN(3)]
			tell("somebody sets initcwnd %d", v)
			// Whatever accel makes of it, it is the host's own from now on.
			f.routes[0].InitialCwnd, m.routes[0].InitialCwnd = v, v
			f.routes[0].InitialRwnd = m.routes[0].InitialRwnd
			f.routes[0].Twin, m.routes[0].Twin = false, false
			if f.files[StateFile] != "" {
				foreign["route "+onlyRoute+" initcwnd"] = ""
			}
		case n < 14:
			k := boostKeys[r.IntN(len(boostKeys))]
			v := lowValues[k]
			if high, ok := highValues[k]; ok && r.IntN(2) == 0 {
				v = high
			}
			tell("somebody sets %s to %s", k, v)
			f.values[k] = v
			if wrote(f.files[StateFile], k) {
				foreign[k.String()] = v
			} else {
				m.values[k] = v
				delete(foreign, k.String())
			}
		default:
			at := 1 + r.IntN(40)
			tell("a crash before step %d", at)
			before := f.seen()
			command := r.IntN(3)
			q := request()
			f.during(at, 0, nil, func() {
				switch command {
				case 0:
					Enable(t.Context(), f.host(), q)
				case 1:
					Disable(t.Context(), f.host(), false)
				default:
					Heal(t.Context(), f.host(), HealOptions{})
				}
			})
			m.beforeFirst(f, before)
			reached(f, foreign)
			if f.files[StateFile] == "" {
				m.values = maps.Clone(f.values)
				m.routes = slices.Clone(f.routes)
				m.links = map[string]fakeLink{}
				for n, l := range f.links {
					m.links[n] = *l
				}
				clear(foreign)
			}
		}
		if t.Failed() {
			break
		}
	}
	if !t.Failed() {
		tell("disable at the end")
		disable()
	}
	if t.Failed() {
		t.Logf("seed %d:\n  %s", seed, strings.Join(story, "\n  "))
	}
}

// claimed: an enable or a healing takes the sysctls back from whoever changed
// them. A qdisc that somebody configured stays his.
// So does a value better than a floor asks.
func claimed(foreign map[string]string) {
	maps.DeleteFunc(foreign, func(k, v string) bool {
		return !strings.HasPrefix(k, "qdisc ") && !strings.HasPrefix(k, "route ") && !slices.Contains(slices.Collect(maps.Values(highValues)), v)
	})
}

// released: what accel no longer holds after a change of the profile belongs
// to whoever changed it.
func (m *model) released(f *fakeHost, foreign map[string]string) {
	for _, k := range boostKeys {
		if v, ok := foreign[k.String()]; ok && !wrote(f.files[StateFile], k) && f.values[k] == v {
			m.values[k] = v
			delete(foreign, k.String())
		}
	}
}

// wrote: accel has written the key, or was about to.
func wrote(state string, k sysctl.Key) bool {
	s, err := parseState([]byte(state))
	if err != nil {
		return false
	}
	r := s.record(KindSysctl, string(k))
	return r != nil && len(r.Wrote) > 0
}

// reached is claimed by a command that may not have got as far.
func reached(f *fakeHost, foreign map[string]string) {
	for k, v := range foreignValues {
		if f.values[k] != v {
			delete(foreign, k.String())
		}
	}
	for _, k := range boostKeys {
		if v, ok := foreign[k.String()]; ok && f.values[k] != v {
			delete(foreign, k.String())
		}
	}
}

// touched: the state holds an original of the key.
func touched(state string, k sysctl.Key) bool {
	s, err := parseState([]byte(state))
	return err == nil && s.record(KindSysctl, string(k)) != nil
}

// beforeFirst: what a key held when accel first touched it becomes the
// original.
func (m *model) beforeFirst(f *fakeHost, before seen) {
	for k := range foreignValues {
		if !touched(before.Files[StateFile], k) && touched(f.files[StateFile], k) {
			m.values[k] = before.Values[k]
		}
	}
	for _, k := range boostKeys {
		if !wrote(before.Files[StateFile], k) && wrote(f.files[StateFile], k) {
			m.values[k] = before.Values[k]
		}
	}
}

// reboot: what accel does not hold, a boot sets as the distribution says.
func (m *model) reboot(f *fakeHost, foreign map[string]string) {
	state := f.files[StateFile]
	m.routes = slices.Clone(f.bootRoutes)
	for _, k := range boostKeys {
		if !wrote(state, k) {
			m.values[k] = f.values[k]
		} else if f.values[k] == f.boot[k] && m.values[k] != f.boot[k] {
			foreign[k.String()] = f.boot[k] // the boot was the distribution's alone
		}
	}
	for k := range foreignValues {
		if !touched(state, k) {
			m.values[k] = f.boot[k]
		} else if f.files[SysctlFile] == "" && f.boot[k] != m.values[k] {
			// The boot was the distribution's alone: a command had been
			// interrupted. What it set is not accel's to change, unless it is
			// what accel was about to set; then the original comes back.
			foreign[k.String()] = f.boot[k]
			if st, err := parseState([]byte(state)); err == nil && st.record(KindSysctl, string(k)).ours(f.boot[k]) {
				delete(foreign, k.String())
			}
		}
	}
	for n, l := range m.links {
		if l.veth {
			continue
		}
		// A qdisc that somebody had set by hand is gone with the boot, and the
		// default in its place.
		if !touched(state, sysctl.DefaultQdisc) || l.configured != "" {
			l.configured, l.kind = "", m.values[sysctl.DefaultQdisc]
			if f.files[SysctlFile] == "" {
				l.kind = f.boot[sysctl.DefaultQdisc]
			}
			m.links[n] = l
		}
	}
}

// adopt takes a value over that disable left to somebody else.
func (m *model) adopt(f *fakeHost, setting string) {
	if name, ok := strings.CutPrefix(setting, "qdisc "); ok {
		m.links[name] = *f.links[name]
		return
	}
	if k, err := sysctl.ParseKey(setting); err == nil {
		m.values[k] = f.values[k]
	}
}

// check compares the disabled host with the model.
func (m *model) check(t *testing.T, f *fakeHost, foreign map[string]string) {
	t.Helper()
	for _, k := range slices.Concat(slices.Sorted(maps.Keys(foreignValues)), boostKeys) {
		want := m.values[k]
		if v, ok := foreign[k.String()]; ok {
			want = v
		}
		if f.values[k] != want {
			t.Errorf("%s is %s, want %s", k, f.values[k], want)
		}
	}
	if diff := cmp.Diff(m.routes, f.routes); diff != "" {
		t.Errorf("the routes (-want +got):\n%s", diff)
	}
	for name, l := range f.links {
		if l.leftover {
			t.Errorf("a placeholder is left on %s", name)
		}
		if _, ok := foreign["qdisc "+name]; l.veth || ok {
			continue
		}
		if w := m.links[name]; l.configured != w.configured || l.configured == "" && l.kind != w.kind {
			t.Errorf("%s is %+v, want %+v", name, *l, w)
		}
	}
	for n := range f.files {
		if n != "/etc/hostname" {
			t.Errorf("%s is left", n)
		}
	}
	if f.service.enabled || f.service.active {
		t.Error("the service is left on")
	}
}
