package kernel

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// redactor takes out of a text what says whose host it comes from.
type redactor struct {
	host  *regexp.Regexp    // nil if the host's name is too common a word to look for
	links map[string]string // link names made of hardware addresses, and what stands for them
}

// commonNames are host names that would hit words accel needs, and that tell
// nothing.
var commonNames = []string{"localhost", "localdomain", "debian", "ubuntu", "linux", "kernel", "host", "server", "root", "cubic", "accel", "core", "ipv4", "ipv6"}

func newRedactor(host string) *redactor {
	r := &redactor{links: map[string]string{}}
	short, _, _ := strings.Cut(host, ".")
	if len(short) >= 4 && !slices.Contains(commonNames, strings.ToLower(short)) {
		// The name by itself and with what domain follows.
		r.host = regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(short) + `(\.[a-z0-9-]+)*\b`)
	}
	return r
}

var (
	ipv4Like = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b`)
	// Groups of hex digits and colons; whether it is an address, a parser says.
	ipv6Like = regexp.MustCompile(`(?i)\b[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,}(?:%\w+)?|::[0-9a-f:]+`)
	macLike  = regexp.MustCompile(`(?i)\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}\b`)
	// The names that udev makes of hardware addresses.
	macName = regexp.MustCompile(`\b((?:en|wl|ww|sl|ib)x)([0-9a-f]{12})\b`)
)

// placeholder stands for the host's name.
const placeholder = "HOST"

// text replaces addresses and the host's name.
func (r *redactor) text(s string) string {
	s = r.addresses(s)
	if r.host != nil {
		s = r.host.ReplaceAllString(s, placeholder)
	}
	return s
}

// addresses replaces network addresses, hardware addresses, and link names made of
// those.
func (r *redactor) addresses(s string) string {
	s = macName.ReplaceAllStringFunc(s, func(name string) string {
		if r.links[name] == "" {
			r.links[name] = fmt.Sprintf("%s%012x", name[:3], len(r.links)+1)
		}
		return r.links[name]
	})
	s = macLike.ReplaceAllString(s, "00:00:00:00:00:00")
	s = ipv4Like.ReplaceAllString(s, "0.0.0.0")
	return ipv6Like.ReplaceAllStringFunc(s, func(a string) string {
		plain, _, _ := strings.Cut(a, "%")
		if _, err := netip.ParseAddr(plain); err != nil {
			return a
		}
		return "::"
	})
}

// name replaces the same in a file name, as far as somebody else chose it.
func (r *redactor) name(s string) string {
	elements := strings.Split(s, "/")
	for i, e := range elements {
		if stem, conf := strings.CutSuffix(e, ".conf"); conf {
			elements[i] = r.text(stem) + ".conf"
		} else if macName.MatchString(e) {
			elements[i] = r.addresses(e)
		}
	}
	return strings.Join(elements, "/")
}
