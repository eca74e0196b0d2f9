package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a survey, against hosts with more of anything than is sane.
const (
	maxProcesses  = 32768   // asked for their namespace and their sockets
	maxNamespaces = 1024    // entered
	maxWatched    = 1 << 18 // connections whose process is looked for
	maxFiles      = 1 << 21 // open files looked at, of all processes
	maxProcFile   = 8192    // bytes of a file of a process
)

// Survey is what a look at the TCP connections of all network namespaces of
// this host found.
type Survey struct {
	Namespaces []Namespace // the caller's own first, then by number
	Holders    []Holder    // the processes that hold the watched connections, by PID
	Booted     time.Time   // when the kernel started, by the clock of now; zero if not known
	// Hidden: processes of other users, or namespaces, could not be looked
	// into, so that there may be more.
	Hidden bool
	// Cut: there were more processes, namespaces, connections or open files
	// than accel looks at.
	Cut bool
}

// Namespace is a network namespace that a process is in, or that has a name.
type Namespace struct {
	Inode   uint64 // its number, as in "net:[4026531840]"
	Own     bool   // the caller's
	Names   []string
	PID     int    // the lowest of a process in it; 0: none that can be seen
	Cgroup  string // of that process, see Holder
	Default string // its net.ipv4.tcp_congestion_control; "" if not known
	// Links besides the loopback; -1 if not known. Without one, nothing in the
	// namespace speaks to the outside.
	Links       int
	Connections map[string]int // established, by algorithm; nil if not known
	// Unheld are those of the watched ones that no process was found to hold:
	// not accepted yet, the kernel's own (NFS), or of a hidden process.
	Unheld map[string]int
	Err    error // why Connections is nil
}

// Holder is a process with watched connections of one namespace. A connection
// that several processes hold is that of the oldest.
type Holder struct {
	Namespace   uint64
	PID         int
	Command     string         // as the process names itself: any bytes, of 15 at most
	Started     time.Time      // by the clock of now, to the second; zero if not known
	Cgroup      string         // its path in the hierarchy that systemd uses, "/" at least; "" if not known
	Connections map[string]int // by algorithm
}

// places are where processes and named namespaces are found.
type places struct {
	proc  string
	netns []string
}

var live = places{"/proc", []string{"/run/netns", "/run/docker/netns"}}

// LookAround lists the established connections of every network namespace of
// this host that holds a process or has a name, and finds the processes behind
// those that are to be watched. Into other namespaces and other users'
// processes it needs root; what it may not see it leaves out and says so.
//
// It enters the namespaces on the calling thread, for a moment each. Errors:
// those of List for the own namespace, the error of the context, and that the
// thread could not return to its own namespace, to which it then stays bound.
func LookAround(ctx context.Context, watch func(Connection) bool) (*Survey, error) {
	s := &surveyor{places: live, Survey: &Survey{}, watch: watch, watched: map[uint32]*watched{}}
	if err := s.look(ctx); err != nil {
		return nil, fmt.Errorf("looking at the TCP connections of this host: %w", err)
	}
	return s.Survey, nil
}

// surveyor is one LookAround at work.
type surveyor struct {
	places
	*Survey
	watch   func(Connection) bool
	watched map[uint32]*watched // by the socket's inode
	pids    []int
	files   int
}

// watched is a connection whose process is looked for.
type watched struct {
	namespace int // index
	algorithm string
	pid       int
	started   uint64 // clock ticks since boot
}

func (s *surveyor) look(ctx context.Context) error {
	s.Booted = booted()
	if err := s.find(); err != nil {
		return err
	}
	if err := s.visit(ctx); err != nil {
		return err
	}
	if err := s.holders(ctx); err != nil {
		return err
	}
	for i := range s.Namespaces {
		if n := &s.Namespaces[i]; n.PID != 0 {
			n.Cgroup = s.cgroup(n.PID)
		}
	}
	return nil
}

