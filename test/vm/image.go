package vm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Release is a Debian release that whole machines can run.
type Release string

// The releases: Debian 12 (kernel 6.1) with ifupdown, and Debian 13 (6.12)
// with systemd-networkd, each the way that a virtual server is often sold.
const (
	Bookworm Release = "bookworm"
	Trixie   Release = "trixie"
)

// recipe is everything that decides what an image is like, bar what Debian
// has changed meanwhile. Its text is the image's key in the cache.
type recipe struct {
	release  Release
	boot     Boot // BIOS or UEFI: with a boot loader
	packages []string
	hook     string // shell text, run with the new system's directory as $1
	sshKey   string
}

// recipeVersion is changed when this file changes what an image is like in a
// way that the rest of the recipe does not tell.
const recipeVersion = "4"

func (r recipe) key() string {
	name := string(r.release)
	if r.boot != "" {
		name += "-" + string(r.boot)
	}
	return name + "-" + hash(recipeVersion, string(r.release), strings.Join(r.packages, " "), r.hook+r.boot.installLoader(), r.sshKey)
}

// newRecipe returns the recipe of a release with a boot loader, if boot is not
// zero, and some more packages.
func newRecipe(ctx context.Context, release Release, boot Boot, extra []string, sshKey string) (recipe, error) {
	packages := []string{
		"linux-image-cloud-amd64", "initramfs-tools", "systemd-sysv", "systemd", "dbus", "udev", "kmod", "procps",
		"iproute2", "openssh-server", "ethtool",
	}
	var network string
	switch release {
	case Bookworm:
		packages = append(packages, "ifupdown", "isc-dhcp-client")
		network = `printf 'auto lo\niface lo inet loopback\n\nauto eth0\niface eth0 inet dhcp\n' > "$1/etc/network/interfaces"`
	case Trixie:
		network = `printf '[Match]\nName=eth0\n\n[Network]\nDHCP=yes\n' > "$1/etc/systemd/network/10-eth0.network"
chroot "$1" systemctl -q enable systemd-networkd`
	default:
		return recipe{}, fmt.Errorf("no recipe for the release %q", release)
	}
	packages = append(append(packages, boot.packages()...), extra...)
	slices.Sort(packages)
	hook := network + `
echo accel-test > "$1/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 accel-test\n::1 localhost ip6-localhost ip6-loopback\n' > "$1/etc/hosts"
printf '/dev/vda1 / ext4 errors=remount-ro 0 1\n' > "$1/etc/fstab"
mkdir -m 700 -p "$1/root/.ssh"
printf '%s\n' '` + sshKey + `' > "$1/root/.ssh/authorized_keys"
chroot "$1" systemctl -q disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer e2scrub_reap.service
rm -f "$1/etc/resolv.conf"
`
	if boot != "" {
		archive, err := archiveHook(ctx, release)
		if err != nil {
			return recipe{}, err
		}
		hook += boot.hook() + archive
	}
	return recipe{release, boot, packages, hook, sshKey}, nil
}

// initramfsHook keeps the initramfs to what the virtual disk needs: a big one
// costs seconds at every boot.
const initramfsHook = `mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/etc/initramfs-tools/hooks"
printf 'MODULES=list\nCOMPRESS=gzip\n' > "$1/etc/initramfs-tools/conf.d/small"
printf '#!/bin/sh\n[ "$1" = prereqs ] && exit 0\n. /usr/share/initramfs-tools/hook-functions\nmanual_add_modules virtio_pci virtio_blk ext4\n' > "$1/etc/initramfs-tools/hooks/small"
chmod 755 "$1/etc/initramfs-tools/hooks/small"
`

// image is a bootable disk with its kernel beside it.
type image struct {
	Disk, Format   string // file, and qemu's name of its format
	Kernel, Initrd string
	Vars           string // file: what the firmware's variables begin as, if not as the firmware has them
	Release        Release
	loader         Boot // while the image is built: what its first boot has to install
}

