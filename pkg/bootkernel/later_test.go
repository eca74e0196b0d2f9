package bootkernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/tuning"
)

// TestCrashLater stops what comes after install before every single step: the
// judgement after the boot, rollback with either kernel running, and remove. The
// host boots a kernel that works each time, and install and rollback come to an
// end.
func TestCrashLater(t *testing.T) {
	prepare := func(t *testing.T, b behaviour, boot bool) *fakeHost {
		f := newFakeHost(t)
		f.kernels[newKernel] = b
		mustInstall(t, f, Request{Backports: true})
		if boot {
			f.boot()
		}
		return f
	}
	for name, c := range map[string]struct {
		before func(*testing.T) *fakeHost
		run    func(*fakeHost)
	}{
		"the good one is judged":   {func(t *testing.T) *fakeHost { return prepare(t, works, false) }, (*fakeHost).boot},
		"the bad one is judged":    {func(t *testing.T) *fakeHost { return prepare(t, noSSH, false) }, (*fakeHost).boot},
		"the one that never came":  {func(t *testing.T) *fakeHost { return prepare(t, panics, false) }, (*fakeHost).boot},
		"rollback before the boot": {func(t *testing.T) *fakeHost { return prepare(t, works, false) }, func(f *fakeHost) { Rollback(context.Background(), f.host(), false, Face{}) }},
		"rollback of the good one": {func(t *testing.T) *fakeHost { return prepare(t, works, true) }, func(f *fakeHost) { Rollback(context.Background(), f.host(), false, Face{}) }},
		"remove of the bad one":    {func(t *testing.T) *fakeHost { return prepare(t, panics, true) }, func(f *fakeHost) { Remove(context.Background(), f.host(), newKernel, false, Face{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			for at := 1; ; at++ {
				for _, then := range []string{"install", "rollback"} {
					f := c.before(t)
					if !f.during(at, func() { c.run(f) }) {
						if at < 3 {
							t.Error("too few steps to be true")
						}
						return
					}
					where := fmt.Sprintf("before %q", f.ops[at-1])
					f.boots = nil
					f.boot()
					if good := f.running() == oldKernel || f.running() == newKernel && f.kernels[newKernel] == works; !good || len(f.boots) > 2 {
						t.Fatalf("%s: running %s, booted %q", where, f.running(), f.boots)
					}
					if f.running() == newKernel && phase(t, f) != Promoted && phase(t, f) != RollingBack && defaultOf(f) != newKernel {
						// It may run on trial no longer than a boot.
						t.Fatalf("%s: running %s in phase %s", where, f.running(), phase(t, f))
					}
					if story, err := Tell(f.host()); err != nil || story == nil && f.exists(PinFile) {
						t.Fatalf("%s: story %v, %v", where, story, err)
					}
					if then == "install" {
						f.kernels[newKernel] = works
						if f.running() == oldKernel {
							if _, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{}); err != nil {
								t.Fatalf("%s, then install: %v", where, err)
							}
							f.boot()
						} else if _, err := Confirm(t.Context(), f.host(), false); err != nil {
							t.Fatalf("%s, then confirm: %v", where, err)
						}
						if f.running() != newKernel || phase(t, f) != Promoted || f.exists(PinFile) {
							t.Fatalf("%s, then install: running %s in phase %s", where, f.running(), phase(t, f))
						}
						continue
					}
					for range 2 {
						if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil {
							t.Fatalf("%s, then rollback: %v", where, err)
						}
						f.boot()
					}
					if f.running() != oldKernel || f.exists(StateFile) || f.exists(PinFile) || f.exists(KeepFile) || f.exists(TrialFile) || f.exists(BackportsFile) || f.packages[newImage] != "" || f.packages[metaName] != oldDeb {
						t.Fatalf("%s, then rollback: running %s, packages %v", where, f.running(), f.packages)
					}
				}
			}
		})
	}
}

func TestAbandon(t *testing.T) {
	for name, boot := range map[string]bool{"before the boot": false, "after a fallback": true} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHost(t)
			f.shell = true
			f.kernels[newKernel] = panics
			mustInstall(t, f, Request{Backports: true})
			if boot {
				f.boot()
			}
			notes, err := Abandon(t.Context(), f.host())
			if err != nil || len(notes) == 0 {
				t.Fatalf("%q, %v", notes, err)
			}
			// The package is purged, its services and its state are gone.
			f.removeAll("/var/lib/accel")
			f.boots = nil
			f.boot()
			if f.running() != oldKernel || len(f.boots) != 1 || f.exists(TrialFile) || f.env()["next_entry"] != "" {
				t.Fatalf("booted %q", f.boots)
			}
			// The operator removes the bad kernel, and GRUB_DEFAULT counts again.
			if _, err := f.aptGet([]string{"remove", newImage}, Command{}); err != nil {
				t.Fatal(err)
			}
			if m := ParseMenu([]byte(f.get(grubConfig))); m.Default != "0" || defaultOf(f) != oldKernel {
				t.Errorf("default %q", m.Default)
			}
		})
	}
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	f.boot() // promoted: nothing of accel's is left to undo but the source
	if _, err := Abandon(t.Context(), f.host()); err != nil || defaultOf(f) != newKernel || f.exists(PinFile) {
		t.Errorf("after the promotion: %v, default %s", err, defaultOf(f))
	}
}

