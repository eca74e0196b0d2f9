package route

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A DHCP client that renews its lease changes several routes in a row.
const watchPause = 200 * time.Millisecond

// Watch tells that a default route of this network namespace came, changed or
// went, from now on; changes that come together are told once, and a reader
// that is slow is told once for all it missed. Other routes do not even wake
// this process: a filter in the kernel drops their messages, so that a router
// with a million of them costs nothing.
//
// The channel is closed when ctx ends, or when the netlink socket fails for
// good.
func Watch(ctx context.Context) (<-chan struct{}, error) {
	s, err := subscribe()
	if err != nil {
		return nil, fmt.Errorf("watching the default routes: %w", err)
	}
	out := make(chan struct{}, 1)
	done := context.AfterFunc(ctx, func() { s.Close() })
	go func() {
		defer close(out)
		defer s.Close()
		defer done()
		raw, err := s.SyscallConn()
		if err != nil {
			return
		}
		for waitFor(raw) {
			// What comes within the pause belongs to it.
			select {
			case <-ctx.Done():
				return
			case <-time.After(watchPause):
			}
			drain(raw)
			select {
			case out <- struct{}{}:
			default: // the last one has not been taken yet
			}
		}
	}()
	return out, nil
}

type rawConn interface {
	Read(func(fd uintptr) bool) error
}

// waitFor waits for a message; false when the socket is closed or broken. That
// the kernel dropped messages (ENOBUFS) is a message, too.
func waitFor(raw rawConn) (ok bool) {
	buf := make([]byte, 1)
	err := raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), buf, 0)
		ok = err == nil || errors.Is(err, unix.ENOBUFS)
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	return ok && err == nil
}

func drain(raw rawConn) {
	buf := make([]byte, 1)
	_ = raw.Read(func(fd uintptr) bool {
		for {
			if _, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				return true
			}
		}
	})
}

// defaultsOnly lets messages about default routes through: the length of the
// destination prefix, the second byte after the header of 16, is 0. The kernel
// puts every change into a message of its own.
var defaultsOnly = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.SizeofNlMsghdr + dstLenByte},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(defaultsOnly)), Filter: &defaultsOnly[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1)})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribing to route messages: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}
