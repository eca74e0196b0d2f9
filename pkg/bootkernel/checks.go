package bootkernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// This file holds the reasons to refuse. Those that lie in the nature of the host
// have exit code 5; those that can be mended, 1. None of them changes anything.

// plainFilesystems are those whose blocks GRUB can write to when it boots, so that
// it can clear the one-time entry. On the others it cannot (grub-core/fs), and a
// bad kernel would be started again and again.
var plainFilesystems = []string{"ext2", "ext3", "ext4", "xfs"}

// Units are the parts of accel that judge a new kernel after its first boot.
var units = []string{"accel-kernel.service", "accel-kernel-deadline.service", "accel-kernel-deadline.timer"}

// program is what the units run.
const program = "/usr/bin/accel"

func impossible(sentence, next string) error {
	return problem(tuning.ExitImpossible, nil, sentence, next)
}

// hostCheck refuses a host on which no kernel can be installed, or none can be
// tried without risk.
func (h *Host) hostCheck(t *kernel.Tree, f *kernel.Facts) error {
	outside := text.T("Ask the provider for a machine with its own boot loader, or for a newer kernel. The algorithms of the kernel that runs can be used as they are: accel status")
	if c := f.Virtualization.Container; c != "" && c != "none" {
		return impossible(text.T("this is a container (%s), and its kernel is the host's", c),
			text.T("Only who owns the host can change the kernel. Ask the provider for a virtual machine, or for a newer kernel."))
	}
	if f.Distribution.ID != "debian" {
		name := f.Distribution.Name
		if name == "" {
			name = text.T("an unknown distribution")
		}
		return impossible(text.T("accel installs kernels on Debian, and this is %s", name),
			text.T("Install a newer kernel with the distribution's own tools; accel uses whatever kernel runs."))
	}
	for _, name := range []string{"/usr/bin/apt-get", "/usr/bin/dpkg"} {
		if !t.Exists(name) {
			return impossible(text.T("%s is missing, and accel installs kernels with apt only", name),
				text.T("Install a newer kernel with the distribution's own tools; accel uses whatever kernel runs."))
		}
	}
	release := running(t)
	if release == "" || !releasePattern.MatchString(release) {
		return problem(tuning.ExitFailed, nil, text.T("the release of the running kernel cannot be told"), text.T("Mend the cause and try again."))
	}
	if info := loaderInfo(t); strings.HasPrefix(info, "systemd-boot") {
		return impossible(text.T("this host boots with systemd-boot, and accel can start a kernel once only with GRUB"),
			text.T("Install the kernel with apt, and try it once with: bootctl set-oneshot"))
	}
	boot := ""
	for _, word := range strings.Fields(read(t, "/proc/cmdline")) {
		if v, ok := strings.CutPrefix(word, "BOOT_IMAGE="); ok {
			boot = v
		}
	}
	switch {
	case boot == "":
		what := text.T("this kernel was started from outside, by the provider's host, and not by a boot loader of this machine: whatever is installed here would never be started")
		if f.Virtualization.Machine == "firecracker" {
			what = text.T("this is a Firecracker machine: its kernel is started from outside, and whatever is installed here would never be started")
		}
		return impossible(what, outside)
	case releaseOf(boot) != release || !t.Exists("/boot/vmlinuz-"+release):
		return impossible(text.T("the running kernel %s is not one of those in /boot, so the provider starts it in some other way", release), outside)
	}
	for _, name := range []string{grubConfig, "/usr/sbin/update-grub", "/usr/bin/grub-editenv"} {
		if !t.Exists(name) {
			return impossible(text.T("%s is missing, and accel can start a kernel once only with GRUB", name),
				text.T("Where another boot loader is used, install the kernel with apt and try it by hand, with a console at hand."))
		}
	}
	if err := writableAtBoot(t); err != nil {
		return err
	}
	if !f.Systemd {
		return impossible(text.T("systemd is not running here, so nobody would look after the new kernel when it has booted"),
			text.T("Install the kernel with apt and try it by hand, with a console at hand."))
	}
	if !t.Exists(program) {
		return problem(tuning.ExitFailed, nil, text.T("%s is not installed, so nobody would look after the new kernel when it has booted", program),
			text.T("Install accel's package, which brings it."))
	}
	for _, u := range units {
		switch {
		case !t.Exists("/usr/lib/systemd/system/"+u) && !t.Exists("/lib/systemd/system/"+u) && !t.Exists("/etc/systemd/system/"+u):
			return problem(tuning.ExitFailed, nil, text.T("%s is not installed, so nobody would look after the new kernel when it has booted", u),
				text.T("Install accel's package, which brings it."))
		case masked(t, u):
			return problem(tuning.ExitFailed, nil, text.T("%s is masked, so nobody would look after the new kernel when it has booted", u),
				text.T("Unmask it: systemctl unmask %s", u))
		}
	}
	return nil
}

