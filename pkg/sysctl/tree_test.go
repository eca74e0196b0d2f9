package sysctl_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"accel/pkg/sysctl"
)

var causes = map[string]error{
	"missing": sysctl.ErrMissing, "value": sysctl.ErrValue, "read-only": sysctl.ErrReadOnly,
	"permission": sysctl.ErrPermission, "namespace": sysctl.ErrNamespace,
}

// isOnly fails if an error matches other causes than these.
func isOnly(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	for name, cause := range causes {
		if got := errors.Is(err, cause); got != slices.Contains(want, name) {
			t.Errorf("%s: is %q: %v: %v", what, name, got, err)
		}
	}
	var e *sysctl.Error
	if !errors.As(err, &e) || e.Key == "" || e.Op == "" {
		t.Errorf("%s: not an Error of this package: %#v", what, err)
	}
}

// A tree of plain files, as tests elsewhere use it.
func TestTree(t *testing.T) {
	root := tree(t, map[string]string{
		"net/ipv4/tcp_congestion_control": "cubic\n",
		"net/ipv4/tcp_rmem":               "4096\t131072\t6291456\n",
		"net/ipv4/empty":                  "\n",
		"net/ipv4/large":                  strings.Repeat("x", 1<<20+2),
		"net/core/default_qdisc":          "fq_codel\n",
	})
	if err := unix.Mkfifo(filepath.Join(root, "net/ipv4/pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	live := sysctl.Tree{Root: root}
	for _, value := range []string{"bbr", "cubic", "a_longer_name", "r"} {
		if err := live.Write(sysctl.CongestionControl, value); err != nil {
			t.Fatal(err)
		}
		if got, err := live.Read(sysctl.CongestionControl); got != value || err != nil {
			t.Errorf("wrote %q, read %q, %v", value, got, err)
		}
	}
	if err := live.Write("net/ipv4/empty", ""); err != nil {
		t.Error(err)
	}
	for _, k := range []sysctl.Key{"net/ipv4/nosuch", "net/ipv4", "net/ipv4/tcp_rmem/x", "net/ipv4/pipe", "../outside", "", "net//ipv4"} {
		_, err := live.Read(k)
		isOnly(t, "reading "+string(k), err2(err, k), "missing")
		isOnly(t, "writing "+string(k), err2(live.Write(k, "1"), k), "missing")
		if live.Exists(k) && k != "net/ipv4/pipe" {
			t.Errorf("%s exists", k)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "net/ipv4/nosuch")); err == nil {
		t.Error("a file was created")
	}
	for _, value := range []string{"bbr ", " bbr", "bbr\n", "reno\ncubic", "bbr\r", "bbr\x00", "\t"} {
		isOnly(t, fmt.Sprintf("writing %q", value), live.Write(sysctl.CongestionControl, value), "value")
	}
	if got, _ := live.Read(sysctl.CongestionControl); got != "r" {
		t.Errorf("a refused value was written: %q", got)
	}
	if _, err := live.Read("net/ipv4/large"); err == nil {
		t.Error("read without bounds")
	}
	if _, err := (sysctl.Tree{}).Read("kernel/osrelease"); err != nil {
		t.Errorf("the zero Tree: %v", err)
	}
}

// err2 gives the error of an empty key one, so that isOnly can look at the rest.
func err2(err error, k sysctl.Key) error {
	var e *sysctl.Error
	if k == "" && errors.As(err, &e) {
		e.Key = "(empty)"
	}
	return err
}

// A value that is there already is not written.
func TestWriteEqual(t *testing.T) {
	root := tree(t, map[string]string{"net/ipv4/tcp_rmem": "4096\t131072\t6291456\n"})
	name := filepath.Join(root, "net/ipv4/tcp_rmem")
	if err := (sysctl.Tree{Root: root}).Write("net/ipv4/tcp_rmem", "4096 131072 6291456"); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(name); string(data) != "4096\t131072\t6291456\n" {
		t.Errorf("written all the same: %q", data)
	}
}

// inside marks the copy of the test binary that runs in namespaces of its own.
const inside = "ACCEL_SYSCTL_INSIDE"

// TestNamespaces tries the real kernel, where nothing of the host changes.
func TestNamespaces(t *testing.T) {
	if os.Getenv(inside) != "" {
		t.Skip("this is the copy")
	}
	if os.Getuid() != 0 {
		const why = "needs root, for a network and mount namespace of its own"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	again(t, "^TestInsideKernel$", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL})
}

// again runs one test in another process.
func again(t *testing.T, run string, attr *syscall.SysProcAttr) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run="+run, "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "\n--- PASS: TestInside") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestInsideKernel(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("run by TestNamespaces")
	}
	live := sysctl.Tree{Root: "/proc/sys"}
	const ttl sysctl.Key = "net/ipv4/ip_default_ttl"
	if err := live.Write(ttl, "65"); err != nil {
		t.Error(err)
	}
	if got, err := live.Read(ttl); got != "65" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	isOnly(t, "no such algorithm", live.Write(sysctl.CongestionControl, "nosuch"), "value")
	if err := live.Write(sysctl.CongestionControl, "nosuch"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the errno is lost: %v", err)
	}
	isOnly(t, "no such algorithm, upper case", live.Write(sysctl.CongestionControl, "RENO"), "value")
	isOnly(t, "no algorithm", live.Write(sysctl.CongestionControl, ""), "value")
	isOnly(t, "not a number", live.Write(ttl, "x"), "value")
	isOnly(t, "out of range", live.Write(ttl, "4096"), "value")
	isOnly(t, "no such key", live.Write("net/ipv4/nosuch", "1"), "missing")
	isOnly(t, "not here", live.Write(sysctl.DefaultQdisc, "fq"), "namespace", "missing")
	_, err := live.Read(sysctl.DefaultQdisc)
	isOnly(t, "reading what is not here", err, "namespace", "missing")
	isOnly(t, "a key for reading", live.Write(sysctl.AvailableCongestionControl, "reno"), "read-only")
	isOnly(t, "a key of the initial namespace", live.Write(sysctl.AllowedCongestionControl, "reno nosuch"), "namespace")

	// The kernel takes it and makes something else of it.
	err = live.Write(ttl, "0x10")
	isOnly(t, "another base", err, "value")
	var e *sysctl.Error
	if !errors.As(err, &e) || e.Got != "16" {
		t.Errorf("got %+v", e)
	}
	err = live.Write(ttl, "70 rest")
	isOnly(t, "text behind a number", err, "value")

	// An algorithm that only the initial namespace may have as its default.
	available, _ := live.Read(sysctl.AvailableCongestionControl)
	allowed, _ := live.Read(sysctl.AllowedCongestionControl)
	for _, a := range strings.Fields(available) {
		if !slices.Contains(strings.Fields(allowed), a) {
			isOnly(t, "restricted algorithm "+a, live.Write(sysctl.CongestionControl, a), "namespace")
		}
	}

	t.Run("other user", func(t *testing.T) {
		again(t, "^TestInsideUser$", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	})
	t.Run("read-only", func(t *testing.T) {
		for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
			if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("/proc/sys", "/proc/sys", "", flags, "")); err != nil {
				t.Fatal(err)
			}
		}
		isOnly(t, "read-only mount", live.Write(ttl, "80"), "read-only")
		if err := live.Write(ttl, "81"); !errors.Is(err, unix.EROFS) {
			t.Errorf("the errno is lost: %v", err)
		}
	})
}

// TestInsideUser runs as a user who may nothing.
func TestInsideUser(t *testing.T) {
	if os.Getenv(inside) == "" || os.Getuid() == 0 {
		t.Skip("run by TestInsideKernel as another user")
	}
	isOnly(t, "other user", sysctl.Tree{}.Write("net/ipv4/ip_default_ttl", "90"), "permission")
}
