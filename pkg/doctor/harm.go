package doctor

import (
	"maps"
	"slices"
	"strings"

	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// Harm is a setting that does harm on this host.
type Harm struct {
	Rule    string  `json:"rule"` // for --only
	Setting string  `json:"setting"`
	Value   string  `json:"value"`
	Live    *string `json:"live"` // null: not a key, or not readable
	File    string  `json:"file"` // "" if it is only live
	Line    int     `json:"line"`
	Tool    string  `json:"tool,omitempty"` // which wrote it; "": not known, so it is left to the operator
	Reason  string  `json:"reason"`
	Symptom string  `json:"symptom"`
	Source  string  `json:"source"`
	Default string  `json:"default,omitempty"` // the kernel's own value
	Fixable bool    `json:"fixable"`
	raw     sysctl.Key
}

// fileRules are those about files and commands, by ID.
func fileRules() map[string]Rule {
	return map[string]Rule{
		"limits-replaced": {ID: "limits-replaced", Class: Harmful,
			Reason:  text.T("limits were set for every user and every program"),
			Symptom: text.T("a program that closes every possible descriptor at its start hangs or eats memory; what somebody had set before is gone"),
			Source:  "limits.conf(5)"},
		"manager-replaced": {ID: "manager-replaced", Class: Harmful,
			Reason:  text.T("the limits of every service were lifted and the time to stop was cut to 30 s"),
			Symptom: text.T("a database that needs longer is killed at shutdown; one service can take every process and file of the host"),
			Source:  "systemd-system.conf(5)"},
		"profile-ulimit": {ID: "profile-ulimit", Class: Harmful,
			Reason:  text.T("every login shell tries to raise its limit of open files"),
			Symptom: text.T("users who may not do so get an error at each login"),
			Source:  "bash(1), ulimit"},
		"modules-blocked": {ID: "modules-blocked", Class: Harmful,
			Reason:  text.T("kernel modules are kept from being loaded"),
			Symptom: text.T("IPsec (esp4, esp6) and AFS (rxrpc) do not work"),
			Source:  "modprobe.d(5)"},
		"offloads-off": {ID: "offloads-off", Class: Harmful,
			Reason:  text.T("the network card no longer cuts and joins packets itself"),
			Symptom: text.T("several times the work for each byte; the processor becomes the limit of fast connections"),
			Source:  "Documentation/networking/segmentation-offloads.rst"},
	}
}

// harmful gathers what does harm: the lines that tools left, what the next boot
// sets by other lines, and what is only live.
func (e *examination) harmful() {
	about := fileRules()
	seen := map[sysctl.Key]bool{}
	for _, l := range e.r.Leftovers {
		for _, p := range l.Places {
			if r, ok := about[p.Rule]; ok {
				line := 0
				if len(p.Lines) > 0 && !p.Whole {
					line = p.Lines[0]
				}
				e.r.Harmful = append(e.r.Harmful, Harm{Rule: r.ID, Setting: p.File, File: p.File, Line: line, Tool: l.Tool,
					Reason: r.Reason, Symptom: r.Symptom, Source: r.Source, Fixable: p.Blocked == "" && l.Fixable})
			}
		}
		for _, k := range l.Keys {
			if k.Class != Harmful {
				continue
			}
			seen[sysctl.Key(k.raw)] = true
			e.addHarm(sysctl.Key(k.raw), k.Value, k.File, k.Line, l.Tool, e.ruleOf(sysctl.Key(k.raw), k.Value, true), l.Fixable)
		}
	}
	// What a writer beside the files does.
	for _, w := range e.r.Writers {
		if r, ok := about[w.Rule]; ok {
			e.r.Harmful = append(e.r.Harmful, Harm{Rule: r.ID, Setting: w.Key, Value: w.Value, File: w.File, Line: w.Line, Reason: r.Reason, Symptom: r.Symptom, Source: r.Source})
		} else if k, err := sysctl.ParseKey(w.Key); err == nil && w.Active && !e.told(w.File, w.Line) {
			if r := e.ruleOf(k, w.Value, false); r != nil {
				e.addHarm(k, w.Value, w.File, w.Line, "", r, false)
			}
		}
	}
	for _, k := range e.suspects() {
		if seen[k] {
			continue
		}
		a, ok := e.boot.Lookup(k)
		if ok {
			if r := e.ruleOf(k, a.Value, false); r != nil {
				e.addHarm(k, sysctl.Printable(a.Value), sysctl.Printable(a.File), a.Line, "", r, false)
				continue
			}
		}
		if live := e.live(k); live != nil {
			if r := e.ruleOf(k, *live, false); r != nil && !sysctl.Equal(*live, r.Default) {
				e.addHarm(k, sysctl.Printable(strings.Join(strings.Fields(*live), " ")), "", 0, "", r, false)
			}
		}
	}
}

// told: the line is named already, as one of a tool's.
func (e *examination) told(file string, line int) bool {
	return slices.ContainsFunc(e.r.Harmful, func(h Harm) bool { return h.File == file && h.Line == line })
}

// ruleOf is the harmful rule that a value falls under, or nil.
func (e *examination) ruleOf(k sysctl.Key, val string, attributed bool) *Rule {
	if j := e.judge(k, val, attributed); j.class == Harmful {
		return j.rule
	}
	return nil
}

func (e *examination) addHarm(k sysctl.Key, val, file string, line int, tool string, r *Rule, fixable bool) {
	if r == nil {
		return
	}
	h := Harm{Rule: r.ID, Setting: sysctl.Printable(k.String()), Value: val, File: file, Line: line, Tool: tool,
		Reason: r.Reason, Symptom: r.Symptom, Source: r.Source, Default: r.Default, Fixable: fixable, raw: k}
	if v := e.live(k); v != nil {
		s := sysctl.Printable(strings.Join(strings.Fields(*v), " "))
		h.Live = &s
	}
	e.r.Harmful = append(e.r.Harmful, h)
}

// suspects are the keys that rules speak of, sorted.
func (e *examination) suspects() []sysctl.Key {
	set := map[sysctl.Key]bool{}
	set2 := func(s string) {
		if k, err := sysctl.ParseKey(s); err == nil {
			set[k] = true
		}
	}
	for i := range e.rules {
		r := &e.rules[i]
		if r.Class != Harmful || r.Attributed {
			continue
		}
		for _, pattern := range r.Keys {
			if !strings.Contains(pattern, "*") {
				set2(pattern)
				continue
			}
			for _, name := range []string{"all", "default"} {
				set2(strings.Replace(pattern, "*", name, 1))
			}
			for _, k := range e.boot.Keys() {
				if matchKey(pattern, k.String()) {
					set[k] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
