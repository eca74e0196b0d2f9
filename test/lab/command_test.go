package lab

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"accel/test/vm"
)

// build builds accel for a machine.
func build(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "accel")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", name, "accel/cmd/accel")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return name
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// TestCommand is what a person sees on a kernel that has everything.
func TestCommand(t *testing.T) {
	vm.Need(t)
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel61, Files: map[string]string{"/usr/bin/accel": build(t)}})
	const facts = "ip -o link | sed 's/state [A-Z]*//'; sysctl -a 2>/dev/null | grep ^net | grep -v -e _mem -e available -e allowed | sort; cat /proc/net/route"
	before := m.MustRun(t, facts)

	// bbr against cubic with settings, where cubic has no chance.
	out := m.MustRun(t, "printf '# route initcwnd 30\\nnet.ipv4.tcp_slow_start_after_idle=0\\nkernel.panic=7\\n' >/tmp/mine.conf; "+
		"accel compare bbr mine --arm mine=/tmp/mine.conf --rate 20 --rtt 40 --loss 3 --size 256K --rounds 5 --json --html /tmp/x.html")
	var doc struct {
		Exit      int
		Complete  bool
		Transfers []struct {
			Finished  bool
			Algorithm string
			MinRTT    float64 `json:"min_rtt"`
		}
		Plan struct {
			Arms []struct {
				NotCompared []string `json:"not_compared"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !doc.Complete || len(doc.Transfers) != 10 || len(doc.Plan.Arms[1].NotCompared) != 1 {
		t.Errorf("%+v", doc)
	}
	for _, x := range doc.Transfers {
		if !x.Finished || x.MinRTT < 40 || x.Algorithm == "" {
			t.Errorf("%+v", x)
		}
	}
	m.MustRun(t, "test -s /tmp/x.html")

	// Killed in the middle, by SIGTERM and by SIGKILL.
	r := m.Run(t, "cd /tmp; accel compare bbr cubic --rate 5 --rtt 20 --size 256K --rounds 50 --resume /tmp/x.part >/tmp/out 2>&1 & p=$!; "+
		"for i in $(seq 600); do test $(wc -l </tmp/x.part 2>/dev/null || echo 0) -ge 3 && break; sleep 0.1; done; kill -TERM $p; wait $p; echo exit $?; cat /tmp/out; pgrep -f lab-child")
	if !strings.Contains(r.Stdout, "exit 1\n") || !strings.Contains(strings.Join(strings.Fields(r.Stdout), " "), "accel compare --resume /tmp/x.part") || strings.Contains(r.Stdout, "lab-child") {
		t.Errorf("interrupted: %s", r.Stdout)
	}
	r = m.Run(t, "accel compare --resume /tmp/x.part >/tmp/out 2>&1 & p=$!; n=$(wc -l </tmp/x.part); "+
		"for i in $(seq 600); do test $(wc -l </tmp/x.part) -gt $n && break; sleep 0.1; done; kill -KILL $p; wait $p; "+
		"for i in $(seq 50); do pgrep -f lab-child >/dev/null || break; sleep 0.1; done; pgrep -f lab-child; test $(wc -l </tmp/x.part) -gt $n && echo went on")
	if strings.TrimSpace(r.Stdout) != "went on" {
		t.Errorf("killed: %s", r.Stdout)
	}

	// A full /tmp: the comparison cannot be resumed, and says so.
	r = m.Run(t, "mkdir -p /full && mount -t tmpfs -o size=4k none /full && head -c 4096 /dev/zero >/full/x; "+
		"TMPDIR=/full accel compare bbr cubic --rate 20 --rtt 10 --size 64K --rounds 1; echo exit $?; ls /full")
	if !strings.Contains(r.Stdout, "exit 0\nx\n") || !strings.Contains(strings.Join(strings.Fields(r.Stderr), " "), "cannot be resumed") {
		t.Errorf("full: %s%s", r.Stdout, r.Stderr)
	}
	r = m.Run(t, "accel compare bbr cubic --rate 20 --rtt 10 --size 64K --rounds 1 --html /full/x.html; echo exit $?; ls -A /full")
	if !strings.Contains(r.Stdout, "exit 1\nx\n") {
		t.Errorf("full for the page: %s%s", r.Stdout, r.Stderr)
	}

	if after := m.MustRun(t, facts); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// TestMemory: the default plan, but for the number of rounds, uses less than 50
// MiB in all its processes together, what they share counted for each.
func TestMemory(t *testing.T) {
	vm.Need(t)
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel61, Files: map[string]string{"/usr/bin/accel": build(t)}})
	r := m.Run(t, "accel compare bbr cubic --rounds 1 >/tmp/out 2>&1 & p=$!; most=0; n=0; "+
		"while kill -0 $p 2>/dev/null; do sum=0; many=0; for x in $p $(cat /proc/$p/task/*/children); do "+
		"while read k v u; do case $k in VmRSS:) sum=$((sum+v)); many=$((many+1));; esac; done </proc/$x/status; done 2>/dev/null; "+
		"if [ $sum -gt $most ]; then most=$sum; fi; if [ $many -gt $n ]; then n=$many; fi; sleep 0.2; done; wait $p; echo exit $? $n $most")
	var exit, processes, kib int
	if _, err := fmt.Sscanf(lastLine(r.Stdout), "exit %d %d %d", &exit, &processes, &kib); err != nil || exit != 0 || processes != 4 || kib < 10<<10 || kib > 50<<10 {
		t.Errorf("memory: %s%s", r.Stdout, r.Stderr)
	}
	t.Logf("%d processes, %.1f MiB", processes, float64(kib)/1024)
}

// TestNoNetem: what the kernel lacks is named, with where to get it.
func TestNoNetem(t *testing.T) {
	vm.Need(t)
	m := vm.Small(t, vm.Guest{Kernel: vm.Kernel61, Without: []string{"sch_netem"}, Files: map[string]string{"/usr/bin/accel": build(t)}})
	r := m.Run(t, "accel compare bbr cubic")
	if stderr := strings.Join(strings.Fields(r.Stderr), " "); r.Exit != 5 || !strings.Contains(stderr, "no qdisc netem") || !strings.Contains(stderr, "modprobe sch_netem") {
		t.Errorf("exit %d\n%s", r.Exit, r.Stderr)
	}
	if r := m.Run(t, "su -s /bin/sh nobody -c 'accel compare bbr cubic'"); r.Exit != 1 || !strings.Contains(r.Stderr, "sudo accel compare bbr cubic") {
		t.Errorf("not root: exit %d\n%s", r.Exit, r.Stderr)
	}
	if r := m.Run(t, "ls /tmp"); r.Stdout != "" {
		t.Errorf("left: %s", r.Stdout)
	}
}
