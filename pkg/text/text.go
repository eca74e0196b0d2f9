// Package text is the catalogue of the sentences that a user sees. It is a thin
// layer over fmt: the English text is the key, so a sentence is written where
// it is used, in the language of the code, and a translation is one file that
// names the same text. Nothing else is localised: numbers keep their digits
// ungrouped, and kernel names, keys and JSON stay as they are.
//
// It also knows how wide a text is on a terminal, how to fold it, and how to
// make a string that came from a file or the kernel safe to print.
package text

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"
)

// Catalogue maps an English format, exactly as it stands in the code, to its
// translation. A translation uses the same verbs for the same arguments; it may
// reorder them with explicit indexes ("%[2]s").
type Catalogue map[string]string

// ErrVerbs is returned by Check for a translation whose verbs do not fit.
var ErrVerbs = errors.New("the verbs of the translation differ from those of the English text")

// Check reports every translation that would print something else than its
// English text: a missing or additional argument, or another verb. The errors
// are joined and satisfy errors.Is with ErrVerbs.
func (c Catalogue) Check() error {
	var errs []error
	for _, english := range c.keys() {
		want, err := verbs(english)
		if err != nil {
			errs = append(errs, fmt.Errorf("%q: %w: %w", english, ErrVerbs, err))
			continue
		}
		got, err := verbs(c[english])
		if err != nil {
			errs = append(errs, fmt.Errorf("%q: %w: %w", c[english], ErrVerbs, err))
			continue
		}
		if len(want) != len(got) {
			errs = append(errs, fmt.Errorf("%q has %d arguments, %q has %d: %w", english, len(want), c[english], len(got), ErrVerbs))
			continue
		}
		for arg, verb := range want {
			if got[arg] != verb {
				errs = append(errs, fmt.Errorf("%q: argument %d is %q, in %q it is %q: %w", english, arg, verb, c[english], got[arg], ErrVerbs))
			}
		}
	}
	return errors.Join(errs...)
}

func (c Catalogue) keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// verbs gives the verb (with its flags, without its width) of each argument of
// a format, by the number of the argument, counted from 1. The width may differ
// between languages, since a column is aligned elsewhere.
func verbs(format string) (map[int]string, error) {
	out := map[int]string{}
	arg := 0
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			continue
		}
		i++
		if i < len(format) && format[i] == '%' {
			continue
		}
		flags := ""
		for i < len(format) && strings.IndexByte("+-# 0", format[i]) >= 0 {
			if format[i] != '-' && format[i] != '0' { // padding only
				flags += string(format[i])
			}
			i++
		}
		for i < len(format) && format[i] >= '0' && format[i] <= '9' {
			i++
		}
		if i < len(format) && format[i] == '.' {
			j := i
			i++
			for i < len(format) && format[i] >= '0' && format[i] <= '9' {
				i++
			}
			flags += format[j:i]
		}
		if i < len(format) && format[i] == '[' {
			end := strings.IndexByte(format[i:], ']')
			n := 0
			if end < 0 {
				return nil, errors.New("an argument index is not closed")
			}
			if _, err := fmt.Sscanf(format[i:i+end+1], "[%d]", &n); err != nil || n < 1 {
				return nil, errors.New("an argument index is no number")
			}
			arg = n - 1
			i += end + 1
		}
		if i >= len(format) {
			return nil, errors.New("the format ends inside a verb")
		}
		if c := format[i]; c == '*' || !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
			return nil, fmt.Errorf("%q is no verb", "%"+string(c))
		}
		arg++
		verb := flags + string(format[i])
		if old, ok := out[arg]; ok && old != verb {
			return nil, fmt.Errorf("argument %d is used as %q and as %q", arg, old, verb)
		}
		out[arg] = verb
	}
	return out, nil
}

// catalogues holds every language besides English by its ISO 639 name.
var catalogues = map[string]Catalogue{}

var current atomic.Pointer[Catalogue]

// T formats like fmt.Sprintf in the language that SetLanguage chose; a text that
// has no translation stays English. The first argument must be a constant
// string, which a test enforces.
func T(format string, args ...any) string {
	if translated, ok := lookup(format); ok {
		return fmt.Sprintf(translated, args...)
	}
	return fmt.Sprintf(format, args...)
}

// Errorf is T for errors: it formats like fmt.Errorf, %w included, so that an
// error whose message a user reads can still be matched with errors.Is.
func Errorf(format string, args ...any) error {
	if translated, ok := lookup(format); ok {
		return fmt.Errorf(translated, args...)
	}
	return fmt.Errorf(format, args...)
}

func lookup(format string) (string, bool) {
	c := current.Load()
	if c == nil {
		return "", false
	}
	translated, ok := (*c)[format]
	return translated, ok
}

// SetLanguage chooses the language of T by a tag such as "zh", "zh_CN.UTF-8" or
// "zh-Hans". A language without a catalogue is English.
func SetLanguage(tag string) {
	c, ok := catalogues[base(tag)]
	if !ok {
		current.Store(nil)
		return
	}
	current.Store(&c)
}

// base cuts a tag down to its language: "zh_CN.UTF-8" is "zh".
func base(tag string) string {
	if i := strings.IndexAny(tag, "_-.@"); i >= 0 {
		tag = tag[:i]
	}
	return strings.ToLower(tag)
}

// Language finds the language that the user's environment asks for, as a tag
// for SetLanguage. ACCEL_LANG decides; otherwise the first of LC_ALL,
// LC_MESSAGES and LANG that is set, as POSIX has it. "" (English) is returned
// where there is no catalogue, where the locale's encoding is not UTF-8, and
// on the Linux console, whose font has no such letters; ACCEL_LANG overrules
// these two as well.
func Language(getenv func(string) string) string {
	if tag := getenv("ACCEL_LANG"); tag != "" {
		return known(tag)
	}
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		tag := getenv(name)
		if tag == "" {
			continue
		}
		if getenv("TERM") == "linux" {
			return ""
		}
		if _, encoding, found := strings.Cut(tag, "."); found {
			encoding, _, _ = strings.Cut(encoding, "@")
			switch strings.ToLower(encoding) {
			case "utf-8", "utf8":
			default:
				return ""
			}
		}
		return known(tag)
	}
	return ""
}

func known(tag string) string {
	if _, ok := catalogues[base(tag)]; ok {
		return base(tag)
	}
	return ""
}
