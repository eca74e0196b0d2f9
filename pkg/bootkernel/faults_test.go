package bootkernel

import (
	"context"
	"strings"
	"testing"

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
