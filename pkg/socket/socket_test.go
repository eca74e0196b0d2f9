package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

func TestParseBBRVersion(t *testing.T) {
	info := func(size int, version byte) []byte {
		b := make([]byte, size)
		if size > bbrVersionAt {
			b[bbrVersionAt] = version
		}
		return b
	}
	for _, tc := range []struct {
		info []byte
		want int
	}{
		{info(0, 0), 0}, {info(16, 0), 0}, // another algorithm, or none
		{info(20, 0), 1},
		{info(52, 3), 3}, {info(64, 4), 4}, // as long as the version says
		{info(39, 0), 0}, {info(40, 2), 2},
		{info(52, 0), 0}, {info(52, 200), 0}, // some other layout
	} {
		if got := parseBBRVersion(tc.info); got != tc.want {
			t.Errorf("%d bytes %v: version %d, want %d", len(tc.info), tc.info, got, tc.want)
		}
	}
}

// A struct tcp_info in which every field has another value.
func distinctInfo() []byte {
	b := make([]byte, 240)
	for i := 8; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], uint32(i))
	}
	b[0], b[7] = 1, 1
	return b
}

func TestParseInfo(t *testing.T) {
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(distinctInfo()[at:]) }
	us := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
	whole := Info{
		State: Established, RTO: us(8), SendMSS: 16, ReceiveMSS: 20, Unacked: 24, Lost: 32, RetransOut: 36, PathMTU: 60,
		RTT: us(68), RTTVar: us(72), SlowStartThresh: 76, Cwnd: 80, Reordering: 88, ReceiveRTT: us(92), Retransmits: 100,
		PacingRate: u64(104), MaxPacingRate: u64(112), BytesAcked: u64(120), BytesReceived: u64(128),
		SegmentsOut: 136, SegmentsIn: 140, NotSent: 144, MinRTT: us(148), DataSegsIn: 152, DataSegsOut: 156,
		DeliveryRate: u64(160), AppLimited: true, Busy: us(u64(168)), RwndLimited: us(u64(176)), SndbufLimited: us(u64(184)),
		Delivered: 192, DeliveredCE: 196, BytesSent: u64(200), BytesRetrans: u64(208), DSACKs: 216, ReordSeen: 220,
		OutOfOrder: 224, SendWindow: 228, ReceiveWindow: 232,
	}
	if diff := cmp.Diff(whole, parseInfo(distinctInfo()), cmpopts.IgnoreUnexported(Info{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	// Each kernel knows the groups that came before it.
	groups := []Field{FieldPacingRate, FieldBytesAcked, FieldSegments, FieldMinRTT, FieldDeliveryRate, FieldBusy, FieldDelivered, FieldBytesSent, FieldSendWindow, FieldRecvWindow}
	for known := -1; known < len(groups); known++ {
		size := 104 // Linux 2.6 to 3.14
		if known >= 0 {
			size = int(groups[known])
		}
		got := parseInfo(distinctInfo()[:size])
		for i, f := range groups {
			if got.Knows(f) != (i <= known) {
				t.Errorf("%d bytes: Knows(%d) = %v", size, f, got.Knows(f))
			}
		}
		if got.Retransmits != 100 || got.Cwnd != 80 {
			t.Errorf("%d bytes: %+v", size, got)
		}
		if known < len(groups)-1 && got.ReceiveWindow != 0 {
			t.Errorf("%d bytes: %+v", size, got)
		}
	}
	if got := parseInfo(nil); got != (Info{}) {
		t.Errorf("nothing was read as %+v", got)
	}
	none := distinctInfo()
	binary.NativeEndian.PutUint32(none[148:], 0xffffffff)
	if got := parseInfo(none).MinRTT; got != 0 {
		t.Errorf("no sample yet was read as %v", got)
	}
}

func diagMessage(family, state byte, attrs ...[]byte) []byte {
	b := make([]byte, sizeofDiagMessage)
	b[0], b[1] = family, state
	b[sourceAt], b[destinationAt] = 192, 198
	binary.NativeEndian.PutUint32(b[inodeAt:], 4711)
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

func attribute(kind int, value string) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func TestParseDiag(t *testing.T) {
	shutdown := attribute(8, "\x00")
	for name, tc := range map[string]struct {
		msg  []byte
		want string
	}{
		"usual":         {diagMessage(unix.AF_INET, 1, shutdown, attribute(diagCong, "bbr\x00")), "bbr"},
		"first":         {diagMessage(unix.AF_INET, 1, attribute(diagCong, "cubic\x00"), shutdown), "cubic"},
		"no zero byte":  {diagMessage(unix.AF_INET, 1, attribute(diagCong, "westwood")), "westwood"},
		"other family":  {diagMessage(unix.AF_INET6, 1, attribute(diagCong, "bbr\x00")), ""},
		"other state":   {diagMessage(unix.AF_INET, 6, attribute(diagCong, "bbr\x00")), ""},
		"no algorithm":  {diagMessage(unix.AF_INET, 1, shutdown), ""},
		"empty":         {diagMessage(unix.AF_INET, 1, attribute(diagCong, "\x00")), ""},
		"no attributes": {diagMessage(unix.AF_INET, 1), ""},
		"malformed":     {diagMessage(unix.AF_INET, 1, []byte{3, 0, 4, 0}, attribute(diagCong, "bbr\x00")), ""},
		"cut off":       {diagMessage(unix.AF_INET, 1, []byte{9, 0, 4, 0, 'b'}), ""},
		"short":         {make([]byte, sizeofDiagMessage-1), ""},
		"nothing":       {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseDiag(tc.msg, unix.AF_INET)
			want := Connection{Algorithm: tc.want}
			if tc.want != "" {
				want.Inode = 4711
			}
			if got != want || ok != (tc.want != "") {
				t.Errorf("got %+v, %v; want %+v", got, ok, want)
			}
		})
	}
}

func TestParseDiagLocal(t *testing.T) {
	v4 := func(a, b, c, d byte) []byte { return append([]byte{a, b, c, d}, make([]byte, 12)...) }
	v6 := func(text string) []byte { a := netip.MustParseAddr(text).As16(); return a[:] }
	for name, tc := range map[string]struct {
		family   byte
		from, to []byte
		want     bool
	}{
		"abroad":         {unix.AF_INET, v4(192, 0, 2, 1), v4(192, 0, 2, 2), false},
		"loopback":       {unix.AF_INET, v4(192, 0, 2, 1), v4(127, 3, 2, 1), true},
		"to itself":      {unix.AF_INET, v4(192, 0, 2, 1), v4(192, 0, 2, 1), true},
		"from loopback":  {unix.AF_INET, v4(127, 0, 0, 1), v4(192, 0, 2, 2), false},
		"IPv6":           {unix.AF_INET6, v6("2001:db8::1"), v6("2001:db8::2"), false},
		"IPv6 loopback":  {unix.AF_INET6, v6("2001:db8::1"), v6("::1"), true},
		"IPv6 to itself": {unix.AF_INET6, v6("fe80::1"), v6("fe80::1"), true},
		"mapped":         {unix.AF_INET6, v6("::ffff:192.0.2.1"), v6("::ffff:127.0.0.1"), true},
		"mapped abroad":  {unix.AF_INET6, v6("::ffff:192.0.2.1"), v6("::ffff:192.0.2.2"), false},
	} {
		m := diagMessage(tc.family, 1, attribute(diagCong, "bbr\x00"))
		copy(m[sourceAt:], tc.from)
		copy(m[destinationAt:], tc.to)
		if c, ok := parseDiag(m, tc.family); !ok || c.Local != tc.want {
			t.Errorf("%s: %+v, %v, want local %v", name, c, ok, tc.want)
		}
	}
}

func TestDiagRequest(t *testing.T) {
	got := diagRequest(unix.AF_INET6)
	want := make([]byte, 56) // struct inet_diag_req_v2
	want[0], want[1], want[2] = 10, 6, 8
	binary.NativeEndian.PutUint32(want[4:], 2)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestExplainDiag(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL} {
		if err := explainDiag(errno); !errors.Is(err, ErrNoDiag) || !errors.Is(err, errno) {
			t.Errorf("%v is explained as %v", errno, err)
		}
	}
	if err := explainDiag(unix.ENOBUFS); err != unix.ENOBUFS {
		t.Errorf("ENOBUFS is explained as %v", err)
	}
}

func TestNoLoopback(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EAFNOSUPPORT} {
		if !noLoopback(fmt.Errorf("dialing: %w", errno)) {
			t.Errorf("%v is not recognised", errno)
		}
	}
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ECONNREFUSED, unix.ETIMEDOUT} {
		if noLoopback(errno) {
			t.Errorf("%v is taken for a missing loopback", errno)
		}
	}
}

func TestSetCongestionName(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("x", 16), "bbr\x00"} {
		if err := setCongestion(-1, name); !errors.Is(err, ErrNoAlgorithm) {
			t.Errorf("%q: %v, want ErrNoAlgorithm", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(diagMessage(unix.AF_INET, 1, attribute(8, "\x00"), attribute(diagCong, "bbr\x00")))
	f.Add(distinctInfo())
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, ok := parseDiag(b, unix.AF_INET); ok != (c.Algorithm != "") || strings.ContainsRune(c.Algorithm, 0) {
			t.Errorf("parseDiag: %+v, %v", c, ok)
		}
		i := parseInfo(b)
		if i.Knows(FieldRecvWindow) != (len(b) >= 236) || i.RTT < 0 || i.MinRTT < 0 || i.RTO < 0 {
			t.Errorf("parseInfo: %+v", i)
		}
		if v := parseBBRVersion(b); v < 0 || v >= bbrVersionLimit {
			t.Errorf("parseBBRVersion: %d", v)
		}
	})
}
