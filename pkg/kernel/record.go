package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// RecordingName is the file of a recording that holds what lies in no file of the
// host.
const RecordingName = "accel-record.json"

// recordingSchema is the version of Recording that this code writes and reads.
const recordingSchema = "accel.record/1"

// ErrNotRecording means that accel-record.json is not a recording, or one of a
// version that this accel does not know.
var ErrNotRecording = errors.New("not a recording of a host that this accel can read")

// Recording is what is kept beside the copied files of a recorded host: all that
// came from system calls. It holds no address and no host name.
type Recording struct {
	Schema string `json:"schema"` // "accel.record/1"
	// Qdiscs, Routes and Connections are the caller's (pkg/qdisc, pkg/route,
	// pkg/socket); nil if not recorded.
	Qdiscs      json.RawMessage `json:"qdiscs,omitempty"`
	Routes      json.RawMessage `json:"routes,omitempty"`
	Connections map[string]int  `json:"connections"` // algorithm -> established connections

	Links            []Link        `json:"links"`
	InitialNetns     *bool         `json:"initial_netns"`
	Machine          string        `json:"machine"`
	Container        string        `json:"container"`
	UID              int           `json:"uid"` // -1 when not known
	Capabilities     *Capabilities `json:"capabilities"`
	Systemd          bool          `json:"systemd"`
	OtherNetns       int           `json:"other_netns"` // -1 when not known
	Containers       []string      `json:"containers"`
	Arch             string        `json:"arch"`
	SecureBoot       *bool         `json:"secure_boot"`
	ReadOnlyProcSys  bool          `json:"read_only_proc_sys"`
	ProcSysSandboxed bool          `json:"proc_sys_sandboxed"`
	BBRVersion       int           `json:"bbr_version"`
	BBRVersionFrom   string        `json:"bbr_version_from"`
}

// ReadRecording reads accel-record.json of a recorded host. The second result is
// false if dir has none: it is a mounted image, or made by hand. Errors: those of
// reading, ErrNotRecording.
func ReadRecording(dir string) (*Recording, bool, error) {
	t, err := OpenTree(dir)
	if err != nil {
		return nil, false, err
	}
	defer t.Close()
	return readRecording(t)
}

func readRecording(t *Tree) (*Recording, bool, error) {
	data, err := t.ReadFile(RecordingName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("reading %s: %w", RecordingName, err)
	}
	r := Recording{UID: -1, OtherNetns: -1}
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, false, fmt.Errorf("reading %s: %w: %w", RecordingName, ErrNotRecording, err)
	}
	if r.Schema != recordingSchema {
		return nil, false, fmt.Errorf("reading %s: schema %q: %w", RecordingName, r.Schema, ErrNotRecording)
	}
	return &r, true, nil
}

// Record writes a recording of this host below dir, for bug reports and tests. dir
// must not exist or be empty. It holds a fixed list of files, cut down to what
// accel looks at; comments are emptied, addresses, hardware addresses and the
// host's name are replaced. extra brings what other packages know (Qdiscs, Routes,
// Connections); the rest of it is filled in here.
//
// Errors: those of Detect and of writing; fs.ErrExist if dir is not empty.
func Record(dir string, extra Recording) error {
	t, err := OpenTree("/")
	if err != nil {
		return err
	}
	defer t.Close()
	f, err := Detect("/")
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	return record(t, f, newRedactor(host), dir, extra)
}

// recorder copies facts from a tree to a directory.
type recorder struct {
	from   *Tree
	to     *os.Root
	redact *redactor
	err    error // the first of writing; reading never fails a recording
}

func record(t *Tree, f *Facts, redact *redactor, dir string, extra Recording) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("recording this host: %w", err)
	}
	to, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("recording this host: %w", err)
	}
	defer to.Close()
	if entries, err := fs.ReadDir(to.FS(), "."); err != nil || len(entries) > 0 {
		return fmt.Errorf("recording this host into %s: the directory is not empty: %w", dir, errors.Join(err, fs.ErrExist))
	}
	r := &recorder{from: t, to: to, redact: redact}
	r.files(f)
	r.json(f, extra)
	if r.err != nil {
		return fmt.Errorf("recording this host: %w", r.err)
	}
	return nil
}

