package vm

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// openTaps opens a TAP link with several queues, one file for each. User mode
// networking gives a machine but one queue; with these it gets as many as a
// big server has. The link is made in a network namespace of its own, which
// lives as long as the files are open, so the host's network is not touched.
func openTaps(queues int) ([]*os.File, error) {
	type result struct {
		files []*os.File
		err   error
	}
	done := make(chan result)
	go func() {
		// The thread is in another namespace for good and must not be used
		// for anything else: it ends with this goroutine, because it is never
		// unlocked.
		runtime.LockOSThread()
		files, err := openTapsHere(queues)
		done <- result{files, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("making a link with %d queues: %w", queues, r.err)
	}
	return r.files, nil
}

func openTapsHere(queues int) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	for range queues {
		f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if err != nil {
			return files, err
		}
		files = append(files, f)
		ifr, err := unix.NewIfreq("queues")
		if err != nil {
			return files, err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
		if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, ifr); err != nil {
			return files, fmt.Errorf("setting up /dev/net/tun: %w", err)
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// tapArguments returns qemu's arguments for a link with the queues whose files
// are the started process's from first on (counted as in exec.Cmd.ExtraFiles).
func tapArguments(first, queues int) []string {
	var fds []string
	for i := range queues {
		fds = append(fds, fmt.Sprint(3+first+i))
	}
	return []string{
		"-netdev", "tap,id=queues,vhost=off,fds=" + strings.Join(fds, ":"),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=queues,mq=on,vectors=%d,romfile=", 2*queues+2),
	}
}
