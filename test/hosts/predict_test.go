package hosts

import (
	"encoding/json"
	"path"
	"strings"
	"testing"
	"time"

	"accel/test/sysctld"
	"accel/test/vm"
)

// TestPrediction compares what accel doctor says of the next boot with the next
// boot: two of each release, the first with what others left, the second with
// accel enabled over more of that. (Forty more hosts, not booted, are in
// test/sysctld.)
func TestPrediction(t *testing.T) {
	if !long() {
		t.Skip("boots whole machines again and again: ACCEL_LONG=1")
	}
	for release, of := range map[vm.Release]struct {
		first, second int
		opts          vm.Options
	}{
		vm.Bookworm: {first: 9, second: 12},
		vm.Trixie:   {first: 16, second: 20, opts: vm.Options{MemoryMB: 512, CPUs: 1}},
	} {
		t.Run(string(release), func(t *testing.T) {
			t.Parallel()
			m := vm.Whole(t, release, of.opts)
			install(t, m)
			m.MustRun(t, "mkdir /root/etc && cp -a /etc/sysctl.* /root/etc/")

			touch(t, m, release, of.first)
			m.Write(t, "/etc/rc.local", []byte("#!/bin/sh\nsysctl -w net.core.default_qdisc=pfifo\nexit 0\n"), 0o755)
			foretold(t, m)

			m.MustRun(t, "rm -rf /etc/sysctl.* /etc/rc.local /usr/local/lib/sysctl.d /usr/lib/sysctl.d/60-vendor.conf && cp -a /root/etc/. /etc/")
			touch(t, m, release, of.second)
			m.Write(t, "/etc/sysctl.d/zzzz-later.conf", []byte("net.ipv4.tcp_congestion_control = reno\n"), 0o644)
			enable(t, m)
			oldConnection(t, m)
			foretold(t, m)
		})
	}
}

// touch lays the files of a generated host.
func touch(t *testing.T, m *vm.Machine, release vm.Release, number int) {
	t.Helper()
	for _, f := range sysctld.Touched(string(release), number, sysctld.Choice{
		Algorithms: []string{"reno", "bbr", "cubic"},
		Qdiscs:     []string{"fq", "fq_codel", "pie"},
		Refused:    []string{"bbrplus", "bbr # comment", "fq   # comment", "nosuch"},
	}) {
		t.Logf("%s -> %q\n%s", f.Path, f.Link, f.Content)
		m.MustRun(t, "mkdir -p "+path.Dir(f.Path)+" && rm -f "+f.Path)
		if f.Link != "" {
			m.MustRun(t, "ln -s "+vm.Quote(f.Link)+" "+f.Path)
			continue
		}
		m.Write(t, f.Path, []byte(f.Content), 0o644)
	}
}

// oldConnection looks for the connection that the test itself came by before bbr
// was enabled: it is a login's.
func oldConnection(t *testing.T, m *vm.Machine) {
	t.Helper()
	var report struct {
		Connections struct {
			Algorithm  string
			Known      bool
			Namespaces []struct {
				Own     bool
				Default string
			}
			Processes []struct{ Command, Owner, Algorithm, Source, Advice string }
		}
	}
	accel(t, m, "accel doctor", &report)
	c := report.Connections
	if c.Algorithm != "bbr" || !c.Known || len(c.Namespaces) == 0 || !c.Namespaces[0].Own || c.Namespaces[0].Default != "bbr" {
		t.Fatalf("%s: doctor says of connections: %+v", m.Name, c)
	}
	for _, p := range c.Processes {
		if strings.HasPrefix(p.Command, "sshd") && p.Algorithm != "bbr" && p.Source == "before" && p.Advice == "log in again" {
			t.Logf("%+v", p)
			return
		}
	}
	t.Errorf("%s: the old connection of ssh is not among %+v", m.Name, c.Processes)
}

// foretold asks doctor, boots, and looks.
func foretold(t *testing.T, m *vm.Machine) {
	t.Helper()
	var report struct {
		Order string
		Keys  []struct {
			Key, By, Why string
			Next         *string
		}
	}
	accel(t, m, "accel doctor", &report)
	m.Reboot(t)
	m.WaitBooted(t)
	// Debian's kernels begin with these.
	own := map[string]string{algorithmKey: "cubic", qdiscKey: "pfifo_fast"}
	seen := map[string]bool{}
	for _, k := range report.Keys {
		want, known := own[k.Key]
		if k.Next != nil {
			want, known = *k.Next, true
		}
		if !known {
			continue
		}
		seen[k.Key] = true
		// The service may have to heal what comes after it.
		found := ""
		for range 30 {
			if found = strings.TrimSpace(m.MustRun(t, "sysctl -n "+k.Key)); found == want || k.By != "accel" {
				break
			}
			time.Sleep(2 * time.Second)
		}
		if found != want {
			text, err := json.MarshalIndent(report.Keys, "", "  ")
			t.Errorf("%s: after the boot %s is %q, foretold was %q\n%s %v\n%s", m.Name, k.Key, found, want, text, err, journal(t, m))
		}
		t.Logf("%s is %s by %q: %s", k.Key, found, k.By, k.Why)
	}
	if !seen[algorithmKey] || !seen[qdiscKey] {
		t.Errorf("%s: doctor tells of %v only", m.Name, seen)
	}
}
