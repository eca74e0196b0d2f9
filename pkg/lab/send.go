package lab

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sourceSize is the length of the file of zeros that is sent again and again:
// nothing on the way compresses.
const sourceSize = 4 << 20

// source is that file, in memory: a hole, of which the kernel makes pages when it
// sends them. It is sent by sendfile, as web servers send:
// that copies nothing and takes less processor time than writing.
var source = sync.OnceValues(func() (*os.File, error) {
	fd, err := unix.MemfdCreate("zeros", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "zeros")
	if err := f.Truncate(sourceSize); err != nil {
		f.Close()
		return nil, fmt.Errorf("making a file in memory: %w", err)
	}
	return f, nil
})

// send sends so many bytes, or, where size is negative, until the receiver has
// enough, which is an error. pass is called as often as it sends.
//
// It waits for the path in the kernel, in one system call for each length of the
// source: to wait as Go does takes a processor several times as long.
func send(conn *net.TCPConn, size int64, deadline time.Time, pass func()) error {
	file, err := source()
	if err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	from := int(file.Fd())
	var failure error
	err = raw.Control(func(f uintptr) {
		to := int(f)
		if failure = unix.SetNonblock(to, false); failure != nil {
			return
		}
		defer unix.SetNonblock(to, true)
		for size != 0 && failure == nil {
			wait := unix.NsecToTimeval(max(int64(time.Until(deadline)), int64(time.Millisecond)))
			if failure = unix.SetsockoptTimeval(to, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); failure != nil {
				return
			}
			n := int64(sourceSize)
			if size > 0 {
				n = min(n, size)
			}
			var offset int64
			sent, err := unix.Sendfile(to, from, &offset, int(n))
			pass()
			switch {
			case err == unix.EAGAIN:
				failure = os.ErrDeadlineExceeded
			case err != nil && err != unix.EINTR:
				failure = os.NewSyscallError("sendfile", err)
			case size > 0:
				size -= int64(max(sent, 0))
			}
			if failure == nil && !time.Now().Before(deadline) {
				failure = os.ErrDeadlineExceeded
			}
		}
	})
	return cmp.Or(failure, err)
}