func (r *recorder) json(f *Facts, rec Recording) {
	rec.Schema = recordingSchema
	rec.Links = f.Links
	rec.InitialNetns = f.Virtualization.InitialNetns
	rec.Machine, rec.Container = f.Virtualization.Machine, f.Virtualization.Container
	rec.UID, rec.Capabilities = f.UID, f.Capabilities
	rec.Systemd, rec.OtherNetns, rec.Containers = f.Systemd, f.OtherNetns, f.Containers
	rec.Arch, rec.SecureBoot = f.Arch, f.SecureBoot
	rec.ReadOnlyProcSys, rec.ProcSysSandboxed = f.ReadOnlyProcSys, f.ProcSysSandboxed
	rec.BBRVersion, rec.BBRVersionFrom = f.BBRVersion, f.BBRVersionFrom
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	// Names of links in it may be made of hardware addresses.
	r.write(RecordingName, []byte(r.redact.addresses(string(data)+"\n")))
}

// write makes a file of the recording, once.
func (r *recorder) write(name string, data []byte) {
	name = r.redact.name(strings.TrimPrefix(path.Clean("/"+name), "/"))
	err := r.to.MkdirAll(path.Dir(name), 0o755)
	if err == nil {
		var f *os.File
		f, err = r.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			_, err = f.Write(data)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil && r.err == nil && !r.doubled(err, name) {
		r.err = err
	}
}

// doubled says that two names became one by what was replaced in them; the first
// is kept.
func (r *recorder) doubled(err error, name string) bool {
	return errors.Is(err, fs.ErrExist) && strings.Contains(name, placeholder)
}

// link makes a symbolic link of the recording.
func (r *recorder) link(target, name string) {
	name = r.redact.name(strings.TrimPrefix(path.Clean("/"+name), "/"))
	err := r.to.MkdirAll(path.Dir(name), 0o755)
	if err == nil {
		err = r.to.Symlink(r.redact.name(target), name)
	}
	if err != nil && r.err == nil && !r.doubled(err, name) {
		r.err = err
	}
}

// copy keeps a small file, put through change.
func (r *recorder) copy(name string, change func([]byte) []byte) {
	data, err := r.from.readLimited(name, 1<<20)
	if err != nil {
		return
	}
	if change != nil {
		data = change(data)
	}
	r.write(name, data)
}

// Files that are kept as they are. (Some releases look like an address.)
var recordedFiles = []string{
	"/proc/sys/kernel/osrelease", "/proc/sys/kernel/arch", "/proc/sys/kernel/modules_disabled",
	"/proc/1/comm", "/proc/meminfo", "/proc/xen/capabilities",
	"/sys/hypervisor/type", "/sys/devices/system/cpu/online",
	"/sys/devices/system/clocksource/clocksource0/available_clocksource",
	"/sys/kernel/security/lockdown", "/sys/module/module/parameters/sig_enforce", "/sys/module/tcp_bbr/version",
	"/etc/modules-load.d/accel.conf", "/var/lib/accel/state.json", "/usr/lib/systemd/system/accel.service",
}

// Files that are kept but for addresses and the host's name.
var redactedFiles = []string{
	"/sys/class/dmi/id/product_name", "/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/board_vendor",
	"/sys/class/dmi/id/bios_vendor", "/sys/class/dmi/id/product_version",
	"/etc/tuned/active_profile", "/etc/tuned/profile_mode", "/etc/tuned/tuned-main.conf", "/etc/ufw/ufw.conf",
}

// secretKeys below /proc/sys/net hold random keys, or do something when read.
var secretKeys = []string{"netdev_rss_key", "tcp_fastopen_key", "stat_refresh"}

func (r *recorder) files(f *Facts) {
	for _, name := range recordedFiles {
		r.copy(name, nil)
	}
	for _, name := range redactedFiles {
		r.copy(name, func(data []byte) []byte { return []byte(r.redact.text(string(data))) })
	}
	r.copy("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", nil)
	if data, err := r.from.ReadFile("/etc/os-release"); err == nil {
		r.write("/etc/os-release", keepLines(data, func(line string) bool {
			key, _, _ := strings.Cut(line, "=")
			switch key {
			case "ID", "ID_LIKE", "NAME", "PRETTY_NAME", "VERSION", "VERSION_ID", "VERSION_CODENAME", "VARIANT_ID":
				return true
			}
			return false
		}))
	}
	if f.Systemd {
		r.write("/run/systemd/system/.keep", nil)
	}
	r.copy("/proc/cpuinfo", cutCPUInfo)
	r.copy("/proc/cmdline", func(data []byte) []byte {
		var keep []string
		for _, word := range strings.Fields(string(data)) {
			key, _, _ := strings.Cut(word, "=")
			if key = strings.ReplaceAll(key, "-", "_"); key == "modprobe.blacklist" || key == "module_blacklist" {
				keep = append(keep, word)
			}
		}
		return []byte(strings.Join(keep, " ") + "\n")
	})
	r.copy("/proc/modules", func(data []byte) []byte {
		var b bytes.Buffer
		for _, m := range parseModules(data) {
			if wantedModule(moduleName(m.Name)) {
				usedBy := "-"
				if len(m.UsedBy) > 0 {
					usedBy = strings.Join(m.UsedBy, ",") + ","
				}
				fmt.Fprintf(&b, "%s %d %d %s Live 0x0000000000000000\n", m.Name, m.Size, m.Used, usedBy)
			}
		}
		return b.Bytes()
	})
	for _, dir := range []string{"/proc/sys/net/core", "/proc/sys/net/ipv4"} {
		entries, _ := r.from.ReadDir(dir)
		for _, e := range entries {
			if !e.IsDir() && !slices.Contains(secretKeys, e.Name()) {
				r.copy(path.Join(dir, e.Name()), nil)
			}
		}
	}
	r.modules(f.Release.Raw)
	for _, dir := range modprobeDirs {
		if r.isAlias(dir) {
			continue
		}
		r.confDir(dir, keepModprobe)
	}
	for _, dir := range []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d"} {
		if r.isAlias(dir) {
			continue
		}
		r.confDir(dir, r.keepSettings)
	}
	for _, name := range []string{"/etc/sysctl.conf", "/etc/ufw/sysctl.conf"} {
		r.conf(name, r.keepSettings)
	}
	r.copy("/etc/default/ufw", func(data []byte) []byte {
		return keepLines(data, func(line string) bool { return strings.HasPrefix(line, "IPT_SYSCTL=") })
	})
	// Of these only what scripts write; user names stay here.
	only := func(prefixes ...string) func([]byte) []byte {
		return func(data []byte) []byte {
			return blankLines(data, func(line string) string {
				if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
					return line
				}
				return ""
			})
		}
	}
	r.copy("/etc/security/limits.conf", only("* ", "*\t", "root "))
	r.copy("/etc/systemd/system.conf", only("[Manager]", "Default"))
	r.copy("/etc/profile", only("ulimit "))
	for _, unit := range []string{"accel", "tuned", "bpftune"} {
		wants := "/etc/systemd/system/multi-user.target.wants/" + unit + ".service"
		if target, err := r.from.Readlink(wants); err == nil {
			r.link(target, wants)
		}
	}
	r.links(f.Links)
}

