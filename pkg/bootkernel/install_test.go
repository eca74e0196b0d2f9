package bootkernel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

func mustInstall(t *testing.T, f *fakeHost, req Request) *Result {
	t.Helper()
	res, err := Install(t.Context(), f.host(), req, Face{})
	if err != nil {
		t.Fatalf("install: %v", err)
	}
	return res
}

func phase(t *testing.T, f *fakeHost) Phase {
	t.Helper()
	s, err := f.host().loadState()
	if err != nil {
		t.Fatal(err)
	}
	if s == nil {
		return ""
	}
	return s.Phase
}

// default_ is the release that GRUB starts by itself.
func defaultOf(f *fakeHost) string {
	m := ParseMenu([]byte(f.get(grubConfig)))
	return m.Find(m.Default, f.env()).Release()
}

func TestInstallAndPromote(t *testing.T) {
	f := newFakeHost(t)
	f.shell = true
	res := mustInstall(t, f, Request{Backports: true})
	if !res.Changed || res.Story == nil || res.Story.Phase != Armed {
		t.Fatalf("install: %+v", res)
	}
	if defaultOf(f) != oldKernel || f.env()["next_entry"] != trialID {
		t.Fatalf("default %s, env %v", defaultOf(f), f.env())
	}
	f.boot()
	if f.running() != newKernel || phase(t, f) != Promoted {
		t.Fatalf("running %s, phase %s", f.running(), phase(t, f))
	}
	for _, name := range []string{PinFile, TrialFile, KeepFile} {
		if f.exists(name) {
			t.Errorf("%s is still there", name)
		}
	}
	if defaultOf(f) != newKernel || !f.exists("/boot/vmlinuz-"+oldKernel) {
		t.Errorf("default %s", defaultOf(f))
	}
	for _, key := range []string{"panic", "panic_on_oops"} {
		if got := strings.TrimSpace(f.get("/proc/sys/kernel/" + key)); got != "0" {
			t.Errorf("kernel.%s is %s", key, got)
		}
	}
	f.boot()
	if f.running() != newKernel || len(f.boots) != 2 {
		t.Errorf("booted %q", f.boots)
	}
}

func TestFallBack(t *testing.T) {
	for name, b := range map[string]behaviour{"panic": panics, "hang": hangs, "network": noNet, "ssh": noSSH, "emergency": emergency} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHost(t)
			f.kernels[newKernel] = b
			mustInstall(t, f, Request{Backports: true})
			f.boot()
			if f.running() != oldKernel || phase(t, f) != FellBack || len(f.boots) != 2 {
				t.Fatalf("running %s, phase %s, booted %q", f.running(), phase(t, f), f.boots)
			}
			story, err := Tell(f.host())
			if err != nil || !story.Attend || story.Pinned != oldKernel {
				t.Fatalf("story %+v, %v", story, err)
			}
			t.Log(story.Summary)
			// The services wrote it down in theirs, the owner reads it in hers.
			text.SetLanguage("zh")
			t.Cleanup(func() { text.SetLanguage("") })
			if zh, err := Tell(f.host()); err != nil || zh.Reason == story.Reason {
				t.Errorf("in Chinese the reason is %q, %v", zh.Reason, err)
			}
			text.SetLanguage("")
			f.boot() // and again, without a trial
			if f.running() != oldKernel || len(f.boots) != 3 {
				t.Fatalf("booted %q", f.boots)
			}
			if _, err := Remove(t.Context(), f.host(), newKernel, false, Face{}); err != nil {
				t.Fatal(err)
			}
			if defaultOf(f) != oldKernel || f.exists(PinFile) || f.exists(StateFile) || f.exists(BackportsFile) || f.packages[newImage] != "" || f.packages[metaName] != oldDeb {
				t.Errorf("after remove: default %s, packages %v", defaultOf(f), f.packages)
			}
		})
	}
}

