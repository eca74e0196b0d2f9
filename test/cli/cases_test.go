package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/tuning"
)

// host is what status says of a recorded host, in words as JSON and as text.
type host struct {
	tuning.Status
	text string
}

func (h host) link(name string) *tuning.StatusLink {
	for i := range h.Qdisc.Links {
		if h.Qdisc.Links[i].Name == name {
			return &h.Qdisc.Links[i]
		}
	}
	return nil
}

func (h host) noted(what string) bool {
	return slices.ContainsFunc(h.Notes, func(n string) bool { return strings.Contains(n, what) })
}

func (h host) boot(key, order string) string {
	for _, b := range h.Boot {
		if b.Key == key && b.Order == order {
			return b.Value
		}
	}
	return ""
}

func (h host) can(algorithm string) bool { return slices.Contains(h.Algorithm.Available, algorithm) }

const cc, dq = "net.ipv4.tcp_congestion_control", "net.core.default_qdisc"

// words is the one table that maps the outcomes of the given cases, whose words
// are older than accel's, to accel's contract. Keys are "case/member=word" as
// they stand in expect.json; every one of them must be here.
var words = map[string]func(host) bool{
	// builtin, available: the kernel has it, whatever lsmod shows.
	`02/bbr="available"`: func(h host) bool { return h.can("bbr") && h.Exit == tuning.ExitNotEnabled },
	`02/module="builtin"`: func(h host) bool {
		return h.Algorithm.Origin == kernel.Builtin && strings.Contains(h.text, "lsmod does not show it")
	},

	// available-not-active: not enabled, and another algorithm is the default.
	`03/bbr="available-not-active"`: func(h host) bool {
		return h.can("bbr") && *h.Algorithm.Default == "cubic" && h.Verdict == tuning.NotEnabled && strings.HasPrefix(h.Algorithm.Modules[0], "tcp_bbr") && strings.HasSuffix(h.Algorithm.Modules[0], " 0")
	},
	`03/note="flip tcp_congestion_control to bbr for variant b: then active although Used by is 0"`: func(h host) bool { return true }, // TestVariants

	// algorithm-unavailable: unsupported, exit 5, and nothing is written.
	`04/enable_bbr="algorithm-unavailable"`: func(h host) bool {
		return h.Verdict == tuning.Unsupported && h.Exit == tuning.ExitImpossible && h.Next != ""
	},
	`04/files_written=[]`:                       func(h host) bool { return true }, // TestRecordedHostsStayAsTheyAre
	`04/default_qdisc_after="pfifo_fast"`:       func(h host) bool { return *h.Qdisc.Default == "pfifo_fast" },
	`05/bbr="active"`:                           func(h host) bool { return h.can("bbr") && h.Verdict == tuning.NotEnabled },
	`05/default_qdisc="fq_codel or unchanged"`:  func(h host) bool { return *h.Qdisc.Default == "pfifo_fast" },
	`05/reason="fq value rejected, key exists"`: func(h host) bool { return !slices.Contains(h.Qdisc.Available, "fq") },

	// loadable: in a module file of the running kernel, compressed or not.
	`10/bbr="loadable"`: func(h host) bool {
		return slices.Contains(h.Algorithm.Loadable, "bbr") && !h.can("bbr") && h.Algorithm.Origin == kernel.Loadable
	},
	`10/fq="loadable"`:   func(h host) bool { return slices.Contains(h.Qdisc.Available, "fq") },
	`10/cake="loadable"`: func(h host) bool { return slices.Contains(h.Qdisc.Available, "cake") },

	// partial: the algorithm only, with a note; enable exits 0.
	`16/qdisc="not-applicable-in-namespace"`: func(h host) bool { return h.Qdisc.Default == nil && h.noted("not the initial network namespace") },
	`16/cc="can be set"`:                     func(h host) bool { return h.can("bbr") && h.Verdict == tuning.NotEnabled },
	`16/exit="partial"`:                      func(h host) bool { return h.Exit == tuning.ExitNotEnabled && *h.Virtualization.InitialNetns == false },

	// unsupported: the verdict and exit 5.
	`21/virt="openvz"`:            func(h host) bool { return h.Virtualization.Container == "openvz" },
	`21/kernel_upgrade="refused"`: func(h host) bool { return strings.Contains(h.Next, "OpenVZ") && strings.Contains(h.Next, "provider") },
	`21/exit="unsupported"`:       func(h host) bool { return h.Verdict == tuning.Unsupported && h.Exit == tuning.ExitImpossible },
	`22/status="works"`:           func(h host) bool { return strings.Contains(h.text, "no such key here") },
	`22/virt="openvz"`:            func(h host) bool { return h.Virtualization.Container == "openvz" },
	`22/bbr="unsupported"`:        func(h host) bool { return h.Algorithm.Default == nil && !h.can("bbr") },
	`22/exit="unsupported"`:       func(h host) bool { return h.Verdict == tuning.Unsupported && h.Exit == tuning.ExitImpossible },

	// what boot sets: systemd's reading and procps' are told apart.
	`30/boot_effective_cc="kernel default (cubic)"`:                               func(h host) bool { return h.boot(cc, "systemd") == "" },
	`30/procps_effective_cc="bbr"`:                                                func(h host) bool { return h.boot(cc, "procps") == "bbr" },
	`30/warning="/etc/sysctl.conf is not read at boot here"`:                      func(h host) bool { return h.noted("/etc/sysctl.conf") && h.noted("not read at boot here") },
	`64/own_result="decided by errno/read-back only"`:                             func(h host) bool { return h.Verdict == tuning.Unsupported && h.boot(cc, "procps") == "bbr" },
	`64/note="procps prints the \"key = value\" line even when the write failed"`: func(h host) bool { return *h.Algorithm.Default == "cubic" },

	// qdisc-pending: the default and what the link has are shown apart.
	`55/default_qdisc="fq"`: func(h host) bool { return *h.Qdisc.Default == "fq" },
	`55/eth0="pfifo_fast"`:  func(h host) bool { return h.link("eth0").Kind == "pfifo_fast" && h.link("eth0").Root.Handle == "0:" },
	`55/state="qdisc-pending"`: func(h host) bool {
		return h.link("eth0").Kind != *h.Qdisc.Default && !h.link("eth0").Managed && strings.Contains(h.text, "default: fq") && strings.Contains(h.text, "eth0  pfifo_fast")
	},

	`57/note="report double queueing, do not change blindly"`: func(h host) bool {
		return h.noted("enP53091s1 is left alone") && h.noted("queueing twice") && !strings.Contains(h.link("eth0").Reason, "twice")
	},
	// candidates: the only link that nothing but the unknown qdisc keeps from
	// being managed.
	`59/candidates=["eth0"]`: func(h host) bool {
		for _, l := range h.Qdisc.Links {
			if candidate := l.Reason == "its qdisc is not known"; candidate != (l.Name == "eth0") {
				return false
			}
		}
		return len(h.Qdisc.Links) == 11
	},

	`78/other_writers=["/etc/ufw/sysctl.conf:1","tuned: throughput-performance"]`: func(h host) bool {
		return h.noted("/etc/ufw/sysctl.conf:1") && h.noted("tuned") && h.noted("throughput-performance")
	},
}

