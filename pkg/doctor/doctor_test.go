package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"accel/pkg/sysctl"
	"accel/pkg/tuning"
)

// tree makes a recorded host of files. A content that begins with "-> " is a
// link.
func tree(t testing.TB, files map[string]string) *tuning.Host {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(data, "-> "); ok {
			err = os.Symlink(target, full)
		} else {
			err = os.WriteFile(full, []byte(data), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h, err := tuning.Recorded(dir)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func examine(t testing.TB, files map[string]string) *Report {
	t.Helper()
	r, err := Examine(t.Context(), tree(t, files), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every rule speaks of a value that it means, is silent about the kernel's own
// value, and says why, how it shows and where that is known from.
func TestEveryRule(t *testing.T) {
	bad := map[string][]string{
		"syn-retries":           {"net.ipv4.tcp_syn_retries=1"},
		"synack-retries":        {"net.ipv4.tcp_synack_retries=1"},
		"timestamps-off":        {"net.ipv4.tcp_timestamps=0"},
		"tcp-mem-unit":          {"net.ipv4.tcp_mem=65536 1048576 33554432", "net.ipv4.udp_mem=1048576 1073741824 1573741824"},
		"panic-on-oom":          {"vm.panic_on_oom=1", "vm.panic_on_oom=2"},
		"rp-filter-localnet":    {"net.ipv4.conf.all.route_localnet=1\nnet.ipv4.conf.all.rp_filter=0"},
		"giant-default-buffers": {"net.core.rmem_default=67108864", "net.core.wmem_default=67108864"},
		"giant-first-buffers":   {"net.ipv4.tcp_rmem=4096 67108864 67108864"},
		"giant-buffers":         {"net.ipv4.tcp_wmem=4096 1048576 1073741824"},
		"limit-output":          {"net.ipv4.tcp_limit_output_bytes=268435456"},
		"retries2":              {"net.ipv4.tcp_retries2=5"},
		"sack-off":              {"net.ipv4.tcp_sack=0"},
		"window-scaling-off":    {"net.ipv4.tcp_window_scaling=0"},
		"tw-recycle":            {"net.ipv4.tcp_tw_recycle=1"},
	}
	// Those that only speak of lines of a known tool.
	attributed := map[string]string{
		"accept-ra-forwarding": "net.ipv6.conf.all.accept_ra=2\nnet.ipv6.conf.all.forwarding=1",
		"ip-forward":           "net.ipv4.ip_forward=1",
		"tw-buckets":           "net.ipv4.tcp_max_tw_buckets=5000",
		"overcommit-strict":    "vm.overcommit_memory=2",
		"frto-off":             "net.ipv4.tcp_frto=0",
	}
	good := "net.ipv4.tcp_syn_retries=6\nnet.ipv4.tcp_synack_retries=5\nnet.ipv4.tcp_timestamps=1\nnet.ipv4.tcp_mem=10000 20000 30000\n" +
		"vm.panic_on_oom=0\nnet.ipv4.conf.all.route_localnet=0\nnet.ipv4.conf.all.rp_filter=0\nnet.core.rmem_default=212992\n" +
		"net.ipv4.tcp_rmem=4096 131072 6291456\nnet.ipv4.tcp_wmem=4096 16384 4194304\nnet.ipv4.tcp_limit_output_bytes=1048576\n" +
		"net.ipv4.tcp_retries2=15\nnet.ipv4.tcp_sack=1\nnet.ipv4.tcp_window_scaling=1\nnet.ipv4.tcp_tw_recycle=0\n"
	if r := examine(t, map[string]string{"etc/sysctl.d/50-a.conf": good, "proc/sys/kernel/osrelease": "4.9.0\n"}); len(r.Harmful) > 0 {
		t.Errorf("the kernel's own values do harm: %+v", r.Harmful)
	}
	seen := map[string]bool{}
	for _, rule := range rules() {
		seen[rule.ID] = true
		if rule.Reason == "" || rule.Source == "" || rule.Class == Harmful && rule.Symptom == "" {
			t.Errorf("%s lacks a reason, a symptom or a source", rule.ID)
		}
		if rule.Class == Harmful && rule.Default != "" {
			v := value{fields: strings.Fields(rule.Default), host: &facts{major: 4}, other: func(string) string { return "0" }}
			if rule.match(v) {
				t.Errorf("%s calls the kernel's own value %s harmful", rule.ID, rule.Default)
			}
		}
		if rule.Class != Harmful {
			continue
		}
		if rule.Attributed {
			line := attributed[rule.ID]
			if line == "" {
				t.Errorf("%s has no test", rule.ID)
				continue
			}
			// From nobody known: silent. From nodekit: named.
			if r := examine(t, map[string]string{"etc/sysctl.d/50-a.conf": line}); r.has(rule.ID) {
				t.Errorf("%s speaks of a line that nobody known wrote", rule.ID)
			}
			r := examine(t, map[string]string{"etc/sysctl.d/99-sysctl.conf": strings.Join(johnrosen, "\n") + "\n",
				"etc/sysctl.d/99-net-optimize.conf": "# net-optimize\n" + line + "\n", "sys/class/net/eth0/device/uevent": "", "sys/class/net/eth0/type": "1\n"})
			if !r.has(rule.ID) {
				t.Errorf("%s does not speak of %q", rule.ID, line)
			}
			continue
		}
		if bad[rule.ID] == nil {
			t.Errorf("%s has no test", rule.ID)
		}
		for _, line := range bad[rule.ID] {
			r := examine(t, map[string]string{"etc/sysctl.d/50-a.conf": line, "proc/sys/kernel/osrelease": "4.9.0\n"})
			i := slices.IndexFunc(r.Harmful, func(h Harm) bool { return h.Rule == rule.ID })
			if i < 0 {
				t.Errorf("%s does not speak of %q: %+v", rule.ID, line, r.Harmful)
				continue
			}
			if h := r.Harmful[i]; h.File != "/etc/sysctl.d/50-a.conf" || h.Line != 1 || h.Fixable || h.Tool != "" {
				t.Errorf("%s: %+v", rule.ID, h)
			}
		}
	}
	for id := range bad {
		if !seen[id] {
			t.Errorf("there is no rule %s", id)
		}
	}
}

func (r *Report) has(rule string) bool {
	return slices.ContainsFunc(r.Harmful, func(h Harm) bool { return h.Rule == rule })
}

// What a kernel does nothing with.
func TestNoEffect(t *testing.T) {
	for kernel, want := range map[string]Class{"4.9.0": Harmful, "6.1.0": NoEffect} {
		r := examine(t, map[string]string{"etc/sysctl.d/99-joeyblog.conf": "net.ipv4.tcp_fastopen=3\n",
			"etc/sysctl.d/99-sysctl.conf": strings.Join(append(slices.Clone(oldOptimise), "net.ipv4.tcp_tw_recycle=1"), "\n"),
			"proc/sys/kernel/osrelease":   kernel + "\n"})
		e := &examination{h: tree(t, nil), rules: rules(), r: r}
		e.facts.major, e.facts.minor = map[string]int{"4.9.0": 4, "6.1.0": 6}[kernel], map[string]int{"4.9.0": 9, "6.1.0": 1}[kernel]
		k, _ := sysctl.ParseKey("net.ipv4.tcp_tw_recycle")
		if j := e.judge(k, "1", true); j.class != want {
			t.Errorf("tcp_tw_recycle on %s is %s, not %s", kernel, j.class, want)
		}
	}
	e := &examination{h: tree(t, nil), rules: rules(), r: &Report{}}
	for _, key := range []string{"net.ipv4.tcp_init_cwnd", "net.ipv4.tcp_fack", "net.ipv4.route.gc_timeout", "net.ipv4.tcp_low_latency"} {
		k, _ := sysctl.ParseKey(key)
		if j := e.judge(k, "1", true); j.class != NoEffect {
			t.Errorf("%s is %s", key, j.class)
		}
	}
}
