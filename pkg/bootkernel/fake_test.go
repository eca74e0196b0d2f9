package bootkernel

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
)

// The kernels of the fake host.
const (
	oldKernel = "6.1.0-57-cloud-amd64"
	newKernel = "6.12.95+deb12-cloud-amd64"
	newImage  = "linux-image-" + newKernel
	metaName  = "linux-image-cloud-amd64"
	bpo       = "6.12.95-1~bpo12+1"
	oldDeb    = "6.1.192-3"
)

// behaviour is what a kernel does when it is started.
type behaviour int

const (
	works  behaviour = iota
	panics           // and reboots, if panic= says so
	hangs            // until somebody presses reset
	noNet            // comes up without a network card
	noSSH
	emergency // the boot ends in emergency mode: only the timer runs
)

// fakeHost is a host below a temporary directory, with programs that do to it
// what the real ones do. Every step that changes it is counted, so that a test can
// stop everything before each one.
type fakeHost struct {
	t         testing.TB
	root      string
	packages  map[string]string // installed, by name
	half      map[string]bool   // only half configured
	torn      map[string]bool   // the power was cut while it was unpacked
	offered   []fakeOffer
	backports bool                 // its lists are fetched
	kernels   map[string]behaviour // by release
	facts     kernel.Facts
	now       time.Time
	wentDown  bool
	fail      map[string]error // by the beginning of a command: what it does instead
	free      map[string]uint64
	// algorithms are in force with the kernels of these releases, bbr with the others.
	algorithms map[string]string
	holder     string
	ops        []string
	crashAt    int
	boots      []string // what was started, in order
	unreached  bool
	tunnelled  bool   // the only default route leads into a tunnel
	broken     string // what is wrong with the network of this boot
	args       string // of the kernel's command line
	// readOnlyEnv: GRUB cannot write to its environment block.
	readOnlyEnv bool
	shell       bool // settings are read by a real shell
	noInitrd    bool // the disk runs full when the new kernel is installed
}

type fakeOffer struct{ name, version, suite, depends string }

var errCrash = errors.New("crash")

func newFakeHost(t testing.TB) *fakeHost {
	f := &fakeHost{
		t: t, root: t.TempDir(),
		packages: map[string]string{"linux-image-" + oldKernel: oldDeb, metaName: oldDeb},
		half:     map[string]bool{},
		torn:     map[string]bool{},
		offered: []fakeOffer{
			{metaName, bpo, "bookworm-backports", newImage},
			{newImage, bpo, "bookworm-backports", ""},
			{metaName, oldDeb, "bookworm-security", "linux-image-" + oldKernel},
			{"linux-image-" + oldKernel, oldDeb, "bookworm-security", ""},
		},
		kernels: map[string]behaviour{},
		args:    "quiet",
		facts: kernel.Facts{
			Distribution: kernel.Distribution{ID: "debian", VersionID: "12", Name: "Debian GNU/Linux 12 (bookworm)", Codename: "bookworm"},
			Systemd:      true, Arch: "x86_64",
			Links: []kernel.Link{{Name: "eth0", Driver: "virtio_net", DefaultRoute: true, Hardware: true}},
		},
		now:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		fail: map[string]error{},
		free: map[string]uint64{},
	}
	for name, content := range map[string]string{
		"/etc/default/grub":                                  "GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\n",
		"/etc/default/grub.d/10_cloud.cfg":                   "GRUB_TIMEOUT=0\n",
		"/etc/grub.d/10_linux":                               "#!/bin/sh\n",
		"/etc/apt/apt.conf.d/01autoremove":                   "\n",
		"/etc/apt/sources.list.d/x.sources":                  "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
		"/proc/sys/kernel/panic":                             "0\n",
		"/proc/sys/kernel/panic_on_oops":                     "0\n",
		"/proc/self/mountinfo":                               "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n",
		"/sys/devices/pci0/virtio2/block/vda/vda1/partition": "1\n",
		"/sys/devices/pci0/virtio2/block/vda/slaves/.keep":   "",
		"/usr/bin/apt-get":                                   "",
		"/usr/bin/dpkg":                                      "",
		"/usr/bin/grub-editenv":                              "",
		"/usr/bin/accel":                                     "",
		"/usr/sbin/update-grub":                              "",
		"/var/lib/accel/.keep":                               "",
		"/var/cache/apt/archives/.keep":                      "",
		"/run/.keep":                                         "",
	} {
		f.put(name, content)
	}
	for _, u := range units {
		f.put("/usr/lib/systemd/system/"+u, "")
	}
	f.link("/sys/dev/block/254:1", "../../devices/pci0/virtio2/block/vda/vda1")
	f.link("/sys/devices/pci0/virtio2/block/vda/device", "../../../virtio2")
	f.link("/sys/devices/pci0/virtio2/driver", "../../../bus/virtio/drivers/virtio_blk")
	f.unpack(oldKernel)
	f.setEnv(map[string]string{})
	f.updateGrub()
	f.boot()
	f.boots = nil
	return f
}

