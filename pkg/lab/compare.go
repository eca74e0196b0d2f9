package lab

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"accel/pkg/memory"
)

// Options of Compare.
type Options struct {
	// State is where finished transfers are kept and which are there already.
	// nil: nothing is kept.
	State *State
	// Lost is called once if the state can no longer be written (a full disk),
	// after which the comparison goes on without it. nil: that is an error.
	Lost func(error)
	// Load loads a kernel module that is missing (kernel.LoadModule). nil:
	// nothing is loaded.
	Load func(ctx context.Context, module string) error
	// Progress is called before each transfer and at the end.
	Progress func(Progress)
}

// Progress is how far a comparison is.
type Progress struct {
	Done, Total int // measured transfers
	Path        Path
	Arm         string
	Size        int64
	Warmup      bool
	Remaining   time.Duration // estimated from what was measured so far
}

// Compare makes all transfers of a plan, which it completes, and returns the
// run with everything that was measured. What it does not know, the facts about
// the host and the command, the caller enters. With an error it returns what
// there is so far, not complete.
//
// Errors: ErrPath, ErrArm, ErrPermission, ErrNoNamespaces, *Missing, the
// context's.
func Compare(ctx context.Context, plan Plan, o Options) (*Run, error) {
	plan, err := plan.Complete()
	if err != nil {
		return nil, err
	}
	run := &Run{Schema: Schema, Started: time.Now().UTC().Truncate(time.Second), Plan: plan}
	run.Plan.Arms = slices.Clone(plan.Arms)
	c := &comparison{plan: plan, o: o, run: run, done: map[job]bool{}, pace: newPace(plan)}
	defer c.close()
	if o.State != nil {
		for _, flows := range o.State.done {
			run.Transfers = append(run.Transfers, flows...)
			j := plan.jobOf(flows[0])
			c.done[j] = true
			c.pace.add(j, seconds(flows))
		}
	}
	memory.ReturnProgram() // of the caller's start, too
	err = c.all(ctx)
	run.Ended = time.Now().UTC().Truncate(time.Second)
	run.Complete = err == nil
	return run, err
}

// comparison is one that runs.
type comparison struct {
	plan  Plan
	o     Options
	run   *Run
	done  map[job]bool
	pace  *pace
	rig   *rig
	noted map[int]bool // arms whose NotCompared is complete
}

func (c *comparison) close() {
	if c.rig != nil {
		c.rig.close()
		c.rig = nil
	}
}

func (c *comparison) all(ctx context.Context) error {
	path := -1
	for _, j := range c.plan.jobs() {
		if c.done[j] {
			continue
		}
		if j.Path != path {
			path = j.Path
			if err := c.prepare(ctx, path); err != nil {
				return err
			}
			for _, w := range c.plan.warmups(path) {
				if _, err := c.measure(ctx, w); err != nil {
					return err
				}
			}
		}
		flows, err := c.measure(ctx, j)
		if err != nil {
			return err
		}
		c.run.Transfers = append(c.run.Transfers, flows...)
		c.done[j] = true
		c.pace.add(j, seconds(flows))
		if err := c.keep(flows); err != nil {
			return err
		}
	}
	if path == -1 { // all was done before, but what cannot be compared is said again
		if err := c.prepare(ctx, len(c.plan.Paths)-1); err != nil {
			return err
		}
	}
	c.tell(Progress{Done: len(c.done), Total: c.plan.TransferCount()})
	return nil
}

