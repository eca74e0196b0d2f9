package kernel

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseModules(t *testing.T) {
	got := parseModules([]byte("tcp_bbr 20480 12 - Live 0xffffffffc0a00000\n" +
		"sch_fq 20480 2 - Live 0x0000000000000000\n" +
		"tcp_diag 16384 0 - Live 0x0000000000000000\n" +
		"inet_diag 24576 1 tcp_diag, Live 0x0000000000000000\n" +
		"virtio_net 61440 0 [permanent], Live 0x0000000000000000 (E)\n" +
		"sch_mqprio_lib 16384 2 sch_taprio,sch_mqprio, Live 0x0\n" +
		"old 1234 -\n" +
		"\n" + "short 1\n" + "bad x 1 -\n" + "negative -5 1 -\n"))
	want := []ModuleLine{
		{Name: "tcp_bbr", Size: 20480, Used: 12, UsedBy: []string{}, Raw: "tcp_bbr                20480  12"},
		{Name: "sch_fq", Size: 20480, Used: 2, UsedBy: []string{}, Raw: "sch_fq                 20480  2"},
		{Name: "tcp_diag", Size: 16384, UsedBy: []string{}, Raw: "tcp_diag               16384  0"},
		{Name: "inet_diag", Size: 24576, Used: 1, UsedBy: []string{"tcp_diag"}, Raw: "inet_diag              24576  1 tcp_diag"},
		{Name: "virtio_net", Size: 61440, UsedBy: []string{"[permanent]"}, Raw: "virtio_net             61440  0 [permanent]"},
		{Name: "sch_mqprio_lib", Size: 16384, Used: 2, UsedBy: []string{"sch_taprio", "sch_mqprio"}, Raw: "sch_mqprio_lib         16384  2 sch_taprio,sch_mqprio"},
		{Name: "old", Size: 1234, UsedBy: []string{}, Raw: "old                     1234  0"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestModuleNames(t *testing.T) {
	for file, want := range map[string]string{
		"kernel/net/ipv4/tcp_bbr.ko":        "tcp_bbr",
		"kernel/net/ipv4/tcp-bbr.ko.xz":     "tcp_bbr",
		"extra/tcp_bbrplus.ko.zst":          "tcp_bbrplus",
		"sch_fq.ko.gz":                      "sch_fq",
		"/lib/modules/6.1/kernel/brutal.ko": "brutal",
		"sch-fq-codel":                      "sch_fq_codel",
		"tcp_bbr.ko.xz.bak":                 "tcp_bbr.ko.xz.bak",
	} {
		if got := moduleName(file); got != want {
			t.Errorf("moduleName(%q) = %q, want %q", file, got, want)
		}
	}
	for module, want := range map[string]string{
		"tcp_cubic": "cubic", "tcp_bbr3": "bbr3", "brutal": "brutal", "tcp_brutal": "brutal",
		"tcp_diag": "", "tcp_probe": "", "tcp_sigpool": "", "sch_fq": "", "nvme_tcp": "",
	} {
		if got := algorithmOf(module); got != want {
			t.Errorf("algorithmOf(%q) = %q, want %q", module, got, want)
		}
	}
	for module, want := range map[string][]string{
		"sch_fq": {"fq"}, "sch_fq_codel": {"fq_codel"}, "sch_ingress": {"ingress", "clsact"},
		"sch_mqprio_lib": nil, "tcp_bbr": nil, "sch_cake": {"cake"},
	} {
		if diff := cmp.Diff(want, qdiscsOf(module)); diff != "" {
			t.Errorf("qdiscsOf(%q): %s", module, diff)
		}
	}
}

// The answers are those of kmod 30's modprobe -n -v (and, for what fails, of modprobe)
// to the same configuration, with real modules.
func TestModprobeVerdict(t *testing.T) {
	blocked := func(file, line string) string { return "/etc/modprobe.d/" + file + ": " + line }
	note := func(line string) string {
		return "/etc/modprobe.d/a.conf:1: " + line + " (systemd-modules-load leaves it out at boot; it can be loaded by name)"
	}
	for _, c := range []struct {
		conf          string
		blocked, note string
	}{
		{conf: ""},
		{conf: "install tcp_bbr /bin/false\n", blocked: blocked("a.conf:1", "install tcp_bbr /bin/false")},
		{conf: "install tcp-bbr /bin/true\n", blocked: blocked("a.conf:1", "install tcp_bbr /bin/true")},
		{conf: "install tcp_* /bin/true\n", blocked: blocked("a.conf:1", "install tcp_* /bin/true")},
		{conf: "install tcp_[ab]br :\n", blocked: blocked("a.conf:1", "install tcp_[ab]br :")},
		{conf: "install tcp-[b-c]br exit 1\n", blocked: blocked("a.conf:1", "install tcp_[b-c]br exit 1")},
		{conf: "install tcp_[!a]br /bin/false\n", blocked: blocked("a.conf:1", "install tcp_[!a]br /bin/false")},
		{conf: "install tcp_[!b]br /bin/false\n"},
		{conf: "install tcp_?br /usr/bin/false\n", blocked: blocked("a.conf:1", "install tcp_?br /usr/bin/false")},
		{conf: "install tcp_bbr.ko /bin/false\n"},
		{conf: "# no\ninstall tcp_bbr /bin/false # why\n", blocked: blocked("a.conf:2", "install tcp_bbr /bin/false # why")},
		{conf: "install tcp_bbr \\\n /bin/false\n", blocked: blocked("a.conf:1", "install tcp_bbr /bin/false")},
		{conf: "install\ttcp_bbr\t/bin/false\r\n", blocked: blocked("a.conf:1", "install tcp_bbr /bin/false")},
		{conf: "install tcp_bbr /bin/false", blocked: blocked("a.conf:1", "install tcp_bbr /bin/false")},
		{conf: "  install tcp_bbr /bin/false\n", blocked: blocked("a.conf:1", "install tcp_bbr /bin/false")},
		{conf: "install tcp_bbr /bin/true; exit 0\n", blocked: blocked("a.conf:1", "install tcp_bbr /bin/true; exit 0")},
		{conf: "#install tcp_bbr /bin/false\n"},
		{conf: " #install tcp_bbr /bin/false\n"},
		{conf: "# comment \\\ninstall tcp_bbr /bin/false\n"},
		{conf: "INSTALL tcp_bbr /bin/false\n"},
		{conf: "install tcp_bbr\n"},
		{conf: "install tcp_bbr /sbin/modprobe --ignore-install tcp_bbr\n"},
		{conf: "install tcp_bbr /bin/true; /sbin/modprobe -i tcp_bbr\n"},
		{conf: "install tcp_bbr /usr/local/bin/hook && true\n"},
		{conf: "install tcp_bbr modprobe -i tcp_bbr\ninstall tcp_bbr /bin/false\n"}, // the first counts
		{conf: "install tcp_cubic /bin/false\n"},
		{conf: "blacklist tcp_bbr\n", note: note("blacklist tcp_bbr")},
		{conf: "blacklist tcp-bbr\n", note: note("blacklist tcp_bbr")},
		{conf: "blacklist tcp_*\n"}, // no patterns there
		{conf: "alias tcp_bbr off\n", blocked: blocked("a.conf:1", "alias tcp_bbr off")},
		{conf: "alias tcp-* off\n", blocked: blocked("a.conf:1", "alias tcp_* off")},
		{conf: "alias tcp_bbr tcp_cubic\n", blocked: blocked("a.conf:1", "alias tcp_bbr tcp_cubic")},
		{conf: "alias tcp_bbr tcp-bbr\n"},
		{conf: "alias net-pf-10 off\n"},
		{conf: "softdep tcp_bbr pre: sch_fq\ninstall sch_fq /bin/false\n"},                                      // a soft one may fail
		{conf: "softdep tcp_bbr pre: sch_fq\ninstall tcp_bbr /bin/false\n"},                                     // a softdep outranks install
		{conf: "alias tcp_bbr tcp_bbr\nblacklist tcp_bbr\n", blocked: blocked("a.conf:2", "blacklist tcp_bbr")}, // by an alias the blacklist counts
		{conf: "blacklist tcp_bbr\r\n"},
		{conf: "alias tcp_bbr tcp_bbr\r\n", blocked: blocked("a.conf:1", "alias tcp_bbr tcp_bbr")},
		{conf: "install tcp_bbr  \n", blocked: blocked("a.conf:1", "install tcp_bbr")},
		{conf: "options tcp_bbr x=1\n"},
	} {
		tree := host{"etc/modprobe.d/a.conf": c.conf}.tree(t)
		b, n := readModprobeConfig(tree).verdict("tcp_bbr", nil)
		if b != c.blocked || n != c.note {
			t.Errorf("%q:\n got %q, %q\nwant %q, %q", c.conf, b, n, c.blocked, c.note)
		}
	}
}

func TestModprobeConfigFiles(t *testing.T) {
	forbid := "install tcp_bbr /bin/false\n"
	for _, c := range []struct {
		name  string
		host  host
		where string // of the block, "" for none
	}{
		{"any directory", host{"usr/lib/modprobe.d/x.conf": forbid}, "/usr/lib/modprobe.d/x.conf:1"},
		{"old directory", host{"lib/modprobe.d/x.conf": forbid}, "/lib/modprobe.d/x.conf:1"},
		{"masked by name", host{"etc/modprobe.d/x.conf": "", "usr/lib/modprobe.d/x.conf": forbid}, ""},
		{"masked by null", host{"etc/modprobe.d/x.conf": "-> /dev/null", "usr/lib/modprobe.d/x.conf": forbid}, ""},
		{"a directory masks nothing", host{"etc/modprobe.d/x.conf/": "", "usr/lib/modprobe.d/x.conf": forbid}, "/usr/lib/modprobe.d/x.conf:1"},
		{"wrong name", host{"etc/modprobe.d/x": forbid, "etc/modprobe.d/.y.conf": forbid, "etc/modprobe.d/z.conf.bak": forbid}, ""},
		{"name order over directories", host{"etc/modprobe.d/b.conf": forbid, "run/modprobe.d/a.conf": "install tcp_bbr modprobe -i tcp_bbr\n"}, ""},
		{"a link", host{"etc/modprobe.d/x.conf": "-> /opt/forbid", "opt/forbid": forbid}, "/etc/modprobe.d/x.conf:1"},
		{"command line", host{"proc/cmdline": "quiet module_blacklist=foo,tcp-bbr ro\n"}, "kernel command line"},
		{"command line, alias only", host{"proc/cmdline": "modprobe.blacklist=tcp_bbr"}, ""},
	} {
		blocked, _ := readModprobeConfig(c.host.tree(t)).verdict("tcp_bbr", nil)
		where, _, _ := strings.Cut(blocked, ": ")
		if where != c.where {
			t.Errorf("%s: blocked by %q, want %q", c.name, blocked, c.where)
		}
	}
	// What a module needs and cannot get blocks it.
	config := readModprobeConfig(host{"etc/modprobe.d/x.conf": "install inet_diag /bin/false\n"}.tree(t))
	if blocked, _ := config.verdict("tcp_x", []string{"inet_diag"}); blocked == "" {
		t.Error("a forbidden dependency does not block")
	}
}

// A host with everything, from which the tests below take things away.
var fullHost = host{
	"proc/sys/kernel/osrelease":                          "6.1.0-57-cloud-amd64\n",
	"proc/sys/net/ipv4/tcp_congestion_control":           "cubic\n",
	"proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic htcp\n",
	"proc/sys/net/ipv4/tcp_allowed_congestion_control":   "reno cubic\n",
	"proc/sys/net/core/default_qdisc":                    "fq_codel\n",
	"proc/modules":                                       "tcp_htcp 16384 0 - Live 0x0\nsch_htb 32768 1 - Live 0x0\next4 1 1 - Live 0x0\n",
	"lib/modules/6.1.0-57-cloud-amd64/modules.builtin":   "kernel/net/ipv4/tcp_cubic.ko\nkernel/net/sched/sch_fq_codel.ko\nkernel/net/ipv4/tcp_sigpool.ko\nkernel/fs/ext4/ext4.ko\n",
	"lib/modules/6.1.0-57-cloud-amd64/modules.dep": "kernel/net/ipv4/tcp_bbr.ko:\nkernel/net/ipv4/tcp_htcp.ko:\nkernel/net/ipv4/tcp_diag.ko: kernel/net/ipv4/inet_diag.ko\n" +
		"kernel/net/sched/sch_fq.ko.xz:\nkernel/net/sched/sch_htb.ko:\nkernel/net/sched/sch_mqprio_lib.ko:\nkernel/fs/x.ko:\nupdates/dkms/brutal.ko.zst:\n",
	"lib/modules/6.1.0-57-cloud-amd64/extra/deep/tcp-tsunami.ko.zst": "x",
	"lib/modules/5.10.0-1-amd64/modules.dep":                         "kernel/net/ipv4/tcp_vegas.ko:\n",
	"etc/modprobe.d/no.conf":                                         "install sch_fq /bin/false\nblacklist tcp_bbr\n",
}

func TestDetectOrigins(t *testing.T) {
	f := detect(t, fullHost.dir(t))
	wantAlgorithms := []Algorithm{
		{Name: "bbr", Origin: Loadable, Module: "tcp_bbr", File: "kernel/net/ipv4/tcp_bbr.ko",
			Note: "/etc/modprobe.d/no.conf:2: blacklist tcp_bbr (systemd-modules-load leaves it out at boot; it can be loaded by name)"},
		{Name: "brutal", Origin: Loadable, Module: "brutal", File: "updates/dkms/brutal.ko.zst"},
		{Name: "cubic", Origin: Builtin, Available: true},
		{Name: "htcp", Origin: Loaded, Available: true, Module: "tcp_htcp", File: "kernel/net/ipv4/tcp_htcp.ko"},
		{Name: "reno", Origin: Builtin, Available: true},
		{Name: "tsunami", Origin: Loadable, Module: "tcp_tsunami", File: "extra/deep/tcp-tsunami.ko.zst",
			Note: "modules.dep does not list it, so modprobe does not find it: depmod -a"},
	}
	if diff := cmp.Diff(wantAlgorithms, f.Algorithms); diff != "" {
		t.Errorf("algorithms (-want +got):\n%s", diff)
	}
	for _, want := range []Algorithm{
		{Name: "fq", Origin: Loadable, Module: "sch_fq", File: "kernel/net/sched/sch_fq.ko.xz", Blocked: "/etc/modprobe.d/no.conf:1: install sch_fq /bin/false"},
		{Name: "fq_codel", Origin: Builtin, Available: true},
		{Name: "htb", Origin: Loaded, Available: true, Module: "sch_htb", File: "kernel/net/sched/sch_htb.ko"},
		{Name: "pfifo_fast", Origin: Builtin, Available: true},
		{Name: "cake", Origin: Absent},
		{Name: "mqprio_lib", Origin: Absent},
	} {
		if diff := cmp.Diff(want, f.Qdisc(want.Name)); diff != "" {
			t.Errorf("qdisc (-want +got):\n%s", diff)
		}
	}
	if f.DefaultAlgorithm != "cubic" || f.DefaultQdisc == nil || *f.DefaultQdisc != "fq_codel" || !f.ModulesSupported || !f.ModuleIndex {
		t.Errorf("%+v", f)
	}
	if diff := cmp.Diff([]string{"tcp_htcp", "sch_htb"}, []string{f.Modules[0].Name, f.Modules[1].Name}); diff != "" || len(f.Modules) != 2 {
		t.Errorf("module lines: %+v", f.Modules)
	}
	if got := f.Algorithm("vegas"); got.Origin != Absent {
		t.Errorf("a module of another kernel is offered: %+v", got)
	}
}

func TestDetectOriginVariants(t *testing.T) {
	const lib = "lib/modules/6.1.0-57-cloud-amd64/"
	gz := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write([]byte(s))
		w.Close()
		return b.String()
	}
	signed := "module~Module signature appended~\n"
	locked := host{"sys/kernel/security/lockdown": "none [integrity] confidentiality\n"}
	release := host{"proc/sys/kernel/osrelease": "6.1.0-57-cloud-amd64\n", "proc/modules": ""}
	for _, c := range []struct {
		name   string
		host   host
		origin Origin // of bbr
		block  string // beginning of Blocked
		index  bool
	}{
		{"merged usr", release.with(host{"lib": "-> usr/lib", "usr/" + lib + "modules.dep": "kernel/net/ipv4/tcp_bbr.ko.zst:\n"}), Loadable, "", false},
		{"only /usr/lib", release.with(host{"usr/" + lib + "modules.dep": "kernel/net/ipv4/tcp_bbr.ko.zst:\n"}), Loadable, "", false},
		{"absolute names", release.with(host{lib + "modules.dep": "/lib/modules/6.1.0-57-cloud-amd64/kernel/net/ipv4/tcp_bbr.ko: /lib/modules/6.1.0-57-cloud-amd64/kernel/a.ko\n"}), Loadable, "", false},
		{"no modules.dep", release.with(host{lib + "kernel/net/ipv4/tcp-bbr.ko.gz": ""}), Loadable, "", false},
		{"top directory", release.with(host{lib + "tcp_bbr.ko": ""}), Loadable, "", false},
		{"wrong suffix", release.with(host{lib + "kernel/net/ipv4/tcp_bbr.ko.zstd": "", lib + "kernel/net/ipv4/tcp_bbr.c": ""}), Absent, "", false},
		{"other release", release.with(host{"lib/modules/6.1.0-58-cloud-amd64/modules.dep": "kernel/net/ipv4/tcp_bbr.ko:\n"}), Absent, "", false},
		{"builtin list only", release.with(host{lib + "modules.builtin": "kernel/net/ipv4/tcp_bbr.ko\n"}), Builtin, "", false},
		{"nothing at all", release, Absent, "", false},
		{"complete and without", release.with(host{lib + "modules.dep": "", lib + "modules.builtin": ""}), Absent, "", true},
		{"modules disabled", release.with(host{lib + "modules.dep": "kernel/net/ipv4/tcp_bbr.ko:\n", "proc/sys/kernel/modules_disabled": "1\n"}), Loadable, "kernel.modules_disabled is 1", false},
		{"unsigned, locked down", release.with(locked).with(host{lib + "modules.dep": "extra/tcp_bbr.ko:\n", lib + "extra/tcp_bbr.ko": "module"}), Loadable, "it carries no signature", false},
		{"unsigned and packed, locked down", release.with(locked).with(host{lib + "modules.dep": "extra/tcp_bbr.ko.gz:\n", lib + "extra/tcp_bbr.ko.gz": gz("module")}), Loadable, "it carries no signature", false},
		{"signed, locked down", release.with(locked).with(host{lib + "modules.dep": "extra/tcp_bbr.ko:\n", lib + "extra/tcp_bbr.ko": signed}), Loadable, "", false},
		{"signed and packed, locked down", release.with(locked).with(host{lib + "modules.dep": "extra/tcp_bbr.ko.gz:\n", lib + "extra/tcp_bbr.ko.gz": gz(signed)}), Loadable, "", false},
		{"unseen, locked down", release.with(locked).with(host{lib + "modules.dep": "extra/tcp_bbr.ko.xz:\n", lib + "extra/tcp_bbr.ko.xz": "module"}), Loadable, "", false},
		{"unsigned, not forced", release.with(host{lib + "modules.dep": "extra/tcp_bbr.ko:\n", lib + "extra/tcp_bbr.ko": "module", "sys/module/module/parameters/sig_enforce": "N\n"}), Loadable, "", false},
		{"unsigned, forced", release.with(host{lib + "modules.dep": "extra/tcp_bbr.ko:\n", lib + "extra/tcp_bbr.ko": "module", "sys/module/module/parameters/sig_enforce": "Y\n"}), Loadable, "it carries no signature", false},
		{"a release that climbs", host{"proc/sys/kernel/osrelease": "../modules\n", "lib/modules/modules.dep": "kernel/net/ipv4/tcp_bbr.ko:\n", "lib/modules/x/modules.dep": ""}, Absent, "", false},
		{"available without a module", release.with(host{"proc/sys/net/ipv4/tcp_available_congestion_control": "reno bbr\n"}), Builtin, "", false},
		{"loaded", release.with(host{"proc/modules": "tcp_bbr 20480 0 - Live 0x0\n"}), Loaded, "", false},
	} {
		f := detect(t, c.host.dir(t))
		got := f.Algorithm("bbr")
		if got.Origin != c.origin || !strings.HasPrefix(got.Blocked, c.block) || (c.block == "") != (got.Blocked == "") || f.ModuleIndex != c.index {
			t.Errorf("%s: %+v, index %v; want %s, blocked %q, index %v", c.name, got, f.ModuleIndex, c.origin, c.block, c.index)
		}
	}
}

// A kernel without modules.builtin shows its qdiscs by its configuration.
func TestQdiscsFromConfig(t *testing.T) {
	config := "CONFIG_NET_SCHED=y\nCONFIG_NET_SCH_FQ=y\nCONFIG_NET_SCH_CAKE=m\n# CONFIG_NET_SCH_NETEM is not set\nCONFIG_NET_SCH_DEFAULT=y\nCONFIG_NET_SCH_INGRESS=y\n"
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write([]byte(config))
	w.Close()
	base := host{"proc/sys/kernel/osrelease": "6.18.44-x\n", "proc/sys/net/core/default_qdisc": "pfifo_fast\n"}
	for name, h := range map[string]host{
		"proc":     base.with(host{"proc/config.gz": z.String()}),
		"boot":     base.with(host{"boot/config-6.18.44-x": config}),
		"not gzip": base.with(host{"proc/config.gz": "nonsense", "boot/config-6.18.44-x": config}),
		"lib":      base.with(host{"lib/modules/6.18.44-x/config": config}),
	} {
		f := detect(t, h.dir(t))
		for kind, want := range map[string]Origin{"fq": Builtin, "cake": Absent, "netem": Absent, "default": Absent, "clsact": Builtin, "pfifo_fast": Builtin} {
			if got := f.Qdisc(kind); got.Origin != want || got.Available != (want == Builtin) {
				t.Errorf("%s: %+v, want %s", name, got, want)
			}
		}
	}
	// The default in force exists, whatever else is known.
	if got := detect(t, host{"proc/sys/net/core/default_qdisc": "fq\n"}.dir(t)).Qdisc("fq"); !got.Available {
		t.Errorf("the default qdisc is not available: %+v", got)
	}
}

func TestBBRVersion(t *testing.T) {
	for _, c := range []struct {
		host host
		want int
		from string
	}{
		{host{}, 0, ""},
		{host{"sys/module/tcp_bbr/version": "3\n"}, 3, "/sys/module/tcp_bbr/version"},
		{host{"sys/module/tcp_bbr/srcversion": "3333\n"}, 0, ""},
		{host{"sys/module/tcp_bbr/version": "x\n"}, 0, ""},
		{host{"sys/kernel/btf/tcp_bbr": "BTF\x00full_bw_cnt\x00lt_is_sampling\x00lt_bw\x00"}, 1, "/sys/kernel/btf/tcp_bbr"},
		{host{"sys/kernel/btf/tcp_bbr": "BTF\x00bw_lo\x00inflight_hi\x00"}, 0, ""},
	} {
		f := detect(t, c.host.dir(t))
		if f.BBRVersion != c.want || f.BBRVersionFrom != c.from {
			t.Errorf("%v: %d from %q, want %d from %q", c.host, f.BBRVersion, f.BBRVersionFrom, c.want, c.from)
		}
	}
	f := &Facts{BBRVersion: 1, BBRVersionFrom: "x"}
	for algorithm, want := range map[string]int{"bbr": 1, "bbr3": 3, "bbr2": 2, "bbr1": 1, "bbrplus": 0, "cubic": 0} {
		if got, _ := f.BBRVersionOf(algorithm); got != want {
			t.Errorf("version of %s: %d, want %d", algorithm, got, want)
		}
	}
}

func FuzzParseModules(f *testing.F) {
	f.Add([]byte("tcp_bbr 20480 12 - Live 0xffffffffc0a00000\ninet_diag 24576 1 tcp_diag, Live 0x0\n"))
	f.Add([]byte("virtio_net 61440 0 [permanent], Live 0x0 (E)\n-1 -1 -1 -1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range parseModules(data) {
			if m.Name == "" || m.Size < 0 || m.UsedBy == nil || strings.ContainsAny(m.Raw, "\n") || !strings.HasPrefix(m.Raw, m.Name) {
				t.Errorf("%q gives %+v", data, m)
			}
		}
	})
}

func FuzzParseModulesDep(f *testing.F) {
	f.Add([]byte("kernel/net/ipv4/tcp_bbr.ko.xz: kernel/a.ko kernel/b-c.ko\n/lib/modules/1/kernel/sch_fq.ko:\n"))
	f.Add([]byte(":\n/:/\ntcp_.ko:\nbrutal.ko.zst: \x00\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, m := range parseModulesDep(data) {
			if !wantedModule(name) || !m.listed || moduleName(m.path) != name || len(m.deps) != len(m.depPaths) {
				t.Errorf("%q gives %q: %+v", data, name, m)
			}
		}
	})
}

func FuzzParseModprobe(f *testing.F) {
	f.Add([]byte("install tcp_bbr /bin/false\nblacklist x\nalias a-b c\n"))
	f.Add([]byte("install a \\\n b \\\n\n# \\\nblacklist [a-b]-c\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := bytes.Count(data, []byte("\n")) + 1
		rules := parseModprobe("f", data)
		for _, r := range rules {
			if r.name == "" || r.first < 1 || r.last < r.first || r.last > lines {
				t.Errorf("%q gives %+v", data, r)
			}
			matchModule(r.name, "tcp_bbr")
			loadsNothing(r.rest)
		}
		modprobeConfig{rules: rules}.verdict("tcp_bbr", []string{"x"})
		// What a recording keeps says the same about the modules that matter.
		kept := parseModprobe("f", keepModprobe(data))
		b1, n1 := modprobeConfig{rules: rules}.verdict("tcp_bbr", nil)
		b2, n2 := modprobeConfig{rules: kept}.verdict("tcp_bbr", nil)
		if b1 != b2 || n1 != n2 {
			t.Errorf("recording %q changes the verdict from %q, %q to %q, %q", data, b1, n1, b2, n2)
		}
	})
}