// find lists the processes and the namespaces.
func (s *surveyor) find() error {
	own, err := namespaceOf(filepath.Join(s.proc, "thread-self/ns/net"))
	if err != nil {
		return err
	}
	found := map[uint64]*Namespace{own: {Inode: own, Own: true}}
	at := func(inode uint64) *Namespace {
		if found[inode] == nil {
			found[inode] = &Namespace{Inode: inode}
		}
		return found[inode]
	}
	if err := s.processes(); err != nil {
		return err
	}
	for _, pid := range s.pids {
		inode, err := namespaceOf(s.path(pid, "ns/net"))
		switch {
		case err == nil:
			if n := at(inode); n.PID == 0 {
				n.PID = pid
			}
		case errors.Is(err, os.ErrPermission):
			s.Hidden = true
		}
		// Anything else: the process is gone, or a zombie.
	}
	for _, dir := range s.netns {
		names, err := readNames(dir, maxNamespaces)
		if errors.Is(err, os.ErrPermission) {
			s.Hidden = true
		}
		slices.Sort(names)
		for _, name := range names {
			name = filepath.Join(dir, name)
			f, inode, err := openNamespace(name)
			if err != nil {
				continue // a name whose namespace is gone is a plain file
			}
			f.Close()
			n := at(inode)
			n.Names = append(n.Names, name)
		}
	}
	for _, n := range found {
		s.Namespaces = append(s.Namespaces, *n)
	}
	slices.SortFunc(s.Namespaces, func(a, b Namespace) int {
		switch {
		case a.Own != b.Own && a.Own, a.Own == b.Own && a.Inode < b.Inode:
			return -1
		}
		return 1
	})
	if len(s.Namespaces) > maxNamespaces {
		s.Namespaces, s.Cut = s.Namespaces[:maxNamespaces], true
	}
	return nil
}

// processes lists the numbers of the processes, sorted.
func (s *surveyor) processes() error {
	names, err := readNames(s.proc, 2*maxProcesses)
	if err != nil {
		return err
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 && strconv.Itoa(pid) == name {
			s.pids = append(s.pids, pid)
		}
	}
	slices.Sort(s.pids)
	if len(s.pids) > maxProcesses {
		s.pids, s.Cut = s.pids[:maxProcesses], true
	}
	return nil
}

// readNames reads so many names of a directory at most, in no order.
func readNames(dir string, most int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

func (s *surveyor) path(pid int, name string) string {
	return filepath.Join(s.proc, strconv.Itoa(pid), name)
}

// namespaceOf reads the number out of a link such as "net:[4026531840]".
func namespaceOf(link string) (uint64, error) {
	target, err := os.Readlink(link)
	if err != nil {
		return 0, err
	}
	return bracketed(target, "net:[")
}

// bracketed reads the number of "net:[4026531840]" or "socket:[12345]".
func bracketed(target, prefix string) (uint64, error) {
	if number, ok := strings.CutPrefix(target, prefix); ok {
		if number, ok = strings.CutSuffix(number, "]"); ok {
			return strconv.ParseUint(number, 10, 64)
		}
	}
	return 0, unix.EINVAL
}

// nsfsMagic is NSFS_MAGIC of linux/magic.h: namespaces lie on their own file
// system.
const nsfsMagic = 0x6e736673

// openNamespace opens a network namespace by a name.
func openNamespace(name string) (f *os.File, inode uint64, err error) {
	// The name may lead to anything: nothing here may wait for a pipe.
	f, err = os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, 0, err
	}
	var fs unix.Statfs_t
	var st unix.Stat_t
	err = errors.Join(unix.Fstatfs(int(f.Fd()), &fs), unix.Fstat(int(f.Fd()), &st))
	if err == nil && int64(fs.Type) != nsfsMagic {
		err = unix.EINVAL
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Ino, nil
}

// visit asks in every namespace for its connections.
func (s *surveyor) visit(ctx context.Context) error {
	runtime.LockOSThread()
	home, _, err := openNamespace(filepath.Join(s.proc, "thread-self/ns/net"))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	away := false
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		if err = context.Cause(ctx); err != nil {
			break
		}
		n.Links = -1
		if !n.Own {
			if n.Err = s.enter(n); n.Err != nil {
				s.Hidden = s.Hidden || errors.Is(n.Err, os.ErrPermission)
				continue
			}
			away = true
		}
		if s.ask(i); n.Own && n.Err != nil {
			err = n.Err
			break
		}
	}
	if away {
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			// Still locked: nobody else may run on this thread any more.
			return fmt.Errorf("returning to the own network namespace: %w", back)
		}
	}
	runtime.UnlockOSThread()
	return err
}

