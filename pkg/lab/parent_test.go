package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"accel/pkg/kernel"
)

// members gives the processes of this host that are in one of some network
// namespaces.
func members(t *testing.T, nets []string) []int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, l := range links {
		if name, err := os.Readlink(l); err == nil && slices.Contains(nets, name) {
			pid, _ := strconv.Atoi(strings.Split(l, "/")[2])
			all = append(all, pid)
		}
	}
	return all
}

// children gives the processes that have a parent and are ours.
func children(t *testing.T, parent int) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		after := data[bytes.LastIndexByte(data, ')')+1:]
		if fields := strings.Fields(string(after)); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			all = append(all, pid)
		}
	}
	return all
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// killedVar makes this program the parent that is to be killed.
const killedVar = "ACCEL_LAB_KILLED"

func TestKilledParent(t *testing.T) {
	needRoot(t)
	if os.Getenv(killedVar) != "" {
		plan := Plan{Arms: arms(t, "cubic", "reno"), Paths: []Path{{RateMbit: 1, QueuePackets: 50}}, Sizes: []int64{10 << 20}, Against: "cubic"}
		_, err := Compare(context.Background(), plan, Options{Load: kernel.LoadModule, Progress: func(Progress) { fmt.Println("started") }})
		t.Fatal("it ended: ", err)
	}
	for _, sig := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		out, in, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p, err := os.StartProcess("/proc/self/exe", []string{"test", "-test.run=^TestKilledParent$"}, &os.ProcAttr{
			Env: append(os.Environ(), killedVar+"=1"), Files: []*os.File{nil, in, os.Stderr},
		})
		in.Close()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal("it did not start: ", err)
		}
		ends := children(t, p.Pid)
		if len(ends) != 4 {
			t.Errorf("%d children, want sender, router, receiver and rival", len(ends))
		}
		var nets []string
		for _, pid := range ends {
			name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
			if err != nil {
				t.Error(err)
			}
			if slices.Contains(nets, name) {
				t.Error("two children share a namespace")
			}
			nets = append(nets, name)
		}
		// Who is in them is noted now: the number of a namespace that has ended
		// is soon that of another, which a test beside this one has made.
		inside := members(t, nets)
		if len(inside) < len(ends) {
			t.Errorf("%d processes in the namespaces of %d children", len(inside), len(ends))
		}
		if err := p.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_, _ = p.Wait()
		_, _ = io.Copy(io.Discard, out)
		out.Close()
		deadline := time.Now().Add(5 * time.Second)
		for {
			left := slices.DeleteFunc(slices.Clone(inside), gone)
			if len(left) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: processes %v are left", sig, left)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// Two comparisons at once do not meet, and neither leaves anything in the
// namespace that it was started from.
func TestTwoAtOnce(t *testing.T) {
	needRoot(t)
	before, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			plan := Plan{Arms: arms(t, "cubic", "reno"), Paths: []Path{{RateMbit: 50, QueuePackets: 50}}, Sizes: []int64{200_000}, Rounds: 1, Against: "reno"}
			run, err := Compare(t.Context(), plan, Options{Load: kernel.LoadModule})
			if err != nil {
				t.Error(err)
				return
			}
			for _, x := range run.Transfers {
				if !x.Finished || x.Error != "" || x.Share == nil {
					t.Errorf("%+v", x)
				}
			}
		})
	}
	wg.Wait()
	after, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		t.Fatal(err)
	}
	links := func(data []byte) (names []string) {
		for l := range bytes.Lines(data) {
			name, _, _ := bytes.Cut(l, []byte(":"))
			names = append(names, string(bytes.TrimSpace(name)))
		}
		return names
	}
	if b, a := links(before)[2:], links(after)[2:]; !slices.Equal(b, a) {
		t.Errorf("links before %q, after %q", b, a)
	}
}

// A transfer that is not done in its time is a result.
func TestLimit(t *testing.T) {
	needRoot(t)
	plan := Plan{Arms: arms(t, "cubic"), Paths: []Path{{RateMbit: 1, QueuePackets: 20}}, Sizes: []int64{1 << 20}, Rounds: 1, Limit: 500 * time.Millisecond}
	run, err := Compare(t.Context(), plan, Options{Load: kernel.LoadModule})
	if err != nil {
		t.Fatal(err)
	}
	x := run.Transfers[0]
	if x.Finished || x.Error != "" || x.Seconds < 0.5 || x.Seconds > 2 || x.Bytes < 20_000 || x.Bytes > 150_000 || x.MinRTT == 0 {
		t.Errorf("%+v", x)
	}
}

