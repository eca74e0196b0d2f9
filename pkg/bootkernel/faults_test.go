package bootkernel

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

// A second kernel is refused while a bad one is installed: with the pin for the
// second the bad one would be the default.
func TestOneUntriedKernelAtATime(t *testing.T) {
	const later = "6.12.99+deb12-cloud-amd64"
	f := newFakeHost(t)
	f.kernels[newKernel] = panics
	mustInstall(t, f, Request{Backports: true})
	f.boot()
	if phase(t, f) != FellBack {
		t.Fatalf("phase %s", phase(t, f))
	}
	f.offered = append(f.offered,
		fakeOffer{metaName, "6.12.99-1~bpo12+1", "bookworm-backports", "linux-image-" + later},
		fakeOffer{"linux-image-" + later, "6.12.99-1~bpo12+1", "bookworm-backports", ""})
	_, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
	if tuning.ExitCode(err) != tuning.ExitFailed || !strings.Contains(err.Error(), newKernel) {
		t.Errorf("%v", err)
	}
	f.boots = nil
	f.boot()
	if f.running() != oldKernel || len(f.boots) != 1 || phase(t, f) != FellBack {
		t.Fatalf("booted %q, phase %s", f.boots, phase(t, f))
	}
	if _, err := Remove(t.Context(), f.host(), newKernel, false, Face{}); err != nil {
		t.Fatal(err)
	}
	mustInstall(t, f, Request{Backports: true})
	f.boot()
	if f.running() != later || phase(t, f) != Promoted {
		t.Errorf("running %s in phase %s", f.running(), phase(t, f))
	}
}

// A rollback that leaves the new kernel installed, because it was there before,
// never lets GRUB start it in between.
func TestRollbackKeepsThePin(t *testing.T) {
	for at := 1; ; at++ {
		f := newFakeHost(t)
		f.unpack(newKernel)
		f.packages[newImage] = bpo
		f.kernels[newKernel] = panics
		f.put("/etc/default/grub", "GRUB_DEFAULT=0\n")
		mustInstall(t, f, Request{Version: newKernel})
		f.boot()
		crashed := f.during(at, func() { Rollback(context.Background(), f.host(), false, Face{}) })
		f.boots = nil
		f.boot()
		if f.running() != oldKernel || len(f.boots) != 1 {
			t.Fatalf("crash %d: booted %q", at, f.boots)
		}
		if !crashed {
			if at < 3 || phase(t, f) != RolledBack || f.packages[newImage] != bpo {
				t.Errorf("after %d: phase %s, packages %v", at, phase(t, f), f.packages)
			}
			return
		}
	}
}

// The power goes after GRUB was told to start the new kernel, and before that was
// written down: it is judged all the same.
func TestTrialThatWasNotWrittenDown(t *testing.T) {
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	last := len(f.ops)
	f = newFakeHost(t)
	if !f.during(last, func() { Install(context.Background(), f.host(), Request{Backports: true}, Face{}) }) {
		t.Fatal("no crash")
	}
	if phase(t, f) != Arming || f.env()["next_entry"] != trialID {
		t.Fatalf("phase %s, env %v", phase(t, f), f.env())
	}
	f.boot()
	if f.running() != newKernel || phase(t, f) != Promoted {
		t.Errorf("running %s in phase %s", f.running(), phase(t, f))
	}
}

