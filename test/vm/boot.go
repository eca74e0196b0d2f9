package vm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Boot is how a whole machine starts its kernel.
type Boot string

// With the zero value the emulator loads the kernel that the image was made
// with, whatever is on the disk. The others are as on a computer: the firmware
// starts GRUB from the disk, which starts what it is told to; a reboot, a panic
// or a reset boot again without anybody's help; and the machine has a Debian
// archive to install kernels from, at the usual address.
const (
	BIOS       Boot = "bios"        // SeaBIOS and grub-pc
	UEFI       Boot = "uefi"        // OVMF, shim and grub-efi-amd64
	SecureBoot Boot = "secure-boot" // the same image as UEFI's, under firmware that verifies signatures
)

// The disk of a machine that boots from it: /dev/vda1 is the root file system,
// /dev/vda2 the EFI system partition where there is one, and /dev/vda3 is
// empty, for a test that wants a /boot of another kind.
const (
	espSize   = 64 << 20  // bytes
	spareSize = 256 << 20 // bytes
)

// Spare is the partition of 256 MB that nothing uses.
const Spare = "/dev/vda3"

// image returns the kind of image that belongs to a kind of boot.
func (b Boot) image() Boot {
	if b == SecureBoot {
		return UEFI
	}
	return b
}

// ovmf is where Debian's package ovmf has the firmware.
const ovmf = "/usr/share/OVMF/"

// firmware returns the arguments that give a machine its firmware ahead of the
// variables, and the file that those begin as.
func (b Boot) firmware() (args []string, vars string) {
	switch b {
	case UEFI:
		return []string{"-drive", "if=pflash,unit=0,format=raw,readonly=on,file=" + ovmf + "OVMF_CODE_4M.fd"}, ovmf + "OVMF_VARS_4M.fd"
	case SecureBoot:
		return []string{"-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on",
			"-drive", "if=pflash,unit=0,format=raw,readonly=on,file=" + ovmf + "OVMF_CODE_4M.secboot.fd"}, ovmf + "OVMF_VARS_4M.ms.fd"
	}
	return nil, ""
}

// bootPackages are what a machine has to boot with and to change that.
func (b Boot) packages() []string {
	common := []string{"apt", "btrfs-progs"}
	switch b.image() {
	case BIOS:
		return append(common, "grub-pc")
	case UEFI:
		return append(common, "dosfstools", "efibootmgr", "grub-efi-amd64", "grub-efi-amd64-signed", "shim-signed")
	}
	return nil
}

// bootHook is the part of an image's hook that configures its boot loader: it
// speaks on the serial line and waits a second, no more. The kernel writes
// little more than its name there, and does without what only costs time in an
// emulated processor.
func (b Boot) hook() string {
	if b == "" {
		return ""
	}
	return `sed -i -e 's/^GRUB_TIMEOUT=.*/GRUB_TIMEOUT=1/' -e 's/^GRUB_CMDLINE_LINUX_DEFAULT=.*/GRUB_CMDLINE_LINUX_DEFAULT=""/' -e 's/^GRUB_CMDLINE_LINUX=.*/GRUB_CMDLINE_LINUX="net.ifnames=0 cryptomgr.notests mitigations=off loglevel=6 console=ttyS0"/' "$1/etc/default/grub"
printf 'GRUB_TERMINAL=serial\nGRUB_SERIAL_COMMAND="serial --speed=115200"\n' >> "$1/etc/default/grub"
`
}

// installLoader is run in an image's first boot and puts GRUB on the disk. The
// package must know the disk too, or its next version fails to configure.
func (b Boot) installLoader() string {
	const lists = "apt-get update -q --error-on=any && "
	switch b {
	case BIOS:
		return lists + `echo 'grub-pc grub-pc/install_devices multiselect /dev/vda' | debconf-set-selections && echo 'grub-pc grub-pc/install_devices_empty boolean false' | debconf-set-selections && grub-install /dev/vda && update-grub`
	case UEFI:
		return lists + `mkfs.vfat -n ESP /dev/vda2 && mkdir -p /boot/efi && echo '/dev/vda2 /boot/efi vfat umask=0077 0 1' >> /etc/fstab && mount -t vfat /dev/vda2 /boot/efi && echo 'grub-efi-amd64 grub2/force_efi_extra_removable boolean true' | debconf-set-selections && grub-install --target=x86_64-efi --efi-directory=/boot/efi --no-nvram --force-extra-removable --uefi-secure-boot && update-grub`
	}
	return ""
}

// bootLog notes the kernels that start, from what they write to the console.
type bootLog struct {
	mu   sync.Mutex
	list []string
}

var linuxVersion = regexp.MustCompile(`Linux version (\S+)`)

