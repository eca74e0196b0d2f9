package kernel

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Detect finds the facts about a host. root "/" (or "") is this host: links come
// from netlink, in the network namespace of the calling thread. Any other root is a
// recorded host or a mounted image: only what the tree holds, the rest not known.
//
// The error is that root cannot be opened, its accel-record.json is not one, or
// the kernel answers no netlink; everything else that is missing is a fact not
// known.
func Detect(root string) (*Facts, error) {
	t, err := OpenTree(root)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	f := &Facts{UID: -1, OtherNetns: -1}
	f.fromTree(t)
	if t.Live() {
		return f, f.fromLive(t)
	}
	return f, f.fromRecording(t)
}

// fromTree fills in what files say, on this host and in a recorded one alike.
func (f *Facts) fromTree(t *Tree) {
	f.Release = ParseRelease(t.text("/proc/sys/kernel/osrelease"))
	f.Distribution = distribution(t)
	f.PID1 = t.text("/proc/1/comm")
	f.Systemd = t.isDir("/run/systemd/system")
	f.MemoryBytes = memory(t)
	f.CPUs = onlineCPUs(t)
	f.SecureBoot = secureBoot(t)
	f.Lockdown = lockdown(t)
	f.SignaturesForced = signaturesForced(t)
	f.ReadOnlyProcSys, f.ProcSysSandboxed = procSysReadOnly(t)
	f.Arch = t.text("/proc/sys/kernel/arch") // since Linux 6.1
	f.detectAlgorithms(t)
}

func (f *Facts) fromLive(t *Tree) error {
	f.UID = os.Getuid()
	f.Capabilities = liveCapabilities(t)
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		f.Arch = unix.ByteSliceToString(name.Machine[:])
		if f.Release.Raw == "" {
			f.Release = ParseRelease(unix.ByteSliceToString(name.Release[:]))
		}
	}
	var err error
	f.Links, err = liveLinks(t)
	return err
}

func (f *Facts) fromRecording(t *Tree) error {
	f.Links, _ = treeLinks(t)
	return nil
}

// distribution reads os-release, which is shell assignments.
func distribution(t *Tree) Distribution {
	data, err := t.ReadFile("/etc/os-release")
	if err != nil {
		data, err = t.ReadFile("/usr/lib/os-release")
	}
	if err != nil {
		return Distribution{}
	}
	v := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") {
			v[key] = unquote(value)
		}
	}
	d := Distribution{ID: v["ID"], VersionID: v["VERSION_ID"], Name: v["PRETTY_NAME"], Codename: v["VERSION_CODENAME"]}
	if d.Name == "" {
		d.Name = strings.TrimSpace(v["NAME"] + " " + v["VERSION"])
	}
	if d.ID == "" && d.Name != "" {
		d.ID = "linux" // os-release(5): the default
	}
	return d
}

