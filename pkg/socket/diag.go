package socket

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	dumpAttempts  = 10
	answerSeconds = 30
)

// Connections counts the established TCP connections of this network
// namespace by algorithm, IPv4 and IPv6 together; a connection within the host
// has two ends and counts twice. It needs no privilege.
//
// As with ss(8), the kernel loads its modules inet_diag and tcp_diag for the
// answer if it has them as modules.
//
// Errors: ErrNoDiag.
func Connections() (map[string]int, error) {
	counts := map[string]int{}
	s, err := nl.Subscribe(unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("listing the TCP connections: opening a netlink socket: %w", explainDiag(err))
	}
	defer s.Close()
	timeout := &unix.Timeval{Sec: answerSeconds}
	if err := errors.Join(s.SetSendTimeout(timeout), s.SetReceiveTimeout(timeout)); err != nil {
		return nil, fmt.Errorf("listing the TCP connections: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: s}}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, err := connections(sockets, family)
		// A kernel with IPv4 diagnostics and without IPv6 has no IPv6
		// connections, so that its refusal of the second family is an answer.
		if family == unix.AF_INET6 && errors.Is(err, ErrNoDiag) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing the TCP connections: %w", err)
		}
		for name, n := range found {
			counts[name] += n
		}
	}
	return counts, nil
}

func connections(sockets map[int]*nl.SocketHandle, family uint8) (map[string]int, error) {
	var err error
	for range dumpAttempts {
		counts := map[string]int{}
		req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddRawData(diagRequest(family))
		err = req.ExecuteIter(unix.NETLINK_INET_DIAG, unix.SOCK_DIAG_BY_FAMILY, func(msg []byte) bool {
			if name, ok := parseDiag(msg, family); ok {
				counts[name]++
			}
			return true
		})
		if err == nil {
			return counts, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, explainDiag(err)
}

// explainDiag recognises the answers of a kernel that lacks sock_diag itself
// (EPROTONOSUPPORT), inet_diag for the family or tcp_diag (ENOENT), or takes
// the question for an unknown one (EOPNOTSUPP, EINVAL: before Linux 3.3).
func explainDiag(err error) error {
	for _, errno := range []error{unix.EPROTONOSUPPORT, unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w (%w)", ErrNoDiag, err)
		}
	}
	return err
}

// Wire formats: linux/inet_diag.h, linux/sock_diag.h, linux/tcp_states.h.
const (
	sizeofDiagRequest = 56 // struct inet_diag_req_v2
	sizeofDiagMessage = 72 // struct inet_diag_msg
	diagCong          = 4  // INET_DIAG_CONG
	attrHeader        = 4
	attrTypeMask      = 0x3fff // NLA_TYPE_MASK
)

// diagRequest asks for the established TCP sockets of a family and the names
// of their algorithms.
func diagRequest(family uint8) []byte {
	b := make([]byte, sizeofDiagRequest)
	b[0] = family
	b[1] = unix.IPPROTO_TCP
	b[2] = 1 << (diagCong - 1)
	binary.NativeEndian.PutUint32(b[4:], 1<<Established)
	return b
}

// parseDiag reads one answer: the algorithm of an established connection of
// the family.
func parseDiag(msg []byte, family uint8) (algorithm string, ok bool) {
	if len(msg) < sizeofDiagMessage || msg[0] != family || State(msg[1]) != Established {
		return "", false
	}
	b := msg[sizeofDiagMessage:]
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) {
			return "", false
		}
		if binary.NativeEndian.Uint16(b[2:])&attrTypeMask == diagCong {
			name := unix.ByteSliceToString(b[attrHeader:size])
			return name, name != ""
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return "", false
}
