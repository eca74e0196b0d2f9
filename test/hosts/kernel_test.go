package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/test/vm"
)

// Limits of what happens in an emulated machine on a busy computer, where an
// installation that takes a minute elsewhere takes ten.
const (
	installLimit = 30 * time.Minute
	bootLimit    = 15 * time.Minute
	// A kernel that is not good has six minutes to become so.
	verdictLimit = 20 * time.Minute
)

// upgrade is what "accel kernel" says of an installation, in its documents.
type upgrade struct {
	Phase, Old, New, Reason, Pinned, Summary, Next string
	Attend                                         bool `json:"needs_attention"`
}

// kernels is what the tests know of the document of "accel kernel list".
type kernels struct {
	Running, Next, After, Reason string
	Kernels, Offers              []struct {
		Release, Version, Source, Problem string
		Installed, Running                bool
		Signed                            *bool
		Algorithms                        []string
	}
	Possible bool
	Upgrade  *upgrade
}

func (k kernels) installed() (releases []string) {
	for _, i := range k.Kernels {
		releases = append(releases, i.Release)
	}
	slices.Sort(releases)
	return releases
}

// kernelResult is what the tests know of the document of the commands that change
// something.
type kernelResult struct {
	Changed     bool
	Upgrade     *upgrade
	Notes       []string
	Exit        int
	Error, Next string
	console     string // what it said meanwhile
}

func kernelsOf(t *testing.T, m *vm.Machine) kernels {
	t.Helper()
	r := patiently(t, m, bootLimit, "accel kernel list --json")
	var k kernels
	if err := json.Unmarshal([]byte(r.Stdout), &k); err != nil || r.Exit != 0 {
		t.Fatalf("%s: accel kernel list exited %d: %v\nstdout:\n%s\nstderr:\n%s", m.Name, r.Exit, err, r.Stdout, r.Stderr)
	}
	return k
}

// patiently runs a command that may take long.
func patiently(t *testing.T, m *vm.Machine, limit time.Duration, command string) vm.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	begin := time.Now()
	r, err := m.Exec(ctx, command)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.60s took %.0f s", command, time.Since(begin).Seconds())
	return r
}

// kernel runs a command of "accel kernel" that changes something.
func kernel(t *testing.T, m *vm.Machine, command string) kernelResult {
	t.Helper()
	r := patiently(t, m, installLimit, "accel kernel "+command+" --yes --json")
	var k kernelResult
	if err := json.Unmarshal([]byte(r.Stdout), &k); err != nil {
		t.Fatalf("%s: accel kernel %s exited %d and printed what is no JSON: %v\nstdout:\n%s\nstderr:\n%s", m.Name, command, r.Exit, err, r.Stdout, r.Stderr)
	}
	if k.Exit != r.Exit {
		t.Errorf("accel kernel %s exited %d, its document says %d", command, r.Exit, k.Exit)
	}
	k.console = r.Stderr
	return k
}

// arm runs an install and checks that the new kernel is set for the next boot,
// once. It returns the kernels before, and the new one's release.
func arm(t *testing.T, m *vm.Machine, command string) (before kernels, release string) {
	t.Helper()
	before = kernelsOf(t, m)
	r := kernel(t, m, command)
	if r.Exit != 0 || r.Upgrade == nil || r.Upgrade.Phase != "armed" || r.Upgrade.Old != before.Running {
		t.Fatalf("accel kernel %s: %+v", command, r)
	}
	release = r.Upgrade.New
	k := kernelsOf(t, m)
	if k.Running != before.Running || k.Next != release || k.After != before.Running {
		t.Fatalf("%s is armed, but %s runs, next is %s and after that %s", release, k.Running, k.Next, k.After)
	}
	if !slices.Contains(k.installed(), release) || !slices.Contains(k.installed(), before.Running) {
		t.Errorf("the kernels installed are %q", k.installed())
	}
	return before, release
}

// gateway gives a machine a default route for IPv4, now and at every boot: to a
// machine that is shut off from the world qemu tells no router by DHCP, but the
// address answers.
func gateway(t *testing.T, m *vm.Machine) {
	t.Helper()
	const at = "/etc/systemd/network/10-eth0.network.d"
	m.MustRun(t, `ip route add default via 10.0.2.2 dev eth0
if [ -e /etc/network/interfaces ]; then
	printf '\tup ip route add default via 10.0.2.2 dev eth0\n' >> /etc/network/interfaces
else
	mkdir -p `+at+` && printf '[Route]\nGateway=10.0.2.2\n' > `+at+`/gateway.conf
fi`)
}

