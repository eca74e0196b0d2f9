package kernel

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Release is a kernel release string (uname -r) taken apart.
type Release struct {
	Raw                 string // as the kernel gives it, surrounding white space removed
	Major, Minor, Patch int    // 0 where missing; a number too large is math.MaxInt32
	PatchPresent        bool   // whether the string has a third number
	// Flavour is which build of its family it is, as the builder wrote it
	// ("cloud-amd64", "generic", "el9", "x64v3-xanmod"), "" if the string names none.
	Flavour string
	// Family is who built it ("debian", "ubuntu", "rhel", "xanmod", ...): "custom"
	// when there is text of an unknown builder, "vanilla" when there is none, which
	// is also how several vendors' kernels look. It is for people to read. Nothing
	// about algorithms follows from it.
	Family string
}

// AtLeast reports whether the kernel is major.minor or later.
func (r Release) AtLeast(major, minor int) bool {
	return r.Major > major || r.Major == major && r.Minor >= minor
}

// String returns the release as the kernel gives it.
func (r Release) String() string { return r.Raw }

var (
	versionNumbers = regexp.MustCompile(`^(\d+)(?:\.(\d+))?(?:\.(\d+))?((?:\.\d+)*)`)
	leadingBuild   = regexp.MustCompile(`^[\d.]+\.`)
	// What git describe and scripts/setlocalversion append.
	describeSuffix = regexp.MustCompile(`(-\d{5})?(-g[0-9a-f]{7,40})?(-ab\d+)?(-dirty)?\+?$`)
)

// ParseRelease takes a kernel release string apart. It never fails: what is not
// understood is only in Raw.
func ParseRelease(raw string) Release {
	r := Release{Raw: strings.TrimSpace(raw), Family: "vanilla"}
	rest := r.Raw
	if m := versionNumbers.FindStringSubmatch(rest); m != nil {
		r.Major, r.Minor, r.Patch = number(m[1]), number(m[2]), number(m[3])
		r.PatchPresent = m[3] != ""
		rest = rest[len(m[0]):] // a fourth number (WSL2, old RHEL) is no patch level
	}
	if strings.Trim(rest, "+-.~_") == "" {
		return r
	}
	for _, f := range families() {
		if m := f.pattern.FindStringSubmatchIndex(rest); m != nil {
			r.Family = string(f.pattern.ExpandString(nil, f.family, rest, m))
			r.Flavour = string(f.pattern.ExpandString(nil, f.flavour, rest, m))
			return r
		}
	}
	r.Family = "custom"
	r.Flavour = customFlavour(rest)
	if strings.HasPrefix(r.Flavour, "rt") && len(r.Flavour) > 2 && isDigits(r.Flavour[2:]) {
		r.Family = "custom-rt"
	}
	return r
}

// number reads digits; "" is 0. ABI numbers exceed 16 bits (Pop!_OS), a hostile
// string exceeds everything.
func number(s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return math.MaxInt32
	}
	return int(n)
}

// customFlavour picks the name out of an unknown builder's text: the last run of
// words, without build numbers and what git describe appended.
func customFlavour(rest string) string {
	rest = rest[:len(rest)-len(describeSuffix.FindString(rest))]
	words := strings.FieldsFunc(rest, func(c rune) bool { return c == '-' })
	end := len(words)
	for end > 0 && isBuildNumber(words[end-1]) {
		end--
	}
	begin := end
	for begin > 0 && !isBuildNumber(words[begin-1]) {
		begin--
	}
	// "743.native" is a build number and a name.
	return strings.Trim(leadingBuild.ReplaceAllString(strings.Join(words[begin:end], "-"), ""), "+.~_")
}

