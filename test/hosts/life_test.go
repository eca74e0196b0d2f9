package hosts

import (
	"slices"
	"strings"
	"testing"
	"time"

	"accel/test/vm"
)

// foreign is what another tool left: it sorts after accel's file.
const foreign = "/etc/sysctl.d/99-zzz-other.conf"

// TestWholeBookworm is the life of the package on Debian 12: kernel 6.1,
// ifupdown, /etc/sysctl.conf read at boot.
func TestWholeBookworm(t *testing.T) {
	t.Parallel()
	m := vm.Whole(t, vm.Bookworm, vm.Options{})
	life(t, m, func(t *testing.T) {
		m.MustRun(t, "cp -a /etc/sysctl.conf /root/sysctl.conf")
		m.MustRun(t, "printf '\\nnet.core.default_qdisc = fq_codel\\nnet.ipv4.tcp_congestion_control=cubic\\n' >> /etc/sysctl.conf")
	}, func(t *testing.T) {
		m.MustRun(t, "cp -a /root/sysctl.conf /etc/sysctl.conf")
	})
}

// TestWholeTrixie is the same on Debian 13: kernel 6.12, systemd-networkd,
// and as small as virtual servers are sold.
func TestWholeTrixie(t *testing.T) {
	t.Parallel()
	m := vm.Whole(t, vm.Trixie, vm.Options{MemoryMB: 512, CPUs: 1})
	nothing := func(*testing.T) {}
	life(t, m, nothing, nothing)
}

// life takes a machine from the installation of the package to its purge. old
// puts lines in place that others left on the machine, young takes them away.
func life(t *testing.T, m *vm.Machine, old, young func(t *testing.T)) {
	var pristine, installed world
	var before []string

	step(t, "1_install_changes_nothing", func(t *testing.T) {
		pristine, before = look(t, m), traces(t, m)
		m.Push(t, deb(t, "amd64"), pushed)
		m.MustRun(t, "DEBIAN_FRONTEND=noninteractive apt-get install -q -y "+pushed)
		installed = look(t, m)
		same(t, "after the installation", pristine, installed)
		if s := statusOf(t, m); s.Exit != 3 || s.Verdict != "not-enabled" || s.Service == nil || !s.Service.Installed || s.Service.Enabled || s.Service.Active {
			t.Errorf("the status after the installation: %v", s)
		}
	})

	step(t, "7_not_root", func(t *testing.T) {
		for command, want := range map[string]int{"accel status": 3, "accel detect": 0, "accel enable bbr --dry-run": 0, "accel enable bbr": 1, "accel disable": 1} {
			if r := m.Run(t, "runuser -u nobody -- "+command); r.Exit != want {
				t.Errorf("%q as nobody exited %d, want %d:\n%s%s", command, r.Exit, want, r.Stdout, r.Stderr)
			}
		}
		if r := m.Run(t, "runuser -u nobody -- accel enable bbr"); !strings.Contains(r.Stderr, "root") {
			t.Errorf("enable as nobody says: %s", r.Stderr)
		}
		same(t, "after what nobody did", installed, look(t, m))
	})

	step(t, "1_enable", func(t *testing.T) {
		r := m.Run(t, "accel enable bbr")
		if r.Exit != 0 {
			t.Fatalf("enable exited %d:\n%s%s%s", r.Exit, r.Stdout, r.Stderr, journal(t, m))
		}
		t.Logf("enable says:\n%s", r.Stdout)
		inForce(t, m)
		var again result
		if exit := accel(t, m, "accel enable bbr", &again); exit != 0 || again.Changed {
			t.Errorf("a second enable exited %d and says that it changed something: %+v", exit, again)
		}
	})

	step(t, "1_reboot", func(t *testing.T) {
		m.Reboot(t)
		booted(t, m)
		t.Logf("status says:\n%s", m.Run(t, "accel status").Stdout)
	})

	step(t, "8_healed", func(t *testing.T) {
		m.MustRun(t, "journalctl --rotate && journalctl --vacuum-time=1s")
		m.MustRun(t, "sysctl -q -w net.ipv4.tcp_congestion_control=cubic")
		m.Eventually(t, 30*time.Second, "grep -qx bbr /proc/sys/net/ipv4/tcp_congestion_control")
		inForce(t, m)
		// One look of the agent is at most ten seconds after another.
		time.Sleep(12 * time.Second)
		said := m.MustRun(t, "journalctl -u accel.service -o cat --no-pager")
		if n := strings.Count(said, algorithmKey); n != 1 {
			t.Errorf("the change was logged %d times:\n%s", n, said)
		}
	})

	step(t, "2_foreign_file_reboot", func(t *testing.T) {
		m.MustRun(t, "echo 'net.ipv4.tcp_congestion_control = cubic' > "+foreign)
		old(t)
		m.Reboot(t)
		s := booted(t, m)
		named := false
		for _, b := range s.Boot {
			named = named || b.Key == algorithmKey && b.File == foreign && b.Line == 1 && b.Value == "cubic" && b.Order == "systemd"
		}
		if !named || !strings.Contains(strings.Join(s.Notes, "\n"), foreign) {
			t.Errorf("the status does not say that %s would have won: %+v, %q", foreign, s.Boot, s.Notes)
		}
		if text := m.Run(t, "accel status").Stdout; !strings.Contains(text, foreign) {
			t.Errorf("the status does not name %s:\n%s", foreign, text)
		}
	})

	step(t, "3_disable", func(t *testing.T) {
		m.MustRun(t, "rm "+foreign)
		young(t)
		if r := disable(t, m); len(r.Left) != 0 {
			t.Errorf("disable left %+v", r.Left)
		}
		same(t, "after disable", installed, look(t, m))
		if s := statusOf(t, m); s.Exit != 3 || s.Service.Enabled || s.Service.Active {
			t.Errorf("the status after disable: %v", s)
		}
	})

	step(t, "3_upgrade_keeps_everything", func(t *testing.T) {
		enable(t, m)
		enabled := look(t, m)
		m.MustRun(t, "dpkg -i "+pushed)
		m.Eventually(t, 30*time.Second, "systemctl -q is-active accel.service")
		inForce(t, m)
		same(t, "after the upgrade", enabled, look(t, m))
	})

	step(t, "3_foreign_value_is_left", func(t *testing.T) {
		m.MustRun(t, "systemctl stop accel.service")
		if got := sysctl(t, m, algorithmKey); got != "bbr" {
			t.Errorf("stopping the service set %s", got)
		}
		m.MustRun(t, "sysctl -q -w net.ipv4.tcp_congestion_control=reno")
		r := disable(t, m)
		if len(r.Left) != 1 || r.Left[0].Setting != algorithmKey || r.Left[0].Live != "reno" || r.Left[0].Original != "cubic" {
			t.Errorf("disable left %+v", r.Left)
		}
		if got := sysctl(t, m, algorithmKey); got != "reno" {
			t.Errorf("disable set somebody else's reno to %s", got)
		}
		m.MustRun(t, "sysctl -q -w net.ipv4.tcp_congestion_control=cubic")
		same(t, "after that", installed, look(t, m))
	})

	step(t, "3_purge", func(t *testing.T) {
		enable(t, m)
		m.MustRun(t, "DEBIAN_FRONTEND=noninteractive apt-get purge -q -y accel && rm "+pushed)
		same(t, "after purge", pristine, look(t, m))
		if after := traces(t, m); !slices.Equal(before, after) {
			t.Errorf("purge left files: before %q, after %q", before, after)
		}
		if r := m.Run(t, "systemctl list-units --all --no-legend 'accel*'; systemctl --failed --no-legend"); r.Stdout != "" {
			t.Errorf("units after purge:\n%s", r.Stdout)
		}
	})
}

