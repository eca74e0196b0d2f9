package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/route"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
	"accel/pkg/tuning"
)

// plainHost is a host below a directory, whose sysctls are files and whose
// sockets get what the sysctl says: a network namespace that is not the
// initial one, so that the algorithm is all there is.
func plainHost(t *testing.T, dir string) (h *tuning.Host, busy *atomic.Bool) {
	t.Helper()
	put := func(name, content string) {
		make1(t, filepath.Join(dir, name), func(p string) error { return os.WriteFile(p, []byte(content), 0o644) })
	}
	put("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n")
	put("proc/sys/net/ipv4/tcp_available_congestion_control", "bbr cubic\n")
	for _, d := range []string{"etc", "var/lib", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tree := sysctl.Tree{Root: filepath.Join(dir, "proc/sys")}
	busy = &atomic.Bool{}
	return &tuning.Host{
		Root:    dir,
		Files:   files.OS{Root: dir},
		Sysctl:  tree,
		Qdiscs:  noTrees{},
		Routes:  noRoutes{},
		Sockets: obedient{tree},
		Detect: func() (*kernel.Facts, error) {
			live, err := tree.Read(sysctl.CongestionControl)
			return &kernel.Facts{DefaultAlgorithm: live, ModuleIndex: true, Algorithms: []kernel.Algorithm{
				{Name: "bbr", Origin: kernel.Builtin, Available: true}, {Name: "cubic", Origin: kernel.Builtin, Available: true},
			}}, err
		},
		Now: time.Now,
		Lock: func(ctx context.Context) (func(), error) {
			if busy.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return func() {}, nil
		},
	}, busy
}

type noTrees struct{}

func (noTrees) Trees() ([]qdisc.Tree, error) { return nil, nil }
func (noTrees) Rebuild(string) error         { return qdisc.ErrNoLink }

type noRoutes struct{}

func (noRoutes) Defaults() ([]route.Route, error)    { return nil, nil }
func (noRoutes) Set(string, route.Metric, int) error { return route.ErrNoRoute }

type obedient struct{ sysctl.Tree }

func (o obedient) SelfConnect(context.Context) (socket.Evidence, error) {
	live, err := o.Read(sysctl.CongestionControl)
	return socket.Evidence{Family: "inet", Client: live, Server: live}, err
}
func (obedient) Connections() (map[string]int, error)   { return map[string]int{}, nil }
func (obedient) BBRVersionOf(string) (int, error)       { return 1, nil }
func (obedient) Load(_ context.Context, _ string) error { return nil }

// TestOverTuning runs the agent over the real pkg/tuning.
func TestOverTuning(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h, busy := plainHost(t, dir)
		if _, err := tuning.Enable(t.Context(), h, tuning.Request{Algorithm: "bbr"}); err != nil {
			t.Fatal(err)
		}
		live := func() string {
			v, err := h.Sysctl.Read(sysctl.CongestionControl)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		set := func(v string) {
			if err := h.Sysctl.Write(sysctl.CongestionControl, v); err != nil {
				t.Fatal(err)
			}
		}
		set("cubic") // a boot

		var journal bytes.Buffer
		log := logrus.New()
		log.SetOutput(&journal)
		var told []string
		a := newAgent(h, log)
		a.notify = func(s string) {
			if s != "WATCHDOG=1" {
				told = append(told, s)
			}
		}
		ended := make(chan error)
		go func() { ended <- a.run(t.Context()) }()
		synctest.Wait()
		if live() != "bbr" || len(told) != 2 || !strings.HasPrefix(told[0], "STATUS=") || told[1] != "READY=1" {
			t.Fatalf("after the start: %s, told %q, journal\n%s", live(), told, journal.String())
		}

		// Another accel holds the lock: the agent does not wait for it for long.
		busy.Store(true)
		set("cubic")
		time.Sleep(lookEvery + lockTimeout + time.Second)
		synctest.Wait()
		if live() != "cubic" || !strings.Contains(told[len(told)-1], "waiting") {
			t.Errorf("while busy: %s, told %q", live(), told)
		}
		busy.Store(false)
		time.Sleep(2 * lookEvery)
		synctest.Wait()
		if live() != "bbr" || strings.Contains(told[len(told)-1], "waiting") {
			t.Errorf("no longer busy: %s, told %q", live(), told)
		}

		// A fight, as status sees it.
		for range 2 * fightLimit {
			set("cubic")
			time.Sleep(lookEvery)
			synctest.Wait()
		}
		var r tuning.AgentReport
		data, err := h.Files.ReadFile(tuning.AgentFile)
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil || len(r.GaveUp) != 1 || r.GaveUp[0].Live != "cubic" || live() != "cubic" {
			t.Errorf("after a fight: %s, report %+v (%v)", live(), r, err)
		}
		if s, err := tuning.Assess(t.Context(), h); err != nil || s.Exit != tuning.ExitAttention || s.Verdict != tuning.Drifted {
			t.Errorf("status %+v (%v)", s, err)
		}

		// The next enable starts anew, even if it cannot restart the service.
		if _, err := tuning.Enable(t.Context(), h, tuning.Request{Algorithm: "cubic"}); err != nil {
			t.Fatal(err)
		}
		if _, err := tuning.Enable(t.Context(), h, tuning.Request{Algorithm: "bbr"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		synctest.Wait()
		set("cubic")
		time.Sleep(lookEvery)
		synctest.Wait()
		if live() != "bbr" {
			t.Errorf("not healed after a new enable; journal\n%s", journal.String())
		}

		// Disabled: nothing is left to do.
		if _, err := tuning.Disable(t.Context(), h, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if live() != "cubic" || told[len(told)-1] != "STOPPING=1" || !slices.Contains(told, "STATUS=nothing is enabled") {
			t.Errorf("at the end: %s, told %q", live(), told)
		}
		if _, err := h.Files.Lstat(tuning.AgentFile); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the report is still there (%v)", err)
		}
	})
}
