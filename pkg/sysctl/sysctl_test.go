package sysctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"accel/pkg/sysctl"
)

var orders = []sysctl.Order{sysctl.Systemd, sysctl.Procps}

// tree makes a root directory. A name that ends in a slash is a directory; a
// content that begins with "->" is a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(files[name], "->"); ok {
			err = os.Symlink(target, p)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(p, 0o755)
		} else {
			err = os.WriteFile(p, []byte(files[name]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func read(t *testing.T, root string, order sysctl.Order) *sysctl.Config {
	t.Helper()
	c, err := sysctl.ReadConfig(root, order)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// value is what boot sets, or "(none)".
func value(c *sysctl.Config, k sysctl.Key) string {
	if a, ok := c.Lookup(k); ok {
		return a.Value
	}
	return "(none)"
}

func TestParseKey(t *testing.T) {
	for in, want := range map[string]sysctl.Key{
		"net.ipv4.tcp_congestion_control":       "net/ipv4/tcp_congestion_control",
		"net/ipv4/tcp_congestion_control":       "net/ipv4/tcp_congestion_control",
		"net.ipv4.conf.eth0/100.rp_filter":      "net/ipv4/conf/eth0.100/rp_filter",
		"net/ipv4/conf/eth0.100/rp_filter":      "net/ipv4/conf/eth0.100/rp_filter",
		"net.ipv6.conf.eth0/100/200.forwarding": "net/ipv6/conf/eth0.100.200/forwarding",
		"net.ipv4.conf.eth0.100.rp_filter":      "net/ipv4/conf/eth0/100/rp_filter",
		"single":                                "single",
		"fs.binfmt_misc.a b":                    "fs/binfmt_misc/a b",
		"net.ipv4.conf.\u00e4.tag":              "net/ipv4/conf/\u00e4/tag",
		"net.ipv4.conf.\xff.tag":                "net/ipv4/conf/\xff/tag",
	} {
		got, err := sysctl.ParseKey(in)
		if err != nil || got != want {
			t.Errorf("ParseKey(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", ".", "/", "..", ".net.ipv4", "net.ipv4.", "/net/ipv4", "net/ipv4/", "net..ipv4", "net//ipv4",
		"net/../ipv4", "net/./ipv4", "net.//.ipv4", "net./.ipv4", " net.ipv4", "net.ipv4 ", "net.ipv4\n", "net\x00.ipv4", "net.ip\tv4", "net.\x7f", "../net"} {
		if got, err := sysctl.ParseKey(in); !errors.Is(err, sysctl.ErrKey) {
			t.Errorf("ParseKey(%q) = %q, %v; want an error", in, got, err)
		}
	}
}

// Case 44: link names with dots.
func TestCase44(t *testing.T) {
	data, err := os.ReadFile("../../test/cases/44-dotted-interfaces/keys.tsv")
	if err != nil {
		t.Fatal(err)
	}
	root := tree(t, map[string]string{
		"net/ipv4/conf/eth0.100/rp_filter":      "0\n",
		"net/ipv6/conf/eth0.100.200/forwarding": "0\n",
	})
	n := 0
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n")[1:] {
		f := strings.Split(line, "\t")
		k, err := sysctl.ParseKey(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if string(k) != f[1] {
			t.Errorf("%s is %s, want %s", f[0], string(k), f[1])
		}
		if got, want := (sysctl.Tree{Root: root}).Exists(k), strings.HasPrefix(f[2], "yes"); got != want {
			t.Errorf("%s exists: %v, want %v", f[0], got, want)
		}
		if again, err := sysctl.ParseKey(k.String()); err != nil || again != k {
			t.Errorf("%s is printed as %s, which is %s, %v", string(k), k, string(again), err)
		}
		text, err := k.MarshalText()
		var back sysctl.Key
		if err != nil || back.UnmarshalText(text) != nil || back != k {
			t.Errorf("%s does not survive as text %s: %s, %v", string(k), text, string(back), err)
		}
		n++
	}
	if n != 5 {
		t.Errorf("%d keys", n)
	}
}

// Case 30: /etc/sysctl.conf counts for procps only, and that is said.
func TestCase30(t *testing.T) {
	root := "../../test/cases/30-deb13-sysctl-conf-ignored/root"
	boot := read(t, root, sysctl.Systemd)
	if a, ok := boot.Lookup(sysctl.CongestionControl); ok {
		t.Errorf("boot sets %+v", a)
	}
	want := sysctl.Assignment{Key: sysctl.DefaultQdisc, Value: "fq_codel", File: "/usr/lib/sysctl.d/50-default.conf", Line: 1}
	if a, _ := boot.Lookup(sysctl.DefaultQdisc); a != want {
		t.Errorf("boot sets %+v, want %+v", a, want)
	}
	problems := boot.Problems()
	if len(problems) != 1 || problems[0].File != "/etc/sysctl.conf" || !strings.Contains(problems[0].Reason, "not read at boot here") {
		t.Errorf("%+v", problems)
	}
	procps := read(t, root, sysctl.Procps)
	want = sysctl.Assignment{Key: sysctl.CongestionControl, Value: "bbr", File: "/etc/sysctl.conf", Line: 2}
	if a, _ := procps.Lookup(sysctl.CongestionControl); a != want {
		t.Errorf("procps sets %+v, want %+v", a, want)
	}
	if p := procps.Problems(); len(p) != 0 {
		t.Errorf("%+v", p)
	}
}

// Case 33: names, not directories, decide.
func TestCase33(t *testing.T) {
	dirs, err := filepath.Glob("../../test/cases/33-later-name-wins/*/expect.txt")
	if err != nil || len(dirs) != 9 {
		t.Fatalf("%d folders, %v", len(dirs), err)
	}
	for _, expect := range dirs {
		data, err := os.ReadFile(expect)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.TrimSpace(string(data))
		if want == "(default)" {
			want = "(none)"
		}
		for _, order := range orders {
			c := read(t, filepath.Join(filepath.Dir(expect), "root"), order)
			if got := value(c, sysctl.CongestionControl); got != want {
				t.Errorf("%s, %v: %s, want %s", filepath.Dir(expect), order, got, want)
			}
		}
	}
	c := read(t, "../../test/cases/33-later-name-wins/wrong-suffix/root", sysctl.Systemd)
	var files []string
	for _, p := range c.Problems() {
		files = append(files, p.File)
	}
	if diff := cmp.Diff([]string{"/etc/sysctl.d/99-accel", "/etc/sysctl.d/99-accel.CONF"}, files); diff != "" {
		t.Error(diff)
	}
}

// Case 35: one key many times, in many ways to write it.
func TestCase35(t *testing.T) {
	const recorded = "../../test/cases/35-duplicates-and-spaces/root"
	conf, err := os.ReadFile(recorded + "/etc/sysctl.conf")
	if err != nil {
		t.Fatal(err)
	}
	linked := tree(t, map[string]string{"etc/sysctl.conf": string(conf), "etc/sysctl.d/99-sysctl.conf": "->../sysctl.conf"})
	// The recorded one holds the link as a file with its text.
	further := tree(t, map[string]string{"etc/local.conf": string(conf), "etc/sysctl.conf": "->local.conf", "etc/sysctl.d/99-sysctl.conf": "->../sysctl.conf"})
	for root, target := range map[string]string{linked: "/etc/sysctl.conf", recorded: "/etc/sysctl.conf", further: "/etc/local.conf"} {
		c := read(t, root, sysctl.Systemd)
		const file = "/etc/sysctl.d/99-sysctl.conf"
		for k, want := range map[sysctl.Key]sysctl.Assignment{
			sysctl.CongestionControl: {Key: sysctl.CongestionControl, Value: "bbr", File: file, Line: 6, Target: target},
			sysctl.DefaultQdisc:      {Key: sysctl.DefaultQdisc, Value: "fq_pie", File: file, Line: 5, Target: target},
		} {
			if got, _ := c.Lookup(k); got != want {
				t.Errorf("%s: %+v, want %+v", k, got, want)
			}
			if got := c.All(k); len(got) != 3 {
				t.Errorf("%s: %d assignments", k, len(got))
			}
			if got := c.Writes(k); len(got) != 1 {
				t.Errorf("%s: systemd writes it %d times", k, len(got))
			}
		}
		for _, p := range c.Problems() {
			if p.Kind != sysctl.Repeated {
				t.Errorf("%+v", p)
			}
		}
		repeated := []int{}
		for _, p := range c.Problems() {
			if p.Kind == sysctl.Repeated && p.File == file {
				repeated = append(repeated, p.Line)
			}
		}
		if diff := cmp.Diff([]int{1, 2, 3, 4}, repeated); diff != "" {
			t.Error(diff)
		}
	}
}

// A case of one file, from its folder in testdata.
type fileCase struct {
	file     string
	systemd  map[sysctl.Key]string // what boot sets, as the tool writes it
	procps   map[sysctl.Key]string // nil: the same
	problems []int                 // the lines with a problem in the order Systemd
}

func (c fileCase) run(t *testing.T, folder string) {
	data, err := os.ReadFile(filepath.Join("../../test/cases", folder, "files", c.file))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"etc/sysctl.d/50-x.conf": string(data)}
	for _, link := range []string{"all", "default", "lo", "eth0"} {
		files["proc/sys/net/ipv4/conf/"+link+"/rp_filter"] = "0\n"
	}
	root := tree(t, files)
	for _, order := range orders {
		got := map[sysctl.Key]string{}
		config := read(t, root, order)
		for _, k := range config.Keys() {
			got[k] = value(config, k)
		}
		want := c.systemd
		if order == sysctl.Procps && c.procps != nil {
			want = c.procps
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, %v: %s", c.file, order, diff)
		}
		if order == sysctl.Systemd {
			var lines []int
			for _, p := range config.Problems() {
				lines = append(lines, p.Line)
				if p.Reason == "" || p.Reason != sysctl.Printable(p.Reason) {
					t.Errorf("%s: reason %q", c.file, p.Reason)
				}
			}
			if diff := cmp.Diff(c.problems, lines); diff != "" {
				t.Errorf("%s, problems: %s", c.file, diff)
			}
		}
	}
}

type values = map[sysctl.Key]string

const (
	retries2 sysctl.Key = "net/ipv4/tcp_retries2"
	fin      sysctl.Key = "net/ipv4/tcp_fin_timeout"
)

// Case 42: encodings.
func TestCase42(t *testing.T) {
	for _, c := range []fileCase{
		{file: "backslash-continuation.conf", systemd: values{retries2: `\`}, problems: []int{1, 2}},
		{file: "bom-comment.conf", systemd: values{retries2: "8"}, problems: []int{1}},
		// The spoilt key is set too, in vain: there is none of that name.
		{file: "bom.conf", systemd: values{fin: "20", "\ufeffnet/ipv4/tcp_retries2": "8"}, problems: []int{1}},
		{file: "crlf.conf", systemd: values{retries2: "8", sysctl.CongestionControl: "bbr"}},
		{file: "empty-value.conf", systemd: values{sysctl.CongestionControl: "", retries2: "8"}, problems: []int{1}},
		{file: "fullwidth-equals.conf", systemd: values{}, problems: []int{1}},
		{file: "gbk-comment.conf", systemd: values{retries2: "8"}},
		{file: "nbsp.conf", systemd: values{}, problems: []int{1}},
		{file: "no-final-newline.conf", systemd: values{retries2: "8"}},
		{file: "nul-line.conf", systemd: values{retries2: "8", fin: "20"}, problems: []int{2}},
		{file: "utf16.conf", systemd: values{}, problems: []int{1}},
	} {
		c.run(t, "42-encoding")
	}
}

// Case 43: dashes and patterns.
func TestCase43(t *testing.T) {
	rp := func(link string) sysctl.Key { return sysctl.Key("net/ipv4/conf/" + link + "/rp_filter") }
	for _, c := range []fileCase{
		{file: "glob-explicit-after.conf", systemd: values{rp("all"): "2", rp("default"): "2", rp("eth0"): "2", rp("lo"): "1"}},
		{file: "glob-explicit-before.conf", systemd: values{rp("all"): "2", rp("default"): "2", rp("eth0"): "2", rp("lo"): "1"}},
		{file: "glob-on-cc.conf", systemd: values{}}, // no such key in this root; see below
		{file: "minus-bare.conf", systemd: values{rp("default"): "2", rp("eth0"): "2", rp("lo"): "2"}},
		{file: "minus-space.conf", systemd: values{retries2: "8"}, procps: values{}, problems: []int{1}},
		{file: "minus-unknown.conf", systemd: values{"net/ipv4/nosuch": "8", retries2: "8"}},
		{file: "minus-value.conf", systemd: values{retries2: "8"}},
		{file: "upper-case.conf", systemd: values{"NET/ipv4/tcp_retries2": "8"}, problems: []int{1}},
	} {
		c.run(t, "43-dash-and-glob")
	}
	data, err := os.ReadFile("../../test/cases/43-dash-and-glob/files/glob-on-cc.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range orders {
		c := read(t, tree(t, map[string]string{"etc/sysctl.d/x.conf": string(data)}), order)
		want := sysctl.Assignment{Key: sysctl.CongestionControl, Value: "bbr", File: "/etc/sysctl.d/x.conf", Line: 1, Glob: "net/ipv4/tcp_congestion_contro*"}
		if got, _ := c.Lookup(sysctl.CongestionControl); got != want {
			t.Errorf("%v: %+v, want %+v", order, got, want)
		}
	}
}

// Case 45: quotes and pasted commands.
func TestCase45(t *testing.T) {
	c := read(t, "../../test/cases/45-quotes-and-pastes/root", sysctl.Systemd)
	var lines []int
	for _, p := range c.Problems() {
		lines = append(lines, p.Line)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 4, 5}, lines); diff != "" {
		t.Error(diff)
	}
	a, _ := c.Lookup(retries2)
	if got, ok := sysctl.Taken("15", a.Value); !ok || got != "9" {
		t.Errorf("%q becomes %q, %v", a.Value, got, ok)
	}
	if a, ok := c.Lookup(fin); ok {
		t.Errorf("%+v", a)
	}
	if a, _ := c.Lookup(sysctl.CongestionControl); a.Value != `"bbr"` {
		t.Errorf("%+v", a)
	}
}

// Case 64: a line for a link that is not there stands beside the others.
func TestCase64(t *testing.T) {
	root := "../../test/cases/64-foreign-missing-nic-and-locale/root"
	c := read(t, root, sysctl.Procps)
	live := sysctl.Tree{Root: root + "/proc/sys"}
	missing := sysctl.Key("net/ipv4/conf/eth1/rp_filter")
	if !slices.Contains(c.Keys(), missing) || live.Exists(missing) {
		t.Errorf("%s: among %v, exists %v", missing, c.Keys(), live.Exists(missing))
	}
	if a, _ := c.Lookup(sysctl.CongestionControl); a.Value != "bbr" || a.Line != 5 {
		t.Errorf("%+v", a)
	}
	if v, err := live.Read(sysctl.CongestionControl); v != "cubic" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	// What a refusing kernel leaves is the default, and no text tells it.
	refuses := func(string) bool { return false }
	if a, ok := c.InForce(sysctl.CongestionControl, refuses); ok {
		t.Errorf("%+v", a)
	}
}

// Case 78: what ufw sets when it starts.
func TestCase78(t *testing.T) {
	got, err := sysctl.ReadFileIn("../../test/cases/78-tuned-override/root", "/etc/ufw/sysctl.conf")
	if err != nil {
		t.Fatal(err)
	}
	want := []sysctl.Assignment{
		{Key: sysctl.CongestionControl, Value: "cubic", File: "/etc/ufw/sysctl.conf", Line: 1},
		{Key: "net/ipv4/tcp_sack", Value: "1", File: "/etc/ufw/sysctl.conf", Line: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	dir, err := filepath.Abs("../../test/cases/78-tuned-override/root")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := sysctl.ReadFile(dir + "/etc/ufw/sysctl.conf"); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := sysctl.ReadFile(dir + "/etc/ufw/nosuch.conf"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// What differs between the tools, each measured with the real ones.
func TestOrders(t *testing.T) {
	const none = "(none)"
	const a, b = "etc/sysctl.d/a.conf", "etc/sysctl.d/b.conf"
	for _, c := range []struct {
		name            string
		files           map[string]string
		key             sysctl.Key
		systemd, procps string
	}{
		{"sysctl.conf last", map[string]string{"etc/sysctl.conf": "net.ipv4.tcp_retries2=1", "etc/sysctl.d/zz.conf": "net.ipv4.tcp_retries2=2"}, retries2, "2", "1"},
		{"hidden file", map[string]string{"etc/sysctl.d/.a.conf": "net.ipv4.tcp_retries2=1"}, retries2, none, "1"},
		{"bare dash takes back", map[string]string{a: "net.ipv4.tcp_retries2=1\n-net.ipv4.tcp_retries2"}, retries2, none, "1"},
		{"value after bare dash", map[string]string{a: "-net.ipv4.tcp_retries2\nnet.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"bare dash with the pattern's own text", map[string]string{a: "net.ipv4.tcp_retries*=1\n-net.ipv4.tcp_retries*"}, retries2, none, "1"},
		{"two dashes", map[string]string{a: "--net.ipv4.tcp_retries2=1"}, retries2, none, "1"},
		{"carriage return only", map[string]string{a: "net.ipv4.tcp_retries2=1\rnet.ipv4.tcp_fin_timeout=2"}, fin, "2", none},
		{"NUL ends the line", map[string]string{a: "# x\x00net.ipv4.tcp_retries2=1"}, retries2, "1", none},
		{"NUL ends the value", map[string]string{a: "net.ipv4.tcp_retries2=1\x00000"}, retries2, "1", "1"},
		{"vertical tab", map[string]string{a: "\vnet.ipv4.tcp_retries2\v=\v1"}, retries2, none, "1"},
		{"leading slash", map[string]string{a: "/net/ipv4/tcp_retries2=1"}, retries2, "1", "1"},
		{"leading dot", map[string]string{a: ".net.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"trailing slash", map[string]string{a: "net/ipv4/tcp_retries2/=1"}, retries2, "1", none},
		{"two dots", map[string]string{a: "net..ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"another way to write it beats a pattern", map[string]string{a: "net//ipv4/tcp_retries2=1\nnet.ipv4.tcp_retries*=2"}, retries2, "1", "2"},
		{"braces", map[string]string{a: "net.ipv4.{tcp_retries2,tcp_fin*}=1"}, retries2, "1", none},
		{"braces without a pattern", map[string]string{a: "net.ipv4.{tcp_retries2,tcp_fin_timeout}=1"}, retries2, none, none},
		{"equal pattern stays where it was", map[string]string{a: "net.ipv4.tcp_retries*=1\nnet.ipv4.tcp_retrie*=2\nnet.ipv4.tcp_retries*=1"}, retries2, "2", "1"},
		{"other pattern moves to the end", map[string]string{a: "net.ipv4.tcp_retries*=1\nnet.ipv4.tcp_retrie*=2\nnet.ipv4.tcp_retries*=3"}, retries2, "3", "3"},
		{"name is a pattern", map[string]string{"etc/sysctl.d/[ab].conf": "net.ipv4.tcp_retries2=1", a: "net.ipv4.tcp_retries2=2"}, retries2, "2", "2"},
		{"name is a pattern, alone", map[string]string{"etc/sysctl.d/[ab].conf": "net.ipv4.tcp_retries2=1", a: "", b: "net.ipv4.tcp_fin_timeout=2"}, retries2, "1", none},
		{"too long a line", map[string]string{a: "net.ipv4.tcp_fin_timeout=2\n#" + strings.Repeat("x", 1<<20) + "\nnet.ipv4.tcp_retries2=1"}, retries2, none, "1"},
		{"before too long a line", map[string]string{a: "net.ipv4.tcp_fin_timeout=2\n#" + strings.Repeat("x", 1<<20) + "\nnet.ipv4.tcp_retries2=1"}, fin, "2", "2"},
		{"line as long as can be", map[string]string{a: "#" + strings.Repeat("x", 1<<20-2) + "\nnet.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"one longer", map[string]string{a: "#" + strings.Repeat("x", 1<<20-1) + "\nnet.ipv4.tcp_retries2=1"}, retries2, none, "1"},
		{"directory hides", map[string]string{"etc/sysctl.d/a.conf/": "", "usr/lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1"}, retries2, none, none},
		{"dangling link hides", map[string]string{a: "->nowhere", "usr/lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1"}, retries2, none, none},
		{"/dev/null hides", map[string]string{a: "->/dev/null", "usr/lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1"}, retries2, none, none},
		{"empty file hides", map[string]string{a: "", "usr/lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1"}, retries2, none, none},
		{"loop", map[string]string{a: "->a.conf", b: "net.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"directory is a link", map[string]string{"etc/sysctl.d": "->/opt/x", "opt/x/a.conf": "net.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"file is a link out of the root", map[string]string{a: "->../../../../../../opt/x", "opt/x": "net.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"lib is not usr/lib", map[string]string{"lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"lib is not usr/lib, Debian 12", map[string]string{"lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1", "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so": ""}, retries2, "1", "1"},
		{"lib is not usr/lib, Debian 13", map[string]string{"lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1", "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-257.so": ""}, retries2, none, "1"},
		{"lib is usr/lib, Debian 13", map[string]string{"lib": "->usr/lib", "usr/lib/sysctl.d/a.conf": "net.ipv4.tcp_retries2=1", "usr/lib/systemd/libsystemd-shared-257.so": ""}, retries2, "1", "1"},
		{"upwards", map[string]string{a: "net/core/../ipv4/tcp_retries2=1", "proc/sys/net/core/somaxconn": "1"}, retries2, none, "1"},
		{"upwards from nothing", map[string]string{a: "net/nosuch/../ipv4/tcp_retries2=1", "proc/sys/net/core/somaxconn": "1"}, retries2, none, none},
		{"above the root", map[string]string{a: "/../net/ipv4/tcp_retries2=1"}, retries2, none, none},
		{"above the root, Debian 13", map[string]string{a: "/.././../net/ipv4/tcp_retries2=1", "usr/lib/systemd/libsystemd-shared-257.so": ""}, retries2, "1", none},
		{"name is a pattern and finds a hidden file", map[string]string{"run/sysctl.d/[ab].conf": "", "run/sysctl.d/b.conf": "net.ipv4.tcp_retries2=1", b: "#"}, retries2, none, "1"},
		{"it gives up where one cannot be opened", map[string]string{"run/sysctl.d/[ab].conf": "", "run/sysctl.d/a.conf": "->nowhere", "run/sysctl.d/b.conf": "net.ipv4.tcp_retries2=1", b: "#"}, retries2, none, none},
		{"crash", map[string]string{a: "net.ipv4.tcp_fin_timeout=1\n" + strings.Repeat("x", 256) + "*=1\nnet.ipv4.tcp_retries2=1"}, retries2, none, "1"},
		{"before the crash", map[string]string{a: "net.ipv4.tcp_fin_timeout=1\n" + strings.Repeat("x", 256) + "*=1\nnet.ipv4.tcp_retries2=1"}, fin, "1", "1"},
		{"no crash, not that long", map[string]string{a: strings.Repeat("x", 254) + "*=1\nnet.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"no crash, no pattern", map[string]string{a: strings.Repeat("x", 256) + "=1\nnet.ipv4.tcp_retries2=1"}, retries2, "1", "1"},
		{"no crash, something matches", map[string]string{a: "[" + strings.Repeat("n", 256) + "]et.ipv4=1\nnet.ipv4.tcp_retries2=1", "proc/sys/net/ipv4/tcp_retries2": "15"}, retries2, "1", "1"},
		{"out of the tree", map[string]string{a: "../sys/net/ipv4/tcp_retries2=1"}, "sys/net/ipv4/tcp_retries2", none, none},
		{"two equals signs", map[string]string{a: "net.ipv4.tcp_retries2==1"}, retries2, "=1", "=1"},
		{"no value", map[string]string{a: "net.ipv4.tcp_retries2="}, retries2, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.files)
			for order, want := range map[sysctl.Order]string{sysctl.Systemd: c.systemd, sysctl.Procps: c.procps} {
				if got := value(read(t, root, order), c.key); got != want {
					t.Errorf("%v: %q, want %q", order, got, want)
				}
			}
		})
	}
}

// What is in force when the kernel refuses the deciding value.
func TestInForce(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/sysctl.d/10-a.conf": "net.ipv4.tcp_congestion_control=reno\n",
		"etc/sysctl.d/20-b.conf": "net.ipv4.tcp_congestion_control=bbr\n",
	})
	only := func(names ...string) func(string) bool {
		return func(v string) bool { return slices.Contains(names, v) }
	}
	for _, c := range []struct {
		order   sysctl.Order
		accepts []string
		want    string
	}{
		{sysctl.Systemd, []string{"reno", "bbr"}, "bbr"},
		{sysctl.Systemd, []string{"reno"}, "(none)"}, // not the value that lost
		{sysctl.Procps, []string{"reno", "bbr"}, "bbr"},
		{sysctl.Procps, []string{"reno"}, "reno"},
		{sysctl.Procps, nil, "(none)"},
	} {
		got := "(none)"
		if a, ok := read(t, root, c.order).InForce(sysctl.CongestionControl, only(c.accepts...)); ok {
			got = a.Value
		}
		if got != c.want {
			t.Errorf("%v, kernel takes %v: %s, want %s", c.order, c.accepts, got, c.want)
		}
	}
}

func TestWithout(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/sysctl.d/99-zz-accel.conf":  "net.ipv4.tcp_congestion_control=bbr",
		"usr/lib/sysctl.d/99-z.conf":     "net.ipv4.tcp_congestion_control=cubic",
		"etc/sysctl.d/99-z.conf":         "net.ipv4.tcp_congestion_control=reno",
		"usr/local/lib/sysctl.d/10.conf": "net.ipv4.tcp_congestion_control=vegas",
		"etc/sysctl.conf":                "net.ipv4.tcp_congestion_control=htcp",
	})
	for order, want := range map[sysctl.Order][]string{
		sysctl.Systemd: {"bbr", "reno", "cubic", "vegas", "(none)"},
		sysctl.Procps:  {"htcp", "bbr", "reno", "cubic", "vegas", "(none)"},
	} {
		c := read(t, root, order)
		before := value(c, sysctl.CongestionControl)
		var got []string
		for w := c; ; {
			a, ok := w.Lookup(sysctl.CongestionControl)
			got = append(got, value(w, sysctl.CongestionControl))
			if !ok {
				break
			}
			w = w.Without(a.File)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: %s", order, diff)
		}
		if after := value(c, sysctl.CongestionControl); after != before {
			t.Errorf("%v: Without changed its receiver: %s", order, after)
		}
	}
}

// A bare dash in a later file takes ours back, with systemd.
func TestExcluded(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/sysctl.d/99-zz-accel.conf": "net.ipv4.tcp_congestion_control=bbr\n",
		"etc/sysctl.d/zzz.conf":         "# no\n-net.ipv4.tcp_congestion_control\n",
	})
	for order, want := range map[sysctl.Order]string{sysctl.Systemd: "(none)", sysctl.Procps: "bbr"} {
		c := read(t, root, order)
		if got := value(c, sysctl.CongestionControl); got != want {
			t.Errorf("%v: %s, want %s", order, got, want)
		}
		a, ok := c.Excluded(sysctl.CongestionControl)
		if !ok || a != (sysctl.Assignment{Key: sysctl.CongestionControl, File: "/etc/sysctl.d/zzz.conf", Line: 2}) {
			t.Errorf("%v: %+v, %v", order, a, ok)
		}
		if a, ok := c.Without("/etc/sysctl.d/zzz.conf").Excluded(sysctl.CongestionControl); ok {
			t.Errorf("%v: still %+v", order, a)
		}
	}
}

func TestProblems(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/sysctl.d/10-a.conf": "net.ipv4.tcp_retries2=8 # fine for a number\n" +
			"net.ipv4.tcp_congestion_control = bbr # not for a name\n" +
			"net.core.default_qdisc=FQ\n" +
			"sudo sysctl -w net.core.rmem_max=1\n" +
			"net.ipv4.conf.\xffx.tag=1\n" +
			"net.ipv4.tcp_mem=1 2 3\n" +
			"kernel.core_pattern=|/usr/bin/x %p a=b\n" +
			"net.ipv4.tcp_retries2=9\n" +
			"net/ipv4/../tcp_retries2=9\n" +
			"net.ipv4.conf.*.rp_filter=1\n" +
			"net.ipv4.tcp_congestion_control = bbr\u3000\n",
		"etc/sysctl.d/README.sysctl":   "net.ipv4.tcp_retries2=8\n",
		"etc/sysctl.d/20.conf.bak":     "net.ipv4.tcp_retries2=8\n",
		"etc/sysctl.d/30":              "net.ipv4.tcp_retries2=8\n",
		"etc/sysctl.d/40":              "no setting\n",
		"etc/sysctl.d/.50.conf":        "net.ipv4.tcp_retries2=8\n",
		"etc/sysctl.d/60.conf/":        "",
		"etc/sysctl.d/70.conf":         "->nowhere",
		"etc/sysctl.d/80.conf":         "->/dev/null",
		"etc/sysctl.d/90.conf":         "->90.conf",
		"run/sysctl.d":                 "a file",
		"usr/lib/sysctl.d/60.conf":     "hidden = \"nothing of it is told\"\n",
		"usr/local/lib/sysctl.d/a.txt": "net.ipv4.tcp_retries2=8\n",
	})
	if err := unix.Mkfifo(filepath.Join(root, "etc/sysctl.d/95.conf"), 0o644); err != nil {
		t.Fatal(err)
	}
	type place struct {
		File string
		Line int
		Kind sysctl.Kind
	}
	want := []place{
		{"/run/sysctl.d", 0, sysctl.Ignored},
		{"/etc/sysctl.d/10-a.conf", 1, sysctl.Misleading},
		{"/etc/sysctl.d/10-a.conf", 2, sysctl.Misleading},
		{"/etc/sysctl.d/10-a.conf", 3, sysctl.Refused},
		{"/etc/sysctl.d/10-a.conf", 4, sysctl.Refused},
		{"/etc/sysctl.d/10-a.conf", 5, sysctl.Refused},
		{"/etc/sysctl.d/10-a.conf", 9, sysctl.Refused},
		{"/etc/sysctl.d/10-a.conf", 11, sysctl.Refused},
		{"/etc/sysctl.d/10-a.conf", 1, sysctl.Repeated},
		{"/etc/sysctl.d/10-a.conf", 2, sysctl.Repeated},
		{"/etc/sysctl.d/60.conf", 0, sysctl.Ignored},
		{"/etc/sysctl.d/70.conf", 0, sysctl.Ignored},
		{"/etc/sysctl.d/90.conf", 0, sysctl.Ignored},
		{"/etc/sysctl.d/95.conf", 0, sysctl.Ignored},
		{"/etc/sysctl.d/.50.conf", 0, sysctl.Ignored},
		{"/etc/sysctl.d/30", 0, sysctl.Ignored},
		{"/usr/local/lib/sysctl.d/a.txt", 0, sysctl.Ignored},
	}
	var got []place
	for _, p := range read(t, root, sysctl.Systemd).Problems() {
		got = append(got, place{p.File, p.Line, p.Kind})
		if p.Reason == "" || p.Reason != sysctl.Printable(p.Reason) {
			t.Errorf("reason %q", p.Reason)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCrash(t *testing.T) {
	root := tree(t, map[string]string{"etc/sysctl.d/50-pasted.conf": "net.ipv4.tcp_retries2=1\n" + strings.Repeat("QUJD", 80) + "?=1\nnet.ipv4.tcp_fin_timeout=2\n"})
	problems := read(t, root, sysctl.Systemd).Problems()
	if len(problems) != 1 || problems[0].Line != 2 || !strings.Contains(problems[0].Reason, "crashes at this line") {
		t.Errorf("%+v", problems)
	}
	if p := read(t, root, sysctl.Procps).Problems(); len(p) != 0 {
		t.Errorf("%+v", p)
	}
}

// Nothing that a file system can hold keeps accel from answering in time.
func TestHostile(t *testing.T) {
	big := strings.Repeat("net.ipv4.conf.*.tag=1\n", 200_000)
	files := map[string]string{
		"etc/sysctl.d/zero.conf":   "->/dev/zero",
		"etc/sysctl.d/big.conf":    big,
		"etc/sysctl.d/binary.conf": strings.Repeat("\x7fELF\x00\xff\n=\x00", 10_000),
		"etc/sysctl.d/braces.conf": "net.ipv4." + strings.Repeat("{a,b}", 40) + "*=1\nnet." + strings.Repeat("{", 1000) + "*=1\n",
		"etc/sysctl.d/stars.conf":  "net.ipv4." + strings.Repeat("*a", 2000) + "=1\n" + strings.Repeat("*/", 2000) + "=1\n" + strings.Repeat("*/../", 500) + "x*=1\n",
		"etc/sysctl.d/zz.conf":     "net.ipv4.tcp_retries2=8\n",
		"etc/sysctl.d/loop/":       "",
		"etc/sysctl.d/a.conf":      "->b.conf",
		"etc/sysctl.d/b.conf":      "->a.conf",
		"usr/lib/sysctl.d":         "->sysctl.d",
	}
	for _, link := range []string{"all", "lo", strings.Repeat("a", 200)} {
		files["proc/sys/net/ipv4/conf/"+link+"/tag"] = "0\n"
	}
	root := tree(t, files)
	if err := errors.Join(unix.Mkfifo(filepath.Join(root, "etc/sysctl.d/pipe.conf"), 0o644), unix.Mkfifo(filepath.Join(root, "etc/sysctl.conf"), 0o644)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, order := range orders {
		c := read(t, root, order)
		if got := value(c, retries2); got != "8" {
			t.Errorf("%v: %s", order, got)
		}
		c.Keys()
		c.All(retries2)
		if n := len(c.Problems()); n < 5 || n > 500 {
			t.Errorf("%v: %d problems", order, n)
		}
		said := map[string]bool{}
		for _, p := range c.Problems() {
			said[p.File] = true
		}
		for _, name := range []string{"big.conf", "binary.conf", "pipe.conf", "a.conf", "braces.conf"} {
			if name == "braces.conf" && order == sysctl.Procps {
				continue // there, braces are themselves
			}
			if !said["/etc/sysctl.d/"+name] {
				t.Errorf("%v: nothing is said of %s", order, name)
			}
		}
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestManyFiles(t *testing.T) {
	// Links, since they are quick to make.
	files := map[string]string{"etc/sysctl.d/0.conf": "net.ipv4.tcp_retries2=8\n"}
	for i := range 4200 {
		files[fmt.Sprintf("etc/sysctl.d/%d.conf", i+1)] = "->/dev/null"
	}
	c := read(t, tree(t, files), sysctl.Systemd)
	if p := c.Problems(); len(p) != 1 || p[0].File != "/etc/sysctl.d" || !strings.Contains(p[0].Reason, "4096") {
		t.Errorf("%+v", p)
	}
}

func TestReadConfigRoot(t *testing.T) {
	if _, err := sysctl.ReadConfig(filepath.Join(t.TempDir(), "nosuch"), sysctl.Systemd); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sysctl.ReadConfig(file, sysctl.Systemd); !errors.Is(err, unix.ENOTDIR) {
		t.Error(err)
	}
	// The live host, whatever it holds, without writing anything.
	for _, order := range orders {
		c := read(t, "/", order)
		for _, k := range c.Keys() {
			if _, ok := c.Lookup(k); !ok {
				t.Errorf("%v: %s is a key that nothing sets", order, k)
			}
		}
	}
}

func TestRender(t *testing.T) {
	got := string(sysctl.Render([]string{"made by accel", "two\nlines", ""}, []sysctl.KeyValue{
		{Key: sysctl.DefaultQdisc, Value: "fq"},
		{Key: sysctl.CongestionControl, Value: "bbr"},
		{Key: "net/ipv4/conf/eth0.100/rp_filter", Value: "2"},
		{Key: "net/ipv4/tcp_rmem", Value: "4096\t131072\t33554432"},
		{Key: "net/ipv4/conf/*/tag", Value: "1"},
		{Key: "net/ipv4/tcp_retries2", Value: "8\nnet.ipv4.ip_forward=1"},
	}))
	want := `# made by accel
# two
# lines
#

net.core.default_qdisc = fq
net.ipv4.tcp_congestion_control = bbr
net.ipv4.conf.eth0/100.rp_filter = 2
net.ipv4.tcp_rmem = 4096	131072	33554432
# left out: writing net/ipv4/conf/*/tag into a sysctl file: not the name of a kernel setting: it would be taken for a pattern
# left out: writing net.ipv4.tcp_retries2 into a sysctl file: the value was refused: "8\nnet.ipv4.ip_forward=1" has blanks around it or more than one line
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"bbr":             "bbr",
		"\xff\xfe":        `\xff\xfe`,
		"a\x1b[31mb":      `a\x1b[31mb`,
		"nbsp\u00a0":      `nbsp\u00a0`,
		"\ufeffx":         `\ufeffx`,
		"tab\tnl\n":       `tab\tnl\n`,
		"\u4e2d\u6587 ok": "\u4e2d\u6587 ok",
		"\u202e":          `\u202e`,
	} {
		if got := sysctl.Printable(in); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTaken(t *testing.T) {
	for _, c := range []struct {
		current, written, want string
		ok                     bool
	}{
		{"15", "8", "8", true},
		{"15", "9 net.ipv4.tcp_fin_timeout=20", "9", true},
		{"15", "8 # comment", "8", true},
		{"15", "8# comment", "", false},
		{"15", "'10'", "", false},
		{"15", "", "", false},
		{"15", "0x1f", "31", true},
		{"15", "010", "8", true},
		{"15", "09", "", false},
		{"15", "-1", "-1", true},
		{"15", "+1", "", false},
		{"15", "1_0", "", false},
		{"15", "8\r", "", false},
		{"15", strings.Repeat("0", 5000) + "1", "", false},
		{"4096\t131072\t6291456", "4096 87380 33554432", "4096\t87380\t33554432", true},
		{"4096\t131072\t6291456", "1 2", "1\t2\t6291456", true},
		{"cubic", "bbr # x", "bbr # x", true},
		{"", "x", "x", true},
	} {
		if got, ok := sysctl.Taken(c.current, c.written); got != c.want || ok != c.ok {
			t.Errorf("Taken(%q, %.40q) = %q, %v; want %q, %v", c.current, c.written, got, ok, c.want, c.ok)
		}
	}
}

func TestEqual(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"4096\t131072\t33554432", "4096 131072 33554432", true},
		{" 1\n", "1", true},
		{"", "", true},
		{"1 2", "1", false},
		{"1 2", "12", false},
		{"bbr", "BBR", false},
	} {
		if got := sysctl.Equal(c.a, c.b); got != c.want {
			t.Errorf("Equal(%q, %q) = %v", c.a, c.b, got)
		}
	}
}
