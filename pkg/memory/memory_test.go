package memory

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnchanged(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 fe:00 1       /usr/bin/accel
Rss:                 100 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
00500000-00600000 r--p 00100000 fe:00 1       /usr/bin/accel
Anonymous:             4 kB
00600000-00700000 rw-p 00200000 fe:00 1       /usr/bin/accel
Anonymous:             0 kB
00700000-00800000 r--p 00300000 fe:00 1       /usr/bin/accel
Anonymous:             0 kB
00800000-00900000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 2       /usr/lib/other/usr/bin/accel
Anonymous:             0 kB
7f0000002000-7f0000001000 r--p 00000000 fe:00 2       /usr/bin/accel
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x500000}, {0x700000, 0x800000}}
	if diff := cmp.Diff(want, unchanged([]byte(smaps), "/usr/bin/accel"), cmp.AllowUnexported(mapping{})); diff != "" {
		t.Error(diff)
	}
}

// What was given back is there when it is needed.
func TestReturnProgram(t *testing.T) {
	resident := func() int {
		data, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(data), "RssFile:")
		var kib int
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			t.Skip("this kernel does not tell what part of its file a program holds:", err)
		}
		return kib
	}
	before := resident()
	ReturnProgram()
	if after := resident(); after >= before {
		t.Errorf("%d KiB, and then %d", before, after)
	}
}

func TestUnchangedOfAProgram(t *testing.T) {
	maps := `00400000-0092a000 r-xp 00000000 fe:00 15707                              /usr/bin/accel
Anonymous:             0 kB
0092a000-00ea8000 r--p 0052a000 fe:00 15707                              /usr/bin/accel
Anonymous:             0 kB
00ea8000-00f0c000 rw-p 00aa8000 fe:00 15707                              /usr/bin/accel
Anonymous:           100 kB
00f0c000-00f50000 rw-p 00000000 00:00 0 
Anonymous:             0 kB
1a95ecc00000-1a95ed400000 rw-p 00000000 00:00 0 
7ff34126c000-7ff3415ce000 r--p 00000000 fe:00 99                         /usr/bin/accel.old
Anonymous:             0 kB
7ffc5ebf2000-7ffc5ebf4000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x92a000}, {0x92a000, 0xea8000}}
	if diff := cmp.Diff(want, unchanged([]byte(maps), "/usr/bin/accel"), cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
