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
			if _, masked := from[e.Name()]; !masked && strings.HasSuffix(e.Name(), ".conf") {
				from[e.Name()] = dir
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
					command: "blacklist", name: moduleName(name), where: "kernel command line",
				})
			}
		case "module_blacklist":
			for name := range strings.SplitSeq(value, ",") {
				c.refused = append(c.refused, moduleName(name))
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
			name:    strings.ReplaceAll(words[1], "-", "_"),
			rest:    strings.Join(words[2:], " "),
			where:   fmt.Sprintf("%s:%d", file, first),
		}
		switch {
		case r.command == "blacklist",
			(r.command == "install" || r.command == "alias") && r.rest != "":
			rules = append(rules, r)
		}
	}
	return rules
}

// verdict says what the configuration does to loading a module by its name.
//
// A blacklist does not block that, neither by hand nor when the kernel itself asks
// for "tcp_bbr" because somebody wrote bbr into the sysctl; it only applies to
// aliases and to systemd-modules-load.
func (c modprobeConfig) verdict(module string, deps []string) (blocked, note string) {
	for _, name := range append([]string{module}, deps...) {
		if slices.Contains(c.refused, name) {
			return "module_blacklist= on the kernel command line names " + name, ""
		}
		for _, r := range c.rules {
			if r.command != "install" || !matchModule(r.name, name) {
				continue
			}
			if loadsNothing(r.rest) {
				return fmt.Sprintf("%s: install %s %s", r.where, r.name, r.rest), ""
			}
			break // only the first counts
		}
	}
	for _, r := range c.rules {
		if r.command == "blacklist" && r.name == module {
			note = fmt.Sprintf("%s: blacklist %s", r.where, r.name)
		}
	}
	return "", note
}

// matchModule matches a module name against a modprobe.d pattern.
func matchModule(pattern, name string) bool {
	if pattern == name {
		return true
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// loadsNothing recognizes the install commands that people write to forbid a
// module. Of any other command nothing is known, so it is no obstacle.
func loadsNothing(command string) bool {
	command, _, _ = strings.Cut(command, "#")
	words := strings.Fields(strings.TrimRight(strings.TrimSpace(command), ";"))
	if len(words) == 0 {
		return false
	}
	if words[0] == "exec" && len(words) > 1 {
		words = words[1:]
	}
	switch path.Base(words[0]) {
	case "false", "true", ":", "nologin":
		return !strings.ContainsAny(command, "|&")
	case "exit":
		return true
	case "null": // /dev/null is no program, so the command fails
		return strings.HasPrefix(words[0], "/dev/")
	}
	return false
}
