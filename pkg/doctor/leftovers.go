package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"accel/pkg/files"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// Leftover is what one tool left on the host.
type Leftover struct {
	Tool    string    `json:"tool"` // for --only
	Name    string    `json:"name"`
	Source  string    `json:"source"` // where it is known from what the tool writes
	Weak    bool      `json:"weak"`   // a person could have written the same
	Places  []Place   `json:"places"`
	Keys    []LeftKey `json:"keys"`
	Fixable bool      `json:"fixable"`
}

// Place is a file, or the lines of a file, that a tool wrote.
type Place struct {
	File    string `json:"file"`
	Whole   bool   `json:"whole"` // the whole file is the tool's
	Lines   []int  `json:"lines"` // from 1; of a whole file all lines that do something
	Blocked string `json:"blocked,omitempty"`
	Rule    string `json:"rule,omitempty"`
	raw     string // the name as the system knows it
}

// LeftKey is a setting that a tool wrote.
type LeftKey struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Class  Class  `json:"class"`
	Rule   string `json:"rule,omitempty"`
	Reason string `json:"reason,omitempty"`
	raw    string
}

// maxText is the largest file whose lines are looked at, in bytes.
const maxText = 1 << 20

// textFile is a file of lines that may be changed.
type textFile struct {
	data    []byte
	lines   []string // normal
	claimed []bool
	err     error
	blocked string // why it is not to be changed
}

// text reads a file once. A link is followed for reading by nobody: what is
// behind it has a name of its own.
func (e *examination) text(name string) *textFile {
	if f, ok := e.texts[name]; ok {
		return f
	}
	f := &textFile{}
	e.texts[name] = f
	st, err := e.h.Files.Lstat(name)
	switch {
	case err != nil:
		f.err = err
		return f
	case !st.Mode().IsRegular():
		f.err = files.ErrNotRegular
		return f
	}
	if f.data, f.err = readable(e.h.Files, name, maxText); f.err != nil {
		e.note(text.T("%s is not looked at: %s", sysctl.Printable(name), f.err))
		return f
	}
	if bytes.IndexByte(f.data, 0) >= 0 {
		f.err = errBinary
		return f
	}
	f.blocked = unusual(st)
	for line := range bytes.Lines(f.data) {
		f.lines = append(f.lines, normal(string(line)))
	}
	f.claimed = make([]bool, len(f.lines))
	return f
}

var errBinary = errors.New("not a text file")

// unusual says why a file could not be put back exactly as it was.
func unusual(st fs.FileInfo) string {
	if st.Mode()&^fs.ModePerm != 0 {
		return text.T("it has a special mode")
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		switch {
		case sys.Nlink > 1:
			return text.T("it has several names (hard links)")
		case sys.Uid != 0 || sys.Gid != 0:
			return text.T("it belongs to somebody else than root")
		}
	}
	return ""
}

// leftovers recognises what tools left, and sorts it.
func (e *examination) leftovers() {
	for i := range tools {
		t := &tools[i]
		l := Leftover{Tool: t.ID, Name: t.Name, Source: t.Source, Weak: t.Weak, Places: []Place{}, Keys: []LeftKey{}}
		for _, f := range t.Files {
			e.ownFile(&l, f)
		}
		for _, b := range t.Blocks {
			// Lines of limits.conf and the like say nothing alone: they count
			// beside the tool's settings.
			if b.Rule != "" && len(l.Places) == 0 {
				continue
			}
			for _, name := range b.Files {
				e.block(&l, b, name)
			}
		}
		if len(l.Places) == 0 {
			continue
		}
		l.Fixable = slices.ContainsFunc(l.Places, func(p Place) bool { return p.Blocked == "" }) && (!t.Weak || e.weakFixable(&l))
		e.r.Leftovers = append(e.r.Leftovers, l)
	}
}

// weakFixable: taking the lines out changes nothing, since accel sets the same
// by itself, or will have adopted it.
func (e *examination) weakFixable(l *Leftover) bool {
	if e.r.Enabled != nil {
		return true // accel's own file and service decide
	}
	return e.adoptable(l) != ""
}

