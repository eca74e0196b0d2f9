package sysctl

import (
	"maps"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
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

// A Config is what the sysctl files of one root say, in one order. It is not for
// use by several goroutines at once.
type Config struct {
	world *world
	entry []entry // the lines of all files that are read, in reading order
	rules []rule  // what the tool makes of them, in the order in which it writes

	paths    map[string]bool // the paths of all rules, as texts
	named    map[Key][]int   // the rules that name a key, by their place in rules
	patterns []int           // the others that set something
	excluded map[Key]entry   // the lines that only except a key
	crash    *entry          // the line at which systemd-sysctl crashes
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
	c := &Config{world: w, entry: entries, paths: map[string]bool{}, named: map[Key][]int{}, excluded: map[Key]entry{}}
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
	for _, r := range c.rules {
		c.paths[r.Path] = r.Path != ""
	}
	kept := c.rules[:0]
	for _, r := range c.rules {
		if r.Path == "" {
			continue
		}
		if r.Exclude {
			if k, ok := w.names(r.Path); ok {
				c.excluded[k] = r.entry
			}
			continue // its path is all that matters to the others
		}
		if r.Pattern() {
			r.paths = w.alternatives(r.Path)
			if w.crashes(r) {
				c.crash = &r.entry
				break // no setting after this one is made
			}
			c.patterns = append(c.patterns, len(kept))
		} else if k, ok := w.names(r.Path); ok {
			c.named[k] = append(c.named[k], len(kept))
		}
		kept = append(kept, r)
	}
	c.rules = kept
	return c
}

// alternatives gives the patterns that the tool looks up for a pattern; none if
// there are too many.
func (w *world) alternatives(pattern string) []string {
	if w.order == Procps {
		return []string{pattern} // to it, braces are themselves
	}
	all, _ := expandBraces(pattern)
	return all
}

// crashes reports whether systemd-sysctl ends itself at a pattern, by a failed
// assertion: it does where the first element is longer than a name can be, and
// nothing matches. Seen in 252 and 257; a pasted line of base64 can be enough.
func (w *world) crashes(r rule) bool {
	first, _, _ := strings.Cut(r.Path, "/")
	return w.order == Systemd && len(first) > unix.NAME_MAX && r.paths != nil &&
		!slices.ContainsFunc(r.paths, func(p string) bool { return len(w.glob(p)) > 0 })
}

func hasDotDot(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }

// names gives the key that a path leads the tool to. With ".." in it, systemd
// refuses it, and the kernel wants the directory before it to exist.
func (w *world) names(p string) (Key, bool) {
	k, ok := resolve(p)
	if !ok || !hasDotDot(p) {
		return k, ok
	}
	elems := strings.Split(p, "/")
	for i, e := range elems {
		if e == ".." && (w.order == Systemd || !w.isDir("proc/sys/"+strings.Join(elems[:i], "/"))) {
			return "", false
		}
	}
	return k, true
}

// matches reports whether one of the patterns of a rule sets k. A path that is
// written out, or excluded, is not set by a pattern. The tools compare texts: one
// that is written another way, which only procps keeps, does not count.
func (w *world) matches(patterns []string, k Key, taken map[string]bool) bool {
	for _, p := range patterns {
		if hasDotDot(p) {
			if w.order == Procps && slices.ContainsFunc(w.expand(p), func(f found) bool {
				return f.key == k && !taken[f.path]
			}) {
				return true
			}
		} else if text, ok := matchPath(p, k); ok && !taken[text] {
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
	at := slices.Clone(c.named[k])
	for _, i := range c.patterns {
		if c.world.matches(c.rules[i].paths, k, c.paths) {
			at = append(at, i)
		}
	}
	slices.Sort(at)
	var all []Assignment
	for _, i := range at {
		all = append(all, c.rules[i].assignment(k))
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

// Excluded returns the "-key" line without a value that keeps patterns from
// setting k, and, with systemd, lines before it that name k too. Only File, Line
// and Target of the Assignment say anything else than k. Where Lookup finds
// nothing although All does, this is why.
func (c *Config) Excluded(k Key) (Assignment, bool) {
	e, ok := c.excluded[k]
	if !ok {
		return Assignment{}, false
	}
	return e.assignment(k), true
}

// All lists every assignment of k in reading order: those that lose, repeat
// another, or are patterns overruled by a line that names k.
func (c *Config) All(k Key) []Assignment {
	var all []Assignment
	for _, e := range c.entry {
		if e.Exclude {
			continue
		}
		if e.Pattern() {
			if c.world.matches(c.world.alternatives(e.Path), k, nil) {
				all = append(all, e.assignment(k))
			}
		} else if named, ok := c.world.names(e.Path); ok && named == k {
			all = append(all, e.assignment(k))
		}
	}
	return all
}

// Keys lists the keys that boot sets, sorted: those that lines name, whether they
// exist or not, and those of the root's proc/sys that patterns match.
func (c *Config) Keys() []Key {
	set := map[Key]bool{}
	for k := range c.named {
		set[k] = true
	}
	for _, i := range c.patterns {
		for _, p := range c.rules[i].paths {
			if c.world.order == Systemd && hasDotDot(p) {
				continue
			}
			for _, f := range c.world.expand(p) {
				if !c.paths[f.path] {
					set[f.key] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
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
