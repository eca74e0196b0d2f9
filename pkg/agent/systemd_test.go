package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"accel/pkg/tuning"
)

// fakeManager is a systemd with one unit. The zero value has it not found.
type fakeManager struct {
	load, file, active, result, status string
	exit                               int32 // ExecMainStatus

	fail      map[string]error // method -> error
	jobResult string           // of every job; "" is "done"
	hang      bool             // jobs never end
	starts    string           // the ActiveState a (re)start leads to; "" is "active"
	calls     []string
}

func (m *fakeManager) call(name string) error {
	m.calls = append(m.calls, name)
	return m.fail[name]
}

func (m *fakeManager) get(name string) (*dbus.Property, error) {
	if err := m.fail[name]; err != nil {
		return nil, err
	}
	v := map[string]string{"LoadState": m.load, "UnitFileState": m.file, "ActiveState": m.active, "Result": m.result, "StatusText": m.status}
	if name == "ExecMainStatus" {
		return &dbus.Property{Name: name, Value: godbus.MakeVariant(m.exit)}, nil
	}
	s, ok := v[name]
	if !ok {
		return nil, errors.New("unknown property " + name)
	}
	if name == "LoadState" && s == "" {
		s = "not-found"
	}
	return &dbus.Property{Name: name, Value: godbus.MakeVariant(s)}, nil
}

func (m *fakeManager) GetUnitPropertyContext(_ context.Context, unit, name string) (*dbus.Property, error) {
	return m.get(name)
}

func (m *fakeManager) GetServicePropertyContext(_ context.Context, unit, name string) (*dbus.Property, error) {
	return m.get(name)
}

func (m *fakeManager) EnableUnitFilesContext(_ context.Context, files []string, runtime, force bool) (bool, []dbus.EnableUnitFileChange, error) {
	if err := m.call("enable " + strings.Join(files, " ")); err != nil {
		return false, nil, err
	}
	if m.file == "enabled" {
		return true, nil, nil
	}
	m.file = "enabled"
	return true, []dbus.EnableUnitFileChange{{Type: "symlink"}}, nil
}

func (m *fakeManager) DisableUnitFilesContext(_ context.Context, files []string, runtime bool) ([]dbus.DisableUnitFileChange, error) {
	if err := m.call("disable " + strings.Join(files, " ")); err != nil {
		return nil, err
	}
	if m.file != "enabled" {
		return nil, nil
	}
	m.file = "disabled"
	return []dbus.DisableUnitFileChange{{Type: "unlink"}}, nil
}

func (m *fakeManager) ReloadContext(context.Context) error { return m.call("reload") }

func (m *fakeManager) ResetFailedUnitContext(context.Context, string) error {
	return m.call("reset-failed")
}

func (m *fakeManager) job(name, active string, done chan<- string) (int, error) {
	if err := m.call(name); err != nil {
		return 0, err
	}
	if m.hang {
		return 1, nil
	}
	m.active = active
	if m.jobResult == "" {
		done <- "done"
	} else {
		done <- m.jobResult
	}
	return 1, nil
}

func (m *fakeManager) RestartUnitContext(_ context.Context, unit, mode string, done chan<- string) (int, error) {
	active := "active"
	if m.starts != "" {
		active = m.starts
	}
	return m.job("restart "+unit+" "+mode, active, done)
}

func (m *fakeManager) StopUnitContext(_ context.Context, unit, mode string, done chan<- string) (int, error) {
	return m.job("stop "+unit+" "+mode, "inactive", done)
}

func (m *fakeManager) Close() { m.calls = append(m.calls, "close") }

// fakeSystemd is a host with that systemd as PID 1.
func fakeSystemd(t *testing.T, m *fakeManager, dialErr error) *Systemd {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Systemd{root: root, dial: func(context.Context) (manager, error) {
		if dialErr != nil {
			return nil, dialErr
		}
		return m, nil
	}}
}

func noSuchUnit() error {
	return godbus.Error{Name: "org.freedesktop.systemd1.NoSuchUnit", Body: []any{"Unit accel.service not loaded."}}
}

