package vm

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// onlyLong skips a test whose ground the tests in test/hosts stand on, and so
// cover, unless the full counts were asked for.
func onlyLong(t *testing.T) {
	t.Helper()
	if v := os.Getenv("ACCEL_LONG"); v == "" || v == "0" {
		t.Skip("test/hosts shows the same; ACCEL_LONG=1 runs it")
	}
}

// TestSmall boots every kernel of the matrix and has modules loaded the way
// that tests of accel rely on: by modprobe, and by the kernel itself.
func TestSmall(t *testing.T) {
	for _, k := range Kernels() {
		t.Run(k.String(), func(t *testing.T) {
			if k != Kernel61 {
				onlyLong(t)
			}
			t.Parallel()
			m := Small(t, Guest{Kernel: k, Links: 1})
			t.Logf("%s took %v to boot", m.Release, m.Booted)
			if got := m.MustRun(t, "uname -r"); strings.TrimSpace(got) != m.Release {
				t.Errorf("uname -r: %q, want %q", got, m.Release)
			}
			m.MustRun(t, "modprobe sch_fq && ip link set eth0 up && tc qdisc replace dev eth0 root fq")
			if got := m.MustRun(t, "tc qdisc show dev eth0"); !strings.Contains(got, "qdisc fq 8") {
				t.Errorf("the root qdisc of eth0 is %q", got)
			}
			m.MustRun(t, "echo bbr > /proc/sys/net/ipv4/tcp_congestion_control")
			if got := m.MustRun(t, "cat /proc/sys/net/ipv4/tcp_congestion_control"); got != "bbr\n" {
				t.Errorf("the kernel did not load bbr by itself: %q", got)
			}
			if r := m.Run(t, "echo out; echo err >&2; exit 7"); r != (Result{"out\n", "err\n", 7}) {
				t.Errorf("a command's result came back as %+v", r)
			}
			r, err := m.ExecStdin(t.Context(), "cat; kill -TERM $$", []byte("in\x00\xff\n"))
			if err != nil || r != (Result{"in\x00\xff\n", "", 128 + 15}) {
				t.Errorf("a killed command's result came back as %+v, %v", r, err)
			}
		})
	}
}

// TestSmallWithout takes a module away from a machine.
func TestSmallWithout(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	m := Small(t, Guest{Kernel: Kernel61, Without: []string{"tcp_bbr"}})
	if r := m.Run(t, "modprobe tcp_bbr"); r.Exit == 0 {
		t.Error("tcp_bbr was loaded")
	}
	m.MustRun(t, "modprobe tcp_vegas")
}

// TestQueues gives a machine a link with four queues.
func TestQueues(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	m := Small(t, Guest{Kernel: Kernel612, Links: 2, Queues: 4, CPUs: 4})
	m.MustRun(t, "ip link set eth0 up")
	got := m.MustRun(t, "tc qdisc show dev eth0")
	if strings.Count(got, "qdisc mq 0: root") != 1 || strings.Count(got, "qdisc fq_codel 0: parent :") != 4 {
		t.Errorf("eth0 has:\n%s", got)
	}
	if got := m.MustRun(t, "ip link set eth1 up && tc qdisc show dev eth1"); !strings.HasPrefix(got, "qdisc fq_codel 0: root") {
		t.Errorf("eth1 has:\n%s", got)
	}
}

// TestRunTests runs a test of this package in a machine.
func TestRunTests(t *testing.T) {
	t.Parallel()
	RunTests(t, Guest{Kernel: Kernel61}, "./test/vm", "^TestInGuest$")
}

// TestInGuest is run by TestRunTests.
func TestInGuest(t *testing.T) {
	if os.Getenv("ACCEL_GUEST") == "" {
		t.Skip("runs in a machine that TestRunTests starts")
	}
	host, err := os.Hostname()
	if err != nil || host != "small" || os.Getuid() != 0 {
		t.Errorf("running on %q as %d, %v", host, os.Getuid(), err)
	}
}

// TestParseTests reads what a test program writes.
func TestParseTests(t *testing.T) {
	got := parseTests(`=== RUN   TestA
=== RUN   TestA/one
    a_test.go:1: hello
--- FAIL: TestA (0.00s)
    --- FAIL: TestA/one (0.00s)
=== RUN   TestB
    b_test.go:2: no
--- SKIP: TestB (0.00s)
FAIL
`)
	want := []testResult{{"TestA", "FAIL", ""}, {"TestA/one", "FAIL", "    a_test.go:1: hello\n"}, {"TestB", "SKIP", "    b_test.go:2: no\n"}}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}

// TestWhole takes a whole machine through a power cut: what was synced is
// there afterwards, what was not is lost.
func TestWhole(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	m := Whole(t, Bookworm, Options{})
	t.Logf("%s took %v to be there", m.Release, m.Booted)
	if r := m.Run(t, "echo out; echo err >&2; exit 7"); r != (Result{"out\n", "err\n", 7}) {
		t.Errorf("a command's result came back as %+v", r)
	}
	now, err := strconv.ParseInt(strings.TrimSpace(m.MustRun(t, "date +%s")), 10, 64)
	if d := time.Since(time.Unix(now, 0)); err != nil || d.Abs() > time.Minute {
		t.Errorf("the machine's clock is %v behind (%v)", d, err)
	}
	m.MustRun(t, "echo kept > /root/kept && sync /root/kept /root && sleep 1 && echo lost > /root/lost")
	m.Kill()
	if _, err := m.Exec(t.Context(), "true"); err == nil {
		t.Error("a machine without power has run a command")
	}
	m.Start(t)
	t.Logf("a boot took %v", m.Booted)
	if got := m.MustRun(t, "cat /root/kept"); got != "kept\n" {
		t.Errorf("what was synced reads %q", got)
	}
	if r := m.Run(t, "cat /root/lost"); r.Stdout == "lost\n" {
		t.Error("what was not synced is there: that was no power cut")
	}
	if failed := m.WaitBooted(t); failed != nil {
		t.Errorf("failed units: %q", failed)
	}
}
