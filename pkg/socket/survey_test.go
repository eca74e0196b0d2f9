package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestMain lets this binary be the process behind connections, too.
func TestMain(m *testing.M) {
	if os.Getenv("ACCEL_HOLD") != "" {
		if err := hold(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold makes connections in the namespace that it finds itself in, says so and
// keeps them until its standard input ends.
func hold() error {
	algorithms := strings.Fields(os.Getenv("ACCEL_HOLD"))
	if algorithms[0] != "nothing" {
		kept, err := holdConnections(algorithms)
		if err != nil {
			return err
		}
		defer runtime.KeepAlive(kept)
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func holdConnections(algorithms []string) (kept []net.Conn, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	for _, algorithm := range algorithms {
		var d net.Dialer
		d.SetMultipathTCP(false)
		c, err := d.Dial("tcp4", l.Addr().String())
		if err != nil {
			return nil, err
		}
		s, err := l.Accept()
		if err != nil {
			return nil, err
		}
		if err := errors.Join(SetCongestion(c.(*net.TCPConn), algorithm), SetCongestion(s.(*net.TCPConn), algorithm)); err != nil {
			return nil, err
		}
		kept = append(kept, c, s)
	}
	return kept, nil
}

// startHolder starts a process in a namespace of its own that holds a
// connection, both ends, of each algorithm.
func startHolder(t *testing.T, algorithms string) (pid int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	startHolding(t, cmd, algorithms)
	return cmd.Process.Pid
}

func startHolding(t *testing.T, cmd *exec.Cmd, algorithms string) {
	t.Helper()
	cmd.Env = append(os.Environ(), "ACCEL_HOLD="+algorithms)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the holder said %q, %v", line, err)
	}
}

func notBBR(c Connection) bool { return c.Algorithm != "bbr" }

func lookAround(t *testing.T) *Survey {
	t.Helper()
	s, err := LookAround(t.Context(), notBBR)
	if errors.Is(err, ErrNoDiag) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// of returns the namespace of a process, and its holders.
func (s *Survey) of(t *testing.T, link string) (Namespace, []Holder) {
	t.Helper()
	inode, err := namespaceOf(link)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.Namespaces, func(n Namespace) bool { return n.Inode == inode })
	if i < 0 {
		t.Fatalf("namespace %d is not among %+v", inode, s.Namespaces)
	}
	var holders []Holder
	for _, h := range s.Holders {
		if h.Namespace == inode {
			holders = append(holders, h)
		}
	}
	return s.Namespaces[i], holders
}

func TestLookAround(t *testing.T) {
	inNamespace(t, true)
	setDefault(t, "reno")
	began := time.Now()
	pid := startHolder(t, "reno reno cubic")
	client, _ := pair(t, "tcp4", "127.0.0.1:0")
	if err := SetCongestion(client, "cubic"); err != nil {
		t.Fatal(err)
	}
	home, err := namespaceOf("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	s := lookAround(t)

	if now, err := namespaceOf("/proc/thread-self/ns/net"); err != nil || now != home {
		t.Fatalf("the thread is in namespace %d now, %v", now, err)
	}
	if !s.Namespaces[0].Own || s.Namespaces[0].Inode != home {
		t.Errorf("the own namespace is not the first: %+v", s.Namespaces)
	}
	own, mine := s.of(t, "/proc/thread-self/ns/net")
	want := Namespace{Inode: home, Own: true, Default: "reno", Connections: map[string]int{"reno": 1, "cubic": 1}, Unheld: map[string]int{}}
	own.PID, own.Cgroup = 0, "" // of whatever thread leads a process here
	if diff := cmp.Diff(want, own); diff != "" {
		t.Errorf("the own namespace (-want +got)\n%s", diff)
	}
	if len(mine) != 1 || mine[0].PID != os.Getpid() || mine[0].Connections["cubic"] != 1 || mine[0].Connections["reno"] != 1 {
		t.Errorf("this process holds two connections: %+v", mine)
	}

	other, theirs := s.of(t, fmt.Sprintf("/proc/%d/ns/net", pid))
	want = Namespace{
		Inode: other.Inode, PID: pid, Cgroup: other.Cgroup, Default: "reno",
		Connections: map[string]int{"reno": 4, "cubic": 2}, Unheld: map[string]int{},
	}
	if diff := cmp.Diff(want, other); diff != "" {
		t.Errorf("the other namespace (-want +got)\n%s", diff)
	}
	if len(theirs) != 1 {
		t.Fatalf("holders of the other namespace: %+v", theirs)
	}
	h := theirs[0]
	if h.PID != pid || h.Connections["reno"] != 4 || h.Connections["cubic"] != 2 {
		t.Errorf("got %+v", h)
	}
	// Where nothing is mounted that has cgroups, there is none.
	if cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil && h.Cgroup != parseCgroup(string(cgroup)) {
		t.Errorf("the holder's cgroup is %q: %q", h.Cgroup, cgroup)
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || h.Command+"\n" != string(comm) {
		t.Errorf("the holder is called %q, not %q (%v)", h.Command, comm, err)
	}
	if h.Started.Before(began.Add(-2*time.Second)) || h.Started.After(time.Now().Add(2*time.Second)) {
		t.Errorf("the holder started at %v, which was about %v", h.Started, began)
	}
}

// What has the watched algorithm only needs nobody's name.
func TestLookAroundUnwatched(t *testing.T) {
	inNamespace(t, true)
	setDefault(t, "reno")
	pair(t, "tcp4", "127.0.0.1:0")
	s, err := LookAround(t.Context(), func(c Connection) bool { return c.Algorithm == "nosuch" })
	if errors.Is(err, ErrNoDiag) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if own := s.Namespaces[0]; own.Connections["reno"] != 2 || len(own.Unheld) > 0 || len(s.Holders) > 0 {
		t.Errorf("got %+v", s)
	}
}

// The ends that nobody has accepted have no process; those that two processes
// hold are the older one's.
func TestLookAroundHolders(t *testing.T) {
	inNamespace(t, true)
	setDefault(t, "reno")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// Clock ticks tell which of two processes is the older one.
	time.Sleep(20 * time.Millisecond)
	child := exec.Command("/proc/self/exe")
	child.ExtraFiles = []*os.File{file}
	startHolding(t, child, "nothing")
	check := func(pid int) {
		t.Helper()
		own, holders := lookAround(t).of(t, "/proc/thread-self/ns/net")
		if diff := cmp.Diff(map[string]int{"reno": 1}, own.Unheld); diff != "" {
			t.Errorf("held by nobody (-want +got)\n%s", diff)
		}
		if len(holders) != 1 || holders[0].PID != pid || holders[0].Connections["reno"] != 1 {
			t.Errorf("want one connection of process %d, got %+v", pid, holders)
		}
	}
	check(os.Getpid())
	c.Close()
	file.Close()
	check(child.Process.Pid)
}

// A namespace that only has a name is found, and a name that leads elsewhere is
// no namespace.
func TestLookAroundNames(t *testing.T) {
	inNamespace(t, true)
	// The mounts of the test are its own.
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	place := filepath.Join(dir, "with\nnewline")
	thread, done := make(chan int), make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends, and the namespace is the name's alone
		if unix.Unshare(unix.CLONE_NEWNET) == nil && os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0) == nil {
			thread <- unix.Gettid()
		}
		close(thread)
		<-done
	}()
	tid, ok := <-thread
	if !ok {
		t.Fatal("no namespace could be made")
	}
	task := fmt.Sprintf("/proc/self/task/%d/ns/net", tid)
	inode, err := namespaceOf(task)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(place, nil, 0o644), unix.Mount(task, place, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	close(done)
	t.Cleanup(func() { unix.Unmount(place, unix.MNT_DETACH) })
	pipe := filepath.Join(dir, "pipe")
	if err := errors.Join(
		unix.Mkfifo(pipe, 0o644),
		os.Symlink("loop", filepath.Join(dir, "loop")),
		os.Symlink("/dev/zero", filepath.Join(dir, "zero")),
		os.Symlink("/proc/self/ns/uts", filepath.Join(dir, "uts")),
		os.WriteFile(filepath.Join(dir, "left"), nil, 0),
		os.Mkdir(filepath.Join(dir, "directory"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	s := &surveyor{places: places{"/proc", []string{dir, "/nosuch"}}, Survey: &Survey{}, watch: notBBR, watched: map[uint32]*watched{}}
	if err := s.look(t.Context()); errors.Is(err, ErrNoDiag) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	var got []Namespace
	for _, n := range s.Namespaces {
		if len(n.Names) > 0 {
			// What is no network namespace cannot be entered, whatever its name.
			if n.Inode != inode && n.Err == nil {
				t.Errorf("entered %+v", n)
			}
			if n.Inode == inode {
				n.PID, n.Cgroup = 0, ""
				got = append(got, n)
			}
		}
	}
	want := []Namespace{{Inode: inode, Names: []string{place}, Default: "reno", Connections: map[string]int{}, Unheld: map[string]int{}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Without root there is less to see, and that is said.
func TestLookAroundUnprivileged(t *testing.T) {
	inNamespace(t, true)
	setDefault(t, "reno")
	pair(t, "tcp4", "127.0.0.1:0")
	startHolder(t, "reno")
	dropCapabilities(t)
	s := lookAround(t)
	if !s.Hidden {
		t.Error("nothing is said to be hidden")
	}
	if own := s.Namespaces[0]; !own.Own || own.Connections["reno"] != 2 {
		t.Errorf("the own namespace: %+v", own)
	}
	for _, n := range s.Namespaces[1:] {
		if n.Err == nil {
			t.Errorf("entered namespace %+v", n)
		}
	}
}

func TestLookAroundEnds(t *testing.T) {
	inNamespace(t, true)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := LookAround(ctx, notBBR); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

// Fifty thousand sockets must fit beside everything else into a host of 128 MiB.
func TestLookAroundMany(t *testing.T) {
	inNamespace(t, true)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	pairs := 2000
	if os.Getenv("ACCEL_LONG") != "" {
		pairs = 25000
	}
	want := uint64(2*pairs + 500)
	more := unix.Rlimit{Cur: max(limit.Cur, want), Max: max(limit.Max, want)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &more); err != nil {
		pairs = min(pairs, (int(limit.Cur)-500)/2) // no root over this
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
	setDefault(t, "reno")
	// Without Go's own network, whose readers would count as well.
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(listener, 128)); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}
	for range pairs {
		c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
		if err := unix.Connect(c, address); err != nil {
			t.Fatal(err)
		}
		s, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(s)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	s := lookAround(t)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	_, holders := s.of(t, "/proc/thread-self/ns/net")
	if len(holders) != 1 || holders[0].Connections["reno"] != 2*pairs {
		t.Errorf("%d sockets: %+v", 2*pairs, holders)
	}
	each := float64(after.TotalAlloc-before.TotalAlloc) / float64(2*pairs)
	t.Logf("%d sockets: %v, %.0f bytes allocated for each, all told", 2*pairs, took, each)
	// All that was ever allocated, the collector not counted in: 50,000 times
	// this is far below what a host of 128 MiB has.
	if each > 1000 {
		t.Errorf("%.0f bytes were allocated for each socket", each)
	}
}

func TestParseStarted(t *testing.T) {
	fields := strings.Repeat(" 0", 18)
	for stat, want := range map[string]uint64{
		"1 (init) S" + fields + " 12345 6 7":               12345,
		"1 (a) b) S 1 (c) R" + fields + " 77":              77,
		"1 (init) S" + fields:                              0,
		"1 (init) S" + fields + " x":                       0,
		"1 (init) S" + fields + " -1":                      0,
		"1 (init) S" + fields + " 99999999999999999999999": 0,
		"1 init S": 0,
		"":         0,
	} {
		if got := parseStarted(stat); got != want && !(want == 0 && got > 1<<60) {
			t.Errorf("%q: %d, want %d", stat, got, want)
		}
	}
	s := &Survey{Booted: time.Now()}
	if got, want := s.startTime(250), s.Booted.Add(2500*time.Millisecond).Round(time.Second); !got.Equal(want) {
		t.Errorf("250 ticks after boot is %v, want %v", got, want)
	}
	for _, ticks := range []uint64{0, 1 << 61, 1<<62 - 1} {
		if got := s.startTime(ticks); !got.IsZero() {
			t.Errorf("%d ticks after boot is %v", ticks, got)
		}
	}
}

func TestParseCgroup(t *testing.T) {
	for name, tc := range map[string]struct{ data, want string }{
		"version 2": {"0::/system.slice/nginx.service\n", "/system.slice/nginx.service"},
		"version 1": {"12:pids:/x\n3:cpu,cpuacct:/y\n1:name=systemd:/system.slice/ssh.service\n", "/system.slice/ssh.service"},
		"both":      {"1:name=systemd:/system.slice/ssh.service\n0::/\n", "/system.slice/ssh.service"},
		"runtime":   {"4:memory:/docker/0123\n1:name=systemd:/\n", "/docker/0123"},
		"root":      {"0::/\n", "/"},
		"colons":    {"0::/system.slice/a:b.service\n", "/system.slice/a:b.service"},
		"strange":   {"0::relative\nx\n:::\n1:\n", ""},
		"empty":     {"", ""},
	} {
		if got := parseCgroup(tc.data); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestCountLinks(t *testing.T) {
	const head = "Inter-|   Receive                |  Transmit\n face |bytes    packets|bytes\n"
	for dev, want := range map[string]int{
		"": 0, head: 0,
		head + "    lo:       0 0\n":                       0,
		head + "    lo: 0 0\n  eth0: 1 2\nveth0123:34 5\n": 2,
	} {
		if got := countLinks(dev); got != want {
			t.Errorf("%q: %d, want %d", dev, got, want)
		}
	}
}

// Files of processes that are nothing of what they should be.
func TestHostileProcesses(t *testing.T) {
	proc := t.TempDir()
	write := func(name string, data string) {
		t.Helper()
		p := filepath.Join(proc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(data), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(name, target string) {
		t.Helper()
		p := filepath.Join(proc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.Symlink(target, p)); err != nil {
			t.Fatal(err)
		}
	}
	link("thread-self/ns/net", "net:[1]")
	link("1/ns/net", "net:[1]")
	write("1/comm", "\x1b[31mred\x1b[0m\nx\n")
	write("1/cgroup", strings.Repeat("0::/"+strings.Repeat("x", 1000)+"\n", 1000))
	write("1/stat", "1 (\x1b[31mred) S"+strings.Repeat(" 9", 40))
	link("1/fd/0", "/dev/null")
	link("1/fd/1", "socket:[10]")
	link("1/fd/2", "socket:[4294967306]") // 10, if it were cut
	link("1/fd/3", "socket:[-10]")
	link("1/fd/4", "socket:[10")
	link("1/fd/5", "socket:["+strings.Repeat("1", 200)+"]")
	link("1/fd/x", "x")
	write("1/fd/6", "socket:[10]")
	link("2/ns/net", "net:[x]")
	link("2/fd", "fd") // to itself
	if err := unix.Mkfifo(filepath.Join(proc, "2/comm"), 0o644); err != nil {
		t.Fatal(err)
	}
	link("03/ns/net", "net:[3]")
	link("-4/ns/net", "net:[4]")
	link("99999999999999999999/ns/net", "net:[5]")
	link("5/ns/net", "/nosuch")
	link("6/ns/net", "net:[1]")
	link("6/fd/0", "socket:[11]")
	link("6/comm", "/dev/zero")
	link("6/stat", "/dev/zero")
	link("6/cgroup", "/dev/zero")

	s := &surveyor{places: places{proc, nil}, Survey: &Survey{}, watch: notBBR, watched: map[uint32]*watched{
		10: {algorithm: "reno"}, 11: {algorithm: "cubic"}, 12: {algorithm: "cubic"},
	}}
	if err := s.find(); err != nil {
		t.Fatal(err)
	}
	s.Namespaces[0].Unheld = map[string]int{}
	if err := s.holders(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.Namespaces) != 1 || s.Namespaces[0].Inode != 1 || s.Namespaces[0].PID != 1 {
		t.Errorf("namespaces: %+v", s.Namespaces)
	}
	if diff := cmp.Diff(map[string]int{"cubic": 1}, s.Namespaces[0].Unheld); diff != "" {
		t.Errorf("held by nobody (-want +got)\n%s", diff)
	}
	if len(s.Holders) != 2 || s.Holders[0].PID != 1 || s.Holders[1].PID != 6 {
		t.Fatalf("holders: %+v", s.Holders)
	}
	for _, h := range s.Holders {
		if len(h.Command) > maxProcFile || len(h.Cgroup) > maxProcFile {
			t.Errorf("%d bytes of a name, %d of a cgroup", len(h.Command), len(h.Cgroup))
		}
	}
	if h := s.Holders[0]; h.Connections["reno"] != 1 || len(h.Connections) != 1 {
		t.Errorf("got %+v", h)
	}
}

func FuzzProcess(f *testing.F) {
	f.Add("1 (init) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 22 1 1 1")
	f.Add("0::/system.slice/nginx.service\n1:name=systemd:/\n")
	f.Add("socket:[12345]")
	f.Fuzz(func(t *testing.T, s string) {
		(&Survey{Booted: time.Unix(1, 0)}).startTime(parseStarted(s))
		if p := parseCgroup(s); p != "" && (p[0] != '/' || !strings.Contains(s, p) || strings.Contains(p, "\n")) {
			t.Errorf("cgroup %q of %q", p, s)
		}
		if n, err := bracketed(s, "socket:["); err == nil && !strings.HasSuffix(s, strconv.FormatUint(n, 10)+"]") && !strings.Contains(s, "[0") {
			t.Errorf("%d of %q", n, s)
		}
		if n := countLinks(s); n < 0 || n > len(s) {
			t.Errorf("%d links", n)
		}
	})
}
