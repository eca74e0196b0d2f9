package kernel

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What was recorded is judged as the host itself was.
func TestRecordThisHost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "recording")
	extra := Recording{Qdiscs: json.RawMessage(`[{"link":"eth0"}]`), Connections: map[string]int{"cubic": 3}}
	if err := Record(dir, extra); err != nil {
		t.Fatal(err)
	}
	live, recorded := detect(t, "/"), detect(t, dir)
	// These move by themselves.
	live.OtherNetns, recorded.OtherNetns = 0, 0
	for i := range live.Modules {
		live.Modules[i] = ModuleLine{Name: live.Modules[i].Name}
	}
	for i := range recorded.Modules {
		recorded.Modules[i] = ModuleLine{Name: recorded.Modules[i].Name}
	}
	for _, l := range live.Links {
		if macName.MatchString(l.Name) {
			t.Skip("a link here has a name made of its hardware address, which is not recorded")
		}
	}
	if diff := cmp.Diff(live, recorded); diff != "" {
		t.Errorf("(-live +recorded):\n%s", diff)
	}
	r, ok, err := ReadRecording(dir)
	if err != nil || !ok {
		t.Fatalf("ReadRecording: %v, %v", ok, err)
	}
	if r.Schema != "accel.record/1" || r.Connections["cubic"] != 3 || !strings.Contains(string(r.Qdiscs), "eth0") || r.Routes != nil {
		t.Errorf("%+v", r)
	}
	if err := Record(dir, extra); !errors.Is(err, fs.ErrExist) {
		t.Errorf("recording over a recording: %v, want fs.ErrExist", err)
	}
}

