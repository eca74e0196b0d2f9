package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"accel/pkg/lab"
	"accel/pkg/sysctl"
)

// madeSamples is how many samples a made transfer has: few, for small golden
// files. The lab takes some hundred.
const madeSamples = 40

// made is a run as the lab would have recorded it: the model behind the numbers
// is rough (Mathis for cubic under loss, the rate less the loss for bbr), the
// spread is log-normal.
type made struct {
	arms    []string
	paths   []lab.Path
	sweep   string
	sizes   []int64
	rounds  int
	flows   int
	against string
	limit   time.Duration
}

var paperPath = lab.Path{
	Name: "bbr-paper", Source: "Cardwell et al., BBR: Congestion-Based Congestion Control, ACM Queue 14 (2016), figure 8",
	RateMbit: 100, RTT: 100 * time.Millisecond, LossPercent: 1, QueueBDP: 1, QueuePackets: 833,
}

func (m made) run() *lab.Run {
	r := rand.New(rand.NewPCG(7, 11))
	if m.flows == 0 {
		m.flows = 1
	}
	if m.limit == 0 {
		m.limit = time.Minute
	}
	run := &lab.Run{
		Schema: lab.Schema, Version: "0.2.0",
		Command: "accel compare bbr cubic --path bbr-paper --size 8M --rounds 10 --seed 7",
		Started: time.Date(2026, 11, 30, 19, 2, 3, 0, time.UTC), Ended: time.Date(2026, 11, 30, 19, 9, 41, 0, time.UTC),
		Kernel: "6.12.57+deb13-amd64", Distribution: "Debian GNU/Linux 13 (trixie)", Machine: "kvm, x86_64", CPUs: 2, MemoryBytes: 1 << 30, TimerLate: 1,
		Complete: true,
		Plan:     lab.Plan{Paths: m.paths, Sweep: m.sweep, Sizes: m.sizes, Flows: m.flows, Rounds: m.rounds, Against: m.against, Seed: 7, Limit: m.limit},
	}
	for i, name := range m.arms {
		a := lab.Arm{Name: name, Algorithm: "bbr", Qdisc: "fq"}
		if name == "cubic" || name == "default" {
			a.Algorithm, a.Qdisc = "cubic", "fq_codel"
		}
		if len(m.arms) > 2 && i > 0 {
			a.Source = name + ".conf"
			a.InitialCwnd = 10 * i
			a.Settings = []sysctl.KeyValue{{Key: "net/ipv4/tcp_notsent_lowat", Value: "131072"}, {Key: "net/ipv4/tcp_wmem", Value: "4096 65536 33554432"}}
			a.NotCompared = []string{"net.core.rmem_max"}
		}
		run.Plan.Arms = append(run.Plan.Arms, a)
	}
	for p := range m.paths {
		for _, size := range m.sizes {
			for round := 0; round < m.rounds; round++ {
				for a := range m.arms {
					for f := 0; f < m.flows; f++ {
						run.Transfers = append(run.Transfers, transfer(r, run, p, a, size, round, f))
					}
				}
			}
		}
	}
	return run
}

func transfer(r *rand.Rand, run *lab.Run, p, a int, size int64, round, flow int) lab.Transfer {
	path, arm := &run.Plan.Paths[p], &run.Plan.Arms[a]
	rate := path.RateMbit * 1e6
	if rate == 0 {
		rate = 2e9
	}
	loss := path.LossPercent / 100
	rtt := max(0.0002, path.RTT.Seconds())
	queue := 0.7
	if arm.Algorithm == "cubic" {
		if loss > 0 {
			rate = min(rate, 1448*8/rtt*1.22/math.Sqrt(loss))
		}
	} else {
		queue = 0.1
		rate *= (1 - loss) * 0.93
		if loss > 0.18 {
			rate *= 0.05
		}
		rate *= 1 - 0.03*float64(a%5)
	}
	spread := 0.03
	if loss > 0 {
		spread = 0.08
	}
	rate *= math.Exp(spread * r.NormFloat64())
	start := 4 * rtt
	seconds := start + float64(size)*8/rate
	t := lab.Transfer{
		Path: p, Arm: a, Size: size, Round: round, Flow: flow, Finished: true, Bytes: size, Seconds: seconds,
		RetransShare: loss * (1 + 0.1*r.Float64()), SRTT: rtt * 1000 * (1 + queue*0.8), MinRTT: rtt * 1000 * (1 + 0.01*r.Float64()), LoadedRTT: rtt * 1000 * (1 + queue),
		FirstByte: 2 * rtt, To90: start * 1.4, Algorithm: arm.Algorithm,
	}
	if limit := run.Plan.Limit.Seconds(); seconds > limit {
		t.Finished, t.Seconds, t.Bytes = false, limit, int64(rate*limit/8)
	}
	t.Goodput = float64(t.Bytes) * 8 / t.Seconds
	if run.Plan.Against != "" {
		share := 0.5 - 0.35*(1-queue)*r.Float64()
		t.Share = &share
	}
	if round == 0 && flow == 0 {
		n := madeSamples
		for i := range n {
			at := t.Seconds * float64(i+1) / float64(n)
			ramp := min(1, math.Exp2(at/rtt-9))
			saw := 1.0
			delay := rtt * (1 + queue*ramp)
			if arm.Algorithm == "cubic" {
				saw = 0.7 + 0.3*math.Mod(at, 1.7)/1.7
			} else {
				if math.Mod(at, 10) > 9.8 {
					saw = 0.08
				}
				delay = rtt * (1 + 0.08*math.Sin(at/rtt))
			}
			t.Samples = append(t.Samples, lab.Sample{
				At: at, Cwnd: max(4, int(rate*rtt/8/1448*ramp*saw*1.6)), RTT: delay*1000 + r.Float64(),
				DeliveryRate: rate * ramp * saw * (1 + 0.02*r.NormFloat64()), PacingRate: rate * ramp * 1.1, Bytes: int64(at / t.Seconds * float64(t.Bytes)),
			})
		}
	}
	return t
}

