package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"accel/pkg/qdisc"
	"accel/pkg/tuning"
)

// world is a host as the agent sees it.
type world struct {
	t      *testing.T
	mu     sync.Mutex        // of live, against a fighter
	wanted map[string]string // setting -> value
	live   map[string]string
	trees  []qdisc.Tree // of links; healing gives each kernel-made one fq
	stamp  string       // "": nothing is enabled
	links  chan qdisc.LinkEvent
	routes chan struct{} // default routes changed

	healErr, driftErr, watchErr error
	refuse                      string // a setting that cannot be set
	reason                      string // what the check says
	profile                     string
	routesErr                   error
	fast                        bool // somebody overwrites the algorithm before the check

	// What the agent did.
	heals    []tuning.HealOptions
	compared int
	assessed int
	watched  int
	told     []string // sd_notify
	report   *tuning.AgentReport
	log      bytes.Buffer
	slept    time.Duration
	started  time.Time
}

const algorithm, defaultQdisc = "net.ipv4.tcp_congestion_control", "net.core.default_qdisc"

func newWorld(t *testing.T) *world {
	return &world{
		t:      t,
		wanted: map[string]string{algorithm: "bbr", defaultQdisc: "fq"},
		live:   map[string]string{algorithm: "cubic", defaultQdisc: "fq"},
		stamp:  "1",
		links:  make(chan qdisc.LinkEvent),
		routes: make(chan struct{}),
		reason: "bbr is in force",
	}
}

func (w *world) drifts(context.Context) ([]tuning.Drift, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compared++
	return w.drift(), w.driftErr
}

func (w *world) drift() []tuning.Drift {
	var out []tuning.Drift
	for _, s := range []string{defaultQdisc, algorithm} {
		if w.live[s] != w.wanted[s] {
			out = append(out, tuning.Drift{Setting: s, Wanted: w.wanted[s], Live: w.live[s]})
		}
	}
	return out
}

func (w *world) heal(_ context.Context, o tuning.HealOptions) (*tuning.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heals = append(w.heals, o)
	if w.healErr != nil {
		return nil, w.healErr
	}
	res := &tuning.Result{Command: "heal", Enabled: &tuning.Enabled{Algorithm: "bbr", Qdisc: "fq", Profile: w.profile}}
	for _, d := range w.drift() {
		if slices.Contains(o.Except, d.Setting) {
			continue
		}
		found := d.Live
		st := tuning.Step{Setting: d.Setting, Current: &found, Wanted: d.Wanted, Action: tuning.Set}
		if d.Setting == w.refuse {
			st.Action, st.Reason = tuning.Skip, "the kernel refuses it"
		} else {
			st.Changed, res.Changed = true, true
			w.live[d.Setting] = d.Wanted
		}
		res.Steps = append(res.Steps, st)
	}
	for i := range w.trees {
		if tr := &w.trees[i]; tr.KernelMade() && tr.Kind() != "fq" {
			found := tr.Kind()
			tr.Root.Kind = "fq"
			res.Steps = append(res.Steps, tuning.Step{Setting: "qdisc " + tr.Link, Current: &found, Wanted: "fq", Action: tuning.Set, Changed: true})
			res.Changed = true
		}
	}
	if w.fast {
		w.live[algorithm] = "cubic"
	}
	return res, nil
}

func (w *world) assess(context.Context) (*tuning.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.assessed++
	if drift := w.drift(); len(drift) > 0 {
		return &tuning.Status{Verdict: tuning.Drifted, Reason: drift[0].Setting + " is " + drift[0].Live}, nil
	}
	if !strings.HasPrefix(w.reason, "bbr is in force") {
		return &tuning.Status{Verdict: tuning.NotInForce, Reason: w.reason}, nil
	}
	return &tuning.Status{Verdict: tuning.Good, Reason: w.reason}, nil
}

