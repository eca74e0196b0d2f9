package qdisc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hardwareQueues returns the name of a link of this machine that has hardware
// and several queues, "" if there is none, setting it up.
func hardwareQueues(t *testing.T) string {
	t.Helper()
	modprobe("virtio_pci")
	modprobe("virtio_net")
	modprobe("vmxnet3")
	names, err := filepath.Glob("/sys/class/net/*/device")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		link := filepath.Base(filepath.Dir(name))
		if queues, _ := filepath.Glob(filepath.Dir(name) + "/queues/tx-*"); len(queues) < 2 {
			continue
		}
		h := handle(t)
		l, err := h.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		return link
	}
	return ""
}

// wantTree checks a kernel-made tree of one kind on a link with so many queues.
func wantTree(t *testing.T, got Tree, kind string, queues int) {
	t.Helper()
	want := Tree{Link: got.Link, Index: got.Index, Root: Qdisc{Kind: kind, Handle: "0:", Parent: "root"}}
	if queues > 1 {
		want.Root.Kind = "mq"
		for i := range queues {
			want.Leaves = append(want.Leaves, Qdisc{Kind: kind, Handle: "0:", Parent: fmt.Sprintf(":%x", i+1)})
		}
	}
	bare := got
	bare.Root.Options = ""
	bare.Leaves = slices.Clone(got.Leaves)
	for i := range bare.Leaves {
		bare.Leaves[i].Options = ""
	}
	if diff := cmp.Diff(want, bare); diff != "" {
		t.Errorf("not a tree of %s for %d queues (-want +got)\n%s", kind, queues, diff)
	}
}

// The way to fq and back, on links of one and of four queues and on hardware,
// from every default that distributions have; many times, and exactly.
func TestChangeDefault(t *testing.T) {
	needMachine(t)
	type subject struct {
		make   func(*testing.T) string
		queues func(t *testing.T, link string) int
	}
	fixed := func(n int) func(*testing.T, string) int { return func(*testing.T, string) int { return n } }
	for name, s := range map[string]subject{
		"1 queue":  {func(t *testing.T) string { return ifb(t, "ifb9", 1).Attrs().Name }, fixed(1)},
		"4 queues": {func(t *testing.T) string { return ifb(t, "ifb9", 4).Attrs().Name }, fixed(4)},
		"gretap tunnel": {func(t *testing.T) string {
			modprobe("ip_gre")
			return add(t, &netlink.Gretap{LinkAttrs: attrs("gretap9", 0), Local: net.IPv4(10, 9, 9, 1), Remote: net.IPv4(10, 9, 9, 2)}).Attrs().Name
		}, fixed(1)},
		"hardware": {func(t *testing.T) string {
			link := hardwareQueues(t)
			if link == "" {
				t.Skip("no hardware with several queues")
			}
			return link
		}, func(t *testing.T, link string) int {
			queues, err := filepath.Glob("/sys/class/net/" + link + "/queues/tx-*")
			if err != nil {
				t.Fatal(err)
			}
			return len(queues)
		}},
	} {
		for _, origin := range []string{"fq_codel", "pfifo_fast", "cake", "sfq"} {
			t.Run(name+" "+origin, func(t *testing.T) {
				setDefault(t, origin)
				h := handle(t)
				link := s.make(t)
				queues := s.queues(t, link)
				// Hardware came up with another default.
				if err := RebuildTo(link, origin); err != nil {
					t.Fatal(err)
				}
				before := tree(t, link)
				wantTree(t, before, origin, queues)
				wire, carrier := listen(t), carrierChanges(t, h, link)

				times := 5
				switch {
				case testing.Short():
					times = 2
				case origin == "fq_codel":
					times = 50
				}
				for range times {
					t.Run("there", func(t *testing.T) {
						setDefault(t, "fq") // until the end of this subtest
						if err := RebuildTo(link, "fq"); err != nil {
							t.Fatal(err)
						}
					})
					wantTree(t, tree(t, link), "fq", queues)
					if err := RebuildTo(link, origin); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(before, tree(t, link)); diff != "" {
						t.Fatalf("(-before +after)\n%s", diff)
					}
				}
				changes, flags := wire.take(before.Index)
				if changes == 0 {
					t.Error("nothing was changed")
				}
				checkNoFlap(t, flags)
				if got := carrierChanges(t, h, link); got != carrier {
					t.Errorf("the carrier changed %d times", got-carrier)
				}
				t.Logf("%d times there and back: %d messages about qdiscs, %d about the link", times, changes, len(flags))
			})
		}
	}
}

