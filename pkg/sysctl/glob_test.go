package sysctl

import (
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMatchElem(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no string // names, separated by blanks
	}{
		{"*", "a lo eth0.100", ".a"},
		{"l?", "lo la", "l lox"},
		{"eth0.*", "eth0.100 eth0.", "eth0 eth01"},
		{"[al]*", "all lo", "eth0 ["},
		{"[!l]*", "all !x", "lo"},
		{"[^l]*", "all ^", "lo"},
		{"[]a]*", "]x all", "lo"},
		{"[!]a]*", "lo", "]x all"},
		{"[a-l]o", "lo ao", "mo -o"},
		{"[l-]o", "lo -o", "ao mo"},
		{"[z-a]o", "", "lo zo -o"},
		{"[[:alpha:]]*", "lo Lo", "0x _x"},
		{"eth[[:digit:]]", "eth0", "ethx eth"},
		{"[[:nosuch:]l]o", "", "lo"},
		{"[l[:nosuch:]]o", "lo", "ao"},
		{"[![:nosuch:]]o", "", "lo ao"},
		{"[[=l=]]o", "lo", "ao"},
		{"[[.l.]-n]o", "lo mo no", "ko"},
		{"[a", "[a", "a"},
		{"x[", "x[", "x"},
		{`\*`, "*", "a"},
		{`l\o`, "lo", `l\o`},
		{`[\]]o`, "]o", "lo"},
		{"*a*b*c*", "abc xaxbxcx", "acb ab"},
		{"**", "a", ".a"},
		{".*", ".a", "a"},
		{"\xff*", "\xffx", "x"},
		{"", "", "a"},
	} {
		for _, n := range strings.Fields(c.yes) {
			if !matchElem(c.pattern, n) {
				t.Errorf("%q does not match %q", c.pattern, n)
			}
		}
		for _, n := range strings.Fields(c.no) {
			if matchElem(c.pattern, n) {
				t.Errorf("%q matches %q", c.pattern, n)
			}
		}
	}
}

func TestExpandBraces(t *testing.T) {
	for pattern, want := range map[string][]string{
		"a":           {"a"},
		"a{b,c}d":     {"abd", "acd"},
		"{a,b}{c,d}":  {"ac", "ad", "bc", "bd"},
		"{a,{b,c}x}":  {"a", "bx", "cx"},
		"{}":          {""},
		"{,a}b":       {"b", "ab"},
		"{a":          {"{a"},
		"a}":          {"a}"},
		`\{a,b}`:      {`\{a,b}`},
		`{a\,b,c}`:    {`a\,b`, "c"},
		"{a,b}{c":     {"a{c", "b{c"},
		"{a}{b,{c,d}": {"a{b,{c,d}"},
	} {
		got, ok := expandBraces(pattern)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%q: %v %s", pattern, ok, diff)
		}
	}
	if got, ok := expandBraces(strings.Repeat("{a,b}", 11)); ok {
		t.Errorf("%d alternatives", len(got))
	}
}

// Where both say the same, path.Match is the measure.
func TestMatchLikeGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*?]{0,8}|[ab*?]{0,4}\[[ab]{1,2}\][ab*?]{0,4}|a\[\^[ab]\]b*|[ab]{0,2}\\[ab*][ab*]{0,3}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab*]{0,8}`).Draw(t, "name")
		want, err := path.Match(pattern, name)
		if err != nil {
			t.Fatalf("%q: %v", pattern, err)
		}
		if got := matchElem(pattern, name); got != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, name, got, want)
		}
	})
}

func FuzzMatch(f *testing.F) {
	f.Add("*[a-z]\\x[!b]?[[:alpha:]]*", "abc")
	f.Add("[[.x.]-[=y=]", "x")
	f.Add("[[:", "[")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 1<<10 || len(name) > 1<<8 {
			return
		}
		start := time.Now()
		got := matchElem(pattern, name)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%q with %q took %v", pattern, name, took)
		}
		// Stars around a pattern never turn a yes into a no.
		if got && !strings.HasPrefix(name, ".") && !strings.HasSuffix(pattern, `\`) && hasMagic(pattern) && !fnmatch("*"+pattern+"*", name) {
			t.Errorf("%q matches %q, but not with stars around it", pattern, name)
		}
		all, ok := expandBraces(pattern)
		if ok && len(all) == 0 || len(all) > maxBraces {
			t.Errorf("%q has %d alternatives", pattern, len(all))
		}
	})
}
