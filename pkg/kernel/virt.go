package kernel

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// gopsutil is not asked here: it calls every virtual machine with a /.dockerenv
// file a docker guest, and every one with the kvm module loaded a kvm host.

// virtualization finds out what the host runs on and in.
func virtualization(t *Tree, release Release) Virtualization {
	v := Virtualization{
		Machine:      machine(t),
		Container:    container(t, release),
		InitialNetns: initialNetns(t),
	}
	if v.InitialNetns == nil && v.Container == "openvz" {
		no := false
		v.InitialNetns = &no
	}
	if v.Machine == "" && release.Family == "wsl2" {
		v.Machine = "microsoft"
	}
	return v
}

// dmiNames are the beginnings of what virtual machines write into their DMI
// strings, with the name systemd-detect-virt has for each. The vendors at the end
// sell nothing but KVM.
var dmiNames = []struct{ prefix, machine string }{
	{"KVM", "kvm"}, {"OpenStack", "kvm"}, {"KubeVirt", "kvm"},
	{"Amazon EC2", "amazon"}, {"QEMU", "qemu"},
	{"VMware", "vmware"}, {"VMW", "vmware"},
	{"innotek GmbH", "oracle"}, {"VirtualBox", "oracle"}, {"Oracle Corporation", "oracle"},
	{"Xen", "xen"}, {"Bochs", "bochs"}, {"Parallels", "parallels"}, {"BHYVE", "bhyve"},
	{"Hyper-V", "microsoft"}, {"Virtual Machine", "microsoft"},
	{"Apple Virtualization", "apple"}, {"Google Compute Engine", "google"},
	{"DigitalOcean", "kvm"}, {"Droplet", "kvm"}, {"Hetzner", "kvm"}, {"Vultr", "kvm"},
	{"Linode", "kvm"}, {"Akamai", "kvm"}, {"Scaleway", "kvm"}, {"UpCloud", "kvm"},
	{"Alibaba Cloud", "kvm"}, {"Tencent Cloud", "kvm"}, {"RHEV", "kvm"}, {"oVirt", "kvm"},
}

// machine finds the kind of virtual machine.
func machine(t *Tree) string {
	// A Xen control domain is on the hardware.
	if strings.Contains(t.text("/proc/xen/capabilities"), "control_d") {
		return "none"
	}
	flag, flagKnown := hypervisorFlag(t)
	product := t.text("/sys/class/dmi/id/product_name")
	byDMI := ""
	for _, file := range []string{"product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version"} {
		value := t.text("/sys/class/dmi/id/" + file)
		for _, n := range dmiNames {
			if strings.HasPrefix(value, n.prefix) {
				byDMI = n.machine
				break
			}
		}
		if byDMI != "" {
			break
		}
	}
	// Several vendors write the same strings into hardware they sell or rent.
	if flagKnown && !flag {
		byDMI = ""
	}
	if byDMI == "amazon" && strings.Contains(product, ".metal") {
		return "none"
	}
	clocks := t.text("/sys/devices/system/clocksource/clocksource0/available_clocksource")
	kvmClock := strings.Contains(clocks, "kvm-clock")
	switch {
	case firecracker(t):
		return "firecracker"
	case byDMI == "qemu" && kvmClock, byDMI == "" && kvmClock:
		// QEMU is how KVM's machines call themselves, and what also runs
		// without KVM; the clock is KVM's own.
		return "kvm"
	case byDMI != "":
		return byDMI
	case t.text("/sys/hypervisor/type") == "xen" || strings.Contains(clocks, "xen"):
		return "xen"
	case strings.Contains(clocks, "hyperv_clocksource"):
		return "microsoft"
	}
	if m := deviceTreeMachine(t); m != "" {
		return m
	}
	switch {
	case flag:
		return "vm"
	case flagKnown:
		return "none"
	case t.Exists("/sys/class/dmi/id/sys_vendor"):
		// Not x86, and its firmware names no virtual machine.
		return "none"
	}
	return ""
}

