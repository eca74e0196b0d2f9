package lab

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"accel/pkg/kernel"
)

// The emulated path, verified by counting and clocking numbered packets that
// know nothing of TCP. The children of the tests can do more than those of
// accel.

type (
	blastArgs struct {
		To    string
		Count int
		Size  int // of the frame
		Every time.Duration
	}
	packet struct {
		Number int
		At     int64 // when the kernel had it, ns since 1970
	}
	blasted struct{ Began, Ended int64 }
)

var sinks = map[string]*net.UDPConn{}

func init() {
	operations["sink"] = func(*childState, json.RawMessage) (any, error) {
		c, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return nil, err
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return nil, err
		}
		var setErr error
		err = raw.Control(func(fd uintptr) {
			setErr = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
				// The reader of a busy machine is late; the kernel is less so.
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
		})
		if err := errors.Join(err, setErr); err != nil {
			return nil, err
		}
		sinks["sink"] = c
		return c.LocalAddr().(*net.UDPAddr).Port, nil
	}
	// sunk gives what arrived, after nothing did for a second.
	operations["sunk"] = func(*childState, json.RawMessage) (any, error) {
		c := sinks["sink"]
		defer c.Close()
		var all []packet
		buf, control := make([]byte, 2048), make([]byte, 256)
		for {
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			n, oob, _, _, err := c.ReadMsgUDP(buf, control)
			if err != nil {
				return all, nil
			}
			messages, err := unix.ParseSocketControlMessage(control[:oob])
			if err != nil || n < 4 || len(messages) != 1 || len(messages[0].Data) < 16 {
				return nil, errors.New("a packet without a time")
			}
			at := int64(binary.NativeEndian.Uint64(messages[0].Data))*1e9 + int64(binary.NativeEndian.Uint64(messages[0].Data[8:]))
			all = append(all, packet{int(binary.BigEndian.Uint32(buf)), at})
		}
	}
	operations["blast"] = with(func(_ *childState, a blastArgs) (any, error) {
		c, err := net.Dial("udp4", a.To)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		const headers = 14 + 20 + 8
		buf := make([]byte, a.Size-headers)
		b := blasted{Began: time.Now().UnixNano()}
		for i := range a.Count {
			for left := int64(1); a.Every > 0 && left > 0; {
				if left = b.Began + int64(i)*int64(a.Every) - time.Now().UnixNano(); left > 0 {
					time.Sleep(time.Duration(left))
				}
			}
			binary.BigEndian.PutUint32(buf, uint32(i))
			if _, err := c.Write(buf); err != nil {
				return nil, err
			}
		}
		b.Ended = time.Now().UnixNano()
		return b, nil
	})
	operations["echo"] = func(*childState, json.RawMessage) (any, error) {
		c, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return nil, err
		}
		go func() {
			buf := make([]byte, 64)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(buf[:n], from)
			}
		}()
		return c.LocalAddr().(*net.UDPAddr).Port, nil
	}
	operations["ping"] = with(func(_ *childState, to string) (any, error) {
		c, err := net.Dial("udp4", to)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		var times []time.Duration
		buf := make([]byte, 64)
		for len(times) < 30 {
			began := now()
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			if _, err := c.Write(buf[:8]); err != nil {
				return nil, err
			}
			if _, err := c.Read(buf); err != nil {
				return nil, err
			}
			times = append(times, time.Duration(now()-began))
		}
		return times, nil
	})
}

// bench is a rig with a path.
func bench(t *testing.T, p Path) *rig {
	t.Helper()
	needRoot(t)
	p, err := p.Complete()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRig(t.Context(), p.Loopback, false, kernel.LoadModule)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	if _, err := r.setArm(t.Context(), 0, Arm{Name: "x", Algorithm: "cubic"}); err != nil {
		t.Fatal(err)
	}
	if err := r.shape(t.Context(), p, 1); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) must(t *testing.T, c *child, op string, args, result any) {
	t.Helper()
	if err := r.call(t.Context(), c, op, args, result); err != nil {
		t.Fatalf("%s: %v", op, err)
	}
}

