package lab

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/sysctl"
)

func TestRunKeepsEverythingInJSON(t *testing.T) {
	share := 0.25
	run := Run{
		Schema: Schema, Version: "1", Command: "accel compare bbr cubic", Started: time.Unix(1, 0).UTC(), Ended: time.Unix(2, 0).UTC(),
		Plan: Plan{
			Arms: []Arm{{Name: "a", Algorithm: "bbr", Qdisc: "fq", InitialCwnd: 30, InitialRwnd: 40, Source: "a.conf",
				Settings:    []sysctl.KeyValue{{Key: "net/ipv4/tcp_ecn", Value: "1"}, {Key: "net/ipv4/conf/eth0.1/forwarding", Value: "1"}},
				NotCompared: []string{"net.core.somaxconn: no"}}},
			Paths: []Path{{Name: "x", Source: "y", RateMbit: 1.5, RTT: 100500 * time.Microsecond, Jitter: time.Millisecond,
				LossPercent: 0.1, LossBurst: 3, ReorderPercent: 2, QueueBDP: 1.5, QueuePackets: 12, ClientBuffer: 65536, Loopback: true}},
			Sweep: "loss", Sizes: []int64{1, 2}, Flows: 3, Rounds: 4, Against: "cubic", Seed: 1<<64 - 1, Limit: 61500 * time.Millisecond,
		},
		Kernel: "6.1", Distribution: "d", Machine: "m", CPUs: 2, MemoryBytes: 5,
		Transfers: []Transfer{{Path: 1, Arm: 1, Size: 3, Share: &share, Samples: []Sample{{At: 1, Cwnd: 2, RTT: 3}}}},
		Complete:  true,
	}
	data, err := json.Marshal(run)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"rtt_ms":100.5`, `"limit_seconds":61.5`, `"key":"net.ipv4.conf.eth0/1.forwarding"`, `"seed":18446744073709551615`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is not in %s", want, data)
		}
	}
	var back Run
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(run, back); d != "" {
		t.Error(d)
	}
}
