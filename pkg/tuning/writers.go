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

// otherWriters names what else on the host sets accel's keys later than
// sysctl.d: each in one line, with file and line where there is one.
func otherWriters(h *Host) []string {
	var out []string
	// A missing file is the normal case, and an unreadable one names nothing.
	ufw, _ := sysctl.ReadFileIn(h.Root, "/etc/ufw/sysctl.conf")
	for _, a := range ufw {
		if slices.Contains(bootKeys, a.Key) {
			out = append(out, text.T("ufw sets %s = %s when it starts (%s:%d)", a.Key, sysctl.Printable(a.Value), a.File, a.Line))
		}
	}
	if data, err := h.Files.ReadFile("/etc/tuned/active_profile"); err == nil {
		if p := strings.TrimSpace(string(data)); p != "" {
			out = append(out, text.T("tuned is installed with the profile %s; it applies sysctl settings again when it starts", sysctl.Printable(p)))
		}
	}
	if runs(h, "bpftune") {
		out = append(out, text.T("bpftune is running; it chooses the algorithm of each connection by itself"))
	}
	return out
}

// runs tells whether a process of that name exists.
func runs(h *Host, name string) bool {
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
