package sysctl

import (
	"slices"
	"sort"
	"strings"
)

// An Assignment is one line's wish for one key.
type Assignment struct {
	Key         Key
	Value       string // trimmed as the tool does it, otherwise as in the file: any bytes, see Printable
	File        string // as in "/etc/sysctl.d/99-x.conf", whatever root it was read from
	Line        int    // from 1
	IgnoreError bool   // "-key=value": the tool reports no failure; with systemd also if an equal line has it
	Glob        string // the pattern as a path, if the line names the key by a pattern
	Target      string // the file behind File, if File is a link: "/etc/sysctl.conf"
}

// A Config is what the sysctl files of one root say, in one order.
type Config struct {
	world *world
	entry []entry // the lines of all files that are read, in reading order
	rules []rule  // what the tool makes of them, in the order in which it writes
	paths map[string]bool
}

// An entry is a line and where it stands.
type entry struct {
	Line
	file   string
	target string
}

// A rule is what the tool does for one of the paths that it collected.
type rule struct {
	entry
	paths []string // the patterns of a pattern, braces expanded; nil for one key
}

// assemble turns the lines into the rules of the tool.
func assemble(w *world, entries []entry) *Config {
	c := &Config{world: w, entry: entries, paths: map[string]bool{}}
	switch w.order {
	case Procps:
		// A list, worked off from first to last.
		for _, e := range entries {
			c.rules = append(c.rules, rule{entry: e})
		}
	case Systemd:
		// One rule for each path. A new value takes the place of the old one
		// and moves to the end; the same value again stays where it was. So
		// "-key" takes back an earlier "key=value", and the other way round.
		at := map[string]int{}
		for _, e := range entries {
			if i, ok := at[e.Path]; ok {
				if old := &c.rules[i]; old.Exclude == e.Exclude && old.Value == e.Value {
					e.IgnoreError = e.IgnoreError || old.IgnoreError
					old.entry = e
					continue
				}
				c.rules[i].Path = "" // no rule
			}
			at[e.Path] = len(c.rules)
			c.rules = append(c.rules, rule{entry: e})
		}
	}
	kept := c.rules[:0]
	for _, r := range c.rules {
		if r.Path == "" {
			continue
		}
		c.paths[r.Path] = true
		if r.Pattern() {
			r.paths = []string{r.Path}
			if w.order == Systemd {
				r.paths, _ = expandBraces(r.Path)
			}
		}
		kept = append(kept, r)
	}
	c.rules = kept
	return c
}

// writes reports whether the tool writes k for this rule.
func (c *Config) writes(r rule, k Key) bool {
	if r.Exclude {
		return false
	}
	if !r.Pattern() {
		named, ok := resolve(r.Path)
		return ok && named == k && !c.dotDot(r.Path)
	}
	// A path that is written out, or excluded, is not set by a pattern. The
	// tools compare texts: one that is written another way, which only procps
	// keeps, does not count.
	for _, p := range r.paths {
		if strings.Contains(p, "..") {
			if c.world.order == Procps && slices.ContainsFunc(c.world.expand(p), func(f found) bool {
				return f.key == k && !c.paths[f.path]
			}) {
				return true
			}
		} else if text, ok := matchPath(p, k); ok && !c.paths[text] {
			return true
		}
	}
	return false
}

// dotDot reports whether the tool finds nothing behind this path because of the
// ".." in it: systemd refuses them, and the kernel wants the directory before it
// to exist.
func (c *Config) dotDot(p string) bool {
	elems := strings.Split(p, "/")
	for i, e := range elems {
		if e == ".." && (c.world.order == Systemd || !c.world.isDir("proc/sys/"+strings.Join(elems[:i], "/"))) {
			return true
		}
	}
	return false
}

// matchPath matches a pattern without ".." elements with a key, and returns the
// path as glob would print it: with the empty and "." elements of the pattern.
func matchPath(pattern string, k Key) (string, bool) {
	elems, ok := globElems(pattern)
	if !ok {
		return "", false
	}
	todo := strings.Split(string(k), "/")
	for i, e := range elems {
		if e == "" || e == "." {
			continue
		}
		if len(todo) == 0 || !matchElem(e, todo[0]) {
			return "", false
		}
		elems[i], todo = todo[0], todo[1:]
	}
	return strings.Join(elems, "/"), len(todo) == 0
}