func (f *fakeHost) path(name string) string { return filepath.Join(f.root, name) }

func (f *fakeHost) put(name, content string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.path(name)), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(f.path(name), []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeHost) link(name, target string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.path(name)), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink(target, f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeHost) get(name string) string {
	data, _ := os.ReadFile(f.path(name))
	return string(data)
}

func (f *fakeHost) exists(name string) bool {
	_, err := os.Lstat(f.path(name))
	return err == nil
}

// unpack puts the files of a kernel in their places.
func (f *fakeHost) unpack(release string) {
	f.put("/boot/vmlinuz-"+release, "kernel "+release)
	if !f.noInitrd || release == oldKernel {
		f.put("/boot/initrd.img-"+release, "initrd "+release)
	}
	f.put("/lib/modules/"+release+"/modules.builtin", "kernel/fs/ext4/ext4.ko\nkernel/net/ipv4/tcp_cubic.ko\n")
	f.put("/lib/modules/"+release+"/modules.dep", "kernel/drivers/block/virtio_blk.ko.xz:\nkernel/drivers/net/virtio_net.ko: kernel/net/core/failover.ko\nkernel/net/ipv4/tcp_bbr.ko:\n")
}

// step counts one change, and stops everything at crashAt.
func (f *fakeHost) step(format string, args ...any) {
	f.ops = append(f.ops, fmt.Sprintf(format, args...))
	if len(f.ops) == f.crashAt {
		panic(errCrash)
	}
}

// during runs a command and tells whether it was cut off.
func (f *fakeHost) during(crashAt int, command func()) (crashed bool) {
	f.ops, f.crashAt = nil, crashAt
	defer func() {
		f.crashAt = 0
		if r := recover(); r != nil {
			if r != errCrash {
				panic(r)
			}
			crashed = true
		}
	}()
	command()
	return false
}

func (f *fakeHost) host() *Host {
	return &Host{
		Root: f.root, Files: fakeFiles{f, files.OS{Root: f.root}}, Programs: f, Network: fakeNetwork{f}, Arch: "amd64",
		Detect: func() (*kernel.Facts, error) { facts := f.facts; return &facts, nil },
		Sysctl: fakeSysctl{f},
		SelfConnect: func(context.Context) (socket.Evidence, error) {
			a := cmp.Or(f.algorithms[f.running()], "bbr")
			return socket.Evidence{Client: a, Server: a}, nil
		},
		Space: func(dir string) (Space, error) {
			free, ok := f.free[dir]
			if !ok {
				free = 10 << 30
			}
			device := uint64(1)
			if ok {
				device = uint64(len(dir)) + 1
			}
			return Space{Free: free, Device: device}, nil
		},
		Holder: func(string) string { return f.holder },
		Lock:   func(context.Context) (func(), error) { return func() {}, nil },
		Now:    func() time.Time { return f.now },
		Sleep: func(ctx context.Context, d time.Duration) error {
			if f.wentDown {
				return context.Canceled
			}
			f.now = f.now.Add(d)
			return ctx.Err()
		},
		Sync: func() {},
		Log:  slog.New(slog.DiscardHandler),
	}
}

type fakeFiles struct {
	f *fakeHost
	files.OS
}

func (w fakeFiles) WriteFile(name string, data []byte, perm fs.FileMode) error {
	w.f.step("write %s", name)
	// Without the syncs of the real one, which are tested where it is.
	path := w.f.path(name)
	if err := os.WriteFile(path, data, perm); err != nil {
		return err
	}
	return os.Chmod(path, perm)
}

