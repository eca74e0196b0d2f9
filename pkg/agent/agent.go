package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"

	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

const (
	// The one wake-up of an idle agent: it compares, and tells systemd that
	// it is alive.
	lookEvery = 10 * time.Second

	// A link that is being set up changes several times; and links that come
	// and go all the time, as containers' do, must not keep accel busy.
	linkPause = time.Second
	linkGap   = 5 * time.Second

	// How long one healing and one check may take. Together they stay below
	// the unit's WatchdogSec.
	healTimeout   = 60 * time.Second
	assessTimeout = 20 * time.Second

	// How long the agent waits for an accel on the command line. Longer
	// would delay the boot or the watchdog; it tries again at the next look.
	lockTimeout = 10 * time.Second

	// The whole check opens sockets and looks at everything, so it is rare.
	// A host that is not as wished may be mended by its owner at any time.
	assessGoodEvery = time.Hour
	assessBadEvery  = 5 * time.Minute
)

// errBusy: another accel holds the lock.
var errBusy = errors.New("another accel is at work")

// Options of Run.
type Options struct {
	Host *tuning.Host   // nil: tuning.Live()
	Log  *logrus.Logger // nil: NewLogger(os.Stderr)
}

// Run is the service: it re-asserts accel's settings, tells systemd, and then
// watches links and values until ctx ends, SIGTERM or SIGINT arrives, or
// nothing is enabled any more; the error is nil then, and nothing is undone.
//
// It is made to be the whole life of a process, which it tells to be small:
// one processor, an eager garbage collector.
//
// What goes wrong with the host is said in the journal and in STATUS, and
// retried; it does not end the agent. The only error is a *tuning.Problem
// where it does not run as root.
func Run(ctx context.Context, o Options) error {
	if os.Geteuid() != 0 {
		return &tuning.Problem{Exit: tuning.ExitFailed, Err: errors.New(text.T("the agent cannot change anything: it does not run as root")),
			Next: text.T("The service runs it: systemctl start accel.service")}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	beSmall()

	if o.Host == nil {
		o.Host = tuning.Live()
	}
	if o.Log == nil {
		o.Log = NewLogger(os.Stderr)
	}
	a := newAgent(o.Host, o.Log)
	a.watch, a.watchRoutes = qdisc.Watch, route.Watch
	a.notify = func(state string) { _, _ = daemon.SdNotify(false, state) } // without systemd there is nobody to tell
	a.shrink = shrink
	if wd, err := daemon.SdWatchdogEnabled(false); err != nil {
		a.log.Warn(text.T("no watchdog: %s", err))
	} else if wd > 0 {
		a.every = min(lookEvery, wd/2)
		a.healTimeout = min(healTimeout, wd/2)
		a.assessTimeout = min(assessTimeout, wd/4)
	}
	return a.run(ctx)
}

// agent is a running agent. Its functions are the edges to the host.
type agent struct {
	log    *logrus.Logger
	heal   func(context.Context, tuning.HealOptions) (*tuning.Result, error)
	assess func(context.Context) (*tuning.Status, error)
	drifts func(context.Context) ([]tuning.Drift, error)
	trees  func() ([]qdisc.Tree, error)
	stamp  func() (string, error) // of the state; fs.ErrNotExist: there is none
	report func(*tuning.AgentReport) error
	watch  func(context.Context) (<-chan qdisc.LinkEvent, error)
	// watchRoutes tells that default routes changed.
	watchRoutes func(context.Context) (<-chan struct{}, error)
	notify      func(state string)
	shrink      func()

	every, healTimeout, assessTimeout time.Duration

	judge    *judge
	first    bool // no healing of the present wish has been tried yet
	retry    bool // what the host refused before is asked for again
	seen     string
	enabled  *tuning.Enabled
	queues   []string // links with the enabled qdisc at the last link event
	verdict  *tuning.Status
	assessed time.Time
	told     string              // the last verdict in the journal
	trouble  string              // what keeps the agent from doing its work now
	status   string              // the last STATUS line
	written  *tuning.AgentReport // the last report
	started  time.Time
	last     string // the last thing it did
}

func newAgent(h *tuning.Host, log *logrus.Logger) *agent {
	host := *h
	host.Service = nil // the agent does not ask systemd about itself
	lock := h.Lock
	host.Lock = func(ctx context.Context) (func(), error) {
		wait, cancel := context.WithTimeout(ctx, lockTimeout)
		defer cancel()
		unlock, err := lock(wait)
		if err != nil && wait.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errBusy, err)
		}
		return unlock, err
	}
	return &agent{
		log: log,
		heal: func(ctx context.Context, o tuning.HealOptions) (*tuning.Result, error) {
			return tuning.Heal(ctx, &host, o)
		},
		assess: func(ctx context.Context) (*tuning.Status, error) { return tuning.Assess(ctx, &host) },
		drifts: func(ctx context.Context) ([]tuning.Drift, error) { return tuning.Drifts(ctx, &host) },
		trees:  host.Qdiscs.Trees,
		stamp: func() (string, error) {
			fi, err := host.Files.Lstat(tuning.StateFile)
			if err != nil {
				return "", err
			}
			return fmt.Sprint(fi.ModTime().UnixNano(), " ", fi.Size()), nil
		},
		report:        func(r *tuning.AgentReport) error { return writeReport(&host, r) },
		watch:         func(context.Context) (<-chan qdisc.LinkEvent, error) { return nil, nil },
		watchRoutes:   func(context.Context) (<-chan struct{}, error) { return nil, nil },
		notify:        func(string) {},
		shrink:        func() {},
		every:         lookEvery,
		healTimeout:   healTimeout,
		assessTimeout: assessTimeout,
		judge:         newJudge(),
	}
}

