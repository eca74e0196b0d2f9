package lab

import (
	"errors"
	"math"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/sysctl"
)

func check[T any](t *testing.T, parse func(string) ([]T, error), good map[string][]T, bad []string) {
	t.Helper()
	for s, want := range good {
		got, err := parse(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", s, d)
		}
	}
	for _, s := range bad {
		if got, err := parse(s); !errors.Is(err, ErrNumber) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

func TestParseOptions(t *testing.T) {
	check(t, ParseRates, map[string][]float64{
		"100": {100}, "500k": {0.5}, "1Gbit": {1000}, "20Mbit/s": {20}, "0": {0}, "10,20, 40": {10, 20, 40}, "1.5": {1.5},
	}, []string{"", "x", "-1", "1T", "1e3", "10,", "10,10", "10,10M", "NaN", "Inf", "1 0", "٣", "0x10"})
	check(t, ParseTimes, map[string][]time.Duration{
		"100": {100 * time.Millisecond}, "0.5ms": {500 * time.Microsecond}, "1s": {time.Second}, "10us": {10 * time.Microsecond}, "0": {0},
		"20,50ms,1s": {20 * time.Millisecond, 50 * time.Millisecond, time.Second},
	}, []string{"", "ms", "-5", "1m", "1h", "99999999999999999999"})
	check(t, ParsePercents, map[string][]float64{
		"1": {1}, "0.1%": {0.1}, "0,0.1,0.5,1,2,5,10": {0, 0.1, 0.5, 1, 2, 5, 10},
	}, []string{"", "101", "%", "-1", "1%%", "1 %"})
	check(t, ParseQueues, map[string][]Queue{
		"64": {{Packets: 64}}, "1x": {{BDP: 1}}, "0.5bdp,1x,2x": {{BDP: 0.5}, {BDP: 1}, {BDP: 2}}, "100p": {{Packets: 100}},
	}, []string{"", "1", "0x", "0", "x", "-1x", "1.5", "99999999999"})
}

func TestParseArm(t *testing.T) {
	a, err := ParseArm("mine", "mine.conf", []byte("# qdisc fq\n#route initcwnd 30\n  # route initrwnd 40\nnet.core.default_qdisc=cake\n"+
		"net.ipv4.tcp_congestion_control = bbr\nnet/ipv4/tcp_ecn=1\nnet.ipv4.tcp_ecn = 2\nvm.swappiness=1\nnet.ipv4.conf.*.rp_filter=1\n# just words\nnonsense\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(a.NotCompared) != 3 {
		t.Errorf("not compared: %q", a.NotCompared)
	}
	a.NotCompared = nil
	want := Arm{Name: "mine", Source: "mine.conf", Algorithm: "bbr", Qdisc: "fq", InitialCwnd: 30, InitialRwnd: 40,
		Settings: []sysctl.KeyValue{{Key: "net/ipv4/tcp_ecn", Value: "2"}}}
	if d := cmp.Diff(want, a); d != "" {
		t.Error(d)
	}
	for text, want := range map[string]Arm{
		"\n":                                     {Algorithm: "cubic"},
		"net.core.default_qdisc=fq_codel":        {Algorithm: "cubic", Qdisc: "fq_codel"},
		"net.ipv4.tcp_congestion_control=bbr":    {Algorithm: "bbr", Qdisc: "fq"},
		"net.ipv4.tcp_congestion_control=hybla ": {Algorithm: "hybla"},
	} {
		want.Name, want.Source = "x", "x.conf"
		got, err := ParseArm("x", "x.conf", []byte(text))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%q: %v %s", text, err, d)
		}
	}
	for _, text := range []string{
		"# route initcwnd 0", "# route initcwnd many", "# route initrwnd 65536", "# qdisc FQ", "# qdisc ../x",
		"net.ipv4.tcp_congestion_control=bbr cubic", "net.core.default_qdisc=a/b", strings.Repeat("\n", maxArm+1),
	} {
		if got, err := ParseArm("x", "x.conf", []byte(text)); !errors.Is(err, ErrArm) {
			t.Errorf("%.60q: %+v, %v", text, got, err)
		}
	}
	for _, name := range []string{"", "a b", "-x", "a/b", strings.Repeat("a", 33), "é"} {
		if _, err := ParseArm(name, "x.conf", nil); !errors.Is(err, ErrArm) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

// Whatever an arm's file holds: it is refused, or it is an arm that names keys
// of the network only, and goes through JSON unchanged.
func FuzzParseArm(f *testing.F) {
	f.Add([]byte("# qdisc fq\n# route initcwnd 30\nnet.ipv4.tcp_congestion_control=bbr\nnet.ipv4.tcp_rmem=1 2 3\n"))
	f.Add([]byte("net/..0=")) // an odd name, but no way out
	f.Add([]byte("net/../kernel/x=1\n-net.ipv4.tcp_ecn\n\xff\xfe=\r\nnet.ipv4.conf.*.x=1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ParseArm("x", "x.conf", data)
		if err != nil {
			if !errors.Is(err, ErrArm) {
				t.Fatal(err)
			}
			return
		}
		if !isKind(a.Algorithm) || a.Qdisc != "" && !isKind(a.Qdisc) {
			t.Fatalf("%+v", a)
		}
		for _, s := range a.Settings {
			if !strings.HasPrefix(string(s.Key), "net/") || path.Clean(string(s.Key)) != string(s.Key) {
				t.Fatalf("key %q", s.Key)
			}
		}
	})
}

// Whatever is asked for, a path that passes can be put into numbers that the
// kernel takes as they are meant.
func FuzzPathOptions(f *testing.F) {
	f.Add("100", "100ms", "1", "10ms", "1x")
	f.Fuzz(func(t *testing.T, rate, rtt, loss, jitter, queue string) {
		rates, err1 := ParseRates(rate)
		rtts, err2 := ParseTimes(rtt)
		losses, err3 := ParsePercents(loss)
		jitters, err4 := ParseTimes(jitter)
		queues, err5 := ParseQueues(queue)
		if errors.Join(err1, err2, err3, err4, err5) != nil {
			return
		}
		p, err := Path{RateMbit: rates[0], RTT: rtts[0], LossPercent: losses[0], Jitter: jitters[0], QueueBDP: queues[0].BDP, QueuePackets: queues[0].Packets}.Complete()
		if err != nil {
			if !errors.Is(err, ErrPath) {
				t.Fatal(err)
			}
			return
		}
		if p.RTT/2/tick > math.MaxUint32 || p.RateMbit > 0 && (p.QueuePackets < minQueue || p.QueuePackets > maxPackets) {
			t.Fatalf("%+v", p)
		}
		plan, err := Plan{Arms: []Arm{{Name: "a", Algorithm: "cubic"}}, Paths: []Path{p}}.Complete()
		if err != nil {
			t.Fatal(err)
		}
		if d := plan.Estimate(); d <= 0 || d > 8*(DefaultLimit+overhead) {
			t.Fatalf("%+v: %v", p, d)
		}
	})
}
