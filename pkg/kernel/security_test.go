package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSecureBoot(t *testing.T) {
	const name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	const efivars, vars = "sys/firmware/efi/efivars/" + name, "sys/firmware/efi/vars/" + name + "/data"
	for _, c := range []struct {
		name string
		host host
		want string
	}{
		{"nothing known", host{}, "unknown"},
		{"on", host{efivars: "\x06\x00\x00\x00\x01"}, "true"},
		{"off", host{efivars: "\x06\x00\x00\x00\x00"}, "false"},
		{"damaged", host{efivars: "\x06\x00"}, "unknown"},
		{"old interface", host{vars: "\x01"}, "true"},
		{"no UEFI", host{"sys/firmware/acpi/": ""}, "false"},
		{"UEFI, variable hidden", host{"sys/firmware/efi/": ""}, "unknown"},
	} {
		if got := show(detect(t, c.host.dir(t)).SecureBoot); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestLockdown(t *testing.T) {
	const file, enforce = "sys/kernel/security/lockdown", "sys/module/module/parameters/sig_enforce"
	for _, c := range []struct {
		host           host
		mode, enforced string
	}{
		{host{}, "", "unknown"},
		{host{file: "[none] integrity confidentiality\n"}, "none", "unknown"},
		{host{file: "[none] integrity confidentiality\n", enforce: "N\n"}, "none", "false"},
		{host{file: "none integrity [confidentiality]\n", enforce: "N\n"}, "confidentiality", "true"},
		{host{file: "nonsense\n", enforce: "Y\n"}, "", "true"},
	} {
		f := detect(t, c.host.dir(t))
		if f.Lockdown != c.mode || show(f.SignaturesForced) != c.enforced {
			t.Errorf("%v: %q, %s, want %q, %s", c.host, f.Lockdown, show(f.SignaturesForced), c.mode, c.enforced)
		}
	}
}

func TestReadOnlyProcSys(t *testing.T) {
	const proc = "24 1 0:22 / /proc rw,nosuid shared:5 - proc proc rw\n"
	const sys = "50 24 0:22 /sys /proc/sys ro,nosuid - proc proc rw\n"
	for _, c := range []struct {
		name            string
		own, first      string
		want, sandboxed bool
	}{
		{"unknown", "", "", false, false},
		{"host", proc, proc, false, false},
		{"hardened unit", proc + sys, proc, true, true},
		{"container", proc + sys, proc + sys, true, false},
		{"process 1 hidden", proc + sys, "", true, false},
		{"net is writable again", proc + sys + "51 50 0:22 /sys/net /proc/sys/net rw - proc proc rw\n", proc, false, false},
		{"super block read-only", "24 1 0:22 / /proc rw - proc proc ro\n", proc, true, true},
		{"mounted over", proc + sys + "52 24 0:22 / /proc/sys rw - proc proc rw\n", proc, false, false},
		{"elsewhere", proc + "53 1 0:22 /sys /proc/sysx ro - proc proc ro\n", proc, false, false},
		{"damaged", "24 1 0:22 / /proc\n - - -\n" + proc + sys, proc, true, true},
	} {
		h := host{}
		if c.own != "" {
			h["proc/self/mountinfo"] = c.own
		}
		if c.first != "" {
			h["proc/1/mountinfo"] = c.first
		}
		f := detect(t, h.dir(t))
		if f.ReadOnlyProcSys != c.want || f.ProcSysSandboxed != c.sandboxed {
			t.Errorf("%s: %v, %v, want %v, %v", c.name, f.ReadOnlyProcSys, f.ProcSysSandboxed, c.want, c.sandboxed)
		}
	}
}

func TestCapabilities(t *testing.T) {
	for value, want := range map[string]*Capabilities{
		"000001ffffffffff": {NetAdmin: true, SysModule: true, SysAdmin: true},
		"0000000000000000": {},
		"0000000000001000": {NetAdmin: true},
		"0000000000010000": {SysModule: true},
		"0000000000200000": {SysAdmin: true},
		"xyz":              nil,
	} {
		f := detect(t, host{"proc/self/status": "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t" + value + "\n"}.dir(t))
		if diff := cmp.Diff(want, f.Capabilities); diff != "" {
			t.Errorf("%s: %s", value, diff)
		}
	}
}

func TestSystem(t *testing.T) {
	f := detect(t, host{
		"etc/os-release":                   "# comment\nNAME='Some \"OS\"'\nVERSION_ID=\"1\\$2\"\nID=some\nPRETTY_NAME=\"A \\\"B\\\" \\\\ C\"\nVERSION_CODENAME=x\n",
		"proc/meminfo":                     "MemFree: 1 kB\nMemTotal:       16393932 kB\n",
		"sys/devices/system/cpu/online":    "0-3,8,10-11\n",
		"proc/1/comm":                      "systemd\n",
		"run/systemd/system/":              "",
		"proc/sys/kernel/arch":             "aarch64\n",
		"proc/sys/kernel/modules_disabled": "1\n",
	}.dir(t))
	want := Distribution{ID: "some", VersionID: "1$2", Name: `A "B" \ C`, Codename: "x"}
	if diff := cmp.Diff(want, f.Distribution); diff != "" {
		t.Errorf("distribution (-want +got):\n%s", diff)
	}
	if f.MemoryBytes != 16393932<<10 || f.CPUs != 7 || f.PID1 != "systemd" || !f.Systemd || f.Arch != "aarch64" || !f.ModulesDisabled {
		t.Errorf("%+v", f)
	}
	f = detect(t, host{
		"usr/lib/os-release": "NAME=Old\nVERSION=7\n",
		"proc/meminfo":       "MemTotal: 99999999999999999999 kB\nMemTotal:\n",
		"proc/cpuinfo":       "processor\t: 0\nx: y\nprocessor\t: 1\nprocessorx: 2\n",
	}.dir(t))
	if f.Distribution != (Distribution{ID: "linux", Name: "Old 7"}) || f.MemoryBytes != 0 || f.CPUs != 2 {
		t.Errorf("%+v", f)
	}
	for list, want := range map[string]int{"0": 1, "0-1": 2, "": 0, "3-1": 0, "a": 0, "0-9999999": 0, "1,2,": 0} {
		if got := countRange(list); got != want {
			t.Errorf("countRange(%q) = %d, want %d", list, got, want)
		}
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add([]byte("24 1 0:22 / /proc/sys ro,nosuid shared:5 - proc proc rw\n27 1 254:0 / / rw - ext4 /dev/vda rw\n"))
	f.Add([]byte("1 2 3 4 /a\\040b rw - - -\n - \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		mounts := parseMountinfo(data)
		for _, m := range mounts {
			if m.device == "" || m.root == "" || m.point == "" {
				t.Errorf("%q gives %+v", data, m)
			}
		}
		mountReadOnly(mounts, "/proc/sys/net/ipv4/tcp_congestion_control")
		rootMount(mounts)
	})
}
