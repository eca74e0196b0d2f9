package kernel

import (
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// secureBoot reads the UEFI variable: four bytes of attributes, then 1 for on.
// A host that shows no UEFI at all has no Secure Boot.
func secureBoot(t *Tree) *bool {
	const name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	yes, no := true, false
	for _, file := range []string{
		"/sys/firmware/efi/efivars/" + name,
		"/sys/firmware/efi/vars/" + name + "/data", // before efivarfs: without the attributes
	} {
		data, err := t.ReadFile(file)
		if err != nil {
			continue
		}
		if strings.HasPrefix(file, "/sys/firmware/efi/efivars/") && len(data) >= 5 {
			data = data[4:]
		}
		if len(data) != 1 {
			continue
		}
		if data[0] == 1 {
			return &yes
		}
		return &no
	}
	if t.isDir("/sys/firmware") && !t.Exists("/sys/firmware/efi") {
		return &no
	}
	return nil
}

// lockdown reads the mode in brackets.
func lockdown(t *Tree) string {
	for _, word := range strings.Fields(t.text("/sys/kernel/security/lockdown")) {
		if mode, ok := strings.CutPrefix(word, "["); ok {
			return strings.TrimSuffix(mode, "]")
		}
	}
	return ""
}

// signaturesForced says whether the kernel refuses unsigned modules.
func signaturesForced(t *Tree) *bool {
	yes, no := true, false
	if mode := lockdown(t); mode == "integrity" || mode == "confidentiality" {
		return &yes
	}
	switch t.text("/sys/module/module/parameters/sig_enforce") {
	case "Y":
		return &yes
	case "N":
		return &no
	}
	return nil
}

// Capability numbers of linux/capability.h.
const (
	capNetAdmin  = unix.CAP_NET_ADMIN
	capSysModule = unix.CAP_SYS_MODULE
	capSysAdmin  = unix.CAP_SYS_ADMIN
)

// effectiveCapabilities reads the effective set out of /proc/self/status.
func effectiveCapabilities(t *Tree) *Capabilities {
	for line := range strings.Lines(t.text("/proc/self/status")) {
		value, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return nil
		}
		return &Capabilities{
			NetAdmin:  set>>capNetAdmin&1 != 0,
			SysModule: set>>capSysModule&1 != 0,
			SysAdmin:  set>>capSysAdmin&1 != 0,
		}
	}
	return nil
}

// initialUserns says whether this process is in the user namespace the kernel
// booted with: the one that maps every id to itself.
func initialUserns(t *Tree) bool {
	return strings.Join(strings.Fields(t.text("/proc/self/uid_map")), " ") == "0 0 4294967295"
}

// liveCapabilities are the effective capabilities as far as they count here. Inside
// a user namespace the set may be full and still give no power over modules, which
// belong to the initial one, or over a network namespace that belongs to a parent.
func liveCapabilities(t *Tree) *Capabilities {
	c := effectiveCapabilities(t)
	if c == nil || initialUserns(t) {
		return c
	}
	c.SysModule = false
	if c.NetAdmin {
		c.NetAdmin = ownsNetns()
	}
	return c
}

// ownsNetns says whether this process's user namespace owns its network namespace
// or is an ancestor of the owner.
func ownsNetns() bool {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	defer f.Close()
	// EPERM: the owner is outside of the namespaces below ours.
	owner, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return false
	}
	unix.Close(owner)
	return true
}

// mount is what matters of a line of /proc/self/mountinfo.
type mount struct {
	device   string // "254:0"
	root     string // the directory of the file system that is mounted
	point    string
	fstype   string
	readOnly bool
}

func mountinfo(t *Tree, name string) []mount {
	data, err := t.ReadFile(name)
	if err != nil {
		return nil
	}
	return parseMountinfo(data)
}

// parseMountinfo reads mountinfo; lines that are not understood are left out.
func parseMountinfo(data []byte) []mount {
	var mounts []mount
	for line := range strings.Lines(string(data)) {
		// 24 1 0:22 / /proc/sys ro,nosuid shared:5 - proc proc rw
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if !ok || len(f) < 6 {
			continue
		}
		m := mount{device: f[2], root: f[3], point: unescapeMount(f[4]), readOnly: hasOption(f[5], "ro")}
		s := strings.Fields(after)
		if len(s) > 0 {
			m.fstype = s[0]
		}
		if len(s) > 2 {
			m.readOnly = m.readOnly || hasOption(s[2], "ro")
		}
		mounts = append(mounts, m)
	}
	return mounts
}

func hasOption(options, name string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == name {
			return true
		}
	}
	return false
}

// unescapeMount undoes the octal escapes of blank, tab, newline and backslash.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountReadOnly says whether the mount that covers a path is read-only; ok is
// false if none covers it.
func mountReadOnly(mounts []mount, name string) (readOnly, ok bool) {
	best := ""
	for _, m := range mounts {
		p := path.Clean(m.point)
		if p != "/" && p != name && !strings.HasPrefix(name, p+"/") {
			continue
		}
		// Of mounts on the same point the last one is on top.
		if len(p) >= len(best) {
			best, readOnly, ok = p, m.readOnly, true
		}
	}
	return readOnly, ok
}

// procSysReadOnly looks at the mount that covers the keys accel sets: a container
// may have /proc/sys read-only and /proc/sys/net writable. The second result says
// that process 1 sees it writable, so this process alone is shut in.
func procSysReadOnly(t *Tree) (readOnly, sandboxed bool) {
	const key = "/proc/sys/net/ipv4/tcp_congestion_control"
	readOnly, _ = mountReadOnly(mountinfo(t, "/proc/self/mountinfo"), key)
	if !readOnly {
		return false, false
	}
	first, known := mountReadOnly(mountinfo(t, "/proc/1/mountinfo"), key)
	return true, known && !first
}
