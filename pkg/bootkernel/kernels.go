package bootkernel

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	"accel/pkg/kernel"
)

// Kernel is a kernel that is installed, or that the distribution offers.
type Kernel struct {
	Release    string   `json:"release"`           // "6.1.0-57-amd64"
	Package    string   `json:"package"`           // the package that holds it; "" for one that no package owns
	Version    string   `json:"version"`           // of the package
	Source     string   `json:"source"`            // "installed", or the suite that offers it, such as "bookworm-backports"
	Installed  bool     `json:"installed"`         //
	Running    bool     `json:"running"`           //
	Signed     *bool    `json:"signed"`            // with the distribution's key, so that Secure Boot takes it; null when not known
	Algorithms []string `json:"algorithms"`        // that it ships; null when not known
	BBRVersion *int     `json:"bbr_version"`       // null when not known before it runs
	SizeBytes  *uint64  `json:"size_bytes"`        // installed, with its modules; null when not known
	Download   *uint64  `json:"download_bytes"`    // of an offer
	Problem    string   `json:"problem,omitempty"` // why it cannot be started: "no initrd"
	Vendor     string   `json:"vendor,omitempty"`  // who made a kernel that is not the distribution's, as its name says
	meta       string   // the package that an offer comes by
}

// installedKernels lists the kernels in /boot, and how dpkg calls them.
func (h *Host) installedKernels(ctx context.Context, t *kernel.Tree) ([]Kernel, error) {
	entries, err := t.ReadDir("/boot")
	if err != nil {
		return nil, nil // an image without one
	}
	owners := h.owners(ctx)
	now := running(t)
	var list []Kernel
	for _, e := range entries {
		release := releaseOf(e.Name())
		if release == "" || strings.HasSuffix(release, ".old") || !releasePattern.MatchString(release) || strings.HasPrefix(e.Name(), "kernel-") {
			continue
		}
		k := Kernel{Release: release, Source: "installed", Installed: true, Running: release == now}
		if p, ok := owners[release]; ok {
			k.Package, k.Version = p.name, p.version
			signed := !strings.HasSuffix(p.name, "-unsigned") && distributions[kernel.ParseRelease(release).Family] && p.signed
			k.Signed = &signed
			if p.sizeKiB > 0 {
				size := p.sizeKiB << 10
				k.SizeBytes = &size
			}
		}
		k.Problem = bootable(t, release)
		h.contents(ctx, t, &k)
		k.Vendor = vendor(release)
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b Kernel) int { return compareVersions(b.Release, a.Release) })
	return list, nil
}

// distributions are the families whose own kernels are signed for Secure Boot.
var distributions = map[string]bool{"debian": true, "ubuntu": true}

// vendor names who made a kernel that no distribution did.
func vendor(release string) string {
	switch family := kernel.ParseRelease(release).Family; family {
	case "debian", "ubuntu", "":
		return ""
	default:
		return family
	}
}

// bootable says in a few words why an installed kernel cannot be started; "" if
// nothing speaks against it. A kernel that has its drivers as modules needs an
// initial ramdisk, and one that was cut off when the disk was full is shorter than
// any real one.
func bootable(t *kernel.Tree, release string) string {
	image, err := t.Stat("/boot/vmlinuz-" + release)
	if err != nil || image.Size() == 0 {
		return "no kernel image"
	}
	initrd, err := t.Stat("/boot/initrd.img-" + release)
	if err != nil || initrd.Size() == 0 {
		return "no initrd"
	}
	return ""
}

