package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"accel/pkg/files"
	"accel/pkg/probe"
	"accel/pkg/socket"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// probeDocument is what `accel probe --json` prints: accel.probe/1.
type probeDocument struct {
	probe.Result
	ProbeEnd
}

// probeToDocument is what `accel probe --to URL --json` prints: accel.probe-to/1.
type probeToDocument struct {
	probe.Fetched
	ProbeEnd
}

// historyDocument is what `accel probe --history --json` prints:
// accel.probe-history/1.
type historyDocument struct {
	probe.Kept
	Exit int    `json:"exit"`
	Note string `json:"note"`
}

// ProbeEnd is what the documents of every probe end with.
type ProbeEnd struct {
	Host probe.Mark `json:"host"`
	Kept bool       `json:"kept"`     // in the history
	Lost string     `json:"kept_why"` // it was not kept; "" = it was
	Exit int        `json:"exit"`
	Note string     `json:"note"`
}

// noGain is what a download over loopback cannot show.
func noGain() string {
	return text.T("This proves that the machinery works, not a gain: over loopback no algorithm can be faster, and no comparison was made.")
}

// notOurs is what a download from elsewhere cannot show.
func notOurs() string {
	return text.T("This is what arrives here. The other end sends it, so its algorithm decides, not this host's; which one it has cannot be seen from here.")
}

// notJudged is what a list of downloads cannot show.
func notJudged() string {
	return text.T("Each is one download, and they differ by chance and by the hour: two of them prove no gain. To judge algorithms: accel compare")
}

// probe is the command `accel probe`.
func (a *accel) probe(c *cli.Context) error {
	if c.Bool("history") {
		for _, name := range []string{"to", "size", "algorithm", "timeout"} {
			if c.IsSet(name) {
				return usage(text.T("--history shows earlier probes and makes none, so --%s has no meaning with it", name), text.T("Leave out one of them."))
			}
		}
		return a.probeHistory(c)
	}
	wanted, err := probe.ParseSize(c.String("size"))
	if err != nil {
		return usage(text.T("--size: %q is no size", c.String("size")), text.T("A size is a whole number of bytes, or one with K, M or G: --size=16M"))
	}
	limit, err := time.ParseDuration(c.String("timeout"))
	if err != nil || limit <= 0 {
		return usage(text.T("--timeout: %q is no time", c.String("timeout")), text.T("A time is a number with a unit: --timeout=90s or --timeout=2m"))
	}
	if c.IsSet("to") {
		return a.probeTo(c, wanted, limit)
	}
	end := ProbeEnd{Host: a.mark(c.Context), Note: noGain()}
	ctx, cancel := context.WithTimeout(c.Context, limit)
	defer cancel()
	line := newProgress(a.errScreen)
	start := time.Now()
	r, err := probe.Run(ctx, probe.Options{Size: wanted, Algorithm: c.String("algorithm"), Progress: func(done, total int64) {
		line.show(text.T("%d %%, %s of %s", done*100/total, size(done), size(total)))
	}})
	line.clear()
	if err != nil {
		return probeProblem(err, c.String("algorithm"))
	}
	a.keep(c.Context, r.Entry(start, end.Host), &end)
	if c.Bool("json") {
		return printJSON(a.out, probeDocument{r, end})
	}
	p := &page{screen: a.outScreen}
	probePage(p, r)
	endRows(p, end)
	return p.print()
}