// everything that a recording must not hold, planted where a host may have it.
func TestRecordKeepsSecrets(t *testing.T) {
	const secret = "s3cr3t"
	source := fullHost.with(host{
		"etc/os-release":                                           "ID=debian\nVERSION_ID=12\nHOME_URL=https://" + secret + "\nPRETTY_NAME=\"Debian 12\"\n",
		"etc/machine-id":                                           secret,
		"etc/hostname":                                             "web7.example.org\n",
		"etc/sysctl.conf":                                          "# " + secret + " 203.0.113.5\nnet.ipv4.tcp_congestion_control = bbr\nkernel.hostname = web7\n-kernel/domainname=example.org\nexport TOKEN=" + secret + "\npassword " + secret + "\n",
		"etc/sysctl.d/99-sysctl.conf":                              "-> ../sysctl.conf",
		"etc/sysctl.d/50-web7.example.org.conf":                    "\ufeff; " + secret + "\nnet.core.default_qdisc=fq\r\n\nnet.ipv4.ip_forward=1 # 2001:db8::1 fe80::1%eth0\nvm.x = 203.0.113.5 02:fc:00:AA:00:01\nsysctl -w net.core.rmem_max=1\n-net.ipv4.conf.all.rp_filter\n#" + secret + "\x00\n" + secret + "\x00=1\n",
		"etc/sysctl.d/60-null.conf":                                "-> /dev/null",
		"etc/sysctl.d/61-gone.conf":                                "-> /opt/gone.conf",
		"etc/sysctl.d/README":                                      secret,
		"usr/lib/sysctl.d/50-default.conf":                         "net.ipv4.conf.*.rp_filter = 2\n",
		"run/sysctl.d/x.conf":                                      "net.ipv4.conf.enx001122aabbcc.rp_filter=0\n",
		"etc/modprobe.d/no.conf":                                   "# " + secret + "\ninstall sch_fq /bin/false\noptions bonding arp_ip_target=203.0.113.5 key=" + secret + "\nblacklist tcp_bbr\n",
		"etc/ufw/sysctl.conf":                                      "#" + secret + "\nnet/ipv4/tcp_congestion_control=cubic\n",
		"etc/default/ufw":                                          "IPT_SYSCTL=/etc/ufw/sysctl.conf\nDEFAULT=" + secret + "\n",
		"etc/tuned/active_profile":                                 "web7-profile\n",
		"proc/cmdline":                                             "root=UUID=" + secret + " ip=203.0.113.5 modprobe.blacklist=foo quiet\n",
		"proc/cpuinfo":                                             "processor\t: 0\nvendor_id\t: X\nmodel name\t: " + secret + "\nflags\t\t: fpu hypervisor " + secret + "\n",
		"proc/modules":                                             "tcp_htcp 16384 0 - Live 0xffffffffc0aabbcc\nsch_htb 32768 1 sch_x, Live 0xffffffffc0aabbcc\n" + secret + " 1 1 - Live 0x0\n",
		"proc/sys/net/core/netdev_rss_key":                         secret,
		"proc/sys/net/core/rmem_max":                               "212992\n",
		"proc/sys/net/ipv4/tcp_fastopen_key":                       secret,
		"proc/sys/net/ipv4/conf/eth0/x":                            secret,
		"proc/sys/net/ipv4/tcp_mem":                                "1 2 3\n",
		"proc/1/comm":                                              "systemd\n",
		"proc/1/cgroup":                                            "0::/docker/" + secret + "\n",
		"proc/1/environ":                                           "container=lxc\x00" + secret + "\x00",
		"sys/class/net/enx001122aabbcc/address":                    "00:11:22:aa:bb:cc\n",
		"sys/class/net/enx001122aabbcc/type":                       "1\n",
		"sys/class/net/enx001122aabbcc/speed":                      "1000\n",
		"sys/class/net/enx001122aabbcc/device/driver":              "../../r8152\n",
		"sys/class/dmi/id/sys_vendor":                              "QEMU\n",
		"sys/class/dmi/id/product_serial":                          secret,
		"run/systemd/system/":                                      "",
		"var/lib/accel/state.json":                                 `{"schema":1}`,
		"etc/systemd/system/multi-user.target.wants/accel.service": "-> /usr/lib/systemd/system/accel.service",
	})
	tree := source.tree(t)
	facts := detect(t, source.dir(t))
	dir := t.TempDir()
	if err := record(tree, facts, newRedactor("web7.example.org"), dir, Recording{Routes: json.RawMessage(`[{"link":"enx001122aabbcc"}]`)}); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name := strings.TrimPrefix(at, dir+"/")
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(at)
			files[name] = "-> " + target
			return err
		}
		data, err := os.ReadFile(at)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		all := strings.ToLower(name + "\n" + content)
		for _, word := range []string{secret, "203.0.113.5", "2001:db8", "fe80", "02:fc:00:aa", "001122aabbcc", "00:11:22", "web7", "example.org", "c0aabbcc"} {
			if strings.Contains(all, word) {
				t.Errorf("%s holds %q:\n%s", name, word, content)
			}
		}
	}
	for name, want := range map[string]string{
		"etc/sysctl.conf":                    "#\nnet.ipv4.tcp_congestion_control = bbr\n#\n#\nexport TOKEN=?\n?\n",
		"etc/sysctl.d/99-sysctl.conf":        "-> ../sysctl.conf",
		"etc/sysctl.d/50-HOST.conf":          "\ufeff;\nnet.core.default_qdisc=fq\r\n\nnet.ipv4.ip_forward=1 # :: ::\nvm.x = 0.0.0.0 00:00:00:00:00:00\nsysctl -w net.core.rmem_max=1\n-net.ipv4.conf.all.rp_filter\n\x00\n\x00\n",
		"etc/sysctl.d/60-null.conf":          "-> /dev/null",
		"run/sysctl.d/x.conf":                "net.ipv4.conf.enx000000000001.rp_filter=0\n",
		"etc/modprobe.d/no.conf":             "\ninstall sch_fq /bin/false\n\nblacklist tcp_bbr\n",
		"etc/default/ufw":                    "IPT_SYSCTL=/etc/ufw/sysctl.conf\n",
		"etc/tuned/active_profile":           "HOST-profile\n",
		"proc/cmdline":                       "modprobe.blacklist=foo\n",
		"proc/modules":                       "tcp_htcp 16384 0 - Live 0x0000000000000000\nsch_htb 32768 1 sch_x, Live 0x0000000000000000\n",
		"proc/cpuinfo":                       "processor\t: 0\nvendor_id\t: X\nflags\t\t: hypervisor\n",
		"proc/sys/net/ipv4/tcp_mem":          "1 2 3\n",
		"proc/sys/kernel/osrelease":          "6.1.0-57-cloud-amd64\n",
		"var/lib/accel/state.json":           `{"schema":1}`,
		"sys/class/net/enx000000000001/type": "1\n",
		"etc/systemd/system/multi-user.target.wants/accel.service":       "-> /usr/lib/systemd/system/accel.service",
		"lib/modules/6.1.0-57-cloud-amd64/modules.builtin":               "kernel/net/ipv4/tcp_cubic.ko\nkernel/net/sched/sch_fq_codel.ko\nkernel/net/ipv4/tcp_sigpool.ko\n",
		"lib/modules/6.1.0-57-cloud-amd64/extra/deep/tcp-tsunami.ko.zst": "",
	} {
		if got, ok := files[name]; !ok || got != want {
			t.Errorf("%s is %q (%v), want %q", name, got, ok, want)
		}
	}
	if _, ok := files["etc/sysctl.d/61-gone.conf"]; ok {
		t.Error("a link to nowhere became a file")
	}

	// And it is judged as its source was.
	got := detect(t, dir)
	for i := range facts.Links {
		facts.Links[i].Name = strings.ReplaceAll(facts.Links[i].Name, "001122aabbcc", "000000000001")
	}
	if diff := cmp.Diff(facts, got); diff != "" {
		t.Errorf("(-source +recorded):\n%s", diff)
	}
}

