package lab

import (
	"strings"

	"accel/pkg/text"
)

// Why something of an arm could not be compared. These stand in saved results,
// which are English everywhere; Translated says them in the reader's language.
const (
	noSuchKey      = "no such key in a network namespace of this kernel"
	refusedValue   = "the kernel refuses " // and the value, quoted
	unchangeable   = "cannot be changed in a network namespace"
	notOneKey      = "not the name of one key"
	ofTheWholeHost = "belongs to the whole host"
	noSuchQdisc    = "this kernel has none; sent without one"
)

// Translated gives an entry of Arm.NotCompared in the language of the reader.
// What it does not know it leaves as it is.
func Translated(notCompared string) string {
	what, why, ok := strings.Cut(notCompared, ": ")
	if !ok {
		return notCompared
	}
	switch why {
	case noSuchKey:
		return text.T("%s: no such key in a network namespace of this kernel", what)
	case unchangeable:
		return text.T("%s: cannot be changed in a network namespace", what)
	case notOneKey:
		return text.T("%s: not the name of one key", what)
	case ofTheWholeHost:
		return text.T("%s: belongs to the whole host", what)
	case noSuchQdisc:
		return text.T("%s: this kernel has none; sent without one", what)
	}
	if value, ok := strings.CutPrefix(why, refusedValue); ok {
		return text.T("%s: the kernel refuses %s", what, value)
	}
	if number, ok := strings.CutPrefix(what, "line "); ok {
		return text.T("line %s: %s", number, why)
	}
	return notCompared
}
