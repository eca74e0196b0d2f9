package qdisc

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// How often a dump is repeated that the kernel marks as interrupted, which
	// it does when links come and go while it is being read.
	dumpAttempts = 20
	// The kernel answers within microseconds unless somebody holds its
	// rtnl lock; a driver that resets a device can hold it for seconds.
	answerSeconds = 30
)

// Trees returns the qdisc tree of every link of this network namespace,
// ordered by link index.
//
// Errors: ErrNoScheduler on a kernel without traffic control; a dump that the
// kernel keeps interrupting wraps netlink.ErrDumpInterrupted.
func Trees() ([]Tree, error) {
	c, err := dial()
	if err != nil {
		return nil, fmt.Errorf("reading the qdiscs: %w", err)
	}
	defer c.close()
	trees, err := c.trees()
	if err != nil {
		return nil, fmt.Errorf("reading the qdiscs: %w", err)
	}
	return trees, nil
}

// conn is one NETLINK_ROUTE socket. It belongs to the network namespace in
// which it was opened, whichever thread uses it later.
type conn struct {
	sockets map[int]*nl.SocketHandle
}

func dial() (*conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	timeout := &unix.Timeval{Sec: answerSeconds}
	err = errors.Join(s.SetSendTimeout(timeout), s.SetReceiveTimeout(timeout))
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	// Kernels before 4.12 do not explain their errors.
	_ = s.SetExtAck(true)
	return &conn{sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (c *conn) close() { c.sockets[unix.NETLINK_ROUTE].Close() }

func (c *conn) request(kind, flags int, parts ...nl.NetlinkRequestData) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = c.sockets
	for _, p := range parts {
		req.AddData(p)
	}
	return req
}

// dump runs a dump again until the kernel calls it consistent, passing each
// message of the last run to each; start is called before every run.
func (c *conn) dump(kind int, answer uint16, part nl.NetlinkRequestData, start func(), each func(msg []byte)) error {
	var err error
	for range dumpAttempts {
		start()
		err = c.request(kind, unix.NLM_F_DUMP, part).ExecuteIter(unix.NETLINK_ROUTE, answer, func(msg []byte) bool {
			each(msg)
			return true
		})
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return err
}

// linkInfo is what a tree needs to know about its link.
type linkInfo struct {
	index int
	name  string
	kind  string // the root qdisc by name; tells noop, which no dump of qdiscs shows
	flags uint32
}

func (l linkInfo) up() bool { return l.flags&unix.IFF_UP != 0 }

func (c *conn) links() (map[int]linkInfo, error) {
	var links map[int]linkInfo
	err := c.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC),
		func() { links = map[int]linkInfo{} },
		func(msg []byte) {
			if l, ok := parseLink(msg); ok {
				links[l.index] = l
			}
		})
	if err != nil {
		return nil, fmt.Errorf("listing the links: %w", err)
	}
	return links, nil
}

// link looks one link up by its name.
func (c *conn) link(name string) (linkInfo, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return linkInfo{}, ErrNoLink
	}
	req := c.request(unix.RTM_GETLINK, unix.NLM_F_ACK, nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return c.oneLink(req)
}

// linkByIndex looks one link up by its index, which survives renaming.
func (c *conn) linkByIndex(index int) (linkInfo, error) {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	return c.oneLink(c.request(unix.RTM_GETLINK, unix.NLM_F_ACK, msg))
}

func (c *conn) oneLink(req *nl.NetlinkRequest) (linkInfo, error) {
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if errors.Is(err, unix.ENODEV) {
		return linkInfo{}, ErrNoLink
	}
	if err != nil {
		return linkInfo{}, fmt.Errorf("looking the link up: %w", err)
	}
	for _, m := range msgs {
		if l, ok := parseLink(m); ok {
			return l, nil
		}
	}
	return linkInfo{}, ErrNoLink
}

func (c *conn) trees() ([]Tree, error) {
	links, err := c.links()
	if err != nil {
		return nil, err
	}
	qdiscs, err := c.qdiscs()
	if err != nil {
		return nil, err
	}
	trees := make([]Tree, 0, len(links))
	for index, l := range links {
		trees = append(trees, assemble(l, qdiscs[index]))
	}
	slices.SortFunc(trees, func(a, b Tree) int { return a.Index - b.Index })
	return trees, nil
}

// tree reads the tree of one link. Kernels dump the qdiscs of all links even
// when asked for one.
func (c *conn) tree(l linkInfo) (Tree, error) {
	qdiscs, err := c.qdiscs()
	if err != nil {
		return Tree{}, err
	}
	return assemble(l, qdiscs[l.index]), nil
}

