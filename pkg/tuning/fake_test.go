package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
)

// fakeHost is a host made of plain data that behaves as a kernel, a disk and
// systemd do. Every step that changes it is counted, so that a test can fail
// or cut the power at each one.
type fakeHost struct {
	release string
	values  map[sysctl.Key]string    // /proc/sys
	modules map[string]kernel.Origin // algorithms and qdisc kinds by name
	links   map[string]*fakeLink
	routes  []route.Route // each with its own name
	// bootRoutes are those that the network configuration makes, at boot and
	// when a lease is renewed.
	bootRoutes []route.Route
	files      map[string]string
	dirs       map[string]bool
	unsynced   map[string]*string // what a power cut may bring back
	service    fakeService
	// connections are the established ones, by algorithm.
	connections map[string]int
	override    string // what sockets get instead of the sysctl
	virt        kernel.Virtualization
	boot        map[sysctl.Key]string // what the distribution sets at boot

	refuse  map[string]error // "key=value": the kernel's answer
	ops     []string
	failAt  int // the step that fails, 1 is the first; 0: none
	failErr error
	crashAt int // the step before which everything stops
	coin    func() bool
}

type fakeLink struct {
	index      int
	kind       string // of the kernel-made tree
	queues     int
	configured string // root kind that somebody configured
	grown      bool   // it got more queues after its tree was built
	leftover   bool
	veth       bool
}

type fakeService struct {
	installed, enabled, active, missing bool
	enables                             int
}

var errCrash = errors.New("crash")

func newFakeHost() *fakeHost {
	return &fakeHost{
		release: "6.1.0-57-cloud-amd64",
		values: map[sysctl.Key]string{
			sysctl.CongestionControl: "cubic", sysctl.AllowedCongestionControl: "reno cubic", sysctl.DefaultQdisc: "fq_codel",
		},
		boot: map[sysctl.Key]string{sysctl.CongestionControl: "cubic", sysctl.DefaultQdisc: "fq_codel"},
		modules: map[string]kernel.Origin{
			"reno": kernel.Builtin, "cubic": kernel.Builtin, "bbr": kernel.Loadable, "htcp": kernel.Loadable,
			"fq_codel": kernel.Builtin, "pfifo_fast": kernel.Builtin, "fq": kernel.Loadable, "cake": kernel.Loadable,
		},
		links: map[string]*fakeLink{
			"eth0": {index: 2, kind: "fq_codel", queues: 1}, "eth1": {index: 3, kind: "pfifo_fast", queues: 4},
			"veth0": {index: 4, veth: true},
		},
		files: map[string]string{"/etc/hostname": "h\n"},
		dirs: map[string]bool{
			"/": true, "/etc": true, "/etc/sysctl.d": true, "/etc/modules-load.d": true, "/var": true, "/var/lib": true, "/proc": true,
		},
		unsynced: map[string]*string{},
		service:  fakeService{installed: true},
		refuse:   map[string]error{},
	}
}

// step counts one change. It stops everything at crashAt, and fails at failAt.
func (f *fakeHost) step(format string, args ...any) error {
	f.ops = append(f.ops, fmt.Sprintf(format, args...))
	if len(f.ops) == f.crashAt {
		panic(errCrash)
	}
	if len(f.ops) == f.failAt {
		return f.failErr
	}
	return nil
}

// during runs a command and tells whether it was cut off.
func (f *fakeHost) during(crashAt, failAt int, failErr error, command func()) (crashed bool) {
	f.ops, f.crashAt, f.failAt, f.failErr = nil, crashAt, failAt, failErr
	defer func() {
		f.crashAt, f.failAt = 0, 0
		if r := recover(); r != nil {
			if r != errCrash {
				panic(r)
			}
			crashed = true
			for name, before := range f.unsynced {
				if f.coin != nil && f.coin() {
					if before == nil {
						delete(f.files, name)
					} else {
						f.files[name] = *before
					}
				}
			}
			clear(f.unsynced)
		}
	}()
	command()
	return false
}