// start runs an agent on the world. The returned function tells it to stop and
// waits for it.
func (w *world) start() (stop func()) {
	a := newAgent(&tuning.Host{Qdiscs: noQdiscs{}}, logrus.New())
	a.log = logrus.New()
	a.log.SetOutput(&w.log)
	a.log.SetFormatter(journalFormatter{})
	a.heal, a.drifts, a.assess = w.heal, w.drifts, w.assess
	a.trees = func() ([]qdisc.Tree, error) { return w.trees, nil }
	a.stamp = func() (string, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.stamp == "" {
			return "", fs.ErrNotExist
		}
		return w.stamp, nil
	}
	a.report = func(r *tuning.AgentReport) error { w.report = r; return nil }
	a.watch = func(context.Context) (<-chan qdisc.LinkEvent, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.watched++
		return w.links, w.watchErr
	}
	a.watchRoutes = func(context.Context) (<-chan struct{}, error) { return w.routes, w.routesErr }
	a.notify = func(s string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, s)
	}
	w.started = time.Now()
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error)
	go func() { ended <- a.run(ctx) }()
	synctest.Wait()
	return func() {
		w.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("run: %v", err)
		}
	}
}

type noQdiscs struct{ tuning.Qdiscs }

// lines gives the journal, without priorities if they are not asked for.
func (w *world) lines() []string {
	return strings.Split(strings.TrimSuffix(w.log.String(), "\n"), "\n")
}

// count gives the number of journal lines that contain s.
func (w *world) count(s string) int {
	n := 0
	for _, l := range w.lines() {
		if strings.Contains(l, s) {
			n++
		}
	}
	return n
}

func (w *world) lastStatus() string {
	for _, s := range slices.Backward(w.told) {
		if status, ok := strings.CutPrefix(s, "STATUS="); ok {
			return status
		}
	}
	return ""
}

// sleep lets time pass for the agent and returns when it is idle again.
func (w *world) sleep(d time.Duration) {
	w.mu.Lock() // what the test did is before what the agent does from now on
	w.slept += d
	w.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
}

// TestBoot: the settings are re-asserted, checked and told before READY.
func TestBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		if w.live[algorithm] != "bbr" {
			t.Error("not healed")
		}
		if diff := cmp.Diff([]tuning.HealOptions{{RetryRefused: true}}, w.heals); diff != "" {
			t.Errorf("healings (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff([]string{"STATUS=bbr is in force", "READY=1"}, w.told); diff != "" {
			t.Errorf("told (-want +got)\n%s", diff)
		}
		want := []string{"<6>healed net.ipv4.tcp_congestion_control: found cubic, now bbr", "<6>bbr is in force"}
		if diff := cmp.Diff(want, w.lines()); diff != "" {
			t.Errorf("journal (-want +got)\n%s", diff)
		}
		report := &tuning.AgentReport{Schema: "accel.agent/1", Started: w.started.UTC().Format(time.RFC3339), GaveUp: []tuning.GaveUp{}, Healed: 1,
			Last: "healed net.ipv4.tcp_congestion_control: found cubic, now bbr"}
		if diff := cmp.Diff(report, w.report); diff != "" {
			t.Errorf("report (-want +got)\n%s", diff)
		}

		w.live[algorithm] = "cubic" // stopping undoes nothing, and does nothing
		stop()
		if len(w.heals) != 1 || w.told[len(w.told)-1] != "STOPPING=1" || w.report != nil {
			t.Errorf("at the end: %d healings, told %q, report %v", len(w.heals), w.told, w.report)
		}
	})
}

// TestIdle: an idle agent wakes up once in ten seconds, says nothing, and
// keeps the watchdog content with those wake-ups.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		journal := w.log.Len()
		w.told, w.compared, w.assessed = nil, 0, 0
		w.sleep(24*time.Hour + time.Second)
		if w.compared != 8640 {
			t.Errorf("compared %d times in a day, want every ten seconds", w.compared)
		}
		if len(w.told) != 8640 || slices.ContainsFunc(w.told, func(s string) bool { return s != "WATCHDOG=1" }) {
			t.Errorf("told systemd %d things, want a keep-alive every ten seconds", len(w.told))
		}
		if w.assessed != 24 || len(w.heals) != 1 || w.log.Len() != journal {
			t.Errorf("%d checks, %d healings, journal %s", w.assessed, len(w.heals), w.log.String()[journal:])
		}
		stop()
	})
}

