package sysctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds on what is read, against hostile files. The real tools have none.
const (
	maxFile    = 2 << 20 // bytes of one file
	maxTotal   = 8 << 20 // bytes of all
	maxLines   = 1 << 15 // settings in all
	maxFiles   = 4096    // in one directory
	maxMatches = 1 << 16 // settings that one pattern finds
)

const conf = "/etc/sysctl.conf"

// A world is the sysctl directories of one root.
type world struct {
	root     string
	order    Order
	newer    bool // systemd 255 or later
	dirs     []string
	without  []string // files taken out, see Config.Without
	cache    map[string]*file
	listing  map[string][]string // the names in each of dirs
	reading  []string
	problems []Problem
	bytes    int // read until now
	lines    int
}

// A file is one that was read.
type file struct {
	lines  []Line
	path   string // where it lies, seen from outside
	target string // the file behind it, if it is a link
	err    error
	issues []Problem
}

// ReadConfig reads the sysctl files of a host as its boot does. root is "/", or
// the directory of a recorded host or mounted image, whose links are followed as
// if it were "/". Files that cannot be read become Problems; the error is not nil
// only if root itself cannot be read.
//
// Both tools take the files that end in .conf from these directories, the first
// of which wins where two hold the same name:
//
//	/etc/sysctl.d /run/sysctl.d /usr/local/lib/sysctl.d /usr/lib/sysctl.d /lib/sysctl.d
//
// and read them in the order of their names, byte by byte, whatever the
// directory; a link to /dev/null or an empty file hides those of its name. Procps
// then reads /etc/sysctl.conf. Systemd does not; on Debian 12 a link
// /etc/sysctl.d/99-sysctl.conf leads to it. Systemd skips hidden files, and
// /lib/sysctl.d where it is not /usr/lib/sysctl.d and systemd is 255 or later.
// Credentials and settings on the kernel's command line are not looked at.
//
// The versions of Debian 12 (systemd 252, procps 4.0.2) and Debian 13 (systemd
// 257, procps 4.0.4) do the same, but for that directory and for keys that begin
// with "/.."; the tree tells which it is. Procps before 4.0 knew neither patterns
// nor "-key" lines.
func ReadConfig(root string, order Order) (*Config, error) {
	if root == "" {
		root = "/"
	}
	if st, err := os.Stat(root); err != nil {
		return nil, fmt.Errorf("reading the sysctl files of %s: %w", root, errno(err))
	} else if !st.IsDir() {
		return nil, fmt.Errorf("reading the sysctl files of %s: %w", root, unix.ENOTDIR)
	}
	w := &world{root: root, order: order, cache: map[string]*file{}, listing: map[string][]string{}}
	w.dirs = []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"}
	w.newer = w.systemdVersion() >= 255
	if order == Procps || !w.newer {
		w.dirs = append(w.dirs, "/lib/sysctl.d")
	}
	for _, dir := range w.dirs {
		w.list(dir)
	}
	c := w.read()
	w.judge(c)
	return c, nil
}

// systemdVersion is told by the name of systemd's library; 0 if the tree does not
// hold it. It matters in two places, neither of which a sane host has: whether
// /lib/sysctl.d is read if it is not /usr/lib/sysctl.d (Debian built it so up to
// 252, of Debian 12; systemd dropped it in 255), and what becomes of a key that
// begins with "/.." (252 refuses it, 257 overlooks the dots; where between them
// it changed is not known, so 255 is the border of both).
func (w *world) systemdVersion() (version int) {
	for _, dir := range []string{"/usr/lib/systemd", "/lib/systemd", "/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/aarch64-linux-gnu/systemd"} {
		p, err := w.resolve(dir)
		if err != nil {
			continue
		}
		entries, _ := os.ReadDir(p)
		for _, e := range entries {
			if n, _ := fmt.Sscanf(e.Name(), "libsystemd-shared-%d", &version); n == 1 {
				return version
			}
		}
	}
	return 0
}

