package sysctld

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// File is a file, or a symbolic link, of a host.
type File struct {
	Path    string
	Content string
	Link    string // a symbolic link to this, if not empty
}

// Choice is what a generated host may set.
type Choice struct {
	Algorithms []string // that its kernel takes
	Qdiscs     []string // that its kernel takes
	Refused    []string // algorithms and qdiscs that it refuses, or that nobody meant
	// Numbers are other keys, each with the values that somebody may write.
	Numbers map[string][]string
}

// Base is what a host of the release has before anybody touches its settings.
func Base(release string) []File {
	defaults := File{Path: "/usr/lib/sysctl.d/50-default.conf", Content: "# Defaults of the distribution\nkernel.sysrq = 0x01b6\nnet.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\nnet.core.default_qdisc = fq_codel\n"}
	if release == "bookworm" {
		return []File{
			{Path: "/etc/sysctl.conf", Content: "#\n# /etc/sysctl.conf - Configuration file for setting system variables\n#\n\n#kernel.domainname = example.com\n#net.ipv4.tcp_syncookies=1\n"},
			{Path: "/etc/sysctl.d/99-sysctl.conf", Link: "../sysctl.conf"},
			{Path: "/usr/lib/sysctl.d/99-protect-links.conf", Content: "fs.protected_symlinks = 1\n"},
		}
	}
	return []File{defaults}
}

// Touched is what the scripts and hands of years make of such a host: the same
// number is always the same. What it returns takes the place of what was there.
func Touched(release string, number int, of Choice) []File {
	w := &hands{Rand: rand.New(rand.NewPCG(20261130, uint64(number))), Choice: of}
	var files []File
	add := func(name, content string) { files = append(files, File{Path: name, Content: content}) }
	chance := func(percent int) bool { return w.IntN(100) < percent }

	if chance(50) {
		base := ""
		for _, f := range Base(release) {
			if f.Path == "/etc/sysctl.conf" {
				base = f.Content
			}
		}
		add("/etc/sysctl.conf", base+w.lines("\n"))
	}
	switch {
	case release == "bookworm" && chance(20):
		// sed -i on the link.
		add("/etc/sysctl.d/99-sysctl.conf", w.lines("\n"))
	case release != "bookworm" && chance(20):
		// A guide of before says so.
		files = append(files, File{Path: "/etc/sysctl.d/99-sysctl.conf", Link: "../sysctl.conf"})
	}
	for _, name := range []string{
		"/etc/sysctl.d/99-bbr-x-ui.conf", "/etc/sysctl.d/99-joeyblog.conf", "/etc/sysctl.d/99-net-optimize.conf",
		"/etc/sysctl.d/zzz-net-optimize-override.conf", "/etc/sysctl.d/bbr.conf", "/etc/sysctl.d/10-custom.conf", "/etc/sysctl.d/local.conf",
		"/usr/local/lib/sysctl.d/60-panel.conf", "/usr/lib/sysctl.d/60-vendor.conf",
	} {
		if !chance(22) {
			continue
		}
		end := "\n"
		if chance(8) {
			end = "\r\n"
		}
		content := w.lines(end)
		if chance(8) {
			content = "\ufeff" + content
		}
		add(name, content)
		if strings.HasPrefix(name, "/usr/") && chance(30) {
			hides := "/etc/sysctl.d/" + name[strings.LastIndexByte(name, '/')+1:]
			if chance(50) {
				files = append(files, File{Path: hides, Link: "/dev/null"})
			} else {
				add(hides, w.lines("\n"))
			}
		}
	}
	return files
}

// hands write lines.
type hands struct {
	*rand.Rand
	Choice
}

func (w *hands) lines(end string) string {
	var b strings.Builder
	for range 1 + w.IntN(4) {
		b.WriteString(w.line() + end)
	}
	return b.String()
}

func (w *hands) line() string {
	key, values := "net.ipv4.tcp_congestion_control", w.Algorithms
	if w.IntN(2) == 0 {
		key, values = "net.core.default_qdisc", w.Qdiscs
	}
	if len(w.Numbers) > 0 && w.IntN(2) == 0 {
		keys := slices.Sorted(maps.Keys(w.Numbers))
		key = keys[w.IntN(len(keys))]
		values = w.Numbers[key]
	}
	value := values[w.IntN(len(values))]
	switch r := w.IntN(100); {
	case r < 6:
		return "# " + key + " = " + value
	case r < 10:
		return key + " " + value
	case r < 14:
		return "-" + key
	case r < 18:
		return "-" + key + " = " + value
	case r < 22:
		key = strings.ReplaceAll(key, ".", "/")
	case r < 27:
		key = key[:len(key)-1] + "*"
	case r < 30:
		key = strings.Replace(key, "net.", "*.", 1)
	case r < 40 && len(w.Refused) > 0 && w.Numbers[key] == nil:
		value = w.Refused[w.IntN(len(w.Refused))]
	}
	return fmt.Sprintf("%s%s%s", key, []string{"=", " = ", "\t=\t", "= "}[w.IntN(4)], value)
}