func TestNoAutoAndBad(t *testing.T) {
	f := newFakeHost(t)
	f.kernels[newKernel] = noSSH
	mustInstall(t, f, Request{Backports: true, NoAuto: true})
	f.boot()
	story, err := Tell(f.host())
	if err != nil || f.running() != newKernel || !story.Attend || !strings.Contains(story.Summary, "port 22") || len(f.boots) != 1 {
		t.Fatalf("running %s, %+v, %v", f.running(), story, err)
	}
	f.boot() // by hand
	if f.running() != oldKernel || phase(t, f) != FellBack {
		t.Fatalf("running %s in phase %s", f.running(), phase(t, f))
	}
	// One that does not even come up is rebooted.
	f = newFakeHost(t)
	f.kernels[newKernel] = emergency
	mustInstall(t, f, Request{Backports: true, NoAuto: true})
	f.boot()
	if f.running() != oldKernel || phase(t, f) != FellBack {
		t.Fatalf("emergency: running %s in phase %s", f.running(), phase(t, f))
	}
}

func TestSecondInstall(t *testing.T) {
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	if _, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{}); tuning.ExitCode(err) != tuning.ExitFailed || !strings.Contains(err.Error(), "waits to be tried") {
		t.Errorf("while one waits: %v", err)
	}
	f.boot()
	res, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
	if err != nil || res.Changed {
		t.Errorf("the newest runs: %+v, %v", res, err)
	}
	// Older ones only by name. The running one becomes the one to go back to.
	res, err = Install(t.Context(), f.host(), Request{}, Face{})
	if err != nil || res.Changed {
		t.Errorf("an older one is the newest of the release: %+v, %v", res, err)
	}
	if res = mustInstall(t, f, Request{Version: oldKernel}); !res.Plan.Older || !res.Plan.Installed {
		t.Errorf("%+v", res.Plan)
	}
	f.boot()
	if f.running() != oldKernel || phase(t, f) != Promoted || defaultOf(f) != oldKernel || !f.exists(PinFile) {
		t.Errorf("running %s in phase %s, default %s", f.running(), phase(t, f), defaultOf(f))
	}
	if !f.exists(BackportsFile) {
		t.Error("the source of an installed kernel is gone")
	}
}

