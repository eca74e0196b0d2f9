package lab

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"accel/pkg/text"
)

// Defaults of a plan.
const (
	DefaultSize   = 4 << 20
	DefaultRounds = 7
	DefaultLimit  = 60 * time.Second
	// DefaultSeed makes two runs of the same command the same plan.
	DefaultSeed = 1
)

// Most of what can be asked for: more is a mistake, and would run for months.
const (
	maxArms   = 24
	maxCells  = 64
	maxFlows  = 64
	maxRounds = 1000
	maxSize   = 1 << 40
)

// Complete checks a plan and computes what follows from its numbers. Errors
// satisfy errors.Is with ErrPath or ErrArm.
func (p Plan) Complete() (Plan, error) {
	badArm := func(message string) (Plan, error) { return Plan{}, &invalid{ErrArm, message} }
	bad := func(message string) (Plan, error) { return Plan{}, &invalid{ErrPath, message} }
	p.Rounds = cmp.Or(p.Rounds, DefaultRounds)
	p.Flows = cmp.Or(p.Flows, 1)
	p.Limit = cmp.Or(p.Limit, DefaultLimit)
	if len(p.Sizes) == 0 {
		p.Sizes = []int64{DefaultSize}
	}
	if len(p.Paths) == 0 {
		p.Paths = []Path{DefaultPath}
	}
	switch {
	case len(p.Arms) == 0:
		return badArm(text.T("nothing to compare is named"))
	case len(p.Arms) > maxArms:
		return badArm(text.T("%d arms are more than %d", len(p.Arms), maxArms))
	case len(p.Paths) > maxCells:
		return bad(text.T("%d paths are more than %d", len(p.Paths), maxCells))
	case p.Flows < 1 || p.Flows > maxFlows:
		return bad(text.T("%d flows are not between 1 and %d", p.Flows, maxFlows))
	case p.Rounds < 1 || p.Rounds > maxRounds:
		return bad(text.T("%d rounds are not between 1 and %d", p.Rounds, maxRounds))
	case p.Against != "" && !isKind(p.Against):
		return bad(text.T("%q is no name of an algorithm", p.Against))
	}
	names := map[string]bool{}
	for _, a := range p.Arms {
		if names[a.Name] {
			return badArm(text.T("two arms are called %s", a.Name))
		}
		names[a.Name] = true
	}
	for i, s := range p.Sizes {
		if slices.Contains(p.Sizes[:i], s) {
			return bad(text.T("the size of %d bytes is there twice", s))
		}
		if s < 1 || s > maxSize {
			return bad(text.T("a size of %d bytes is not between 1 and %d", s, int64(maxSize)))
		}
	}
	p.Paths = slices.Clone(p.Paths)
	for i := range p.Paths {
		var err error
		if p.Paths[i], err = p.Paths[i].Complete(); err != nil {
			return Plan{}, err
		}
		if p.Paths[i].Loopback && p.Against != "" {
			return bad(text.T("over loopback nothing competes: leave --against out, or name another path"))
		}
	}
	return p, nil
}

// job is one transfer to be made: all its flows at once.
type job struct {
	Path, Size, Arm, Round int // indexes, Round from 0
	Warmup                 bool
}

// jobs is the order of everything: path after path, size after size, and within
// them rounds in which the arms take turns there and back again (A B B A), in an
// order that the seed shuffles for each two rounds. So what drifts while it all
// runs, falls on all arms alike.
func (p Plan) jobs() []job {
	random := rand.New(rand.NewPCG(p.Seed, 0x61636365)) // "acce"
	var all []job
	for path := range p.Paths {
		for size := range p.Sizes {
			var order []int
			for round := range p.Rounds {
				if round%2 == 0 {
					order = random.Perm(len(p.Arms))
				} else {
					slices.Reverse(order)
				}
				for _, arm := range order {
					all = append(all, job{Path: path, Size: size, Arm: arm, Round: round})
				}
			}
		}
	}
	return all
}

// warmups are the unmeasured transfers that come before the first of a path: one
// per arm, of the smallest size.
func (p Plan) warmups(path int) []job {
	smallest := 0
	for i, s := range p.Sizes {
		if s < p.Sizes[smallest] {
			smallest = i
		}
	}
	var all []job
	for arm := range p.Arms {
		all = append(all, job{Path: path, Size: smallest, Arm: arm, Warmup: true})
	}
	return all
}

// TransferCount is how many measured transfers a plan has, each of all its
// flows.
func (p Plan) TransferCount() int {
	return len(p.Paths) * len(p.Sizes) * len(p.Arms) * p.Rounds
}

// Estimate is how long all transfers of a complete plan will take, warm-ups
// included.
func (p Plan) Estimate() time.Duration {
	var sum time.Duration
	for path := range p.Paths {
		for _, j := range p.warmups(path) {
			sum += p.estimate(j)
		}
	}
	for _, j := range p.jobs() {
		sum += p.estimate(j)
	}
	return sum
}

// overhead is what comes around each transfer: setting the arm and the path.
const overhead = 50 * time.Millisecond

// estimate is how long a transfer will take: the rounds of slow start and then
// the rate of the path, or what an algorithm that backs off at losses makes of
// it. For that RFC 8312 gives the mean window of CUBIC, in segments, in its
// equation 6 and, where it is larger, that of Reno: 1.054 (RTT/p)^0.75 with RTT
// in seconds, and 1.22 p^-0.5.
func (p Plan) estimate(j job) time.Duration {
	path, arm := p.Paths[j.Path], p.Arms[j.Arm]
	flows := float64(p.Flows)
	bits := float64(p.Sizes[j.Size]) * 8 * flows
	rate := path.RateMbit * 1e6 * FramePayload / frame
	if rate == 0 {
		rate = 2e9 // a guess for veth and lo
	}
	if p.Against != "" {
		rate /= 2
	}
	rtt := path.RTT.Seconds()
	loss := path.LossPercent / 100 / max(path.LossBurst, 1)
	if loss > 0 {
		rate *= 1 - path.LossPercent/100
		if suits(arm.Algorithm) == "" {
			segments := max(1.054*math.Pow(rtt/loss, 0.75), 1.22/math.Sqrt(loss))
			rate = min(rate, flows*segments*FramePayload*8/max(rtt, 200e-6))
		}
	}
	seconds := bits / rate
	windows := math.Log2(1 + float64(p.Sizes[j.Size])/(10*FramePayload))
	seconds += rtt * (2 + min(windows, math.Log2(1+rate*rtt/8/(10*FramePayload)/flows)))
	d := min(time.Duration(seconds*1e9), p.Limit)
	if p.Against != "" {
		d += time.Duration(rivalHead(path))
	}
	return d + overhead
}
