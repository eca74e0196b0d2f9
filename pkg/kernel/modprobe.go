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
	command string // "install", "blacklist", "alias", "softdep"
	name    string // module name or pattern, "-" written as "_"
	rest    string // what install runs, what alias stands for
	where   string // "/etc/modprobe.d/x.conf:3"
	first   int    // line
	last    int    // line; the same unless lines were joined
}

// String names the rule and where it stands.
func (r modprobeRule) String() string {
	return r.where + ": " + strings.Join(strings.Fields(r.command+" "+r.name+" "+r.rest), " ")
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

// parseModprobe reads one file of modprobe.d as libkmod does: lines joined by a
// backslash at their end, "#" in the first column for comments, words parted by
// blanks and tabs only, so that a carriage return belongs to the last word. Other
// commands are left out.
func parseModprobe(file string, data []byte) []modprobeRule {
	var rules []modprobeRule
	joined, first := "", 0
	number := 0
	for raw := range bytes.Lines(data) {
		number++
		line := strings.TrimSuffix(string(raw), "\n")
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
		r := modprobeRule{where: fmt.Sprintf("%s:%d", file, first), first: first, last: number}
		r.command, line = cutWord(line)
		r.name, r.rest = cutWord(line)
		r.name = normalize(r.name)
		switch r.command {
		case "blacklist":
			if r.name != "" {
				rules = append(rules, r)
			}
		case "alias", "softdep":
			r.rest, _ = cutWord(r.rest)
			if r.rest != "" {
				rules = append(rules, r)
			}
		case "install":
			if r.name != "" && r.rest != "" { // even of blanks only
				rules = append(rules, r)
			}
		}
	}
	return rules
}

// cutWord returns the first word of a line, and what follows the one blank or tab
// behind it.
func cutWord(s string) (word, rest string) {
	s = strings.TrimLeft(s, " \t")
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// verdict says what the configuration does to "modprobe MODULE".
//
// A blacklist does not block that, neither by hand nor when the kernel itself asks
// for tcp_bbr because somebody wrote bbr into the sysctl: it applies where a module
// is asked for by an alias, and to systemd-modules-load. (kmod's modprobe sets
// KMOD_PROBE_APPLY_BLACKLIST_ALIAS_ONLY; tried with kmod 30 and Debian's kernels.)
// For a qdisc, kernels up to 6.1 ask for sch_fq, those of 6.12 and later for the
// alias net-sch-fq: there a blacklist does make writing fq into the sysctl fail.
func (c modprobeConfig) verdict(module string, deps []string) (blocked, note string) {
	// An alias for the name is looked up before the name itself: "alias tcp_bbr
	// off" was the way of old to forbid a module.
	var alias *modprobeRule
	toItself := false
	for i, r := range c.rules {
		if r.command == "alias" && matchModule(r.name, module) && !toItself {
			alias = &c.rules[i]
			toItself = normalize(r.rest) == module
		}
	}
	if alias != nil && !toItself {
		return alias.String(), ""
	}
	for _, name := range append([]string{module}, deps...) {
		if slices.Contains(c.refused, name) {
			return "kernel command line: module_blacklist=" + name, ""
		}
		// Only the first install counts, and none where a softdep names the
		// module (modprobe.d(5)).
		match := func(command string) func(modprobeRule) bool {
			return func(r modprobeRule) bool { return r.command == command && matchModule(r.name, name) }
		}
		i := slices.IndexFunc(c.rules, match("install"))
		if i >= 0 && loadsNothing(c.rules[i].rest) && !slices.ContainsFunc(c.rules, match("softdep")) {
			return c.rules[i].String(), ""
		}
	}
	for _, r := range c.rules {
		if r.command != "blacklist" || r.name != module {
			continue
		}
		if alias != nil {
			return r.String(), ""
		}
		if strings.HasPrefix(module, "sch_") {
			return "", r.String() + " (systemd-modules-load leaves it out at boot, and newer kernels do not load it by themselves; it can be loaded by name)"
		}
		return "", r.String() + " (systemd-modules-load leaves it out at boot; it can be loaded by name)"
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
	if strings.ContainsAny(command, "|&`$(") {
		return false
	}
	for part := range strings.SplitSeq(command, ";") { // "true; exit 0"
		words := strings.Fields(part)
		if len(words) > 1 && words[0] == "exec" {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case ":", "exit", "echo", "/dev/null": // the last is no program and fails
			continue
		}
		switch path.Base(words[0]) {
		case "false", "true", "nologin":
			continue
		}
		return false
	}
	return true
}
