package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"accel/pkg/memory"
	"accel/pkg/socket"
	"accel/pkg/sysctl"
	"accel/pkg/text"
)

// ChildCommand is the argument with which accel re-executes itself as one of
// the children; a program that uses this package has to call Child when it is
// started with it.
const ChildCommand = "lab-child"

// childGC lets the garbage of a child grow to a fifth of what it uses: there are
// three of them or four, which make little garbage and have no hurry.
const childGC = 20

// Missing says what the kernel does not have.
type Missing struct {
	What   string // "qdisc", "link" or "algorithm"
	Name   string // as in "netem"
	Module string // that would bring it
}

func (m *Missing) Error() string {
	switch m.What {
	case "qdisc":
		return text.T("this kernel has no qdisc %s", m.Name)
	case "link":
		return text.T("this kernel has no links of the kind %s", m.Name)
	}
	return text.T("this kernel has no algorithm %s", m.Name)
}

// request and reply are what parent and child tell each other, a line of JSON
// each. Replies come in any order.
type request struct {
	ID   int
	Op   string
	Args json.RawMessage `json:",omitempty"`
}

type reply struct {
	ID     int
	Result json.RawMessage `json:",omitempty"`
	// One of the two, or none.
	Missing *Missing `json:",omitempty"`
	Error   string   `json:",omitempty"`
}

// errAtHome keeps a child from touching the network of its parent.
var errAtHome = errors.New("this process is in the network namespace of its parent")

// Child is one of the ends or the router: it does what the parent asks on
// standard input, until that ends. It touches nothing unless it is in another
// network namespace than its parent.
func Child() error {
	signal.Ignore(syscall.SIGPIPE)
	debug.SetGCPercent(childGC)
	memory.ReturnProgram()
	if err := abroad(); err != nil {
		return err
	}
	c := &childState{servers: map[int]*server{}, original: map[sysctl.Key]string{}}
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var r request
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil // the parent is gone or has no more to do
		} else if err != nil {
			return err
		}
		go func() {
			answer := reply{ID: r.ID}
			result, err := c.do(r)
			if err == nil && result != nil {
				answer.Result, err = json.Marshal(result)
			}
			if m := (*Missing)(nil); errors.As(err, &m) {
				answer.Missing = m
			} else if err != nil {
				answer.Error = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			_ = out.Encode(answer) // if the parent is gone, standard input has ended too
		}()
	}
}

func abroad() error {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	parent, err := os.Readlink("/proc/" + strconv.Itoa(os.Getppid()) + "/ns/net")
	if err != nil {
		return err
	}
	if own == parent {
		return errAtHome
	}
	return nil
}

type childState struct {
	mu       sync.Mutex
	servers  map[int]*server
	original map[sysctl.Key]string // of what the present arm set
}

type (
	endArgs   struct{ N, Pid int }
	shapeArgs struct {
		Ends []int // none: lo
		Path Path
		Seed uint64
		Late time.Duration
	}
	armArgs struct {
		N        int
		Arm      Arm
		Loopback bool
	}
)

