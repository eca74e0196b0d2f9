package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"accel/pkg/bootkernel"
	"accel/pkg/doctor"
	"accel/pkg/kernel"
	"accel/pkg/probe"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

func ptr[T any](v T) *T { return &v }

// good is a host as it should be, with everything that can be shown.
func good() *tuning.Status {
	since := time.Date(2026, 11, 30, 17, 0, 0, 0, time.UTC)
	return &tuning.Status{
		Schema: tuning.StatusSchema, Verdict: tuning.Good, Reason: "bbr is in force, with fq on eth0",
		Enabled:        &tuning.Enabled{Algorithm: "bbr", Profile: "basic", Qdisc: "fq", Since: since},
		Kernel:         tuning.StatusKernel{Release: "6.1.0-41-cloud-amd64", Major: 6, Minor: 1, Flavour: "41-cloud-amd64", Distribution: "Debian GNU/Linux 12 (bookworm)"},
		Virtualization: tuning.StatusVirtualization{Machine: "kvm", InitialNetns: ptr(true)},
		Algorithm: tuning.StatusAlgorithm{
			Name: "bbr", Default: ptr("bbr"), Socket: ptr("bbr"), Available: []string{"bbr", "cubic", "reno"}, Loadable: []string{"htcp", "vegas"},
			Origin: kernel.Loaded, BBRVersion: ptr(1), Modules: []string{"tcp_bbr                20480  14", "sch_fq                 24576  4"},
		},
		Connections: map[string]int{"cubic": 2, "bbr": 17},
		Qdisc: tuning.StatusQdisc{Default: ptr("fq"), Available: []string{"fq", "fq_codel"}, Links: []tuning.StatusLink{
			{Name: "lo", Kind: "noqueue", Root: &qdisc.Qdisc{Kind: "noqueue", Handle: "0:", Parent: "root"}, Reason: "loopback"},
			{Name: "eth0", Kind: "fq", Root: &qdisc.Qdisc{Kind: "mq", Handle: "0:", Parent: "root"}, Leaves: []qdisc.Qdisc{{Kind: "fq", Handle: "0:", Parent: ":1"}, {Kind: "fq", Handle: "0:", Parent: ":2"}}, Managed: true},
			{Name: "eth1.100", Kind: "htb", Root: &qdisc.Qdisc{Kind: "htb", Handle: "1:", Parent: "root"}, ConfiguredBySomeone: true, Reason: "somebody configured its qdisc"},
		}},
		Routes:   []tuning.StatusRoute{{Route: route.Route{Family: "inet", Dst: "default", Link: "eth0", Table: 254}}, {Route: route.Route{Family: "inet6", Dst: "default", Link: "eth0", Table: 254, CongestionControl: "bbr"}}},
		Settings: []tuning.StatusSetting{},
		Boot: []tuning.BootValue{
			{Key: "net.ipv4.tcp_congestion_control", Value: "bbr", File: "/etc/sysctl.d/99-zz-accel.conf", Line: 6, Order: "systemd"},
			{Key: "net.core.default_qdisc", Value: "fq", File: "/etc/sysctl.d/99-zz-accel.conf", Line: 5, Order: "systemd"},
			{Key: "net.ipv4.tcp_congestion_control", Value: "cubic", File: "/etc/sysctl.conf", Line: 60, Order: "procps"},
			{Key: "net.core.default_qdisc", Value: "fq", File: "/etc/sysctl.d/99-zz-accel.conf", Line: 5, Order: "procps"},
		},
		Service: &tuning.ServiceState{Installed: true, Enabled: true, Active: true, Note: "bbr in force"},
		Drift:   []tuning.Drift{},
		Notes:   []string{"2 established connections keep another algorithm until they close", "docker is running: containers that were started before keep the old algorithm; restart them"},
	}
}

func statusText(s *tuning.Status, sc screen) string {
	p := &page{screen: sc}
	statusPage(p, s)
	p.flush()
	return p.String()
}

func plain() screen { return screen{columns: columns} }

