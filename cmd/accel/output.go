package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"syscall"

	"golang.org/x/term"

	"accel/pkg/text"
	"accel/pkg/tuning"
)

// The rules of accel's output:
//
//   - Results go to stdout, diagnostics to stderr. With --json, stdout gets
//     exactly one document, also when the command failed.
//   - Text says first what matters: the verdict, then the reason, then what to
//     do. It fits 80 columns, or the terminal if that is narrower.
//   - Colour only marks the verdict, only on a terminal, never with NO_COLOR.
//   - An error is one line, "accel: what was tried: the cause", and a second one
//     with the next step. No capitals at the beginning, no full stop at the end
//     of the first.
//   - What came from the kernel or a file is escaped before it is printed.
//   - Progress is shown on a terminal only, on stderr, and wiped away.
//   - Only doctor asks, before it changes files of others, and never without a
//     terminal.

// columns is the widest line of text.
const columns = 80

// screen is where text goes.
type screen struct {
	w       io.Writer
	columns int
	colour  bool
	live    bool // a terminal that can be written over
}

// newScreen looks at what w is.
func newScreen(w io.Writer, getenv func(string) string) screen {
	s := screen{w: w, columns: columns}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return s
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width >= 20 && width < columns {
		s.columns = width
	}
	s.live = getenv("TERM") != "dumb"
	s.colour = s.live && getenv("NO_COLOR") == ""
	return s
}

// Colours of a verdict, as ECMA-48 numbers them.
const (
	green  = 32
	yellow = 33
	red    = 31
)

// page builds a text: a headline, paragraphs and rows with a label.
type page struct {
	bytes.Buffer
	screen screen
	rows   []row
	gapped bool
}

type row struct {
	label string
	lines []string
}

// headline prints the verdict and what follows it. Everything else hangs below
// its beginning.
func (p *page) headline(colour int, word, sentence string) {
	p.flush()
	word = text.Safe(word)
	for i, l := range text.Wrap(word+": "+text.Safe(sentence), p.screen.columns) {
		if i == 0 && p.screen.colour && strings.HasPrefix(l, word) {
			l = fmt.Sprintf("\x1b[1;%dm%s\x1b[0m%s", colour, word, l[len(word):])
		}
		p.line(l)
	}
}

// paragraph prints a text of its own.
func (p *page) paragraph(s string) {
	p.flush()
	for _, l := range text.Wrap(text.Safe(s), p.screen.columns) {
		p.line(l)
	}
}

// gap puts an empty line before whatever comes next, if anything does.
func (p *page) gap() {
	p.flush()
	p.gapped = p.Len() > 0
}

// row adds a labelled row; rows that follow each other share the width of the
// label column. A row without lines is left out.
func (p *page) row(label string, lines ...string) {
	if len(lines) > 0 {
		p.rows = append(p.rows, row{label, lines})
	}
}

func (p *page) flush() {
	width := 0
	for _, r := range p.rows {
		width = max(width, text.Width(r.label))
	}
	width += 2
	for _, r := range p.rows {
		label := r.label
		for _, l := range r.lines {
			// A folded line is indented a little more than its beginning, so
			// that it cannot be taken for a line of its own.
			folded := text.Wrap(text.Safe(l), p.screen.columns-width)
			if len(folded) > 1 && len(r.lines) > 1 {
				again := text.Wrap(strings.TrimPrefix(text.Safe(l), folded[0]), p.screen.columns-width-2)
				folded = folded[:1]
				for _, f := range again {
					folded = append(folded, "  "+strings.TrimLeft(f, " "))
				}
			}
			for _, f := range folded {
				p.line(text.Pad(label, width) + f)
				label = ""
			}
		}
	}
	p.rows = nil
}

// verbatim prints a line as it is, made safe but not folded.
func (p *page) verbatim(s string) {
	p.flush()
	p.line(text.Safe(s))
}

func (p *page) line(s string) {
	if p.gapped {
		p.WriteByte('\n')
		p.gapped = false
	}
	p.WriteString(strings.TrimRight(s, " "))
	p.WriteByte('\n')
}

// print writes the page at once.
func (p *page) print() error {
	p.flush()
	return write(p.screen.w, p.Bytes())
}

// write writes and takes a reader that went away (`accel status | head -1`) for
// one that has read enough.
func write(w io.Writer, data []byte) error {
	_, err := w.Write(data)
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return text.Errorf("writing the output: %w", err)
	}
	return nil
}

// printJSON prints one document. Strings of unknown origin are escaped like in
// text: the encoder would replace bytes that are no UTF-8, which loses them,
// and keep control characters, which reach a terminal when jq decodes them.
func printJSON(w io.Writer, document any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(escaped(reflect.ValueOf(document)).Interface()); err != nil {
		return fmt.Errorf("encoding the document: %w", err)
	}
	return write(w, b.Bytes())
}

// escaped is a deep copy of v with every string made safe. Types keep what they
// hold unexported (time.Time).
func escaped(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	switch v.Kind() {
	case reflect.String:
		c.SetString(text.Safe(v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			c.Set(reflect.New(v.Type().Elem()))
			c.Elem().Set(escaped(v.Elem()))
		}
	case reflect.Interface:
		if !v.IsNil() {
			c.Set(escaped(v.Elem()))
		}
	case reflect.Slice:
		if !v.IsNil() {
			c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				c.Index(i).Set(escaped(v.Index(i)))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			c.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			for _, k := range v.MapKeys() {
				c.SetMapIndex(escaped(k), escaped(v.MapIndex(k)))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				c.Field(i).Set(escaped(v.Field(i)))
			}
		}
	}
	return c
}

// errorDocument is what --json prints for a failure: accel.error/1.
type errorDocument struct {
	Schema string `json:"schema"`
	Exit   int    `json:"exit"`
	Error  string `json:"error"`
	Next   string `json:"next"`
}

// report tells about an error on stderr and, for --json, on stdout, and gives
// the exit code.
func (a *accel) report(err error, asJSON bool) int {
	exit := tuning.ExitCode(err)
	next := ""
	var p *tuning.Problem
	if errors.As(err, &p) {
		next = p.Next
	}
	message := text.Safe(err.Error())
	for _, l := range text.Wrap("accel: "+message, a.errScreen.columns) {
		fmt.Fprintln(a.err, l)
	}
	if next != "" {
		for _, l := range text.Wrap(text.Safe(next), a.errScreen.columns-2) {
			fmt.Fprintln(a.err, "  "+l)
		}
	}
	if asJSON {
		document := errorDocument{Schema: "accel.error/1", Exit: exit, Error: message, Next: text.Safe(next)}
		if err := printJSON(a.out, document); err != nil {
			fmt.Fprintln(a.err, "accel: "+err.Error())
		}
	}
	return exit
}
