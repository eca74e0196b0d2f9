package main

import (
	"bytes"
	"flag"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"accel/pkg/sysctl"
	"accel/pkg/text"
)

var update = flag.Bool("update", false, "write the golden files of doctor anew; look at the difference before you commit it")

// What Debian installs, as far as doctor looks at it.
var debian = map[string]map[string]string{
	"debian12": {
		"etc/os-release":                           "ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
		"etc/sysctl.conf":                          "#\n# /etc/sysctl.conf - Configuration file for setting system variables\n#\n#net.ipv4.ip_forward=1\n",
		"etc/sysctl.d/99-sysctl.conf":              "-> ../sysctl.conf",
		"etc/security/limits.conf":                 "# /etc/security/limits.conf\n#<domain>      <type>  <item>         <value>\n# End of file\n",
		"etc/systemd/system.conf":                  "[Manager]\n#DefaultTimeoutStopSec=90s\n",
		"etc/profile":                              "# /etc/profile\numask 022\n",
		"usr/lib/systemd/libsystemd-shared-252.so": "", "usr/lib/systemd/systemd": "",
		"proc/sys/kernel/osrelease":                  "6.1.0-28-amd64\n",
		"lib/modules/6.1.0-28-amd64/modules.builtin": "", "lib/modules/6.1.0-28-amd64/modules.dep": "kernel/net/ipv4/tcp_bbr.ko:\nkernel/net/sched/sch_fq.ko:\nkernel/net/sched/sch_cake.ko:\nkernel/net/sched/sch_fq_pie.ko:\n",
		"lib/modules/6.1.0-28-amd64/kernel/net/ipv4/tcp_bbr.ko": "", "lib/modules/6.1.0-28-amd64/kernel/net/sched/sch_fq.ko": "",
		"lib/modules/6.1.0-28-amd64/kernel/net/sched/sch_cake.ko": "", "lib/modules/6.1.0-28-amd64/kernel/net/sched/sch_fq_pie.ko": "",
	},
	"debian13": {
		"etc/os-release":                           "ID=debian\nVERSION_ID=\"13\"\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n",
		"usr/lib/sysctl.d/50-default.conf":         "kernel.sysrq = 0x01b6\n-net.ipv4.conf.all.rp_filter\nnet.ipv4.ping_group_range = 0 2147483647\n",
		"etc/security/limits.conf":                 "# /etc/security/limits.conf\n#<domain>      <type>  <item>         <value>\n# End of file\n",
		"etc/profile":                              "# /etc/profile\numask 022\n",
		"usr/lib/systemd/libsystemd-shared-257.so": "", "usr/lib/systemd/systemd": "",
		"proc/sys/kernel/osrelease":                       "6.12.48+deb13-amd64\n",
		"lib/modules/6.12.48+deb13-amd64/modules.builtin": "", "lib/modules/6.12.48+deb13-amd64/modules.dep": "kernel/net/ipv4/tcp_bbr.ko.xz:\nkernel/net/sched/sch_fq.ko.xz:\nkernel/net/sched/sch_cake.ko.xz:\nkernel/net/sched/sch_fq_pie.ko.xz:\n",
		"lib/modules/6.12.48+deb13-amd64/kernel/net/ipv4/tcp_bbr.ko.xz": "", "lib/modules/6.12.48+deb13-amd64/kernel/net/sched/sch_fq.ko.xz": "",
		"lib/modules/6.12.48+deb13-amd64/kernel/net/sched/sch_cake.ko.xz": "", "lib/modules/6.12.48+deb13-amd64/kernel/net/sched/sch_fq_pie.ko.xz": "",
	},
}

// The kernel's own values on a server with 1 GiB.
var live = map[string]string{
	"net/ipv4/tcp_congestion_control": "cubic", "net/ipv4/tcp_available_congestion_control": "reno cubic bbr", "net/ipv4/tcp_allowed_congestion_control": "reno cubic",
	"net/core/default_qdisc": "pfifo_fast", "net/ipv4/tcp_syn_retries": "6", "net/ipv4/tcp_synack_retries": "5", "net/ipv4/tcp_timestamps": "1",
	"net/ipv4/tcp_retries2": "15", "vm/panic_on_oom": "0", "net/core/rmem_default": "212992", "net/core/wmem_default": "212992",
	"net/ipv4/tcp_rmem": "4096\t131072\t6291456", "net/ipv4/tcp_wmem": "4096\t16384\t4194304", "net/ipv4/tcp_mem": "10854\t14472\t21708",
	"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/all/route_localnet": "0", "net/ipv4/ip_forward": "0",
}

