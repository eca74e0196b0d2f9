package agent

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"accel/pkg/memory"
)

// beSmall makes the process frugal: a few MiB and a few wake-ups a minute
// count on a host with 512 MiB that somebody shares with a thousand others.
func beSmall() {
	// A second processor would only make the runtime's threads wake each
	// other, and what little garbage there is can be collected early.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	withoutHugePages()
}

// withoutHugePages starts the program anew, as the same process, where
// transparent huge pages are always on, as on Debian: the first touch of the
// heap has taken 2 MiB already, of which a fraction is used, and only an exec
// gives that back. Where anything of this is not possible, it costs that.
func withoutHugePages() {
	mode, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil || !bytes.Contains(mode, []byte("[always]")) {
		return
	}
	if off, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0); err != nil || off != 0 {
		return // not known here, or off already: this is the second start
	}
	// By its own name, or the process would be called "exe" from now on.
	program, err := os.Executable()
	if err != nil {
		return
	}
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
		return
	}
	_ = unix.Exec(program, os.Args, os.Environ()) // does not return if it works
}

// shrink gives back what the start, or another whole check, needed and the
// watch does not: garbage, and the pages of the program itself.
func shrink() {
	debug.FreeOSMemory()
	memory.ReturnProgram()
}
