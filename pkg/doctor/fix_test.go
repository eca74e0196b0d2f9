package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"accel/pkg/sysctl"
	"accel/pkg/tuning"
)

// own are lines of the operator, who has the same habits as everybody.
const own = "# my own settings\nnet.ipv4.tcp_syncookies=1\nvm.swappiness = 10\n"

// block is what a tool appends, in the form of its script.
func block(lines []string) string { return strings.Join(lines, "\n") + "\n" }

// Hosts with leftovers, by what is peculiar to them.
func leftoverHosts() map[string]map[string]string {
	xui := "#fq_codel:cubic\nnet.core.default_qdisc = fq\nnet.ipv4.tcp_congestion_control = bbr\n"
	return map[string]map[string]string{
		"a file of its own":                             {"etc/sysctl.d/99-bbr-x-ui.conf": xui},
		"a file of its own with a line of the operator": {"etc/sysctl.d/99-bbr-x-ui.conf": xui + "net.ipv4.tcp_fin_timeout = 20\n"},
		"lines in sysctl.conf": {
			"etc/sysctl.conf":             own + "\n" + block(oldOptimise[:17]) + "net.core.default_qdisc=fq\nnet.ipv4.tcp_congestion_control=bbr\n",
			"etc/sysctl.d/99-sysctl.conf": "-> ../sysctl.conf",
			"etc/security/limits.conf":    "# limits\nwww soft nofile 4096\n*               soft    nofile           1000000\n*               hard    nofile          1000000\n",
			"etc/profile":                 "umask 022\nulimit -SHn 1000000\n",
		},
		"several files": {
			"etc/sysctl.d/99-joeyblog.conf":            "net.core.default_qdisc=fq\nnet.ipv4.tcp_congestion_control=bbr\nnet.ipv4.tcp_rmem=4096 87380 67108864\n",
			"etc/modules-load.d/joeyblog-qdisc.conf":   "sch_fq\n",
			"etc/modprobe.d/99-joeyblog-security.conf": "# Dirty Frag\nblacklist esp4\ninstall esp4 /bin/false\nblacklist rxrpc\ninstall rxrpc /bin/false\n",
		},
		"no newline at the end": {"etc/sysctl.d/99-bbr-x-ui.conf": strings.TrimSuffix(xui, "\n")},
		"carriage returns":      {"etc/sysctl.d/99-bbr-x-ui.conf": strings.ReplaceAll(xui, "\n", "\r\n")},
	}
}

func mustFix(t testing.TB, f *fakeHost, only ...string) *Plan {
	t.Helper()
	p, err := PlanFix(t.Context(), f.host(), only)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

func mustUndo(t testing.TB, f *fakeHost) *Change {
	t.Helper()
	c, err := Undo(t.Context(), f.host(), false)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// After --fix nothing is found; after --undo everything is as before.
func TestFixAndUndo(t *testing.T) {
	for name, content := range leftoverHosts() {
		for _, enabled := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "", true: ", accel enabled"}[enabled], func(t *testing.T) {
				f := newFakeHost(t, content)
				f.boot(t)
				bbr := f.values[sysctl.CongestionControl]
				if bbr != "bbr" {
					t.Fatalf("the host boots with %s", bbr)
				}
				if enabled {
					if _, err := tuning.Enable(t.Context(), f.host(), tuning.Request{}); err != nil {
						t.Fatal(err)
					}
				}
				before := f.seen(t)
				r, err := Examine(t.Context(), f.host(), Options{})
				if err != nil || r.Verdict != Found || len(r.Leftovers) == 0 {
					t.Fatalf("%v %+v", err, r)
				}
				if d := cmp.Diff(before, f.seen(t)); d != "" {
					t.Fatalf("doctor changed something:\n%s", d)
				}
				p := mustFix(t, f)
				if (p.Change.Adopt != "") == enabled {
					t.Errorf("adopted %q", p.Change.Adopt)
				}
				// Never interrupted, and still so after the next boot.
				for range 2 {
					if f.values[sysctl.CongestionControl] != "bbr" || f.values[sysctl.DefaultQdisc] != "fq" {
						t.Errorf("after --fix: %v", f.values)
					}
					f.boot(t)
				}
				for k, v := range map[sysctl.Key]string{"net/ipv4/tcp_syn_retries": "6", "net/ipv4/tcp_synack_retries": "5", "net/ipv4/tcp_timestamps": "1"} {
					if f.values[k] != v {
						t.Errorf("%s is %s", k, f.values[k])
					}
				}
				after, err := Examine(t.Context(), f.host(), Options{})
				if err != nil || after.Verdict != Clean || after.Exit != 0 || len(after.Fixed) != 1 {
					t.Errorf("after --fix: %v %s (%s)\n%+v", err, after.Verdict, after.Reason, after.Leftovers)
				}
				now := f.seen(t)
				if mustFix(t, f); cmp.Diff(now, f.seen(t)) != "" {
					t.Error("a second --fix changes something")
				}
				mustUndo(t, f)
				if d := cmp.Diff(before, f.seen(t)); d != "" {
					t.Errorf("after --undo (-before +after):\n%s", d)
				}
				if mustUndo(t, f); cmp.Diff(before, f.seen(t)) != "" {
					t.Error("a second --undo changes something")
				}
			})
		}
	}
}