func (l *bootLog) line(line string) string {
	if m := linuxVersion.FindStringSubmatch(line); m != nil {
		l.mu.Lock()
		l.list = append(l.list, m[1])
		l.mu.Unlock()
	}
	return line
}

// Boots returns the releases of the kernels that have started in a machine
// with a boot loader since the test has it, in order, those that came to
// nothing too.
func (m *Machine) Boots() []string {
	l := &m.whole.boots
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// Reset presses the reset button of a machine with a boot loader: like Kill and
// Start, but for the memory, which no kernel sees again either.
func (m *Machine) Reset(t testing.TB) {
	t.Helper()
	if err := m.control(t.Context(), func(c *qmp) error { return c.do("system_reset", nil, nil) }); err != nil {
		t.Fatal(err)
	}
}

// control does something by the emulator's control socket.
func (m *Machine) control(ctx context.Context, f func(c *qmp) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := dialQMP(ctx, m.qemu, m.whole.socket())
	if err != nil {
		return m.trouble(err)
	}
	defer c.conn.Close()
	if err := f(c); err != nil {
		return m.trouble(err)
	}
	return nil
}

// AwaitBoot waits until a machine with a boot loader answers from another boot
// than the one that it answered from last, and returns the release of its
// kernel. Boots that never answer are passed over.
func (m *Machine) AwaitBoot(t testing.TB, limit time.Duration) string {
	t.Helper()
	if err := m.awaitBoot(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
	return m.Release
}

func (m *Machine) awaitBoot(ctx context.Context, limit time.Duration) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if m.shell != nil {
		m.shell.close()
	}
	for {
		shell, err := dialSSH(ctx, m.qemu, m.whole.port, m.whole.signer)
		if err != nil {
			return m.trouble(fmt.Errorf("%s: waiting for another boot, after %q: %w", m.Name, m.Boots(), err))
		}
		before := m.bootID
		m.setShell(shell)
		// The machine may go down while it is asked.
		if err := m.greet(ctx); err == nil && m.bootID != before {
			m.Booted = time.Since(begin)
			return nil
		}
		shell.close()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// AwaitKernel waits until a machine with a boot loader runs a kernel, over as
// many boots as it takes.
func (m *Machine) AwaitKernel(t testing.TB, limit time.Duration, release string) {
	t.Helper()
	for end := time.Now().Add(limit); m.AwaitBoot(t, time.Until(end)) != release; {
		t.Logf("%s has booted %s on the way", m.Name, m.Release)
	}
}

// PowerOn is Start that does not wait for the machine to answer: AwaitBoot
// does.
func (m *Machine) PowerOn(t testing.TB) {
	t.Helper()
	if err := m.whole.launch(m, ""); err != nil {
		t.Fatal(err)
	}
}

// Disk is the disk of a machine with a boot loader as it was at one instant,
// with what the firmware remembers.
type Disk struct {
	name string
	img  image
	opts Options
}

// SaveDisk keeps what would be on the machine's disk if the power went now. The
// machine goes on.
func (m *Machine) SaveDisk(t testing.TB) *Disk {
	t.Helper()
	w := m.whole
	dir := t.TempDir()
	d := &Disk{m.Name + " (copy)", image{Disk: filepath.Join(dir, "disk"), Format: "qcow2", Release: w.image.Release}, w.opts}
	// A stopped machine has handed all that it had written to this host.
	err := m.control(t.Context(), func(q *qmp) error {
		if err := q.do("stop", nil, nil); err != nil {
			return err
		}
		_, err := command(t.Context(), nil, "cp", w.disk, d.img.Disk)
		if err == nil && w.vars != "" {
			d.img.Vars = filepath.Join(dir, "vars")
			_, err = command(t.Context(), nil, "cp", w.vars, d.img.Vars)
		}
		return errors.Join(err, q.do("cont", nil, nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Machine starts a machine with a copy of the disk, for a test, which is stopped
// when the test ends. It does not wait for the machine to answer: AwaitBoot does.
func (d *Disk) Machine(t testing.TB) *Machine {
	t.Helper()
	m, err := newWhole(t.Context(), &d.img, d.opts, d.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	m.PowerOn(t)
	return m
}

// greet learns which boot of which kernel answers.
func (m *Machine) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	// A resumed machine still thinks that it is the time it was saved at.
	r, err := m.Exec(ctx, fmt.Sprintf("date -s @%d > /dev/null; uname -r; cat /proc/sys/kernel/random/boot_id", time.Now().Unix()))
	if err != nil {
		return err
	}
	f := strings.Fields(r.Stdout)
	if len(f) != 2 {
		return m.trouble(fmt.Errorf("%s: asked for kernel and boot, it says %q", m.Name, r.Stdout))
	}
	m.Release, m.bootID = f[0], f[1]
	return nil
}
