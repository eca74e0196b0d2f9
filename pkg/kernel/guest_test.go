package kernel

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// TestGuest runs as root in a small machine with one of Debian's kernels, which it
// changes at will: test/vm.RunTests(t, guest, "./pkg/kernel", "^TestGuest$") with
// one link.
func TestGuest(t *testing.T) {
	if os.Getenv("ACCEL_GUEST") == "" {
		t.Skip("runs in a virtual machine that the tests in test/vm start")
	}
	const ipv4 = "/proc/sys/net/ipv4/"
	write := func(t *testing.T, name, content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	choose := func(algorithm string) error {
		return os.WriteFile(ipv4+"tcp_congestion_control", []byte(algorithm), 0o644)
	}
	load := func(t *testing.T, name string) {
		t.Helper()
		if err := LoadModule(context.Background(), name); err != nil {
			t.Errorf("loading %s: %v", name, err)
		}
	}
	// A kernel's own request runs /sbin/modprobe, as its owner left it.
	conf := func(t *testing.T, content string) {
		t.Helper()
		if err := os.MkdirAll("/etc/modprobe.d", 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, "/etc/modprobe.d/test.conf", content)
	}

	t.Run("facts", func(t *testing.T) {
		f := detect(t, "/")
		if f.Release.Family != "debian" || f.DefaultAlgorithm != "cubic" || !f.ModulesSupported || !f.ModuleIndex || f.Virtualization.Container != "" {
			t.Errorf("%+v", f)
		}
		if f.Virtualization.InitialNetns == nil || !*f.Virtualization.InitialNetns {
			t.Errorf("netns: %s", show(f.Virtualization.InitialNetns))
		}
		for _, name := range []string{"bbr", "htcp", "vegas", "westwood"} {
			a := f.Algorithm(name)
			if a.Origin != Loadable || a.Available || a.Module != "tcp_"+name || !strings.HasPrefix(a.File, "kernel/net/ipv4/tcp_"+name+".ko") || a.Blocked != "" || a.Note != "" {
				t.Errorf("%+v", a)
			}
		}
		for name, want := range map[string]Origin{"reno": Builtin, "cubic": Builtin, "diag": Absent, "sigpool": Absent, "nosuch": Absent} {
			if got := f.Algorithm(name).Origin; got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		for name, want := range map[string]Origin{"fq": Loadable, "cake": Loadable, "pfifo_fast": Builtin, "mq": Builtin, "mqprio_lib": Absent} {
			if got := f.Qdisc(name).Origin; got != want {
				t.Errorf("qdisc %s is %s, want %s", name, got, want)
			}
		}
		if f.DefaultQdisc == nil || !f.Qdisc(*f.DefaultQdisc).Available {
			t.Errorf("default qdisc: %s", show(f.DefaultQdisc))
		}
		t.Logf("%s on %q, SecureBoot %s, lockdown %q, signatures %s", f.Release, f.Virtualization.Machine, show(f.SecureBoot), f.Lockdown, show(f.SignaturesForced))
	})

	t.Run("links", func(t *testing.T) {
		for _, l := range detect(t, "/").Links {
			if l.Name == "eth0" && (l.Driver != "virtio_net" || !l.Hardware || l.Kind != "" || l.Type != TypeEthernet || l.SpeedMbit != nil || l.Queues < 1) {
				t.Errorf("%+v", l)
			}
		}
	})

	t.Run("bbr", func(t *testing.T) {
		load(t, "tcp_bbr")
		load(t, "tcp_bbr") // and once more
		f := detect(t, "/")
		a := f.Algorithm("bbr")
		if a.Origin != Loaded || !a.Available {
			t.Errorf("%+v", a)
		}
		if len(f.Modules) != 1 || f.Modules[0].Name != "tcp_bbr" || !strings.HasPrefix(f.Modules[0].Raw, "tcp_bbr ") {
			t.Errorf("%+v", f.Modules)
		}
		// Every kernel in Debian so far has v1; those with type information for
		// modules show it.
		if _, err := os.Stat("/sys/kernel/btf/tcp_bbr"); err == nil && (f.BBRVersion != 1 || f.BBRVersionFrom != "/sys/kernel/btf/tcp_bbr") {
			t.Errorf("version %d from %q", f.BBRVersion, f.BBRVersionFrom)
		}
		t.Logf("BBR version %d from %q", f.BBRVersion, f.BBRVersionFrom)
	})

	t.Run("no such module", func(t *testing.T) {
		if err := LoadModule(context.Background(), "tcp_nosuch"); !errors.Is(err, ErrModule) {
			t.Errorf("%v", err)
		}
	})

	// A blacklist does not keep the kernel from loading what the sysctl asks for.
	t.Run("blacklist", func(t *testing.T) {
		conf(t, "blacklist tcp_htcp\nblacklist tcp_westwood\n")
		a := detect(t, "/").Algorithm("htcp")
		if a.Origin != Loadable || a.Blocked != "" || !strings.Contains(a.Note, "/etc/modprobe.d/test.conf:1: blacklist tcp_htcp") {
			t.Errorf("%+v", a)
		}
		if err := choose("htcp"); err != nil {
			t.Errorf("the kernel does not load what is blacklisted: %v", err)
		}
		load(t, "tcp_westwood")
	})

	t.Run("install", func(t *testing.T) {
		conf(t, "install tcp_vegas /bin/false\ninstall tcp_yeah /bin/true\nalias tcp_veno off\n")
		f := detect(t, "/")
		for _, name := range []string{"vegas", "yeah", "veno"} {
			if a := f.Algorithm(name); a.Origin != Loadable || !strings.HasPrefix(a.Blocked, "/etc/modprobe.d/test.conf:") {
				t.Errorf("%+v", a)
			}
			if err := choose(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("choosing %s: %v, want ENOENT", name, err)
			}
		}
		for _, name := range []string{"tcp_vegas", "tcp_veno"} {
			if err := LoadModule(context.Background(), name); !errors.Is(err, ErrModule) {
				t.Errorf("loading %s: %v", name, err)
			} else {
				t.Log(err)
			}
		}
		conf(t, "softdep tcp_vegas pre: tcp_htcp\ninstall tcp_vegas /bin/false\n")
		if a := detect(t, "/").Algorithm("vegas"); a.Blocked != "" {
			t.Errorf("%+v", a)
		}
		load(t, "tcp_vegas")
	})

	// Qdiscs: newer kernels ask for an alias, to which a blacklist applies.
	t.Run("qdisc", func(t *testing.T) {
		conf(t, "blacklist sch_fq\n")
		err := os.WriteFile("/proc/sys/net/core/default_qdisc", []byte("fq"), 0o644)
		if byAlias := detect(t, "/").Release.AtLeast(6, 12); byAlias && !errors.Is(err, fs.ErrNotExist) || !byAlias && err != nil {
			t.Errorf("default_qdisc = fq with sch_fq blacklisted: %v", err)
		}
		load(t, "sch_fq")
		if got := detect(t, "/").Qdisc("fq"); got.Origin != Loaded || !got.Available {
			t.Errorf("%+v", got)
		}
	})

	t.Run("recording", func(t *testing.T) {
		conf(t, "install tcp_lp /bin/false\n")
		dir := t.TempDir()
		if err := Record(dir, Recording{}); err != nil {
			t.Fatal(err)
		}
		live, recorded := detect(t, "/"), detect(t, dir)
		for name := range map[string]bool{"bbr": true, "lp": true, "htcp": true, "nv": true} {
			if live.Algorithm(name) != recorded.Algorithm(name) {
				t.Errorf("live %+v, recorded %+v", live.Algorithm(name), recorded.Algorithm(name))
			}
		}
	})

	// Modules that modprobe does not know, and hosts without modprobe.
	t.Run("without modprobe", func(t *testing.T) {
		conf(t, "install tcp_illinois /bin/false\n")
		insert := func(name string) error {
			return loadModule(context.Background(), name, []string{"/nonexistent"}, insertModule)
		}
		if err := insert("tcp_illinois"); !errors.Is(err, ErrNoModprobe) || !strings.Contains(err.Error(), "test.conf:1") {
			t.Errorf("modprobe.d is not obeyed: %v", err)
		}
		// Debian's kernels unpack .ko.xz themselves.
		if err := insert("tcp_scalable"); err != nil {
			t.Error(err)
		}
		if detect(t, "/").Algorithm("scalable").Origin != Loaded {
			t.Error("tcp_scalable is not loaded")
		}
	})

	t.Run("unlisted", func(t *testing.T) {
		f := detect(t, "/")
		lib := "/lib/modules/" + f.Release.Raw + "/"
		for _, name := range []string{"modules.dep", "modules.dep.bin"} {
			data, err := os.ReadFile(lib + name)
			if err != nil {
				t.Fatal(err)
			}
			write(t, lib+name, "")
			defer write(t, lib+name, string(data))
		}
		a := detect(t, "/").Algorithm("hybla")
		if a.Origin != Loadable || !strings.Contains(a.Note, "depmod -a") {
			t.Errorf("%+v", a)
		}
		load(t, "tcp_hybla")
		if a := detect(t, "/").Algorithm("hybla"); a.Origin != Loaded || !a.Available {
			t.Errorf("%+v", a)
		}
	})

	// The last: there is no way back.
	t.Run("modules disabled", func(t *testing.T) {
		conf(t, "")
		write(t, "/proc/sys/kernel/modules_disabled", "1")
		if a := detect(t, "/").Algorithm("bic"); a.Origin != Loadable || !strings.Contains(a.Blocked, "modules_disabled") {
			t.Errorf("%+v", a)
		}
		err := LoadModule(context.Background(), "tcp_bic")
		if !errors.Is(err, ErrModule) {
			t.Errorf("%v", err)
		}
		t.Log(err)
	})
}
