package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
)

// Host is everything of a host that tuning reads or changes. The fields are
// small interfaces so that a fake host can stand in.
type Host struct {
	Root     string // "/" or the directory of a recorded host
	Recorded bool   // read-only, and nothing that needs a live kernel is asked
	Files    files.FS
	Sysctl   Sysctls
	Qdiscs   Qdiscs
	Routes   Routes
	Sockets  Sockets
	Modules  Modules
	Detect   func() (*kernel.Facts, error)
	Now      func() time.Time
	// Lock keeps the command line and the agent apart. It waits until the
	// context ends; the returned function unlocks.
	Lock    func(ctx context.Context) (func(), error)
	Service Service // nil: nobody re-applies, and nobody can be asked
}

// Sysctls is the /proc/sys tree.
type Sysctls interface {
	Read(sysctl.Key) (string, error)
	Write(sysctl.Key, string) error
}

// Qdiscs reads and rebuilds the qdisc trees of the links.
type Qdiscs interface {
	Trees() ([]qdisc.Tree, error)
	Rebuild(link string) error
}

// Routes reads the default routes and changes their metrics.
type Routes interface {
	Defaults() ([]route.Route, error)
	Set(name string, m route.Metric, value int) error
}

// Sockets asks the kernel through sockets.
type Sockets interface {
	SelfConnect(ctx context.Context) (socket.Evidence, error)
	Connections() (map[string]int, error)
	BBRVersionOf(algorithm string) (int, error)
}

// Modules loads kernel modules.
type Modules interface {
	Load(ctx context.Context, name string) error
}

// Service is accel's own service as its manager sees it.
type Service interface {
	State(ctx context.Context) (ServiceState, error)
	Enable(ctx context.Context) error  // at every boot, and now
	Disable(ctx context.Context) error // not at boot, and not now
}

// ErrNoManager is returned by a Service where systemd is not running.
var ErrNoManager = errors.New("systemd is not running here")

// Live is this host.
func Live() *Host {
	return &Host{
		Root:    "/",
		Files:   files.OS{},
		Sysctl:  sysctl.Tree{Root: "/proc/sys"},
		Qdiscs:  liveQdiscs{},
		Routes:  liveRoutes{},
		Sockets: liveSockets{},
		Modules: liveModules{},
		Detect:  func() (*kernel.Facts, error) { return kernel.Detect("/") },
		Now:     time.Now,
		Lock:    LockFile(RuntimeDir + "/lock"),
	}
}

type liveQdiscs struct{}

func (liveQdiscs) Trees() ([]qdisc.Tree, error) { return qdisc.Trees() }
func (liveQdiscs) Rebuild(link string) error    { return qdisc.Rebuild(link) }

type liveRoutes struct{}

func (liveRoutes) Defaults() ([]route.Route, error) { return route.Defaults() }
func (liveRoutes) Set(name string, m route.Metric, value int) error {
	return route.Set(name, m, value)
}

type liveSockets struct{}

func (liveSockets) SelfConnect(ctx context.Context) (socket.Evidence, error) {
	return socket.SelfConnect(ctx)
}
func (liveSockets) Connections() (map[string]int, error) { return socket.Connections() }
func (liveSockets) LookAround(ctx context.Context, watch func(socket.Connection) bool) (*socket.Survey, error) {
	return socket.LookAround(ctx, watch)
}
func (liveSockets) BBRVersionOf(alg string) (int, error) { return socket.BBRVersionOf(alg) }

type liveModules struct{}

func (liveModules) Load(ctx context.Context, name string) error { return kernel.LoadModule(ctx, name) }

// LockFile locks a file that lives on a tmpfs: a crash or a reboot leaves
// nothing locked.
func LockFile(name string) func(context.Context) (func(), error) {
	return func(ctx context.Context) (func(), error) {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return nil, fmt.Errorf("making %s: %w", filepath.Dir(name), err)
		}
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return nil, fmt.Errorf("opening the lock: %w", err)
		}
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if err == nil {
				return func() { f.Close() }, nil
			}
			if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
				f.Close()
				return nil, fmt.Errorf("locking %s: %w", name, err)
			}
			select {
			case <-ctx.Done():
				f.Close()
				return nil, fmt.Errorf("another accel is at work and holds %s: %w", name, ctx.Err())
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func exists(f files.FS, name string) bool {
	_, err := f.Lstat(name)
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}
