package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	dumpAttempts  = 10
	answerSeconds = 30
)

// Connection is an established TCP connection as sock_diag shows it: one end
// of it, where both are within the host.
type Connection struct {
	Algorithm string
	// Inode is that of the socket, which the links in /proc/PID/fd name. 0: no
	// process has accepted the connection yet.
	Inode uint32
	// Local: it goes to a loopback address, or to the one that it comes from, and
	// so never leaves the host.
	Local bool
}

// Connections counts the established TCP connections of this network
// namespace by algorithm, IPv4 and IPv6 together; a connection within the host
// has two ends and counts twice. It needs no privilege.
//
// Errors: those of List.
func Connections() (map[string]int, error) {
	all, err := List()
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, c := range all {
		counts[c.Algorithm]++
	}
	return counts, nil
}

// List lists the established TCP connections of this network namespace,
// in about 24 bytes each. It needs no privilege.
//
// As with ss(8), the kernel loads its modules inet_diag and tcp_diag for the
// answer if it has them as modules.
//
// Errors: ErrNoDiag.
func List() ([]Connection, error) {
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
	var all []Connection
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		before := len(all)
		all, err = established(sockets, family, all)
		// A kernel with IPv4 diagnostics and without IPv6 has no IPv6
		// connections, so that its refusal of the second family is an answer.
		if family == unix.AF_INET6 && errors.Is(err, ErrNoDiag) {
			all = all[:before]
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing the TCP connections: %w", err)
		}
	}
	return all, nil
}

// established appends the connections of a family to those of before.
func established(sockets map[int]*nl.SocketHandle, family uint8, before []Connection) ([]Connection, error) {
	// The names are few and the connections may be many.
	names := map[string]string{}
	var err error
	for range dumpAttempts {
		all := before
		req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.Sockets = sockets
		req.AddRawData(diagRequest(family))
		err = req.ExecuteIter(unix.NETLINK_INET_DIAG, unix.SOCK_DIAG_BY_FAMILY, func(msg []byte) bool {
			if c, ok := parseDiag(msg, family); ok {
				if known, ok := names[c.Algorithm]; ok {
					c.Algorithm = known
				} else {
					names[c.Algorithm] = c.Algorithm
				}
				all = append(all, c)
			}
			return true
		})
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return before, explainDiag(err)
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
	sourceAt          = 8  // offset of id.idiag_src
	destinationAt     = 24 // offset of id.idiag_dst
	inodeAt           = 68 // offset of idiag_inode
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

// parseDiag reads one answer: an established connection of the family.
func parseDiag(msg []byte, family uint8) (c Connection, ok bool) {
	if len(msg) < sizeofDiagMessage || msg[0] != family || State(msg[1]) != Established {
		return Connection{}, false
	}
	b := msg[sizeofDiagMessage:]
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) {
			return Connection{}, false
		}
		if binary.NativeEndian.Uint16(b[2:])&attrTypeMask == diagCong {
			c.Algorithm = unix.ByteSliceToString(b[attrHeader:size])
			if c.Algorithm == "" {
				return Connection{}, false
			}
			c.Inode = binary.NativeEndian.Uint32(msg[inodeAt:])
			to := address(msg[destinationAt:], family)
			c.Local = to.IsLoopback() || to == address(msg[sourceAt:], family)
			return c, true
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return Connection{}, false
}

// address reads an address; one of IPv4 that a socket of IPv6 uses is one of IPv4.
func address(b []byte, family uint8) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}
