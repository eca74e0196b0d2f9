package lab

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The emulation of one direction: netem for delay, jitter, loss and reordering
// at the root, and a tbf for rate and queue as its child, so that a packet first
// travels and then waits at the bottleneck.
//
// The messages are written here since the netlink package knows neither bursts
// of loss nor the seed of netem's chances.

// Attributes of netem that the netlink package does not name
// (linux/pkt_sched.h).
const (
	netemSeed     = 14 // TCA_NETEM_PRNG_SEED; Linux 6.6, ignored before
	netemLossGE   = 2  // NETEM_LOSS_GE
	sizeofNetemGE = 16
)

// tick is the unit of time of the traffic control of every kernel since 2.6.31
// (PSCHED_SHIFT is 6).
const tick = 64 * time.Nanosecond

// delayLine is how many packets netem may hold. It counts those under way and
// those that wait behind it, so a small limit would be a queue of its own.
const delayLine = maxPackets * 2

// noReorder is a rate in bytes/s that holds nobody up. A netem with a rate sends
// no packet before an earlier one, so jitter does not reorder, which on real
// paths it rarely does.
const noReorder = 100_000_000_000 / 8

const (
	netemHandle = 1 << 16
	tbfHandle   = 2 << 16
)

// needsNetem says whether a path cannot be emulated without netem.
func (p Path) needsNetem() bool {
	return p.RTT > 0 || p.Jitter > 0 || p.LossPercent > 0 || p.ReorderPercent > 0
}

// shape emulates one direction of a path on a link, with all queues empty. seed
// is that of the chances.
func shape(link int, p Path, seed uint64, late time.Duration) error {
	if err := clearRoot(link); err != nil {
		return err
	}
	parent := uint32(netlink.HANDLE_ROOT)
	if p.needsNetem() {
		if err := addQdisc(link, parent, netemHandle, "netem", netemOptions(p, seed)); err != nil {
			return err
		}
		parent = netemHandle | 1
	}
	if p.RateMbit > 0 {
		return addQdisc(link, parent, tbfHandle, "tbf", tbfOptions(p, late))
	}
	return nil
}

// clearRoot deletes the root qdisc of a link, if somebody made one.
func clearRoot(link int) error {
	err := tcMessage(unix.RTM_DELQDISC, 0, link, netlink.HANDLE_ROOT, 0, "", nil)
	if err == unix.ENOENT || err == unix.EINVAL { // there is the kernel's own, or none
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing the root qdisc: %w", err)
	}
	return nil
}

// addQdisc adds a qdisc. Errors: *Missing, where the kernel has no such kind.
func addQdisc(link int, parent, handle uint32, kind string, options *nl.RtAttr) error {
	err := tcMessage(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link, parent, handle, kind, options)
	if err == unix.ENOENT {
		return &Missing{What: "qdisc", Name: kind, Module: "sch_" + kind}
	}
	if err != nil {
		return fmt.Errorf("adding the qdisc %s: %w", kind, err)
	}
	return nil
}

