package tuning

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/sysctl"
)

// outcomes maps the words of the cases, which are older than the contract, to
// the contract.
var outcomes = map[string]int{
	"active":                ExitGood,
	"partial":               ExitGood, // enabled with less than everything
	"algorithm-unavailable": ExitImpossible,
	"unsupported":           ExitImpossible,
}

// A caseHost is a recorded host on which accel may work: its files are a copy
// of the case's, and the kernel answers as the case says.
type caseHost struct {
	*Host
	dir   string
	fakes *fakeHost
}

type expectation struct {
	WriteErrors map[string]map[string]string `json:"write_errors"`
}

func openCase(t *testing.T, name string) caseHost {
	t.Helper()
	from := filepath.Join("../../test/cases", name)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(from, "root"))); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"etc/sysctl.d", "etc/modules-load.d", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var e expectation
	data, err := os.ReadFile(filepath.Join(from, "expect.json"))
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := newFakeHost()
	f.links = map[string]*fakeLink{}
	f.service.missing = true
	h := f.host()
	h.Root = dir
	h.Files = files.OS{Root: dir}
	h.Sysctl = caseSysctl{sysctl.Tree{Root: filepath.Join(dir, "proc/sys")}, e.WriteErrors, f}
	h.Modules = caseModules{dir}
	h.Detect = func() (*kernel.Facts, error) { return kernel.Detect(dir) }
	return caseHost{h, dir, f}
}

// caseModules loads modules as far as it can be seen.
type caseModules struct{ dir string }

func (m caseModules) Load(_ context.Context, name string) error {
	if err := m.add("proc/modules", name+" 20480 0 - Live 0x0000000000000000\n"); err != nil {
		return err
	}
	if alg, ok := strings.CutPrefix(name, "tcp_"); ok {
		return m.add("proc/sys/net/ipv4/tcp_available_congestion_control", " "+alg)
	}
	return nil
}

func (m caseModules) add(name, what string) error {
	at := filepath.Join(m.dir, name)
	data, err := os.ReadFile(at)
	if err != nil {
		return err
	}
	if strings.HasPrefix(what, " ") {
		data = bytes.TrimSpace(data)
	}
	return os.WriteFile(at, append(data, what...), 0o644)
}

// caseSysctl answers writes with the errors that a kernel gave.
type caseSysctl struct {
	sysctl.Tree
	refuse map[string]map[string]string
	f      *fakeHost
}

func (c caseSysctl) Write(k sysctl.Key, v string) error {
	if name := c.refuse["/proc/sys/"+string(k)][v]; name != "" {
		if name != "ENOENT" {
			return fmt.Errorf("the case wants %s, which this test does not know", name)
		}
		return &sysctl.Error{Key: k, Op: "write", Value: v, Err: errors.Join(sysctl.ErrValue, unix.ENOENT)}
	}
	err := c.Tree.Write(k, v)
	if k == sysctl.CongestionControl && err == nil {
		c.f.values[k] = v // what a socket gets
	}
	return err
}

