package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"accel/pkg/doctor"
	"accel/pkg/text"
)

// mostRows is how many processes, and how many namespaces, the text lists.
const mostRows = 10

// connectionRows prints who is still on another algorithm.
func connectionRows(p *page, c *doctor.Connections) {
	if c == nil || c.Known && c.Algorithm == "" {
		return
	}
	var lines []string
	say := func(s string) { lines = append(lines, s) }
	hint := func(s string) { lines = append(lines, "  "+s) }
	p.gap()
	p.paragraph(text.T("Still on the old algorithm"))
	if !c.Known {
		p.row("", text.T("not known: %s", c.Reason))
		return
	}
	listed := map[uint64]bool{}
	restarts := false
	var shown, more int
	for _, n := range c.Namespaces {
		if !n.Old || n.Links == 0 {
			continue
		}
		listed[n.Number] = true
		if shown++; shown > mostRows {
			more++
			continue
		}
		say(text.T("%s: its own default is %s (from before, or set so)", n.Owner, n.Default))
		var names []string
		for _, x := range c.Processes {
			if x.Namespace == n.Number && x.Source == doctor.OfNamespace {
				names = append(names, fmt.Sprintf("%s %d", x.Command, x.Connections))
			}
		}
		if len(names) > mostRows {
			names = append(names[:mostRows], "...")
		}
		if len(names) > 0 {
			hint(text.T("connections: %s", strings.Join(names, ", ")))
		}
		hint(n.Advice)
		restarts = restarts || n.Restart != ""
	}
	if more > 0 {
		say(text.T("and %d more namespaces; all with --json", more))
	}
	shown, more = 0, 0
	for _, x := range c.Processes {
		if x.Source == doctor.OfNamespace && (listed[x.Namespace] || x.Advice == "") {
			continue
		}
		if shown++; shown > mostRows {
			more++
			continue
		}
		say(processLine(x))
		hint(x.Advice)
		restarts = restarts || x.Restart != ""
	}
	if more > 0 {
		say(text.T("and %d more groups of processes; all with --json", more))
	}
	unheld := map[string]int{}
	for _, n := range c.Namespaces {
		for algorithm, k := range n.Unheld {
			unheld[algorithm] += k
		}
	}
	for _, algorithm := range slices.Sorted(maps.Keys(unheld)) {
		say(text.T("%s: %d, held by no process that can be seen (not accepted yet, or the kernel's own)", algorithm, unheld[algorithm]))
	}
	if restarts {
		say(text.T("(What closes its connections makes new ones: restart when that suits.)"))
	}
	switch {
	case len(lines) > 0:
	case len(c.Notes) > 0:
		say(text.T("none was seen: every connection that leaves the host has %s, as far as doctor sees", c.Algorithm))
	default:
		say(text.T("none: every connection that leaves the host has %s", c.Algorithm))
	}
	p.row("", append(lines, c.Notes...)...)
}

func processLine(x doctor.ProcessOf) string {
	name := x.Command
	if x.Owner != "" && x.Owner != x.Command {
		name = fmt.Sprintf("%s (%s)", x.Command, x.Owner)
	}
	switch {
	case x.Connections == 1:
		return text.T("%s, process %d: one connection on %s", name, x.PIDs[0], x.Algorithm)
	case x.Processes == 1:
		return text.T("%s, process %d: %d connections on %s", name, x.PIDs[0], x.Connections, x.Algorithm)
	}
	return text.T("%s, %d processes: %d connections on %s", name, x.Processes, x.Connections, x.Algorithm)
}
