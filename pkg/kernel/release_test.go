package kernel

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Release strings that carry no vendor's text: the table's source knew the vendor
// from elsewhere, the string cannot tell.
var vendorNotInString = map[string]bool{
	"3.10.105": true, "6.6.21": true, "5.4.213": true, // Synology, OpenWrt, Freetz
	"5.15.146+": true, "5.4.66+": true, "4.1.7+": true, // COS, ChromeOS, Raspberry Pi
}

func TestParseReleaseTable(t *testing.T) {
	data, err := os.ReadFile("testdata/uname.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimRight(string(data), "\n"), "\n")[1:]
	if len(rows) != 122 {
		t.Fatalf("%d rows, want 122", len(rows))
	}
	for _, row := range rows {
		c := strings.Split(row, "\t")
		want := Release{Raw: c[0], PatchPresent: c[4] == "yes", Flavour: c[5], Family: c[6]}
		for i, p := range []*int{&want.Major, &want.Minor, &want.Patch} {
			if *p, err = strconv.Atoi(c[1+i]); err != nil {
				t.Fatalf("row %q: %v", row, err)
			}
		}
		if want.Flavour == "-" {
			want.Flavour = ""
		}
		if vendorNotInString[want.Raw] {
			want.Family = "vanilla"
		}
		got := ParseRelease(c[0] + "\n")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c[0], diff)
		}
		if got.AtLeast(4, 9) != (c[7] == "yes") {
			t.Errorf("%s: AtLeast(4, 9) is %v, the table says %s", c[0], got.AtLeast(4, 9), c[7])
		}
	}
}
