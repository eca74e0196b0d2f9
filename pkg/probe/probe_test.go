package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"accel/pkg/socket"
)

func TestRun(t *testing.T) {
	const size = 24<<20 + 7
	var calls int
	var last, total int64
	r, err := Run(t.Context(), Options{Size: size, Progress: func(done, of int64) {
		if done < last {
			t.Errorf("progress goes back from %d to %d", last, done)
		}
		calls++
		last, total = done, of
	}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Schema != "accel.probe/1" || r.Size != size || r.Bytes != size || !r.Complete {
		t.Errorf("not the whole download: %+v", r)
	}
	if calls == 0 || last != size || total != size {
		t.Errorf("progress: %d calls, the last %d of %d", calls, last, total)
	}
	if r.Seconds <= 0 || r.Throughput == 0 {
		t.Errorf("no throughput: %v s, %d bit/s", r.Seconds, r.Throughput)
	}
	if ratio := float64(r.Throughput) * r.Seconds / 8 / size; ratio < 0.99 || ratio > 1.01 {
		t.Errorf("%d bit/s in %v s is not %d bytes", r.Throughput, r.Seconds, size)
	}
	want, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	if r.Algorithm != strings.TrimSpace(string(want)) {
		t.Errorf("algorithm %q, the host's is %q", r.Algorithm, want)
	}
	if (r.BBRVersion != nil) != (r.Algorithm == "bbr") {
		t.Errorf("%s with BBR version %v", r.Algorithm, r.BBRVersion)
	}
	if s := r.Sender; s.MSS < 500 || s.Cwnd < 1 || s.MaxCwnd < s.Cwnd || s.RTT < 1 || s.MaxRTT < s.RTT || s.SegmentsOut == nil || *s.SegmentsOut < size/(1<<20) {
		t.Errorf("implausible: %+v", s)
	}
	if len(r.Samples) < 5 || len(r.Samples) > maxSamples {
		t.Errorf("%d samples", len(r.Samples))
	}
	for i := 1; i < len(r.Samples); i++ {
		if r.Samples[i].Seconds < r.Samples[i-1].Seconds || *r.Samples[i].BytesAcked < *r.Samples[i-1].BytesAcked {
			t.Errorf("sample %d goes back: %+v", i, r.Samples[i-1:i+1])
		}
	}
}

func TestRunTakesTheAlgorithm(t *testing.T) {
	r, err := Run(t.Context(), Options{Size: 1, Algorithm: "reno"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Algorithm != "reno" || r.BBRVersion != nil || !r.Complete || r.Bytes != 1 {
		t.Errorf("%+v", r)
	}
	_, err = Run(t.Context(), Options{Size: 1 << 20, Algorithm: "nosuch"})
	if !errors.Is(err, socket.ErrNoAlgorithm) {
		t.Errorf("%v, want ErrNoAlgorithm", err)
	}
	if _, err := Run(t.Context(), Options{Size: -1}); err == nil {
		t.Error("a negative size is accepted")
	}
}

// What a slow host looks like: the deadline comes long before the end.
func TestDeadlineIsNoFailure(t *testing.T) {
	before := leftovers(t)
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	begin := time.Now()
	r, err := Run(ctx, Options{Size: 1 << 50})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("stopped after %v", took)
	}
	if r.Complete || r.Bytes == 0 || r.Bytes >= r.Size || r.Throughput == 0 || r.Sender.MSS == 0 || r.Algorithm == "" {
		t.Errorf("%+v", r)
	}
	noneLeft(t, before)

	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := Run(past, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline in the past: %v", err)
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	before := leftovers(t)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Run(ctx, Options{Size: 1 << 50, Progress: func(done, _ int64) {
			if done > 8<<20 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		cancel()
	}
	noneLeft(t, before)
}

func TestCompletionLeavesNothing(t *testing.T) {
	before := leftovers(t)
	for range 3 {
		if _, err := Run(t.Context(), Options{Size: 3 << 20}); err != nil {
			t.Error(err)
		}
	}
	noneLeft(t, before)
}

// leftovers counts goroutines and open files.
func leftovers(t *testing.T) [2]int {
	// The first socket of a process opens the runtime's own poller.
	if l, err := net.Listen("tcp", "localhost:0"); err == nil {
		l.Close()
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return [2]int{runtime.NumGoroutine(), len(fds)}
}

func noneLeft(t *testing.T, before [2]int) {
	t.Helper()
	var now [2]int
	for range 100 {
		if now = leftovers(t); now[0] <= before[0] && now[1] <= before[1] {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("goroutines and files before %v, afterwards %v", before, now)
}

// The memory of a download does not grow with its size.
func TestMemoryIsBounded(t *testing.T) {
	allocated := func(size int64) uint64 {
		var a, b runtime.MemStats
		runtime.ReadMemStats(&a)
		if _, err := Run(t.Context(), Options{Size: size}); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&b)
		return b.TotalAlloc - a.TotalAlloc
	}
	allocated(1 << 20)
	if got := allocated(96 << 20); got > 2<<20 {
		t.Errorf("96 MiB took %d bytes of memory", got)
	}
}

// Anybody on the host can connect to the port.
func TestStrangersGetNothing(t *testing.T) {
	s := &server{ctx: t.Context(), size: 1, path: "/secret", report: make(chan report, 1)}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Skip("no IPv4 loopback here:", err)
	}
	stop := s.serve(l)
	defer stop()
	for _, path := range []string{"/", "/secre", "/secret/"} {
		response, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
	if n, _, err := s.download("tcp4", l.Addr().String(), nil); n != 1 || err != nil {
		t.Errorf("ours: %d bytes, %v", n, err)
	}
	if _, _, err := s.download("tcp4", l.Addr().String(), nil); err == nil {
		t.Error("the download was given twice")
	}
}

func TestParseSize(t *testing.T) {
	good := map[string]int64{"1": 1, "4096": 4096, "16K": 16 << 10, "256M": 256 << 20, "1g": 1 << 30, "2GiB": 2 << 30, "8589934591G": 8589934591 << 30}
	for in, want := range good {
		if got, err := ParseSize(in); got != want || err != nil {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "0", "M", "-1", "1.5M", "1MB", "1T", "1 M", "0x10", "9223372036854775808", "8589934592G", "1KK", "+1", "1_000"} {
		if got, err := ParseSize(in); !errors.Is(err, ErrSize) {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	f.Add("256M")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if (err == nil) != (n > 0) {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	})
}

// TestLoopbacks runs the download in network namespaces that have only one
// address family, or no loopback at all. The program is started anew there: a
// namespace belongs to a thread, and the download uses several.
func TestLoopbacks(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root for network namespaces")
		}
		t.Skip("needs root for network namespaces")
	}
	for keep, want := range map[string]string{"inet": "inet", "inet6": "inet6", "none": "no loopback"} {
		cmd := exec.Command("unshare", "-n", "--", os.Args[0], "-test.run=^TestInNamespace$", "-test.count=1")
		cmd.Env = append(os.Environ(), "ACCEL_TEST_KEEP="+keep)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "RESULT "+want+"\n") {
			t.Errorf("with %s: %v\n%s", keep, err, out)
		}
	}
}

// TestInNamespace is the part of TestLoopbacks inside the namespace.
func TestInNamespace(t *testing.T) {
	keep := os.Getenv("ACCEL_TEST_KEEP")
	if keep == "" {
		t.Skip("part of TestLoopbacks")
	}
	if keep != "none" {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		addresses, err := netlink.AddrList(lo, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addresses {
			if v4 := a.IP.To4() != nil; v4 != (keep == "inet") {
				if err := netlink.AddrDel(lo, &a); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	r, err := Run(t.Context(), Options{Size: 4 << 20})
	if errors.Is(err, socket.ErrNoLoopback) {
		fmt.Println("RESULT no loopback")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("RESULT", r.Family)
	if !r.Complete || r.Algorithm == "" {
		t.Errorf("%+v", r)
	}
	// A connection closed in the ordinary way stays a minute in TIME_WAIT.
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		for _, line := range strings.Split(string(table), "\n")[1:] {
			if line != "" {
				t.Errorf("a socket is left in %s: %s", name, line)
			}
		}
	}
}

func TestMedian(t *testing.T) {
	for want, in := range map[int64][]int64{1: {1}, 2: {3, 1, 2}, 4: {9, 4}} {
		if diff := cmp.Diff(want, median(in)); diff != "" {
			t.Errorf("%v: %s", in, diff)
		}
	}
}