func (w fakeFiles) Remove(name string) error {
	if _, err := w.Lstat(name); err == nil {
		w.f.step("remove %s", name)
	}
	if err := os.Remove(w.f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type fakeSysctl struct{ f *fakeHost }

func (s fakeSysctl) Read(k sysctl.Key) (string, error) {
	return strings.TrimSpace(s.f.get("/proc/sys/" + string(k))), nil
}

func (s fakeSysctl) Write(k sysctl.Key, v string) error {
	s.f.step("sysctl %s=%s", k, v)
	s.f.put("/proc/sys/"+string(k), v+"\n")
	return nil
}

type fakeNetwork struct{ f *fakeHost }

func (n fakeNetwork) Gateways() ([]route.Gateway, error) {
	if n.f.broken == "net" {
		return nil, nil
	}
	if n.f.tunnelled {
		return []route.Gateway{{Family: "inet", Link: "wg0"}}, nil
	}
	return []route.Gateway{{Family: "inet", Link: "eth0", Address: netip.MustParseAddr("192.0.2.1"), Neighbour: true}}, nil
}

func (n fakeNetwork) Resolve(context.Context, route.Gateway) bool { return !n.f.unreached }

func (n fakeNetwork) Listening(bool) ([]int, error) {
	if n.f.broken == "ssh" {
		return []int{25}, nil
	}
	return []int{22}, nil
}

func (f *fakeHost) env() map[string]string {
	env, err := parseEnv([]byte(f.get(grubEnv)))
	if err != nil {
		return map[string]string{}
	}
	return env
}

func (f *fakeHost) setEnv(env map[string]string) {
	s := "# GRUB Environment Block\n"
	for _, k := range []string{"saved_entry", "next_entry"} {
		if v, ok := env[k]; ok {
			s += k + "=" + v + "\n"
		}
	}
	f.put(grubEnv, s+strings.Repeat("#", envSize-len(s)))
}

// settings reads GRUB_DEFAULT and GRUB_DISABLE_SUBMENU from the files of
// /etc/default, with a real shell where shell is set. Elsewhere what accel writes is
// read by the few rules that it needs, which is a hundred times as fast.
func (f *fakeHost) settings() (def string, flat bool) {
	names := append([]string{f.path("/etc/default/grub")}, glob(f.path("/etc/default/grub.d/*.cfg"))...)
	if f.shell {
		script := "ROOT=" + f.root + "\n"
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err == nil {
				script += strings.ReplaceAll(string(data), "-e '/boot/", "-e $ROOT'/boot/") + "\n"
			}
		}
		out, err := exec.Command("sh", "-euc", script+"\nprintf '%s\\n%s\\n' \"${GRUB_DEFAULT:-0}\" \"${GRUB_DISABLE_SUBMENU:-}\"").Output()
		if err != nil {
			f.t.Fatalf("the files in /etc/default: %v", err)
		}
		lines := strings.Split(string(out), "\n")
		return lines[0], lines[1] == "true" || lines[1] == "y"
	}
	values := map[string]string{}
	for _, name := range names {
		data, _ := os.ReadFile(name)
		on := true
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			words := shellWords(line)
			switch {
			case strings.HasPrefix(line, "if "):
				for i, w := range words {
					on = on && (w != "-e" || f.exists(words[i+1]))
				}
			case line == "fi":
				on = true
			case strings.HasPrefix(line, "true | yes | y) "):
				line = strings.TrimPrefix(line, "true | yes | y) ")
				if values["GRUB_DISABLE_SUBMENU"] == "" {
					continue
				}
				words = shellWords(line)
			case strings.HasPrefix(line, "*) "):
				if values["GRUB_DISABLE_SUBMENU"] != "" {
					continue
				}
				words = shellWords(strings.TrimPrefix(line, "*) "))
			}
			for _, w := range words {
				if k, v, ok := strings.Cut(w, "="); ok && on && strings.HasPrefix(k, "GRUB_") {
					values[k] = v
				}
			}
		}
	}
	if values["GRUB_DEFAULT"] == "" {
		values["GRUB_DEFAULT"] = "0"
	}
	return values["GRUB_DEFAULT"], values["GRUB_DISABLE_SUBMENU"] != ""
}