func TestState(t *testing.T) {
	tests := []struct {
		name string
		m    fakeManager
		want tuning.ServiceState
		note string // part of Note; "" where want.Note is exact
	}{
		{name: "not installed", want: tuning.ServiceState{}},
		{name: "installed only", m: fakeManager{load: "loaded", file: "disabled", active: "inactive"}, want: tuning.ServiceState{Installed: true}},
		{name: "at work", m: fakeManager{load: "loaded", file: "enabled", active: "active", status: "bbr is in force"},
			want: tuning.ServiceState{Installed: true, Enabled: true, Active: true, Note: "bbr is in force"}},
		{name: "reloading counts as active", m: fakeManager{load: "loaded", file: "enabled", active: "reloading"},
			want: tuning.ServiceState{Installed: true, Enabled: true, Active: true}},
		{name: "starting", m: fakeManager{load: "loaded", file: "enabled", active: "activating"},
			want: tuning.ServiceState{Installed: true, Enabled: true, Note: "starting"}},
		{name: "until the next boot only", m: fakeManager{load: "loaded", file: "enabled-runtime", active: "active"},
			want: tuning.ServiceState{Installed: true, Active: true}},
		{name: "masked", m: fakeManager{load: "masked", file: "masked", active: "inactive"},
			want: tuning.ServiceState{Installed: true, Note: "masked by an administrator"}},
		{name: "failed", m: fakeManager{load: "loaded", file: "enabled", active: "failed", result: "watchdog"},
			want: tuning.ServiceState{Installed: true, Enabled: true}, note: "watchdog"},
		{name: "failed in a container", m: fakeManager{load: "loaded", file: "enabled", active: "failed", result: "exit-code", exit: 226},
			want: tuning.ServiceState{Installed: true, Enabled: true}, note: "container"},
		{name: "systemd stops answering", m: fakeManager{load: "loaded", fail: map[string]error{"ActiveState": context.DeadlineExceeded}},
			want: tuning.ServiceState{}, note: "not known"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := fakeSystemd(t, &tt.m, nil).State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if tt.note != "" {
				if !strings.Contains(got.Note, tt.note) {
					t.Errorf("note %q does not speak of %q", got.Note, tt.note)
				}
				got.Note = ""
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if tt.m.calls[len(tt.m.calls)-1] != "close" {
				t.Error("the connection stays open")
			}
		})
	}
}