// Everything stops before each single step of --fix and of --undo; --undo, and
// doctor in between, cope with that.
func TestFixCrash(t *testing.T) {
	for name, content := range leftoverHosts() {
		for _, enabled := range []bool{false, true} {
			for _, command := range []string{"fix", "undo"} {
				crashes := 0
				for at := 1; ; at++ {
					f := newFakeHost(t, content)
					f.boot(t)
					if enabled {
						if _, err := tuning.Enable(t.Context(), f.host(), tuning.Request{}); err != nil {
							t.Fatal(err)
						}
					}
					before := f.seen(t)
					run := func() {
						p, err := PlanFix(t.Context(), f.host(), nil)
						if err == nil {
							err = p.Apply(t.Context())
						}
						if err != nil {
							t.Fatal(err)
						}
					}
					if command == "undo" {
						run()
						run = func() { mustUndo(t, f) }
					}
					if !f.during(at, 0, run) {
						break
					}
					crashes++
					where := f.ops[at-1]
					r, err := Examine(t.Context(), f.host(), Options{})
					if err != nil {
						t.Fatalf("%s, %s, stopped before %q: %v", name, command, where, err)
					}
					if len(r.Fixed) == 0 {
						// Nothing is known of a clean-up: then nothing is changed, but
						// for copies without a journal.
						now := f.seen(t)
						for n := range now.Files {
							if strings.HasPrefix(n, Dir+"/") {
								delete(now.Files, n)
							}
						}
						if d := cmp.Diff(before, now); d != "" {
							t.Fatalf("%s, %s, stopped before %q: no clean-up is known, and yet (-before +after):\n%s", name, command, where, d)
						}
					}
					mustUndo(t, f)
					if d := cmp.Diff(before, f.seen(t)); d != "" {
						t.Fatalf("%s, %s, stopped before %q, then --undo (-before +after):\n%s", name, command, where, d)
					}
					// And it can be done again.
					mustFix(t, f)
					mustUndo(t, f)
					if d := cmp.Diff(before, f.seen(t)); d != "" {
						t.Fatalf("%s, %s, stopped before %q, then all again (-before +after):\n%s", name, command, where, d)
					}
				}
				if crashes < 5 {
					t.Errorf("%s, %s: only %d steps", name, command, crashes)
				}
			}
		}
	}
}

// A step that fails undoes all of --fix.
func TestFixFails(t *testing.T) {
	for name, content := range leftoverHosts() {
		for at := 1; ; at++ {
			f := newFakeHost(t, content)
			f.boot(t)
			before := f.seen(t)
			var err error
			live := false
			f.during(0, at, func() {
				var p *Plan
				if p, err = PlanFix(t.Context(), f.host(), nil); err == nil {
					err = p.Apply(t.Context())
				}
			})
			if len(f.ops) < at {
				break
			}
			live = strings.HasPrefix(f.ops[at-1], "set net/ipv4/tcp_") && !strings.Contains(f.ops[at-1], "congestion")
			switch {
			case err == nil && !live && !strings.HasPrefix(f.ops[at-1], "remove "+Dir):
				// What Enable may do without is optional there, too.
				if strings.Contains(f.ops[at-1], Dir) || strings.Contains(f.ops[at-1], "/etc/sysctl") {
					t.Errorf("%s: %q failed, and --fix says nothing", name, f.ops[at-1])
				}
				mustUndo(t, f)
			case err == nil:
				mustUndo(t, f)
			case tuning.ExitCode(err) != tuning.ExitFailed:
				t.Errorf("%s: %q failed with exit %d: %v", name, f.ops[at-1], tuning.ExitCode(err), err)
			}
			now := f.seen(t)
			if err != nil && cmp.Diff(before, now) != "" {
				// Only a failure to tidy up may leave copies, never a change.
				for n := range now.Files {
					if strings.HasPrefix(n, Dir+"/") {
						delete(now.Files, n)
					}
				}
			}
			if d := cmp.Diff(before, now); d != "" {
				t.Fatalf("%s: %q failed (%v), and then (-before +after):\n%s", name, f.ops[at-1], err, d)
			}
		}
	}
}

