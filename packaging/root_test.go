package packaging

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is a system of its own to install packages in: this host's files below
// a layer that takes all changes and is gone after the test, with a network
// namespace of its own. No systemd runs in it; withSystemd makes it look so.
type root struct {
	t   *testing.T
	pid string // of the process that holds the namespaces
}

// record is the program put in the place of accel: it notes how it was called
// and does to the files what accel does. /test/fail makes disable fail.
const record = `#!/bin/sh
echo "accel $*" >>/test/calls
case "$1" in
enable)
	mkdir -p /var/lib/accel /run/accel
	echo '{}' >/var/lib/accel/state.json
	: >/run/accel/lock
	printf '# Written by accel; changes here are lost.\n' >/etc/sysctl.d/99-zz-accel.conf
	printf '# Written by accel; changes here are lost.\ntcp_bbr\n' >/etc/modules-load.d/accel.conf
	mkdir -p /etc/systemd/system/multi-user.target.wants
	ln -sf /usr/lib/systemd/system/accel.service /etc/systemd/system/multi-user.target.wants/accel.service
	;;
disable)
	if [ -e /test/fail ]; then echo "accel: net.core.default_qdisc is still fq" >&2; exit 1; fi
	if [ ! -e /var/lib/accel/state.json ]; then exit 3; fi
	rm -f /etc/sysctl.d/99-zz-accel.conf /etc/modules-load.d/accel.conf /var/lib/accel/state.json
	rm -f /etc/systemd/system/multi-user.target.wants/accel.service
	;;
esac
`

// systemctl is what deb-systemd-invoke finds.
const systemctl = `#!/bin/sh
echo "systemctl $*" >>/test/calls
`

func newRoot(t *testing.T) *root {
	t.Helper()
	needRoot(t)
	need(t, "unshare", "nsenter", "dpkg")
	if _, err := os.Stat("/var/lib/dpkg/status"); err != nil {
		missing(t, "this host has no dpkg database to start from")
	}
	dir := t.TempDir()
	// The last line holds the namespaces until the test ends. It says so from
	// within: before, its root is still the host's.
	const setup = `set -e
		mount --make-rprivate /
		mount -t tmpfs tmpfs "$0"
		mkdir "$0/upper" "$0/work" "$0/root"
		mount -t overlay overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" "$0/root"
		mount --rbind /proc "$0/root/proc"
		mount --rbind /dev "$0/root/dev"
		mount -t tmpfs tmpfs "$0/root/run"
		mount -t tmpfs tmpfs "$0/root/tmp"
		mkdir "$0/root/test" "$0/root/test/layer" "$0/root/test/host"
		: >"$0/root/test/private"
		mount --bind "$0/upper" "$0/root/test/layer"
		mount --bind / "$0/root/test/host"
		exec chroot "$0/root" sh -c 'echo ready; exec sleep infinity'`
	cmd := exec.Command("unshare", "--mount", "--net", "sh", "-c", setup, dir)
	out := must(cmd.StdoutPipe())(t)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		cmd.Wait()
		t.Fatalf("making a root of its own: %s", stderr.String())
	}
	r := &root{t: t, pid: fmt.Sprint(cmd.Process.Pid)}
	// A host that has accel already must not take part.
	r.sh(`rm -f /usr/sbin/policy-rc.d
		if dpkg-query -s accel >/dev/null 2>&1; then ln -sf /bin/true /usr/bin/accel; dpkg --no-triggers --purge accel; fi
		rm -rf /usr/bin/accel /var/lib/accel /etc/sysctl.d/99-zz-accel.conf /etc/modules-load.d/accel.conf
		rm -rf /etc/systemd/system/multi-user.target.wants/accel.service /usr/local/bin/accel /usr/local/sbin/systemctl`)
	return r
}

// withSystemd makes the system look as if systemd ran it.
func (r *root) withSystemd() {
	r.t.Helper()
	r.sh(`mkdir -p /run/systemd/system`)
	r.write("/usr/local/sbin/systemctl", systemctl, 0o755)
}

// command returns a command to run in the root, and nowhere else: it does
// nothing where newRoot's mark is not.
func (r *root) command(script string) *exec.Cmd {
	script = "[ -e /test/private ] || { echo 'this is not the root of its own' >&2; exit 99; }\n" + script
	return exec.Command("nsenter", "--target", r.pid, "--mount", "--net", "--root", "--wd",
		"env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8",
		"sh", "-c", script)
}

// sh runs a shell script in the root, which has to succeed, and returns what
// it wrote.
func (r *root) sh(script string) string {
	r.t.Helper()
	out, err := r.command("set -e\n" + script).CombinedOutput()
	if err != nil {
		r.t.Fatalf("in the root of its own: %s: %v\n%s", script, err, out)
	}
	return string(out)
}

// fails runs a shell script in the root, which has to fail.
func (r *root) fails(script string) string {
	r.t.Helper()
	out, err := r.command(script).CombinedOutput()
	if err == nil {
		r.t.Fatalf("in the root of its own: %s: succeeded\n%s", script, out)
	}
	return string(out)
}

func (r *root) write(name, text string, perm os.FileMode) {
	r.t.Helper()
	cmd := r.command(fmt.Sprintf("mkdir -p %q && cat >%q && chmod %o %q", filepath.Dir(name), name, perm, name))
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("writing %s: %v\n%s", name, err, out)
	}
}

// install gives a package to dpkg. Triggers (the index of man pages) take long
// and are not the package's.
func (r *root) install(deb string) string {
	r.t.Helper()
	name := "/test/" + filepath.Base(deb)
	r.write(name, string(must(os.ReadFile(deb))(r.t)), 0o644)
	return r.sh("dpkg --no-triggers -i " + name)
}

// calls returns what was called since the last time: accel and systemctl.
func (r *root) calls() []string {
	r.t.Helper()
	out := strings.TrimSpace(r.sh("if [ -e /test/calls ]; then cat /test/calls; rm /test/calls; fi"))
	if out == "" {
		return nil
	}
	return strings.Split(out, "\n")
}

// exists says which of some files are there.
func (r *root) exists(names ...string) []string {
	r.t.Helper()
	var found []string
	for _, n := range names {
		if r.command("[ -e "+n+" ] || [ -L "+n+" ]").Run() == nil {
			found = append(found, n)
		}
	}
	return found
}

// changed lists every file that differs from the host's: made, changed or
// deleted. dpkg's own files and those of the test are left out.
func (r *root) changed() []string {
	r.t.Helper()
	out := r.sh(`cd /test/layer
		find . ! -type d -print
		find . -type d -print | while read -r d; do [ -d "/test/host/$d" ] || echo "$d/"; done
		find /run /tmp -mindepth 1`)
	var names []string
	for name := range strings.FieldsSeq(out) {
		name = strings.TrimPrefix(name, ".")
		if !slices.ContainsFunc([]string{"/var/lib/dpkg/", "/var/log/dpkg.log", "/test/", "/usr/local/sbin/systemctl", "/usr/sbin/policy-rc.d", "/run/systemd"},
			func(p string) bool { return strings.HasPrefix(name, p) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
