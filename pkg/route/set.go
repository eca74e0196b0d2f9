package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Metric is a property of a route that decides how TCP sends through it, by
// the name that `ip route` has for it.
type Metric string

// The metrics that Set can change.
const (
	InitCwnd Metric = "initcwnd" // segments sent before the first acknowledgement
	InitRwnd Metric = "initrwnd" // segments offered as the first receive window
	RTOMin   Metric = "rto_min"  // milliseconds; the kernel heeds it only with its lock, which is set and taken away with it
	QuickAck Metric = "quickack" // 1: acknowledge at once
)

// attributeOf are the numbers of linux/rtnetlink.h.
var attributeOf = map[Metric]int{
	InitCwnd: unix.RTAX_INITCWND, InitRwnd: unix.RTAX_INITRWND, RTOMin: unix.RTAX_RTO_MIN, QuickAck: unix.RTAX_QUICKACK,
}

// Metrics lists the metrics that Set can change, sorted.
func Metrics() []Metric {
	var list []Metric
	for m := range attributeOf {
		list = append(list, m)
	}
	slices.Sort(list)
	return list
}

// Value is a metric of a route; 0 where the route does not have it.
func (r Route) Value(m Metric) int {
	switch m {
	case InitCwnd:
		return r.InitialCwnd
	case InitRwnd:
		return r.InitialRwnd
	case RTOMin:
		return r.RTOMin
	case QuickAck:
		return r.QuickAck
	}
	return 0
}

// Errors of Set.
var (
	ErrNoRoute = errors.New("no such default route")
	ErrSpecial = errors.New("not a route to change")
	ErrMetric  = errors.New("not a metric that can be set")
)

// Set gives the ordinary default route of that name (Route.Name) in the network
// namespace of the calling thread a metric; 0 takes it away. Everything else
// of the route stays as it is: the kernel is given the route back as it told
// it, with nothing but the metric changed, in one step, so that there is no
// moment without a route.
//
// Errors: ErrNoRoute where there is none of that name; ErrSpecial where the
// route is not one to change; ErrMetric for a metric that is unknown, or that
// the route has in a form which could not be put back; fs.ErrPermission.
func Set(name string, m Metric, value int) error {
	err := set(name, m, value)
	if err != nil {
		return fmt.Errorf("setting %s of the route %q to %d: %w", m, name, value, err)
	}
	return nil
}

func set(name string, m Metric, value int) error {
	if attributeOf[m] == 0 || value < 0 || value > maxValue {
		return ErrMetric
	}
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.close()
	twins, err := c.find(name)
	if err != nil {
		return err
	}
	e := twins[0]
	for len(twins) > 1 {
		// The last one is the network's newest wish. Of the others the kernel
		// takes the first, which is the one that it is told to delete.
		if e = twins[len(twins)-1]; c.change(unix.RTM_DELROUTE, 0, again(twins[0].body)) != nil {
			break // the replacement tells
		}
		if twins, err = c.find(name); errors.Is(err, ErrNoRoute) {
			// Somebody deleted the other one at the same moment. A host without
			// its route would be the worst outcome.
			return c.change(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, again(e.body))
		} else if err != nil {
			return err
		}
		e = twins[0]
	}
	if e.read(m) == value {
		return nil
	}
	body, err := withMetric(e.body, m, uint32(value))
	if err != nil {
		return err
	}
	// Without NLM_F_CREATE: a route that somebody deletes meanwhile stays away.
	if err := c.change(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, body); err != nil {
		return err
	}
	if twins, err = c.find(name); err != nil {
		return err
	}
	if got := twins[0].read(m); got != value {
		return fmt.Errorf("the kernel has %d now", got)
	}
	return nil
}

// read is a metric of the entry.
func (e entry) read(m Metric) int {
	var r Route
	attributes(e.body[unix.SizeofRtMsg:], func(kind int, value []byte) {
		if kind == unix.RTA_METRICS {
			metrics(value, &r)
		}
	})
	return r.Value(m)
}

// change sends a message about a route and waits for the kernel's answer.
func (c *conn) change(kind, flags int, body []byte) error {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.Sockets = c.sockets
	req.AddRawData(body)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		return ErrNoRoute
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	return err
}

// maxValue is the largest value of a metric: TCP takes no larger window, and no
// timer is that slow.
const maxValue = 65535