// modules keeps what modules.dep, modules.builtin or the configuration say about
// algorithms and qdiscs, and empty files for modules that no list has.
func (r *recorder) modules(release string) {
	store := readModuleStore(r.from, release)
	if store.builtin == nil {
		if config := kernelConfig(r.from, release); config != nil {
			r.write("/boot/config-"+release, keepLines(config, func(line string) bool {
				return strings.Contains(line, "CONFIG_NET_SCH_") || strings.Contains(line, "CONFIG_TCP_CONG_")
			}))
		}
	}
	if store.dir == "" {
		return
	}
	wantedLine := func(line string) bool {
		file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		return wantedModule(moduleName(file))
	}
	for _, name := range []string{"modules.dep", "modules.builtin"} {
		if data, err := r.from.ReadFile(path.Join(store.dir, name)); err == nil {
			r.write(path.Join("/lib/modules", release, name), keepLines(data, wantedLine))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(store.files)) {
		if file := store.files[name]; !file.listed {
			r.write(path.Join("/lib/modules", release, file.path), nil)
		}
	}
}

// isAlias says that a directory below /lib is the one below /usr/lib, which is kept
// already.
func (r *recorder) isAlias(dir string) bool {
	if !strings.HasPrefix(dir, "/lib/") {
		return false
	}
	info, err := r.from.Lstat("/lib")
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// confDir keeps the *.conf files of a directory: their names and what they mask
// matter as much as what is in them.
func (r *recorder) confDir(dir string, change func([]byte) []byte) {
	entries, _ := r.from.ReadDir(dir)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".conf") {
			r.conf(path.Join(dir, e.Name()), change)
		}
	}
}

