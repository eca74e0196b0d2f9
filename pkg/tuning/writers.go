package tuning

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"accel/pkg/files"
	"accel/pkg/kernel"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// Writer is something on the host that sets keys by itself, later than the boot
// reads sysctl.d.
type Writer struct {
	Tool  string // "ufw", "tuned", "bpftune"
	Key   string // dotted; "" where it is not one key
	Value string // as the file has it
	File  string // "" where there is none
	Line  int
	Note  string // one line for people
}

// OtherWriters names what else on the host sets the given keys later than
// sysctl.d, with file and line where there is one.
func OtherWriters(h *Host, keys []sysctl.Key) []Writer {
	var out []Writer
	for _, a := range UFW(h) {
		if slices.Contains(keys, a.Key) {
			out = append(out, Writer{"ufw", a.Key.String(), a.Value, a.File, a.Line,
				text.T("ufw sets %s = %s when it starts (%s:%d)", a.Key, sysctl.Printable(a.Value), a.File, a.Line)})
		}
	}
	if data, err := h.Files.ReadFile(tunedProfile); err == nil {
		if p := strings.TrimSpace(string(data)); p != "" {
			out = append(out, Writer{Tool: "tuned", Value: p, File: tunedProfile, Line: 1,
				Note: text.T("tuned is installed with the profile %s; it applies sysctl settings again when it starts", sysctl.Printable(p))})
		}
	}
	if Runs(h, "bpftune") {
		out = append(out, Writer{Tool: "bpftune", Note: text.T("bpftune is running; it chooses the algorithm of each connection by itself")})
	}
	return out
}

const tunedProfile = "/etc/tuned/active_profile"

// UFW lists what ufw sets when it starts: the lines of the file that
// /etc/default/ufw names. A missing file is the normal case, and an unreadable
// one sets nothing.
func UFW(h *Host) []sysctl.Assignment {
	name := "/etc/ufw/sysctl.conf"
	if data, err := h.Files.ReadFile("/etc/default/ufw"); err == nil {
		for line := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "IPT_SYSCTL="); ok {
				name = strings.Trim(strings.TrimSpace(v), `"'`)
			}
		}
	}
	if !path.IsAbs(name) {
		return nil
	}
	list, _ := sysctl.ReadFileIn(h.Root, path.Clean(name))
	return list
}

// Runs tells whether a process of that name exists.
func Runs(h *Host, name string) bool {
	entries, err := h.Files.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Name()[0] < '1' || e.Name()[0] > '9' {
			continue
		}
		if comm, err := h.Files.ReadFile(path.Join("/proc", e.Name(), "comm")); err == nil && strings.TrimSpace(string(comm)) == name {
			return true
		}
	}
	return false
}

// AgentReport is what the running agent tells about itself in AgentFile.
type AgentReport struct {
	Schema  string   `json:"schema"` // "accel.agent/1"
	Started string   `json:"started"`
	GaveUp  []GaveUp `json:"gave_up"`
	Healed  int      `json:"healed"`
	Last    string   `json:"last"`
}

// GaveUp is a setting that something else kept overwriting until the agent
// stopped healing it.
type GaveUp struct {
	Setting string `json:"setting"`
	Wanted  string `json:"wanted"`
	Live    string `json:"live"`
	Since   string `json:"since"`
}

// agentReport reads the agent's report; nil without one.
func agentReport(f files.FS) *AgentReport {
	data, err := f.ReadFile(AgentFile)
	if err != nil {
		return nil
	}
	var r AgentReport
	if json.Unmarshal(data, &r) != nil {
		return nil
	}
	return &r
}

func gaveUp(f files.FS) bool {
	r := agentReport(f)
	return r != nil && len(r.GaveUp) > 0
}

// fileNotes names the lines and files of the sysctl.d world that do not do what
// their writer hoped.
func fileNotes(c *sysctl.Config) []string {
	if c == nil {
		return nil
	}
	const most = 5
	var out []string
	problems := c.Problems()
	for i, p := range problems {
		if i == most {
			out = append(out, text.T("and %d more lines like that", len(problems)-most))
			break
		}
		where := sysctl.Printable(p.File)
		if p.Line > 0 {
			where += fmt.Sprintf(":%d", p.Line)
		}
		out = append(out, where+": "+p.Reason)
	}
	return out
}

// otherWorlds speaks of what keeps its own settings: network namespaces that
// were made before the switch.
func otherWorlds(f *kernel.Facts, enabled bool) []string {
	var out []string
	if enabled && f.OtherNetns == 1 {
		out = append(out, text.T("another network namespace (container) exists; if it was made before the change, it keeps its old algorithm until it is made anew"))
	}
	if enabled && f.OtherNetns > 1 {
		out = append(out, text.T("%d other network namespaces (containers) exist; those made before the change keep their old algorithm until they are made anew", f.OtherNetns))
	}
	for _, c := range f.Containers {
		if c == "kubelet" && f.Release.Major > 0 && !f.Release.AtLeast(5, 18) {
			out = append(out, text.T("pods need kernel 5.18 or newer for bbr: before that their packets lose the time stamps that pacing needs. Leave the pods' algorithm as it is"))
		}
	}
	return out
}
