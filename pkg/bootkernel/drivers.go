package bootkernel

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"accel/pkg/kernel"
)

// driver is one that this host cannot do without.
type driver struct {
	Names []string // any of them will do: the module's name, or the driver's
	For   string   // "the root disk vda", "the network card eth0"
	Root  bool     // needed before the root file system is there
}

func (d driver) in(m *modules) bool {
	return slices.ContainsFunc(d.Names, func(n string) bool { return m.all[n] })
}

// otherNames are modules whose driver has another name in sysfs.
var otherNames = map[string]string{
	"sd": "sd_mod", "sr": "sr_mod", "vbd": "xen_blkfront", "vif": "xen_netfront", "mmcblk": "mmc_block",
}

// neededDrivers finds the drivers of the disks under the root file system, of that
// file system, and of the network cards behind the default routes.
func neededDrivers(t *kernel.Tree, f *kernel.Facts) []driver {
	var list []driver
	add := func(d driver) {
		if len(d.Names) > 0 && !slices.ContainsFunc(list, func(o driver) bool { return slices.Equal(o.Names, d.Names) }) {
			list = append(list, d)
		}
	}
	device, fstype := mountOf(t, "/")
	if fstype != "" && fstype != "overlay" {
		add(driver{[]string{fstype}, "the root file system", true})
	}
	found := disks(t, device)
	if len(found) == 0 { // btrfs has no device number of its own: its source leads there
		if number := read(t, "/sys/class/block/"+path.Base(mountSource(t, "/"))+"/dev"); number != "" {
			found = disks(t, number)
		}
	}
	for _, disk := range found {
		for _, d := range deviceDrivers(t, disk.dir) {
			add(driver{d, "the root disk " + disk.name, true})
		}
	}
	seen := map[string]bool{}
	var link func(string)
	link = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, l := range f.Links {
			if l.Name != name {
				continue
			}
			for _, lower := range l.Lower {
				link(lower)
			}
			if l.Driver == "" {
				continue
			}
			names := driverNames(t, "/sys/class/net/"+name+"/device/driver", l.Driver)
			add(driver{names, "the network card " + name, false})
		}
	}
	for _, l := range f.Links {
		if l.DefaultRoute {
			link(l.Name)
		}
	}
	return list
}

// mountOf gives the device ("254:1") and the type of the file system that holds a
// directory.
func mountOf(t *kernel.Tree, dir string) (device, fstype string) {
	best := -1
	for line := range strings.Lines(read(t, "/proc/self/mountinfo")) {
		before, after, ok := strings.Cut(line, " - ")
		f, s := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(s) < 1 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if point != "/" && point != dir && !strings.HasPrefix(dir, point+"/") {
			continue
		}
		if len(point) >= best {
			best, device, fstype = len(point), f[2], s[0]
		}
	}
	return device, fstype
}

// mountSource is what is mounted on a directory: "/dev/vda2".
func mountSource(t *kernel.Tree, dir string) string {
	source := ""
	for line := range strings.Lines(read(t, "/proc/self/mountinfo")) {
		before, after, ok := strings.Cut(line, " - ")
		f, s := strings.Fields(before), strings.Fields(after)
		if ok && len(f) >= 5 && len(s) >= 2 && f[4] == dir {
			source = s[1] // the last one is on top
		}
	}
	return source
}

// disk is a block device that is not made of others.
type disk struct{ name, dir string }

// disks goes from a block device ("254:1") to the disks below it: a partition's
// disk, and what LVM, RAID and encryption are made of.
func disks(t *kernel.Tree, device string) []disk {
	dir := resolveDir(t, "/sys/dev/block/"+device)
	if dir == "" {
		return nil
	}
	return disksBelow(t, dir, 0)
}

func disksBelow(t *kernel.Tree, dir string, depth int) []disk {
	if depth > 8 {
		return nil
	}
	if t.Exists(dir + "/partition") {
		dir = path.Dir(dir)
	}
	slaves, _ := t.ReadDir(dir + "/slaves")
	var list []disk
	for _, s := range slaves {
		if below := resolveDir(t, dir+"/slaves/"+s.Name()); below != "" {
			list = append(list, disksBelow(t, below, depth+1)...)
		}
	}
	if len(list) == 0 {
		list = []disk{{path.Base(dir), dir}}
	}
	return list
}

// resolveDir follows the links of a directory's name, one element after the
// other.
func resolveDir(t *kernel.Tree, name string) string {
	done := "/"
	rest := strings.Split(strings.Trim(name, "/"), "/")
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		at := path.Join(done, elem)
		info, err := t.Lstat(at)
		if err != nil {
			return ""
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = at
			continue
		}
		if links++; links > 40 {
			return ""
		}
		target, err := t.Readlink(at)
		if err != nil {
			return ""
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done
}

// deviceDrivers gives the drivers of a disk and of what it hangs on. Those that
// are built into the running kernel have no module here; of them only the disk's
// own counts, since the others' names need not be those of modules.
func deviceDrivers(t *kernel.Tree, dir string) [][]string {
	var list [][]string
	first := true
	at := dir + "/device"
	if real := resolveDir(t, at); real != "" {
		at = real
	}
	for at != "/" && at != "." && strings.HasPrefix(at, "/sys/") {
		if name := linkBase(t, at+"/driver"); name != "" {
			if first || linkBase(t, at+"/driver/module") != "" {
				list = append(list, driverNames(t, at+"/driver", name))
			}
			first = false
		}
		at = path.Dir(at)
	}
	return list
}

func driverNames(t *kernel.Tree, link, name string) []string {
	if m := linkBase(t, link+"/module"); m != "" {
		return []string{moduleName(m)}
	}
	if m := otherNames[name]; m != "" {
		return []string{m}
	}
	return []string{moduleName(name)}
}

// linkBase is the last element of a link's target. A recording may hold a file
// with the target in it.
func linkBase(t *kernel.Tree, name string) string {
	info, err := t.Lstat(name)
	if err != nil {
		return ""
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		target, _ = t.Readlink(name)
	} else if info.Mode().IsRegular() {
		target = read(t, name)
	}
	if target == "" {
		return ""
	}
	return path.Base(target)
}

// packagedModules lists the modules in downloaded packages, and those that are
// built in: newer Debian splits a kernel into several packages.
func (h *Host) packagedModules(ctx context.Context, debs []string) (*modules, error) {
	m := &modules{all: map[string]bool{}, builtin: map[string]bool{}}
	for _, deb := range debs {
		_, err := h.Programs.Run(ctx, Command{Name: "dpkg-deb", Args: []string{"--fsys-tarfile", deb}, Output: m.fromTar})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Base(deb), err)
		}
	}
	if len(m.all) == 0 {
		return nil, errors.New("they list no module")
	}
	return m, nil
}

// fromTar takes the names of module files, and the list of what is built in.
func (m *modules) fromTar(r io.Reader) error {
	for archive := tar.NewReader(r); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return err
		}
		base := path.Base(head.Name)
		for _, suffix := range []string{".gz", ".xz", ".zst"} {
			base = strings.TrimSuffix(base, suffix)
		}
		switch {
		case strings.HasSuffix(base, ".ko"):
			m.all[moduleName(head.Name)] = true
		case base == "modules.builtin":
			list, err := io.ReadAll(io.LimitReader(archive, 16<<20))
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(list)) {
				name := moduleName(line)
				m.all[name], m.builtin[name] = true, true
			}
		}
	}
}
