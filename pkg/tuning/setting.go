package tuning

import (
	"accel/pkg/sysctl"
)

// Kind tells what a setting is about.
type Kind string

// The kinds of setting.
const (
	KindSysctl Kind = "sysctl" // Name is the key, slash form
	KindQdisc  Kind = "qdisc"  // Name is the link; the value is the kind that queues packets
	KindModule Kind = "module" // Name is the module; it is loaded, now and at boot
)

// Setting is one wish about the host.
type Setting struct {
	Kind     Kind
	Name     string
	Want     string
	Required bool   // without it the command fails and undoes itself
	Why      string // for the plan
}

// loaded is the wanted value of a module.
const loaded = "loaded"

// ID names a setting for people and for JSON: "net.ipv4.tcp_congestion_control",
// "qdisc eth0", "module tcp_bbr".
func (s Setting) ID() string { return settingID(s.Kind, s.Name) }

func settingID(k Kind, name string) string {
	if k == KindSysctl {
		return sysctl.Key(name).String()
	}
	return string(k) + " " + name
}
