package packaging

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/google/go-cmp/cmp"
)

// breaking are the options of a service that would stop the agent from doing
// its work, with the reason and the values that do no harm.
var breaking = map[string]struct {
	harmless []string
	reason   string
}{
	"ProtectKernelTunables": {no, "makes /proc/sys read-only"},
	"ProtectKernelModules":  {no, "hides /usr/lib/modules, blocks modprobe"},
	"PrivateNetwork":        {no, "tunes the wrong network namespace"},
	"NetworkNamespacePath":  {nil, "tunes the wrong network namespace"},
	"PrivateUsers":          {no, "takes away the capabilities over the host's network"},
	"ProtectProc":           {[]string{"default"}, "hides what the status needs"},
	"ProcSubset":            {[]string{"all"}, "hides /proc/sys"},
	"ReadOnlyPaths":         {nil, "may cover /proc/sys or /var/lib/accel"},
	"InaccessiblePaths":     {nil, "may cover /proc/sys or /var/lib/accel"},
}

var no = []string{"no", "false", "off", "0"}

// lint names the options of a unit file that break the agent.
func lint(t *testing.T, file string) []string {
	t.Helper()
	var found []string
	for _, o := range options(t, file) {
		b, ok := breaking[o.Name]
		if o.Section == "Service" && ok && !slices.Contains(b.harmless, strings.ToLower(o.Value)) {
			found = append(found, o.Name+" ("+b.reason+")")
		}
	}
	return found
}

func options(t *testing.T, file string) []*unit.UnitOption {
	t.Helper()
	f := must(os.Open(file))(t)
	defer f.Close()
	return must(unit.DeserializeOptions(f))(t)
}

// Case 25: a unit copied from a hardening template works by hand and fails at
// boot.
func TestUnitLint(t *testing.T) {
	const dir = "../test/cases/25-protect-kernel-tunables"
	var expect struct {
		Expect struct {
			LintRejects []string `json:"lint_rejects"`
		}
	}
	if err := json.Unmarshal(must(os.ReadFile(filepath.Join(dir, "expect.json")))(t), &expect); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, found := range lint(t, filepath.Join(dir, "units/bad-hardened.service")) {
		names = append(names, strings.Fields(found)[0])
	}
	var want []string
	for _, reject := range expect.Expect.LintRejects {
		want = append(want, strings.Fields(reject)[0])
	}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("bad-hardened.service (-want +got):\n%s", d)
	}

	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "x.service")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for name, b := range breaking {
		if got := lint(t, write("[Service]\n"+name+"=yes\n")); len(got) != 1 {
			t.Errorf("%s=yes is let pass: %v", name, got)
		}
		for _, value := range b.harmless {
			if got := lint(t, write("[Service]\n"+name+"="+value+"\n")); len(got) != 0 {
				t.Errorf("%s=%s is refused: %v", name, value, got)
			}
		}
	}
}

func TestShippedUnit(t *testing.T) {
	const file = "../systemd/accel.service"
	if found := lint(t, file); len(found) != 0 {
		t.Errorf("%s breaks the agent: %v", file, found)
	}
	values := map[string][]string{}
	for _, o := range options(t, file) {
		values[o.Name] = append(values[o.Name], strings.Fields(o.Value)...)
	}
	for name, want := range map[string][]string{
		"Type":      {"notify"},
		"ExecStart": {"/usr/bin/accel", "agent"},
		"WantedBy":  {"multi-user.target"},
	} {
		if d := cmp.Diff(want, values[name]); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if values["WatchdogSec"] == nil {
		t.Error("no WatchdogSec: a hung agent would stay")
	}
	if set := values["CapabilityBoundingSet"]; set != nil {
		for _, c := range []string{"CAP_NET_ADMIN", "CAP_SYS_MODULE"} {
			if !slices.Contains(set, c) {
				t.Errorf("CapabilityBoundingSet lacks %s", c)
			}
		}
	}
	// Stopping or upgrading the service undoes nothing.
	for _, name := range []string{"ExecStop", "ExecStopPost"} {
		if values[name] != nil {
			t.Errorf("%s is set: %v", name, values[name])
		}
	}
}