// list remembers the names of a directory.
func (w *world) list(dir string) {
	p, err := w.resolve(dir)
	if err == nil {
		var f *os.File
		if f, err = os.Open(p); err == nil {
			defer f.Close()
			var names []string
			// Not ReadDir: the order of the directory does not matter, and the
			// number of entries is to be bounded.
			if names, err = f.Readdirnames(maxFiles + 1); errors.Is(err, io.EOF) {
				err = nil
			}
			if len(names) > maxFiles {
				w.problem(dir, 0, Ignored, "more than %d entries: accel looks at none beyond", maxFiles)
				names = names[:maxFiles]
			}
			slices.Sort(names)
			w.listing[dir] = names
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.problem(dir, 0, Ignored, "cannot be read: %v", errno(err))
	}
}

func (w *world) problem(file string, line int, kind Kind, format string, args ...any) {
	w.problems = append(w.problems, Problem{file, line, kind, fmt.Sprintf(format, args...)})
}

// takes reports whether the tool reads a file of this name.
func (w *world) takes(name string) bool {
	return strings.HasSuffix(name, ".conf") && (w.order == Procps || name[0] != '.')
}

// files lists what is read, in order.
func (w *world) files() []string {
	chosen := map[string]string{}
	var names []string
	for _, dir := range w.dirs {
		for _, name := range w.listing[dir] {
			if _, ok := chosen[name]; ok || !w.takes(name) || slices.Contains(w.without, path.Join(dir, name)) {
				continue
			}
			chosen[name] = dir
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var files []string
	for _, name := range names {
		if w.order == Procps {
			for _, f := range w.globName(chosen[name], name) {
				files = append(files, f)
				if _, _, err := w.stat(f); err != nil {
					break // it gives up the rest of what the name found
				}
			}
		} else {
			files = append(files, path.Join(chosen[name], name))
		}
	}
	if w.order == Procps && !slices.Contains(w.without, conf) {
		if _, st, err := w.stat(conf); err == nil && st.Mode().IsRegular() {
			files = append(files, conf)
		}
	}
	return files
}

// globName gives the files that procps opens for a name it found: it takes the
// name for a pattern once more, so that "[ab].conf" reads a.conf if there is one,
// and only otherwise itself.
func (w *world) globName(dir, name string) []string {
	self := []string{path.Join(dir, name)}
	if !strings.ContainsAny(name, `*?[\{`) {
		return self
	}
	find := func(pattern string) (found []string) {
		for _, n := range w.listing[dir] {
			if matchElem(pattern, n) && !slices.Contains(w.without, path.Join(dir, n)) {
				found = append(found, path.Join(dir, n))
			}
		}
		return found
	}
	alternatives, ok := expandBraces(name)
	if !ok {
		w.problem(self[0], 0, Ignored, "too many braces in the name: accel does not read it")
		return nil
	}
	var found []string
	for _, a := range alternatives {
		if !strings.Contains(a, "/") {
			found = append(found, find(a)...)
		}
	}
	if len(found) == 0 {
		if found = find(name); len(found) == 0 {
			return self
		}
	}
	return found
}

// read reads the files and assembles the config.
func (w *world) read() *Config {
	w.reading = w.files()
	var entries []entry
	for _, name := range w.reading {
		f := w.load(name)
		for _, l := range f.lines {
			entries = append(entries, entry{Line: l, file: name, target: f.target})
		}
	}
	return assemble(w, entries)
}

func (w *world) load(name string) *file {
	if f, ok := w.cache[name]; ok {
		return f
	}
	f := &file{}
	w.cache[name] = f
	p, st, err := w.stat(name)
	f.path = p
	if err != nil {
		f.err = err
		if target, isLink := w.link(name); isLink {
			if target == "/dev/null" {
				// In an image without devices: a mask all the same.
				f.err, f.target = nil, target
			} else if errors.Is(err, fs.ErrNotExist) {
				f.issues = append(f.issues, Problem{name, 0, Ignored, "a link to nothing (" + Printable(target) + "): it only hides files of the same name"})
				return f
			}
		}
		if f.err != nil {
			f.issues = append(f.issues, Problem{name, 0, Ignored, fmt.Sprintf("cannot be read: %v", errno(err))})
		}
		return f
	}
	if target, ok := w.inside(p); ok && target != name {
		if _, isLink := w.link(name); isLink {
			f.target = target
		}
	}
	data, truncated, err := readBounded(p, st)
	switch {
	case errors.Is(err, errNotFile):
		f.err = err
		if f.target == "/dev/null" {
			return f
		}
		f.issues = append(f.issues, Problem{name, 0, Ignored, notFile(st.Mode(), w.order)})
		return f
	case err != nil:
		f.err = err
		f.issues = append(f.issues, Problem{name, 0, Ignored, fmt.Sprintf("cannot be read: %v", errno(err))})
		return f
	}
	if w.bytes+len(data) > maxTotal {
		f.issues = append(f.issues, Problem{name, 0, Ignored, fmt.Sprintf("more than %d MiB of files: accel does not look at it", maxTotal>>20)})
		return f
	}
	w.bytes += len(data)
	f.lines, f.issues = parseFile(name, data, w.order, w.newer)
	if w.lines+len(f.lines) > maxLines {
		f.lines = nil
		f.issues = append(f.issues, Problem{name, 0, Ignored, fmt.Sprintf("more than %d settings in all files: accel does not look at it", maxLines)})
	}
	w.lines += len(f.lines)
	if truncated {
		f.issues = append(f.issues, Problem{name, 0, Ignored, fmt.Sprintf("larger than %d MiB: accel does not look at the rest", maxFile>>20)})
	}
	return f
}

func notFile(m fs.FileMode, order Order) string {
	switch {
	case m.IsDir():
		return "a directory: it is skipped, and hides files of the same name"
	case m&fs.ModeNamedPipe != 0 && order == Systemd:
		return "a pipe: systemd-sysctl waits for a writer for ever, so no setting is made at boot"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe: sysctl waits for a writer for ever, so no setting is made"
	}
	return "not a regular file: accel does not read it"
}

var errNotFile = errors.New("not a regular file")

// readBounded reads a regular file, maxFile bytes at most; a partial last line of
// a longer one is dropped.
func readBounded(p string, st fs.FileInfo) (data []byte, truncated bool, err error) {
	if !st.Mode().IsRegular() {
		return nil, false, errNotFile
	}
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	// Again: it may have been exchanged for a pipe.
	if st, err := f.Stat(); err != nil {
		return nil, false, err
	} else if !st.Mode().IsRegular() {
		return nil, false, errNotFile
	}
	data, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, false, err
	}
	if len(data) <= maxFile {
		return data, false, nil
	}
	end := strings.LastIndexByte(string(data), '\n') + 1
	return data[:end], true, nil
}

// judge gathers the problems of the world.
func (w *world) judge(c *Config) {
	seen := map[string]bool{}
	confPath, _, confErr := w.stat(conf)
	confRead := false
	for _, name := range w.reading {
		if !seen[name] {
			w.problems = append(w.problems, w.cache[name].issues...)
		}
		seen[name] = true
		confRead = confRead || confErr == nil && w.cache[name].path == confPath
	}
	for _, dir := range w.dirs {
		for _, name := range w.listing[dir] {
			if full := path.Join(dir, name); !w.takes(name) && meant(name) && w.sets(full) {
				w.problem(full, 0, Ignored, "it is not read: %s", map[bool]string{
					true:  "systemd-sysctl skips hidden files",
					false: `the name does not end in ".conf"`,
				}[strings.HasSuffix(name, ".conf")])
			}
		}
	}
	if !confRead && w.sets(conf) {
		w.problem(conf, 0, Ignored, "it is not read at boot here: systemd-sysctl reads /etc/sysctl.d/*.conf only, and no link there leads to it")
	}
	if c.crash != nil {
		w.problem(c.crash.file, c.crash.Line.Number, Refused, "systemd-sysctl crashes at this line (the key is a pattern whose first part is longer than %d bytes) and makes none of the settings after it", unix.NAME_MAX)
	}
	for _, i := range c.patterns {
		if r := c.rules[i]; r.paths == nil {
			w.problem(r.file, r.Line.Number, Ignored, "too many braces in the pattern: accel does not look at it")
		}
	}
}

// meant reports whether a name that the tool does not take looks as if its author
// wanted it read: neither a README nor what editors and packages leave behind.
func meant(name string) bool {
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, "readme") || strings.HasPrefix(lower, ".#") || strings.HasSuffix(lower, "~") {
		return false
	}
	ext := path.Ext(lower)
	return ext == ".conf" || ext == "" || ext == ".txt" || ext == ".cfg" || ext == ".config" || ext == ".sysctl"
}

// sets reports whether a file holds a line that would set something.
func (w *world) sets(name string) bool {
	p, st, err := w.stat(name)
	if err != nil {
		return false
	}
	data, _, err := readBounded(p, st)
	if err != nil {
		return false
	}
	lines, _ := parseFile(name, data, w.order, w.newer)
	return slices.ContainsFunc(lines, func(l Line) bool {
		_, ok := l.Key()
		return ok && !l.Exclude
	})
}

// ReadFile reads one file as `sysctl -p FILE` does and lists its assignments, for
// the files that other programs load that way, such as ufw's /etc/ufw/sysctl.conf.
// Patterns are left out, since they say nothing without a host.
func ReadFile(name string) ([]Assignment, error) { return ReadFileIn("/", name) }

// ReadFileIn is ReadFile in a recorded host or mounted image; name and the
// assignments' File are seen from within root.
func ReadFileIn(root, name string) ([]Assignment, error) {
	w := &world{root: root, order: Procps}
	p, st, err := w.stat(name)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, errno(err))
	}
	data, truncated, err := readBounded(p, st)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, errno(err))
	}
	if truncated {
		return nil, fmt.Errorf("reading %s: larger than %d MiB", name, maxFile>>20)
	}
	lines, _ := ParseFile(name, data, Procps)
	var all []Assignment
	for _, l := range lines {
		if k, ok := l.Key(); ok && !l.Exclude {
			all = append(all, entry{Line: l, file: name}.assignment(k))
		}
	}
	return all, nil
}

