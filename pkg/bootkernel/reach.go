package bootkernel

import (
	"context"
	"slices"
	"strings"

	"accel/pkg/kernel"
	"accel/pkg/route"
	"accel/pkg/text"
)

// Checks are what was true of the host with the old kernel and has to be true
// again with the new one: that it can be reached, and that it sends with the
// algorithm it sent with.
type Checks struct {
	// Gateways answered ARP or neighbour discovery, or need neither.
	Gateways []route.Gateway `json:"gateways"`
	// SSH are the TCP ports that an SSH server listened on.
	SSH []int `json:"ssh"`
	// Algorithm is what an established connection had; "" where it could not be
	// told, or was the old kernel's own default: another kernel may have another.
	Algorithm string `json:"algorithm"`
}

// sshPort is where an SSH server is expected that systemd starts when somebody
// connects.
const sshPort = 22

// observe finds out what is true now.
func (h *Host) observe(ctx context.Context) (Checks, error) {
	var c Checks
	gateways, err := h.Network.Gateways()
	if err != nil {
		return c, err
	}
	for _, g := range gateways {
		if h.Network.Resolve(ctx, g) {
			c.Gateways = append(c.Gateways, g)
		}
	}
	if c.SSH, err = h.Network.Listening(true); err != nil {
		return c, err
	}
	if len(c.SSH) == 0 {
		if all, err := h.Network.Listening(false); err == nil && slices.Contains(all, sshPort) {
			c.SSH = []int{sshPort}
		}
	}
	t, err := h.tree()
	if err != nil {
		return c, err
	}
	defer t.Close()
	if e, err := h.SelfConnect(ctx); err == nil && e.Client != ownDefault(t, running(t)) {
		c.Algorithm = e.Client
	}
	return c, nil
}

// ownDefault is the algorithm that a kernel was built to begin with
// (DEFAULT_TCP_CONG in net/ipv4/Kconfig); "" where its configuration is not there.
func ownDefault(t *kernel.Tree, release string) string {
	for line := range strings.Lines(read(t, "/boot/config-"+release)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "CONFIG_DEFAULT_TCP_CONG="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// missing names what was true before and is not now, in words; nothing if all of
// it is.
func (h *Host) missing(ctx context.Context, before Checks) []text.Sentence {
	var out []text.Sentence
	gateways, err := h.Network.Gateways()
	if err != nil {
		out = append(out, text.Keep("the default routes cannot be read: %s", err))
	}
	told := map[string]bool{}
	for _, want := range before.Gateways {
		family := "IPv4"
		if want.Family == "inet6" {
			family = "IPv6"
		}
		// A link may have got another name, and a router another address: what
		// counts is a default route of the family whose gateway answers.
		var same []route.Gateway
		for _, g := range gateways {
			if g.Family == want.Family {
				same = append(same, g)
			}
		}
		var line text.Sentence
		switch {
		case len(same) == 0:
			line = text.Keep("there is no default route for %s", family)
		case !slices.ContainsFunc(same, func(g route.Gateway) bool { return h.Network.Resolve(ctx, g) }):
			line = text.Keep("the gateway for %s does not answer", family)
		}
		if line.Format != "" && !told[family] {
			told[family] = true
			out = append(out, line)
		}
	}
	listening, err := h.Network.Listening(false)
	if err != nil {
		out = append(out, text.Keep("the sockets cannot be read: %s", err))
	}
	for _, port := range before.SSH {
		if !slices.Contains(listening, port) {
			out = append(out, text.Keep("no SSH server listens on port %s", port))
		}
	}
	if before.Algorithm != "" {
		e, err := h.SelfConnect(ctx)
		switch {
		case err != nil:
			out = append(out, text.Keep("the algorithm in force cannot be told: %s", err))
		case e.Client != before.Algorithm:
			out = append(out, text.Keep("%s is in force, not %s", e.Client, before.Algorithm))
		}
	}
	return out
}

// trialToken gives the token on the kernel's command line, "" if this boot is not
// a trial.
func trialToken(t *kernel.Tree) string {
	for _, word := range strings.Fields(read(t, "/proc/cmdline")) {
		if token, ok := strings.CutPrefix(word, trialOption+"="); ok {
			return token
		}
	}
	return ""
}

func running(t *kernel.Tree) string { return read(t, "/proc/sys/kernel/osrelease") }

func bootID(t *kernel.Tree) string { return read(t, "/proc/sys/kernel/random/boot_id") }
