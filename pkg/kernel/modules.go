package kernel

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// moduleName turns a module's file name or spelling into the name the kernel
// knows: without directories and suffixes, "-" and "_" being the same to it.
func moduleName(file string) string {
	name := path.Base(file)
	for _, suffix := range []string{".gz", ".xz", ".zst"} {
		if s, ok := strings.CutSuffix(name, suffix); ok {
			name = s
			break
		}
	}
	name = strings.TrimSuffix(name, ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// isModuleFile reports whether a file name is that of a module, compressed or not.
func isModuleFile(name string) bool {
	for _, suffix := range []string{".ko", ".ko.gz", ".ko.xz", ".ko.zst"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// parseModules reads /proc/modules: all loaded modules, each with lsmod's line.
// Lines that are not understood are left out.
func parseModules(data []byte) []ModuleLine {
	var modules []ModuleLine
	for line := range bytes.Lines(data) {
		// tcp_bbr 20480 12 - Live 0x0000000000000000
		// "used by" is a list with a trailing comma; "[permanent]," may be in it.
		f := strings.Fields(string(line))
		if len(f) < 3 {
			continue
		}
		size, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || size < 0 {
			continue
		}
		m := ModuleLine{Name: f[0], Size: size, UsedBy: []string{}}
		// The count is "-" on a kernel that cannot unload modules.
		if n, err := strconv.Atoi(f[2]); err == nil {
			m.Used = n
		}
		usedBy := ""
		if len(f) > 3 && f[3] != "-" {
			usedBy = strings.TrimSuffix(f[3], ",")
			m.UsedBy = strings.FieldsFunc(usedBy, func(c rune) bool { return c == ',' })
		}
		m.Raw = strings.TrimRight(fmt.Sprintf("%-19s %8d  %d %s", m.Name, m.Size, m.Used, usedBy), " ")
		modules = append(modules, m)
	}
	return modules
}

// moduleFile is a module of the running kernel on disk.
type moduleFile struct {
	path     string   // below lib/modules/RELEASE
	deps     []string // names of the modules it needs
	depPaths []string // and where they lie
	listed   bool     // modules.dep has it, so modprobe finds it by name
}

// moduleStore is what lies in lib/modules/RELEASE about the modules that matter
// here.
type moduleStore struct {
	dir     string                // "/lib/modules/6.1.0-17-amd64"; "" if there is none
	files   map[string]moduleFile // by module name
	builtin map[string]bool       // module names; nil if there is no list
	indexed bool                  // modules.dep could be read
}

// wantedModule says which modules are of interest: algorithms and qdiscs.
func wantedModule(name string) bool {
	return strings.HasPrefix(name, "tcp_") || strings.HasPrefix(name, "sch_") || name == "brutal"
}

// parseModulesDep reads modules.dep. Names are relative to its directory; old
// depmods wrote absolute ones.
func parseModulesDep(data []byte) map[string]moduleFile {
	files := map[string]moduleFile{}
	for line := range bytes.Lines(data) {
		file, deps, ok := strings.Cut(strings.TrimSpace(string(line)), ":")
		if !ok || !isModuleFile(file) || !wantedModule(moduleName(file)) {
			continue
		}
		m := moduleFile{path: belowRelease(file), listed: true}
		for _, dep := range strings.Fields(deps) {
			m.deps = append(m.deps, moduleName(dep))
			m.depPaths = append(m.depPaths, belowRelease(dep))
		}
		files[moduleName(file)] = m
	}
	return files
}

// belowRelease makes /lib/modules/RELEASE/kernel/x.ko relative to its directory.
func belowRelease(file string) string {
	if _, below, ok := strings.Cut(file, "/lib/modules/"); ok && path.IsAbs(file) {
		_, file, _ = strings.Cut(below, "/")
	}
	return file
}

// readModuleStore looks for the modules of the running kernel and of no other.
func readModuleStore(t *Tree, release string) moduleStore {
	s := moduleStore{files: map[string]moduleFile{}}
	// A release comes from a file that anyone may have made.
	if release == "" || release == "." || release == ".." || strings.ContainsAny(release, "/\x00") {
		return s
	}
	for _, dir := range []string{"/lib/modules/", "/usr/lib/modules/"} {
		if t.isDir(dir + release) {
			s.dir = dir + release
			break
		}
	}
	if s.dir == "" {
		return s
	}
	if data, err := t.ReadFile(s.dir + "/modules.dep"); err == nil {
		s.files, s.indexed = parseModulesDep(data), true
		// A package that was replaced under the running kernel leaves a list of
		// files that are gone. (A recording holds only the list.)
		for name, file := range s.files {
			if t.Live() && !t.Exists(path.Join(s.dir, file.path)) {
				delete(s.files, name)
			}
		}
	}
	if data, err := t.ReadFile(s.dir + "/modules.builtin"); err == nil {
		s.builtin = map[string]bool{}
		for line := range bytes.Lines(data) {
			if name := moduleName(strings.TrimSpace(string(line))); wantedModule(name) {
				s.builtin[name] = true
			}
		}
	}
	// Modules that depmod has not seen (yet): where the kernel and people who
	// build their own put them.
	budget := 20000
	for _, dir := range []string{"kernel/net/ipv4", "kernel/net/sched", "updates", "extra", "weak-updates", "misc", "."} {
		s.walk(t, dir, 0, &budget)
	}
	return s
}

// walk adds module files below dir that are not known yet. Depth and number of
// entries are bounded; links to directories are not followed. "." is its own files
// only: all of a kernel's modules are thousands of directories.
func (s *moduleStore) walk(t *Tree, dir string, depth int, budget *int) {
	entries, err := t.ReadDir(path.Join(s.dir, dir))
	if err != nil {
		return
	}
	for _, e := range entries {
		if *budget--; *budget < 0 {
			return
		}
		at := path.Join(dir, e.Name())
		if e.IsDir() {
			if dir != "." && depth < 4 {
				s.walk(t, at, depth+1, budget)
			}
			continue
		}
		name := moduleName(e.Name())
		if _, known := s.files[name]; !known && isModuleFile(e.Name()) && wantedModule(name) {
			s.files[name] = moduleFile{path: at}
		}
	}
}

// Modules whose name begins like an algorithm's but that are none.
var notAlgorithms = []string{"tcp_diag", "tcp_probe", "tcp_sigpool"}

// Modules whose name begins like a qdisc's but that are none.
var notQdiscs = []string{"sch_mqprio_lib", "sch_generic", "sch_api", "sch_frag"}

// algorithmOf returns the algorithm a module carries, "" if none. That tcp_X
// carries X is how the kernel itself looks for an algorithm ("request_module
// tcp_%s"); brutal's module is the exception.
func algorithmOf(module string) string {
	if module == "brutal" {
		return "brutal"
	}
	name, ok := strings.CutPrefix(module, "tcp_")
	if !ok || slices.Contains(notAlgorithms, module) {
		return ""
	}
	return name
}

// qdiscsOf returns the qdisc kinds a module carries.
func qdiscsOf(module string) []string {
	switch module {
	case "sch_fifo":
		return []string{"pfifo", "bfifo"}
	case "sch_ingress":
		return []string{"ingress", "clsact"}
	case "sch_teql":
		return []string{"teql0"}
	}
	name, ok := strings.CutPrefix(module, "sch_")
	if !ok || slices.Contains(notQdiscs, module) {
		return nil
	}
	return []string{name}
}

// kernelConfig finds the configuration the running kernel was built with, nil if
// the host does not have it.
func kernelConfig(t *Tree, release string) []byte {
	if data, err := t.ReadFile("/proc/config.gz"); err == nil {
		if plain, err := gunzip(data); err == nil {
			return plain
		}
	}
	if release == "" || strings.ContainsAny(release, "/\x00") {
		return nil
	}
	for _, name := range []string{"/boot/config-" + release, "/lib/modules/" + release + "/config"} {
		if data, err := t.ReadFile(name); err == nil {
			return data
		}
	}
	return nil
}

// configModules returns what a kernel configuration builds in, as module names;
// nil without a configuration. Only qdiscs: the kernel lists its algorithms itself.
func configModules(config []byte) map[string]bool {
	if config == nil {
		return nil
	}
	builtin := map[string]bool{}
	for line := range bytes.Lines(config) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		kind, ok := strings.CutPrefix(name, "CONFIG_NET_SCH_")
		// NET_SCH_DEFAULT chooses among the others.
		if ok && value == "y" && kind != "DEFAULT" {
			builtin["sch_"+strings.ToLower(kind)] = true
		}
	}
	return builtin
}
