package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"accel/pkg/doctor"
	"accel/pkg/text"
)

func connectionText(c *doctor.Connections) string {
	var b bytes.Buffer
	p := &page{screen: screen{w: &b, columns: columns}}
	connectionRows(p, c)
	if err := p.print(); err != nil {
		return err.Error()
	}
	return b.String()
}

func TestConnectionRows(t *testing.T) {
	full := &doctor.Connections{
		Algorithm: "bbr", Known: true,
		Namespaces: []doctor.NamespaceOf{
			{Number: 1, Own: true, Default: "bbr", Links: 1, Unheld: map[string]int{"cubic": 2}},
			{Number: 2, Owner: "docker 3f2a1b4c5d6e", Default: "cubic", Old: true, Links: 1, Restart: "docker restart 3f2a1b4c5d6e", Advice: "docker restart 3f2a1b4c5d6e"},
			{Number: 3, Owner: "private", Default: "cubic", Old: true}, // without a link
			{Number: 4, Owner: "ip netns blue", Default: "reno", Old: true, Links: -1, Restart: "ip netns exec blue sysctl -w net.ipv4.tcp_congestion_control=bbr", Advice: "ip netns exec blue sysctl -w net.ipv4.tcp_congestion_control=bbr"},
		},
		Processes: []doctor.ProcessOf{
			{Command: "nginx", Owner: "nginx", Namespace: 1, Algorithm: "cubic", Source: doctor.Before, Connections: 312, Processes: 4, PIDs: []int{10, 11, 12, 13}, Restart: "systemctl restart nginx", Advice: "systemctl restart nginx"},
			{Command: "postgres", Owner: "docker 3f2a1b4c5d6e", Namespace: 2, Algorithm: "cubic", Source: doctor.OfNamespace, Connections: 5, Processes: 1, PIDs: []int{20}, Advice: "docker restart 3f2a1b4c5d6e"},
			{Command: "sshd", Owner: "session-3.scope", Namespace: 1, Algorithm: "cubic", Source: doctor.Before, Connections: 1, Processes: 1, PIDs: []int{14}, Advice: "log in again"},
		},
		Notes: []string{"a note"},
	}
	const want = `Still on the old algorithm
  docker 3f2a1b4c5d6e: its own default is cubic (from before, or set so)
    connections: postgres 5
    docker restart 3f2a1b4c5d6e
  ip netns blue: its own default is reno (from before, or set so)
    ip netns exec blue sysctl -w net.ipv4.tcp_congestion_control=bbr
  nginx, 4 processes: 312 connections on cubic
    systemctl restart nginx
  sshd (session-3.scope), process 14: one connection on cubic
    log in again
  cubic: 2, held by no process that can be seen (not accepted yet, or the
    kernel's own)
  (What closes its connections makes new ones: restart when that suits.)
  a note
`
	if got := connectionText(full); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for name, tc := range map[string]struct {
		c    *doctor.Connections
		want string
	}{
		"hasty":      {nil, ""},
		"not chosen": {&doctor.Connections{Known: true}, ""},
		"recorded":   {&doctor.Connections{Algorithm: "bbr", Reason: "why"}, "Still on the old algorithm\n  not known: why\n"},
		"not all":    {&doctor.Connections{Algorithm: "bbr", Known: true, Notes: []string{"why"}}, "Still on the old algorithm\n  none was seen: every connection that leaves the host has bbr, as far as doctor\n    sees\n  why\n"},
		"none":       {&doctor.Connections{Algorithm: "bbr", Known: true}, "Still on the old algorithm\n  none: every connection that leaves the host has bbr\n"},
	} {
		if got := connectionText(tc.c); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// Names of processes, cgroups and namespaces may be anything.
func TestConnectionRowsHostile(t *testing.T) {
	const evil = "\x1b[2J\x1b]0;x\x07\r\nclean: all is well\u202e\x9b1m\xff"
	c := &doctor.Connections{Algorithm: evil, Known: true, Notes: []string{evil}}
	for i := range 100 {
		n := uint64(i)
		c.Namespaces = append(c.Namespaces, doctor.NamespaceOf{Number: n, Owner: evil, Default: evil, Old: true, Links: 1, Advice: evil, Unheld: map[string]int{evil: 1}})
		for k := range 30 {
			c.Processes = append(c.Processes, doctor.ProcessOf{Command: fmt.Sprint(evil, k), Owner: evil, Namespace: n + uint64(k%2)*1000, Algorithm: evil, Source: doctor.OfNamespace, Connections: 2, Processes: 1, PIDs: []int{1}, Advice: evil})
		}
	}
	got := connectionText(c)
	for _, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
		if line != text.Safe(line) {
			t.Fatalf("raw on the terminal: %q", line)
		}
		if strings.HasPrefix(line, "clean") {
			t.Errorf("a forged line: %q", line)
		}
		if text.Width(line) > columns {
			t.Errorf("%d columns: %q", text.Width(line), line)
		}
	}
	if n := strings.Count(got, "\n"); n > 400 {
		t.Errorf("%d lines", n)
	}
	for _, c := range []*doctor.Connections{{Reason: evil}, {Algorithm: evil, Known: true}} {
		if got := connectionText(c); strings.ContainsAny(got, "\x1b\r\x07") {
			t.Errorf("raw on the terminal: %q", got)
		}
	}
}
