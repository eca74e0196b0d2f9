package hosts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"accel/test/vm"
)

// TestPowerCut cuts the power of machines in the middle of enable and of
// disable. After the boot the status has to be true, and both commands have to
// work. The instants are random; ACCEL_SEED repeats those of an earlier run.
func TestPowerCut(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("ACCEL_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	n := 2
	if long() {
		n = 10
	}
	t.Logf("ACCEL_SEED=%d", seed)
	for i := range n {
		command := []string{"enable bbr --no-probe", "disable"}[i%2]
		t.Run(fmt.Sprintf("4_%s_%d", strings.Fields(command)[0], i), func(t *testing.T) {
			t.Parallel()
			release := []vm.Release{vm.Bookworm, vm.Trixie}[i/2%2]
			opts := vm.Options{}
			if release == vm.Trixie {
				opts = vm.Options{MemoryMB: 512, CPUs: 1} // as in TestWholeTrixie
			}
			m := vm.Whole(t, release, opts)
			powerCut(t, m, command, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
}

func powerCut(t *testing.T, m *vm.Machine, command string, random *rand.Rand) {
	install(t, m)
	before := look(t, m)
	// A first round shows how long the commands take.
	usual := map[string]time.Duration{}
	for _, c := range []string{"enable bbr --no-probe", "disable"} {
		ms, err := strconv.Atoi(strings.TrimSpace(m.MustRun(t, watched(c, "s=$(date +%s%3N); wait $p || exit; echo $(($(date +%s%3N) - s))"))))
		if err != nil {
			t.Fatal(err)
		}
		usual[c] = time.Duration(ms) * time.Millisecond
	}
	same(t, "after enable and disable", before, look(t, m))
	if command == "disable" {
		enable(t, m)
	}
	// Most of what matters happens early; systemd takes most of the time.
	f := random.Float64()
	after := time.Duration(f * f * f * float64(usual[command]))
	t.Logf("accel %s usually takes %v after its first write; the power goes after %v", command, usual[command], after.Round(time.Millisecond))
	cut(t, m, command, after)

	m.Start(t)
	if failed := m.WaitBooted(t); failed != nil {
		t.Errorf("failed units after the power cut: %q", failed)
	}
	s := statusOf(t, m)
	t.Logf("after the power cut: %s, %s", s.Verdict, s.Reason)
	truthful(t, m, s)

	enable(t, m)
	inForce(t, m)
	if r := disable(t, m); len(r.Left) != 0 {
		t.Errorf("disable left %+v", r.Left)
	}
	same(t, "after the power cut, enable and disable", before, look(t, m))
	if r := m.Run(t, "find /etc /var/lib/accel -name '.*accel*' -o -path '*/accel/.*'"); r.Stdout != "" {
		t.Errorf("the power cut left files: %s", r.Stdout)
	}
}

// watched returns a shell command that starts a command of accel, waits for
// its first write (that of the state), and then runs the rest; $p is the
// command's process.
func watched(command, rest string) string {
	return fmt.Sprintf("touch /run/before; sleep 0.1; accel %s > /dev/null & p=$!; until [ %s -nt /run/before ] || ! kill -0 $p 2> /dev/null; do :; done; %s", command, stateFile, rest)
}

// cut starts a command of accel, and cuts the power a while after its first
// write.
func cut(t *testing.T, m *vm.Machine, command string, after time.Duration) {
	m.MustRun(t, "sync")
	const mark = "the first write is done"
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It ends with the machine, or before.
		m.Exec(t.Context(), watched(command, "echo "+mark+" > /dev/console; wait"))
	}()
	for end := time.Now().Add(time.Minute); !strings.Contains(m.Console(), mark); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("accel %s has written nothing within a minute", command)
			break
		}
	}
	time.Sleep(after)
	m.Kill()
	<-done
}

// truthful checks a status against what can be seen without accel.
func truthful(t *testing.T, m *vm.Machine, s status) {
	t.Helper()
	live := sysctl(t, m, algorithmKey)
	if s.Algorithm.Default == nil || *s.Algorithm.Default != live {
		t.Errorf("the status says that the algorithm is %v, and it is %s", s.Algorithm.Default, live)
	}
	if got := connection(t, m); s.Algorithm.Socket == nil || len(got) != 1 || got[0] != *s.Algorithm.Socket {
		t.Errorf("the status says that a connection has %v, and it has %q", s.Algorithm.Socket, got)
	}
	has := func(name string) bool { return m.Run(t, "test -e "+name).Exit == 0 }
	state, file := has(stateFile), has(sysctlFile)
	root := m.MustRun(t, "tc qdisc show dev eth0 root")
	switch s.Verdict {
	case "good":
		if live != "bbr" || !state || !file || !strings.HasPrefix(root, "qdisc fq 0: ") {
			t.Errorf("the status is good, but the algorithm is %s, %s exists: %v, %s exists: %v, eth0 has %s", live, stateFile, state, sysctlFile, file, root)
		}
		if s.Service == nil || !s.Service.Active {
			t.Logf("note: good without the service: %+v, %q", s.Service, s.Notes)
		}
	case "not-enabled":
		if live != "cubic" || file || has(modulesFile) || !strings.HasPrefix(root, "qdisc fq_codel 0: ") {
			t.Errorf("the status is that nothing is enabled, but the algorithm is %s, %s exists: %v, eth0 has %s", live, sysctlFile, file, root)
		}
	case "drifted", "not-in-force":
		if s.Exit != 4 || s.Next == "" {
			t.Errorf("the status needs attention without saying what to do: %v", s)
		}
	default:
		t.Errorf("a host with bbr has the status %v", s)
	}
}
