package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The program under test, built once, and a world of its own around it.
const (
	binVar     = "ACCEL_TEST_BIN"     // directory of the program; unset: build it
	sandboxVar = "ACCEL_TEST_SANDBOX" // set inside the namespaces
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/cli:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if os.Getenv(sandboxVar) != "" {
		if err := sandbox(); err != nil {
			return 0, fmt.Errorf("building the sandbox: %w", err)
		}
		return m.Run(), nil
	}
	if os.Getenv(binVar) == "" {
		dir, err := build()
		if err != nil {
			return 0, err
		}
		defer os.RemoveAll(dir)
		os.Setenv(binVar, dir)
	}
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			return 0, errors.New("needs root, for network and mount namespaces")
		}
		return m.Run(), nil
	}
	// The same tests again, in namespaces.
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.Env = append(os.Environ(), sandboxVar+"=1")
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	err := self.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// build builds the program into a new directory.
func build() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "accel-cli-"); err != nil {
		return "", err
	}
	// Programs are also run as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "accel"), "accel/cmd/accel")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("building accel: %w", err)
	}
	return dir, nil
}

// sandbox makes the new namespaces into a small world: a loopback link, a copy
// of /etc, and an empty /run (no systemd, no lock) and /var/lib.
func sandbox() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	etc, err := os.MkdirTemp("", "accel-etc-")
	if err != nil {
		return err
	}
	defer os.Remove(etc)
	if err := unix.Mount("accel-test", etc, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	if err := copyTree("/etc", etc); err != nil {
		return err
	}
	if err := unix.Mount(etc, "/etc", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("accel-test", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// copyTree copies files, links and directories.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			if rel == "." {
				return nil
			}
			return os.Mkdir(target, info.Mode().Perm())
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case d.Type().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return os.WriteFile(target, data, info.Mode().Perm())
		}
		return nil // a socket or a fifo
	})
}