// blast sends packets from the sender to the receiver.
func (r *rig) blast(t *testing.T, a blastArgs) ([]packet, blasted) {
	t.Helper()
	var port uint16
	r.must(t, r.receiver, "sink", nil, &port)
	a.To = r.serverAddress(receiverEnd, port).String()
	var got []packet
	done := make(chan error, 1)
	go func() { done <- r.call(context.Background(), r.receiver, "sunk", nil, &got) }()
	var b blasted
	r.must(t, r.sender, "blast", a, &b)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return got, b
}

func needGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("ACCEL_GUEST") != "1" {
		t.Skip("needs netem: test/lab runs it inside virtual machines")
	}
}

func TestGuestDelay(t *testing.T) {
	needGuest(t)
	r := bench(t, Path{RTT: 60 * time.Millisecond})
	var port uint16
	r.must(t, r.receiver, "echo", nil, &port)
	// netem never sends early; a machine that is emulated on a busy one wakes up
	// late, which the fastest of many shows least.
	fastest := time.Hour
	for try := 0; try < 10 && fastest > 63*time.Millisecond; try++ {
		var times []time.Duration
		r.must(t, r.sender, "ping", r.serverAddress(receiverEnd, port).String(), &times)
		slices.Sort(times)
		t.Logf("asked for 60 ms; fastest %v, median %v, slowest %v", times[0], times[len(times)/2], times[len(times)-1])
		fastest = min(fastest, times[0])
	}
	if fastest < 60*time.Millisecond || fastest > 64*time.Millisecond {
		t.Errorf("%v", fastest)
	}
}

// lost gives how many of the packets did not come, and in how many bursts.
func lost(got []packet, count int) (lost, bursts int) {
	came := make([]bool, count)
	for _, p := range got {
		came[p.Number] = true
	}
	for i, c := range came {
		if !c {
			lost++
			if i == 0 || came[i-1] {
				bursts++
			}
		}
	}
	return lost, bursts
}

func TestGuestLoss(t *testing.T) {
	needGuest(t)
	const count = 10000
	for _, p := range []Path{
		{RTT: 2 * time.Millisecond, LossPercent: 5},
		{RTT: 2 * time.Millisecond, LossPercent: 5, LossBurst: 4},
	} {
		r := bench(t, p)
		got, _ := r.blast(t, blastArgs{Count: count, Size: 100, Every: 100 * time.Microsecond})
		n, bursts := lost(got, count)
		share, mean := float64(n)/count, float64(n)/float64(max(bursts, 1))
		t.Logf("asked for 5 %% in bursts of %v; lost %d of %d (%.2f %%) in bursts of %.2f", p.LossBurst, n, count, share*100, mean)
		// Four standard deviations of a binomial, wider where losses cling
		// together, and of the mean of geometric bursts.
		burst := max(p.LossBurst, 1/0.95)
		tolerance := 4 * math.Sqrt(0.05*0.95/count*(2*burst-1))
		if math.Abs(share-0.05) > tolerance {
			t.Errorf("lost %.4f, want 0.05 within %.4f", share, tolerance)
		}
		if tolerance := 4 * burst / math.Sqrt(float64(bursts)); math.Abs(mean-burst) > tolerance {
			t.Errorf("bursts of %.2f, want %.2f within %.2f", mean, burst, tolerance)
		}
	}
}

func TestGuestRate(t *testing.T) {
	needGuest(t)
	const count, rate, window = 300, 2.0, 60
	r := bench(t, Path{RateMbit: rate, RTT: 10 * time.Millisecond, QueuePackets: 2 * count})
	speed := func(from, to packet, n int) float64 { return float64(n) * frame * 8 / float64(to.At-from.At) * 1e3 }
	// A machine that is emulated on a busy one stands still at times, and what a
	// tbf could have sent then is lost but for its allowance. So only a part of
	// the time can show that the rate is no less, and that it is never more.
	allowance := float64(tbfBurst(rate*1e6/8, r.late))/frame + 1
	most := rate * (1 + allowance/window)
	reached := false
	for try := 0; try < 4 && !reached; try++ {
		got, _ := r.blast(t, blastArgs{Count: count, Size: frame})
		if len(got) != count {
			t.Fatalf("%d of %d packets", len(got), count)
		}
		if !slices.IsSortedFunc(got, func(a, b packet) int { return a.Number - b.Number }) {
			t.Error("out of order")
		}
		mean := speed(got[0], got[count-1], count-1)
		var windows []float64
		for i := 0; i+window < count; i++ {
			windows = append(windows, speed(got[i], got[i+window], window))
		}
		slices.Sort(windows)
		fastest, median := windows[len(windows)-1], windows[len(windows)/2]
		t.Logf("asked for %v Mbit/s; mean %.3f, over %d packets median %.3f, fastest %.3f; timers are %v late", rate, mean, window, median, fastest, r.late)
		if fastest > most || mean > rate*(1+allowance/count)*1.005 {
			t.Errorf("more than %.3f Mbit/s", most)
		}
		reached = median > rate*0.98 || try > 0 && fastest > rate*0.98
	}
	if !reached {
		t.Errorf("never %v Mbit/s", rate)
	}
}