func TestStatusText(t *testing.T) {
	want := `good: bbr is in force, with fq on eth0

Enabled      bbr with fq (profile basic), since 2026-11-30 17:00 UTC
Algorithm    sysctl: bbr
             in force: bbr, on an established connection
             available: bbr cubic reno
             loadable: htcp vegas
Connections  bbr 17, cubic 2
BBR version  1
Modules      tcp_bbr                20480  14
             sch_fq                 24576  4
Qdisc        default: fq
             available: fq fq_codel
Links        lo        noqueue: loopback
             eth0      fq below mq (2 queues), managed
             eth1.100  htb: somebody configured its qdisc
Routes       default over eth0 (inet6, table 254): congctl bbr
File         /etc/sysctl.d/99-zz-accel.conf
Next boot    net.core.default_qdisc = fq
               by /etc/sysctl.d/99-zz-accel.conf:5 (read by systemd, procps)
             net.ipv4.tcp_congestion_control = bbr
               by /etc/sysctl.d/99-zz-accel.conf:6 (read by systemd)
             net.ipv4.tcp_congestion_control = cubic
               by /etc/sysctl.conf:60 (read by procps)
Service      enabled and running; bbr in force
Drift        none
Kernel       6.1.0-41-cloud-amd64
System       Debian GNU/Linux 12 (bookworm)
Machine      kvm

Notes  2 established connections keep another algorithm until they close
       docker is running: containers that were started before keep the old
         algorithm; restart them
`
	if diff := cmp.Diff(want, statusText(good(), plain())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Nothing is known about this host at all.
func TestStatusTextOfNothing(t *testing.T) {
	want := `drifted: net.ipv4.tcp_congestion_control is cubic, not bbr
To put it right: accel enable bbr

Algorithm    sysctl: no such key here
             in force: not known
             available: none
Connections  not known
Modules      no line in lsmod
Qdisc        default: no such key here
             available: none
Links        not known
Next boot    no file sets the algorithm or the qdisc: the kernel's own defaults
Service      not known
Drift        net.ipv4.tcp_congestion_control is cubic, wanted bbr
Kernel       not known
System       not known
Machine      not known
`
	s := &tuning.Status{Verdict: tuning.Drifted, Reason: "net.ipv4.tcp_congestion_control is cubic, not bbr", Next: "To put it right: accel enable bbr",
		Drift: []tuning.Drift{{Setting: "net.ipv4.tcp_congestion_control", Wanted: "bbr", Live: "cubic"}}}
	if diff := cmp.Diff(want, statusText(s, plain())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResultText(t *testing.T) {
	status := good()
	status.Notes = []string{"one note"}
	tests := []struct {
		name string
		page func(*page)
		want string
	}{
		{"enable", func(p *page) {
			enablePage(p, resultDocument{
				Result: tuning.Result{Command: "enable", Changed: true, Enabled: status.Enabled, Status: status, Notes: []string{"one note"}, Steps: []tuning.Step{
					{Setting: "module tcp_bbr", Current: ptr("not loaded"), Wanted: "loaded", Action: tuning.Set, Changed: true},
					{Setting: "net.core.default_qdisc", Current: ptr("fq"), Wanted: "fq", Action: tuning.Keep},
					{Setting: "net.ipv4.tcp_congestion_control", Current: ptr("cubic"), Wanted: "bbr", Action: tuning.Set, Changed: true},
					{Setting: "qdisc eth1", Current: ptr("fq_codel"), Wanted: "fq", Action: tuning.Skip, Reason: "no such link"},
				}},
				Probe: &probe.Result{Bytes: 16 << 20, Seconds: 0.0345, Throughput: 3890000000, Algorithm: "bbr", BBRVersion: ptr(1)},
			})
		}, `enabled: bbr is in force, with fq on eth0

Changed   module tcp_bbr: not loaded -> loaded
          net.ipv4.tcp_congestion_control: cubic -> bbr
Left out  qdisc eth1: no such link
Check     16 MiB over loopback in 34.5 ms, 3.89 Gbit/s, 0 segments sent again,
          by bbr, version 1. This proves the machinery, not a gain.

Notes  one note

To put everything back: accel disable
`},
		{"enable again", func(p *page) {
			enablePage(p, resultDocument{Result: tuning.Result{Command: "enable", Enabled: status.Enabled, Status: status, Steps: []tuning.Step{
				{Setting: "net.ipv4.tcp_congestion_control", Current: ptr("bbr"), Wanted: "bbr", Action: tuning.Keep}}}, ProbeError: "the loopback link is not up"})
		}, `nothing to change: bbr is in force, with fq on eth0

Check  the download did not work: the loopback link is not up

Notes  one note

To put everything back: accel disable
`},
		{"enable, not in force", func(p *page) {
			enablePage(p, resultDocument{Result: tuning.Result{Command: "enable", Changed: true, Enabled: status.Enabled, Status: &tuning.Status{
				Verdict: tuning.NotInForce, Reason: "a default route carries congctl reno", Next: "Take it off the route."}}})
		}, `enabled, but not in force: a default route carries congctl reno
Take it off the route.

To put everything back: accel disable
`},
		{"dry run", func(p *page) {
			enablePage(p, resultDocument{Result: tuning.Result{Command: "enable", DryRun: true, Changed: true, Enabled: status.Enabled, Steps: []tuning.Step{
				{Setting: "net.ipv4.tcp_congestion_control", Current: ptr("cubic"), Wanted: "bbr", Action: tuning.Set},
				{Setting: "net.core.default_qdisc", Current: ptr("fq"), Wanted: "fq", Action: tuning.Keep}}}})
		}, `dry run: nothing was changed; this is what enable would do

Would change  net.ipv4.tcp_congestion_control: cubic -> bbr
Already so    net.core.default_qdisc: fq
`},
		{"disable", func(p *page) {
			disablePage(p, tuning.Result{Command: "disable", Changed: true, Steps: []tuning.Step{
				{Setting: "net.ipv4.tcp_congestion_control", Current: ptr("bbr"), Wanted: "cubic", Action: tuning.Restore, Changed: true}}})
		}, `disabled: everything is back as it was

Changed  net.ipv4.tcp_congestion_control: bbr -> cubic
`},
		{"disable, something left", func(p *page) {
			disablePage(p, tuning.Result{Command: "disable", Changed: true, Left: []tuning.Left{
				{Setting: "net.core.default_qdisc", Live: "cake", Original: "fq_codel", Reason: "somebody changed it since"},
				{Setting: "qdisc eth0", Live: "fq", Original: "fq_codel", Reason: "operation not permitted", Failed: true}}})
		}, `disabled: all is back except what somebody else changed since

Left as it is  net.core.default_qdisc is cake, was fq_codel before accel:
               somebody changed it since
Not put back   qdisc eth0 is fq, was fq_codel before accel: operation not
               permitted
`},
		{"disable, nothing enabled", func(p *page) { disablePage(p, tuning.Result{Command: "disable"}) },
			"nothing to change: accel has nothing enabled\n"},
	}
	for _, test := range tests {
		p := &page{screen: plain()}
		test.page(p)
		p.flush()
		if diff := cmp.Diff(test.want, p.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestProbeText(t *testing.T) {
	r := probe.Result{Size: 256 << 20, Bytes: 256 << 20, Complete: true, Seconds: 0.612, Throughput: 3509000000, Family: "inet6", Algorithm: "bbr", BBRVersion: ptr(3),
		Sender: probe.Sender{Retransmits: 9, SegmentsOut: ptr(4784), MinRTT: ptr(int64(11)), RTT: 71, MaxRTT: 3600, Cwnd: 14, MaxCwnd: 18, MSS: 65463, PacingRate: ptr(uint64(324e9)), DeliveryRate: ptr(uint64(99960000))}}
	want := `measured: 256 MiB arrived in 0.61 s, 3.51 Gbit/s
This proves that the machinery works, not a gain: over loopback no algorithm can
be faster, and no comparison was made.

Algorithm      bbr, version 3
Sent again     9 of 4784 segments
Round trip     11 µs at least, 71 µs median, 3.6 ms at most
Window         14 segments at the end, 18 at most; 65463 bytes each
Pacing rate    324 Gbit/s
Delivery rate  100 Mbit/s, the kernel's last estimate
Over           loopback, IPv6
`
	p := &page{screen: plain()}
	probePage(p, r)
	p.flush()
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p = &page{screen: plain()}
	endRows(p, ProbeEnd{Kept: true})
	endRows(p, ProbeEnd{Lost: "only root may write there"})
	p.flush()
	if diff := cmp.Diff("Kept      for later: accel probe --history\nNot kept  only root may write there\n", p.String()); diff != "" {
		t.Error(diff)
	}
	p = &page{screen: plain()}
	probePage(p, probe.Result{Size: 1 << 30, Bytes: 5 << 20, Seconds: 60, Throughput: 699050, Family: "inet", Algorithm: "cubic"})
	p.flush()
	if !strings.HasPrefix(p.String(), "stopped: 5 MiB of 1 GiB arrived in 60 s, 699 kbit/s\n") {
		t.Error(p.String())
	}
}

func TestProbeToText(t *testing.T) {
	f := probe.Fetched{URL: "https://example.org/file?...", Redirects: []string{"https://mirror.example.org/file"}, Family: "inet6", Address: "[2001:db8::1]:443", TLS: "TLS 1.3",
		Size: 256 << 20, Bytes: 8 << 20, Complete: true, Seconds: 3.31, Throughput: 20_300_000, BodyRate: ptr(uint64(23_400_000)),
		Lookup: ptr(0.0121), Connect: ptr(0.15), Handshake: ptr(0.1512), FirstByte: 0.465,
		Receiver: probe.Receiver{MinRTT: ptr(int64(149800)), DataRTT: ptr(int64(181000)), MSS: 1428, Segments: ptr(5874), OutOfOrder: ptr(61)}}
	want := `measured: 8 MiB arrived in 3.31 s, 20.3 Mbit/s
This is what arrives here. The other end sends it, so its algorithm decides, not
this host's; which one it has cannot be seen from here.

From           https://example.org/file?...
Redirected     https://mirror.example.org/file
Over           IPv6, [2001:db8::1]:443, TLS 1.3
First byte     after 465 ms (of which name 12.1 ms, connection 150 ms, TLS 151
               ms)
From there on  23.4 Mbit/s
Round trip     150 ms at least, 181 ms by what arrived last, queues and pauses
               included
Out of order   61 of 5874 segments; one before them was lost or overtaken
`
	p := &page{screen: plain()}
	probeToPage(p, f)
	p.flush()
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f = probe.Fetched{URL: "http://192.0.2.1/f", Family: "inet", Address: "192.0.2.1:80", Size: 1 << 20, Bytes: 2000, Seconds: 60, Throughput: 266, FirstByte: 0.01}
	want = `stopped: the time was up when 1.95 KiB had arrived in 60 s, 266 bit/s
This is what arrives here. The other end sends it, so its algorithm decides, not
this host's; which one it has cannot be seen from here.

From        http://192.0.2.1/f
Over        IPv4, 192.0.2.1:80
First byte  after 10 ms
`
	p = &page{screen: plain()}
	probeToPage(p, f)
	p.flush()
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Before and after enable stand below each other.
func TestHistoryText(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 11, 30, 18, minute, 0, 0, time.UTC) }
	entries := []probe.Entry{
		{At: at(40), Bytes: 256 << 20, Complete: true, Seconds: 0.61, Throughput: 3509000000, MinRTT: ptr(int64(11)), Algorithm: "cubic", Host: probe.Mark{Algorithm: "cubic", Verdict: "not-enabled"}},
		{At: at(41), URL: "https://example.org/file", Bytes: 8 << 20, Complete: true, Seconds: 3.31, Throughput: 20_300_000, MinRTT: ptr(int64(150000)), Host: probe.Mark{Algorithm: "cubic"}},
		{At: at(50), Bytes: 256 << 20, Complete: true, Seconds: 0.65, Throughput: 3300000000, MinRTT: ptr(int64(12)), Algorithm: "bbr", Host: probe.Mark{Algorithm: "bbr", Profile: "basic"}},
		{At: at(51), Bytes: 5 << 20, Seconds: 60, Throughput: 699050, Algorithm: "reno", Host: probe.Mark{}},
	}
	want := `earlier probes: 4, in /var/lib/accel/probes.json
Each is one download, and they differ by chance and by the hour: two of them
prove no gain. To judge algorithms: accel compare

Over loopback, where no algorithm can gain
  When (UTC)        Host had         Arrived         In      Rate         RTT
  2026-11-30 18:40  cubic            256 MiB         0.61 s  3.51 Gbit/s  11 µs
  2026-11-30 18:50  bbr, basic       256 MiB         0.65 s  3.3 Gbit/s   12 µs
  2026-11-30 18:51  reno, asked for  5 MiB, stopped  60 s    699 kbit/s

From https://example.org/file, whose end decides how it is sent
  When (UTC)        Host had  Arrived  In      Rate         RTT
  2026-11-30 18:41  cubic     8 MiB    3.31 s  20.3 Mbit/s  150 ms
`
	p := &page{screen: plain()}
	historyPage(p, entries)
	p.flush()
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	checkLines(t, p.String(), columns)

	var many []probe.Entry
	for n := range 25 {
		many = append(many, probe.Entry{At: at(n), Host: probe.Mark{Algorithm: "bbr"}})
	}
	p = &page{screen: plain()}
	historyPage(p, many)
	p.flush()
	if !strings.Contains(p.String(), "(5 earlier ones are in --json)") || strings.Contains(p.String(), "18:04") || !strings.Contains(p.String(), "18:05") {
		t.Error(p.String())
	}
	p = &page{screen: plain()}
	historyPage(p, nil)
	p.flush()
	if diff := cmp.Diff("no earlier probes: accel probe keeps them when root runs it\n", p.String()); diff != "" {
		t.Error(diff)
	}
}

func TestNumbers(t *testing.T) {
	for in, want := range map[uint64]string{0: "0 bit/s", 999: "999 bit/s", 1000: "1 kbit/s", 1234567: "1.23 Mbit/s", 99_950_000: "100 Mbit/s", 9_995_000: "10 Mbit/s", 999_400_000: "999 Mbit/s", 999_600_000: "1 Gbit/s", 65535_000_000_000: "65535 Gbit/s"} {
		if got := rate(in); got != want {
			t.Errorf("rate %d: %q, want %q", in, got, want)
		}
	}
	for in, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 16 << 20: "16 MiB", 1<<30 - 1: "1 GiB", 5 << 40: "5 TiB"} {
		if got := size(in); got != want {
			t.Errorf("size %d: %q, want %q", in, got, want)
		}
	}
}

// hostile strings are what a kernel answer or a file name might be.
var hostile = []string{"\x1b[2Jforged", "a\nverdict: good", "\xff\xfe", "\u202egnp.exe", strings.Repeat("x", 300), "网卡网卡网卡网卡网卡网卡", "\u200b", "\r\r\r", "\x00"}

// poison replaces every string of a document by hostile ones.
func poison(v reflect.Value, n *int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile[*n%len(hostile)])
		*n++
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			poison(v.Elem(), n)
		}
	case reflect.Slice:
		for i := range v.Len() {
			poison(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				poison(v.Field(i), n)
			}
		}
	}
}

func checkLines(t *testing.T, out string, width int) {
	t.Helper()
	for _, line := range strings.Split(out, "\n") {
		if w := text.Width(line); w > width {
			t.Errorf("%d columns, more than %d: %q", w, width, line)
		}
		for _, r := range line {
			if r == unicode.ReplacementChar || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
				t.Errorf("%U in %q", r, line)
			}
		}
	}
}

func TestHostileStringsStayHarmless(t *testing.T) {
	for shift := range hostile {
		n := shift
		s := good()
		poison(reflect.ValueOf(s).Elem(), &n)
		s.Connections = map[string]int{hostile[shift]: 1}
		for _, width := range []int{40, columns} {
			checkLines(t, statusText(s, screen{columns: width}), width)
			p := &page{screen: screen{columns: width}}
			enablePage(p, resultDocument{Result: tuning.Result{Enabled: s.Enabled, Status: s, Notes: s.Notes,
				Steps: []tuning.Step{{Setting: hostile[shift], Current: &hostile[shift], Wanted: hostile[shift], Changed: true}}}, ProbeError: hostile[shift]})
			leftRows(p, []tuning.Left{{Setting: hostile[shift], Live: hostile[shift]}})
			p.flush()
			checkLines(t, p.String(), width)
		}
		var b bytes.Buffer
		if err := printJSON(&b, s); err != nil {
			t.Fatal(err)
		}
		var decoded any
		if err := json.Unmarshal(b.Bytes(), &decoded); err != nil {
			t.Fatal(err)
		}
		eachString(decoded, func(s string) { checkLines(t, s, 5000) })
	}
}

func eachString(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []any:
		for _, e := range v {
			eachString(e, f)
		}
	case map[string]any:
		for k, e := range v {
			f(k)
			eachString(e, f)
		}
	}
}