// enter moves the thread to a namespace.
func (s *surveyor) enter(n *Namespace) error {
	names := n.Names
	if n.PID != 0 {
		names = append([]string{s.path(n.PID, "ns/net")}, names...)
	}
	err := error(unix.ESRCH)
	for _, name := range names {
		var f *os.File
		var inode uint64
		if f, inode, err = openNamespace(name); err != nil {
			continue
		}
		// The process may have ended, and another have its number.
		if err = unix.ESRCH; inode == n.Inode {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		}
		f.Close()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("entering the network namespace: %w", err)
}

// ask fills in what the namespace of the thread tells.
func (s *surveyor) ask(i int) {
	n := &s.Namespaces[i]
	// Below /proc/sys/net the kernel shows the reader's own namespace.
	if data, err := readSome(filepath.Join(s.proc, "sys/net/ipv4/tcp_congestion_control")); err == nil {
		n.Default = strings.TrimSpace(string(data))
	}
	if data, err := readSome(filepath.Join(s.proc, "thread-self/net/dev")); err == nil {
		n.Links = countLinks(string(data))
	}
	var all []Connection
	if all, n.Err = List(); n.Err != nil {
		return
	}
	n.Connections, n.Unheld = map[string]int{}, map[string]int{}
	for _, c := range all {
		n.Connections[c.Algorithm]++
		switch {
		case !s.watch(c):
		case c.Inode == 0:
			n.Unheld[c.Algorithm]++
		case len(s.watched) >= maxWatched:
			n.Unheld[c.Algorithm]++
			s.Cut = true
		default:
			s.watched[c.Inode] = &watched{namespace: i, algorithm: c.Algorithm}
		}
	}
}

// countLinks counts the lines of /proc/net/dev that are links other than lo.
func countLinks(dev string) (n int) {
	for line := range strings.Lines(dev) {
		name, _, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) != "lo" {
			n++
		}
	}
	return n
}

// readSome reads the beginning of a file.
func readSome(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProcFile))
}

// holders finds the processes that hold the watched connections.
func (s *surveyor) holders(ctx context.Context) error {
	if len(s.watched) > 0 {
		for _, pid := range s.pids {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			s.sockets(pid)
		}
	}
	type key struct{ pid, namespace int }
	found := map[key]*Holder{}
	for _, w := range s.watched {
		n := &s.Namespaces[w.namespace]
		if w.pid == 0 {
			n.Unheld[w.algorithm]++
			continue
		}
		k := key{w.pid, w.namespace}
		if found[k] == nil {
			found[k] = &Holder{Namespace: n.Inode, PID: w.pid, Started: s.startTime(w.started), Connections: map[string]int{}}
		}
		found[k].Connections[w.algorithm]++
	}
	for _, h := range found {
		if data, err := readSome(s.path(h.PID, "comm")); err == nil {
			h.Command = strings.TrimSuffix(string(data), "\n")
		}
		h.Cgroup = s.cgroup(h.PID)
		s.Holders = append(s.Holders, *h)
	}
	slices.SortFunc(s.Holders, func(a, b Holder) int {
		if a.PID != b.PID {
			return a.PID - b.PID
		}
		if a.Namespace < b.Namespace {
			return -1
		}
		return 1
	})
	return nil
}

