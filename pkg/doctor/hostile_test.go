package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"accel/pkg/sysctl"
	"accel/pkg/tuning"
)

// evil is a name or a line that must not reach a terminal as it is.
const evil = "\x1b[2J\x1b]0;x\x07\r\u202e\u200b\xff"

// every place where doctor looks.
var places = []string{
	"etc/sysctl.conf", "etc/sysctl.d/99-bbr-x-ui.conf", "etc/sysctl.d/99-sysctl.conf", "etc/sysctl.d/99-joeyblog.conf",
	"etc/modprobe.d/99-joeyblog-security.conf", "etc/sysctl.d/99-net-optimize.conf", "etc/security/limits.conf", "etc/profile",
	"etc/systemd/system.conf", "etc/default/ufw", "etc/ufw/ufw.conf", "etc/ufw/sysctl.conf", "etc/tuned/active_profile",
	"etc/tuned/tuned-main.conf", "etc/tuned/a/tuned.conf", "etc/network/interfaces", "etc/network/interfaces.d/x", "etc/network/if-up.d/x",
	"etc/rc.local", "etc/crontab", "etc/cron.d/x", "var/spool/cron/crontabs/root", "etc/systemd/system/x.service",
	"etc/systemd/network/x.network", "etc/NetworkManager/dispatcher.d/x", "var/lib/accel/state.json",
	"var/lib/accel/doctor/20260101T000000Z/journal.json", "proc/1/comm",
}

// safely examines a tree within a time and an amount of memory, and looks for
// what must not be printed.
func safely(t testing.TB, dir string) *Report {
	t.Helper()
	h, err := tuning.Recorded(dir)
	if err != nil {
		t.Skip(err) // not a tree at all
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	done := make(chan *Report, 1)
	go func() {
		p, err := PlanFix(t.Context(), h, nil)
		if err != nil {
			t.Error(err)
			done <- nil
			return
		}
		for _, f := range p.Change.Files {
			printable(t, strings.ReplaceAll(f.Diff, "\n", ""))
		}
		done <- p.Report
	}()
	select {
	case r := <-done:
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 300<<20 {
			t.Errorf("it holds %d MiB", grown>>20)
		}
		if r == nil {
			t.FailNow()
		}
		doc, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if len(doc) > 16<<20 {
			t.Errorf("a document of %d MiB", len(doc)>>20)
		}
		for _, w := range r.Writers {
			printable(t, w.Key+w.Value+w.File+w.Meaning)
		}
		for _, h := range r.Harmful {
			printable(t, h.Setting+h.Value+h.File)
		}
		for _, n := range r.Notes {
			printable(t, n)
		}
		for _, l := range r.Leftovers {
			for _, k := range l.Keys {
				printable(t, k.Key+k.Value+k.File)
			}
		}
		for _, k := range r.Keys {
			printable(t, k.Why)
			for _, b := range k.Boot {
				printable(t, b.File+b.Target+b.Refused)
				for _, l := range b.Loses {
					printable(t, l.Value+l.File)
				}
			}
		}
		return r
	case <-time.After(2 * time.Minute):
		t.Fatal("it hangs")
		return nil
	}
}

func printable(t testing.TB, s string) {
	t.Helper()
	if i := strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x202e || r == 0xfffd }); i >= 0 {
		t.Errorf("%q would reach the terminal", s)
	}
}

