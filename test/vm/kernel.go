package vm

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kernel names one of Debian's cloud kernels, the kind that virtual servers
// run.
type Kernel struct {
	Name  string // as in "6.12"; what its release begins with
	Suite string // where in Debian's archive it comes from
	Arch  string // Debian's (and Go's) name of the architecture
}

// The kernels to test with: each of Debian's since bullseye, and the newest
// that there is.
var (
	Kernel510      = Kernel{"5.10", "bullseye", "amd64"}
	Kernel61       = Kernel{"6.1", "bookworm", "amd64"}
	Kernel612      = Kernel{"6.12", "trixie", "amd64"}
	Kernel7        = Kernel{"7", "trixie-backports", "amd64"}
	Kernel612ARM64 = Kernel{"6.12", "trixie", "arm64"}
)

// Kernels returns the matrix of kernels to test with, oldest first, one of
// another architecture last.
func Kernels() []Kernel {
	return []Kernel{Kernel510, Kernel61, Kernel612, Kernel7, Kernel612ARM64}
}

// String returns "6.12" or, for another architecture, "6.12-arm64".
func (k Kernel) String() string {
	if k.Arch == "amd64" {
		return k.Name
	}
	return k.Name + "-" + k.Arch
}

// kernelFiles is a kernel on the host's disk.
type kernelFiles struct {
	Release string // as uname -r says
	Image   string // path of the bootable image
	Root    string // directory that holds the modules, below lib/modules/RELEASE
}

