// Package kernel finds the facts about a host that decide which TCP congestion
// control and which qdisc it can have: kernel release, distribution,
// virtualization, network namespace, modules, algorithms, links.
//
// It reads and never changes anything, with one exception that has its own name:
// LoadModule. What cannot be found out is reported as not known, never guessed;
// no fact about an algorithm is inferred from a kernel's name or version.
package kernel

// Distribution is what os-release says about the installed system. In a container
// it is the container's, not the host's.
type Distribution struct {
	ID        string `json:"id"`         // ID, such as "debian"
	VersionID string `json:"version_id"` // VERSION_ID, such as "12"; "" on rolling releases
	Name      string `json:"name"`       // PRETTY_NAME, or NAME
	Codename  string `json:"codename"`   // VERSION_CODENAME, such as "bookworm"
}

// Origin says where an algorithm or a qdisc kind comes from.
type Origin string

// The origins.
const (
	Builtin  Origin = "builtin"  // compiled into the running kernel
	Loaded   Origin = "loaded"   // a module that is loaded now
	Loadable Origin = "loadable" // a module file of the running kernel, not loaded
	Absent   Origin = "absent"   // none of these was found
)

// Algorithm is one congestion control algorithm, or one qdisc kind.
type Algorithm struct {
	Name      string `json:"name"`
	Origin    Origin `json:"origin"`
	Available bool   `json:"available"`         // usable now: listed by tcp_available_congestion_control; for a qdisc kind, built in or loaded
	Module    string `json:"module,omitempty"`  // module name, "tcp_bbr"; "" if it is no module
	File      string `json:"file,omitempty"`    // module file below lib/modules/RELEASE, "kernel/net/ipv4/tcp_bbr.ko.xz"; "" if not found
	Blocked   string `json:"blocked,omitempty"` // why a loadable module cannot be loaded on this host (modprobe.d, command line, signature); "" if nothing is in the way
	Note      string `json:"note,omitempty"`    // what is worth knowing although it can be loaded, such as a blacklist that keeps it from being loaded at boot
}

// ModuleLine is a loaded module as lsmod prints it.
type ModuleLine struct {
	Name   string   `json:"name"`
	Size   int64    `json:"size"` // bytes
	Used   int      `json:"used"` // references; 0 is normal for an algorithm in use, it moves with live sockets
	UsedBy []string `json:"used_by"`
	Raw    string   `json:"raw"` // the line in lsmod's form
}

// Virtualization says what the host runs on and in.
type Virtualization struct {
	// Machine is the kind of virtual machine: "kvm", "firecracker", "microsoft",
	// "vmware", "xen", "amazon", ...; "vm" for one of unknown make, "none" for
	// hardware, "" when not known. Names as systemd-detect-virt prints them.
	Machine string `json:"machine"`
	// Container is the kind of container: "docker", "lxc", "openvz", "wsl",
	// "systemd-nspawn", "kubernetes", ...; "container" for one of unknown make, ""
	// where nothing speaks for one.
	Container string `json:"container"`
	// InitialNetns says whether this is the network namespace the kernel booted
	// with; nil when not known.
	InitialNetns *bool `json:"initial_netns"`
}

// Capabilities of this process that accel needs, as far as they have effect here:
// a capability that counts only inside a user namespace is false where it would
// be needed outside.
type Capabilities struct {
	NetAdmin  bool `json:"net_admin"`  // may change this network namespace
	SysModule bool `json:"sys_module"` // may load modules
	SysAdmin  bool `json:"sys_admin"`
}

// Facts is everything that was found out about a host.
type Facts struct {
	Release        Release
	Distribution   Distribution
	Virtualization Virtualization

	Arch    string // machine, as uname -m prints it: "x86_64"; "" when not known
	PID1    string // command name of process 1: "systemd", "init", ...; "" when not known
	Systemd bool   // systemd is the service manager (/run/systemd/system exists)

	Algorithms       []Algorithm // sorted by name
	DefaultAlgorithm string      // tcp_congestion_control; "" if the key does not exist
	Allowed          []string    // tcp_allowed_congestion_control

	Qdiscs       []Algorithm // qdisc kinds, sorted by name
	DefaultQdisc *string     // net.core.default_qdisc; nil if the key does not exist here

	Modules          []ModuleLine // loaded tcp_* and sch_* modules
	ModulesSupported bool         // the kernel can have modules (/proc/modules exists)
	// ModuleIndex says that everything the running kernel has, built in or as a
	// module, could be listed: then a qdisc kind that is Absent does not exist.
	// Otherwise only the kernel itself could tell, when asked for it.
	ModuleIndex      bool
	ModulesDisabled  bool  // kernel.modules_disabled is 1: nothing can be loaded until the next boot
	SignaturesForced *bool // only signed modules are accepted (module.sig_enforce, or lockdown); nil when not known

	BBRVersion     int    // version of the algorithm named bbr; 0 when not known from files
	BBRVersionFrom string // the file that says so

	MemoryBytes uint64 // MemTotal; 0 when not known
	CPUs        int    // processors online; 0 when not known
	Links       []Link

	Capabilities     *Capabilities // nil when not known
	UID              int           // -1 when not known
	SecureBoot       *bool         // nil when not known; false on a host without UEFI
	Lockdown         string        // "none", "integrity", "confidentiality"; "" when not known
	ReadOnlyProcSys  bool          // /proc/sys/net is mounted read-only here
	ProcSysSandboxed bool          // ... but not for process 1: this process is sandboxed (ProtectKernelTunables=yes)

	OtherNetns int      // other network namespaces that hold a process or have a name; -1 when not known
	Containers []string // container managers seen: "docker", "containerd", "kubelet", ...
}

// Algorithm returns what is known about an algorithm; one that was not found is
// Absent.
func (f *Facts) Algorithm(name string) Algorithm { return find(f.Algorithms, name) }

// Qdisc returns what is known about a qdisc kind; one that was not found is
// Absent.
func (f *Facts) Qdisc(kind string) Algorithm { return find(f.Qdiscs, kind) }

func find(list []Algorithm, name string) Algorithm {
	for _, a := range list {
		if a.Name == name {
			return a
		}
	}
	return Algorithm{Name: name, Origin: Absent}
}