// TestDrift: healed within 30 s, logged once.
func TestDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.live[algorithm] = "bbr"
		stop := w.start()
		w.sleep(3 * time.Second)
		w.live[algorithm] = "reno"
		w.sleep(10 * time.Second)
		if w.live[algorithm] != "bbr" {
			t.Error("not healed within ten seconds")
		}
		w.sleep(time.Hour)
		if w.count("found reno, now bbr") != 1 || len(w.lines()) != 2 {
			t.Errorf("journal %q", w.lines())
		}
		if w.heals[1].RetryRefused {
			t.Error("asks for what the host refused again at every drift")
		}
		stop()
	})
}

// TestRoutes: a default route that changes is looked at within seconds, where
// the profile has to do with routes, and not more often than links are.
func TestRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.profile = "boost"
		stop := w.start()
		w.sleep(11 * time.Second)
		heals := len(w.heals)
		w.routes <- struct{}{}
		w.sleep(linkPause + time.Millisecond)
		if len(w.heals) != heals+1 {
			t.Errorf("%d healings %v after a route changed", len(w.heals)-heals, linkPause)
		}
		heals = len(w.heals)
		for range 100 { // somebody's routing daemon
			w.routes <- struct{}{}
			w.sleep(100 * time.Millisecond)
		}
		if n := len(w.heals) - heals; n < 1 || n > 3 {
			t.Errorf("%d healings for 100 changes in ten seconds", n)
		}
		journal := w.log.Len()
		close(w.routes)
		w.sleep(time.Minute)
		if w.log.Len() != journal {
			t.Errorf("the end of the watch is told: %s", w.log.String()[journal:])
		}
		stop()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.profile = "basic"
		stop := w.start()
		w.sleep(11 * time.Second)
		heals := len(w.heals)
		w.routes <- struct{}{}
		w.sleep(time.Hour)
		if len(w.heals) != heals {
			t.Error("the profile basic heals because of a route")
		}
		stop()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.routes, w.routesErr = nil, errors.New("no netlink")
		stop := w.start()
		w.sleep(time.Hour)
		if w.count("no netlink") != 1 {
			t.Errorf("journal %q", w.lines())
		}
		stop()
	})
}

// TestFight: something sets the algorithm every second.
func TestFight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		fight, done := context.WithCancel(t.Context())
		go func() {
			for fight.Err() == nil {
				w.mu.Lock()
				w.live[algorithm] = "cubic"
				w.mu.Unlock()
				time.Sleep(time.Second)
			}
		}()
		w.sleep(90*time.Second + time.Millisecond)
		if n := w.count("healed " + algorithm); n != 1+fightLimit-1 {
			t.Errorf("healed %d times, want %d after the one at the start", n, fightLimit-1)
		}
		if w.count("<4>"+algorithm+" was set to cubic again and again") != 1 {
			t.Errorf("journal %q", w.lines())
		}
		if s := w.lastStatus(); !strings.Contains(s, algorithm) || !strings.Contains(s, "no longer") {
			t.Errorf("STATUS %q", s)
		}
		if w.report == nil || len(w.report.GaveUp) != 1 {
			t.Fatalf("report %+v", w.report)
		}
		g := w.report.GaveUp[0]
		if _, err := time.Parse(time.RFC3339, g.Since); err != nil || g.Setting != algorithm || g.Wanted != "bbr" || g.Live != "cubic" {
			t.Errorf("gave up %+v (%v)", g, err)
		}

		// Everything else is healed still, without touching what is fought over.
		w.live[defaultQdisc] = "fq_codel"
		heals, length := len(w.heals), w.log.Len()
		w.sleep(time.Hour)
		if w.live[defaultQdisc] != "fq" || w.live[algorithm] != "cubic" {
			t.Errorf("live %v", w.live)
		}
		for _, h := range w.heals[heals:] {
			if diff := cmp.Diff([]string{algorithm}, h.Except); diff != "" {
				t.Errorf("except (-want +got)\n%s", diff)
			}
		}
		if len(w.heals) != heals+1 || strings.Count(w.log.String()[length:], "\n") != 1 {
			t.Errorf("%d healings, journal %s", len(w.heals)-heals, w.log.String()[length:])
		}

		// The next enable starts anew.
		done()
		w.sleep(time.Second)
		w.stamp = "2"
		w.sleep(10 * time.Second)
		if w.live[algorithm] != "bbr" || len(w.report.GaveUp) != 0 || w.lastStatus() != "bbr is in force" {
			t.Errorf("after a new enable: live %v, report %+v, status %q", w.live, w.report, w.lastStatus())
		}
		stop()
	})
}