// tried reboots a machine into the kernel that it is armed with.
func tried(t *testing.T, m *vm.Machine, release string) {
	t.Helper()
	m.Reboot(t)
	if m.Release != release {
		t.Fatalf("%s runs after the reboot; these started: %q\n%s\n%s", m.Release, m.Boots(), m.Run(t, "cat /var/lib/accel/kernel.json; grub-editenv list").Stdout, m.Console())
	}
}

// promoted waits until the kernel that runs has been judged good, and looks
// whether all is as it should be.
func promoted(t *testing.T, m *vm.Machine, old, release string) {
	t.Helper()
	m.Eventually(t, verdictLimit, `grep -q '"phase": "promoted"' /var/lib/accel/kernel.json`)
	k := kernelsOf(t, m)
	if k.Running != release || k.Next != release || k.After != release || k.Upgrade == nil || k.Upgrade.Attend || k.Upgrade.Pinned != "" {
		t.Errorf("%s is promoted, but the list says %+v, %+v", release, k, k.Upgrade)
	}
	if !slices.Contains(k.installed(), old) {
		t.Errorf("the old kernel is gone: %q", k.installed())
	}
	if r := m.Run(t, "ls /etc/default/grub.d/*accel* /etc/grub.d/*accel*; grep accel /boot/grub/grub.cfg; grub-editenv list | grep next_entry"); r.Stdout != "" {
		t.Errorf("after the promotion there are still:\n%s", r.Stdout)
	}
}

// fellBack waits until accel has understood that the new kernel was not good, and
// looks whether the machine is safe.
func fellBack(t *testing.T, m *vm.Machine, old, release, reason string) {
	t.Helper()
	m.Eventually(t, verdictLimit, `grep -q '"phase": "fell-back"' /var/lib/accel/kernel.json`)
	k := kernelsOf(t, m)
	if k.Running != old || k.Next != old || k.After != old {
		t.Errorf("after the fallback %s runs, next is %s and after that %s", k.Running, k.Next, k.After)
	}
	u := k.Upgrade
	if u == nil || u.New != release || u.Pinned != old || !u.Attend || !strings.Contains(u.Reason, reason) || u.Next == "" {
		t.Errorf("after the fallback accel says: %+v", u)
	} else {
		t.Logf("accel says: %s %s", u.Summary, u.Next)
	}
	// It is in the status too, whatever else that says.
	if r := m.Run(t, "accel status"); !strings.Contains(r.Stdout, release) {
		t.Errorf("accel status says nothing of %s:\n%s", release, r.Stdout)
	}
}

// grubFiles are what decides about the boot, bar accel's own.
func grubFiles(t *testing.T, m *vm.Machine) []string {
	t.Helper()
	return lines(m.MustRun(t, "cd / && { sha256sum boot/grub/grub.cfg boot/grub/grubenv && find etc/default etc/grub.d etc/apt etc/kernel -type f -exec sha256sum {} + && find etc/default etc/grub.d etc/apt etc/kernel -type d; } | sort"))
}

// brokenInitrd is a shell command that replaces a kernel's initial ramdisk by one
// without a way to the disk; mended puts it back.
const (
	brokenInitrd = `cp /boot/initrd.img-RELEASE /root/initrd && d=$(mktemp -d) && (cd $d && printf '#!/bin/sh\n' > init.d && find . | cpio -o -H newc --quiet | gzip -1) > /boot/initrd.img-RELEASE && sync`
	mendedInitrd = `cp /root/initrd /boot/initrd.img-RELEASE && sync`
)

// with puts a kernel's release into a shell command.
func with(command, release string) string { return strings.ReplaceAll(command, "RELEASE", release) }