// updateGrub does what grub-mkconfig does.
func (f *fakeHost) updateGrub() {
	def, flat := f.settings()
	if def == "saved" {
		def = "${saved_entry}"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `### BEGIN /etc/grub.d/00_header ###
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="%s"
fi
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
`, def)
	var releases []string
	for _, n := range glob(f.path("/boot/vmlinuz-*")) {
		releases = append(releases, releaseOf(n))
	}
	slices.SortFunc(releases, func(a, b string) int { return compareVersions(b, a) })
	entry := func(indent, title, id, release, args string) {
		initrd := ""
		if f.exists("/boot/initrd.img-" + release) {
			initrd = indent + "\tinitrd\t/boot/initrd.img-" + release + "\n"
		}
		fmt.Fprintf(&b, "%[1]smenuentry '%[2]s' --class debian $menuentry_id_option '%[3]s' {\n%[1]s\tload_video\n%[1]s\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi\n%[1]s\techo\t'Loading Linux %[4]s ...'\n%[1]s\tlinux\t/boot/vmlinuz-%[4]s root=UUID=u ro %[5]s\n%[6]s%[1]s}\n",
			indent, title, id, release, args, initrd)
	}
	for i, r := range releases {
		indent := "\t"
		if flat {
			indent = ""
		} else if i == 0 {
			entry("", "Debian GNU/Linux", "gnulinux-simple-u", r, f.args)
			b.WriteString("submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-u' {\n")
		}
		entry(indent, "Debian GNU/Linux, with Linux "+r, "gnulinux-"+r+"-advanced-u", r, f.args)
		entry(indent, "Debian GNU/Linux, with Linux "+r+" (recovery mode)", "gnulinux-"+r+"-recovery-u", r, "single")
	}
	if !flat && len(releases) > 0 {
		b.WriteString("}\n")
	}
	if f.exists(TrialFile) && !f.shell {
		script := f.get(TrialFile)
		_, script, _ = strings.Cut(script, "<<'ACCEL'\n")
		script, _, _ = strings.Cut(script, "\nACCEL\n")
		b.WriteString(script + "\n")
	} else if f.exists(TrialFile) {
		script := strings.ReplaceAll(f.get(TrialFile), "-e '/boot/", "-e '"+f.root+"/boot/")
		out, err := exec.Command("sh", "-c", script).Output()
		if err != nil {
			f.t.Fatalf("%s: %v", TrialFile, err)
		}
		b.Write(out)
	}
	f.put(grubConfig, b.String())
}

func glob(pattern string) []string {
	list, _ := filepath.Glob(pattern)
	return list
}

// boot starts the host until something runs, and lets accel's services do their
// work. A kernel that hangs is reset.
func (f *fakeHost) boot() {
	for range 5 {
		f.wentDown = false
		m := ParseMenu([]byte(f.get(grubConfig)))
		env := f.env()
		want := m.Default
		if next := env["next_entry"]; next != "" {
			want = next
			if !f.readOnlyEnv {
				env["next_entry"] = ""
				f.setEnv(env)
			} else if next == trialID { // as its entry says
				want = m.Ordinary(oldKernel).Name()
			}
		}
		e := m.Find(want, env)
		if e == nil {
			f.t.Fatal("GRUB waits at a menu")
		}
		release := e.Release()
		f.boots = append(f.boots, release)
		f.now = f.now.Add(time.Minute)
		if len(e.Initrd) == 0 || !f.exists("/boot/vmlinuz-"+release) {
			f.t.Fatalf("GRUB started %s, which cannot find its disk", release)
		}
		if !strings.Contains(e.Args, "panic=30") && f.kernels[release] != works && f.kernels[release] != hangs {
			f.t.Fatalf("%s was started outside of a trial", release)
		}
		f.put("/proc/cmdline", "BOOT_IMAGE="+e.Kernel+" "+e.Args+"\n")
		f.put("/proc/sys/kernel/osrelease", release+"\n")
		f.put("/proc/sys/kernel/random/boot_id", fmt.Sprintf("boot-%d-%d\n", len(f.boots), f.now.Unix()))
		f.put("/proc/sys/kernel/panic", "0\n")
		if strings.Contains(e.Args, "panic=30") {
			f.put("/proc/sys/kernel/panic", "30\n")
		}
		f.put("/proc/sys/kernel/panic_on_oops", "0\n")
		if strings.Contains(e.Args, "oops=panic") {
			f.put("/proc/sys/kernel/panic_on_oops", "1\n")
		}
		os.RemoveAll(f.path("/run/accel"))
		f.broken = ""
		switch f.kernels[release] {
		case panics, hangs:
			continue
		case noNet:
			f.broken = "net"
		case noSSH:
			f.broken = "ssh"
		}
		if f.kernels[release] != emergency && f.exists(StateFile) {
			if _, err := Settle(context.Background(), f.host()); err != nil && !f.wentDown {
				f.t.Logf("settle: %v", err)
			}
		}
		if !f.wentDown && strings.Contains(e.Args, trialOption) {
			f.now = f.now.Add(10 * time.Minute)
			if _, err := Deadline(context.Background(), f.host()); err != nil && !f.wentDown {
				f.t.Logf("deadline: %v", err)
			}
		}
		if !f.wentDown {
			return
		}
	}
	f.t.Fatalf("it boots again and again: %q", f.boots)
}

