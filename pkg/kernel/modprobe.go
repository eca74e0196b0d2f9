package kernel

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
)

// modprobeDirs hold modprobe's configuration, the first directory wins where two
// hold a file of one name (modprobe.d(5)).
var modprobeDirs = []string{"/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"}

// modprobeRule is one line of modprobe's configuration.
type modprobeRule struct {
	command string // "install", "blacklist", "alias"
	name    string // module name or pattern, "-" written as "_"
	rest    string // what install runs, what alias stands for
	where   string // "/etc/modprobe.d/x.conf:3"
	first   int    // line
	last    int    // line; the same unless lines were joined
}

// String names the rule and where it stands.
func (r modprobeRule) String() string {
	return strings.TrimRight(r.where+": "+r.command+" "+r.name+" "+r.rest, " ")
}

// modprobeConfig is what modprobe and the kernel were told about modules, in
// modprobe's reading order.
type modprobeConfig struct {
	rules []modprobeRule
	// module_blacklist= of the kernel command line, which the kernel itself obeys.
	refused []string
}

// readModprobeConfig reads the configuration that applies to the host.
func readModprobeConfig(t *Tree) modprobeConfig {
	var c modprobeConfig
	from := map[string]string{} // base name -> directory
	for _, dir := range modprobeDirs {
		entries, err := t.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			name := e.Name()
			if strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".conf") || t.isDir(path.Join(dir, name)) {
				continue
			}
			if _, masked := from[name]; !masked {
				from[name] = dir
			}
		}
	}
	names := make([]string, 0, len(from))
	for name := range from {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		file := path.Join(from[name], name)
		if data, err := t.readLimited(file, 1<<20); err == nil {
			c.rules = append(c.rules, parseModprobe(file, data)...)
		}
	}
	// modprobe reads its command line options after the files.
	for _, word := range strings.Fields(t.text("/proc/cmdline")) {
		key, value, _ := strings.Cut(word, "=")
		switch strings.ReplaceAll(key, "-", "_") {
		case "modprobe.blacklist":
			for name := range strings.SplitSeq(value, ",") {
				c.rules = append(c.rules, modprobeRule{
					command: "blacklist", name: normalize(name), where: "kernel command line",
				})
			}
		case "module_blacklist":
			for name := range strings.SplitSeq(value, ",") {
				c.refused = append(c.refused, normalize(name))
			}
		}
	}
	return c
}

// parseModprobe reads one file of modprobe.d: lines joined by a backslash at their
// end, "#" in the first column of words for comments, other commands left out.
func parseModprobe(file string, data []byte) []modprobeRule {
	var rules []modprobeRule
	joined, first := "", 0
	number := 0
	for raw := range bytes.Lines(data) {
		number++
		line := strings.TrimRight(string(raw), "\r\n")
		if joined == "" {
			first = number
		}
		if before, more := strings.CutSuffix(line, `\`); more {
			joined += before
			continue
		}
		line = joined + line
		joined = ""
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		r := modprobeRule{
			command: words[0],
			name:    normalize(words[1]),
			rest:    strings.Join(words[2:], " "),
			where:   fmt.Sprintf("%s:%d", file, first),
			first:   first,
			last:    number,
		}
		switch {
		case r.command == "blacklist",
			(r.command == "install" || r.command == "alias") && r.rest != "":
			rules = append(rules, r)
		}
	}
	return rules
}

// verdict says what the configuration does to "modprobe MODULE".
//
// A blacklist does not block that, neither by hand nor when the kernel itself asks
// for tcp_bbr because somebody wrote bbr into the sysctl: it applies where a module
// is asked for by an alias, and to systemd-modules-load. (kmod's modprobe sets
// KMOD_PROBE_APPLY_BLACKLIST_ALIAS_ONLY; tried with kmod 30 and Debian's kernels.)
func (c modprobeConfig) verdict(module string, deps []string) (blocked, note string) {
	// An alias for the name is looked up before the name itself: "alias tcp_bbr
	// off" was the way of old to forbid a module.
	var elsewhere *modprobeRule
	for i, r := range c.rules {
		if r.command != "alias" || !matchModule(r.name, module) {
			continue
		}
		if normalize(r.rest) == module {
			elsewhere = nil
			break
		}
		elsewhere = &c.rules[i]
	}
	if elsewhere != nil {
		return elsewhere.String(), ""
	}
	for _, name := range append([]string{module}, deps...) {
		if slices.Contains(c.refused, name) {
			return "kernel command line: module_blacklist=" + name, ""
		}
		for _, r := range c.rules {
			if r.command != "install" || !matchModule(r.name, name) {
				continue
			}
			if loadsNothing(r.rest) {
				return r.String(), ""
			}
			break // only the first counts
		}
	}
	for _, r := range c.rules {
		if r.command == "blacklist" && r.name == module {
			return "", r.String() + " (systemd-modules-load leaves it out at boot; it can be loaded by name)"
		}
	}
	return "", ""
}

// matchModule matches a module name against a modprobe.d pattern, which is
// fnmatch(3)'s: path.Match is the same but for the negation of a class.
func matchModule(pattern, name string) bool {
	if pattern == name {
		return true
	}
	ok, err := path.Match(strings.ReplaceAll(pattern, "[!", "[^"), name)
	return err == nil && ok
}

// normalize writes "-" as "_" in a module name or pattern, outside of brackets.
func normalize(s string) string {
	inside := false
	return strings.Map(func(r rune) rune {
		switch r {
		case '[':
			inside = true
		case ']':
			inside = false
		case '-':
			if !inside {
				return '_'
			}
		}
		return r
	}, s)
}

// loadsNothing recognizes the install commands that people write to forbid a
// module. Of any other command nothing is known, so it is no obstacle.
func loadsNothing(command string) bool {
	command, _, _ = strings.Cut(command, "#")
	if strings.ContainsAny(command, "|&`$(") || strings.Contains(command, "modprobe") {
		return false
	}
	// "true; exit 0" does no more than "true".
	for part := range strings.SplitSeq(command, ";") {
		words := strings.Fields(part)
		if len(words) > 1 && words[0] == "exec" {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		switch {
		case words[0] == "exit", words[0] == ":", words[0] == "/dev/null", words[0] == "echo":
		case path.Base(words[0]) == "false", path.Base(words[0]) == "true", path.Base(words[0]) == "nologin":
		default:
			return false
		}
	}
	return strings.Trim(command, "; \t") != ""
}