// globElems splits a pattern into its elements, as glob(3) of the C library
// looks at them; false if it can match no setting. A backslash before a slash is
// dropped. Behind an element with magic, more than two slashes are two. A slash
// at the end asks for a directory, but is overlooked where the last element is
// plain text.
func globElems(pattern string) ([]string, bool) {
	trimmed := strings.TrimRight(pattern, "/")
	parts := strings.Split(trimmed, "/")
	var elems []string
	magic := false
	for i, e := range parts {
		if e == "" && magic && elems[len(elems)-1] == "" {
			continue
		}
		if i < len(parts)-1 || trimmed != pattern {
			if n := len(e) - len(strings.TrimRight(e, `\`)); n%2 == 1 {
				e = e[:len(e)-1]
			}
		}
		magic = magic || hasMagic(e)
		elems = append(elems, e)
	}
	last := elems[len(elems)-1]
	if last == "." || last == ".." || trimmed != pattern && strings.ContainsAny(last, `*?[\`) {
		return nil, false
	}
	return elems, true
}

func (e entry) assignment(k Key) Assignment {
	a := Assignment{Key: k, Value: e.Value, File: e.file, Line: e.Line.Number, IgnoreError: e.IgnoreError, Target: e.target}
	if e.Pattern() {
		a.Glob = e.Path
	}
	return a
}

// Lookup says what boot sets k to, and which line decides it; false if no line
// does. Where several lines of equal value would do the same, it is the last.
//
// The key need not exist on the host: a pattern is matched with the key itself.
// (At boot, patterns reach what exists then; a link that appears later gets its
// settings from udev, which runs systemd-sysctl for it.)
//
// Lookup is what boot tries. If the kernel refuses the value, what is in force
// afterwards is what InForce says: neither tool tries an alternative.
func (c *Config) Lookup(k Key) (Assignment, bool) {
	w := c.Writes(k)
	if len(w) == 0 {
		return Assignment{}, false
	}
	return w[len(w)-1], true
}

// Writes lists what boot really writes to k, in that order.
//
// systemd-sysctl gathers first and writes a key once, so it is one assignment at
// most, except where several patterns match: each of them is written. Procps
// writes every line in turn, so an earlier value is in force for a moment.
func (c *Config) Writes(k Key) []Assignment {
	var all []Assignment
	for _, r := range c.rules {
		if c.writes(r, k) {
			all = append(all, r.assignment(k))
		}
	}
	return all
}

// InForce says which assignment of k is in force after boot if the kernel takes
// only the values that accepts approves; false if it takes none, and then k keeps
// the value that it had before (the kernel's own, or that of a boot parameter).
//
// This is the last of Writes that is accepted. So with systemd a refused value
// means the kernel's default, not the value of the file that lost; with procps
// the last line before it that works. systemd-sysctl reports success all the
// same if the algorithm or qdisc does not exist (ENOENT).
func (c *Config) InForce(k Key, accepts func(value string) bool) (Assignment, bool) {
	w := c.Writes(k)
	for i := len(w) - 1; i >= 0; i-- {
		if accepts(w[i].Value) {
			return w[i], true
		}
	}
	return Assignment{}, false
}

// All lists every assignment of k in reading order: those that lose, repeat
// another, or are patterns overruled by a line that names k.
func (c *Config) All(k Key) []Assignment {
	var all []Assignment
	for _, e := range c.entry {
		if e.Exclude {
			continue
		}
		one := &Config{world: c.world}
		r := rule{entry: e}
		if e.Pattern() {
			r.paths = []string{e.Path}
			if c.world.order == Systemd {
				r.paths, _ = expandBraces(e.Path)
			}
		}
		if one.writes(r, k) {
			all = append(all, e.assignment(k))
		}
	}
	return all
}

// Keys lists the keys that boot sets, sorted: those that lines name, whether they
// exist or not, and those of the root's proc/sys that patterns match.
func (c *Config) Keys() []Key {
	set := map[Key]bool{}
	for _, r := range c.rules {
		if r.Exclude {
			continue
		}
		if k, ok := r.Key(); ok {
			set[k] = true
		}
		for _, p := range r.paths {
			for _, f := range c.world.expand(p) {
				set[f.key] = true
			}
		}
	}
	var keys []Key
	for k := range set {
		if _, ok := c.Lookup(k); ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// Problems lists what does not work, or not as it looks, in the files that are
// read, and the files that are not read although they look as if they were.
// In reading order.
func (c *Config) Problems() []Problem { return slices.Clone(c.world.problems) }

// Files lists the files that are read, in reading order. With procps, one can be
// there twice.
func (c *Config) Files() []string { return slices.Clone(c.world.reading) }

// Order is the order that c was read in.
func (c *Config) Order() Order { return c.world.order }

// Without is the same world without one file, named as in Assignment.File; so its
// Lookup names who would have won. A file of the same name in a directory of
// lower rank is then read in its place. Problems are not found again.
func (c *Config) Without(file string) *Config {
	w := *c.world
	w.without = append(slices.Clone(w.without), file)
	sort.Strings(w.without)
	return w.read()
}
