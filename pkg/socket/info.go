package socket

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// State is the state of a TCP connection, numbered as in linux/tcp_states.h.
type State uint8

// Established is the state in which data flows.
const Established State = 1

// Info is the kernel's account of one TCP connection (struct tcp_info of
// linux/tcp.h). Fields that the running kernel does not report are zero; Knows
// tells them from a true zero.
type Info struct {
	State           State
	SendMSS         int           // bytes
	ReceiveMSS      int           // bytes
	RTO             time.Duration // retransmission timeout
	RTT             time.Duration // smoothed
	RTTVar          time.Duration // its mean deviation
	MinRTT          time.Duration // over the kernel's window, 5 minutes by default; Linux 4.6
	Cwnd            int           // segments
	SlowStartThresh int           // segments; 2147483647 = not yet known
	Unacked         int           // segments in flight
	Lost            int           // segments presumed lost now
	RetransOut      int           // segments retransmitted and in flight now
	Retransmits     int           // segments retransmitted over the whole life of the connection
	Reordering      int           // segments
	ReceiveRTT      time.Duration // a receiver's estimate from what arrives, no shorter than the true one; 0 = none yet
	PathMTU         int           // bytes

	PacingRate    uint64 // bytes/s; the largest uint64 = no limit; Linux 3.15
	MaxPacingRate uint64 // bytes/s, as SO_MAX_PACING_RATE; the same; Linux 3.15
	BytesAcked    uint64 // payload, and one for each of SYN and FIN; Linux 4.1
	BytesReceived uint64 // Linux 4.1
	SegmentsOut   int    // all, retransmissions included; Linux 4.2
	SegmentsIn    int    // Linux 4.2
	NotSent       int    // bytes waiting in the send buffer; Linux 4.6
	DataSegsIn    int    // segments with data; Linux 4.6
	DataSegsOut   int    // segments with data, retransmissions included; Linux 4.6
	DeliveryRate  uint64 // bytes/s, the latest measurement; Linux 4.9
	AppLimited    bool   // that measurement was limited by the application; Linux 4.9

	Busy          time.Duration // time with data to send; Linux 4.10
	RwndLimited   time.Duration // of Busy, held back by the receiver's window; Linux 4.10
	SndbufLimited time.Duration // of Busy, held back by the send buffer; Linux 4.10
	Delivered     int           // segments; Linux 4.18
	DeliveredCE   int           // segments, with a congestion mark; Linux 4.18
	BytesSent     uint64        // payload, retransmissions included; Linux 4.19
	BytesRetrans  uint64        // payload; Linux 4.19
	DSACKs        int           // segments that arrived twice; Linux 4.19
	ReordSeen     int           // reordering events; Linux 4.19
	OutOfOrder    int           // segments received out of order; Linux 5.4
	SendWindow    int           // bytes, as the peer advertised it; Linux 5.4
	ReceiveWindow int           // bytes; Linux 6.2

	length int // bytes the kernel filled
}

// Field names a group of fields of Info that came with one kernel version. Its
// value is the size of struct tcp_info that includes the group.
type Field int

// The groups. What is in none of them, every kernel reports.
const (
	FieldPacingRate   Field = 120 // PacingRate, MaxPacingRate
	FieldBytesAcked   Field = 136 // BytesAcked, BytesReceived
	FieldSegments     Field = 144 // SegmentsOut, SegmentsIn
	FieldMinRTT       Field = 160 // NotSent, MinRTT, DataSegsIn, DataSegsOut
	FieldDeliveryRate Field = 168 // DeliveryRate, AppLimited
	FieldBusy         Field = 192 // Busy, RwndLimited, SndbufLimited
	FieldDelivered    Field = 200 // Delivered, DeliveredCE
	FieldBytesSent    Field = 224 // BytesSent, BytesRetrans, DSACKs, ReordSeen
	FieldSendWindow   Field = 232 // OutOfOrder, SendWindow
	FieldRecvWindow   Field = 236 // ReceiveWindow
)

// Knows says whether the kernel reported a group of fields.
func (i Info) Knows(f Field) bool { return i.length >= int(f) }

// TCPInfo reads the kernel's account of a TCP socket (TCP_INFO).
func TCPInfo(c syscall.Conn) (Info, error) {
	// Larger than any kernel's struct, so that growth cannot fail.
	buf := make([]byte, 1024)
	var n int
	err := control(c, func(fd int) (err error) {
		n, err = getsockopt(fd, unix.TCP_INFO, buf)
		return err
	})
	if err != nil {
		return Info{}, fmt.Errorf("reading the state of a connection: %w", err)
	}
	return parseInfo(buf[:n]), nil
}

// parseInfo reads as much of a struct tcp_info as there is.
func parseInfo(b []byte) Info {
	u32 := func(at int) int {
		if len(b) < at+4 {
			return 0
		}
		return int(binary.NativeEndian.Uint32(b[at:]))
	}
	u64 := func(at int) uint64 {
		if len(b) < at+8 {
			return 0
		}
		return binary.NativeEndian.Uint64(b[at:])
	}
	microseconds := func(n uint64) time.Duration {
		return time.Duration(n) * time.Microsecond
	}
	i := Info{
		RTO:             microseconds(uint64(u32(8))),
		SendMSS:         u32(16),
		ReceiveMSS:      u32(20),
		Unacked:         u32(24),
		Lost:            u32(32),
		RetransOut:      u32(36),
		PathMTU:         u32(60),
		RTT:             microseconds(uint64(u32(68))),
		RTTVar:          microseconds(uint64(u32(72))),
		SlowStartThresh: u32(76),
		Cwnd:            u32(80),
		Reordering:      u32(88),
		ReceiveRTT:      microseconds(uint64(u32(92))),
		Retransmits:     u32(100),
		PacingRate:      u64(104),
		MaxPacingRate:   u64(112),
		BytesAcked:      u64(120),
		BytesReceived:   u64(128),
		SegmentsOut:     u32(136),
		SegmentsIn:      u32(140),
		NotSent:         u32(144),
		MinRTT:          microseconds(uint64(u32(148))),
		DataSegsIn:      u32(152),
		DataSegsOut:     u32(156),
		DeliveryRate:    u64(160),
		Busy:            microseconds(u64(168)),
		RwndLimited:     microseconds(u64(176)),
		SndbufLimited:   microseconds(u64(184)),
		Delivered:       u32(192),
		DeliveredCE:     u32(196),
		BytesSent:       u64(200),
		BytesRetrans:    u64(208),
		DSACKs:          u32(216),
		ReordSeen:       u32(220),
		OutOfOrder:      u32(224),
		SendWindow:      u32(228),
		ReceiveWindow:   u32(232),
		length:          len(b),
	}
	if len(b) > 0 {
		i.State = State(b[0])
	}
	// A bit field; its first bit is the lowest one on amd64 and arm64. Kernels
	// without a delivery rate leave it zero.
	if len(b) > 7 {
		i.AppLimited = b[7]&1 != 0
	}
	// "No samples yet" is all ones.
	if i.MinRTT == microseconds(1<<32-1) {
		i.MinRTT = 0
	}
	return i
}
