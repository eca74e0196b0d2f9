package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/test/vm"
)

// Keys that the tests read and write.
const (
	algorithmKey = "net.ipv4.tcp_congestion_control"
	qdiscKey     = "net.core.default_qdisc"
)

// Files of accel on a host.
const (
	sysctlFile  = "/etc/sysctl.d/99-zz-accel.conf"
	modulesFile = "/etc/modules-load.d/accel.conf"
	stateFile   = "/var/lib/accel/state.json"
)

// long says whether the full counts were asked for.
func long() bool { return os.Getenv("ACCEL_LONG") != "" && os.Getenv("ACCEL_LONG") != "0" }

// build makes the packages of both architectures, once.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("make", "deb")
	cmd.Dir = "../.."
	// This test may be run by make itself, whose flags are not for this one.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") }), "MAKEFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make deb: %w\n%s", err, out)
	}
	return nil
})

// deb returns the package for an architecture.
func deb(t *testing.T, arch string) string {
	t.Helper()
	if name := os.Getenv("ACCEL_DEB"); name != "" {
		return strings.TrimSuffix(name, "_amd64.deb") + "_" + arch + ".deb"
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob("../../dist/accel_*_" + arch + ".deb")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 {
		t.Fatalf("make deb left %d packages for %s: %q; make clean, and try again", len(found), arch, found)
	}
	return found[0]
}

// unpacked returns the files of the package for an architecture as a small
// machine gets them.
func unpacked(t *testing.T, arch string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("dpkg-deb", "-x", deb(t, arch), dir).CombinedOutput(); err != nil {
		t.Fatalf("unpacking the package: %v\n%s", err, out)
	}
	return map[string]string{"/usr/bin/accel": filepath.Join(dir, "usr/bin/accel")}
}

// pushed is where the package is on a whole machine.
const pushed = "/root/package.deb"

// install puts the package on a whole machine, the quick way.
func install(t *testing.T, m *vm.Machine) {
	t.Helper()
	m.Push(t, deb(t, "amd64"), pushed)
	m.MustRun(t, "dpkg -i "+pushed)
}

// status is what the tests know of the document of "accel status --json".
type status struct {
	Schema, Verdict, Reason, Next string
	Exit                          int
	Enabled                       *struct{ Algorithm, Profile, Qdisc string }
	Algorithm                     struct {
		Default, Socket     *string
		Available, Loadable []string
		Origin              string
		BBRVersion          *int `json:"bbr_version"`
		Modules             []string
	}
	Connections map[string]int
	Qdisc       struct {
		Default   *string
		Available []string
		Links     []link
	}
	Boot []struct {
		Key, Value, File string
		Line             int
		Order            string
	}
	Service *struct{ Installed, Enabled, Active bool }
	Drift   []struct{ Setting, Wanted, Live string }
	Notes   []string
}

type link struct {
	Name, Kind          string
	Root                struct{ Kind, Handle string }
	Leaves              []struct{ Kind, Handle string }
	ConfiguredBySomeone bool `json:"configured_by_someone"`
	Managed             bool
	Reason              string
}

// link returns what the status says of a link.
func (s status) link(t *testing.T, name string) link {
	t.Helper()
	i := slices.IndexFunc(s.Qdisc.Links, func(l link) bool { return l.Name == name })
	if i < 0 {
		t.Errorf("the status lists no link %s", name)
		return link{}
	}
	return s.Qdisc.Links[i]
}

// String is for messages.
func (s status) String() string {
	text, err := json.MarshalIndent(s, "    ", "  ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// result is what the tests know of the document of "accel enable --json" and
// "accel disable --json".
type result struct {
	Schema, Command string
	Changed         bool
	Notes           []string
	Left            []struct{ Setting, Live, Original, Reason string }
	Exit            int
	Error, Next     string
}

// accel runs a command of accel with --json, decodes what it printed, and
// checks that the document's exit code is the command's.
func accel(t *testing.T, m *vm.Machine, command string, document any) int {
	t.Helper()
	r := m.Run(t, command+" --json")
	if err := json.Unmarshal([]byte(r.Stdout), document); err != nil {
		t.Fatalf("%s: %q exited %d and printed what is no JSON: %v\nstdout:\n%s\nstderr:\n%s", m.Name, command, r.Exit, err, r.Stdout, r.Stderr)
	}
	var common struct{ Exit int }
	if err := json.Unmarshal([]byte(r.Stdout), &common); err != nil || common.Exit != r.Exit {
		t.Errorf("%s: %q exited %d, its document says %d (%v)", m.Name, command, r.Exit, common.Exit, err)
	}
	return r.Exit
}

func statusOf(t *testing.T, m *vm.Machine) status {
	t.Helper()
	var s status
	accel(t, m, "accel status", &s)
	return s
}

// enable runs "accel enable bbr" and wants it to succeed.
func enable(t *testing.T, m *vm.Machine) result {
	t.Helper()
	var r result
	if exit := accel(t, m, "accel enable bbr", &r); exit != 0 {
		t.Fatalf("%s: enable exited %d: %s; %s\n%s", m.Name, exit, r.Error, r.Next, journal(t, m))
	}
	return r
}

// disable runs "accel disable" and wants it to succeed.
func disable(t *testing.T, m *vm.Machine) result {
	t.Helper()
	var r result
	if exit := accel(t, m, "accel disable", &r); exit != 0 {
		t.Fatalf("%s: disable exited %d: %s; %s\n%s", m.Name, exit, r.Error, r.Next, journal(t, m))
	}
	return r
}

// journal returns what the service has said, for messages.
func journal(t *testing.T, m *vm.Machine) string {
	t.Helper()
	r := m.Run(t, "test -d /run/systemd/system && journalctl -u accel.service --no-pager -n 50")
	return r.Stdout
}

// sysctl reads a key without accel.
func sysctl(t *testing.T, m *vm.Machine, key string) string {
	t.Helper()
	return strings.TrimSpace(m.MustRun(t, "cat /proc/sys/"+strings.ReplaceAll(key, ".", "/")))
}

// connection makes an established connection on the machine to itself and
// returns the algorithms at its ends as the kernel tells others (ss), each
// once. Only whole machines have the tools.
func connection(t *testing.T, m *vm.Machine) []string {
	t.Helper()
	out := m.MustRun(t, `bash -c 'exec 3<>/dev/tcp/127.0.0.1/22 && read -r -u 3 && ss -HOtin state established src 127.0.0.1'`)
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		// Recv-Q Send-Q Local:Port Peer:Port ALGORITHM wscale:... or with a
		// "ts sack" before the algorithm.
		for _, f := range strings.Fields(line) {
			if f == "bbr" || f == "cubic" || f == "reno" {
				seen[f] = true
			}
		}
	}
	if len(seen) == 0 {
		t.Errorf("%s: ss shows no algorithm:\n%s", m.Name, out)
	}
	return slices.Sorted(maps.Keys(seen))
}

// inForce checks, without accel and with it, that bbr and fq are in force on a
// whole machine.
func inForce(t *testing.T, m *vm.Machine) status {
	t.Helper()
	if got := sysctl(t, m, algorithmKey); got != "bbr" {
		t.Errorf("%s is %s", algorithmKey, got)
	}
	if got := sysctl(t, m, qdiscKey); got != "fq" {
		t.Errorf("%s is %s", qdiscKey, got)
	}
	if got := m.MustRun(t, "tc qdisc show dev eth0 root"); !strings.HasPrefix(got, "qdisc fq 0: ") {
		t.Errorf("the qdisc of eth0 is %s", got)
	}
	if got := connection(t, m); !slices.Equal(got, []string{"bbr"}) {
		t.Errorf("the ends of a new connection have %q", got)
	}
	s := statusOf(t, m)
	if s.Exit != 0 || s.Verdict != "good" || s.Algorithm.Socket == nil || *s.Algorithm.Socket != "bbr" || len(s.Drift) != 0 {
		t.Errorf("the status is not good: %v\n%s", s, journal(t, m))
	}
	if l := s.link(t, "eth0"); l.Kind != "fq" || !l.Managed {
		t.Errorf("the status says of eth0: %+v", l)
	}
	if v := s.Algorithm.BBRVersion; v == nil || *v != 1 {
		t.Errorf("the status says that BBR's version is %v; Debian's kernels have version 1", v)
	}
	return s
}

// booted checks what is to hold after a boot in the enabled state. These units
// may fail for what somebody else did.
func booted(t *testing.T, m *vm.Machine, mayFail ...string) status {
	t.Helper()
	failed := slices.DeleteFunc(m.WaitBooted(t), func(unit string) bool { return slices.Contains(mayFail, unit) })
	if len(failed) > 0 {
		t.Errorf("failed units after the boot: %q\n%s", failed, m.Run(t, "systemctl status --no-pager "+strings.Join(failed, " ")).Stdout)
	}
	if r := m.Run(t, "journalctl -b --no-pager | grep -i 'ordering cycle'"); r.Exit == 0 {
		t.Errorf("the boot had an ordering cycle:\n%s", r.Stdout)
	}
	s := inForce(t, m)
	// Ours, by which this test is in the machine, was made after the boot.
	if s.Connections["bbr"] == 0 || len(s.Connections) != 1 {
		t.Errorf("the status counts these connections: %v", s.Connections)
	}
	if s.Service == nil || !s.Service.Installed || !s.Service.Enabled || !s.Service.Active {
		t.Errorf("the status says of the service: %+v", s.Service)
	}
	if got := m.MustRun(t, "systemctl show -p ActiveState,UnitFileState,StatusText accel.service"); !strings.Contains(got, "ActiveState=active") ||
		!strings.Contains(got, "UnitFileState=enabled") || !strings.Contains(got, "bbr") {
		t.Errorf("systemd says of the service:\n%s", got)
	}
	return s
}

// world is all of a host that accel could change, as lines of text.
type world struct {
	boot                      string
	sysctls, qdiscs, etc, lib []string
}

// Keys that differ from one reading to the next, or from boot to boot, by
// themselves. The kernel computes the last two at boot from the memory that
// happens to be free.
var (
	restless = regexp.MustCompile(`^/proc/sys/net/(ipv4/tcp_fastopen_key|core/netdev_rss_key|netfilter/nf_conntrack_count)`)
	// What the kernel has loaded may stay.
	growing   = regexp.MustCompile(`/tcp_available_congestion_control:`)
	ofTheBoot = regexp.MustCompile(`/(tcp_mem|udp_mem):`)
	refcnt    = regexp.MustCompile(` refcnt \d+`)
)

// look reads the world of a machine of either kind.
func look(t *testing.T, m *vm.Machine) world {
	t.Helper()
	var w world
	w.boot = m.MustRun(t, "cat /proc/sys/kernel/random/boot_id")
	// Some keys may not be read, or only by whom they belong to: grep says so
	// and goes on.
	for line := range strings.Lines(m.Run(t, "grep -r '' /proc/sys/net 2>/dev/null").Stdout) {
		if !restless.MatchString(line) && !growing.MatchString(line) {
			w.sysctls = append(w.sysctls, line)
		}
	}
	if len(w.sysctls) < 100 {
		t.Fatalf("%s: only %d sysctls can be read", m.Name, len(w.sysctls))
	}
	slices.Sort(w.sysctls)
	w.qdiscs = lines(refcnt.ReplaceAllString(m.MustRun(t, "tc -d qdisc show"), ""))
	slices.Sort(w.qdiscs) // by links, whose order is that of their appearance in a boot
	// An empty directory of accel's own is no change.
	const list = `find %[1]s -mindepth 1 -exec stat -c '%%N %%F %%a %%u:%%g' {} + && find %[1]s -type f -exec sha256sum {} +`
	w.etc = lines(m.MustRun(t, fmt.Sprintf(list, "/etc")))
	w.lib = lines(m.Run(t, fmt.Sprintf(list, "/var/lib/accel")).Stdout)
	slices.Sort(w.etc)
	slices.Sort(w.lib)
	return w
}

// traces lists all files whose name has to do with accel.
func traces(t *testing.T, m *vm.Machine) []string {
	t.Helper()
	list := lines(m.MustRun(t, "find / /run -xdev -iname '*accel*' -not -path '/proc/*' -not -path '/sys/*'"))
	slices.Sort(list)
	return list
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// same checks that the world is as it was.
func same(t *testing.T, when string, before, after world) {
	t.Helper()
	if before.boot != after.boot {
		before.sysctls = slices.DeleteFunc(slices.Clone(before.sysctls), ofTheBoot.MatchString)
		after.sysctls = slices.DeleteFunc(slices.Clone(after.sysctls), ofTheBoot.MatchString)
	}
	for _, part := range []struct {
		name          string
		before, after []string
	}{
		{"sysctls", before.sysctls, after.sysctls},
		{"qdiscs", before.qdiscs, after.qdiscs},
		{"/etc", before.etc, after.etc},
		{"/var/lib/accel", before.lib, after.lib},
	} {
		if diff := cmp.Diff(part.before, part.after); diff != "" {
			t.Errorf("%s: %s are not as before (-before +after):\n%s", when, part.name, diff)
		}
	}
}

// step runs a subtest that later ones stand on: if it fails, the test ends.
func step(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	start := time.Now()
	ok := t.Run(name, f)
	t.Logf("%s took %.1f s", name, time.Since(start).Seconds())
	if !ok {
		t.Fatal(errors.New("ends here: what follows stands on the step that failed"))
	}
}