// recordedHost writes a host as it is after its next boot with systemd.
func recordedHost(t *testing.T, release, overlay string) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name, data string, mode os.FileMode, add bool) {
		full := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		if target, ok := strings.CutPrefix(strings.TrimSpace(data), "-> "); err == nil && ok {
			err = os.Symlink(target, full)
		} else if err == nil {
			if add {
				old, _ := os.ReadFile(full)
				data = string(old) + data
			} else if st, lerr := os.Lstat(full); lerr == nil && st.Mode()&os.ModeSymlink != 0 {
				err = os.Remove(full) // as sed -i and mv do
			}
			if err == nil {
				err = os.WriteFile(full, []byte(data), mode)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range debian[release] {
		put(name, data, 0o644, false)
	}
	put("sys/class/net/eth0/device/uevent", "", 0o644, false)
	put("sys/class/net/eth0/type", "1\n", 0o644, false)
	put("proc/meminfo", "MemTotal:        1000000 kB\n", 0o644, false)
	for k, v := range live {
		put("proc/sys/"+k, v+"\n", 0o644, false)
	}
	for _, f := range txtar.Parse([]byte(overlay)).Files {
		name, add := strings.CutPrefix(f.Name, "+")
		name, exec := strings.CutPrefix(name, "x:")
		put(name, string(f.Data), map[bool]os.FileMode{false: 0o644, true: 0o755}[exec], add)
	}
	c, err := sysctl.ReadConfig(dir, sysctl.Systemd)
	if err != nil {
		t.Fatal(err)
	}
	for k := range live {
		if a, ok := c.Lookup(sysctl.Key(k)); ok && a.Value != "htcp" {
			put("proc/sys/"+k, a.Value+"\n", 0o644, false)
		}
	}
	return dir
}

// command runs a command line and gives its exit code and what it printed. The
// directory of the host is named HOST.
func command(t *testing.T, dir string, args ...string) (exit int, out, err string) {
	t.Helper()
	var o, e bytes.Buffer
	a := newAccel(&o, &e, func(string) string { return "" })
	exit = a.run(append([]string{"--root", dir}, args...))
	return exit, strings.ReplaceAll(o.String(), dir, "HOST"), strings.ReplaceAll(e.String(), dir, "HOST")
}

// TestDoctorHosts shows what doctor says of each rival's leftovers on Debian 12
// and 13, of other writers, and of the given cases: the verdict, the line that
// wins, and whose the rest is. The documents match their schema.
func TestDoctorHosts(t *testing.T) {
	hosts := map[string]string{}
	overlays, err := filepath.Glob("testdata/doctor/hosts/*.txtar")
	if err != nil || len(overlays) < 15 {
		t.Fatalf("%d overlays, %v", len(overlays), err)
	}
	for _, name := range overlays {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for release := range debian {
			hosts[strings.TrimSuffix(filepath.Base(name), ".txtar")+"-"+release] = recordedHost(t, release, string(data))
		}
	}
	for _, c := range []string{"30-deb13-sysctl-conf-ignored/root", "33-later-name-wins/zz-wins/root", "35-duplicates-and-spaces/root", "64-foreign-missing-nic-and-locale/root", "78-tuned-override/root"} {
		hosts["case-"+strings.ReplaceAll(path.Dir(c), "/", "-")] = filepath.Join("../../test/cases", c)
	}
	if len(hosts) < 30 {
		t.Errorf("only %d hosts", len(hosts))
	}
	seen := []string{}
	for name, dir := range hosts {
		seen = append(seen, name+".txt")
		exit, out, stderr := command(t, dir, "doctor")
		if stderr != "" || exit != 0 && exit != 4 || (exit == 0) != strings.HasPrefix(out, "clean: ") {
			t.Errorf("%s: exit %d\n%s%s", name, exit, stderr, out)
		}
		checkLines(t, out, columns)
		if _, fix, _ := command(t, dir, "doctor", "--fix", "--dry-run"); true {
			out += "\n$ accel doctor --fix --dry-run\n" + fix
		}
		golden(t, filepath.Join("testdata/doctor/golden", name+".txt"), out)
		jsonExit, doc, _ := command(t, dir, "doctor", "--json")
		if jsonExit != exit {
			t.Errorf("%s: exit %d, and %d with --json", name, exit, jsonExit)
		}
		validate(t, []byte(doc), false)
		_, doc, _ = command(t, dir, "doctor", "--fix", "--dry-run", "--json")
		validate(t, []byte(doc), false)
	}
	files, err := filepath.Glob("testdata/doctor/golden/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(seen, filepath.Base(f)) {
			t.Errorf("%s belongs to no host", f)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (go test ./cmd/accel -update writes it anew):\n%s", name, d)
	}
}

// In Chinese it fits the columns, too.
func TestDoctorChinese(t *testing.T) {
	data, err := os.ReadFile("testdata/doctor/hosts/johnrosen.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := recordedHost(t, "debian12", string(data))
	text.SetLanguage("zh")
	defer text.SetLanguage("")
	_, out, _ := command(t, dir, "doctor")
	checkLines(t, out, columns)
	if !strings.HasPrefix(out, "有发现: ") || !strings.Contains(out, "表现为：") {
		t.Errorf("%s", out)
	}
}