func (f *fakeHost) host() *Host {
	return &Host{
		Root: "/nonexistent", Files: fakeFiles{f}, Sysctl: fakeSysctl{f}, Qdiscs: fakeQdiscs{f},
		Routes: fakeRoutes{f}, Sockets: fakeSockets{f}, Modules: fakeModules{f}, Service: &fakeManager{f},
		Detect: f.detect,
		Now:    func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) },
		Lock:   func(context.Context) (func(), error) { return func() {}, nil },
	}
}

func (f *fakeHost) names(qdiscs bool, keep func(kernel.Origin) bool) []string {
	var out []string
	for n, o := range f.modules {
		if isQdisc := slices.Contains(defaultQdiscs, n); isQdisc == qdiscs && keep(o) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func there(o kernel.Origin) bool { return o == kernel.Builtin || o == kernel.Loaded }

func (f *fakeHost) detect() (*kernel.Facts, error) {
	facts := &kernel.Facts{
		Release: kernel.ParseRelease(f.release), Distribution: kernel.Distribution{ID: "debian", Name: "Debian"},
		Virtualization: f.virt, Systemd: !f.service.missing, ModulesSupported: true, ModuleIndex: true,
		DefaultAlgorithm: f.values[sysctl.CongestionControl], Arch: "x86_64",
	}
	if d, ok := f.values[sysctl.DefaultQdisc]; ok {
		facts.DefaultQdisc = &d
	}
	for _, qdiscs := range []bool{false, true} {
		for _, n := range f.names(qdiscs, func(kernel.Origin) bool { return true }) {
			a := kernel.Algorithm{Name: n, Origin: f.modules[n], Available: there(f.modules[n])}
			if a.Origin != kernel.Builtin {
				a.Module = "tcp_" + n
			}
			if qdiscs {
				if a.Module != "" {
					a.Module = "sch_" + n
				}
				facts.Qdiscs = append(facts.Qdiscs, a)
			} else {
				facts.Algorithms = append(facts.Algorithms, a)
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(f.links)) {
		l := kernel.Link{Name: n, Index: f.links[n].index, Type: kernel.TypeEthernet, Hardware: !f.links[n].veth, Up: true}
		if f.links[n].veth {
			l.Kind = "veth"
		}
		facts.Links = append(facts.Links, l)
	}
	return facts, nil
}

// reboot loses everything that is not on disk and does what a boot does.
func (f *fakeHost) reboot() {
	for n, o := range f.modules {
		if o == kernel.Loaded {
			f.modules[n] = kernel.Loadable
		}
	}
	delete(f.files, AgentFile)
	for k, v := range f.boot {
		f.values[k] = v
	}
	f.values[sysctl.AllowedCongestionControl] = "reno cubic"
	for _, m := range strings.Fields(uncomment(f.files[ModulesFile])) {
		f.load(strings.TrimPrefix(strings.TrimPrefix(m, "tcp_"), "sch_"))
	}
	for line := range strings.Lines(uncomment(f.files[SysctlFile])) {
		k, v, _ := strings.Cut(line, "=")
		key, err := sysctl.ParseKey(strings.TrimSpace(k))
		if err == nil {
			f.writeSysctl(key, strings.TrimSpace(v))
		}
	}
	for _, l := range f.links {
		l.configured, l.leftover = "", false
		if !l.veth {
			l.kind = f.values[sysctl.DefaultQdisc]
		}
	}
	f.routes = slices.Clone(f.bootRoutes)
	f.service.active = f.service.enabled
}

// renew makes the default routes anew as dhclient does, or as networkd does:
// it appends its own beside one that differs.
func (f *fakeHost) renew(networkd bool) {
	if !networkd {
		f.routes = slices.Clone(f.bootRoutes)
		return
	}
	for i := range f.routes {
		own := f.bootRoutes[i]
		own.Twin = f.routes[i].Twin
		f.routes[i].Twin = !reflect.DeepEqual(f.routes[i], own)
	}
}

func uncomment(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (f *fakeHost) load(name string) error {
	switch f.modules[name] {
	case kernel.Loadable:
		f.modules[name] = kernel.Loaded
	case kernel.Builtin, kernel.Loaded:
	default:
		return sysctl.ErrValue
	}
	return nil
}

func (f *fakeHost) writeSysctl(k sysctl.Key, v string) error {
	if err := f.refuse[k.String()+"="+v]; err != nil {
		return fmt.Errorf("setting %s to %s: %w", k, v, err)
	}
	old, ok := f.values[k]
	if !ok {
		return fmt.Errorf("%s: %w", k, sysctl.ErrMissing)
	}
	if old == v {
		return nil
	}
	switch k {
	case sysctl.CongestionControl:
		if err := f.load(v); err != nil || slices.Contains(defaultQdiscs, v) {
			return fmt.Errorf("%s = %s: %w", k, v, sysctl.ErrValue)
		}
		if allowed := strings.Fields(f.values[sysctl.AllowedCongestionControl]); !slices.Contains(allowed, v) {
			f.values[sysctl.AllowedCongestionControl] = strings.Join(append(allowed, v), " ")
		}
	case sysctl.DefaultQdisc:
		if err := f.load(v); err != nil || !slices.Contains(defaultQdiscs, v) {
			return fmt.Errorf("%s = %s: %w", k, v, sysctl.ErrValue)
		}
	case sysctl.AllowedCongestionControl:
		for _, n := range strings.Fields(v) {
			if !there(f.modules[n]) {
				return fmt.Errorf("%s = %s: %w", k, v, sysctl.ErrValue)
			}
		}
		// The default stays allowed whatever is written.
	}
	f.values[k] = v
	return nil
}

type fakeSysctl struct{ f *fakeHost }

func (s fakeSysctl) Read(k sysctl.Key) (string, error) {
	if k == sysctl.AvailableCongestionControl {
		return strings.Join(s.f.names(false, there), " "), nil
	}
	v, ok := s.f.values[k]
	if !ok {
		return "", fmt.Errorf("%s: %w", k, sysctl.ErrMissing)
	}
	return v, nil
}

func (s fakeSysctl) Write(k sysctl.Key, v string) error {
	if s.f.values[k] == v {
		return nil
	}
	if err := s.f.step("sysctl %s=%s", k, v); err != nil {
		return err
	}
	return s.f.writeSysctl(k, v)
}

type fakeQdiscs struct{ f *fakeHost }

func (q fakeQdiscs) Trees() ([]qdisc.Tree, error) {
	trees := []qdisc.Tree{}
	for _, n := range slices.Sorted(maps.Keys(q.f.links)) {
		l := q.f.links[n]
		t := qdisc.Tree{Link: n, Index: l.index}
		one := qdisc.Qdisc{Kind: l.kind, Handle: "0:", Parent: "root"}
		switch {
		case l.veth:
			one.Kind = "noqueue"
			t.Root = one
		case l.leftover:
			t.Root = leftoverRoot
		case l.configured != "":
			t.Root = qdisc.Qdisc{Kind: l.configured, Handle: "8001:", Parent: "root"}
		case l.queues > 1:
			t.Root = qdisc.Qdisc{Kind: "mq", Handle: "0:", Parent: "root"}
			for i := range l.queues {
				leaf := qdisc.Qdisc{Kind: l.kind, Handle: "0:", Parent: fmt.Sprintf(":%x", i+1)}
				if l.grown && i >= l.queues/2 {
					leaf.Kind = "pfifo_fast"
				}
				t.Leaves = append(t.Leaves, leaf)
			}
		default:
			t.Root = one
		}
		trees = append(trees, t)
	}
	return trees, nil
}

func (q fakeQdiscs) Rebuild(link string) error {
	l := q.f.links[link]
	if l == nil {
		return qdisc.ErrNoLink
	}
	if l.configured != "" || l.veth {
		return qdisc.ErrConfigured
	}
	if err := q.f.step("put a placeholder on %s", link); err != nil {
		return err
	}
	l.leftover = true
	if err := q.f.step("delete the placeholder of %s", link); err != nil {
		return err
	}
	l.leftover, l.grown, l.kind = false, false, q.f.values[sysctl.DefaultQdisc]
	return nil
}

type fakeRoutes struct{ f *fakeHost }

func (r fakeRoutes) Defaults() ([]route.Route, error) {
	routes := slices.Clone(r.f.routes)
	for i := range routes {
		if routes[i].Twin {
			routes[i].Behind = map[route.Metric]int{route.InitCwnd: r.f.bootRoutes[i].InitialCwnd, route.InitRwnd: r.f.bootRoutes[i].InitialRwnd}
		}
	}
	return routes, nil
}

func (r fakeRoutes) Set(name string, m route.Metric, value int) error {
	for i := range r.f.routes {
		x := &r.f.routes[i]
		if x.Name() != name || x.Table != 254 {
			continue
		}
		if x.Special != "" {
			return route.ErrSpecial
		}
		if x.Twin {
			if err := r.f.step("delete %s before its twin", name); err != nil {
				return err
			}
			*x = r.f.bootRoutes[i]
		}
		if x.Value(m) == value {
			return nil
		}
		if err := r.f.step("%s of %s = %d", m, name, value); err != nil {
			return err
		}
		switch m {
		case route.InitCwnd:
			x.InitialCwnd = value
		case route.InitRwnd:
			x.InitialRwnd = value
		default:
			return route.ErrMetric
		}
		return nil
	}
	return route.ErrNoRoute
}

type fakeSockets struct{ f *fakeHost }

func (s fakeSockets) SelfConnect(context.Context) (socket.Evidence, error) {
	alg := s.f.values[sysctl.CongestionControl]
	if s.f.override != "" {
		alg = s.f.override
	}
	return socket.Evidence{Family: "inet", Client: alg, Server: alg, BBRVersion: 1}, nil
}
func (s fakeSockets) Connections() (map[string]int, error) { return s.f.connections, nil }
func (s fakeSockets) BBRVersionOf(string) (int, error)     { return 1, nil }

type fakeModules struct{ f *fakeHost }

func (m fakeModules) Load(_ context.Context, name string) error {
	if err := m.f.step("modprobe %s", name); err != nil {
		return err
	}
	return m.f.load(strings.TrimPrefix(strings.TrimPrefix(name, "tcp_"), "sch_"))
}

type fakeManager struct{ f *fakeHost }

func (m *fakeManager) State(context.Context) (ServiceState, error) {
	s := m.f.service
	if s.missing {
		return ServiceState{}, ErrNoManager
	}
	return ServiceState{Installed: s.installed, Enabled: s.enabled, Active: s.active}, nil
}

func (m *fakeManager) Enable(context.Context) error {
	if err := m.f.step("enable the service"); err != nil {
		return err
	}
	m.f.service.enabled, m.f.service.active = true, true
	m.f.service.enables++
	return nil
}

func (m *fakeManager) Disable(context.Context) error {
	if err := m.f.step("disable the service"); err != nil {
		return err
	}
	m.f.service.enabled, m.f.service.active = false, false
	return nil
}

// fakeFiles writes as pkg/files does: temporary file, sync, rename, sync of
// the directory.
type fakeFiles struct{ f *fakeHost }

func notExist(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

func (d fakeFiles) ReadFile(name string) ([]byte, error) {
	if s, ok := d.f.files[name]; ok {
		return []byte(s), nil
	}
	return nil, notExist("open", name)
}

func (d fakeFiles) clean(name string) {
	maps.DeleteFunc(d.f.files, func(n, _ string) bool { return n == temp(name) })
}

func temp(name string) string { return path.Join(path.Dir(name), "."+path.Base(name)+".tmp") }

func (d fakeFiles) WriteFile(name string, data []byte, _ fs.FileMode) error {
	if !d.f.dirs[path.Dir(name)] {
		return notExist("open", name)
	}
	d.clean(name)
	if err := d.f.step("write %s", name); err != nil {
		return err
	}
	d.f.files[temp(name)] = string(data)
	if err := d.f.step("sync %s", name); err != nil {
		d.clean(name)
		return err
	}
	if err := d.f.step("rename %s", name); err != nil {
		d.clean(name)
		return err
	}
	d.remember(name)
	d.f.files[name] = string(data)
	d.clean(name)
	return d.syncDir(name)
}

func (d fakeFiles) remember(name string) {
	if _, again := d.f.unsynced[name]; again {
		return
	}
	d.f.unsynced[name] = nil
	if old, ok := d.f.files[name]; ok {
		d.f.unsynced[name] = &old
	}
}

func (d fakeFiles) syncDir(name string) error {
	err := d.f.step("sync the directory of %s", name)
	delete(d.f.unsynced, name)
	return err
}

func (d fakeFiles) Remove(name string) error {
	d.clean(name)
	if _, ok := d.f.files[name]; !ok {
		if d.f.dirs[name] {
			if err := d.f.step("rmdir %s", name); err != nil {
				return err
			}
			delete(d.f.dirs, name)
		}
		return nil
	}
	if err := d.f.step("remove %s", name); err != nil {
		return err
	}
	d.remember(name)
	delete(d.f.files, name)
	return d.syncDir(name)
}

func (d fakeFiles) Mkdir(name string, _ fs.FileMode) error {
	if d.f.dirs[name] {
		return nil
	}
	if err := d.f.step("mkdir %s", name); err != nil {
		return err
	}
	d.f.dirs[name] = true
	return nil
}

func (d fakeFiles) Lstat(name string) (fs.FileInfo, error) {
	if _, ok := d.f.files[name]; ok || d.f.dirs[name] {
		return nil, nil
	}
	return nil, notExist("lstat", name)
}

func (d fakeFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	if !d.f.dirs[name] {
		return nil, notExist("open", name)
	}
	var out []fs.DirEntry
	for n := range d.f.files {
		if path.Dir(n) == name {
			out = append(out, nil)
		}
	}
	return out, nil
}

var _ files.FS = fakeFiles{}

// seen is everything about a host that disable must put back.
type seen struct {
	Values map[sysctl.Key]string
	Trees  []qdisc.Tree
	Routes []route.Route
	Files  map[string]string
	Dirs   []string
}

func (f *fakeHost) seen() seen {
	trees, _ := fakeQdiscs{f}.Trees()
	s := seen{Values: maps.Clone(f.values), Trees: trees, Routes: slices.Clone(f.routes), Files: map[string]string{}}
	for n, c := range f.files {
		if n != temp(SysctlFile) && n != temp(ModulesFile) && (strings.HasPrefix(n, "/etc/") || n == StateFile) {
			s.Files[n] = c
		}
	}
	for d := range f.dirs {
		if strings.HasPrefix(d, "/etc") {
			s.Dirs = append(s.Dirs, d)
		}
	}
	slices.Sort(s.Dirs)
	return s
}

// unfinished lists temporary files that a crash left.
func (f *fakeHost) unfinished() (out []string) {
	for _, n := range []string{SysctlFile, ModulesFile, StateFile} {
		if _, ok := f.files[temp(n)]; ok {
			out = append(out, temp(n))
		}
	}
	return out
}

func mustEnable(t *testing.T, f *fakeHost, r Request) *Result {
	t.Helper()
	res, err := Enable(t.Context(), f.host(), r)
	if err != nil {
		t.Fatalf("enable: %v", err)
	}
	return res
}

func mustAssess(t *testing.T, f *fakeHost) *Status {
	t.Helper()
	s, err := Assess(t.Context(), f.host())
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	return s
}

var leftoverRoot = qdisc.Qdisc{Kind: "pfifo", Handle: "acce:", Parent: "root"}