// unquote undoes shell quoting of one word.
func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		quote := s[0]
		s = s[1 : len(s)-1]
		if quote == '"' {
			s = strings.NewReplacer(`\"`, `"`, `\$`, `$`, "\\`", "`", `\\`, `\`).Replace(s)
		}
	}
	return s
}

// memory returns MemTotal in bytes. It is read here and not by gopsutil, which
// takes its roots from a context or the environment: then a recorded host could
// quietly be answered with this one's memory.
func memory(t *Tree) uint64 {
	for line := range strings.Lines(t.text("/proc/meminfo")) {
		w := strings.Fields(line)
		if len(w) >= 2 && w[0] == "MemTotal:" {
			kib, err := strconv.ParseUint(w[1], 10, 54)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// onlineCPUs counts the processors in use.
func onlineCPUs(t *Tree) int {
	if n := countRange(t.text("/sys/devices/system/cpu/online")); n > 0 {
		return n
	}
	n := 0
	for line := range strings.Lines(t.text("/proc/cpuinfo")) {
		if key, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "processor" {
			n++
		}
	}
	return n
}

// countRange counts the numbers in a list such as "0-3,8"; 0 if it is none.
func countRange(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		b := a
		if isRange && err == nil {
			b, err = strconv.Atoi(last)
		}
		if err != nil || a < 0 || b < a || b > 1<<16 {
			return 0
		}
		n += b - a + 1
	}
	return n
}

func gunzip(data []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("unpacking: %w", err)
	}
	return io.ReadAll(io.LimitReader(z, maxFile))
}

// detectAlgorithms fills in algorithms, qdisc kinds, modules and BBR's version.
func (f *Facts) detectAlgorithms(t *Tree) {
	const ipv4 = "/proc/sys/net/ipv4/"
	f.DefaultAlgorithm = t.text(ipv4 + "tcp_congestion_control")
	f.Allowed = strings.Fields(t.text(ipv4 + "tcp_allowed_congestion_control"))
	if data, err := t.ReadFile("/proc/sys/net/core/default_qdisc"); err == nil {
		s := strings.TrimSpace(string(data))
		f.DefaultQdisc = &s
	}
	f.ModulesDisabled = t.text("/proc/sys/kernel/modules_disabled") == "1"

	data, err := t.ReadFile("/proc/modules")
	f.ModulesSupported = err == nil
	loaded := map[string]bool{}
	for _, m := range parseModules(data) {
		name := moduleName(m.Name)
		loaded[name] = true
		if wantedModule(name) {
			f.Modules = append(f.Modules, m)
		}
	}
	store := readModuleStore(t, f.Release.Raw)
	w := world{
		tree: t, store: store, loaded: loaded,
		config:   readModprobeConfig(t),
		supports: f.ModulesSupported || !t.Exists("/proc/sys"),
		disabled: f.ModulesDisabled,
		signed:   f.SignaturesForced != nil && *f.SignaturesForced,
	}
	f.Algorithms = w.algorithms(strings.Fields(t.text(ipv4 + "tcp_available_congestion_control")))
	f.Qdiscs = w.qdiscs(f.DefaultQdisc, f.Release.Raw)
	f.BBRVersion, f.BBRVersionFrom = bbrVersion(t)
}

// world is everything that decides where an algorithm or qdisc comes from.
type world struct {
	tree     *Tree
	store    moduleStore
	loaded   map[string]bool // modules
	config   modprobeConfig
	supports bool // the kernel can have modules
	disabled bool // kernel.modules_disabled
	signed   bool // only signed modules
}

// describe finds the origin of what a module carries. available is the kernel's
// own word that it is usable now.
func (w *world) describe(name, module string, available bool) Algorithm {
	a := Algorithm{Name: name, Origin: Absent, Available: available}
	file, onDisk := w.store.files[module]
	switch {
	case w.store.builtin[module]:
		a.Origin = Builtin
	case w.loaded[module]:
		a.Origin, a.Module = Loaded, module
	case available:
		a.Origin = Builtin
	case onDisk && w.supports:
		a.Origin, a.Module = Loadable, module
		a.Blocked, a.Note = w.obstacles(module, file)
	}
	if onDisk && a.Module != "" {
		a.File = file.path
	}
	return a
}

func (w *world) algorithms(available []string) []Algorithm {
	modules := map[string]string{} // algorithm -> module
	for _, set := range []map[string]bool{w.store.builtin, w.loaded} {
		for module := range set {
			if name := algorithmOf(module); name != "" {
				modules[name] = module
			}
		}
	}
	for module := range w.store.files {
		if name := algorithmOf(module); name != "" {
			modules[name] = module
		}
	}
	for _, name := range available {
		if modules[name] == "" {
			modules[name] = "tcp_" + name
		}
	}
	var list []Algorithm
	for name, module := range modules {
		a := w.describe(name, module, slices.Contains(available, name))
		if a.Origin != Absent {
			list = append(list, a)
		}
	}
	sortAlgorithms(list)
	return list
}

func sortAlgorithms(list []Algorithm) {
	slices.SortFunc(list, func(a, b Algorithm) int { return strings.Compare(a.Name, b.Name) })
}

func (w *world) qdiscs(def *string, release string) []Algorithm {
	builtin := w.store.builtin
	if builtin == nil {
		// Without the list of what is built in, the kernel's configuration
		// knows.
		builtin = configQdiscs(kernelConfig(w.tree, release))
		w.store.builtin = builtin
	}
	modules := map[string]string{}
	for _, set := range []map[string]bool{builtin, w.loaded} {
		for module := range set {
			for _, kind := range qdiscsOf(module) {
				modules[kind] = module
			}
		}
	}
	for module := range w.store.files {
		for _, kind := range qdiscsOf(module) {
			modules[kind] = module
		}
	}
	// Every kernel with qdiscs has these.
	always := []string{"noqueue", "mq", "pfifo", "bfifo", "pfifo_fast"}
	if def != nil && *def != "" {
		always = append(always, *def)
	}
	for _, kind := range always {
		if modules[kind] == "" {
			modules[kind] = "sch_" + kind
		}
	}
	var list []Algorithm
	for kind, module := range modules {
		usable := builtin[module] || w.loaded[module] || slices.Contains(always, kind)
		a := w.describe(kind, module, usable)
		if a.Origin != Absent {
			list = append(list, a)
		}
	}
	sortAlgorithms(list)
	return list
}

// obstacles says why a module file cannot be loaded, and what else is worth
// knowing.
func (w *world) obstacles(module string, file moduleFile) (blocked, note string) {
	if w.disabled {
		return "kernel.modules_disabled is 1, nothing can be loaded until the next boot", ""
	}
	return w.config.verdict(module, file.deps)
}

// bbrVersion finds the version of the algorithm named bbr by what the running
// kernel shows in files.
func bbrVersion(t *Tree) (int, string) {
	const file = "/sys/module/tcp_bbr/version"
	if n, err := strconv.Atoi(t.text(file)); err == nil && n > 0 {
		return n, path.Clean(file)
	}
	return 0, ""
}