// A file mode such as a tree's own is no reason to fail: what cannot be read is left
// out, what cannot be written is an error.
func TestRecordErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Record(filepath.Join(file, "below"), Recording{}); err == nil {
		t.Error("recording below a file succeeds")
	}
	if err := Record(file, Recording{}); err == nil {
		t.Error("recording onto a file succeeds")
	}
}

func TestReadRecording(t *testing.T) {
	for _, c := range []struct {
		json string
		want error
	}{
		{`{"schema":"accel.record/1","links":null}`, nil},
		{`{"schema":"accel.record/2"}`, ErrNotRecording},
		{`{}`, ErrNotRecording},
		{`not json`, ErrNotRecording},
		{``, ErrNotRecording},
		{`{"schema":"accel.record/1","links":7}`, ErrNotRecording},
	} {
		dir := host{RecordingName: c.json}.dir(t)
		r, ok, err := ReadRecording(dir)
		if !errors.Is(err, c.want) || ok != (c.want == nil) {
			t.Errorf("%s: %v, %v, want %v", c.json, ok, err, c.want)
		}
		if _, err := Detect(dir); !errors.Is(err, c.want) {
			t.Errorf("%s: Detect: %v, want %v", c.json, err, c.want)
		}
		if c.want == nil && (r.UID != -1 || r.OtherNetns != -1) {
			t.Errorf("not recorded is not unknown: %+v", r)
		}
	}
	if _, ok, err := ReadRecording(t.TempDir()); ok || err != nil {
		t.Errorf("an image without recording: %v, %v", ok, err)
	}
}

func TestRedact(t *testing.T) {
	r := newRedactor("web7.example.org")
	for in, want := range map[string]string{
		"net.ipv4.tcp_rmem = 4096 131072 33554432":        "net.ipv4.tcp_rmem = 4096 131072 33554432",
		"net.ipv4.conf.eth0/100.rp_filter=1":              "net.ipv4.conf.eth0/100.rp_filter=1",
		"a 10.0.0.1/8, 1.2.3":                             "a 0.0.0.0/8, 1.2.3",
		"2001:db8:1:2:3:4:5:6":                            "::",
		"::1":                                             "::",
		"12:30:59":                                        "12:30:59",
		"qdisc 8001: parent ffff:fff1":                    "qdisc 8001: parent ffff:fff1",
		`{"a":1,"cafe":{"b":2}}`:                          `{"a":1,"cafe":{"b":2}}`,
		"WEB7 web7.example.org web77 xweb7":               "HOST HOST web77 xweb7",
		"wlx0a1b2c3d4e5f enx0a1b2c3d4e5f wlx0a1b2c3d4e5f": "wlx000000000001 enx000000000002 wlx000000000001",
		"0a-1b-2c-3d-4e-5f":                               "00:00:00:00:00:00",
	} {
		if got := r.text(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	for _, name := range []string{"", "vm", "localhost", "debian", "cubic"} {
		if newRedactor(name).host != nil {
			t.Errorf("looks for %q, which is in everything", name)
		}
	}
}
