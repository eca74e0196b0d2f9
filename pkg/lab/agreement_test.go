package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"accel/pkg/kernel"
	"accel/pkg/sysctl"
)

// inside is a command that runs in the network namespace of a child.
func inside(c *child, name string, args ...string) *exec.Cmd {
	args = append([]string{"nsenter", "-t", strconv.Itoa(c.process.Pid), "-n", name}, args...)
	return exec.Command("busybox", args...)
}

// background starts a server in the namespace of a child, which ends with the
// test.
func background(t *testing.T, c *child, name string, args ...string) {
	t.Helper()
	cmd := inside(c, name, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// await waits until a server in the namespace of a child listens.
func await(t *testing.T, c *child, port uint16) {
	t.Helper()
	const listening = "0A"
	for range 200 {
		for _, table := range []string{"tcp", "tcp6"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", c.process.Pid, table))
			if err != nil {
				continue // no IPv6 here
			}
			for line := range strings.Lines(string(data)) {
				f := strings.Fields(line)
				if len(f) > 3 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
					return
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("nothing listens on port %d", port)
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// On a path without loss, what others measure is what accel measures: iperf3,
// whose sender is iperf3, and curl, whose sender is nginx, over the same
// emulated path.
func TestGuestAgreement(t *testing.T) {
	needGuest(t)
	const (
		rounds = 10
		size   = 1 << 19
	)
	path, err := Path{RateMbit: 8, RTT: 4 * time.Millisecond, QueuePackets: 100}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	algorithms := []string{"bbr", "cubic"}
	if testing.Short() {
		algorithms = algorithms[:1]
	}
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			arm, err := AlgorithmArm(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			r, err := newRig(ctx, false, false, kernel.LoadModule)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			// For the programs that do not choose themselves.
			arm.Settings = append(arm.Settings, sysctl.KeyValue{Key: sysctl.CongestionControl, Value: algorithm})
			if not, err := r.setArm(ctx, 0, arm); err != nil || len(not) > 0 {
				t.Fatal(err, not)
			}
			sender := endAddress(senderEnd).String()

			dir := t.TempDir()
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			conf := fmt.Sprintf("daemon off;\nmaster_process off;\nuser root;\npid %[1]s/pid;\nerror_log stderr;\nevents {}\n"+
				"http { client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t; access_log off; sendfile on; server { listen 80; root %[1]s; } }\n", dir)
			for name, data := range map[string][]byte{"conf": []byte(conf), "file": make([]byte, size)} {
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			background(t, r.sender, "/usr/sbin/nginx", "-p", dir, "-c", "conf", "-e", "stderr")
			background(t, r.receiver, "/usr/bin/iperf3", "-s", "-4")
			await(t, r.sender, 80)
			await(t, r.receiver, 5201)

			goodput := map[string][]float64{}
			plan := Plan{Arms: []Arm{arm}, Paths: []Path{path}, Sizes: []int64{size}, Rounds: rounds}
			plan, err = plan.Complete()
			if err != nil {
				t.Fatal(err)
			}
			c := &comparison{plan: plan, run: &Run{}, done: map[job]bool{}, pace: newPace(plan), rig: r}
			for round := range rounds {
				fresh := func() {
					t.Helper()
					if err := r.shape(ctx, path, 0); err != nil {
						t.Fatal(err)
					}
					for _, end := range []*child{r.sender, r.receiver} {
						if err := r.call(ctx, end, "forget", nil, nil); err != nil {
							t.Fatal(err)
						}
					}
				}
				flows, err := c.measure(ctx, job{Round: round})
				if err != nil {
					t.Fatal(err)
				}
				goodput["accel"] = append(goodput["accel"], flows[0].Goodput)

				fresh()
				out, err := inside(r.receiver, "/usr/bin/curl", "-s", "-S", "-f", "-o", "/dev/null", "-w", "%{time_total} %{size_download}", "http://"+sender+"/file").Output()
				if err != nil {
					t.Fatal(err)
				}
				var took, got float64
				if _, err := fmt.Sscan(string(out), &took, &got); err != nil || got != size {
					t.Fatalf("curl says %q: %v", out, err)
				}
				goodput["curl and nginx"] = append(goodput["curl and nginx"], got*8/took)

				fresh()
				out, err = inside(r.sender, "/usr/bin/iperf3", "-c", endAddress(receiverEnd).String(), "-C", algorithm, "-n", strconv.Itoa(size), "-l", "64K", "--json").Output()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				var said struct {
					End struct {
						Received struct {
							Rate float64 `json:"bits_per_second"`
						} `json:"sum_received"`
					}
				}
				if err := json.Unmarshal(out, &said); err != nil {
					t.Fatal(err)
				}
				goodput["iperf3"] = append(goodput["iperf3"], said.End.Received.Rate)
			}
			ours := median(goodput["accel"])
			for _, name := range []string{"curl and nginx", "iperf3"} {
				theirs := median(goodput[name])
				t.Logf("%s: %.3f Mbit/s, accel %.3f: %+.1f %%", name, theirs/1e6, ours/1e6, (ours/theirs-1)*100)
				if theirs == 0 || max(ours/theirs, theirs/ours) > 1.05 {
					t.Errorf("%s and accel differ by more than 5 %%", name)
				}
			}
		})
	}
}
