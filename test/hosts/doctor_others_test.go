package hosts

import (
	"slices"
	"testing"
	"time"

	"accel/test/vm"
)

func (r report) writer(tool, key string) bool {
	return slices.ContainsFunc(r.Writers, func(w writer) bool { return w.Tool == tool && w.Key == key && w.Active })
}

// TestDoctorAdopts: accel takes over what a script had put in force, without
// an instant of anything else.
func TestDoctorAdopts(t *testing.T) {
	if !long() {
		t.Skip("in a namespace: test/cli; in a machine with ACCEL_LONG=1")
	}
	t.Parallel()
	m := vm.Whole(t, vm.Trixie, vm.Options{})
	install(t, m)
	leave(t, m, "x-ui")
	m.Reboot(t)
	m.WaitBooted(t)
	before := look(t, m)
	// A witness who looks a hundred times a second.
	m.MustRun(t, `systemd-run -q --unit witness sh -c 'while :; do cat /proc/sys/net/ipv4/tcp_congestion_control /proc/sys/net/core/default_qdisc; sleep 0.01; done >/root/witness'`)
	r := doctor(t, m, "--fix --yes")
	if r.Change == nil || r.Change.Adopt != "bbr" || r.Exit != 0 {
		t.Fatalf("--fix: %+v", r)
	}
	m.MustRun(t, "systemctl stop witness")
	if seen := m.MustRun(t, "sort -u /root/witness"); seen != "bbr\nfq\n" {
		t.Errorf("the witness saw:\n%s", seen)
	}
	inForce(t, m)
	m.Reboot(t)
	booted(t, m)
	if r := doctor(t, m, "--undo --yes"); r.Exit != 0 || r.Change.Adopt != "bbr" {
		t.Errorf("--undo: %+v", r)
	}
	m.MustRun(t, "rm -f /root/witness")
	m.Reboot(t)
	m.WaitBooted(t)
	same(t, "after --undo and a boot", before, look(t, m))
}

// TestDoctorOthers has Debian's own tuned and ufw: they are named, and the next
// boot does what doctor foretold.
func TestDoctorOthers(t *testing.T) {
	if !long() {
		t.Skip("needs an image of its own: ACCEL_LONG=1")
	}
	for _, release := range []vm.Release{vm.Bookworm, vm.Trixie} {
		t.Run("3_"+string(release), func(t *testing.T) {
			t.Parallel()
			m := vm.Whole(t, release, vm.Options{ExtraPackages: []string{"tuned", "ufw"}, Cold: true})
			install(t, m)
			m.MustRun(t, "systemctl enable --now tuned && tuned-adm profile network-throughput")
			m.MustRun(t, "ufw allow 22 && ufw --force enable")

			r := doctor(t, m, "")
			if !slices.ContainsFunc(r.Writers, func(w writer) bool { return w.Tool == "tuned" && w.Value == "network-throughput" && w.Active }) {
				t.Errorf("tuned is not named: %+v", r.Writers)
			}
			if r.Exit != 0 {
				t.Errorf("neither sets anything of accel's, and doctor says: %s", r.Reason)
			}

			foretold := func(what, value, by string) {
				t.Helper()
				got, who := doctor(t, m, "").next(t, algorithmKey)
				if got != value || who != by {
					t.Errorf("%s: doctor says that the next boot gives %q, by %q", what, got, who)
				}
				m.Reboot(t)
				m.WaitBooted(t)
				m.Eventually(t, 30*time.Second, "test $(cat /proc/sys/net/ipv4/tcp_congestion_control) = "+got)
			}
			m.MustRun(t, "echo net/ipv4/tcp_congestion_control=reno >>/etc/ufw/sysctl.conf")
			foretold("ufw wants reno", "reno", "ufw")

			dir := "/etc/tuned/mine"
			if release == vm.Trixie {
				dir = "/etc/tuned/profiles/mine"
			}
			m.MustRun(t, "modprobe tcp_bbr; mkdir -p "+dir+" && printf '[main]\\ninclude=network-throughput\\n[sysctl]\\nnet.ipv4.tcp_congestion_control=cubic\\n' >"+dir+"/tuned.conf && tuned-adm profile mine")
			foretold("and a profile of tuned wants cubic", "cubic", "tuned")

			m.MustRun(t, "echo net.ipv4.tcp_congestion_control=reno >/etc/sysctl.d/50-mine.conf")
			got, _ := doctor(t, m, "").next(t, algorithmKey)
			foretold("and a file wants reno", got, map[string]string{"reno": "ufw", "cubic": "tuned"}[got])

			enable(t, m)
			if r := doctor(t, m, ""); r.Exit != 4 || !r.writer("ufw", algorithmKey) {
				t.Errorf("ufw is at odds with accel, and doctor says: %+v", r)
			}
			foretold("and accel wants bbr", "bbr", "accel")
		})
	}
}
