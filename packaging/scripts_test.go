package packaging

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The generated files, which the package does not hold.
var generated = []string{
	"/etc/modules-load.d/accel.conf",
	"/etc/sysctl.d/99-zz-accel.conf",
	"/etc/systemd/system/multi-user.target.wants/accel.service",
	"/var/lib/accel/state.json",
}

const deb1, deb2, debBroken = "0.0.1", "0.0.2", "0.0.3"

var variantsOnce sync.Once
var variants map[string]string

// recorder returns a package of the given version made from the real one, with
// a program that records how it is called. debBroken cannot be installed.
func recorder(t *testing.T, version string) string {
	t.Helper()
	real := built(t)[runtime.GOARCH]
	variantsOnce.Do(func() {
		variants = map[string]string{}
		for _, v := range []string{deb1, deb2, debBroken} {
			dir := filepath.Join(buildsDir, "recorder", v)
			run(t, "", nil, "mkdir", "-p", filepath.Dir(dir))
			run(t, "", nil, "dpkg-deb", "-R", real, dir)
			run(t, dir, nil, "sed", "-i", "s/^Version: .*/Version: "+v+"/", "DEBIAN/control")
			if err := os.WriteFile(filepath.Join(dir, "usr/bin/accel"), []byte(record), 0o755); err != nil {
				t.Fatal(err)
			}
			if v == debBroken {
				if err := os.WriteFile(filepath.Join(dir, "DEBIAN/preinst"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			variants[v] = dir + ".deb"
			run(t, "", nil, "dpkg-deb", "--root-owner-group", "-Znone", "-b", dir, variants[v])
		}
	})
	if variants[version] == "" {
		t.Fatalf("no package of version %s was made", version)
	}
	return variants[version]
}

func wantCalls(t *testing.T, r *root, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, r.calls()); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}

func wantFiles(t *testing.T, r *root, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, r.exists(generated...)); d != "" {
		t.Errorf("generated files (-want +got):\n%s", d)
	}
}

// wantNothingLeft checks that the whole file system is as before the package
// was first installed.
func wantNothingLeft(t *testing.T, r *root, before []string) {
	t.Helper()
	if d := cmp.Diff(before, r.changed()); d != "" {
		t.Errorf("left behind (-before +after):\n%s", d)
	}
	if out, err := r.command("dpkg-query -W -f '${Status}' accel").Output(); err == nil && !strings.Contains(string(out), "not-installed") {
		t.Errorf("dpkg still knows it: %s", out)
	}
}

func TestInstallChangesNothing(t *testing.T) {
	r := newRoot(t)
	r.withSystemd()
	before := r.changed()
	r.install(recorder(t, deb1))
	wantCalls(t, r, "systemctl --system daemon-reload")
	wantFiles(t, r)
	want := []string{"/var/lib/systemd/deb-systemd-helper-enabled/accel.service.dsh-also"}
	for _, f := range shipped(t) {
		name, _, _ := strings.Cut(f[strings.Index(f, "/usr"):], " -> ")
		want = append(want, name)
	}
	have := map[string]bool{}
	for _, name := range r.changed() {
		have[name] = true
	}
	for _, name := range want {
		if !have[name] {
			t.Errorf("%s is not there", name)
		}
		delete(have, name)
	}
	for _, name := range before {
		delete(have, name)
	}
	for name := range have {
		if !strings.HasSuffix(name, "/") { // a directory above a shipped file
			t.Errorf("installing changed %s", name)
		}
	}
	// The units as systemd sees them.
	if out := r.sh("systemd-analyze verify --man=no /usr/lib/systemd/system/accel*.service /usr/lib/systemd/system/accel*.timer"); strings.Contains(out, "accel") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	r.sh("dpkg --no-triggers --purge accel")
	wantNothingLeft(t, r, before)
}

func TestUpgradeKeepsEverything(t *testing.T) {
	r := newRoot(t)
	r.withSystemd()
	r.install(recorder(t, deb1))
	r.sh("accel enable bbr")
	r.calls()
	sum := r.sh("sha256sum " + strings.Join(generated, " "))

	r.install(recorder(t, deb2))
	wantCalls(t, r, "systemctl --system daemon-reload", "systemctl try-restart accel.service")
	wantFiles(t, r, generated...)

	// A package that cannot be unpacked is backed out of.
	r.write("/test/broken.deb", string(must(os.ReadFile(recorder(t, debBroken)))(t)), 0o644)
	r.fails("dpkg --no-triggers -i /test/broken.deb")
	wantCalls(t, r, "systemctl --system daemon-reload")
	if v := r.sh("dpkg-query -W -f '${Version} ${db:Status-Status}' accel"); v != deb2+" installed" {
		t.Errorf("after a failed upgrade: %s", v)
	}

	// Reinstalling and downgrading are upgrades too.
	r.install(recorder(t, deb2))
	r.install(recorder(t, deb1))
	if d := cmp.Diff(sum, r.sh("sha256sum "+strings.Join(generated, " "))); d != "" {
		t.Errorf("files changed (-before +after):\n%s", d)
	}
}

func TestRemoveAndPurge(t *testing.T) {
	for _, systemd := range []bool{true, false} {
		for _, how := range []string{"remove", "purge"} {
			for _, fail := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/systemd=%v/fail=%v", how, systemd, fail), func(t *testing.T) {
					r := newRoot(t)
					if systemd {
						r.withSystemd()
					}
					before := r.changed()
					r.install(recorder(t, deb1))
					r.sh("accel enable bbr")
					r.calls()
					if fail {
						r.sh("touch /test/fail")
					}

					out := r.sh("dpkg --no-triggers --" + how + " accel")
					want := []string{"accel disable"}
					if systemd {
						want = append(want, "systemctl stop accel.service")
						if fail { // deb-systemd-helper had to remove the link
							want = append(want, "systemctl daemon-reload")
						}
						want = append(want, "systemctl --system daemon-reload")
						if how == "purge" {
							want = append(want, "systemctl --system daemon-reload")
						}
					}
					wantCalls(t, r, want...)
					if named := strings.Contains(out, "net.core.default_qdisc is still fq") && strings.Contains(out, "/var/lib/accel/state.json"); named != fail {
						t.Errorf("what is left is named: %v, want %v\n%s", named, fail, out)
					}
					switch {
					case how == "remove" && fail: // the originals stay, nothing that acts does
						wantFiles(t, r, "/var/lib/accel/state.json")
					default:
						wantFiles(t, r)
					}
					if left := r.exists("/run/accel"); left != nil {
						t.Errorf("left: %v", left)
					}
					if how == "remove" {
						if dir := r.exists("/var/lib/accel"); (dir != nil) != fail {
							t.Errorf("/var/lib/accel after removal: %v", dir)
						}
						r.sh("dpkg --no-triggers --purge accel")
					}
					wantNothingLeft(t, r, before)
				})
			}
		}
	}
}

