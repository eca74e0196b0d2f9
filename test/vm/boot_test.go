package vm

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBootLoader has a machine boot by hand what test/hosts has accel boot: an
// entry of GRUB's for the next boot only, over a reset too.
func TestBootLoader(t *testing.T) {
	onlyLong(t)
	for _, c := range []struct {
		release Release
		boot    Boot
	}{{Bookworm, BIOS}, {Trixie, BIOS}, {Bookworm, UEFI}, {Trixie, UEFI}, {Bookworm, SecureBoot}} {
		t.Run(string(c.release)+"_"+string(c.boot), func(t *testing.T) {
			m := Whole(t, c.release, Options{Boot: c.boot, CPUs: 1})
			t.Logf("%s took %v to be there", m.Release, m.Booted)
			if r := m.Run(t, "test -d /sys/firmware/efi"); (r.Exit == 0) != (c.boot != BIOS) {
				t.Errorf("a machine with %s says that it has %s", c.boot, map[bool]string{true: "UEFI", false: "no UEFI"}[r.Exit == 0])
			}
			if r := m.Run(t, "od -An -tu1 /sys/firmware/efi/efivars/SecureBoot-* | grep -q '1 *$'"); (r.Exit == 0) != (c.boot == SecureBoot) {
				t.Errorf("with %s, looking for Secure Boot exits %d", c.boot, r.Exit)
			}
			// GRUB reads this file behind its own menu, so it need not be made anew.
			m.MustRun(t, `sed -n '/^menuentry /,/^}/p' /boot/grub/grub.cfg | sed -e '/^}/q' -e 's/^menuentry .*/menuentry Once --id once {/' -e 's/console=ttyS0/& the-other/' > /boot/grub/custom.cfg &&
				grub-reboot once && sync`)
			kernel := m.Release
			m.Reset(t)
			m.AwaitBoot(t, 2*wholeBoot)
			t.Logf("a reset took %v", m.Booted)
			if got := m.MustRun(t, "cat /proc/cmdline"); !strings.Contains(got, "the-other") {
				t.Errorf("the entry for the next boot was not booted: %s", got)
			}
			m.Reboot(t)
			t.Logf("a reboot took %v", m.Booted)
			if got := m.MustRun(t, "cat /proc/cmdline"); strings.Contains(got, "the-other") {
				t.Errorf("the entry for one boot was booted again: %s", got)
			}
			if got := m.Boots(); !slices.Equal(got, []string{kernel, kernel}) {
				t.Errorf("the console tells of these boots: %q", got)
			}
			if failed := m.WaitBooted(t); failed != nil {
				t.Errorf("failed units: %q", failed)
			}
		})
	}
}

// TestArchive installs a kernel from the archive that machines with a boot
// loader have.
func TestArchive(t *testing.T) {
	onlyLong(t)
	m := Whole(t, Bookworm, Options{Boot: BIOS, CPUs: 1})
	m.MustRun(t, "sed -n 's/ bookworm / bookworm-backports /p' /etc/apt/sources.list > /etc/apt/sources.list.d/backports.list && apt-get update -q --error-on=any")
	policy := m.MustRun(t, "apt-cache policy linux-image-cloud-amd64")
	if !strings.Contains(policy, "Installed: 6.1.") || !strings.Contains(policy, "Candidate: 6.1.") || !strings.Contains(policy, "100 "+ArchiveURL+"/debian bookworm-backports/main") {
		t.Errorf("apt's choice of kernels is not Debian's:\n%s", policy)
	}
	begin := time.Now()
	m.MustRun(t, "systemd-run --setenv=DEBIAN_FRONTEND=noninteractive --quiet --collect --unit=install apt-get install -q -y -t bookworm-backports linux-image-cloud-amd64")
	m.Eventually(t, 10*time.Minute, "! systemctl -q is-active install")
	t.Logf("installing a kernel took %v", time.Since(begin))
	if got := m.MustRun(t, "ls /boot; journalctl -o cat -u install"); !strings.Contains(got, "vmlinuz-6.12") || !strings.Contains(got, "initrd.img-6.12") {
		t.Errorf("the kernel is not there:\n%s", got)
	}
	m.Reboot(t)
	if !strings.HasPrefix(m.Release, "6.12.") {
		t.Errorf("the machine runs %s", m.Release)
	}
}