// fetch downloads and unpacks the newest version of the kernel, once a week at
// most. Where the mirror does not answer, a version fetched earlier is used.
func (k Kernel) fetch(ctx context.Context) (*kernelFiles, error) {
	root, err := CacheDir()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(root, "kernel", k.Suite+"-"+k.Arch)
	current := filepath.Join(base, "current")
	name, readErr := os.ReadFile(current)
	fi, _ := os.Stat(current)
	if readErr != nil || time.Since(fi.ModTime()) > freshFor {
		pkg, err := k.newest(ctx)
		switch {
		case err == nil:
			name = []byte(pkg)
		case readErr != nil:
			return nil, fmt.Errorf("finding the newest kernel %s: %w", k, err)
		}
	}
	pkg := string(name)
	dir, err := cached(ctx, filepath.Join("kernel", k.Suite+"-"+k.Arch), pkg, func(ctx context.Context, dir string) error {
		a, err := openApt(ctx, k.Suite, k.Arch)
		if err != nil {
			return err
		}
		// Newer packages carry their modules below usr/lib.
		if err := mergedRoot(dir); err != nil {
			return err
		}
		// Newer ones are in parts: linux-binary-RELEASE, linux-modules-RELEASE.
		pkgs := []string{pkg}
		deps, err := a.depends(ctx, pkg)
		if err != nil {
			return err
		}
		for _, d := range deps {
			if strings.HasSuffix(d, strings.TrimPrefix(pkg, "linux-image")) {
				pkgs = append(pkgs, d)
			}
		}
		if err := a.unpack(ctx, dir, pkgs...); err != nil {
			return err
		}
		release, err := onlyEntry(filepath.Join(dir, "usr/lib/modules"))
		if err != nil {
			return err
		}
		_, err = command(ctx, nil, "depmod", "-b", dir, release)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(current, []byte(pkg), 0o644); err != nil {
		return nil, err
	}
	release, err := onlyEntry(filepath.Join(dir, "usr/lib/modules"))
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(release, k.Name+".") {
		return nil, fmt.Errorf("the kernel of %s is %s, not a %s", k.Suite, release, k.Name)
	}
	image := filepath.Join(dir, "boot/vmlinuz-"+release)
	if _, err := os.Stat(image); err != nil {
		image = filepath.Join(dir, "usr/lib/modules", release, "vmlinuz") // since 7.x
	}
	return &kernelFiles{Release: release, Image: image, Root: dir}, nil
}

// newest returns the name of the package with the newest kernel of this kind.
func (k Kernel) newest(ctx context.Context) (string, error) {
	a, err := openApt(ctx, k.Suite, k.Arch)
	if err != nil {
		return "", err
	}
	deps, err := a.depends(ctx, "linux-image-cloud-"+k.Arch)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(deps, func(d string) bool { return strings.HasPrefix(d, "linux-image-") })
	if i < 0 {
		return "", fmt.Errorf("linux-image-cloud-%s depends on no kernel, only on %q", k.Arch, deps)
	}
	return deps[i], nil
}

// mergedRoot makes the links of a merged /usr in dir.
func mergedRoot(dir string) error {
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(dir, "usr", d), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+d, filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	return nil
}

func onlyEntry(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) != 1 {
		return "", fmt.Errorf("%s has %d entries, not one", dir, len(entries))
	}
	return entries[0].Name(), nil
}

// networkModules are the modules that a small machine has: what accel loads or
// must understand, and what tests make links and shapers with. Patterns as of
// path.Match, below the kernel directory.
var networkModules = []string{
	"net/ipv4/*", "net/ipv6/*", "net/sched/*", "net/bridge/bridge", "net/8021q/*", "net/mptcp/*",
	"net/core/*", "net/unix/*", "net/can/can", "net/can/can-raw",
	"drivers/net/dummy", "drivers/net/veth", "drivers/net/ifb", "drivers/net/tun", "drivers/net/vxlan", "drivers/net/vxlan/*",
	"drivers/net/bonding/*", "drivers/net/wireguard/*", "drivers/net/macvlan", "drivers/net/geneve", "drivers/net/can/vcan",
	"drivers/net/virtio_net", "drivers/net/net_failover", "drivers/net/vrf", "drivers/virtio/*", "drivers/block/virtio_blk",
}

// modules copies the modules that small machines need, and what those need,
// from the unpacked kernel to dir, and makes the index that modprobe reads.
// Modules named in without are left out, with all that need them: to the
// machine they do not exist.
func (f *kernelFiles) modules(ctx context.Context, dir string, without []string) error {
	base := filepath.Join(f.Root, "usr/lib/modules", f.Release)
	needs, err := readModulesDep(filepath.Join(base, "modules.dep"))
	if err != nil {
		return err
	}
	left := func(file string) bool { return slices.Contains(without, moduleName(file)) }
	want := map[string]bool{}
	for file, deps := range needs {
		name := strings.TrimPrefix(path.Join(path.Dir(file), moduleFile(file)), "kernel/")
		if !slices.ContainsFunc(networkModules, func(p string) bool { ok, _ := path.Match(p, name); return ok }) {
			continue
		}
		if left(file) || slices.ContainsFunc(deps, left) {
			continue
		}
		want[file] = true
		for _, d := range deps {
			want[d] = true
		}
	}
	to := filepath.Join(dir, "usr/lib/modules", f.Release)
	for file := range want {
		if err := copyFile(filepath.Join(base, file), filepath.Join(to, file), 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"modules.builtin", "modules.builtin.modinfo", "modules.order"} {
		err := copyFile(filepath.Join(base, name), filepath.Join(to, name), 0o644)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	_, err = command(ctx, nil, "depmod", "-b", filepath.Join(dir, "usr"), f.Release)
	return err
}

// readModulesDep reads which modules each module needs, by file name.
func readModulesDep(name string) (map[string][]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	needs := map[string][]string{}
	for s := bufio.NewScanner(f); ; {
		if !s.Scan() {
			return needs, s.Err()
		}
		if file, deps, ok := strings.Cut(s.Text(), ":"); ok {
			needs[file] = strings.Fields(deps)
		}
	}
}

// moduleFile returns the base name of a module's file without ".ko" and the
// ending of its compression.
func moduleFile(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return name
}

// moduleName returns the name by which the kernel knows the module in file.
func moduleName(file string) string { return strings.ReplaceAll(moduleFile(file), "-", "_") }

func copyFile(from, to string, perm fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, perm)
}