// TestKernelInstall brings a newer kernel to a machine in one command and a
// reboot, and, with the disk that the machine had before that reboot but a broken
// initial ramdisk, back to the old kernel without hands.
func TestKernelInstall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		release vm.Release
		boot    vm.Boot
		new     string
	}{
		{vm.Bookworm, vm.BIOS, "6.12."},
		{vm.Trixie, vm.BIOS, "7."},
		{vm.Bookworm, vm.UEFI, "6.12."},
		{vm.Trixie, vm.UEFI, "7."},
		{vm.Bookworm, vm.SecureBoot, "6.12."},
	} {
		t.Run(fmt.Sprintf("1_%s_%s", c.release, c.boot), func(t *testing.T) {
			if (c.release != vm.Bookworm || c.boot != vm.BIOS) && !long() {
				t.Skip("only with ACCEL_LONG=1")
			}
			kernelInstall(t, vm.Whole(t, c.release, vm.Options{Boot: c.boot, CPUs: 1}), c.new)
		})
	}
}

func kernelInstall(t *testing.T, m *vm.Machine, series string) {
	install(t, m)
	gateway(t, m)
	enable(t, m)
	grub := m.MustRun(t, "cat /etc/default/grub")
	var before kernels
	var release string
	step(t, "1_install", func(t *testing.T) {
		before, release = arm(t, m, "install --backports")
		if !strings.HasPrefix(release, series) {
			t.Errorf("the new kernel is %s", release)
		}
		for _, family := range []string{"inet", "inet6"} {
			m.MustRun(t, `grep -q '"family": "`+family+`"' /var/lib/accel/kernel.json`)
		}
	})
	m.MustRun(t, with(brokenInitrd, release))
	broken := m.SaveDisk(t)
	m.MustRun(t, with(mendedInitrd, release))
	t.Run("1_promoted", func(t *testing.T) {
		t.Parallel()
		// The other one may be waiting for its place.
		defer m.Close()
		tried(t, m, release)
		promoted(t, m, before.Running, release)
		inForce(t, m)
		if after := m.MustRun(t, "cat /etc/default/grub"); after != grub {
			t.Errorf("/etc/default/grub was\n%s\nand is\n%s", grub, after)
		}
	})
	t.Run("2_panic", func(t *testing.T) {
		t.Parallel()
		m := broken.Machine(t)
		m.AwaitBoot(t, bootLimit)
		if got, want := m.Boots(), []string{release, before.Running}; !slices.Equal(got, want) {
			t.Errorf("these kernels started: %q, want %q", got, want)
		}
		fellBack(t, m, before.Running, release, "")
		inForce(t, m)
	})
}