// The operations of a child. Those of the tests are added by them.
var operations = map[string]func(*childState, json.RawMessage) (any, error){
	"quiet":   func(*childState, json.RawMessage) (any, error) { return nil, quiet() },
	"forget":  func(*childState, json.RawMessage) (any, error) { return nil, forget() },
	"forward": func(*childState, json.RawMessage) (any, error) { return nil, tree.Write("net/ipv4/ip_forward", "1") },
	"stock":   func(*childState, json.RawMessage) (any, error) { return nil, stock() },
	"add": with(func(_ *childState, a endArgs) (any, error) {
		return nil, addEnd(a.N, a.Pid)
	}),
	"end": with(func(_ *childState, a endArgs) (any, error) {
		if err := setUp(endLink, endAddress(a.N), routerAddress(a.N)); err != nil {
			return nil, err
		}
		return nil, routeAll(a.N, Arm{})
	}),
	"shape": with(func(_ *childState, a shapeArgs) (any, error) {
		names := []string{"lo"}
		if len(a.Ends) > 0 {
			names = nil
		}
		for _, n := range a.Ends {
			names = append(names, routerLink(n))
		}
		for i, name := range names {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return nil, fmt.Errorf("finding the link %s: %w", name, err)
			}
			if err := shape(link.Attrs().Index, a.Path, a.Seed+uint64(i), a.Late); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}),
	"buffer": with(func(_ *childState, most int64) (any, error) {
		s := stockReceive
		if most > 0 {
			s.Value = fmt.Sprintf("4096 %d %d", min(131072, most), most)
		}
		return nil, tree.Write(s.Key, s.Value)
	}),
	"late": func(*childState, json.RawMessage) (any, error) { return lateness(), nil },
	"arm":  with((*childState).arm),
	"listen": with(func(c *childState, a listenArgs) (any, error) {
		s, port, err := listen(a)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		id := len(c.servers)
		for c.servers[id] != nil {
			id++
		}
		c.servers[id] = s
		return listenReply{id, port}, nil
	}),
	"account": with(func(c *childState, id int) (any, error) {
		c.mu.Lock()
		s := c.servers[id]
		delete(c.servers, id)
		c.mu.Unlock()
		if s == nil {
			return nil, errors.New("there is no such server")
		}
		s.listener.Close() // whoever has not come by now does not come
		<-s.done
		return s.accounts, nil
	}),
	"fetch": with(func(_ *childState, a fetchArgs) (any, error) { return fetch(a) }),
	"version": with(func(_ *childState, algorithm string) (any, error) {
		return socket.BBRVersionOf(algorithm)
	}),
}

// with is an operation whose arguments are an A.
func with[A any](f func(*childState, A) (any, error)) func(*childState, json.RawMessage) (any, error) {
	return func(c *childState, data json.RawMessage) (any, error) {
		var a A
		if err := json.Unmarshal(data, &a); err != nil {
			return nil, err
		}
		return f(c, a)
	}
}

func (c *childState) do(r request) (any, error) {
	op := operations[r.Op]
	if op == nil {
		return nil, fmt.Errorf("there is no operation %q", r.Op)
	}
	return op(c, r.Args)
}

// stockSettings are what a new namespace would inherit from its host and not
// take from the kernel: with them both ends are a kernel as it comes, whatever
// the host has been tuned to. The values are those of a host with 4 GiB of
// memory or more (tcp_init in net/ipv4/tcp.c).
var (
	stockReceive  = sysctl.KeyValue{Key: "net/ipv4/tcp_rmem", Value: "4096 131072 6291456"}
	stockSettings = []sysctl.KeyValue{stockReceive, {Key: "net/ipv4/tcp_wmem", Value: "4096 16384 4194304"}}
)

func stock() error {
	for _, s := range stockSettings {
		if err := tree.Write(s.Key, s.Value); err != nil {
			return err
		}
	}
	return nil
}

// arm makes this end that of an arm, instead of the arm it was. It returns what
// a namespace cannot have of it.
func (c *childState) arm(a armArgs) (any, error) {
	for k, v := range c.original {
		if err := tree.Write(k, v); err != nil {
			return nil, err
		}
	}
	clear(c.original)
	var not []string
	for _, s := range a.Arm.Settings {
		before, err := tree.Read(s.Key)
		if errors.Is(err, sysctl.ErrMissing) {
			not = append(not, fmt.Sprintf("%s: %s", s.Key, noSuchKey))
			continue
		}
		if err != nil {
			return nil, err
		}
		err = tree.Write(s.Key, s.Value)
		if now, readErr := tree.Read(s.Key); readErr == nil && now != before {
			c.original[s.Key] = before
		}
		switch {
		case errors.Is(err, sysctl.ErrValue):
			not = append(not, fmt.Sprintf("%s: %s%q", s.Key, refusedValue, s.Value))
		case errors.Is(err, sysctl.ErrReadOnly), errors.Is(err, sysctl.ErrNamespace), errors.Is(err, sysctl.ErrPermission):
			not = append(not, fmt.Sprintf("%s: %s", s.Key, unchangeable))
		case err != nil:
			return nil, err
		}
	}
	if !a.Loopback {
		if err := routeAll(a.N, a.Arm); err != nil {
			return nil, err
		}
		if err := rootQdisc(a.Arm.Qdisc); err != nil {
			return nil, err
		}
	}
	return slices.Clone(not), nil
}
