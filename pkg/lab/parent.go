package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"accel/pkg/text"
)

// Errors of this package, to be matched with errors.Is.
var (
	// ErrPermission: network namespaces are for root (CAP_SYS_ADMIN).
	ErrPermission = errors.New("making a network namespace is not permitted")
	// ErrNoNamespaces: the kernel has no network namespaces, or no more of them.
	ErrNoNamespaces = errors.New("the kernel gives no network namespace")
)

// child is a process in a network namespace of its own.
type child struct {
	role    string
	process *os.Process
	stdin   *os.File
	release func() // lets the thread go that the process depends on

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	dead    error // set when no reply can come
	stderr  bytes.Buffer
	exited  chan struct{}
}

// start re-executes this program in a new network namespace. cpu is the one
// processor that it may use, or -1.
func start(role string, cpu int) (*child, error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer inRead.Close()
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		inWrite.Close()
		return nil, err
	}
	defer outWrite.Close()
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		inWrite.Close()
		outRead.Close()
		return nil, err
	}
	defer errWrite.Close()
	c := &child{role: role, stdin: inWrite, waiting: map[int]chan reply{}, exited: make(chan struct{})}

	// The kernel kills the child when the thread that made it ends, so the
	// thread has to last as long as the child does.
	held, started := make(chan struct{}), make(chan error)
	c.release = sync.OnceFunc(func() { close(held) })
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var err error
		if cpu >= 0 { // the child inherits it
			var set unix.CPUSet
			set.Set(cpu)
			if err = unix.SchedSetaffinity(0, &set); err != nil {
				started <- err
				return
			}
		}
		c.process, err = os.StartProcess("/proc/self/exe", []string{"accel", ChildCommand, role}, &os.ProcAttr{
			Dir: "/",
			// English, and nothing of the caller's.
			Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			Files: []*os.File{inRead, outWrite, errWrite},
			Sys: &syscall.SysProcAttr{
				Cloneflags: syscall.CLONE_NEWNET,
				Pdeathsig:  syscall.SIGKILL,
				Setpgid:    true, // an interrupt from the terminal is for the parent
			},
		})
		started <- err
		if err == nil {
			<-held
		}
	}()
	if err := <-started; err != nil {
		inWrite.Close()
		outRead.Close()
		errRead.Close()
		switch {
		case errors.Is(err, syscall.EPERM):
			return nil, fmt.Errorf("%w (%w)", ErrPermission, err)
		case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.ENOSYS):
			return nil, fmt.Errorf("%w (%w)", ErrNoNamespaces, err)
		}
		return nil, text.Errorf("starting the %s: %w", role, err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer errRead.Close()
		_, _ = io.Copy(&limited{&c.stderr, 4096}, errRead)
	})
	go func() {
		defer outRead.Close()
		in := json.NewDecoder(outRead)
		for {
			var r reply
			if err := in.Decode(&r); err != nil {
				break
			}
			c.mu.Lock()
			ch := c.waiting[r.ID]
			delete(c.waiting, r.ID)
			c.mu.Unlock()
			if ch != nil {
				ch <- r
			}
		}
		reading.Wait()
		state, err := c.process.Wait()
		c.release()
		c.mu.Lock()
		c.dead = text.Errorf("the %s ended early", role)
		if err == nil {
			c.dead = text.Errorf("the %s ended early: %s", role, state)
		}
		if said := bytes.TrimSpace(c.stderr.Bytes()); len(said) > 0 {
			c.dead = fmt.Errorf("%w: %s", c.dead, said)
		}
		for _, ch := range c.waiting {
			close(ch)
		}
		clear(c.waiting)
		c.mu.Unlock()
		close(c.exited)
	}()
	return c, nil
}

// limited writes the first bytes and drops the rest.
type limited struct {
	w    *bytes.Buffer
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	l.w.Write(p[:min(len(p), max(l.most-l.w.Len(), 0))])
	return len(p), nil
}

// close ends the child, and with it its namespace.
func (c *child) close() {
	c.stdin.Close()
	_ = c.process.Kill()
	<-c.exited
}