// probeTo is `accel probe --to URL`.
func (a *accel) probeTo(c *cli.Context, wanted int64, limit time.Duration) error {
	if c.IsSet("algorithm") {
		return usage(text.T("--algorithm is for what this host sends; with --to the other end sends, and its algorithm decides"), text.T("Leave out one of them."))
	}
	u, err := probe.ParseURL(c.String("to"))
	if err != nil {
		example := "https://example.org/file"
		if u, err := probe.ParseURL("http://" + c.String("to")); err == nil && u.User == nil && u.RawQuery == "" {
			example = probe.Shown(u)
		}
		return usage("--to: "+err.Error(), text.T("Write --%s=%s.", "to", example))
	}
	end := ProbeEnd{Host: a.mark(c.Context), Note: notOurs()}
	ctx, cancel := context.WithTimeout(c.Context, limit)
	defer cancel()
	line := newProgress(a.errScreen)
	start := time.Now()
	f, err := probe.Fetch(ctx, u, probe.FetchOptions{Size: wanted, Progress: func(done, total int64) {
		if total > 0 {
			line.show(text.T("%d %%, %s of %s", done*100/total, size(done), size(total)))
		} else {
			line.show(text.T("%s so far", size(done)))
		}
	}})
	line.clear()
	if err != nil {
		return fetchProblem(err)
	}
	a.keep(c.Context, f.Entry(start, end.Host), &end)
	if c.Bool("json") {
		return printJSON(a.out, probeToDocument{f, end})
	}
	p := &page{screen: a.outScreen}
	probeToPage(p, f)
	endRows(p, end)
	return p.print()
}

// mark says what this host is like. Where that cannot be found out, the probe
// goes on all the same.
func (a *accel) mark(ctx context.Context) probe.Mark {
	var m probe.Mark
	s, err := tuning.Assess(ctx, a.live())
	if err != nil {
		return m
	}
	m.Kernel, m.Verdict = s.Kernel.Release, string(s.Verdict)
	if s.Algorithm.Socket != nil {
		m.Algorithm = *s.Algorithm.Socket
	}
	if s.Enabled != nil {
		m.Profile = s.Enabled.Profile
	}
	return m
}

// keep puts a probe into the history. It never makes a success a failure.
func (a *accel) keep(ctx context.Context, e probe.Entry, end *ProbeEnd) {
	if a.euid() != 0 {
		end.Lost = text.T("only root may write %s", probe.HistoryFile)
		return
	}
	say := func(sentence string) {
		for _, l := range text.Wrap("accel: "+text.Safe(sentence), a.errScreen.columns) {
			fmt.Fprintln(a.err, l)
		}
	}
	aside, err := probe.History{}.Keep(ctx, e)
	if aside != "" {
		say(text.T("%s was damaged; it is set aside as %s, and a new one begins", probe.HistoryFile, aside))
	}
	if err != nil {
		end.Lost = err.Error()
		say(text.T("this probe is not kept: %s", err))
		return
	}
	end.Kept = true
}

// probeHistory is `accel probe --history`.
func (a *accel) probeHistory(c *cli.Context) error {
	k, err := probe.History{}.Read()
	if err != nil {
		p := &tuning.Problem{Exit: tuning.ExitFailed, Err: err, Next: text.T("Mend the cause and try again.")}
		switch {
		case errors.Is(err, probe.ErrNewer):
			p.Next = text.T("Install the newer accel to read it.")
		case errors.Is(err, probe.ErrDamaged):
			p.Next = text.T("It is left as it is. The next accel probe as root sets it aside under another name and begins a new one.")
		case errors.Is(err, files.ErrPermission):
			p.Next = text.T("Run it as root: sudo accel %s", "probe --history")
		}
		return p
	}
	if c.Bool("json") {
		return printJSON(a.out, historyDocument{Kept: k, Note: notJudged()})
	}
	p := &page{screen: a.outScreen}
	historyPage(p, k.Entries)
	return p.print()
}

// probeProblem adds the next step to an error of the download.
func probeProblem(err error, algorithm string) error {
	p := &tuning.Problem{Exit: tuning.ExitFailed, Err: err}
	switch {
	case errors.Is(err, context.Canceled):
		p.Err = text.Errorf("interrupted; nothing is left behind")
	case errors.Is(err, socket.ErrNoLoopback):
		p.Next = text.T("Set the loopback link up: ip link set lo up")
	case errors.Is(err, socket.ErrNoAlgorithm):
		p.Exit = tuning.ExitImpossible
		p.Next = text.T("The algorithms that can be had are listed by: accel detect")
	case errors.Is(err, socket.ErrPermission):
		p.Next = text.T("Run it as root: sudo accel %s", "probe --algorithm="+algorithm)
	case errors.Is(err, probe.ErrNothingArrived), errors.Is(err, context.DeadlineExceeded):
		p.Next = text.T("Give it more time with --timeout, and see that nothing filters the loopback link.")
	}
	return p
}

