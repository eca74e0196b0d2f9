package doctor

import (
	"errors"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"accel/pkg/sysctl"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// Writer is something besides the files of sysctl that sets what accel sets, or
// what rules know to do harm.
type Writer struct {
	Tool    string `json:"tool"` // "ufw", "tuned", "bpftune", "networkd", "ifupdown", "rc.local", "cron", "unit", "route"
	Key     string `json:"key"`  // dotted; "qdisc LINK"; "" where it is not one setting
	Value   string `json:"value"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Active  bool   `json:"active"`  // it runs, or will at the next boot
	Matters bool   `json:"matters"` // it is at odds with what accel has enabled
	Meaning string `json:"meaning"`
	Rule    string `json:"rule,omitempty"`
	Yields  bool   `json:"-"` // it reads the sysctl files again afterwards
}

// Bounds on what is read of scripts.
const (
	maxScript  = 256 << 10 // bytes of one
	maxScripts = 256       // in one directory
	maxWriters = 100       // in all
)

// writers gathers everything besides the files of sysctl.
func (e *examination) writers() {
	e.ufw()
	e.tuned()
	e.bpftune()
	for _, s := range scripts {
		e.script(s)
	}
	e.networkd()
}

func (e *examination) add(w Writer) {
	if len(e.r.Writers) >= maxWriters {
		e.note(text.T("more than %d commands that set something: the rest is not shown", maxWriters))
		return
	}
	w.Key, w.Value, w.File = sysctl.Printable(w.Key), sysctl.Printable(w.Value), sysctl.Printable(w.File)
	if k, err := sysctl.ParseKey(w.Key); err == nil && w.Active && !w.Yields {
		w.Matters = w.Matters || e.differs(k, w.Value)
	}
	e.r.Writers = append(e.r.Writers, w)
}

// of interest are accel's own keys and those that rules call harmful.
func (e *examination) ofInterest(k sysctl.Key, val string) bool {
	return k == sysctl.CongestionControl || k == sysctl.DefaultQdisc || e.wish(k) != nil || e.ruleOf(k, val, false) != nil
}

func (e *examination) ufw() {
	enabled := false
	for _, name := range []string{"/etc/ufw/ufw.conf", "/etc/default/ufw"} {
		for _, line := range e.lines(name) {
			if v, ok := strings.CutPrefix(normal(line), "ENABLED="); ok {
				enabled = enabled || strings.EqualFold(strings.Trim(v, `"'`), "yes")
			}
		}
	}
	for _, a := range tuning.UFW(e.h) {
		if !e.ofInterest(a.Key, a.Value) {
			continue
		}
		w := Writer{Tool: "ufw", Key: a.Key.String(), Value: a.Value, File: a.File, Line: a.Line, Active: enabled,
			Meaning: text.T("ufw sets it each time it starts, after the sysctl files")}
		if !enabled {
			w.Meaning = text.T("ufw would set it, but is not enabled")
		}
		e.add(w)
	}
}

// startsAtBoot tells whether a unit is started at boot.
func (e *examination) startsAtBoot(unit string) bool {
	for _, target := range []string{"multi-user", "network", "basic", "sysinit", "default", "graphical"} {
		if e.exists("/etc/systemd/system/" + target + ".target.wants/" + unit) {
			return true
		}
	}
	return false
}

func (e *examination) bpftune() {
	runs := tuning.Runs(e.h, "bpftune")
	atBoot := e.startsAtBoot("bpftune.service")
	if !runs && !atBoot {
		return
	}
	w := Writer{Tool: "bpftune", Active: true, Matters: true,
		Meaning: text.T("bpftune chooses the algorithm of each connection by itself, whatever the sysctl says, and stops tuning a key that somebody else writes")}
	if !runs {
		w.Meaning = text.T("bpftune starts at the next boot; it chooses the algorithm of each connection by itself")
	}
	e.add(w)
}

const tunedProfile = "/etc/tuned/active_profile"

