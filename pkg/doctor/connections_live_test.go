package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"accel/pkg/socket"
)

// These tests ask a real kernel, in network namespaces of their own. A program
// with connections is this binary again, told what to do line by line.

const programVariable = "ACCEL_DOCTOR_PROGRAM"

func init() {
	if os.Getenv(programVariable) != "" {
		if err := program(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// program answers each line that it reads: "connect" makes a connection between
// two addresses of its namespace, "connect vegas" one with that algorithm at
// both ends, "listen" a listener that it keeps, "default reno" the default of its
// namespace.
func program() error {
	if err := addresses(); err != nil {
		return err
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp4", "192.0.2.1:0")
	if err != nil {
		return err
	}
	var kept []io.Closer
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		switch words[0] {
		case "listen":
			more, err := net.Listen("tcp4", "192.0.2.1:0")
			if err != nil {
				return err
			}
			kept = append(kept, more)
			fmt.Println("done")
			continue
		case "default":
			if err := os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(words[1]), 0); err != nil {
				return err
			}
			fmt.Println("done")
			continue
		}
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}}
		d.SetMultipathTCP(false)
		c, err := d.Dial("tcp4", l.Addr().String())
		if err != nil {
			return err
		}
		s, err := l.Accept()
		if err != nil {
			return err
		}
		kept = append(kept, c, s)
		if len(words) > 1 {
			if err := errors.Join(socket.SetCongestion(c.(*net.TCPConn), words[1]), socket.SetCongestion(s.(*net.TCPConn), words[1])); err != nil {
				return err
			}
		}
		fmt.Println("done")
	}
	runtime.KeepAlive(kept)
	return nil
}

// addresses gives the namespace a link with two addresses, if it has none yet.
func addresses() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "outside"
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	if err := netlink.LinkAdd(link); errors.Is(err, unix.EEXIST) {
		return nil
	} else if err != nil {
		return err
	}
	for _, a := range []string{"192.0.2.1/32", "192.0.2.2/32"} {
		addr, err := netlink.ParseAddr(a)
		if err == nil {
			err = netlink.AddrAdd(link, addr)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(link))
}

// a running program.
type running struct {
	pid int
	in  io.Writer
	out *bufio.Reader
}

// start starts a program in the namespace of the test, or in one of its own.
func start(t *testing.T, apart bool) *running {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), programVariable+"=1")
	cmd.Stderr = os.Stderr
	if apart {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	}
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
	r := &running{pid: cmd.Process.Pid, in: in, out: bufio.NewReader(out)}
	r.expect(t, "ready")
	return r
}

func (r *running) expect(t *testing.T, want string) {
	t.Helper()
	if line, err := r.out.ReadString('\n'); line != want+"\n" {
		t.Fatalf("the program said %q, %v; want %q", line, err, want)
	}
}

func (r *running) do(t *testing.T, command string) {
	t.Helper()
	fmt.Fprintln(r.in, command)
	r.expect(t, "done")
}

var hostNamespace, _ = os.Readlink("/proc/self/ns/net")

// setDefault sets the algorithm of new connections of the test's namespace.
func setDefault(t *testing.T, algorithm string) {
	t.Helper()
	if here, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || here == hostNamespace {
		t.Fatal("not in a namespace of its own", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(algorithm), 0); err != nil {
		t.Fatal(err)
	}
}

// The whole story of a switch: programs from before and after, one that chooses
// for itself, a container made before.
func TestConnectionsLive(t *testing.T) {
	if os.Getuid() != 0 {
		const reason = "needs root, to make network namespaces"
		if os.Getenv("CI") == "true" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	runtime.LockOSThread() // and never unlocks: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	// What else can be the default of a namespace than reno.
	allowed, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(allowed))
	wanted := names[len(names)-1] // reno is the first
	if wanted == "reno" {
		t.Skip("no algorithm but reno is allowed to namespaces here")
	}
	setDefault(t, "reno")
	before := start(t, false)
	before.do(t, "connect")
	before.do(t, "connect")
	before.do(t, "listen")
	own := start(t, false)
	own.do(t, "connect cubic")
	container := start(t, true)
	container.do(t, "default reno")
	container.do(t, "connect")

	setDefault(t, wanted)
	before.do(t, "connect") // the listener from before accepts with the new one
	after := start(t, false)
	after.do(t, "connect")

	c := change{algorithm: wanted, enabled: true, since: time.Now(), defaults: []string{wanted, "reno"}}
	ask := func(c change) *Connections {
		t.Helper()
		got := lookAround(t.Context(), socket.LookAround, c)
		if strings.Contains(got.Reason, "inet_diag") {
			t.Skip(got.Reason)
		}
		if !got.Known {
			t.Fatal(got.Reason)
		}
		return got
	}
	of := func(got *Connections, r *running) []ProcessOf {
		return slices.DeleteFunc(slices.Clone(got.Processes), func(p ProcessOf) bool { return !slices.Contains(p.PIDs, r.pid) })
	}
	one := func(got *Connections, r *running, algorithm string, source Source, n int) {
		t.Helper()
		p := of(got, r)
		if len(p) != 1 || p[0].Algorithm != algorithm || p[0].Source != source || p[0].Connections != n || p[0].Advice == "" {
			t.Errorf("want %d connections with %s (%s), got %+v", n, algorithm, source, p)
		}
	}
	got := ask(c)
	if got.Namespaces[0].Default != wanted || !got.Namespaces[0].Own || got.Namespaces[0].Old {
		t.Errorf("the own namespace: %+v", got.Namespaces[0])
	}
	// Two connections have four ends; the one after the switch needs nothing.
	one(got, before, "reno", Before, 4)
	if wanted != "cubic" {
		one(got, own, "cubic", Chosen, 2)
	}
	if p := of(got, after); len(p) > 0 {
		t.Errorf("a program with the new algorithm only is listed: %+v", p)
	}

	// The container was made before, and everything new in it is old.
	one(got, container, "reno", OfNamespace, 2)
	if n := namespaceWith(t, got, container.pid); !n.Old || n.Default != "reno" || n.Links != 2 || n.Connections["reno"] != 2 || n.Advice == "" {
		t.Errorf("the container's namespace: %+v", n)
	}
	if got.old() == 0 {
		t.Error("an old namespace with links wants no attention")
	}
	// A restart changes both.
	again, anew := start(t, false), start(t, true)
	again.do(t, "connect")
	anew.do(t, "default "+wanted)
	anew.do(t, "connect")
	got = ask(c)
	for _, r := range []*running{again, anew} {
		if p := of(got, r); len(p) > 0 {
			t.Errorf("after a restart it is still listed: %+v", p)
		}
	}
	if n := namespaceWith(t, got, anew.pid); n.Old || n.Advice != "" {
		t.Errorf("the container made anew: %+v", n)
	}
}

func namespaceWith(t *testing.T, c *Connections, pid int) NamespaceOf {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Namespaces {
		if fmt.Sprintf("net:[%d]", n.Number) == link {
			return n
		}
	}
	t.Fatalf("namespace %s of process %d is not listed: %+v", link, pid, c.Namespaces)
	return NamespaceOf{}
}