// A found is a setting that a pattern matched.
type found struct {
	path string // as glob prints it, below proc/sys
	key  Key
}

// A place is what glob found.
type place struct {
	path string // as glob prints it, below proc/sys
	dir  string // where that is, from within the root
}

// glob lists what a pattern matches in the root's proc/sys, as far as it may be a
// setting.
func (w *world) glob(pattern string) []place {
	elems, ok := globElems(pattern)
	if !ok {
		return nil
	}
	at := []place{{"", "/proc/sys"}}
	for i, e := range elems {
		var next []place
		for _, p := range at {
			names := []string{literal(e)}
			if hasMagic(e) {
				names = nil
				entries, _ := os.ReadDir(filepath.Join(w.root, p.dir))
				for _, d := range entries {
					if matchElem(e, d.Name()) {
						names = append(names, d.Name())
					}
				}
			} else if i > 0 && !w.isDir(p.dir) {
				continue // not even ".." or "." can follow
			}
			for _, name := range names {
				if len(next) == maxMatches {
					break
				}
				text := name
				if i > 0 {
					text = p.path + "/" + name
				}
				next = append(next, place{text, path.Join(p.dir, name)})
			}
		}
		at = next
	}
	return slices.DeleteFunc(at, func(p place) bool {
		_, err := os.Lstat(filepath.Join(w.root, p.dir))
		return err != nil
	})
}