// TestFastFighter: a value that is overwritten before it can even be checked
// causes no more words than any other.
func TestFastFighter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fast = true
		stop := w.start()
		w.sleep(time.Hour)
		if len(w.lines()) != fightLimit+1 || w.count("healed") != fightLimit || w.count("again and again") != 1 {
			t.Errorf("journal %q", w.lines())
		}
		stop()
	})
}

func tree(link, kind, handle string) qdisc.Tree {
	return qdisc.Tree{Link: link, Root: qdisc.Qdisc{Kind: kind, Handle: handle}}
}

// TestNewLink: a link that comes up with another qdisc gets its own within
// seconds; one that is as it should be, or somebody's, causes no healing.
func TestNewLink(t *testing.T) {
	tests := []struct {
		name string
		tree qdisc.Tree
		ev   qdisc.LinkEvent
		want int // healings
	}{
		{"another qdisc", tree("eth1", "fq_codel", "0:"), qdisc.LinkEvent{Link: "eth1", Change: qdisc.Appeared, Up: true}, 1},
		{"comes up later", tree("eth1", "fq_codel", "0:"), qdisc.LinkEvent{Link: "eth1", Change: qdisc.Changed, Up: true}, 1},
		{"still down", tree("eth1", "fq_codel", "0:"), qdisc.LinkEvent{Link: "eth1", Change: qdisc.Appeared}, 0},
		{"as wished", tree("eth1", "fq", "0:"), qdisc.LinkEvent{Link: "eth1", Change: qdisc.Appeared, Up: true}, 0},
		{"no queue", tree("veth0", "noqueue", "0:"), qdisc.LinkEvent{Link: "veth0", Change: qdisc.Appeared, Up: true}, 0},
		{"somebody's", tree("eth1", "htb", "1:"), qdisc.LinkEvent{Link: "eth1", Change: qdisc.Changed, Up: true}, 0},
		{"another link's event", tree("tun0", "fq_codel", "0:"), qdisc.LinkEvent{Link: "eth1", Change: qdisc.Changed, Up: true}, 0},
		{"gone", tree("eth1", "fq_codel", "0:"), qdisc.LinkEvent{Link: "eth1", Change: qdisc.Gone}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				stop := w.start()
				before := len(w.heals)
				w.trees = []qdisc.Tree{tt.tree}
				w.links <- tt.ev
				w.sleep(5*time.Second + time.Millisecond)
				if got := len(w.heals) - before; got != tt.want {
					t.Errorf("%d healings, want %d", got, tt.want)
				}
				stop()
			})
		})
	}
}

// TestBootBeforeLinks: the agent is there before the network; what it says is
// put right when the links are up, and links that come and go do not matter.
func TestBootBeforeLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		w.trees = []qdisc.Tree{tree("eth0", "fq", "0:")}
		w.reason = "bbr is in force, with fq on eth0"
		w.links <- qdisc.LinkEvent{Link: "eth0", Change: qdisc.Changed, Up: true}
		w.sleep(5*time.Second + time.Millisecond)
		if w.lastStatus() != w.reason {
			t.Errorf("STATUS %q", w.lastStatus())
		}
		w.assessed = 0
		w.links <- qdisc.LinkEvent{Link: "eth0", Change: qdisc.Changed, Up: true}
		w.links <- qdisc.LinkEvent{Link: "veth0", Change: qdisc.Appeared, Up: true}
		w.sleep(10 * time.Second)
		if w.assessed != 0 {
			t.Errorf("%d checks", w.assessed)
		}
		stop()
	})
}

// TestLinkStorm: links that come and go all the time, and never get what the
// agent would like, do not keep it busy.
func TestLinkStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		w.compared, w.heals = 0, nil
		for i := range 6000 { // ten minutes
			w.links <- qdisc.LinkEvent{Link: fmt.Sprint("veth", i), Index: i, Change: qdisc.Appeared, Up: true}
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if most := 600/5 + 600/10 + 1; w.compared > most {
			t.Errorf("compared %d times in ten minutes, want %d at most", w.compared, most)
		}
		if len(w.heals) != 0 {
			t.Errorf("%d healings", len(w.heals))
		}
		stop()
	})
}

