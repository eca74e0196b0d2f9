package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"accel/pkg/probe"
	"accel/pkg/socket"
	"accel/pkg/text"
	"accel/pkg/tuning"
)

// probeDocument is what `accel probe --json` prints: accel.probe/1.
type probeDocument struct {
	probe.Result
	Exit int    `json:"exit"`
	Note string `json:"note"`
}

// noGain is what a download over loopback cannot show.
func noGain() string {
	return text.T("This proves that the machinery works, not a gain: over loopback no algorithm can be faster, and no comparison was made.")
}

// probe is the command `accel probe`.
func (a *accel) probe(c *cli.Context) error {
	wanted, err := probe.ParseSize(c.String("size"))
	if err != nil {
		return usage(text.T("--size: %q is no size", c.String("size")), text.T("A size is a whole number of bytes, or one with K, M or G: --size=16M"))
	}
	limit, err := time.ParseDuration(c.String("timeout"))
	if err != nil || limit <= 0 {
		return usage(text.T("--timeout: %q is no time", c.String("timeout")), text.T("A time is a number with a unit: --timeout=90s or --timeout=2m"))
	}
	ctx, cancel := context.WithTimeout(c.Context, limit)
	defer cancel()
	line := newProgress(a.errScreen)
	r, err := probe.Run(ctx, probe.Options{Size: wanted, Algorithm: c.String("algorithm"), Progress: func(done, total int64) {
		line.show(text.T("%d %%, %s of %s", done*100/total, size(done), size(total)))
	}})
	line.clear()
	if err != nil {
		return probeProblem(err, c.String("algorithm"))
	}
	if c.Bool("json") {
		return printJSON(a.out, probeDocument{Result: r, Note: noGain()})
	}
	p := &page{screen: a.outScreen}
	probePage(p, r)
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

func seconds(s float64) string { return digits(s) + " s" }

func roundTrip(us int64) string {
	if us < 1000 {
		return fmt.Sprintf("%d µs", us)
	}
	return digits(float64(us)/1000) + " ms"
}