// writeReport writes the agent's report for `accel status`.
func writeReport(h *tuning.Host, r *tuning.AgentReport) error {
	if r == nil {
		return h.Files.Remove(tuning.AgentFile)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	// systemd makes the directory; by hand nobody has.
	if err := h.Files.Mkdir(path.Dir(tuning.AgentFile), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return h.Files.WriteFile(tuning.AgentFile, append(data, '\n'), 0o644)
}

func (a *agent) run(ctx context.Context) error {
	a.started = time.Now()
	a.first, a.retry = true, true
	// Watching starts before the first look, so that no link falls between.
	links, routes := a.subscribe(ctx), a.subscribeRoutes(ctx)
	running := a.look(ctx)
	a.notify(daemon.SdNotifyReady)

	tick := time.NewTicker(a.every)
	defer tick.Stop()
	soon := time.NewTimer(time.Hour)
	soon.Stop()
	pending := map[string]bool{}
	rerouted := false    // default routes changed since the last look
	var linked time.Time // the last look for the sake of links or routes
	lookSoon := func() {
		if len(pending) == 0 && !rerouted {
			soon.Reset(max(linkPause, linkGap-time.Since(linked)))
		}
	}
	for running && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			a.notify(daemon.SdNotifyWatchdog)
			if links == nil {
				links = a.subscribe(ctx)
			}
			if routes == nil {
				routes = a.subscribeRoutes(ctx)
			}
			running = a.look(ctx)
		case e, ok := <-links:
			if !ok {
				links = nil // the next tick tries again
				continue
			}
			if e.Change == qdisc.Gone || !e.Up {
				delete(pending, e.Link)
				continue
			}
			lookSoon()
			pending[e.Link] = true
		case _, ok := <-routes:
			if !ok {
				routes = nil
				continue
			}
			if a.enabled != nil && tuning.UsesRoutes(a.enabled.Profile) {
				lookSoon()
				rerouted = true
			}
		case <-soon.C:
			linked = time.Now()
			a.lookAtLinks(pending)
			clear(pending)
			// Whether a route is accel's to change is for the healing to say.
			a.judge.owed = a.judge.owed || rerouted
			rerouted = false
			running = a.look(ctx)
		}
	}
	a.notify(daemon.SdNotifyStopping)
	if err := a.report(nil); err != nil {
		a.log.Warn(text.T("removing %s: %s", tuning.AgentFile, err))
	}
	return nil
}

// subscribe watches the links; nil where that is not possible now.
func (a *agent) subscribe(ctx context.Context) <-chan qdisc.LinkEvent {
	links, err := a.watch(ctx)
	if err != nil {
		a.sayOnce(logrus.WarnLevel, text.T("new links are noticed only by what drifts: %s", err))
		return nil
	}
	return links
}

