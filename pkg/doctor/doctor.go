// Package doctor says what else on a host sets the same things as accel, what
// the next boot will make of them, and what the scripts of others left behind;
// and it cleans up, with consent and so that all of it can be put back.
//
// Two rules hold everywhere: only lines that can be attributed to a known tool
// are ever changed, and nothing is changed before what was there is on disk.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Schema names the layout of Report.
const Schema = "accel.doctor/1"

// Verdicts of a report.
const (
	Clean = "clean"
	Found = "found"
)

// Report is the document behind `accel doctor`.
type Report struct {
	Schema    string          `json:"schema"`  // "accel.doctor/1"
	Verdict   string          `json:"verdict"` // "clean" or "found"
	Reason    string          `json:"reason"`
	Next      string          `json:"next,omitempty"` // what to do about it
	Exit      int             `json:"exit"`           // 0 nothing found, 4 something found
	Enabled   *tuning.Enabled `json:"enabled"`        // null: accel has nothing enabled
	Order     string          `json:"order"`          // which order this host boots with: "systemd" or "procps"
	Keys      []Key           `json:"keys"`
	Leftovers []Leftover      `json:"leftovers"`
	Harmful   []Harm          `json:"harmful"`
	Writers   []Writer        `json:"writers"`
	// Connections are those with another algorithm than the chosen one; null in
	// the hasty form.
	Connections *Connections `json:"connections"`
	Fixed       []Fixed      `json:"fixed"` // what --fix did before and --undo would put back
	Notes       []string     `json:"notes"`
	Change      *Change      `json:"change,omitempty"` // what --fix or --undo did, or would do
}

// Fixed is a clean-up that can be undone.
type Fixed struct {
	Time        string   `json:"time"`        // name of its directory, UTC
	Directory   string   `json:"directory"`   //
	Files       []string `json:"files"`       // that were changed
	Interrupted bool     `json:"interrupted"` // it did not come to its end
}

// Options of Examine.
type Options struct {
	// Hasty leaves out what takes time: scripts, units and processes. For the
	// one line in status.
	Hasty bool
}

// Examine looks at a host and changes nothing. It works without root and with
// any file missing or unreadable. The error is of the host as a whole.
func Examine(ctx context.Context, h *tuning.Host, o Options) (*Report, error) {
	e, err := newExamination(h)
	if err != nil {
		return nil, err
	}
	e.hasty = o.Hasty
	if !e.hasty {
		e.connections(ctx)
	}
	e.all()
	return e.r, nil
}

// all looks at everything.
func (e *examination) all() {
	e.explain()
	e.leftovers()
	if !e.hasty {
		e.writers()
		e.routes()
	}
	e.harmful()
	e.foretell()
	e.fixed()
	e.notes()
	e.judgeAll()
}

// examination is one Examine at work.
type examination struct {
	h       *tuning.Host
	f       *kernel.Facts
	facts   facts
	rules   []Rule
	wishes  []tuning.Want
	systemd *sysctl.Config
	procps  *sysctl.Config
	boot    *sysctl.Config // the one of the two that this host boots with
	texts   map[string]*textFile
	keys    []sysctl.Key // those of the report
	hasty   bool
	heals   bool // accel's service has the last word
	r       *Report
}