// printJSON must not touch what it is given.
func TestPrintJSONKeepsTheDocument(t *testing.T) {
	s := good()
	s.Notes[0] = "a\x1bb"
	if err := printJSON(&bytes.Buffer{}, s); err != nil {
		t.Fatal(err)
	}
	if s.Notes[0] != "a\x1bb" {
		t.Errorf("%q", s.Notes[0])
	}
}

func TestErrorLines(t *testing.T) {
	var out, errOut bytes.Buffer
	a := newAccel(&out, &errOut, func(string) string { return "" })
	err := &tuning.Problem{Exit: tuning.ExitImpossible, Err: errors.New("setting x\x1b: no"), Next: "Do this."}
	if exit := a.report(err, true); exit != tuning.ExitImpossible {
		t.Errorf("exit %d", exit)
	}
	if diff := cmp.Diff("accel: setting x\\x1b: no\n  Do this.\n", errOut.String()); diff != "" {
		t.Error(diff)
	}
	validate(t, out.Bytes(), false)
	if exit := a.report(errors.New("plain"), false); exit != tuning.ExitFailed {
		t.Errorf("exit %d", exit)
	}
}

func TestColourOnlyMarksTheVerdict(t *testing.T) {
	coloured := statusText(good(), screen{columns: columns, colour: true})
	if want := "\x1b[1;32mgood\x1b[0m: bbr"; !strings.HasPrefix(coloured, want) {
		t.Errorf("%q", coloured[:30])
	}
	if n := strings.Count(coloured, "\x1b"); n != 2 {
		t.Errorf("%d escape sequences", n)
	}
	var b bytes.Buffer
	if s := newScreen(&b, func(string) string { return "" }); s.colour || s.live || s.columns != columns {
		t.Errorf("no terminal: %+v", s)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func TestWrite(t *testing.T) {
	if err := write(brokenWriter{syscall.EPIPE}, []byte("x")); err != nil {
		t.Errorf("a reader that went away: %v", err)
	}
	if err := write(brokenWriter{syscall.ENOSPC}, []byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
}

// schemas compiles docs/schema. With every, all members that a schema knows are
// required, so that a document with all members set proves that the schema has
// no other.
func schemas(t *testing.T, every bool) map[string]*jsonschema.Schema {
	t.Helper()
	if c, ok := compiledSchemas[every]; ok {
		return c
	}
	files, err := filepath.Glob("../../docs/schema/*.json")
	if err != nil || len(files) != 12 {
		t.Fatalf("%d schemas, %v", len(files), err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if every {
			requireAll(doc)
		}
		if err := c.AddResource(filepath.Base(name), doc); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]*jsonschema.Schema{}
	for _, name := range files {
		s, err := c.Compile(filepath.Base(name))
		if err != nil {
			t.Fatal(err)
		}
		// accel.status.1.json describes accel.status/1.
		schema := strings.TrimSuffix(filepath.Base(name), ".json")
		i := strings.LastIndex(schema, ".")
		out[schema[:i]+"/"+schema[i+1:]] = s
	}
	compiledSchemas[every] = out
	return out
}

// compiledSchemas are what schemas compiled before.
var compiledSchemas = map[bool]map[string]*jsonschema.Schema{}

func requireAll(doc any) {
	switch d := doc.(type) {
	case map[string]any:
		if p, ok := d["properties"].(map[string]any); ok {
			var all []any
			given, _ := d["required"].([]any)
			for k := range p {
				// The status inside another document has no upgrade.
				if k != "upgrade" || slices.Contains(given, any(k)) {
					all = append(all, k)
				}
			}
			d["required"] = all
		}
		for _, v := range d {
			requireAll(v)
		}
	case []any:
		for _, v := range d {
			requireAll(v)
		}
	}
}

func validate(t *testing.T, data []byte, every bool) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	name, _ := doc.(map[string]any)["schema"].(string)
	s := schemas(t, every)[name]
	if s == nil {
		t.Fatalf("no schema %q", name)
	}
	if err := s.Validate(doc); err != nil {
		t.Errorf("%v\n%s", err, data)
	}
}

// fill sets every field of a document, so that no omitempty hides one.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.String() == "" {
			v.SetString("0")
		}
	case reflect.Int, reflect.Int64:
		if v.Int() == 0 {
			v.SetInt(1)
		}
	case reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			return
		}
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		if v.Len() == 0 {
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.ValueOf("bbr"), reflect.ValueOf(1))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(0, 0)))
			return
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Tag.Get("json") != "-" {
				fill(v.Field(i))
			}
		}
	}
}