func TestRollbackRestoresTheDefault(t *testing.T) {
	for name, set := range map[string]struct{ line, saved, def string }{
		"number": {"GRUB_DEFAULT=0", "", "0"},
		"title":  {`GRUB_DEFAULT="Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux ` + oldKernel + `"`, "", "Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux " + oldKernel},
		"saved":  {"GRUB_DEFAULT=saved\nGRUB_SAVEDEFAULT=true", "gnulinux-advanced-u>gnulinux-" + oldKernel + "-advanced-u", "${saved_entry}"},
		"flat":   {"GRUB_DEFAULT=gnulinux-" + oldKernel + "-advanced-u\nGRUB_DISABLE_SUBMENU=y", "", "gnulinux-" + oldKernel + "-advanced-u"},
	} {
		for _, boots := range []int{0, 1} {
			t.Run(name, func(t *testing.T) {
				f := newFakeHost(t)
				f.shell = true
				f.put("/etc/default/grub", set.line+"\n")
				if set.saved != "" {
					f.setEnv(map[string]string{"saved_entry": set.saved})
				}
				f.updateGrub()
				before, env := f.get(grubConfig), f.get(grubEnv)
				mustInstall(t, f, Request{Backports: true})
				for range boots {
					f.boot()
					if f.running() != newKernel || phase(t, f) != Promoted || defaultOf(f) != newKernel {
						t.Fatalf("running %s, phase %s, default %s", f.running(), phase(t, f), defaultOf(f))
					}
					if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil {
						t.Fatal(err)
					}
					f.boot()
					if f.running() != oldKernel {
						t.Fatalf("running %s after rollback", f.running())
					}
				}
				if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil {
					t.Fatal(err)
				}
				if after := f.get(grubConfig); after != before {
					t.Errorf("grub.cfg differs:\n%s\n%s", before, after)
				}
				if f.get(grubEnv) != env {
					t.Errorf("env %v", f.env())
				}
				if f.exists(StateFile) || f.exists(PinFile) || f.exists(KeepFile) || f.packages[metaName] != oldDeb || len(f.packages) != 2 {
					t.Errorf("left: %v", f.packages)
				}
			})
		}
	}
}

func TestNoAuto(t *testing.T) {
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true, NoAuto: true})
	f.boot()
	if f.running() != newKernel || phase(t, f) != Trying || defaultOf(f) != oldKernel {
		t.Fatalf("running %s, phase %s", f.running(), phase(t, f))
	}
	if _, err := Confirm(t.Context(), f.host(), false); err != nil {
		t.Fatal(err)
	}
	if phase(t, f) != Promoted || defaultOf(f) != newKernel {
		t.Fatalf("phase %s, default %s", phase(t, f), defaultOf(f))
	}
}

