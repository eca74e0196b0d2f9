package sysctl

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Kind says how much a Problem matters.
type Kind int

const (
	// Ignored: the tool does nothing with the line or the file.
	Ignored Kind = iota
	// Refused: the tool will try, and the kernel will not take it.
	Refused
	// Misleading: it works, but not as it looks.
	Misleading
	// Repeated: a later line of the same file sets the same key again.
	Repeated
)

// A Problem is a line or a file that does not do what its author wanted.
type Problem struct {
	File   string
	Line   int // 0 if the whole file is meant
	Kind   Kind
	Reason string // plain English, printable, without the file and line
}

// Printable returns s fit for a terminal and for JSON: bytes that are not UTF-8,
// control characters and other invisible ones are written as escapes, like \xa0
// and \u00a0. Files may hold anything; what is printed of them goes through this.
func Printable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}

// quote is Printable in quotes, shortened.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		cut := most
		for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	return `"` + Printable(s) + `"`
}

// maxProblems bounds how many problems are told of one file: a binary one would
// give a problem for every line.
const maxProblems = 50

// A linter gathers the problems of one file.
type linter struct {
	file     string
	order    Order
	problems []Problem
	more     int
	utf16    bool
}

func (l *linter) add(line int, kind Kind, format string, args ...any) {
	if len(l.problems) >= maxProblems {
		l.more++
		return
	}
	l.problems = append(l.problems, Problem{l.file, line, kind, fmt.Sprintf(format, args...)})
}

func (l *linter) result() []Problem {
	if l.more > 0 {
		l.problems = append(l.problems, Problem{l.file, 0, Ignored, fmt.Sprintf("and %d more lines like these", l.more)})
	}
	return l.problems
}

const bom = "\xef\xbb\xbf"

// content looks at the file as a whole.
func (l *linter) content(data []byte) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		l.utf16 = true
		l.add(1, Ignored, "the file is UTF-16, so no line of it can be read: save it as UTF-8")
		return
	}
	for number, rest := 1, data; len(rest) > 0; number++ {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if bytes.IndexByte(line, 0) >= 0 {
			l.add(number, Ignored, "NUL byte in the line: the tools do not agree where it ends")
		}
		rest = after
	}
}

var (
	second  = regexp.MustCompile(`[ \t,;](net|kernel|vm|fs|dev|user|abi|debug|crypto|sunrpc|xen)[./][-\w./]*[ \t]*=`)
	word    = regexp.MustCompile(`^[a-z0-9_]+$`)
	pasted  = regexp.MustCompile(`^(sudo +)?(/\S*/)?sysctl\s`)
	trailer = regexp.MustCompile(`[ \t](#|;|//)`)
)

// notLine looks at a line of which the tool makes nothing.
func (l *linter) notLine(number int, text []byte) {
	s := strings.Trim(string(text), procpsSpace)
	if l.utf16 || s == "" || isComment(s) || strings.Trim(s, "\x00") == "" {
		return
	}
	switch after, marked := strings.CutPrefix(s, bom); {
	case marked && strings.TrimSpace(after) == "":
		l.add(number, Ignored, "nothing but a byte order mark (UTF-8 BOM)")
	case marked:
		l.add(number, Ignored, "not an assignment, because of the byte order mark (UTF-8 BOM) before it")
	case strings.Contains(s, "\uff1d"):
		l.add(number, Ignored, `not an assignment: it has a full-width "\uff1d" instead of "="`)
	default:
		l.add(number, Ignored, "not an assignment: %s", quote(s))
	}
}

