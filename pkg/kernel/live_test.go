package kernel

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Whatever this host is, its facts are found without an error and do not
// contradict each other.
func TestDetectThisHost(t *testing.T) {
	f := detect(t, "/")
	if f.Release.Major == 0 || f.Release.Raw == "" {
		t.Errorf("release %+v", f.Release)
	}
	if f.MemoryBytes == 0 || f.CPUs == 0 || f.Arch == "" || f.UID != os.Getuid() || f.Capabilities == nil {
		t.Errorf("%+v", f)
	}
	if f.DefaultAlgorithm != "" && !f.Algorithm(f.DefaultAlgorithm).Available && f.Algorithm(f.DefaultAlgorithm).Origin == Absent {
		t.Errorf("the default %s is absent: %+v", f.DefaultAlgorithm, f.Algorithms)
	}
	if f.DefaultQdisc != nil && !f.Qdisc(*f.DefaultQdisc).Available {
		t.Errorf("the default qdisc %s is not available: %+v", *f.DefaultQdisc, f.Qdiscs)
	}
	loopback := false
	for _, l := range f.Links {
		loopback = loopback || l.Loopback && l.Name == "lo" && l.Index == 1
		if l.SpeedMbit != nil && *l.SpeedMbit <= 0 || l.Index <= 0 || l.Type < 0 {
			t.Errorf("%+v", l)
		}
	}
	if !loopback {
		t.Errorf("no loopback in %+v", f.Links)
	}
	if !f.ModulesSupported {
		for _, a := range append(f.Algorithms, f.Qdiscs...) {
			if a.Origin != Builtin {
				t.Errorf("%+v on a kernel without modules", a)
			}
		}
	}
	if v := f.Virtualization; v.Container == "none" || v.Machine == "" && f.Arch == "x86_64" {
		t.Errorf("%+v", v)
	}
}

// The same as a user without any right.
func TestDetectUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		TestDetectThisHost(t)
		return
	}
	// Not by its path, which a stranger may not reach.
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDetectThisHost$", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestDetectThisHost") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestOtherNetns(t *testing.T) {
	before := otherNetns()
	if before < 0 {
		t.Skip("other people's processes are hidden here")
	}
	inNewNetns(t, func() {
		// From a namespace nobody else is in, the one before is another.
		if got := otherNetns(); got < before+1 {
			t.Errorf("%d other namespaces seen from a new one, %d before", got, before)
		}
	})
}
