package doctor

import (
	"regexp"
	"slices"
	"strings"

	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Key explains one setting that accel cares about.
type Key struct {
	Key  string  `json:"key"`
	Live *string `json:"live"` // null: no such key, or not readable
	Wish *string `json:"wish"` // null: accel does not set it here
	Boot []Boot  `json:"boot"` // what the files make of it, in systemd's order and in procps'
	// Next is what the host should have after its next boot, everything that
	// was found considered; null: the kernel's own value.
	Next *string `json:"next"`
	By   string  `json:"by"`   // who has the last word: "files", "accel", "ufw", "tuned", ...; "" for the kernel
	Why  string  `json:"why"`  // in one or two sentences
	Lost bool    `json:"lost"` // accel wants something else, and will not have it
}

// Boot is what one of the two orders makes of a key.
type Boot struct {
	Order   string  `json:"order"` // "systemd" or "procps"
	Value   *string `json:"value"` // null: no file sets it, or none that the kernel takes
	File    string  `json:"file"`
	Line    int     `json:"line"`
	Target  string  `json:"target,omitempty"` // the file behind File, if that is a link
	Refused string  `json:"refused,omitempty"`
	Loses   []Line  `json:"loses"`          // lines that name the key and lose, in reading order
	More    int     `json:"more,omitempty"` // so many more lose, which are not listed
}

// Line is one line of a file that sets a key.
type Line struct {
	Value string `json:"value"`
	File  string `json:"file"`
	Line  int    `json:"line"`
}

// explain says for every key of accel's what the files make of it.
func (e *examination) explain() {
	keys := []sysctl.Key{sysctl.CongestionControl, sysctl.DefaultQdisc}
	for _, w := range e.wishes {
		if !slices.Contains(keys, w.Key) {
			keys = append(keys, w.Key)
		}
	}
	for _, k := range keys {
		x := Key{Key: k.String(), Live: e.live(k), Wish: e.wish(k), Boot: []Boot{e.bootOf(e.systemd, k), e.bootOf(e.procps, k)}}
		e.r.Keys = append(e.r.Keys, x)
		e.keys = append(e.keys, k)
	}
}

// accepts: as far as is known the kernel takes this value.
func (e *examination) accepts(k sysctl.Key) func(string) bool {
	return func(v string) bool {
		switch k {
		case sysctl.CongestionControl, sysctl.DefaultQdisc:
			// No kernel has one of a name with quotes or a comment behind it.
			if !kernelName.MatchString(v) {
				return false
			}
		}
		switch k {
		case sysctl.CongestionControl:
			if len(e.f.Algorithms) == 0 || !e.f.ModuleIndex {
				return true
			}
			a := e.f.Algorithm(v)
			return a.Available || a.Origin != "absent" && a.Blocked == ""
		case sysctl.DefaultQdisc:
			if !e.f.ModuleIndex {
				return true
			}
			q := e.f.Qdisc(v)
			return q.Origin != "absent" && q.Blocked == ""
		}
		return true
	}
}

// inForce is sysctl.Config.InForce with what the kernel makes of numbers: "9 # more"
// is 9, and a row that is too short leaves the rest as it was, which is as it is
// now, for all that is known.
func (e *examination) inForce(c *sysctl.Config, k sysctl.Key) (a sysctl.Assignment, held string, ok bool) {
	accepts := e.accepts(k)
	if v := e.live(k); v != nil {
		held = *v
	}
	for _, w := range c.Writes(k) {
		if v, taken := sysctl.Taken(held, w.Value); taken && accepts(w.Value) {
			a, held, ok = w, strings.ReplaceAll(v, "\t", " "), true
		}
	}
	return a, held, ok
}

// mostLines is how many lines that lose are listed.
const mostLines = 100

// kernelName is how algorithms and qdiscs are called: TCP_CA_NAME_MAX and IFNAMSIZ
// leave them 15 bytes.
var kernelName = regexp.MustCompile(`\A[A-Za-z0-9_.-]{1,15}\z`)

func (e *examination) bootOf(c *sysctl.Config, k sysctl.Key) Boot {
	b := Boot{Order: c.Order().String(), Loses: []Line{}}
	a, held, ok := e.inForce(c, k)
	if ok {
		v := sysctl.Printable(held)
		b.Value, b.File, b.Line, b.Target = &v, sysctl.Printable(a.File), a.Line, sysctl.Printable(a.Target)
	}
	if tried, any := c.Lookup(k); any && (!ok || tried.File != a.File || tried.Line != a.Line) {
		b.Refused = sysctl.Printable(tried.Value)
		if !ok {
			b.File, b.Line, b.Target = sysctl.Printable(tried.File), tried.Line, sysctl.Printable(tried.Target)
		}
	}
	for _, l := range c.All(k) {
		if sysctl.Printable(l.File) != b.File || l.Line != b.Line {
			if len(b.Loses) == mostLines {
				b.More++
				continue
			}
			b.Loses = append(b.Loses, Line{Value: sysctl.Printable(l.Value), File: sysctl.Printable(l.File), Line: l.Line})
		}
	}
	return b
}

// late are the writers that come after the files of sysctl, in the order in
// which a boot runs them.
var late = []string{"ufw", "ifupdown", "networkd", "tuned", "unit", "rc.local", "cron"}

// foretell says who has the last word at the next boot.
func (e *examination) foretell() {
	for i := range e.r.Keys {
		x := &e.r.Keys[i]
		b := x.Boot[0]
		if e.boot == e.procps {
			b = x.Boot[1]
		}
		x.Next, x.By, x.Why = b.Value, "files", e.why(x, b)
		if b.Value == nil {
			x.By = ""
		}
		for _, tool := range late {
			for j, w := range e.r.Writers {
				if w.Tool != tool || w.Key != x.Key || !w.Active || w.Value == "" {
					continue
				}
				if tool == "tuned" && b.Value != nil && w.Yields {
					x.Why += " " + text.T("tuned sets it to %s and then reads the sysctl files again, so these stay in force.", w.Value)
					continue
				}
				v := w.Value
				x.Next, x.By = &v, tool
				e.r.Writers[j].Matters = e.r.Writers[j].Matters || e.differs(e.keys[i], v)
				x.Why = text.T("%s sets it later than the sysctl files (%s).", tool, place(w.File, w.Line))
			}
		}
		if e.r.Enabled == nil || x.Wish == nil {
			continue
		}
		wrong := x.Next == nil || !e.met(e.keys[i], *x.Next)
		switch {
		case wrong && e.heals:
			x.Next, x.By = x.Wish, "accel"
			x.Why = strings.TrimSpace(x.Why + " " + text.T("accel's service starts after that and puts %s back.", *x.Wish))
		case wrong:
			x.Lost = true
		}
	}
}

// why says why the line that wins wins.
func (e *examination) why(x *Key, b Boot) string {
	var out []string
	say := func(s string) { out = append(out, s) }
	k, err := sysctl.ParseKey(x.Key)
	switch {
	case b.Refused != "" && b.Value == nil:
		say(text.T("%s wants %s, which this kernel does not have: it keeps its own.", place(b.File, b.Line), b.Refused))
	case b.Refused != "":
		say(text.T("a later line wants %s, which this kernel does not have.", b.Refused))
	case b.Value == nil && sameValue(x.Boot[0].Value, x.Boot[1].Value):
		say(text.T("No file sets it: the kernel's own value."))
	case b.Target != "":
		say(text.T("%s is a link to %s.", b.File, b.Target))
	}
	if err == nil && b.Value == nil {
		if a, ok := e.boot.Excluded(k); ok {
			say(text.T("%s takes it out again.", place(sysctl.Printable(a.File), a.Line)))
		}
	}
	if b.Value != nil && b.File != tuning.SysctlFile {
		for _, l := range b.Loses {
			if l.File == tuning.SysctlFile {
				say(text.T("Files are read in the order of their names, and %s comes after accel's.", b.File))
			}
		}
	}
	s, p := x.Boot[0], x.Boot[1]
	if !sameValue(s.Value, p.Value) {
		switch {
		case p.File == "/etc/sysctl.conf" && e.boot == e.systemd:
			say(text.T("\"sysctl --system\" would set %s: it reads /etc/sysctl.conf last, which a boot with systemd does not read.", *p.Value))
		case p.File == "/etc/sysctl.conf":
			say(text.T("systemd would not read /etc/sysctl.conf."))
		default:
			say(text.T("systemd and procps do not agree here: %s and %s.", orKernel(s.Value), orKernel(p.Value)))
		}
	} else if dead := e.dead(x.Key); dead != "" {
		say(text.T("%s sets it too, but is not read at boot here.", dead))
	}
	return strings.Join(out, " ")
}

// dead names the line of /etc/sysctl.conf that boot does not read.
func (e *examination) dead(key string) string {
	if e.boot != e.systemd {
		return ""
	}
	k, err := sysctl.ParseKey(key)
	if err != nil {
		return ""
	}
	for _, a := range e.systemd.All(k) {
		if a.Target == "/etc/sysctl.conf" {
			return ""
		}
	}
	for _, a := range e.procps.All(k) {
		if a.File == "/etc/sysctl.conf" {
			return place(a.File, a.Line)
		}
	}
	return ""
}

func sameValue(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sysctl.Equal(*a, *b)
}

func orKernel(v *string) string {
	if v == nil {
		return text.T("the kernel's own value")
	}
	return *v
}