// What somebody changed between --fix and --undo is left, named, and its copy
// kept.
func TestUndoLeavesWhatOthersChanged(t *testing.T) {
	f := newFakeHost(t, leftoverHosts()["several files"])
	f.boot(t)
	p := mustFix(t, f)
	f.put(t, "etc/sysctl.d/99-joeyblog.conf", "# mine now\n")
	c := mustUndo(t, f)
	if len(c.Left) != 1 || c.Left[0].What != "/etc/sysctl.d/99-joeyblog.conf" || c.Left[0].Reason == "" {
		t.Errorf("left: %+v", c.Left)
	}
	if s := f.seen(t); !strings.HasSuffix(s.Files["/etc/sysctl.d/99-joeyblog.conf"], "# mine now\n") || s.Files[p.Change.Directory+"/0001"] == "" ||
		s.Files["/etc/modules-load.d/joeyblog-qdisc.conf"] == "" {
		t.Errorf("%v", s.Files)
	}
	// Once the stranger's file is gone, the copy can go back.
	if err := os.Remove(filepath.Join(f.Root, "etc/sysctl.d/99-joeyblog.conf")); err != nil {
		t.Fatal(err)
	}
	if c := mustUndo(t, f); len(c.Left) != 0 || len(c.Files) != 1 {
		t.Errorf("%+v", c)
	}
}

// What changed between the plan and the answer is not overwritten.
func TestFixRefusesWhatChangedMeanwhile(t *testing.T) {
	f := newFakeHost(t, leftoverHosts()["lines in sysctl.conf"])
	f.boot(t)
	p, err := PlanFix(t.Context(), f.host(), nil)
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, "etc/sysctl.conf", "# changed\n")
	before := f.seen(t)
	if err := p.Apply(t.Context()); err == nil {
		t.Error("it went on")
	}
	if d := cmp.Diff(before, f.seen(t)); d != "" {
		t.Error(d)
	}
}

// --only touches nothing else.
func TestOnly(t *testing.T) {
	f := newFakeHost(t, leftoverHosts()["lines in sysctl.conf"])
	f.boot(t)
	before := f.seen(t)
	mustFix(t, f, "syn-retries")
	after := f.seen(t)
	got := after.Files["/etc/sysctl.conf"]
	if want := strings.Replace(before.Files["/etc/sysctl.conf"], "net.ipv4.tcp_syn_retries=1\n", "", 1); got != want {
		t.Errorf("%s", cmp.Diff(want, got))
	}
	if after.Values["net/ipv4/tcp_syn_retries"] != "6" || after.Values["net/ipv4/tcp_synack_retries"] != "1" {
		t.Errorf("%v", after.Values)
	}
	if after.Files["/etc/profile"] != before.Files["/etc/profile"] {
		t.Error("profile was changed")
	}
	mustFix(t, f, "profile-ulimit", "limits-replaced")
	if s := f.seen(t).Files; strings.Contains(s["/etc/profile"], "ulimit") || !strings.Contains(s["/etc/security/limits.conf"], "www soft nofile 4096") ||
		strings.Contains(s["/etc/security/limits.conf"], "1000000") {
		t.Errorf("%v", s)
	}
	if list, err := journals(f.host().Files); err != nil || len(list) != 2 {
		t.Errorf("%d clean-ups, %v", len(list), err)
	}
	mustUndo(t, f)
	if d := cmp.Diff(before, f.seen(t)); d != "" {
		t.Errorf("after two clean-ups and --undo:\n%s", d)
	}
	var p *tuning.Problem
	if _, err := PlanFix(t.Context(), f.host(), []string{"syn-retrys"}); !errors.As(err, &p) || p.Exit != tuning.ExitUsage || !strings.Contains(p.Next, "syn-retries") {
		t.Errorf("%v", err)
	}
}

