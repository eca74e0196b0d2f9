package sysctld

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"accel/pkg/sysctl"
)

var (
	configs = flag.Int("configs", count(), "how many worlds of sysctl files to generate")
	seed    = flag.Uint64("seed", 0, "the generator's seed; 0 chooses one")
	only    = flag.Int("only", -1, "run only the config of this number")
)

// A job is what the helper process is told.
type job struct {
	Suite   string
	Root    string
	Seed    uint64
	Configs []int
	Predict bool // instead: what doctor foretells
}

const helperVariable = "ACCEL_SYSCTLD_JOB"

func TestMain(m *testing.M) {
	if text := os.Getenv(helperVariable); text != "" {
		var j job
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		work := help
		if j.Predict {
			work = func(j job) error { return predict(j.Suite, j.Root) }
		}
		if err := work(j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// need fails in CI and skips elsewhere.
func need(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// TestDifferential compares accel's answers with what the real tools do.
// count is enough for a change, and ten times that for make test-long.
func count() int {
	if os.Getenv("ACCEL_LONG") != "" {
		return 20000
	}
	return 2000
}

func TestDifferential(t *testing.T) {
	if os.Getuid() != 0 {
		need(t, "needs root, to run the tools in namespaces of their own")
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	var wait sync.WaitGroup
	for _, suite := range releases {
		root, err := ensureRoot(suite)
		if err != nil {
			need(t, "needs mmdebstrap and a Debian mirror in apt's sources: %v", err)
		}
		j := job{Suite: suite, Root: root, Seed: *seed}
		for i := range *configs {
			if *only < 0 || i == *only {
				j.Configs = append(j.Configs, i)
			}
		}
		wait.Go(func() {
			start := time.Now()
			out, err := inNamespaces(j)
			t.Logf("%s: %d configs, both tools, seed %d: %v\n%s", suite, len(j.Configs), *seed, time.Since(start).Round(time.Millisecond), out)
			if err != nil {
				t.Errorf("%s: %v", suite, err)
			}
		})
	}
	wait.Wait()
}

// inNamespaces runs this binary again as the helper of a job.
func inNamespaces(j job) ([]byte, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperVariable+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	return out.Bytes(), err
}

// The settings that are looked at. All belong to the network namespace, so that
// nothing of the host changes.
var watched = func() []sysctl.Key {
	keys := []sysctl.Key{sysctl.CongestionControl, "net/ipv4/tcp_retries2", "net/ipv4/tcp_fin_timeout", "net/ipv4/ip_default_ttl"}
	for _, link := range []string{"all", "default", "lo", "v0", "v0.100", "v0.100.2"} {
		keys = append(keys, sysctl.Key("net/ipv4/conf/"+link+"/tag"), sysctl.Key("net/ipv4/conf/"+link+"/rp_filter"))
	}
	return keys
}()

// before is what they hold before each run; what is not in it, 0. The algorithm
// comes with the machine: outside of the initial namespace only the allowed ones
// can be set.
var before = map[sysctl.Key]string{
	"net/ipv4/tcp_retries2": "15", "net/ipv4/tcp_fin_timeout": "60", "net/ipv4/ip_default_ttl": "64",
}

// A machine is the helper's world: one release's tools in private namespaces.
type machine struct {
	root  string // all else is below it
	split string // the same, but with a /lib of its own
}

func help(j job) error {
	m, err := newMachine(j.Root)
	if err != nil {
		return fmt.Errorf("preparing the namespaces: %w", err)
	}
	bad := 0
	var used, split int
	for _, i := range j.Configs {
		c := generate(j.Seed, i)
		if c.split {
			split++
		}
		for _, order := range []sysctl.Order{sysctl.Systemd, sysctl.Procps} {
			diff, set, err := m.compare(c, order)
			if err != nil {
				return fmt.Errorf("config %d: %w\n%s", i, err, c)
			}
			if set {
				used++
			}
			if diff != "" {
				bad++
				if bad <= 5 {
					fmt.Printf("config %d (-seed %d -only %d), %s as %v:\n%s%s\n", i, j.Seed, i, j.Suite, order, c, diff)
				}
			}
		}
	}
	fmt.Printf("%d of %d comparisons set something; %d with a /lib of its own\n", used, 2*len(j.Configs), split)
	if bad > 0 {
		return fmt.Errorf("%d comparisons differ", bad)
	}
	if len(j.Configs) > 100 && used < len(j.Configs) {
		return fmt.Errorf("only %d of %d comparisons set something: the test has lost its force", used, 2*len(j.Configs))
	}
	return nil
}

func newMachine(root string) (*machine, error) {
	m := &machine{root: root, split: root + ".split"}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, err
	}
	// The cached root stays as it is: all changes go to a layer in memory.
	scratch := "/tmp"
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, ""); err != nil {
		return nil, err
	}
	for _, r := range []*string{&m.root, &m.split} {
		merged := filepath.Join(scratch, filepath.Base(*r))
		for _, dir := range []string{merged, merged + ".upper", merged + ".work"} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return nil, err
			}
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s.upper,workdir=%s.work", root, merged, merged)
		if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
			return nil, fmt.Errorf("mounting an overlay of %s: %w", root, err)
		}
		*r = merged
	}
	// A /lib that is not /usr/lib, with the same libraries.
	lib := filepath.Join(m.split, "lib")
	if err := errors.Join(os.Remove(lib), os.Mkdir(lib, 0o755)); err != nil {
		return nil, err
	}
	if err := unix.Mount(filepath.Join(m.split, "usr/lib"), lib, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	for _, r := range []string{m.root, m.split} {
		for _, dir := range []string{"etc", "run", "dev", "usr/local/lib", "usr/lib/sysctl.d"} {
			if err := unix.Mount("tmpfs", filepath.Join(r, dir), "tmpfs", 0, "mode=0755"); err != nil {
				return nil, fmt.Errorf("mounting %s: %w", dir, err)
			}
		}
		if err := unix.Mknod(filepath.Join(r, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			return nil, err
		}
		proc := filepath.Join(r, "proc")
		if err := unix.Mount("proc", proc, "proc", 0, ""); err != nil {
			return nil, err
		}
		// Of the settings only those of this network namespace can be written.
		sys := filepath.Join(proc, "sys")
		for _, b := range []struct {
			dir   string
			flags uintptr
		}{
			{sys, unix.MS_BIND},
			{filepath.Join(sys, "net"), unix.MS_BIND},
			{sys, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
		} {
			if err := unix.Mount(b.dir, b.dir, "", b.flags, ""); err != nil {
				return nil, fmt.Errorf("mounting %s: %w", b.dir, err)
			}
		}
	}
	if err := unix.Mount("tmpfs", filepath.Join(m.split, "lib/sysctl.d"), "tmpfs", 0, ""); err != nil {
		return nil, err
	}
	allowed, err := os.ReadFile(path(sysctl.AllowedCongestionControl))
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(allowed))
	before[sysctl.CongestionControl] = names[len(names)-1] // reno is the first
	for _, names := range [][2]string{{"v0", "v0.100"}, {"v0.100.2", "peer"}} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = names[0]
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: names[1]}); err != nil {
			return nil, fmt.Errorf("adding a link: %w", err)
		}
	}
	return m, nil
}

