// Package bootkernel brings a newer kernel to a host so that the worst outcome
// is a reboot into the kernel that worked before: the running kernel is pinned
// as the default of GRUB before anything is installed, the new one is started
// once, and only when the host is reachable again with it does it become the
// default. Otherwise the next boot is the old kernel's, whoever or whatever
// causes it.
//
// What it adds to the host are files of its own (PinFile, TrialFile, KeepFile,
// BackportsFile), the packages of the kernel, and one variable in GRUB's
// environment block. StateFile says at every moment how far it got, and is
// written before each step.
package bootkernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Files of the host that this package owns, besides those in GRUB's and apt's
// directories.
const (
	// StateFile is what accel remembers about the one install that is under way
	// or was the last.
	StateFile = tuning.StateDir + "/kernel.json"
	// SeenFile says that this boot of a new kernel came as far as its checks. It
	// lives on a tmpfs.
	SeenFile = tuning.RuntimeDir + "/kernel-seen"
)

// Host is everything of a host that this package reads or changes.
type Host struct {
	Root     string // "/" or the directory of a recorded host
	Recorded bool   // read-only; no program is run
	Files    files.FS
	Detect   func() (*kernel.Facts, error)
	Programs Programs
	Network  Network
	Sysctl   tuning.Sysctls
	// SelfConnect tells the algorithm in force.
	SelfConnect func(ctx context.Context) (socket.Evidence, error)
	// Space tells how much room a directory's file system has, and which file
	// system that is.
	Space func(dir string) (Space, error)
	// Holder tells which process holds a lock file of apt or dpkg; "" for none.
	Holder func(file string) string
	// Lock keeps two accels apart.
	Lock  func(ctx context.Context) (func(), error)
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error
	// Sync brings everything that was written to the disks.
	Sync func()
	Arch string // Debian's name of the architecture: "amd64"
	Log  *slog.Logger
}

// Space is the room on a file system.
type Space struct {
	Free   uint64 // bytes that root may still write
	Device uint64 // tells file systems apart
}

// Programs runs the programs of the host.
type Programs interface {
	// Run runs a program to its end and returns what it printed to stdout. The
	// error of one that failed is *ProgramError; of one that is not installed it
	// wraps ErrNoProgram.
	Run(ctx context.Context, c Command) (string, error)
}

// Command is one run of a program.
type Command struct {
	Name string
	Args []string
	// Change: it changes the host, and must not be stopped half-way.
	Change bool
	// Progress gets what apt says about how far it is: percent, or a negative
	// number where that is not known, and the package. May be nil.
	Progress func(percent float64, what string)
	// Output reads what the program prints, in place of its being returned. May
	// be nil.
	Output func(io.Reader) error
}

func (c Command) String() string { return c.Name + " " + strings.Join(c.Args, " ") }

// ErrNoProgram is wrapped by the error of a program that is not installed.
var ErrNoProgram = errors.New("not installed")

// ProgramError is the failure of a program.
type ProgramError struct {
	Command string // its name and first argument
	Exit    int    // -1: it was killed
	Said    string // the last lines of its stderr
}

func (e *ProgramError) Error() string {
	if e.Said == "" {
		return fmt.Sprintf("%s failed with exit code %d", e.Command, e.Exit)
	}
	return fmt.Sprintf("%s failed with exit code %d: %s", e.Command, e.Exit, e.Said)
}

// Network is what the checks before and after the reboot ask of the network.
type Network interface {
	// Gateways gives the default routes of the main table and their gateways.
	Gateways() ([]route.Gateway, error)
	// Resolve reports whether the gateway answers ARP or neighbour discovery.
	Resolve(ctx context.Context, g route.Gateway) bool
	// Listening gives the TCP ports that something listens on; with ssh only
	// those that an SSH server listens on, which needs root.
	Listening(ssh bool) ([]int, error)
}

// Live is this host.
func Live() *Host {
	th := tuning.Live()
	return &Host{
		Root:        "/",
		Files:       th.Files,
		Detect:      th.Detect,
		Programs:    programs{},
		Network:     liveNetwork{},
		Sysctl:      th.Sysctl,
		SelfConnect: socket.SelfConnect,
		Space:       space,
		Holder:      holder,
		Lock:        tuning.LockFile(tuning.RuntimeDir + "/kernel-lock"),
		Now:         time.Now,
		Sleep: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		},
		Sync: unix.Sync,
		Arch: runtime.GOARCH,
		Log:  slog.New(slog.DiscardHandler),
	}
}

// Recorded is a recorded host or a mounted image, to look at.
func Recorded(dir string) (*Host, error) {
	th, err := tuning.Recorded(dir)
	if err != nil {
		return nil, err
	}
	return &Host{
		Root: dir, Recorded: true, Files: th.Files, Detect: th.Detect, Sysctl: sysctl.Tree{Root: dir + "/proc/sys"},
		Programs: noPrograms{}, Network: noNetwork{}, Now: time.Now, Arch: runtime.GOARCH, Log: slog.New(slog.DiscardHandler),
		Lock: th.Lock, Sync: func() {}, Holder: func(string) string { return "" },
		Space:       func(string) (Space, error) { return Space{}, errRecorded },
		SelfConnect: func(context.Context) (socket.Evidence, error) { return socket.Evidence{}, errRecorded },
		Sleep:       func(context.Context, time.Duration) error { return errRecorded },
	}, nil
}

var errRecorded = errors.New("a recorded host")

type noPrograms struct{}

func (noPrograms) Run(context.Context, Command) (string, error) { return "", errRecorded }

type noNetwork struct{}

func (noNetwork) Gateways() ([]route.Gateway, error)          { return nil, errRecorded }
func (noNetwork) Resolve(context.Context, route.Gateway) bool { return false }
func (noNetwork) Listening(bool) ([]int, error)               { return nil, errRecorded }

func space(dir string) (Space, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return Space{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return Space{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return Space{Free: fs.Bavail * uint64(fs.Bsize), Device: st.Dev}, nil
}

// problem is an error with the exit code it deserves and the next step.
func problem(exit int, cause error, sentence, next string) error {
	err := errors.New(sentence)
	if cause != nil {
		err = fmt.Errorf("%s: %w", sentence, cause)
	}
	return &tuning.Problem{Exit: exit, Next: next, Err: err}
}

// tree opens the host's files for reading.
func (h *Host) tree() (*kernel.Tree, error) {
	t, err := kernel.OpenTree(h.Root)
	if err != nil {
		return nil, problem(tuning.ExitFailed, err, text.T("looking at this host"), text.T("Mend the cause and try again."))
	}
	return t, nil
}

// read gives a small file's content without surrounding white space, "" when
// it cannot be read.
func read(t *kernel.Tree, name string) string {
	data, err := t.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// run runs a program.
func (h *Host) run(ctx context.Context, name string, args ...string) (string, error) {
	return h.Programs.Run(ctx, Command{Name: name, Args: args})
}

// change runs a program that must not be stopped half-way.
func (h *Host) change(name string, args ...string) (string, error) {
	return h.Programs.Run(context.Background(), Command{Name: name, Args: args, Change: true})
}