// line looks at a line that the tool does take.
func (l *linter) line(line Line, text []byte) {
	if l.utf16 {
		return
	}
	s := strings.TrimLeft(string(text), procpsSpace)
	n := line.Number
	if strings.HasPrefix(s, bom) {
		l.add(n, Refused, "no such setting, because of the byte order mark (UTF-8 BOM) before the key: the line has no effect")
		return
	}
	if pasted.MatchString(s) {
		l.add(n, Refused, "a pasted command: only what follows sysctl -w belongs into the file, so the line has no effect")
		return
	}
	if strings.HasPrefix(s, "- ") || strings.HasPrefix(s, "-\t") {
		if l.order == Procps {
			l.add(n, Refused, `blank after "-": procps then finds no such setting, so the line has no effect`)
			return
		}
		l.add(n, Misleading, `blank after "-": works with systemd-sysctl only, not with procps`)
	}
	if r, ok := odd(line.Path); ok {
		l.add(n, Refused, "the key contains %s, so there is no such setting: %s", r, quote(line.Path))
		return
	}
	if l.order == Systemd && hasDotDot(line.Path) {
		l.add(n, Refused, `systemd-sysctl refuses ".." in a key: %s`, quote(line.Path))
		return
	}
	if k, ok := line.Key(); !ok && !line.Pattern() {
		l.add(n, Refused, "the key cannot name a setting: %s", quote(line.Path))
		return
	} else if first, _, _ := strings.Cut(string(k), "/"); strings.ToLower(first) != first {
		l.add(n, Refused, "no such setting: keys are written in lower case: %s", quote(line.Path))
		return
	}
	if !line.Exclude {
		l.value(n, line)
	}
}

// value looks at what a line assigns.
func (l *linter) value(n int, line Line) {
	v := line.Value
	k, _ := line.Key()
	isName := k == CongestionControl || k == DefaultQdisc
	switch {
	case v == "":
		if isName {
			l.add(n, Refused, "no value")
		}
	case strings.HasSuffix(v, `\`):
		l.add(n, Refused, `a backslash does not continue a line: the value is %s`, quote(v))
	case strings.ContainsAny(v[:1], `"'`) || strings.ContainsAny(v[len(v)-1:], `"'`):
		l.add(n, Refused, "quotes are part of the value: %s", quote(v))
	case strings.HasPrefix(v, "="):
		l.add(n, Refused, "two equals signs: the value is %s", quote(v))
	case second.MatchString(v):
		l.add(n, Misleading, "two assignments on one line: the whole rest is the value of the first, and the second is never made: %s", quote(v))
	case trailer.MatchString(v):
		l.add(n, Misleading, "text after the value belongs to it; a number still counts, a name is refused: %s", quote(v))
	default:
		if r, ok := odd(v); ok && isName {
			l.add(n, Refused, "the value contains %s: %s", r, quote(v))
		} else if ok {
			l.add(n, Misleading, "the value contains %s: %s", r, quote(v))
		} else if isName && !word.MatchString(v) {
			l.add(n, Refused, "not the name of an algorithm or qdisc: %s", quote(v))
		}
	}
}

// odd names the first character of s that is easily overlooked and never right
// in a key or value.
func odd(s string) (string, bool) {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			return fmt.Sprintf(`a byte that is not UTF-8 (\x%02x)`, s[i]), true
		case r == '\u00a0':
			return `a no-break space (U+00A0)`, true
		case r == '\ufeff':
			return `a byte order mark (U+FEFF)`, true
		case r > unicode.MaxASCII && (unicode.IsSpace(r) || !unicode.IsPrint(r)):
			return fmt.Sprintf("an invisible character (%U)", r), true
		case r != '\t' && r < ' ' || r == 0x7f:
			return fmt.Sprintf("a control character (%U)", r), true
		}
		i += n
	}
	return "", false
}

// repeats tells which lines set a key that a later line of the file sets again.
func (l *linter) repeats(lines []Line) {
	last := map[Key]int{}
	for _, line := range lines {
		if k, ok := line.Key(); ok && !line.Exclude {
			last[k] = line.Number
		}
	}
	for _, line := range lines {
		if k, ok := line.Key(); ok && !line.Exclude && last[k] != line.Number {
			l.add(line.Number, Repeated, "%s is set again in line %d", Printable(k.String()), last[k])
		}
	}
}