// compare makes the files, lets the real tool run, and lets accel's answers be
// written in its place.
func (m *machine) compare(c config, order sysctl.Order) (diff string, set bool, err error) {
	root := m.root
	if c.split {
		root = m.split
	}
	if err := lay(root, c); err != nil {
		return "", false, err
	}
	if err := reset(); err != nil {
		return "", false, err
	}
	said, err := run(root, order)
	if err != nil {
		return "", false, err
	}
	real, err := snapshot()
	if err != nil {
		return "", false, err
	}
	if err := reset(); err != nil {
		return "", false, err
	}
	answer, err := sysctl.ReadConfig(root, order)
	if err != nil {
		return "", false, err
	}
	keys := answer.Keys()
	for _, k := range watched {
		w := answer.Writes(k)
		for _, a := range w {
			// As the tools write, and whether the kernel likes it or not.
			_ = write(k, a.Value)
		}
		a, ok := answer.Lookup(k)
		if ok != (len(w) > 0) || ok && a != w[len(w)-1] {
			diff += fmt.Sprintf("  %s: Lookup and Writes differ: %+v, %+v\n", k, a, w)
		}
		if ok && !slices.Contains(keys, k) {
			diff += fmt.Sprintf("  %s: not among the keys\n", k)
		}
	}
	ours, err := snapshot()
	if err != nil {
		return "", false, err
	}
	for _, k := range watched {
		if real[k] != before[k] {
			set = true
		}
		if filepath.Base(string(k)) == "tag" {
			// A plain number: what it becomes can be told without the kernel.
			told := before[k]
			for _, a := range answer.Writes(k) {
				if v, ok := sysctl.Taken(told, a.Value); ok && len(v) < 10 {
					told = v
				}
			}
			if told != real[k] {
				diff += fmt.Sprintf("  %s: the tool left %q, and Taken says %q: %+v\n", k, real[k], told, answer.Writes(k))
			}
		}
		if real[k] != ours[k] {
			diff += fmt.Sprintf("  %s: the tool left %q, accel says %q: %+v\n", k, real[k], ours[k], answer.Writes(k))
		}
	}
	if diff != "" {
		diff += "  the tool said: " + said + "\n"
	}
	return diff, set, nil
}

