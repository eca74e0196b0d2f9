package main

import (
	"testing"

	"accel/pkg/lab"
)

// A profile is an arm with what it would set here; any other word is left to
// the algorithms.
func TestProfileArm(t *testing.T) {
	boost, err := profileArm("boost")
	if err != nil || boost == nil {
		t.Fatal(boost, err)
	}
	if boost.Name != "boost" || boost.Algorithm != "bbr" || boost.Qdisc != "fq" || boost.InitialCwnd <= 10 || len(boost.Settings) == 0 || boost.Source != "profile boost" {
		t.Errorf("%+v", boost)
	}
	basic, err := profileArm("basic")
	if err != nil || basic == nil || basic.InitialCwnd != 0 || len(basic.Settings) != 0 {
		t.Errorf("%+v, %v", basic, err)
	}
	if arm, err := profileArm("bbr"); arm != nil || err != nil {
		t.Errorf("%+v, %v", arm, err)
	}
	cubic, err := algorithmArm("cubic")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (lab.Plan{Arms: []lab.Arm{*boost, *cubic}, Paths: []lab.Path{lab.DefaultPath}}).Complete(); err != nil {
		t.Error(err)
	}
}