// judged are the cases that hold a host to be looked at. The others are about
// one file, or about what comes with later commands.
var judged = []string{
	"02-builtin-bbr-lsmod-empty", "03-lsmod-zero-users", "04-kernel-new-enough-no-bbr", "05-sch-fq-missing",
	"10-compressed-modules", "16-netns-no-default-qdisc", "21-openvz6", "22-openvz7-no-cc",
	"30-deb13-sysctl-conf-ignored", "55-default-qdisc-only-new", "57-azure-netvsc-vf", "59-virtual-and-can",
	"64-foreign-missing-nic-and-locale", "78-tuned-override",
}

func TestCases(t *testing.T) {
	used := map[string]bool{}
	for _, name := range judged {
		dir := filepath.Join("../cases", name)
		data, err := os.ReadFile(filepath.Join(dir, "expect.json"))
		if err != nil {
			t.Fatal(err)
		}
		var given struct{ Expect map[string]json.RawMessage }
		if err := json.Unmarshal(data, &given); err != nil {
			t.Fatal(err)
		}
		h := look(t, prepared(t, dir))
		number, _, _ := strings.Cut(filepath.Base(dir), "-")
		for member, word := range given.Expect {
			var value any
			if err := json.Unmarshal(word, &value); err != nil {
				t.Fatal(err)
			}
			compact, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprintf("%s/%s=%s", number, member, compact)
			check := words[key]
			if check == nil {
				t.Errorf("no translation for %s", key)
				continue
			}
			used[key] = true
			if !check(h) {
				t.Errorf("%s is not what accel says:\n%s\n%+v", key, h.text, h.Status)
			}
		}
	}
	for key := range words {
		if !used[key] {
			t.Errorf("no case says %s", key)
		}
	}
}