func masked(t *kernel.Tree, unit string) bool {
	target, err := t.Readlink("/etc/systemd/system/" + unit)
	return err == nil && target == "/dev/null"
}

// loaderInfo is what the boot loader says of itself to the firmware (the boot
// loader interface of systemd): UTF-16 after four bytes of attributes.
func loaderInfo(t *kernel.Tree) string {
	data, err := t.ReadFile("/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f")
	if err != nil || len(data) < 4 {
		return ""
	}
	var b strings.Builder
	for i := 4; i+1 < len(data); i += 2 {
		if data[i] == 0 && data[i+1] == 0 {
			break
		}
		b.WriteByte(data[i])
	}
	return b.String()
}

// writableAtBoot refuses where GRUB could not clear the one-time entry.
func writableAtBoot(t *kernel.Tree) error {
	next := text.T("Install the kernel with apt and try it by hand, with a console at hand. A separate /boot on a plain partition with ext4 would do.")
	device, fstype := mountOf(t, grubDir)
	if !slices.Contains(plainFilesystems, fstype) {
		if fstype == "" {
			fstype = text.T("an unknown file system")
		}
		return impossible(text.T("%s is on %s, where GRUB cannot write when it boots: it could not clear the one-time entry, and a bad kernel would be started again and again", grubDir, fstype), next)
	}
	dir := resolveDir(t, "/sys/dev/block/"+device)
	if dir == "" {
		return impossible(text.T("the disk below %s cannot be told, so it is not known whether GRUB can write to it when it boots", grubDir), next)
	}
	at := dir
	if t.Exists(dir + "/partition") {
		at = path.Dir(dir)
	}
	made := ""
	switch {
	case t.Exists(at + "/dm"):
		made = text.T("LVM, or another mapped device")
	case t.Exists(at + "/md"):
		made = text.T("a RAID")
	case strings.Contains(at, "/virtual/block/"):
		made = path.Base(at)
	}
	if made != "" {
		return impossible(text.T("%s is on %s, where GRUB cannot write when it boots: it could not clear the one-time entry, and a bad kernel would be started again and again", grubDir, made), next)
	}
	return nil
}

// menuCheck refuses a GRUB whose next start cannot be foretold, and gives the
// entry of the running kernel.
func menuCheck(t *kernel.Tree) (*Menu, map[string]string, *Entry, error) {
	m, env, err := readMenu(t)
	if err != nil {
		return nil, nil, nil, problem(tuning.ExitFailed, err, text.T("reading GRUB's configuration"), text.T("Write it anew: update-grub"))
	}
	if !m.OneTime {
		return nil, nil, nil, impossible(text.T("%s does not start a one-time entry (next_entry), so no kernel can be tried once", grubConfig),
			text.T("If it is only old, write it anew: update-grub"))
	}
	if len(m.Strange) > 0 {
		return nil, nil, nil, problem(tuning.ExitFailed, nil, text.T("something besides GRUB_DEFAULT decides what GRUB starts: %s", m.Strange[0]),
			text.T("Find it below /etc/grub.d or in %s/custom.cfg, take it away, and try again.", grubDir))
	}
	release := running(t)
	e := m.Ordinary(release)
	if e == nil {
		return nil, nil, nil, problem(tuning.ExitFailed, nil, text.T("GRUB's menu has no entry for the running kernel %s", release), text.T("Write it anew: update-grub"))
	}
	if info, err := t.Lstat(grubEnv); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, nil, nil, impossible(text.T("%s is a link, and GRUB would look for it where it leads", grubEnv),
			text.T("Where it is on the disk of %s, make it a file: rm %s; grub-editenv %s create", grubDir, grubEnv, grubEnv))
	}
	if info, err := t.Stat(grubEnv); err == nil && info.Size() != envSize {
		return nil, nil, nil, problem(tuning.ExitFailed, nil, text.T("%s has %d bytes and not %d, so GRUB cannot use it", grubEnv, info.Size(), envSize),
			text.T("Make it anew: rm %s; grub-editenv %s create", grubEnv, grubEnv))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, problem(tuning.ExitFailed, err, text.T("reading %s", grubEnv), text.T("Mend the cause and try again."))
	}
	if data, err := t.ReadFile(grubEnv); err == nil {
		if _, err := parseEnv(data); err != nil {
			return nil, nil, nil, problem(tuning.ExitFailed, err, text.T("GRUB cannot use %s", grubEnv), text.T("Make it anew: rm %s; grub-editenv %s create", grubEnv, grubEnv))
		}
	}
	if m.Password {
		return nil, nil, nil, problem(tuning.ExitFailed, nil, text.T("GRUB has a password (superusers) and might ask for it at the next boot, where nobody can type it"),
			text.T("Take the password away while the kernel is tried, or install the kernel with apt, with a console at hand."))
	}
	if next := env["next_entry"]; next != "" && next != trialID {
		return nil, nil, nil, problem(tuning.ExitFailed, nil, text.T("somebody has set a one-time entry already: the next boot starts %q", next),
			text.T("Reboot first, or take it back: grub-editenv %s unset next_entry", grubEnv))
	}
	return m, env, e, nil
}