func newExamination(h *tuning.Host) (*examination, error) {
	f, err := h.Detect()
	if err != nil {
		return nil, &tuning.Problem{Exit: tuning.ExitFailed, Err: fmt.Errorf("%s: %w", text.T("looking at this host"), err), Next: text.T("Mend the cause and try again.")}
	}
	e := &examination{h: h, f: f, rules: rules(), texts: map[string]*textFile{}, r: &Report{
		Schema: Schema, Keys: []Key{}, Leftovers: []Leftover{}, Harmful: []Harm{}, Writers: []Writer{}, Fixed: []Fixed{}, Notes: []string{},
	}}
	e.facts = facts{memory: f.MemoryBytes, major: f.Release.Major, minor: f.Release.Minor, routes: forwards(f)}
	_, err = h.Sysctl.Read("kernel/osrelease")
	e.facts.knowsNames = !h.Recorded && err == nil
	wishes, enabled, err := tuning.Wanted(h)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrPermission):
		e.note(text.T("%s may not be read, so it is not known what is enabled", tuning.StateFile))
	default:
		e.note(err.Error())
	}
	e.wishes, e.r.Enabled = wishes, enabled
	if e.systemd, err = sysctl.ReadConfig(h.Root, sysctl.Systemd); err == nil {
		e.procps, err = sysctl.ReadConfig(h.Root, sysctl.Procps)
	}
	if err != nil {
		return nil, &tuning.Problem{Exit: tuning.ExitFailed, Err: fmt.Errorf("%s: %w", text.T("reading the sysctl files"), err), Next: text.T("Mend the cause and try again.")}
	}
	e.boot = e.systemd
	if !e.bootsSystemd() {
		e.boot = e.procps
	}
	e.r.Order = e.boot.Order().String()
	e.heals = enabled != nil && e.bootsSystemd() && e.exists("/etc/systemd/system/multi-user.target.wants/accel.service")
	return e, nil
}

func (e *examination) note(s string) {
	if !slices.Contains(e.r.Notes, s) {
		e.r.Notes = append(e.r.Notes, s)
	}
}

func (e *examination) exists(name string) bool {
	_, err := e.h.Files.Lstat(name)
	return err == nil
}

// bootsSystemd: of an image that never ran only the files can tell.
func (e *examination) bootsSystemd() bool {
	if e.f.Systemd || e.f.PID1 == "systemd" {
		return true
	}
	if e.f.PID1 != "" && !e.h.Recorded {
		return false
	}
	return !e.exists("/etc/init.d/procps") && !e.exists("/etc/runlevels") || e.exists("/usr/lib/systemd/systemd") || e.exists("/lib/systemd/systemd")
}

// forwards: something here may need packets of others to pass: a container, a
// second network card, or any link that is no card, such as a bridge or a tunnel.
// Where the links are not known, something may, too.
func forwards(f *kernel.Facts) bool {
	cards := 0
	for _, l := range f.Links {
		switch {
		case l.Loopback:
		case l.Hardware:
			cards++
		case l.Up:
			return true
		}
	}
	return len(f.Containers) > 0 || f.OtherNetns > 0 || cards != 1
}

func (e *examination) wish(k sysctl.Key) *string {
	for _, w := range e.wishes {
		if w.Key == k {
			return &w.Value
		}
	}
	return nil
}

// live is the value of now; nil if it cannot be read.
func (e *examination) live(k sysctl.Key) *string {
	v, err := e.h.Sysctl.Read(k)
	if err != nil {
		return nil
	}
	return &v
}

// missing: the running kernel has no such setting. Modules that are not loaded
// may bring some.
func (e *examination) missing(k sysctl.Key) bool {
	if !e.facts.knowsNames || strings.HasPrefix(string(k), "net/netfilter/") || strings.HasPrefix(string(k), "net/nf_conntrack") {
		return false
	}
	_, err := e.h.Sysctl.Read(k)
	return errors.Is(err, sysctl.ErrMissing)
}

// other is the value that a key has or gets at the next boot, for rules that
// look at two.
func (e *examination) other(key string) string {
	k, err := sysctl.ParseKey(key)
	if err != nil {
		return ""
	}
	if a, ok := e.boot.Lookup(k); ok {
		return a.Value
	}
	if v := e.live(k); v != nil {
		return *v
	}
	return ""
}

// routes are default routes that carry an algorithm of their own.
func (e *examination) routes() {
	list, err := e.h.Routes.Defaults()
	if err != nil {
		return
	}
	for _, r := range list {
		if r.CongestionControl == "" {
			continue
		}
		w := Writer{Tool: "route", Key: sysctl.CongestionControl.String(), Value: r.CongestionControl, Active: true,
			Meaning: text.T("the default route over %s (%s, table %d, made by %s) carries congctl %s, which beats the sysctl", r.Link, r.Family, r.Table, r.Protocol, r.CongestionControl)}
		w.Matters = e.differs(sysctl.CongestionControl, r.CongestionControl)
		e.r.Writers = append(e.r.Writers, w)
	}
}

