// Package memory keeps accel small: what only the start of a process needed is
// given back.
package memory

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReturnProgram gives back what only the start of this process needed: the parts of
// the program that it read then, about 9 MB, of which it uses less than half
// again. They are unmapped, not lost: a mapping without an anonymous page
// is as the file is, and comes back from there when it is needed.
func ReturnProgram() {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	data, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range unchanged(data, self) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED)
	}
}

type mapping struct{ from, to uintptr }

// unchanged finds in the text of smaps the mappings of a file that may not be
// written to and have no page of their own.
func unchanged(smaps []byte, file string) (all []mapping) {
	var m mapping
	ours := false
	for s := bufio.NewScanner(bytes.NewReader(smaps)); s.Scan(); {
		line := s.Text()
		if f := strings.Fields(line); len(f) >= 5 && !strings.HasSuffix(f[0], ":") {
			// 00400000-009c7000 r-xp 00000000 fe:00 123   /usr/bin/accel
			from, to, _ := strings.Cut(f[0], "-")
			a, errA := strconv.ParseUint(from, 16, strconv.IntSize)
			b, errB := strconv.ParseUint(to, 16, strconv.IntSize)
			m = mapping{uintptr(a), uintptr(b)}
			ours = errA == nil && errB == nil && a < b && len(f) > 5 && strings.HasSuffix(line, " "+file) && len(f[1]) == 4 && f[1][1] == '-' && f[1][3] == 'p'
		} else if ours && len(f) == 3 && f[0] == "Anonymous:" {
			if f[1] == "0" {
				all = append(all, m)
			}
			ours = false
		}
	}
	return all
}
