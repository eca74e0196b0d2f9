// Command bench measures accel on this machine, beside `sysctl -p` and Debian's
// tuned as the yardsticks: how long enabling and asking take, and what the
// agent costs while nothing happens. `make bench` runs it.
//
// Nothing of the host is changed. All of it runs in a mount namespace, on a
// layer over the host's files that is thrown away, and in a network namespace.
// There are limits to that: no other link than lo is there, and no systemd, so
// that `enable` here neither sets a qdisc nor turns on the service.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// options are passed on from stage to stage.
type options struct {
	accel, deb string
	debSize    int64
	runs, idle int // idle: seconds
	tuned      bool
	stage      string
}

func main() {
	var o options
	flag.StringVar(&o.accel, "accel", "", "the program")
	flag.StringVar(&o.deb, "deb", "", "the package, for its size")
	flag.IntVar(&o.runs, "runs", 40, "how often each command is run")
	flag.IntVar(&o.idle, "idle", 60, "for how many seconds the idle daemons are watched")
	flag.BoolVar(&o.tuned, "tuned", true, "measure Debian's tuned too")
	flag.Int64Var(&o.debSize, "deb-size", 0, "used by bench itself")
	flag.StringVar(&o.stage, "stage", "", "used by bench itself")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	switch o.stage {
	case "":
		if o.accel == "" || o.deb == "" || o.runs < 1 || o.idle < 1 {
			return fmt.Errorf("-accel and -deb are needed, and at least one run and one second; make bench gives them")
		}
		if os.Getuid() != 0 {
			return fmt.Errorf("needs root, for namespaces of its own")
		}
		deb, err := os.Stat(o.deb)
		if err != nil {
			return err
		}
		o.debSize = deb.Size()
		dir, err := os.MkdirTemp("", "accel-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		return next(o, "root", syscall.CLONE_NEWNS, dir)
	case "root":
		if err := ownRoot(o, flag.Arg(0)); err != nil {
			return fmt.Errorf("making a root of its own: %w", err)
		}
		if o.tuned {
			if err := installTuned(); err != nil {
				fmt.Fprintf(os.Stderr, "bench: going on without tuned, which could not be installed: %v\n", err)
				o.tuned = false
			}
		}
		return next(o, "measure", syscall.CLONE_NEWNET)
	case "measure":
		if err := ownNetwork(); err != nil {
			return fmt.Errorf("making a network of its own: %w", err)
		}
		return measure(o)
	}
	return fmt.Errorf("no stage %q", o.stage)
}

// next runs the next stage in a new namespace.
func next(o options, stage string, namespace uintptr, args ...string) error {
	accel, err := filepath.Abs(o.accel)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", append([]string{
		"-stage", stage, "-accel", accel, "-deb-size", strconv.FormatInt(o.debSize, 10), "-runs", strconv.Itoa(o.runs), "-idle", strconv.Itoa(o.idle),
		"-tuned=" + strconv.FormatBool(o.tuned)}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespace, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// ownRoot makes the host's files, below a layer that takes all changes, the
// root of this process, with the measured accel installed in it.
func ownRoot(o options, dir string) error {
	program, err := os.ReadFile(o.accel)
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, d := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	root := filepath.Join(dir, "root")
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", dir, dir)
	if err := unix.Mount("overlay", root, "overlay", 0, layers); err != nil {
		return err
	}
	for _, d := range []string{"/proc", "/dev"} {
		if err := unix.Mount(d, root+d, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	for _, d := range []string{"/run", "/tmp"} {
		if err := unix.Mount("tmpfs", root+d, "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// A host where accel is enabled starts from nothing here, like every other.
	for _, name := range []string{"/var/lib/accel", "/etc/sysctl.d/99-zz-accel.conf", "/etc/modules-load.d/accel.conf", installed} {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	return os.WriteFile(installed, program, 0o755)
}

const installed = "/usr/bin/accel"

// ownNetwork readies the network namespace: a /sys that shows it, and lo.
func ownNetwork() error {
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	return h.LinkSetUp(lo)
}

// installTuned installs Debian's tuned in this root, with a profile that sets
// the same thing that accel does here, and one to come from.
func installTuned() error {
	fmt.Fprintln(os.Stderr, "installing tuned in a root of its own ...")
	const install = `export DEBIAN_FRONTEND=noninteractive
		rm -f /usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
		apt-get install -q -y --no-install-recommends tuned dbus ||
			{ apt-get update -q && apt-get install -q -y --no-install-recommends tuned dbus; }`
	if out, err := exec.Command("sh", "-c", install).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	algorithm, err := algorithm()
	if err != nil {
		return err
	}
	for name, algorithm := range map[string]string{tunedProfile: algorithm, tunedProfile + "-before": before} {
		dir := "/etc/tuned/" + name
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		text := "[main]\nsummary=yardstick\n\n[sysctl]\n" + key + "=" + algorithm + "\n"
		if err := os.WriteFile(dir+"/tuned.conf", []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// What every contestant sets, and what it finds.
const (
	key          = "net.ipv4.tcp_congestion_control"
	keyFile      = "/proc/sys/net/ipv4/tcp_congestion_control"
	before       = "reno" // every kernel has it and every namespace may set it
	tunedProfile = "accel-bench"
)

// algorithm returns what is set: bbr where the host lets network namespaces
// have it, otherwise another one, which is the same work.
func algorithm() (string, error) {
	const file = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	allowed := strings.Fields(string(data))
	if slices.Contains(allowed, "bbr") {
		return "bbr", nil
	}
	for _, name := range allowed {
		if name != before {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s allows nothing but %s in a network namespace", file, before)
}

// hostName describes the machine in one line.
func hostName() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	name := "?"
	if data, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				name = strings.Trim(v, `"`)
			}
		}
	}
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s, kernel %s, %d CPUs", name, unix.ByteSliceToString(u.Release[:]), strings.Count(string(cpus), "processor\t:"))
}
