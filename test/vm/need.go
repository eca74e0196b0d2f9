package vm

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// tools maps the programs this package runs to the Debian packages they are
// in.
var tools = []struct{ program, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"qemu-system-aarch64", "qemu-system-arm"},
	{"qemu-img", "qemu-utils"},
	{"mmdebstrap", "mmdebstrap"},
	{"mke2fs", "e2fsprogs"},
	{"depmod", "kmod"},
	{"unshare", "util-linux"},
	{"dpkg-deb", "dpkg"},
	{"apt-get", "apt"},
	{"gpg", "gpg"},
	{"gpg-agent", "gpg-agent"},
	{"gpgconf", "gpgconf"},
}

// Packages lists the Debian packages that this package needs on the host.
func Packages() []string {
	list := []string{"debian-archive-keyring", "ovmf"}
	for _, t := range tools {
		list = append(list, t.pkg)
	}
	return list
}

// Missing returns nil if everything needed is installed, otherwise an error
// that says what to install.
func Missing() error {
	var missing []string
	for _, t := range tools {
		if _, err := exec.LookPath(program(t.program)); err != nil {
			missing = append(missing, t.pkg)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		missing = append(missing, "debian-archive-keyring")
	}
	if _, err := os.Stat(ovmf); err != nil {
		missing = append(missing, "ovmf")
	}
	if missing == nil && emulatorVersion() < emulatorLeast {
		return fmt.Errorf("virtual machines need qemu %d or later (bookworm has it in backports): its emulation was wrong before, and newer kernels die in it", emulatorLeast)
	}
	if missing != nil {
		return fmt.Errorf("virtual machines need: apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
	return nil
}

// emulatorLeast is the first version of qemu that runs all kernels of the matrix: in
// 7.2 every second boot of Linux 6.12 ended in an oops, in 10.0 none of a hundred.
const emulatorLeast = 10

// emulatorVersion is the major version of qemu, 0 if it does not say.
var emulatorVersion = sync.OnceValue(func() (major int) {
	out, _ := exec.Command(program("qemu-system-x86_64"), "--version").Output()
	fmt.Sscanf(string(out), "QEMU emulator version %d.", &major)
	return major
})

// program returns the path of a program that may be in sbin, which is not in
// everybody's PATH.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path
		}
	}
	return name
}

// Need skips the test if something that virtual machines need is missing on
// this host, or fails it where they are required (CI=true or ACCEL_VM=1).
func Need(t testing.TB) {
	t.Helper()
	err := Missing()
	if err == nil && os.Getuid() != 0 {
		err = fmt.Errorf("virtual machine tests need root, for images and for links with several queues")
	}
	if err == nil {
		return
	}
	if os.Getenv("CI") == "true" || os.Getenv("ACCEL_VM") == "1" {
		t.Fatal(err)
	}
	t.Skip(err)
}
