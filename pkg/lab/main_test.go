package lab

import (
	"fmt"
	"os"
	"testing"
)

// The test program is also the children, as accel is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ChildCommand {
		if err := Child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// needRoot skips where no namespaces can be had.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root, for network namespaces")
	}
	t.Skip("needs root, for network namespaces")
}