// fetchProblem adds the next step to an error of a download from elsewhere.
func fetchProblem(err error) error {
	p := &tuning.Problem{Exit: tuning.ExitFailed, Err: err}
	var (
		name        *net.DNSError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		alert       tls.AlertError
	)
	switch {
	case errors.Is(err, context.Canceled):
		p.Err = text.Errorf("interrupted; nothing is left behind")
	case errors.Is(err, probe.ErrNothingArrived):
		p.Next = text.T("See that the host answers there and that nothing on the way filters it, or give it more time with --timeout.")
	case errors.Is(err, probe.ErrStatus):
		p.Next = text.T("Name a file that the server gives to everybody, best one of 10 MiB and more.")
	case errors.Is(err, probe.ErrEmpty):
		p.Next = text.T("Name a larger file, best one of 10 MiB and more.")
	case errors.Is(err, probe.ErrRedirect):
		p.Next = text.T("Name the address of the file itself.")
	case errors.Is(err, probe.ErrBroken):
		p.Next = text.T("Try again, or name another file.")
	case errors.As(err, &name):
		p.Next = text.T("See that the name is right and that this host can resolve names: getent hosts %s", name.Name)
	case errors.As(err, &certificate):
		p.Next = text.T("See that the clock of this host is right and that ca-certificates is installed; accel trusts what the host trusts.")
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		p.Next = text.T("The other end speaks no TLS there: try http:// instead of https://")
	case errors.As(err, &alert):
		p.Next = text.T("The other end refuses this TLS connection; try another server.")
	case errors.Is(err, syscall.ECONNREFUSED):
		p.Next = text.T("Nothing listens there: see that the port is right and that the server runs.")
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		p.Next = text.T("This host has no route to that address: see ip route, and ip -6 route for IPv6.")
	default:
		p.Next = text.T("See that the address is right. accel uses no proxy.")
	}
	return p
}

// probeLine tells a download in one sentence.
func probeLine(r probe.Result) string {
	version := ""
	if r.BBRVersion != nil {
		version = text.T(", version %d", *r.BBRVersion)
	}
	return text.T("%s over loopback in %s, %s, %d segments sent again, by %s%s. This proves the machinery, not a gain.",
		size(r.Bytes), seconds(r.Seconds), rate(r.Throughput), r.Sender.Retransmits, r.Algorithm, version)
}

func probePage(p *page, r probe.Result) {
	if r.Complete {
		p.headline(green, text.T("measured"), text.T("%s arrived in %s, %s", size(r.Bytes), seconds(r.Seconds), rate(r.Throughput)))
	} else {
		p.headline(yellow, text.T("stopped"), text.T("%s of %s arrived in %s, %s", size(r.Bytes), size(r.Size), seconds(r.Seconds), rate(r.Throughput)))
	}
	p.paragraph(noGain())
	p.gap()
	s := r.Sender
	algorithm := r.Algorithm
	if r.BBRVersion != nil {
		algorithm += text.T(", version %d", *r.BBRVersion)
	}
	p.row(text.T("Algorithm"), algorithm)
	again := text.T("%d segments", s.Retransmits)
	if s.SegmentsOut != nil {
		again = text.T("%d of %d segments", s.Retransmits, *s.SegmentsOut)
	}
	p.row(text.T("Sent again"), again)
	rtt := text.T("%s median, %s at most", roundTrip(s.RTT), roundTrip(s.MaxRTT))
	if s.MinRTT != nil {
		rtt = text.T("%s at least, ", roundTrip(*s.MinRTT)) + rtt
	}
	p.row(text.T("Round trip"), rtt)
	p.row(text.T("Window"), text.T("%d segments at the end, %d at most; %d bytes each", s.Cwnd, s.MaxCwnd, s.MSS))
	pacing := text.T("not paced")
	if s.PacingRate != nil {
		pacing = rate(*s.PacingRate)
	}
	p.row(text.T("Pacing rate"), pacing)
	if s.DeliveryRate != nil {
		p.row(text.T("Delivery rate"), text.T("%s, the kernel's last estimate", rate(*s.DeliveryRate)))
	}
	family := "IPv4"
	if r.Family == "inet6" {
		family = "IPv6"
	}
	p.row(text.T("Over"), text.T("loopback, %s", family))
}