// TestStateFromFiles: where the bus is out of order or systemd is not PID 1,
// the files tell what they can.
func TestStateFromFiles(t *testing.T) {
	const unitFile, want = "usr/lib/systemd/system/accel.service", "etc/systemd/system/multi-user.target.wants/accel.service"
	tests := []struct {
		name   string
		files  []string          // empty files
		links  map[string]string // link -> target
		booted bool
		want   tuning.ServiceState
	}{
		{name: "nothing"},
		{name: "installed", files: []string{unitFile}, want: tuning.ServiceState{Installed: true}},
		{name: "enabled", files: []string{unitFile}, links: map[string]string{want: "/" + unitFile}, want: tuning.ServiceState{Installed: true, Enabled: true}},
		{name: "enabled, systemd there", booted: true, files: []string{unitFile}, links: map[string]string{want: "/" + unitFile}, want: tuning.ServiceState{Installed: true, Enabled: true}},
		{name: "a leftover link", links: map[string]string{want: "/" + unitFile}},
		{name: "masked", files: []string{unitFile}, links: map[string]string{"etc/systemd/system/accel.service": "/dev/null", want: "/" + unitFile},
			want: tuning.ServiceState{Installed: true, Note: "masked by an administrator"}},
		{name: "before the merge of /usr", files: []string{"lib/systemd/system/accel.service"}, want: tuning.ServiceState{Installed: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := fakeSystemd(t, nil, errors.New("no bus"))
			if !tt.booted {
				if err := os.Remove(filepath.Join(s.root, "run/systemd/system")); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range tt.files {
				make1(t, filepath.Join(s.root, name), func(p string) error { return os.WriteFile(p, nil, 0o644) })
			}
			for name, target := range tt.links {
				make1(t, filepath.Join(s.root, name), func(p string) error { return os.Symlink(target, p) })
			}
			got, err := s.State(t.Context())
			if tt.booted {
				if err != nil || !strings.Contains(got.Note, "no bus") {
					t.Errorf("error %v, note %q: want the cause in the note", err, got.Note)
				}
				got.Note = ""
			} else if !errors.Is(err, tuning.ErrNoManager) {
				t.Errorf("error %v, want ErrNoManager", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func make1(t *testing.T, name string, write func(string) error) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := write(name); err != nil {
		t.Fatal(err)
	}
}

func TestEnableDisable(t *testing.T) {
	const restart, stop = "restart accel.service replace", "stop accel.service replace"
	refused := errors.New("refused")
	tests := []struct {
		name    string
		m       fakeManager
		disable bool
		want    []string
		is      error  // errors.Is
		message string // part of the error
	}{
		{name: "first enable", m: fakeManager{load: "loaded", file: "disabled", active: "inactive"},
			want: []string{"enable accel.service", "reload", "reset-failed", restart, "close"}},
		{name: "a running agent takes the new wish", m: fakeManager{load: "loaded", file: "enabled", active: "active"},
			want: []string{"enable accel.service", "reset-failed", restart, "close"}},
		{name: "nothing to reset", m: fakeManager{load: "loaded", file: "enabled", fail: map[string]error{"reset-failed": noSuchUnit()}},
			want: []string{"enable accel.service", "reset-failed", restart, "close"}},
		{name: "not installed", want: []string{"close"}, is: ErrNotInstalled},
		{name: "not installed is not there", want: []string{"close"}, is: fs.ErrNotExist},
		{name: "masked", m: fakeManager{load: "masked"}, want: []string{"close"}, is: ErrMasked},
		{name: "cannot be enabled", m: fakeManager{load: "loaded", fail: map[string]error{"enable accel.service": refused}},
			want: []string{"enable accel.service", "close"}, is: refused, message: "enabling accel.service"},
		{name: "the agent fails", m: fakeManager{load: "loaded", file: "enabled", starts: "failed", jobResult: "failed", result: "exit-code"},
			want: []string{"enable accel.service", "reset-failed", restart, "close"}, message: "exit-code"},
		{name: "a dependency fails", m: fakeManager{load: "loaded", file: "enabled", starts: "inactive", jobResult: "dependency", result: "success"},
			want: []string{"enable accel.service", "reset-failed", restart, "close"}, message: "dependency"},
		{name: "the condition is not met", m: fakeManager{load: "loaded", file: "enabled", starts: "inactive"},
			want: []string{"enable accel.service", "reset-failed", restart, "close"}, message: "inactive"},

		{name: "disable", disable: true, m: fakeManager{load: "loaded", file: "enabled", active: "active"},
			want: []string{stop, "disable accel.service", "reload", "close"}},
		{name: "disabled already", disable: true, m: fakeManager{load: "loaded", file: "disabled", active: "inactive"},
			want: []string{stop, "disable accel.service", "close"}},
		{name: "disable what is not installed", disable: true, m: fakeManager{fail: map[string]error{stop: noSuchUnit(), "disable accel.service": noSuchUnit()}},
			want: []string{stop, "disable accel.service", "close"}},
		{name: "it does not stop", disable: true, m: fakeManager{load: "loaded", file: "enabled", fail: map[string]error{stop: refused}},
			want: []string{stop, "close"}, is: refused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := fakeSystemd(t, &tt.m, nil)
			do := s.Enable
			if tt.disable {
				do = s.Disable
			}
			err := do(t.Context())
			if (err == nil) != (tt.is == nil && tt.message == "") {
				t.Errorf("error %v", err)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %v is not %v", err, tt.is)
			}
			if tt.message != "" && (err == nil || !strings.Contains(err.Error(), tt.message)) {
				t.Errorf("error %v does not say %q", err, tt.message)
			}
			if diff := cmp.Diff(tt.want, tt.m.calls); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
		})
	}
}

// TestNoManager: without systemd as PID 1 nothing is dialled.
func TestNoManager(t *testing.T) {
	s := &Systemd{root: t.TempDir(), dial: func(context.Context) (manager, error) {
		t.Error("dialled")
		return nil, errors.New("dialled")
	}}
	if err := s.Enable(t.Context()); !errors.Is(err, tuning.ErrNoManager) {
		t.Errorf("enable: %v", err)
	}
	if err := s.Disable(t.Context()); !errors.Is(err, tuning.ErrNoManager) {
		t.Errorf("disable: %v", err)
	}
}

// TestHangingSystemd: no call outlasts its timeout.
func TestHangingSystemd(t *testing.T) {
	root := fakeSystemd(t, nil, nil).root
	synctest.Test(t, func(t *testing.T) {
		m := &fakeManager{load: "loaded", file: "enabled", active: "active", hang: true}
		s := &Systemd{root: root, dial: func(context.Context) (manager, error) { return m, nil }}
		start := time.Now()
		if err := s.Disable(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != jobTimeout {
			t.Errorf("disable: %v after %s", err, time.Since(start))
		}
		s.dial = func(ctx context.Context) (manager, error) { <-ctx.Done(); return nil, ctx.Err() }
		start = time.Now()
		if st, err := s.State(t.Context()); err != nil || !strings.Contains(st.Note, "not known") || time.Since(start) != askTimeout {
			t.Errorf("state: %+v, %v after %s", st, err, time.Since(start))
		}
	})
}