// TestWatchLost: the link watch is taken up again, and its failure said once.
func TestWatchLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		close(w.links)
		w.links, w.watchErr = nil, errors.New("no netlink")
		w.sleep(time.Minute)
		if w.watched != 1+6 || w.count("no netlink") != 1 {
			t.Errorf("watched %d times, journal %q", w.watched, w.lines())
		}
		w.links, w.watchErr = make(chan qdisc.LinkEvent), nil
		w.sleep(lookEvery)
		w.trees = []qdisc.Tree{tree("eth1", "pfifo_fast", "0:")}
		w.links <- qdisc.LinkEvent{Link: "eth1", Change: qdisc.Appeared, Up: true}
		w.sleep(5 * time.Second)
		if w.count("healed qdisc eth1: found pfifo_fast, now fq") != 1 {
			t.Errorf("journal %q", w.lines())
		}
		stop()
	})
}

// TestHealFails: READY comes all the same, the cause is said once and stands in
// STATUS, the healing is tried again later and later, and at once for a new
// wish.
func TestHealFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.healErr = &tuning.Problem{Err: fmt.Errorf("reading accel's state: %w", tuning.ErrDamagedState), Next: "Put a good copy back."}
		stop := w.start()
		if !slices.Contains(w.told, "READY=1") {
			t.Error("not READY")
		}
		w.sleep(time.Hour + time.Second)
		if len(w.heals) != 11 {
			t.Errorf("tried %d times in an hour, want 11", len(w.heals))
		}
		if w.count("reading accel's state") != 1 || w.count("Put a good copy back.") != 1 {
			t.Errorf("journal %q", w.lines())
		}
		if !strings.Contains(w.lastStatus(), "reading accel's state") {
			t.Errorf("STATUS %q", w.lastStatus())
		}
		if w.assessed < 10 {
			t.Errorf("checked %d times in an hour although not as wished", w.assessed)
		}
		w.healErr, w.stamp = nil, "2"
		w.sleep(lookEvery)
		if w.live[algorithm] != "bbr" || w.lastStatus() != "bbr is in force" || w.count("<6>bbr is in force") != 1 {
			t.Errorf("live %v, STATUS %q", w.live, w.lastStatus())
		}
		stop()
	})
}

// TestBusy: while an accel on the command line holds the lock, the agent waits
// without a word in the journal.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.healErr = &tuning.Problem{Err: fmt.Errorf("nothing was changed: %w", errBusy)}
		stop := w.start()
		if !slices.Contains(w.told, "READY=1") || !strings.Contains(w.lastStatus(), "waiting") {
			t.Errorf("told %q", w.told)
		}
		w.sleep(time.Minute)
		if len(w.heals) != 7 || w.count("nothing was changed") != 0 {
			t.Errorf("tried %d times, journal %q", len(w.heals), w.lines())
		}
		w.healErr = nil
		w.sleep(lookEvery)
		if w.live[algorithm] != "bbr" {
			t.Error("not healed once the lock was free")
		}
		stop()
	})
}

// TestInterrupted: a state that a command left half done is left alone and
// told.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.healErr = &tuning.Problem{Err: tuning.ErrInterrupted, Next: "Run it again: accel enable bbr."}
		stop := w.start()
		w.sleep(time.Hour)
		if w.live[algorithm] != "cubic" || !strings.Contains(w.lastStatus(), tuning.ErrInterrupted.Error()) || w.count("Run it again") != 1 {
			t.Errorf("live %v, STATUS %q, journal %q", w.live, w.lastStatus(), w.lines())
		}
		stop()
	})
}

// TestMended: a healing that works again is told by what is in force.
func TestMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		for range 3 {
			w.live[algorithm] = "cubic"
			w.healErr = errors.New("no space left on device")
			w.sleep(lookEvery)
			if !strings.Contains(w.lastStatus(), "no space left") {
				t.Errorf("STATUS %q", w.lastStatus())
			}
			w.healErr = nil
			w.sleep(lookEvery)
			if w.lastStatus() != "bbr is in force" {
				t.Errorf("STATUS %q", w.lastStatus())
			}
		}
		if w.count("no space left") != 1 || w.count("<6>bbr is in force") != 2 {
			t.Errorf("journal %q", w.lines())
		}
		stop()
	})
}