// Debian 12 has a second branch of kernels in its security updates. It needs no
// backports, and brings its own updates.
func TestBranchOfTheRelease(t *testing.T) {
	const branch, release, version = "linux-image-6.12-cloud-amd64", "6.12.117+deb12-cloud-amd64", "6.12.117-1~deb12u1"
	f := newFakeHost(t)
	f.offered = append(f.offered, fakeOffer{branch, version, "bookworm-security", "linux-image-" + release},
		fakeOffer{"linux-image-" + release, version, "bookworm-security", ""},
		fakeOffer{"linux-image-6.12-rt-amd64", version, "bookworm-security", "linux-image-6.12.117+deb12-rt-amd64"})
	l, err := Kernels(t.Context(), f.host(), false)
	if err != nil || len(l.Offers) != 2 || l.Offers[0].Release != release || l.Offers[0].Source != "bookworm-security" {
		t.Fatalf("%+v, %v", l.Offers, err)
	}
	mustInstall(t, f, Request{Version: "6.12"})
	f.boot()
	if f.running() != release || f.packages[branch] != version || f.exists(BackportsFile) {
		t.Errorf("running %s, packages %v", f.running(), f.packages)
	}
	for range 2 {
		if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil {
			t.Fatal(err)
		}
		f.boot()
	}
	if len(f.packages) != 2 || f.running() != oldKernel {
		t.Errorf("after rollback: running %s, packages %v", f.running(), f.packages)
	}
}

