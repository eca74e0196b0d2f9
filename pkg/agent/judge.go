package agent

import (
	"slices"
	"strings"
	"time"

	"accel/pkg/tuning"
)

const (
	// A setting that is overwritten so often within so long is somebody
	// else's by now: accel stops healing it until the next enable or restart.
	fightLimit  = 5
	fightWindow = 10 * time.Minute
	// A DHCP client may make its route anew with every renewal, and leases of a
	// minute exist: that is no fight.
	routeFightLimit = 30

	// After a healing that failed, the next one waits, twice as long each
	// time.
	firstDelay   = 10 * time.Second
	longestDelay = 10 * time.Minute

	// Messages that are said only once are remembered up to this many.
	mostSaid = 200
)

// judge decides what is healed and what is said. It reads no clock and touches
// nothing.
type judge struct {
	healed   int                    // settings put right since the start
	wins     map[string][]time.Time // when each setting was put right lately
	gaveUp   []tuning.GaveUp
	stuck    map[string]bool // settings that the last healing could not put right
	owed     bool            // a whole healing is due: at the start, for a new wish or a new link
	blind    bool            // the comparison failed, so only a healing can tell
	delay    time.Duration   // the present wait after a failure; 0: the last healing went well
	notUntil time.Time       // no healing of what is stuck or owed before that
	said     map[string]bool
}

func newJudge() *judge {
	return &judge{owed: true, said: map[string]bool{}, wins: map[string][]time.Time{}, stuck: map[string]bool{}}
}

// forget starts anew, for a new wish: fights, failures and what was said about
// them.
func (j *judge) forget() {
	healed := j.healed
	*j = *newJudge()
	j.healed = healed
}

// except names the settings that are no longer healed.
func (j *judge) except() []string {
	var out []string
	for _, g := range j.gaveUp {
		out = append(out, g.Setting)
	}
	return out
}

func (j *judge) hasGivenUp(setting string) bool {
	return slices.ContainsFunc(j.gaveUp, func(g tuning.GaveUp) bool { return g.Setting == setting })
}

// look takes what has drifted, or that the comparison failed, and tells
// whether to heal now, and which settings it gave up on just now.
func (j *judge) look(now time.Time, drift []tuning.Drift, err error) (heal bool, given []tuning.GaveUp) {
	j.blind = err != nil
	wait := now.Before(j.notUntil)
	heal = (j.owed || j.blind) && !wait
	for _, d := range drift {
		if j.hasGivenUp(d.Setting) {
			continue
		}
		wins := slices.DeleteFunc(j.wins[d.Setting], func(t time.Time) bool { return now.Sub(t) >= fightWindow })
		j.wins[d.Setting] = wins
		// Every time it was put right it was overwritten since; this is once more.
		if !j.stuck[d.Setting] && len(wins)+1 >= limit(d.Setting) {
			g := tuning.GaveUp{Setting: d.Setting, Wanted: d.Wanted, Live: d.Live, Since: now.UTC().Format(time.RFC3339)}
			j.gaveUp = append(j.gaveUp, g)
			given = append(given, g)
			delete(j.wins, d.Setting)
			continue
		}
		if !j.stuck[d.Setting] || !wait {
			heal = true
		}
	}
	return heal, given
}

// limit is how often a setting may be overwritten within fightWindow.
func limit(setting string) int {
	if strings.HasPrefix(setting, string(tuning.KindRoute)+" ") {
		return routeFightLimit
	}
	return fightLimit
}

// won notes a healing that could be tried: what it put right, and what it
// could not although it had drifted. first means that what was found dates
// from before accel's watch and says nothing about a fight.
func (j *judge) won(now time.Time, drift []tuning.Drift, steps []tuning.Step, first bool) {
	clear(j.stuck)
	for _, d := range drift {
		if !j.hasGivenUp(d.Setting) {
			j.stuck[d.Setting] = true
		}
	}
	for _, s := range steps {
		if !s.Changed {
			continue
		}
		j.healed++
		delete(j.stuck, s.Setting)
		if !first {
			j.wins[s.Setting] = append(j.wins[s.Setting], now)
		}
	}
	for s, wins := range j.wins { // links come and go, and their names with them
		if len(wins) == 0 || now.Sub(wins[len(wins)-1]) >= fightWindow {
			delete(j.wins, s)
		}
	}
	j.owed = false
	if len(j.stuck) > 0 || j.blind {
		j.wait(now)
		return
	}
	j.delay, j.notUntil = 0, time.Time{}
}

// lost notes a healing that could not even be tried; it stays due, even if the
// host comes right by itself, so that nothing is called broken that is not.
func (j *judge) lost(now time.Time, drift []tuning.Drift) {
	for _, d := range drift {
		if !j.hasGivenUp(d.Setting) {
			j.stuck[d.Setting] = true
		}
	}
	j.owed = true
	j.wait(now)
}

func (j *judge) wait(now time.Time) {
	j.delay = min(max(firstDelay, 2*j.delay), longestDelay)
	j.notUntil = now.Add(j.delay)
}

// once tells whether a message is said for the first time.
func (j *judge) once(message string) bool {
	if j.said[message] {
		return false
	}
	if len(j.said) >= mostSaid {
		clear(j.said) // messages that never repeat must not fill the memory
	}
	j.said[message] = true
	return true
}
