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
	if len(os.Args) > 2 && (os.Args[1] == senderRole || os.Args[1] == receiverRole) {
		err := error(nil)
		if os.Args[1] == senderRole {
			err = benchSender(os.Args[2])
		} else {
			err = benchReceiver(os.Args[2], os.Args[3])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// needRoot skips where no namespaces can be had.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root, for network namespaces")
	}
	t.Skip("needs root, for network namespaces")
}