// differs: accel wants, or once enabled would want, another value.
func (e *examination) differs(k sysctl.Key, v string) bool {
	return e.wish(k) != nil && !e.met(k, v)
}

// met: accel wants nothing of this key, or would be content with the value.
func (e *examination) met(k sysctl.Key, v string) bool {
	for _, w := range e.wishes {
		if w.Key == k {
			return w.Met(v)
		}
	}
	return true
}

// notes adds what a person should know besides.
func (e *examination) notes() {
	const most = 5
	n := 0
	for _, p := range e.boot.Problems() {
		if p.Kind == sysctl.Repeated {
			continue
		}
		if n++; n > most {
			continue
		}
		where := sysctl.Printable(p.File)
		if p.Line > 0 {
			where += fmt.Sprintf(":%d", p.Line)
		}
		e.note(where + ": " + p.Reason)
	}
	if n > most {
		e.note(text.T("and %d more lines like that", n-most))
	}
}

// judgeAll reaches the verdict.
func (e *examination) judgeAll() {
	r := e.r
	var parts []string
	switch n := len(r.Leftovers); {
	case n == 1:
		parts = append(parts, text.T("what %s left behind", r.Leftovers[0].Name))
	case n > 1:
		parts = append(parts, text.T("what %d other tools left behind", n))
	}
	switch n := len(r.Harmful); {
	case n == 1:
		parts = append(parts, text.T("one setting that does harm"))
	case n > 1:
		parts = append(parts, text.T("%d settings that do harm", n))
	}
	n := 0
	for _, w := range r.Writers {
		if w.Matters {
			n++
		}
	}
	switch {
	case n == 1:
		parts = append(parts, text.T("one other that sets accel's keys"))
	case n > 1:
		parts = append(parts, text.T("%d others that set accel's keys", n))
	}
	for _, k := range r.Keys {
		if k.Lost {
			parts = append(parts, text.T("%s will not be what accel wants after the next boot", k.Key))
		}
	}
	if n := r.Connections.old(); n == 1 {
		parts = append(parts, text.T("a container whose own default is another algorithm"))
	} else if n > 1 {
		parts = append(parts, text.T("%d containers whose own default is another algorithm", n))
	}
	interrupted := slices.ContainsFunc(r.Fixed, func(f Fixed) bool { return f.Interrupted })
	if interrupted {
		parts = append(parts, text.T("a clean-up that was interrupted"))
	}
	if len(parts) == 0 {
		r.Verdict, r.Exit, r.Reason = Clean, tuning.ExitGood, text.T("nothing else here sets what accel sets, and nothing that does harm was found")
		if slices.ContainsFunc(r.Writers, func(w Writer) bool { return w.Active && w.Key != "" }) {
			r.Reason = text.T("nothing that does harm was found; what else sets something is named below")
		}
		return
	}
	r.Verdict, r.Exit, r.Reason = Found, tuning.ExitAttention, strings.Join(parts, "; ")
	switch {
	case interrupted:
		r.Next = text.T("To put everything back: accel doctor --undo. To clean up: accel doctor --fix")
	case slices.ContainsFunc(r.Leftovers, func(l Leftover) bool { return l.Fixable }):
		r.Next = text.T("To clean up, after seeing every change: accel doctor --fix")
	}
}

// Hint is the one line for status: "" where doctor has nothing to say. It is
// cheap: no scripts, units or processes are looked at.
func Hint(ctx context.Context, h *tuning.Host) string {
	r, err := Examine(ctx, h, Options{Hasty: true})
	if err != nil || r.Verdict == Clean {
		return ""
	}
	return text.T("accel doctor has something to say: %s", r.Reason)
}

// readable reads a file of limited size; nil for what cannot be used.
func readable(f files.FS, name string, most int64) ([]byte, error) {
	st, err := f.Lstat(name)
	if err != nil {
		return nil, err
	}
	if st.Mode().IsRegular() && st.Size() > most {
		return nil, files.ErrTooLarge
	}
	data, err := f.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, files.ErrTooLarge
	}
	return data, nil
}
