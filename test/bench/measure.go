package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// row is one line of the result. Empty means: there is no such thing.
type row struct{ what, accel, aim, sysctl, tuned string }

func measure(o options) error {
	if err := os.WriteFile(keyFile, []byte(before), 0); err != nil {
		return fmt.Errorf("setting %s to %s to start from: %w", key, before, err)
	}
	algorithm, err := algorithm()
	if err != nil {
		return err
	}

	// accel. Every run of enable starts from the disabled host.
	var enable, enableProbe, disable, status, version []time.Duration
	undo := func() error { return timed(&disable, installed, "disable") }
	for range o.runs {
		if err := timed(&enable, installed, "enable", algorithm, "--no-probe"); err != nil {
			return err
		}
		if err := undo(); err != nil {
			return err
		}
	}
	const probes = 5 // with the download; it takes long
	for range probes {
		if err := timed(&enableProbe, installed, "enable", algorithm); err != nil {
			return err
		}
		if err := undo(); err != nil {
			return err
		}
	}
	if err := run1(installed, "enable", algorithm, "--no-probe"); err != nil {
		return err
	}
	for range o.runs {
		if err := timed(&status, installed, "status"); err != nil {
			return err
		}
		if err := timed(&version, installed, "version"); err != nil {
			return err
		}
	}
	agent, err := watch(o.idle, installed, "agent")
	if err != nil {
		return err
	}
	if err := undo(); err != nil {
		return err
	}

	// sysctl -p with the same setting.
	const file = "/tmp/bench.conf"
	if err := os.WriteFile(file, []byte(key+" = "+algorithm+"\n"), 0o644); err != nil {
		return err
	}
	var sysctl []time.Duration
	for range o.runs {
		if err := timed(&sysctl, "sysctl", "-p", file); err != nil {
			return err
		}
	}

	var t tunedResult
	if o.tuned {
		if t, err = measureTuned(o, algorithm); err != nil {
			fmt.Fprintf(os.Stderr, "bench: going on without tuned, which does not run here: %v\n", err)
			t = tunedResult{}
		}
	}
	rows := []row{
		{"put in force", median(enable), "150 ms", median(sysctl), median(t.apply)},
		{"  slowest run", slowest(enable), "", slowest(sysctl), slowest(t.apply)},
		{"  with the short download", median(enableProbe), "", "", ""},
		{"put back", median(disable), "", "", ""},
		{"say what is in force", median(status), "50 ms", "", median(t.show)},
		{"  slowest run", slowest(status), "", "", slowest(t.show)},
		{"start and exit", median(version), "", "", ""},
		{"idle: resident memory", agent.memory(agent.rss), "12 MiB", "", t.daemon.memory(t.daemon.rss)},
		{"  of it not shared", agent.memory(agent.anonymous), "", "", t.daemon.memory(t.daemon.anonymous)},
		{"idle: wake-ups a minute", agent.perMinute(agent.wakeups), "6", "", t.daemon.perMinute(t.daemon.wakeups)},
		{"  counting every thread", agent.perMinute(agent.switches), "", "", t.daemon.perMinute(t.daemon.switches)},
		{"idle: processor, ms a minute", agent.perMinute(agent.cpuMS), "", "", t.daemon.perMinute(t.daemon.cpuMS)},
		{"size of the .deb", fmt.Sprintf("%.1f MiB", float64(o.debSize)/(1<<20)), "6 MiB", "", ""},
	}
	fmt.Printf(`
%s; setting %s
The times are medians of %d runs (with the download: %d). The daemons were
watched for %d s. All of it ran in a network namespace with no link but lo, and
without systemd: enable sets and verifies the algorithm, saves the originals
and writes the file for the next boot; it had no qdisc to set.

`, hostName(), algorithm, o.runs, probes, o.idle)
	fmt.Printf("%-29s %-10s %-8s %-10s %s\n", "", "accel", "aim", "sysctl -p", t.name)
	for _, r := range rows {
		fmt.Printf("%-29s %-10s %-8s %-10s %s\n", r.what, r.accel, r.aim, r.sysctl, r.tuned)
	}
	fmt.Print(`
sysctl -p only writes: it neither checks, nor remembers, nor survives a boot.
`)
	if t.name != "" {
		fmt.Print(`tuned: tuned-adm profile, tuned-adm active, and its daemon, over D-Bus, with a
profile of this one sysctl.
`)
	}
	if t.failed > 0 {
		fmt.Printf("Not counted: %d runs in which tuned-adm gave up after 20 s.\n", t.failed)
	}
	return nil
}

type tunedResult struct {
	name        string
	apply, show []time.Duration
	failed      int // runs not counted
	daemon      daemon
}

