package lab

import (
	"strings"
	"testing"

	"accel/pkg/text"
)

// Everything that an arm can be told it cannot have is said in Chinese, too.
func TestTranslated(t *testing.T) {
	text.SetLanguage("zh")
	defer text.SetLanguage("")
	arm, err := ParseArm("a", "a.conf", []byte("kernel.panic = 7\nnet.ipv4.conf.*.rp_filter = 1\nfoo bar\n"))
	if err != nil || len(arm.NotCompared) != 3 {
		t.Fatal(arm.NotCompared, err)
	}
	notes := append(arm.NotCompared,
		"net/ipv4/x: "+noSuchKey, "net/ipv4/x: "+unchangeable, "net/ipv4/x: "+refusedValue+`"1: 2"`, "qdisc fq: "+noSuchQdisc)
	for _, note := range notes {
		what, _, _ := strings.Cut(note, ": ")
		if got := Translated(note); got == note || !strings.Contains(got, strings.TrimPrefix(what, "line ")) || !strings.Contains(got, "：") {
			t.Errorf("%q became %q", note, got)
		}
	}
	if got := Translated(notes[5]); !strings.HasSuffix(got, `"1: 2"`) {
		t.Error(got)
	}
	text.SetLanguage("")
	for _, note := range append(notes, "something else", "a: b") {
		if got := Translated(note); got != note {
			t.Errorf("in English %q became %q", note, got)
		}
	}
}