// conf keeps a configuration file; a link to another kept file or to /dev/null
// stays a link.
func (r *recorder) conf(name string, change func([]byte) []byte) {
	info, err := r.from.Lstat(name)
	if err != nil {
		return
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := r.from.Readlink(name)
		if err != nil {
			return
		}
		at := target
		if !path.IsAbs(at) {
			at = path.Join(path.Dir(name), at)
		}
		if at == "/dev/null" || at == "/etc/sysctl.conf" || strings.HasPrefix(at, path.Dir(name)+"/") {
			r.link(target, name)
			return
		}
	}
	r.copy(name, change)
}

// links keeps the plain attributes of links, as sysfs has them.
func (r *recorder) links(links []Link) {
	for _, l := range links {
		dir := path.Join("/sys/class/net", l.Name)
		r.write(path.Join(dir, "type"), fmt.Appendf(nil, "%d\n", l.Type))
		r.write(path.Join(dir, "ifindex"), fmt.Appendf(nil, "%d\n", l.Index))
		if l.SpeedMbit != nil {
			r.write(path.Join(dir, "speed"), fmt.Appendf(nil, "%d\n", *l.SpeedMbit))
		}
		if l.Driver != "" {
			r.write(path.Join(dir, "device/driver"), []byte(l.Driver+"\n"))
		}
	}
}

// keepLines keeps some lines and makes no empty ones of the others.
func keepLines(data []byte, keep func(line string) bool) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(data) {
		if keep(strings.TrimRight(string(line), "\r\n")) {
			b.Write(line)
		}
	}
	return b.Bytes()
}

// blankLines empties the lines that change does not keep, so that the others keep
// their numbers.
func blankLines(data []byte, change func(line string) string) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		body := strings.TrimRight(line, "\r\n")
		b.WriteString(change(body))
		b.WriteString(line[len(body):])
	}
	return []byte(b.String())
}

// keepModprobe keeps the commands that may concern an algorithm or a qdisc; options
// of other modules are nobody's business.
func keepModprobe(data []byte) []byte {
	keep := map[int]bool{}
	for _, r := range parseModprobe("", data) {
		if wantedModule(r.name) || strings.ContainsAny(r.name, "*?[") {
			for n := r.first; n <= r.last; n++ {
				keep[n] = true
			}
		}
	}
	n := 0
	return blankLines(data, func(line string) string {
		if n++; keep[n] {
			return line
		}
		return ""
	})
}

var (
	// What a line may be that assigns nothing and still means something: the
	// exclusion of a key, a command that was pasted.
	bareKey = regexp.MustCompile(`^-?[\w./*?\[\]-]+$`)
	// Where kernel keys begin.
	kernelKey = regexp.MustCompile(`\b(?:net|vm|fs|kernel|user|dev|abi|debug|crypto|sunrpc)[./]`)
)

// keepSettings keeps what sysctl.d's readers look at, line by line: assignments,
// and lines that they complain about, but not what comments and strange lines say.
func (r *recorder) keepSettings(data []byte) []byte {
	return blankLines(data, func(line string) string {
		body, bom := strings.CutPrefix(line, "\ufeff")
		mark := ""
		if bom {
			mark = "\ufeff"
		}
		trimmed := strings.TrimSpace(body)
		key, _, assigned := strings.Cut(trimmed, "=")
		switch {
		case strings.Contains(line, "\x00"):
			return mark + "\x00"
		case trimmed == "":
			return line
		case trimmed[0] == '#' || trimmed[0] == ';':
			return mark + trimmed[:1]
		case assigned && privateKey(key):
			return mark + "#"
		case assigned && kernelKey.MatchString(key), !assigned && (bareKey.MatchString(trimmed) || kernelKey.MatchString(trimmed)):
			return r.redact.text(line)
		case assigned:
			return mark + r.redact.text(key) + "=?"
		}
		return mark + "?"
	})
}

// privateKey says that a key's value is the host's name.
func privateKey(key string) bool {
	key = strings.ReplaceAll(strings.TrimSpace(strings.TrimPrefix(key, "-")), "/", ".")
	return key == "kernel.hostname" || key == "kernel.domainname"
}

// cutCPUInfo keeps the number of processors, the vendor, and of the flags the one
// that shows a hypervisor.
func cutCPUInfo(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "processor", "vendor_id":
			b.WriteString(line)
		case "flags":
			b.WriteString("flags\t\t:")
			if slices.Contains(strings.Fields(value), "hypervisor") {
				b.WriteString(" hypervisor")
			}
			b.WriteString("\n")
		}
	}
	return []byte(b.String())
}