// measureTuned starts D-Bus and tuned as Debian's units do, and switches it
// between two profiles.
func measureTuned(o options, algorithm string) (t tunedResult, err error) {
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", "tuned").Output()
	if err != nil {
		return t, err
	}
	version, _, _ := strings.Cut(string(out), "-")
	t.name = "tuned " + version
	if err := os.MkdirAll("/run/dbus", 0o755); err != nil {
		return t, err
	}
	bus := exec.Command("dbus-daemon", "--system", "--nofork", "--nopidfile")
	if err := bus.Start(); err != nil {
		return t, err
	}
	defer func() { bus.Process.Kill(); bus.Wait() }()
	if err := eventually(func() bool { _, err := os.Stat("/run/dbus/system_bus_socket"); return err == nil }); err != nil {
		return t, fmt.Errorf("starting D-Bus: %w", err)
	}
	cmd := exec.Command("tuned", "--log", "--pid")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return t, err
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if err := eventually(func() bool { return run1("tuned-adm", "--timeout", "5", "profile", tunedProfile) == nil }); err != nil {
		return t, fmt.Errorf("starting it: %w\n%s", err, log.String())
	}
	for range o.runs {
		// Now and then tuned-adm waits for an answer that has gone by.
		err := run1("tuned-adm", "--timeout", "20", "profile", tunedProfile+"-before")
		if err == nil {
			err = timed(&t.apply, "tuned-adm", "--timeout", "20", "profile", tunedProfile)
		}
		if err != nil {
			t.failed++
			continue
		}
		if got, err := os.ReadFile(keyFile); err != nil || strings.TrimSpace(string(got)) != algorithm {
			return t, fmt.Errorf("its profile left %s at %q (%v)", key, got, err)
		}
		if err := timed(&t.show, "tuned-adm", "active"); err != nil {
			return t, err
		}
	}
	if len(t.apply) == 0 {
		return t, fmt.Errorf("no run of tuned-adm succeeded:\n%s", log.String())
	}
	t.daemon, err = watchProcess(cmd.Process.Pid, o.idle)
	return t, err
}

func eventually(ok func() bool) error {
	for range 100 {
		if ok() {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("not within ten seconds")
}

// run1 runs a command, which has to succeed within a minute.
func run1(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// timed runs a command, which has to succeed, and notes how long it took from
// before its start to after its end.
func timed(times *[]time.Duration, name string, args ...string) error {
	start := time.Now()
	if err := run1(name, args...); err != nil {
		return err
	}
	*times = append(*times, time.Since(start))
	return nil
}

func median(times []time.Duration) string {
	if len(times) == 0 {
		return ""
	}
	s := slices.Sorted(slices.Values(times))
	return milliseconds((s[(len(s)-1)/2] + s[len(s)/2]) / 2)
}

func slowest(times []time.Duration) string {
	if len(times) == 0 {
		return ""
	}
	return milliseconds(slices.Max(times))
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// daemon is what an idle process used.
type daemon struct {
	rss, anonymous int // KiB
	// During the watch: how often it woke from sleep, counting what follows
	// within a tick as the same time; how often one of its threads did; and
	// milliseconds of processor time.
	wakeups, switches, cpuMS int
	seconds                  int
}

func (d daemon) memory(kib int) string {
	if d.seconds == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f MiB", float64(kib)/1024)
}

func (d daemon) perMinute(n int) string {
	if d.seconds == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", float64(n)*60/float64(d.seconds))
}

// watch starts a program that does not end by itself, and watches it.
func watch(seconds int, name string, args ...string) (daemon, error) {
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return daemon{}, err
	}
	d, err := watchProcess(cmd.Process.Pid, seconds)
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return d, err
}

// tick is how finely wake-ups are told apart.
const tick = 50 * time.Millisecond

// watchProcess lets a process settle, then watches it for some seconds.
func watchProcess(pid, seconds int) (daemon, error) {
	time.Sleep(5 * time.Second)
	start, err := usage(pid)
	if err != nil {
		return daemon{}, err
	}
	last, d, awake := start, daemon{}, false
	wakeups := 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		time.Sleep(tick)
		if d, err = usage(pid); err != nil {
			return daemon{}, err
		}
		changed := d.switches != last.switches
		if changed && !awake {
			wakeups++
		}
		last, awake = d, changed
	}
	d.wakeups = wakeups
	d.switches -= start.switches
	d.cpuMS -= start.cpuMS
	d.seconds = seconds
	return d, nil
}

// usage reads what a process has used so far. A process that has ended is an
// error.
func usage(pid int) (d daemon, err error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	if d.rss, err = number(dir+"/smaps_rollup", "Rss:"); err != nil {
		return d, err
	}
	if d.anonymous, err = number(dir+"/smaps_rollup", "Anonymous:"); err != nil {
		return d, err
	}
	tasks, err := filepath.Glob(dir + "/task/*/status")
	if err != nil {
		return d, err
	}
	for _, task := range tasks {
		n, err := number(task, "voluntary_ctxt_switches:")
		if err != nil {
			return d, err
		}
		d.switches += n
	}
	// utime and stime, the 14th and 15th field, in hundredths of a second; the
	// second field may hold blanks, but ends with the last parenthesis.
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return d, err
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, ticks := range f[11:13] {
		n, err := strconv.Atoi(ticks)
		if err != nil {
			return d, err
		}
		d.cpuMS += n * 10
	}
	return d, nil
}

// number returns the number that follows a field's name in a file of /proc.
func number(file, field string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			return strconv.Atoi(f[1])
		}
	}
	return 0, fmt.Errorf("no %s in %s", field, file)
}