// TestKernelBroken has the new kernel fail in more ways than a panic.
func TestKernelBroken(t *testing.T) {
	if !long() {
		t.Skip("only with ACCEL_LONG=1")
	}
	m := vm.Whole(t, vm.Bookworm, vm.Options{Boot: vm.BIOS, CPUs: 1})
	install(t, m)
	gateway(t, m)
	enable(t, m)
	before, release := arm(t, m, "install --backports")
	type broken struct {
		name   string
		disk   *vm.Disk
		hangs  bool
		reason string
	}
	var list []broken
	for _, b := range []struct {
		broken
		harm, mend string
	}{
		// MODULES=list with nothing on it.
		{broken{name: "no_disk_driver"},
			`cp /boot/initrd.img-RELEASE /root/initrd && mv /etc/initramfs-tools/hooks/small /root && mkinitramfs -o /boot/initrd.img-RELEASE RELEASE && sync`,
			`mv /root/small /etc/initramfs-tools/hooks/small && cp /root/initrd /boot/initrd.img-RELEASE`},
		{broken{name: "no_network_driver", reason: "there is no default route for IPv4; there is no default route for IPv6"},
			`cd /lib/modules/RELEASE/kernel/drivers/net && mv virtio_net.ko* /root && depmod RELEASE && sync`,
			`mv /root/virtio_net.ko* /lib/modules/RELEASE/kernel/drivers/net && depmod RELEASE`},
		{broken{name: "no_sshd", reason: "SSH"},
			`mkdir /etc/systemd/system/ssh.service.d && printf '[Unit]\nConditionKernelVersion=!RELEASE\n' > /etc/systemd/system/ssh.service.d/broken.conf && sync`,
			`rm -r /etc/systemd/system/ssh.service.d`},
		{broken{name: "hangs", hangs: true},
			`cp /boot/initrd.img-RELEASE /root/initrd && printf '#!/bin/sh\n[ "$1" = prereqs ] && exit 0\necho it hangs now > /dev/console\nwhile :; do sleep 1000; done\n' > /etc/initramfs-tools/scripts/init-top/hang && chmod 755 /etc/initramfs-tools/scripts/init-top/hang && mkinitramfs -o /boot/initrd.img-RELEASE RELEASE && rm /etc/initramfs-tools/scripts/init-top/hang && sync`,
			`cp /root/initrd /boot/initrd.img-RELEASE`},
	} {
		if r := patiently(t, m, installLimit, with(b.harm, release)); r.Exit != 0 {
			t.Fatalf("breaking %s: %+v", b.name, r)
		}
		b.disk = m.SaveDisk(t)
		m.MustRun(t, with(b.mend, release))
		list = append(list, b.broken)
	}
	m.Close()
	for _, b := range list {
		t.Run("2_"+b.name, func(t *testing.T) {
			t.Parallel()
			m := b.disk.Machine(t)
			if b.hangs {
				for end := time.Now().Add(bootLimit); !strings.Contains(m.Console(), "it hangs now"); time.Sleep(time.Second) {
					if time.Now().After(end) {
						t.Fatalf("it does not hang:\n%s", m.Console())
					}
				}
				time.Sleep(time.Minute)
				if got := m.Boots(); !slices.Equal(got, []string{release}) {
					t.Fatalf("before the reset: %q", got)
				}
				m.Reset(t)
			}
			m.AwaitKernel(t, verdictLimit, before.Running)
			if got, want := m.Boots(), []string{release, before.Running}; !slices.Equal(got, want) {
				t.Errorf("these kernels started: %q, want %q", got, want)
			}
			fellBack(t, m, before.Running, release, b.reason)
			inForce(t, m)
			if b.name != "no_sshd" {
				return
			}
			// And it goes without a trace, as remove promises.
			if r := kernel(t, m, "remove "+release); r.Exit != 0 {
				t.Errorf("removing the bad kernel: %+v", r)
			}
			k := kernelsOf(t, m)
			if k.Upgrade != nil || k.After != before.Running || slices.Contains(k.installed(), release) {
				t.Errorf("after the removal: %+v, %+v", k, k.Upgrade)
			}
			if r := m.Run(t, "find /etc -name '*accel*' -path '*grub*' -o -name '*accel*' -path '*apt*'"); r.Stdout != "" {
				t.Errorf("the removal left %s", r.Stdout)
			}
		})
	}
}

