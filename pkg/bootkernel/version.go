package bootkernel

import (
	"cmp"
	"strings"
)

// compareVersions orders versions of Debian packages, as deb-version(7) defines
// it: negative if a is the older. Releases of kernels are ordered by it too.
func compareVersions(a, b string) int {
	epoch := func(v string) (string, string) {
		if e, rest, ok := strings.Cut(v, ":"); ok {
			return e, rest
		}
		return "0", v
	}
	revision := func(v string) (string, string) {
		if i := strings.LastIndexByte(v, '-'); i >= 0 {
			return v[:i], v[i+1:]
		}
		return v, "0"
	}
	ea, ra := epoch(a)
	eb, rb := epoch(b)
	ua, da := revision(ra)
	ub, db := revision(rb)
	return cmp.Or(compareParts(ea, eb), compareParts(ua, ub), compareParts(da, db))
}

// compareParts compares digits as numbers and the rest by dpkg's order: "~"
// before the end, the end before letters, letters before everything else.
func compareParts(a, b string) int {
	for a != "" || b != "" {
		na, nb := notDigits(a), notDigits(b)
		for i := 0; i < max(len(na), len(nb)); i++ {
			if c := cmp.Compare(weight(na, i), weight(nb, i)); c != 0 {
				return c
			}
		}
		a, b = a[len(na):], b[len(nb):]
		da, db := digits(a), digits(b)
		ta, tb := strings.TrimLeft(da, "0"), strings.TrimLeft(db, "0")
		if c := cmp.Or(cmp.Compare(len(ta), len(tb)), strings.Compare(ta, tb)); c != 0 {
			return c
		}
		a, b = a[len(da):], b[len(db):]
	}
	return 0
}

func digits(s string) string {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i]
}

func notDigits(s string) string {
	i := 0
	for i < len(s) && (s[i] < '0' || s[i] > '9') {
		i++
	}
	return s[:i]
}

func weight(s string, i int) int {
	if i >= len(s) {
		return 0
	}
	switch c := s[i]; {
	case c == '~':
		return -1
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		return int(c)
	default:
		return int(c) + 256
	}
}
