package files

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The causes that cannot be brought about in a test, and that each errno has the
// cause it should and no other.
func TestCauses(t *testing.T) {
	causes := []error{ErrReadOnly, ErrNoSpace, ErrImmutable, ErrSymlink, ErrMounted, ErrPermission, ErrNotRegular, ErrTooLarge}
	for errno, want := range map[unix.Errno]error{
		unix.EROFS: ErrReadOnly, unix.ENOSPC: ErrNoSpace, unix.EDQUOT: ErrNoSpace, unix.EBUSY: ErrMounted,
		unix.EPERM: ErrPermission, unix.EACCES: ErrPermission, unix.EISDIR: ErrNotRegular,
		unix.EIO: nil, unix.ENOENT: nil,
	} {
		err := fail("writing", "/etc/x", "/nonexistent/x", &os.PathError{Op: "open", Path: "/etc/.x123", Err: errno})
		for _, c := range causes {
			if got := errors.Is(err, c); got != (c == want) {
				t.Errorf("%v: is %q: %v", errno, c, got)
			}
		}
		if !errors.Is(err, errno) {
			t.Errorf("%v is lost", errno)
		}
	}
	for errno, want := range map[unix.Errno]string{
		unix.EROFS:  "writing /etc/x: read-only file system",
		unix.ENOSPC: "writing /etc/x: no space left on device",
		unix.EBUSY:  "writing /etc/x: something is mounted on it (device or resource busy)",
		unix.EPERM:  "writing /etc/x: permission denied (operation not permitted)",
		unix.EIO:    "writing /etc/x: input/output error",
	} {
		err := fail("writing", "/etc/x", "", &os.PathError{Op: "open", Path: "/etc/.x123", Err: errno})
		if got := err.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
