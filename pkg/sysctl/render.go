package sysctl

import (
	"bytes"
	"fmt"
	"strings"
)

// KeyValue is one setting of our own file.
type KeyValue struct {
	Key   Key
	Value string
}

// CheckSetting says why a setting cannot be written into a sysctl file so that
// both tools set exactly it; nil if it can.
func CheckSetting(kv KeyValue) error {
	if err := kv.Key.check(); err != nil {
		return fmt.Errorf("writing %q into a sysctl file: %w", string(kv.Key), err)
	}
	k := string(kv.Key)
	switch {
	case isPattern(k) || strings.Contains(k, `\`):
		return fmt.Errorf("writing %s into a sysctl file: %w: it would be taken for a pattern", Printable(k), ErrKey)
	case strings.Contains(k, "=") || k[0] == '#' || k[0] == ';' || k[0] == '-':
		return fmt.Errorf("writing %s into a sysctl file: %w: it cannot be written there", Printable(k), ErrKey)
	case strings.Trim(kv.Value, procpsSpace) != kv.Value || strings.ContainsAny(kv.Value, "\n\r\x00"):
		return fmt.Errorf("writing %s into a sysctl file: %w: %s has blanks around it or more than one line", kv.Key, ErrValue, quote(kv.Value))
	case len(k)+len(kv.Value)+len(" = ") > systemdLine:
		return fmt.Errorf("writing %s into a sysctl file: %w: it is too long", kv.Key, ErrValue)
	}
	return nil
}

// Render is the content of a sysctl file: the header as comments, an empty line,
// and one plain "key = value" line for each setting, in the order given, with
// nothing after the value. The same arguments give the same bytes. A setting that
// CheckSetting refuses is left out, and a comment stands in its place.
func Render(header []string, settings []KeyValue) []byte {
	var b bytes.Buffer
	for _, h := range header {
		for _, line := range strings.FieldsFunc(h+" ", func(r rune) bool { return r == '\n' || r == '\r' || r == 0 }) {
			fmt.Fprintln(&b, strings.TrimRight("# "+line, " "))
		}
	}
	if len(header) > 0 && len(settings) > 0 {
		b.WriteByte('\n')
	}
	for _, kv := range settings {
		if err := CheckSetting(kv); err != nil {
			fmt.Fprintf(&b, "# left out: %s\n", Printable(err.Error()))
			continue
		}
		fmt.Fprintf(&b, "%s = %s\n", kv.Key, kv.Value)
	}
	return b.Bytes()
}
