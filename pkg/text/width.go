package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Safe makes a string of unknown origin (a kernel answer, a file name, a line of
// a file) fit to print: control characters, bidirectional overrides, line
// separators and bytes that are no UTF-8 appear as escapes, so that a file
// cannot move the cursor or forge a line of a report.
func Safe(s string) string {
	clean := true
	for i, r := range s {
		if unsafeRune(r) || r == utf8.RuneError && isInvalid(s[i:]) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case unsafeRune(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case unsafeRune(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

func isInvalid(s string) bool {
	_, size := utf8.DecodeRuneInString(s)
	return size == 1
}

// unsafeRune says that a rune does not print as itself in its place: controls,
// invisible format characters (a zero width space or a byte order mark in a
// configuration file is a finding, not a decoration), line separators.
func unsafeRune(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// wide holds the ranges that take two columns: East Asian Wide and Fullwidth of
// Unicode's EastAsianWidth.txt, joined to whole blocks.
var wide = [][2]rune{
	{0x1100, 0x115f}, {0x2e80, 0x303e}, {0x3041, 0x33ff}, {0x3400, 0x4dbf},
	{0x4e00, 0x9fff}, {0xa000, 0xa4cf}, {0xa960, 0xa97f}, {0xac00, 0xd7a3},
	{0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6},
	{0x1f300, 0x1f64f}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd},
}

// runeWidth gives the columns that a terminal uses for a rune: 0, 1 or 2.
func runeWidth(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	for _, w := range wide {
		if r >= w[0] && r <= w[1] {
			return 2
		}
	}
	return 1
}

// Width gives the columns that a string takes on a terminal. The string must be
// printable: see Safe.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// Pad fills a string with spaces up to a number of columns. A longer string is
// returned as it is.
func Pad(s string, columns int) string {
	if n := columns - Width(s); n > 0 {
		return s + strings.Repeat(" ", n)
	}
	return s
}

// noLineStart are the marks that may not begin a line in Chinese text.
const noLineStart = "，。、；：？！）》」』】〉”’…"

// noLineEnd are the marks that may not end a line in Chinese text.
const noLineEnd = "（《「『【〈“‘"

// Wrap folds a text into lines of at most so many columns. It breaks at spaces,
// and beside wide characters, which need none; a word that fits on no line is
// cut. Line breaks in the text are kept. The result has at least one line.
func Wrap(s string, columns int) []string {
	if columns < 2 { // a wide rune must fit
		columns = 2
	}
	var lines []string
	for _, paragraph := range strings.Split(s, "\n") {
		lines = append(lines, wrapParagraph(paragraph, columns)...)
	}
	return lines
}

func wrapParagraph(s string, columns int) []string {
	var lines []string
	var line strings.Builder
	used := 0
	flush := func() {
		lines = append(lines, strings.TrimRight(line.String(), " "))
		line.Reset()
		used = 0
	}
	for _, chunk := range chunks(s) {
		space := strings.HasSuffix(chunk, " ")
		word := strings.TrimRight(chunk, " ")
		width := Width(word)
		if used > 0 && used+width > columns {
			flush()
		}
		for width > columns { // longer than any line
			head := fit(word, columns)
			line.WriteString(head)
			flush()
			word = word[len(head):]
			width = Width(word)
		}
		line.WriteString(word)
		used += width
		if space {
			line.WriteString(chunk[len(strings.TrimRight(chunk, " ")):])
			used += len(chunk) - len(strings.TrimRight(chunk, " "))
		}
	}
	if line.Len() > 0 || len(lines) == 0 {
		flush()
	}
	return lines
}

// chunks cuts a paragraph into the pieces between which a line may break, each
// with the spaces that follow it. They join to the paragraph again.
func chunks(s string) []string {
	var out []string
	start := 0
	var last rune
	for i, r := range s {
		if i > start && r != ' ' && mayBreak(last, r) {
			out = append(out, s[start:i])
			start = i
		}
		last = r
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}

func mayBreak(before, after rune) bool {
	if before == ' ' {
		return true
	}
	if runeWidth(before) < 2 && runeWidth(after) < 2 {
		return false
	}
	return !strings.ContainsRune(noLineStart, after) && !strings.ContainsRune(noLineEnd, before)
}

// fit gives the longest beginning of s that is at most so many columns wide.
func fit(s string, columns int) string {
	n := 0
	for i, r := range s {
		n += runeWidth(r)
		if n > columns {
			return s[:i]
		}
	}
	return s
}
