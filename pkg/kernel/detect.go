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
	f.Virtualization = virtualization(t, f.Release)
	f.Containers = containers(t)
	f.detectAlgorithms(t)
}

// fromLive adds what only the running kernel can tell.
func (f *Facts) fromLive(t *Tree) error {
	f.UID = os.Getuid()
	f.Capabilities = liveCapabilities(t)
	f.OtherNetns = otherNetns()
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		f.Arch = unix.ByteSliceToString(name.Machine[:])
	}
	var err error
	f.Links, err = liveLinks(t)
	return err
}

// fromRecording adds what Record wrote beside the tree; it was found out on the
// host itself and outranks what the tree alone seems to say.
func (f *Facts) fromRecording(t *Tree) error {
	r, ok, err := readRecording(t)
	if err != nil {
		return err
	}
	if !ok {
		var addresses map[string]string
		f.Links, addresses = treeLinks(t)
		treeDefaultRoutes(t, f.Links)
		pair(f.Links, addresses)
		f.Capabilities = effectiveCapabilities(t)
		return nil
	}
	f.Links = r.Links
	f.UID = r.UID
	f.Capabilities = r.Capabilities
	f.OtherNetns = r.OtherNetns
	f.Containers = r.Containers
	f.Virtualization = Virtualization{Machine: r.Machine, Container: r.Container, InitialNetns: r.InitialNetns}
	f.Systemd = f.Systemd || r.Systemd
	f.Arch = r.Arch
	f.SecureBoot = r.SecureBoot
	f.ReadOnlyProcSys, f.ProcSysSandboxed = r.ReadOnlyProcSys, r.ProcSysSandboxed
	f.BBRVersion, f.BBRVersionFrom = r.BBRVersion, r.BBRVersionFrom
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
		tree: t, release: f.Release.Raw, store: store, loaded: loaded,
		config: readModprobeConfig(t),
		// A tree that was made by hand may just lack the file.
		supports: f.ModulesSupported || !t.Live() && !t.Exists(RecordingName),
		disabled: f.ModulesDisabled,
		signed:   f.SignaturesForced != nil && *f.SignaturesForced,
	}
	if w.store.builtin == nil {
		// Without the list of what is built in, the kernel's configuration knows.
		w.store.builtin = configModules(kernelConfig(t, f.Release.Raw))
	}
	f.ModuleIndex = w.store.builtin != nil && (w.store.indexed || !w.supports)
	f.Algorithms = w.algorithms(strings.Fields(t.text(ipv4 + "tcp_available_congestion_control")))
	f.Qdiscs = w.qdiscs(f.DefaultQdisc)
	f.BBRVersion, f.BBRVersionFrom = bbrVersion(t)
}

// world is everything that decides where an algorithm or qdisc comes from.
type world struct {
	tree     *Tree
	release  string // "" if not known
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

func (w *world) qdiscs(def *string) []Algorithm {
	modules := map[string]string{} // kind -> module
	for _, set := range []map[string]bool{w.store.builtin, w.loaded} {
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
	var always []string
	if w.release != "" || def != nil {
		// Every kernel with qdiscs has these.
		always = []string{"noqueue", "mq", "pfifo", "bfifo", "pfifo_fast"}
	}
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
		usable := w.store.builtin[module] || w.loaded[module] || slices.Contains(always, kind)
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
		return "kernel.modules_disabled is 1: nothing can be loaded until the next boot", ""
	}
	if blocked, note = w.config.verdict(module, file.deps); blocked != "" {
		return blocked, ""
	}
	if w.signed && unsigned(w.tree, path.Join(w.store.dir, file.path)) {
		return "it carries no signature, and this kernel loads only signed modules", ""
	}
	if w.store.indexed && !file.listed && note == "" {
		note = "modules.dep does not list it, so modprobe does not find it: depmod -a"
	}
	return "", note
}

// unsigned says that a module certainly has no signature. The mark stands at the
// file's end (include/linux/module_signature.h); in a compressed file other than
// gzip it cannot be seen.
func unsigned(t *Tree, name string) bool {
	if !strings.HasSuffix(name, ".ko") && !strings.HasSuffix(name, ".ko.gz") {
		return false
	}
	data, err := t.ReadFile(name)
	if err == nil && strings.HasSuffix(name, ".gz") {
		data, err = gunzip(data)
	}
	return err == nil && len(data) > 0 && !bytes.HasSuffix(data, []byte("~Module signature appended~\n"))
}

// bbrVersion finds the version of the algorithm named bbr by what the running
// kernel shows in files; 0 if nothing shows it. Sockets know more (pkg/socket).
func bbrVersion(t *Tree) (version int, from string) {
	// Google's v3 sets MODULE_VERSION, built in or not; v1 never did.
	const file = "/sys/module/tcp_bbr/version"
	if n, err := strconv.Atoi(t.text(file)); err == nil && n > 0 {
		return n, file
	}
	// The loaded module's type information: only v1 samples for policers
	// (struct bbr, lt_*), only later ones bound what is in flight.
	const types = "/sys/kernel/btf/tcp_bbr"
	data, err := t.readLimited(types, 1<<20)
	if err == nil && bytes.Contains(data, []byte("\x00lt_is_sampling\x00")) && !bytes.Contains(data, []byte("\x00inflight_hi\x00")) {
		return 1, types
	}
	return 0, ""
}

// BBRVersionOf returns the version of an algorithm of the BBR family as far as
// files show it: of bbr what the kernel says (BBRVersion), of bbr1, bbr2 and bbr3,
// which are modules of exactly one version, what they are called. 0 when not known
// or of another family.
func (f *Facts) BBRVersionOf(algorithm string) (version int, from string) {
	switch algorithm {
	case "bbr":
		return f.BBRVersion, f.BBRVersionFrom
	case "bbr1", "bbr2", "bbr3":
		return int(algorithm[3] - '0'), "its name"
	}
	return 0, ""
}