// TestRefused: an optional setting that the host refuses is said once, and
// nothing is called a fight.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.live[defaultQdisc], w.refuse = "pfifo_fast", defaultQdisc
		stop := w.start()
		w.sleep(time.Hour + time.Second)
		if w.count("net.core.default_qdisc stays pfifo_fast: the kernel refuses it") != 1 || len(w.report.GaveUp) != 0 || len(w.heals) != 11 ||
			w.count("<4>net.core.default_qdisc is pfifo_fast") != 1 {
			t.Errorf("%d healings, report %+v, journal %q", len(w.heals), w.report, w.lines())
		}
		stop()
	})
}

// TestNothingEnabled: at the start READY is sent all the same, or systemd would
// call the end a failure; and where the state vanishes later, the agent ends.
func TestNothingEnabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stamp = ""
		stop := w.start()
		if diff := cmp.Diff([]string{"STATUS=nothing is enabled", "READY=1", "STOPPING=1"}, w.told); diff != "" {
			t.Errorf("told (-want +got)\n%s", diff)
		}
		stop()
		if len(w.heals) != 0 {
			t.Error("healed")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.start()
		w.stamp = ""
		w.sleep(lookEvery)
		if w.told[len(w.told)-1] != "STOPPING=1" || w.report != nil || w.count("nothing is enabled") != 1 {
			t.Errorf("told %q, report %v, journal %q", w.told, w.report, w.lines())
		}
		stop()
	})
}

// TestNotInForce: what the comparison cannot see is checked every five minutes
// until it is mended, and each change is said once.
func TestNotInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.reason = "the default route over eth0 carries congctl reno"
		stop := w.start()
		w.sleep(20 * time.Minute)
		if w.count("<4>the default route") != 1 || w.lastStatus() != w.reason {
			t.Errorf("STATUS %q, journal %q", w.lastStatus(), w.lines())
		}
		w.reason = "bbr is in force"
		w.sleep(assessBadEvery)
		if w.lastStatus() != w.reason || w.count("<6>bbr is in force") != 1 {
			t.Errorf("STATUS %q, journal %q", w.lastStatus(), w.lines())
		}
		stop()
	})
}

// TestComparingFails: where only the comparison fails, the healing is tried
// with back-off, too.
func TestComparingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.driftErr = errors.New("permission denied")
		stop := w.start()
		w.sleep(time.Hour + time.Second)
		if len(w.heals) != 11 || w.count("permission denied") != 1 {
			t.Errorf("%d healings, journal %q", len(w.heals), w.lines())
		}
		stop()
	})
}

// TestStopWhileHealing: a healing that fails because the agent was told to stop
// is nobody's fault.
func TestStopWhileHealing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := newAgent(&tuning.Host{Qdiscs: noQdiscs{}}, logrus.New())
		a.log = logrus.New()
		a.log.SetOutput(&w.log)
		a.drifts, a.assess = w.drifts, w.assess
		a.stamp = func() (string, error) { return "1", nil }
		a.report = func(r *tuning.AgentReport) error { w.report = r; return nil }
		a.heal = func(ctx context.Context, _ tuning.HealOptions) (*tuning.Result, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := a.run(ctx); err != nil || w.log.Len() != 0 || w.assessed != 0 {
			t.Errorf("%v, %d checks, journal %s", err, w.assessed, w.log.String())
		}
	})
}

func TestJournalFormat(t *testing.T) {
	var b bytes.Buffer
	log := logrus.New()
	log.SetOutput(&b)
	log.SetFormatter(journalFormatter{})
	log.Error("one\ntwo")
	log.WithField("b", 2).WithField("a", "x y").Warn("three")
	log.Info("four")
	want := "<3>one; two\n<4>three a=\"x y\" b=\"2\"\n<6>four\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestShrink: a program whose own pages were dropped goes on.
func TestShrink(t *testing.T) {
	for range 3 {
		shrink()
		if got := strings.ToUpper("still here"); got != "STILL HERE" {
			t.Error(got)
		}
	}
}