func TestReinstall(t *testing.T) {
	r := newRoot(t)
	before := r.changed()
	r.install(recorder(t, deb1))
	r.sh("accel enable bbr")

	// Case 40: what an administrator deleted by hand comes back, or is not
	// missed.
	r.sh("rm -rf /usr/lib/systemd/system/accel.service /usr/bin/accel /var/lib/accel /usr/share/doc/accel " + strings.Join(generated, " "))
	r.install(recorder(t, deb1))
	if got := r.exists("/usr/lib/systemd/system/accel.service", "/usr/bin/accel", "/usr/share/doc/accel/copyright"); len(got) != 3 {
		t.Errorf("after reinstalling only these are there: %v", got)
	}
	wantFiles(t, r)

	// Removed with the originals left, installed again, enabled, purged.
	r.sh("accel enable bbr; touch /test/fail")
	r.sh("dpkg --no-triggers --remove accel")
	wantFiles(t, r, "/var/lib/accel/state.json")
	r.install(recorder(t, deb2))
	wantFiles(t, r, "/var/lib/accel/state.json")
	r.sh("accel enable bbr; rm /test/fail")
	r.sh("dpkg --no-triggers --purge accel")
	wantNothingLeft(t, r, before)
}

func TestRemoveWithoutProgram(t *testing.T) {
	r := newRoot(t)
	before := r.changed()
	r.install(recorder(t, deb1))
	r.sh("accel enable bbr; rm /usr/bin/accel")
	out := r.sh("dpkg --no-triggers --remove accel")
	if !strings.Contains(out, "/usr/bin/accel is gone") {
		t.Errorf("it is not said that nothing was undone:\n%s", out)
	}
	wantFiles(t, r, "/var/lib/accel/state.json")
	r.sh("dpkg --no-triggers --purge accel")
	wantNothingLeft(t, r, before)
}