// TestKernelPowerCut cuts the power after each step of an installation, of its
// promotion, and of a rollback: each disk has to boot, and accel to know.
func TestKernelPowerCut(t *testing.T) {
	if !long() {
		t.Skip("only with ACCEL_LONG=1; pkg/bootkernel stops before every step")
	}
	m := vm.Whole(t, vm.Bookworm, vm.Options{Boot: vm.BIOS, CPUs: 1})
	install(t, m)
	before := kernelsOf(t, m)
	grub := grubFiles(t, m)
	type cut struct {
		phase string
		disk  *vm.Disk
	}
	var cuts []cut
	// watch keeps a disk whenever the phase has changed, and another one a while
	// after, until the end.
	watch := func(command string, end func() bool) {
		t.Helper()
		m.MustRun(t, "systemd-run -q --collect --unit=step "+command)
		last, again := "", time.Time{}
		for limit := time.Now().Add(installLimit); ; time.Sleep(500 * time.Millisecond) {
			phase := strings.TrimSpace(m.Run(t, `sed -n 's/.*"phase": "\(.*\)".*/\1/p' /var/lib/accel/kernel.json 2>/dev/null`).Stdout)
			switch {
			case phase != last:
				cuts = append(cuts, cut{phase, m.SaveDisk(t)})
				last, again = phase, time.Now().Add(15*time.Second)
			case time.Now().After(again) && !again.IsZero():
				cuts = append(cuts, cut{phase + " later", m.SaveDisk(t)})
				again = time.Time{}
			}
			if end() {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("%s has not ended, at %q", command, phase)
			}
		}
	}
	ended := func() bool { return m.Run(t, "systemctl -q is-active step").Exit != 0 }
	watch("accel kernel install --backports --yes", ended)
	k := kernelsOf(t, m)
	if k.Upgrade == nil || k.Upgrade.Phase != "armed" {
		t.Fatalf("the installation ended with %+v", k.Upgrade)
	}
	release := k.Upgrade.New
	tried(t, m, release)
	watch("true", func() bool { return m.Run(t, `grep -q '"phase": "promoted"' /var/lib/accel/kernel.json`).Exit == 0 })
	watch("accel kernel rollback --yes", ended)
	m.Close()
	for i, c := range cuts {
		t.Run(fmt.Sprintf("3_%02d_%s", i, strings.ReplaceAll(c.phase, " ", "_")), func(t *testing.T) {
			t.Parallel()
			m := c.disk.Machine(t)
			m.AwaitBoot(t, bootLimit)
			k := kernelsOf(t, m)
			t.Logf("cut while %q: %s runs, then %s, then %s: %+v", c.phase, k.Running, k.Next, k.After, k.Upgrade)
			if k.Running != before.Running && k.Running != release {
				t.Errorf("%s runs", k.Running)
			}
			phase, _, _ := strings.Cut(c.phase, " ")
			switch phase {
			case "preparing", "pinning", "installing", "arming":
				if k.Running != before.Running || k.After != before.Running {
					t.Errorf("the machine runs %s and would start %s", k.Running, k.After)
				}
				if k.Upgrade == nil || !k.Upgrade.Attend || k.Upgrade.Next == "" {
					t.Errorf("accel says nothing of the interrupted installation: %+v", k.Upgrade)
				}
			case "armed", "trying", "promoting", "promoted":
				m.Eventually(t, verdictLimit, `grep -Eq '"phase": "(promoted|fell-back)"' /var/lib/accel/kernel.json`)
			}
			if r := kernel(t, m, "rollback"); r.Exit != 0 {
				t.Fatalf("rollback: %+v", r)
			}
			if k = kernelsOf(t, m); k.After != before.Running || k.Next != before.Running {
				t.Errorf("after the rollback next is %s and after that %s", k.Next, k.After)
			}
			if k.Running == before.Running {
				if diff := cmp.Diff(grub, grubFiles(t, m)); diff != "" {
					t.Errorf("the rollback has not restored (-before +after):\n%s", diff)
				}
			}
		})
	}
}

// TestKernelDefault has a rollback restore GRUB_DEFAULT in each of its forms.
func TestKernelDefault(t *testing.T) {
	if !long() {
		t.Skip("only with ACCEL_LONG=1")
	}
	m := vm.Whole(t, vm.Bookworm, vm.Options{Boot: vm.BIOS, CPUs: 1})
	install(t, m)
	old := m.Release
	// With the kernel already there accel does the same, but for apt.
	m.MustRun(t, "sed -n 's/ bookworm / bookworm-backports /p' /etc/apt/sources.list > /etc/apt/sources.list.d/backports.list && apt-get update -q --error-on=any")
	if r := patiently(t, m, installLimit, "DEBIAN_FRONTEND=noninteractive apt-get install -q -y -t bookworm-backports linux-image-cloud-amd64"); r.Exit != 0 {
		t.Fatalf("%+v", r)
	}
	id := strings.TrimSpace(m.MustRun(t, `sed -n "s/.*menuentry_id_option '\(gnulinux-`+old+`-advanced[^']*\)'.*/\1/p" /boot/grub/grub.cfg`))
	submenu := strings.TrimSpace(m.MustRun(t, `sed -n "s/^submenu .*menuentry_id_option '\([^']*\)'.*/\1/p" /boot/grub/grub.cfg`))
	for _, c := range []struct{ name, line, prepare string }{
		{"number", "GRUB_DEFAULT='1>2'", "true"},
		{"title", "GRUB_DEFAULT='Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux " + old + "'", "true"},
		{"saved", "GRUB_DEFAULT=saved\nGRUB_SAVEDEFAULT=true", "grub-set-default '" + submenu + ">" + id + "'"},
		{"number_without_submenus", "GRUB_DEFAULT=2\nGRUB_DISABLE_SUBMENU=y", "true"},
	} {
		t.Run("5_"+c.name, func(t *testing.T) {
			m.Write(t, "/root/lines", []byte(c.line+"\n"), 0o644)
			if r := patiently(t, m, bootLimit, "test -e /root/grub.orig || cp /etc/default/grub /root/grub.orig; grep -v ^GRUB_DEFAULT /root/grub.orig | cat - /root/lines > /etc/default/grub && update-grub && "+c.prepare); r.Exit != 0 {
				t.Fatalf("%+v", r)
			}
			grub := grubFiles(t, m)
			before, release := arm(t, m, "install --backports")
			if before.After != old {
				t.Errorf("accel reads %q as %s", c.line, before.After)
			}
			if r := kernel(t, m, "rollback"); r.Exit != 0 {
				t.Fatalf("rollback: %+v", r)
			}
			if diff := cmp.Diff(grub, grubFiles(t, m)); diff != "" {
				t.Errorf("the rollback has not restored (-before +after):\n%s", diff)
			}
			if !slices.Contains(kernelsOf(t, m).installed(), release) {
				t.Errorf("the rollback took away what accel had not installed")
			}
		})
	}
}