// hypervisorFlag looks for the CPU flag that every x86 hypervisor sets. known is
// false where the CPU has no such flags.
func hypervisorFlag(t *Tree) (set, known bool) {
	data, err := t.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false, false
	}
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(string(line), ":")
		switch strings.TrimSpace(key) {
		case "vendor_id":
			if strings.TrimSpace(value) == "User Mode Linux" {
				return true, true
			}
		case "flags":
			for _, f := range strings.Fields(value) {
				if f == "hypervisor" {
					return true, true
				}
			}
			return false, true
		}
	}
	return false, false
}

// firecracker recognizes the maker's mark in its ACPI tables, its only one: it has
// no DMI. Only root can read them; others see a KVM machine.
func firecracker(t *Tree) bool {
	data, err := t.readLimited("/sys/firmware/acpi/tables/FACP", 64<<10)
	return err == nil && len(data) >= 16 && string(data[10:16]) == "FIRECK"
}

// deviceTreeMachine reads what arm64 machines without DMI say.
func deviceTreeMachine(t *Tree) string {
	for _, dir := range []string{"/proc/device-tree", "/sys/firmware/devicetree/base"} {
		hypervisor := t.text(dir + "/hypervisor/compatible")
		switch {
		case strings.Contains(hypervisor, "linux,kvm"):
			return "kvm"
		case strings.Contains(hypervisor, "xen"):
			return "xen"
		case strings.Contains(hypervisor, "vmware"):
			return "vmware"
		case hypervisor != "":
			return "vm"
		}
		if strings.Contains(t.text(dir+"/compatible"), "linux,dummy-virt") {
			return "vm"
		}
	}
	return ""
}

// containerCgroups are the cgroups in which container managers put their guests, as
// seen from a container that does not have a cgroup namespace of its own.
var containerCgroups = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`/kubepods`), "kubernetes"},
	{regexp.MustCompile(`/docker[-/][0-9a-f]{12}`), "docker"},
	{regexp.MustCompile(`/lxc(\.payload)?[./]`), "lxc"},
	{regexp.MustCompile(`/libpod-[0-9a-f]{12}`), "podman"},
	{regexp.MustCompile(`/(cri-containerd|crio)-[0-9a-f]{12}`), "kubernetes"},
}

// container finds the kind of container, "" for none.
func container(t *Tree, release Release) string {
	// OpenVZ's host has /proc/bc, its guests have not. The kernel is the host's
	// in both.
	if !t.Exists("/proc/bc") && (t.Exists("/proc/vz") || t.Exists("/proc/user_beancounters") ||
		strings.HasPrefix(release.Family, "openvz")) {
		return "openvz"
	}
	if name := declaredContainer(t); name != "" {
		return name
	}
	for _, file := range []string{"/proc/1/cgroup", "/proc/self/cgroup"} {
		cgroup := t.text(file)
		for _, c := range containerCgroups {
			if c.pattern.MatchString(cgroup) {
				return c.name
			}
		}
	}
	mounts := mountinfo(t, "/proc/self/mountinfo")
	for _, m := range mounts {
		// lxcfs over single files of /proc is what LXC guests see.
		if m.fstype == "fuse.lxcfs" && strings.HasPrefix(m.point, "/proc/") {
			return "lxc"
		}
	}
	if strings.HasPrefix(release.Family, "wsl") {
		return "wsl"
	}
	if strings.HasPrefix(t.text("/proc/version"), "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016") {
		return "gvisor" // the one version it claims to be, on every host
	}

	initialPID, known := initialPIDNamespace(t)
	// Files such as /.dockerenv also lie about in the root of virtual machines
	// whose image was made from a container's. What decides is whether this
	// process stands where the kernel's first process stands: in the first PID
	// namespace, with the same root file system.
	if known && initialPID && firstRoot(t, mounts) {
		return ""
	}
	if !known && t.isDir("/run/systemd/system") && t.text("/proc/1/comm") == "systemd" {
		if initial := initialNetns(t); initial != nil && *initial {
			return "" // a recorded host; likewise more than such a file can outweigh
		}
	}
	switch {
	case t.Exists("/var/run/secrets/kubernetes.io"):
		return "kubernetes"
	case t.Exists("/.dockerenv"):
		return "docker"
	case t.Exists("/run/.containerenv"):
		return "podman"
	case known && !initialPID:
		return "container"
	}
	return ""
}

