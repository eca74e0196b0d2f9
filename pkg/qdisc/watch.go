package qdisc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Change says what happened to a link.
type Change string

// The changes that Watch reports.
const (
	Appeared Change = "appeared"
	Changed  Change = "changed" // its name, its being up, its carrier or its root qdisc
	Gone     Change = "gone"
)

// LinkEvent is one change of one link.
type LinkEvent struct {
	Link   string // its name now, or the last one it had
	Index  int
	Change Change
	Up     bool // set up by somebody (IFF_UP), with or without a carrier
}

// Changes that come together are reported together: a link that is being
// configured changes a dozen times within this time.
const watchPause = 200 * time.Millisecond

// Watch reports links of this network namespace that appear, change or go,
// from now on. Bursts are coalesced: each link is reported once, with its last
// change. The reader may be as slow as it likes and loses nothing but
// intermediate changes; nor does Watch when the kernel drops messages, for it
// then lists the links again and compares.
//
// The channel is closed when ctx ends, or when the netlink socket fails for
// good.
func Watch(ctx context.Context) (<-chan LinkEvent, error) {
	return watch(ctx, 0)
}

// watch is Watch with a receive buffer of so many bytes, 0 for the usual one.
func watch(ctx context.Context, buffer int) (<-chan LinkEvent, error) {
	s, err := subscribe(buffer)
	if err != nil {
		return nil, fmt.Errorf("watching the links: %w", err)
	}
	// Listing has its own socket, opened here because it must be in the same
	// network namespace.
	c, err := dial()
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("watching the links: %w", err)
	}
	// Listed after subscribing, so that nothing falls between.
	known, err := c.links()
	if err != nil {
		s.Close()
		c.close()
		return nil, fmt.Errorf("watching the links: %w", err)
	}
	w := &watcher{socket: s, conn: c, known: known, pending: map[int]LinkEvent{}}
	out := make(chan LinkEvent)
	go w.run(ctx, out)
	return out, nil
}

// subscribe opens a socket that receives the kernel's messages about links.
func subscribe(buffer int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	if buffer > 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribing to link messages: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

type watcher struct {
	socket  *os.File
	conn    *conn
	known   map[int]linkInfo
	pending map[int]LinkEvent
}

// run reports until ctx ends. A second goroutine reads the socket; closing the
// socket ends it.
func (w *watcher) run(ctx context.Context, out chan<- LinkEvent) {
	messages := make(chan []syscall.NetlinkMessage)
	done := make(chan struct{})
	go func() {
		defer close(messages)
		w.read(messages, done)
	}()
	defer func() {
		close(done)
		w.socket.Close()
		for range messages {
		}
		w.conn.close()
		close(out)
	}()

	pause := time.NewTimer(0)
	<-pause.C
	var ready []LinkEvent
	for {
		var send chan<- LinkEvent
		var next LinkEvent
		if len(ready) > 0 {
			send, next = out, ready[0]
		}
		select {
		case <-ctx.Done():
			return
		case batch, ok := <-messages:
			if !ok {
				return
			}
			quiet := len(w.pending) == 0
			if batch == nil {
				links, err := w.conn.links()
				if err != nil {
					return
				}
				w.compare(links)
			}
			for _, m := range batch {
				w.message(m)
			}
			if quiet && len(w.pending) > 0 {
				pause.Reset(watchPause)
			}
		case <-pause.C:
			ready = merge(ready, w.take())
		case send <- next:
			ready = ready[1:]
		}
	}
}

// read passes messages on; nil stands for messages that the kernel dropped.
func (w *watcher) read(messages chan<- []syscall.NetlinkMessage, done <-chan struct{}) {
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 1<<16)
	// The kernel says ENOBUFS once, and then goes on dropping silently until
	// the socket has been read empty; only then is it time to list the links.
	lost := false
	for {
		var n int
		var from unix.Sockaddr
		var recvErr error
		err := raw.Read(func(fd uintptr) bool {
			n, from, recvErr = unix.Recvfrom(int(fd), buf, 0)
			return lost || !errors.Is(recvErr, unix.EAGAIN)
		})
		if err != nil {
			return // closed
		}
		var batch []syscall.NetlinkMessage
		switch {
		case errors.Is(recvErr, unix.EINTR):
			continue
		case errors.Is(recvErr, unix.ENOBUFS):
			lost = true
			continue
		case errors.Is(recvErr, unix.EAGAIN):
			lost = false // and batch is nil
		case recvErr != nil:
			return
		default:
			if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
				continue // only the kernel is believed
			}
			if batch, err = syscall.ParseNetlinkMessage(slices.Clone(buf[:n])); err != nil {
				lost = true // as good as
				continue
			}
		}
		select {
		case messages <- batch:
		case <-done:
			return
		}
	}
}

// message notes what one message of the kernel changes.
func (w *watcher) message(m syscall.NetlinkMessage) {
	if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK {
		return
	}
	if len(m.Data) > 0 && m.Data[0] != unix.AF_UNSPEC {
		return // a bridge speaks of its ports with the same message types
	}
	l, ok := parseLink(m.Data)
	if !ok {
		return
	}
	if m.Header.Type == unix.RTM_DELLINK {
		w.gone(l.index)
		return
	}
	w.seen(l)
}

// compare notes everything in which the links differ from the known ones.
func (w *watcher) compare(links map[int]linkInfo) {
	for index := range w.known {
		if _, ok := links[index]; !ok {
			w.gone(index)
		}
	}
	for _, l := range links {
		w.seen(l)
	}
}

const watchedFlags = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP

func (w *watcher) seen(l linkInfo) {
	l.flags &= watchedFlags
	old, ok := w.known[l.index]
	old.flags &= watchedFlags
	if ok && old == l {
		return
	}
	w.known[l.index] = l
	change := Changed
	if !ok || w.pending[l.index].Change == Appeared {
		change = Appeared
	}
	w.pending[l.index] = LinkEvent{Link: l.name, Index: l.index, Change: change, Up: l.up()}
}

func (w *watcher) gone(index int) {
	old, ok := w.known[index]
	if !ok {
		return
	}
	delete(w.known, index)
	w.pending[index] = LinkEvent{Link: old.name, Index: index, Change: Gone}
}

// take returns the pending events ordered by index.
func (w *watcher) take() []LinkEvent {
	events := make([]LinkEvent, 0, len(w.pending))
	for _, e := range w.pending {
		events = append(events, e)
	}
	clear(w.pending)
	slices.SortFunc(events, func(a, b LinkEvent) int { return a.Index - b.Index })
	return events
}

// merge appends events to those the reader has not taken yet; of one link only
// the last is kept, so that a slow reader cannot make the queue grow.
func merge(ready, events []LinkEvent) []LinkEvent {
	for _, e := range events {
		if i := slices.IndexFunc(ready, func(r LinkEvent) bool { return r.Index == e.Index }); i >= 0 {
			if ready[i].Change == Appeared && e.Change == Changed {
				e.Change = Appeared
			}
			ready = slices.Delete(ready, i, i+1)
		}
		ready = append(ready, e)
	}
	return ready
}
