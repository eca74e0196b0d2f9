// Package socket asks the kernel about TCP sockets: about ours by getsockopt,
// about everybody's by sock_diag.
//
// All functions that open sockets act on the network namespace of the calling
// thread.
package socket

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sentinels of this package; match them with errors.Is.
var (
	// ErrNoLoopback: no connection to ourselves is possible, because neither
	// 127.0.0.1 nor ::1 exists here. A new network namespace is like that until
	// its loopback link is set up.
	ErrNoLoopback = errors.New("the loopback link is not up")
	// ErrNoDiag: the kernel cannot list TCP sockets: it has no inet_diag or no
	// tcp_diag, neither built in nor as a module that can be loaded.
	ErrNoDiag = errors.New("this kernel cannot list TCP sockets (inet_diag, tcp_diag)")
	// ErrNoAlgorithm: the algorithm is not in
	// net.ipv4.tcp_available_congestion_control, or, from SetCongestion, could
	// not be loaded.
	ErrNoAlgorithm = errors.New("the congestion control algorithm is not available")
	// ErrPermission: the algorithm is not in
	// net.ipv4.tcp_allowed_congestion_control and CAP_NET_ADMIN is missing, or
	// the route of the connection locks another.
	ErrPermission = errors.New("the congestion control algorithm is not permitted")
)

// maxAlgorithm is TCP_CA_NAME_MAX of net/tcp.h.
const maxAlgorithm = 16

// Congestion reads the algorithm of a TCP socket (TCP_CONGESTION).
//
// A listening socket shows what was the default when it was made; what it
// accepts gets the default of that later moment. Before it is connected, a
// socket's answer is no evidence of anything.
func Congestion(c syscall.Conn) (string, error) {
	var name string
	err := control(c, func(fd int) (err error) {
		name, err = congestion(fd)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading the algorithm of a socket: %w", err)
	}
	return name, nil
}

func congestion(fd int) (string, error) {
	buf := make([]byte, maxAlgorithm)
	n, err := getsockopt(fd, unix.TCP_CONGESTION, buf)
	return unix.ByteSliceToString(buf[:n]), err
}

// SetCongestion sets the algorithm of a TCP socket (TCP_CONGESTION). With
// CAP_NET_ADMIN the kernel loads the module of an algorithm that it does not
// have yet.
//
// Errors: ErrNoAlgorithm, ErrPermission.
func SetCongestion(c syscall.Conn, name string) error {
	err := control(c, func(fd int) error { return setCongestion(fd, name) })
	if err != nil {
		return fmt.Errorf("setting the algorithm of a socket to %q: %w", name, err)
	}
	return nil
}

func setCongestion(fd int, name string) error {
	// The kernel reads no more than that and would take the longer name for
	// the shorter one.
	if name == "" || len(name) >= maxAlgorithm || strings.ContainsRune(name, 0) {
		return ErrNoAlgorithm
	}
	err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w (%w)", ErrNoAlgorithm, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (%w)", ErrPermission, err)
	}
	return err
}

// BBRVersion tells which BBR a socket runs, by what the kernel says of it
// (TCP_CC_INFO): 1, or a later version that names itself. It is 0 if the
// socket does not run bbr, or a bbr that tells nothing.
//
// struct tcp_bbr_info has 20 bytes in version 1 (linux/inet_diag.h). The
// version 3 that Google published appends 32 bytes: four 32 bit halves of
// bandwidths, then mode, phase, one unused byte and the version.
func BBRVersion(c syscall.Conn) (int, error) {
	var version int
	err := control(c, func(fd int) (err error) {
		version, err = bbrVersion(fd)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading the BBR version of a socket: %w", err)
	}
	return version, nil
}

func bbrVersion(fd int) (int, error) {
	name, err := congestion(fd)
	if err != nil || name != "bbr" {
		return 0, err
	}
	buf := make([]byte, 256)
	n, err := getsockopt(fd, unix.TCP_CC_INFO, buf)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 4.1; no bbr there, except patched in
		return 0, nil
	}
	return parseBBRVersion(buf[:n]), err
}

const (
	bbrInfoV1       = 20
	bbrVersionAt    = 39 // offset of bbr_version
	bbrVersionLimit = 10 // a higher number is no version but a layout we do not know
)

func parseBBRVersion(info []byte) int {
	switch {
	case len(info) == bbrInfoV1:
		return 1
	case len(info) > bbrVersionAt && info[bbrVersionAt] < bbrVersionLimit:
		return int(info[bbrVersionAt])
	}
	return 0
}

// availablePath lists the algorithms that need not be loaded.
const availablePath = "/proc/sys/net/ipv4/tcp_available_congestion_control"

// BBRVersionOf asks a socket of its own, set to the algorithm, for its BBR
// version; see BBRVersion. It never makes the kernel load a module: an
// algorithm that is not available now is ErrNoAlgorithm.
//
// Errors: ErrNoAlgorithm, ErrPermission.
func BBRVersionOf(algorithm string) (int, error) {
	version, err := bbrVersionOf(algorithm)
	if err != nil {
		return 0, fmt.Errorf("reading the BBR version of %q: %w", algorithm, err)
	}
	return version, nil
}

func bbrVersionOf(algorithm string) (int, error) {
	available, err := os.ReadFile(availablePath)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(strings.Fields(string(available)), algorithm) {
		return 0, ErrNoAlgorithm
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	}
	if err != nil {
		return 0, fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(fd)
	if err := setCongestion(fd, algorithm); err != nil {
		return 0, err
	}
	return bbrVersion(fd)
}

// control runs f on the descriptor of c.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var innerErr error
	if err := raw.Control(func(fd uintptr) { innerErr = f(int(fd)) }); err != nil {
		return err
	}
	return innerErr
}

// getsockopt reads a TCP option and returns how many bytes the kernel filled,
// which x/sys/unix does not tell.
func getsockopt(fd, option int, buf []byte) (int, error) {
	n := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return 0, errno
	}
	return min(int(n), len(buf)), nil
}
