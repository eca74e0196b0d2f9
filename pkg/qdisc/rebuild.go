package qdisc

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// How often a rebuild is tried when the kernel built something else than
	// was asked for, or somebody else was quicker.
	rebuildAttempts = 3
	rebuildPause    = 20 * time.Millisecond
)

// notDefault are kinds that no link can get as its default qdisc, because the
// kernel refuses them below an mq or because they are no queue.
var notDefault = []string{"", "clsact", "ingress", "mq", "mqprio", "noop", "noqueue"}

// Rebuild makes the kernel build the tree of a link anew from the present
// net.core.default_qdisc. It refuses every tree that is not wholly kernel-made
// (and is no placeholder that an interrupted Rebuild left). The link stays up;
// packets that are queued at this moment are lost as if the path had dropped
// them.
//
// The parameters of the new qdiscs are the kernel's defaults. Some defaults
// follow the link at this moment: fq, fq_codel and others compute a quantum
// from its MTU, so a tree built when the MTU was another had another quantum.
//
// Where fq goes, established connections that sent through it have lost their
// pacing until they are closed; TestPacingWhenFqGoes tells what that means.
//
// Errors: ErrConfigured, ErrNoQueue, ErrDown, ErrNoLink, ErrPermission,
// ErrNotBuilt, ErrNoScheduler. After ErrNotBuilt because the kernel built
// nothing that queues, the placeholder stands at the root, so that the link
// queues and a Rebuild with another default can still put things right.
func Rebuild(link string) error { return rebuild(link, "") }

// RebuildTo is Rebuild for a caller that knows which kind
// net.core.default_qdisc has now: it does nothing where the whole tree is of
// that kind already, and fails with ErrNotBuilt where the kernel builds
// another.
func RebuildTo(link, kind string) error {
	if slices.Contains(notDefault, kind) {
		return fmt.Errorf("rebuilding the qdisc of %s: %q cannot be a default qdisc: %w", link, kind, ErrNotBuilt)
	}
	return rebuild(link, kind)
}

// rebuild does the work; kind "" means any.
func rebuild(link, kind string) error {
	c, err := dial()
	if err != nil {
		return fmt.Errorf("rebuilding the qdisc of %s: %w", link, err)
	}
	defer c.close()
	l, err := c.link(link)
	if err != nil {
		return fmt.Errorf("rebuilding the qdisc of %s: %w", link, err)
	}
	for attempt := range rebuildAttempts {
		if attempt > 0 {
			time.Sleep(rebuildPause)
		}
		var again bool
		again, err = c.rebuildOnce(l.index, kind)
		if err == nil {
			return nil
		}
		if !again {
			break
		}
	}
	return fmt.Errorf("rebuilding the qdisc of %s: %w", link, err)
}

// rebuildOnce puts the placeholder, deletes it and looks at what came.
// Both steps are refused by the kernel if the root is not what it was when we
// looked, so nobody's qdisc can be lost in between. With an error it says
// whether another attempt makes sense.
func (c *conn) rebuildOnce(index int, kind string) (again bool, err error) {
	l, err := c.linkByIndex(index)
	if err != nil {
		return false, err
	}
	t, err := c.tree(l)
	if err != nil {
		return false, err
	}
	switch {
	case t.Leftover():
		// The first step is done.
	case t.KernelMade() && kind != "" && t.Kind() == kind:
		return false, nil
	case !l.up() && (t.KernelMade() || t.Root.Kind == "noop"):
		return false, ErrDown
	case !t.Queues():
		return false, fmt.Errorf("%w (%s)", ErrNoQueue, t.Root.Kind)
	case !t.KernelMade():
		return false, fmt.Errorf("%w (%s %s)", ErrConfigured, t.Root.Kind, t.Root.Handle)
	default:
		if err := c.put(index); err != nil {
			// Somebody configured the link since we looked.
			return errors.Is(err, unix.EEXIST), fmt.Errorf("putting a placeholder: %w", explain(err))
		}
	}
	if err := c.remove(index); err != nil {
		// Another root stands there now, or none.
		return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT),
			fmt.Errorf("removing the placeholder: %w", explain(err))
	}

	if l, err = c.linkByIndex(index); err != nil {
		return false, err
	}
	if t, err = c.tree(l); err != nil {
		return false, err
	}
	switch {
	case t.KernelMade() && (kind == "" || t.Kind() == kind):
		return false, nil
	case t.KernelMade():
		return true, fmt.Errorf("%w: wanted %s, came %s", ErrNotBuilt, kind, t.Kind())
	case !l.up() && !t.Queues():
		return false, ErrDown
	case !t.Queues():
		// The default qdisc could not be set up on this link, and the kernel
		// fell back to no queue at all. Rather any queue than none.
		err := fmt.Errorf("%w: the link was left without a queue", ErrNotBuilt)
		if putErr := c.put(index); putErr != nil {
			return false, fmt.Errorf("%w; putting a placeholder: %w", err, explain(putErr))
		}
		return true, err
	default:
		return true, fmt.Errorf("%w (%s %s)", ErrConfigured, t.Root.Kind, t.Root.Handle)
	}
}

// put sets the placeholder as the root. Without NLM_F_REPLACE the kernel
// accepts that only above a qdisc of its own (tc_modify_qdisc in
// net/sched/sch_api.c ignores a root with handle 0); EEXIST otherwise.
func (c *conn) put(index int) error {
	_, err := c.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK,
		placeholder(index), nl.NewRtAttr(attrTCAKind, nl.ZeroTerminated(placeholderKind)),
	).Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// remove deletes the placeholder. The kernel compares the handle (tc_get_qdisc
// in net/sched/sch_api.c), so that it cannot delete anybody else's root.
func (c *conn) remove(index int) error {
	_, err := c.request(unix.RTM_DELQDISC, unix.NLM_F_ACK, placeholder(index)).Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func placeholder(index int) *nl.TcMsg {
	return &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(index), Handle: placeholderID, Parent: parentRoot}
}