// TestCrash stops install before every single step and looks where the host ends
// up: it boots the old kernel or tries the new one once, and both install and
// rollback come to an end.
func TestCrash(t *testing.T) {
	for name, b := range map[string]behaviour{"good": works, "bad": panics} {
		t.Run(name, func(t *testing.T) {
			crashes := 0
			for at := 1; ; at++ {
				for _, then := range []string{"install", "rollback", "boot"} {
					f := newFakeHost(t)
					f.kernels[newKernel] = b
					if !f.during(at, func() { Install(context.Background(), f.host(), Request{Backports: true}, Face{}) }) {
						if crashes < 10 {
							t.Errorf("only %d crashes", crashes)
						}
						return
					}
					crashes++
					where := f.ops[at-1]
					// The power is gone. What runs now is the old kernel, or the new
					// one if it was already set to be tried.
					f.boot()
					if f.running() != oldKernel && !(b == works && phase(t, f) == Promoted) {
						t.Fatalf("before %q: running %s in phase %s, booted %q", where, f.running(), phase(t, f), f.boots)
					}
					story, err := Tell(f.host())
					if err != nil {
						t.Fatalf("before %q: %v", where, err)
					}
					if story == nil && (f.exists(PinFile) || f.exists(TrialFile) || f.exists(BackportsFile)) {
						t.Fatalf("before %q: files are left and nobody knows", where)
					}
					switch then {
					case "install":
						if phase(t, f) == Promoted {
							continue
						}
						if _, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{}); err != nil {
							t.Fatalf("before %q, then install: %v", where, err)
						}
						f.boot()
						if want := map[behaviour]string{works: newKernel, panics: oldKernel}[b]; f.running() != want {
							t.Fatalf("before %q, then install: running %s in phase %s", where, f.running(), phase(t, f))
						}
					case "rollback":
						for range 2 {
							if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil {
								t.Fatalf("before %q, then rollback: %v", where, err)
							}
							f.boot()
						}
						if f.running() != oldKernel || f.exists(StateFile) || f.exists(PinFile) || f.exists(TrialFile) || f.exists(BackportsFile) || f.packages[newImage] != "" {
							t.Fatalf("before %q, then rollback: running %s, packages %v", where, f.running(), f.packages)
						}
					}
				}
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		change func(*fakeHost)
		exit   int
		says   string
	}{
		"container": {func(f *fakeHost) { f.facts.Virtualization.Container = "docker" }, 5, "container"},
		"openvz":    {func(f *fakeHost) { f.facts.Virtualization.Container = "openvz" }, 5, "container"},
		"ubuntu":    {func(f *fakeHost) { f.facts.Distribution.ID = "ubuntu"; f.facts.Distribution.Name = "Ubuntu 24.04" }, 5, "Ubuntu"},
		"firecracker": {func(f *fakeHost) {
			f.put("/proc/cmdline", "console=ttyS0 root=/dev/vda\n")
			f.facts.Virtualization.Machine = "firecracker"
		}, 5, "Firecracker"},
		"from outside": {func(f *fakeHost) { f.put("/proc/cmdline", "root=/dev/vda\n") }, 5, "outside"},
		"other kernel": {func(f *fakeHost) { f.put("/proc/cmdline", "BOOT_IMAGE=/boot/bzImage root=/dev/vda\n") }, 5, "not one of those in /boot"},
		"btrfs":        {func(f *fakeHost) { f.put("/proc/self/mountinfo", "22 1 0:33 / / rw - btrfs /dev/vda1 rw\n") }, 5, "btrfs"},
		"lvm":          {func(f *fakeHost) { f.put("/sys/devices/pci0/virtio2/block/vda/dm/name", "x\n") }, 5, "LVM"},
		"raid":         {func(f *fakeHost) { f.put("/sys/devices/pci0/virtio2/block/vda/md/level", "raid1\n") }, 5, "RAID"},
		"no grub":      {func(f *fakeHost) { f.removeAll("/usr/bin/grub-editenv") }, 5, "grub-editenv"},
		"systemd-boot": {func(f *fakeHost) {
			f.put("/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f", "\x06\x00\x00\x00s\x00y\x00s\x00t\x00e\x00m\x00d\x00-\x00b\x00o\x00o\x00t\x00")
		}, 5, "systemd-boot"},
		"unit missing": {func(f *fakeHost) { f.removeAll("/usr/lib/systemd/system/accel-kernel-deadline.timer") }, 1, "accel-kernel-deadline.timer"},
		"boot full":    {func(f *fakeHost) { f.free["/boot"] = 20 << 20 }, 1, "/boot"},
		"dpkg broken":  {func(f *fakeHost) { f.half["x"] = true }, 1, "half"},
		"dpkg locked":  {func(f *fakeHost) { f.holder = "unattended-upgr, process 7" }, 1, "unattended-upgr"},
		"unreachable": {func(f *fakeHost) {
			f.fail["apt-get -q update"] = &ProgramError{"apt-get update", 100, "Could not resolve"}
		}, 1, "Could not resolve"},
		"held":                        {func(f *fakeHost) { f.fail["apt-mark"] = nil }, 1, ""},
		"device gone":                 {func(f *fakeHost) { f.fail["debconf-show"] = nil }, 1, ""},
		"secure boot":                 {func(f *fakeHost) { f.facts.SecureBoot = &yes }, 0, ""},
		"one-time set":                {func(f *fakeHost) { f.setEnv(map[string]string{"next_entry": "2"}) }, 1, "one-time"},
		"strange":                     {func(f *fakeHost) { f.put(grubConfig, f.get(grubConfig)+"set default=7\n") }, 1, "decides"},
		"driver":                      {func(f *fakeHost) { f.facts.Links[0].Driver = "ena" }, 5, "ena"},
		"disk full while it installs": {func(f *fakeHost) { f.noInitrd = true }, 1, "dpkg"},
	} {
		if name == "held" || name == "device gone" {
			continue // tested by themselves
		}
		t.Run(name, func(t *testing.T) {
			f := newFakeHost(t)
			c.change(f)
			before := f.get(grubConfig)
			_, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
			if tuning.ExitCode(err) != c.exit || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("exit %d: %v", tuning.ExitCode(err), err)
			}
			var p *tuning.Problem
			if err != nil && (!errors.As(err, &p) || p.Next == "") {
				t.Errorf("no next step: %v", err)
			}
			if err != nil && (f.get(grubConfig) != before || f.exists(StateFile) || f.exists(PinFile) || f.exists(TrialFile) || f.exists(BackportsFile) || len(f.packages) != 2 || len(f.half) > 0 && name != "dpkg broken") {
				t.Errorf("not undone: %v", f.packages)
			}
		})
	}
}

func (f *fakeHost) removeAll(name string) {
	if err := removeAll(f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}
