package tuning

import (
	"regexp"
	"slices"
	"strings"

	"accel/pkg/kernel"
	"accel/pkg/text"
)

// validName is what the kernel accepts as a name: TCP_CA_NAME_MAX is 16 with
// the terminating NUL, and every algorithm and qdisc kind in use keeps to these
// letters. A padded or upper-case name is ENOENT to the kernel.
var validName = regexp.MustCompile(`^[a-z0-9_]{1,15}$`)

// defaultQdiscs are the kinds that make sense as the qdisc of every link.
// Classful ones need classes, and netem and ingress are for other ends.
var defaultQdiscs = []string{"fq", "fq_codel", "fq_pie", "cake", "pfifo_fast", "sfq", "codel", "pie"}

// known are names that nobody mistypes for another: Linux's own algorithms
// and those of kernels and modules that people build themselves.
var known = []string{
	"bbr", "bbr1", "bbr2", "bbr3", "bbrplus", "bic", "brutal", "cdg", "cubic", "dctcp", "highspeed", "htcp", "hybla", "illinois",
	"irtt", "lp", "nanqinlang", "nv", "reno", "scalable", "tsunami", "vegas", "veno", "westwood", "yeah",
}

func isBBR(algorithm string) bool { return strings.HasPrefix(algorithm, "bbr") }

// wish checks a request without looking at the host. Errors are *Problem with
// ExitUsage.
func (r Request) wish() (Enabled, error) {
	e := Enabled{Algorithm: r.Algorithm, Profile: r.Profile, AskedFor: r.Qdisc, Links: slices.Clone(r.Links)}
	if e.Algorithm == "" {
		e.Algorithm = DefaultAlgorithm
	}
	if e.Profile == "" {
		e.Profile = DefaultProfile
	}
	if !validName.MatchString(e.Algorithm) {
		next := text.T("A name has up to 15 letters a to z, digits and underscores, for example: accel enable bbr")
		if near := text.Nearest(strings.Trim(strings.ToLower(e.Algorithm), " \t\r\n\"'`"), []string{"bbr", "bbrplus", "cubic", "reno"}); near != "" {
			next = text.T("Did you mean: accel enable %s", near)
		}
		return e, problem(ExitUsage, nil, text.T("%q is not a name of an algorithm", e.Algorithm), next)
	}
	if e.Algorithm == "brutal" {
		return e, problem(ExitUsage, nil, text.T("brutal cannot be the default algorithm: without a rate set by the program itself, every connection is held at 1 Mbit/s"),
			text.T("Let the programs that know brutal choose it for their own sockets, and enable bbr for the rest: accel enable bbr"))
	}
	if _, ok := profiles[e.Profile]; !ok {
		return e, problem(ExitUsage, nil, text.T("there is no profile %q", e.Profile), text.T("Choose one of: %s.", join(Profiles())))
	}
	if e.AskedFor != "" && !slices.Contains(defaultQdiscs, e.AskedFor) {
		return e, problem(ExitUsage, nil, text.T("%q cannot be the qdisc of every link", e.AskedFor), text.T("Choose one of: %s.", join(defaultQdiscs)))
	}
	slices.Sort(e.Links)
	e.Links = slices.Compact(e.Links)
	return e, nil
}

// possible tells why an algorithm cannot be had on this host, as a *Problem
// with ExitImpossible.
func possible(f *kernel.Facts, algorithm string) error {
	if f.DefaultAlgorithm == "" {
		return problem(ExitImpossible, nil, text.T("this kernel does not let the algorithm be chosen: net.ipv4.tcp_congestion_control does not exist here"), ownerOfKernel(f))
	}
	a := f.Algorithm(algorithm)
	if a.Available {
		return nil
	}
	if a.Blocked != "" {
		return problem(ExitImpossible, nil, text.T("%s cannot be loaded: %s", algorithm, a.Blocked), text.T("Remove that block and try again."))
	}
	if (a.Origin == kernel.Loadable || a.Origin == kernel.Loaded) && !foreignKernel(f) {
		return nil
	}
	names := obtainable(f)
	sentence := text.T("kernel %s has no algorithm %s; it has: %s", f.Release.Raw, algorithm, join(names))
	if near := text.Nearest(algorithm, names); near != "" && !slices.Contains(known, algorithm) {
		return problem(ExitImpossible, nil, sentence, text.T("Did you mean: accel enable %s", near))
	}
	if foreignKernel(f) {
		return problem(ExitImpossible, nil, sentence, ownerOfKernel(f))
	}
	return problem(ExitImpossible, nil, sentence, moreModules(f))
}

// obtainable lists the algorithms that can be had, sorted.
func obtainable(f *kernel.Facts) []string {
	var names []string
	for _, a := range f.Algorithms {
		if a.Name != "brutal" && (a.Available || a.Blocked == "" && a.Origin == kernel.Loadable && !foreignKernel(f)) {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nothingPossible: no other algorithm than the ones every kernel has can be
// had, so accel has nothing to give on this host.
func nothingPossible(f *kernel.Facts) bool {
	if f.DefaultAlgorithm == "" {
		return true
	}
	for _, n := range obtainable(f) {
		if n != "reno" && n != "cubic" {
			return false
		}
	}
	return true
}

// ownerOfKernel says who could help where the kernel is not ours.
func ownerOfKernel(f *kernel.Facts) string {
	switch c := f.Virtualization.Container; {
	case c == "openvz":
		return text.T("This is an OpenVZ container: its kernel belongs to the provider, and nothing inside can change it. Ask for a KVM server.")
	case c != "":
		return text.T("This is a container (%s): the owner of the host must load the module there first, for example: modprobe tcp_bbr", c)
	default:
		return text.T("The owner of the host must load the module there first, for example: modprobe tcp_bbr")
	}
}

// moreModules says where a missing module is usually found, by distribution.
func moreModules(f *kernel.Facts) string {
	switch f.Distribution.ID {
	case "ubuntu":
		return text.T("Install the package linux-modules-extra-%s if it exists, or a distribution kernel that ships it.", f.Release.Raw)
	case "rhel", "centos", "rocky", "almalinux", "fedora", "ol", "alinux":
		return text.T("Install the package %s if it exists, or a distribution kernel that ships it.", "kernel-modules-extra")
	case "debian":
		return text.T("Install a Debian kernel, which ships it: apt install %s", "linux-image-"+debianArch(f.Arch))
	case "openwrt":
		return text.T("Install the package %s if it exists, or a distribution kernel that ships it.", "kmod-tcp-bbr")
	default:
		return text.T("Install a kernel that ships it; the distribution's own kernel usually does.")
	}
}

// debianArch gives the Debian name of a machine name as uname prints it.
func debianArch(machine string) string {
	switch machine {
	case "aarch64":
		return "arm64"
	case "x86_64", "":
		return "amd64"
	default:
		return machine
	}
}

func qdiscNames(f *kernel.Facts) []string {
	var names []string
	for _, q := range f.Qdiscs {
		if slices.Contains(defaultQdiscs, q.Name) && q.Origin != kernel.Absent && q.Blocked == "" {
			names = append(names, q.Name)
		}
	}
	slices.Sort(names)
	return names
}

func join(names []string) string {
	if len(names) == 0 {
		return text.T("none")
	}
	return strings.Join(names, " ")
}