func filledStatus() tuning.Status {
	s := tuning.Status{Schema: tuning.StatusSchema, Verdict: tuning.Drifted, Exit: tuning.ExitAttention}
	s.Algorithm.Origin = kernel.Loadable
	s.Boot = []tuning.BootValue{{Order: "procps"}}
	s.Routes = []tuning.StatusRoute{{Route: route.Route{Family: "inet6", Dst: "default", Special: route.Daemon}}}
	s.Settings = []tuning.StatusSetting{{State: tuning.StateKept}}
	fill(reflect.ValueOf(&s))
	return s
}

// The documents and their schemas know the same members.
func TestDocumentsMatchTheirSchemas(t *testing.T) {
	status := filledStatus()

	detect := detectDocument{Status: filledStatus()}
	detect.Schema, detect.Status.Exit = tuning.DetectSchema, tuning.ExitGood

	result := resultDocument{Result: tuning.Result{Schema: "accel.result/1", Command: "enable", Status: &status, Steps: []tuning.Step{{Action: tuning.Restore}}}, Exit: tuning.ExitFailed}
	result.Probe = &probe.Result{Schema: probe.Schema, Family: "inet"}
	fill(reflect.ValueOf(&result))

	probed := probeDocument{Result: probe.Result{Schema: probe.Schema, Family: "inet6"}}
	fill(reflect.ValueOf(&probed))
	probed.Exit = 0
	fetched := probeToDocument{Fetched: probe.Fetched{Schema: probe.FetchSchema, Family: "inet"}}
	fill(reflect.ValueOf(&fetched))
	fetched.Exit = 0
	history := historyDocument{Kept: probe.Kept{Schema: probe.HistorySchema}}
	fill(reflect.ValueOf(&history))
	history.Exit = 0

	failed := errorDocument{Schema: "accel.error/1", Exit: 2}
	fill(reflect.ValueOf(&failed))

	recording := kernel.Recording{Schema: "accel.record/1", Qdiscs: json.RawMessage(`[{"link":"eth0","index":2,"root":{"kind":"mq","handle":"0:","parent":"root","options":"00"},"leaves":[{"kind":"fq","handle":"0:","parent":":1","options":"00"}]}]`)}
	recording.Routes, _ = json.Marshal([]route.Route{status.Routes[0].Route})
	fill(reflect.ValueOf(&recording))

	examined := doctor.Report{Schema: doctor.Schema, Verdict: doctor.Found, Exit: tuning.ExitAttention, Order: "systemd",
		Keys:        []doctor.Key{{Boot: []doctor.Boot{{Order: "procps"}}}},
		Leftovers:   []doctor.Leftover{{Keys: []doctor.LeftKey{{Class: doctor.NoEffect}}}},
		Connections: &doctor.Connections{Processes: []doctor.ProcessOf{{Source: doctor.Mixed}}},
		Change:      &doctor.Change{Command: "undo"}}
	fill(reflect.ValueOf(&examined))

	judged := statusDocument{Status: status, Upgrade: &bootkernel.Story{}}
	fill(reflect.ValueOf(judged.Upgrade))
	judged.Upgrade.Phase = bootkernel.FellBack
	kernels := bootkernel.List{Schema: bootkernel.ListSchema, Story: judged.Upgrade}
	fill(reflect.ValueOf(&kernels))
	kernels.Exit = 0
	installed := kernelDocument{Result: &bootkernel.Result{Schema: bootkernel.ResultSchema, Command: "install", Story: judged.Upgrade}}
	fill(reflect.ValueOf(&installed))
	installed.Exit = tuning.ExitImpossible

	for _, doc := range []any{judged, kernels, installed, detect, result, probed, fetched, history, failed, recording, examined} {
		var b bytes.Buffer
		if err := printJSON(&b, doc); err != nil {
			t.Fatal(err)
		}
		validate(t, b.Bytes(), true)
	}
}