// A live value that the kernel refuses is named and the rest is done.
func TestLiveValueRefused(t *testing.T) {
	f := newFakeHost(t, leftoverHosts()["lines in sysctl.conf"])
	f.boot(t)
	before := f.seen(t)
	f.refuse["net/ipv4/tcp_syn_retries"] = &sysctl.Error{Key: "net/ipv4/tcp_syn_retries", Op: "write", Value: "6", Err: sysctl.ErrReadOnly}
	p := mustFix(t, f)
	if len(p.Change.Left) != 1 || !strings.Contains(p.Change.Left[0].What, "tcp_syn_retries") {
		t.Errorf("%+v", p.Change.Left)
	}
	mustUndo(t, f)
	if d := cmp.Diff(before, f.seen(t)); d != "" {
		t.Error(d)
	}
}

// Files that could not be put back exactly are left alone.
func TestUnusualFiles(t *testing.T) {
	content := leftoverHosts()["a file of its own"]
	const name = "/etc/sysctl.d/99-bbr-x-ui.conf"
	for what, spoil := range map[string]func(full string) error{
		"hard link": func(full string) error { return os.Link(full, full+".2") },
		"owner":     func(full string) error { return os.Chown(full, 1, 1) },
		"mode":      func(full string) error { return os.Chmod(full, 0o644|os.ModeSetgid) },
		"a link": func(full string) error {
			return errors.Join(os.Rename(full, full+".real"), os.Symlink(full+".real", full))
		},
		"a directory": func(full string) error { return errors.Join(os.Remove(full), os.Mkdir(full, 0o755)) },
	} {
		if what == "owner" && os.Geteuid() != 0 {
			continue
		}
		f := newFakeHost(t, content)
		if err := spoil(filepath.Join(f.Root, name)); err != nil {
			t.Fatal(err)
		}
		f.boot(t)
		p, err := PlanFix(t.Context(), f.host(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Empty() {
			t.Errorf("%s: %+v", what, p.Change)
		}
	}
}

// A journal that somebody wrote makes accel write nothing outside of what a
// clean-up touches.
func TestForgedJournal(t *testing.T) {
	for _, j := range []string{
		`{"version":1,"done":true,"files":[{"name":"/root/.ssh/authorized_keys","copy":"0001","before":"x","after":"","mode":420}],"live":[]}`,
		`{"version":1,"done":true,"files":[{"name":"/etc/../root/x","copy":"0001","before":"x","after":"","mode":420}],"live":[]}`,
		`{"version":1,"done":true,"files":[{"name":"/etc/x","copy":"../0001","before":"x","after":"","mode":420}],"live":[]}`,
		`{"version":1,"done":true,"files":[{"name":"/etc/x","copy":"0001","before":"x","after":"","mode":2541}],"live":[]}`,
		`{"version":1,"done":true,"files":[],"live":[{"key":"../../etc/x","before":"1","after":"2"}]}`,
		`{"version":2,"done":true,"files":[],"live":[]}`,
		`{`,
	} {
		f := newFakeHost(t, map[string]string{"var/lib/accel/doctor/20260101T000000Z/journal.json": j, "var/lib/accel/doctor/20260101T000000Z/0001": "evil"})
		before := f.seen(t)
		if _, err := Undo(t.Context(), f.host(), false); err == nil {
			t.Errorf("%s was believed", j)
		}
		if d := cmp.Diff(before, f.seen(t)); d != "" {
			t.Errorf("%s:\n%s", j, d)
		}
		if _, err := Examine(t.Context(), f.host(), Options{}); err != nil {
			t.Errorf("%s: %v", j, err)
		}
	}
}

// Any mixture of leftovers and lines of the operator: --fix keeps every line of
// the operator in its order, and --undo gives every byte back, also if --fix or
// --undo was stopped anywhere.
func TestFixProperties(t *testing.T) {
	ownLines := []string{"# a comment", "", "net.ipv4.ip_nonlocal_bind = 1", "vm.swappiness=7", "kernel.panic = 5", "net.ipv4.tcp_keepalive_time=100",
		"net.ipv4.tcp_congestion_control=htcp", "rubbish", "  # indented", "net.ipv4.conf.eth0/100.rp_filter=1", "\tnet.core.rmem_max = 4194304 "}
	rapid.Check(t, func(r *rapid.T) {
		mix := func(label string, tool []string) string {
			var out []string
			for range rapid.IntRange(0, 3).Draw(r, label+" before") {
				out = append(out, rapid.SampledFrom(ownLines).Draw(r, label+" own"))
			}
			at := rapid.IntRange(0, len(tool)).Draw(r, label+" split")
			out = append(out, tool[:at]...)
			if rapid.Bool().Draw(r, label+" between") {
				out = append(out, rapid.SampledFrom(ownLines).Draw(r, label+" own"))
			}
			out = append(out, tool[at:]...)
			for range rapid.IntRange(0, 3).Draw(r, label+" after") {
				out = append(out, rapid.SampledFrom(ownLines).Draw(r, label+" own"))
			}
			return strings.Join(out, "\n") + rapid.SampledFrom([]string{"\n", ""}).Draw(r, label+" end")
		}
		content := map[string]string{}
		tool := rapid.SampledFrom([][]string{nil, oldOptimise[:17], johnrosen, radical, chiakge, hawshemi, seedbox, {"net.core.default_qdisc=fq", "net.ipv4.tcp_congestion_control=bbr"}}).Draw(r, "tool")
		if tool != nil {
			content["etc/sysctl.conf"] = mix("sysctl.conf", tool)
			if rapid.Bool().Draw(r, "Debian 12") {
				content["etc/sysctl.d/99-sysctl.conf"] = "-> ../sysctl.conf"
			}
		}
		if rapid.Bool().Draw(r, "x-ui") {
			content["etc/sysctl.d/99-bbr-x-ui.conf"] = mix("x-ui", []string{"net.core.default_qdisc = fq", "net.ipv4.tcp_congestion_control = bbr"})
		}
		if rapid.Bool().Draw(r, "joeyblog") {
			content["etc/sysctl.d/99-joeyblog.conf"] = mix("joeyblog", []string{"net.core.rmem_max=1073741824", "net.ipv4.tcp_rmem=4096 1048576 1073741824"})
		}
		f := newFakeHost(t, content)
		f.boot(t)
		if rapid.Bool().Draw(r, "enabled") {
			if _, err := tuning.Enable(t.Context(), f.host(), tuning.Request{}); err != nil {
				r.Fatal(err)
			}
		}
		before := f.seen(t)
		fix := func() {
			p, err := PlanFix(t.Context(), f.host(), nil)
			if err == nil {
				err = p.Apply(t.Context())
			}
			if err != nil {
				r.Fatal(err)
			}
		}
		if !f.during(rapid.IntRange(0, 40).Draw(r, "stop fix before"), 0, fix) {
			for name, was := range before.Files {
				if strings.HasPrefix(name, "/var/") || strings.Contains(name, "accel") {
					continue
				}
				is, still := f.seen(t).Files[name]
				if !still {
					is = ""
				}
				_, was, _ = strings.Cut(was, "\n") // the mode
				_, is, _ = strings.Cut(is, "\n")
				keeps(r, name, was, is)
			}
		}
		f.during(rapid.IntRange(0, 40).Draw(r, "stop undo before"), 0, func() { mustUndo(t, f) })
		if c := mustUndo(t, f); len(c.Left) > 0 {
			r.Fatalf("left: %+v", c.Left)
		}
		if d := cmp.Diff(before, f.seen(t)); d != "" {
			r.Fatalf("after --undo (-before +after):\n%s", d)
		}
	})
}

// keeps checks that every line that no tool writes is still there, in order.
func keeps(r *rapid.T, name, was, is string) {
	ours := func(line string) bool {
		n := normal(line)
		for _, t := range tools {
			for _, b := range t.Blocks {
				if slices.Contains(b.Files, name) && slices.ContainsFunc(b.Lines, func(p string) bool { return matchLine(p, n) }) {
					return true
				}
			}
			for _, o := range t.Files {
				if o.is(name) && (n == "" || n[0] == '#' || o.owns(n)) {
					return true
				}
			}
		}
		return false
	}
	rest := strings.Split(is, "\n")
	for _, line := range strings.Split(was, "\n") {
		if ours(line) || strings.TrimSpace(line) == "" {
			continue
		}
		i := slices.Index(rest, line)
		if i < 0 {
			r.Fatalf("%s lost the line %q:\n%s\n--- now:\n%s", name, line, was, is)
		}
		rest = rest[i+1:]
	}
}
