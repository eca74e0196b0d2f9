package kernel

import (
	"math"
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
	data, err := os.ReadFile("../../test/cases/uname.tsv")
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

// More real strings of the same kinds, and some of no kind.
func TestParseReleaseMore(t *testing.T) {
	for raw, want := range map[string]Release{
		// Debian
		"6.1.0-57-cloud-amd64":       {Major: 6, Minor: 1, PatchPresent: true, Flavour: "cloud-amd64", Family: "debian"},
		"6.1.0-57-rt-amd64":          {Major: 6, Minor: 1, PatchPresent: true, Flavour: "rt-amd64", Family: "debian"},
		"6.12.118+deb13-cloud-arm64": {Major: 6, Minor: 12, Patch: 118, PatchPresent: true, Flavour: "cloud-arm64", Family: "debian"},
		"6.12.9+deb13-amd64":         {Major: 6, Minor: 12, Patch: 9, PatchPresent: true, Flavour: "amd64", Family: "debian"},
		"6.12.9+deb13+1-amd64":       {Major: 6, Minor: 12, Patch: 9, PatchPresent: true, Flavour: "amd64", Family: "debian"},
		"6.12-amd64":                 {Major: 6, Minor: 12, Flavour: "amd64", Family: "debian"},
		"6.10-rc7-amd64":             {Major: 6, Minor: 10, Flavour: "amd64", Family: "debian"},
		"6.11.2-amd64":               {Major: 6, Minor: 11, Patch: 2, PatchPresent: true, Flavour: "amd64", Family: "debian"},
		"6.1.0-0.deb11.7-amd64":      {Major: 6, Minor: 1, PatchPresent: true, Flavour: "amd64", Family: "debian"},
		"3.16.0-4-686-pae":           {Major: 3, Minor: 16, PatchPresent: true, Flavour: "686-pae", Family: "debian"},
		"4.9.0-8-armmp-lpae":         {Major: 4, Minor: 9, PatchPresent: true, Flavour: "armmp-lpae", Family: "debian"},
		"6.8.11+kali-amd64":          {Major: 6, Minor: 8, Patch: 11, PatchPresent: true, Flavour: "amd64", Family: "kali"},
		"6.5.0-kali3-amd64":          {Major: 6, Minor: 5, PatchPresent: true, Flavour: "amd64", Family: "kali"},
		"6.0.0-12parrot1-amd64":      {Major: 6, Minor: 0, PatchPresent: true, Flavour: "amd64", Family: "parrot"},
		"5.15.77-amd64-desktop-hwe":  {Major: 5, Minor: 15, Patch: 77, PatchPresent: true, Flavour: "amd64-desktop-hwe", Family: "deepin"},
		// Ubuntu
		"6.8.0-45-lowlatency":  {Major: 6, Minor: 8, PatchPresent: true, Flavour: "lowlatency", Family: "ubuntu"},
		"6.8.0-51-generic-64k": {Major: 6, Minor: 8, PatchPresent: true, Flavour: "generic-64k", Family: "ubuntu"},
		"5.15.0-1025-realtime": {Major: 5, Minor: 15, PatchPresent: true, Flavour: "realtime", Family: "ubuntu"},
		"6.8.0-1008-aws":       {Major: 6, Minor: 8, PatchPresent: true, Flavour: "aws", Family: "ubuntu"},
		"6.8.0-1021-azure-fde": {Major: 6, Minor: 8, PatchPresent: true, Flavour: "azure-fde", Family: "ubuntu"},
		"4.4.0-210-virtual":    {Major: 4, Minor: 4, PatchPresent: true, Flavour: "virtual", Family: "ubuntu"},
		"5.4.0-1018-raspi2":    {Major: 5, Minor: 4, PatchPresent: true, Flavour: "raspi2", Family: "ubuntu"},
		"6.5.0-060500-generic": {Major: 6, Minor: 5, PatchPresent: true, Flavour: "generic", Family: "ubuntu-mainline"},
		// EL
		"5.14.0-503.el9.x86_64+rt":        {Major: 5, Minor: 14, PatchPresent: true, Flavour: "el9", Family: "rhel"},
		"4.18.0-348.rt7.130.el8.x86_64":   {Major: 4, Minor: 18, PatchPresent: true, Flavour: "el8", Family: "rhel-rt"},
		"4.18.0-305.19.1.lve.el8.x86_64":  {Major: 4, Minor: 18, PatchPresent: true, Flavour: "el8", Family: "cloudlinux"},
		"6.1.9-1.el9.elrepo.x86_64":       {Major: 6, Minor: 1, Patch: 9, PatchPresent: true, Flavour: "el9.elrepo", Family: "elrepo"},
		"6.12.0-124.8.1.el10_1.x86_64":    {Major: 6, Minor: 12, PatchPresent: true, Flavour: "el10", Family: "rhel"},
		"4.19.91-26.an8.x86_64":           {Major: 4, Minor: 19, Patch: 91, PatchPresent: true, Flavour: "an8", Family: "anolis"},
		"5.10.0-60.18.0.50.oe2203.x86_64": {Major: 5, Minor: 10, PatchPresent: true, Flavour: "oe2203", Family: "openeuler"},
		"6.6.57.1-2.azl3":                 {Major: 6, Minor: 6, Patch: 57, PatchPresent: true, Flavour: "azl3", Family: "azurelinux"},
		"5.4.119-1-tlinux4-0009-eks":      {Major: 5, Minor: 4, Patch: 119, PatchPresent: true, Flavour: "tlinux4", Family: "tencentos"},
		"5.4.241-1-0023":                  {Major: 5, Minor: 4, Patch: 241, PatchPresent: true, Flavour: "", Family: "tencentos"},
		"6.4.0-150600.23.7-default":       {Major: 6, Minor: 4, PatchPresent: true, Flavour: "default", Family: "sles"},
		"6.11.2-1-default":                {Major: 6, Minor: 11, Patch: 2, PatchPresent: true, Flavour: "default", Family: "sles"},
		"5.14.21-150500.33.11-azure":      {Major: 5, Minor: 14, Patch: 21, PatchPresent: true, Flavour: "azure", Family: "sles"},
		// Rebuilds
		"6.2.16-20-bpo11-pve":                    {Major: 6, Minor: 2, Patch: 16, PatchPresent: true, Flavour: "pve", Family: "proxmox"},
		"5.18.9-xanmod1-x64v2":                   {Major: 5, Minor: 18, Patch: 9, PatchPresent: true, Flavour: "x64v2-xanmod", Family: "xanmod"},
		"6.6.30-x64v3-rt30-xanmod1":              {Major: 6, Minor: 6, Patch: 30, PatchPresent: true, Flavour: "x64v3-xanmod", Family: "xanmod"},
		"6.4.1-bbrv3":                            {Major: 6, Minor: 4, Patch: 1, PatchPresent: true, Flavour: "bbrv3", Family: "bbrv3"},
		"6.9.7-2-cachyos-lto":                    {Major: 6, Minor: 9, Patch: 7, PatchPresent: true, Flavour: "cachyos-lto", Family: "cachyos"},
		"6.6.10-1-lts":                           {Major: 6, Minor: 6, Patch: 10, PatchPresent: true, Flavour: "lts", Family: "arch"},
		"6.6.10-1-MANJARO":                       {Major: 6, Minor: 6, Patch: 10, PatchPresent: true, Flavour: "MANJARO", Family: "manjaro"},
		"6.12.1-0-lts":                           {Major: 6, Minor: 12, Patch: 1, PatchPresent: true, Flavour: "lts", Family: "alpine"},
		"6.1.57-gentoo-r1":                       {Major: 6, Minor: 1, Patch: 57, PatchPresent: true, Flavour: "gentoo", Family: "gentoo"},
		"4.19-ovh-xxxx-std-ipv6-64":              {Major: 4, Minor: 19, Flavour: "xxxx-std-ipv6-64", Family: "ovh"},
		"5.15.49-linuxkit":                       {Major: 5, Minor: 15, Patch: 49, PatchPresent: true, Flavour: "linuxkit", Family: "linuxkit"},
		"6.6.29-talos":                           {Major: 6, Minor: 6, Patch: 29, PatchPresent: true, Flavour: "talos", Family: "talos"},
		"5.10.104-tegra":                         {Major: 5, Minor: 10, Patch: 104, PatchPresent: true, Flavour: "tegra", Family: "nvidia-l4t"},
		"6.12.25+rpt-rpi-2712":                   {Major: 6, Minor: 12, Patch: 25, PatchPresent: true, Flavour: "rpi-2712", Family: "raspberrypi"},
		"6.1.0-rpi7-rpi-v8":                      {Major: 6, Minor: 1, PatchPresent: true, Flavour: "rpi-v8", Family: "raspberrypi"},
		"6.6.31-current-rockchip64":              {Major: 6, Minor: 6, Patch: 31, PatchPresent: true, Flavour: "current-rockchip64", Family: "armbian"},
		"5.0.5-743.native":                       {Major: 5, Minor: 0, Patch: 5, PatchPresent: true, Flavour: "native", Family: "custom"},
		"4.10.8-docker-1":                        {Major: 4, Minor: 10, Patch: 8, PatchPresent: true, Flavour: "docker", Family: "custom"},
		"2.6.32-431.29.2.lve1.3.10.1.el6.x86_64": {Major: 2, Minor: 6, Patch: 32, PatchPresent: true, Flavour: "el6", Family: "cloudlinux"},
		"5.14.0-427.vz9.80.37":                   {Major: 5, Minor: 14, PatchPresent: true, Flavour: "vz9", Family: "openvz9"},
		// Not a release
		"":                         {Family: "vanilla"},
		"7":                        {Major: 7, Family: "vanilla"},
		"linux":                    {Flavour: "linux", Family: "custom"},
		"99999999999999999999.1.2": {Major: math.MaxInt32, Minor: 1, Patch: 2, PatchPresent: true, Family: "vanilla"},
		"6.1.":                     {Major: 6, Minor: 1, Family: "vanilla"},
		"6..1-x":                   {Major: 6, Flavour: "x", Family: "custom"},
		"6.1.2-\xff\xfe":           {Major: 6, Minor: 1, Patch: 2, PatchPresent: true, Flavour: "\xff\xfe", Family: "custom"},
	} {
		want.Raw = raw
		if diff := cmp.Diff(want, ParseRelease(raw)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", raw, diff)
		}
	}
}

func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		raw          string
		major, minor int
		want         bool
	}{
		{"4.19.0", 4, 9, true}, {"4.9.0", 4, 19, false}, {"6.0.1", 4, 9, true}, {"4.9.0", 4, 9, true},
		{"3.10.0", 4, 9, false}, {"10.0.0", 9, 9, true}, {"5.1", 5, 1, true}, {"", 0, 0, true}, {"", 0, 1, false},
	} {
		if got := ParseRelease(c.raw).AtLeast(c.major, c.minor); got != c.want {
			t.Errorf("%s at least %d.%d: %v", c.raw, c.major, c.minor, got)
		}
	}
}

func FuzzParseRelease(f *testing.F) {
	data, err := os.ReadFile("../../test/cases/uname.tsv")
	if err != nil {
		f.Fatal(err)
	}
	for row := range strings.Lines(string(data)) {
		raw, _, _ := strings.Cut(row, "\t")
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := ParseRelease(raw)
		if r.Raw != strings.TrimSpace(raw) {
			t.Errorf("Raw is %q for %q", r.Raw, raw)
		}
		if r.Major < 0 || r.Minor < 0 || r.Patch < 0 || !r.PatchPresent && r.Patch != 0 {
			t.Errorf("%q: %+v", raw, r)
		}
		if r.Family == "" {
			t.Errorf("%q has no family", raw)
		}
		// Every rule's flavour is in the text; two rules add or drop a fixed part.
		for part := range strings.FieldsFuncSeq(r.Flavour, func(c rune) bool { return strings.ContainsRune("-.", c) }) {
			if !strings.Contains(r.Raw, part) {
				t.Errorf("flavour %q of %q is not in it", r.Flavour, raw)
			}
		}
		if again := ParseRelease(r.Raw); again != r {
			t.Errorf("%q parses as %+v and then as %+v", raw, r, again)
		}
	})
}