// adoptable gives the algorithm of a host that has a leftover's settings in
// force; "" if it has not.
func (e *examination) adoptable(l *Leftover) string {
	if e.r.Enabled != nil {
		return ""
	}
	algorithm := ""
	for _, k := range l.Keys {
		if k.raw != string(sysctl.CongestionControl) || e.f.DefaultAlgorithm != k.Value || k.Value == "cubic" || k.Value == "reno" || !e.f.Algorithm(k.Value).Available {
			continue
		}
		algorithm = k.Value
	}
	return algorithm
}

// ownFile looks for a file of a tool's own.
func (e *examination) ownFile(l *Leftover, o OwnFile) {
	st, err := e.h.Files.Lstat(o.Path)
	if err != nil || st.IsDir() {
		return
	}
	f := e.text(o.Path)
	if f.err != nil {
		if st.Mode()&fs.ModeSymlink != 0 {
			e.note(text.T("%s is a link: it is left alone", o.Path))
		}
		return
	}
	p := Place{File: o.Path, raw: o.Path, Whole: true, Lines: []int{}, Blocked: f.blocked, Rule: o.Rule}
	for i, line := range f.lines {
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case o.owns(line):
			p.Lines = append(p.Lines, i+1)
		default:
			p.Whole = false
		}
	}
	if !p.Whole && len(p.Lines) == 0 {
		return // nothing in it is the tool's
	}
	e.claim(l, p, f, o.Keys != nil)
}

func (o OwnFile) owns(line string) bool {
	if o.Keys == nil {
		return slices.ContainsFunc(o.Lines, func(p string) bool { return matchLine(p, line) })
	}
	k, _, ok := assignment(line)
	return ok && o.known(k.String())
}

// assignment reads a normal line as a setting.
func assignment(line string) (k sysctl.Key, val string, ok bool) {
	if line == "" || line[0] == '#' || line[0] == ';' {
		return "", "", false
	}
	name, val, found := strings.Cut(strings.TrimPrefix(line, "-"), "=")
	k, err := sysctl.ParseKey(strings.TrimSpace(name))
	return k, strings.TrimSpace(val), found && err == nil
}

// block looks for a tool's lines in a file of the system.
func (e *examination) block(l *Leftover, b Block, name string) {
	f := e.text(name)
	if f.err != nil {
		return
	}
	least := b.Run
	if least == 0 {
		least = min(3, b.Need)
	}
	var lines, run []int
	distinct := map[string]bool{}
	end := func() {
		if len(run) >= least {
			lines = append(lines, run...)
		}
		run = nil
	}
	for i, line := range f.lines {
		switch {
		case !f.claimed[i] && slices.ContainsFunc(b.Lines, func(p string) bool { return matchLine(p, line) }):
			run = append(run, i+1)
		case line == "" || line[0] == '#' || line[0] == ';':
		default:
			end()
		}
	}
	end()
	for _, n := range lines {
		what, _, setting := strings.Cut(f.lines[n-1], "=")
		if !setting {
			what = f.lines[n-1]
		}
		distinct[what] = true
	}
	if len(distinct) < b.Need {
		return
	}
	e.claim(l, Place{File: name, raw: name, Lines: lines, Blocked: f.blocked, Rule: b.Rule}, f, b.Rule == "")
}

// claim gives lines to a tool and sorts the settings among them.
func (e *examination) claim(l *Leftover, p Place, f *textFile, areSettings bool) {
	for _, n := range p.Lines {
		f.claimed[n-1] = true
		if !areSettings {
			continue
		}
		k, val, ok := assignment(f.lines[n-1])
		if !ok {
			continue
		}
		j := e.judge(k, val, true)
		x := LeftKey{Key: sysctl.Printable(k.String()), Value: sysctl.Printable(val), File: p.File, Line: n, Class: j.class, raw: string(k)}
		switch {
		case j.rule != nil:
			x.Rule, x.Reason = j.rule.ID, j.rule.Reason
		case j.class == NoEffect:
			x.Reason = text.T("this kernel has no such setting")
		}
		l.Keys = append(l.Keys, x)
	}
	l.Places = append(l.Places, p)
}

// place is "FILE:LINE", printable.
func place(file string, line int) string {
	if line == 0 {
		return sysctl.Printable(file)
	}
	return fmt.Sprintf("%s:%d", sysctl.Printable(file), line)
}