// lay makes the files of a config, and takes away those of the one before.
func lay(root string, c config) error {
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib/sysctl.d", "lib/sysctl.d"} {
		dir = filepath.Join(root, dir)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for _, n := range c.files {
		p := filepath.Join(root, n.path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		var err error
		switch {
		case n.dir:
			err = os.Mkdir(p, 0o755)
		case n.link != "":
			err = os.Symlink(n.link, p)
		default:
			mode := os.FileMode(0o644)
			if n.mode0 {
				mode = 0
			}
			err = os.WriteFile(p, []byte(n.content), mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run runs the real tool and returns what it printed as errors.
func run(root string, order sysctl.Order) (string, error) {
	argv := []string{"/usr/lib/systemd/systemd-sysctl"}
	if order == sysctl.Procps {
		argv = []string{"/sbin/sysctl", "--system"}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Path, cmd.Err = argv[0], nil // in the other root
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Discard, &out
	stop := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, _ := exit.Sys().(syscall.WaitStatus)
		// They report many things by their exit code. And systemd-sysctl crashes
		// at some patterns, which is an answer too.
		if exit.ExitCode() > 0 || status.Signaled() && status.Signal() == syscall.SIGABRT {
			err = nil
		}
	}
	text := out.String()
	if len(text) > 2000 {
		text = text[:1000] + " ... " + text[len(text)-1000:]
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", argv[0], err, text)
	}
	return text, err
}

func path(k sysctl.Key) string { return filepath.Join("/proc/sys", string(k)) }

func write(k sysctl.Key, value string) error {
	f, err := os.OpenFile(path(k), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value + "\n")
	return err
}

func reset() error {
	for _, k := range watched {
		if _, ok := before[k]; !ok {
			before[k] = "0"
		}
		if err := write(k, before[k]); err != nil {
			return fmt.Errorf("resetting %s: %w", k, err)
		}
	}
	return nil
}

func snapshot() (map[sysctl.Key]string, error) {
	all := map[sysctl.Key]string{}
	for _, k := range watched {
		v, err := os.ReadFile(path(k))
		if err != nil {
			return nil, err
		}
		all[k] = string(bytes.TrimRight(v, "\n"))
	}
	return all, nil
}