// expand lists the settings of the root's proc/sys that match a pattern.
func (w *world) expand(pattern string) []found {
	var all []found
	for _, p := range w.glob(pattern) {
		k, ok := strings.CutPrefix(p.dir, "/proc/sys/")
		if ok && !w.isDir(p.dir) && Key(k).check() == nil {
			all = append(all, found{p.path, Key(k)})
		}
	}
	return all
}

func (w *world) isDir(name string) bool {
	st, err := os.Stat(filepath.Join(w.root, name))
	return err == nil && st.IsDir()
}

// stat follows the links of a name within the root.
func (w *world) stat(name string) (string, fs.FileInfo, error) {
	p, err := w.resolve(name)
	if err != nil {
		return "", nil, err
	}
	st, err := os.Lstat(p)
	return p, st, err
}

// link returns where the name leads if its last element is a link, as a path
// within the root.
func (w *world) link(name string) (string, bool) {
	dir, err := w.resolve(path.Dir(name))
	if err != nil {
		return "", false
	}
	p := filepath.Join(dir, path.Base(name))
	st, err := os.Lstat(p)
	if err != nil {
		return "", false
	}
	target, ok := w.readlink(p, st)
	if ok && !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	return target, ok
}

// readlink returns the text of a link.
//
// A recorded tree may have gone through something that has no links, such as a
// zip file or a checkout on Windows, and holds them as files with that text, as
// git makes them. These are links too, except on the live host: a file whose
// whole content is a path says nothing otherwise.
func (w *world) readlink(p string, st fs.FileInfo) (string, bool) {
	if st.Mode().Type() == fs.ModeSymlink {
		target, err := os.Readlink(p)
		return target, err == nil && target != ""
	}
	if w.root == "/" || !st.Mode().IsRegular() || st.Size() < 2 || st.Size() > unix.PathMax {
		return "", false
	}
	data, _, err := readBounded(p, st)
	if text := string(data); err == nil && linkText.MatchString(text) {
		return text, true
	}
	return "", false
}

var linkText = regexp.MustCompile(`\A(/|\.{1,2}/)[^\s=\x00]*\z`)

// inside turns a path from outside into one within the root.
func (w *world) inside(p string) (string, bool) {
	rel, err := filepath.Rel(w.root, p)
	return "/" + rel, err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// maxLinks is how many links a name may lead through, as in the kernel.
const maxLinks = 40

// resolve follows the links of name as a process would whose root directory is
// the world's, and returns the path from outside.
func (w *world) resolve(name string) (string, error) {
	done, todo := "/", name
	for links := 0; ; {
		todo = strings.TrimLeft(todo, "/")
		if todo == "" {
			return filepath.Join(w.root, done), nil
		}
		elem, rest, _ := strings.Cut(todo, "/")
		if elem == "." || elem == ".." {
			done, todo = path.Join(done, elem), rest // "/.." is "/", as for the kernel
			continue
		}
		p := filepath.Join(w.root, done, elem)
		st, err := os.Lstat(p)
		if err != nil {
			return "", err
		}
		target, isLink := w.readlink(p, st)
		if !isLink {
			if rest != "" && !st.IsDir() {
				return "", &fs.PathError{Op: "open", Path: p, Err: unix.ENOTDIR}
			}
			done, todo = path.Join(done, elem), rest
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: p, Err: unix.ELOOP}
		}
		if path.IsAbs(target) {
			done = "/"
		}
		todo = target + "/" + rest
	}
}
