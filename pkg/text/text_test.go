package text

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestCheckRefusesOtherVerbs(t *testing.T) {
	tests := []struct {
		english, translated string
		good                bool
	}{
		{"no arguments", "没有参数", true},
		{"%s is in force", "%s 已生效", true},
		{"%s on %s", "%[2]s 上的 %[1]s", true},
		{"%d%% of %d", "%[2]d 的 %[1]d%%", true},
		{"%-10s %5d", "%s %d", true}, // columns are aligned elsewhere
		{"%.1f s", "%.1f 秒", true},
		{"%q", "%q", true},
		{"%s is in force", "已生效", false},
		{"in force", "%s 已生效", false},
		{"%s has %d", "%d 有 %s", false},
		{"%s and %s", "%s", false},
		{"%.1f s", "%.3f 秒", false},
		{"%s", "%v", false},
		{"%s", "%", false},
		{"%s", "%[x]s", false},
		{"%s", "%[1", false},
		{"%d", "%*d", false},
		{"%s %s", "%[1]s %[1]d", false},
	}
	for _, test := range tests {
		err := Catalogue{test.english: test.translated}.Check()
		if test.good != (err == nil) {
			t.Errorf("%q -> %q: %v", test.english, test.translated, err)
		}
		if err != nil && !errors.Is(err, ErrVerbs) {
			t.Errorf("%q -> %q: %v is not ErrVerbs", test.english, test.translated, err)
		}
	}
}

func TestT(t *testing.T) {
	catalogues["xx"] = Catalogue{"%s on %s": "auf %[2]s: %[1]s", "reading %s: %w": "%s lesen: %w"}
	t.Cleanup(func() { delete(catalogues, "xx"); SetLanguage("") })

	SetLanguage("")
	if got := T("%s on %s", "fq", "eth0"); got != "fq on eth0" {
		t.Errorf("English: %q", got)
	}
	SetLanguage("xx_YY.UTF-8")
	if got := T("%s on %s", "fq", "eth0"); got != "auf eth0: fq" {
		t.Errorf("translated: %q", got)
	}
	if got := T("port %d", 65535); got != "port 65535" {
		t.Errorf("without a translation: %q", got)
	}
	err := Errorf("reading %s: %w", "a", fs.ErrNotExist)
	if err.Error() != "a lesen: file does not exist" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Errorf: %v", err)
	}
	SetLanguage("tlh")
	if got := T("%s on %s", "fq", "eth0"); got != "fq on eth0" {
		t.Errorf("unknown language: %q", got)
	}
}

// A sentence that was kept is told in the language of whoever asks, and a damaged
// one does no harm.
func TestSentence(t *testing.T) {
	catalogues["xx"] = Catalogue{"%s on %s": "auf %[2]s: %[1]s"}
	t.Cleanup(func() { delete(catalogues, "xx"); SetLanguage("") })
	SetLanguage("xx")
	data, err := json.Marshal([]Sentence{Keep("%s on %s", 7, "eth0"), Keep("no more")})
	if err != nil {
		t.Fatal(err)
	}
	var kept []Sentence
	if err := json.Unmarshal(data, &kept); err != nil {
		t.Fatal(err)
	}
	if got := Tell(kept); got != "auf eth0: 7; no more" {
		t.Errorf("translated: %q", got)
	}
	SetLanguage("")
	if got := Tell(kept); got != "7 on eth0; no more" {
		t.Errorf("English: %q", got)
	}
	if got := Tell([]Sentence{{Format: "%d %s %"}, {Format: "%[9]s", Args: []string{"x"}}, {}}); got == "" {
		t.Errorf("damaged: %q", got)
	}
}