// prepare has the namespaces for a path, and tries out what is needed before
// anything is measured.
func (c *comparison) prepare(ctx context.Context, path int) error {
	p := c.plan.Paths[path]
	if c.rig != nil && (c.rig.router == nil) != p.Loopback {
		c.close()
	}
	if c.rig == nil {
		var err error
		if c.rig, err = newRig(ctx, p.Loopback, c.plan.Against != "", c.o.Load); err != nil {
			return err
		}
		c.run.TimerLate = max(c.run.TimerLate, milliseconds(c.rig.late))
	}
	if err := c.rig.shape(ctx, p, 0); err != nil {
		return err
	}
	if c.noted != nil {
		return nil
	}
	c.noted = map[int]bool{}
	for n, arm := range c.plan.Arms {
		not, err := c.rig.setArm(ctx, n, arm)
		if err != nil {
			return err
		}
		c.run.Plan.Arms[n].NotCompared = append(slices.Clone(arm.NotCompared), not...)
		if err := c.tryAlgorithm(ctx, c.rig.sender, arm.Algorithm); err != nil {
			return err
		}
	}
	if c.plan.Against != "" {
		return c.tryAlgorithm(ctx, c.rig.rival, c.plan.Against)
	}
	return nil
}

func (c *comparison) tryAlgorithm(ctx context.Context, at *child, algorithm string) error {
	var l listenReply
	if err := c.rig.call(ctx, at, "listen", listenArgs{Algorithm: algorithm, Limit: time.Second}, &l); err != nil {
		return err
	}
	return c.rig.call(ctx, at, "account", l.Server, nil)
}

func (c *comparison) keep(flows []Transfer) error {
	s := c.o.State
	if s == nil {
		return nil
	}
	err := s.append(flows)
	if err == nil {
		s.done = append(s.done, flows)
		return nil
	}
	if c.o.Lost == nil {
		return err
	}
	c.o.State = nil
	c.o.Lost(err)
	return nil
}

func (c *comparison) tell(p Progress) {
	if c.o.Progress != nil {
		c.o.Progress(p)
	}
}

// measure makes one transfer.
func (c *comparison) measure(ctx context.Context, j job) ([]Transfer, error) {
	path, size := c.plan.Paths[j.Path], c.plan.Sizes[j.Size]
	arm := c.plan.Arms[j.Arm]
	c.tell(Progress{
		Done: len(c.done), Total: c.plan.TransferCount(), Path: path, Arm: arm.Name, Size: size, Warmup: j.Warmup,
		Remaining: c.pace.remaining(c.done),
	})
	r := c.rig
	if _, err := r.setArm(ctx, j.Arm, arm); err != nil {
		return nil, err
	}
	if err := r.shape(ctx, path, c.plan.chances(j)); err != nil {
		return nil, err
	}
	for _, end := range []*child{r.sender, r.receiver} {
		if err := r.call(ctx, end, "forget", nil, nil); err != nil {
			return nil, err
		}
	}
	fetch := fetchArgs{Flows: c.plan.Flows, Size: size, Limit: c.plan.Limit}
	var against *listenReply
	if r.rival != nil {
		fetch.Head = time.Duration(rivalHead(path))
		against = new(listenReply)
		err := r.call(ctx, r.rival, "listen", listenArgs{
			Algorithm: c.plan.Against, Flows: 1, Size: -1, Limit: fetch.Head + 2*c.plan.Limit,
		}, against)
		if err != nil {
			return nil, err
		}
		fetch.Rival = r.serverAddress(rivalEnd, against.Port)
	}
	var l listenReply
	err := r.call(ctx, r.sender, "listen", listenArgs{
		Algorithm: arm.Algorithm, Flows: c.plan.Flows, Size: size, Limit: fetch.Head + 2*c.plan.Limit,
		Samples: j.Round == 0 && !j.Warmup,
	}, &l)
	if err != nil {
		return nil, err
	}
	fetch.Address = r.serverAddress(senderEnd, l.Port)
	var got fetchReply
	fetchErr := r.call(ctx, r.receiver, "fetch", fetch, &got)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var accounts []account
	if err := r.call(ctx, r.sender, "account", l.Server, &accounts); err != nil {
		return nil, err
	}
	if against != nil {
		if err := r.call(ctx, r.rival, "account", against.Server, nil); err != nil {
			return nil, err
		}
	}
	if fetchErr != nil && r.receiver.gone() {
		return nil, fetchErr
	}
	return c.plan.transfers(j, got, accounts, fetchErr, against != nil), nil
}