func tcMessage(message, flags int, link int, parent, handle uint32, kind string, options *nl.RtAttr) error {
	req := nl.NewNetlinkRequest(message, flags|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link), Handle: handle, Parent: parent})
	if kind != "" {
		req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind)))
	}
	if options != nil {
		req.AddData(options)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// netemOptions are those of one direction: half of the round trip.
func netemOptions(p Path, seed uint64) *nl.RtAttr {
	loss := uint32(0)
	if p.LossBurst <= 1 {
		loss = probability(p.LossPercent)
	}
	gap := uint32(0)
	if p.ReorderPercent > 0 {
		gap = 1
	}
	qopt := nl.TcNetemQopt{
		Latency: uint32(p.RTT / 2 / tick),
		Jitter:  uint32(p.Jitter / tick),
		Limit:   delayLine,
		Loss:    loss,
		Gap:     gap,
	}
	options := nl.NewRtAttr(nl.TCA_OPTIONS, qopt.Serialize())
	if p.ReorderPercent > 0 {
		options.AddRtAttr(nl.TCA_NETEM_REORDER, (&nl.TcNetemReorder{Probability: probability(p.ReorderPercent)}).Serialize())
	}
	if p.LossPercent > 0 && p.LossBurst > 1 {
		toBad, toGood := gilbert(p.LossPercent/100, p.LossBurst)
		ge := make([]byte, 0, sizeofNetemGE)
		// In the bad state nothing gets through (h = 0), in the good one nothing
		// is lost (1 - k = 0).
		for _, v := range []uint32{probability(toBad * 100), probability(toGood * 100), 0, 0} {
			ge = binary.NativeEndian.AppendUint32(ge, v)
		}
		options.AddRtAttr(nl.TCA_NETEM_LOSS|unix.NLA_F_NESTED, nil).AddRtAttr(netemLossGE, ge)
	}
	if p.Jitter > 0 {
		options.AddRtAttr(nl.TCA_NETEM_RATE64, nl.Uint64Attr(noReorder))
		options.AddRtAttr(nl.TCA_NETEM_RATE, (&nl.TcNetemRate{Rate: math.MaxUint32}).Serialize())
	}
	options.AddRtAttr(netemSeed, nl.Uint64Attr(seed))
	return options
}

// gilbert gives the chances per packet that bursts begin and end, so that a
// share of all packets is lost in bursts of that mean length.
func gilbert(share, burst float64) (toBad, toGood float64) {
	toGood = 1 / burst
	return toGood * share / (1 - share), toGood
}

// probability is a percentage as netem takes it.
func probability(percent float64) uint32 {
	return uint32(math.Round(percent / 100 * math.MaxUint32))
}

func tbfOptions(p Path, late time.Duration) *nl.RtAttr {
	rate := p.RateMbit * 1e6 / 8 // bytes/s
	burst := tbfBurst(rate, late)
	qopt := nl.TcTbfQopt{
		Limit:  uint32(min(float64(p.QueuePackets)*frame, math.MaxUint32)),
		Buffer: uint32(math.Ceil(float64(burst) / rate * 1e9 / float64(tick))),
	}
	qopt.Rate.Rate = uint32(min(rate, math.MaxUint32))
	// So that the kernel computes with packets as they are, not with ATM cells.
	qopt.Rate.Linklayer = nl.LINKLAYER_ETHERNET
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_TBF_PARMS, qopt.Serialize())
	options.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(burst))
	if rate >= math.MaxUint32 {
		options.AddRtAttr(nl.TCA_TBF_RATE64, nl.Uint64Attr(uint64(rate)))
	}
	return options
}

// tbfBurst is how many bytes a tbf may send at once. One that wakes up late has
// lost what it could have sent meanwhile, except for this allowance; a large one
// on the other hand is a faster path than was asked for. So it is what passes in
// the time by which the machine's timers are late, and two packets at least.
func tbfBurst(rate float64, late time.Duration) uint32 {
	return uint32(max(2*frame, rate*late.Seconds()))
}

// Limits of what is taken for the lateness of timers.
const (
	minLate = time.Millisecond
	maxLate = 10 * time.Millisecond
)

// lateness measures by how much timers of this machine are late: nine in ten are
// not later than that. It takes a tenth of a second, or longer on a machine that
// is late.
func lateness() time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const nap = time.Millisecond
	var late []time.Duration
	for range 50 {
		began := now()
		ts := unix.NsecToTimespec(int64(nap))
		if unix.Nanosleep(&ts, nil) != nil {
			continue // a signal of Go's scheduler
		}
		late = append(late, time.Duration(now()-began)-nap)
	}
	if len(late) == 0 {
		return minLate
	}
	slices.Sort(late)
	return min(max(late[len(late)*9/10], minLate), maxLate)
}
