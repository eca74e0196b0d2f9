package lab

import (
	"testing"
	"time"

	"accel/pkg/kernel"
)

func arms(t *testing.T, algorithms ...string) []Arm {
	t.Helper()
	var all []Arm
	for _, name := range algorithms {
		a, err := AlgorithmArm(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

// A path with a rate and a queue only: every kernel has a tbf.
func TestCompareOverARate(t *testing.T) {
	needRoot(t)
	plan := Plan{
		Arms:  arms(t, "cubic", "reno"),
		Paths: []Path{{RateMbit: 80, QueuePackets: 50}},
		Sizes: []int64{500_000}, Rounds: 2, Flows: 2, Seed: 3, Limit: 10 * time.Second,
	}
	run, err := Compare(t.Context(), plan, Options{Load: kernel.LoadModule})
	if err != nil {
		t.Fatal(err)
	}
	if !run.Complete || len(run.Transfers) != 2*2*2 {
		t.Fatalf("complete %v, %d transfers", run.Complete, len(run.Transfers))
	}
	for _, x := range run.Transfers {
		if x.Error != "" || !x.Finished || x.Bytes != 500_000 || x.Algorithm != run.Plan.Arms[x.Arm].Algorithm {
			t.Errorf("%+v", x)
		}
		t.Logf("%s round %d flow %d: %.3f s, %.1f Mbit/s, first %.4f, rtt min %.2f srtt %.2f loaded %.2f, again %.4f, to90 %.3f, %d samples",
			x.Algorithm, x.Round, x.Flow, x.Seconds, x.Goodput/1e6, x.FirstByte, x.MinRTT, x.SRTT, x.LoadedRTT, x.RetransShare, x.To90, len(x.Samples))
	}
}
