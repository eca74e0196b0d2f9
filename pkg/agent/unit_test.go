package agent

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"
)

const shippedUnit = "../../systemd/accel.service"

func readUnit(t *testing.T, name string) []*unit.UnitOption {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	options, err := unit.DeserializeOptions(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return options
}

// values lists what a unit says for a directive, in order.
func values(options []*unit.UnitOption, name string) []string {
	var out []string
	for _, o := range options {
		if o.Name == name {
			out = append(out, o.Value)
		}
	}
	return out
}

// breaks are the directives with which the service cannot do its work, and why.
var breaks = map[string]string{
	"ProtectKernelTunables": "makes /proc/sys read-only",
	"ProtectKernelModules":  "hides /usr/lib/modules and forbids modprobe",
	"PrivateNetwork":        "tunes a network namespace that nobody uses",
	"NetworkNamespacePath":  "tunes another network namespace",
	"JoinsNamespaceOf":      "may tune another network namespace",
	"ProtectProc":           "hides what other processes run",
	"ProcSubset":            "hides /proc/sys",
	"PrivateUsers":          "takes the capabilities over the host's network away",
	"DynamicUser":           "is not root",
	"User":                  "is not root",
	"RootDirectory":         "has no modules",
	"RootImage":             "has no modules",
	"ReadOnlyPaths":         "may cover /proc/sys or the state",
	"InaccessiblePaths":     "may cover /proc/sys or the state",
	"ExecStop":              "stopping undoes nothing",
	"ExecStopPost":          "stopping undoes nothing",
}

// lint names the directives of a unit that break accel.
func lint(options []*unit.UnitOption) []string {
	var out []string
	for _, o := range options {
		if breaks[o.Name] != "" && !slices.Contains([]string{"", "no", "false", "off", "0", "default", "all"}, o.Value) {
			out = append(out, o.Name)
		}
	}
	return out
}

func TestShippedUnit(t *testing.T) {
	u := readUnit(t, shippedUnit)
	for _, name := range lint(u) {
		t.Errorf("%s= %s", name, breaks[name])
	}
	want := map[string]string{
		"Type":                     "notify",
		"NotifyAccess":             "main",
		"ExecStart":                "/usr/bin/accel agent",
		"Restart":                  "on-failure",
		"WantedBy":                 "multi-user.target",
		"Documentation":            "man:accel(8)",
		"CapabilityBoundingSet":    "CAP_NET_ADMIN CAP_SYS_MODULE",
		"NoNewPrivileges":          "yes",
		"ProtectSystem":            "strict",
		"ReadWritePaths":           "-/etc/sysctl.d -/etc/modules-load.d -/var/lib/accel",
		"RuntimeDirectory":         "accel",
		"RuntimeDirectoryPreserve": "yes",
		"ProtectHome":              "yes",
		"PrivateTmp":               "yes",
		"PrivateDevices":           "yes",
		"RestrictAddressFamilies":  "AF_UNIX AF_NETLINK AF_INET AF_INET6",
		"RestrictNamespaces":       "yes",
		"RestrictRealtime":         "yes",
		"LockPersonality":          "yes",
		"MemoryDenyWriteExecute":   "yes",
		"SystemCallArchitectures":  "native",
	}
	for name, value := range want {
		if got := values(u, name); !slices.Equal(got, []string{value}) {
			t.Errorf("%s=%q, want %q once", name, got, value)
		}
	}
	var filter []string
	for _, v := range values(u, "SystemCallFilter") {
		filter = append(filter, strings.Fields(v)...)
	}
	if !slices.Contains(filter, "@system-service") || !slices.Contains(filter, "@module") {
		t.Errorf("SystemCallFilter %q: want an allow list with @module for modprobe", filter)
	}
	if got := values(u, "TimeoutStartSec"); !slices.Equal(got, []string{"3min"}) || healTimeout+assessTimeout >= 3*time.Minute {
		t.Errorf("TimeoutStartSec=%q does not fit a healing of %s and a check of %s", got, healTimeout, assessTimeout)
	}
	// A watchdog shorter than a healing and a check would kill a slow host's agent.
	if got := values(u, "WatchdogSec"); !slices.Equal(got, []string{"2min"}) || healTimeout+assessTimeout >= 2*time.Minute {
		t.Errorf("WatchdogSec=%q does not fit a healing of %s and a check of %s", got, healTimeout, assessTimeout)
	}
}

// TestShippedUnitOrder: after whatever sets the same things at boot, and after
// nothing that a boot may have to wait for. No Before= means that no cycle can
// go through accel, since nothing in the list comes after multi-user.target.
func TestShippedUnitOrder(t *testing.T) {
	u := readUnit(t, shippedUnit)
	var after []string
	for _, v := range values(u, "After") {
		after = append(after, strings.Fields(v)...)
	}
	for _, name := range []string{"systemd-modules-load.service", "systemd-sysctl.service", "tuned.service", "bpftune.service", "ufw.service"} {
		if !slices.Contains(after, name) {
			t.Errorf("not After=%s", name)
		}
	}
	for _, name := range after {
		if strings.HasSuffix(name, ".target") || strings.Contains(name, "cloud-") {
			t.Errorf("After=%s delays the boot or makes a cycle", name)
		}
	}
	for _, name := range []string{"Before", "Requires", "BindsTo", "Wants", "DefaultDependencies"} {
		if got := values(u, name); got != nil {
			t.Errorf("%s=%q", name, got)
		}
	}
}

// TestLintCases: units from the field that must be refused.
func TestLintCases(t *testing.T) {
	dir := "../../test/cases/25-protect-kernel-tunables"
	var expect struct {
		Expect struct {
			LintRejects []string `json:"lint_rejects"`
		} `json:"expect"`
	}
	data, err := os.ReadFile(filepath.Join(dir, "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &expect); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range expect.Expect.LintRejects {
		name, _, _ := strings.Cut(s, " ") // a reason may follow
		want = append(want, name)
	}
	if len(want) == 0 {
		t.Fatal("the case expects nothing")
	}
	if got := lint(readUnit(t, filepath.Join(dir, "units/bad-hardened.service"))); !slices.Equal(got, want) {
		t.Errorf("rejected %q, want %q", got, want)
	}
}

// TestShippedUnitVerify asks systemd itself for misspelt directives.
func TestShippedUnitVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	data, err := os.ReadFile(shippedUnit)
	if err != nil {
		t.Fatal(err)
	}
	// The binary is not installed here.
	data = bytes.ReplaceAll(data, []byte("/usr/bin/accel agent"), []byte("/bin/true"))
	name := filepath.Join(t.TempDir(), "accel.service")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", name).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