func TestLanguage(t *testing.T) {
	catalogues["xx"] = Catalogue{}
	t.Cleanup(func() { delete(catalogues, "xx") })
	tests := []struct {
		env  map[string]string
		want string
	}{
		{nil, ""},
		{map[string]string{"LANG": "xx_YY.UTF-8"}, "xx"},
		{map[string]string{"LANG": "xx"}, "xx"},
		{map[string]string{"LANG": "xx_YY.utf8@mod"}, "xx"},
		{map[string]string{"LANG": "xx_YY.GB18030"}, ""},
		{map[string]string{"LANG": "xx_YY.UTF-8", "TERM": "linux"}, ""},
		{map[string]string{"LANG": "xx_YY.UTF-8", "LC_ALL": "C"}, ""},
		{map[string]string{"LANG": "C", "LC_MESSAGES": "xx_YY.UTF-8"}, "xx"},
		{map[string]string{"LANG": "de_DE.UTF-8"}, ""},
		{map[string]string{"ACCEL_LANG": "xx", "LANG": "C", "TERM": "linux"}, "xx"},
		{map[string]string{"ACCEL_LANG": "en", "LANG": "xx_YY.UTF-8"}, ""},
	}
	for _, test := range tests {
		got := Language(func(name string) string { return test.env[name] })
		if got != test.want {
			t.Errorf("%v: %q, want %q", test.env, got, test.want)
		}
	}
}

func TestSafe(t *testing.T) {
	tests := map[string]string{
		"":                      "",
		"eth0":                  "eth0",
		"网卡":                    "网卡",
		"a\x1b[31mb":            `a\x1b[31mb`,
		"a\nb\rc\td":            `a\nb\rc\td`,
		"\x7f\u009b":            `\x7f\u009b`,
		"bbr\xff\xfe":           `bbr\xff\xfe`,
		"\ufeffnet":             `\ufeffnet`,
		"a\u202eb\u2066\u200bc": `a\u202eb\u2066\u200bc`,
		"genuine \ufffd":        "genuine \ufffd",
		"l\u2028p\u2029":        `l\u2028p\u2029`,
	}
	for in, want := range tests {
		if got := Safe(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestWidth(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "已启用": 6, "é": 1, "e\u0301": 1, "（bbr）": 7, "é…": 2} {
		if got := Width(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
	if got := Pad("已启", 6) + "|"; got != "已启  |" {
		t.Errorf("%q", got)
	}
	if got := Pad("toolong", 3); got != "toolong" {
		t.Errorf("%q", got)
	}
}

func TestWrap(t *testing.T) {
	tests := []struct {
		in      string
		columns int
		want    []string
	}{
		{"", 10, []string{""}},
		{"one two three", 8, []string{"one two", "three"}},
		{"one two", 7, []string{"one two"}},
		{"abcdefghij", 4, []string{"abcd", "efgh", "ij"}},
		{"a abcdefghij b", 4, []string{"a", "abcd", "efgh", "ij b"}},
		{"one\ntwo", 10, []string{"one", "two"}},
		{"已经启用。", 8, []string{"已经启", "用。"}}, // no full stop at the beginning of a line
		{"启用 bbr 后", 7, []string{"启用", "bbr 后"}},
		{"  indented", 20, []string{"  indented"}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, Wrap(test.in, test.columns)); diff != "" {
			t.Errorf("%q in %d columns (-want +got):\n%s", test.in, test.columns, diff)
		}
	}
}

func TestWrapProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.SampledFrom([]rune("ab -/.已用，。（）\n "))).Draw(t, "s")
		columns := rapid.IntRange(2, 20).Draw(t, "columns")
		var joined strings.Builder
		for _, line := range Wrap(s, columns) {
			if Width(line) > columns {
				t.Fatalf("%q is wider than %d", line, columns)
			}
			joined.WriteString(line)
		}
		strip := strings.NewReplacer(" ", "", "\n", "")
		if got, want := strip.Replace(joined.String()), strip.Replace(s); got != want {
			t.Fatalf("text lost: %q, want %q", got, want)
		}
	})
}

func FuzzSafe(f *testing.F) {
	f.Add("a\x1b[2Jb\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		safe := Safe(s)
		if !utf8.ValidString(safe) {
			t.Fatalf("%q is no UTF-8", safe)
		}
		for _, r := range safe {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
				t.Fatalf("%q holds %U", safe, r)
			}
		}
		if Safe(safe) != safe {
			t.Fatalf("not idempotent: %q", safe)
		}
	})
}

func TestNearest(t *testing.T) {
	commands := []string{"enable", "disable", "status", "detect", "probe"}
	for word, want := range map[string]string{
		"enabel": "enable", "stats": "status", "staus": "status", "detekt": "detect", "enable": "enable",
		"x": "", "": "", "frobnicate": "", "st": "", "brobe": "probe",
	} {
		if got := Nearest(word, commands); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