// What a login has forwarded is not there after a reboot, and must not be missed.
func TestForwardedPortsAreNoServer(t *testing.T) {
	f := newFakeHost(t)
	process := func(pid, parent int, comm, cgroup string, inode int) {
		dir := fmt.Sprintf("/p/%d/", pid)
		f.put(dir+"comm", comm+"\n")
		f.put(dir+"status", fmt.Sprintf("Name:\t%s\nPPid:\t%d\n", comm, parent))
		f.put(dir+"cgroup", "0::"+cgroup+"\n")
		f.link(fmt.Sprintf("%sfd/3", dir), fmt.Sprintf("socket:[%d]", inode))
	}
	process(1, 0, "systemd", "/init.scope", 10)
	process(500, 1, "sshd", "/system.slice/ssh.service", 11)
	process(600, 500, "sshd", "/user.slice/user-0.slice/session-3.scope", 12)
	process(601, 600, "sshd", "/user.slice/user-0.slice/session-3.scope", 13)
	process(700, 1, "sshd", "/user.slice/user-0.slice/session-1.scope", 14) // its server was restarted
	process(800, 1, "nginx", "/system.slice/nginx.service", 15)
	process(900, 1, "dropbear", "/system.slice/dropbear.service", 16)
	process(901, 900, "dropbear", "/system.slice/dropbear.service", 17)
	if got := slices.Sorted(maps.Keys(sshSockets(f.path("/p")))); !slices.Equal(got, []string{"11", "16"}) {
		t.Errorf("%q", got)
	}
}

// Without a gateway that answers, a kernel without a network would look good.
func TestNothingToCheckTheNetworkBy(t *testing.T) {
	for _, tunnelled := range []bool{false, true} { // a tunnel is up without any network card
		f := newFakeHost(t)
		f.unreached, f.tunnelled = !tunnelled, tunnelled
		_, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
		if tuning.ExitCode(err) != tuning.ExitFailed || !strings.Contains(err.Error(), "gateway") || f.exists(StateFile) {
			t.Errorf("%v", err)
		}
		mustInstall(t, f, Request{Backports: true, NoAuto: true})
	}
}