func isBuildNumber(word string) bool {
	return strings.Trim(word, "0123456789.+~_") == ""
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// familyRule recognizes one family by the text after the version numbers. Family
// and flavour may name groups of the pattern, as regexp.Expand understands them.
type familyRule struct {
	family, flavour string
	pattern         *regexp.Regexp
}

func rule(family, flavour, pattern string) familyRule {
	return familyRule{family, flavour, regexp.MustCompile(pattern)}
}

const (
	// Architectures by which Debian calls its flavours.
	debArch = `(?:amd64|arm64|i386|686|686-pae|armmp|armmp-lpae|rpi|marvell|riscv64|ppc64el|powerpc64le|s390x|loong64|loongarch64|mips64el|[45]kc-malta|loongson-3|octeon)`
	// What Ubuntu calls its flavours.
	ubuntuFlavour = `(?:generic|lowlatency|realtime|virtual|server|aws|azure|gcp|gke|gkeop|oracle|kvm|ibm|raspi2?|oem|nvidia|intel|snapdragon|euclid|dell|bluefield|xilinx|starfive|allwinner|iot|fips|laptop|qcom|tegra)`
)

// families in the order in which they are tried. Who rebuilt a kernel comes before
// whose kernel it was: bbrplus on EL 7 is bbrplus, and Proxmox is not Debian. Each
// rule is there for strings of real hosts (testdata/uname.tsv and release_test.go).
// They are compiled when first needed, which takes 1.5 ms.
var families = sync.OnceValue(func() []familyRule {
	return []familyRule{
		// Not under the host owner's control.
		rule("wsl1", "$1", `-(Microsoft)$`),
		rule("wsl2", "$1", `[-.](microsoft-.*?)\+?$`),
		rule("openvz6", "$1", `-(\d{3}(?:ab|stab)[\d.]+)`),
		rule("openvz$2", "$1", `\.((?:o?vz)(\d+))(?:\.|$)`),
		rule("linode", "linode", `-linode\d*$`),
		rule("ovh", "$1", `-((?:x{3,4}|mod)-(?:std|grs)-.*)$`),
		rule("firecracker", "$1", `^-(fc-v\d+.*)$`),

		// Rebuilds with other people's patches.
		rule("bbrplus", "bbrplus$1", `\bbbrplus\b(?:.*?(\.el\d+))?`),
		rule("bbrv3", "$1", `-((?:[A-Za-z]+-)?bbrv3\b.*?)\+?$`),
		rule("bbrv3", "$1", `-(joeyblog\b.*?)\+?$`),
		// The psABI level stands before xanmod1; where a packager appended another
		// one, the first is what was built. Builds of 2022 have it behind.
		rule("xanmod", "${1}xanmod", `-(x64v\d?-)(?:rt\d+-)?xanmod\d*`),
		rule("xanmod", "$1-xanmod", `-xanmod\d+-(x64v\d)$`),
		rule("xanmod", "xanmod", `-xanmod\d*`),
		rule("liquorix", "$1", `-(liquorix-.*)$`),
		rule("zen", "zen", `[-.]zen\d*(?:-|$)`),
		rule("cachyos", "cachyos$1", `-cachyos\d*(-[a-z-]*[a-z])?`),
		rule("tkg", "$1", `-(tkg(?:-[a-z]+)*)`),
		rule("proxmox", "pve", `-pve$`),
		rule("elrepo", "el$1.elrepo", `\.el(\d+)(?:_\d+)?\.elrepo`),

		// RPM: "8_2" is a minor release, behind the number come variants.
		rule("uek", "el$1$2", `\.el(\d+)(?:_\d+)?(uek[a-zA-Z0-9]*)`),
		rule("cloudlinux", "el$1", `\.lve[\d.]*\.el(\d+)`),
		rule("rhel-rt", "el${1}rt", `\.el(\d+)(?:_\d+)?rt`),
		rule("rhel-rt", "el$1", `\.rt\d+\..*\.el(\d+)`),
		rule("oracle-rhck", "el$1", `-\d+(?:\.\d+)+\.0\.\d+\.el(\d+)(?:_\d+)?(?:\.|$)`),
		rule("rhel", "el$1.debug", `\.el(\d+)(?:_\d+)?\.(?:x86_64|aarch64|ppc64le|s390x|i686)[.+]debug$`),
		rule("rhel", "el$1$2", `\.el(\d+)(?:_\d+)?([A-Za-z]+\d*|)(?:\.|$)`),
		rule("fedora", "fc$1", `\.fc(\d+)(?:\.|$)`),
		rule("amazon", "amzn$1", `\.amzn(\d+)(?:\.|$)`),
		rule("alinux", "al$1", `\.al(\d+)(?:\.|$)`),
		rule("anolis", "an$1", `\.an(\d+)(?:[._]|$)`),
		rule("openeuler", "oe$1", `\.oe(\d+(?:sp\d+)?)(?:\.|$)`),
		rule("azurelinux", "$1", `\.((?:azl|cm)\d+)(?:\.|$)`),
		rule("photon", "$1", `\.(ph\d+)(?:[.-]|$)`),
		rule("mageia", "$1", `(?:^-|-)([a-z]+)-[\d.]+\.mga\d+`),
		rule("tencentos", "$1", `[-.](t(?:linux|l)\d+)(?:[-.]|$)`),
		rule("tencentos", "", `^-\d+[-.]00\d\d(?:[.-]|$)`),
		rule("rosa", "$1", `-([a-z]+)-\d+rosa`),
		rule("alt", "$1", `-((?:std|un|rt)-def)-alt`),

		// Boards and appliances.
		rule("nvidia-l4t", "l4t", `-l4t\b`),
		rule("nvidia-l4t", "tegra", `-tegra$`),
		rule("yocto", "$1", `-(yocto-.*?)\+?$`),
		rule("android-gki", "$1", `-(android\d+)\b`),
		rule("raspbian", "rpi", `-trunk-rpi$`),
		rule("raspberrypi", "$1", `^[-+](?:rpt-|rpi\d+-|0\+?rpt-|\d+\+rpt-)?(rpi-(?:v\d\w*|2712))$`),
		rule("raspberrypi", "$1", `^-(v\dl?(?:-\d+k)?\+)$`),
		rule("armbian", "$1", `^-((?:(?:current|edge|legacy|vendor|next|dev|default)-)(?:\w+-)?(?:sunxi|meson|rockchip|rk3|mvebu|odroid|imx|bcm27|x86|arm64|k3|uefi|qcom|jh71|riscv|station|spacemit|media)\w*)$`),
		rule("armbian", "$1", `^-(sun\d+i|sunxi(?:64)?|rockchip(?:64)?|meson(?:64)?|rk3\w+|odroid\w+|mvebu(?:64)?)$`),
		rule("$1", "$1", `-(linuxkit|flatcar|talos|cip|boot2docker)\b`),
		rule("flatcar", "coreos", `^-coreos(?:-r\d+)?$`),
		rule("vyos", "$1", `-(`+debArch+`-vyos)$`),

		// Debian and what is made from it.
		rule("debian-grsec", "$1", `grsec.*-(`+debArch+`)$`),
		rule("$1", "$2", `(parrot|kali)\d*-((?:cloud-|rt-)?`+debArch+`)$`),
		rule("deepin", "$1", `-(`+debArch+`-desktop(?:-[a-z-]+)?)$`),
		rule("ubuntu-mainline", "$1", `^-0\d{5}(?:rc\d+)?(?:daily\d+)?-(`+ubuntuFlavour+`(?:-\d+k)?)$`),
		rule("popos", "$1", `^-76\d{6}-(generic)$`),
		rule("ubuntu", "$1", `^-rt\d+-(raspi\d?)$`),
		rule("sles", "$1", `^-(?:lp)?\d+\.[\d.]+-(default|preempt|azure|rt|kvmsmall|pae|xen|64kb|debug|vanilla|desktop|longterm)$`),
		rule("sles", "$1", `^-(?:\d+-|rc\d+-\d+\.g[0-9a-f]+-|\d+\.g[0-9a-f]+-)(default|kvmsmall|longterm|vanilla)$`),
		rule("ubuntu", "$1", `^-\d+(?:\.\d+)*-(`+ubuntuFlavour+`(?:-[a-z][a-z-]*|-\d+k)*)(?:-\d[\d.]*)?$`),
		rule("debian", "$1", `^(?:-rc\d+)?(?:[-+].*?)?-((?:cloud-|rt-|[a-z]+-)?`+debArch+`(?:-unsigned)?)$`),

		// The rest, whose marks are short.
		rule("arch-ec2", "ec2", `^-\d+-ec2$`),
		rule("arch", "arch", `[-.]arch\d`),
		rule("arch", "arch", `-ARCH$`),
		rule("arch", "$1", `-(hardened)\d+-\d+-hardened$`),
		rule("manjaro", "MANJARO", `-MANJARO$`),
		rule("alpine", "$1", `^-\d+-(virt|edge|stable|rpi\d?|vanilla)$`),
		rule("alpine", "$1", `^-0-(lts|hardened)$`),
		rule("arch", "$1", `^-[1-9]\d*-(lts)$`),
		rule("gentoo", "$1", `-(gentoo(?:-[a-z]{2,}\w*)?)(?:-r\d+)?$`),
		rule("vanilla-rc", "$1", `^-(rc\d+\+?)$`),
	}
})