// endRows says what became of the probe.
func endRows(p *page, end ProbeEnd) {
	if end.Kept {
		p.row(text.T("Kept"), text.T("for later: accel probe --history"))
	} else {
		p.row(text.T("Not kept"), end.Lost)
	}
}

// smallDownload is less than a path needs to show its rate, in bytes.
const smallDownload = 1 << 20

func probeToPage(p *page, f probe.Fetched) {
	if f.Complete {
		p.headline(green, text.T("measured"), text.T("%s arrived in %s, %s", size(f.Bytes), seconds(f.Seconds), rate(f.Throughput)))
	} else {
		p.headline(yellow, text.T("stopped"), text.T("the time was up when %s had arrived in %s, %s", size(f.Bytes), seconds(f.Seconds), rate(f.Throughput)))
	}
	p.paragraph(notOurs())
	p.gap()
	p.row(text.T("From"), f.URL)
	p.row(text.T("Redirected"), f.Redirects...)
	family := "IPv4"
	if f.Family == "inet6" {
		family = "IPv6"
	}
	over := family + ", " + f.Address
	if f.TLS != "" {
		over += ", " + f.TLS
	}
	p.row(text.T("Over"), over)
	var phases []string
	for _, phase := range []struct {
		took *float64
		say  func(took string) string
	}{
		{f.Lookup, func(took string) string { return text.T("name %s", took) }},
		{f.Connect, func(took string) string { return text.T("connection %s", took) }},
		{f.Handshake, func(took string) string { return text.T("TLS %s", took) }},
	} {
		if phase.took != nil {
			phases = append(phases, phase.say(roundTrip(int64(*phase.took*1e6))))
		}
	}
	first := text.T("after %s", roundTrip(int64(f.FirstByte*1e6)))
	if len(phases) > 0 {
		first += text.T(" (of which %s)", strings.Join(phases, ", "))
	}
	p.row(text.T("First byte"), first)
	if f.BodyRate != nil {
		p.row(text.T("From there on"), rate(*f.BodyRate))
	}
	var rtt []string
	if f.Receiver.MinRTT != nil {
		rtt = append(rtt, text.T("%s at least", roundTrip(*f.Receiver.MinRTT)))
	}
	if f.Receiver.DataRTT != nil {
		rtt = append(rtt, text.T("%s by what arrived last, queues and pauses included", roundTrip(*f.Receiver.DataRTT)))
	}
	if len(rtt) > 0 {
		p.row(text.T("Round trip"), strings.Join(rtt, ", "))
	}
	if f.Receiver.Segments != nil && f.Receiver.OutOfOrder != nil {
		p.row(text.T("Out of order"), text.T("%d of %d segments; one before them was lost or overtaken", *f.Receiver.OutOfOrder, *f.Receiver.Segments))
	}
	if f.Complete && f.Bytes < smallDownload {
		p.row(text.T("Mind"), text.T("so small a file says little about the rate; name one of 10 MiB or more"))
	}
}

// shownHistory is how many probes are shown of each source.
const shownHistory = 20

