package kernel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// summary is what a test of a whole host looks at, one fact a line.
func summary(f *Facts) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("kernel %s %s, %s %s", f.Release.Raw, f.Release.Family, f.Distribution.ID, f.Distribution.VersionID)
	add("machine %q container %q netns %s", f.Virtualization.Machine, f.Virtualization.Container, show(f.Virtualization.InitialNetns))
	for _, a := range f.Algorithms {
		add("%s %s available=%v", a.Name, a.Origin, a.Available)
	}
	add("default %q qdisc %s", f.DefaultAlgorithm, show(f.DefaultQdisc))
	for _, kind := range []string{"fq", "cake"} {
		if q := f.Qdisc(kind); q.Origin != Absent {
			add("%s %s available=%v", kind, q.Origin, q.Available)
		}
	}
	for _, m := range f.Modules {
		add("module %s", m.Raw)
	}
	return lines
}

func show[T any](p *T) string {
	if p == nil {
		return "unknown"
	}
	return fmt.Sprint(*p)
}

// The given cases, as far as they are about facts.
func TestCases(t *testing.T) {
	const debian12 = "debian 12"
	for name, want := range map[string][]string{
		"02-builtin-bbr-lsmod-empty": {
			"kernel 5.0.5-native custom, " + debian12,
			`machine "" container "" netns true`,
			"bbr builtin available=true", "cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc pfifo_fast`, "fq loadable available=false",
		},
		"03-lsmod-zero-users": {
			"kernel 4.9.0-2.el7.x86_64 rhel, centos 7",
			`machine "" container "" netns true`,
			"bbr loaded available=true", "cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc pfifo_fast`, "fq loaded available=true",
			"module tcp_bbr                16384  0", "module sch_fq                 20480  1",
		},
		"04-kernel-new-enough-no-bbr": {
			"kernel 4.10.8-docker-1 custom, ubuntu 24.04",
			`machine "" container "" netns true`,
			"cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc pfifo_fast`, "fq loadable available=false",
		},
		"05-sch-fq-missing": {
			"kernel 5.3.18-24.46-default sles, " + debian12,
			`machine "" container "" netns true`,
			"bbr builtin available=true", "cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc pfifo_fast`,
		},
		"10-compressed-modules": {
			"kernel 6.12.9+deb13-amd64 debian, debian 13",
			`machine "" container "" netns true`,
			"bbr loadable available=false", "cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc pfifo_fast`, "fq loadable available=false", "cake loadable available=false",
		},
		"13-secure-boot-unsigned": {
			"kernel 6.8.0-51-generic ubuntu, ubuntu 24.04",
			`machine "" container "" netns true`,
			"cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc pfifo_fast`,
		},
		"16-netns-no-default-qdisc": {
			"kernel 6.1.0-17-amd64 debian, " + debian12,
			`machine "" container "" netns false`,
			"bbr builtin available=true", "cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc unknown`,
		},
		"21-openvz6": {
			"kernel 2.6.32-042stab133.2 openvz6, " + debian12,
			`machine "" container "openvz" netns false`,
			"cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc unknown`,
		},
		"22-openvz7-no-cc": {
			"kernel 3.10.0-1160.105.1.vz7.214.3 openvz7, " + debian12,
			`machine "" container "openvz" netns false`,
			`default "" qdisc unknown`,
		},
		"55-default-qdisc-only-new": {
			"kernel 4.19.0-6-amd64 debian, " + debian12,
			`machine "" container "" netns true`,
			"bbr builtin available=true", "cubic builtin available=true", "reno builtin available=true",
			`default "bbr" qdisc fq`, "fq builtin available=true",
		},
		"64-foreign-missing-nic-and-locale": {
			"kernel 5.1.15-1.el7.elrepo.x86_64 elrepo, centos 7",
			`machine "" container "" netns true`,
			"cubic builtin available=true", "reno builtin available=true",
			`default "cubic" qdisc pfifo_fast`,
		},
		"70-boot-full": {
			"kernel  vanilla,  ",
			`machine "" container "" netns unknown`,
			`default "" qdisc unknown`,
		},
	} {
		f := detect(t, "../../test/cases/"+name+"/root")
		if diff := cmp.Diff(want, summary(f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestCase03SortsNothingIntoUse(t *testing.T) {
	f := detect(t, "../../test/cases/03-lsmod-zero-users/root")
	if f.Modules[0].Used != 0 || f.DefaultAlgorithm != "cubic" || !f.Algorithm("bbr").Available {
		t.Errorf("%+v", f)
	}
}

// The name of a kernel says nothing about its algorithms.
func TestCase08BBRPlus(t *testing.T) {
	f := detect(t, host{
		"proc/sys/kernel/osrelease":                          "4.14.129-bbrplus\n",
		"proc/sys/net/ipv4/tcp_congestion_control":           "cubic\n",
		"proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic bbrplus\n",
		"proc/modules": "",
		"lib/modules/4.14.129-bbrplus/modules.dep":     "kernel/net/ipv4/tcp_tsunami.ko:\n",
		"lib/modules/4.14.129-bbrplus/modules.builtin": "kernel/net/ipv4/tcp_bbrplus.ko\n",
		"lib/modules/5.4.7-bbr/modules.dep":            "kernel/net/ipv4/tcp_bbr.ko:\n",
	}.dir(t))
	for name, want := range map[string]Origin{"bbrplus": Builtin, "bbr": Absent, "tsunami": Loadable} {
		if got := f.Algorithm(name).Origin; got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	// ... and the other way: a kernel called bbrplus without it.
	f = detect(t, host{
		"proc/sys/kernel/osrelease":                          "5.4.7-bbrplus\n",
		"proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic\n",
	}.dir(t))
	if got := f.Algorithm("bbrplus").Origin; got != Absent {
		t.Errorf("bbrplus is %s by its kernel's name", got)
	}
}

func TestCase10Files(t *testing.T) {
	f := detect(t, "../../test/cases/10-compressed-modules/root")
	for _, want := range []Algorithm{
		{Name: "bbr", Origin: Loadable, Module: "tcp_bbr", File: "kernel/net/ipv4/tcp_bbr.ko.xz"},
		{Name: "fq", Origin: Loadable, Module: "sch_fq", File: "kernel/net/sched/sch_fq.ko.zst"},
		{Name: "cake", Origin: Loadable, Module: "sch_cake", File: "kernel/net/sched/sch_cake.ko.gz"},
	} {
		got := f.Qdisc(want.Name)
		if want.Name == "bbr" {
			got = f.Algorithm("bbr")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestCase13SecureBoot(t *testing.T) {
	f := detect(t, "../../test/cases/13-secure-boot-unsigned/root")
	if f.SecureBoot == nil || !*f.SecureBoot || f.Lockdown != "integrity" || f.SignaturesForced == nil || !*f.SignaturesForced {
		t.Errorf("secure boot %s, lockdown %q, signatures %s", show(f.SecureBoot), f.Lockdown, show(f.SignaturesForced))
	}
}

func TestCase22Memory(t *testing.T) {
	f := detect(t, "../../test/cases/22-openvz7-no-cc/root")
	if f.MemoryBytes != 512<<20 {
		t.Errorf("memory %d, want 512 MiB", f.MemoryBytes)
	}
}

func linksOf(f *Facts) []string {
	var lines []string
	for _, l := range f.Links {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%s type=%d hardware=%v driver=%s speed=%s master=%s lower=%v paired=%s",
			l.Name, l.Type, l.Hardware, l.Driver, show(l.SpeedMbit), l.Master, l.Lower, l.PairedWith), " "))
	}
	return lines
}

func TestCaseLinks(t *testing.T) {
	for name, want := range map[string][]string{
		"57-azure-netvsc-vf": {
			"enP53091s1 type=1 hardware=true driver=mlx5_core speed=unknown master=eth0 lower=[] paired=eth0",
			"eth0 type=1 hardware=true driver=hv_netvsc speed=unknown master= lower=[enP53091s1] paired=",
		},
		"59-virtual-and-can": {
			"bond0 type=1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"br-1f2e type=1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"can0 type=280 hardware=true driver= speed=unknown master= lower=[] paired=",
			"docker0 type=1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"eth0 type=1 hardware=true driver= speed=unknown master= lower=[] paired=",
			"eth0.100 type=1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"ifb0 type=1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"lo type=772 hardware=false driver= speed=unknown master= lower=[] paired=",
			"tun0 type=65534 hardware=false driver= speed=unknown master= lower=[] paired=",
			"veth1a2b type=1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"wg0 type=65534 hardware=false driver= speed=unknown master= lower=[] paired=",
		},
		"61-nic-speed-unknown": {
			"eno2 type=-1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"enp1s0 type=-1 hardware=false driver= speed=10000 master= lower=[] paired=",
			"ens5 type=-1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"eth0 type=-1 hardware=false driver= speed=unknown master= lower=[] paired=",
			"eth9 type=-1 hardware=false driver= speed=unknown master= lower=[] paired=",
		},
		"72-wrong-driver-set": {
			"ens33 type=-1 hardware=true driver=e1000 speed=unknown master= lower=[] paired=",
		},
	} {
		got := linksOf(detect(t, "../../test/cases/"+name+"/root"))
		for i := range want {
			want[i] = strings.TrimRight(want[i], " ")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A host of which nothing is known is no error.
func TestDetectNothing(t *testing.T) {
	got := detect(t, t.TempDir())
	want := &Facts{
		Release: Release{Family: "vanilla"}, UID: -1, OtherNetns: -1, Containers: []string{},
		Allowed: []string{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
