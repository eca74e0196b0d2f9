package sysctl_test

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/sysctl"
)

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"net.ipv4.tcp_congestion_control", "net/ipv4/conf/eth0.100/rp_filter", "net.ipv4.conf.eth0/100.rp_filter", "..", "a./b", "/", "net.\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := sysctl.ParseKey(s)
		if err != nil {
			if k != "" {
				t.Errorf("%q gives a key and an error", s)
			}
			return
		}
		if again, err := sysctl.ParseKey(k.String()); err != nil || again != k {
			t.Errorf("%q is %q, printed %q, which is %q, %v", s, string(k), k, string(again), err)
		}
		if p := path.Join("/proc/sys", string(k)); p != "/proc/sys/"+string(k) {
			t.Errorf("%q leads to %s", s, p)
		}
		// Read by the tools as by us: both make the same path of both forms.
		for _, order := range orders {
			for _, form := range []string{k.String(), string(k)} {
				if strings.ContainsAny(form, "=#;\\*?[") || form[0] == '-' || len(form) > 1<<19 {
					continue
				}
				lines, _ := sysctl.ParseFile("x", []byte(form+"=1\n"), order)
				if len(lines) != 1 || lines[0].Path != string(k) {
					t.Errorf("%v makes %+v of %q", order, lines, form)
				}
			}
		}
	})
}

func FuzzParseFile(f *testing.F) {
	seeds, _ := filepath.Glob("../../test/cases/4[235]-*/files/*.conf")
	for _, name := range seeds {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, true)
	}
	f.Add([]byte("-net.ipv4.conf.*.rp_filter\r\n\x00a=b\n\rc = d # e\n\"x\"='y'"), false)
	f.Fuzz(func(t *testing.T, data []byte, procps bool) {
		order := sysctl.Systemd
		if procps {
			order = sysctl.Procps
		}
		lines, problems := sysctl.ParseFile("x.conf", data, order)
		last := 1
		most := strings.Count(string(data), "\n") + 1
		for _, l := range lines {
			if l.Number < last || l.Number > most {
				t.Errorf("line %d after %d of %d", l.Number, last, most)
			}
			last = l.Number
			if strings.ContainsAny(l.Path+l.Value, "\n\x00") || strings.Trim(l.Value, " \t\r") != l.Value {
				t.Errorf("%+v", l)
			}
			if l.Exclude && (l.Value != "" || l.IgnoreError) {
				t.Errorf("%+v", l)
			}
			if k, ok := l.Key(); ok {
				if _, err := sysctl.ParseKey(k.String()); err != nil {
					t.Errorf("%+v: key %q: %v", l, string(k), err)
				}
			}
			if !strings.Contains(string(data), l.Value) {
				t.Errorf("the value is not in the file: %+v", l)
			}
		}
		if len(problems) > 60 {
			t.Errorf("%d problems", len(problems))
		}
		for _, p := range problems {
			if p.Line < 0 || p.Line > most || p.Reason == "" || p.Reason != sysctl.Printable(p.Reason) || len(p.Reason) > 1000 {
				t.Errorf("%+v", p)
			}
		}
	})
}

// What Render writes, both tools read as it was meant.
func FuzzRender(f *testing.F) {
	f.Add("made by accel", "net/ipv4/tcp_congestion_control", "bbr", "net/core/default_qdisc", "fq")
	f.Add("a\r\nb", "net/ipv4/conf/eth0.100/rp_filter", "1\t2 3", "a", "")
	f.Add("", "x*", "y", "-z", "=")
	f.Fuzz(func(t *testing.T, header, k1, v1, k2, v2 string) {
		settings := []sysctl.KeyValue{{Key: sysctl.Key(k1), Value: v1}, {Key: sysctl.Key(k2), Value: v2}}
		data := sysctl.Render([]string{header}, settings)
		var want []sysctl.KeyValue
		for _, kv := range settings {
			if sysctl.CheckSetting(kv) == nil {
				want = append(want, kv)
			}
		}
		for _, order := range orders {
			lines, problems := sysctl.ParseFile("x", data, order)
			var got []sysctl.KeyValue
			for _, l := range lines {
				k, ok := l.Key()
				if !ok || l.Exclude || l.IgnoreError {
					t.Errorf("%v: %+v of\n%q", order, l, data)
				}
				got = append(got, sysctl.KeyValue{Key: k, Value: l.Value})
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%v: %s\n%q", order, diff, data)
			}
			for _, p := range problems {
				if p.Kind == sysctl.Ignored {
					t.Errorf("%v: %+v of\n%q", order, p, data)
				}
			}
		}
	})
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\xffb\x1b[0m\u202e\u4e2d")
	f.Fuzz(func(t *testing.T, s string) {
		p := sysctl.Printable(s)
		if !utf8.ValidString(p) {
			t.Errorf("%q", p)
		}
		if again := sysctl.Printable(p); again != p {
			t.Errorf("%q becomes %q", p, again)
		}
		for _, r := range p {
			if r < ' ' || r == 0x7f || r == '\u202e' || r == '\u00a0' {
				t.Errorf("%q holds %U", p, r)
			}
		}
	})
}