// TestFight has a program set the algorithm again and again.
func TestFight(t *testing.T) {
	t.Parallel()
	m := vm.Whole(t, vm.Bookworm, vm.Options{})
	install(t, m)
	step(t, "8_fighter", func(t *testing.T) {
		enable(t, m)
		start := time.Now()
		m.MustRun(t, "systemd-run -q --unit=fighter sh -c 'while :; do echo cubic > /proc/sys/net/ipv4/tcp_congestion_control; sleep 0.5; done'")
		// The agent looks at most every ten seconds, and fights five times.
		m.Eventually(t, 3*time.Minute, "journalctl -u accel.service -o cat --no-pager | grep -q 'stops fighting'")
		t.Logf("it stopped after %v", time.Since(start).Round(time.Second))
		said := m.MustRun(t, "journalctl -u accel.service -o cat --no-pager")
		for range 3 {
			time.Sleep(5 * time.Second)
			if s := statusOf(t, m); s.Exit != 4 || s.Verdict != "drifted" && s.Verdict != "not-in-force" {
				t.Errorf("while something fights: %v", s)
			}
		}
		if got := m.MustRun(t, "systemctl show -p ActiveState,StatusText accel.service"); !strings.Contains(got, "ActiveState=active") || !strings.Contains(got, "fight") {
			t.Errorf("systemd says of the service:\n%s", got)
		}
		if after := m.MustRun(t, "journalctl -u accel.service -o cat --no-pager"); after != said {
			t.Errorf("it goes on talking after it stopped fighting:\n%s", after)
		}
		// What is logged stays readable.
		if n := strings.Count(said, "\n"); n > 20 {
			t.Errorf("the fight took %d lines:\n%s", n, said)
		}
	})
	step(t, "8_enable_after_the_fight", func(t *testing.T) {
		m.MustRun(t, "systemctl stop fighter.service")
		if s := statusOf(t, m); s.Exit != 4 {
			t.Errorf("after the fighter's end nobody has put the algorithm back, but the status is %v", s)
		}
		enable(t, m)
		inForce(t, m)
		m.MustRun(t, "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control")
		m.Eventually(t, 30*time.Second, "grep -qx bbr /proc/sys/net/ipv4/tcp_congestion_control")
	})
}