// contents reads what an installed kernel ships.
func (h *Host) contents(ctx context.Context, t *kernel.Tree, k *Kernel) {
	m := readModules(t, k.Release)
	if m == nil {
		return
	}
	k.Algorithms = []string{"cubic", "reno"} // in every kernel
	for name := range m.all {
		if a, ok := strings.CutPrefix(name, "tcp_"); ok && !slices.Contains(notAlgorithms, name) && !slices.Contains(k.Algorithms, a) {
			k.Algorithms = append(k.Algorithms, a)
		}
	}
	slices.Sort(k.Algorithms)
	if !slices.Contains(k.Algorithms, "bbr") {
		return
	}
	// BBR v3 says so in the information of its module; v1 has no version there.
	version := ""
	if m.builtin["tcp_bbr"] {
		data, err := t.ReadFile(m.dir + "/modules.builtin.modinfo")
		if err != nil {
			return
		}
		for field := range strings.SplitSeq(string(data), "\x00") {
			if v, ok := strings.CutPrefix(field, "tcp_bbr.version="); ok {
				version = v
			}
		}
	} else {
		out, err := h.run(ctx, "modinfo", "-k", k.Release, "-F", "version", "tcp_bbr")
		if err != nil {
			return
		}
		version = strings.TrimSpace(out)
	}
	v := 1
	if version != "" {
		n, err := strconv.Atoi(version)
		if err != nil {
			return
		}
		v = n
	}
	k.BBRVersion = &v
}

// Modules whose name begins like an algorithm's but that are none.
var notAlgorithms = []string{"tcp_diag", "tcp_probe", "tcp_sigpool"}

// modules are those of one installed kernel.
type modules struct {
	dir     string
	all     map[string]bool // built in or not
	builtin map[string]bool
	needs   map[string][]string // what a module needs, itself not included
}

// readModules reads the lists that come with a kernel, nil where there are none.
func readModules(t *kernel.Tree, release string) *modules {
	if !releasePattern.MatchString(release) {
		return nil
	}
	m := &modules{all: map[string]bool{}, builtin: map[string]bool{}, needs: map[string][]string{}}
	known := false
	for _, dir := range []string{"/lib/modules/", "/usr/lib/modules/"} {
		if data, err := t.ReadFile(dir + release + "/modules.builtin"); err == nil {
			m.dir, known = dir+release, true
			for line := range strings.Lines(string(data)) {
				name := moduleName(line)
				m.all[name], m.builtin[name] = true, true
			}
		}
		if data, err := t.ReadFile(dir + release + "/modules.dep"); err == nil {
			m.dir, known = dir+release, true
			for line := range strings.Lines(string(data)) {
				file, needs, ok := strings.Cut(line, ":")
				if !ok {
					continue
				}
				name := moduleName(file)
				m.all[name] = true
				for _, n := range strings.Fields(needs) {
					m.needs[name] = append(m.needs[name], moduleName(n))
				}
			}
		}
		if known {
			return m
		}
	}
	return nil
}

// moduleName turns a module's file into the name the kernel knows.
func moduleName(file string) string {
	name := path.Base(strings.TrimSpace(file))
	for _, suffix := range []string{".gz", ".xz", ".zst"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return strings.ReplaceAll(strings.TrimSuffix(name, ".ko"), "-", "_")
}

// owner is the package that holds a kernel.
type owner struct {
	name, version string
	sizeKiB       uint64
	signed        bool
}

// owners asks dpkg for the packages of all installed kernels, by release.
func (h *Host) owners(ctx context.Context) map[string]owner {
	out := map[string]owner{}
	said, err := h.run(ctx, "dpkg-query", "-W", "-f", `${db:Status-Abbrev}\t${Package}\t${Version}\t${Installed-Size}\t${source:Package}\n`, "linux-image-*")
	if err != nil && said == "" {
		return out
	}
	for line := range strings.Lines(said) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) < 5 || len(f[0]) < 2 || f[0][1] == 'n' || f[0][1] == 'c' {
			continue
		}
		release := strings.TrimSuffix(strings.TrimPrefix(f[1], "linux-image-"), "-unsigned")
		release = strings.TrimPrefix(release, "unsigned-")
		size, _ := strconv.ParseUint(f[3], 10, 64)
		out[release] = owner{name: f[1], version: f[2], sizeKiB: size, signed: strings.HasPrefix(f[4], "linux-signed")}
	}
	return out
}

// metaPackage is the package that always brings the newest kernel of a flavour:
// "linux-image-cloud-amd64". "" where a release has no Debian flavour.
func metaPackage(release string) string {
	r := kernel.ParseRelease(release)
	if r.Family != "debian" || r.Flavour == "" {
		return ""
	}
	return "linux-image-" + strings.TrimSuffix(r.Flavour, "-unsigned")
}
