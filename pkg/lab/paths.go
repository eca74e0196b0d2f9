package lab

import (
	"errors"
	"math"
	"time"

	"accel/pkg/text"
)

// FramePayload and frame are the sizes in bytes of a full packet: what TCP gets
// of it, and what the emulated link carries of it (an Ethernet frame without
// preamble and checksum, for an MTU of 1500).
const (
	FramePayload = 1448
	frame        = 1514
)

// DefaultPath is the path where none is asked for: long, fast and a little
// lossy, so that the algorithms differ, and short enough in time to wait for.
var DefaultPath = Path{RateMbit: 100, RTT: 100 * time.Millisecond, LossPercent: 0.1, QueueBDP: 1}

// Paths returns the named paths, each with the source of its numbers.
func Paths() []Path {
	const ms = time.Millisecond
	return []Path{
		{Name: "loopback", Loopback: true,
			Source: "the first row of the test that forums copy: netem on lo, one download"},
		{Name: "loopback-1", Loopback: true, LossPercent: 1,
			Source: "the second row: published as 5.5 s with cubic, 0.7 s with bbr for 640 MB"},
		{Name: "loopback-10", Loopback: true, LossPercent: 10,
			Source: "the third row: published as 50 s with cubic, 7.5 s with bbr for 640 MB"},
		{Name: "bbr-paper", RateMbit: 100, RTT: 100 * ms, QueueBDP: 1,
			Source: "Cardwell et al., BBR: Congestion-Based Congestion Control, ACM Queue 14(5), 2016: figure 8, 100 Mbit/s and 100 ms; sweep --loss to see its curve"},
		{Name: "pacific", RateMbit: 100, RTT: 150 * ms, LossPercent: 1, QueueBDP: 1,
			Source: "across the Pacific: Tokyo to the US west coast is 100 to 110 ms, Singapore 170 to 180 ms in the tables that cloud providers publish; 1 % loss, as when a peering is congested, assumed"},
		{Name: "home", RateMbit: 20, RTT: 180 * ms, LossPercent: 1, QueueBDP: 2,
			Source: "a home line far from the server; queues of access links hold more than one bandwidth-delay product (Gettys and Nichols, Bufferbloat, ACM Queue 9(11), 2011); rate and loss assumed"},
		{Name: "mobile", RateMbit: 30, RTT: 80 * ms, Jitter: 20 * ms, LossPercent: 0.5, LossBurst: 4, QueueBDP: 4,
			Source: "a phone on LTE: tens of Mbit/s and 50 to 100 ms with jitter and deep queues (Huang et al., An In-depth Study of LTE, SIGCOMM 2013); losses in bursts by handovers, assumed"},
		{Name: "satellite", RateMbit: 20, RTT: 600 * ms, LossPercent: 0.5, QueueBDP: 1,
			Source: "a geostationary satellite: 558 ms at least (RFC 2488, section 2); rate and loss assumed"},
		{Name: "lan", RateMbit: 1000, RTT: 500 * time.Microsecond, QueuePackets: 256,
			Source: "a gigabit Ethernet switch, 0.5 ms, with a queue of 256 packets; assumed"},
	}
}

// PathNamed finds a named path; false if there is none of that name.
func PathNamed(name string) (Path, bool) {
	for _, p := range Paths() {
		if p.Name == name {
			return p, true
		}
	}
	return Path{}, false
}

// ErrPath is matched by every error about a path that cannot be emulated.
var ErrPath = errors.New("the path cannot be emulated")

// invalid is an error that says in the user's words what is wrong, and matches
// a sentinel.
type invalid struct {
	kind    error
	message string
}

func (e *invalid) Error() string { return e.message }
func (e *invalid) Unwrap() error { return e.kind }

// Limits of a path. netem counts a delay in units of 64 ns in 32 bits, which is
// more than a minute.
const (
	maxRTT      = time.Minute
	maxRateMbit = 100_000
	minRateMbit = 0.01
	maxPackets  = 1_000_000
	minQueue    = 4 // packets: less and not even a handshake with its first window fits
)

// What the receiver may buffer, in bytes: a full packet or two, and more than any
// path needs.
const (
	minClientBuffer = 4 << 10
	maxClientBuffer = 1 << 30
)

// Complete checks a path and computes QueuePackets from QueueBDP. Its error
// satisfies errors.Is with ErrPath.
func (p Path) Complete() (Path, error) {
	bad := func(message string) (Path, error) { return Path{}, &invalid{ErrPath, message} }
	for _, f := range []float64{p.RateMbit, p.LossPercent, p.LossBurst, p.ReorderPercent, p.QueueBDP} {
		if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return bad(text.T("%v is no number that a path can have", f))
		}
	}
	switch {
	case p.RateMbit > maxRateMbit || p.RateMbit != 0 && p.RateMbit < minRateMbit:
		return bad(text.T("the rate %v Mbit/s is not between %v and %v", p.RateMbit, minRateMbit, maxRateMbit))
	case p.RTT < 0 || p.RTT > maxRTT:
		return bad(text.T("the round trip %v is not between 0 and %v", p.RTT, maxRTT))
	case p.Jitter < 0 || p.Jitter > p.RTT/2:
		return bad(text.T("the jitter %v is more than the delay of one direction, %v", p.Jitter, p.RTT/2))
	case p.LossPercent > 90:
		return bad(text.T("a loss of %v %% is more than 90 %%", p.LossPercent))
	case p.LossBurst > 1 && p.LossPercent > 0 && p.LossPercent/100 >= p.LossBurst/(p.LossBurst+1):
		return bad(text.T("a loss of %v %% cannot come in bursts of %v: more than one packet has to get through between two", p.LossPercent, p.LossBurst))
	case p.LossBurst > 1000:
		return bad(text.T("bursts of %v packets are longer than 1000", p.LossBurst))
	case p.ReorderPercent > 100:
		return bad(text.T("%v %% of the packets cannot overtake", p.ReorderPercent))
	case p.ReorderPercent > 0 && p.RTT == 0:
		return bad(text.T("without a delay no packet can overtake another: reordering needs a round trip"))
	case p.QueuePackets < 0 || p.QueuePackets > maxPackets:
		return bad(text.T("a queue of %d packets is not between %d and %d", p.QueuePackets, minQueue, maxPackets))
	}
	if b := p.ClientBuffer; b != 0 && (b < minClientBuffer || b > maxClientBuffer) {
		return bad(text.T("a buffer of %d bytes is not between %d and %d", b, minClientBuffer, maxClientBuffer))
	}
	if p.Loopback {
		if p.RateMbit != 0 || p.QueueBDP != 0 || p.QueuePackets != 0 || p.ReorderPercent != 0 {
			return bad(text.T("over loopback there is delay and loss only"))
		}
		return p, nil
	}
	switch {
	case p.RateMbit == 0:
		p.QueueBDP, p.QueuePackets = 0, 0
	case p.QueueBDP > 0:
		packets := math.Ceil(p.QueueBDP * p.RateMbit * 1e6 / 8 * p.RTT.Seconds() / frame)
		if packets > maxPackets {
			return bad(text.T("a queue of %v bandwidth-delay products is %.0f packets, more than %d", p.QueueBDP, packets, maxPackets))
		}
		p.QueuePackets = max(int(packets), minQueue)
	case p.QueuePackets == 0:
		return bad(text.T("a queue of no packets lets nothing through"))
	default:
		p.QueuePackets = max(p.QueuePackets, minQueue)
	}
	return p, nil
}