// sockets looks for the watched connections among the open files of a process.
func (s *surveyor) sockets(pid int) {
	dir, err := os.Open(s.path(pid, "fd"))
	if err != nil {
		s.Hidden = s.Hidden || errors.Is(err, os.ErrPermission)
		return
	}
	defer dir.Close()
	started, known := uint64(0), false
	// The links are short; a longer one is none of a socket.
	buf := make([]byte, 64)
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if s.files++; s.files > maxFiles {
				s.Cut = true
				return
			}
			n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
			if err != nil || n == len(buf) {
				continue
			}
			inode, err := bracketed(string(buf[:n]), "socket:[")
			if err != nil || inode > 1<<32-1 {
				continue
			}
			w := s.watched[uint32(inode)]
			if w == nil {
				continue
			}
			if !known {
				started, known = s.started(pid), true
			}
			if w.pid == 0 || started < w.started {
				w.pid, w.started = pid, started
			}
		}
		if err != nil || len(names) == 0 {
			// Also the end. Linux lets others open the directory and then
			// refuses to list it.
			s.Hidden = s.Hidden || errors.Is(err, os.ErrPermission)
			return
		}
	}
}

// started reads when a process began, in clock ticks since boot; 0 if not known.
func (s *surveyor) started(pid int) uint64 {
	data, err := readSome(s.path(pid, "stat"))
	if err != nil {
		return 0
	}
	return parseStarted(string(data))
}

// parseStarted reads the 22nd field of /proc/PID/stat (proc_pid_stat(5)). The
// second is the name in parentheses, which may hold anything.
func parseStarted(stat string) uint64 {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return 0
	}
	const after = 22 - 3 // the field behind the name is the third
	if f := strings.Fields(stat[end+1:]); len(f) > after {
		ticks, _ := strconv.ParseUint(f[after], 10, 62)
		return ticks
	}
	return 0
}

// ticksPerSecond is USER_HZ, which is 100 on every architecture accel runs on.
const ticksPerSecond = 100

// booted tells when the kernel started, by the clock of now.
func booted() time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(now.Nano())).Round(time.Second)
}

// startTime turns clock ticks since boot into a time.
func (s *Survey) startTime(ticks uint64) time.Time {
	const century = 100 * 366 * 24 * 3600 * ticksPerSecond
	if ticks == 0 || ticks > century || s.Booted.IsZero() {
		return time.Time{}
	}
	return s.Booted.Add(time.Duration(ticks) * (time.Second / ticksPerSecond)).Round(time.Second)
}

// cgroup reads the path of a process in the hierarchy that systemd uses.
func (s *surveyor) cgroup(pid int) string {
	data, err := readSome(s.path(pid, "cgroup"))
	if err != nil {
		return ""
	}
	return parseCgroup(string(data))
}

// parseCgroup finds the path in /proc/PID/cgroup (cgroups(7)): that of version
// 2, unless it says nothing and the named hierarchy of version 1 does; "" if
// there is neither.
func parseCgroup(data string) string {
	paths := map[string]string{}
	for line := range strings.Lines(data) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && strings.HasPrefix(f[2], "/") {
			switch {
			case f[0] == "0" && f[1] == "":
				paths["2"] = f[2]
			case f[1] == "name=systemd":
				paths["1"] = f[2]
			case strings.Contains(f[1], "cpu"), f[1] == "memory":
				// Without systemd, the runtimes still sort by these.
				paths["0"] = f[2]
			}
		}
	}
	for _, k := range []string{"2", "1", "0"} {
		if p := paths[k]; len(p) > 1 {
			return p
		}
	}
	return slices.Max(append(slices.Collect(maps.Values(paths)), ""))
}
