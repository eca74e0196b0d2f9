package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// BenchmarkSender compares the processor time of accel's sending process with
// that of iperf3, both over loopback at the rate of the same tbf, one after the
// other in turns:
//
//	go test ./pkg/lab -run '^$' -bench Sender -benchtime 1x
//
// It needs root, for a network namespace, and iperf3. `make bench` runs it.
func BenchmarkSender(b *testing.B) {
	needRoot(b)
	iperf, err := exec.LookPath("iperf3")
	if err != nil {
		b.Skip("needs iperf3")
	}
	for _, test := range []struct {
		name   string
		mbit   float64
		size   int64
		rounds int
	}{
		{"100Mbit", 100, 40 << 20, 3},
		{"1Gbit", 1000, 400 << 20, 7},
		{"unlimited", 0, 4 << 30, 5},
	} {
		b.Run(test.name, func(b *testing.B) {
			for b.Loop() {
				done := make(chan error)
				var ours, theirs []float64
				go func() {
					runtime.LockOSThread() // and never unlocked: its namespace goes with it
					done <- inTurns(iperf, Path{RateMbit: test.mbit, QueuePackets: 1000}, test.size, test.rounds, &ours, &theirs)
				}()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				gb := float64(test.size) / 1e9
				a, i := middle(ours)/gb, middle(theirs)/gb
				b.ReportMetric(a, "accel-ms/GB")
				b.ReportMetric(i, "iperf3-ms/GB")
				b.ReportMetric(a/i, "accel/iperf3")
				b.ReportMetric(0, "ns/op")
				b.Logf("milliseconds per GB, accel: %.0f", scaled(ours, 1/gb))
				b.Logf("milliseconds per GB, iperf3: %.0f", scaled(theirs, 1/gb))
			}
		})
	}
}

func scaled(values []float64, by float64) []float64 {
	var out []float64
	for _, v := range values {
		out = append(out, v*by)
	}
	return out
}

func middle(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// inTurns makes the transfers in a namespace of this thread and appends
// milliseconds of processor time of the senders.
func inTurns(iperf string, path Path, size int64, rounds int, ours, theirs *[]float64) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(lo); err != nil {
		return err
	}
	// As on the paths of a comparison; a tbf drops packets larger than its burst.
	if err := h.LinkSetMTU(lo, 1500); err != nil {
		return err
	}
	path, err = path.Complete()
	if err != nil {
		return err
	}
	if err := shape(lo.Attrs().Index, path, 1, time.Millisecond); err != nil {
		return err
	}
	for range rounds {
		for _, one := range []struct {
			into *[]float64
			run  func() (float64, error)
		}{
			{ours, func() (float64, error) { return runOurs(size) }},
			{theirs, func() (float64, error) { return runIperf(iperf, size) }},
		} {
			ms, err := one.run()
			if err != nil {
				return err
			}
			*one.into = append(*one.into, ms)
		}
	}
	return nil
}

// on starts a program on one processor: what sends on the first, what receives
// on the second, as in a comparison.
func on(cpu int, cmd *exec.Cmd) error {
	send, receive := processors()
	var before, set unix.CPUSet
	if send >= 0 {
		if err := unix.SchedGetaffinity(0, &before); err != nil {
			return err
		}
		set.Set([]int{send, receive}[cpu])
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		defer unix.SchedSetaffinity(0, &before)
	}
	cmd.Stderr = os.Stderr
	return cmd.Start()
}

func runIperf(iperf string, size int64) (float64, error) {
	server := exec.Command(iperf, "-s", "-1", "-p", "5201")
	if err := on(1, server); err != nil {
		return 0, err
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	time.Sleep(300 * time.Millisecond)
	client := exec.Command(iperf, "-c", "127.0.0.1", "-p", "5201", "-C", "cubic", "-n", strconv.FormatInt(size, 10), "-i", "0")
	if err := on(0, client); err != nil {
		return 0, err
	}
	if err := client.Wait(); err != nil {
		return 0, fmt.Errorf("iperf3: %w", err)
	}
	s := client.ProcessState
	return float64(s.UserTime()+s.SystemTime()) / 1e6, nil
}

// The processes of runOurs, see TestMain.
const (
	senderRole   = "bench-sender"
	receiverRole = "bench-receiver"
)

func runOurs(size int64) (float64, error) {
	sender := exec.Command("/proc/self/exe", senderRole, strconv.FormatInt(size, 10))
	out, err := sender.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := on(0, sender); err != nil {
		return 0, err
	}
	defer func() { sender.Process.Kill(); sender.Wait() }()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return 0, fmt.Errorf("the sender says nothing")
	}
	receiver := exec.Command("/proc/self/exe", receiverRole, strconv.FormatInt(size, 10), lines.Text())
	if err := on(1, receiver); err != nil {
		return 0, err
	}
	if err := receiver.Wait(); err != nil {
		return 0, err
	}
	if !lines.Scan() {
		return 0, fmt.Errorf("the sender says too little")
	}
	return strconv.ParseFloat(lines.Text(), 64)
}

const benchLimit = time.Minute

// benchSender is one transfer as the sender of a comparison makes it. It prints
// its port and then the processor time that it took, in milliseconds.
func benchSender(size string) error {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return err
	}
	before := processorTime()
	s, port, err := listen(listenArgs{Algorithm: "cubic", Flows: 1, Size: n, Limit: benchLimit})
	if err != nil {
		return err
	}
	fmt.Println(port)
	<-s.done
	if s.accounts[0].Err != "" || s.accounts[0].Algorithm != "cubic" {
		return fmt.Errorf("%+v", s.accounts)
	}
	fmt.Println(processorTime() - before)
	return nil
}

func processorTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
}

func benchReceiver(size, port string) error {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return err
	}
	reply, err := fetch(fetchArgs{Address: netip.MustParseAddrPort("127.0.0.1:" + port), Flows: 1, Size: n, Limit: benchLimit})
	if err != nil {
		return err
	}
	if !reply.Flows[0].Finished {
		out, _ := json.Marshal(reply)
		return fmt.Errorf("not finished: %.200s", strings.TrimSpace(string(out)))
	}
	return nil
}
