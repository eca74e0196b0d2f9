package socket

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// These tests ask a real kernel, in network namespaces of their own.

// inNamespace moves the rest of the test to a network namespace of its own,
// with its loopback link up if so wished. The thread is never unlocked, so that
// it ends with the test.
func inNamespace(t *testing.T, up bool) *netlink.Handle {
	t.Helper()
	if os.Getuid() != 0 {
		const reason = "needs root, to make a network namespace"
		if os.Getenv("CI") == "true" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if up {
		lo, err := h.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := h.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// removeAddress takes an address from the loopback link.
func removeAddress(t *testing.T, h *netlink.Handle, address string) {
	t.Helper()
	lo, err := h.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.AddrDel(lo, a); err != nil {
		t.Fatal(err)
	}
}

// hostNamespace is where the tests were started.
var hostNamespace, _ = os.Readlink("/proc/self/ns/net")

// setDefault sets the algorithm of new connections of the test's namespace.
func setDefault(t *testing.T, algorithm string) {
	t.Helper()
	// /proc/sys/net is that of the calling thread; never write the host's.
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if here == hostNamespace {
		t.Fatal("not in a namespace of its own")
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(algorithm), 0); err != nil {
		t.Fatal(err)
	}
}

func available(t *testing.T) []string { return list(t, availablePath) }

// allowed are the algorithms that need no privilege; reno always is one.
func allowed(t *testing.T) []string {
	return list(t, "/proc/sys/net/ipv4/tcp_allowed_congestion_control")
}

func list(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// pair returns both ends of a connection to ourselves.
func pair(t *testing.T, network, address string) (client, server *net.TCPConn) {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.DialContext(t.Context(), network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestSelfConnect(t *testing.T) {
	for name, tc := range map[string]struct {
		remove []string // addresses of the loopback link
		want   string   // family
	}{
		"both":    {nil, "inet"},
		"no IPv6": {[]string{"::1/128"}, "inet"},
		"no IPv4": {[]string{"127.0.0.1/8"}, "inet6"},
	} {
		t.Run(name, func(t *testing.T) {
			h := inNamespace(t, true)
			for _, a := range tc.remove {
				removeAddress(t, h, a)
			}
			// A namespace other than the first can only have as its default what
			// is allowed to everybody.
			for _, algorithm := range allowed(t) {
				setDefault(t, algorithm)
				got, err := SelfConnect(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if (got.BBRVersion > 0) != (algorithm == "bbr") {
					t.Errorf("%s has BBR version %d", algorithm, got.BBRVersion)
				}
				got.BBRVersion = 0
				if want := (Evidence{Family: tc.want, Client: algorithm, Server: algorithm}); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
		})
	}
}

func TestSelfConnectWithoutLoopback(t *testing.T) {
	inNamespace(t, false)
	if got, err := SelfConnect(t.Context()); !errors.Is(err, ErrNoLoopback) {
		t.Errorf("got %+v, %v, want ErrNoLoopback", got, err)
	}
}

func TestSelfConnectEnds(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := SelfConnect(ctx); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-ctx.Done()
	if _, err := SelfConnect(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline exceeded", err)
	}
}

// No sockets and no goroutines stay, and nothing is in TIME_WAIT.
func TestSelfConnectLeavesNothing(t *testing.T) {
	inNamespace(t, true)
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if _, err := SelfConnect(t.Context()); err != nil { // opens the poller's descriptors
		t.Fatal(err)
	}
	goroutines, open := runtime.NumGoroutine(), files()
	for range 50 {
		if _, err := SelfConnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := runtime.NumGoroutine(); got > goroutines {
		t.Errorf("%d goroutines became %d", goroutines, got)
	}
	if got := files(); got > open {
		t.Errorf("%d open files became %d", open, got)
	}
	data, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(data), "\n"); lines > 1 {
		t.Errorf("sockets are left:\n%s", data)
	}
}

// Whoever else connects to our port is hung up on and not looked at.
func TestAcceptRefusesStrangers(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func() *net.TCPConn {
		t.Helper()
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	var strangers []*net.TCPConn
	for range 5 {
		strangers = append(strangers, dial())
	}
	friend := dial()
	got, err := accept(t.Context(), l.(*net.TCPListener), friend.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.RemoteAddr().String() != friend.LocalAddr().String() {
		t.Errorf("accepted %v, want %v", got.RemoteAddr(), friend.LocalAddr())
	}
	for _, s := range strangers {
		s.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, io.EOF) {
			t.Errorf("a stranger is still connected: %v", err)
		}
	}

	// Nobody comes: the context ends the waiting.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if c, err := accept(ctx, l.(*net.TCPListener), "127.0.0.1:1"); err == nil {
		t.Errorf("accepted %v", c.RemoteAddr())
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("waited for %v", took)
	}
}

func TestCongestion(t *testing.T) {
	inNamespace(t, true)
	client, server := pair(t, "tcp4", "127.0.0.1:0")
	for _, name := range []string{"reno", "cubic"} {
		if err := SetCongestion(client, name); err != nil {
			t.Fatal(err)
		}
		if got, err := Congestion(client); err != nil || got != name {
			t.Errorf("got %q, %v, want %q", got, err, name)
		}
	}
	if err := SetCongestion(client, "nosuch"); !errors.Is(err, ErrNoAlgorithm) {
		t.Errorf("nosuch: %v, want ErrNoAlgorithm", err)
	}
	if got, err := Congestion(client); err != nil || got != "cubic" {
		t.Errorf("after a failure: %q, %v", got, err)
	}
	if v, err := BBRVersion(client); v != 0 || err != nil {
		t.Errorf("cubic has BBR version %d, %v", v, err)
	}
	if slices.Contains(available(t), "bbr") {
		if err := SetCongestion(server, "bbr"); err != nil {
			t.Fatal(err)
		}
		if v, err := BBRVersion(server); v < 1 || err != nil {
			t.Errorf("bbr has BBR version %d, %v", v, err)
		}
	}
	client.Close()
	if _, err := Congestion(client); !errors.Is(err, net.ErrClosed) {
		t.Errorf("of a closed connection: %v", err)
	}
}

func TestBBRVersionOf(t *testing.T) {
	for _, name := range []string{"", "nosuch", "bbr cubic"} {
		if v, err := BBRVersionOf(name); !errors.Is(err, ErrNoAlgorithm) {
			t.Errorf("%q: %d, %v, want ErrNoAlgorithm", name, v, err)
		}
	}
	if v, err := BBRVersionOf("reno"); v != 0 || err != nil {
		t.Errorf("reno: %d, %v", v, err)
	}
	before := available(t)
	v, err := BBRVersionOf("bbr")
	if slices.Contains(before, "bbr") {
		if v < 1 || err != nil {
			t.Errorf("bbr: %d, %v", v, err)
		}
	} else if !errors.Is(err, ErrNoAlgorithm) {
		t.Errorf("bbr: %d, %v, want ErrNoAlgorithm", v, err)
	}
	if diff := cmp.Diff(before, available(t)); diff != "" {
		t.Errorf("asking changed what is available (-before +after)\n%s", diff)
	}
}

// Without CAP_NET_ADMIN only what is in tcp_allowed_congestion_control can be
// set, and asking for a version says so.
func TestNotPermitted(t *testing.T) {
	inNamespace(t, true)
	// bbr is for everybody (TCP_CONG_NON_RESTRICTED in net/ipv4/tcp_bbr.c).
	_ = exec.Command("/sbin/modprobe", "-q", "tcp_vegas").Run()
	free := allowed(t)
	i := slices.IndexFunc(available(t), func(name string) bool { return !slices.Contains(free, name) })
	if i < 0 {
		t.Skip("everything that is available is allowed to everybody here")
	}
	name := available(t)[i]
	client, _ := pair(t, "tcp4", "127.0.0.1:0")
	dropCapabilities(t)
	if err := SetCongestion(client, name); !errors.Is(err, ErrPermission) {
		t.Errorf("setting %s: %v, want ErrPermission", name, err)
	}
	if _, err := BBRVersionOf(name); !errors.Is(err, ErrPermission) {
		t.Errorf("asking for %s: %v, want ErrPermission", name, err)
	}
}

// dropCapabilities makes the thread of the test an ordinary user's.
func dropCapabilities(t *testing.T) {
	t.Helper()
	const nobody = 65534
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
		t.Fatal(errno)
	}
}

func TestTCPInfo(t *testing.T) {
	inNamespace(t, true)
	client, server := pair(t, "tcp4", "127.0.0.1:0")
	const size = 1 << 20
	go func() { _, _ = client.Write(make([]byte, size)); _ = client.CloseWrite() }()
	if n, err := io.Copy(io.Discard, server); err != nil || n != size {
		t.Fatal(n, err)
	}
	// The last answer may still be on its way.
	for range 500 {
		if i, err := TCPInfo(client); err != nil || i.Unacked == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	var theirs *unix.TCPInfo
	err := control(client, func(fd int) (err error) {
		theirs, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := TCPInfo(client)
	if err != nil {
		t.Fatal(err)
	}
	us := func(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
	// The same, by a reader that knows the layout by itself.
	want := got
	want.State, want.SendMSS, want.ReceiveMSS = State(theirs.State), int(theirs.Snd_mss), int(theirs.Rcv_mss)
	want.RTO, want.RTT, want.RTTVar, want.MinRTT = us(theirs.Rto), us(theirs.Rtt), us(theirs.Rttvar), us(theirs.Min_rtt)
	want.Cwnd, want.SlowStartThresh, want.Unacked = int(theirs.Snd_cwnd), int(theirs.Snd_ssthresh), int(theirs.Unacked)
	want.Lost, want.RetransOut, want.Retransmits = int(theirs.Lost), int(theirs.Retrans), int(theirs.Total_retrans)
	want.Reordering, want.PathMTU = int(theirs.Reordering), int(theirs.Pmtu)
	want.PacingRate, want.MaxPacingRate, want.DeliveryRate = theirs.Pacing_rate, theirs.Max_pacing_rate, theirs.Delivery_rate
	want.BytesAcked, want.BytesReceived = theirs.Bytes_acked, theirs.Bytes_received
	want.SegmentsOut, want.SegmentsIn, want.NotSent = int(theirs.Segs_out), int(theirs.Segs_in), int(theirs.Notsent_bytes)
	want.DataSegsIn, want.DataSegsOut = int(theirs.Data_segs_in), int(theirs.Data_segs_out)
	want.RwndLimited, want.SndbufLimited = time.Duration(theirs.Rwnd_limited)*time.Microsecond, time.Duration(theirs.Sndbuf_limited)*time.Microsecond
	want.Delivered, want.DeliveredCE = int(theirs.Delivered), int(theirs.Delivered_ce)
	want.BytesSent, want.BytesRetrans = theirs.Bytes_sent, theirs.Bytes_retrans
	want.DSACKs, want.ReordSeen, want.OutOfOrder, want.SendWindow = int(theirs.Dsack_dups), int(theirs.Reord_seen), int(theirs.Rcv_ooopack), int(theirs.Snd_wnd)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Info{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !got.Knows(FieldDeliveryRate) || got.RTT <= 0 || got.Cwnd <= 0 || got.SendMSS <= 0 {
		t.Errorf("implausible: %+v", got)
	}
	// SYN and FIN count as bytes that were acknowledged.
	if got.Knows(FieldBytesSent) && got.BytesSent-got.BytesRetrans != size || got.BytesAcked < size || got.BytesAcked > size+2 {
		t.Errorf("%d bytes were sent: %+v", size, got)
	}
}

func TestConnections(t *testing.T) {
	inNamespace(t, true)
	if got, err := Connections(); errors.Is(err, ErrNoDiag) {
		if exec.Command("/sbin/modprobe", "-q", "tcp_diag").Run() == nil {
			t.Error("the kernel has tcp_diag, and yet:", err)
		}
		t.Skip(err)
	} else if err != nil || len(got) != 0 {
		t.Fatalf("in an empty namespace: %v, %v", got, err)
	}
	setDefault(t, "reno")
	want := map[string]int{}
	for i := range 6 {
		client, _ := pair(t, "tcp4", "127.0.0.1:0")
		want["reno"] += 2
		if i%3 == 0 {
			if err := SetCongestion(client, "cubic"); err != nil {
				t.Fatal(err)
			}
			want["reno"]--
			want["cubic"]++
		}
	}
	if _, err := os.Stat("/proc/thread-self/net/tcp6"); err == nil {
		pair(t, "tcp6", "[::1]:0")
		// A socket of the one family that speaks the other counts as well.
		pair(t, "tcp", "[::ffff:127.0.0.1]:0")
		want["reno"] += 4
	}
	// Listening and closing sockets do not count.
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	half, _ := pair(t, "tcp4", "127.0.0.1:0")
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	check := func(who string) {
		t.Helper()
		got, err := Connections()
		if err != nil {
			t.Fatalf("as %s: %v", who, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("as %s (-want +got)\n%s", who, diff)
		}
	}
	check("root")
	dropCapabilities(t)
	check("nobody")
}

// More than one message full.
func TestConnectionsMany(t *testing.T) {
	inNamespace(t, true)
	if _, err := Connections(); errors.Is(err, ErrNoDiag) {
		t.Skip(err)
	}
	setDefault(t, "reno")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const n = 400
	for range n {
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	got, err := Connections()
	if err != nil {
		t.Fatal(err)
	}
	// The ends that nobody has accepted are established too.
	if diff := cmp.Diff(map[string]int{"reno": 2 * n}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