// subscribeRoutes watches the default routes; nil where that is not possible
// now.
func (a *agent) subscribeRoutes(ctx context.Context) <-chan struct{} {
	routes, err := a.watchRoutes(ctx)
	if err != nil {
		a.sayOnce(logrus.WarnLevel, text.T("new default routes are noticed only by what drifts: %s", err))
		return nil
	}
	return routes
}

// lookAtLinks makes a healing due if one of the links that came up or changed
// queues with another qdisc than the enabled one. Whether it is accel's to
// manage is for the healing to say. A check is due if other links than before
// queue with the enabled one: at boot the agent starts before them.
func (a *agent) lookAtLinks(names map[string]bool) {
	if a.enabled == nil || a.enabled.Qdisc == "" {
		return
	}
	trees, err := a.trees()
	if err != nil {
		return // the links are looked at again when they change, or drift
	}
	var queues []string
	for _, t := range trees {
		switch {
		case t.KernelMade() && t.Kind() == a.enabled.Qdisc:
			queues = append(queues, t.Link)
		case names[t.Link] && (t.KernelMade() || t.Leftover()):
			a.judge.owed = true
		}
	}
	if !slices.Equal(queues, a.queues) {
		a.queues = queues
		a.assessed = time.Time{}
	}
}

// look compares, heals where it must, and says what came of it. It tells
// whether there is anything left to watch.
func (a *agent) look(ctx context.Context) (running bool) {
	if !a.readStamp() {
		return a.leave()
	}
	now := time.Now()
	drift, driftErr := a.drifts(ctx)
	heal, given := a.judge.look(now, drift, driftErr)
	for _, g := range given {
		a.say(logrus.WarnLevel, text.T("%s was set to %s again and again, %d times within %d minutes: accel stops fighting until the next accel enable or restart of the service",
			g.Setting, g.Live, limit(g.Setting), int(fightWindow.Minutes())))
	}
	news := len(given) > 0
	if heal {
		healed, err := a.mend(ctx, drift)
		if errors.Is(err, tuning.ErrNotEnabled) {
			return a.leave()
		}
		if err == nil && driftErr != nil { // or the healing has told it
			a.sayOnce(logrus.WarnLevel, text.T("comparing with the host: %s", driftErr))
		}
		news = news || healed
	}
	if ctx.Err() != nil {
		return false
	}
	a.writeReport() // before the check, which reads it
	if news || now.Sub(a.assessed) >= a.assessEvery() {
		a.check(ctx)
		a.shrink()
	}
	a.tellStatus()
	return true
}

// readStamp notices a state that somebody else wrote: a new wish, before which
// old fights and failures do not count. False: there is no state.
func (a *agent) readStamp() bool {
	stamp, err := a.stamp()
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	if a.seen != "" && stamp != a.seen {
		a.judge.forget()
		a.first = true
	}
	a.seen = stamp
	return true
}

// leave ends the agent where nothing is enabled.
func (a *agent) leave() bool {
	a.trouble = text.T("nothing is enabled")
	a.say(logrus.InfoLevel, text.T("nothing is enabled: the agent has nothing to do and ends"))
	a.tellStatus()
	return false
}

// mend heals. news: the host, or what is known of it, is another one now.
func (a *agent) mend(ctx context.Context, drift []tuning.Drift) (news bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, a.healTimeout)
	defer cancel()
	res, err := a.heal(bounded, tuning.HealOptions{RetryRefused: a.retry, Except: a.judge.except()})
	now := time.Now()
	if res != nil {
		for _, s := range res.Steps {
			a.sayStep(s)
		}
		for _, n := range res.Notes {
			a.sayOnce(logrus.InfoLevel, n)
		}
	}
	// The healing itself may have written the state.
	if stamp, serr := a.stamp(); serr == nil {
		a.seen = stamp
	}
	switch {
	case ctx.Err() != nil: // told to stop: whatever failed, failed of that
		return false, nil
	case errors.Is(err, errBusy):
		a.judge.owed = true
		a.trouble = text.T("another accel is at work; waiting for it")
		return false, nil
	case errors.Is(err, tuning.ErrNotEnabled):
		return false, err
	case err != nil:
		a.judge.lost(now, drift)
		a.retry = true
		a.trouble = text.T("not healed: %s", err)
		message := a.trouble
		var p *tuning.Problem
		if errors.As(err, &p) && p.Next != "" {
			message += ". " + p.Next
		}
		a.sayOnce(logrus.ErrorLevel, message)
		return res != nil && res.Changed, err
	}
	mended := a.trouble != "" && a.judge.once("over: "+a.trouble)
	if mended {
		a.told = "" // what is in force is said again
	}
	a.trouble = ""
	a.enabled = res.Enabled
	stuck := maps.Clone(a.judge.stuck)
	a.judge.won(now, drift, res.Steps, a.first)
	a.retry = len(a.judge.stuck) > 0
	news = a.first || mended || res.Changed || !maps.Equal(stuck, a.judge.stuck)
	a.first = false
	return news, nil
}