func small() *lab.Run {
	return made{arms: []string{"bbr", "cubic"}, paths: []lab.Path{paperPath}, sizes: []int64{8 << 20}, rounds: 10, against: "cubic"}.run()
}

func lossSweep() *lab.Run {
	var paths []lab.Path
	for _, l := range []float64{0, 0.1, 0.5, 1, 2, 5, 10} {
		p := paperPath
		p.LossPercent = l
		paths = append(paths, p)
	}
	run := made{arms: []string{"cubic", "bbr"}, paths: paths, sweep: "loss", sizes: []int64{8 << 20}, rounds: 7}.run()
	run.Command = "accel compare cubic bbr --rate 100 --rtt 100 --loss 0,0.1,0.5,1,2,5,10 --size 8M --rounds 7 --seed 7"
	return run
}

func elevenArms() *lab.Run {
	arms := []string{"default", "bbr-fq", "byjoey-crazy", "byjoey-smart", "hawshemi", "nodekit", "tune-seedbox", "tuned-throughput", "ylx-johnrosen", "ylx-old", "ylx-radical"}
	p := paperPath
	p.LossPercent = 0.02
	return made{arms: arms, paths: []lab.Path{p}, sizes: []int64{8 << 20}, rounds: 8}.run()
}

func matrix() *lab.Run {
	paths := []lab.Path{
		{Name: "loopback-1", RTT: 0, LossPercent: 1, Loopback: true},
		paperPath,
		{Name: "trans-pacific", RateMbit: 100, RTT: 150 * time.Millisecond, LossPercent: 1, QueueBDP: 1},
		{Name: "home-broadband", RateMbit: 20, RTT: 180 * time.Millisecond, LossPercent: 1, QueueBDP: 2},
		{Name: "mobile", RateMbit: 30, RTT: 80 * time.Millisecond, Jitter: 15 * time.Millisecond, LossPercent: 0.5, LossBurst: 4, ReorderPercent: 0.1, QueueBDP: 4},
	}
	return made{arms: []string{"bbr", "cubic"}, paths: paths, sizes: []int64{640 << 10, 8 << 20, 25 << 20}, rounds: 10}.run()
}

func oneArm() *lab.Run {
	return made{arms: []string{"bbr"}, paths: []lab.Path{paperPath}, sizes: []int64{8 << 20}, rounds: 8}.run()
}

func unfinished() *lab.Run {
	p := paperPath
	p.LossPercent = 3
	run := made{arms: []string{"bbr", "cubic"}, paths: []lab.Path{p}, sizes: []int64{25 << 20}, rounds: 10, limit: 12 * time.Second}.run()
	// Some of them did make it.
	for i := range run.Transfers {
		if t := &run.Transfers[i]; t.Arm == 1 && t.Round%4 == 1 {
			t.Finished, t.Bytes, t.Seconds = true, t.Size, 10.9+0.1*float64(t.Round)
			t.Goodput = float64(t.Bytes) * 8 / t.Seconds
		}
	}
	return run
}

func tooFew() *lab.Run {
	return made{arms: []string{"bbr", "cubic"}, paths: []lab.Path{paperPath}, sizes: []int64{8 << 20}, rounds: 3}.run()
}

func alike() *lab.Run {
	run := made{arms: []string{"bbr", "bbr-again"}, paths: []lab.Path{paperPath}, sizes: []int64{8 << 20}, rounds: 10}.run()
	for i := range run.Transfers { // the model makes the second arm slower
		t := &run.Transfers[i]
		t.Seconds = 1 + 0.05*math.Sin(float64(i*i))
		t.Goodput = float64(t.Bytes) * 8 / t.Seconds
	}
	return run
}

func empty() *lab.Run { return &lab.Run{Schema: lab.Schema} }

// hostile is a run in which every text tries to break out.
func hostile() *lab.Run {
	run := small()
	evil := "\x1b[31m</title></style></svg><script>alert(1)</script>\"'`{{.}}\u202e\n\x00"
	run.Command, run.Kernel, run.Distribution, run.Machine, run.Version = evil, evil, evil, evil, evil
	run.Plan.Against = evil
	for i := range run.Plan.Arms {
		a := &run.Plan.Arms[i]
		a.Name = fmt.Sprintf("%s%d", evil, i)
		a.Algorithm, a.Qdisc, a.Source = evil, evil, evil
		a.NotCompared = []string{evil}
		a.Settings = []sysctl.KeyValue{{Key: sysctl.Key(evil), Value: evil}}
	}
	run.Plan.Paths[0].Name, run.Plan.Paths[0].Source = evil, "javascript:alert(1) "+evil
	run.Transfers[0].Error = evil
	run.Transfers[1].Algorithm = evil
	return run
}

// runs are the made runs of the golden files.
var runs = map[string]func() *lab.Run{
	"small": small, "sweep": lossSweep, "eleven": elevenArms, "matrix": matrix, "one": oneArm,
	"unfinished": unfinished, "few": tooFew, "alike": alike, "empty": empty, "hostile": hostile,
}