// packageCheck refuses where dpkg is broken, or holds what has to change.
func (h *Host) packageCheck(ctx context.Context) error {
	said, err := h.run(ctx, "dpkg", "--audit")
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("asking dpkg how it is"), text.T("Mend the packages first: dpkg --configure -a"))
	}
	if said = strings.TrimSpace(said); said != "" {
		return problem(tuning.ExitFailed, nil, text.T("packages are only half installed: %s", oneLineOf(said)), text.T("Mend them first: dpkg --configure -a, then apt-get -f install"))
	}
	said, err = h.run(ctx, "apt-mark", "showhold")
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("asking apt what is on hold"), text.T("Mend the packages first: apt-get -f install"))
	}
	for name := range strings.FieldsSeq(said) {
		if strings.HasPrefix(name, "linux-image") || strings.HasPrefix(name, "linux-base") || strings.HasPrefix(name, "grub") || name == "initramfs-tools" {
			return problem(tuning.ExitFailed, nil, text.T("the package %s is on hold: somebody wants it to stay as it is", name), text.T("If that is over: apt-mark unhold %s", name))
		}
	}
	return h.deviceCheck(ctx)
}

func oneLineOf(s string) string {
	f := strings.Fields(s)
	return strings.Join(f[:min(len(f), 40)], " ")
}

// deviceCheck refuses where the device is gone that GRUB was installed on: its
// package asks for it, or fails, at its next upgrade.
func (h *Host) deviceCheck(ctx context.Context) error {
	said, err := h.run(ctx, "debconf-show", "grub-pc")
	if err != nil {
		return nil // not installed: UEFI, or no debconf
	}
	t, err := h.tree()
	if err != nil {
		return err
	}
	defer t.Close()
	for line := range strings.Lines(said) {
		name, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "*")), ":")
		if !ok || strings.TrimSpace(name) != "grub-pc/install_devices" {
			continue
		}
		for device := range strings.SplitSeq(value, ",") {
			device = strings.TrimSpace(device)
			if strings.HasPrefix(device, "/dev/") && !t.Exists(device) {
				return problem(tuning.ExitFailed, nil, text.T("GRUB is recorded to be on %s, and there is no such device", device),
					text.T("Name the right one: dpkg-reconfigure grub-pc"))
			}
		}
	}
	return nil
}

// secureCheck refuses a kernel that the firmware would refuse.
func secureCheck(f *kernel.Facts, k *Kernel) error {
	if f.SecureBoot == nil || !*f.SecureBoot || k.Signed != nil && *k.Signed {
		return nil
	}
	return impossible(text.T("Secure Boot is on, and %s is not signed by Debian: the firmware would refuse it", k.Release),
		text.T("Install a signed kernel, or turn Secure Boot off in the firmware."))
}