// transfers puts together what both ends say.
func (p Plan) transfers(j job, got fetchReply, accounts []account, fetchErr error, rival bool) []Transfer {
	var all []Transfer
	var bytes int64
	for n := range p.Flows {
		t := Transfer{Path: j.Path, Arm: j.Arm, Size: p.Sizes[j.Size], Round: j.Round, Flow: n, Warmup: j.Warmup}
		if fetchErr != nil {
			t.Error = fetchErr.Error()
			all = append(all, t)
			continue
		}
		f := got.Flows[n]
		t.Finished, t.Bytes, t.Error = f.Finished, f.Bytes, f.Err
		t.Seconds = float64(f.Last) / 1e9
		t.FirstByte = float64(f.First) / 1e9
		if t.Seconds > 0 {
			t.Goodput = float64(f.Bytes) * 8 / t.Seconds
		}
		bytes += f.Bytes
		if n < len(accounts) {
			a := accounts[n]
			t.Algorithm, t.RetransShare = a.Algorithm, a.RetransShare
			t.SRTT, t.MinRTT, t.LoadedRTT = milliseconds(a.SRTT), milliseconds(a.MinRTT), milliseconds(a.LoadedRTT)
			t.To90 = to90(f.Arrivals, a.MinRTT).Seconds()
			for _, s := range a.Samples {
				s.At -= float64(f.Began) / 1e9
				t.Samples = append(t.Samples, s)
			}
			if a.Err != "" {
				t.Error = a.Err
			}
		}
		all = append(all, t)
	}
	if total := bytes + got.RivalBytes; rival && fetchErr == nil && total > 0 {
		for i := range all {
			share := float64(got.RivalBytes) / float64(total)
			all[i].Share = &share
		}
	}
	return all
}

func (c *child) gone() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// chances is the seed of the emulated chances of one transfer: its own, so that
// the transfers are independent of each other.
func (p Plan) chances(j job) uint64 {
	h := fnv.New64a()
	var b []byte
	for _, n := range []uint64{p.Seed, uint64(j.Path), uint64(j.Size), uint64(j.Arm), uint64(j.Round)} {
		for range 8 {
			b = append(b, byte(n))
			n >>= 8
		}
	}
	if j.Warmup {
		b = append(b, 1)
	}
	h.Write(b)
	return h.Sum64()
}

// jobOf is the job whose measured transfer t is.
func (p Plan) jobOf(t Transfer) job {
	return job{Path: t.Path, Size: slices.Index(p.Sizes, t.Size), Arm: t.Arm, Round: t.Round}
}

// seconds is how long a transfer of several flows took.
func seconds(flows []Transfer) time.Duration {
	longest := 0.0
	for _, t := range flows {
		longest = max(longest, t.Seconds)
	}
	return time.Duration(longest * 1e9)
}

// pace estimates what remains: from the mean of what was measured of the same
// arm, path and size, or else from the estimates, corrected by how wrong they
// were so far.
type pace struct {
	plan                Plan
	all                 []job
	sum                 map[job]time.Duration // by the job with round 0
	n                   map[job]int
	estimated, measured time.Duration
}

func newPace(p Plan) *pace {
	return &pace{plan: p, all: p.jobs(), sum: map[job]time.Duration{}, n: map[job]int{}}
}

func (p *pace) add(j job, d time.Duration) {
	p.estimated += p.plan.estimate(j)
	p.measured += d + overhead
	j.Round = 0
	p.sum[j] += d + overhead
	p.n[j]++
}

func (p *pace) remaining(done map[job]bool) time.Duration {
	correction := 1.0
	if p.estimated > 0 {
		correction = float64(p.measured) / float64(p.estimated)
	}
	var left time.Duration
	for _, j := range p.all {
		if done[j] {
			continue
		}
		like := j
		like.Round = 0
		if n := p.n[like]; n > 0 {
			left += p.sum[like] / time.Duration(n)
		} else {
			left += time.Duration(float64(p.plan.estimate(j)) * correction)
		}
	}
	return left
}

// Interrupted reports whether an error of Compare means that the caller's
// context ended.
func Interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