// Every place holds something that nobody should have to read.
func TestHostileFiles(t *testing.T) {
	long := strings.Repeat("net.ipv4.tcp_syn_retries=1 ", 100000)
	hostile := map[string]func(full string) error{
		"huge": func(full string) error {
			f, err := os.Create(full)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(8 << 30) // sparse
		},
		"many lines": func(full string) error {
			return os.WriteFile(full, []byte(strings.Repeat("net.ipv4.tcp_syn_retries = 1\nsysctl -w net.ipv4.tcp_timestamps=0\n", 15000)), 0o755)
		},
		"long line": func(full string) error { return os.WriteFile(full, []byte(long), 0o755) },
		"binary": func(full string) error {
			return os.WriteFile(full, []byte(strings.Repeat("\x00\xff\xfe\x1b[31m=\r\n\t", 5000)), 0o755)
		},
		"escapes": func(full string) error {
			return os.WriteFile(full, []byte("[sysctl]\nnet.ipv4.tcp_congestion_control = "+evil+"\nsysctl -w net.core.default_qdisc='"+evil+"'\n"+
				"Name="+evil+"\n[Route]\nTCPCongestionControlAlgorithm="+evil+"\n"+evil+"\ninclude="+evil+"\nIPT_SYSCTL=/"+evil+"\n"), 0o755)
		},
		"link to itself": func(full string) error { return os.Symlink(filepath.Base(full), full) },
		"link in a ring": func(full string) error { return os.Symlink("../../../../../../"+filepath.Base(full), full) },
		"link outside":   func(full string) error { return os.Symlink("/etc/passwd", full) },
		"link to zeroes": func(full string) error { return os.Symlink("/dev/zero", full) },
		"pipe":           func(full string) error { return syscall.Mkfifo(full, 0o644) },
		"a directory":    func(full string) error { return os.Mkdir(full, 0o755) },
		"unreadable":     func(full string) error { return os.WriteFile(full, []byte("x"), 0) },
		"include in ring": func(full string) error {
			return os.WriteFile(full, []byte("a\n[main]\ninclude=a\ninclude=b a\n"), 0o755)
		},
		"json": func(full string) error {
			return os.WriteFile(full, []byte(strings.Repeat("[", 100000)), 0o644)
		},
	}
	for name, make := range hostile {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, p := range places {
				full := filepath.Join(dir, p)
				if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := make(full); err != nil {
					t.Fatal(err)
				}
			}
			safely(t, dir)
		})
	}
}

