// Package qdisc reads the queueing disciplines of live links and makes the
// kernel rebuild those that it made itself.
//
// The kernel gives every link that queues a tree built from
// net.core.default_qdisc when the link comes up, and never looks at that
// setting again. Such a tree has the handle "0:" in every place, and nothing
// below it can be replaced or deleted on its own. What works, both ways and
// without the link going down, is to put any qdisc with a handle at the root
// and to delete it: the kernel then builds its own tree anew. Rebuild does
// exactly that, and only to trees that are wholly the kernel's.
//
// All functions act on the network namespace of the calling thread.
package qdisc

import (
	"cmp"
	"errors"
	"slices"
	"strings"
)

// Sentinels of this package; match them with errors.Is.
var (
	// ErrConfigured: somebody configured the qdisc of this link, so it is not
	// ours to touch.
	ErrConfigured = errors.New("the qdisc of the link was configured by someone")
	// ErrNoQueue: the link does not queue (bridge, tunnel, veth, loopback ...),
	// so there is nothing to rebuild.
	ErrNoQueue = errors.New("the link has no queue")
	// ErrDown: the link is down. A down link keeps the tree it had, or has none
	// until it comes up and the kernel builds one; a rebuild would only destroy.
	ErrDown = errors.New("the link is down")
	// ErrNoLink: no such link in this network namespace.
	ErrNoLink = errors.New("no such link")
	// ErrPermission: CAP_NET_ADMIN is missing in this network namespace.
	ErrPermission = errors.New("changing a qdisc needs CAP_NET_ADMIN")
	// ErrNotBuilt: the kernel built something else than was asked for.
	ErrNotBuilt = errors.New("the kernel did not build the qdisc that was asked for")
	// ErrNoScheduler: this kernel has no traffic control at all.
	ErrNoScheduler = errors.New("this kernel has no traffic control")
)

// Handles and parents as tc prints them.
const (
	kernelHandle = "0:"   // of every qdisc that the kernel made by itself
	rootParent   = "root" // the parent of the qdisc at the root of a link
)

// The qdisc that stands at the root for the few milliseconds of a rebuild.
// pfifo is part of every kernel with traffic control (net/sched/sch_api.c
// registers it beside pfifo_fast), so that it can never be missing, and the
// handle says whose it is when a killed process left it behind.
const (
	placeholderKind   = "pfifo"
	placeholderHandle = "acce:"
	placeholderID     = 0xacce0000
)

// Qdisc is one queueing discipline, in the words of tc.
type Qdisc struct {
	Kind string `json:"kind"`
	// Handle is "0:" for a qdisc that the kernel made, and such as "8001:" for
	// one that somebody set.
	Handle string `json:"handle"`
	// Parent is "root", or the class it hangs on: ":1" below a kernel-made mq,
	// "8001:1" below a configured one.
	Parent string `json:"parent"`
	// Options is the kernel's description of the parameters (TCA_OPTIONS of
	// linux/rtnetlink.h) in hexadecimal. It is opaque, and of one kernel only,
	// but equal options mean equal parameters: `tc -d qdisc` is printed from
	// them. Kinds without parameters have none.
	Options string `json:"options,omitempty"`
}

// Tree is what one link sends through: its root qdisc and everything below.
// What a link receives through (ingress, clsact) is no part of it; neither
// reading nor rebuilding a tree concerns it.
type Tree struct {
	Link  string `json:"link"`
	Index int    `json:"index"`
	Root  Qdisc  `json:"root"`
	// Leaves are all qdiscs below the root, ordered by parent. Below an mq root
	// they are the real qdiscs, one for each queue.
	Leaves []Qdisc `json:"leaves,omitempty"`
}

// KernelMade says whether the whole tree was built by the kernel from
// net.core.default_qdisc, so that Rebuild may touch it. It is false for links
// that do not queue (noqueue, noop). A kernel-made mq can have leaves of more
// than one kind; see Kind.
func (t Tree) KernelMade() bool {
	if t.Root.Handle != kernelHandle || !t.Queues() {
		return false
	}
	if t.Root.Kind != "mq" {
		return len(t.Leaves) == 0
	}
	for _, q := range t.Leaves {
		if q.Handle != kernelHandle {
			return false
		}
	}
	return len(t.Leaves) > 0
}

// Queues says whether the link queues packets at all: its root is neither
// noqueue nor noop (which a link has that never was up).
func (t Tree) Queues() bool {
	switch t.Root.Kind {
	case "", "noop", "noqueue":
		return false
	}
	return true
}

// Kind is the kind of qdisc that queues packets: that of the leaves where the
// root is a kernel-made mq and all leaves are alike, else that of the root.
//
// The leaves differ where a driver got more queues after the tree was built
// (ethtool -L): the kernel gives the added ones pfifo_fast, whatever
// net.core.default_qdisc says (get_default_qdisc_ops in
// net/sched/sch_generic.c). Kind is then "mq".
func (t Tree) Kind() string {
	if t.Root.Kind != "mq" || !t.KernelMade() {
		return t.Root.Kind
	}
	for _, q := range t.Leaves {
		if q.Kind != t.Leaves[0].Kind {
			return t.Root.Kind
		}
	}
	return t.Leaves[0].Kind
}

// DefaultKind is the value of net.core.default_qdisc from which the kernel
// built this tree, "" where it was not built from one. It differs from Kind
// only where the leaves of an mq differ: the first queue exists from the
// beginning, so its leaf tells.
func (t Tree) DefaultKind() string {
	if !t.KernelMade() {
		return ""
	}
	if t.Root.Kind == "mq" {
		return t.Leaves[0].Kind
	}
	return t.Root.Kind
}

// Leftover says that a Rebuild was killed between its two steps and that its
// placeholder still stands at the root. The next Rebuild of the link finishes
// the work.
func (t Tree) Leftover() bool {
	return t.Root.Kind == placeholderKind && t.Root.Handle == placeholderHandle && len(t.Leaves) == 0
}

// sortLeaves orders leaves by parent and handle as numbers, which is how hex
// strings of equal length sort.
func sortLeaves(leaves []Qdisc) {
	slices.SortStableFunc(leaves, func(a, b Qdisc) int {
		return cmp.Or(compareHandles(a.Parent, b.Parent), compareHandles(a.Handle, b.Handle))
	})
}

// compareHandles compares "major:minor" by major, then minor; both are
// hexadecimal without leading zeros, so the longer one is the greater.
func compareHandles(a, b string) int {
	aMajor, aMinor, _ := strings.Cut(a, ":")
	bMajor, bMinor, _ := strings.Cut(b, ":")
	return cmp.Or(
		cmp.Compare(len(aMajor), len(bMajor)), cmp.Compare(aMajor, bMajor),
		cmp.Compare(len(aMinor), len(bMinor)), cmp.Compare(aMinor, bMinor),
	)
}
