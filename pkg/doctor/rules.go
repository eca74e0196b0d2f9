package doctor

import (
	"path"
	"strconv"
	"strings"

	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// Rule knows one setting that does harm or has no effect. Rules are data: each
// has its reason, the symptom that people see, where the knowledge comes from,
// and a test of its own (TestEveryRule).
type Rule struct {
	ID      string   // for --only
	Keys    []string // dotted; a star matches one element
	Class   Class    // Harmful or NoEffect
	Reason  string   // what the value does
	Symptom string   // what people notice
	Source  string   // where this is known from
	Default string   // the kernel's own value; "" where it depends on the host
	// Attributed rules speak only of lines that a known tool left: from a
	// person's hand the same line may well be wanted.
	Attributed bool
	// match says whether a value is meant.
	match func(v value) bool
}

// Class is what a setting of another tool is to this host.
type Class string

// The classes.
const (
	Same     Class = "same"      // as accel sets it
	Harmless Class = "harmless"  // another value, no harm known
	NoEffect Class = "no-effect" // this kernel does nothing with it
	Harmful  Class = "harmful"
)

// value is a value with what is needed to judge it.
type value struct {
	fields []string
	host   *facts
	// other is the value that another key has, or will have, on the host.
	other func(key string) string
}

// facts are what the rules look at besides the value.
type facts struct {
	memory     uint64 // bytes, 0: not known
	major      int    // of the kernel, 0: not known
	minor      int
	routes     bool // something here may need forwarding, see forwards
	knowsNames bool // /proc/sys is there to be asked
}

func (f *facts) before(major, minor int) bool {
	return f.major > 0 && (f.major < major || f.major == major && f.minor < minor)
}

// number gives one of the numbers of a value; false where there is none.
func (v value) number(i int) (float64, bool) {
	if i >= len(v.fields) {
		return 0, false
	}
	n, err := strconv.ParseFloat(v.fields[i], 64)
	return n, err == nil && n == n
}

func atMost(most float64) func(value) bool {
	return func(v value) bool { n, ok := v.number(0); return ok && n <= most }
}

func between(least, most float64) func(value) bool {
	return func(v value) bool { n, ok := v.number(0); return ok && n >= least && n <= most }
}

func atLeast(i int, least float64) func(value) bool {
	return func(v value) bool { n, ok := v.number(i); return ok && n >= least }
}

func always(value) bool { return true }

// memoryOr is the host's memory in bytes, or what is typical of a small server.
func (v value) memoryOr(bytes float64) float64 {
	if v.host.memory > 0 {
		return float64(v.host.memory)
	}
	return bytes
}

const (
	mib      = 1 << 20
	pageSize = 4096
)

// Where knowledge comes from.
const (
	sourceKernel = "Documentation/networking/ip-sysctl.rst"
	sourceVM     = "Documentation/admin-guide/sysctl/vm.rst"
)

// rules are all rules about keys, in the language of the moment.
func rules() []Rule {
	return []Rule{
		{ID: "syn-retries", Keys: []string{"net.ipv4.tcp_syn_retries"}, Class: Harmful, match: between(0, 1), Default: "6",
			Reason:  text.T("a connection gives up after one repeated SYN, within three seconds"),
			Symptom: text.T("connections to others fail where a few percent of packets are lost"),
			Source:  sourceKernel},
		{ID: "synack-retries", Keys: []string{"net.ipv4.tcp_synack_retries"}, Class: Harmful, match: between(0, 1), Default: "5",
			Reason:  text.T("a client's connection is given up after one repeated SYN-ACK"),
			Symptom: text.T("clients on lossy paths cannot connect, or only at the second try"),
			Source:  sourceKernel},
		{ID: "timestamps-off", Keys: []string{"net.ipv4.tcp_timestamps"}, Class: Harmful, match: atMost(0), Default: "1",
			Reason:  text.T("without timestamps round-trip times are measured worse, and fast connections cannot tell old packets from new ones (PAWS)"),
			Symptom: text.T("needless retransmissions on long paths; BBR judges the path worse"),
			Source:  sourceKernel + ", RFC 7323"},
		{ID: "tcp-mem-unit", Keys: []string{"net.ipv4.tcp_mem", "net.ipv4.udp_mem"}, Class: Harmful,
			match: func(v value) bool {
				n, ok := v.number(2)
				return ok && n*pageSize > v.memoryOr(64<<30)
			},
			Reason:  text.T("the unit is pages, not bytes: the limit is above the memory of the host, so there is none"),
			Symptom: text.T("under many slow connections the kernel runs out of memory instead of holding TCP back"),
			Source:  sourceKernel},
		{ID: "panic-on-oom", Keys: []string{"vm.panic_on_oom"}, Class: Harmful, match: atLeast(0, 1), Default: "0",
			Reason:  text.T("when memory runs out the whole host stops, instead of one process"),
			Symptom: text.T("with kernel.panic set, the server reboots by itself under load"),
			Source:  sourceVM},
		{ID: "rp-filter-localnet", Keys: []string{"net.ipv4.conf.*.route_localnet"}, Class: Harmful, Default: "0",
			match: func(v value) bool {
				n, ok := v.number(0)
				return ok && n == 1 && v.other("net.ipv4.conf.all.rp_filter") == "0"
			},
			Reason:  text.T("with rp_filter off, packets from outside can reach services that listen on 127.0.0.1 only"),
			Symptom: text.T("nothing shows until somebody on the same network uses it"),
			Source:  sourceKernel + ", CVE-2020-8558"},
		{ID: "accept-ra-forwarding", Keys: []string{"net.ipv6.conf.*.accept_ra"}, Class: Harmful, Default: "1", Attributed: true,
			match: func(v value) bool {
				n, ok := v.number(0)
				return ok && n == 2 && v.other("net.ipv6.conf.all.forwarding") == "1" && !v.host.routes
			},
			Reason:  text.T("the host forwards IPv6 and yet believes every router advertisement"),
			Symptom: text.T("anybody on the network can become its default router"),
			Source:  sourceKernel},
		{ID: "ip-forward", Keys: []string{"net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding", "net.ipv6.conf.all.forwarding"}, Class: Harmful, Default: "0", Attributed: true,
			match: func(v value) bool {
				n, ok := v.number(0)
				return ok && n == 1 && !v.host.routes
			},
			Reason:  text.T("the host forwards packets of others although nothing here needs it: no container, bridge or tunnel was found"),
			Symptom: text.T("IPv6 addresses and routes from router advertisements are lost; the host can be used as a way into its network"),
			Source:  sourceKernel},
		{ID: "giant-default-buffers", Keys: []string{"net.core.rmem_default", "net.core.wmem_default"}, Class: Harmful, match: atLeast(0, 8*mib), Default: "212992",
			Reason:  text.T("every socket that sets no size, UDP included, may hold this much"),
			Symptom: text.T("memory runs out with a few hundred connections; delays of seconds where UDP is queued"),
			Source:  "Documentation/admin-guide/sysctl/net.rst"},
		{ID: "giant-first-buffers", Keys: []string{"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}, Class: Harmful, match: atLeast(1, 4*mib),
			Reason:  text.T("the second number is what each connection begins with, not what it may grow to"),
			Symptom: text.T("memory runs out with a few hundred connections"),
			Source:  sourceKernel},
		{ID: "giant-buffers", Keys: []string{"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}, Class: Harmful,
			match: func(v value) bool {
				n, ok := v.number(2)
				return ok && n >= 512*mib && n > v.memoryOr(1<<30)/2
			},
			Reason:  text.T("one connection may take more than half of the memory of the host"),
			Symptom: text.T("a few slow receivers are enough to run out of memory"),
			Source:  sourceKernel},
		{ID: "limit-output", Keys: []string{"net.ipv4.tcp_limit_output_bytes"}, Class: Harmful, match: atLeast(0, 64*mib),
			Reason:  text.T("one connection may queue this much in the host itself, which switches off the limit against long queues (TSQ)"),
			Symptom: text.T("round-trip times of seconds while something is sent"),
			Source:  sourceKernel},
		{ID: "retries2", Keys: []string{"net.ipv4.tcp_retries2"}, Class: Harmful, match: between(0, 5), Default: "15",
			Reason:  text.T("an established connection is given up after some ten seconds without an answer; RFC 1122 asks for a hundred at least"),
			Symptom: text.T("connections of mobile clients break in every dead spot"),
			Source:  sourceKernel + ", RFC 1122"},
		{ID: "tw-recycle", Keys: []string{"net.ipv4.tcp_tw_recycle"}, Class: Harmful, Default: "0",
			match: func(v value) bool {
				n, ok := v.number(0)
				return ok && n >= 1 && v.host.before(4, 12)
			},
			Reason:  text.T("it mixes up clients behind one address"),
			Symptom: text.T("of several clients behind one router only some can connect"),
			Source:  "tcp: remove tcp_tw_recycle, Linux 4.12"},
		{ID: "sack-off", Keys: []string{"net.ipv4.tcp_sack"}, Class: Harmful, match: atMost(0), Default: "1",
			Reason:  text.T("without selective acknowledgements one lost packet in a window makes many be sent again"),
			Symptom: text.T("slow on every path that loses packets, whatever the algorithm"),
			Source:  sourceKernel + ", RFC 2018"},
		{ID: "window-scaling-off", Keys: []string{"net.ipv4.tcp_window_scaling"}, Class: Harmful, match: atMost(0), Default: "1",
			Reason:  text.T("windows end at 64 KiB"),
			Symptom: text.T("not more than 5 Mbit/s over a path of 100 ms"),
			Source:  sourceKernel + ", RFC 7323"},
		{ID: "frto-off", Keys: []string{"net.ipv4.tcp_frto"}, Class: Harmful, match: atMost(0), Default: "2", Attributed: true,
			Reason:  text.T("a delayed acknowledgement is taken for a loss"),
			Symptom: text.T("needless retransmissions to mobile clients"),
			Source:  sourceKernel + ", RFC 5682"},
		{ID: "tw-buckets", Keys: []string{"net.ipv4.tcp_max_tw_buckets"}, Class: Harmful, match: between(0, 8191), Attributed: true,
			Reason:  text.T("closed connections are forgotten early; the kernel's documentation says never to lower it"),
			Symptom: text.T("\"TCP: time wait bucket table overflow\" in the log, and now and then a new connection that is refused"),
			Source:  sourceKernel},
		{ID: "overcommit-strict", Keys: []string{"vm.overcommit_memory"}, Class: Harmful, match: between(2, 2), Default: "0", Attributed: true,
			Reason:  text.T("memory that is only reserved counts as used"),
			Symptom: text.T("\"Cannot allocate memory\" although much is free"),
			Source:  sourceVM},

		// What kernels no longer know, or never did.
		{ID: "gone", Keys: []string{"net.ipv4.tcp_tw_recycle"}, Class: NoEffect, match: func(v value) bool { return !v.host.before(4, 12) },
			Reason: text.T("removed in Linux %s", "4.12"), Source: "tcp: remove tcp_tw_recycle"},
		{ID: "gone", Keys: []string{"net.ipv4.tcp_fack"}, Class: NoEffect, match: func(v value) bool { return !v.host.before(4, 15) },
			Reason: text.T("kept without a meaning since Linux %s", "4.15"), Source: sourceKernel},
		{ID: "gone", Keys: []string{"net.ipv4.tcp_low_latency"}, Class: NoEffect, match: func(v value) bool { return !v.host.before(4, 14) },
			Reason: text.T("kept without a meaning since Linux %s", "4.14"), Source: sourceKernel},
		{ID: "gone", Keys: []string{"net.ipv4.route.gc_timeout"}, Class: NoEffect, match: func(v value) bool { return !v.host.before(3, 6) },
			Reason: text.T("kept without a meaning since Linux %s", "3.6"), Source: "ipv4: Delete routing cache"},
		{ID: "quoted", Keys: []string{"*.*.*", "*.*.*.*", "*.*"}, Class: NoEffect,
			match:  func(v value) bool { return len(v.fields) > 0 && strings.ContainsAny(v.fields[0][:1], "\"'") },
			Reason: text.T("quotes are part of the value, which the kernel refuses"), Source: "sysctl.d(5)"},
		{ID: "never", Keys: []string{"net.ipv4.tcp_init_cwnd", "net.ipv4.tcp_max_syn_recv", "net.ipv4.ipfrag_high_threshold"}, Class: NoEffect, match: always,
			Reason: text.T("no kernel has such a setting"), Source: sourceKernel},
	}
}

// matchKey reports whether a dotted key is meant by a rule's pattern.
func matchKey(pattern, key string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, ".", "/"), strings.ReplaceAll(key, ".", "/"))
	return ok && err == nil
}

func (r *Rule) about(key string) bool {
	for _, k := range r.Keys {
		if matchKey(k, key) {
			return true
		}
	}
	return false
}

// judged is what becomes of one key with one value.
type judged struct {
	class Class
	rule  *Rule
}

// judge classifies a line. attributed says that a known tool wrote it.
func (e *examination) judge(k sysctl.Key, val string, attributed bool) judged {
	key := k.String()
	v := value{fields: strings.Fields(val), host: &e.facts, other: e.other}
	var mild *Rule
	for i := range e.rules {
		r := &e.rules[i]
		if !r.about(key) || r.Attributed && !attributed || !r.match(v) {
			continue
		}
		if r.Class == Harmful {
			return judged{Harmful, r}
		}
		mild = r
	}
	switch {
	case e.wish(k) != nil && e.met(k, val):
		return judged{class: Same}
	case mild != nil:
		return judged{NoEffect, mild}
	case e.missing(k):
		return judged{class: NoEffect}
	}
	return judged{class: Harmless}
}
