package tuning

import (
	"slices"
	"strconv"
	"strings"

	"accel/pkg/route"
	"accel/pkg/sysctl"
)

// Kind tells what a setting is about.
type Kind string

// The kinds of setting.
const (
	KindSysctl Kind = "sysctl" // Name is the key, slash form
	KindQdisc  Kind = "qdisc"  // Name is the link; the value is the kind that queues packets
	KindModule Kind = "module" // Name is the module; it is loaded, now and at boot
	KindRoute  Kind = "route"  // Name is the route's (route.Route.Name) and the metric; the value is a number, 0 where the route does not have it
)

// Setting is one wish about the host.
type Setting struct {
	Kind     Kind
	Name     string
	Want     string
	Floor    bool   // at least Want, number by number; what is larger stays. A 0 asks for nothing
	Required bool   // without it the command fails and undoes itself
	Why      string // for the plan
}

// loaded is the wanted value of a module.
const loaded = "loaded"

// ID names a setting for people and for JSON: "net.ipv4.tcp_congestion_control",
// "qdisc eth0", "module tcp_bbr", "route default dev eth0 initcwnd".
func (s Setting) ID() string { return settingID(s.Kind, s.Name) }

func settingID(k Kind, name string) string {
	if k == KindSysctl {
		return sysctl.Key(name).String()
	}
	return string(k) + " " + name
}

// routeSetting names a metric of a route as a Setting or Record does.
func routeSetting(name string, m route.Metric) string { return name + " " + string(m) }

// splitRoute takes the name of a route setting apart; ok is false where it is
// none.
func splitRoute(setting string) (name string, m route.Metric, ok bool) {
	i := strings.LastIndexByte(setting, ' ')
	if i < 0 {
		return "", "", false
	}
	name, m = setting[:i], route.Metric(setting[i+1:])
	return name, m, strings.Contains(name, "default dev ") && slices.Contains(route.Metrics(), m)
}

// raise gives value with each of its numbers at least the one in floor. Where
// they are not as many numbers each, value stays.
func raise(value, floor string) string {
	have, least := strings.Fields(value), strings.Fields(floor)
	if len(have) != len(least) {
		return value
	}
	for i := range have {
		h, err := strconv.ParseUint(have[i], 10, 64)
		if err != nil {
			return value
		}
		if l, err := strconv.ParseUint(least[i], 10, 64); err == nil && l > h {
			have[i] = least[i]
		}
	}
	return strings.Join(have, " ")
}

// reaches: no number of value is below the one in floor.
func reaches(value, floor string) bool { return sysctl.Equal(raise(value, floor), value) }