// find looks an ordinary default route up by its name, with its twins behind
// it.
func (c *conn) find(name string) ([]entry, error) {
	names, err := linkNames(c.sockets)
	if err != nil {
		return nil, err
	}
	special := Special("")
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		entries, err := defaults(c.sockets, family, names)
		if err != nil {
			return nil, err
		}
		for i, e := range entries {
			if len(e.paths) == 0 || e.paths[0].Name() != name {
				continue
			}
			if special = e.paths[0].Special; special != "" {
				continue
			}
			twins := []entry{e}
			for _, other := range entries[i+1:] {
				if e.paths[0].Twin && other.place() == e.place() {
					twins = append(twins, other)
				}
			}
			return twins, nil
		}
	}
	if special != "" {
		return nil, fmt.Errorf("%w (%s)", ErrSpecial, special)
	}
	return nil, ErrNoRoute
}

// rtaNextHopID is RTA_NH_ID of linux/rtnetlink.h: the route uses a next hop
// object (Linux 5.3).
const rtaNextHopID = 30

// Flags of a next hop that are its maker's; the others are the kernel's report
// of how it fares, which it does not take back.
const madeFlags = unix.RTNH_F_ONLINK | unix.RTNH_F_PERVASIVE

// again is the body of a message that makes the route that body, which the
// kernel sent, speaks of, or deletes it.
func again(body []byte) []byte { return rewrite(body, func(b []byte) []byte { return b }) }

// withMetric is the body of the RTM_NEWROUTE message that makes a route what
// body, which the kernel sent, says it is, but for one metric.
func withMetric(body []byte, m Metric, value uint32) ([]byte, error) {
	var err error
	out := rewrite(body, func(b []byte) []byte {
		b, err = changeMetrics(b, m, value)
		return b
	})
	return out, err
}

// rewrite is the body of a message about a route that the kernel sent in body,
// with its metrics changed; change gets nil where the route has none.
func rewrite(body []byte, change func(metrics []byte) []byte) []byte {
	out := slices.Clone(body[:unix.SizeofRtMsg])
	flags := binary.NativeEndian.Uint32(out[flagsAt:])
	binary.NativeEndian.PutUint32(out[flagsAt:], flags&madeFlags)
	// Of a route with a next hop object and no metrics at all the kernel takes
	// any other with that object for the same, whatever its metrics are
	// (fib_find_info_nh): an empty list of metrics makes it look.
	object := false
	var metrics []byte
	attributes(body[unix.SizeofRtMsg:], func(kind int, v []byte) {
		switch kind {
		case rtaNextHopID:
			object = true
		case unix.RTA_METRICS:
			metrics = v
		}
	})
	attributes(body[unix.SizeofRtMsg:], func(kind int, v []byte) {
		switch kind {
		case unix.RTA_CACHEINFO: // statistics, and an expiry that these routes do not have
			return
		case unix.RTA_METRICS:
			return
		case unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_MULTIPATH, unix.RTA_FLOW:
			if object {
				return // repeated from the next hop object, and refused beside it
			}
		}
		if kind == unix.RTA_MULTIPATH {
			v = maskHops(v)
		}
		out = appendAttribute(out, kind, v)
	})
	if metrics = change(metrics); len(metrics) > 0 || object {
		out = appendAttribute(out, unix.RTA_METRICS, metrics)
	}
	return out
}

// maskHops clears what the kernel reports in the flags of each next hop.
func maskHops(b []byte) []byte {
	b = slices.Clone(b)
	for rest := b; len(rest) >= sizeofNextHop; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < sizeofNextHop || size > len(rest) {
			break
		}
		rest[2] &= madeFlags
		rest = rest[min((size+3)&^3, len(rest)):]
	}
	return b
}

// changeMetrics changes one of the metrics in an RTA_METRICS attribute.
func changeMetrics(b []byte, m Metric, value uint32) ([]byte, error) {
	want := attributeOf[m]
	lock, had := uint32(0), false
	attributes(b, func(kind int, v []byte) {
		switch kind {
		case unix.RTAX_LOCK:
			lock = uint32(number(v))
		case want:
			had = number(v) != 0
		}
	})
	if m == RTOMin {
		// A value without the lock is one that nobody heeds, and it would come
		// back with the lock.
		bit := uint32(1) << unix.RTAX_RTO_MIN
		if had != (lock&bit != 0) {
			return nil, fmt.Errorf("%w: the route has it without its lock", ErrMetric)
		}
		lock &^= bit
		if value != 0 {
			lock |= bit
		}
	}
	var out []byte
	put := func(kind int, n uint32) {
		if n != 0 {
			out = appendAttribute(out, kind, binary.NativeEndian.AppendUint32(nil, n))
		}
	}
	put(unix.RTAX_LOCK, lock)
	attributes(b, func(kind int, v []byte) {
		if kind != unix.RTAX_LOCK && kind != want {
			out = appendAttribute(out, kind, v)
		}
	})
	put(want, value)
	return out, nil
}

func appendAttribute(b []byte, kind int, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
