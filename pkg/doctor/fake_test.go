package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
	"accel/pkg/tuning"
)

// fakeHost is a host with real files below a directory and settings of plain
// data. Every step that changes it is counted, so that a test can stop
// everything before each one.
type fakeHost struct {
	files.OS
	values  map[sysctl.Key]string
	refuse  map[sysctl.Key]error
	ops     []string
	crashAt int // the step before which everything stops; 0: none
	failAt  int // the step that fails
}

// TestMain puts the hosts into memory, where syncing a file costs nothing: the
// tests write some ten thousand.
func TestMain(m *testing.M) {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() && os.Getenv("TMPDIR") == "" {
		os.Setenv("TMPDIR", "/dev/shm")
	}
	os.Exit(m.Run())
}

var errCrash = errors.New("crash")

func newFakeHost(t testing.TB, content map[string]string) *fakeHost {
	t.Helper()
	f := &fakeHost{OS: files.OS{Root: t.TempDir()}, refuse: map[sysctl.Key]error{}, values: map[sysctl.Key]string{
		sysctl.CongestionControl: "cubic", sysctl.AvailableCongestionControl: "reno cubic bbr", sysctl.AllowedCongestionControl: "reno cubic bbr",
		sysctl.DefaultQdisc: "fq_codel", "kernel/osrelease": "6.1.0", "net/ipv4/tcp_syn_retries": "6", "net/ipv4/tcp_synack_retries": "5",
		"net/ipv4/tcp_timestamps": "1", "net/ipv4/tcp_retries2": "15",
	}}
	for _, dir := range []string{"etc/sysctl.d", "etc/modules-load.d", "etc/modprobe.d", "etc/security", "etc/systemd", "var/lib", "proc"} {
		if err := os.MkdirAll(filepath.Join(f.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range content {
		f.put(t, name, data)
	}
	return f
}

func (f *fakeHost) put(t testing.TB, name, data string) {
	t.Helper()
	full := filepath.Join(f.Root, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if target, ok := strings.CutPrefix(data, "-> "); ok {
		err = os.Symlink(target, full)
	} else {
		err = os.WriteFile(full, []byte(data), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// boot applies the sysctl files as systemd does.
func (f *fakeHost) boot(t testing.TB) {
	t.Helper()
	c, err := sysctl.ReadConfig(f.Root, sysctl.Systemd)
	if err != nil {
		t.Fatal(err)
	}
	for k := range f.values {
		if a, ok := c.Lookup(k); ok && a.Value != "htcp" { // which this kernel has not
			f.values[k] = a.Value
		}
	}
}

func (f *fakeHost) step(format string, args ...any) error {
	f.ops = append(f.ops, fmt.Sprintf(format, args...))
	switch len(f.ops) {
	case f.crashAt:
		panic(errCrash)
	case f.failAt:
		return fmt.Errorf("%s: %w", f.ops[len(f.ops)-1], files.ErrNoSpace)
	}
	return nil
}

// during runs something and tells whether it was cut off.
func (f *fakeHost) during(crashAt, failAt int, run func()) (crashed bool) {
	f.ops, f.crashAt, f.failAt = nil, crashAt, failAt
	defer func() {
		f.crashAt, f.failAt = 0, 0
		if r := recover(); r != nil {
			if r != errCrash {
				panic(r)
			}
			crashed = true
		}
	}()
	run()
	return false
}

// snapshot is all of the host that a clean-up could change.
type snapshot struct {
	Files  map[string]string
	Values map[sysctl.Key]string
}

func (f *fakeHost) seen(t testing.TB) snapshot {
	t.Helper()
	s := snapshot{map[string]string{}, maps.Clone(f.values)}
	err := filepath.WalkDir(f.Root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		s.Files[strings.TrimPrefix(name, f.Root)] = st.Mode().String() + "\n" + string(data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f *fakeHost) host() *tuning.Host {
	return &tuning.Host{
		Root: f.Root, Files: f, Sysctl: fakeSysctl{f}, Qdiscs: noQdiscs{}, Routes: noRoutes{}, Sockets: fakeSockets{f}, Modules: noModules{},
		Detect: func() (*kernel.Facts, error) {
			q := f.values[sysctl.DefaultQdisc]
			facts := &kernel.Facts{Release: kernel.Release{Raw: "6.1.0", Major: 6, Minor: 1}, Systemd: true, PID1: "systemd", ModuleIndex: true,
				DefaultAlgorithm: f.values[sysctl.CongestionControl], DefaultQdisc: &q, MemoryBytes: 1 << 30, OtherNetns: 0}
			for _, n := range []string{"reno", "cubic", "bbr"} {
				facts.Algorithms = append(facts.Algorithms, kernel.Algorithm{Name: n, Origin: kernel.Builtin, Available: true})
			}
			for _, n := range []string{"fq", "fq_codel", "cake", "pfifo_fast"} {
				facts.Qdiscs = append(facts.Qdiscs, kernel.Algorithm{Name: n, Origin: kernel.Builtin, Available: true})
			}
			return facts, nil
		},
		Now:  func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) },
		Lock: func(context.Context) (func(), error) { return func() {}, nil },
	}
}

func (f *fakeHost) WriteFile(name string, data []byte, perm fs.FileMode) error {
	if err := f.step("write %s", name); err != nil {
		return err
	}
	return f.OS.WriteFile(name, data, perm)
}

func (f *fakeHost) Remove(name string) error {
	if err := f.step("remove %s", name); err != nil {
		return err
	}
	return f.OS.Remove(name)
}

func (f *fakeHost) Mkdir(name string, perm fs.FileMode) error {
	if err := f.step("mkdir %s", name); err != nil {
		return err
	}
	return f.OS.Mkdir(name, perm)
}

type fakeSysctl struct{ f *fakeHost }

func (s fakeSysctl) Read(k sysctl.Key) (string, error) {
	v, ok := s.f.values[k]
	if !ok {
		return "", &sysctl.Error{Key: k, Op: "read", Err: sysctl.ErrMissing}
	}
	return v, nil
}

func (s fakeSysctl) Write(k sysctl.Key, v string) error {
	if err := s.f.refuse[k]; err != nil {
		return err
	}
	if err := s.f.step("set %s to %s", k, v); err != nil {
		return err
	}
	s.f.values[k] = v
	return nil
}

type noQdiscs struct{}

func (noQdiscs) Trees() ([]qdisc.Tree, error) { return []qdisc.Tree{}, nil }
func (noQdiscs) Rebuild(string) error         { return nil }

type noModules struct{}

func (noModules) Load(context.Context, string) error { return nil }

type fakeSockets struct{ f *fakeHost }

func (s fakeSockets) SelfConnect(context.Context) (socket.Evidence, error) {
	cc := s.f.values[sysctl.CongestionControl]
	return socket.Evidence{Client: cc, Server: cc}, nil
}
func (fakeSockets) Connections() (map[string]int, error) { return map[string]int{}, nil }
func (fakeSockets) BBRVersionOf(string) (int, error)     { return 1, nil }

type noRoutes struct{}

func (noRoutes) Defaults() ([]route.Route, error)    { return []route.Route{}, nil }
func (noRoutes) Set(string, route.Metric, int) error { return nil }