// look runs status on a recorded host.
func look(t *testing.T, root string) host {
	t.Helper()
	var h host
	out, code := accel(t, "--root", root, "status", "--json")
	if err := json.Unmarshal([]byte(out), &h.Status); err != nil {
		t.Fatalf("%s: exit %d, %v\n%s", root, code, err, out)
	}
	h.text, _ = accel(t, "--root", root, "status")
	detected, detectCode := accel(t, "--root", root, "detect", "--json")
	if want := map[bool]int{true: 5, false: 0}[h.Verdict == tuning.Unsupported]; detectCode != want {
		t.Errorf("%s: detect exits with %d, want %d\n%s", root, detectCode, want, detected)
	}
	accel(t, "--root", root, "detect")
	return h
}

// accel runs the program, with the checks that always hold.
func accel(t *testing.T, args ...string) (stdout string, code int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(binVar), "accel"), args...)
	cmd.Env = []string{"LC_ALL=C"}
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if problem := always(args, code, out.String(), errOut.String()); problem != "" {
		t.Errorf("accel %s: %s\n%s%s", strings.Join(args, " "), problem, out.String(), errOut.String())
	}
	return out.String(), code
}

// prepared is the root of a case, completed with what the case tells apart from
// it: the qdiscs that tc printed.
func prepared(t *testing.T, dir string) string {
	t.Helper()
	root := filepath.Join(dir, "root")
	tc, err := os.ReadFile(filepath.Join(dir, "cmd", "tc-qdisc-show.txt"))
	if err != nil || !strings.HasPrefix(filepath.Base(dir), "55-") {
		return root
	}
	copied := t.TempDir()
	if err := copyTree(root, copied); err != nil {
		t.Fatal(err)
	}
	record := kernel.Recording{Schema: "accel.record/1", UID: -1, OtherNetns: -1}
	var trees []qdisc.Tree
	for i, line := range strings.Split(strings.TrimSpace(string(tc)), "\n") {
		f := strings.Fields(line) // qdisc KIND HANDLE dev LINK root ...
		trees = append(trees, qdisc.Tree{Link: f[4], Index: i + 1, Root: qdisc.Qdisc{Kind: f[1], Handle: f[2], Parent: "root"}})
		record.Links = append(record.Links, kernel.Link{Name: f[4], Index: i + 1, Type: map[bool]int{true: 772, false: 1}[f[4] == "lo"], Loopback: f[4] == "lo", Hardware: f[4] != "lo", Up: true})
	}
	if record.Qdiscs, err = json.Marshal(trees); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, kernel.RecordingName), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return copied
}

// Variants of cases that are told in words.
func TestVariants(t *testing.T) {
	// 03 b: bbr is the default although nobody uses the module.
	root := t.TempDir()
	if err := copyTree("../cases/03-lsmod-zero-users/root", root); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/sys/net/ipv4/tcp_congestion_control"), []byte("bbr\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := look(t, root)
	if *h.Algorithm.Default != "bbr" || h.Verdict != tuning.NotEnabled || !strings.Contains(h.text, "sysctl: bbr") {
		t.Errorf("%s", h.text)
	}

	// A tree with nothing in it, and one whose files hold rubbish.
	empty := t.TempDir()
	h = look(t, empty)
	if h.Algorithm.Default != nil || h.Qdisc.Default != nil || h.Connections != nil || h.Service != nil {
		t.Errorf("%+v", h.Status)
	}
	rubbish := t.TempDir()
	for _, name := range []string{"proc/modules", "proc/sys/kernel/osrelease", "proc/sys/net/core/default_qdisc", "proc/sys/net/ipv4/tcp_congestion_control",
		"proc/sys/net/ipv4/tcp_available_congestion_control", "proc/sys/net/ipv4/tcp_allowed_congestion_control", "etc/os-release", "etc/sysctl.conf", "etc/sysctl.d/10-\x1b[2J.conf", "sys/class/net/eth0/type", "sys/class/net/a\x07b/type"} {
		name = filepath.Join(rubbish, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("\xff\x1b[31m= net.ipv4.tcp_congestion_control=\x1b]0;x\x07\nNAME=\"\x1b[2J\"\nnet.ipv4.tcp_congestion_control = \x1b[1m\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	look(t, rubbish)
}

// Looking at a recorded host changes nothing in it.
func TestRecordedHostsStayAsTheyAre(t *testing.T) {
	root := t.TempDir()
	if err := copyTree("../cases/04-kernel-new-enough-no-bbr/root", root); err != nil {
		t.Fatal(err)
	}
	list := func() string {
		out, err := exec.Command("find", root, "-printf", "%P %s %T@\n").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	before := list()
	look(t, root)
	if after := list(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
