package sysctl

import "strings"

// The patterns of sysctl files are those of glob(3) of the C library, applied to
// each element of a path. path.Match of Go's library differs: it negates with ^
// only, knows no character classes, and refuses what glob takes literally.

// hasMagic reports whether glob would look an element up by pattern: a bracket
// counts only if one closes it.
func hasMagic(elem string) bool {
	open := false
	for i := 0; i < len(elem); i++ {
		switch elem[i] {
		case '*', '?':
			return true
		case '\\':
			i++
		case '[':
			open = true
		case ']':
			if open {
				return true
			}
		}
	}
	return false
}

// literal removes the backslashes of an element without magic.
func literal(elem string) string {
	if !strings.Contains(elem, `\`) {
		return elem
	}
	var b strings.Builder
	for i := 0; i < len(elem); i++ {
		if elem[i] == '\\' && i+1 < len(elem) {
			i++
		}
		b.WriteByte(elem[i])
	}
	return b.String()
}

// matchElem reports whether the pattern element matches the name.
func matchElem(elem, name string) bool {
	if !hasMagic(elem) {
		return literal(elem) == name
	}
	// A leading dot must be written out.
	if strings.HasPrefix(name, ".") && !strings.HasPrefix(elem, ".") && !strings.HasPrefix(elem, `\.`) {
		return false
	}
	return fnmatch(elem, name)
}

// fnmatch is fnmatch(3) in the C locale, byte by byte. It goes back to the last
// star only, so its time does not explode with the number of stars.
func fnmatch(p, s string) bool {
	starP, starS := -1, 0 // where to go back to: behind the last star
	i, j := 0, 0
	for j < len(s) || i < len(p) {
		if i < len(p) {
			if p[i] == '*' {
				starP, starS = i+1, j
				i++
				continue
			}
			if j < len(s) {
				if ok, n := matchOne(p[i:], s[j]); ok {
					i, j = i+n, j+1
					continue
				}
			}
		}
		if starP < 0 || starS >= len(s) {
			return false
		}
		starS++
		i, j = starP, starS
	}
	return true
}

// matchOne matches the first item of p, which is not a star, against one byte,
// and returns the length of that item.
func matchOne(p string, c byte) (bool, int) {
	switch p[0] {
	case '?':
		return true, 1
	case '\\':
		if len(p) > 1 {
			return p[1] == c, 2
		}
		return false, 1 // nothing matches a backslash at the end
	case '[':
		if ok, n := matchBracket(p, c); n > 0 {
			return ok, n
		}
	}
	return p[0] == c, 1
}

// matchBracket matches a bracket expression; its length is 0 if it never closes,
// and then the bracket stands for itself.
func matchBracket(p string, c byte) (ok bool, n int) {
	i := 1
	negate := false
	if i < len(p) && (p[i] == '!' || p[i] == '^') {
		negate = true
		i++
	}
	wrong := false // something before the match makes all of it match nothing
	for first := true; ; first = false {
		if i >= len(p) {
			return false, 0
		}
		if p[i] == ']' && !first {
			return ok != negate && !wrong, i + 1
		}
		if name, length := class(p[i:]); length > 0 {
			member, known := inClass(name, c)
			wrong = wrong || !known && !ok
			ok = ok || member
			i += length
			continue
		}
		lo, length := bracketChar(p[i:])
		i += length
		hi := lo
		if i+1 < len(p) && p[i] == '-' && p[i+1] != ']' {
			hi, length = bracketChar(p[i+1:])
			i += 1 + length
		}
		ok = ok || lo <= c && c <= hi
	}
}

// bracketChar reads one character within brackets, which may be escaped or
// written as [.c.] or [=c=].
func bracketChar(p string) (c byte, n int) {
	switch {
	case p[0] == '\\' && len(p) > 1:
		return p[1], 2
	case len(p) >= 5 && p[0] == '[' && (p[1] == '.' || p[1] == '=') && p[3] == p[1] && p[4] == ']':
		return p[2], 5
	}
	return p[0], 1
}

// class reads [:name:]. That a name with a z is none is as in the C library; no
// class has one.
func class(p string) (name string, n int) {
	rest, ok := strings.CutPrefix(p, "[:")
	if !ok {
		return "", 0
	}
	name, _, ok = strings.Cut(rest, ":]")
	if !ok || strings.Trim(name, "abcdefghijklmnopqrstuvwxy") != "" {
		return "", 0
	}
	return name, len(name) + len("[::]")
}

func inClass(name string, c byte) (member, known bool) {
	lower, upper := 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z'
	digit := '0' <= c && c <= '9'
	graph := '!' <= c && c <= '~'
	switch name {
	case "alpha":
		return lower || upper, true
	case "digit":
		return digit, true
	case "alnum":
		return lower || upper || digit, true
	case "lower":
		return lower, true
	case "upper":
		return upper, true
	case "space":
		return c == ' ' || '\t' <= c && c <= '\r', true
	case "blank":
		return c == ' ' || c == '\t', true
	case "punct":
		return graph && !lower && !upper && !digit, true
	case "graph":
		return graph, true
	case "print":
		return graph || c == ' ', true
	case "cntrl":
		return c < ' ' || c == 0x7f, true
	case "xdigit":
		return digit || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F', true
	}
	return false, false
}

// maxBraces bounds what one pattern may expand to: {a,b}{a,b}... doubles with
// each pair.
const maxBraces = 1024

// expandBraces gives the alternatives of a pattern with {a,b} in it, as GLOB_BRACE
// does; the pattern itself if it has none or they do not close. False if there
// are more than maxBraces.
func expandBraces(p string) ([]string, bool) {
	todo, done := []string{p}, []string(nil)
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		open := indexEscaped(p, '{')
		if open < 0 {
			done = append(done, p)
			continue
		}
		alternatives, end := braceParts(p, open)
		if end < 0 {
			done = append(done, p)
			continue
		}
		var expanded []string
		for _, a := range alternatives {
			expanded = append(expanded, p[:open]+a+p[end:])
		}
		todo = append(expanded, todo...)
		if len(todo)+len(done) > maxBraces {
			return nil, false
		}
	}
	return done, true
}

// indexEscaped finds c where no backslash stands before it.
func indexEscaped(s string, c byte) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case c:
			return i
		}
	}
	return -1
}

// braceParts splits what stands between the brace at open and the one that
// closes it, and returns the position behind that; -1 if none does.
func braceParts(p string, open int) (parts []string, end int) {
	depth, start := 0, open+1
	for i := open + 1; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '{':
			depth++
		case ',':
			if depth == 0 {
				parts = append(parts, p[start:i])
				start = i + 1
			}
		case '}':
			if depth == 0 {
				return append(parts, p[start:i]), i + 1
			}
			depth--
		}
	}
	return nil, -1
}