// tuned reads the profile with what it includes.
func (e *examination) tuned() {
	names := strings.Fields(strings.Join(e.lines(tunedProfile), " "))
	runs := tuning.Runs(e.h, "tuned")
	active := runs || e.startsAtBoot("tuned.service") || e.h.Recorded && len(names) > 0
	if len(names) == 0 && !runs {
		return
	}
	reapply := true
	for _, line := range e.lines("/etc/tuned/tuned-main.conf") {
		if v, ok := strings.CutPrefix(normal(line), "reapply_sysctl="); ok {
			reapply = v == "1" || strings.EqualFold(v, "true") || strings.EqualFold(v, "yes")
		}
	}
	meaning := text.T("tuned applies its profile %s at its start and whenever it is restarted", sysctl.Printable(strings.Join(names, " ")))
	if reapply {
		meaning += text.T("; then it reads the sysctl files again, so these win")
	}
	e.add(Writer{Tool: "tuned", Value: strings.Join(names, " "), File: tunedProfile, Line: 1, Active: active, Meaning: meaning})
	seen := map[string]bool{}
	for _, n := range names {
		e.profile(n, active, reapply, seen)
	}
}

// profile adds what one of tuned's profiles sets. What is included comes first
// and is overridden, as tuned has it.
func (e *examination) profile(name string, active, reapply bool, seen map[string]bool) {
	if seen[name] || len(seen) > 32 || name == "" || strings.ContainsAny(name, "/\x00") || name == ".." {
		return
	}
	seen[name] = true
	for _, dir := range []string{"/etc/tuned/profiles/", "/etc/tuned/", "/usr/lib/tuned/profiles/", "/usr/lib/tuned/"} {
		file := dir + name + "/tuned.conf"
		lines := e.lines(file)
		if lines == nil {
			continue
		}
		section := ""
		for i, line := range lines {
			line = normal(line)
			switch {
			case line == "" || line[0] == '#' || line[0] == ';':
			case line[0] == '[':
				section = strings.Trim(line, "[]")
			case section == "main" && strings.HasPrefix(line, "include="):
				for _, n := range strings.FieldsFunc(strings.TrimPrefix(line, "include="), func(r rune) bool { return r == ',' || r == ' ' }) {
					e.profile(n, active, reapply, seen)
				}
			case section == "sysctl":
				k, val, ok := assignment(line)
				if !ok || !e.ofInterest(k, val) {
					continue
				}
				e.add(Writer{Tool: "tuned", Key: k.String(), Value: val, File: file, Line: i + 1, Active: active, Yields: reapply,
					Meaning: text.T("a setting of tuned's profile %s", sysctl.Printable(name))})
			}
		}
		return
	}
}

// lines reads the lines of a file; nil for what cannot be used.
func (e *examination) lines(name string) []string {
	data, err := readable(e.h.Files, name, maxScript)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			e.note(text.T("%s is not looked at: %s", sysctl.Printable(name), err))
		}
		return nil
	}
	if strings.ContainsRune(string(data), 0) {
		return nil
	}
	return strings.Split(string(data), "\n")
}

// source is where commands may stand.
type source struct {
	tool string
	file string // or
	dir  string
	exec bool // runs only if it is executable
	unit bool // only the Exec lines count
}

var scripts = []source{
	{tool: "ifupdown", file: "/etc/network/interfaces"},
	{tool: "ifupdown", dir: "/etc/network/interfaces.d"},
	{tool: "ifupdown", dir: "/etc/network/if-pre-up.d", exec: true},
	{tool: "ifupdown", dir: "/etc/network/if-up.d", exec: true},
	{tool: "ifupdown", dir: "/etc/dhcp/dhclient-enter-hooks.d"},
	{tool: "ifupdown", dir: "/etc/dhcp/dhclient-exit-hooks.d"},
	{tool: "networkd", dir: "/etc/networkd-dispatcher/routable.d", exec: true},
	{tool: "networkd", dir: "/etc/networkd-dispatcher/configured.d", exec: true},
	{tool: "networkd", dir: "/etc/NetworkManager/dispatcher.d", exec: true},
	{tool: "unit", dir: "/etc/systemd/system", unit: true},
	{tool: "rc.local", file: "/etc/rc.local", exec: true},
	{tool: "cron", file: "/etc/crontab"},
	{tool: "cron", dir: "/etc/cron.d"},
	{tool: "cron", dir: "/var/spool/cron/crontabs"},
}

