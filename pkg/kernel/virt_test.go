package kernel

import (
	"strings"
	"testing"
)

func TestMachine(t *testing.T) {
	const dmi = "sys/class/dmi/id/"
	const clocks = "sys/devices/system/clocksource/clocksource0/available_clocksource"
	virtual := host{"proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu vme hypervisor lahf_lm\n\nprocessor\t: 1\nflags\t\t: fpu\n"}
	bare := host{"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme hypervisor_x\n"}
	facp := "FACP" + strings.Repeat("\x00", 6) + "FIRECKFCVMFADT"
	for _, c := range []struct {
		name string
		host host
		want string
	}{
		{"nothing known", host{}, ""},
		{"kvm by product", virtual.with(host{dmi + "product_name": "KVM\n", dmi + "sys_vendor": "Red Hat\n"}), "kvm"},
		{"qemu without kvm", virtual.with(host{dmi + "sys_vendor": "QEMU\n", dmi + "product_name": "Standard PC (Q35 + ICH9, 2009)\n", clocks: "tsc hpet acpi_pm\n"}), "qemu"},
		{"qemu on kvm", virtual.with(host{dmi + "sys_vendor": "QEMU\n", clocks: "kvm-clock tsc acpi_pm\n"}), "kvm"},
		{"a hoster's name", virtual.with(host{dmi + "sys_vendor": "DigitalOcean\n", dmi + "product_name": "Droplet\n"}), "kvm"},
		{"unknown hoster on kvm", virtual.with(host{dmi + "sys_vendor": "Some Cloud\n", clocks: "tsc kvm-clock\n"}), "kvm"},
		{"unknown hoster", virtual.with(host{dmi + "sys_vendor": "Some Cloud\n"}), "vm"},
		{"amazon", virtual.with(host{dmi + "sys_vendor": "Amazon EC2\n", dmi + "product_name": "t3.micro\n", clocks: "kvm-clock tsc\n"}), "amazon"},
		{"amazon metal", host{dmi + "sys_vendor": "Amazon EC2\n", dmi + "product_name": "c6g.metal\n"}, "none"},
		{"amazon metal x86", bare.with(host{dmi + "sys_vendor": "Amazon EC2\n", dmi + "product_name": "m5.metal\n"}), "none"},
		{"hyper-v", virtual.with(host{dmi + "sys_vendor": "Microsoft Corporation\n", dmi + "product_name": "Virtual Machine\n"}), "microsoft"},
		{"hyper-v by clock", virtual.with(host{clocks: "hyperv_clocksource_tsc_page acpi_pm\n"}), "microsoft"},
		{"surface", bare.with(host{dmi + "sys_vendor": "Microsoft Corporation\n", dmi + "product_name": "Surface Pro\n"}), "none"},
		{"vmware", virtual.with(host{dmi + "sys_vendor": "VMware, Inc.\n", dmi + "product_name": "VMware7,1\n"}), "vmware"},
		{"virtualbox", virtual.with(host{dmi + "sys_vendor": "innotek GmbH\n", dmi + "product_name": "VirtualBox\n"}), "oracle"},
		{"oracle's hardware", bare.with(host{dmi + "sys_vendor": "Oracle Corporation\n"}), "none"},
		{"google", virtual.with(host{dmi + "product_name": "Google Compute Engine\n", clocks: "kvm-clock tsc"}), "google"},
		{"xen", virtual.with(host{"sys/hypervisor/type": "xen\n"}), "xen"},
		{"xen dom0", host{"sys/hypervisor/type": "xen\n", "proc/xen/capabilities": "control_d\n"}, "none"},
		{"firecracker", virtual.with(host{"sys/firmware/acpi/tables/FACP": facp, clocks: "tsc kvm-clock\n"}), "firecracker"},
		{"firecracker, not root", virtual.with(host{clocks: "tsc kvm-clock\n"}), "kvm"},
		{"hardware", bare.with(host{dmi + "sys_vendor": "Dell Inc.\n"}), "none"},
		{"arm64 kvm", host{"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\n", "sys/firmware/devicetree/base/hypervisor/compatible": "linux,kvm\x00"}, "kvm"},
		{"arm64 dummy", host{"proc/device-tree": "-> /sys/firmware/devicetree/base", "sys/firmware/devicetree/base/compatible": "linux,dummy-virt\x00"}, "vm"},
		{"arm64 qemu by dmi", host{dmi + "sys_vendor": "QEMU\n"}, "qemu"},
		{"arm64 hardware", host{"proc/cpuinfo": "processor\t: 0\n", dmi + "sys_vendor": "Ampere\n"}, "none"},
		{"raspberry", host{"sys/firmware/devicetree/base/compatible": "raspberrypi,4-model-b\x00brcm,bcm2711\x00"}, ""},
		{"user mode linux", host{"proc/cpuinfo": "vendor_id\t: User Mode Linux\n"}, "vm"},
		{"wsl2", host{"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"}, "microsoft"},
	} {
		if got := detect(t, c.host.dir(t)).Virtualization.Machine; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestContainer(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	marker := host{".dockerenv": ""}
	// What process 1 and we ourselves see, in the first PID namespace.
	first := host{"proc/self/ns/pid": "-> pid:[4026531836]"}
	nested := host{"proc/self/ns/pid": "-> pid:[4026532247]"}
	disk := "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
	overlay := "600 1 0:58 / / rw,relatime - overlay overlay rw,lowerdir=/x\n"
	service := "900 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n901 900 0:30 / /tmp rw - tmpfs tmpfs rw\n"
	for _, c := range []struct {
		name string
		host host
		want string
	}{
		{"nothing known", host{}, ""},
		{"marker and nothing else", marker, "docker"},
		{"marker on a machine's disk", marker.with(first).with(host{"proc/self/mountinfo": disk, "proc/1/mountinfo": disk}), ""},
		{"marker, in a service with mounts of its own", marker.with(first).with(host{"proc/self/mountinfo": service, "proc/1/mountinfo": disk}), ""},
		{"marker, process 1 hidden", marker.with(first).with(host{"proc/self/mountinfo": disk}), ""},
		{"docker with the host's PIDs", marker.with(first).with(host{"proc/self/mountinfo": overlay, "proc/1/mountinfo": disk}), "docker"},
		{"docker with the host's PIDs, process 1 hidden", marker.with(first).with(host{"proc/self/mountinfo": overlay}), "docker"},
		{"docker", marker.with(nested).with(host{"proc/self/mountinfo": overlay, "proc/1/mountinfo": overlay}), "docker"},
		{"live system on an overlay", first.with(host{"proc/self/mountinfo": overlay, "proc/1/mountinfo": overlay}), ""},
		{"recorded machine with marker", marker.with(host{"run/systemd/system/": "", "proc/1/comm": "systemd\n", "proc/sys/net/core/default_qdisc": "fq_codel\n"}), ""},
		{"recorded container with marker", marker.with(host{"proc/1/comm": "sh\n", "proc/sys/net/core/default_qdisc": "fq_codel\n"}), "docker"},
		{"some PID namespace", nested, "container"},
		{"podman", host{"run/.containerenv": ""}, "podman"},
		{"by systemd's file", host{"run/systemd/container": "lxc\n"}, "lxc"},
		{"by the manager's file", host{"run/host/container-manager": "systemd-nspawn\n"}, "systemd-nspawn"},
		{"by the environment", host{"proc/1/environ": "PATH=/bin\x00container=lxc\x00TERM=x\x00"}, "lxc"},
		{"empty in the environment", host{"proc/1/environ": "container=\x00xcontainer=lxc\x00"}, ""},
		{"a strange name", host{"run/systemd/container": "\x1b[31mevil\n"}, "container"},
		{"docker's cgroup", host{"proc/1/cgroup": "12:cpu:/docker/" + id + "\n0::/docker/" + id + "\n"}, "docker"},
		{"docker's scope", host{"proc/self/cgroup": "0::/system.slice/docker-" + id + ".scope\n"}, "docker"},
		{"a host's docker service", host{"proc/1/cgroup": "0::/system.slice/docker.service\n"}, ""},
		{"kubernetes' cgroup", marker.with(host{"proc/1/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-" + id + ".scope\n"}), "kubernetes"},
		{"kubernetes' secrets", nested.with(host{"var/run": "-> /run", "run/secrets/kubernetes.io/serviceaccount/": ""}), "kubernetes"},
		{"lxc's cgroup", host{"proc/1/cgroup": "0::/lxc.payload.web/init.scope\n"}, "lxc"},
		{"lxc's monitor on its host", host{"proc/1/cgroup": "0::/init.scope\n"}, ""},
		{"lxcfs over proc", nested.with(host{"proc/self/mountinfo": disk + "30 27 0:40 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw\n"}), "lxc"},
		{"lxcfs on its host", first.with(host{"proc/self/mountinfo": disk + "30 27 0:40 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw\n", "proc/1/mountinfo": disk}), ""},
		{"openvz guest", host{"proc/vz/": ""}, "openvz"},
		{"openvz beancounters", host{"proc/user_beancounters": "Version: 2.5\n"}, "openvz"},
		{"openvz host", host{"proc/vz/": "", "proc/bc/0/": "", "proc/user_beancounters": "x", "proc/sys/kernel/osrelease": "3.10.0-1160.vz7.1\n"}, ""},
		{"openvz by its kernel", host{"proc/sys/kernel/osrelease": "3.10.0-1160.105.1.vz7.214.3\n"}, "openvz"},
		{"wsl1", host{"proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft\n"}, "wsl"},
		{"wsl2 from a docker image", marker.with(nested).with(host{"proc/sys/kernel/osrelease": "6.6.36.3-microsoft-standard-WSL2\n"}), "wsl"},
		{"gvisor", marker.with(host{"proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"}), "gvisor"},
	} {
		if got := detect(t, c.host.dir(t)).Virtualization.Container; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestInitialNetns(t *testing.T) {
	const core, ipv4 = "proc/sys/net/core/", "proc/sys/net/ipv4/"
	congestion := host{ipv4 + "tcp_congestion_control": "cubic\n", core + "somaxconn": "4096\n"}
	for _, c := range []struct {
		name string
		host host
		want string
	}{
		{"nothing known", host{}, "unknown"},
		{"default_qdisc", congestion.with(host{core + "default_qdisc": "fq\n"}), "true"},
		{"a kernel without qdiscs", congestion.with(host{core + "netdev_max_backlog": "1000\n"}), "true"},
		{"an old kernel", congestion.with(host{core + "dev_weight": "64\n"}), "true"},
		{"another namespace", congestion, "false"},
		{"another namespace, new kernel", congestion.with(host{core + "rmem_max": "1\n", core + "optmem_max": "1\n"}), "false"},
		{"the first by its number", host{"proc/thread-self/ns/net": "-> net:[4026531833]"}, "true"},
		{"another by its number says nothing on old kernels", host{"proc/thread-self/ns/net": "-> net:[4026531992]"}, "unknown"},
		{"no congestion control", host{"proc/sys/kernel/osrelease": "3.10.0\n"}, "unknown"},
	} {
		if got := show(detect(t, c.host.dir(t)).Virtualization.InitialNetns); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestContainers(t *testing.T) {
	f := detect(t, host{
		"run/docker.sock": "", "var/run": "-> run", "run/containerd/containerd.sock": "",
		"var/lib/kubelet/config.yaml": "", "run/lxc/": "",
	}.dir(t))
	if got := strings.Join(f.Containers, " "); got != "containerd docker kubelet lxc" {
		t.Errorf("containers seen: %s", got)
	}
}