func TestRemoveRefuses(t *testing.T) {
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	f.boot()
	for version, says := range map[string]string{newKernel: "runs now", oldKernel: "the way back", "5.10.0": "no kernel"} {
		if _, err := Remove(t.Context(), f.host(), version, false, Face{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", version, err)
		}
	}
	if len(f.packages) != 3 {
		t.Errorf("%v", f.packages)
	}
}

func TestLevelsAndSignatures(t *testing.T) {
	f := newFakeHost(t)
	f.put("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu cx16 sse4_2 ssse3 popcnt lm\n")
	tree, err := kernel.OpenTree(f.root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for release, refused := range map[string]bool{
		"6.12.9-x64v2-xanmod1": false, "6.12.9-x64v3-xanmod1": true, newKernel: false, "6.12.9+deb13-arm64": true, "6.12.9+deb13-cloud-amd64": false,
	} {
		if err := levelCheck(tree, "amd64", &Kernel{Release: release}); (err != nil) != refused || err != nil && tuning.ExitCode(err) != tuning.ExitImpossible {
			t.Errorf("%s: %v", release, err)
		}
	}
	yes, no := true, false
	for _, c := range []struct {
		boot, signed *bool
		refused      bool
	}{{&yes, &yes, false}, {&yes, &no, true}, {&yes, nil, true}, {&no, &no, false}, {nil, nil, false}} {
		if err := secureCheck(&kernel.Facts{SecureBoot: c.boot}, &Kernel{Signed: c.signed}); (err != nil) != c.refused {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// programs answers some commands by text and the rest as the fake host does.
type answers struct {
	*fakeHost
	text map[string]string
}

func (a answers) Run(ctx context.Context, c Command) (string, error) {
	for begin, text := range a.text {
		if strings.HasPrefix(c.String(), begin) {
			return text, nil
		}
	}
	return a.fakeHost.Run(ctx, c)
}

func TestHeldAndGone(t *testing.T) {
	for command, c := range map[string]struct{ answer, says string }{
		"apt-mark showhold":    {"vim\nlinux-image-cloud-amd64\n", "on hold"},
		"debconf-show grub-pc": {"  grub-pc/timeout: 5\n* grub-pc/install_devices: /boot, /dev/disk/by-id/gone\n", "/dev/disk/by-id/gone"},
		"lsinitramfs":          {"usr/lib/modules/x/kernel/fs/xfs.ko\n", "virtio_blk"},
	} {
		f := newFakeHost(t)
		h := f.host()
		h.Programs = answers{f, map[string]string{command: c.answer}}
		_, err := Install(t.Context(), h, Request{Backports: true}, Face{})
		if tuning.ExitCode(err) != tuning.ExitFailed || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", command, err)
		}
		if len(f.packages) != 2 || f.exists(PinFile) || f.exists(StateFile) || f.exists(BackportsFile) {
			t.Errorf("%s: not undone: %v", command, f.packages)
		}
	}
}

func TestWaitsForApt(t *testing.T) {
	f := newFakeHost(t)
	h := f.host()
	f.holder = "unattended-upgr, process 7"
	h.Sleep = func(_ context.Context, d time.Duration) error {
		if f.now = f.now.Add(d); f.now.Minute() >= 6 {
			f.holder = ""
		}
		return nil
	}
	var said []string
	if _, err := Install(t.Context(), h, Request{Backports: true}, Face{Say: func(s string) { said = append(said, s) }}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "unattended-upgr") }) {
		t.Errorf("it did not say for whom it waits: %q", said)
	}
}

func TestDryRunAndNo(t *testing.T) {
	f := newFakeHost(t)
	f.ops = nil
	res, err := Install(t.Context(), f.host(), Request{Backports: true, DryRun: true}, Face{})
	if err != nil || !res.Changed || res.Plan.Kernel.Release != newKernel || res.Plan.Backports != BackportsFile {
		t.Fatalf("%+v, %v", res, err)
	}
	_, err = Install(t.Context(), f.host(), Request{Backports: true}, Face{Ask: func(*Plan) (bool, error) { return false, nil }})
	if tuning.ExitCode(err) != tuning.ExitFailed {
		t.Errorf("the answer was no: %v", err)
	}
	for _, dry := range []func() error{
		func() error { _, err := Rollback(t.Context(), f.host(), true, Face{}); return err },
	} {
		if err := dry(); err != nil {
			t.Error(err)
		}
	}
	if len(f.ops) != 0 {
		t.Errorf("changed: %q", f.ops)
	}
}

// A pin that some later file overrules is seen, and everything is undone.
func TestOverruled(t *testing.T) {
	f := newFakeHost(t)
	f.put("/etc/default/grub.d/zzz.cfg", "GRUB_DEFAULT=2\n")
	f.unpack("6.1.0-40-cloud-amd64") // so that entry 2 is not the running kernel
	f.packages["linux-image-6.1.0-40-cloud-amd64"] = "6.1.100-1"
	f.put("/etc/default/grub", "GRUB_DISABLE_SUBMENU=y\n")
	f.updateGrub()
	before := f.get(grubConfig)
	_, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
	if err == nil || !strings.Contains(err.Error(), "6.1.0-40-cloud-amd64 by itself") {
		t.Fatal(err)
	}
	if f.get(grubConfig) != before || f.exists(PinFile) || f.packages[newImage] != "" {
		t.Error("not undone")
	}
}

// Strangers' files of the same names stay, and stop accel.
func TestStrangers(t *testing.T) {
	for _, name := range []string{PinFile, TrialFile, KeepFile} {
		f := newFakeHost(t)
		f.put(name, "# mine\n")
		_, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
		if err == nil || !strings.Contains(err.Error(), name) || f.get(name) != "# mine\n" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestState(t *testing.T) {
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	good := f.get(StateFile)
	for name, change := range map[string]func(string) string{
		"newer":       func(s string) string { return strings.Replace(s, `"version": 1`, `"version": 2`, 1) },
		"cut off":     func(s string) string { return s[:len(s)/2] },
		"another":     func(s string) string { return strings.Replace(s, `"phase": "armed"`, `"phase": "x"`, 1) },
		"a path":      func(s string) string { return strings.Replace(s, newKernel, "../../etc", 1) },
		"more fields": func(s string) string { return strings.Replace(s, `"phase"`, `"x": 1, "phase"`, 1) },
	} {
		if changed := change(good); changed == good {
			t.Fatalf("%s: nothing was changed", name)
		} else if _, err := parseState([]byte(changed)); err == nil {
			t.Errorf("%s: taken", name)
		} else if name == "newer" != errors.Is(err, tuning.ErrNewerState) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Whatever the state is, Deadline ends a trial.
	f.put(StateFile, "{")
	f.put("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-x accel.trial=X\n")
	if _, err := Deadline(t.Context(), f.host()); !f.wentDown {
		t.Errorf("a damaged state: %v", err)
	}
	if err := os.Remove(f.path(StateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	f.removeAll("/var/lib/accel")
	f.wentDown = false
	if _, err := Deadline(t.Context(), f.host()); !f.wentDown {
		t.Errorf("no /var: %v", err)
	}
	f.wentDown = false
	f.put("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-x\n")
	if _, err := Deadline(t.Context(), f.host()); err != nil || f.wentDown {
		t.Errorf("a boot that is no trial: %v", err)
	}
}

// A kernel by its flavour, and a root on btrfs whose disk has a driver all the
// same.
func TestFlavourAndBtrfsRoot(t *testing.T) {
	f := newFakeHost(t)
	const image = "linux-image-6.1.0-58-amd64"
	f.offered = append(f.offered, fakeOffer{"linux-image-amd64", "6.1.200-1", "bookworm-security", image}, fakeOffer{image, "6.1.200-1", "bookworm-security", ""})
	res := mustInstall(t, f, Request{Version: "linux-image-amd64"})
	if res.Plan.Kernel.Release != "6.1.0-58-amd64" || f.packages["linux-image-amd64"] != "6.1.200-1" {
		t.Errorf("%+v, %v", res.Plan.Kernel, f.packages)
	}
	f = newFakeHost(t)
	f.put("/proc/self/mountinfo", "22 1 0:33 / / rw - btrfs /dev/vda1 rw\n23 22 254:1 / /boot rw - ext4 /dev/vda1 rw\n")
	f.put("/sys/devices/pci0/virtio2/block/vda/vda1/dev", "254:1\n")
	f.link("/sys/class/block/vda1", "../../devices/pci0/virtio2/block/vda/vda1")
	tree, err := f.host().tree()
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if needed := neededDrivers(tree, &f.facts); !slices.ContainsFunc(needed, func(d driver) bool { return slices.Contains(d.Names, "virtio_blk") && d.Root }) {
		t.Errorf("%+v", needed)
	}
}

// An install after one that was promoted with a pin of its own leaves that pin, and
// its story, as they were, wherever it stops.
func TestSecondInstallUndone(t *testing.T) {
	const later = "6.12.99+deb12-cloud-amd64"
	for at := 1; ; at++ {
		f := newFakeHost(t)
		f.put("/etc/default/grub", `GRUB_DEFAULT="gnulinux-advanced-u>gnulinux-`+oldKernel+`-advanced-u"`+"\n")
		f.updateGrub()
		mustInstall(t, f, Request{Backports: true})
		f.boot()
		if f.running() != newKernel || phase(t, f) != Promoted || !f.exists(PinFile) {
			t.Fatalf("running %s in phase %s", f.running(), phase(t, f))
		}
		pin, keep, state := f.get(PinFile), f.get(KeepFile), f.get(StateFile)
		f.offered = append(f.offered,
			fakeOffer{metaName, "6.12.99-1~bpo12+1", "bookworm-backports", "linux-image-" + later},
			fakeOffer{"linux-image-" + later, "6.12.99-1~bpo12+1", "bookworm-backports", ""})
		f.kernels[later] = panics
		crashed := f.during(at, func() {
			mustInstall(t, f, Request{Backports: true})
			f.boot()
		})
		f.boot()
		if f.running() != newKernel {
			t.Fatalf("crash %d: running %s", at, f.running())
		}
		if story, err := Tell(f.host()); err != nil || story.New == later {
			if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil {
				t.Fatalf("crash %d: %v", at, err)
			}
		}
		f.boot()
		if f.running() != newKernel || f.get(PinFile) != pin || f.get(KeepFile) != keep || f.get(StateFile) != state {
			t.Fatalf("crash %d, then rollback: running %s, the pin:\n%s\nthe state:\n%s", at, f.running(), f.get(PinFile), f.get(StateFile))
		}
		if !crashed {
			if at < 10 {
				t.Error("too few steps to be true")
			}
			break
		}
	}
}