// qdiscs returns all sending qdiscs by link index.
func (c *conn) qdiscs() (map[int][]Qdisc, error) {
	var qdiscs map[int][]Qdisc
	err := c.dump(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, &nl.TcMsg{Family: unix.AF_UNSPEC},
		func() { qdiscs = map[int][]Qdisc{} },
		func(msg []byte) {
			if index, q, ok := parseQdisc(msg); ok {
				qdiscs[index] = append(qdiscs[index], q)
			}
		})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, ErrNoScheduler
	}
	if err != nil {
		return nil, fmt.Errorf("listing the qdiscs: %w", err)
	}
	return qdiscs, nil
}

func assemble(l linkInfo, qdiscs []Qdisc) Tree {
	// A root that the dump does not show is noop; the link names it.
	t := Tree{Link: l.name, Index: l.index, Root: Qdisc{Kind: l.kind, Handle: kernelHandle, Parent: rootParent}}
	for _, q := range qdiscs {
		if q.Parent == rootParent {
			t.Root = q
		} else {
			t.Leaves = append(t.Leaves, q)
		}
	}
	sortLeaves(t.Leaves)
	return t
}

// Wire formats: linux/rtnetlink.h, linux/if_link.h.
const (
	sizeofTcmsg    = 20
	sizeofIfinfo   = 16
	attrHeader     = 4
	parentRoot     = 0xffffffff // TC_H_ROOT
	parentIngress  = 0xfffffff1 // TC_H_INGRESS, which clsact uses too
	attrTypeMask   = 0x3fff     // NLA_TYPE_MASK
	attrTCAKind    = 1          // TCA_KIND
	attrTCAOptions = 2          // TCA_OPTIONS
)

// parseQdisc reads the body of an RTM_NEWQDISC message. It is not ok for what
// is not a sending qdisc: ingress, clsact and malformed messages.
func parseQdisc(msg []byte) (index int, q Qdisc, ok bool) {
	if len(msg) < sizeofTcmsg {
		return 0, Qdisc{}, false
	}
	index = int(int32(binary.NativeEndian.Uint32(msg[4:])))
	handle := binary.NativeEndian.Uint32(msg[8:])
	parent := binary.NativeEndian.Uint32(msg[12:])
	if parent == parentIngress {
		return 0, Qdisc{}, false
	}
	q = Qdisc{Handle: handleString(handle), Parent: parentString(parent)}
	attributes(msg[sizeofTcmsg:], func(kind int, value []byte) {
		switch kind {
		case attrTCAKind:
			q.Kind = unix.ByteSliceToString(value)
		case attrTCAOptions:
			q.Options = hex.EncodeToString(value)
		}
	})
	return index, q, q.Kind != ""
}

// parseLink reads the body of an RTM_NEWLINK or RTM_DELLINK message.
func parseLink(msg []byte) (linkInfo, bool) {
	if len(msg) < sizeofIfinfo {
		return linkInfo{}, false
	}
	l := linkInfo{
		index: int(int32(binary.NativeEndian.Uint32(msg[4:]))),
		flags: binary.NativeEndian.Uint32(msg[8:]),
	}
	attributes(msg[sizeofIfinfo:], func(kind int, value []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(value)
		case unix.IFLA_QDISC:
			l.kind = unix.ByteSliceToString(value)
		}
	})
	return l, l.name != ""
}

// attributes walks netlink attributes and stops at the first malformed one.
func attributes(b []byte, each func(kind int, value []byte)) {
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) {
			return
		}
		each(int(binary.NativeEndian.Uint16(b[2:]))&attrTypeMask, b[attrHeader:size])
		b = b[min((size+3)&^3, len(b)):]
	}
}

// handleString prints a handle as tc does: the minor number only where there
// is one, and "0:" for none at all.
func handleString(h uint32) string {
	s := strconv.FormatUint(uint64(h>>16), 16) + ":"
	if minor := h & 0xffff; minor != 0 {
		s += strconv.FormatUint(uint64(minor), 16)
	}
	return s
}

// parentString prints a parent as tc does: ":1" for class 1 of handle 0.
func parentString(p uint32) string {
	if p == parentRoot {
		return rootParent
	}
	if p>>16 == 0 {
		return ":" + strconv.FormatUint(uint64(p), 16)
	}
	return handleString(p)
}

// explain turns the kernel's answer to a change into one of our sentinels
// where it is one, keeping the answer.
func explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (%w)", ErrPermission, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w (%w)", ErrNoLink, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (%w)", ErrNoScheduler, err)
	}
	return err
}