func (e *examination) script(s source) {
	names := []string{s.file}
	if s.dir != "" {
		names = e.names(s.dir)
	}
	for _, name := range names {
		if s.unit && !strings.HasSuffix(name, ".service") {
			continue
		}
		st, err := e.h.Files.Lstat(name)
		if err != nil || st.IsDir() {
			continue
		}
		active := !s.exec || st.Mode()&0o111 != 0
		if s.unit {
			active = e.startsAtBoot(path.Base(name))
		}
		for i, line := range e.lines(name) {
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' || s.unit && !strings.HasPrefix(line, "Exec") {
				continue
			}
			for _, w := range e.command(line) {
				w.Tool, w.File, w.Line, w.Active = s.tool, name, i+1, active
				w.Matters = w.Matters && active
				if !active {
					w.Meaning = text.T("this command would, but its file is not executable or not enabled")
				}
				e.add(w)
			}
		}
	}
}

func (e *examination) names(dir string) []string {
	entries, err := e.h.Files.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, d := range entries {
		if len(out) == maxScripts {
			e.note(text.T("%s holds more than %d files: the rest is not looked at", dir, maxScripts))
			break
		}
		if !d.IsDir() {
			out = append(out, path.Join(dir, d.Name()))
		}
	}
	return out
}

var (
	echoed  = regexp.MustCompile(`echo\s+(?:-n\s+)?["']?([^"'|;&>]*?)["']?\s*(?:>|\|\s*(?:sudo\s+)?tee)\s*(?:-a\s+)?/proc/sys/([^\s;&|"']+)`)
	offload = regexp.MustCompile(`\bethtool\s+(?:-K|--offload|--features)\s+(\S+)\s+([^;&|]*)`)
	tcRoot  = regexp.MustCompile(`\btc\s+(?:-\S+\s+)*qdisc\s+(?:add|replace|change|del|delete)\s+([^;&|]*)`)
	congctl = regexp.MustCompile(`\bip\s+(?:-\S+\s+)*(?:route|r|ro)\s+(?:add|change|replace|append)\s+([^;&|]*)`)
	wordSep = regexp.MustCompile(`[;&|]+`)
)

// command reads a line of a shell script for what it sets.
func (e *examination) command(line string) (out []Writer) {
	if len(line) > 4096 {
		line = line[:4096]
	}
	for _, part := range wordSep.Split(line, -1) {
		words := strings.Fields(part)
		i := slices.IndexFunc(words, func(w string) bool { return path.Base(strings.TrimLeft(w, "-=@+!'\"(")) == "sysctl" })
		if i < 0 {
			continue
		}
		// A value may hold blanks, in quotes: sysctl -w net.ipv4.tcp_rmem="4096 1 2"
		for _, a := range quoted(strings.Join(words[i+1:], " ")) {
			name, val, ok := strings.Cut(a, "=")
			k, err := sysctl.ParseKey(strings.Trim(name, " -"))
			if !ok || err != nil || strings.ContainsAny(name, "$`") {
				continue
			}
			out = e.sets(out, k, val, text.T("this command sets it"))
		}
	}
	for _, m := range echoed.FindAllStringSubmatch(line, -1) {
		if k, err := sysctl.ParseKey(strings.ReplaceAll(m[2], "//", "/")); err == nil && !strings.ContainsAny(m[2], "$`") {
			out = e.sets(out, k, m[1], text.T("this command sets it"))
		}
	}
	for _, m := range offload.FindAllStringSubmatch(line, -1) {
		words := strings.Fields(strings.Trim(m[2], `"'`))
		for i := 0; i+1 < len(words); i += 2 {
			if slices.Contains([]string{"tso", "gso", "gro", "tx", "sg"}, words[i]) && words[i+1] == "off" {
				out = append(out, Writer{Key: "offloads " + m[1], Value: strings.Join(words, " "), Rule: "offloads-off", Meaning: text.T("this command switches offloads off")})
				break
			}
		}
	}
	for _, m := range tcRoot.FindAllStringSubmatch(line, -1) {
		words := strings.Fields(m[1])
		dev, root := after(words, "dev"), slices.Contains(words, "root")
		if dev == "" || !root {
			continue
		}
		kind := after(words, "root")
		if kind == "handle" {
			kind = ""
			if i := slices.Index(words, "handle"); i+2 < len(words) {
				kind = words[i+2]
			}
		}
		out = append(out, Writer{Key: "qdisc " + dev, Value: strings.Trim(kind, `"'`), Meaning: text.T("this command sets the qdisc of the link; accel leaves such a link alone")})
	}
	for _, m := range congctl.FindAllStringSubmatch(line, -1) {
		words := strings.Fields(m[1])
		if c := strings.Trim(after(words, "congctl"), `"'`); c != "" {
			if c == "lock" {
				c = strings.Trim(after(words, "lock"), `"'`)
			}
			out = append(out, Writer{Key: "route " + words[0], Value: c, Meaning: text.T("a route with congctl %s beats the sysctl", sysctl.Printable(c)),
				Matters: e.differs(sysctl.CongestionControl, c)})
		}
	}
	return out
}

