package sysctl

import (
	"bytes"
	"path"
	"strings"
)

// An Order is one of the two ways in which a boot reads sysctl files.
type Order int

const (
	// Systemd is systemd-sysctl, which runs at the boot of nearly every
	// distribution. It gathers all files first, keeps one value for a key, and
	// does not read /etc/sysctl.conf.
	Systemd Order = iota
	// Procps is `sysctl --system`, which other boots and many people run. It
	// writes every line in turn, and reads /etc/sysctl.conf last.
	Procps
)

// String is "systemd" or "procps".
func (o Order) String() string {
	if o == Procps {
		return "procps"
	}
	return "systemd"
}

// A Line is one line of a file that the tool takes as a setting or as an
// exception from patterns.
type Line struct {
	Number int    // counted by newlines, from 1, as editors do
	Path   string // below /proc/sys, as the tool makes it of the key; may be a pattern, and may name nothing
	Value  string // trimmed as the tool does it
	// Exclude is true for a "-key" without a value: a pattern does not set it.
	Exclude bool
	// IgnoreError is true for "-key=value": a failure is not reported.
	IgnoreError bool
}

// Pattern reports whether the tool looks for settings that match Path, instead
// of setting Path itself.
func (l Line) Pattern() bool { return isPattern(l.Path) }

// Key returns the setting that the line names; false if it is a pattern or
// cannot name one.
func (l Line) Key() (Key, bool) {
	if l.Pattern() {
		return "", false
	}
	return resolve(l.Path)
}

// resolve gives the key that a path below /proc/sys leads to.
func resolve(p string) (Key, bool) {
	// A slash or dot at the end asks for a directory, and ".." needs one
	// before it; neither is a setting.
	if e := p[strings.LastIndex(p, "/")+1:]; e == "" || e == "." || e == ".." {
		return "", false
	}
	const root = "/proc/sys/"
	full := path.Clean(root + p)
	if !strings.HasPrefix(full, root) {
		return "", false
	}
	k := Key(full[len(root):])
	return k, k.check() == nil
}

func isPattern(p string) bool { return strings.ContainsAny(p, "*?[") }

// systemdLine is the longest line that systemd-sysctl reads, in bytes; at a
// longer one it stops and ignores the rest of the file.
const systemdLine = 1<<20 - 1

// ParseFile reads the content of one file as the tool does. name is only used to
// name the file in the problems, which are the lines that do not work or not as
// they look. Content that the tool cannot use is never an error: it is what the
// problems are.
func ParseFile(name string, data []byte, order Order) ([]Line, []Problem) {
	return parseFile(name, data, order, false)
}

// parseFile is ParseFile; newer says that it is systemd 255 or later.
func parseFile(name string, data []byte, order Order, newer bool) ([]Line, []Problem) {
	lint := &linter{file: name, order: order}
	lint.content(data)
	var lines []Line
	each := procpsLines
	if order == Systemd {
		each = systemdLines
	}
	each(data, func(number int, text []byte, tooLong bool) {
		if tooLong {
			lint.add(number, Ignored, "line is longer than 1 MiB: systemd-sysctl stops here and ignores the rest of the file")
			return
		}
		if l, ok := parseLine(text, order, newer); ok {
			l.Number = number
			lines = append(lines, l)
			lint.line(l, text)
		} else {
			lint.notLine(number, text)
		}
	})
	lint.repeats(lines)
	return lines, lint.result()
}

// systemdLines splits as systemd does: a line ends with a newline, a carriage
// return, a NUL byte, or a run of these in which none comes twice and NUL comes
// last.
func systemdLines(data []byte, yield func(number int, text []byte, tooLong bool)) {
	for i, number := 0, 1; i < len(data); {
		end := bytes.IndexAny(data[i:], "\n\r\x00")
		if end < 0 {
			end = len(data)
		} else {
			end += i
		}
		if end-i > systemdLine {
			yield(number, nil, true)
			return
		}
		text := data[i:end]
		next, seenLF, seenCR := end, false, false
	eol:
		for next < len(data) {
			switch data[next] {
			case '\n':
				if seenLF {
					break eol
				}
				seenLF = true
			case '\r':
				if seenCR {
					break eol
				}
				seenCR = true
			case 0:
				next++
				break eol
			default:
				break eol
			}
			next++
		}
		yield(number, text, false)
		number += bytes.Count(data[i:next], []byte("\n"))
		i = next
	}
}

// procpsLines splits at newlines. A NUL byte ends the text of its line, since
// procps works on C strings.
func procpsLines(data []byte, yield func(number int, text []byte, tooLong bool)) {
	for number := 1; len(data) > 0; number++ {
		line, rest := data, []byte(nil)
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			// The newline stays: procps measures lines with it.
			line, rest = data[:i+1], data[i+1:]
		}
		data = rest
		if i := bytes.IndexByte(line, 0); i >= 0 && len(line) >= 2 {
			line = line[:i]
		}
		yield(number, line, false)
	}
}

// White space as each tool sees it.
const (
	systemdSpace = " \t\n\r"
	procpsSpace  = " \t\n\r\v\f"
)

// parseLine reads one line; false if the tool makes nothing of it.
func parseLine(text []byte, order Order, newer bool) (Line, bool) {
	if order == Systemd {
		return parseSystemd(strings.Trim(string(text), systemdSpace), newer)
	}
	return parseProcps(strings.TrimLeft(string(text), procpsSpace))
}

func isComment(s string) bool { return s != "" && (s[0] == '#' || s[0] == ';') }

func parseSystemd(s string, newer bool) (l Line, ok bool) {
	if s == "" || isComment(s) {
		return Line{}, false
	}
	key, value, assigned := strings.Cut(s, "=")
	key, dash := strings.CutPrefix(key, "-")
	if !assigned && !dash {
		return Line{}, false
	}
	l.Exclude = !assigned
	l.IgnoreError = assigned && dash
	l.Value = strings.Trim(value, systemdSpace)
	l.Path = simplify(separate(strings.Trim(key, systemdSpace)), newer)
	return l, true
}

// simplify drops what does not change where a path leads: empty elements, "."
// elements and the slashes at both ends. systemd does this to every key, so that
// two ways to write it are one. Newer ones also drop ".." behind a slash at the
// beginning, as above the root there is nothing.
func simplify(p string, newer bool) string {
	elems := strings.Split(p, "/")
	absolute := strings.HasPrefix(p, "/")
	kept := elems[:0]
	for _, e := range elems {
		if e == "" || e == "." || e == ".." && newer && absolute && len(kept) == 0 {
			continue
		}
		kept = append(kept, e)
	}
	return strings.Join(kept, "/")
}

func parseProcps(s string) (l Line, ok bool) {
	if len(s) < 2 || isComment(s) {
		return Line{}, false
	}
	key, value, assigned := strings.Cut(s, "=")
	key, dash := strings.CutPrefix(key, "-")
	if !assigned && !dash {
		return Line{}, false
	}
	l.Exclude = !assigned
	l.IgnoreError = assigned && dash
	l.Value = strings.Trim(value, procpsSpace)
	// Unlike systemd, it takes away a second dash, and no blank after the first.
	key = strings.TrimPrefix(strings.TrimRight(key, procpsSpace), "-")
	l.Path = separate(key)
	return l, true
}