func (f *fakeHost) running() string { return strings.TrimSpace(f.get("/proc/sys/kernel/osrelease")) }

// Run implements Programs.
func (f *fakeHost) Run(ctx context.Context, c Command) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	for begin, err := range f.fail {
		if strings.HasPrefix(c.String(), begin) {
			return "", err
		}
	}
	args := slices.DeleteFunc(slices.Clone(c.Args), func(a string) bool { return a == "-q" || a == "-y" })
	for i := 0; i < len(args); {
		switch {
		case args[i] == "-o":
			args = slices.Delete(args, i, i+2)
		default:
			i++
		}
	}
	switch c.Name {
	case "apt-cache":
		return f.aptCache(args, slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "Dir::Etc::sourcelist=") }))
	case "apt-get":
		return f.aptGet(args, c)
	case "apt-mark", "modinfo":
		return "", nil
	case "debconf-show":
		return "* grub-pc/install_devices: /boot\n", nil
	case "dpkg":
		if slices.Contains(args, "--configure") {
			return "", &ProgramError{Command: "dpkg --configure", Exit: 1, Said: "No space left on device"}
		}
		if slices.Contains(args, "--unpack") {
			for _, deb := range args[2:] {
				name, rest, _ := strings.Cut(filepath.Base(deb), "_")
				version, _, _ := strings.Cut(rest, "_")
				f.step("dpkg --unpack %s", name)
				delete(f.torn, name)
				f.packages[name] = version
				if release := strings.TrimPrefix(name, "linux-image-"); name != metaName {
					f.unpack(release)
				}
			}
			return "", nil
		}
		if len(f.half)+len(f.torn) > 0 {
			return "The following packages are only half configured\n", nil
		}
		return "", nil
	case "dpkg-query":
		return f.dpkgQuery(args), nil
	case "dpkg-deb":
		return "", c.Output(bytes.NewReader(f.deb()))
	case "lsinitramfs":
		return "usr/lib/modules/x/kernel/drivers/block/virtio_blk.ko\n", nil
	case "update-grub":
		f.step("update-grub")
		f.updateGrub()
		return "", nil
	case "grub-editenv":
		f.step("grub-editenv %s", strings.Join(args[1:], " "))
		env := f.env()
		if args[1] == "set" {
			k, v, _ := strings.Cut(args[2], "=")
			env[k] = v
		} else {
			delete(env, args[2])
		}
		f.setEnv(env)
		return "", nil
	case "systemctl":
		f.step("systemctl %s", strings.Join(args, " "))
		f.wentDown = true
		return "", nil
	}
	return "", fmt.Errorf("%s: %w", c.Name, ErrNoProgram)
}

// deb is a package as dpkg-deb unpacks it.
func (f *fakeHost) deb() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range map[string]string{
		"./lib/modules/x/kernel/drivers/block/virtio_blk.ko.xz": "", "./lib/modules/x/kernel/drivers/net/virtio_net.ko.xz": "",
		"./lib/modules/x/modules.builtin": "kernel/fs/ext4/ext4.ko\n",
	} {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg})
		_, _ = w.Write([]byte(content))
	}
	_ = w.Close()
	return b.Bytes()
}

func (f *fakeHost) aptCache(args []string, peeked bool) (string, error) {
	var out strings.Builder
	see := func(o fakeOffer) bool {
		return peeked == strings.HasSuffix(o.suite, "-backports") || !peeked && f.backports
	}
	for _, o := range f.offered {
		if !see(o) {
			continue
		}
		switch args[0] {
		case "pkgnames":
			fmt.Fprintln(&out, o.name)
		case "madison":
			if o.name == args[1] {
				fmt.Fprintf(&out, "%s | %s | http://mirror.example/debian %s/main amd64 Packages\n", o.name, o.version, o.suite)
			}
		case "show":
			if o.name == args[1] || o.name+"="+o.version == args[1] {
				fmt.Fprintf(&out, "Package: %s\nSource: linux-signed-amd64 (1)\nVersion: %s\nInstalled-Size: 105548\nSize: 26705532\n", o.name, o.version)
				if o.depends != "" {
					fmt.Fprintf(&out, "Depends: linux-base-cloud-amd64, %s (= %s)\n", o.depends, o.version)
				}
				out.WriteString("\n")
			}
		}
	}
	if args[0] == "show" && out.Len() == 0 {
		return "", &ProgramError{Command: "apt-cache show", Exit: 100, Said: "No packages found"}
	}
	return out.String(), nil
}

