package qdisc

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func kernelTree(root string, leaves ...string) Tree {
	t := Tree{Link: "eth0", Index: 2, Root: Qdisc{Kind: root, Handle: "0:", Parent: "root"}}
	for i, k := range leaves {
		t.Leaves = append(t.Leaves, Qdisc{Kind: k, Handle: "0:", Parent: parentString(uint32(i + 1))})
	}
	return t
}

func handledTree(root, handle string, leaves ...Qdisc) Tree {
	return Tree{Link: "eth0", Index: 2, Root: Qdisc{Kind: root, Handle: handle, Parent: "root"}, Leaves: leaves}
}

func TestTree(t *testing.T) {
	type want struct {
		KernelMade, Queues, Leftover bool
		Kind, DefaultKind            string
	}
	for name, tc := range map[string]struct {
		tree Tree
		want want
	}{
		"one queue":      {kernelTree("fq_codel"), want{KernelMade: true, Queues: true, Kind: "fq_codel", DefaultKind: "fq_codel"}},
		"four queues":    {kernelTree("mq", "fq", "fq", "fq", "fq"), want{KernelMade: true, Queues: true, Kind: "fq", DefaultKind: "fq"}},
		"queues added":   {kernelTree("mq", "fq", "fq", "pfifo_fast"), want{KernelMade: true, Queues: true, Kind: "mq", DefaultKind: "fq"}},
		"no queue":       {kernelTree("noqueue"), want{Kind: "noqueue"}},
		"never up":       {kernelTree("noop"), want{Kind: "noop"}},
		"nothing known":  {Tree{}, want{}},
		"mq alone":       {kernelTree("mq"), want{Queues: true, Kind: "mq"}},
		"below no queue": {kernelTree("noqueue", "fq"), want{Kind: "noqueue"}},
		"below a single": {kernelTree("fq", "fq"), want{Queues: true, Kind: "fq"}},
		"set by hand":    {handledTree("fq", "8001:"), want{Queues: true, Kind: "fq"}},
		"mq by hand": {
			handledTree("mq", "8001:", Qdisc{Kind: "fq", Handle: "0:", Parent: "8001:1"}, Qdisc{Kind: "fq", Handle: "0:", Parent: "8001:2"}),
			want{Queues: true, Kind: "mq"},
		},
		"leaf by hand": {
			Tree{Root: Qdisc{Kind: "mq", Handle: "0:", Parent: "root"}, Leaves: []Qdisc{{Kind: "fq", Handle: "0:"}, {Kind: "fq", Handle: "8002:"}}},
			want{Queues: true, Kind: "mq"},
		},
		"htb":                {handledTree("htb", "1:", Qdisc{Kind: "fq", Handle: "10:", Parent: "1:10"}), want{Queues: true, Kind: "htb"}},
		"leftover":           {handledTree("pfifo", "acce:"), want{Queues: true, Leftover: true, Kind: "pfifo"}},
		"pfifo of others":    {handledTree("pfifo", "8001:"), want{Queues: true, Kind: "pfifo"}},
		"handle of another":  {handledTree("bfifo", "acce:"), want{Queues: true, Kind: "bfifo"}},
		"grown on leftovers": {handledTree("pfifo", "acce:", Qdisc{Kind: "fq"}), want{Queues: true, Kind: "pfifo"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := want{tc.tree.KernelMade(), tc.tree.Queues(), tc.tree.Leftover(), tc.tree.Kind(), tc.tree.DefaultKind()}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// The JSON is part of recordings and of `status --json`.
func TestTreeJSON(t *testing.T) {
	tree := Tree{
		Link: "eth0", Index: 2,
		Root:   Qdisc{Kind: "mq", Handle: "0:", Parent: "root"},
		Leaves: []Qdisc{{Kind: "fq", Handle: "0:", Parent: ":1", Options: "08000100"}},
	}
	const want = `{"link":"eth0","index":2,"root":{"kind":"mq","handle":"0:","parent":"root"},` +
		`"leaves":[{"kind":"fq","handle":"0:","parent":":1","options":"08000100"}]}`
	got, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var back Tree
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree, back); diff != "" {
		t.Errorf("read back (-want +got)\n%s", diff)
	}
}

func TestHandles(t *testing.T) {
	for h, want := range map[uint32]string{0: "0:", 0x80010000: "8001:", 0x00010002: "1:2", placeholderID: placeholderHandle} {
		if got := handleString(h); got != want {
			t.Errorf("handleString(%#x) = %q, want %q", h, got, want)
		}
	}
	for p, want := range map[uint32]string{0xffffffff: "root", 1: ":1", 0x1f: ":1f", 0x80010002: "8001:2", 0xffff0000: "ffff:"} {
		if got := parentString(p); got != want {
			t.Errorf("parentString(%#x) = %q, want %q", p, got, want)
		}
	}
}

func TestSortLeaves(t *testing.T) {
	leaves := []Qdisc{{Parent: "8001:1"}, {Parent: ":10"}, {Parent: ":2"}, {Parent: "1:f"}, {Parent: ":1", Handle: "20:"}, {Parent: ":1", Handle: "3:"}}
	sortLeaves(leaves)
	want := []Qdisc{{Parent: ":1", Handle: "3:"}, {Parent: ":1", Handle: "20:"}, {Parent: ":2"}, {Parent: ":10"}, {Parent: "1:f"}, {Parent: "8001:1"}}
	if diff := cmp.Diff(want, leaves); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func attribute(kind int, value []byte) []byte {
	b := make([]byte, 4, 4+len(value)+3)
	binary.NativeEndian.PutUint16(b, uint16(4+len(value)))
	binary.NativeEndian.PutUint16(b[2:], uint16(kind))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func qdiscMessage(index int32, handle, parent uint32, attrs ...[]byte) []byte {
	b := make([]byte, sizeofTcmsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], handle)
	binary.NativeEndian.PutUint32(b[12:], parent)
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

func linkMessage(index int32, flags uint32, attrs ...[]byte) []byte {
	b := make([]byte, sizeofIfinfo)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

func TestParseQdisc(t *testing.T) {
	for name, tc := range map[string]struct {
		msg   []byte
		index int
		want  Qdisc
		ok    bool
	}{
		"leaf": {
			qdiscMessage(7, 0, 2, attribute(attrTCAKind, []byte("fq\x00")), attribute(attrTCAOptions, []byte{8, 0, 1, 0})),
			7, Qdisc{Kind: "fq", Handle: "0:", Parent: ":2", Options: "08000100"}, true,
		},
		"nested flag": {
			qdiscMessage(7, 0x80010000, parentRoot, attribute(attrTCAKind, []byte("htb\x00")), attribute(attrTCAOptions|unix.NLA_F_NESTED, []byte{1})),
			7, Qdisc{Kind: "htb", Handle: "8001:", Parent: "root", Options: "01"}, true,
		},
		"no zero byte": {qdiscMessage(1, 0, parentRoot, attribute(attrTCAKind, []byte("fq"))), 1, Qdisc{Kind: "fq", Handle: "0:", Parent: "root"}, true},
		"ingress":      {qdiscMessage(1, 0xffff0000, parentIngress, attribute(attrTCAKind, []byte("ingress\x00"))), 0, Qdisc{}, false},
		"clsact":       {qdiscMessage(1, 0xffff0000, parentIngress, attribute(attrTCAKind, []byte("clsact\x00"))), 0, Qdisc{}, false},
		"no kind":      {qdiscMessage(1, 0, parentRoot), 1, Qdisc{Handle: "0:", Parent: "root"}, false},
		"short":        {make([]byte, sizeofTcmsg-1), 0, Qdisc{}, false},
		"cut off":      {qdiscMessage(1, 0, parentRoot, []byte{99, 0, 1, 0, 'f'}), 1, Qdisc{Handle: "0:", Parent: "root"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			index, got, ok := parseQdisc(tc.msg)
			if index != tc.index || ok != tc.ok {
				t.Errorf("index %d, ok %v; want %d, %v", index, ok, tc.index, tc.ok)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseLink(t *testing.T) {
	got, ok := parseLink(linkMessage(3, unix.IFF_UP, attribute(unix.IFLA_IFNAME, []byte("eth0\x00")), attribute(unix.IFLA_QDISC, []byte("noop\x00"))))
	if want := (linkInfo{index: 3, name: "eth0", kind: "noop", flags: unix.IFF_UP}); !ok || got != want {
		t.Errorf("got %+v, %v; want %+v", got, ok, want)
	}
	for name, msg := range map[string][]byte{"no name": linkMessage(3, 0), "short": make([]byte, sizeofIfinfo-1), "nothing": nil} {
		if l, ok := parseLink(msg); ok {
			t.Errorf("%s: accepted as %+v", name, l)
		}
	}
}

func TestAssemble(t *testing.T) {
	l := linkInfo{index: 2, name: "eth0", kind: "mq"}
	got := assemble(l, []Qdisc{
		{Kind: "fq", Handle: "0:", Parent: ":2"}, {Kind: "mq", Handle: "0:", Parent: "root"}, {Kind: "fq", Handle: "0:", Parent: ":1"},
	})
	if diff := cmp.Diff(kernelTree("mq", "fq", "fq"), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// The kernel does not dump noop.
	if got := assemble(linkInfo{index: 2, name: "eth0", kind: "noop"}, nil); !cmp.Equal(got, kernelTree("noop")) {
		t.Errorf("without qdiscs: %+v", got)
	}
}

func TestExplain(t *testing.T) {
	for errno, want := range map[unix.Errno]error{
		unix.EPERM: ErrPermission, unix.EACCES: ErrPermission, unix.ENODEV: ErrNoLink, unix.EOPNOTSUPP: ErrNoScheduler,
	} {
		if err := explain(errno); !errors.Is(err, want) || !errors.Is(err, errno) {
			t.Errorf("explain(%v) = %v, want %v with its cause", errno, err, want)
		}
	}
	if err := explain(unix.EBUSY); err != unix.EBUSY {
		t.Errorf("explain(EBUSY) = %v", err)
	}
	if !errors.Is(explain(unix.EPERM), fs.ErrPermission) {
		t.Error("EPERM is not fs.ErrPermission any more")
	}
}

func TestRebuildToRefusesKinds(t *testing.T) {
	for _, kind := range notDefault {
		if err := RebuildTo("lo", kind); !errors.Is(err, ErrNotBuilt) {
			t.Errorf("RebuildTo(lo, %q) = %v, want ErrNotBuilt", kind, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(qdiscMessage(7, 0, 2, attribute(attrTCAKind, []byte("fq\x00")), attribute(attrTCAOptions, []byte{8, 0, 1, 0})))
	f.Add(linkMessage(3, unix.IFF_UP, attribute(unix.IFLA_IFNAME, []byte("eth0\x00")), attribute(unix.IFLA_QDISC, []byte("noop\x00"))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, msg []byte) {
		if _, q, ok := parseQdisc(msg); ok {
			if q.Kind == "" || q.Handle == "" || q.Parent == "" {
				t.Errorf("accepted %+v", q)
			}
			if _, err := hex.DecodeString(q.Options); err != nil {
				t.Errorf("options: %v", err)
			}
		}
		if l, ok := parseLink(msg); ok && l.name == "" {
			t.Errorf("accepted %+v", l)
		}
	})
}

func TestMerge(t *testing.T) {
	event := func(index int, c Change) LinkEvent { return LinkEvent{Index: index, Change: c} }
	got := merge(
		[]LinkEvent{event(1, Appeared), event(2, Changed), event(3, Gone), event(4, Appeared)},
		[]LinkEvent{event(1, Changed), event(2, Gone), event(3, Appeared)},
	)
	// Link 1 is still news to the reader; of the others the last word counts.
	want := []LinkEvent{event(4, Appeared), event(1, Appeared), event(2, Gone), event(3, Appeared)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTreesOfThisHost(t *testing.T) {
	trees, err := Trees()
	if err != nil {
		t.Fatal(err)
	}
	for _, tree := range trees {
		if _, err := os.Stat("/sys/class/net/" + tree.Link); err != nil {
			t.Errorf("%+v: %v", tree, err)
		}
		if tree.Root.Kind == "" || tree.Root.Parent != rootParent {
			t.Errorf("%s has no root: %+v", tree.Link, tree)
		}
	}
}