// declaredContainer is the name that the container manager itself left for those
// inside. The last place can be read by root only.
func declaredContainer(t *Tree) string {
	for _, file := range []string{"/run/host/container-manager", "/run/systemd/container"} {
		if name := t.text(file); name != "" {
			return containerName(name)
		}
	}
	data, err := t.readLimited("/proc/1/environ", 1<<20)
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if name, ok := bytes.CutPrefix(entry, []byte("container=")); ok && len(name) > 0 {
			return containerName(string(name))
		}
	}
	return ""
}

var plainName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,31}$`)

// containerName keeps a name only if it is one: everything here may be set by
// whoever made the container.
func containerName(s string) string {
	if s = strings.TrimSpace(s); plainName.MatchString(s) {
		return s
	}
	return "container"
}

// Namespaces that the kernel makes at boot have fixed inode numbers from the top of
// the range below which it gives out others (include/uapi/linux/nsfs.h,
// include/linux/proc_ns.h).
const (
	initialPIDInode   = 0xEFFFFFFC // since 3.8
	initialNetInode   = 0xEFFFFFF9 // since 6.18; before, one of the others
	firstDynamicInode = 0xF0000000
)

// nsInode reads a namespace link such as "net:[4026531833]".
func nsInode(t *Tree, name string) (uint64, bool) {
	target, err := t.Readlink(name)
	if err != nil {
		return 0, false
	}
	_, number, ok := strings.Cut(target, ":[")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return n, err == nil
}

func initialPIDNamespace(t *Tree) (initial, known bool) {
	n, ok := nsInode(t, "/proc/self/ns/pid")
	return ok && n == initialPIDInode, ok
}

// firstRoot says whether this process's root file system is that of process 1, by
// the device and the directory on it; they stay the same in a service with mounts
// of its own. Where process 1 is hidden, any root that is no overlay will do.
func firstRoot(t *Tree, mounts []mount) bool {
	own, ok := rootMount(mounts)
	if !ok {
		return false
	}
	if first, ok := rootMount(mountinfo(t, "/proc/1/mountinfo")); ok {
		return own.device == first.device && own.root == first.root
	}
	return own.root == "/" && own.fstype != "overlay" && own.fstype != "aufs"
}

func rootMount(mounts []mount) (mount, bool) {
	var found mount
	ok := false
	for _, m := range mounts {
		if m.point == "/" {
			found, ok = m, true // the last is on top
		}
	}
	return found, ok
}

// initialNetns says whether this is the network namespace the kernel booted with;
// nil if nothing shows it. /proc/sys/net shows the reader's own namespace, and some
// of its keys exist in the first one only: default_qdisc (since 3.12, if the kernel
// has qdiscs at all), dev_weight and netdev_max_backlog (always).
func initialNetns(t *Tree) *bool {
	yes, no := true, false
	for _, key := range []string{"default_qdisc", "netdev_max_backlog", "dev_weight"} {
		if t.Exists("/proc/sys/net/core/" + key) {
			return &yes
		}
	}
	if n, ok := nsInode(t, "/proc/thread-self/ns/net"); ok && n < firstDynamicInode {
		result := n == initialNetInode
		return &result
	}
	if t.Exists("/proc/sys/net/ipv4/tcp_congestion_control") {
		return &no
	}
	return nil
}