// What is not accel's stays, and what a crash or an administrator left that
// can only be accel's goes.
func TestPurgeOwnFilesOnly(t *testing.T) {
	r := newRoot(t)
	r.install(recorder(t, deb1))
	r.sh("accel enable bbr; touch /test/fail")
	r.sh(`echo net.core.somaxconn = 1 >/etc/sysctl.d/99-zz-accel.conf
		mkdir -p /etc/systemd/system/accel.service.d /etc/accel
		touch /etc/systemd/system/accel.service.d/mine.conf /etc/accel/mine /etc/sysctl.d/.99-zz-accel.conf.mine
		touch /etc/sysctl.d/.99-zz-accel.conf1234567890 /etc/modules-load.d/.accel.conf99
		ln -s /dev/null /etc/systemd/system/accel.service`)
	out := r.sh("dpkg --no-triggers --purge accel")
	if !strings.Contains(out, "leaving /etc/sysctl.d/99-zz-accel.conf") {
		t.Errorf("the stranger's file is not named:\n%s", out)
	}
	stays := []string{"/etc/sysctl.d/99-zz-accel.conf", "/etc/systemd/system/accel.service.d/mine.conf", "/etc/accel/mine", "/etc/sysctl.d/.99-zz-accel.conf.mine"}
	goes := []string{"/etc/sysctl.d/.99-zz-accel.conf1234567890", "/etc/modules-load.d/.accel.conf99", "/etc/systemd/system/accel.service", "/etc/modules-load.d/accel.conf", "/var/lib/accel"}
	if d := cmp.Diff(stays, r.exists(append(stays, goes...)...)); d != "" {
		t.Errorf("(-stays +there)\n%s", d)
	}
}

// The scripts may run outside of the system they change (DPKG_ROOT). Then the
// running host is not touched.
func TestOtherRoot(t *testing.T) {
	r := newRoot(t)
	r.withSystemd()
	r.write("/usr/bin/accel", record, 0o755) // the host's own
	r.sh("/usr/bin/accel enable bbr")
	r.calls()
	r.write("/test/accel.deb", string(must(os.ReadFile(recorder(t, deb1)))(t)), 0o644)
	r.sh(`mkdir -p /test/other/var/lib/dpkg/info /test/other/var/lib/dpkg/updates /test/other/etc/sysctl.d /test/other/etc/modules-load.d /test/other/var/lib/accel /test/other/run/accel
		touch /test/other/var/lib/dpkg/status
		dpkg --root=/test/other --force-script-chrootless --force-not-root --no-triggers -i /test/accel.deb
		cp /etc/sysctl.d/99-zz-accel.conf /test/other/etc/sysctl.d/
		cp /var/lib/accel/state.json /test/other/var/lib/accel/
		mkdir -p /test/other/etc/systemd/system/multi-user.target.wants
		ln -s /usr/lib/systemd/system/accel.service /test/other/etc/systemd/system/multi-user.target.wants/accel.service
		dpkg --root=/test/other --force-script-chrootless --no-triggers --purge accel`)
	wantCalls(t, r)
	wantFiles(t, r, generated...)
	if left := strings.TrimSpace(r.sh("cd /test/other; find . ! -type d ! -path './var/l[oi][bg]/dpkg*'; find . -name 'accel*'")); left != "" {
		t.Errorf("left in the other root:\n%s", left)
	}
}

// Every argument that dpkg may give, also those of paths that the other tests
// do not reach.
func TestScriptArguments(t *testing.T) {
	r := newRoot(t)
	r.withSystemd()
	r.install(recorder(t, deb1))
	r.sh("accel enable bbr")
	r.calls()
	before := r.changed()
	for script, arguments := range map[string][]string{
		"postinst": {"abort-upgrade 0.0.2", "abort-remove", "abort-remove in-favour other 1", "abort-deconfigure in-favour other 1"},
		"prerm":    {"upgrade 0.0.2", "failed-upgrade 0.0.1 0.0.2", "deconfigure in-favour other 1"},
		"postrm":   {"upgrade 0.0.2", "failed-upgrade 0.0.1 0.0.2", "abort-install", "abort-install 0.0.1 0.0.2", "abort-upgrade 0.0.1 0.0.2", "disappear other 1"},
	} {
		for _, a := range arguments {
			r.sh("/var/lib/dpkg/info/accel." + script + " " + a)
			for _, call := range r.calls() {
				if call != "systemctl --system daemon-reload" {
					t.Errorf("%s %s called %s", script, a, call)
				}
			}
		}
		r.fails("/var/lib/dpkg/info/accel." + script + " nonsense")
		r.fails("/var/lib/dpkg/info/accel." + script)
	}
	if d := cmp.Diff(before, r.changed()); d != "" {
		t.Errorf("changes (-before +after):\n%s", d)
	}
}
