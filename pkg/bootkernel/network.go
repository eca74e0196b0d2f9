package bootkernel

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"accel/pkg/route"
)

type liveNetwork struct{}

func (liveNetwork) Gateways() ([]route.Gateway, error) { return route.Gateways() }

func (liveNetwork) Resolve(ctx context.Context, g route.Gateway) bool { return g.Resolve(ctx) }

// Listening reads the kernel's tables of TCP sockets.
func (liveNetwork) Listening(ssh bool) ([]int, error) {
	var own map[string]bool
	if ssh {
		own = sshSockets("/proc")
	}
	var ports []int
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			if os.IsNotExist(err) {
				continue // no IPv6
			}
			return nil, err
		}
		for _, l := range parseListening(bufio.NewScanner(f)) {
			if (!ssh || own[l.inode]) && !slices.Contains(ports, l.port) {
				ports = append(ports, l.port)
			}
		}
		f.Close()
	}
	slices.Sort(ports)
	return ports, nil
}

type listening struct {
	port  int
	inode string
}

// parseListening reads /proc/net/tcp (Documentation/networking/proc_net_tcp.rst
// of the kernel): the second word is address:port in hexadecimal, the fourth the
// state, 0A for one that listens, the tenth the inode.
func parseListening(s *bufio.Scanner) []listening {
	var out []listening
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) < 10 || f[3] != "0A" {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			continue
		}
		out = append(out, listening{int(port), f[9]})
	}
	return out
}

// sshServers are the command names of SSH servers. "systemd" holds the socket
// where ssh.socket starts the server when it is needed; then only port 22 counts.
var sshServers = []string{"sshd", "dropbear", "tinysshd"}

// sshSockets gives the inodes of the sockets that SSH servers hold, not those of
// the processes that serve one login: what these listen on is forwarded (ssh -R,
// ssh -X) and ends with the login.
func sshSockets(proc string) map[string]bool {
	found := map[string]bool{}
	processes, _ := filepath.Glob(proc + "/[0-9]*")
	for _, p := range processes {
		if !isSSHServer(p) || isSSHServer(proc+"/"+parentOf(p)) || inSession(p) {
			continue
		}
		fds, _ := filepath.Glob(p + "/fd/*")
		for _, fd := range fds {
			target, err := os.Readlink(fd)
			if inode, ok := strings.CutPrefix(target, "socket:["); err == nil && ok {
				found[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	return found
}

func isSSHServer(process string) bool {
	comm, err := os.ReadFile(process + "/comm")
	return err == nil && slices.Contains(sshServers, strings.TrimSpace(string(comm)))
}

// parentOf gives the number of a process's parent, from its status (proc(5)).
func parentOf(process string) string {
	status, _ := os.ReadFile(process + "/status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			return strings.TrimSpace(v)
		}
	}
	return "0"
}

// inSession: the process belongs to a login, as logind sorts them. After a restart
// of the server the processes of older logins have no parent that would tell.
func inSession(process string) bool {
	cgroup, _ := os.ReadFile(process + "/cgroup")
	return strings.Contains(string(cgroup), "/session-")
}
