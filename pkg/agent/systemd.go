package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Unit is the name of accel's service.
const Unit = "accel.service"

// How long systemd may take, all calls of one method together. D-Bus calls
// have been seen to hang for ever on hosts whose system bus is in trouble. A
// start has to outlast the agent's first healing, and on a slow host reloading
// systemd takes several seconds, too.
const (
	askTimeout = 10 * time.Second
	jobTimeout = 60 * time.Second
)

var (
	// ErrNotInstalled is wrapped by the error of Enable where systemd knows no
	// accel.service: the binary is there without its package.
	// It is an fs.ErrNotExist.
	ErrNotInstalled = fmt.Errorf("accel.service is not installed: %w", fs.ErrNotExist)
	// ErrMasked is wrapped by the error of Enable where an administrator has
	// masked accel.service.
	ErrMasked = errors.New("accel.service is masked")
)

// Systemd is accel's service as systemd sees it, by D-Bus. It implements
// tuning.Service.
type Systemd struct {
	root string // "/", or a tree for tests
	dial func(ctx context.Context) (manager, error)
}

var _ tuning.Service = (*Systemd)(nil)

// NewSystemd is the systemd of this host. It connects only when it is asked
// something.
func NewSystemd() *Systemd { return &Systemd{root: "/", dial: dialSystemd} }

// manager is the part of systemd's D-Bus interface that is used, as
// *dbus.Conn has it.
type manager interface {
	GetUnitPropertyContext(ctx context.Context, unit, name string) (*dbus.Property, error)
	GetServicePropertyContext(ctx context.Context, unit, name string) (*dbus.Property, error)
	EnableUnitFilesContext(ctx context.Context, files []string, runtime, force bool) (bool, []dbus.EnableUnitFileChange, error)
	DisableUnitFilesContext(ctx context.Context, files []string, runtime bool) ([]dbus.DisableUnitFileChange, error)
	ReloadContext(ctx context.Context) error
	ResetFailedUnitContext(ctx context.Context, unit string) error
	RestartUnitContext(ctx context.Context, unit, mode string, done chan<- string) (int, error)
	StopUnitContext(ctx context.Context, unit, mode string, done chan<- string) (int, error)
	Close()
}

// dialSystemd connects root to systemd's own socket, as systemctl does, so that
// neither a missing nor a hanging bus matters; everybody else to the system bus.
func dialSystemd(ctx context.Context) (manager, error) {
	if os.Geteuid() == 0 {
		if c, err := dbus.NewSystemdConnectionContext(ctx); err == nil {
			return c, nil
		}
	}
	c, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// booted tells, as sd_booted(3) does, whether systemd is PID 1 here.
func (s *Systemd) booted() bool {
	fi, err := os.Lstat(filepath.Join(s.root, "run/systemd/system"))
	return err == nil && fi.IsDir()
}

// overdue: when time is up the connection is closed, and what a call says then
// ("use of closed network connection") is not the cause.
func overdue(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("no answer in time: %w", ctx.Err())
	}
	return err
}

func (s *Systemd) connect(ctx context.Context) (manager, error) {
	if !s.booted() {
		return nil, tuning.ErrNoManager
	}
	m, err := s.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to systemd: %w", overdue(ctx, err))
	}
	return m, nil
}

// State tells whether the service is installed, starts at boot and runs now.
// It needs no privilege. Note is what the agent last said, or why it does not
// run. Where systemd cannot be asked, the files still tell the first two, and
// Note says that the third is not known.
//
// Where systemd is not PID 1 the error is tuning.ErrNoManager; the state then
// still says what the files say.
func (s *Systemd) State(ctx context.Context) (tuning.ServiceState, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	m, err := s.connect(ctx)
	if errors.Is(err, tuning.ErrNoManager) {
		return s.fromFiles(), err
	}
	var st tuning.ServiceState
	if err == nil {
		defer m.Close()
		st, err = state(ctx, m)
		err = overdue(ctx, err)
	}
	if err != nil {
		st = s.fromFiles()
		st.Note = text.T("systemd could not be asked, so it is not known whether the service runs (%s)", err)
	}
	return st, nil
}

func state(ctx context.Context, m manager) (tuning.ServiceState, error) {
	var st tuning.ServiceState
	load, err := property(ctx, m, "LoadState")
	if err != nil {
		return st, err
	}
	if load == "not-found" {
		return st, nil
	}
	st.Installed = true
	file, err := property(ctx, m, "UnitFileState")
	if err != nil {
		return st, err
	}
	// Not "enabled-runtime": that is gone after a reboot.
	st.Enabled = file == "enabled"
	active, err := property(ctx, m, "ActiveState")
	if err != nil {
		return st, err
	}
	// A service that is reloading runs, one that is activating is not there yet.
	st.Active = active == "active" || active == "reloading"
	switch {
	case load == "masked":
		st.Note = text.T("masked by an administrator")
	case st.Active:
		st.Note, err = serviceProperty(ctx, m, "StatusText")
	case active == "failed":
		st.Note, err = failure(ctx, m)
	case active == "activating":
		st.Note = text.T("starting")
	}
	return st, err
}

