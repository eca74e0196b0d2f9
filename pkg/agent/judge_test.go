package agent

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"accel/pkg/tuning"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func drifted(settings ...string) []tuning.Drift {
	var out []tuning.Drift
	for _, s := range settings {
		out = append(out, tuning.Drift{Setting: s, Wanted: "bbr", Live: "cubic"})
	}
	return out
}

func mended(settings ...string) []tuning.Step {
	var out []tuning.Step
	for _, s := range settings {
		found := "cubic"
		out = append(out, tuning.Step{Setting: s, Current: &found, Wanted: "bbr", Action: tuning.Set, Changed: true})
	}
	return out
}

// TestJudgeLease: a DHCP client that makes its route anew with every renewal of
// a lease of one minute is no fight; one that never rests is.
func TestJudgeLease(t *testing.T) {
	const route = "route default dev eth0 initcwnd"
	for _, c := range []struct {
		every time.Duration
		fight bool
	}{{30 * time.Second, false}, {10 * time.Second, true}} {
		j := newJudge()
		gave := false
		for at := time.Duration(0); at < time.Hour; at += c.every {
			_, given := j.look(epoch.Add(at), drifted(route), nil)
			if gave = len(given) > 0; gave {
				break
			}
			j.won(epoch.Add(at), drifted(route), mended(route), false)
		}
		if gave != c.fight {
			t.Errorf("every %v: gave up: %v", c.every, gave)
		}
	}
}

// TestJudgeFight: overwritten at these times (seconds), each put right at
// once; the judge gives up at the time in the end, or never (-1).
func TestJudgeFight(t *testing.T) {
	tests := []struct {
		name string
		at   []int
		want int
	}{
		{"once", []int{0}, -1},
		{"four times", []int{0, 10, 20, 30}, -1},
		{"the fifth time", []int{0, 10, 20, 30, 40}, 40},
		{"the fifth time just within ten minutes", []int{0, 150, 300, 450, 599}, 599},
		{"the fifth time after ten minutes", []int{0, 150, 300, 450, 600}, -1},
		{"every three minutes for ever", []int{0, 180, 360, 540, 720, 900, 1080, 1260, 1440}, -1},
		{"slow, then fast", []int{0, 500, 1000, 1010, 1020, 1030, 1040}, 1030},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := newJudge()
			j.won(epoch.Add(-time.Minute), nil, mended("a"), true) // the start does not count
			got := -1
			for _, s := range tt.at {
				now := epoch.Add(time.Duration(s) * time.Second)
				heal, given := j.look(now, drifted("a"), nil)
				if len(given) > 0 {
					if heal {
						t.Error("heals what it has just given up")
					}
					got = s
					break
				}
				if !heal {
					t.Fatalf("not healed at %d", s)
				}
				j.won(now, drifted("a"), mended("a"), false)
			}
			if got != tt.want {
				t.Errorf("gave up at %d, want %d", got, tt.want)
			}
			if got < 0 {
				return
			}
			if heal, given := j.look(epoch.Add(24*time.Hour), drifted("a"), nil); heal || given != nil {
				t.Error("does not stay with it")
			}
			if heal, _ := j.look(epoch.Add(24*time.Hour), drifted("a", "b"), nil); !heal {
				t.Error("gives up on everything")
			}
			j.forget()
			if heal, _ := j.look(epoch.Add(24*time.Hour), drifted("a"), nil); !heal {
				t.Error("a new wish does not start anew")
			}
		})
	}
}

// TestJudgeStuck: what cannot be healed is tried again later and later, and is
// no fight; what else drifts is healed meanwhile.
func TestJudgeStuck(t *testing.T) {
	j := newJudge()
	now := epoch
	var tries []time.Duration
	for ; now.Before(epoch.Add(time.Hour)); now = now.Add(lookEvery) {
		heal, given := j.look(now, drifted("a"), nil)
		if given != nil {
			t.Fatal("a healing that fails is no fight")
		}
		if heal {
			tries = append(tries, now.Sub(epoch))
			if len(tries)%2 == 0 {
				j.won(now, drifted("a"), nil, false) // the healing does nothing about it
			} else {
				j.lost(now, drifted("a")) // the healing fails
			}
		}
	}
	want := "[0s 10s 30s 1m10s 2m30s 5m10s 10m30s 20m30s 30m30s 40m30s 50m30s]"
	if got := fmt.Sprint(tries); got != want {
		t.Errorf("tried at %s, want %s", got, want)
	}
	if heal, _ := j.look(now.Add(-lookEvery), drifted("a", "b"), nil); !heal {
		t.Error("b waits for a")
	}
	j.won(now, drifted("a", "b"), mended("a", "b"), false)
	if heal, _ := j.look(now.Add(time.Second), drifted("a"), nil); !heal {
		t.Error("still waits after a success")
	}
}

func TestJudgeOwed(t *testing.T) {
	j := newJudge()
	if heal, _ := j.look(epoch, nil, nil); !heal {
		t.Error("the start owes a healing")
	}
	j.lost(epoch, nil)
	if heal, _ := j.look(epoch.Add(firstDelay-1), nil, nil); heal {
		t.Error("does not wait after a failure")
	}
	if heal, _ := j.look(epoch.Add(firstDelay), nil, nil); !heal {
		t.Error("forgets what it owes")
	}
	j.won(epoch, nil, nil, true)
	if heal, _ := j.look(epoch, nil, nil); heal {
		t.Error("heals a host that is as wished")
	}
}

func TestJudgeOnce(t *testing.T) {
	j := newJudge()
	if !j.once("a") || j.once("a") || !j.once("b") {
		t.Error("not once each")
	}
	for i := range 10 * mostSaid {
		j.once(fmt.Sprint(i))
	}
	if len(j.said) > mostSaid {
		t.Errorf("remembers %d messages", len(j.said))
	}
	j.forget()
	if !j.once("a") {
		t.Error("a new wish is not told anew")
	}
}

// TestJudgeNeverWars: whatever drifts whenever, no setting is put right more
// than four times within ten minutes, nothing given up is healed, and what is
// not given up and not waiting is healed at once.
func TestJudgeNeverWars(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := newJudge()
		j.won(epoch, nil, nil, true)
		now := epoch
		wins := map[string][]time.Time{}
		gone := map[string]bool{}
		names := []string{"a", "b", "c"}
		for range rapid.IntRange(1, 200).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			drift := drifted(rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 3, rapid.ID).Draw(t, "drift")...)
			heal, given := j.look(now, drift, nil)
			for _, g := range given {
				if gone[g.Setting] {
					t.Fatal("given up twice")
				}
				gone[g.Setting] = true
			}
			var todo []string
			for _, d := range drift {
				if !gone[d.Setting] {
					todo = append(todo, d.Setting)
				}
			}
			if heal != (len(todo) > 0) {
				t.Fatalf("heal %v with %v to do", heal, todo)
			}
			if !heal {
				continue
			}
			j.won(now, drift, mended(todo...), false)
			for _, s := range todo {
				wins[s] = append(wins[s], now)
				if n := len(wins[s]); n >= fightLimit && now.Sub(wins[s][n-fightLimit]) < fightWindow {
					t.Fatalf("%s was put right %d times within %s", s, fightLimit, fightWindow)
				}
			}
		}
	})
}