// A driver that gets more queues leaves them with pfifo_fast.
func TestQueuesAdded(t *testing.T) {
	needMachine(t)
	setDefault(t, "fq")
	inNamespace(t)
	tun(t, "tun0", 2)
	setUp(t, "tun0", serverAddress)
	before := tree(t, "tun0")
	wantTree(t, before, "fq", 2)
	tun(t, "tun0", 2) // two more
	mixed := tree(t, "tun0")
	if !mixed.KernelMade() || mixed.Kind() != "mq" || mixed.DefaultKind() != "fq" || len(mixed.Leaves) != 4 {
		t.Errorf("KernelMade %v, Kind %s, DefaultKind %s: %+v", mixed.KernelMade(), mixed.Kind(), mixed.DefaultKind(), mixed)
	}
	if err := RebuildTo("tun0", "fq"); err != nil {
		t.Fatal(err)
	}
	wantTree(t, tree(t, "tun0"), "fq", 4)
}

// Where the kernel cannot build what the default says, the link is left
// queueing, and the way back works.
func TestNotBuilt(t *testing.T) {
	needMachine(t)
	for _, queues := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d queues", queues), func(t *testing.T) {
			ifb(t, "ifb9", queues)
			before := tree(t, "ifb9")
			t.Run("there", func(t *testing.T) {
				setDefault(t, "tbf") // needs parameters, so that it cannot be a default
				err := RebuildTo("ifb9", "tbf")
				if !errors.Is(err, ErrNotBuilt) {
					t.Errorf("got %v, want ErrNotBuilt", err)
				}
				if got := tree(t, "ifb9"); !got.Leftover() {
					t.Errorf("no placeholder: %+v", got)
				}
			})
			if err := RebuildTo("ifb9", before.Kind()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, tree(t, "ifb9")); diff != "" {
				t.Errorf("(-before +after)\n%s", diff)
			}
			// And where the default is another than the caller thinks.
			other := "pfifo_fast"
			if before.Kind() == other {
				other = "fq_codel"
			}
			if err := RebuildTo("ifb9", other); !errors.Is(err, ErrNotBuilt) {
				t.Errorf("got %v, want ErrNotBuilt", err)
			}
			if diff := cmp.Diff(before, tree(t, "ifb9")); diff != "" {
				t.Errorf("(-before +after)\n%s", diff)
			}
		})
	}
}

// The quantum of fq_codel is computed from the MTU when it is built and stays:
// the one parameter that a rebuild can change. Documented at Rebuild.
func TestQuantumFollowsMTU(t *testing.T) {
	needMachine(t)
	setDefault(t, "fq_codel")
	h := handle(t)
	link := ifb(t, "ifb9", 1)
	at1500 := tree(t, "ifb9")
	if err := h.LinkSetMTU(link, 1460); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(at1500, tree(t, "ifb9")); diff != "" {
		t.Errorf("a new MTU changed the tree (-before +after)\n%s", diff)
	}
	if err := Rebuild("ifb9"); err != nil {
		t.Fatal(err)
	}
	if at1460 := tree(t, "ifb9"); cmp.Equal(at1500, at1460) {
		t.Error("the quantum does not depend on the MTU any more; correct the comment of Rebuild")
	}
	if err := errors.Join(h.LinkSetMTU(link, 1500), Rebuild("ifb9")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(at1500, tree(t, "ifb9")); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// bottleneck carries packets with a rate and a delay.
type bottleneck struct {
	rate  float64       // bytes/s
	delay time.Duration // each way
	queue int           // packets
}

func (b *bottleneck) forward(from, to *os.File, outgoing bool) {
	type packet struct {
		due  time.Time
		data []byte
	}
	line := make(chan packet, 1<<16)
	defer close(line)
	go func() {
		for p := range line {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data)
		}
	}()
	free := time.Now() // when the line can take the next packet
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		due := time.Now()
		if outgoing {
			took := time.Duration(float64(n) / b.rate * float64(time.Second))
			if free.Sub(due) > time.Duration(b.queue)*took {
				continue // the queue is full
			}
			if free.Before(due) {
				free = due
			}
			free = free.Add(took)
			due = free
		}
		line <- packet{due.Add(b.delay), slices.Clone(buf[:n])}
	}
}

// control runs f on the descriptor of a connection.
func control(t *testing.T, c *net.TCPConn, f func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	if inner != nil {
		t.Fatal(inner)
	}
}

// waitAcked returns when everything written to the connection has arrived.
func waitAcked(t *testing.T, c *net.TCPConn) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var left int
		control(t, c, func(fd int) (err error) {
			left, err = unix.IoctlGetInt(fd, unix.TIOCOUTQ)
			return err
		})
		if left == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d bytes did not arrive", left)
		}
	}
}