// historyPage lists earlier probes by where they came from, the latest last.
func historyPage(p *page, entries []probe.Entry) {
	if len(entries) == 0 {
		p.headline(yellow, text.T("no earlier probes"), text.T("accel probe keeps them when root runs it"))
		return
	}
	p.headline(green, text.T("earlier probes"), text.T("%d, in %s", len(entries), probe.HistoryFile))
	p.paragraph(notJudged())
	var sources []string
	by := map[string][]probe.Entry{}
	for _, e := range entries {
		if by[e.URL] == nil {
			sources = append(sources, e.URL)
		}
		by[e.URL] = append(by[e.URL], e)
	}
	for _, source := range sources {
		p.gap()
		if source == "" {
			p.paragraph(text.T("Over loopback, where no algorithm can gain"))
		} else {
			p.paragraph(text.T("From %s, whose end decides how it is sent", source))
		}
		list := by[source]
		if more := len(list) - shownHistory; more > 0 {
			p.paragraph(text.T("  (%d earlier ones are in --json)", more))
			list = list[more:]
		}
		historyTable(p, list)
	}
}

func historyTable(p *page, list []probe.Entry) {
	table := [][]string{{text.T("When (UTC)"), text.T("Host had"), text.T("Arrived"), text.T("In"), text.T("Rate"), text.T("RTT")}}
	for _, e := range list {
		host := cmp.Or(e.Host.Algorithm, "?")
		if e.Host.Profile != "" {
			host = text.T("%s, %s", host, e.Host.Profile)
		}
		if e.Algorithm != "" && e.Algorithm != e.Host.Algorithm {
			host = text.T("%s, asked for", e.Algorithm)
		}
		arrived := size(e.Bytes)
		if !e.Complete {
			arrived = text.T("%s, stopped", arrived)
		}
		rtt := ""
		if e.MinRTT != nil {
			rtt = roundTrip(*e.MinRTT)
		}
		table = append(table, []string{e.At.UTC().Format("2006-01-02 15:04"), text.Safe(host), arrived, seconds(e.Seconds), rate(e.Throughput), rtt})
	}
	widths := make([]int, len(table[0]))
	for _, line := range table {
		for i, cell := range line {
			widths[i] = max(widths[i], text.Width(cell))
		}
	}
	for _, line := range table {
		var b strings.Builder
		b.WriteString("  ")
		for i, cell := range line {
			b.WriteString(text.Pad(cell, widths[i]+2))
		}
		for _, l := range text.Wrap(strings.TrimRight(b.String(), " "), p.screen.columns) {
			p.line(l)
		}
	}
}

// rate prints a number of bits per second with three digits.
func rate(bits uint64) string {
	f := float64(bits)
	for _, unit := range []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s"} {
		if f < 999.5 || unit == "Gbit/s" {
			return digits(f) + " " + unit
		}
		f /= 1000
	}
	return ""
}

// size prints a number of bytes in binary units with three digits.
func size(bytes int64) string {
	f := float64(bytes)
	for _, unit := range []string{"bytes", "KiB", "MiB", "GiB", "TiB"} {
		if f < 1023.5 || unit == "TiB" {
			if unit == "bytes" {
				return fmt.Sprintf("%d bytes", bytes)
			}
			return digits(f) + " " + unit
		}
		f /= 1024
	}
	return ""
}

// digits prints three significant digits, without a trailing ".00".
func digits(f float64) string {
	decimals := 2
	switch {
	case f >= 99.95:
		decimals = 0
	case f >= 9.995:
		decimals = 1
	}
	s := fmt.Sprintf("%.*f", decimals, f)
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// seconds prints a time, a short one in smaller units.
func seconds(s float64) string {
	if s < 0.1 {
		return roundTrip(int64(s * 1e6))
	}
	return digits(s) + " s"
}

func roundTrip(us int64) string {
	if us < 1000 {
		return fmt.Sprintf("%d µs", us)
	}
	return digits(float64(us)/1000) + " ms"
}