// TestKernelRefused has hosts on which a kernel cannot be installed now: each is
// left as it was, with the reason.
func TestKernelRefused(t *testing.T) {
	if !long() {
		t.Skip("only with ACCEL_LONG=1; test/cli has recorded hosts that are refused")
	}
	m := vm.Whole(t, vm.Bookworm, vm.Options{Boot: vm.BIOS, CPUs: 1})
	install(t, m)
	old := m.Release
	// separate makes /boot a file system of its own on the spare partition.
	separate := func(mkfs, kind string) string {
		return mkfs + " " + vm.Spare + ` && mount -t ` + kind + ` ` + vm.Spare + ` /mnt && cp -a /boot/. /mnt && umount /mnt && mount -t ` + kind + ` ` + vm.Spare + ` /boot && echo '` + vm.Spare + ` /boot ` + kind + ` defaults 0 2' >> /etc/fstab && grub-install /dev/vda && update-grub`
	}
	const (
		gone     = "echo 'grub-pc grub-pc/install_devices multiselect /dev/sdz' | debconf-set-selections"
		there    = "echo 'grub-pc grub-pc/install_devices multiselect /dev/vda' | debconf-set-selections"
		together = `umount /boot && sed -i '\|^` + vm.Spare + `|d' /etc/fstab && grub-install /dev/vda && update-grub`
	)
	for _, c := range []struct {
		name       string
		harm, mend string
		exit       int
		reason     []string // in the error or the next step
	}{
		{"boot_too_small", separate("mke2fs -q -F -t ext4", "ext4") + " && fallocate -l $(($(df --output=avail -B1 /boot | tail -n 1) - 10000000)) /boot/full", together, 1, []string{"/boot", "MiB"}},
		{"boot_on_btrfs", separate("mkfs.btrfs -q -f", "btrfs"), together, 5, []string{"btrfs"}},
		{"repository_unreachable", "sed -i 's/^10.0.2.100 /127.0.0.1 /' /etc/hosts", "sed -i 's/^127.0.0.1 archive/10.0.2.100 archive/' /etc/hosts", 1, []string{"apt-get update"}},
		{"device_gone", gone, there, 1, []string{"/dev/sdz", "dpkg-reconfigure grub-pc"}},
		{"held", "apt-mark hold linux-image-cloud-amd64", "apt-mark unhold linux-image-cloud-amd64", 1, []string{"hold", "linux-image-cloud-amd64"}},
		{"half_installed", badPackage + "dpkg -i /root/bad.deb; dpkg --audit | grep -q bad", "dpkg --purge --force-all bad", 1, []string{"bad", "dpkg --configure -a"}},
		{"fails_to_configure", `printf '#!/bin/sh\necho no, never >&2\nexit 1\n' > /etc/kernel/postinst.d/zzz-never && chmod 755 /etc/kernel/postinst.d/zzz-never`, "rm /etc/kernel/postinst.d/zzz-never", 1, []string{"linux-image"}},
	} {
		t.Run("4_"+c.name, func(t *testing.T) {
			if r := patiently(t, m, installLimit, c.harm); r.Exit != 0 {
				t.Fatalf("%+v", r)
			}
			defer patiently(t, m, installLimit, c.mend)
			grub := grubFiles(t, m)
			r := kernel(t, m, "install --backports")
			t.Logf("accel says: %s. %s", r.Error, r.Next)
			if r.Exit != c.exit || r.Changed {
				t.Errorf("install: %+v", r)
			}
			for _, want := range c.reason {
				if !strings.Contains(r.Error+r.Next, want) {
					t.Errorf("the reason does not say %q: %s. %s", want, r.Error, r.Next)
				}
			}
			k := kernelsOf(t, m)
			if k.Next != old || k.After != old || k.Upgrade != nil || len(k.Kernels) != 1 {
				t.Errorf("after the refusal: %+v, %+v", k, k.Upgrade)
			}
			if diff := cmp.Diff(grub, grubFiles(t, m)); diff != "" {
				t.Errorf("the refusal has changed (-before +after):\n%s", diff)
			}
			if said := m.MustRun(t, "dpkg --audit"); said != "" && c.name != "half_installed" {
				t.Errorf("dpkg is broken afterwards:\n%s", said)
			}
		})
	}
	t.Run("4_lock", func(t *testing.T) {
		m.MustRun(t, `systemd-run -q --collect --unit=holder perl -e 'use Fcntl; open my $f, ">", "/var/lib/dpkg/lock-frontend" or die; my $l = pack("s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0); fcntl($f, F_SETLK, $l) or die; sleep 60'`)
		m.Eventually(t, time.Minute, `grep -q ":$(stat -c %i /var/lib/dpkg/lock-frontend) " /proc/locks`)
		// It waits, and then finds that GRUB's device is gone.
		m.MustRun(t, gone)
		defer m.MustRun(t, there)
		r := kernel(t, m, "install")
		if r.Exit != 1 || !strings.Contains(r.Error, "/dev/sdz") || !strings.Contains(r.console, "perl") {
			t.Errorf("with the lock held: %+v\n%s", r, r.console)
		}
	})
	t.Run("6_container", func(t *testing.T) {
		m.MustRun(t, "echo lxc > /run/systemd/container")
		defer m.MustRun(t, "rm /run/systemd/container")
		if r := kernel(t, m, "install --backports"); r.Exit != 5 || !strings.Contains(r.Error, "container") || r.Next == "" {
			t.Errorf("in a container: %+v", r)
		}
	})
}

