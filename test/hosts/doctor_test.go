package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"accel/test/vm"
)

// report is what the tests know of the document of "accel doctor --json".
type report struct {
	Schema, Verdict, Reason, Next string
	Exit                          int
	Keys                          []struct {
		Key        string
		Live, Next *string
		By, Why    string
		Lost       bool
	}
	Leftovers []struct {
		Tool   string
		Places []struct{ File string }
	}
	Harmful []struct{ Rule, Setting, Value, File, Tool string }
	Writers []writer
	Fixed   []struct{ Directory string }
	Notes   []string
	Change  *struct {
		Changed bool
		Adopt   string
		Left    []struct{ What, Reason string }
	}
}

type writer struct {
	Tool, Key, Value, File, Meaning string
	Active, Matters                 bool
}

func (r report) next(t *testing.T, key string) (value, by string) {
	t.Helper()
	for _, k := range r.Keys {
		if k.Key == key {
			if k.Next != nil {
				return *k.Next, k.By
			}
			return "", k.By
		}
	}
	t.Errorf("doctor says nothing of %s", key)
	return "", ""
}

func doctor(t *testing.T, m *vm.Machine, flags string) report {
	t.Helper()
	var r report
	accel(t, m, strings.TrimSpace("accel doctor "+flags), &r)
	if r.Schema != "accel.doctor/1" {
		t.Fatalf("doctor %s: %+v", flags, r)
	}
	return r
}

// leave puts a rival's leftovers on a machine as its script would.
func leave(t *testing.T, m *vm.Machine, rival string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../cmd/accel/testdata/doctor/hosts", rival+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range txtar.Parse(data).Files {
		name, add := strings.CutPrefix(f.Name, "+")
		if strings.Contains(name, "ufw") {
			continue // not installed here
		}
		name = "/" + strings.TrimPrefix(name, "x:")
		m.Write(t, "/root/part", f.Data, 0o644)
		if add {
			m.MustRun(t, "cat /root/part >>"+name)
			continue
		}
		// As sed -i and mv do: a link becomes a file.
		m.MustRun(t, "mkdir -p $(dirname "+name+") && rm -f "+name+" && cp /root/part "+name+" && chmod 644 "+name)
	}
	m.Run(t, "sysctl --system")
}

// TestDoctorRivals takes hosts that scripts have "optimised" before through
// enable, a boot, doctor, its clean-up, another boot, and the way back.
func TestDoctorRivals(t *testing.T) {
	rivals := []struct {
		name, tool string
		release    vm.Release
		fails      []string // at every boot, until its values are cleaned up
	}{
		{"ylx-old", "old-optimise", vm.Bookworm, nil},
		{"johnrosen", "johnrosen", vm.Bookworm, []string{"systemd-sysctl.service"}},
		{"hawshemi", "hawshemi", vm.Bookworm, nil},
		{"joeyblog", "joeyblog", vm.Trixie, nil},
		{"net-optimize", "net-optimize", vm.Trixie, nil},
		{"radical", "radical", vm.Trixie, nil},
	}
	if !long() {
		rivals = rivals[:1]
	}
	for _, rival := range rivals {
		t.Run("2_"+rival.name, func(t *testing.T) {
			t.Parallel()
			m := vm.Whole(t, rival.release, vm.Options{})
			install(t, m)
			leave(t, m, rival.name)
			enable(t, m)
			if long() {
				m.Reboot(t)
				booted(t, m, rival.fails...)
			}
			before, state := look(t, m), m.MustRun(t, "cat "+stateFile)
			m.MustRun(t, "touch /root/mark")

			r := doctor(t, m, "")
			if r.Exit != 4 || r.Verdict != "found" || len(r.Leftovers) != 1 || r.Leftovers[0].Tool != rival.tool {
				t.Fatalf("doctor says: %+v", r)
			}
			if changed := m.MustRun(t, "find /etc /var/lib/accel -newer /root/mark"); changed != "" {
				t.Errorf("doctor changed:\n%s", changed)
			}
			for _, key := range []string{algorithmKey, qdiscKey} {
				if value, _ := r.next(t, key); value != map[string]string{algorithmKey: "bbr", qdiscKey: "fq"}[key] {
					t.Errorf("doctor says that the next boot gives %s for %s", value, key)
				}
			}
			t.Logf("doctor says:\n%s", m.Run(t, "accel doctor").Stdout)

			fixed := doctor(t, m, "--fix --yes")
			if fixed.Change == nil || !fixed.Change.Changed || fixed.Change.Adopt != "" {
				t.Fatalf("--fix: %+v", fixed)
			}
			if a, q := sysctl(t, m, algorithmKey), sysctl(t, m, qdiscKey); a != "bbr" || q != "fq" {
				t.Errorf("after --fix the host has %s and %s", a, q)
			}
			if long() {
				m.Reboot(t)
				booted(t, m)
			}
			if after := doctor(t, m, ""); after.Exit != 0 || after.Verdict != "clean" {
				t.Errorf("after --fix doctor says: %s\n%+v\n%+v", after.Reason, after.Harmful, after.Writers)
			}
			if undone := doctor(t, m, "--undo --yes"); undone.Exit != 0 || len(undone.Change.Left) > 0 {
				t.Errorf("--undo: %+v", undone)
			}
			after := look(t, m)
			if d := cmp.Diff(before.etc, after.etc); d != "" {
				t.Errorf("after --undo /etc is not as before (-before +after):\n%s", d)
			}
			if d := cmp.Diff(before.lib, after.lib); d != "" {
				t.Errorf("after --undo /var/lib/accel is not as before:\n%s\n%s", d, cmp.Diff(state, m.MustRun(t, "cat "+stateFile)))
			}
			if !long() {
				// Without a boot in between the live values are back, too.
				if d := cmp.Diff(before.sysctls, after.sysctls); d != "" {
					t.Errorf("after --undo the settings are not as before:\n%s", d)
				}
			}
		})
	}
}
