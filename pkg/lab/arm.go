package lab

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// DefaultAlgorithm is what an arm has that names none: Linux' own default
// since 2.6.19.
const DefaultAlgorithm = "cubic"

// ErrArm is matched by every error about an arm that makes no sense.
var ErrArm = errors.New("not an arm")

// isArmName: letters and digits, and after the first also ._+-, up to 32.
func isArmName(s string) bool {
	const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	return s != "" && len(s) <= 32 && strings.Contains(alphanumeric, s[:1]) && strings.Trim(s, alphanumeric+"._+-") == ""
}

// isKind: what can be the kind of a qdisc or the name of an algorithm.
func isKind(s string) bool {
	return s != "" && len(s) <= 15 && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// suits is the qdisc that an algorithm gets where nobody names one: bbr paces,
// which fq does for it at less cost than the socket's own timers.
func suits(algorithm string) string {
	if strings.HasPrefix(algorithm, "bbr") {
		return "fq"
	}
	return ""
}

// AlgorithmArm is an arm that is nothing but an algorithm. Its error satisfies
// errors.Is with ErrArm.
func AlgorithmArm(algorithm string) (Arm, error) {
	if !isKind(algorithm) {
		return Arm{}, &invalid{ErrArm, text.T("%q is no name of an algorithm", algorithm)}
	}
	return Arm{Name: algorithm, Algorithm: algorithm, Qdisc: suits(algorithm)}, nil
}

// maxInitialWindow is the largest initial window that a route can carry: TCP
// takes no more.
const maxInitialWindow = 65535

// maxRTOMin is the largest that makes sense: TCP_RTO_MAX of Linux.
const maxRTOMin = 120 * time.Second

// maxArm is the longest arm file that is read, in bytes.
const maxArm = 1 << 16

// ParseArm reads an arm from the text of a file in sysctl.d syntax, in which the
// comments "# route initcwnd 30", "# route initrwnd 30", "# route rto_min 100ms"
// and "# qdisc fq" say
// what a sysctl cannot. The keys tcp_congestion_control and default_qdisc
// become the arm's algorithm and, unless the comment names one, its qdisc. Keys
// outside net belong to the whole host and are listed in NotCompared, as are
// lines that set nothing or match patterns. Of a key that is set twice the last
// value counts. source names the file. Errors satisfy errors.Is with ErrArm.
func ParseArm(name, source string, data []byte) (Arm, error) {
	bad := func(message string) (Arm, error) { return Arm{}, &invalid{ErrArm, message} }
	if !isArmName(name) {
		return bad(text.T("%q is no name: letters, digits and ._+- up to 32", name))
	}
	if len(data) > maxArm {
		return bad(text.T("%s is longer than %d bytes", source, maxArm))
	}
	a := Arm{Name: name, Source: source}
	for i, line := range bytes.Split(data, []byte("\n")) {
		comment, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "#")
		if !ok {
			continue
		}
		words := strings.Fields(comment)
		switch {
		case len(words) == 2 && words[0] == "qdisc":
			if !isKind(words[1]) {
				return bad(text.T("%s:%d: %q is no kind of qdisc", source, i+1, words[1]))
			}
			a.Qdisc = words[1]
		case len(words) == 3 && words[0] == "route" && (words[1] == "initcwnd" || words[1] == "initrwnd"):
			n, err := strconv.Atoi(words[2])
			if err != nil || n < 1 || n > maxInitialWindow {
				return bad(text.T("%s:%d: an initial window is between 1 and %d segments, not %q", source, i+1, maxInitialWindow, words[2]))
			}
			if words[1] == "initcwnd" {
				a.InitialCwnd = n
			} else {
				a.InitialRwnd = n
			}
		case len(words) == 3 && words[0] == "route" && words[1] == "rto_min":
			d, err := time.ParseDuration(words[2])
			if err != nil || d < time.Millisecond || d > maxRTOMin {
				return bad(text.T("%s:%d: a least retransmission timeout is between 1ms and %v, not %q", source, i+1, maxRTOMin, words[2]))
			}
			a.RTOMin = int(d.Milliseconds())
		}
	}
	lines, problems := sysctl.ParseFile(source, data, sysctl.Systemd)
	defaultQdisc := ""
	for _, l := range lines {
		key, ok := l.Key()
		switch {
		case l.Exclude:
			continue
		case !ok:
			a.NotCompared = append(a.NotCompared, fmt.Sprintf("%s: %s", sysctl.Printable(l.Path), notOneKey))
		case key == sysctl.CongestionControl:
			if !isKind(l.Value) {
				return bad(text.T("%s:%d: %q is no name of an algorithm", source, l.Number, l.Value))
			}
			a.Algorithm = l.Value
		case key == sysctl.DefaultQdisc:
			if !isKind(l.Value) {
				return bad(text.T("%s:%d: %q is no kind of qdisc", source, l.Number, l.Value))
			}
			defaultQdisc = l.Value
		case !strings.HasPrefix(string(key), "net/"):
			a.NotCompared = append(a.NotCompared, fmt.Sprintf("%s: %s", key, ofTheWholeHost))
		default:
			kv := sysctl.KeyValue{Key: key, Value: l.Value}
			a.Settings = slices.DeleteFunc(a.Settings, func(old sysctl.KeyValue) bool { return old.Key == key })
			a.Settings = append(a.Settings, kv)
		}
	}
	for _, p := range problems {
		if p.Kind == sysctl.Ignored {
			a.NotCompared = append(a.NotCompared, fmt.Sprintf("line %d: %s", p.Line, p.Reason))
		}
	}
	if a.Algorithm == "" {
		a.Algorithm = DefaultAlgorithm
	}
	if a.Qdisc == "" {
		a.Qdisc = defaultQdisc
	}
	if a.Qdisc == "" {
		a.Qdisc = suits(a.Algorithm)
	}
	return a, nil
}