func TestGuestQueue(t *testing.T) {
	needGuest(t)
	const count, rate, queue = 400, 2.0, 60
	r := bench(t, Path{RateMbit: rate, RTT: 10 * time.Millisecond, QueuePackets: queue})
	got, b := r.blast(t, blastArgs{Count: count, Size: frame})
	// While it was filled, the queue sent on, and so did the allowance.
	sent := time.Duration(b.Ended - b.Began)
	meanwhile := sent.Seconds()*rate*1e6/8/frame + float64(tbfBurst(rate*1e6/8, r.late))/frame
	t.Logf("asked for %d packets; %d of %d came, %.1f of them could pass in the %v of sending", queue, len(got), count, meanwhile, sent)
	if n := float64(len(got)); n < queue || n > queue+meanwhile+2 {
		t.Errorf("%d packets came", len(got))
	}
	// What came is the beginning without a gap, up to where the queue was full.
	for i, p := range got[:queue] {
		if p.Number != i {
			t.Errorf("packet %d is number %d", i, p.Number)
			break
		}
	}
}

func TestGuestJitterKeepsTheOrder(t *testing.T) {
	needGuest(t)
	r := bench(t, Path{RTT: 40 * time.Millisecond, Jitter: 15 * time.Millisecond})
	got, b := r.blast(t, blastArgs{Count: 2000, Size: 200, Every: time.Millisecond})
	if len(got) != 2000 {
		t.Fatalf("%d packets", len(got))
	}
	fastest, slowest := time.Hour, time.Duration(0)
	for i, p := range got {
		if p.Number != i {
			t.Fatalf("packet %d is number %d", i, p.Number)
		}
		d := time.Duration(p.At-b.Began) - time.Duration(i)*time.Millisecond
		fastest, slowest = min(fastest, d), max(slowest, d)
	}
	t.Logf("asked for 20 ms give or take 15; %v to %v", fastest, slowest)
	if fastest < 5*time.Millisecond || slowest < 30*time.Millisecond {
		t.Errorf("delays of %v to %v", fastest, slowest)
	}
}

func TestGuestReordering(t *testing.T) {
	needGuest(t)
	r := bench(t, Path{RTT: 40 * time.Millisecond, ReorderPercent: 10})
	got, _ := r.blast(t, blastArgs{Count: 2000, Size: 200, Every: time.Millisecond})
	overtook, most := 0, -1
	for _, p := range got {
		if p.Number < most {
			continue
		}
		if p.Number > most+1 {
			overtook++
		}
		most = p.Number
	}
	t.Logf("asked for 10 %%; %d of %d overtook", overtook, len(got))
	if len(got) != 2000 || overtook < 100 || overtook > 300 {
		t.Errorf("%d of %d overtook", overtook, len(got))
	}
}

// The whole with what this kernel lacks on the developer's machine: delay,
// loss, fq, and a module to be loaded.
func TestGuestCompare(t *testing.T) {
	needGuest(t)
	plan := Plan{
		Arms:  arms(t, "bbr", "cubic"),
		Paths: []Path{{RateMbit: 20, RTT: 40 * time.Millisecond, LossPercent: 3, QueueBDP: 1}},
		Sizes: []int64{512 << 10}, Rounds: 1, Seed: 1, Against: "cubic",
	}
	plan.Arms[1].InitialCwnd = 30
	run, err := Compare(t.Context(), plan, Options{Load: kernel.LoadModule})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range run.Transfers {
		t.Logf("%s round %d: %v %.3f s, %.1f Mbit/s, first %.4f, rtt min %.2f srtt %.2f loaded %.2f, again %.4f, to90 %.3f, share %.2f, %d samples",
			x.Algorithm, x.Round, x.Finished, x.Seconds, x.Goodput/1e6, x.FirstByte, x.MinRTT, x.SRTT, x.LoadedRTT, x.RetransShare, x.To90, *x.Share, len(x.Samples))
		if !x.Finished || x.Error != "" || x.MinRTT < 40 || x.FirstByte < 0.08 || x.RetransShare == 0 || *x.Share <= 0 || *x.Share >= 1 {
			t.Errorf("%+v", x)
		}
	}
	for _, a := range run.Plan.Arms {
		if len(a.NotCompared) > 0 {
			t.Errorf("%s: %q", a.Name, a.NotCompared)
		}
	}
}