func (r recipe) imageAt(dir string) *image {
	return &image{Disk: filepath.Join(dir, "disk"), Format: "qcow2", Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd"), Release: r.release}
}

const (
	imageLimit     = 15 * time.Minute // for building one
	diskSize       = 4 << 30          // bytes, as the machine sees it; the file is sparse
	partitionStart = 1 << 20          // bytes
)

// build installs Debian and boots it once, so that what is done only at the
// first boot is done.
func (r recipe) build(ctx context.Context) (*image, error) {
	dir, err := cached(ctx, "image", r.key(), func(ctx context.Context, dir string) error {
		ctx, cancel := context.WithTimeout(ctx, imageLimit)
		defer cancel()
		raw, err := r.install(ctx, dir)
		if err != nil {
			return err
		}
		img := r.imageAt(dir)
		first := *img
		first.Disk, first.Format, first.loader = raw, "raw", r.boot
		m, err := startWhole(ctx, &first, Options{MemoryMB: 1024, CPUs: 2}, "image "+string(r.release), "")
		if err != nil {
			return err
		}
		defer m.Close()
		if err := m.settle(ctx); err != nil {
			return err
		}
		if r.boot != "" {
			result, err := m.Exec(ctx, r.boot.installLoader())
			if err != nil {
				return err
			}
			if result.Exit != 0 {
				return fmt.Errorf("installing the boot loader exited %d:\n%s\n%s", result.Exit, result.Stdout, result.Stderr)
			}
		}
		if _, err := m.Exec(ctx, "systemctl --no-block poweroff"); err != nil {
			return err
		}
		select {
		case <-m.qemu.exited:
		case <-time.After(offLimit):
			return m.trouble(errors.New("the machine does not power off"))
		}
		// One file, without what the first boot wrote over.
		if _, err := command(ctx, nil, "qemu-img", "convert", "-O", "qcow2", m.whole.disk, img.Disk); err != nil {
			return err
		}
		return os.Remove(raw)
	})
	if err != nil {
		return nil, err
	}
	return r.imageAt(dir), nil
}

// install makes the raw disk of a newly installed system, and puts its kernel
// beside it.
func (r recipe) install(ctx context.Context, dir string) (disk string, err error) {
	lines, err := sources(ctx, string(r.release))
	if err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	defer os.RemoveAll(root)
	// What it mounts and starts is to end with it, however it ends.
	_, err = command(ctx, []string{"LC_ALL=C"}, "unshare", "--mount", "--pid", "--fork", "--kill-child",
		"mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory",
		"--components=main", "--include="+strings.Join(r.packages, ","), "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
		"--essential-hook="+initramfsHook, "--customize-hook="+r.hook, string(r.release), root, strings.Join(lines, "\n"))
	if err != nil {
		return "", err
	}
	img := r.imageAt(dir)
	for pattern, to := range map[string]string{"boot/vmlinuz-*": img.Kernel, "boot/initrd.img-*": img.Initrd} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return "", err
		}
		if len(found) != 1 {
			return "", fmt.Errorf("the new system has %d files %s, not one", len(found), pattern)
		}
		if err := copyFile(found[0], to, 0o644); err != nil {
			return "", err
		}
	}
	disk = filepath.Join(dir, "raw")
	parts := []partition{{0x83, diskSize - partitionStart}}
	if r.boot != "" {
		parts = []partition{{0x83, diskSize - partitionStart - espSize - spareSize}, {0xef, espSize}, {0x83, spareSize}}
	}
	if err := writePartitionTable(disk, parts); err != nil {
		return "", err
	}
	_, err = command(ctx, nil, "mke2fs", "-q", "-t", "ext4", "-d", root, "-E", fmt.Sprintf("offset=%d", partitionStart),
		disk, fmt.Sprintf("%dk", parts[0].size/1024))
	return disk, err
}

// partition is one of a disk.
type partition struct {
	kind byte // as in the partition table: 0x83 Linux, 0xef EFI system
	size int  // bytes
}

// writePartitionTable makes the file of a disk with partitions one after the
// other, the first of them the boot one, in the old table that every boot
// loader knows.
func writePartitionTable(name string, parts []partition) error {
	const sector = 512
	mbr := make([]byte, sector)
	start := partitionStart
	for i, part := range parts {
		p := mbr[446+16*i:]
		copy(p, []byte{0, 0xfe, 0xff, 0xff, part.kind, 0xfe, 0xff, 0xff}) // heads and cylinders are not used
		binary.LittleEndian.PutUint32(p[8:], uint32(start/sector))        // first sector
		binary.LittleEndian.PutUint32(p[12:], uint32(part.size/sector))   // how many
		start += part.size
	}
	mbr[446] = 0x80 // active
	mbr[510], mbr[511] = 0x55, 0xaa
	if err := os.WriteFile(name, mbr, 0o644); err != nil {
		return err
	}
	return os.Truncate(name, diskSize)
}