func (f *fakeHost) dpkgQuery(args []string) string {
	var out strings.Builder
	for _, name := range slices.Sorted(keys(f.packages)) {
		if args[3] != "linux-image-*" && !slices.Contains(args[3:], name) {
			continue
		}
		if strings.Contains(args[2], "Installed-Size") {
			fmt.Fprintf(&out, "ii \t%s\t%s\t105548\tlinux-signed-amd64\n", name, f.packages[name])
		} else {
			status := "ii "
			if f.torn[name] {
				status = "iHR"
			}
			fmt.Fprintf(&out, "%s\t%s\t%s\n", status, name, f.packages[name])
		}
	}
	return out.String()
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (f *fakeHost) aptGet(args []string, c Command) (string, error) {
	simulate := slices.Contains(args, "-s")
	only := slices.Contains(args, "--download-only")
	args = slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
	switch args[0] {
	case "update":
		f.backports = f.exists(BackportsFile) // also where only that is fetched
		return "", nil
	case "install":
	case "remove":
		for i := 1; i < len(args); i++ {
			args[i] += "-"
		}
	default:
		f.t.Fatalf("apt-get %q", args)
	}
	var out strings.Builder
	type change struct{ name, version string }
	var changes []change
	for _, a := range args[1:] {
		if name, ok := strings.CutSuffix(a, "-"); ok {
			fmt.Fprintf(&out, "Remv %s [%s]\n", name, f.packages[name])
			changes = append(changes, change{name, ""})
			continue
		}
		name, version, _ := strings.Cut(a, "=")
		if !slices.ContainsFunc(f.offered, func(o fakeOffer) bool {
			return o.name == name && o.version == version && (f.backports || !strings.HasSuffix(o.suite, "-backports"))
		}) {
			return "", &ProgramError{Command: "apt-get install", Exit: 100, Said: "Version '" + version + "' for '" + name + "' was not found"}
		}
		if before := f.packages[name]; before != "" {
			fmt.Fprintf(&out, "Inst %s [%s] (%s Debian:12 [amd64])\n", name, before, version)
		} else {
			fmt.Fprintf(&out, "Inst %s (%s Debian:12 [amd64])\n", name, version)
		}
		changes = append(changes, change{name, version})
	}
	if simulate {
		return out.String(), nil
	}
	if only {
		for _, ch := range changes {
			f.put("/var/cache/apt/archives/"+ch.name+"_"+ch.version+"_amd64.deb", "")
		}
		return "", nil
	}
	for _, ch := range changes {
		f.step("apt %s %s", ch.name, ch.version)
		release, isKernel := strings.CutPrefix(ch.name, "linux-image-")
		isKernel = isKernel && ch.name != metaName
		if f.torn[ch.name] {
			return "", &ProgramError{Command: "apt-get remove", Exit: 100, Said: "dpkg: error processing package " + ch.name}
		}
		if ch.version == "" {
			delete(f.packages, ch.name)
			delete(f.half, ch.name)
			if isKernel {
				for _, n := range []string{"/boot/vmlinuz-", "/boot/initrd.img-", "/lib/modules/"} {
					os.RemoveAll(f.path(n + release))
				}
				f.updateGrub()
			}
			continue
		}
		f.packages[ch.name], f.torn[ch.name] = ch.version, true
		f.step("unpacking %s", ch.name)
		delete(f.torn, ch.name)
		if isKernel {
			f.unpack(release)
			if f.noInitrd {
				f.half[ch.name] = true
				return "", &ProgramError{Command: "apt-get install", Exit: 100, Said: "Sub-process /usr/bin/dpkg returned an error code (1)"}
			}
			f.step("postinst of %s", ch.name)
			f.updateGrub()
		}
	}
	if c.Progress != nil {
		c.Progress(100, "done")
	}
	return "", nil
}

func removeAll(name string) error { return os.RemoveAll(name) }