// call has the child do something and waits for the result, which is stored in
// result unless that is nil. Errors: *Missing; the context's.
func (c *child) call(ctx context.Context, op string, args, result any) error {
	data, err := json.Marshal(args)
	if err != nil {
		return err
	}
	ch := make(chan reply, 1)
	c.mu.Lock()
	if c.dead != nil {
		c.mu.Unlock()
		return c.dead
	}
	c.next++
	id := c.next
	c.waiting[id] = ch
	line, err := json.Marshal(request{ID: id, Op: op, Args: data})
	if err == nil {
		_, err = c.stdin.Write(append(line, '\n'))
	}
	c.mu.Unlock()
	if err != nil && !errors.Is(err, syscall.EPIPE) { // then it is about to be dead
		return text.Errorf("asking the %s: %w", c.role, err)
	}
	select {
	case r, ok := <-ch:
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.dead
		case r.Missing != nil:
			return r.Missing
		case r.Error != "":
			return errors.New(r.Error)
		case result == nil:
			return nil
		}
		return json.Unmarshal(r.Result, result)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Numbers of the ends.
const (
	receiverEnd = 1
	senderEnd   = 2
	rivalEnd    = 3
)

// rig is the three namespaces and what connects them, or one with both ends.
type rig struct {
	router, sender, receiver, rival *child // over loopback: receiver == sender, router and rival nil
	load                            func(ctx context.Context, module string) error
	arm                             int // the sender's present one; -1 = none
	late                            time.Duration
}

// processors gives a processor for what sends and one for what receives. A
// sender that moves to another one leaves packets behind, which are then
// overtaken by the next: reordering that nobody asked for. -1: there is only one.
func processors() (send, receive int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil || set.Count() < 2 {
		return -1, -1
	}
	send = -1
	for cpu := 0; ; cpu++ {
		switch {
		case !set.IsSet(cpu):
		case send < 0:
			send = cpu
		default:
			return send, cpu
		}
	}
}

// newRig builds the namespaces of a kind of path.
func newRig(ctx context.Context, loopback, rival bool, load func(context.Context, string) error) (_ *rig, err error) {
	r := &rig{load: load, arm: -1}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	send, receive := processors()
	if loopback {
		send = -1 // both ends are one process
	}
	if r.sender, err = start("sender", send); err != nil {
		return nil, err
	}
	ends := map[int]*child{senderEnd: r.sender}
	if loopback {
		r.receiver = r.sender
	} else {
		if r.router, err = start("router", send); err != nil {
			return nil, err
		}
		if err := r.prepare(ctx, r.router, "quiet", "forward"); err != nil {
			return nil, err
		}
		if r.receiver, err = start("receiver", receive); err != nil {
			return nil, err
		}
		ends[receiverEnd] = r.receiver
		if rival {
			if r.rival, err = start("rival", send); err != nil {
				return nil, err
			}
			ends[rivalEnd] = r.rival
		}
	}
	for n, c := range ends {
		if err := r.prepare(ctx, c, "quiet", "stock"); err != nil {
			return nil, err
		}
		if loopback {
			continue
		}
		if err := r.call(ctx, r.router, "add", endArgs{N: n, Pid: c.process.Pid}, nil); err != nil {
			return nil, err
		}
		if err := r.call(ctx, c, "end", endArgs{N: n}, nil); err != nil {
			return nil, err
		}
	}
	// Where the timers of the emulation will run.
	return r, r.call(ctx, cmp.Or(r.router, r.sender), "late", nil, &r.late)
}

func (r *rig) prepare(ctx context.Context, c *child, ops ...string) error {
	for _, op := range ops {
		if err := r.call(ctx, c, op, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// call is child.call, which loads the module of what is missing and tries again.
func (r *rig) call(ctx context.Context, c *child, op string, args, result any) error {
	err := c.call(ctx, op, args, result)
	var m *Missing
	if r.load == nil || !errors.As(err, &m) {
		return err
	}
	if loadErr := r.load(ctx, m.Module); loadErr != nil {
		return fmt.Errorf("%w: %w", m, loadErr)
	}
	return c.call(ctx, op, args, result)
}

func (r *rig) close() {
	for _, c := range []*child{r.sender, r.router, r.rival, r.receiver} {
		if c != nil {
			c.close()
		}
	}
}

// setArm makes the sender that of an arm and returns what cannot be had of it.
// A qdisc that this kernel does not have is one of these things.
func (r *rig) setArm(ctx context.Context, n int, arm Arm) (not []string, err error) {
	if r.arm == n {
		return nil, nil
	}
	r.arm = -1
	args := armArgs{N: senderEnd, Arm: arm, Loopback: r.router == nil}
	err = r.call(ctx, r.sender, "arm", args, &not)
	if m := (*Missing)(nil); errors.As(err, &m) && m.What == "qdisc" {
		args.Arm.Qdisc = ""
		if err = r.call(ctx, r.sender, "arm", args, &not); err == nil {
			not = append(not, fmt.Sprintf("qdisc %s: %s", arm.Qdisc, noSuchQdisc))
		}
	}
	if err != nil {
		return nil, text.Errorf("preparing the sender for %s: %w", arm.Name, err)
	}
	r.arm = n
	return not, nil
}

// shape emulates a path anew, with empty queues, and the receiver at its end.
func (r *rig) shape(ctx context.Context, p Path, seed uint64) error {
	router, ends := r.router, []int{receiverEnd, senderEnd}
	if r.router == nil {
		router, ends = r.sender, nil
	} else if r.rival != nil {
		ends = append(ends, rivalEnd)
	}
	if err := r.call(ctx, router, "shape", shapeArgs{Ends: ends, Path: p, Seed: seed, Late: r.late}, nil); err != nil {
		return text.Errorf("emulating the path: %w", err)
	}
	if err := r.call(ctx, r.receiver, "buffer", p.ClientBuffer, nil); err != nil {
		return text.Errorf("preparing the receiver: %w", err)
	}
	return nil
}

// serverAddress is where the receiver finds a server of an end.
func (r *rig) serverAddress(end int, port uint16) netip.AddrPort {
	if r.router == nil {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	return netip.AddrPortFrom(endAddress(end), port)
}

// rivalHead is how long the competing flow runs alone: long enough to fill the
// path.
func rivalHead(p Path) int64 {
	return max(int64(20*p.RTT), 1e9)
}