// levels are the processor flags that each x86-64 level adds (x86-64 psABI), as
// far as they tell the levels apart.
var levels = map[string][]string{
	"v2": {"cx16", "sse4_2", "ssse3", "popcnt"},
	"v3": {"cx16", "sse4_2", "avx2", "bmi1", "bmi2", "fma", "movbe"},
	"v4": {"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}

// levelCheck refuses a kernel that is built for a newer processor, as its name
// says, or for another architecture.
func levelCheck(t *kernel.Tree, arch string, k *Kernel) error {
	for other := range map[string]bool{"amd64": true, "arm64": true, "armhf": true, "i386": true} {
		if other != arch && strings.HasSuffix(k.Release, other) && !strings.HasSuffix(k.Release, arch) {
			return impossible(text.T("%s is for %s, and this machine is %s", k.Release, other, arch), text.T("Choose another kernel: accel kernel list"))
		}
	}
	level := ""
	for l := range levels {
		if strings.Contains(k.Release, "x64"+l) || strings.Contains(k.Release, "x86-64-"+l) {
			level = l
		}
	}
	if level == "" {
		return nil
	}
	flags := map[string]bool{}
	for line := range strings.Lines(read(t, "/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			for f := range strings.FieldsSeq(value) {
				flags[f] = true
			}
			break
		}
	}
	for _, need := range levels[level] {
		if !flags[need] {
			return impossible(text.T("%s is built for processors of level x86-64-%s, and this one lacks %s: it would not start", k.Release, level, need),
				text.T("Choose another kernel: accel kernel list"))
		}
	}
	return nil
}

// Room that an install leaves free on each file system, in bytes: a log or two
// has to fit while apt is at work.
const (
	roomBoot = 32 << 20
	roomRoot = 100 << 20
)

// Need is the room that an install takes in one directory.
type Need struct {
	Dir  string `json:"dir"`
	Need uint64 `json:"need_bytes"`
	Free uint64 `json:"free_bytes"`
}

// spaceCheck compares the room that the install takes with what there is. What
// lies on one file system is added up.
func (h *Host) spaceCheck(t *kernel.Tree, unpacked, download uint64) ([]Need, error) {
	release := running(t)
	var image, initrd uint64
	if info, err := t.Stat("/boot/vmlinuz-" + release); err == nil {
		image = uint64(info.Size())
	}
	if info, err := t.Stat("/boot/initrd.img-" + release); err == nil {
		initrd = uint64(info.Size())
	}
	needs := []Need{
		// A newer kernel and its initial ramdisk are larger, by half at the most.
		{Dir: "/boot", Need: (image+initrd)*3/2 + roomBoot},
		// The initial ramdisk is put together in /var/tmp before it is packed.
		{Dir: "/", Need: unpacked + 3*initrd + roomRoot},
		{Dir: "/var/cache/apt/archives", Need: download},
	}
	merged := map[uint64]int{}
	var sums []Need
	for _, n := range needs {
		s, err := h.Space(n.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, problem(tuning.ExitFailed, err, text.T("asking how much room there is"), text.T("Mend the cause and try again."))
		}
		if i, ok := merged[s.Device]; ok {
			sums[i].Need += n.Need
			continue
		}
		merged[s.Device] = len(sums)
		sums = append(sums, Need{Dir: n.Dir, Need: n.Need, Free: s.Free})
	}
	for _, n := range sums {
		if n.Need > n.Free {
			return sums, problem(tuning.ExitFailed, nil, text.T("there is too little room on the file system of %s: %s are needed, %s are free", n.Dir, mebibytes(n.Need), mebibytes(n.Free)),
				text.T("Make room and try again. An old kernel can go: accel kernel list, accel kernel remove VERSION"))
		}
	}
	return sums, nil
}

func mebibytes(n uint64) string { return fmt.Sprintf("%d MiB", (n+(1<<20)-1)>>20) }

// waitForState is how long a command waits for another accel.
const waitForState = 30 * time.Second

// locked runs f while no other accel works with kernels.
func (h *Host) locked(ctx context.Context, f func() error) error {
	c, cancel := context.WithTimeout(ctx, waitForState)
	defer cancel()
	unlock, err := h.Lock(c)
	if err != nil {
		return problem(tuning.ExitFailed, err, text.T("waiting for another accel"), text.T("Try again when it has ended."))
	}
	defer unlock()
	return f()
}