// What the receiver may buffer bounds what is on its way: 64 KB, of which the kernel
// offers a part, in 40 ms are less than 13 Mbit/s. A path that says nothing has the
// kernel's own again.
func TestGuestClientBuffer(t *testing.T) {
	needGuest(t)
	path := Path{RateMbit: 40, RTT: 40 * time.Millisecond, QueueBDP: 2}
	small := path
	small.ClientBuffer = 64 << 10
	run, err := Compare(t.Context(), Plan{
		Arms: arms(t, "cubic"), Paths: []Path{path, small, path}, Sizes: []int64{2 << 20}, Rounds: 1,
	}, Options{Load: kernel.LoadModule})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range run.Transfers {
		t.Logf("path %d: %.1f Mbit/s", x.Path, x.Goodput/1e6)
		if bounded := x.Goodput < 13e6; !x.Finished || bounded != (x.Path == 1) {
			t.Errorf("path %d: %+v", x.Path, x)
		}
	}
}

func TestGuestLoopback(t *testing.T) {
	needGuest(t)
	plan := Plan{
		Arms:  arms(t, "bbr", "cubic"),
		Paths: []Path{{Loopback: true, LossPercent: 5}}, Sizes: []int64{16 << 20}, Rounds: 1,
	}
	run, err := Compare(t.Context(), plan, Options{Load: kernel.LoadModule})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range run.Transfers {
		t.Logf("%s: %v %.3f s, %.1f Mbit/s, again %.4f", x.Algorithm, x.Finished, x.Seconds, x.Goodput/1e6, x.RetransShare)
		if !x.Finished || x.RetransShare == 0 {
			t.Errorf("%+v", x)
		}
	}
}

// Arms out of the wild, on a kernel that has everything they ask for.
func TestGuestArms(t *testing.T) {
	needGuest(t)
	r := bench(t, Path{RTT: 10 * time.Millisecond})
	before := read(t, r, "net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle")
	arm, err := ParseArm("x", "x.conf", []byte("# qdisc fq\n# route initcwnd 30\nnet.ipv4.tcp_congestion_control=bbr\n"+
		"net.ipv4.tcp_wmem=4096 65536 33554432\nnet.ipv4.tcp_slow_start_after_idle=0\nnet.core.rmem_max=1\nnet.ipv4.tcp_early_retrans=x\nfs.file-max=1\n"))
	if err != nil {
		t.Fatal(err)
	}
	not, err := r.setArm(t.Context(), 1, arm)
	if err != nil {
		t.Fatal(err)
	}
	if len(not) != 2 || !strings.HasPrefix(not[0], "net.core.rmem_max") || !strings.HasPrefix(not[1], "net.ipv4.tcp_early_retrans") {
		t.Errorf("not compared: %q", not)
	}
	if got := read(t, r, "net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle"); !slices.Equal(got, []string{"4096\t65536\t33554432", "0"}) {
		t.Errorf("%q", got)
	}
	if _, err := r.setArm(t.Context(), 2, Arm{Name: "y", Algorithm: "cubic"}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, r, "net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle"); !slices.Equal(got, before) {
		t.Errorf("%q is left of the last arm, it was %q", got, before)
	}
}

// read reads keys in the sender's namespace.
func read(t *testing.T, r *rig, keys ...string) []string {
	t.Helper()
	var values []string
	for _, k := range keys {
		var v string
		r.must(t, r.sender, "read", k, &v)
		values = append(values, v)
	}
	return values
}

func init() {
	operations["read"] = with(func(_ *childState, key string) (any, error) {
		data, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/")))
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return strings.TrimSpace(string(data)), err
	})
}