func (e *examination) sets(out []Writer, k sysctl.Key, val, meaning string) []Writer {
	val = strings.Join(strings.Fields(strings.Trim(val, `"'`)), " ")
	if !e.ofInterest(k, val) {
		return out
	}
	return append(out, Writer{Key: k.String(), Value: val, Meaning: meaning})
}

func after(words []string, word string) string {
	if i := slices.Index(words, word); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// quoted splits at blanks outside of quotes, and drops the quotes.
func quoted(s string) (out []string) {
	var b strings.Builder
	var quote byte
	end := func() {
		if b.Len() > 0 {
			out = append(out, b.String())
			b.Reset()
		}
	}
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && (c == ' ' || c == '\t' || c == '>' || c == '<'):
			end()
			if c == '>' || c == '<' {
				return out
			}
		default:
			b.WriteByte(c)
		}
	}
	end()
	return out
}

// networkd reads what systemd-networkd sets beside addresses: the algorithm of
// routes, and qdiscs.
func (e *examination) networkd() {
	for _, dir := range []string{"/etc/systemd/network", "/run/systemd/network"} {
		for _, name := range e.names(dir) {
			if !strings.HasSuffix(name, ".network") {
				continue
			}
			section, link := "", "?"
			for i, line := range e.lines(name) {
				line = normal(line)
				key, val, _ := strings.Cut(line, "=")
				switch {
				case line == "" || line[0] == '#' || line[0] == ';':
				case line[0] == '[':
					section = strings.Trim(line, "[]")
					if kind := networkdQdiscs[section]; kind != "" {
						e.add(Writer{Tool: "networkd", Key: "qdisc " + link, Value: kind, File: name, Line: i + 1, Active: true,
							Meaning: text.T("networkd sets the qdisc of the link; accel leaves such a link alone")})
					}
				case section == "Match" && key == "Name":
					link = val
				case section == "Route" && key == "TCPCongestionControlAlgorithm":
					e.add(Writer{Tool: "networkd", Key: "route " + link, Value: val, File: name, Line: i + 1, Active: true,
						Matters: e.differs(sysctl.CongestionControl, val),
						Meaning: text.T("a route with congctl %s beats the sysctl", sysctl.Printable(val))})
				}
			}
		}
	}
}

// networkdQdiscs are the sections of systemd.network(5) that set a qdisc.
var networkdQdiscs = map[string]string{
	"FairQueueing": "fq", "FairQueueingControlledDelay": "fq_codel", "CAKE": "cake", "ControlledDelay": "codel", "PFIFO": "pfifo",
	"BFIFO": "bfifo", "PFIFOFast": "pfifo_fast", "TokenBucketFilter": "tbf", "NetworkEmulator": "netem", "PIE": "pie",
	"FlowQueuePIE": "fq_pie", "StochasticFairnessQueueing": "sfq", "HierarchyTokenBucket": "htb", "DeficitRoundRobinScheduler": "drr",
	"EnhancedTransmissionSelection": "ets", "QuickFairQueueing": "qfq", "HeavyHitterFilter": "hhf", "StochasticFairBlue": "sfb",
	"TrivialLinkEqualizer": "teql", "GenericRandomEarlyDetection": "gred",
}