// badPackage makes a package that does not configure, at /root/bad.deb.
const badPackage = `mkdir -p /root/bad/DEBIAN && printf 'Package: bad\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: fails\n' > /root/bad/DEBIAN/control && printf '#!/bin/sh\nexit 1\n' > /root/bad/DEBIAN/postinst && chmod 755 /root/bad/DEBIAN/postinst && dpkg-deb -b /root/bad /root/bad.deb; `

// TestKernelSecureBoot asks for a kernel that the firmware would refuse.
func TestKernelSecureBoot(t *testing.T) {
	if !long() {
		t.Skip("only with ACCEL_LONG=1")
	}
	m := vm.Whole(t, vm.Bookworm, vm.Options{Boot: vm.SecureBoot, CPUs: 1})
	install(t, m)
	// Debian has each kernel signed and not. The one that runs would be nothing
	// new.
	unsigned := strings.TrimSpace(m.MustRun(t, "apt-cache pkgnames linux-image-6.1 | grep 'cloud-amd64-unsigned$' | grep -v \"$(uname -r)\" | sort -V | tail -n 1"))
	r := kernel(t, m, "install "+unsigned)
	t.Logf("accel says: %s. %s", r.Error, r.Next)
	if r.Exit != 5 || r.Changed || !strings.Contains(r.Error, "Secure Boot") {
		t.Errorf("installing %s: %+v", unsigned, r)
	}
}

// TestKernelWithoutLoader asks on a machine whose kernel is started from outside,
// as Firecracker does it.
func TestKernelWithoutLoader(t *testing.T) {
	t.Parallel()
	m := vm.Whole(t, vm.Bookworm, vm.Options{})
	install(t, m)
	r := kernel(t, m, "install --backports")
	t.Logf("accel says: %s. %s", r.Error, r.Next)
	if r.Exit != 5 || r.Changed || !strings.Contains(r.Error, "from outside") || !strings.Contains(r.Next, "provider") {
		t.Errorf("install: %+v", r)
	}
	if k := kernelsOf(t, m); k.Possible || k.Running != m.Release {
		t.Errorf("list: %+v", k)
	}
}