// fromFiles is State by the unit file and its links, without asking systemd.
func (s *Systemd) fromFiles() tuning.ServiceState {
	var st tuning.ServiceState
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib", "lib"} {
		name := filepath.Join(s.root, dir, "systemd/system", Unit)
		if _, err := os.Lstat(name); err != nil {
			continue
		}
		st.Installed = true
		if target, err := os.Readlink(name); err == nil && target == "/dev/null" {
			st.Note = text.T("masked by an administrator")
			return st
		}
		break
	}
	wants, _ := filepath.Glob(filepath.Join(s.root, "etc/systemd/system/*.wants", Unit)) // the pattern is well formed
	st.Enabled = st.Installed && len(wants) > 0
	return st
}

// Enable makes the service start at every boot, and run now on the present
// state. A running agent is restarted, so that it takes the new wish at once
// and forgets what it has given up on; the caller need not ask for that when
// nothing changed.
//
// It returns once the agent has done its first healing, at most a minute later.
// errors.Is: tuning.ErrNoManager, ErrNotInstalled, ErrMasked,
// context.DeadlineExceeded.
func (s *Systemd) Enable(ctx context.Context) error { return s.do(ctx, enable) }

func (s *Systemd) do(ctx context.Context, f func(context.Context, manager) error) error {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	m, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer m.Close()
	return overdue(ctx, f(ctx, m))
}

func enable(ctx context.Context, m manager) error {
	load, err := property(ctx, m, "LoadState")
	if err != nil {
		return fmt.Errorf("asking systemd for %s: %w", Unit, err)
	}
	switch load {
	case "not-found":
		return ErrNotInstalled
	case "masked":
		return ErrMasked
	}
	_, changes, err := m.EnableUnitFilesContext(ctx, []string{Unit}, false, false)
	if err != nil {
		return fmt.Errorf("enabling %s: %w", Unit, err)
	}
	if len(changes) > 0 {
		if err := m.ReloadContext(ctx); err != nil {
			return fmt.Errorf("reloading systemd: %w", err)
		}
	}

	// Forget earlier failures, or many enables in a row would hit the start
	// limit. That the unit has none is no error worth reporting.
	_ = m.ResetFailedUnitContext(ctx, Unit)
	// Restarting starts what is not running.
	if err := job(ctx, m, m.RestartUnitContext); err != nil {
		return fmt.Errorf("starting %s: %w", Unit, err)
	}
	active, err := property(ctx, m, "ActiveState")
	if err == nil && active != "active" {
		// The job is done although nothing runs: a condition was not met, or
		// the agent has left already.
		err = errors.New(text.T("it does not stay running (%s)", active))
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", Unit, err)
	}
	return nil
}

// Disable stops the service and takes it out of the boot. A service that is
// not installed is disabled already. errors.Is: tuning.ErrNoManager,
// context.DeadlineExceeded.
func (s *Systemd) Disable(ctx context.Context) error { return s.do(ctx, disable) }

func disable(ctx context.Context, m manager) error {
	if err := job(ctx, m, m.StopUnitContext); err != nil && !unknownUnit(err) {
		return fmt.Errorf("stopping %s: %w", Unit, err)
	}
	changes, err := m.DisableUnitFilesContext(ctx, []string{Unit}, false)
	if err != nil && !unknownUnit(err) {
		return fmt.Errorf("disabling %s: %w", Unit, err)
	}
	if len(changes) > 0 {
		if err := m.ReloadContext(ctx); err != nil {
			return fmt.Errorf("reloading systemd: %w", err)
		}
	}
	return nil
}

// unknownUnit: systemd has no such unit, loaded or on disk.
func unknownUnit(err error) bool {
	var e godbus.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Name == "org.freedesktop.systemd1.NoSuchUnit" || e.Name == "org.freedesktop.DBus.Error.FileNotFound" ||
		e.Name == "org.freedesktop.systemd1.LoadFailed"
}

// job runs one job on the unit and waits for its result.
func job(ctx context.Context, m manager, submit func(ctx context.Context, unit, mode string, done chan<- string) (int, error)) error {
	done := make(chan string, 1) // buffered: the connection must never wait for us
	if _, err := submit(ctx, Unit, "replace", done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result == "done" {
			return nil
		}
		why, err := failure(ctx, m)
		if err != nil || why == "" {
			why = result
		}
		return errors.New(why)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failure says in words why the unit failed.
func failure(ctx context.Context, m manager) (string, error) {
	result, err := serviceProperty(ctx, m, "Result")
	if err != nil {
		return "", err
	}
	if result == "success" {
		return "", nil
	}
	// EXIT_NAMESPACE of systemd.exec(5): seen in containers that grant no mount
	// namespace.
	if p, err := m.GetServicePropertyContext(ctx, Unit, "ExecMainStatus"); err == nil && result == "exit-code" {
		if status, _ := p.Value.Value().(int32); status == 226 {
			return text.T("failed: its sandbox could not be set up, as in containers that forbid it (226/NAMESPACE)"), nil
		}
	}
	return text.T("failed (%s); journalctl -u accel tells more", result), nil
}

func property(ctx context.Context, m manager, name string) (string, error) {
	return stringOf(m.GetUnitPropertyContext(ctx, Unit, name))
}

func serviceProperty(ctx context.Context, m manager, name string) (string, error) {
	return stringOf(m.GetServicePropertyContext(ctx, Unit, name))
}

func stringOf(p *dbus.Property, err error) (string, error) {
	if err != nil {
		return "", err
	}
	v, ok := p.Value.Value().(string)
	if !ok {
		return "", fmt.Errorf("property %s: %w", p.Name, fs.ErrInvalid)
	}
	return v, nil
}