// Names with everything in them that a file system allows.
func TestHostileNames(t *testing.T) {
	dir := t.TempDir()
	for i, base := range []string{"etc/sysctl.d/", "etc/cron.d/", "etc/network/interfaces.d/", "etc/network/if-up.d/", "etc/systemd/system/", "etc/systemd/network/"} {
		for j, name := range []string{"a\nb", "\x1b[31mred", "\xff\xfe", "a b\t", "\u202egnp.conf", "%s%n", "-rf", strings.Repeat("x", 240)} {
			full := filepath.Join(dir, base, fmt.Sprint(i, j)+name+[]string{".conf", "", "", "", ".service", ".network"}[i])
			if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
				t.Fatal(err)
			}
			data := "net.ipv4.tcp_syn_retries = 1\nsysctl -w net.ipv4.tcp_timestamps=0\nExecStart=/sbin/sysctl net.ipv4.tcp_sack=0\n[Route]\nTCPCongestionControlAlgorithm=reno\n"
			if err := os.WriteFile(full, []byte(data), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := safely(t, dir); !r.has("syn-retries") || !r.has("timestamps-off") {
		t.Errorf("%+v", r.Harmful)
	}
}

// A directory with more files than anybody has.
func TestManyFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "etc/cron.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(dir, "etc/cron.d", fmt.Sprint("f", i)), []byte("@reboot root sysctl -w net.ipv4.tcp_timestamps=0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := safely(t, dir)
	if len(r.Writers) > maxWriters || len(r.Notes) == 0 {
		t.Errorf("%d writers, notes %q", len(r.Writers), r.Notes)
	}
}

// seeds are contents that mean something somewhere.
var seeds = []string{
	strings.Join(oldOptimise, "\n"), strings.Join(johnrosen, "\r\n"), evil,
	"#fq:cubic\nnet.core.default_qdisc = fq\nnet.ipv4.tcp_congestion_control = bbr",
	"up sysctl -w net.ipv4.tcp_rmem=\"1 2 3\" >/dev/null; echo 0 > /proc/sys/net/ipv4/tcp_sack",
	"post-up tc qdisc add dev eth0 root handle 1: htb; ip r change default congctl lock bbr; ethtool -K eth0 tso off",
	"[main]\ninclude=a, b\n[sysctl]\nnet.ipv4.tcp_congestion_control=bbr\n[CAKE]\n",
	"sysctl", "sysctl -w =", "tc qdisc add dev", "ip route add congctl", "ethtool -K", "echo > /proc/sys/", "[", "=", "-", "\"'",
}

// Each of them in every place: cleaned up, and everything put back.
func TestEveryContentInEveryPlace(t *testing.T) {
	for _, name := range places {
		if strings.HasPrefix(name, "var/lib/accel/") {
			continue // accel's own, see TestForgedJournal
		}
		for _, data := range seeds {
			host := newFakeHost(t, map[string]string{name: data})
			before := host.seen(t)
			mustFix(t, host)
			mustUndo(t, host)
			if d := cmp.Diff(before, host.seen(t)); d != "" {
				t.Errorf("%q in %s (-before +after):\n%s", data, name, d)
			}
		}
	}
}

// FuzzLines recognises leftovers in any content, and takes lines out: what goes
// and what stays are together what there was, the diff says the same, and
// nothing of it reaches a terminal raw.
func FuzzLines(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file := &textFile{data: data}
		for line := range bytes.Lines(data) {
			file.lines = append(file.lines, normal(string(line)))
		}
		file.claimed = make([]bool, len(file.lines))
		e := &examination{rules: rules(), texts: map[string]*textFile{"/f": file}, r: &Report{}, boot: emptyConfig, h: &tuning.Host{Sysctl: sysctl.Tree{Root: "/nonexistent"}}}
		drop := map[int]bool{}
		for _, tool := range tools {
			var l Leftover
			for _, b := range tool.Blocks {
				e.block(&l, b, "/f")
			}
			for _, p := range l.Places {
				for _, n := range p.Lines {
					if drop[n] {
						t.Errorf("line %d belongs to two tools", n)
					}
					drop[n] = true
				}
			}
			for _, k := range l.Keys {
				printable(t, k.Key+k.Value)
			}
		}
		for n := range drop {
			line := file.lines[n-1]
			if line == "" || !slices.ContainsFunc(tools, func(tool Tool) bool {
				return slices.ContainsFunc(tool.Blocks, func(b Block) bool {
					return slices.ContainsFunc(b.Lines, func(p string) bool { return matchLine(p, line) })
				})
			}) {
				t.Errorf("line %d, %q, is no tool's", n, line)
			}
		}
		kept := without(data, drop)
		want := 0
		for n, line := range slices.Collect(bytes.Lines(data)) {
			if !drop[n+1] {
				want += len(line)
			}
		}
		if len(kept) != want {
			t.Errorf("%d bytes stay, not %d", len(kept), want)
		}
		minus := 0
		for line := range strings.Lines(diff("/f", data, drop, false)) {
			printable(t, strings.TrimSuffix(line, "\n"))
			if strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "--- /f") {
				minus++
			}
		}
		if minus != len(drop) {
			t.Errorf("the diff takes out %d lines, not %d", minus, len(drop))
		}
	})
}

// FuzzCommand reads any line of a script.
func FuzzCommand(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		e := &examination{rules: rules(), r: &Report{}, h: &tuning.Host{Sysctl: sysctl.Tree{Root: "/nonexistent"}}, boot: emptyConfig}
		for _, w := range e.command(line) {
			e.add(w)
		}
		for _, w := range e.r.Writers {
			printable(t, w.Key+w.Value+w.Meaning)
		}
		var back string
		for _, q := range quoted(line) {
			back += q
		}
		if len(back) > len(line) {
			t.Errorf("%q became more: %q", line, back)
		}
	})
}

var emptyConfig = func() *sysctl.Config {
	dir, err := os.MkdirTemp("", "doctor-empty-")
	if err != nil {
		panic(err)
	}
	defer os.Remove(dir)
	c, err := sysctl.ReadConfig(dir, sysctl.Systemd)
	if err != nil {
		panic(err)
	}
	return c
}()
