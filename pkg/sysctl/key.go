// Package sysctl reads and writes the kernel's settings below /proc/sys, reads
// the world of sysctl.d files as the boot of a host does, and writes the one
// such file that is accel's own.
//
// A setting is named by a Key, which is a path and not a dotted string: a link
// may be called eth0.100, and then only the path says what is meant.
package sysctl

import (
	"errors"
	"fmt"
	"strings"
)

// A Key names a setting by its path below /proc/sys, with slashes between the
// elements: "net/ipv4/conf/eth0.100/rp_filter". Keys from outside come from
// ParseKey.
type Key string

// The keys that accel itself deals with.
const (
	CongestionControl          Key = "net/ipv4/tcp_congestion_control"
	AvailableCongestionControl Key = "net/ipv4/tcp_available_congestion_control"
	AllowedCongestionControl   Key = "net/ipv4/tcp_allowed_congestion_control"
	DefaultQdisc               Key = "net/core/default_qdisc"
)

// ErrKey is matched by the errors about a text that cannot name a setting.
var ErrKey = errors.New("not the name of a kernel setting")

// ParseKey reads a key in either of the two forms that sysctl knows. The first
// separator decides: after a dot, dots separate and a slash stands for a dot
// within an element (net.ipv4.conf.eth0/100.rp_filter); after a slash, slashes
// separate and dots are themselves (net/ipv4/conf/eth0.100/rp_filter).
//
// It refuses what can name no setting, with an error that matches ErrKey: empty
// elements (so also a separator at either end), the elements "." and "..",
// control characters, and blanks at either end.
func ParseKey(s string) (Key, error) {
	k := Key(separate(s))
	if err := k.check(); err != nil {
		return "", fmt.Errorf("parsing %q: %w", s, err)
	}
	return k, nil
}

// separate turns the written form of a key into a path: if the first separator
// is a dot, dots and slashes change places. Both tools do this, with patterns
// too.
func separate(s string) string {
	i := strings.IndexAny(s, "./")
	if i < 0 || s[i] == '/' {
		return s
	}
	return swap(s)
}

// swap works on bytes, since a file may hold any.
func swap(s string) string {
	b := []byte(s)
	for i, c := range b {
		switch c {
		case '.':
			b[i] = '/'
		case '/':
			b[i] = '.'
		}
	}
	return string(b)
}

// check says why k names no setting, or nil.
func (k Key) check() error {
	if k == "" {
		return fmt.Errorf("%w: it is empty", ErrKey)
	}
	if strings.TrimSpace(string(k)) != string(k) {
		return fmt.Errorf("%w: blanks around it", ErrKey)
	}
	for _, c := range []byte(k) {
		if c < ' ' || c == 0x7f {
			return fmt.Errorf("%w: control character 0x%02x", ErrKey, c)
		}
	}
	for i, e := range strings.Split(string(k), "/") {
		switch {
		case e == "":
			return fmt.Errorf("%w: empty element", ErrKey)
		case e == "." || e == "..":
			return fmt.Errorf("%w: element %q", ErrKey, e)
		case i == 0 && strings.Contains(e, "."):
			// Neither form can write it, and the kernel has none.
			return fmt.Errorf("%w: dot in the first element", ErrKey)
		}
	}
	return nil
}

// String is the form for people and for sysctl.d files: dots between the
// elements, dots within an element as slashes. ParseKey reads it back.
func (k Key) String() string { return swap(string(k)) }

// MarshalText implements encoding.TextMarshaler with the form of String.
func (k Key) MarshalText() ([]byte, error) {
	if err := k.check(); err != nil {
		return nil, fmt.Errorf("writing key %q: %w", string(k), err)
	}
	return []byte(k.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler with ParseKey.
func (k *Key) UnmarshalText(text []byte) error {
	parsed, err := ParseKey(string(text))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}