// detect is status without four members, and with nothing else.
func TestDetectIsAProjection(t *testing.T) {
	members := func(doc any) map[string]any {
		var b bytes.Buffer
		if err := printJSON(&b, doc); err != nil {
			t.Fatal(err)
		}
		out := map[string]any{}
		if err := json.Unmarshal(b.Bytes(), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	s := filledStatus()
	want := members(s)
	for _, k := range []string{"enabled", "settings", "service", "drift"} {
		delete(want, k)
	}
	if diff := cmp.Diff(want, members(detectDocument{Status: s})); diff != "" {
		t.Error(diff)
	}
}

// Documents of hosts about which little is known.
func TestSparseDocuments(t *testing.T) {
	s := good()
	s.Enabled, s.Connections, s.Routes, s.Service = nil, nil, nil, nil
	s.Algorithm.Default, s.Algorithm.Socket, s.Algorithm.BBRVersion, s.Qdisc.Default = nil, nil, nil, nil
	s.Virtualization.InitialNetns = nil
	for i := range s.Qdisc.Links {
		s.Qdisc.Links[i].Root = nil
		s.Qdisc.Links[i].Leaves = []qdisc.Qdisc{}
	}
	for _, doc := range []any{s, good(), detectDocument{Status: *s}} {
		var b bytes.Buffer
		if d, ok := doc.(detectDocument); ok {
			d.Schema = tuning.DetectSchema
			doc = d
		} else {
			for i, l := range doc.(*tuning.Status).Qdisc.Links {
				if l.Leaves == nil {
					doc.(*tuning.Status).Qdisc.Links[i].Leaves = []qdisc.Qdisc{}
				}
			}
		}
		if err := printJSON(&b, doc); err != nil {
			t.Fatal(err)
		}
		validate(t, b.Bytes(), false)
	}
}

// Chinese letters are two columns wide; the columns must stand all the same.
func TestChinese(t *testing.T) {
	text.SetLanguage("zh")
	defer text.SetLanguage("")
	s := good()
	s.Notes = []string{"2 个已建立的连接在关闭之前仍用其他算法，这一句话要足够长，长到一行之内放不下，所以必须在中间折行"}
	out := statusText(s, plain())
	checkLines(t, out, columns)
	want := `正常: bbr is in force, with fq on eth0

已启用    bbr 配 fq（方案 basic），自 2026-11-30 17:00 UTC
算法      sysctl：bbr
          生效：bbr（在已建立的连接上）
`
	if !strings.HasPrefix(out, want) {
		t.Errorf("%s", out)
	}
	if i := strings.Index(out, "\n说明  "); i < 0 {
		t.Errorf("%s", out)
	} else if diff := cmp.Diff("\n说明  2 个已建立的连接在关闭之前仍用其他算法，这一句话要足够长，长到一行之内放不\n      下，所以必须在中间折行\n", out[i:]); diff != "" {
		t.Error(diff)
	}
}