// A socket that has sent through fq leaves pacing to it for ever
// (sk_pacing_status: set in fq_enqueue, asked in tcp_needs_internal_pacing).
// This shows what that means when fq goes away under an established BBR
// connection, which `accel disable` has to say truly: the connection hands its
// whole window to the link at once. New connections pace themselves.
//
// There is more to see in the log. TCP dates every packet for the time at which
// fq is to let it go (tcp_update_skb_after_send). With nobody to hold it, it is
// gone before its date, and the round-trip time measured from that date is too
// short: the slower the path, the nearer to zero. A connection that falls for
// this keeps too small a window, and sends bursts even after fq is back. It
// does not happen every time, so that it is no part of the judgement.
//
// What counts is how much of a write after a pause has left the host when the
// system call returns, a round-trip time before any answer: a few packets and
// what the time since allows if somebody paces, everything if nobody does.
func TestPacingWhenFqGoes(t *testing.T) {
	needMachine(t)
	if testing.Short() {
		t.Skip("a measurement that takes a minute")
	}
	modprobe("tcp_bbr")
	// Slow enough for an emulated processor to keep up with.
	b := &bottleneck{rate: 8e6 / 8, delay: 50 * time.Millisecond, queue: 1000}
	setDefault(t, "fq")
	dial, accepted := connect(t, 1, b.forward)
	wantTree(t, tree(t, "tun0"), "fq", 1)
	open := func() *net.TCPConn {
		t.Helper()
		c := dial().(*net.TCPConn)
		peer := <-accepted
		go func() { _, _ = io.Copy(io.Discard, peer) }()
		control(t, c, func(fd int) error {
			return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr")
		})
		return c
	}
	h := handle(t)
	link, err := h.LinkByName("tun0")
	if err != nil {
		t.Fatal(err)
	}
	// held is how many packets the qdisc holds back.
	held := func() (n int) {
		qdiscs, err := h.QdiscList(link)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range qdiscs {
			n += int(q.Attrs().Statistics.Queue.Qlen)
		}
		return n
	}
	// look returns which part of a burst leaves at once: the middle one of
	// several bursts counts.
	look := func(what string, c *net.TCPConn) float64 {
		t.Helper()
		c.SetWriteDeadline(time.Now().Add(time.Minute))
		// First a transfer, so that BBR knows the path and has its window.
		const transfer = 2 << 20
		start := time.Now()
		if _, err := c.Write(make([]byte, transfer)); err != nil {
			t.Fatal(err)
		}
		waitAcked(t, c)
		goodput := transfer / time.Since(start).Seconds()

		block := make([]byte, 64<<10)
		var parts []float64
		var info *unix.TCPInfo
		for len(parts) < 5 {
			waitAcked(t, c)
			time.Sleep(200 * time.Millisecond)
			control(t, c, func(fd int) (err error) {
				if _, err = unix.Write(fd, block); err == nil {
					info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
				}
				return err
			})
			left := int(info.Unacked) - held()
			whole := min(len(block)/int(info.Snd_mss), int(info.Snd_cwnd))
			parts = append(parts, float64(left)/float64(whole))
		}
		slices.Sort(parts)
		part := parts[len(parts)/2]
		t.Logf("%-32s %3.0f %% of a burst leaves at once, window %d, shortest round trip %.1f ms, transfer at %.1f Mbit/s",
			what+":", part*100, info.Snd_cwnd, float64(info.Min_rtt)/1000, goodput*8/1e6)
		return part
	}
	old := open()
	underFq := look("fq", old)

	setDefault(t, "fq_codel")
	if err := RebuildTo("tun0", "fq_codel"); err != nil {
		t.Fatal(err)
	}
	orphan := look("the same connection, fq gone", old)
	fresh := look("a new connection without fq", open())

	setDefault(t, "fq")
	if err := RebuildTo("tun0", "fq"); err != nil {
		t.Fatal(err)
	}
	look("the first connection, fq back", old)

	const paced, unpaced = 0.6, 0.9
	if underFq > paced || fresh > paced {
		t.Errorf("not paced: %.0f %% of a burst left at once under fq, %.0f %% from a new connection without it", underFq*100, fresh*100)
	}
	if orphan < unpaced {
		t.Errorf("the connection whose fq is gone is paced: %.0f %% of a burst left at once; is what disable says still true?", orphan*100)
	}
}

// Watch keeps up while trees are being rebuilt, which is no news of a link.
func TestWatchIgnoresRebuilds(t *testing.T) {
	inNamespace(t)
	ifb(t, "ifb9", 4)
	events, err := Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := Rebuild("ifb9"); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case e := <-events:
		t.Errorf("unexpected event %+v", e)
	case <-time.After(2 * watchPause):
	}
}