func TestGRUBWithPassword(t *testing.T) {
	for _, name := range []string{grubConfig, grubDir + "/custom.cfg"} {
		f := newFakeHost(t)
		f.put(name, f.get(name)+"set superusers=\"root\"\npassword_pbkdf2 root grub.pbkdf2.sha512.10000.AA.BB\n")
		_, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
		if tuning.ExitCode(err) != tuning.ExitFailed || !strings.Contains(err.Error(), "password") || f.exists(PinFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// GRUB takes what begins with a number for that number, in the bases of strtoul.
func TestEntryNumbers(t *testing.T) {
	for name, want := range map[string]int64{
		"0": 0, "2": 2, "010": 8, "0x1f": 31, "6.1 of mine": 6, " 3": 3, "1 2": 1,
		"Debian": -1, "gnulinux-6.1": -1, "": -1, "-1": -1, "0x": -1, "99999999999999999999": -1,
	} {
		got := int64(-1)
		if n, ok := entryNumber(name); ok {
			got = int64(n)
		}
		if got != want {
			t.Errorf("%q is entry %d, want %d", name, got, want)
		}
	}
}

// A kernel may have a default of its own that differs. What nobody has set need
// not be the same with it.
func TestDefaultOfTheKernel(t *testing.T) {
	for config, reason := range map[string]string{
		"CONFIG_TCP_CONG_BBR=m\nCONFIG_DEFAULT_TCP_CONG=\"bbr\"\n":   "",
		"CONFIG_TCP_CONG_BBR=m\nCONFIG_DEFAULT_TCP_CONG=\"cubic\"\n": "cubic is in force, not bbr",
		"": "cubic is in force, not bbr",
	} {
		f := newFakeHost(t)
		f.put("/boot/config-"+oldKernel, config)
		f.algorithms = map[string]string{newKernel: "cubic"}
		mustInstall(t, f, Request{Backports: true})
		f.boot()
		s, err := f.host().loadState()
		if err != nil || text.Tell(s.Reasons) != reason || (s.Phase == Promoted) != (reason == "") {
			t.Errorf("%q: phase %s, reason %q, %v", config, s.Phase, s.Reasons, err)
		}
	}
}

// A power cut can leave GRUB's environment block empty. GRUB ignores such a one,
// and it keeps nobody from going back; only a new trial needs a good one.
func TestDamagedEnvironmentBlock(t *testing.T) {
	link := newFakeHost(t)
	if err := os.Rename(link.path(grubEnv), link.path("/boot/env")); err != nil {
		t.Fatal(err)
	}
	link.link(grubEnv, "../env")
	if _, err := Install(t.Context(), link.host(), Request{Backports: true}, Face{}); tuning.ExitCode(err) != tuning.ExitImpossible || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("a link: %v", err)
	}
	for _, damage := range []string{"", strings.Repeat("\x00", envSize)} {
		f := newFakeHost(t)
		mustInstall(t, f, Request{Backports: true})
		f.put(grubEnv, damage)
		if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil {
			t.Errorf("%d bytes: %v", len(damage), err)
		}
		if defaultOf(f) != oldKernel || f.exists(StateFile) || f.exists(PinFile) {
			t.Errorf("%d bytes: default %s", len(damage), defaultOf(f))
		}
		_, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{})
		if tuning.ExitCode(err) != tuning.ExitFailed || !strings.Contains(err.Error(), grubEnv) {
			t.Errorf("%d bytes: %v", len(damage), err)
		}
	}
}

// A confirmation counts that comes while the deadline still asks for the gateway.
func TestConfirmedAtTheLastMoment(t *testing.T) {
	f := newFakeHost(t)
	f.kernels[newKernel] = noSSH
	mustInstall(t, f, Request{Backports: true, NoAuto: true})
	f.boot()
	if err := os.Remove(f.path(SeenFile)); err != nil {
		t.Fatal(err)
	}
	h := f.host()
	locked := 0
	h.Lock = func(context.Context) (func(), error) {
		if locked++; locked == 1 {
			if _, err := Confirm(t.Context(), f.host(), false); err != nil {
				t.Error(err)
			}
		}
		return func() {}, nil
	}
	if said, err := Deadline(t.Context(), h); err != nil || f.wentDown || phase(t, f) != Promoted || locked == 0 {
		t.Errorf("%q, %v, phase %s", said, err, phase(t, f))
	}
}

// Where nothing makes the machine reboot, the service has to fail, so that systemd
// does it.
func TestTheRebootThatDoesNotCome(t *testing.T) {
	f := newFakeHost(t)
	f.kernels[newKernel] = noSSH
	mustInstall(t, f, Request{Backports: true, NoAuto: true})
	f.boot()
	if err := os.Remove(f.path(SeenFile)); err != nil {
		t.Fatal(err)
	}
	f.fail["systemctl"] = &ProgramError{"systemctl reboot", 1, "Failed to connect to bus"}
	h := f.host()
	h.Sleep = func(context.Context, time.Duration) error { return nil }
	if _, err := Deadline(t.Context(), h); tuning.ExitCode(err) != tuning.ExitFailed {
		t.Errorf("%v", err)
	}
}

// After a later kernel came by itself, the one of the install goes alone: the
// package that brings the updates is not taken back to the old release.
func TestRemoveWhenALaterOneRuns(t *testing.T) {
	const later = "6.12.99+deb12-cloud-amd64"
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	f.boot()
	f.unpack(later)
	f.packages["linux-image-"+later], f.packages[metaName] = "6.12.99-1~bpo12+1", "6.12.99-1~bpo12+1"
	f.updateGrub()
	f.boot()
	if f.running() != later {
		t.Fatalf("running %s", f.running())
	}
	if _, err := Rollback(t.Context(), f.host(), false, Face{}); tuning.ExitCode(err) != tuning.ExitFailed || len(f.packages) != 4 {
		t.Errorf("rollback: %v, packages %v", err, f.packages)
	}
	if _, err := Remove(t.Context(), f.host(), newKernel, false, Face{}); err != nil {
		t.Fatal(err)
	}
	if f.packages[newImage] != "" || f.packages[metaName] != "6.12.99-1~bpo12+1" || f.exists(StateFile) || !f.exists(BackportsFile) {
		t.Errorf("packages %v", f.packages)
	}
}

// The state is lost, with a purge or a disk: the pin that keeps a bad kernel from
// being started stays until that kernel is gone.
func TestLostState(t *testing.T) {
	f := newFakeHost(t)
	f.kernels[newKernel] = panics
	mustInstall(t, f, Request{Backports: true})
	f.boot()
	f.removeAll(StateFile)
	res, err := Rollback(t.Context(), f.host(), false, Face{})
	if err != nil || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], newKernel) {
		t.Fatalf("%+v, %v", res, err)
	}
	f.boots = nil
	f.boot()
	if f.running() != oldKernel || len(f.boots) != 1 {
		t.Fatalf("booted %q", f.boots)
	}
	if _, err := Remove(t.Context(), f.host(), newKernel, false, Face{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Rollback(t.Context(), f.host(), false, Face{}); err != nil || f.exists(PinFile) || f.exists(KeepFile) {
		t.Errorf("the pin is left: %v", err)
	}
}

// Everything that ends a trial goes through GRUB: an initial ramdisk of
// initramfs-tools or dracut reboots where it would open a shell, and no reboot is
// a kexec into whatever somebody has loaded.
func TestRebootsGoThroughGRUB(t *testing.T) {
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	args := strings.Fields(ParseMenu([]byte(f.get(grubConfig))).Trial().Args)
	for _, word := range []string{"panic=30", "oops=panic", "rd.shell=0", "rd.emergency=reboot"} {
		if !slices.Contains(args, word) {
			t.Errorf("%s is missing: %q", word, args)
		}
	}
	for _, v := range []string{"SYSTEMCTL_SKIP_AUTO_KEXEC=1", "SYSTEMCTL_SKIP_AUTO_SOFT_REBOOT=1"} {
		if !slices.Contains(environment, v) {
			t.Errorf("%s is missing", v)
		}
	}
}

// Somebody chose a third kernel in GRUB's menu: that is not called a failure of
// the new one.
func TestAnotherKernelWasStarted(t *testing.T) {
	const third = "6.1.0-58-cloud-amd64"
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	f.unpack(third)
	f.packages["linux-image-"+third] = "6.1.200-1"
	f.updateGrub()
	f.setEnv(map[string]string{})
	f.put("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-"+third+" root=UUID=u ro quiet\n")
	f.put("/proc/sys/kernel/osrelease", third+"\n")
	f.put("/proc/sys/kernel/random/boot_id", "another\n")
	if _, err := Settle(t.Context(), f.host()); err != nil {
		t.Fatal(err)
	}
	if story, err := Tell(f.host()); err != nil || !strings.Contains(story.Reason, third) || defaultOf(f) != oldKernel {
		t.Errorf("%+v, %v", story, err)
	}
}

// GRUB leaves the one-time entry set, since it cannot write to its disk: its own
// entry sees that and starts the old kernel, and accel takes the trial back.
func TestGrubCannotWrite(t *testing.T) {
	f := newFakeHost(t)
	mustInstall(t, f, Request{Backports: true})
	data := f.get(grubConfig)
	_, entry, _ := strings.Cut(data, "'accel-trial' {")
	before, after, ok := strings.Cut(entry, "\nelse\n")
	if !ok || !strings.Contains(before, "load_env next_entry") || !strings.Contains(before, "vmlinuz-"+oldKernel) ||
		strings.Contains(before, "accel.trial=") || !strings.Contains(after, "vmlinuz-"+newKernel) || strings.Contains(after, oldKernel) {
		t.Fatalf("%s", entry)
	}
	f.readOnlyEnv = true
	f.boots = nil
	f.boot()
	if f.running() != oldKernel || len(f.boots) != 1 || phase(t, f) != FellBack || f.env()["next_entry"] != "" {
		t.Fatalf("booted %q, phase %s, env %v", f.boots, phase(t, f), f.env())
	}
	if story, err := Tell(f.host()); err != nil || !strings.Contains(story.Summary, "GRUB cannot write") {
		t.Errorf("%+v, %v", story, err)
	}
}

func TestCommandLineThatTakesNothing(t *testing.T) {
	f := newFakeHost(t)
	f.args = "quiet -- 3"
	f.updateGrub()
	if _, err := Install(t.Context(), f.host(), Request{Backports: true}, Face{}); err == nil || !strings.Contains(err.Error(), "command line") {
		t.Errorf("%v", err)
	}
	if f.packages[newImage] != "" || f.exists(PinFile) {
		t.Error("not undone")
	}
}
