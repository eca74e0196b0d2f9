package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"accel/pkg/socket"
	"accel/pkg/tuning"
)

var (
	switched = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	older    = switched.Add(-time.Hour)
	younger  = switched.Add(time.Hour)
	toBBR    = change{algorithm: "bbr", enabled: true, since: switched, defaults: []string{"bbr", "cubic"}}
)

func seen(s socket.Survey) survey {
	return func(context.Context, func(socket.Connection) bool) (*socket.Survey, error) { return &s, nil }
}

func TestSources(t *testing.T) {
	reno := change{algorithm: "bbr", enabled: true, since: switched, defaults: []string{"bbr", "cubic", "reno"}}
	rival := change{algorithm: "bbr", defaults: []string{"bbr", "cubic"}}
	for name, tc := range map[string]struct {
		change
		def     string
		started time.Time
		has     []string
		want    map[string]Source
	}{
		"from before":            {toBBR, "bbr", older, []string{"cubic"}, map[string]Source{"cubic": Before}},
		"as old as the switch":   {toBBR, "bbr", switched.Add(10 * time.Second), []string{"cubic"}, map[string]Source{"cubic": Before}},
		"start not known":        {toBBR, "bbr", time.Time{}, []string{"cubic"}, map[string]Source{"cubic": Before}},
		"younger":                {toBBR, "bbr", younger, []string{"cubic"}, map[string]Source{"cubic": Chosen}},
		"younger, not watched":   {rival, "bbr", younger, []string{"cubic"}, map[string]Source{"cubic": Before}},
		"never a default":        {toBBR, "bbr", older, []string{"vegas"}, map[string]Source{"vegas": Chosen}},
		"some of its own":        {toBBR, "bbr", older, []string{"vegas", "cubic"}, map[string]Source{"vegas": Chosen, "cubic": Before}},
		"two old defaults":       {reno, "bbr", older, []string{"reno", "cubic"}, map[string]Source{"reno": Mixed, "cubic": Mixed}},
		"old namespace":          {toBBR, "cubic", older, []string{"cubic"}, map[string]Source{"cubic": OfNamespace}},
		"old namespace, younger": {toBBR, "cubic", younger, []string{"cubic"}, map[string]Source{"cubic": OfNamespace}},
		"own choice in it":       {toBBR, "cubic", older, []string{"cubic", "vegas"}, map[string]Source{"cubic": OfNamespace, "vegas": Chosen}},
		"changed since":          {reno, "reno", younger, []string{"cubic"}, map[string]Source{"cubic": Before}},
		"namespace not known":    {toBBR, "", younger, []string{"cubic"}, map[string]Source{"cubic": Before}},
		"the default of another": {toBBR, "vegas", older, []string{"vegas"}, map[string]Source{"vegas": OfNamespace}},
	} {
		h := socket.Holder{Started: tc.started, Connections: map[string]int{}}
		for _, a := range tc.has {
			h.Connections[a] = 1
		}
		if diff := cmp.Diff(tc.want, sources(h, tc.def, tc.change)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestConnections(t *testing.T) {
	docker := "/system.slice/docker-" + strings.Repeat("ab", 32) + ".scope"
	pod := "/kubepods/besteffort/pod1/" + strings.Repeat("cd", 32)
	s := socket.Survey{
		Hidden: true, Cut: true,
		Namespaces: []socket.Namespace{
			{Inode: 1, Own: true, PID: 1, Cgroup: "/init.scope", Default: "bbr", Links: 1, Connections: map[string]int{"bbr": 7, "cubic": 6, "vegas": 1}, Unheld: map[string]int{"cubic": 1}},
			{Inode: 2, PID: 50, Cgroup: docker, Default: "cubic", Links: 1, Connections: map[string]int{"cubic": 2}},
			{Inode: 3, PID: 60, Cgroup: pod, Default: "cubic", Links: 1, Connections: map[string]int{}},
			{Inode: 4, PID: 70, Cgroup: "/system.slice/private.service", Default: "cubic", Connections: map[string]int{}},
			{Inode: 5, Names: []string{"/run/netns/blue"}, Default: "cubic", Links: 1, Connections: map[string]int{}},
			{Inode: 6, Names: []string{"/run/netns/$(reboot)"}, Default: "cubic", Links: 1, Connections: map[string]int{}},
			{Inode: 7, PID: 80, Default: "bbr", Links: 1, Connections: map[string]int{}},
			{Inode: 8, PID: 90, Links: -1, Err: fmt.Errorf("entering: %w", unix.EPERM)},
			{Inode: 9, Names: []string{"/run/docker/netns/0123"}, Default: "cubic", Links: -1, Connections: map[string]int{}},
		},
		Holders: []socket.Holder{
			{Namespace: 1, PID: 10, Command: "nginx", Started: older, Cgroup: "/system.slice/nginx.service", Connections: map[string]int{"cubic": 2}},
			{Namespace: 1, PID: 11, Command: "nginx", Started: older, Cgroup: "/system.slice/nginx.service", Connections: map[string]int{"cubic": 1}},
			{Namespace: 1, PID: 12, Command: "sshd", Started: older, Cgroup: "/user.slice/user-0.slice/session-3.scope", Connections: map[string]int{"cubic": 1}},
			{Namespace: 1, PID: 13, Command: "iperf3", Started: older, Cgroup: "/system.slice/iperf3.service", Connections: map[string]int{"vegas": 1, "cubic": 1}},
			{Namespace: 2, PID: 51, Command: "postgres", Started: younger, Cgroup: docker, Connections: map[string]int{"cubic": 2}},
		},
	}
	c := toBBR
	c.podsNeedOlder = true
	got := lookAround(t.Context(), seen(s), c)
	wantProcesses := []ProcessOf{
		{Command: "nginx", Owner: "nginx", Namespace: 1, Algorithm: "cubic", Source: Before, Connections: 3, Processes: 2, PIDs: []int{10, 11}, Restart: "systemctl restart nginx", Advice: "systemctl restart nginx"},
		{Command: "postgres", Owner: "docker abababababab", Namespace: 2, Algorithm: "cubic", Source: OfNamespace, Connections: 2, Processes: 1, PIDs: []int{51}, Restart: "docker restart abababababab", Advice: "docker restart abababababab"},
		{Command: "iperf3", Owner: "iperf3", Namespace: 1, Algorithm: "cubic", Source: Before, Connections: 1, Processes: 1, PIDs: []int{13}, Restart: "systemctl restart iperf3", Advice: "systemctl restart iperf3"},
		{Command: "iperf3", Owner: "iperf3", Namespace: 1, Algorithm: "vegas", Source: Chosen, Connections: 1, Processes: 1, PIDs: []int{13}, Advice: "as far as is known a restart would not change it: the program sets it itself (TCP_CONGESTION), or a route (congctl) or a BPF program does"},
		{Command: "sshd", Owner: "session-3.scope", Namespace: 1, Algorithm: "cubic", Source: Before, Connections: 1, Processes: 1, PIDs: []int{12}, Advice: "log in again"},
	}
	if diff := cmp.Diff(wantProcesses, got.Processes); diff != "" {
		t.Errorf("processes (-want +got)\n%s", diff)
	}
	type space struct {
		Owner   string
		Old     bool
		Restart string
		Advice  string
	}
	var spaces []space
	for _, n := range got.Namespaces {
		spaces = append(spaces, space{n.Owner, n.Old, n.Restart, n.Advice})
	}
	want := []space{
		{},
		{"docker abababababab", true, "docker restart abababababab", "docker restart abababababab"},
		{"a pod's container cdcdcdcdcdcd", false, "", "leave it: before kernel 5.18 bbr does not work well in pods"},
		{"private", true, "", ""},
		{"ip netns blue", true, "ip netns exec blue sysctl -w net.ipv4.tcp_congestion_control=bbr", "ip netns exec blue sysctl -w net.ipv4.tcp_congestion_control=bbr"},
		{"ip netns $(reboot)", true, "", "set net.ipv4.tcp_congestion_control in it"},
		{"process 80", false, "", ""},
		{"process 90", false, "", ""},
		{"/run/docker/netns/0123", true, "", "restart what runs in it"},
	}
	if diff := cmp.Diff(want, spaces); diff != "" {
		t.Errorf("namespaces (-want +got)\n%s", diff)
	}
	if !got.Known || got.old() == 0 || len(got.Notes) != 2 || got.Namespaces[0].Unheld["cubic"] != 1 {
		t.Errorf("got %+v", got)
	}
	if n := got.Namespaces[7]; n.Reason == "" || n.Connections != nil {
		t.Errorf("a namespace that could not be entered: %+v", n)
	}
	// All that is left are connections from before, which end by themselves.
	s.Namespaces = s.Namespaces[:1]
	if got := lookAround(t.Context(), seen(s), toBBR); got.old() > 0 {
		t.Error("connections from before the switch want attention")
	}
}

func TestLiveHostCanLookAround(t *testing.T) {
	if _, ok := tuning.Live().Sockets.(looker); !ok {
		t.Error("doctor cannot look at the connections of a live host")
	}
}

func TestConnectionsNotKnown(t *testing.T) {
	if got := lookAround(t.Context(), nil, toBBR); got.Known || got.Reason == "" || got.old() > 0 {
		t.Errorf("a recorded host: %+v", got)
	}
	fails := func(context.Context, func(socket.Connection) bool) (*socket.Survey, error) {
		return nil, socket.ErrNoDiag
	}
	if got := lookAround(t.Context(), fails, toBBR); got.Known || !strings.Contains(got.Reason, "cannot list") {
		t.Errorf("a kernel without inet_diag: %+v", got)
	}
	never := func(context.Context, func(socket.Connection) bool) (*socket.Survey, error) {
		t.Error("nothing was chosen, and yet connections are looked at")
		return nil, errors.New("no")
	}
	if got := lookAround(t.Context(), never, change{}); !got.Known || got.old() > 0 {
		t.Errorf("nothing chosen: %+v", got)
	}
}

// The own namespace's default is wrong: restarting programs would not help.
func TestConnectionsNotInForce(t *testing.T) {
	s := socket.Survey{
		Namespaces: []socket.Namespace{{Inode: 1, Own: true, Default: "cubic", Links: 1, Connections: map[string]int{"cubic": 1}}},
		Holders:    []socket.Holder{{Namespace: 1, PID: 10, Command: "nginx", Cgroup: "/system.slice/nginx.service", Started: older, Connections: map[string]int{"cubic": 1}}},
	}
	got := lookAround(t.Context(), seen(s), toBBR)
	if p := got.Processes[0]; p.Restart != "" || !strings.Contains(p.Advice, "accel enable bbr") {
		t.Errorf("got %+v", p)
	}
}

// After a boot all processes are younger than the switch. Those of the first
// minute may be from before the algorithm was set again.
func TestConnectionsAfterBoot(t *testing.T) {
	booted := switched.Add(24 * time.Hour)
	for after, want := range map[time.Duration]Source{20 * time.Second: Before, 10 * time.Minute: Chosen} {
		s := socket.Survey{
			Booted:     booted,
			Namespaces: []socket.Namespace{{Inode: 1, Own: true, Default: "bbr"}},
			Holders:    []socket.Holder{{Namespace: 1, PID: 10, Started: booted.Add(after), Connections: map[string]int{"cubic": 1}}},
		}
		if got := lookAround(t.Context(), seen(s), toBBR).Processes[0].Source; got != want {
			t.Errorf("%v after boot: %q, want %q", after, got, want)
		}
	}
}

// A host with a process for every connection.
func TestConnectionsMany(t *testing.T) {
	s := socket.Survey{Namespaces: []socket.Namespace{{Inode: 1, Own: true, Default: "bbr"}}}
	for i := range 20000 {
		s.Holders = append(s.Holders, socket.Holder{Namespace: 1, PID: i + 1, Command: fmt.Sprint("p", i), Connections: map[string]int{"cubic": i % 7}})
	}
	for i := range 50 {
		s.Holders = append(s.Holders, socket.Holder{Namespace: 1, PID: 30000 + i, Command: "same", Connections: map[string]int{"cubic": 100}})
	}
	got := lookAround(t.Context(), seen(s), toBBR)
	if len(got.Processes) != mostProcesses || len(got.Notes) != 1 {
		t.Fatalf("%d groups, notes %q", len(got.Processes), got.Notes)
	}
	if p := got.Processes[0]; p.Command != "same" || p.Connections != 5000 || p.Processes != 50 || len(p.PIDs) != mostPIDs {
		t.Errorf("got %+v", p)
	}
	if !slices.IsSortedFunc(got.Processes, func(a, b ProcessOf) int { return b.Connections - a.Connections }) {
		t.Error("not those with the most connections first")
	}
}