// sayStep says what a healing did about one setting.
func (a *agent) sayStep(s tuning.Step) {
	found := "?"
	if s.Current != nil {
		found = *s.Current
	}
	switch {
	case s.Changed && found == s.Wanted:
		a.last = text.T("healed %s: %s", s.Setting, s.Why)
		a.say(logrus.InfoLevel, a.last)
	case s.Changed:
		a.last = text.T("healed %s: found %s, now %s", s.Setting, found, s.Wanted)
		a.say(logrus.InfoLevel, a.last)
	case s.Action == tuning.Skip && s.Reason != "":
		a.sayOnce(logrus.WarnLevel, text.T("%s stays %s: %s", s.Setting, found, s.Reason))
	}
}

// assessEvery is the time between two whole checks.
func (a *agent) assessEvery() time.Duration {
	if a.verdict != nil && a.verdict.Verdict == tuning.Good {
		return assessGoodEvery
	}
	return assessBadEvery
}

// check asks the kernel as `accel status` does, and says what is in force where
// that is new. Of values that drift, the healing speaks.
func (a *agent) check(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, a.assessTimeout)
	defer cancel()
	a.assessed = time.Now()
	v, err := a.assess(bounded)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		a.sayOnce(logrus.ErrorLevel, text.T("checking what is in force: %s", err))
		return
	}
	a.verdict = v
	if v.Verdict == tuning.Drifted && (len(a.judge.stuck) == 0 || len(a.judge.gaveUp) > 0) {
		return // the next look heals it, or it was told that none will
	}
	if told := string(v.Verdict) + v.Reason; told != a.told {
		a.told = told
		level := logrus.WarnLevel
		if v.Verdict == tuning.Good {
			level = logrus.InfoLevel
		}
		a.say(level, v.Reason)
	}
}

// tellStatus gives systemd the STATUS line if it is a new one.
func (a *agent) tellStatus() {
	s := text.T("not checked yet")
	switch {
	case a.trouble != "":
		s = a.trouble
	case len(a.judge.gaveUp) > 0:
		var names []string
		for _, g := range a.judge.gaveUp {
			names = append(names, text.T("%s (something keeps setting it to %s)", g.Setting, g.Live))
		}
		s = text.T("no longer fighting over %s", strings.Join(names, ", "))
	case a.verdict != nil:
		s = a.verdict.Reason
	}
	// A line ends the assignment.
	s = strings.Join(strings.Fields(s), " ")
	if s != a.status {
		a.status = s
		a.notify("STATUS=" + s)
	}
}

// writeReport writes what the agent tells about itself if it is new.
func (a *agent) writeReport() {
	r := &tuning.AgentReport{
		Schema:  "accel.agent/1",
		Started: a.started.UTC().Format(time.RFC3339),
		GaveUp:  slices.Clone(a.judge.gaveUp),
		Healed:  a.judge.healed,
		Last:    a.last,
	}
	if r.GaveUp == nil {
		r.GaveUp = []tuning.GaveUp{}
	}
	if a.written != nil && reflect.DeepEqual(a.written, r) {
		return
	}
	if err := a.report(r); err != nil {
		a.sayOnce(logrus.WarnLevel, text.T("writing %s: %s", tuning.AgentFile, err))
		return
	}
	a.written = r
}

func (a *agent) say(level logrus.Level, message string) { a.log.Log(level, message) }

func (a *agent) sayOnce(level logrus.Level, message string) {
	if a.judge.once(message) {
		a.say(level, message)
	}
}