func (h caseHost) value(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, "proc/sys", name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func (h caseHost) ourFiles() (out []string) {
	for _, n := range []string{SysctlFile, ModulesFile, StateFile} {
		if _, err := os.Stat(filepath.Join(h.dir, n)); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// TestEnableOnCases enables bbr on the given hosts that concern it.
func TestEnableOnCases(t *testing.T) {
	for _, tc := range []struct {
		name    string
		outcome string
		cc      string // afterwards
		qdisc   string // afterwards
		says    string // in the notes, or in the error and its next step
	}{
		{"02-builtin-bbr-lsmod-empty", "active", "bbr", "fq", ""},
		{"03-lsmod-zero-users", "active", "bbr", "fq", ""},
		{"04-kernel-new-enough-no-bbr", "algorithm-unavailable", "cubic", "pfifo_fast", "no algorithm bbr"},
		{"05-sch-fq-missing", "active", "bbr", "pfifo_fast", "paces itself"},
		{"10-compressed-modules", "active", "bbr", "fq", ""},
		{"16-netns-no-default-qdisc", "partial", "bbr", "", "initial network namespace"},
		{"21-openvz6", "unsupported", "", "", "OpenVZ"},
		{"22-openvz7-no-cc", "unsupported", "", "", "OpenVZ"},
		{"64-foreign-missing-nic-and-locale", "algorithm-unavailable", "cubic", "pfifo_fast", "no algorithm bbr"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := openCase(t, tc.name)
			ccBefore, qdiscBefore := h.value(t, "net/ipv4/tcp_congestion_control"), h.value(t, "net/core/default_qdisc")
			h.fakes.values[sysctl.CongestionControl] = ccBefore
			res, err := Enable(t.Context(), h.Host, Request{})
			if got := ExitCode(err); got != outcomes[tc.outcome] {
				t.Fatalf("exit %d (%v), want %s", got, err, tc.outcome)
			}
			said := ""
			if err != nil {
				var p *Problem
				errors.As(err, &p)
				said = err.Error() + "\n" + p.Next
				if left := h.ourFiles(); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
				if cc := h.value(t, "net/ipv4/tcp_congestion_control"); cc != ccBefore {
					t.Errorf("the algorithm changed from %q to %q", ccBefore, cc)
				}
				if q := h.value(t, "net/core/default_qdisc"); q != qdiscBefore {
					t.Errorf("the default qdisc changed from %q to %q", qdiscBefore, q)
				}
			} else {
				said = strings.Join(slices.Concat(res.Notes, res.Status.Notes), "\n")
				if res.Status.Verdict != Good {
					t.Errorf("%s: %s %v", res.Status.Verdict, res.Status.Reason, res.Status.Drift)
				}
			}
			if !strings.Contains(said, tc.says) {
				t.Errorf("%q does not say %q", said, tc.says)
			}
			if cc := h.value(t, "net/ipv4/tcp_congestion_control"); tc.cc != "" && cc != tc.cc {
				t.Errorf("the algorithm is %q, want %q", cc, tc.cc)
			}
			if q := h.value(t, "net/core/default_qdisc"); tc.qdisc != "" && q != tc.qdisc {
				t.Errorf("the default qdisc is %q, want %q", q, tc.qdisc)
			}
			if err != nil {
				return
			}
			if again, err := Enable(t.Context(), h.Host, Request{}); err != nil || again.Changed {
				t.Errorf("a second enable: %v, changed %v", err, again)
			}
			if _, err := Disable(t.Context(), h.Host, false); err != nil {
				t.Fatal(err)
			}
			if cc := h.value(t, "net/ipv4/tcp_congestion_control"); cc != ccBefore {
				t.Errorf("disable left the algorithm at %q, want %q", cc, ccBefore)
			}
			if q := h.value(t, "net/core/default_qdisc"); q != qdiscBefore {
				t.Errorf("disable left the default qdisc at %q, want %q", q, qdiscBefore)
			}
			if left := h.ourFiles(); len(left) > 0 {
				t.Errorf("disable left %q", left)
			}
		})
	}
}

// TestAssessCases judges the given hosts as they were recorded.
func TestAssessCases(t *testing.T) {
	for _, tc := range []struct {
		name    string
		verdict Verdict
		says    string
	}{
		{"02-builtin-bbr-lsmod-empty", NotEnabled, "accel enable bbr"},
		{"03-lsmod-zero-users", NotEnabled, "cubic"}, // available, not active
		{"04-kernel-new-enough-no-bbr", Unsupported, "no algorithm bbr"},
		{"05-sch-fq-missing", NotEnabled, ""},
		{"16-netns-no-default-qdisc", NotEnabled, "initial network namespace"},
		{"21-openvz6", Unsupported, "OpenVZ"},
		{"22-openvz7-no-cc", Unsupported, "OpenVZ"},
		{"30-deb13-sysctl-conf-ignored", NotEnabled, "/etc/sysctl.conf"},
		{"55-default-qdisc-only-new", NotEnabled, ""},
		{"64-foreign-missing-nic-and-locale", Unsupported, ""},
		{"57-azure-netvsc-vf", NotEnabled, "queueing twice"},
		{"59-virtual-and-can", NotEnabled, "not known"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, err := Recorded(filepath.Join("../../test/cases", tc.name, "root"))
			if err != nil {
				t.Fatal(err)
			}
			s, err := Assess(t.Context(), h)
			if err != nil {
				t.Fatal(err)
			}
			if s.Verdict != tc.verdict {
				t.Errorf("%s (%s), want %s", s.Verdict, s.Reason, tc.verdict)
			}
			if said := s.Reason + s.Next + strings.Join(s.Notes, "\n"); !strings.Contains(said, tc.says) {
				t.Errorf("%q does not say %q", said, tc.says)
			}
		})
	}
}

// Case 78: other writers are named with file and line.
func TestOtherWriters(t *testing.T) {
	h, err := Recorded("../../test/cases/78-tuned-override/root")
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, w := range OtherWriters(h, bootKeys) {
		got += w.Note + "\n"
	}
	for _, want := range []string{"/etc/ufw/sysctl.conf:1", "tuned", "throughput-performance"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not name %q", got, want)
		}
	}
}

// Case 38: the state is never the truth by itself.
func TestStateIsNotTheTruth(t *testing.T) {
	f := newFakeHost()
	mustEnable(t, f, Request{})
	f.reboot()
	delete(f.files, SysctlFile)
	f.values[sysctl.CongestionControl] = "cubic"
	s := mustAssess(t, f)
	if s.Verdict != Drifted || len(s.Drift) != 2 {
		t.Errorf("%s %+v", s.Verdict, s.Drift)
	}
}

// Case 36: the earlier value comes back, whatever it was.
func TestDisableRestoresWhatWasThere(t *testing.T) {
	for _, cc := range []string{"cubic", "reno", "bbr", "htcp"} {
		for _, q := range []string{"fq_codel", "pfifo_fast", "fq"} {
			f := newFakeHost()
			f.writeSysctl(sysctl.CongestionControl, cc)
			f.writeSysctl(sysctl.DefaultQdisc, q)
			before := f.seen()
			mustEnable(t, f, Request{})
			mustEnable(t, f, Request{})
			if _, err := Disable(t.Context(), f.host(), false); err != nil {
				t.Fatal(err)
			}
			if after := f.seen(); after.Values[sysctl.CongestionControl] != cc || after.Values[sysctl.DefaultQdisc] != q || after.Trees[0].Kind() != before.Trees[0].Kind() {
				t.Errorf("%s, %s: %+v", cc, q, after)
			}
		}
	}
}
