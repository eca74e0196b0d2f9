package tuning

import (
	"slices"

	"accel/pkg/kernel"
	"accel/pkg/qdisc"
	"accel/pkg/text"
)

// chooseLinks sorts the links into those whose qdisc accel manages and those
// it leaves, with the reason. only names the links an operator asked for; one
// that does not exist is a usage error, one that must be left is impossible.
func chooseLinks(f *kernel.Facts, trees []qdisc.Tree, only []string) (managed []string, left []StatusLink, err error) {
	for _, l := range f.Links {
		reason := unsuitable(l, findTree(trees, l.Name))
		asked := slices.Contains(only, l.Name)
		switch {
		case reason != "" && asked && findTree(trees, l.Name) != nil:
			return nil, nil, problem(ExitImpossible, nil, text.T("the qdisc of %s is left alone: %s", l.Name, reason), text.T("Leave %s out of --link.", l.Name))
		case reason == "" && only != nil && !asked:
			reason = text.T("not among the links asked for")
		}
		if reason == "" {
			managed = append(managed, l.Name)
		} else {
			left = append(left, linkStatus(l.Name, trees, reason))
		}
	}
	return managed, left, nil
}

// checkLinks refuses names of links that do not exist.
func checkLinks(f *kernel.Facts, only []string) error {
	var have []string
	for _, l := range f.Links {
		have = append(have, l.Name)
	}
	for _, n := range only {
		if !slices.Contains(have, n) {
			return problem(ExitUsage, nil, text.T("there is no link %q", n), text.T("Choose among: %s.", join(have)))
		}
	}
	return nil
}

// unsuitable tells why the qdisc of a link must be left alone; "" if it is
// accel's to manage. Other people's shaping is sacred, and so is every link
// that is not the last queue before the wire.
func unsuitable(l kernel.Link, t *qdisc.Tree) string {
	switch {
	case l.Loopback:
		return text.T("loopback")
	case l.Type != kernel.TypeEthernet:
		return text.T("not an Ethernet link")
	case l.Kind != "":
		return text.T("a virtual link (%s)", l.Kind)
	case l.PairedWith != "":
		return text.T("carries the packets of %s, which queues them already: queueing twice", l.PairedWith)
	case !l.Hardware && !l.DefaultRoute:
		return text.T("a virtual link")
	case t == nil:
		return text.T("its qdisc is not known")
	case t.Root.Kind == "noop":
		return text.T("down: it gets the default qdisc when it comes up")
	case t.Root.Kind == "noqueue":
		return text.T("has no queue")
	case !t.KernelMade() && !t.Leftover():
		return text.T("somebody configured its qdisc")
	}
	return ""
}

func findTree(trees []qdisc.Tree, link string) *qdisc.Tree {
	for i := range trees {
		if trees[i].Link == link {
			return &trees[i]
		}
	}
	return nil
}

func linkStatus(name string, trees []qdisc.Tree, reason string) StatusLink {
	s := StatusLink{Name: name, Reason: reason, Leaves: []qdisc.Qdisc{}}
	if t := findTree(trees, name); t != nil {
		root := t.Root
		s.Root = &root
		s.Kind = t.Kind()
		s.placeholder = t.Leftover()
		s.Leaves = append(s.Leaves, t.Leaves...)
		s.ConfiguredBySomeone = !t.KernelMade() && !t.Leftover() && root.Kind != "noop" && root.Kind != "noqueue"
	}
	s.Managed = reason == ""
	return s
}