// What was finished before an interruption is not done again.
func TestResume(t *testing.T) {
	needRoot(t)
	plan, err := Plan{Arms: arms(t, "cubic", "reno"), Paths: []Path{{RateMbit: 100, QueuePackets: 50}}, Sizes: []int64{100_000}, Rounds: 3}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "x.part")
	s, err := CreateState(name, plan, "accel", "x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	run, err := Compare(ctx, plan, Options{State: s, Load: kernel.LoadModule, Progress: func(p Progress) {
		if p.Done == 3 {
			cancel()
		}
	}})
	if !Interrupted(err) || run.Complete || len(run.Transfers) != 3 {
		t.Fatalf("%v, complete %v, %d transfers", err, run.Complete, len(run.Transfers))
	}
	s.Close()
	if s, err = OpenState(name); err != nil || s.Done() != 3 {
		t.Fatalf("%v, %d done", err, s.Done())
	}
	before := slices.Clone(run.Transfers)
	if run, err = Compare(t.Context(), plan, Options{State: s, Load: kernel.LoadModule}); err != nil {
		t.Fatal(err)
	}
	if !run.Complete || len(run.Transfers) != 6 {
		t.Fatalf("complete %v, %d transfers", run.Complete, len(run.Transfers))
	}
	for i, x := range before {
		if run.Transfers[i].Seconds != x.Seconds {
			t.Errorf("transfer %d was made again", i)
		}
	}
	seen := map[job]bool{}
	for _, x := range run.Transfers {
		seen[plan.jobOf(x)] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d different transfers", len(seen))
	}
	s.Close()
	// All done: nothing is left to measure.
	if s, err = OpenState(name); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := time.Now()
	if run, err = Compare(t.Context(), plan, Options{State: s, Load: kernel.LoadModule}); err != nil || !run.Complete || len(run.Transfers) != 6 {
		t.Errorf("%v in %v", err, time.Since(began))
	}
}

// A full disk ends the keeping, not the comparison, where the caller wants that.
func TestLostState(t *testing.T) {
	needRoot(t)
	plan, err := Plan{Arms: arms(t, "cubic"), Paths: []Path{{RateMbit: 100, QueuePackets: 50}}, Sizes: []int64{50_000}, Rounds: 3}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	full := func() *State {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return &State{Plan: plan, name: "/dev/full", file: f}
	}
	lost := 0
	run, err := Compare(t.Context(), plan, Options{State: full(), Load: kernel.LoadModule, Lost: func(err error) {
		lost++
		if !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	}})
	if err != nil || !run.Complete || lost != 1 {
		t.Errorf("%v, lost %d times", err, lost)
	}
	if _, err := Compare(t.Context(), plan, Options{State: full(), Load: kernel.LoadModule}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
}

// A child touches nothing unless it is in a namespace of its own.
func TestChildAtHome(t *testing.T) {
	if err := abroad(); !errors.Is(err, errAtHome) {
		t.Errorf("%v", err)
	}
}

func TestMissing(t *testing.T) {
	needRoot(t)
	asked := ""
	plan := Plan{Arms: []Arm{{Name: "x", Algorithm: "nosuch"}}, Paths: []Path{{RateMbit: 100, QueuePackets: 50}}}
	_, err := Compare(t.Context(), plan, Options{Load: func(_ context.Context, module string) error { asked = module; return nil }})
	var m *Missing
	if !errors.As(err, &m) || m.Name != "nosuch" || asked != "tcp_nosuch" {
		t.Errorf("%v, asked for %q", err, asked)
	}
	plan.Arms = []Arm{{Name: "x", Algorithm: "cubic", Qdisc: "nosuch"}}
	plan.Sizes, plan.Rounds = []int64{1000}, 1
	run, err := Compare(t.Context(), plan, Options{})
	if err != nil || len(run.Plan.Arms[0].NotCompared) != 1 || !strings.Contains(run.Plan.Arms[0].NotCompared[0], "nosuch") {
		t.Errorf("%v, %+v", err, run.Plan.Arms)
	}
}
